package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"
)

// Interval mode: timestamps from any node that is certain of the time, and the wait that puts them in
// order. This file decides which node to ask and when to give up. It uses no wall clock, only the
// monotonic one. The connections are in stamper.go.

// intervalPause is the time between two rounds through the nodes while none is certain.
const intervalPause = 10 * time.Millisecond

// errNoWait is the error of [Client.CommitWait] for an interval that no call has returned. How long
// to wait for it is not known.
var errNoWait = errors.New("epicepoch: this interval is not from Client.Interval; nothing says how long to wait for it")

// Interval has timestamps of interval mode, and how long to wait for them. Write at these timestamps,
// wait with [Client.CommitWait], then let others see the writes.
type Interval struct {
	// Timestamp is the first timestamp.
	Timestamp Timestamp
	// Count is the number of timestamps; their indexes are consecutive.
	Count uint64
	// EarliestNanos is a time that true time was not below when the node stamped, Unix nanoseconds.
	EarliestNanos uint64
	// LatestNanos is a time that true time was not above then, Unix nanoseconds. It is also the epoch
	// of the timestamps.
	LatestNanos uint64
	// readyAt is when the wait is over; it has a monotonic reading.
	readyAt time.Time
}

// ReadyAt returns when the wait is over. It is of use in this process only: only its monotonic reading
// counts.
func (i Interval) ReadyAt() time.Time { return i.readyAt }

// IsSurelyBefore returns whether every timestamp of this answer was stamped before every one of the
// other. If it is false, nothing is known.
func (i Interval) IsSurelyBefore(other Interval) bool { return i.LatestNanos < other.EarliestNanos }

// Tick returns the number of the interval of length w in which a timestamp's epoch lies. A smaller
// tick proves nothing, and an equal one neither: only waiting gives order. Keys that begin with it are
// near each other if they were written at about the same time. It panics if w is not above 0.
func Tick(timestamp Timestamp, w time.Duration) uint64 {
	if w <= 0 {
		panic("epicepoch: a tick takes some time")
	}
	return timestamp.Epoch / uint64(w)
}

// Interval returns an interval timestamp from a node that is certain of the time: first from the node
// that gave the last one, then from the others. A node that has just been silent comes last. See
// [Client.Intervals].
//
// Timestamps that were not waited out are in no order. Write, then call [Client.CommitWait], then let
// others see it. Waiting and writing may overlap.
func (c *Client) Interval(ctx context.Context) (Interval, error) { return c.Intervals(ctx, 1) }

