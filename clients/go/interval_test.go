package epicepoch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stampWidth is the width of the intervals of scripted nodes.
const stampWidth = uint32(2 * time.Millisecond)

// startStampingNode starts a node of interval mode. Its timestamps rise by a nanosecond each, from base.
func startStampingNode(t *testing.T, id, base uint64) *node {
	t.Helper()
	n := startNode(t, id)
	n.onHello = func() *welcome {
		w := n.welcome(nil)
		w.features = featureIntervals
		return w
	}
	var given atomic.Uint64
	n.stamp = func(to *peer, request, count uint64) {
		at := given.Add(1)
		to.say(n.stampFrame(request, stampWidth, base+at, at))
	}
	return n
}

// stampFrame returns an answer of interval mode.
func (n *node) stampFrame(request uint64, width uint32, epoch, counted uint64) []byte {
	first := Timestamp{Epoch: epoch, Index: intervalMarker | n.id<<intervalCountBits | counted}
	return first.Append(head{kind: kindIntervalAnswer, argument: width, id: request}.appendTo(nil))
}

// refuses makes a node refuse all requests of interval mode with a code.
func (n *node) refuses(code Code) {
	n.stamp = func(to *peer, id, _ uint64) { to.refuse(id, code, "no") }
}

// dialNodes dials nodes of interval mode. A busy machine ends no attempt.
func dialNodes(t *testing.T, addrs []string, opts ...Option) *Client {
	t.Helper()
	return dial(t, addrs, append([]Option{WithIntervals(), WithAttemptTimeout(time.Minute)}, opts...)...)
}

const someday = uint64(1_700_000_000_000_000_000)

func TestAnIntervalIsWhatTheNodeSays(t *testing.T) {
	node := startStampingNode(t, 7, someday)
	client := dialNodes(t, []string{node.addr()})
	before := time.Now()
	got, err := client.Intervals(within(t, 30*time.Second), 3)
	if err != nil {
		t.Fatal(err)
	}
	if got.Timestamp != (Timestamp{Epoch: someday + 1, Index: 1<<63 | 7<<48 | 1}) || got.Count != 3 {
		t.Error(got)
	}
	if got.LatestNanos != someday+1 || got.EarliestNanos != someday+1-uint64(stampWidth) {
		t.Error(got)
	}
	// 2 ms, an eighth and a nanosecond, from the arrival of the answer.
	wait := 2250*time.Microsecond + 1
	if got.ReadyAt().Before(before.Add(wait)) || got.ReadyAt().After(time.Now().Add(wait)) {
		t.Error(got.ReadyAt().Sub(before))
	}
	next, err := client.Interval(within(t, 30*time.Second))
	if err != nil || !got.Timestamp.Before(next.Timestamp) || node.met.Load() != 1 {
		t.Error(next, err, node.met.Load())
	}
	if node.asked.Load() != 2 {
		t.Error(node.asked.Load())
	}
}

