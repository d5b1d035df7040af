package epicepoch

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"
)

// future asks for a timestamp with [Client.Go].
func future(t *testing.T, client *Client) <-chan Timestamp {
	t.Helper()
	begun, got := client.Go(within(t, 10*time.Second), 1), make(chan Timestamp, 1)
	go func() {
		answer, err := begun.Wait()
		if err != nil {
			t.Error(err)
		}
		got <- answer.First
	}()
	return got
}

// heldLeader starts a node that keeps all requests until the channel is closed.
func heldLeader(t *testing.T) (leader *node, release chan struct{}) {
	t.Helper()
	source, release := &oracle{next: 1}, make(chan struct{})
	leader = startNode(t, 1)
	// One goroutine answers in the order in which the requests came.
	kept := make(chan func(), 100)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	go func() {
		select {
		case <-release:
		case <-over:
			return
		}
		for {
			select {
			case answer := <-kept:
				answer()
			case <-over:
				return
			}
		}
	}()
	leader.ask = func(to *peer, id, count uint64) {
		kept <- func() { source.serve(to, id, count) }
	}
	return leader, release
}

func TestAsynchronousCallsShareRequestsAndNeedNoGoroutine(t *testing.T) {
	leader, release := heldLeader(t)
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(time.Minute))
	ctx := within(t, 30*time.Second)
	const many = 5000
	before := runtime.NumGoroutine()
	calls := make([]*Call, many)
	for at := range calls {
		calls[at] = client.Go(ctx, uint64(1+at%3))
	}
	// The node has some goroutines of its own.
	if added := runtime.NumGoroutine() - before; added > 20 {
		t.Errorf("%d goroutines for %d calls", added, many)
	}
	close(release)
	given := make(map[Timestamp]bool)
	for at, one := range calls {
		answer, err := one.Wait()
		if err != nil || answer.Count != uint64(1+at%3) {
			t.Fatal(answer, err)
		}
		for timestamp := range answer.All() {
			if given[timestamp] {
				t.Fatalf("%v was given twice", timestamp)
			}
			given[timestamp] = true
		}
	}
	if asked := leader.asked.Load(); asked > 10 {
		t.Errorf("%d requests for %d calls", asked, many)
	}
	// The result of a call stays.
	again, err := calls[0].Wait()
	if first, _ := calls[0].Wait(); err != nil || first != again {
		t.Error(first, again, err)
	}
}

func TestAnAsynchronousCallIsAskedAgainAlsoIfNobodyWaits(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = func(to *peer, id, count uint64) {
		switch leader.asked.Load() {
		case 1:
			source.take(count)
			to.Close()
		case 2:
			to.refuse(id, 4, "")
		default:
			source.serve(to, id, count)
		}
	}
	client := dial(t, []string{leader.addr()})
	asked := client.Go(within(t, 10*time.Second), 2)
	select {
	case <-asked.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the call did not end")
	}
	if answer, err := asked.Wait(); err != nil || answer.First.Index != 3 || answer.Count != 2 {
		t.Error(answer, err)
	}
}

func TestACancelledAsynchronousCallEndsAtOnceAndLeavesTheOthersAlone(t *testing.T) {
	leader, release := heldLeader(t)
	client := dial(t, []string{leader.addr()}, WithInFlight(1), WithAttemptTimeout(time.Minute))
	sent := client.Go(within(t, 30*time.Second), 1)
	ctx, cancel := context.WithCancel(context.Background())
	// These two share a request that is not sent yet.
	gone := client.Go(ctx, 5)
	stays := client.Go(within(t, 30*time.Second), 1)
	cancel()
	if answer, err := gone.Wait(); !errors.Is(err, context.Canceled) || answer != (Range{}) {
		t.Fatal(answer, err)
	}
	if answer, err := client.Go(ctx, 1).Wait(); !errors.Is(err, context.Canceled) {
		t.Fatal(answer, err)
	}
	close(release)
	first, err := sent.Wait()
	if err != nil {
		t.Fatal(err)
	}
	second, err := stays.Wait()
	// No caller got the five timestamps of the cancelled call.
	if err != nil || second.First.Index != first.First.Index+6 {
		t.Fatal(first, second, err)
	}
	if answer, err := gone.Wait(); !errors.Is(err, context.Canceled) || answer != (Range{}) {
		t.Fatal(answer, err)
	}
}

