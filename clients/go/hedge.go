package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// copiesMax bounds what is asked a second time and not answered there.
	copiesMax = 64
	// burntMax bounds requests whose callers have their answer and whose first one is still to come:
	// a node reads as many ahead.
	burntMax = 1024
)

// asked is what an answer is held to, whichever connection it comes over.
type asked struct {
	count uint64
	// floor was returned before the request was sent there: the answer from there lies above.
	floor Timestamp
	at    time.Time
}

// check says whether this can be the answer of the node at that address.
func (a asked) check(addr string, answer Range) error {
	if answer.Count != a.count {
		return protocolError("%s gave %d timestamps, not %d", addr, answer.Count, a.count)
	}
	if !a.floor.Before(answer.First) && !a.floor.IsZero() {
		return fmt.Errorf("%w: %s gave %v, not above %v", ErrWentBackwards, addr, answer.First, a.floor)
	}
	return nil
}

// hedger asks once more, over a second connection, for what waits too long. A batch is given out
// once, by the answer that comes first; the other one is checked and burnt. Why the order stands is
// decision 14 in docs/decisions.
type hedger struct {
	c     *Client
	after time.Duration
	// patience is how long one node is tried before the next one is.
	patience time.Duration

	// Everything below is guarded by the client's mu.

	// conn is the second connection, nil while there is none; opening while one is made.
	conn    *connection
	opening bool
	// next is whom to try, "" for the leader first and then one after another.
	next        string
	triedLeader bool
	notBefore   time.Time
	// copies were asked over conn and not answered there.
	copies map[uint64]asked
	// burnt were answered by the second connection and not yet by the first.
	burnt map[uint64]asked
	// answered is when the second connection brought something.
	answered time.Time
}

func newHedger(c *Client) *hedger {
	return &hedger{
		c: c, after: c.o.hedgeAfter, patience: max(c.o.hedgeAfter, c.o.attemptTimeout/8),
		copies: make(map[uint64]asked), burnt: make(map[uint64]asked),
	}
}

// run looks for what waits too long, until the client is closed.
func (h *hedger) run() {
	defer h.c.ended.Done()
	ticker := time.NewTicker(min(max(h.after, time.Millisecond), 5*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-h.c.ctx.Done():
			return
		case now := <-ticker.C:
			h.turn(now)
		}
	}
}

