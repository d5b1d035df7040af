package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// copiesMax limits the hedged requests that wait for an answer on the second connection.
	copiesMax = 64
	// burntMax limits the requests that were answered over the second connection and not yet over
	// the first. These are called burnt. The limit is 1024, because a node reads that many requests
	// of a connection before it answers.
	burntMax = 1024
)

// asked has what is needed to check the answer of a sent request.
type asked struct {
	// count is how many timestamps the callers take together; 0 if all ask for the latest one.
	count uint64
	// isLatest is true if the frame that was sent asks for the latest timestamp.
	isLatest bool
	// floor is the highest timestamp returned before this sending: the answer must be above it. The
	// answer to a frame that asks for the latest timestamp may be equal.
	floor Timestamp
	at    time.Time
}

// asked returns what is needed to check the answer over the first connection.
func (b *batch) asked() asked {
	return asked{count: b.count, isLatest: b.isLatest, floor: b.floor, at: b.sent}
}

// check returns an error if this answer, from the node at addr, does not fit the request. isLatest
// is true if the node says that it is the latest timestamp.
func (a asked) check(addr string, answer Range, isLatest bool) error {
	if expected := max(a.count, 1); answer.Count != expected {
		return protocolError("%s gave %d timestamps, not %d", addr, answer.Count, expected)
	}
	if isLatest && !a.isLatest {
		return protocolError("%s gave the latest timestamp instead of one for this client alone", addr)
	}
	if !isLatest && a.isLatest {
		return protocolError("%s gave a timestamp for this client alone instead of the latest one", addr)
	}
	if a.isLatest && a.floor == answer.First {
		return nil
	}
	if !a.floor.Before(answer.First) && !a.floor.IsZero() {
		return fmt.Errorf("%w: %s gave %v, and %v was returned before", ErrWentBackwards, addr, answer.First, a.floor)
	}
	return nil
}

// hedger repeats slow requests over a second connection. The callers get the first answer. The
// other answer is checked and dropped. Decision 14 in docs/decisions says why the order of
// timestamps holds.
type hedger struct {
	c     *Client
	after time.Duration
	// timeout is how long the client waits for one node before it tries the next one.
	timeout time.Duration

	// The client's mu guards everything below.

	// conn is the second connection, or nil if there is none. opening is true while one is being
	// opened.
	conn    *connection
	opening bool
	// next is the address at which the second connection is opened next. If it is "", the hedger
	// tries the leader first, and then one address after another.
	next        string
	triedLeader bool
	notBefore   time.Time
	// idleUntil is the time before which no second connection is opened while no call waits.
	idleUntil time.Time
	// late counts the second connections in a row that took too long to open. Each doubles the time
	// for the next one, because a handshake may take longer than timeout.
	late int
	// failures counts the second connections in a row that could not be used. They let the pause
	// before the next one grow.
	failures int
	// copies are the requests that were sent over conn and have no answer there yet.
	copies map[uint64]asked
	// burnt are the requests that were answered over the second connection and not yet over the
	// first.
	burnt map[uint64]asked
	// answered is when the second connection last brought an answer.
	answered time.Time
}

func newHedger(c *Client) *hedger {
	return &hedger{
		c: c, after: c.o.hedgeAfter, timeout: max(c.o.hedgeAfter, c.o.attemptTimeout/8),
		copies: make(map[uint64]asked), burnt: make(map[uint64]asked),
	}
}

// run repeats slow requests until the client is closed.
func (h *hedger) run() {
	defer h.c.ended.Done()
	ticker := time.NewTicker(min(max(h.after, time.Millisecond), 5*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-h.c.ctx.Done():
			return
		case <-ticker.C:
			// The value of the tick is when it was due. If the process stood still, that is long ago.
			h.turn(time.Now())
		}
	}
}

// turn sends a copy of each request that is slow now. It opens the second connection if there is
// none.
func (h *hedger) turn(now time.Time) {
	c := h.c
	c.mu.Lock()
	for _, copied := range h.copies {
		if now.Sub(copied.at) > h.timeout {
			h.leave(0)
			break
		}
	}
	conn, out := h.conn, requestsPool.Get().(*requests)
	out.frames = out.frames[:0]
	for _, b := range c.slots {
		if conn == nil || c.conn == nil || len(h.copies) >= copiesMax || len(h.burnt) >= burntMax {
			break
		}
		if b == nil || now.Sub(b.sent) < h.after || b.count > conn.welcome.countMax {
			continue
		}
		if _, again := h.copies[b.id]; again {
			continue
		}
		// The client may have returned timestamps since it sent the first request. The answer to
		// the copy must be above these, too.
		request, isLatest := conn.request(b.id, b.count)
		h.copies[b.id] = asked{count: b.count, isLatest: isLatest, floor: c.highest, at: now}
		out.frames = request.appendTo(out.frames)
	}
	if h.conn == nil && !h.opening && c.conn != nil && !c.closed && h.mayOpen(now) {
		addr := h.next
		if addr == "" && !h.triedLeader {
			addr = c.conn.addr
		}
		h.next, h.triedLeader, h.opening = "", true, true
		c.ended.Add(1)
		go h.open(addr, c.conn.addr)
	}
	c.mu.Unlock()
	if len(out.frames) > 0 {
		conn.out.write(out.frames)
	}
	requestsPool.Put(out)
}

