package main

import (
	"context"
	"errors"
	"math"
	"os"
	"testing"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	"github.com/tikv/client-go/v2/oracle"

	"github.com/epicepoch/epicepoch/examples/bank"
	"github.com/epicepoch/epicepoch/examples/client-go/tikvoracle"
)

// addrs are the clients' addresses of a cluster that all tests share.
var addrs []string

func TestMain(m *testing.M) { os.Exit(withNodes(m.Run)) }

func withNodes(run func() int) int {
	quiet()
	binary, err := bank.Binary(context.Background())
	if err != nil {
		bank.Fail(exampleName, err)
	}
	nodes, err := bank.StartNodes(binary)
	if err != nil {
		bank.Fail(exampleName, err)
	}
	defer nodes.Close()
	addrs = nodes.Addrs()
	return run()
}

func TestThePlantedMistakesAreFound(t *testing.T) {
	for plant, rule := range plants {
		t.Run(string(plant), func(t *testing.T) {
			t.Parallel()
			done, err := work(addrs, time.Second, plant)
			if err != nil {
				t.Fatal(err)
			}
			if done.report.Counts[rule] == 0 {
				t.Errorf("no %s\n%s", rule, done.report)
			}
		})
	}
}

func newOracle(t *testing.T) *tikvoracle.Oracle {
	t.Helper()
	client, err := epicepoch.Dial(context.Background(), addrs)
	if err != nil {
		t.Fatal(err)
	}
	own := tikvoracle.New(client)
	t.Cleanup(func() {
		own.Close()
		client.Close()
	})
	return own
}

var global = &oracle.Option{TxnScope: oracle.GlobalTxnScope}

// need returns a timestamp or ends the test.
func need(t *testing.T, ts uint64, err error) uint64 {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return ts
}

func TestTimestampsRiseOverAllMethods(t *testing.T) {
	own, ctx := newOracle(t), context.Background()
	// The first one of low resolution has to be asked for.
	var last uint64
	for _, take := range []func() (uint64, error){
		func() (uint64, error) { return own.GetLowResolutionTimestamp(ctx, global) },
		func() (uint64, error) { return own.GetTimestamp(ctx, global) },
		func() (uint64, error) { return own.GetTimestampAsync(ctx, global).Wait() },
		func() (uint64, error) { return own.GetAllTSOKeyspaceGroupMinTS(ctx) },
		func() (uint64, error) { return own.GetTimestamp(ctx, nil) },
	} {
		ts, err := take()
		if need(t, ts, err) <= last {
			t.Fatalf("%d after %d", ts, last)
		}
		last = ts
	}
	if off := time.Since(oracle.GetTimeFromTS(last)); off.Abs() > 10*time.Second {
		t.Fatalf("the physical part is %v away from the clock", off)
	}
	low, err := own.GetLowResolutionTimestamp(ctx, global)
	if need(t, low, err) != last {
		t.Fatalf("of low resolution: %d, not %d", low, last)
	}
	low, err = own.GetLowResolutionTimestampAsync(ctx, global).Wait()
	if need(t, low, err) != last {
		t.Fatalf("of low resolution, as a future: %d, not %d", low, last)
	}
}

func TestTheTimestampOfLowResolutionIsRenewed(t *testing.T) {
	own, ctx := newOracle(t), context.Background()
	ts, err := own.GetTimestamp(ctx, global)
	first := need(t, ts, err)
	if err := own.SetLowResolutionTimestampUpdateInterval(0); err == nil {
		t.Fatal("an interval of 0 is accepted")
	}
	if err := own.SetLowResolutionTimestampUpdateInterval(5 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if low, err := own.GetLowResolutionTimestamp(ctx, global); need(t, low, err) > first {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("it stays the same")
}

func TestLocksExpireByTheNewestTimestamp(t *testing.T) {
	own, ctx := newOracle(t), context.Background()
	if own.IsExpired(1, 1, global) || own.UntilExpired(1, 7, global) != 7 {
		t.Fatal("expired without a timestamp to compare with")
	}
	newest, err := own.GetTimestamp(ctx, global)
	need(t, newest, err)
	lock := oracle.ComposeTS(oracle.ExtractPhysical(newest)-100, 0)
	if own.UntilExpired(lock, 100, global) != 0 || !own.IsExpired(lock, 100, global) {
		t.Fatal("a lock outlives its TTL")
	}
	if left := own.UntilExpired(lock, 130, global); left != 30 || own.IsExpired(lock, 130, global) {
		t.Fatalf("a lock has %d ms left, not 30", left)
	}
	if own.IsExpired(lock, math.MaxUint64, global) {
		t.Fatal("a lock for ever has expired")
	}
}

func TestAStaleTimestampIsSoManySecondsOld(t *testing.T) {
	own, ctx := newOracle(t), context.Background()
	stale, err := own.GetStaleTimestamp(ctx, oracle.GlobalTxnScope, 60)
	need(t, stale, err)
	newest, err := own.GetTimestamp(ctx, global)
	age := oracle.ExtractPhysical(need(t, newest, err)) - oracle.ExtractPhysical(stale)
	if age < 59_000 || age > 70_000 {
		t.Fatalf("%d ms old", age)
	}
	if err := own.ValidateReadTS(ctx, stale, true, global); err != nil {
		t.Fatal(err)
	}
	if _, err := own.GetStaleTimestamp(ctx, oracle.GlobalTxnScope, math.MaxUint64); err == nil {
		t.Fatal("a time before 1970 is accepted")
	}
}

func TestASnapshotInTheFutureIsRefused(t *testing.T) {
	own, other, ctx := newOracle(t), newOracle(t), context.Background()
	ts, err := other.GetTimestamp(ctx, global)
	// It is above all that this oracle has seen, so the cluster is asked.
	if err := own.ValidateReadTS(ctx, need(t, ts, err), false, global); err != nil {
		t.Fatal(err)
	}
	future := ts + 1<<40
	var refused oracle.ErrFutureTSRead
	if err := own.ValidateReadTS(ctx, future, false, global); !errors.As(err, &refused) || refused.ReadTS != future {
		t.Fatal(err)
	}
	if err := own.ValidateReadTS(ctx, math.MaxUint64, false, global); err != nil {
		t.Fatal(err)
	}
	var latest oracle.ErrLatestStaleRead
	if err := own.ValidateReadTS(ctx, math.MaxUint64, true, global); !errors.As(err, &latest) {
		t.Fatal(err)
	}
}

func TestWhatTheOracleDoesNotHaveIsRefused(t *testing.T) {
	own, ctx := newOracle(t), context.Background()
	local := &oracle.Option{TxnScope: "dc-1"}
	_, timestamp := own.GetTimestamp(ctx, local)
	_, async := own.GetTimestampAsync(ctx, local).Wait()
	_, low := own.GetLowResolutionTimestamp(ctx, local)
	_, lowAsync := own.GetLowResolutionTimestampAsync(ctx, local).Wait()
	_, stale := own.GetStaleTimestamp(ctx, "dc-1", 1)
	for _, err := range []error{timestamp, async, low, lowAsync, stale, own.ValidateReadTS(ctx, 1, false, local)} {
		if err == nil {
			t.Error("a local scope is accepted")
		}
	}
	if _, err := own.GetExternalTimestamp(ctx); !errors.Is(err, tikvoracle.ErrExternalTimestamp) {
		t.Error(err)
	}
	if err := own.SetExternalTimestamp(ctx, 1); !errors.Is(err, tikvoracle.ErrExternalTimestamp) {
		t.Error(err)
	}
}
