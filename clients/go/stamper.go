package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// stampersMax is how many calls of [Client.Intervals] may ask at once. Further calls wait.
const stampersMax = 64

// silence is for how long a silent node is asked after the others.
const silence = 5 * time.Second

// errGoodbye is the error of a connection that the node is about to close.
var errGoodbye = errors.New("it is shutting down")

// stamper asks nodes for interval timestamps. A request has a connection of its own while it waits;
// connections without a request are kept for the next one.
type stamper struct {
	c *Client
	// o are the client's options; the handshake names interval mode.
	o options
	// slots has a value for each call that asks.
	slots chan struct{}
	// isIntervals says that a node of the cluster was in interval mode. The way back is rare, so a node
	// that says otherwise most likely lags.
	isIntervals atomic.Bool

	mu sync.Mutex
	// idle are the connections without a request, by address; the last one was used last. There are at
	// most stampersMax for an address.
	idle map[string][]*stamping
	// certain is the address of the node that gave the last interval timestamp, or "".
	certain string
	// silent are the nodes that were silent a short time ago, and since when. A call may have less time
	// than an attempt takes. So without this, each call would begin, and end, with the same silent node.
	silent   map[string]time.Time
	isClosed bool
}

// stamping is a connection for one request at a time.
type stamping struct {
	*connection
	// made is when the connection was made, and used when it last brought an answer.
	made, used time.Time
	lastID     uint64
	// highest is the highest timestamp that came over the connection.
	highest Timestamp
}

func newStamper(c *Client) *stamper {
	o := c.o
	o.asksIntervals = true
	return &stamper{
		c: c, o: o, slots: make(chan struct{}, stampersMax), idle: make(map[string][]*stamping),
		silent: make(map[string]time.Time),
	}
}

// enter waits until the call may ask. After that the call must leave.
func (s *stamper) enter(ctx context.Context) error {
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *stamper) leave() { <-s.slots }

// round returns the addresses to ask, each once: the node that gave the last timestamp, then the others
// in the order in which the program named them, then the silent ones. Of these, the one that was asked
// last comes last.
func (s *stamper) round() []string {
	s.c.dirMu.Lock()
	addrs := s.c.dir.nearest()
	s.c.dirMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(s.silent, func(_ string, since time.Time) bool { return now.Sub(since) >= silence })
	// A node that is not silent has the zero time, which is the earliest.
	slices.SortStableFunc(addrs, func(a, b string) int { return s.silent[a].Compare(s.silent[b]) })
	if s.certain == "" {
		return addrs
	}
	others := slices.DeleteFunc(addrs, func(addr string) bool { return addr == s.certain })
	return slices.Insert(others, 0, s.certain)
}

// isCertain remembers the node that has answered.
func (s *stamper) isCertain(addr string) {
	s.isIntervals.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.certain = addr
	delete(s.silent, addr)
}

// isNotCertain forgets the node that has answered, unless another one has answered since. It remembers a
// silent node.
func (s *stamper) isNotCertain(addr string, isSilent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.certain == addr {
		s.certain = ""
	}
	if !isSilent {
		return
	}
	if len(s.silent) > 2*membersMax {
		clear(s.silent)
	}
	s.silent[addr] = time.Now()
}

// ask asks one node once, within the timeout of an attempt. A kept connection may have been closed by
// the node; the request is then sent once more over a new one. Asking twice is harmless: timestamps
// that no caller gets are only skipped.
func (s *stamper) ask(ctx context.Context, addr string, count uint64) (Interval, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.attemptTimeout)
	defer cancel()
	if kept := s.take(addr); kept != nil {
		answer, err := s.exchange(ctx, kept, count)
		if err == nil || ctx.Err() != nil || !errors.Is(err, ErrUnreachable) {
			return answer, err
		}
	}
	made, err := s.connect(ctx, addr)
	if err != nil {
		return Interval{}, err
	}
	return s.exchange(ctx, made, count)
}

// connect makes a connection to a node of this client's cluster that knows interval mode.
func (s *stamper) connect(ctx context.Context, addr string) (*stamping, error) {
	conn, err := connect(ctx, &s.o, addr, s.c.expected())
	if err != nil {
		return nil, err
	}
	if err := s.meet(conn); err != nil {
		conn.net.Close()
		return nil, err
	}
	s.sweep()
	now := time.Now()
	return &stamping{connection: conn, made: now, used: now}, nil
}

// meet applies the welcome of a node, and refuses the node if it can give no interval timestamps.
func (s *stamper) meet(conn *connection) error {
	said := conn.welcome
	if said.cluster == nil {
		return &Error{Addr: conn.addr, Code: 11, Text: "it names no cluster"}
	}
	s.c.dirMu.Lock()
	s.c.meet(said)
	isOfAnother := *s.c.cluster != *said.cluster
	s.c.dirMu.Unlock()
	if isOfAnother {
		return &Error{Addr: conn.addr, Code: 64, Text: "another cluster than this client has met"}
	}
	if said.features&featureIntervals == 0 {
		return &Error{Addr: conn.addr, Code: 66, Text: "this node is too old for interval mode: update it"}
	}
	return nil
}