// mayOpen returns whether the pause before the next second connection is over. A call that waits ends
// the longer pause of an idle client. The caller holds mu.
func (h *hedger) mayOpen(now time.Time) bool {
	isAwaited := h.c.inFlight > 0 || len(h.c.pending) > 0
	return now.After(h.notBefore) && (isAwaited || now.After(h.idleUntil))
}

// wait lets the pause before the next second connection grow, because this one could not be used.
// The pause begins now, but not before the time again. The caller holds mu.
func (h *hedger) wait(again time.Time) {
	if now := time.Now(); again.Before(now) {
		again = now
	}
	pause, idle := backoff(h.failures)
	h.failures++
	h.notBefore, h.idleUntil = again.Add(pause), again.Add(idle)
}

// leave closes the second connection and forgets its copies. The hedger opens no other one before
// the pause ends. The caller holds mu.
func (h *hedger) leave(pause time.Duration) {
	if h.conn != nil {
		h.conn.out.leave(errLeft)
		h.conn = nil
	}
	clear(h.copies)
	h.notBefore = time.Now().Add(pause)
}

// open opens the second connection and reads it until it ends. It dials the given address. If that
// is "", it dials the next address that is not the leader's.
func (h *hedger) open(addr, leader string) {
	c := h.c
	defer c.ended.Done()
	if addr == "" {
		c.dirMu.Lock()
		addr = c.dir.other(leader)
		c.dirMu.Unlock()
	}
	c.mu.Lock()
	limit := max(h.timeout, min(h.timeout<<h.late, c.o.attemptTimeout))
	c.mu.Unlock()
	again := time.Now().Add(h.timeout)
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	conn, err := connect(ctx, &c.o, addr, c.expected())
	cancel()
	hint := ""
	if err == nil && !conn.leads() {
		if other := conn.welcome.leader; other != nil {
			hint = other.Addr
		}
		conn.net.Close()
		conn = nil
	}
	// After every other error, the leader answers, or its own connection will say why not.
	if errors.Is(err, ErrWrongCluster) {
		c.o.log.Error("a node is not of this cluster", "addr", addr, "error", err)
		h.fail(err)
	}
	c.dirMu.Lock()
	if c.dir.isSuspect(hint, time.Now()) {
		hint = ""
	}
	c.dirMu.Unlock()
	c.mu.Lock()
	h.opening, h.next = false, hint
	if isTimeout(err) && limit < c.o.attemptTimeout {
		h.late++
	}
	if conn == nil || c.closed {
		h.wait(again)
		c.mu.Unlock()
		if conn != nil {
			conn.net.Close()
		}
		return
	}
	h.conn, h.late, h.failures, h.idleUntil = conn, 0, 0, time.Time{}
	clear(h.copies)
	c.mu.Unlock()
	c.ended.Add(1)
	go func() {
		defer c.ended.Done()
		conn.out.drain()
	}()
	stop := context.AfterFunc(c.ctx, func() { conn.out.leave(ErrClosed) })
	defer stop()
	err = h.read(conn)
	conn.out.leave(errLeft)
	c.mu.Lock()
	if h.conn == conn {
		// This end is no sign of a failure, because nodes close idle connections. So the leader may
		// be tried again.
		h.triedLeader = false
		h.leave(h.timeout)
	}
	c.mu.Unlock()
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrWentBackwards) {
		h.fail(err)
	}
}

// fail gives callers an error that no retry cures, and closes the leader's connection, too.
func (h *hedger) fail(err error) {
	c := h.c
	if errors.Is(err, ErrWentBackwards) {
		c.o.log.Error("timestamps went backwards", "error", err)
	}
	c.failed(err)
	// The connection ends in the same step as its requests. So an answer of the leader never finds
	// its request missing, and no request is sent again over the next connection.
	c.mu.Lock()
	if c.conn != nil {
		c.conn.out.leave(errLeft)
		c.conn = nil
	}
	all := c.takeAll(err)
	c.mu.Unlock()
	for _, b := range all {
		b.finish(Range{}, err)
	}
}

