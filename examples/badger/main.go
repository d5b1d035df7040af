// Command badger keeps a bank in Badger. The transactions are managed: their timestamps come from
// three nodes of the oracle. Leaders of the oracle, clients and the process that owns the store are
// killed. Then a checker reads everything. README.md says what is shown, and why it is right.
package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/epicepoch/epicepoch/examples/bank"
)

// exampleName is in the errors of this program.
const exampleName = "badger"

func main() {
	if len(os.Args) > 1 && os.Args[1] == lifeCommand {
		if err := runLife(os.Args[2:]); err != nil {
			bank.Fail(exampleName, err)
		}
		return
	}
	bank.Main(exampleName, plants, run)
}

// run starts a cluster of the oracle, and works and checks on it.
func run(duration time.Duration, plant plant, out io.Writer) (*bank.Report, error) {
	done, kills, took, err := bank.UnderKills(func(addrs []string) (*result, error) {
		return work(addrs, duration, plant)
	})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "%.1f s: %d clients in one process, %d accounts in Badger\n", took.Seconds(), workers, accounts)
	fmt.Fprintf(out, "killed     %v\n", kills)
	fmt.Fprint(out, done.text(took))
	fmt.Fprint(out, done.report)
	return done.report, nil
}

// result is what the processes of a store have done.
type result struct {
	report        *bank.Report
	txns          []*bank.Txn
	versions      bank.Versions
	kills, closes int
}

// lifeMin and lifeMax limit how long a process owns the store until it is killed or told to stop.
const (
	lifeMin = 700 * time.Millisecond
	lifeMax = 2 * time.Second
	// closeMax limits how long a process may take to stop.
	closeMax = 20 * time.Second
)

// work lets one process after the other own a new store, and checks what they have left.
func work(addrs []string, duration time.Duration, plant plant) (done *result, err error) {
	dir, err := os.MkdirTemp("", "epicepoch-badger-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	done = &result{versions: bank.Versions{}}
	end := time.Now().Add(duration)
	for number := 0; number == 0 || time.Now().Before(end); number++ {
		left := time.Until(end)
		lasts := lifeMin + rand.N(lifeMax-lifeMin)
		// Two of three processes are killed. The last one is told to stop.
		isLast := left-lasts < lifeMin
		if isLast {
			lasts = max(left, lifeMin)
		}
		isKilled := !isLast && number%3 != 2
		if err := oneLife(dir, addrs, number, plant, lasts, isKilled); err != nil {
			return nil, err
		}
		if isKilled {
			done.kills++
		} else {
			done.closes++
		}
	}
	if done.txns, err = bank.ReadHistory(historyPath(dir)); err != nil {
		return nil, err
	}
	err = versions(storePath(dir), func(key string, ts uint64, bytes []byte) error {
		value, err := bank.ParseValue(bytes)
		done.versions[key] = append(done.versions[key], bank.Version{TS: ts, Value: value})
		return err
	})
	if err != nil {
		return nil, err
	}
	done.report = bank.Check(done.txns, done.versions, accounts*firstBalance)
	return done, nil
}

// oneLife starts a process that owns the store, and ends it.
func oneLife(dir string, addrs []string, number int, plant plant, lasts time.Duration, isKilled bool) error {
	own, err := os.Executable()
	if err != nil {
		return err
	}
	process := exec.Command(own, lifeCommand, "-number", fmt.Sprint(number), "-dir", dir,
		"-addr", strings.Join(addrs, ","), "-plant", string(plant))
	var said strings.Builder
	process.Stdout, process.Stderr = &said, &said
	if err := process.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	select {
	case err := <-ended:
		return fmt.Errorf("process %d ended by itself: %v\n%s", number, err, said.String())
	case <-time.After(lasts):
	}
	how := syscall.SIGTERM
	if isKilled {
		how = syscall.SIGKILL
	}
	if err := process.Process.Signal(how); err != nil {
		return err
	}
	select {
	case err = <-ended:
	case <-time.After(closeMax):
		err = errors.Join(fmt.Errorf("process %d does not stop", number), process.Process.Kill(), <-ended)
	}
	if isKilled {
		var end *exec.ExitError
		if errors.As(err, &end) && end.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("process %d: %w\n%s", number, err, said.String())
	}
	return nil
}

// text is what happened, for people.
func (r *result) text(took time.Duration) string {
	counts := map[bank.Outcome]int{}
	there, blind := 0, 0
	inStore := map[string]bool{}
	for _, list := range r.versions {
		for _, version := range list {
			inStore[version.Writer] = true
		}
	}
	for _, txn := range r.txns {
		counts[txn.Outcome]++
		if txn.Outcome == bank.Unknown && inStore[txn.ID] {
			there++
		}
		if txn.Outcome == bank.Committed && txn.Reads != nil && len(txn.Reads) == 0 {
			blind++
		}
	}
	committed := counts[bank.Committed]
	return fmt.Sprintf("           %d processes that owned the store (told to stop: %d)\n", r.kills, r.closes) +
		fmt.Sprintf("cut off    %d commits that had happened, %d that had not\n", there, counts[bank.Unknown]-there) +
		fmt.Sprintf("committed  %d transfers (%.0f/s), %d of them blind; %d transactions only read\n",
			committed, float64(committed)/took.Seconds(), blind, counts[bank.OnlyRead]) +
		fmt.Sprintf("aborted    %d (another one committed first, or it took too long)\n", counts[bank.Aborted])
}