// Intervals returns count interval timestamps, 1 to 2^32, that share one interval. It needs a cluster
// in interval mode (MODE=interval), and neither a leader nor a quorum; see [WithIntervals]. Nodes that
// are down or uncertain are passed over, until the context ends; the error then matches the context's
// and the reason, such as [ErrUncertain]. If the context has no deadline, the call ends after
// [WithCallTimeout].
//
// If the cluster is in quorum mode, the error is [ErrOtherMode]. A node that has not heard of a change
// of the mode yet says the same. So every known node is asked once before the call ends with it. If
// one of them is in interval mode, though uncertain, or was so in an earlier call, the call goes on to
// ask, because the way back to quorum mode is rare.
//
// Calls do not share requests. To get several timestamps, ask for them at once.
func (c *Client) Intervals(ctx context.Context, count uint64) (Interval, error) {
	if count == 0 || count > countMax {
		return Interval{}, ErrCount
	}
	if c.o.needsCompact {
		return Interval{}, fmt.Errorf("%w: interval timestamps do not fit into 64 bits", ErrNotCompact)
	}
	if c.ctx.Err() != nil {
		return Interval{}, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return Interval{}, err
	}
	// Now the context has a deadline.
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	begun := time.Now()
	err := c.stamper.enter(ctx)
	if err == nil {
		err = ctx.Err() // The turn may have come together with the end.
		if err != nil {
			c.stamper.leave()
		}
	}
	if err != nil {
		return Interval{}, c.stopped(err, fmt.Errorf("%w: %d calls are in progress", ErrUnreachable, stampersMax))
	}
	defer c.stamper.leave()
	learned := modeSeen{isIntervals: c.stamper.isIntervals.Load()}
	addrs := c.stamper.round()
	for {
		for _, addr := range addrs {
			asked := time.Now()
			answer, err := c.stamper.ask(ctx, addr, count)
			if err == nil {
				c.stamper.isCertain(addr)
				if deadline, _ := ctx.Deadline(); isLate(deadline) {
					return Interval{}, c.stopped(context.DeadlineExceeded, errLate)
				}
				return answer, nil
			}
			ended := ctx.Err()
			if deadline, _ := ctx.Deadline(); ended == nil && isLate(deadline) {
				ended = context.DeadlineExceeded // The timer of the context has not fired yet.
			}
			// A caller that gives up says nothing about the node.
			if !errors.Is(ended, context.Canceled) {
				// The end of a call proves that a node is silent only if the node had most of the time.
				hadTime := ended == nil || 2*time.Since(asked) >= time.Since(begun)
				c.stamper.isNotCertain(addr, hadTime && learned.provesSilent(err, ended))
			}
			if ended != nil {
				return Interval{}, c.stopped(ended, learned.reason(err))
			}
			c.failed(err)
			if err := learned.fail(addr, err); err != nil {
				return Interval{}, err
			}
			if learned.isIntervals {
				c.stamper.isIntervals.Store(true)
			}
		}
		// The nodes may have named members that this call has not asked.
		if addrs = learned.unasked(c.stamper.round()); len(addrs) > 0 {
			continue
		}
		if err := learned.verdict(); err != nil {
			return Interval{}, err
		}
		sleepWithin(ctx, intervalPause)
		if ended := ctx.Err(); ended != nil {
			return Interval{}, c.stopped(ended, learned.last)
		}
		addrs = c.stamper.round()
	}
}

// CommitWait waits until the timestamps of the interval are in the past everywhere: every request that
// begins after the wait, at any node, gets a later timestamp. A process that was paused waits longer,
// never shorter. If the context ends first, CommitWait returns its error: do not let others see what
// was written yet. A later call goes on with the wait.
func (c *Client) CommitWait(ctx context.Context, interval Interval) error {
	if interval.readyAt.IsZero() {
		return errNoWait
	}
	for {
		left := time.Until(interval.readyAt)
		if left <= 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		sleepWithin(ctx, left)
	}
}

// MustRetry is the rule of a reader: a read at readAt that finds a value at found has to be repeated
// with a new timestamp if found is equal or later, because its writer may still wait. If so, MustRetry
// waits until found is in the past, and returns true. It asks for timestamps of its own. See
// [Client.Intervals] for errors. If found is not in the past before the context ends, the error also
// says by how much found was ahead when a node last answered.
func (c *Client) MustRetry(ctx context.Context, readAt, found Timestamp) (bool, error) {
	if found.Before(readAt) {
		return false, nil
	}
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	// ahead is how far found was ahead when a node last answered, in nanoseconds; 0 before.
	ahead := int64(0)
	for {
		interval, err := c.Intervals(ctx, 1)
		if ahead > 0 && errors.Is(err, context.DeadlineExceeded) {
			return false, fmt.Errorf("%w: the timestamp that was found was %v ahead when a node last answered",
				err, time.Duration(ahead))
		}
		if err != nil {
			return false, err
		}
		if interval.EarliestNanos > found.Epoch {
			return true, nil
		}
		// One more nanosecond than the difference, if it fits.
		ahead = int64(min(found.Epoch-interval.EarliestNanos, math.MaxInt64-1) + 1)
		sleepWithin(ctx, time.Duration(ahead))
	}
}

// bounded adds the timeout of a call to a context without a deadline. The context also ends when the
// client is closed.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	var cancel context.CancelFunc
	if _, isBounded := ctx.Deadline(); isBounded {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithTimeout(ctx, c.o.callTimeout)
	}
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// stopped returns the error of a call that has ended because of its context, or because the client is
// closed.
func (c *Client) stopped(ended, reason error) error {
	if c.ctx.Err() != nil {
		return ErrClosed
	}
	return &interrupted{context: ended, last: reason}
}

