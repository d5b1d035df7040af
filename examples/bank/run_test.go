package bank

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
)

func TestTheFirstErrorEndsAllWorkers(t *testing.T) {
	wrong := errors.New("wrong")
	err := Workers(t.Context(), 3, func(ctx context.Context, worker, call int) error {
		if worker == 1 && call == 2 {
			return wrong
		}
		if worker != 1 {
			<-ctx.Done()
			return errors.New("a later error")
		}
		return nil
	})
	if !errors.Is(err, wrong) {
		t.Fatal(err)
	}
}

func TestWorkersEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int64
	err := Workers(ctx, 3, func(context.Context, int, int) error {
		if calls.Add(1) == 10 {
			cancel()
		}
		return nil
	})
	if err != nil || calls.Load() < 10 {
		t.Fatal(calls.Load(), err)
	}
}

func TestAnUnknownMistakeIsRefused(t *testing.T) {
	plants := map[string]Rule{"b": Torn, "a": Total}
	for _, name := range []string{"", "a"} {
		if plant, err := ParsePlant(name, plants); err != nil || plant != name {
			t.Error(plant, err)
		}
	}
	if _, err := ParsePlant("nothing", plants); err == nil || err.Error() != `--plant "nothing": the mistakes are [a b]` {
		t.Fatal(err)
	}
}
