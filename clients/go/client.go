package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Client asks one cluster for timestamps. It is safe for concurrent use. Goroutines should share
// one client, because calls at the same time then share a request.
type Client struct {
	o      options
	ctx    context.Context
	cancel context.CancelFunc
	ended  sync.WaitGroup

	// dirMu guards dir and cluster. It is never held during IO or together with mu.
	dirMu   sync.Mutex
	dir     *directory
	cluster *Cluster

	// mu guards everything below. It is never held during IO.
	mu sync.Mutex
	// conn is the connection to the leader, or nil if there is none.
	conn *connection
	// pending are the batches that are not sent yet. Callers may join the last of them.
	pending []*batch
	// slots hold the batches in flight, by the low bits of the request's id.
	slots    [inFlightMax]*batch
	inFlight int
	lastID   uint64
	// countLimit and inFlightLimit are the smaller of the last leader's limits and this client's.
	countLimit    uint64
	inFlightLimit int
	// wanted receives a signal from each call that finds no connection.
	wanted chan struct{}
	// quietUntil is when the client asks an overloaded leader again; zero if the leader is not
	// overloaded.
	quietUntil time.Time
	// highest is the highest timestamp that the client has returned to a caller.
	highest Timestamp
	// lastErr is the last error since the last answer or new connection.
	lastErr error
	closed  bool
	// ready is closed when the client first connects to a leader, or when it meets an error that no
	// retry cures.
	ready     chan struct{}
	readyOnce sync.Once
	readyErr  error
	// calls counts the calls of [Client.Go] that have not ended.
	calls atomic.Int64
	// hedge sends hedged requests; nil without [WithHedgeAfter].
	hedge *hedger
	// isRefreshing is true while the members are read.
	isRefreshing atomic.Bool
	// stamper asks for interval timestamps.
	stamper *stamper
}

// Dial finds the cluster through the client address (host:port) of any member. It returns when it
// has found the leader, at an error that no retry cures, or when the context ends. The context has
// no effect after Dial has returned. Close a client that is no longer needed.
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
	c.stamper = newStamper(c)
	if c.o.onlyIntervals {
		c.setReady(nil)
		return c, nil
	}
	if c.o.hedgeAfter > 0 {
		c.hedge = newHedger(c)
		c.ended.Add(1)
		go c.hedge.run()
	}
	c.ended.Add(2)
	go c.run()
	go c.watch()
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.o.callTimeout)
		defer cancel()
	}
	var err error
	select {
	case <-c.ready:
		if c.readyErr == nil {
			return c, nil
		}
		err = c.readyErr
	case <-ctx.Done():
		err = c.because(ctx.Err(), nil)
	}
	c.Close()
	return nil, err
}

// Timestamp returns one timestamp. It is above every timestamp that any client of the cluster got
// before this call began. See [Client.Timestamps] for errors.
func (c *Client) Timestamp(ctx context.Context) (Timestamp, error) {
	answer, err := c.Timestamps(ctx, 1)
	return answer.First, err
}

// Timestamps returns count timestamps of one epoch with consecutive indexes, 1 to 2^32 of them. If
// the leader fails, the call takes longer; it fails only when the context ends. The error then
// matches the context's and, with [errors.Is], also the reason for the delay, such as [ErrNoQuorum]
// or [ErrUnreachable]. If the context has no deadline, the call ends after [WithCallTimeout] as if
// the context had ended. [Client.Go] does the same without waiting.
func (c *Client) Timestamps(ctx context.Context, count uint64) (Range, error) {
	if count == 0 || count > countMax {
		return Range{}, ErrCount
	}
	return c.ask(ctx, count)
}

// CompactTimestamp returns one timestamp in 64 bits; see [Timestamp.Compact]. The cluster must give
// compact timestamps (TIMESTAMP_FORMAT=compact); if not, the error is [ErrNotCompact].
func (c *Client) CompactTimestamp(ctx context.Context) (uint64, error) {
	return c.CompactTimestamps(ctx, 1)
}

