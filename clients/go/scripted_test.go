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

func TestAFollowerNamesTheLeaderAndTheClientGoesThere(t *testing.T) {
	leader, follower, source := startNode(t, 1), startNode(t, 2), &oracle{}
	leader.ask = source.serve
	follower.onHello = func() *welcome { return follower.welcome(leader) }
	client := dial(t, []string{follower.addr()})
	answer, err := client.Timestamps(within(t, 5*time.Second), 5)
	if err != nil || answer.Count != 5 {
		t.Fatal(answer, err)
	}
	if follower.asked.Load() != 0 || client.Leader() != leader.addr() {
		t.Errorf("the follower was asked %d times, the leader is %s", follower.asked.Load(), client.Leader())
	}
}

func TestACallerNeverJoinsARequestThatWasSent(t *testing.T) {
	leader := startNode(t, 1)
	var mu sync.Mutex
	var held []func()
	source := &oracle{}
	seen := make(chan struct{}, 16)
	leader.ask = func(to *peer, id, count uint64) {
		mu.Lock()
		defer mu.Unlock()
		// Allocate the timestamps now, and send them when the test says so.
		first := source.take(count)
		held = append(held, func() { to.answer(id, count, first) })
		seen <- struct{}{}
	}
	client := dial(t, []string{leader.addr()}, WithInFlight(1), WithAttemptTimeout(5*time.Second))
	first := make(chan Timestamp, 1)
	go func() {
		got, _ := client.Timestamp(within(t, 10*time.Second))
		first <- got
	}()
	<-seen
	// The node has now allocated the first request's timestamp. The calls below begin after that,
	// so they must not share it.
	var later sync.WaitGroup
	got := make([]Timestamp, 3)
	for at := range got {
		later.Add(1)
		go func() {
			defer later.Done()
			got[at], _ = client.Timestamp(within(t, 10*time.Second))
		}()
	}
	for {
		client.mu.Lock()
		joined := len(client.pending) == 1 && client.pending[0].count == 3
		client.mu.Unlock()
		if joined {
			break
		}
		time.Sleep(time.Millisecond)
	}
	mu.Lock()
	held[0]()
	mu.Unlock()
	<-seen
	mu.Lock()
	held[1]()
	mu.Unlock()
	later.Wait()
	early := <-first
	distinct := map[Timestamp]bool{early: true}
	for _, one := range got {
		if !early.Before(one) {
			t.Errorf("%v is not above %v", one, early)
		}
		distinct[one] = true
	}
	if len(distinct) != 4 || leader.asked.Load() != 2 {
		t.Errorf("%d timestamps from %d requests", len(distinct), leader.asked.Load())
	}
}

func TestALatestTimestampTakesNoneOrOneThatNobodyElseGets(t *testing.T) {
	for _, features := range []uint64{0, featureLatest} {
		leader, source := startNode(t, 1), &oracle{next: 7}
		leader.onHello = func() *welcome {
			w := leader.welcome(leader)
			w.features = features
			return w
		}
		flags := make(chan byte, 16)
		leader.heard = func(h head) {
			if h.kind == kindRequest {
				flags <- h.flags
			}
		}
		leader.ask = func(to *peer, id, count uint64) {
			flag := <-flags
			if flag != flagLatest {
				source.serve(to, id, count)
				return
			}
			latest := Timestamp{Epoch: 1, Index: source.next - 1}
			to.say(latest.Append(head{kind: kindAnswer, flags: flag, id: id}.appendTo(nil)))
		}
		client := dial(t, []string{leader.addr()})
		latest, err := client.Latest(within(t, 5*time.Second))
		if want := 7 - features; err != nil || latest.Index != want {
			t.Fatal(features, latest, err)
		}
		answer, err := client.GoLatest(within(t, 5*time.Second)).Wait()
		if want := source.next - 1; err != nil || answer.Count != 1 || answer.First.Index != want {
			t.Fatal(features, answer, err)
		}
		latest = answer.First
		next, err := client.Timestamp(within(t, 5*time.Second))
		if err != nil || next.Index != latest.Index+1 {
			t.Error(features, next, err)
		}
	}
}

func TestALatestTimestampIsTheLastOfASharedRequest(t *testing.T) {
	b := newBatch()
	offsets := []uint64{b.join(latestCount, nil), b.join(2, nil), b.join(latestCount, nil), b.join(3, nil)}
	b.finish(Range{First: Timestamp{Epoch: 1, Index: 10}, Count: b.count}, nil)
	counts := []uint64{latestCount, 2, latestCount, 3}
	for at, first := range []uint64{14, 10, 14, 12} {
		part := b.part(offsets[at], counts[at])
		if part.First.Index != first || part.Count != max(counts[at], 1) {
			t.Errorf("caller %d got %v", at, part)
		}
	}
}

