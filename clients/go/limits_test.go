package epicepoch

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestTheLimitsOfAWelcomeAreKept(t *testing.T) {
	const most, atOnce = 10, 2
	leader, source := startNode(t, 1), &oracle{next: 1}
	var largest, under, deepest atomic.Int64
	up := func(to *atomic.Int64, value int64) {
		for last := to.Load(); value > last && !to.CompareAndSwap(last, value); last = to.Load() {
		}
	}
	leader.onHello = func() *welcome {
		w := leader.welcome(leader)
		w.countMax, w.inFlightMax = most, atOnce
		return w
	}
	leader.ask = func(to *peer, id, count uint64) {
		up(&largest, int64(count))
		up(&deepest, under.Add(1))
		time.AfterFunc(5*time.Millisecond, func() {
			under.Add(-1)
			source.serve(to, id, count)
		})
	}
	client := dial(t, []string{leader.addr()}, WithInFlight(8), WithAttemptTimeout(5*time.Second))
	fours(t, client, 12).Wait()
	if largest.Load() > most || deepest.Load() > atOnce {
		t.Errorf("a request for %d, %d at once", largest.Load(), deepest.Load())
	}
	if _, err := client.Timestamps(within(t, 5*time.Second), most+1); !errors.Is(err, ErrCount) {
		t.Error(err)
	}
}

// fours starts callers, each of which asks for four timestamps.
func fours(t *testing.T, client *Client, callers int) *sync.WaitGroup {
	var all sync.WaitGroup
	for range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			if answer, err := client.Timestamps(within(t, 10*time.Second), 4); err != nil || answer.Count != 4 {
				t.Error(answer, err)
			}
		}()
	}
	return &all
}

func TestCallersWhoMetWithoutALeaderPartIfTheNextOneGivesLess(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	var limit, largest atomic.Int64
	limit.Store(1000)
	leader.onHello = func() *welcome {
		w := leader.welcome(leader)
		w.countMax = uint64(limit.Load())
		return w
	}
	leader.ask = func(to *peer, id, count uint64) {
		largest.Store(max(largest.Load(), int64(count)))
		source.serve(to, id, count)
	}
	gate := make(chan struct{}, 1)
	gate <- struct{}{}
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(5*time.Second),
		WithDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			select {
			case <-gate:
				return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
	limit.Store(10)
	leader.hangUp()
	for client.Leader() != "" {
		time.Sleep(time.Millisecond)
	}
	all := fours(t, client, 5)
	for waiting := uint64(0); waiting != 20; time.Sleep(time.Millisecond) {
		client.mu.Lock()
		waiting = 0
		for _, b := range client.pending {
			waiting += b.count
		}
		client.mu.Unlock()
	}
	gate <- struct{}{}
	all.Wait()
	if largest.Load() > 10 {
		t.Errorf("a request for %d", largest.Load())
	}
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	for word, option := range map[string]Option{
		"call timeout": WithCallTimeout(0),
		"hedge":        WithHedgeAfter(-time.Second),
		"dialer":       WithDialer(nil),
		"logger":       WithLogger(nil),
		"name":         WithClusterName(strings.Repeat("n", nameMax+1)),
	} {
		_, err := Dial(within(t, 5*time.Second), []string{"127.0.0.1:1"}, option)
		if err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v", word, err)
		}
	}
}

func TestOptionsHaveTheirDocumentedDefaultsAndBounds(t *testing.T) {
	with := func(opts ...Option) options {
		o := defaults()
		for _, opt := range opts {
			opt(&o)
		}
		return o
	}
	for name, one := range map[string]struct{ got, want any }{
		"attempt timeout":          {with().attemptTimeout, 500 * time.Millisecond},
		"call timeout":             {with().callTimeout, 2 * time.Second},
		"in flight":                {with().inFlight, 4},
		"refresh":                  {with().refresh, 30 * time.Second},
		"hedge":                    {with().hedgeAfter, time.Duration(0)},
		"shortest attempt timeout": {with(WithAttemptTimeout(0)).attemptTimeout, 10 * time.Millisecond},
		"shortest refresh":         {with(WithRefresh(0)).refresh, 100 * time.Millisecond},
		"fewest in flight":         {with(WithInFlight(0)).inFlight, 1},
		"most in flight":           {with(WithInFlight(1000)).inFlight, 256},
	} {
		if one.got != one.want {
			t.Errorf("%s: %v, not %v", name, one.got, one.want)
		}
	}
	longest := with(WithClusterName(strings.Repeat("n", 64)))
	if err := longest.check(); err != nil {
		t.Error(err)
	}
}

func TestAnAddressHasAHostAndAPort(t *testing.T) {
	// The context has ended, so a client that dials returns at once, with another error.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for _, addr := range []string{"", "host", ":8080", "host:"} {
		client, err := Dial(ctx, []string{"127.0.0.1:1", addr})
		if err == nil || !strings.Contains(err.Error(), "is not host:port") {
			t.Errorf("%q: %v, %v", addr, client, err)
		}
	}
}

func TestAnIdleClientSeldomLooksForALeader(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	var down atomic.Bool
	var dials atomic.Int64
	dialer := func(ctx context.Context, addr string) (net.Conn, error) {
		dials.Add(1)
		if down.Load() {
			return nil, errors.New("down")
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	}
	client := dial(t, []string{leader.addr()}, WithDialer(dialer))
	// The first answer of a connection resets the count of failures, perhaps after its call has ended.
	// The client has read that answer before the next one.
	get(t, client)
	get(t, client)
	down.Store(true)
	client.dirMu.Lock()
	// Pretend that 100 attempts have failed in a row. The pause without callers then has its
	// longest value.
	client.dir.failedAttempts = 100
	client.dirMu.Unlock()
	dials.Store(0)
	leader.hangUp()
	time.Sleep(time.Second)
	if count := dials.Load(); count == 0 || count > 4 {
		t.Errorf("%d dials in a second", count)
	}
	// A new call does not wait for the end of a long pause.
	down.Store(false)
	began := time.Now()
	get(t, client)
	if took := time.Since(began); took > idleMax/4 {
		t.Errorf("a call took %v", took)
	}
}
