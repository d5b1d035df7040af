package epicepoch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// errOversize parts callers who together want more than a leader gives; they ask again at once.
var errOversize = fmt.Errorf("%w: the request is larger than the leader takes", ErrUnreachable)

// batch is what callers share: one request. They join it while it is open, under the client's lock;
// it is sealed when it is sent, and nobody joins it after that. So every timestamp in its answer is
// allocated after all of them asked.
type batch struct {
	// done is closed when answer or err is set.
	done chan struct{}
	// count is what all callers want together. Guarded by the client's lock until it is sealed.
	count uint64
	// holders are the callers that have not left yet, and the client until the batch is done. The last
	// one puts the batch back, so that nobody reads or writes it afterwards.
	holders atomic.Int64
	// id is the request's, once sent.
	id uint64
	// sent is when the request left.
	sent time.Time
	// floor is the highest timestamp that was returned before the request left.
	floor  Timestamp
	answer Range
	err    error
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// newBatch allocates one channel; the batch itself is used again.
func newBatch() *batch {
	b := batches.Get().(*batch)
	*b = batch{done: make(chan struct{})}
	b.holders.Store(1)
	return b
}

// join takes part in an open batch; the caller's timestamps begin at the offset.
func (b *batch) join(count uint64) (offset uint64) {
	offset = b.count
	b.count += count
	b.holders.Add(1)
	return offset
}

// wait returns when the batch is done, or false when the context has ended by then; then the caller
// has left.
func (b *batch) wait(ctx context.Context) bool {
	end := ctx.Done()
	if end == nil {
		<-b.done
		return true
	}
	select {
	case <-b.done:
		// Both may be there: what comes late goes to nobody.
		if ctx.Err() == nil {
			return true
		}
	case <-end:
	}
	b.leave()
	return false
}

// leave is called once by everybody who joined, and by finish.
func (b *batch) leave() {
	if b.holders.Add(-1) == 0 {
		batches.Put(b)
	}
}

// waiting is how many callers have not left.
func (b *batch) waiting() int { return int(b.holders.Load()) - 1 }

// finish hands everybody what came of it. The client has no part in the batch afterwards.
func (b *batch) finish(answer Range, err error) {
	b.answer, b.err = answer, err
	close(b.done)
	b.leave()
}