// read passes answers to callers until the connection cannot be used any more.
func (h *hedger) read(conn *connection) error {
	for {
		head, tail, err := conn.frames.next()
		if err != nil {
			return conn.ended(err)
		}
		switch head.kind {
		case kindAnswer:
			answer, isLatest, err := readRange(head, tail, h.c.o.guarantee)
			if err == nil {
				err = h.take(conn, head.id, answer, isLatest)
			}
			if err != nil {
				return err
			}
		case kindError:
			refusal, _, err := readError(head, tail, conn.addr)
			if err == nil {
				err = refusal
			}
			if code, ok := err.(*Error); ok && code.Code == 1 {
				h.c.mu.Lock()
				h.next = code.Text
				h.c.mu.Unlock()
			}
			return err
		case kindPing, kindPong, kindGoodbye:
			if err := checkPlain(head); err != nil {
				return conn.broken(err)
			}
			if head.kind == kindGoodbye {
				return &Error{Addr: conn.addr, Code: 10}
			}
			if head.kind == kindPing {
				head.kind = kindPong
				conn.out.write(head.appendTo(nil))
			}
		case kindLeader:
			leader, err := readLeader(head, tail)
			if err != nil {
				return conn.broken(err)
			}
			if leader == nil || leader.Node != conn.welcome.node {
				return unreachable(conn.addr, errors.New("it leads no more"))
			}
		case kindRequest, kindHello, kindWelcome:
			return protocolError("%s sent a frame of kind %#x", conn.addr, head.kind)
		}
	}
}

// take passes an answer of the second connection to its callers, unless they have one already.
func (h *hedger) take(conn *connection, id uint64, answer Range, isLatest bool) error {
	c := h.c
	c.mu.Lock()
	if h.conn != conn {
		// The answer came over an older connection; the copies belong to the new one.
		c.mu.Unlock()
		return unreachable(conn.addr, errLeft)
	}
	copied, ok := h.copies[id]
	delete(h.copies, id)
	if !ok {
		c.mu.Unlock()
		return protocolError("%s answered request %d, which is not under way", conn.addr, id)
	}
	if err := copied.check(conn.addr, answer, isLatest); err != nil {
		c.mu.Unlock()
		return err
	}
	h.answered = time.Now()
	b := c.take(id)
	if b == nil {
		c.mu.Unlock()
		return nil
	}
	if c.conn != nil {
		// The first connection still owes its answer to this request. A connection that has ended
		// owes nothing.
		h.burnt[id] = b.asked()
	}
	c.rose(answer)
	main, frames := c.conn, c.seal()
	if main != nil && main.welcome.node != conn.welcome.node {
		// Only a leader answers, so the node of the first connection does not lead any more.
		main.out.leave(errors.New("another node answers"))
	}
	c.mu.Unlock()
	c.send(main, frames)
	if hook := c.o.hooks.Answered; hook != nil {
		hook(b.waiting(), b.count, time.Since(b.sent))
	}
	b.finish(answer, nil)
	return nil
}

// isBurnt returns whether an answer of the first connection belongs to a request that the second
// connection has already answered. If so, it removes the request and checks the answer. The caller
// holds mu.
func (h *hedger) isBurnt(addr string, id uint64, answer Range, isLatest bool) (burnt bool, err error) {
	if h == nil {
		return false, nil
	}
	first, ok := h.burnt[id]
	if !ok {
		return false, nil
	}
	delete(h.burnt, id)
	return true, first.check(addr, answer, isLatest)
}

// forgive is called when the first connection has brought a refusal of a request. It returns
// whether the second connection has already answered this request, and forgets the request. The
// caller holds mu.
func (h *hedger) forgive(id uint64) (burnt bool) {
	if h == nil {
		return false
	}
	_, burnt = h.burnt[id]
	delete(h.burnt, id)
	return burnt
}

// oldest returns the age of the oldest request that only the second connection has answered.
// Without such a request, it returns 0. The caller must hold mu.
func (h *hedger) oldest(now time.Time) (age time.Duration) {
	if h == nil {
		return 0
	}
	for _, first := range h.burnt {
		age = max(age, now.Sub(first.at))
	}
	return age
}

// succeed is called when the first connection has ended, and forgets the answers that this
// connection owed. If the second connection has brought an answer recently, succeed returns its
// address, otherwise "". The caller holds mu.
func (h *hedger) succeed() string {
	if h == nil {
		return ""
	}
	clear(h.burnt)
	h.triedLeader = false
	if h.conn == nil || time.Since(h.answered) > h.c.o.attemptTimeout {
		return ""
	}
	return h.conn.addr
}