// exchange sends a request and reads its answer. After that the connection is kept, or closed if it
// cannot be used any more.
func (s *stamper) exchange(ctx context.Context, conn *stamping, count uint64) (Interval, error) {
	if deadline, isBounded := ctx.Deadline(); isBounded {
		conn.net.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { conn.net.SetDeadline(time.Unix(1, 0)) })
	answer, isUsable, err := conn.ask(count)
	if !stop() {
		// The context has ended, perhaps at the same moment as the answer came. Then the end counts.
		conn.net.Close()
		return Interval{}, unreachable(conn.addr, ctx.Err())
	}
	if isUsable {
		s.keep(conn)
	} else {
		conn.net.Close()
	}
	return answer, err
}

// ask sends a request for count timestamps and waits for its answer or error. isUsable is true if the
// connection may be used again.
func (c *stamping) ask(count uint64) (answer Interval, isUsable bool, err error) {
	c.lastID++
	if _, err := c.net.Write(intervalFrame(c.lastID, count).appendTo(nil)); err != nil {
		return Interval{}, false, unreachable(c.addr, err)
	}
	for {
		h, tail, err := c.frames.next()
		arrived := time.Now()
		if err != nil {
			return Interval{}, false, c.broken(err)
		}
		switch h.kind {
		case kindIntervalAnswer:
			answer, err := c.take(h, tail, count, arrived)
			if err != nil {
				return Interval{}, false, c.broken(err)
			}
			c.used = arrived
			return answer, true, nil
		case kindError:
			refusal, closes, err := readError(h, tail, c.addr)
			if err == nil && !closes && h.id != c.lastID {
				err = protocolError("it refused request %d, which is not under way", h.id)
			}
			if err != nil {
				return Interval{}, false, c.broken(err)
			}
			if closes {
				return Interval{}, false, c.dismissed(refusal)
			}
			c.used = arrived
			return Interval{}, true, refusal
		case kindPing, kindPong, kindGoodbye:
			err := checkPlain(h)
			if err == nil && h.kind == kindPing {
				h.kind = kindPong
				_, err = c.net.Write(h.appendTo(nil))
			}
			if err == nil && h.kind == kindGoodbye {
				err = errGoodbye
			}
			if err != nil {
				return Interval{}, false, c.broken(err)
			}
		case kindLeader:
			// Interval mode needs no leader.
			if _, err := readLeader(h, tail); err != nil {
				return Interval{}, false, c.broken(err)
			}
		case kindAnswer, kindRequest, kindIntervalRequest, kindHello, kindWelcome:
			return Interval{}, false, c.broken(protocolError("it sent a frame of kind %#x", h.kind))
		}
	}
}

// take checks an answer. The timestamps of a node rise.
func (c *stamping) take(h head, tail []byte, count uint64, arrived time.Time) (Interval, error) {
	if h.id != c.lastID {
		return Interval{}, protocolError("it answered request %d, which is not under way", h.id)
	}
	answer, err := readInterval(h, tail, count, c.welcome.node, arrived)
	if err != nil {
		return Interval{}, err
	}
	if !c.highest.Before(answer.Timestamp) {
		return Interval{}, fmt.Errorf("%w: %s gave %v after %v", ErrWentBackwards, c.addr, answer.Timestamp, c.highest)
	}
	c.highest = Range{First: answer.Timestamp, Count: count}.Last()
	return answer, nil
}

// take returns a kept connection to the node, or nil.
func (s *stamper) take(addr string) *stamping {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kept := s.idle[addr]; len(kept) > 0; {
		last := kept[len(kept)-1]
		kept = kept[:len(kept)-1]
		s.idle[addr] = kept
		if !s.isOld(last) {
			return last
		}
		last.net.Close()
	}
	return nil
}

// isOld returns whether the connection must not be used any more. A node closes a connection that is
// idle for long, and each new connection brings the list of members.
func (s *stamper) isOld(conn *stamping) bool {
	return time.Since(conn.made) >= s.o.refresh || time.Since(conn.used) >= conn.welcome.pingEvery()
}

// sweep closes all old connections. New connections are rare, so each of them has time for that.
func (s *stamper) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, kept := range s.idle {
		s.idle[addr] = slices.DeleteFunc(kept, func(conn *stamping) bool {
			isOld := s.isOld(conn)
			if isOld {
				conn.net.Close()
			}
			return isOld
		})
		if len(s.idle[addr]) == 0 {
			delete(s.idle, addr)
		}
	}
}

// keep keeps a connection for another request.
func (s *stamper) keep(conn *stamping) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isClosed || len(s.idle[conn.addr]) >= stampersMax {
		conn.net.Close()
		return
	}
	s.idle[conn.addr] = append(s.idle[conn.addr], conn)
}

// close closes all connections without a request. Those with one end with the client's context.
func (s *stamper) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isClosed = true
	for _, kept := range s.idle {
		for _, conn := range kept {
			conn.net.Close()
		}
	}
	clear(s.idle)
}
