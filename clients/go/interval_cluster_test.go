package epicepoch

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// eventually waits until the condition holds, for half a minute at most.
func (c *cluster) eventually(what string, holds func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not in time: %s", what)
		}
	}
}

// startIntervalCluster starts three nodes, and changes their cluster to interval mode.
func startIntervalCluster(t *testing.T) *cluster {
	t.Helper()
	c := startCluster(t, "INTERVAL_SOURCE=fixed=1ms", "INTERVAL_BOUND_MAX_MS=2")
	client := dial(t, c.http, WithIntervals())
	if _, err := client.Interval(within(t, 30*time.Second)); !errors.Is(err, ErrOtherMode) {
		t.Fatal("the mode is quorum", err)
	}
	var said []byte
	// A new cluster raises the format of its state in steps.
	c.eventually("the mode is changed", func() bool {
		command := exec.Command(c.bin, "settings", "set", "MODE=interval", "--addr", strings.Join(c.http, ","))
		var err error
		said, err = command.CombinedOutput()
		return err == nil
	})
	for at := range c.nodes {
		c.eventually("a node gives intervals: "+string(said), func() bool { return c.stamps(at) })
	}
	return c
}

// stamps returns whether a node gives intervals. The client also asks the members that the node names.
func (c *cluster) stamps(at int) bool {
	client := dial(c.t.(*testing.T), c.http[at:at+1], WithIntervals())
	defer client.Close()
	got, err := client.Interval(within(c.t.(*testing.T), time.Second))
	return err == nil && got.Timestamp.Index>>48&0x7fff == uint64(at+1)
}

// One node alone answers, whichever it is, and a waited-out timestamp is below every later one.
func TestAnyNodeAloneAnswersInIntervalMode(t *testing.T) {
	c := startIntervalCluster(t)
	// A client that has found the leader has interval mode, too.
	client := dial(t, c.http)
	if _, err := client.Timestamp(within(t, 30*time.Second)); !errors.Is(err, ErrOtherMode) {
		t.Error("the mode is interval", err)
	}
	var last Interval
	for alive := range c.nodes {
		for other := range c.nodes {
			if other != alive {
				c.stop(other, syscall.SIGKILL)
			}
		}
		for range 3 {
			got, err := client.Intervals(within(t, 30*time.Second), 5)
			if err != nil {
				t.Fatal(err)
			}
			if !last.Timestamp.Before(got.Timestamp) {
				t.Errorf("%v after %v", got, last)
			}
			// A reader that finds a value of its own future reads again, later.
			must, err := client.MustRetry(within(t, 30*time.Second), last.Timestamp, got.Timestamp)
			if !must || err != nil {
				t.Error(must, err)
			}
			later, err := client.Interval(within(t, 30*time.Second))
			if err != nil || later.EarliestNanos <= got.LatestNanos || !got.IsSurelyBefore(later) {
				t.Error(later, got, err)
			}
			if err := client.CommitWait(context.Background(), later); err != nil || time.Now().Before(later.ReadyAt()) {
				t.Error(err)
			}
			last = later
		}
		for other := range c.nodes {
			if other != alive {
				c.start(other)
			}
		}
		// With a quorum, each node learns the mode again, if it was not on its disk.
		for at := range c.nodes {
			c.eventually("it is back", func() bool { return c.stamps(at) })
		}
	}
}

// Callers stamp at their own nodes and wait, while nodes are killed and stopped. If a call and its wait
// have ended before another call begins, its timestamp is the lower one.
func TestIntervalsThatWereWaitedOutAreInOrderWhileNodesAreLost(t *testing.T) {
	c := startIntervalCluster(t)
	var (
		all     sync.WaitGroup
		stop    atomic.Bool
		mu      sync.Mutex
		highest Timestamp
		counts  [3]atomic.Int64
	)
	given := make(map[Timestamp]bool)
	call := func(client *Client, at int) {
		mu.Lock()
		floor := highest
		mu.Unlock()
		got, err := client.Interval(context.Background())
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if err == nil {
			err = client.CommitWait(context.Background(), got)
		}
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !floor.Before(got.Timestamp) {
			t.Errorf("%v is not above %v, which was waited out before", got.Timestamp, floor)
		}
		if given[got.Timestamp] {
			t.Errorf("%v was given twice", got.Timestamp)
		}
		given[got.Timestamp] = true
		if highest.Before(got.Timestamp) {
			highest = got.Timestamp
		}
		counts[at].Add(1)
	}
	for at := range c.nodes {
		// The client prefers its own node, and asks the others if that is lost.
		client := dial(t, append(append([]string{}, c.http[at:]...), c.http[:at]...), WithIntervals())
		for range 2 {
			all.Add(1)
			go func() {
				defer all.Done()
				for !stop.Load() && !t.Failed() {
					call(client, at)
				}
			}()
		}
	}
	for at, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		before := [3]int64{counts[0].Load(), counts[1].Load(), counts[2].Load()}
		c.stop(at, how)
		// Every caller goes on at another node.
		c.eventually("callers go on", func() bool {
			for one := range counts {
				if counts[one].Load() < before[one]+5 {
					return t.Failed()
				}
			}
			return true
		})
		c.start(at)
		c.eventually("it is back", func() bool { return c.stamps(at) })
	}
	stop.Store(true)
	all.Wait()
	t.Logf("%d intervals", len(given))
}
