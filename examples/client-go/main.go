// Command client-go runs TiKV's Go client on timestamps from EpicEpoch. The store is client-go's own
// mock of TiKV. Clients move money while leaders of the oracle, and clients in the middle of a commit,
// are killed. Then a checker reads everything. README.md says what is shown.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	"github.com/pingcap/log"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/epicepoch/epicepoch/examples/bank"
)

func main() {
	seconds := flag.Float64("seconds", 10, "how long clients work, 1 to 3600")
	planted := flag.String("plant", "", "a mistake that the checker must find (README.md has a list)")
	flag.Parse()
	plant, err := parsePlant(*planted)
	if err != nil {
		fail(err)
	}
	if *seconds < 1 || *seconds > 3600 || flag.NArg() != 0 {
		fail(errors.New("--seconds is 1 to 3600, and there is no other argument than --plant"))
	}
	quiet()
	report, err := run(time.Duration(*seconds*float64(time.Second)), plant, os.Stdout)
	if err != nil {
		fail(err)
	}
	if len(report.Counts) != 0 {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "client-go example:", err)
	os.Exit(2)
}

// quiet drops what client-go logs: it warns about each lock of a killed client.
func quiet() {
	log.ReplaceGlobals(zap.NewNop(), &log.ZapProperties{Core: zapcore.NewNopCore(), Level: zap.NewAtomicLevel()})
}

func parsePlant(text string) (plant, error) {
	if _, isKnown := plants[plant(text)]; !isKnown && text != "" {
		var names []string
		for name := range plants {
			names = append(names, string(name))
		}
		slices.Sort(names)
		return none, fmt.Errorf("--plant %q: the mistakes are %s", text, strings.Join(names, ", "))
	}
	return plant(text), nil
}

const (
	// killLeaderEvery is the pause between the loss of two leaders.
	killLeaderEvery = 1500 * time.Millisecond
	// callMax is how long a client waits for a timestamp.
	callMax = 5 * time.Second
)

// run starts a cluster of the oracle, and works and checks on it.
func run(duration time.Duration, plant plant, out io.Writer) (report *bank.Report, err error) {
	binary, err := bank.Binary(context.Background())
	if err != nil {
		return nil, err
	}
	nodes, err := bank.StartNodes(binary)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nodes.Close()) }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var kills bank.Kills
	killed := make(chan error, 1)
	go func() {
		var err error
		kills, err = nodes.KillLeaders(ctx, killLeaderEvery)
		killed <- err
	}()
	began := time.Now()
	done, err := work(nodes.Addrs(), duration, plant)
	took := time.Since(began)
	cancel()
	if err := errors.Join(err, <-killed); err != nil {
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
		fmt.Sprintf("aborted    %d (another one committed first); locks of %d expired\n", counts[bank.Aborted], r.expired)
}