// sleepWithin sleeps until the pause is over or the context ends.
func sleepWithin(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// modeSeen is what a call has learned from the nodes that it has asked.
type modeSeen struct {
	// asked are the addresses of the nodes that gave no timestamp.
	asked []string
	// hasSilent says that a node has let the time of an attempt pass.
	hasSilent bool
	// last is the last error of a node.
	last error
	// otherMode is the first refusal of a node that is not in interval mode, or does not know it.
	otherMode error
	// isIntervals says that a node is in interval mode, though uncertain, or was so in an earlier call.
	isIntervals bool
}

// provesSilent returns whether a node was silent in an attempt that has failed. ended is how the call has
// ended, or nil. If an earlier node was silent, the end of the call proves nothing: that node has used
// the time of this one.
func (m *modeSeen) provesSilent(why, ended error) bool {
	return isTimeout(why) && (ended == nil || !m.hasSilent)
}

// fail records why a node gave no timestamp. It returns the error if the call has to end with it.
func (m *modeSeen) fail(addr string, why error) error {
	if !slices.Contains(m.asked, addr) {
		m.asked = append(m.asked, addr)
	}
	m.hasSilent = m.hasSilent || isTimeout(why)
	m.last = why
	switch {
	case errors.Is(why, ErrOtherMode), errors.Is(why, ErrUnsupported):
		if m.otherMode == nil {
			m.otherMode = why
		}
	case errors.Is(why, ErrUncertain):
		m.isIntervals = true
	case !isCurable(why):
		return why
	}
	return nil
}

// unasked returns those of the addresses that the call has not asked.
func (m *modeSeen) unasked(addrs []string) []string {
	return slices.DeleteFunc(addrs, func(addr string) bool { return slices.Contains(m.asked, addr) })
}

// verdict returns the error of a call that has asked every node, or nil if it has to ask again.
func (m *modeSeen) verdict() error {
	if m.isIntervals {
		return nil
	}
	return m.otherMode
}

// reason returns why the call took so long. An attempt that the end of the call has cut off says less
// than an earlier one.
func (m *modeSeen) reason(cutOff error) error {
	if m.last != nil {
		return m.last
	}
	return cutOff
}

const (
	// intervalMarker is the bit that every index of interval mode has.
	intervalMarker = uint64(1) << 63
	// intervalCountBits is how many low bits of an index count; the node's id is above them.
	intervalCountBits = 48
	// intervalMargin is the part of the wait by which a client's clock may be wrong: an eighth.
	intervalMargin = 8
)

// intervalWait returns how long to wait for an interval of this width. After this time on a clock that
// runs fast by an eighth, more than the width has passed.
func intervalWait(width uint32) time.Duration {
	return time.Duration(uint64(width) + (uint64(width)+intervalMargin-1)/intervalMargin + 1)
}

// intervalFrame returns a request for count interval timestamps, 1 <= count <= 2^32.
func intervalFrame(id, count uint64) head {
	return head{kind: kindIntervalRequest, argument: uint32(count - 1), id: id}
}

// readInterval reads an answer to a request for count interval timestamps, which came at arrived from
// the node.
func readInterval(h head, tail []byte, count, node uint64, arrived time.Time) (Interval, error) {
	if h.flags != 0 || h.code != 0 {
		return Interval{}, protocolError("an interval answer with reserved bits")
	}
	first, width := FromBytes([TimestampSize]byte(tail)), h.argument
	switch counted := first.Index & (1<<intervalCountBits - 1); {
	case first.Index&intervalMarker == 0:
		return Interval{}, protocolError("an interval answer with a timestamp of quorum mode")
	case first.Index&^intervalMarker>>intervalCountBits != node:
		return Interval{}, protocolError("an interval answer with the id of another node")
	case bits.Len64(counted+(count-1)) > intervalCountBits:
		return Interval{}, protocolError("an interval answer whose count is too high")
	case first.Epoch < uint64(width):
		return Interval{}, protocolError("an interval that begins before 1970")
	}
	return Interval{
		Timestamp: first, Count: count, EarliestNanos: first.Epoch - uint64(width), LatestNanos: first.Epoch,
		readyAt: arrived.Add(intervalWait(width)),
	}, nil
}
