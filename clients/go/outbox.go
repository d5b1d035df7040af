package epicepoch

import (
	"errors"
	"net"
	"sync"
	"time"
)

// outboxMax limits the bytes that wait during a slow write. Few requests are in flight, so most of
// these bytes are pongs. The limit is enough for about 4,000 of them.
const outboxMax = 64 << 10

var (
	errDoesNotRead = errors.New("it does not read")
	errSilent      = errors.New("it did not answer in time")
)

// outbox writes frames to a connection. Its callers do not wait until the node reads: frames that
// come during a write are kept, and written after it.
type outbox struct {
	to net.Conn
	// timeout is the longest time that a write may take. A write that takes longer closes the
	// connection.
	timeout time.Duration
	// wake tells drain that frames wait. gone is closed when the connection is closed.
	wake chan struct{}
	gone chan struct{}

	mu sync.Mutex
	// busy is true during a write, and when drain is about to write.
	busy    bool
	waiting []byte
	// why is the reason why this client closed the connection, or nil.
	why error
}

func newOutbox(to net.Conn, timeout time.Duration) *outbox {
	return &outbox{to: to, timeout: timeout, wake: make(chan struct{}, 1), gone: make(chan struct{})}
}

// write sends frames, either now or after the write in progress. If the write fails, the connection
// is closed.
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
		// The channel holds one signal, which is enough: only one writer exists at a time.
		o.wake <- struct{}{}
	}
	o.mu.Unlock()
}

// drain writes the frames that wait, until the connection is closed.
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
	o.to.SetWriteDeadline(time.Now().Add(o.timeout))
	if _, err := o.to.Write(frames); err != nil {
		if isTimeout(err) {
			err = errDoesNotRead
		}
		o.leave(err)
	}
}

// leave closes the connection for a reason. If it is called again, the first reason stays.
func (o *outbox) leave(why error) {
	o.mu.Lock()
	if o.why == nil {
		o.why = why
		close(o.gone)
	}
	o.mu.Unlock()
	o.to.Close()
}

// left returns why this client closed the connection, or nil if it did not.
func (o *outbox) left() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}
