package tikvoracle

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// asked counts calls, and answers with their number. These tests run on synctest's clock.
type asked struct {
	calls atomic.Uint64
	fails atomic.Bool
}

// callsMax is more than any of these tests asks for.
const callsMax = 1000

func (a *asked) ask(ctx context.Context) (uint64, error) {
	calls := a.calls.Add(1)
	if calls > callsMax {
		// If it is asked without a pause, the clock stands still.
		<-ctx.Done()
	}
	if a.fails.Load() {
		return 0, errors.New("cannot be reached")
	}
	return calls, nil
}

// low returns the timestamp of low resolution, and its age.
func low(t *testing.T, o *Oracle) (uint64, time.Duration) {
	t.Helper()
	ts, err := o.GetLowResolutionTimestamp(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return ts, time.Since(o.newest.Load().at)
}

func TestTheTimestampOfLowResolutionIsAtMostAsOldAsItsInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := new(asked)
		o := newOracle(a.ask)
		defer o.Close()
		// The newest timestamp is as old as it can be without a reason to renew it, several times.
		for range 4 {
			time.Sleep(100 * time.Millisecond)
			if _, err := o.GetTimestamp(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			for range 790 {
				time.Sleep(5 * time.Millisecond)
				synctest.Wait()
				if ts, age := low(t, o); age > intervalDefault {
					t.Fatalf("%d is %v old", ts, age)
				}
			}
		}
		// This test has asked four times. The oracle asks by itself only if the newest is 2 s old.
		if calls := a.calls.Load(); calls > 4+8 {
			t.Fatalf("asked %d times in 16 s", calls)
		}
	})
}

func TestAShorterIntervalHoldsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := new(asked)
		o := newOracle(a.ask)
		defer o.Close()
		first, _ := low(t, o)
		time.Sleep(time.Second)
		if err := o.SetLowResolutionTimestampUpdateInterval(time.Second / 2); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if second, age := low(t, o); second <= first || age != 0 {
			t.Fatalf("%d, then %d, which is %v old", first, second, age)
		}
	})
}

func TestAnOracleThatFailsIsAskedOnceInEachInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := new(asked)
		o := newOracle(a.ask)
		defer o.Close()
		first, _ := low(t, o)
		a.fails.Store(true)
		time.Sleep(10*intervalDefault + intervalDefault/2)
		synctest.Wait()
		if calls := a.calls.Load() - 1; calls != 10 {
			t.Fatalf("asked %d times in 10 intervals", calls)
		}
		if ts, _ := low(t, o); ts != first {
			t.Fatalf("%d, then %d", first, ts)
		}
	})
}