func TestTheWaitIsOverNoEarlierThanTheAnswerSays(t *testing.T) {
	for width, wait := range map[uint32]time.Duration{
		0: 1, 1: 3, 8: 10, 9: 12, 4_000_000_000: 4_500_000_001, 1<<32 - 1: 1<<32 - 1 + 1<<29 + 1,
	} {
		if got := intervalWait(width); got != wait {
			t.Errorf("%d: %d, not %d", width, got, wait)
		}
	}
	node := startStampingNode(t, 1, someday)
	const width = uint32(40 * time.Millisecond)
	node.stamp = func(to *peer, id, _ uint64) {
		to.say(node.stampFrame(id, width, someday, 1))
	}
	client := dialNodes(t, []string{node.addr()})
	got, err := client.Interval(within(t, 30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	// A wait that is cut off is not over, and another call goes on with it.
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	cutOff := client.CommitWait(ended, got)
	if isOver := !time.Now().Before(got.ReadyAt()); cutOff == nil && !isOver {
		t.Error("the wait was cut off without an error")
	}
	if err := client.CommitWait(context.Background(), got); err != nil || time.Now().Before(got.ReadyAt()) {
		t.Error(err, time.Until(got.ReadyAt()))
	}
	// What is over stays so, also without a context or a client.
	client.Close()
	if err := client.CommitWait(ended, got); err != nil {
		t.Error(err)
	}
	if err := client.CommitWait(context.Background(), Interval{Timestamp: got.Timestamp}); !errors.Is(err, errNoWait) {
		t.Error("nothing says how long to wait", err)
	}
}

// The wait is far longer than the test, so only the end of the context can end the call.
func TestAWaitEndsWithItsContext(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	client := dialNodes(t, []string{node.addr()})
	got, err := client.Interval(within(t, 30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	got.readyAt = time.Now().Add(time.Hour)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- client.CommitWait(ctx, got) }()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// So does the wait of a reader.
	ctx, cancel = context.WithCancel(context.Background())
	go func() {
		_, err := client.MustRetry(ctx, got.Timestamp, Timestamp{Epoch: 1<<64 - 1})
		result <- err
	}()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestOnlyIntervalsThatDoNotOverlapAreSurelyInOrder(t *testing.T) {
	between := func(earliest, latest uint64) Interval {
		return Interval{EarliestNanos: earliest, LatestNanos: latest}
	}
	first, second := between(10, 20), between(21, 30)
	if !first.IsSurelyBefore(second) || second.IsSurelyBefore(first) || first.IsSurelyBefore(between(20, 30)) {
		t.Error("wrong")
	}
}

func TestATickIsTheNumberOfAnInterval(t *testing.T) {
	w := 10 * time.Millisecond
	if Tick(Timestamp{Epoch: 9_999_999}, w) != 0 || Tick(Timestamp{Epoch: 10_000_000}, w) != 1 {
		t.Error("wrong")
	}
	defer func() {
		if recover() == nil {
			t.Error("a tick without a length")
		}
	}()
	Tick(Timestamp{}, 0)
}

func TestTheNodeThatAnsweredIsAskedFirstAndOthersIfItIsUncertain(t *testing.T) {
	first, second := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	stamp := first.stamp
	first.refuses(21)
	client := dialNodes(t, []string{first.addr(), second.addr()})
	for range 3 {
		if got, err := client.Interval(within(t, 30*time.Second)); err != nil || got.Timestamp.Index>>48&0x7fff != 2 {
			t.Fatal(got, err)
		}
	}
	if first.asked.Load() != 1 || second.asked.Load() != 3 {
		t.Error(first.asked.Load(), second.asked.Load())
	}
	// A node over a connection of its own: the handler is read by one goroutine for each connection.
	first.hangUp()
	first.stamp = stamp
	second.goDown()
	if got, err := client.Interval(within(t, 30*time.Second)); err != nil || got.Timestamp.Index>>48&0x7fff != 1 {
		t.Error(got, err)
	}
}

func TestACallAsksUntilANodeIsCertain(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	stamp, asked := node.stamp, 0
	node.stamp = func(to *peer, id, count uint64) {
		if asked++; asked < 5 {
			to.refuse(id, 21, "")
			return
		}
		stamp(to, id, count)
	}
	client := dialNodes(t, []string{node.addr()})
	if _, err := client.Interval(within(t, 30*time.Second)); err != nil || node.met.Load() != 1 {
		t.Error(err, node.met.Load())
	}
}

func TestTheEndOfACallSaysThatNoNodeIsCertain(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	ctx, cancel := context.WithCancel(within(t, 30*time.Second))
	node.stamp = func(to *peer, id, _ uint64) {
		to.refuse(id, 21, "")
		if node.asked.Load() == 4 {
			cancel()
		}
	}
	client := dialNodes(t, []string{node.addr()})
	if _, err := client.Interval(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, ErrUncertain) {
		t.Error(err)
	}
	if silent := client.stamper.silent; len(silent) != 0 {
		t.Error("a node that has answered is not silent", silent)
	}
	// Without a deadline, the call has that of the client.
	client = dialNodes(t, []string{node.addr()}, WithCallTimeout(50*time.Millisecond))
	if _, err := client.Interval(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// A node that lags behind a change of the mode says OTHER_MODE, as all do in quorum mode. The call ends
// with it only if no other node knows better.
func TestANodeThatLagsBehindAChangeOfTheModeIsPassedOver(t *testing.T) {
	for _, how := range []Code{22, 66} {
		lagging, other := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
		lagging.refuses(how)
		client := dialNodes(t, []string{lagging.addr(), other.addr()})
		if got, err := client.Interval(within(t, 30*time.Second)); err != nil || got.Timestamp.Index>>48&0x7fff != 2 {
			t.Error(got, err)
		}
		if lagging.asked.Load() != 1 {
			t.Error(lagging.asked.Load())
		}
	}
}

func TestAClusterInQuorumModeEndsACallAfterEachNodeWasAskedOnce(t *testing.T) {
	nodes := []*node{startStampingNode(t, 1, someday), startStampingNode(t, 2, someday), startStampingNode(t, 3, someday)}
	var addrs []string
	for _, one := range nodes {
		one.refuses(22)
		addrs = append(addrs, one.addr())
	}
	// One is down, and one is too old to know interval mode.
	nodes[1].goDown()
	nodes[2].onHello = func() *welcome { return nodes[2].welcome(nodes[2]) }
	client := dialNodes(t, addrs)
	_, err := client.Interval(within(t, 30*time.Second))
	if !errors.Is(err, ErrOtherMode) || errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if nodes[0].asked.Load() != 1 || nodes[2].met.Load() != 1 || nodes[2].asked.Load() != 0 {
		t.Error(nodes[0].asked.Load(), nodes[2].met.Load(), nodes[2].asked.Load())
	}
}

// A node may name members that the program has not named.
func TestMembersThatANodeNamesAreAskedBeforeACallEnds(t *testing.T) {
	for _, how := range []Code{0, 22} {
		lagging, other := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
		lagging.onHello = func() *welcome {
			w := lagging.welcome(nil)
			w.features, w.members = featureIntervals, append(w.members, Member{2, other.addr()})
			return w
		}
		lagging.refuses(22)
		if how != 0 {
			other.refuses(how)
		}
		client := dialNodes(t, []string{lagging.addr()})
		got, err := client.Interval(within(t, 30*time.Second))
		if how == 0 && (err != nil || got.Timestamp.Index>>48&0x7fff != 2) || how != 0 && !errors.Is(err, ErrOtherMode) {
			t.Error(how, got, err)
		}
		if lagging.asked.Load() != 1 || other.asked.Load() != 1 {
			t.Error(how, lagging.asked.Load(), other.asked.Load())
		}
	}
}

// One node is uncertain, so the cluster is in interval mode, and the other one lags.
func TestAnUncertainNodeProvesTheMode(t *testing.T) {
	lagging, uncertain := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	stamp, asked := lagging.stamp, 0
	lagging.stamp = func(to *peer, id, count uint64) {
		if asked++; asked < 3 {
			to.refuse(id, 22, "")
			return
		}
		stamp(to, id, count)
	}
	uncertain.refuses(21)
	client := dialNodes(t, []string{lagging.addr(), uncertain.addr()})
	if _, err := client.Interval(within(t, 30*time.Second)); err != nil {
		t.Error(err)
	}
	if uncertain.asked.Load() != 2 {
		t.Error(uncertain.asked.Load())
	}
}

// The way back from interval mode is rare. So a node that says otherwise, such as after a restart with
// an old disk, most likely lags, and the client does not need another node to tell it so.
func TestAClientThatHasMetIntervalModeKnowsThatANodeLags(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	stamp, asked := node.stamp, 0
	node.stamp = func(to *peer, id, count uint64) {
		if asked++; 1 < asked && asked < 5 {
			to.refuse(id, 22, "")
			return
		}
		stamp(to, id, count)
	}
	client := dialNodes(t, []string{node.addr()})
	for range 2 {
		if _, err := client.Interval(within(t, 30*time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	if node.asked.Load() != 5 {
		t.Error(node.asked.Load())
	}
}

func TestAnAnswerThatNoNodeGivesEndsTheCall(t *testing.T) {
	good := func(n *node, id uint64) []byte { return n.stampFrame(id, stampWidth, someday, 1) }
	for name, answer := range map[string]func(n *node, id uint64) []byte{
		"flags":                func(n *node, id uint64) []byte { return with(good(n, id), 1, 1) },
		"code":                 func(n *node, id uint64) []byte { return with(good(n, id), 3, 1) },
		"index of quorum mode": func(n *node, id uint64) []byte { return with(good(n, id), 24, 0) },
		"another node":         func(n *node, id uint64) []byte { return with(good(n, id), 25, 9) },
		"another request":      func(n *node, id uint64) []byte { return good(n, id+1) },
		"refused request": func(n *node, id uint64) []byte {
			return head{kind: kindError, code: 21, id: id + 1}.appendTo(nil)
		},
		"before 1970": func(n *node, id uint64) []byte {
			return n.stampFrame(id, stampWidth, uint64(stampWidth)-1, 1)
		},
		"count": func(n *node, id uint64) []byte { return n.stampFrame(id, stampWidth, someday, 1<<48-1) },
		"answer of quorum mode": func(n *node, id uint64) []byte {
			return Timestamp{Epoch: someday}.Append(head{kind: kindAnswer, argument: 1, id: id}.appendTo(nil))
		},
		"request":             func(n *node, id uint64) []byte { return intervalFrame(id, 1).appendTo(nil) },
		"kind without length": func(n *node, id uint64) []byte { return head{kind: 0xc0}.appendTo(nil) },
	} {
		t.Run(name, func(t *testing.T) {
			node, other := startStampingNode(t, 3, someday), startStampingNode(t, 4, someday)
			node.stamp = func(to *peer, id, _ uint64) { to.say(answer(node, id)) }
			client := dialNodes(t, []string{node.addr(), other.addr()})
			got, err := client.Intervals(within(t, 30*time.Second), 2)
			if !errors.Is(err, ErrProtocol) || got != (Interval{}) {
				t.Error(got, err)
			}
			if other.asked.Load() != 0 {
				t.Error("another node was asked")
			}
		})
	}
}

// with returns the frame with another value at one byte.
func with(frame []byte, at int, value byte) []byte {
	frame[at] = value
	return frame
}

func TestTimestampsOfANodeThatDoNotRiseAreRefused(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	node.stamp = func(to *peer, id, _ uint64) { to.say(node.stampFrame(id, stampWidth, someday, 4)) }
	client := dialNodes(t, []string{node.addr()})
	if _, err := client.Intervals(within(t, 30*time.Second), 2); err != nil {
		t.Fatal(err)
	}
	if got, err := client.Interval(within(t, 30*time.Second)); !errors.Is(err, ErrWentBackwards) {
		t.Error(got, err)
	}
}

// Pings, notices and frames of later versions come before the answer. A kept connection that the node
// has closed meanwhile costs no failed attempt, also after a goodbye.
func TestOtherFramesAndClosedConnectionsDoNotDisturb(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	pongs := make(chan uint64, 16)
	node.heard = func(h head) {
		if h.kind == kindPong {
			pongs <- h.id
		}
	}
	stamp := node.stamp
	node.stamp = func(to *peer, id, count uint64) {
		to.say(head{kind: kindPing, id: 77}.appendTo(nil))
		to.say(head{kind: kindLeader}.appendTo(nil))
		to.say(head{kind: 0x3f, id: 5}.appendTo(nil))
		stamp(to, id, count)
	}
	var failed atomic.Int64
	hooks := Hooks{FailedAttempt: func(error) { failed.Add(1) }}
	client := dialNodes(t, []string{node.addr()}, WithHooks(hooks))
	for at := range 3 {
		if _, err := client.Interval(within(t, 30*time.Second)); err != nil {
			t.Fatal(at, err)
		}
		if id := <-pongs; id != 77 {
			t.Error(id)
		}
		if at == 1 {
			node.mu.Lock()
			node.peers[len(node.peers)-1].say(head{kind: kindGoodbye}.appendTo(nil))
			node.mu.Unlock()
		}
		node.hangUp()
	}
	if failed.Load() != 0 || node.met.Load() != 3 {
		t.Error(failed.Load(), node.met.Load())
	}
}

func TestAReaderWaitsUntilWhatItFoundIsInThePast(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	// Each timestamp is half a millisecond above the last one.
	given := uint64(0)
	node.stamp = func(to *peer, id, _ uint64) {
		given++
		to.say(node.stampFrame(id, stampWidth, someday+given*500_000, given))
	}
	client := dialNodes(t, []string{node.addr()})
	at := func(epoch uint64) Timestamp { return Timestamp{Epoch: epoch, Index: intervalMarker} }
	must, err := client.MustRetry(within(t, 30*time.Second), at(someday), at(someday-1))
	if must || err != nil || node.asked.Load() != 0 {
		t.Error(must, err, node.asked.Load())
	}
	must, err = client.MustRetry(within(t, 30*time.Second), at(someday), at(someday))
	// The fifth interval begins above it.
	if !must || err != nil || node.asked.Load() != 5 {
		t.Error(must, err, node.asked.Load())
	}
}

// overContext is a context whose deadline passes when the test says so.
type overContext struct {
	context.Context
	over chan struct{}
}

func (c overContext) Deadline() (time.Time, bool) { return time.Now().Add(time.Hour), true }
func (c overContext) Done() <-chan struct{}       { return c.over }
func (c overContext) Err() error {
	select {
	case <-c.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func TestAReaderIsToldByHowMuchWhatItFoundIsStillAhead(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	client := dialNodes(t, []string{node.addr()})
	at := func(epoch uint64) Timestamp { return Timestamp{Epoch: epoch, Index: intervalMarker} }
	ctx, result := overContext{context.Background(), make(chan struct{})}, make(chan error, 1)
	go func() {
		// The first timestamp is a nanosecond above someday.
		_, err := client.MustRetry(ctx, at(someday), at(someday-uint64(stampWidth)+uint64(time.Hour)))
		result <- err
	}()
	// The connection is kept when its answer has been read.
	isRead := func() bool {
		client.stamper.mu.Lock()
		defer client.stamper.mu.Unlock()
		return len(client.stamper.idle[node.addr()]) == 1
	}
	for limit := time.Now().Add(30 * time.Second); !isRead() && time.Now().Before(limit); {
		time.Sleep(time.Millisecond)
	}
	close(ctx.over)
	err := <-result
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "was 1h0m0s ahead") {
		t.Error(err)
	}
}

func TestCallsAtOnceHaveTheirOwnAnswers(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	client := dialNodes(t, []string{node.addr()})
	const callers, calls = 2 * stampersMax, 20
	var all sync.WaitGroup
	var mu sync.Mutex
	given := make(map[Timestamp]bool)
	for range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for range calls {
				got, err := client.Interval(within(t, 30*time.Second))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if given[got.Timestamp] {
					t.Errorf("%v was given twice", got.Timestamp)
				}
				given[got.Timestamp] = true
				mu.Unlock()
			}
		}()
	}
	all.Wait()
	if len(given) != callers*calls || node.met.Load() > stampersMax {
		t.Error(len(given), node.met.Load())
	}
}

func TestACallOfIntervalModeEndsWithItsContextAndWithTheClient(t *testing.T) {
	node := startStampingNode(t, 1, someday)
	asked := make(chan struct{}, 8)
	node.stamp = func(*peer, uint64, uint64) { asked <- struct{}{} }
	client := dialNodes(t, []string{node.addr()})
	result := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	call := func(ctx context.Context) {
		_, err := client.Interval(ctx)
		result <- err
	}
	go call(ctx)
	<-asked
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go call(within(t, time.Minute))
	<-asked
	client.Close()
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := client.Interval(within(t, time.Minute)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestAnotherClusterAndWrongCountsAreRefused(t *testing.T) {
	node, other := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	other.onHello = func() *welcome {
		w := other.welcome(nil)
		w.features, w.cluster = featureIntervals, &Cluster{ID: [16]byte{9}, History: 1}
		return w
	}
	client := dialNodes(t, []string{node.addr(), other.addr()})
	for _, count := range []uint64{0, countMax + 1} {
		if _, err := client.Intervals(within(t, 30*time.Second), count); !errors.Is(err, ErrCount) {
			t.Error(count, err)
		}
	}
	if _, err := client.Interval(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	node.goDown()
	if got, err := client.Interval(within(t, 30*time.Second)); !errors.Is(err, ErrWrongCluster) {
		t.Error(got, err)
	}
	if _, err := client.Timestamp(within(t, 30*time.Second)); !errors.Is(err, ErrOtherMode) {
		t.Error(err)
	}
	compact := dialNodes(t, []string{node.addr()}, WithCompact())
	if _, err := compact.Interval(within(t, 30*time.Second)); !errors.Is(err, ErrNotCompact) {
		t.Error(err)
	}
}

func TestAnOldConnectionIsNotUsedAndANewOneBringsTheMembers(t *testing.T) {
	node, joined := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	members := []Member{{1, node.addr()}}
	node.onHello = func() *welcome {
		w := node.welcome(nil)
		w.features, w.members = featureIntervals, slices.Clone(members)
		return w
	}
	client := dialNodes(t, []string{node.addr()})
	if _, err := client.Interval(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	members = append(members, Member{2, joined.addr()})
	client.stamper.mu.Lock()
	kept := client.stamper.idle[node.addr()]
	kept[0].made = time.Now().Add(-time.Hour)
	client.stamper.mu.Unlock()
	if _, err := client.Interval(within(t, 30*time.Second)); err != nil || node.met.Load() != 2 {
		t.Fatal(err, node.met.Load())
	}
	node.goDown()
	if got, err := client.Interval(within(t, 30*time.Second)); err != nil || got.Timestamp.Index>>48&0x7fff != 2 {
		t.Error(got, err)
	}
}
