package epicepoch

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

func TestATurnCopiesEachSlowRequestOnce(t *testing.T) {
	now := time.Now()
	fill := func(to map[uint64]asked, size int) {
		for id := range size {
			to[uint64(1000+id)] = asked{count: 1, at: now}
		}
	}
	for name, one := range map[string]struct {
		given  func(h *hedger)
		copied []uint64
		left   error
	}{
		"two are slow":        {func(*hedger) {}, []uint64{1, 2}, nil},
		"one is copied":       {func(h *hedger) { h.copies[1] = asked{count: 10, at: now} }, []uint64{2}, nil},
		"one copy is free":    {func(h *hedger) { fill(h.copies, copiesMax-1) }, []uint64{1}, nil},
		"no copy is free":     {func(h *hedger) { fill(h.copies, copiesMax) }, nil, nil},
		"few are burnt":       {func(h *hedger) { fill(h.burnt, burntMax-1) }, []uint64{1, 2}, nil},
		"too many are burnt":  {func(h *hedger) { fill(h.burnt, burntMax) }, nil, nil},
		"there is no leader":  {func(h *hedger) { h.c.conn = nil }, nil, nil},
		"a copy may wait":     {func(h *hedger) { h.copies[9] = asked{at: now.Add(-h.timeout)} }, []uint64{1, 2}, nil},
		"a copy waits longer": {func(h *hedger) { h.copies[9] = asked{at: now.Add(-h.timeout - 1)} }, nil, errLeft},
	} {
		c := between(t)
		h, second := c.hedge, idleConnection(t, "second:1")
		c.conn, h.conn, h.after = idleConnection(t, "leader:1"), second, hedgeAfter
		second.welcome.countMax = 10
		for id, it := range map[uint64]struct {
			age   time.Duration
			count uint64
		}{1: {hedgeAfter, 10}, 2: {2 * hedgeAfter, 1}, 3: {hedgeAfter - 1, 1}, 4: {hedgeAfter, 11}} {
			b := c.underWayAs(id)
			b.sent, b.count = now.Add(-it.age), it.count
		}
		one.given(h)
		// The outbox keeps the copies, because a write seems to be in progress.
		second.out.busy = true
		h.turn(now)
		var copied []uint64
		for frames := second.out.waiting; len(frames) > 0; frames = frames[headSize:] {
			copied = append(copied, readHead(frames).id)
		}
		if !slices.Equal(copied, one.copied) {
			t.Errorf("%s: %v are copied", name, copied)
		}
		for _, id := range copied {
			if got := h.copies[id]; got.count != c.slots[id].count || got.at != now {
				t.Errorf("%s: %d is remembered as %v", name, id, got)
			}
		}
		if why := second.out.left(); why != one.left || (h.conn == nil) != (why != nil) {
			t.Errorf("%s: left: %v, %v", name, why, h.conn)
		}
		if h.conn == nil && len(h.copies) > 0 {
			t.Errorf("%s: %d copies are left of a connection that has ended", name, len(h.copies))
		}
	}
}

func TestATurnOpensOneSecondConnectionAtATime(t *testing.T) {
	now := time.Now()
	for name, one := range map[string]struct {
		given  func(h *hedger)
		dialed []string
	}{
		"the leader comes first":   {func(*hedger) {}, []string{"leader:1"}},
		"then another node":        {func(h *hedger) { h.triedLeader = true }, []string{"here:1"}},
		"but a hint is followed":   {func(h *hedger) { h.next = "hint:1" }, []string{"hint:1"}},
		"one is open":              {func(h *hedger) { h.conn = idleConnection(t, "second:1") }, nil},
		"one is being opened":      {func(h *hedger) { h.opening = true }, nil},
		"there is no leader":       {func(h *hedger) { h.c.conn = nil }, nil},
		"the client is closed":     {func(h *hedger) { h.c.closed = true }, nil},
		"the pause is not over":    {func(h *hedger) { h.notBefore = now }, nil},
		"the pause has been ended": {func(h *hedger) { h.notBefore = now.Add(-1) }, []string{"leader:1"}},
		"an idle client pauses":    {func(h *hedger) { h.idleUntil = now }, nil},
		"the idle pause is over":   {func(h *hedger) { h.idleUntil = now.Add(-1) }, []string{"leader:1"}},
		"a request ends the idle pause": {func(h *hedger) {
			h.idleUntil = now
			h.c.inFlight = 1
		}, []string{"leader:1"}},
		"a call ends the idle pause": {func(h *hedger) {
			h.idleUntil = now
			h.c.pending = []*batch{newBatch()}
		}, []string{"leader:1"}},
	} {
		c := between(t)
		c.ctx, c.conn = t.Context(), idleConnection(t, "leader:1")
		var dialed []string
		c.o.dial = func(_ context.Context, addr string) (net.Conn, error) {
			dialed = append(dialed, addr)
			return nil, errors.New("no node listens here")
		}
		one.given(c.hedge)
		c.hedge.turn(now)
		c.ended.Wait()
		if !slices.Equal(dialed, one.dialed) {
			t.Errorf("%s: %v", name, dialed)
		}
		if h := c.hedge; one.dialed != nil && (h.opening || !h.triedLeader || h.next != "") {
			t.Errorf("%s: opening %v, tried the leader %v, next %q", name, h.opening, h.triedLeader, h.next)
		}
	}
}

