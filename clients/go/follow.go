package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// hopsMax limits how many leader hints are followed in a row without a pause.
const hopsMax = 3

// run keeps a connection to the leader, and reads it until the client is closed.
func (c *Client) run() {
	defer c.ended.Done()
	// How many connections in a row have brought no answer.
	fruitless := 0
	for {
		conn := c.establish()
		if conn == nil {
			return
		}
		err := c.serve(conn)
		if c.ctx.Err() != nil {
			return
		}
		c.o.log.Info("left the leader", "addr", conn.addr, "error", err)
		c.failAll(err)
		c.failed(err)
		fruitless++
		if conn.answered {
			fruitless = 0
		}
		// The client follows a hint to another leader at once. But it follows only hopsMax in a row
		// without a pause, because two nodes may name each other.
		if errors.Is(err, ErrOverloaded) {
			c.sleep(overloadPause())
		} else if fruitless > 0 && (!errors.Is(err, ErrNotLeader) || fruitless > hopsMax) {
			c.pauseBeforeNext()
		}
	}
}

// pauseBeforeNext waits before the next attempt. The pause grows with each failure, and is much
// longer while no caller waits.
func (c *Client) pauseBeforeNext() {
	c.dirMu.Lock()
	pause, idle := c.dir.backoff()
	c.dirMu.Unlock()
	c.sleep(pause)
	enough := time.NewTimer(idle - pause)
	defer enough.Stop()
	for !c.isAwaited() {
		select {
		case <-c.wanted:
		case <-enough.C:
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// isAwaited returns whether a call, or Dial, waits for a leader.
func (c *Client) isAwaited() bool {
	select {
	case <-c.ready:
	default:
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending) > 0
}

func (c *Client) sleep(pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-c.ctx.Done():
	}
}

// establish returns a connection to a node that leads, or nil when the client is closed.
func (c *Client) establish() *connection {
	hops := 0
	for c.ctx.Err() == nil {
		c.dirMu.Lock()
		addr := c.dir.next()
		c.dirMu.Unlock()
		conn, again, err := c.try(addr, hops < hopsMax)
		if conn != nil {
			return conn
		}
		if again {
			hops++
			continue
		}
		hops = 0
		c.failed(err)
		if !isCurable(err) {
			c.o.log.Error("a node is not of this cluster, or no oracle", "addr", addr, "error", err)
			c.setReady(err)
		}
		c.failAll(err)
		c.pauseBeforeNext()
	}
	return nil
}

// try asks one node whether it leads, and returns the connection to it if so. again is true if the
// node names another leader that the client may ask at once.
func (c *Client) try(addr string, mayFollow bool) (conn *connection, again bool, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.o.attemptTimeout)
	defer cancel()
	conn, err = connect(ctx, &c.o, addr, c.expected())
	c.dirMu.Lock()
	defer c.dirMu.Unlock()
	if err != nil {
		c.dir.fail(addr, time.Now())
		return nil, false, err
	}
	c.meet(conn.welcome)
	if conn.leads() {
		c.dir.succeed(addr)
		return conn, false, nil
	}
	hint := conn.welcome.leader
	if hint == nil || !mayFollow || !c.dir.follow(hint.Addr, time.Now()) {
		c.dir.leader = ""
		c.dirMu.Unlock()
		hint, err = conn.awaitLeader(c.ctx, c.o.attemptTimeout/4)
		c.dirMu.Lock()
	}
	if hint != nil && hint.Node == conn.welcome.node {
		if conn.welcome.cluster == nil {
			conn.net.Close()
			return nil, false, conn.homeless()
		}
		c.dir.succeed(addr)
		return conn, false, nil
	}
	conn.net.Close()
	if hint != nil && mayFollow && c.dir.follow(hint.Addr, time.Now()) {
		return nil, true, nil
	}
	if err == nil {
		err = &Error{Addr: addr, Code: 3}
	}
	return nil, false, err
}

// meet applies a node's report of the cluster. The caller holds dirMu.
func (c *Client) meet(said *welcome) {
	if c.cluster == nil {
		c.cluster = said.cluster
	}
	c.dir.learn(said.members)
}

// awaitLeader listens for a while on a connection to a node that knows no leader. Nodes send a
// notice when they learn of a leader. Afterwards the connection is used only if the node itself
// leads.
func (c *connection) awaitLeader(ctx context.Context, timeout time.Duration) (*Member, error) {
	stop := context.AfterFunc(ctx, func() { c.net.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	c.net.SetDeadline(time.Now().Add(timeout))
	for {
		h, tail, err := c.frames.next()
		if err != nil {
			if isTimeout(err) {
				return nil, nil
			}
			return nil, c.broken(err)
		}
		if h.kind != kindLeader {
			continue
		}
		leader, err := readLeader(h, tail)
		if err != nil {
			return nil, c.broken(err)
		}
		if leader != nil {
			return leader, c.net.SetDeadline(time.Time{})
		}
	}
}

// serve lets callers use the connection. It reads the connection until it ends or the node stops
// leading, and returns why.
func (c *Client) serve(conn *connection) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		conn.net.Close()
		return ErrClosed
	}
	c.conn = conn
	oversize := c.abide(conn.welcome)
	c.lastErr = nil
	c.quietUntil = time.Time{}
	c.mu.Unlock()
	c.ended.Add(1)
	go func() {
		defer c.ended.Done()
		conn.out.drain()
	}()
	c.setReady(nil)
	c.o.log.Info("following the leader", "addr", conn.addr)
	if hook := c.o.hooks.Connected; hook != nil {
		hook(conn.addr)
	}
	for _, b := range oversize {
		b.finish(Range{}, errOversize)
	}
	c.pump()
	err := c.read(conn)
	conn.out.leave(errLeft)
	c.mu.Lock()
	c.conn = nil
	answering := c.hedge.succeed()
	c.mu.Unlock()
	c.dirMu.Lock()
	defer c.dirMu.Unlock()
	if answering != "" && isCurable(err) {
		c.dir.succeed(answering)
		return err
	}
	var refusal *Error
	if errors.As(err, &refusal) && refusal.Code == 1 && refusal.Text != conn.addr {
		// The client believes a node that says that it does not lead. The leader that the node
		// names may be one that has just failed.
		if c.dir.follow(refusal.Text, time.Now()) {
			return err
		}
		c.dir.leader = ""
		return err
	}
	if errors.Is(err, ErrUnauthorized) {
		// The node may lead on: only the token was revoked.
		return err
	}
	c.dir.fail(conn.addr, time.Now())
	return err
}

// read passes answers to callers until the connection cannot be used any more.
func (c *Client) read(conn *connection) error {
	for {
		h, tail, err := conn.frames.next()
		if err != nil {
			return conn.ended(err)
		}
		switch h.kind {
		case kindAnswer:
			answer, isLatest, err := readRange(h, tail, c.o.guarantee)
			if err == nil {
				err = c.answered(conn, h.id, answer, isLatest)
			}
			if err != nil {
				return conn.broken(err)
			}
			if !conn.answered {
				conn.answered = true
				c.dirMu.Lock()
				c.dir.failedAttempts = 0
				c.dirMu.Unlock()
			}
		case kindError:
			refusal, closes, err := readError(h, tail, conn.addr)
			if err != nil {
				return conn.broken(err)
			}
			if closes {
				return conn.dismissed(refusal)
			}
			if err := c.refused(conn, h.id, refusal); err != nil {
				return err
			}
		case kindPing:
			if err := checkPlain(h); err != nil {
				return conn.broken(err)
			}
			h.kind = kindPong
			conn.out.write(h.appendTo(nil))
		case kindPong:
			if err := checkPlain(h); err != nil {
				return conn.broken(err)
			}
		case kindGoodbye:
			if err := checkPlain(h); err != nil {
				return conn.broken(err)
			}
			return &Error{Addr: conn.addr, Code: 10}
		case kindLeader:
			leader, err := readLeader(h, tail)
			if err != nil {
				return conn.broken(err)
			}
			if leader != nil && leader.Node != conn.welcome.node {
				// The named leader is only a hint. But a node names another leader only when it
				// does not lead itself.
				return &Error{Addr: conn.addr, Code: 1, Text: leader.Addr}
			}
		case kindRequest, kindHello, kindWelcome:
			return protocolError("%s sent a frame of kind %#x", conn.addr, h.kind)
		}
	}
}

// watchMax is the longest pause between two looks of watch. Nodes close connections that are idle for
// a second or more, also if an attempt may take longer.
const watchMax = 100 * time.Millisecond

// watch finds requests without an answer, keeps an idle connection alive, and refreshes the
// members.
func (c *Client) watch() {
	defer c.ended.Done()
	ticker := time.NewTicker(min(c.o.attemptTimeout/5, watchMax))
	defer ticker.Stop()
	refreshed, pinged := time.Now(), time.Now()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		c.mu.Lock()
		conn, stuck := c.conn, max(c.oldest(now), c.hedge.oldest(now)) > c.o.attemptTimeout
		c.mu.Unlock()
		switch {
		case conn == nil:
		case stuck:
			c.o.log.Warn("the leader does not answer", "addr", conn.addr)
			conn.out.leave(errSilent)
		case now.Sub(refreshed) > c.o.refresh && c.isRefreshing.CompareAndSwap(false, true):
			refreshed = now
			// The refresh waits for a node, so it has its own goroutine. Meanwhile this loop still
			// notices a silent leader.
			c.ended.Add(1)
			go c.refresh(conn.addr)
		case now.Sub(pinged) > conn.welcome.pingEvery():
			pinged = now
			conn.out.write(head{kind: kindPing, id: 1}.appendTo(nil))
		}
	}
}

// oldest returns the age of the oldest request in flight. Without a request in flight, it returns 0.
// The caller must hold mu.
func (c *Client) oldest(now time.Time) (age time.Duration) {
	if c.inFlight == 0 {
		return 0
	}
	for _, b := range c.slots {
		if b != nil {
			age = max(age, now.Sub(b.sent))
		}
	}
	return age
}

// refresh learns the members from a new handshake.
func (c *Client) refresh(addr string) {
	defer c.ended.Done()
	defer c.isRefreshing.Store(false)
	ctx, cancel := context.WithTimeout(c.ctx, c.o.attemptTimeout)
	defer cancel()
	conn, err := connect(ctx, &c.o, addr, c.expected())
	if err != nil {
		c.o.log.Debug("the list of members was not read", "addr", addr, "error", err)
		return
	}
	defer conn.net.Close()
	c.dirMu.Lock()
	defer c.dirMu.Unlock()
	c.meet(conn.welcome)
}

func (c *Client) setReady(err error) {
	c.readyOnce.Do(func() {
		if err != nil {
			c.readyErr = fmt.Errorf("cannot dial: %w", err)
		}
		close(c.ready)
	})
}
