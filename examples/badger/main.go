// Command badger keeps a bank in Badger. The transactions are managed: their timestamps come from
// three nodes of the oracle. Leaders of the oracle, clients and the process that owns the store are
// killed. Then a checker reads everything. README.md says what is shown, and why it is right.
package main

import (
	"context"
	"errors"
	"flag"
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

func main() {
	if len(os.Args) > 1 && os.Args[1] == lifeCommand {
		if err := runLife(os.Args[2:]); err != nil {
			fail(err)
		}
		return
	}
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
	report, err := run(time.Duration(*seconds*float64(time.Second)), plant, os.Stdout)
	if err != nil {
		fail(err)
	}
	if len(report.Counts) != 0 {
		os.Exit(1)
	}
}

// killLeaderEvery is the pause between the loss of two leaders.
const killLeaderEvery = 1500 * time.Millisecond

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
	there := 0
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
	}
	committed := counts[bank.Committed]
	return fmt.Sprintf("           %d processes that owned the store (told to stop: %d)\n", r.kills, r.closes) +
		fmt.Sprintf("cut off    %d commits that had happened, %d that had not\n", there, counts[bank.Unknown]-there) +
		fmt.Sprintf("committed  %d transfers (%.0f/s); %d transactions only read\n",
			committed, float64(committed)/took.Seconds(), counts[bank.OnlyRead]) +
		fmt.Sprintf("aborted    %d (another one committed first, or it took too long)\n", counts[bank.Aborted])
}
