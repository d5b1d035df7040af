package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Client asks one cluster. It is safe for goroutines, and cheapest when all of them share one:
// those that ask at the same time share a request.
type Client struct {
	o      options
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup

	// dirMu guards dir and cluster; it is never held across IO, nor together with mu.
	dirMu   sync.Mutex
	dir     *directory
	cluster *Cluster

	// mu guards everything below; it is never held across IO.
	mu sync.Mutex
	// conn is the connection to the leader, nil while there is none.
	conn *connection
	// pending are batches that are not sent yet; the last one is open to callers.
	pending []*batch
	// slots hold the batches under way, by the low bits of the request's id.
	slots    [inFlightMax]*batch
	inFlight int
	lastID   uint64
	// countLimit and inFlightLimit are what the last leader allows, and this client.
	countLimit    uint64
	inFlightLimit int
	// wanted is told when somebody asks while there is no connection.
	wanted chan struct{}
	// quietUntil is when an overloaded leader is asked again; zero if it is not overloaded.
	quietUntil time.Time
	// highest was returned to somebody.
	highest Timestamp
	// lastErr is what went wrong since the last answer or the last new connection.
	lastErr error
	closed  bool
	// ready is closed when the first connection to a leader stands, or nothing can help.
	ready     chan struct{}
	readyOnce sync.Once
	readyErr  error
	// hedge asks twice; nil unless asked for.
	hedge *hedger
}

// Dial finds the cluster through any of its members' client addresses (host:port) and returns when
// its leader is found, an address is refused for good, or the context ends. The context bounds
// nothing after that. Close the client when it is not needed any more.
func Dial(ctx context.Context, addrs []string, opts ...Option) (*Client, error) {
	if len(addrs) == 0 {
		return nil, errors.New("epicepoch: no address to dial")
	}
	for _, addr := range addrs {
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("epicepoch: %q is not host:port", addr)
		}
	}
	c := &Client{
		o: defaults(), dir: newDirectory(addrs), countLimit: countMax, ready: make(chan struct{}),
		wanted: make(chan struct{}, 1),
	}
	for _, opt := range opts {
		opt(&c.o)
	}
	if err := c.o.check(); err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if c.o.hedgeAfter > 0 {
		c.hedge = newHedger(c)
		c.ended.Add(1)
		go c.hedge.run()
	}
	c.ended.Add(2)
	go c.run()
	go c.watch()
	timeout := time.NewTimer(c.o.callTimeout)
	defer timeout.Stop()
	err := context.DeadlineExceeded
	select {
	case <-c.ready:
		if c.readyErr == nil {
			return c, nil
		}
		err = c.readyErr
	case <-ctx.Done():
		err = c.because(ctx.Err(), nil)
	case <-timeout.C:
		err = c.because(err, nil)
	}
	c.Close()
	return nil, err
}

// Timestamp returns one timestamp. It is above everything that any client of the cluster was given
// before this call began. See [Client.Timestamps] for errors.
func (c *Client) Timestamp(ctx context.Context) (Timestamp, error) {
	answer, err := c.Timestamps(ctx, 1)
	return answer.First, err
}

// Timestamps returns count timestamps of one epoch with consecutive indexes, 1 to 2^32 of them. The
// loss of a leader costs a longer call and no error, as long as the context lasts. When it ends, the
// error matches the context's and, with [errors.Is], also why it took so long, such as
// [ErrNoQuorum] or [ErrUnreachable].
func (c *Client) Timestamps(ctx context.Context, count uint64) (Range, error) {
	if count == 0 || count > countMax {
		return Range{}, ErrCount
	}
	if err := ctx.Err(); err != nil {
		return Range{}, err
	}
	var since time.Time
	// What this call met last.
	var last error
	for {
		b, offset, err := c.join(count)
		if err != nil {
			return Range{}, err
		}
		if !b.wait(ctx) {
			return Range{}, c.because(ctx.Err(), last)
		}
		answer, err := b.answer, b.err
		b.leave()
		if err == nil {
			first := Timestamp{Epoch: answer.First.Epoch, Index: answer.First.Index + offset}
			return Range{First: first, Count: count}, nil
		}
		if !isCurable(err) {
			return Range{}, err
		}
		last = err
		if since.IsZero() {
			since = time.Now()
		}
		if _, bounded := ctx.Deadline(); !bounded && time.Since(since) > c.o.callTimeout {
			return Range{}, &interrupted{context: context.DeadlineExceeded, last: err}
		}
	}
}

