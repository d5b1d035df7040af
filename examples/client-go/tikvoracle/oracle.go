// Package tikvoracle gives TiKV's Go client timestamps from EpicEpoch. The cluster must give compact
// timestamps (TIMESTAMP_FORMAT=compact): they have the layout that TiKV expects.
//
// It is for stores behind client-go that take no timestamps from PD themselves. TiKV does; see [New].
//
//	store.SetOracle(tikvoracle.New(client))
package tikvoracle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	"github.com/tikv/client-go/v2/oracle"
)

// ErrExternalTimestamp: TiDB keeps the external timestamp in PD. This oracle keeps no values.
var ErrExternalTimestamp = errors.New("the oracle EpicEpoch keeps no external timestamp; keep it in a key of the store")

// Oracle implements [oracle.Oracle]. It is safe for concurrent use.
type Oracle struct {
	client *epicepoch.Client
	// ask asks the client for a new timestamp.
	ask func(ctx context.Context) (uint64, error)
	// newest is the highest timestamp of an answer, and when it came.
	newest atomic.Pointer[arrival]
	// interval is how old newest may become.
	interval atomic.Int64
	// renew is sent to when interval has changed.
	renew  chan struct{}
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

type arrival struct {
	ts uint64
	at time.Time
}

var _ oracle.Oracle = (*Oracle)(nil)

// intervalDefault is client-go's default for the age of timestamps of low resolution.
const intervalDefault = 2 * time.Second

// New takes timestamps from a client, which the caller closes after the oracle. While the oracle is
// open, it asks for a timestamp when the newest one is two seconds old; see
// SetLowResolutionTimestampUpdateInterval.
//
// With a real TiKV, never use asynchronous commit or one-phase commit (1PC). There TiKV chooses the
// commit timestamp: above the snapshots that its leader of the region knows, and a new leader learns
// from PD how high those were. PD knows no timestamp of this oracle, so the commit may be below a
// snapshot that another client has already read. TiKV of version 8.5.7 or later may also refuse
// timestamps that are far ahead of PD's, or stop.
func New(client *epicepoch.Client) *Oracle {
	o := newOracle(client.CompactTimestamp)
	o.client = client
	return o
}

// newOracle is New, but without a client: for the methods that only ask for new timestamps.
func newOracle(ask func(ctx context.Context) (uint64, error)) *Oracle {
	ctx, cancel := context.WithCancel(context.Background())
	o := &Oracle{ask: ask, renew: make(chan struct{}, 1), cancel: cancel}
	o.interval.Store(int64(intervalDefault))
	o.ended.Add(1)
	go o.keepFresh(ctx)
	return o
}

// Close ends the oracle. Timestamps that calls wait for still come.
func (o *Oracle) Close() {
	o.cancel()
	o.ended.Wait()
}

// GetTimestamp returns a new timestamp. It is above each one that any client had before the call.
func (o *Oracle) GetTimestamp(ctx context.Context, opt *oracle.Option) (uint64, error) {
	if err := check(opt); err != nil {
		return 0, err
	}
	ts, err := o.ask(ctx)
	if err != nil {
		return 0, err
	}
	o.saw(ts)
	return ts, nil
}

// GetTimestampAsync asks for a timestamp and does not wait for it.
func (o *Oracle) GetTimestampAsync(ctx context.Context, opt *oracle.Option) oracle.Future {
	if err := check(opt); err != nil {
		return ready{err: err}
	}
	return &future{oracle: o, call: o.client.Go(ctx, 1)}
}

// GetLowResolutionTimestamp returns the highest timestamp that this process has had. When that is as
// old as the interval, the oracle asks for a new one: it is older only until the answer comes.
func (o *Oracle) GetLowResolutionTimestamp(ctx context.Context, opt *oracle.Option) (uint64, error) {
	if err := check(opt); err != nil {
		return 0, err
	}
	if newest := o.newest.Load(); newest != nil {
		return newest.ts, nil
	}
	return o.GetTimestamp(ctx, opt)
}

// GetLowResolutionTimestampAsync is GetLowResolutionTimestamp, as a future.
func (o *Oracle) GetLowResolutionTimestampAsync(ctx context.Context, opt *oracle.Option) oracle.Future {
	if err := check(opt); err != nil {
		return ready{err: err}
	}
	if newest := o.newest.Load(); newest != nil {
		return ready{ts: newest.ts}
	}
	return o.GetTimestampAsync(ctx, opt)
}

// SetLowResolutionTimestampUpdateInterval sets at which age the timestamp of low resolution is renewed.
func (o *Oracle) SetLowResolutionTimestampUpdateInterval(interval time.Duration) error {
	if interval <= 0 {
		return fmt.Errorf("the interval of timestamps of low resolution is %v; it must be above 0", interval)
	}
	o.interval.Store(int64(interval))
	select {
	case o.renew <- struct{}{}:
	default:
	}
	return nil
}

// GetStaleTimestamp estimates the timestamp of some seconds ago, as PD's oracle does: the newest
// timestamp, plus the time since it came, minus these seconds. Check it with ValidateReadTS.
func (o *Oracle) GetStaleTimestamp(ctx context.Context, scope string, prevSecond uint64) (uint64, error) {
	if _, err := o.GetLowResolutionTimestamp(ctx, &oracle.Option{TxnScope: scope}); err != nil {
		return 0, err
	}
	newest := o.newest.Load()
	ms := oracle.ExtractPhysical(newest.ts) + time.Since(newest.at).Milliseconds()
	if prevSecond >= uint64(ms)/1000 {
		return 0, fmt.Errorf("%d seconds ago is before 1970", prevSecond)
	}
	return oracle.ComposeTS(ms-int64(prevSecond)*1000, 0), nil
}

// IsExpired returns whether a lock has outlived its TTL, in ms, by the newest timestamp.
func (o *Oracle) IsExpired(lockTS, ttl uint64, opt *oracle.Option) bool {
	return o.UntilExpired(lockTS, ttl, opt) <= 0
}

// UntilExpired returns the rest of a lock's TTL, in ms. It may be negative. Without a timestamp to
// compare with, it is the whole TTL.
func (o *Oracle) UntilExpired(lockTS, ttl uint64, _ *oracle.Option) int64 {
	left := int64(min(ttl, math.MaxInt64/2))
	if newest := o.newest.Load(); newest != nil {
		left += oracle.ExtractPhysical(lockTS) - oracle.ExtractPhysical(newest.ts)
	}
	return left
}

// GetExternalTimestamp returns [ErrExternalTimestamp].
func (o *Oracle) GetExternalTimestamp(context.Context) (uint64, error) {
	return 0, ErrExternalTimestamp
}

// SetExternalTimestamp returns [ErrExternalTimestamp].
func (o *Oracle) SetExternalTimestamp(context.Context, uint64) error { return ErrExternalTimestamp }

// GetAllTSOKeyspaceGroupMinTS returns a new timestamp: there is one order for all keyspaces.
func (o *Oracle) GetAllTSOKeyspaceGroupMinTS(ctx context.Context) (uint64, error) {
	return o.GetTimestamp(ctx, &oracle.Option{})
}

// ValidateReadTS refuses a snapshot that is in the future: a later commit could change it.
func (o *Oracle) ValidateReadTS(ctx context.Context, readTS uint64, isStaleRead bool, opt *oracle.Option) error {
	if err := check(opt); err != nil {
		return err
	}
	if readTS == math.MaxUint64 {
		if isStaleRead {
			return oracle.ErrLatestStaleRead{}
		}
		return nil
	}
	if newest := o.newest.Load(); newest != nil && readTS <= newest.ts {
		return nil
	}
	// Each timestamp that anyone has had is at or below the latest one. The question takes none.
	ts, err := o.client.CompactLatest(ctx)
	if err != nil {
		return fmt.Errorf("the read timestamp %d is not checked: %w", readTS, err)
	}
	o.saw(ts)
	if readTS > ts {
		return oracle.ErrFutureTSRead{ReadTS: readTS, CurrentTS: ts}
	}
	return nil
}

// saw keeps the highest timestamp.
func (o *Oracle) saw(ts uint64) {
	next := &arrival{ts: ts, at: time.Now()}
	for {
		newest := o.newest.Load()
		if newest != nil && newest.ts >= ts || o.newest.CompareAndSwap(newest, next) {
			return
		}
	}
}

// keepFresh renews the newest timestamp when it is as old as the interval, until the context ends. If
// the oracle cannot be reached, the old one stays, and the next attempt comes after the interval.
func (o *Oracle) keepFresh(ctx context.Context) {
	defer o.ended.Done()
	next := time.NewTimer(time.Duration(o.interval.Load()))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.renew:
		case <-next.C:
		}
		wait := o.untilOld()
		if wait <= 0 {
			_, err := o.GetTimestamp(ctx, &oracle.Option{})
			if wait = o.untilOld(); err != nil && wait <= 0 {
				wait = time.Duration(o.interval.Load())
			}
		}
		next.Reset(wait)
	}
}

