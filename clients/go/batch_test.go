package epicepoch

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"
)

// A batch goes back to the pool only when it is done and its last caller has read the answer. A
// caller that leaves early does not change this, because the client holds the batch until it is
// done.
func TestABatchIsHeldUntilItIsDoneAndAllHaveLeft(t *testing.T) {
	b := newBatch()
	b.join(1, nil)
	b.leave()
	if held := b.holders.Load(); held != 1 {
		t.Fatalf("%d hold a batch that nobody has sent", held)
	}
	if offset := b.join(2, nil); offset != 1 || b.waiting() != 1 {
		t.Fatalf("offset %d, %d wait", offset, b.waiting())
	}
	want := Range{First: Timestamp{Epoch: 1}, Count: 3}
	b.finish(want, nil)
	if held := b.holders.Load(); held != 1 {
		t.Fatalf("%d hold a batch that one caller has not read", held)
	}
	<-b.done
	if b.answer != want {
		t.Fatal(b.answer)
	}
	b.leave()
	if held := b.holders.Load(); held != 0 {
		t.Fatalf("%d hold a batch that nobody uses", held)
	}
}

// The answer is ready and the context has ended, both before the caller looks. The caller must get
// the end of the context.
func TestAnAnswerAfterTheEndOfTheContextGoesToNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 {
		b := newBatch()
		b.join(1, nil)
		b.finish(Range{First: Timestamp{Epoch: 1}, Count: 1}, nil)
		if b.wait(ctx, nil) == nil {
			t.Fatal("an answer was given to a caller that had left")
		}
	}
}

func TestACallNeedsNoTimerOnlyIfItsRequestIsSentNext(t *testing.T) {
	for name, one := range map[string]struct {
		isConnected bool
		pending     int
		callTimeout time.Duration
		want        bool
	}{
		"sent next":                     {true, 0, 400 * time.Millisecond, true},
		"behind another request":        {true, 1, 400 * time.Millisecond, false},
		"without a leader":              {false, 0, 400 * time.Millisecond, false},
		"too little time for a silence": {true, 0, 400*time.Millisecond - 1, false},
	} {
		c := between(t)
		c.o.attemptTimeout, c.o.callTimeout = 100*time.Millisecond, one.callTimeout
		if one.isConnected {
			c.conn = idleConnection(t, "leader:1")
		}
		c.wait(one.pending)
		if got := c.isPrompt(); got != one.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// wait adds batches of one caller each that are not sent yet.
func (c *Client) wait(batches int) {
	for range batches {
		b := newBatch()
		b.join(1, nil)
		c.pending = append(c.pending, b)
	}
}

// An attempt timeout that means "never" is above every call timeout.
func TestACallNeedsATimerIfAnAttemptHasNoLimit(t *testing.T) {
	c := between(t)
	c.conn = idleConnection(t, "leader:1")
	c.o.attemptTimeout = math.MaxInt64
	if c.isPrompt() {
		t.Error("no timer ends the call")
	}
}

func TestABatchWhoseCallersHaveLeftIsNotSent(t *testing.T) {
	c := between(t)
	c.conn, c.inFlightLimit = idleConnection(t, "leader:1"), 1
	c.wait(3)
	for _, b := range c.pending[:2] {
		b.leave()
	}
	out := c.seal()
	if out == nil || len(out.frames) != headSize || c.inFlight != 1 || len(c.pending) != 0 {
		t.Errorf("%v, %d in flight, %d wait", out, c.inFlight, len(c.pending))
	}
}

func TestACallerSendsABatchThatAnotherOneIsSlowToSend(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = source.serve
	client := dial(t, []string{leader.addr()})
	if _, err := client.Timestamp(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	// A caller has opened a batch, and is paused before it sends.
	client.mu.Lock()
	client.wait(1)
	client.mu.Unlock()
	if _, err := client.Timestamp(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
}

func TestCallersShareARequestUpToTheLimitOfTheLeader(t *testing.T) {
	c := between(t)
	c.countLimit = 10
	for _, count := range []uint64{6, 4, 1, 9, 1} {
		if _, _, err := c.join(count, nil); err != nil {
			t.Fatal(err)
		}
	}
	var counts []uint64
	for _, b := range c.pending {
		counts = append(counts, b.count)
	}
	if want := []uint64{10, 10, 1}; !slices.Equal(counts, want) {
		t.Fatal(counts)
	}
	// A leader that gives as much keeps these requests. The next leader gives less.
	for most, ended := range map[uint64]int{10: 0, 9: 2} {
		c := &Client{o: defaults(), pending: slices.Clone(c.pending)}
		if oversize := c.abide(&welcome{countMax: most, inFlightMax: 1}); len(oversize) != ended {
			t.Errorf("%d requests are larger than %d", len(oversize), most)
		}
	}
}

func TestRequestsAreSentOverAConnectionUpToTheLimit(t *testing.T) {
	for name, one := range map[string]struct {
		isConnected              bool
		pending, inFlight, limit int
		sent                     int
	}{
		"all that wait":          {true, 2, 1, 4, 2},
		"up to the limit":        {true, 4, 1, 3, 2},
		"the limit is reached":   {true, 1, 4, 4, 0},
		"nothing waits":          {true, 0, 1, 4, 0},
		"there is no connection": {false, 1, 0, 4, 0},
	} {
		c := between(t)
		c.inFlightLimit = one.limit
		if one.isConnected {
			c.conn = idleConnection(t, "leader:1")
		}
		for id := range one.inFlight {
			c.underWayAs(uint64(100 + id))
		}
		c.wait(one.pending)
		out, sent := c.seal(), 0
		if out != nil {
			sent = len(out.frames) / headSize
		}
		// Nothing is written if nothing is sent.
		if sent != one.sent || (out != nil) != (sent > 0) {
			t.Errorf("%s: %d requests are sent, %v", name, sent, out)
		}
		if len(c.pending) != one.pending-sent || c.inFlight != one.inFlight+sent {
			t.Errorf("%s: %d wait, %d are in flight", name, len(c.pending), c.inFlight)
		}
	}
}

// A late answer must not find another request with the same id. So ids only rise, also if the next
// one is taken.
func TestNoRequestHasTheIDOfAnEarlierOne(t *testing.T) {
	c := between(t)
	c.conn, c.inFlightLimit = idleConnection(t, "leader:1"), inFlightMax
	c.lastID = 300
	c.underWayAs(45) // in the slot of 301
	c.wait(3)
	frames := c.seal().frames
	var ids []uint64
	for ; len(frames) > 0; frames = frames[headSize:] {
		ids = append(ids, readHead(frames).id)
	}
	if want := []uint64{302, 303, 304}; !slices.Equal(ids, want) {
		t.Error(ids)
	}
}