func TestALatestTimestampMayBeTheOneThatWasReturnedAndALaterTimestampMayNot(t *testing.T) {
	at := func(index uint64) Range { return Range{First: Timestamp{Epoch: 1, Index: index}, Count: 1} }
	reader := asked{isLatest: true, floor: at(9).First}
	writer := asked{count: 1, floor: at(9).First}
	for _, one := range []struct {
		sent     asked
		index    uint64
		isLatest bool
		want     error
	}{
		{reader, 9, true, nil}, {reader, 8, true, ErrWentBackwards}, {reader, 10, false, ErrProtocol},
		{writer, 10, false, nil}, {writer, 9, false, ErrWentBackwards}, {writer, 10, true, ErrProtocol},
	} {
		if err := one.sent.check("a:1", at(one.index), one.isLatest); !errors.Is(err, one.want) {
			t.Errorf("%+v: %v", one, err)
		}
	}
}

func TestALostAnswerIsAskedForAgain(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = func(to *peer, id, count uint64) {
		first := source.take(count)
		if leader.asked.Load() == 1 {
			to.Close()
			return
		}
		to.answer(id, count, first)
	}
	client := dial(t, []string{leader.addr()})
	got, err := client.Timestamp(within(t, 5*time.Second))
	if err != nil || got.Index != 1 {
		t.Fatal(got, err)
	}
}