// untilOld returns how long it takes until the newest timestamp is as old as the interval. It may be
// negative.
func (o *Oracle) untilOld() time.Duration {
	newest := o.newest.Load()
	if newest == nil {
		return 0
	}
	return time.Duration(o.interval.Load()) - time.Since(newest.at)
}

// check refuses the local scopes of old versions of PD.
func check(opt *oracle.Option) error {
	if opt == nil || opt.TxnScope == "" || opt.TxnScope == oracle.GlobalTxnScope {
		return nil
	}
	return fmt.Errorf("the oracle EpicEpoch has one order for all, and no scope %q; use %q",
		opt.TxnScope, oracle.GlobalTxnScope)
}

// future is a call in progress.
type future struct {
	oracle *Oracle
	call   *epicepoch.Call
}

// Wait implements [oracle.Future].
func (f *future) Wait() (uint64, error) {
	answer, err := f.call.Wait()
	if err != nil {
		return 0, err
	}
	ts, err := answer.CompactFirst()
	if err != nil {
		return 0, err
	}
	f.oracle.saw(ts)
	return ts, nil
}

// ready is a future that needs no wait.
type ready struct {
	ts  uint64
	err error
}

// Wait implements [oracle.Future].
func (r ready) Wait() (uint64, error) { return r.ts, r.err }