// CompactTimestamps returns the first of count consecutive timestamps in 64 bits, 1 to 2^18 of them.
// See [Client.Timestamps] and [Client.CompactTimestamp]; a larger count ends with [ErrCount] or
// [ErrBadCount].
func (c *Client) CompactTimestamps(ctx context.Context, count uint64) (uint64, error) {
	answer, err := c.Timestamps(ctx, count)
	if err != nil {
		return 0, err
	}
	return answer.CompactFirst()
}

// CompactLatest returns the timestamp of [Client.Latest] in 64 bits. See [Client.CompactTimestamp].
func (c *Client) CompactLatest(ctx context.Context) (uint64, error) {
	latest, err := c.Latest(ctx)
	if err != nil {
		return 0, err
	}
	return Range{First: latest, Count: 1}.CompactFirst()
}

// Latest returns the latest timestamp, and takes none. Every timestamp that any client of the
// cluster got before this call began is at or below it. Every timestamp that is asked for after
// this call has returned is above it.
//
// It is no watermark: a writer that has a timestamp at or below it may not have written yet. It is
// not unique, so it must not be used as an id.
//
// Calls share requests, as those of [Client.Timestamps] do. That method also says more about errors.
// An old node does not know this request. The client then takes one timestamp from it, for these
// calls only.
func (c *Client) Latest(ctx context.Context) (Timestamp, error) {
	answer, err := c.ask(ctx, latestCount)
	return answer.First, err
}

// ask gets count timestamps, or the latest one if count is latestCount.
func (c *Client) ask(ctx context.Context, count uint64) (Range, error) {
	if err := ctx.Err(); err != nil {
		return Range{}, err
	}
	deadline, isBounded := c.deadline(ctx)
	// over says that a call without a deadline has taken too long. It is nil while it is not needed.
	var over <-chan time.Time
	// last is the last error of this call.
	var last error
	for {
		b, offset, err := c.join(count, nil)
		if err != nil {
			return Range{}, err
		}
		if !isBounded && over == nil && (last != nil || !b.isPrompt) {
			limit := time.NewTimer(time.Until(deadline))
			defer limit.Stop()
			over = limit.C
		}
		if ended := b.wait(ctx, over); ended != nil {
			return Range{}, c.because(ended, last)
		}
		err = b.err
		answer := b.part(offset, count)
		b.leave()
		if err == nil && isLate(deadline) {
			return Range{}, c.because(context.DeadlineExceeded, errLate)
		}
		if err == nil {
			return answer, nil
		}
		if !isCurable(err) {
			return Range{}, err
		}
		last = err
	}
}

// deadline returns when a call that begins now has to end, and whether its context says so.
func (c *Client) deadline(ctx context.Context) (deadline time.Time, isBounded bool) {
	if deadline, isBounded = ctx.Deadline(); !isBounded {
		deadline = time.Now().Add(c.o.callTimeout)
	}
	return deadline, isBounded
}

// errLate is the reason of a call whose answer came after its deadline.
var errLate = fmt.Errorf("%w: the answer came too late", ErrUnreachable)

// isLate returns whether the deadline has passed. No timer can say this for sure: after a process was
// stopped for a while, its timers and an answer in the buffers of the system come at the same moment.
func isLate(deadline time.Time) bool { return time.Until(deadline) <= 0 }

// isPrompt returns whether a request ends before the limit of a call without a deadline, with an
// answer or an error, so that the call needs no timer. While the client is connected and no request
// waits, the next one waits until one in flight ends, and then for its answer. A connection whose
// oldest request is older than the attempt timeout is closed, at most a fifth of this timeout later.
// The caller holds mu.
func (c *Client) isPrompt() bool {
	return c.conn != nil && len(c.pending) == 0 && c.o.callTimeout/4 >= c.o.attemptTimeout
}

// Members returns the client addresses of the cluster's members, as the client last learned them.
// While the cluster is reachable, the client learns them again every [WithRefresh].
func (c *Client) Members() []string {
	c.dirMu.Lock()
	defer c.dirMu.Unlock()
	return slices.Clone(c.dir.members)
}

// Leader returns the address of the leader, or "" if none is known.
func (c *Client) Leader() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		return ""
	}
	return c.conn.addr
}

// Cluster returns the id and history of this client's cluster. They are known after the first
// handshake with a node that names its cluster.
func (c *Client) Cluster() (cluster Cluster, known bool) {
	if expected := c.expected(); expected != nil {
		return *expected, true
	}
	return Cluster{}, false
}

