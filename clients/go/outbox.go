package epicepoch

import (
	"errors"
	"net"
	"sync"
	"time"
)

// outboxMax bounds what waits behind a write that takes long: some thousand pongs, since of requests
// only few are under way.
const outboxMax = 64 << 10

var (
	errDoesNotRead = errors.New("it does not read")
	errSilent      = errors.New("it did not answer in time")
)

// outbox writes to a connection for callers that have no time to wait until the node reads: whoever
// finds a write under way leaves its frames behind it. It never decides what is sent.
type outbox struct {
	to net.Conn
	// patience is how long a write may take before the connection is left.
	patience time.Duration
	// wake tells drain that frames wait; gone is closed when the connection is left.
	wake chan struct{}
	gone chan struct{}

	mu sync.Mutex
	// busy while somebody writes, or drain is about to.
	busy    bool
	waiting []byte
	// why the connection was left, nil before.
	why error
}

func newOutbox(to net.Conn, patience time.Duration) *outbox {
	return &outbox{to: to, patience: patience, wake: make(chan struct{}, 1), gone: make(chan struct{})}
}

// write sends frames, now or behind what is being written. If that fails, the connection is left.
func (o *outbox) write(frames []byte) {
	o.mu.Lock()
	if o.busy {
		if full := len(o.waiting)+len(frames) > outboxMax; full {
			o.mu.Unlock()
			o.leave(errDoesNotRead)
			return
		}
		o.waiting = append(o.waiting, frames...)
		o.mu.Unlock()
		return
	}
	o.busy = true
	o.mu.Unlock()
	o.put(frames)
	o.mu.Lock()
	if o.busy = len(o.waiting) > 0; o.busy {
		// Room for one is enough: there is one at most who is busy.
		o.wake <- struct{}{}
	}
	o.mu.Unlock()
}

// drain writes what others have left, until the connection is left.
func (o *outbox) drain() {
	var out []byte
	for {
		select {
		case <-o.wake:
		case <-o.gone:
			return
		}
		for {
			o.mu.Lock()
			out, o.waiting = o.waiting, out[:0]
			o.busy = len(out) > 0
			o.mu.Unlock()
			if len(out) == 0 {
				break
			}
			o.put(out)
		}
	}
}

func (o *outbox) put(frames []byte) {
	o.to.SetWriteDeadline(time.Now().Add(o.patience))
	if _, err := o.to.Write(frames); err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			err = errDoesNotRead
		}
		o.leave(err)
	}
}

// leave closes the connection; the first reason is the one that is told.
func (o *outbox) leave(why error) {
	o.mu.Lock()
	if o.why == nil {
		o.why = why
		close(o.gone)
	}
	o.mu.Unlock()
	o.to.Close()
}

// left returns why the connection was left from this side, nil if it was not.
func (o *outbox) left() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}