// turn asks for what waits too long, and sees to the second connection.
func (h *hedger) turn(now time.Time) {
	c := h.c
	c.mu.Lock()
	for _, copied := range h.copies {
		if now.Sub(copied.at) > h.patience {
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
		// What was returned since the first sending lies below what is asked for now.
		h.copies[b.id] = asked{count: b.count, floor: c.highest, at: now}
		out.frames = requestFrame(b.id, b.count).appendTo(out.frames)
	}
	if h.conn == nil && !h.opening && c.conn != nil && !c.closed && now.After(h.notBefore) {
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

// leave gives the second connection up; what was asked there is burnt, or never taken. Under mu.
func (h *hedger) leave(pause time.Duration) {
	if h.conn != nil {
		h.conn.out.leave(errLeft)
		h.conn = nil
	}
	clear(h.copies)
	h.notBefore = time.Now().Add(pause)
}

// open makes the second connection, to an address or the next one that is not the leader's, and
// reads it until it ends.
func (h *hedger) open(addr, leader string) {
	c := h.c
	defer c.ended.Done()
	if addr == "" {
		c.dirMu.Lock()
		addr = c.dir.other(leader)
		c.dirMu.Unlock()
	}
	until := time.Now().Add(h.patience)
	ctx, cancel := context.WithDeadline(c.ctx, until)
	conn, err := connect(ctx, &c.o, addr, c.expected())
	cancel()
	hint := ""
	if err == nil && !conn.leads() {
		if said := conn.welcome.leader; said != nil && said.Node != conn.welcome.node {
			hint = said.Addr
		}
		conn.net.Close()
		conn = nil
	}
	if err != nil && !isCurable(err) {
		c.o.log.Error("a node is not of this cluster, or no oracle", "addr", addr, "error", err)
		h.fail(err)
	}
	if err == nil && hint != "" {
		c.dirMu.Lock()
		if failed, ok := c.dir.suspects[hint]; ok && time.Since(failed) < suspicion {
			hint = ""
		}
		c.dirMu.Unlock()
	}
	c.mu.Lock()
	h.opening, h.next, h.notBefore = false, hint, until
	if err != nil || conn == nil || c.closed {
		c.mu.Unlock()
		if conn != nil {
			conn.net.Close()
		}
		return
	}
	h.conn = conn
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
		// Idle connections are closed: that says nothing against the leader.
		h.triedLeader = false
		h.leave(h.patience)
	}
	c.mu.Unlock()
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrWentBackwards) {
		h.fail(err)
	}
}

// fail tells every caller what no retry heals, and leaves the leader, too.
func (h *hedger) fail(err error) {
	c := h.c
	if errors.Is(err, ErrWentBackwards) {
		c.o.log.Error("timestamps went backwards", "error", err)
	}
	c.failed(err)
	// First, so that no answer of the leader is taken for one to nothing.
	c.mu.Lock()
	if c.conn != nil {
		c.conn.out.leave(errLeft)
		c.conn = nil
	}
	c.mu.Unlock()
	c.failAll(err)
}

// read hands out answers until the connection is of no more use.
func (h *hedger) read(conn *connection) error {
	for {
		head, tail, err := conn.frames.next()
		if err != nil {
			return conn.ended(err)
		}
		switch head.kind {
		case kindAnswer:
			answer, err := readRange(head, tail)
			if err == nil {
				err = h.take(conn, head.id, answer)
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
			if _, err := readLeader(head, tail); err != nil {
				return conn.broken(err)
			}
			return unreachable(conn.addr, errors.New("it leads no more"))
		case kindRequest, kindHello, kindWelcome:
			return protocolError("%s sent a frame of kind %#x", conn.addr, head.kind)
		}
	}
}

// take gives a batch out that was answered here first.
func (h *hedger) take(conn *connection, id uint64, answer Range) error {
	c := h.c
	c.mu.Lock()
	if h.conn != conn {
		// The copies are those of another connection.
		c.mu.Unlock()
		return unreachable(conn.addr, errLeft)
	}
	copied, ok := h.copies[id]
	delete(h.copies, id)
	if !ok {
		c.mu.Unlock()
		return protocolError("%s answered request %d, which is not under way", conn.addr, id)
	}
	if err := copied.check(conn.addr, answer); err != nil {
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
		// A connection that has ended owes nothing, and neither does the one that will follow it.
		h.burnt[id] = asked{count: b.count, floor: b.floor, at: b.sent}
	}
	c.rose(answer)
	main, frames := c.conn, c.seal()
	if main != nil && main.welcome.node != conn.welcome.node {
		// Only a leader answers, and this is not the one that is talked to.
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

// isBurnt says whether that answer of the first connection is one whose callers have theirs, and
// checks it. Under mu.
func (h *hedger) isBurnt(addr string, id uint64, answer Range) (burnt bool, err error) {
	if h == nil {
		return false, nil
	}
	first, ok := h.burnt[id]
	if !ok {
		return false, nil
	}
	delete(h.burnt, id)
	return true, first.check(addr, answer)
}

// forgive says whether the first connection owed an answer to that request whose callers have theirs,
// and waits for it no more. Under mu.
func (h *hedger) forgive(id uint64) (burnt bool) {
	if h == nil {
		return false
	}
	_, burnt = h.burnt[id]
	delete(h.burnt, id)
	return burnt
}

// oldest says since when the first connection owes an answer whose callers have theirs. Under mu.
func (h *hedger) oldest(now time.Time) (age time.Duration) {
	if h == nil {
		return 0
	}
	for _, first := range h.burnt {
		age = max(age, now.Sub(first.at))
	}
	return age
}

// succeed returns who answers over the second connection, "" for nobody, and forgets what the first
// one owes, which has ended. Under mu.
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
