package epicepoch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// errOversize ends a batch that is larger than the leader accepts. Its callers ask again at once,
// in separate batches.
var errOversize = fmt.Errorf("%w: the request is larger than the leader takes", ErrUnreachable)

// batch is a request shared by callers. They join it while it is open, under the client's lock. It
// is sealed when it is sent, and then no caller can join. So every timestamp in its answer is
// allocated after all of its callers asked.
type batch struct {
	// done is closed when answer or err is set.
	done chan struct{}
	// count is the sum of the callers' counts; 0 if all ask for the latest timestamp. Guarded by the
	// client's lock until it is sealed.
	count uint64
	// holders counts the callers that have not left, plus one for the client until the batch is
	// done. The last holder to leave returns the batch to the pool. Nothing uses the batch after
	// that.
	holders atomic.Int64
	// id is the request's id, once sent.
	id uint64
	// sent is the time at which the request was sent.
	sent time.Time
	// floor is the highest timestamp that the client had returned when it sent the request.
	floor Timestamp
	// isLatest is true if the request that was sent asks for the latest timestamp.
	isLatest bool
	answer   Range
	err      error
	// isPrompt is [Client.isPrompt] when the batch was opened.
	isPrompt bool
	// calls are the callers that do not wait: finish gives the result to each of them. Guarded by
	// the client's lock until the batch is sealed.
	calls []*Call
}

// latestCount is the count of a call for the latest timestamp, which takes none.
const latestCount = 0

var batches = sync.Pool{New: func() any { return new(batch) }}

// newBatch takes a batch from the pool, and allocates only its channel.
func newBatch() *batch {
	b := batches.Get().(*batch)
	*b = batch{done: make(chan struct{})}
	b.holders.Store(1)
	return b
}

// join adds a caller to an open batch. The caller's timestamps begin at the returned offset in the
// batch's answer.
func (b *batch) join(count uint64, call *Call) (offset uint64) {
	offset = b.count
	b.count += count
	b.holders.Add(1)
	if call != nil {
		b.calls = append(b.calls, call)
		call.attach(b, offset)
	}
	return offset
}

// part returns the timestamps of a caller from the answer of a batch that is done. A caller that
// asks for the latest timestamp gets the last one of the answer. All callers of the batch have
// called before the request was sent, so no timestamp from before is above that one, and later ones
// are.
func (b *batch) part(offset, count uint64) Range {
	if b.err != nil {
		return Range{}
	}
	if count == latestCount {
		return Range{First: b.answer.Last(), Count: 1}
	}
	first := Timestamp{Epoch: b.answer.First.Epoch, Index: b.answer.First.Index + offset}
	return Range{First: first, Count: count}
}

// wait returns nil when the batch is done. If the context ends first, or a value comes over the
// channel over, it returns why; the caller has then left the batch.
func (b *batch) wait(ctx context.Context, over <-chan time.Time) (ended error) {
	end := ctx.Done()
	if end == nil && over == nil {
		<-b.done
		return nil
	}
	select {
	case <-b.done:
		// The answer may have come at the same moment as the end. Then the end counts, and the
		// answer is dropped.
		select {
		case <-over:
			ended = context.DeadlineExceeded
		default:
			ended = ctx.Err()
		}
	case <-end:
		ended = ctx.Err()
	case <-over:
		ended = context.DeadlineExceeded
	}
	if ended != nil {
		b.leave()
	}
	return ended
}

// leave gives up one hold on the batch. Every caller that joined calls it once, and so does finish.
func (b *batch) leave() {
	if b.holders.Add(-1) == 0 {
		batches.Put(b)
	}
}

// waiting returns how many callers have not left.
func (b *batch) waiting() int { return int(b.holders.Load()) - 1 }

// finish gives the result to all callers. The client does not use the batch after that.
func (b *batch) finish(answer Range, err error) {
	b.answer, b.err = answer, err
	close(b.done)
	for _, call := range b.calls {
		call.handleResult(b)
	}
	b.leave()
}