// Members returns the members of the cluster as last heard of, at most [WithRefresh] ago while the
// cluster can be reached.
func (c *Client) Members() []string {
	c.dirMu.Lock()
	defer c.dirMu.Unlock()
	return slices.Clone(c.dir.members)
}

// Leader returns the address that requests go to, or "" while there is none.
func (c *Client) Leader() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return ""
	}
	return c.conn.addr
}

// Cluster returns the cluster that this client belongs to since its first answer.
func (c *Client) Cluster() (cluster Cluster, known bool) {
	if expected := c.expected(); expected != nil {
		return *expected, true
	}
	return Cluster{}, false
}

// Close ends all calls with [ErrClosed] and returns when nothing of the client runs any more.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.conn != nil {
		c.conn.out.leave(ErrClosed)
	}
	c.mu.Unlock()
	c.cancel()
	c.ended.Wait()
	c.failAll(ErrClosed)
	return nil
}

// join takes part in the open batch, or opens one and sends it if there is room.
func (c *Client) join(count uint64) (b *batch, offset uint64, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, 0, ErrClosed
	}
	if c.conn != nil && count > c.countLimit {
		limit := c.countLimit
		c.mu.Unlock()
		return nil, 0, fmt.Errorf("%w; the leader gives at most %d at once", ErrCount, limit)
	}
	if last := len(c.pending) - 1; last >= 0 && c.pending[last].count+count <= c.countLimit {
		b = c.pending[last]
		offset = b.join(count)
		c.mu.Unlock()
		return b, offset, nil
	}
	b = newBatch()
	offset = b.join(count)
	c.pending = append(c.pending, b)
	if c.conn == nil {
		select {
		case c.wanted <- struct{}{}:
		default:
		}
	}
	send, busy := c.conn != nil && c.inFlight < c.inFlightLimit, c.inFlight > 0
	c.mu.Unlock()
	if send {
		if busy {
			// Others who were woken by the last answer are about to ask as well.
			runtime.Gosched()
		}
		c.pump()
	}
	return b, offset, nil
}

// pump sends what waits, as far as there is room.
func (c *Client) pump() {
	c.mu.Lock()
	conn, frames := c.conn, c.seal()
	c.mu.Unlock()
	c.send(conn, frames)
}

// requests are frames that were sealed and not written yet.
type requests struct {
	frames []byte
}

var requestsPool = sync.Pool{New: func() any {
	return &requests{frames: make([]byte, 0, requestsRoom)}
}}

// requestsRoom is what most requests of one write need.
const requestsRoom = 16 * headSize

// seal takes waiting batches under way and returns their frames; nil if there are none. Under mu.
func (c *Client) seal() *requests {
	if c.conn == nil || len(c.pending) == 0 || c.inFlight >= c.inFlightLimit {
		return nil
	}
	if !c.quietUntil.IsZero() {
		if time.Now().Before(c.quietUntil) {
			return nil
		}
		c.quietUntil = time.Time{}
	}
	out := requestsPool.Get().(*requests)
	out.frames = out.frames[:0]
	for len(c.pending) > 0 && c.inFlight < c.inFlightLimit {
		b := c.pending[0]
		c.pending = slices.Delete(c.pending, 0, 1)
		// Ids of slots that are still in use are passed over.
		for c.lastID++; c.slots[c.lastID%inFlightMax] != nil; c.lastID++ {
		}
		c.slots[c.lastID%inFlightMax] = b
		c.inFlight++
		b.id, b.sent, b.floor = c.lastID, time.Now(), c.highest
		out.frames = requestFrame(b.id, b.count).appendTo(out.frames)
	}
	return out
}

// send writes what was sealed.
func (c *Client) send(conn *connection, out *requests) {
	if out != nil {
		conn.out.write(out.frames)
		requestsPool.Put(out)
	}
}

// take removes the batch of an answer; nil if nobody waits for it. Under mu.
func (c *Client) take(id uint64) *batch {
	b := c.slots[id%inFlightMax]
	if b == nil || b.id != id {
		return nil
	}
	c.slots[id%inFlightMax] = nil
	c.inFlight--
	return b
}