func TestALateAnswerToAnAsynchronousCallGoesToNobody(t *testing.T) {
	leader, release := heldLeader(t)
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(time.Minute))
	late := client.Go(within(t, 20*time.Millisecond), 1)
	if answer, err := late.Wait(); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(answer, err)
	}
	close(release)
	// The late answer is number 1. It comes before this one.
	if got := get(t, client); got.Index != 2 {
		t.Error(got)
	}
	if answer, err := late.Wait(); !errors.Is(err, context.DeadlineExceeded) || answer != (Range{}) {
		t.Error(answer, err)
	}
}

// The answer is ready and the context has ended, both before the call sees either.
func TestTheEndOfTheContextCountsAlsoForAnAsynchronousCall(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	c, b := &Client{}, newBatch()
	late := &Call{client: c, ctx: ctx, count: 1, done: make(chan struct{})}
	b.join(1, late)
	cancel()
	b.finish(Range{First: Timestamp{Epoch: 1}, Count: 1}, nil)
	if answer, err := late.Wait(); !errors.Is(err, context.Canceled) || answer != (Range{}) {
		t.Fatal(answer, err)
	}
	if held := b.holders.Load(); held != 0 {
		t.Errorf("%d hold the batch", held)
	}
}

func TestAClosedClientEndsItsAsynchronousCalls(t *testing.T) {
	leader, _ := heldLeader(t)
	client := dial(t, []string{leader.addr()}, WithInFlight(1), WithAttemptTimeout(time.Minute))
	calls := []*Call{client.Go(context.Background(), 1), client.Go(context.Background(), 1)}
	client.Close()
	for _, one := range append(calls, client.Go(context.Background(), 1)) {
		if answer, err := one.Wait(); !errors.Is(err, ErrClosed) {
			t.Error(answer, err)
		}
	}
}

func TestAnAsynchronousCallChecksItsCount(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	client := dial(t, []string{leader.addr()})
	for _, count := range []uint64{0, countMax + 1} {
		if answer, err := client.Go(context.Background(), count).Wait(); !errors.Is(err, ErrCount) {
			t.Error(count, answer, err)
		}
	}
	if answer, err := client.Go(within(t, 5*time.Second), countMax).Wait(); err != nil || answer.Count != countMax {
		t.Error(answer, err)
	}
}

func TestAsynchronousCallsHaveALimit(t *testing.T) {
	leader, release := heldLeader(t)
	limit := func(o *options) { o.callsMax = 3 }
	client := dial(t, []string{leader.addr()}, limit, WithAttemptTimeout(time.Minute))
	ctx := within(t, 30*time.Second)
	calls := []*Call{client.Go(ctx, 1), client.Go(ctx, 1), client.Go(ctx, 1)}
	if answer, err := client.Go(ctx, 1).Wait(); !errors.Is(err, ErrTooManyCalls) {
		t.Error(answer, err)
	}
	close(release)
	for _, one := range calls {
		if _, err := one.Wait(); err != nil {
			t.Error(err)
		}
	}
	// A call that has ended, in any way, makes room for another one.
	client.Go(ctx, 0).Wait()
	if left := client.calls.Load(); left != 0 {
		t.Error(left, "calls are counted")
	}
	for range 3 {
		if _, err := client.Go(ctx, 1).Wait(); err != nil {
			t.Error(err)
		}
	}
}