func TestALeaderThatGoesSilentIsReplacedWithinTheCall(t *testing.T) {
	old, next, source := startNode(t, 1), startNode(t, 2), &oracle{}
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
	next.onHello = func() *welcome {
		if moved.Load() {
			return next.welcome(next)
		}
		return next.welcome(old)
	}
	client := dial(t, []string{old.addr()}, WithAttemptTimeout(50*time.Millisecond))
	before, err := client.Timestamp(within(t, 5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	moved.Store(true)
	after, err := client.Timestamp(within(t, 5*time.Second))
	if err != nil || !before.Before(after) || client.Leader() != next.addr() {
		t.Fatal(before, after, err, client.Leader())
	}
}

func TestANoticeOfANewLeaderIsFollowed(t *testing.T) {
	old, next, source := startNode(t, 1), startNode(t, 2), &oracle{}
	old.ask = func(to *peer, id, count uint64) {
		text := next.addr()
		h := head{kind: kindLeader, argument: uint32(len(text)), id: 2}
		to.say(append(h.appendTo(nil), text...))
	}
	next.ask = source.serve
	client := dial(t, []string{old.addr()})
	if _, err := client.Timestamp(within(t, 5*time.Second)); err != nil || client.Leader() != next.addr() {
		t.Fatal(err, client.Leader())
	}
}

func TestAnswersMayComeInAnotherOrder(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	var mu sync.Mutex
	var held []func()
	leader.ask = func(to *peer, id, count uint64) {
		mu.Lock()
		defer mu.Unlock()
		held = append(held, func() { source.serve(to, id, count) })
		if len(held) == 3 {
			for at := range held {
				held[len(held)-1-at]()
			}
			held = nil
		}
	}
	client := dial(t, []string{leader.addr()}, WithInFlight(3), WithAttemptTimeout(5*time.Second))
	counts := []uint64{3, 5, 7}
	got := make([]Range, len(counts))
	var all sync.WaitGroup
	for at, count := range counts {
		all.Add(1)
		go func() {
			defer all.Done()
			var err error
			if got[at], err = client.Timestamps(within(t, 5*time.Second), count); err != nil {
				t.Error(err)
			}
		}()
		// Each call makes one request.
		for client.underWay() < (at+1)%len(counts) {
			time.Sleep(time.Millisecond)
		}
	}
	all.Wait()
	for at, count := range counts {
		if got[at].Count != count {
			t.Errorf("%d timestamps, not %d", got[at].Count, count)
		}
	}
}

func (c *Client) underWay() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inFlight
}

func TestAnswersThatGoBackwardsAreRefusedLoudly(t *testing.T) {
	leader := startNode(t, 1)
	leader.ask = func(to *peer, id, count uint64) {
		to.answer(id, count, Timestamp{Epoch: 10 - uint64(leader.asked.Load())})
	}
	client := dial(t, []string{leader.addr()})
	if _, err := client.Timestamp(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, err := client.Timestamp(within(t, 5*time.Second)); !errors.Is(err, ErrWentBackwards) {
		t.Fatal(got, err)
	}
}

func TestAnAnswerThatGoesBackwardsFailsEveryCallThatWaits(t *testing.T) {
	leader := startNode(t, 1)
	asked := make(chan func(index uint64), 3)
	leader.ask = func(to *peer, id, count uint64) {
		asked <- func(index uint64) { to.answer(id, count, Timestamp{Epoch: 1, Index: index}) }
	}
	client := dial(t, []string{leader.addr()}, WithInFlight(2), WithAttemptTimeout(10*time.Second))
	outcomes := make(chan error, 3)
	call := func() {
		_, err := client.Timestamp(within(t, 10*time.Second))
		outcomes <- err
	}
	go call()
	(<-asked)(10)
	if err := <-outcomes; err != nil {
		t.Fatal(err)
	}
	// Two calls are in flight, and the third one waits for another request.
	go call()
	first := <-asked
	go call()
	<-asked
	go call()
	for client.waitingBatches() == 0 {
		time.Sleep(time.Millisecond)
	}
	first(5)
	for range 3 {
		if err := <-outcomes; !errors.Is(err, ErrWentBackwards) {
			t.Error(err)
		}
	}
}

func (c *Client) waitingBatches() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

func TestAnotherClusterIsRefused(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	client := dial(t, []string{leader.addr()})
	if _, err := client.Timestamp(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if cluster, known := client.Cluster(); cluster != testCluster || !known {
		t.Error(cluster, known)
	}
	if cluster, known := between(t).Cluster(); cluster != (Cluster{}) || known {
		t.Error(cluster, known)
	}
	leader.onHello = func() *welcome {
		w := leader.welcome(leader)
		w.cluster = &Cluster{ID: testCluster.ID, History: 2}
		return w
	}
	leader.hangUp()
	if got, err := client.Timestamp(within(t, 5*time.Second)); !errors.Is(err, ErrWrongCluster) {
		t.Fatal(got, err)
	}
}

func TestAClusterOfAnotherNameIsRefused(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	leader.onHello = func() *welcome {
		w := leader.welcome(leader)
		w.clusterName = "blue"
		return w
	}
	for _, name := range []string{"", "blue"} {
		get(t, dial(t, []string{leader.addr()}, WithClusterName(name)))
	}
	_, err := Dial(within(t, 5*time.Second), []string{leader.addr()}, WithClusterName("green"))
	if !errors.Is(err, ErrWrongCluster) {
		t.Error(err)
	}
}

func TestAServerOfAnotherProtocolIsNoOracle(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			stream.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		}
	}()
	_, err = Dial(within(t, 5*time.Second), []string{listener.Addr().String()})
	if !errors.Is(err, ErrProtocol) || strings.Contains(err.Error(), needsTLS) {
		t.Fatal(err)
	}
}

func TestTheContextEndsACallAndTheErrorSaysWhy(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(20*time.Millisecond))
	leader.ask = func(to *peer, id, count uint64) { to.refuse(id, 2, "") }
	_, err := client.Timestamp(within(t, 100*time.Millisecond))
	if !errors.Is(err, context.DeadlineExceeded) || !(errors.Is(err, ErrNoQuorum) || errors.Is(err, ErrUnreachable)) {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := client.Timestamp(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestACancelledCallerLeavesTheOthersAlone(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	release := make(chan struct{})
	leader.ask = func(to *peer, id, count uint64) {
		go func() {
			<-release
			source.serve(to, id, count)
		}()
	}
	client := dial(t, []string{leader.addr()}, WithInFlight(1), WithAttemptTimeout(5*time.Second))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() {
		_, err := client.Timestamp(ctx)
		ended <- err
	}()
	for client.underWay() == 0 {
		time.Sleep(time.Millisecond)
	}
	go func() {
		_, err := client.Timestamp(within(t, 5*time.Second))
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func TestAnOverloadedLeaderIsAskedAgainLater(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = func(to *peer, id, count uint64) {
		if leader.asked.Load() < 3 {
			to.refuse(id, 4, "")
			return
		}
		source.serve(to, id, count)
	}
	client := dial(t, []string{leader.addr()})
	if _, err := client.Timestamp(within(t, 5*time.Second)); err != nil || leader.met.Load() != 1 {
		t.Fatal(err, leader.met.Load())
	}
}

func TestACountOutsideTheLimitsIsRefused(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	client := dial(t, []string{leader.addr()})
	for _, count := range []uint64{0, countMax + 1} {
		if _, err := client.Timestamps(context.Background(), count); !errors.Is(err, ErrCount) {
			t.Errorf("%d: %v", count, err)
		}
	}
	if answer, err := client.Timestamps(within(t, 5*time.Second), countMax); err != nil || answer.Count != countMax {
		t.Error(answer, err)
	}
}

func TestAClosedClientEndsItsCalls(t *testing.T) {
	leader := startNode(t, 1)
	leader.ask = func(*peer, uint64, uint64) {}
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(5*time.Second))
	ended := make(chan error)
	go func() {
		_, err := client.Timestamp(context.Background())
		ended <- err
	}()
	for client.underWay() == 0 {
		time.Sleep(time.Millisecond)
	}
	client.Close()
	if err := <-ended; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := client.Timestamp(context.Background()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestMembersAreKeptFresh(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	var hasJoined atomic.Bool
	leader.onHello = func() *welcome {
		w := leader.welcome(leader)
		if hasJoined.Load() {
			w.members = append(w.members, Member{Node: 9, Addr: "new.example:8080"})
		}
		return w
	}
	client := dial(t, []string{leader.addr()}, WithRefresh(100*time.Millisecond))
	hasJoined.Store(true)
	for deadline := time.Now().Add(30 * time.Second); len(client.Members()) != 2; {
		if time.Now().After(deadline) {
			t.Fatal(client.Members())
		}
		time.Sleep(time.Millisecond)
	}
}

// Some callers give up, and leave batches that others have joined. This happens while the batches
// wait for a leader, and while they are in flight. No caller may get another caller's timestamps,
// and no caller may stay without an answer.
func TestCallersThatLeaveDoNotDisturbThoseWhoJoin(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = func(to *peer, id, count uint64) {
		if leader.asked.Load()%50 == 0 {
			to.Close()
			return
		}
		source.serve(to, id, count)
	}
	client := dial(t, []string{leader.addr()}, WithInFlight(2))
	const callers, each = 64, 200
	var all sync.WaitGroup
	var mu sync.Mutex
	given := make(map[Timestamp]bool)
	for at := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for round := range each {
				timeout := 5 * time.Second
				if at%2 == 0 {
					timeout = time.Duration(round%7) * 20 * time.Microsecond
				}
				ctx, cancel := context.WithTimeout(context.Background(), timeout)
				got, err := client.Timestamp(ctx)
				cancel()
				if err != nil {
					if at%2 == 1 || !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
						return
					}
					continue
				}
				mu.Lock()
				if given[got] || got.IsZero() {
					t.Errorf("%v was given twice, or is the zero timestamp", got)
				}
				given[got] = true
				mu.Unlock()
			}
		}()
	}
	all.Wait()
}

func TestALeaderThatRefusesEverythingIsNotAskedWithoutPause(t *testing.T) {
	leader := startNode(t, 1)
	leader.ask = func(to *peer, id, count uint64) { to.refuse(id, 12, "") }
	const attempts = 15
	ctx, cancel := context.WithCancel(within(t, 30*time.Second))
	var failed atomic.Int64
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(10*time.Second),
		WithHooks(Hooks{FailedAttempt: func(error) {
			if failed.Add(1) == attempts {
				cancel()
			}
		}}))
	began := time.Now()
	if _, err := client.Timestamp(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrInternal) {
		t.Fatal(err)
	}
	took := time.Since(began)
	// The pause between two attempts doubles from 1 ms to 50 ms. Up to half of it is left out.
	var least time.Duration
	for at := range attempts - 1 {
		least += min(backoffMin<<at, backoffMax) / 2
	}
	if took < least {
		t.Errorf("%d attempts in %v", attempts, took)
	}
}

func TestTwoNodesThatNameEachOtherAreNotAskedWithoutPause(t *testing.T) {
	one, two := startNode(t, 1), startNode(t, 2)
	one.ask = func(to *peer, id, count uint64) { to.refuse(id, 1, two.addr()) }
	two.ask = func(to *peer, id, count uint64) { to.refuse(id, 1, one.addr()) }
	client := dial(t, []string{one.addr(), two.addr()})
	if _, err := client.Timestamp(within(t, 500*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if met := one.met.Load() + two.met.Load(); met > 80 {
		t.Errorf("%d connections in half a second", met)
	}
}

func TestManyCallersShareRequestsAndGetDistinctTimestamps(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	client := dial(t, []string{leader.addr()})
	const callers, each = 200, 50
	results := make([][]Timestamp, callers)
	var all sync.WaitGroup
	for at := range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for range each {
				got, err := client.Timestamp(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				results[at] = append(results[at], got)
			}
		}()
	}
	all.Wait()
	distinct := make(map[Timestamp]bool)
	for _, mine := range results {
		for at, one := range mine {
			if at > 0 && !mine[at-1].Before(one) {
				t.Fatalf("%v came after %v", one, mine[at-1])
			}
			distinct[one] = true
		}
	}
	if len(distinct) != callers*each {
		t.Errorf("%d distinct timestamps of %d", len(distinct), callers*each)
	}
	if requests := leader.asked.Load(); requests > callers*each/4 {
		t.Errorf("%d requests for %d calls", requests, callers*each)
	}
}