// Close ends all calls with [ErrClosed], but no [Client.CommitWait], and returns when the client's
// goroutines have ended. The lookup of a node's name may go on: it cannot be ended everywhere, and
// belongs to no client.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	if c.conn != nil {
		c.conn.out.leave(ErrClosed)
	}
	c.mu.Unlock()
	c.cancel()
	c.stamper.close()
	c.ended.Wait()
	c.failAll(ErrClosed)
	return nil
}

// join adds a caller to the open batch, or opens a new batch. It sends the batch if the limit of
// requests in flight allows. The batch gives its result to call, or to a waiting caller if call is
// nil.
func (c *Client) join(count uint64, call *Call) (b *batch, offset uint64, err error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, 0, ErrClosed
	}
	if c.o.onlyIntervals {
		c.mu.Unlock()
		return nil, 0, fmt.Errorf("%w: this client was made with WithIntervals", ErrOtherMode)
	}
	if c.conn != nil && count > c.countLimit {
		limit := c.countLimit
		c.mu.Unlock()
		return nil, 0, fmt.Errorf("%w; the leader gives at most %d at once", ErrCount, limit)
	}
	if last := len(c.pending) - 1; last >= 0 && c.pending[last].count+count <= c.countLimit {
		b = c.pending[last]
		offset = b.join(count, call)
		// The next answer sends the batch. Without a request in flight none comes, and the caller
		// that opened the batch may be paused before it sends.
		send := c.conn != nil && c.inFlight == 0
		c.mu.Unlock()
		if send {
			c.pump()
		}
		return b, offset, nil
	}
	b = newBatch()
	b.isPrompt = c.isPrompt()
	offset = b.join(count, call)
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
			// The last answer woke several callers, and they are about to ask again. Yield, so that
			// they join this batch before it is sent.
			runtime.Gosched()
		}
		c.pump()
	}
	return b, offset, nil
}

// pump sends waiting batches, up to the limit of requests in flight.
func (c *Client) pump() {
	c.mu.Lock()
	conn, frames := c.conn, c.seal()
	c.mu.Unlock()
	c.send(conn, frames)
}

// requests holds encoded request frames that are to be written.
type requests struct {
	frames []byte
}

var requestsPool = sync.Pool{New: func() any {
	return &requests{frames: make([]byte, 0, requestsRoom)}
}}

// requestsRoom is the capacity, in bytes, of a new buffer: enough for most writes.
const requestsRoom = 16 * headSize

// seal moves waiting batches in flight and returns their frames, or nil if no batch can be sent. It
// drops batches whose callers have all left. The caller holds mu.
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
		if b.waiting() == 0 {
			b.leave()
			continue
		}
		// Take the next id whose slot is free.
		for c.lastID++; c.slots[c.lastID%inFlightMax] != nil; c.lastID++ {
		}
		c.slots[c.lastID%inFlightMax] = b
		c.inFlight++
		b.id, b.sent, b.floor = c.lastID, time.Now(), c.highest
		var request head
		request, b.isLatest = c.conn.request(b.id, b.count)
		out.frames = request.appendTo(out.frames)
	}
	if len(out.frames) == 0 {
		requestsPool.Put(out)
		return nil
	}
	return out
}

// send writes sealed frames.
func (c *Client) send(conn *connection, out *requests) {
	if out != nil {
		conn.out.write(out.frames)
		requestsPool.Put(out)
	}
}

// take removes and returns the batch that an answer belongs to, or nil if no batch waits for this
// answer. The caller holds mu.
func (c *Client) take(id uint64) *batch {
	b := c.slots[id%inFlightMax]
	if b == nil || b.id != id {
		return nil
	}
	c.slots[id%inFlightMax] = nil
	c.inFlight--
	return b
}

