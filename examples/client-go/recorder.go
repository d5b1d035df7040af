package main

import (
	"context"
	"sync"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	"github.com/tikv/client-go/v2/oracle"

	"github.com/epicepoch/epicepoch/examples/bank"
	"github.com/epicepoch/epicepoch/examples/client-go/tikvoracle"
)

// plant is a mistake that the checker must find.
type plant string

const (
	none          plant = ""
	localClock    plant = "local-clock"
	cache         plant = "cache"
	lowResolution plant = "low-resolution"
)

// plants has each mistake, and what the checker finds at least.
var plants = map[plant]bank.Rule{
	localClock:    bank.OutOfOrder,
	cache:         bank.OutOfOrder,
	lowResolution: bank.Reused,
}

// recorder records when each timestamp was asked for, or makes the planted mistake.
type recorder struct {
	*tikvoracle.Oracle
	client *epicepoch.Client
	events *bank.Events
	plant  plant

	mu sync.Mutex
	// stamps has each timestamp, until a transaction takes it.
	stamps map[uint64][]bank.Stamp
	given  uint64
	cached []uint64
}

// GetTimestamp implements [oracle.Oracle].
func (r *recorder) GetTimestamp(ctx context.Context, opt *oracle.Option) (uint64, error) {
	asked := r.events.Next()
	ts, err := r.timestamp(ctx, opt)
	if err != nil {
		return 0, err
	}
	got := r.events.Next()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stamps[ts] = append(r.stamps[ts], bank.Stamp{TS: ts, Asked: asked, Got: got})
	return ts, nil
}

// GetTimestampAsync implements [oracle.Oracle].
func (r *recorder) GetTimestampAsync(ctx context.Context, opt *oracle.Option) oracle.Future {
	return &recordedFuture{recorder: r, asked: r.events.Next(), future: r.Oracle.GetTimestampAsync(ctx, opt)}
}

type recordedFuture struct {
	recorder *recorder
	asked    uint64
	future   oracle.Future
}

// Wait implements [oracle.Future].
func (f *recordedFuture) Wait() (uint64, error) {
	ts, err := f.future.Wait()
	if err != nil {
		return 0, err
	}
	r := f.recorder
	stamp := bank.Stamp{TS: ts, Asked: f.asked, Got: r.events.Next()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stamps[ts] = append(r.stamps[ts], stamp)
	return ts, nil
}

// stamp takes the record of a timestamp. It is zero if the oracle did not give it.
func (r *recorder) stamp(ts uint64) bank.Stamp {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.stamps[ts]
	if len(all) == 0 {
		return bank.Stamp{}
	}
	if r.stamps[ts] = all[1:]; len(all) == 1 {
		delete(r.stamps, ts)
	}
	return all[0]
}

// every is how often the mistakes local-clock and low-resolution are made: one in so many timestamps.
const every = 20

func (r *recorder) timestamp(ctx context.Context, opt *oracle.Option) (uint64, error) {
	r.mu.Lock()
	r.given++
	number := r.given
	r.mu.Unlock()
	isWrong := number%every == 0
	switch {
	case r.plant == localClock && isWrong:
		// A clock that is 20 ms ahead.
		ms := time.Now().Add(20 * time.Millisecond).UnixMilli()
		return oracle.ComposeTS(ms, int64(number%(1<<epicepoch.CompactIndexBits))), nil
	case r.plant == lowResolution && isWrong:
		return r.Oracle.GetLowResolutionTimestamp(ctx, opt)
	case r.plant == cache:
		return r.fromCache(ctx)
	}
	return r.Oracle.GetTimestamp(ctx, opt)
}

// fromCache takes 64 timestamps at once and hands them out later, each second time the newest first.
func (r *recorder) fromCache(ctx context.Context) (uint64, error) {
	const count = 64
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.cached) == 0 {
		first, err := r.client.CompactTimestamps(ctx, count)
		if err != nil {
			return 0, err
		}
		for offset := range uint64(count) {
			r.cached = append(r.cached, first+offset)
		}
	}
	at := 0
	if r.given%2 == 0 {
		at = len(r.cached) - 1
	}
	ts := r.cached[at]
	r.cached = append(r.cached[:at:at], r.cached[at+1:]...)
	return ts, nil
}
