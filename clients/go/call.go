package epicepoch

import (
	"context"
	"sync"
	"time"
)

// Call is an asynchronous call: the result of [Client.Go] or [Client.GoLatest], now or later. It is safe for concurrent
// use. It has no goroutine of its own: the goroutine that reads the answer ends the call, and the
// runtime's timers end it at its deadline.
type Call struct {
	client *Client
	ctx    context.Context
	count  uint64
	// deadline is when the call has to end.
	deadline time.Time
	// isCounted is true if the call is one of the client's calls.
	isCounted bool
	// done is closed when result and err are set.
	done chan struct{}

	// mu guards everything below. While a goroutine holds mu, it never waits and takes no other
	// lock. The client's mu may be held when mu is taken.
	mu      sync.Mutex
	isEnded bool
	result  Range
	err     error
	// batch is the request that this call waits for, and offset the call's place in its answer. It
	// is nil when the call has ended, and while the call is between two requests.
	batch  *batch
	offset uint64
	// last is the last error of this call.
	last error
	// stops end the watch over the context and the limit of time.
	stops [2]func() bool
}

// Go begins a call for count timestamps and returns at once. It does everything that
// [Client.Timestamps] does, without a goroutine for the call: it shares requests with other calls,
// and asks again when the leader fails, also while nobody waits for the result. The call ends when
// ctx ends; if ctx has no deadline, the call also ends after [WithCallTimeout]. No caller gets
// timestamps that arrive after that. At most 2^20 calls of Go may be in progress; further ones fail
// with [ErrTooManyCalls].
//
// Two calls that are in progress at the same time have no order: either may get the lower
// timestamps. The timestamps of a call are above those of every call that had ended when it began.
func (c *Client) Go(ctx context.Context, count uint64) *Call {
	if count == 0 || count > countMax {
		call := &Call{client: c, ctx: ctx, count: count, done: make(chan struct{})}
		call.end(Range{}, ErrCount)
		return call
	}
	return c.begin(ctx, count)
}

// GoLatest begins a call for the latest timestamp, as [Client.Go] begins a call for new ones. The
// result has this one timestamp, which [Client.Latest] describes.
func (c *Client) GoLatest(ctx context.Context) *Call { return c.begin(ctx, latestCount) }

// begin begins a call for count timestamps, or for the latest one if count is latestCount.
func (c *Client) begin(ctx context.Context, count uint64) *Call {
	call := &Call{client: c, ctx: ctx, count: count, done: make(chan struct{})}
	if err := ctx.Err(); err != nil {
		call.end(Range{}, err)
		return call
	}
	if c.calls.Add(1) > int64(c.o.callsMax) {
		c.calls.Add(-1)
		call.end(Range{}, ErrTooManyCalls)
		return call
	}
	call.isCounted = true
	var isBounded bool
	call.deadline, isBounded = c.deadline(ctx)
	call.mu.Lock()
	if ctx.Done() != nil {
		call.stops[0] = context.AfterFunc(ctx, func() { call.interrupt(ctx.Err()) })
	}
	if !isBounded {
		limit := time.AfterFunc(c.o.callTimeout, func() { call.interrupt(context.DeadlineExceeded) })
		call.stops[1] = limit.Stop
	}
	call.mu.Unlock()
	call.ask()
	return call
}

// Done returns a channel that is closed when the call has ended, for select.
func (call *Call) Done() <-chan struct{} { return call.done }

// Wait waits until the call has ended, and returns its result. It may be called more than once, and
// returns the same each time. See [Client.Timestamps] for errors.
func (call *Call) Wait() (Range, error) {
	<-call.done
	return call.result, call.err
}

// ask joins a request. If the client cannot ask, the call ends.
func (call *Call) ask() {
	if _, _, err := call.client.join(call.count, call); err != nil {
		call.end(Range{}, err)
	}
}

// attach sets the request that the call waits for. If the call has ended, it does not wait, and no
// caller gets its timestamps.
func (call *Call) attach(b *batch, offset uint64) {
	call.mu.Lock()
	defer call.mu.Unlock()
	if call.isEnded {
		b.leave()
		return
	}
	call.batch, call.offset = b, offset
}

// handleResult takes the result of a request: the call ends, or joins another request.
func (call *Call) handleResult(b *batch) {
	call.mu.Lock()
	waits, offset := call.batch == b, call.offset
	if !waits {
		// The call has ended.
		call.mu.Unlock()
		return
	}
	call.batch = nil
	if b.err != nil {
		call.last = b.err
	}
	call.mu.Unlock()
	result, err := b.part(offset, call.count), b.err
	b.leave()
	switch ended := call.ctx.Err(); {
	case ended != nil:
		// The result may have come at the same moment as the end. Then the end counts, and the
		// result is dropped.
		call.interrupt(ended)
	case err == nil && isLate(call.deadline):
		call.end(Range{}, call.client.because(context.DeadlineExceeded, errLate))
	case err == nil:
		call.end(result, nil)
	case isCurable(err):
		call.ask()
	default:
		call.end(Range{}, err)
	}
}

// interrupt ends the call because its context has ended, or its time is over.
func (call *Call) interrupt(ended error) {
	call.mu.Lock()
	last := call.last
	call.mu.Unlock()
	call.end(Range{}, call.client.because(ended, last))
}

// end sets the result, unless the call has one.
func (call *Call) end(result Range, err error) {
	call.mu.Lock()
	if call.isEnded {
		call.mu.Unlock()
		return
	}
	call.isEnded, call.result, call.err = true, result, err
	b, stops := call.batch, call.stops
	call.batch, call.stops = nil, [2]func() bool{}
	call.mu.Unlock()
	if call.isCounted {
		call.client.calls.Add(-1)
	}
	close(call.done)
	if b != nil {
		b.leave()
	}
	for _, stop := range stops {
		if stop != nil {
			stop()
		}
	}
}