// openAndWait lets the hedger open a second connection, and waits until the connection has ended.
func (h *hedger) openAndWait(t *testing.T, addr string) {
	t.Helper()
	h.timeout, h.c.ctx = 10*time.Second, t.Context()
	h.c.ended.Add(1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		h.open(addr, "leader:1")
	}()
	select {
	case <-over:
		h.c.ended.Wait()
	case <-time.After(20 * time.Second):
		t.Fatal("the second connection stays")
	}
}

func TestASecondConnectionThatIsLateGivesTheNextOneTwiceTheTime(t *testing.T) {
	leader, c := startNode(t, 1), between(t)
	c.ctx, c.conn, c.o.attemptTimeout = t.Context(), idleConnection(t, "leader:1"), 5*time.Hour
	c.hedge.timeout = time.Hour
	leads, given := true, time.Duration(0)
	leader.onHello = func() *welcome {
		if leads {
			return leader.welcome(leader)
		}
		return leader.welcome(nil)
	}
	// The connection ends when it is made.
	leader.behind = func() []byte { return head{kind: kindGoodbye}.appendTo(nil) }
	for at, one := range []struct {
		is    string
		limit time.Duration
	}{
		{"late", time.Hour}, {"late", 2 * time.Hour}, {"refused", 4 * time.Hour}, {"a follower", 4 * time.Hour},
		{"late", 4 * time.Hour}, {"late", 5 * time.Hour}, {"the leader", 5 * time.Hour}, {"late", time.Hour},
	} {
		leads = one.is == "the leader"
		c.o.dial = func(ctx context.Context, addr string) (net.Conn, error) {
			deadline, _ := ctx.Deadline()
			given = time.Until(deadline).Round(time.Hour)
			switch one.is {
			case "late":
				return nil, os.ErrDeadlineExceeded
			case "refused":
				return nil, errors.New("no node listens here")
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
		c.ended.Add(1)
		c.hedge.open(leader.addr(), "leader:1")
		// A node that was slow to connect is no reason to wait for long with the next attempt.
		if pause := time.Until(c.hedge.notBefore); given != one.limit || pause > time.Hour+backoffMax {
			t.Errorf("%d: %s: %v, and a pause of %v", at, one.is, given, pause)
		}
	}
	c.ended.Wait()
}

// A slow link needs more time for TCP and the hello than the first limit of a second connection.
func TestASecondConnectionOverASlowLinkOpensInTheEnd(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = source.serve
	const attempt = 2400 * time.Millisecond
	leader.onHello = func() *welcome {
		time.Sleep(attempt / 6) // The way of a hello and its answer. The first limit is attempt / 8.
		return leader.welcome(leader)
	}
	client := dial(t, []string{leader.addr()}, WithHedgeAfter(hedgeAfter), WithAttemptTimeout(attempt))
	isOpen := func() bool {
		client.mu.Lock()
		defer client.mu.Unlock()
		return client.hedge.conn != nil
	}
	for end := time.Now().Add(30 * time.Second); !isOpen(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it never opens,", leader.met.Load(), "connections")
		}
	}
}

func TestTheSecondConnectionIsDialledMoreAndMoreSeldom(t *testing.T) {
	const dials, first = 12, 20 * time.Millisecond
	for name, fail := range map[string]func(leader *node){
		"silence":   func(*node) {},
		"a refusal": func(leader *node) { leader.refuseHello(18, "no token") },
	} {
		leader := startNode(t, 1)
		var tries atomic.Int64
		over := make(chan time.Time, 1)
		leader.onHello = func() *welcome {
			if leader.met.Load() == 1 {
				return leader.welcome(leader)
			}
			if tries.Add(1) == dials {
				over <- time.Now()
			}
			fail(leader)
			return nil
		}
		began := time.Now()
		dial(t, []string{leader.addr()}, WithHedgeAfter(first), WithAttemptTimeout(4*first))
		// While no call waits, the pause doubles from 1 ms. Up to half of it is left out.
		var least time.Duration
		for at := range dials - 1 {
			least += first + backoffMin<<at/2
		}
		select {
		case end := <-over:
			if took := end.Sub(began); took < least {
				t.Errorf("%s: %d dials in %v, and not in %v", name, dials, took, least)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%s: only %d dials", name, tries.Load())
		}
	}
}

func TestAnOpenSecondConnectionEndsTheGrowthOfThePause(t *testing.T) {
	leader, c := startNode(t, 1), between(t)
	leader.behind = func() []byte { return head{kind: kindGoodbye}.appendTo(nil) }
	c.conn, c.hedge.failures, c.hedge.idleUntil = idleConnection(t, "leader:1"), 100, time.Now().Add(time.Hour)
	c.hedge.openAndWait(t, leader.addr())
	if h := c.hedge; h.failures != 0 || !h.idleUntil.IsZero() {
		t.Error(h.failures, "failures, idle until", h.idleUntil)
	}
}

func TestTheSecondConnectionFollowsTheHintOfAFollower(t *testing.T) {
	for name, one := range map[string]struct {
		leader   string
		failed   time.Duration // how long ago
		expected *Cluster
		next     string
	}{
		"no leader":                 {"", 0, nil, ""},
		"a leader":                  {"next:1", 0, nil, "next:1"},
		"one that fails meanwhile":  {"next:1", -time.Hour, nil, ""},
		"one that failed long ago":  {"next:1", 2 * suspicion, nil, "next:1"},
		"the leader of other nodes": {"next:1", 0, &Cluster{ID: [16]byte{9}}, ""},
		"the leader of these nodes": {"next:1", 0, &testCluster, "next:1"},
	} {
		t.Run(name, func(t *testing.T) {
			follower, c := startNode(t, 2), between(t)
			follower.onHello = func() *welcome {
				w := follower.welcome(nil)
				if one.leader != "" {
					w.leader = &Member{Node: 3, Addr: one.leader}
				}
				return w
			}
			main := idleConnection(t, "leader:1")
			c.conn, c.cluster, c.hedge.opening = main, one.expected, true
			if one.failed != 0 {
				c.dir.fail("next:1", time.Now().Add(-one.failed))
			}
			c.hedge.openAndWait(t, follower.addr())
			if h := c.hedge; h.next != one.next || h.opening || h.conn != nil {
				t.Errorf("next %q, opening %v, %v", h.next, h.opening, h.conn)
			}
			// A node of another cluster ends the calls, too.
			if isOther := name == "the leader of other nodes"; errors.Is(main.out.left(), errLeft) != isOther {
				t.Error("the leader's connection:", main.out.left())
			}
		})
	}
}

// A node sends these frames over the second connection, directly after its welcome.
func TestTheSecondConnectionEndsWhenItsNodeDoesNotLead(t *testing.T) {
	refusal := func(flags byte, code uint16) []byte {
		h := head{kind: kindError, flags: flags, code: code, argument: 6}
		return append(h.appendTo(nil), "next:1"...)
	}
	notice := head{kind: kindLeader, argument: 6, id: 9}
	for name, one := range map[string]struct {
		frames   []byte
		next     string
		isBroken bool
	}{
		"another node leads":         {refusal(0, 1), "next:1", false},
		"there is no quorum":         {refusal(0, 2), "", false},
		"the refusal is invalid":     {refusal(2, 1), "", true},
		"a notice of another leader": {append(notice.appendTo(nil), "next:1"...), "", false},
		"a notice of no leader":      {head{kind: kindLeader}.appendTo(nil), "", false},
		"the node shuts down":        {head{kind: kindGoodbye}.appendTo(nil), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			leader, c := startNode(t, 1), between(t)
			pong := make(chan head, 1)
			leader.heard = func(h head) {
				if h.kind == kindPong {
					pong <- h
				}
			}
			leader.behind = func() []byte {
				return append(head{kind: kindPing, id: 7}.appendTo(nil), one.frames...)
			}
			main := idleConnection(t, "leader:1")
			c.conn, c.hedge.triedLeader = main, true
			c.hedge.openAndWait(t, leader.addr())
			if h := c.hedge; h.next != one.next || h.conn != nil || h.triedLeader || !h.notBefore.After(time.Now()) {
				t.Errorf("next %q, %v, tried the leader %v, not before %v", h.next, h.conn, h.triedLeader, h.notBefore)
			}
			if isBroken := errors.Is(c.lastErr, ErrProtocol); isBroken != one.isBroken || (c.conn == nil) != isBroken {
				t.Error(c.lastErr, c.conn)
			}
			select {
			case h := <-pong:
				if h.id != 7 {
					t.Error("a pong for", h.id)
				}
			case <-time.After(10 * time.Second):
				t.Error("no pong")
			}
		})
	}
}

func TestOnlyARecentAnswerOfTheHedgeNamesTheNextLeader(t *testing.T) {
	for name, one := range map[string]struct {
		age  time.Duration
		want string
	}{
		"just now":      {0, "second:1"},
		"some time ago": {time.Hour, ""},
	} {
		c := between(t)
		c.hedge.conn, c.hedge.answered = idleConnection(t, "second:1"), time.Now().Add(-one.age)
		c.o.attemptTimeout = time.Minute
		if got := c.hedge.succeed(); got != one.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
