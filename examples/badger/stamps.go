package main

import (
	"context"
	"slices"
	"sync"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"

	"github.com/epicepoch/epicepoch/examples/bank"
)

type stamp = bank.Stamp

// plant is a mistake that the checker must find.
type plant string

const (
	none        plant = ""
	noWait      plant = "no-wait"
	lateCommit  plant = "late-commit"
	noConflicts plant = "no-conflicts"
	blindWrites plant = "blind-writes"
	localClock  plant = "local-clock"
	cache       plant = "cache"
	reuse       plant = "reuse"
)

// plants has each mistake, and what the checker finds at least.
var plants = map[plant]bank.Rule{
	noWait:      bank.WrongRead,
	lateCommit:  bank.WrongRead,
	noConflicts: bank.LostUpdate,
	blindWrites: bank.LostUpdate,
	localClock:  bank.OutOfOrder,
	cache:       bank.OutOfOrder,
	reuse:       bank.Reused,
}

// fromOracle takes timestamps from the oracle, or makes the planted mistake.
type fromOracle struct {
	client *epicepoch.Client
	events *bank.Events
	plant  plant

	// The rest is for planted mistakes.
	mu     sync.Mutex
	given  uint64
	cached []uint64
	last   uint64
}

// take implements stamps.
func (f *fromOracle) take(ctx context.Context) (stamp, error) {
	asked := f.events.Next()
	ts, err := f.timestamp(ctx)
	if err != nil {
		return stamp{}, err
	}
	return stamp{TS: ts, Asked: asked, Got: f.events.Next()}, nil
}

func (f *fromOracle) timestamp(ctx context.Context) (uint64, error) {
	switch f.plant {
	case localClock:
		return f.wrongClock(ctx)
	case cache:
		return f.fromCache(ctx)
	case reuse:
		return f.twice(ctx)
	case none, noWait, lateCommit, noConflicts, blindWrites:
	}
	return f.client.CompactTimestamp(ctx)
}

// every is how often the mistakes local-clock and reuse are made: one in so many timestamps.
const every = 20

// wrongClock now and then reads a clock that is 20 ms ahead, instead of asking the oracle.
func (f *fromOracle) wrongClock(ctx context.Context) (uint64, error) {
	f.mu.Lock()
	f.given++
	isWrong := f.given%every == 0
	number := f.given
	f.mu.Unlock()
	if !isWrong {
		return f.client.CompactTimestamp(ctx)
	}
	ms := uint64(time.Now().Add(20 * time.Millisecond).UnixMilli())
	return ms<<epicepoch.CompactIndexBits | number%(1<<epicepoch.CompactIndexBits), nil
}

// fromCache takes 64 timestamps at once and hands them out later.
func (f *fromOracle) fromCache(ctx context.Context) (uint64, error) {
	const count = 64
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.cached) == 0 {
		first, err := f.client.CompactTimestamps(ctx, count)
		if err != nil {
			return 0, err
		}
		for offset := range uint64(count) {
			f.cached = append(f.cached, first+offset)
		}
	}
	// The next one is the oldest half of the time, so that the order is wrong also in one process.
	at := 0
	if f.given++; f.given%2 == 0 {
		at = len(f.cached) - 1
	}
	ts := f.cached[at]
	f.cached = slices.Delete(f.cached, at, at+1)
	return ts, nil
}

// twice now and then returns the timestamp that it returned before.
func (f *fromOracle) twice(ctx context.Context) (uint64, error) {
	f.mu.Lock()
	f.given++
	last, isAgain := f.last, f.given%every == 0 && f.last != 0
	f.mu.Unlock()
	if isAgain {
		return last, nil
	}
	ts, err := f.client.CompactTimestamp(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = ts
	return ts, err
}
