package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pd "github.com/tikv/pd/client"
)

// measure prints timestamps per second and latency for several numbers of callers of one client.
// With isByLease, timestamps are proved by the leader's lease, as those of PD are.
func measure(target string, seconds int, isByLease bool) error {
	addrs := strings.Split(target, ",")
	if !strings.HasPrefix(target, "http://") {
		var settings []string
		if isByLease {
			settings = []string{"LEASE_MS=200", "LEASE_CLOCK=trusted", "GUARANTEE_DEFAULT=lease"}
		}
		c, err := startServing(target, settings...)
		if err != nil {
			return err
		}
		defer c.Close()
		addrs = c.http
	}
	client, err := pd.NewClient(addrs, pd.SecurityOption{})
	if err != nil {
		return err
	}
	defer client.Close()
	for _, callers := range []int{1, 100, 1000} {
		// The first second warms up.
		if _, err := load(client, callers, time.Second); err != nil {
			return err
		}
		length := time.Duration(seconds) * time.Second
		took, err := load(client, callers, length)
		if err != nil {
			return err
		}
		slices.Sort(took)
		at := func(part float64) time.Duration { return took[int(part*float64(len(took)-1))] }
		fmt.Printf("%4d callers: %8.0f timestamps/s, p50 %v, p99 %v\n", callers,
			float64(len(took))/length.Seconds(), at(0.5), at(0.99))
	}
	return nil
}

// load lets callers ask one after another, and returns how long each call took.
func load(client pd.Client, callers int, length time.Duration) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), length+deadline)
	defer cancel()
	var (
		all    []time.Duration
		mu     sync.Mutex
		wg     sync.WaitGroup
		failed atomic.Pointer[error]
		end    = time.Now().Add(length)
	)
	for range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var own []time.Duration
			for began := time.Now(); began.Before(end); began = time.Now() {
				if _, _, err := client.GetTS(ctx); err != nil {
					failed.Store(&err)
					return
				}
				own = append(own, time.Since(began))
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		}()
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	return all, nil
}

// gaps prints, for each killed leader, the longest time without a timestamp for callers of PD's
// client.
func gaps(binary string, kills int) error {
	c, err := startServing(binary)
	if err != nil {
		return err
	}
	defer c.Close()
	client, err := pd.NewClient(c.http, pd.SecurityOption{})
	if err != nil {
		return err
	}
	defer client.Close()
	r := newRun()
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for range pdCallers {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for ctx.Err() == nil {
				r.call(ctx, "pd", askPD(client))
			}
		}()
	}
	var killed []time.Duration
	err = killLeaders(c, kills, func(at time.Time) { killed = append(killed, at.Sub(r.start)) })
	cancel()
	callers.Wait()
	if err != nil {
		return err
	}
	var found []time.Duration
	for _, at := range killed {
		found = append(found, r.gap(at).Round(time.Millisecond))
	}
	fmt.Printf("gaps after kill -9: %v\n", found)
	slices.Sort(found)
	fmt.Printf("median %v, longest %v; errors that callers saw: %d\n", found[len(found)/2], found[len(found)-1], r.errorCount())
	return nil
}

// gap returns the longest time without an answer that begins within a second after a moment.
func (r *run) gap(moment time.Duration) time.Duration {
	var ends []time.Duration
	for _, one := range r.answers {
		ends = append(ends, one.over)
	}
	slices.Sort(ends)
	longest := time.Duration(0)
	for at := range len(ends) - 1 {
		if ends[at+1] >= moment && ends[at] < moment+time.Second {
			longest = max(longest, ends[at+1]-ends[at])
		}
	}
	return longest
}

func (r *run) errorCount() int {
	sum := 0
	for _, times := range r.errors {
		sum += times
	}
	return sum
}