// The leader is silent, and the client does not leave it. Only the limit of the call can end it.
func TestACallWithoutADeadlineEndsAfterItsTimeout(t *testing.T) {
	leader, _ := heldLeader(t)
	const limit = 100 * time.Millisecond
	client := dial(t, []string{leader.addr()}, WithCallTimeout(limit), WithAttemptTimeout(time.Minute))
	cancelled, cancel := context.WithCancel(context.Background())
	defer cancel()
	for name, ask := range map[string]func() error{
		"waits":                 func() error { _, err := client.Timestamp(context.Background()); return err },
		"may be cancelled":      func() error { _, err := client.Timestamp(cancelled); return err },
		"waits elsewhere":       func() error { _, err := client.Go(context.Background(), 1).Wait(); return err },
		"may be cancelled, too": func() error { _, err := client.Go(cancelled, 1).Wait(); return err },
	} {
		began := time.Now()
		err := ask()
		if took := time.Since(began); took < limit || took > 20*limit {
			t.Errorf("%s: it took %v", name, took)
		}
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The bounded call began first. So it would end first if the limit counted for it, too.
func TestADeadlineReplacesTheLimitOfACall(t *testing.T) {
	leader, release := heldLeader(t)
	client := dial(t, []string{leader.addr()}, WithCallTimeout(50*time.Millisecond), WithAttemptTimeout(time.Minute))
	ctx, bounded := within(t, 30*time.Second), make(chan error, 1)
	go func() {
		_, err := client.Timestamp(ctx)
		bounded <- err
	}()
	for client.underWay() == 0 {
		time.Sleep(time.Millisecond)
	}
	if _, err := client.Timestamp(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	close(release)
	if err := <-bounded; err != nil {
		t.Error(err)
	}
}

// The leader is silent. The first call sets its timer only after its first request has failed. The
// second call begins after that, so it must end later.
func TestTheLimitOfACallCountsFromItsBeginning(t *testing.T) {
	const attempt = 200 * time.Millisecond
	leader := startNode(t, 1)
	leader.ask = func(*peer, uint64, uint64) {}
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(attempt), WithCallTimeout(4*attempt))
	earlier := make(chan error, 1)
	go func() {
		_, err := client.Timestamp(context.Background())
		earlier <- err
	}()
	for deadline := time.Now().Add(10 * time.Second); leader.met.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the silent leader is not left")
		}
	}
	if _, err := client.Go(context.Background(), 1).Wait(); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	select {
	case err := <-earlier:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	case <-time.After(attempt / 2):
		t.Error("the earlier call still waits")
	}
}

func TestACallThatEndsGivesItsOwnReasonIfTheClientHasNone(t *testing.T) {
	c, b := between(t), newBatch()
	call := &Call{client: c, ctx: context.Background(), count: 1, done: make(chan struct{})}
	b.join(1, call)
	b.finish(Range{}, &Error{Code: 4})
	if len(c.pending) != 1 {
		t.Fatal("the call did not ask again")
	}
	call.interrupt(context.DeadlineExceeded)
	if _, err := call.Wait(); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrOverloaded) {
		t.Error(err)
	}
}

// Calls are cancelled at any moment: before they are sent, in flight, or between two requests,
// because the node refuses and closes connections all the time. No timestamp is given twice.
func TestAsynchronousCallsThatLeaveDoNotDisturbThoseThatStay(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = func(to *peer, id, count uint64) {
		switch asked := leader.asked.Load(); {
		case asked%50 == 0:
			to.Close()
		case asked%7 == 0:
			to.refuse(id, 4, "")
		default:
			source.serve(to, id, count)
		}
	}
	client := dial(t, []string{leader.addr()}, WithInFlight(2))
	var mu sync.Mutex
	given := make(map[Timestamp]bool)
	var all sync.WaitGroup
	for at := range 32 {
		all.Add(1)
		go func() {
			defer all.Done()
			for round := range 200 {
				timeout := 10 * time.Second
				if at%2 == 0 {
					timeout = time.Duration(round%7) * 20 * time.Microsecond
				}
				ctx, cancel := context.WithTimeout(context.Background(), timeout)
				answer, err := client.Go(ctx, 1).Wait()
				cancel()
				if err != nil {
					if at%2 == 1 || !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
						return
					}
					continue
				}
				mu.Lock()
				if given[answer.First] || answer.First.IsZero() {
					t.Errorf("%v was given twice, or is the zero timestamp", answer.First)
				}
				given[answer.First] = true
				mu.Unlock()
			}
		}()
	}
	all.Wait()
}
