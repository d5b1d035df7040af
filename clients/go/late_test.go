package epicepoch

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// A process may be stopped for a while after it has sent a request, for example while its machine is
// suspended. Then the answer waits for it, and its timers have not fired yet.

// timerlessContext is a context whose deadline passes with the first request, and whose timer has not
// fired.
type timerlessContext struct {
	context.Context
	asked *atomic.Int64
}

func (c timerlessContext) Deadline() (time.Time, bool) {
	if c.asked.Load() == 0 {
		return time.Now().Add(time.Hour), true
	}
	return time.Now().Add(-time.Nanosecond), true
}

// fixedContext is a context whose deadline passes while the request is under way, and whose timer has
// not fired.
type fixedContext struct {
	context.Context
	deadline time.Time
}

func (c fixedContext) Deadline() (time.Time, bool) { return c.deadline, true }

func TestAnAnswerAfterTheDeadlineIsNotReturnedAlsoIfNoTimerHasFired(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = source.serve
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(time.Minute))
	for name, ask := range map[string]func(context.Context) (Range, error){
		"waits":           func(ctx context.Context) (Range, error) { return client.Timestamps(ctx, 1) },
		"waits elsewhere": func(ctx context.Context) (Range, error) { return client.Go(ctx, 1).Wait() },
	} {
		before := leader.asked.Load()
		answer, err := ask(fixedContext{context.Background(), time.Now()})
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errLate) || answer != (Range{}) {
			t.Error(name, answer, err)
		}
		if asked := leader.asked.Load() - before; asked != 1 {
			t.Errorf("%s: %d requests", name, asked)
		}
		if _, err := ask(fixedContext{context.Background(), time.Now().Add(time.Hour)}); err != nil {
			t.Error(name, err)
		}
	}
}

func TestAnIntervalAfterTheDeadlineIsNotReturnedAlsoIfNoTimerHasFired(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	client := dialNodes(t, []string{node.addr()})
	got, err := client.Interval(timerlessContext{context.Background(), &node.asked})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errLate) || got != (Interval{}) {
		t.Error(got, err)
	}
}

func TestNoOtherNodeIsAskedAfterTheDeadlineAlsoIfNoTimerHasFired(t *testing.T) {
	node, other := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	node.refuses(21)
	client := dialNodes(t, []string{node.addr(), other.addr()})
	got, err := client.Interval(timerlessContext{within(t, 10*time.Second), &node.asked})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUncertain) {
		t.Error(got, err)
	}
	if node.asked.Load() != 1 || other.asked.Load() != 0 {
		t.Error(node.asked.Load(), other.asked.Load())
	}
}

// The client stands still from the moment when the leader has the request until the limit of the call
// has long passed. Meanwhile the answer has come.
func TestACallWithoutADeadlineGetsNoAnswerAfterItsTimeout(t *testing.T) {
	// On a busy machine, the request may not be sent within a short limit. Then the test takes a longer one.
	for limit := 400 * time.Millisecond; limit < time.Minute; limit *= 4 {
		if err, isSent := stoppedForLongerThan(t, limit); isSent {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			return
		}
	}
	t.Error("no request was sent in time")
}

// stoppedForLongerThan stops a client while its call, which has this limit, is under way. It returns the
// error of the call, and whether its request was sent in time.
func stoppedForLongerThan(t *testing.T, limit time.Duration) (err error, isSent bool) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	asked, release := make(chan struct{}, 1000), make(chan struct{})
	leader.ask = func(to *peer, id, count uint64) {
		asked <- struct{}{}
		<-release
		source.serve(to, id, count)
	}
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(limit/4), WithCallTimeout(limit))
	result := make(chan error, 1)
	go func() {
		_, err := client.Timestamp(context.Background())
		result <- err
	}()
	select {
	case <-asked:
	case err := <-result:
		close(release)
		return err, false
	}
	client.mu.Lock()
	over := time.After(limit + limit/4)
	close(release)
	<-over
	client.mu.Unlock()
	return <-result, true
}
