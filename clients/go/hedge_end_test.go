package epicepoch

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// owed returns how many requests have an answer over the second connection and not yet over the
// first.
func (c *Client) owed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.hedge.burnt)
}

func TestARefusalOfWhatTheHedgeAnsweredIsNoDebtOfTheLeader(t *testing.T) {
	for name, code := range map[string]Code{"overloaded": 4, "unsupported": 66} {
		t.Run(name, func(t *testing.T) {
			leader, source := startNode(t, 1), &oracle{next: 1}
			var main first
			var stalled atomic.Bool
			late := make(chan func(), 1)
			leader.ask = func(to *peer, id, count uint64) {
				if main.is(to) && stalled.Load() {
					late <- func() { to.refuse(id, code, "") }
					return
				}
				source.serve(to, id, count)
			}
			client := hedging(t, leader.addr())
			get(t, client)
			stalled.Store(true)
			get(t, client)
			if owed := client.owed(); owed != 1 {
				t.Fatal(owed, "answers are owed")
			}
			stalled.Store(false)
			(<-late)()
			for deadline := time.Now().Add(hedgeAttempt / 2); client.owed() != 0; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("a refused request is still owed")
				}
			}
			get(t, client)
			if met := leader.met.Load(); met != 2 {
				t.Fatal(met, "connections")
			}
		})
	}
}

// between returns a client without goroutines, so that a test can set any state.
func between(t *testing.T) *Client {
	t.Helper()
	c := &Client{o: defaults(), dir: newDirectory([]string{"here:1"}), ready: make(chan struct{})}
	c.hedge = newHedger(c)
	return c
}

// idleConnection returns a connection that no goroutine reads.
func idleConnection(t *testing.T, addr string) *connection {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	return &connection{addr: addr, net: near, out: newOutbox(near, time.Second), welcome: &welcome{node: 1}}
}

// underWayAs puts a batch of one caller in flight with this id.
func (c *Client) underWayAs(id uint64) *batch {
	b := newBatch()
	b.join(1, nil)
	b.id, b.sent = id, time.Now()
	c.slots[id%inFlightMax] = b
	c.inFlight++
	return b
}

func oneAt(index uint64) Range { return Range{First: Timestamp{Epoch: 1, Index: index}, Count: 1} }

func TestALateAnswerOfALeftConnectionIsNotTakenForThatOfItsSuccessor(t *testing.T) {
	c := between(t)
	left, successor := idleConnection(t, "left:1"), idleConnection(t, "next:1")
	c.hedge.conn = successor
	// The copy of request 7 was sent over the old connection and again over the new one. Between
	// the two, the client returned timestamp 9. So the answer to the second copy must be above 9.
	c.hedge.copies[7] = asked{count: 1, floor: Timestamp{Epoch: 1, Index: 9}}
	if err := c.hedge.take(left, 7, oneAt(5), false); !errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
	if err := c.hedge.take(successor, 7, oneAt(10), false); err != nil {
		t.Error(err)
	}
}

func TestEndedConnectionsLeaveNoBurntRequests(t *testing.T) {
	c := between(t)
	c.hedge.conn = idleConnection(t, "second:1")
	c.hedge.copies[7] = asked{count: 1}
	b := c.underWayAs(7)
	if err := c.hedge.take(c.hedge.conn, 7, oneAt(5), false); err != nil {
		t.Fatal(err)
	}
	if <-b.done; b.err != nil || b.answer != oneAt(5) {
		t.Error(b.answer, b.err)
	}
	if owed := c.owed(); owed != 0 {
		t.Error(owed, "answers are owed by nobody")
	}
}

func TestAnAnswerThatComesWhileTheHedgeFailsAccusesNobody(t *testing.T) {
	c := between(t)
	c.conn = idleConnection(t, "first:1")
	main := c.conn
	b := c.underWayAs(7)
	c.hedge.fail(protocolError("the second connection gave nonsense"))
	if <-b.done; !errors.Is(b.err, ErrProtocol) {
		t.Error(b.err)
	}
	if err := c.answered(main, 7, oneAt(5), false); !errors.Is(err, ErrUnreachable) || errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
}

// Frames with reserved bits violate the protocol. The client must refuse them on the second
// connection as it does on the first.
func TestReservedBitsAreRefusedFromTheHedgeToo(t *testing.T) {
	for name, bad := range map[string]head{
		"ping":    {kind: kindPing, flags: 1},
		"pong":    {kind: kindPong, code: 1},
		"goodbye": {kind: kindGoodbye, id: 1},
		"leader":  {kind: kindLeader, flags: 1},
	} {
		t.Run(name, func(t *testing.T) {
			leader, source := startNode(t, 1), &oracle{next: 1}
			var main first
			var stalled atomic.Bool
			leader.ask = func(to *peer, id, count uint64) {
				isMain := main.is(to)
				switch {
				case !stalled.Load():
					source.serve(to, id, count)
				case !isMain:
					to.say(bad.appendTo(nil))
				}
			}
			client := hedging(t, leader.addr())
			get(t, client)
			stalled.Store(true)
			if got, err := client.Timestamp(within(t, hedgeAttempt/4)); !errors.Is(err, ErrProtocol) {
				t.Fatal(got, err)
			}
		})
	}
}