// answered gives an answer to its callers and sends waiting batches.
func (c *Client) answered(conn *connection, id uint64, answer Range, isLatest bool) error {
	c.mu.Lock()
	if c.conn != conn {
		c.mu.Unlock()
		return unreachable(conn.addr, errLeft)
	}
	b := c.take(id)
	if b == nil {
		burnt, err := c.hedge.isBurnt(conn.addr, id, answer, isLatest)
		c.mu.Unlock()
		if !burnt {
			return protocolError("%s answered request %d, which is not under way", conn.addr, id)
		}
		c.logBackwards(conn.addr, err)
		return err
	}
	if err := b.asked().check(conn.addr, answer, isLatest); err != nil {
		c.mu.Unlock()
		c.logBackwards(conn.addr, err)
		// The error ends the connection, and with it all other calls.
		b.finish(Range{}, err)
		return err
	}
	c.rose(answer)
	frames := c.seal()
	c.mu.Unlock()
	c.send(conn, frames)
	callers, count, took := b.waiting(), b.count, time.Since(b.sent)
	b.finish(answer, nil)
	if hook := c.o.hooks.Answered; hook != nil {
		hook(callers, count, took)
	}
	return nil
}

// logBackwards logs the error of an answer whose timestamps are too low.
func (c *Client) logBackwards(addr string, err error) {
	if errors.Is(err, ErrWentBackwards) {
		c.o.log.Error("timestamps went backwards", "addr", addr, "error", err)
	}
}

// rose records the highest returned timestamp. The caller holds mu.
func (c *Client) rose(answer Range) {
	c.lastErr = nil
	if last := answer.Last(); c.highest.Before(last) {
		c.highest = last
	}
}

// refused gives an error to the callers of one request. If it returns an error, the connection
// cannot be used any more.
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
	// A node refuses more than a millisecond has if its cluster has become compact since the welcome.
	// Then the smaller limit holds from now on, and the callers ask again in smaller batches.
	var result error = refusal
	var oversize []*batch
	if errors.Is(refusal, ErrBadCount) && b != nil && b.count > compactCountMax {
		oversize, result = c.limitCount(min(c.countLimit, compactCountMax)), errOversize
	}
	var frames *requests
	if keeps {
		frames = c.seal()
	}
	c.mu.Unlock()
	if b != nil {
		b.finish(Range{}, result)
	}
	for _, large := range oversize {
		large.finish(Range{}, errOversize)
	}
	if !keeps {
		return refusal
	}
	c.send(conn, frames)
	c.failed(refusal)
	return nil
}

// abide applies a leader's limits. It returns the waiting batches that exceed them. The callers of
// these batches must ask separately. The caller of abide holds mu.
func (c *Client) abide(said *welcome) (oversize []*batch) {
	c.inFlightLimit = int(min(uint64(said.inFlightMax), uint64(c.o.inFlight)))
	return c.limitCount(min(said.countMax, countMax))
}

// limitCount sets the largest count of a request. It returns the waiting batches that are larger;
// see abide. The caller holds mu.
func (c *Client) limitCount(limit uint64) (oversize []*batch) {
	c.countLimit = limit
	c.pending = slices.DeleteFunc(c.pending, func(b *batch) bool {
		if b.count > c.countLimit {
			oversize = append(oversize, b)
			return true
		}
		return false
	})
	return oversize
}

// failAll ends every batch with an error, whether it was sent or not. The batch's callers decide
// whether to join another batch.
func (c *Client) failAll(err error) {
	c.mu.Lock()
	all := c.takeAll(err)
	c.mu.Unlock()
	for _, b := range all {
		b.finish(Range{}, err)
	}
}

// takeAll takes every request, sent or not, out of the client. Calls that end later report this
// error. The caller holds mu.
func (c *Client) takeAll(err error) []*batch {
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
	return all
}

func (c *Client) failed(err error) {
	if hook := c.o.hooks.FailedAttempt; hook != nil {
		hook(err)
	}
}

// because returns the error of a call whose context has ended, with the reason why the call took so
// long. The reason is the client's last error since its last success. If the client had no such
// error, the reason is the call's own last error.
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

// rest pauses requests to an overloaded leader, unless a pause has begun already. Calls during the
// pause share the next requests. The caller holds mu.
func (c *Client) rest() {
	now := time.Now()
	if now.Before(c.quietUntil) {
		return
	}
	pause := overloadPause()
	c.quietUntil = now.Add(pause)
	// rest runs on the goroutine that reads the connection. Close waits for that goroutine, too. So
	// this Add comes before the end of Close's wait.
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
