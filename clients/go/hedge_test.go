package epicepoch

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	hedgeAfter = 20 * time.Millisecond
	// The client leaves a silent node after this time. It is far longer than hedgeAfter, so only
	// the hedge can bring an answer in time.
	hedgeAttempt = 8 * time.Second
)

func hedging(t *testing.T, addrs ...string) *Client {
	return dial(t, addrs, WithHedgeAfter(hedgeAfter), WithAttemptTimeout(hedgeAttempt))
}

// first remembers the connection over which the first request came.
type first struct{ peer atomic.Pointer[peer] }

func (f *first) is(to *peer) bool {
	f.peer.CompareAndSwap(nil, to)
	return f.peer.Load() == to
}

func get(t *testing.T, client *Client) Timestamp {
	t.Helper()
	got, err := client.Timestamp(within(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestAStalledConnectionCostsLittleMoreThanTheDelayOfTheHedge(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	var main first
	var stalled atomic.Bool
	leader.ask = func(to *peer, id, count uint64) {
		if !main.is(to) || !stalled.Load() {
			source.serve(to, id, count)
		}
	}
	client := hedging(t, leader.addr())
	last := get(t, client)
	stalled.Store(true)
	// This loop makes more calls than the number of requests that may be in flight.
	for range 12 {
		begin := time.Now()
		got := get(t, client)
		if took := time.Since(begin); took < hedgeAfter || took > hedgeAttempt/4 || !last.Before(got) {
			t.Fatal(took, last, got)
		}
		last = got
	}
	if met := leader.met.Load(); met != 2 {
		t.Fatal(met, "connections")
	}
}

func TestASilentLeaderIsLeftForAnotherThatAnswersTheHedge(t *testing.T) {
	old, next, source := startNode(t, 1), startNode(t, 2), &oracle{next: 1}
	var moved atomic.Bool
	old.ask = func(to *peer, id, count uint64) {
		if !moved.Load() {
			source.serve(to, id, count)
		}
	}
	old.onHello = func() *welcome {
		if moved.Load() {
			return nil
		}
		w := old.welcome(old)
		w.members = append(w.members, Member{Node: 2, Addr: next.addr()})
		return w
	}
	next.ask = source.serve
	client := hedging(t, old.addr())
	before := get(t, client)
	next.onHello = func() *welcome { return next.welcome(next) }
	moved.Store(true)
	begin := time.Now()
	after := get(t, client)
	if took := time.Since(begin); took > hedgeAttempt/2 || !before.Before(after) {
		t.Fatal(took, before, after)
	}
	for range 5 {
		get(t, client)
	}
	if client.Leader() != next.addr() {
		t.Fatal(client.Leader())
	}
}

func TestTheAnswerThatComesSecondIsBurntAndHarmsNothing(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	var main first
	var slow atomic.Bool
	leader.ask = func(to *peer, id, count uint64) {
		taken := source.take(count)
		if main.is(to) && slow.Load() {
			time.AfterFunc(2*hedgeAfter, func() { to.answer(id, count, taken) })
			return
		}
		to.answer(id, count, taken)
	}
	client := hedging(t, leader.addr())
	last := get(t, client)
	slow.Store(true)
	for range 20 {
		got := get(t, client)
		if !last.Before(got) {
			t.Fatal(last, got)
		}
		last = got
		time.Sleep(hedgeAfter / 4)
	}
	if met, count := leader.met.Load(), leader.asked.Load(); met != 2 || count < 26 {
		t.Fatal(met, "connections,", count, "requests")
	}
}

func TestABurntAnswerThatGoesBackwardsIsRefusedLoudly(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 100}
	var main first
	var slow, kept atomic.Bool
	late := make(chan func(), 1)
	leader.ask = func(to *peer, id, count uint64) {
		isMain := main.is(to)
		switch {
		case isMain && kept.Load():
			// The answer to the request before, while this one waits.
			(<-late)()
		case isMain && slow.Load():
			late <- func() { to.answer(id, count, Timestamp{Epoch: 1, Index: 1}) }
		case !kept.Load():
			source.serve(to, id, count)
		}
	}
	var failed atomic.Int32
	client := dial(t, []string{leader.addr()}, WithHedgeAfter(hedgeAfter), WithAttemptTimeout(hedgeAttempt),
		WithHooks(Hooks{FailedAttempt: func(error) { failed.Add(1) }}))
	get(t, client)
	slow.Store(true)
	get(t, client)
	// The late answer to the first request is wrong. It fails every caller that waits at that
	// moment, also this caller of another request.
	kept.Store(true)
	if got, err := client.Timestamp(within(t, 10*time.Second)); !errors.Is(err, ErrWentBackwards) {
		t.Fatal(got, err)
	}
	// The next call has a new connection. The failure ended the calls of the old one, and only these.
	kept.Store(false)
	slow.Store(false)
	get(t, client)
	if failed.Load() != 1 {
		t.Fatal(failed.Load(), "failures were reported")
	}
}

func TestAFirstAnswerMayLieBelowWhatWasReturnedBeforeTheHedge(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	var main first
	var holds atomic.Bool
	held := make(chan func(), 1)
	// The node takes the timestamp for one request at once and answers when the hedge of that request
	// has come. The hedge gets no answer. All other requests are answered at once.
	leader.ask = func(to *peer, id, count uint64) {
		switch {
		case !main.is(to):
			select {
			case late := <-held:
				late()
			default:
			}
		case holds.CompareAndSwap(true, false):
			taken := source.take(count)
			held <- func() { main.peer.Load().answer(id, count, taken) }
		default:
			source.serve(to, id, count)
		}
	}
	client := hedging(t, leader.addr())
	get(t, client)
	holds.Store(true)
	slow := make(chan Timestamp)
	go func() {
		got, err := client.Timestamp(within(t, 10*time.Second))
		if err != nil {
			t.Error(err)
		}
		slow <- got
	}()
	for holds.Load() {
		time.Sleep(time.Millisecond)
	}
	quick := get(t, client)
	if got := <-slow; !got.Before(quick) {
		t.Fatal(got, quick)
	}
}

// The answers of a request and its copy come in any order. Even so, a call's timestamps must lie
// above all that were returned before the call began, and no timestamp may be given twice.
func TestAnswersThatOvertakeEachOtherLeaveTheOrderOfCallsAsItIs(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = func(to *peer, id, count uint64) {
		after := time.Duration(rand.IntN(2000)) * time.Microsecond
		if rand.IntN(8) == 0 {
			after = time.Duration(5+rand.IntN(55)) * time.Millisecond
		}
		if rand.IntN(2) == 0 {
			taken := source.take(count)
			time.AfterFunc(after, func() { to.answer(id, count, taken) })
			return
		}
		time.AfterFunc(after, func() { source.serve(to, id, count) })
	}
	client := hedging(t, leader.addr())
	type call struct {
		begin, end time.Time
		got        Range
	}
	var mu sync.Mutex
	var calls []call
	var all sync.WaitGroup
	for caller := range 16 {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 60 {
				begin := time.Now()
				got, err := client.Timestamps(within(t, 10*time.Second), uint64(1+caller%3))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				calls = append(calls, call{begin, time.Now(), got})
				mu.Unlock()
			}
		}()
	}
	all.Wait()
	slices.SortFunc(calls, func(a, b call) int { return a.got.First.Compare(b.got.First) })
	var given uint64
	var latest time.Time
	for at, one := range calls {
		given += one.got.Count
		if at > 0 && !calls[at-1].got.Last().Before(one.got.First) {
			t.Fatal("given twice:", calls[at-1].got, one.got)
		}
		if one.end.Before(latest) {
			t.Fatal("the order of calls is broken at", one.got)
		}
		if one.begin.After(latest) {
			latest = one.begin
		}
	}
	source.mu.Lock()
	defer source.mu.Unlock()
	if source.next-1 <= given {
		t.Fatal("nothing was asked twice")
	}
}