// answered hands an answer to its callers and sends what waited for the room.
func (c *Client) answered(conn *connection, id uint64, answer Range) error {
	c.mu.Lock()
	if c.conn != conn {
		c.mu.Unlock()
		return unreachable(conn.addr, errLeft)
	}
	b := c.take(id)
	if b == nil {
		burnt, err := c.hedge.isBurnt(conn.addr, id, answer)
		c.mu.Unlock()
		if burnt && err != nil {
			c.hedge.fail(err)
		}
		if burnt {
			return err
		}
		return protocolError("%s answered request %d, which is not under way", conn.addr, id)
	}
	if answer.Count != b.count {
		c.mu.Unlock()
		err := protocolError("%s gave %d timestamps, not %d", conn.addr, answer.Count, b.count)
		b.finish(Range{}, err)
		return err
	}
	var err error
	if !b.floor.Before(answer.First) && !b.floor.IsZero() {
		err = fmt.Errorf("%w: %s gave %v, not above %v", ErrWentBackwards, conn.addr, answer.First, b.floor)
	} else {
		c.rose(answer)
	}
	frames := c.seal()
	c.mu.Unlock()
	c.send(conn, frames)
	if err != nil {
		c.o.log.Error("timestamps went backwards", "addr", conn.addr, "error", err)
		c.failed(err)
	} else if hook := c.o.hooks.Answered; hook != nil {
		hook(b.waiting(), b.count, time.Since(b.sent))
	}
	b.finish(answer, err)
	return err
}

// rose takes note of an answer that is given out. Under mu.
func (c *Client) rose(answer Range) {
	c.lastErr = nil
	if last := answer.Last(); c.highest.Before(last) {
		c.highest = last
	}
}

// refused hands an error to the callers of one request. If it returns one, the connection is of no
// more use.
func (c *Client) refused(conn *connection, id uint64, refusal *Error) error {
	c.mu.Lock()
	if c.conn != conn {
		c.mu.Unlock()
		return unreachable(conn.addr, errLeft)
	}
	b, burnt := c.take(id), c.hedge.forgive(id)
	if b == nil && !burnt {
		c.mu.Unlock()
		return protocolError("%s refused request %d, which is not under way", conn.addr, id)
	}
	c.lastErr = refusal
	keeps := errors.Is(refusal, ErrOverloaded) || !isCurable(refusal)
	if errors.Is(refusal, ErrOverloaded) {
		c.rest()
	}
	var frames *requests
	if keeps {
		frames = c.seal()
	}
	c.mu.Unlock()
	if b != nil {
		b.finish(Range{}, refusal)
	}
	if !keeps {
		return refusal
	}
	c.send(conn, frames)
	c.failed(refusal)
	return nil
}

// abide keeps to what a leader allows from now on, and returns the waiting batches that do not: their
// callers have to part. Under mu.
func (c *Client) abide(said *welcome) (oversize []*batch) {
	c.countLimit = min(said.countMax, countMax)
	c.inFlightLimit = int(min(uint64(said.inFlightMax), uint64(c.o.inFlight)))
	c.pending = slices.DeleteFunc(c.pending, func(b *batch) bool {
		if b.count > c.countLimit {
			oversize = append(oversize, b)
			return true
		}
		return false
	})
	return oversize
}

// failAll ends every batch that there is, sent or not. Their callers decide whether to join again.
func (c *Client) failAll(err error) {
	c.mu.Lock()
	all := c.pending
	c.pending = nil
	for at, b := range c.slots {
		if b != nil {
			all = append(all, b)
			c.slots[at] = nil
		}
	}
	c.inFlight = 0
	c.lastErr = err
	c.mu.Unlock()
	for _, b := range all {
		b.finish(Range{}, err)
	}
}

func (c *Client) failed(err error) {
	if hook := c.o.hooks.Failed; hook != nil {
		hook(err)
	}
}

// because adds to a context's end why it took so long: what the client met since its last success,
// or what the call itself has met.
func (c *Client) because(ended, mine error) error {
	c.mu.Lock()
	last := c.lastErr
	c.mu.Unlock()
	if last == nil {
		last = mine
	}
	if last == nil {
		last = fmt.Errorf("%w: no answer yet", ErrUnreachable)
	}
	return &interrupted{context: ended, last: last}
}

// rest keeps everything back from an overloaded leader for a while, unless it has its pause already.
// Whoever asks meanwhile shares what is sent then. Under mu.
func (c *Client) rest() {
	now := time.Now()
	if now.Before(c.quietUntil) {
		return
	}
	pause := overloadPause()
	c.quietUntil = now.Add(pause)
	// Called by whoever reads the connection, who is waited for as well.
	c.ended.Add(1)
	go func() {
		defer c.ended.Done()
		select {
		case <-time.After(pause):
			c.pump()
		case <-c.ctx.Done():
		}
	}()
}

func (c *Client) expected() *Cluster {
	c.dirMu.Lock()
	defer c.dirMu.Unlock()
	return c.cluster
}
