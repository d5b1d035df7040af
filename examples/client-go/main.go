// Command client-go runs TiKV's Go client on timestamps from EpicEpoch. The store is client-go's own
// mock of TiKV. Clients move money while leaders of the oracle, and clients in the middle of a commit,
// are killed. Then a checker reads everything. README.md says what is shown.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	"github.com/pingcap/log"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/epicepoch/epicepoch/examples/bank"
)

// exampleName is in the errors of this program.
const exampleName = "client-go"

func main() {
	quiet()
	bank.Main(exampleName, plants, run)
}

// quiet drops what client-go logs: it warns about each lock of a killed client.
func quiet() {
	log.ReplaceGlobals(zap.NewNop(), &log.ZapProperties{Core: zapcore.NewNopCore(), Level: zap.NewAtomicLevel()})
}

// callMax is how long a client waits for a timestamp.
const callMax = 5 * time.Second

// run starts a cluster of the oracle, and works and checks on it.
func run(duration time.Duration, plant plant, out io.Writer) (*bank.Report, error) {
	done, kills, took, err := bank.UnderKills(func(addrs []string) (*result, error) {
		return work(addrs, duration, plant)
	})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "%.1f s: %d clients, %d accounts in client-go's mock of TiKV\n", took.Seconds(), workers, accounts)
	fmt.Fprintf(out, "killed     %v\n", kills)
	fmt.Fprint(out, done.text(took))
	fmt.Fprint(out, done.report)
	return done.report, nil
}

// work runs clients on a new store, and checks what they have left.
func work(addrs []string, duration time.Duration, plant plant) (done *result, err error) {
	client, err := epicepoch.Dial(context.Background(), addrs, epicepoch.WithCallTimeout(callMax))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	b, err := newBank(client, plant)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.store.Close()) }()
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	if err := b.run(ctx); err != nil {
		return nil, err
	}
	versions, err := b.versions()
	if err != nil {
		return nil, err
	}
	txns := b.records()
	return &result{
		report: bank.Check(txns, versions, accounts*firstBalance), txns: txns, versions: versions,
		killed: b.killed.Load(), late: b.late.Load(), expired: b.expired.Load(),
	}, nil
}

// result is what clients did on one store.
type result struct {
	report                *bank.Report
	txns                  []*bank.Txn
	versions              bank.Versions
	killed, late, expired int64
}

// text is what happened, for people.
func (r *result) text(took time.Duration) string {
	counts := map[bank.Outcome]int{}
	inStore := map[string]bool{}
	for _, list := range r.versions {
		for _, version := range list {
			inStore[version.Writer] = true
		}
	}
	there := 0
	for _, txn := range r.txns {
		counts[txn.Outcome]++
		if txn.Outcome == bank.Unknown && inStore[txn.ID] {
			there++
		}
	}
	committed := counts[bank.Committed]
	return fmt.Sprintf("           %d clients in the middle of a commit, %d of them after the primary\n", r.killed, r.late) +
		fmt.Sprintf("cut off    %d transactions that had happened, %d that had not\n", there, counts[bank.Unknown]-there) +
		fmt.Sprintf("committed  %d transfers (%.0f/s); %d transactions only read\n",
			committed, float64(committed)/took.Seconds(), counts[bank.OnlyRead]) +
		fmt.Sprintf("aborted    %d (another one committed first); locks of %d expired\n",
			counts[bank.Aborted], r.expired)
}
