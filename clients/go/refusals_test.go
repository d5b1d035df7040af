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

func TestARefusalOfNothingBreaksTheProtocol(t *testing.T) {
	for _, code := range []Code{2, 4, 66} {
		leader := startNode(t, 1)
		leader.ask = func(to *peer, id, count uint64) { to.refuse(id+1, code, "") }
		client := dial(t, []string{leader.addr()})
		if got, err := client.Timestamp(within(t, 2*time.Second)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%d: %v, %v", code, got, err)
		}
	}
}
func TestASilentLeaderIsSaidToBeSilent(t *testing.T) {
	leader := startNode(t, 1)
	leader.ask = func(*peer, uint64, uint64) {}
	// The client leaves the leader at most a fifth of the attempt timeout late.
	const attempt = 400 * time.Millisecond
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(attempt))
	_, err := client.Timestamp(within(t, 4*attempt))
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "did not answer in time") {
		t.Fatal(err)
	}
}
func TestTheReasonOfACallIsNotOneThatWasOverBeforeIt(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	leader.ask = func(to *peer, id, count uint64) {
		switch leader.asked.Load() {
		case 1:
			to.refuse(id, 4, "")
		case 2:
			source.serve(to, id, count)
		}
	}
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(5*time.Second))
	get(t, client)
	if _, err := client.Timestamp(within(t, 100*time.Millisecond)); errors.Is(err, ErrOverloaded) {
		t.Fatal(err)
	}
}
func TestALeaderWithoutAClusterIsNotAsked(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	var homeless, notifies atomic.Bool
	welcomed := make(chan struct{}, 1)
	leader.onHello = func() *welcome {
		w := leader.welcome(leader)
		if homeless.Load() {
			w.cluster = nil
			if notifies.Load() {
				w.leader = nil
			}
			select {
			case welcomed <- struct{}{}:
			default:
			}
		}
		return w
	}
	leader.behind = func() []byte {
		if !homeless.Load() || !notifies.Load() {
			return nil
		}
		text := leader.addr()
		h := head{kind: kindLeader, argument: uint32(len(text)), id: leader.id}
		return append(h.appendTo(nil), text...)
	}
	leader.ask = func(to *peer, id, count uint64) {
		if homeless.Load() {
			t.Error("a node without a cluster was asked")
		}
		source.serve(to, id, count)
	}
	// A node that names no cluster says that it leads. It says so in its welcome, or in a notice
	// after the welcome.
	for _, later := range []bool{false, true} {
		homeless.Store(false)
		failed := make(chan error)
		client := dial(t, []string{leader.addr()}, WithAttemptTimeout(10*time.Second),
			WithHooks(Hooks{FailedAttempt: func(err error) {
				select {
				case failed <- err:
				default:
				}
			}}))
		get(t, client)
		notifies.Store(later)
		homeless.Store(true)
		leader.hangUp()
		<-welcomed
		ctx, cancel := context.WithCancel(within(t, 10*time.Second))
		ended := make(chan error, 1)
		go func() {
			_, err := client.Timestamp(ctx)
			ended <- err
		}()
		for client.waitingBatches() == 0 {
			time.Sleep(time.Millisecond)
		}
		// With the second such failure, the client knows the reason of the first one.
		for known := 0; known < 2; {
			select {
			case err := <-failed:
				if errors.Is(err, ErrNotReady) {
					known++
				}
			case err := <-ended:
				t.Fatal(later, err)
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, ErrNotReady) {
			t.Error(later, err)
		}
		homeless.Store(false)
		get(t, client)
		client.Close()
	}
}
func TestAnOverloadedLeaderHasAPauseFromAllCallers(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{}
	refuse, again := make(chan func(), 1), make(chan time.Time, 1)
	leader.ask = func(to *peer, id, count uint64) {
		switch leader.asked.Load() {
		case 1:
			refuse <- func() { to.refuse(id, 4, "") }
			return
		case 2:
			again <- time.Now()
		}
		source.serve(to, id, count)
	}
	client := dial(t, []string{leader.addr()}, WithInFlight(1), WithAttemptTimeout(5*time.Second))
	var both sync.WaitGroup
	call := func() {
		defer both.Done()
		if _, err := client.Timestamp(within(t, 10*time.Second)); err != nil {
			t.Error(err)
		}
	}
	both.Add(2)
	go call()
	refused := <-refuse
	go call()
	for waiting := 0; waiting == 0; time.Sleep(time.Millisecond) {
		client.mu.Lock()
		waiting = len(client.pending)
		client.mu.Unlock()
	}
	began := time.Now()
	refused()
	// The pause is random, between half of backoffMax and all of it.
	if pause := (<-again).Sub(began); pause < backoffMax/2 {
		t.Errorf("asked again after %v", pause)
	}
	both.Wait()
	if met := leader.met.Load(); met != 1 {
		t.Errorf("%d connections", met)
	}
}

func TestHintsAreFollowedOnlySoManyTimesInARow(t *testing.T) {
	one, two := startNode(t, 1), startNode(t, 2)
	one.onHello = func() *welcome { return one.welcome(two) }
	two.onHello = func() *welcome { return two.welcome(one) }
	ctx, cancel := context.WithCancel(within(t, 10*time.Second))
	defer cancel()
	var first sync.Once
	var met int64
	var why error
	hook := func(err error) {
		first.Do(func() {
			met, why = one.met.Load()+two.met.Load(), err
			cancel()
		})
	}
	_, err := Dial(ctx, []string{one.addr()}, WithAttemptTimeout(2*time.Second), WithHooks(Hooks{FailedAttempt: hook}))
	if !errors.Is(err, context.Canceled) || !errors.Is(why, ErrNoLeader) || met != hopsMax+1 {
		t.Errorf("%d nodes were asked before %v; %v", met, why, err)
	}
}

// Two nodes say that they lead, and refuse every request. The client counts its pauses.
func TestRefusalsThatNameALeaderAreFollowedOnlySoManyTimesWithoutAPause(t *testing.T) {
	one, two := startNode(t, 1), startNode(t, 2)
	var client atomic.Pointer[Client]
	pauses := make(chan int, 100)
	for node, other := range map[*node]*node{one: two, two: one} {
		node.onHello = func() *welcome {
			if c := client.Load(); c != nil {
				c.dirMu.Lock()
				select {
				case pauses <- c.dir.failedAttempts:
				default:
				}
				c.dirMu.Unlock()
			}
			return node.welcome(node)
		}
		node.ask = func(to *peer, id, count uint64) { to.refuse(id, 1, other.addr()) }
	}
	client.Store(dial(t, []string{one.addr()}, WithAttemptTimeout(10*time.Second)))
	ctx, cancel := context.WithCancel(within(t, 10*time.Second))
	ended := make(chan error, 1)
	go func() {
		_, err := client.Load().Timestamp(ctx)
		ended <- err
	}()
	// The first hopsMax refusals are followed without a pause, and then each one after a pause.
	for followed := 1; followed <= hopsMax+2; followed++ {
		select {
		case made := <-pauses:
			if want := max(0, followed-hopsMax); made != want {
				t.Errorf("%d pauses before hint %d is followed, not %d", made, followed, want)
			}
		case err := <-ended:
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestANodeThatKnowsNoLeaderIsHeardForAWhileAndThenLeft(t *testing.T) {
	leader := startNode(t, 1)
	var notice []byte
	notice = head{kind: kindPing, id: 1}.appendTo(notice)
	notice = head{kind: kindLeader}.appendTo(notice) // still no leader
	text := leader.addr()
	notice = head{kind: kindLeader, argument: uint32(len(text)), id: leader.id}.appendTo(notice)
	notice = append(notice, text...)
	for name, one := range map[string]struct {
		frames []byte
		closes bool
		why    error
	}{
		"it says nothing":  {nil, false, ErrNoLeader},
		"it closes":        {nil, true, ErrUnreachable},
		"it is no oracle":  {head{kind: kindLeader, flags: 1}.appendTo(nil), false, ErrProtocol},
		"it learns of one": {notice, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			follower := startNode(t, 2)
			follower.onHello = func() *welcome {
				w := follower.welcome(nil)
				w.members = nil
				return w
			}
			follower.behind = func() []byte {
				if one.closes {
					time.AfterFunc(50*time.Millisecond, follower.hangUp)
				}
				return one.frames
			}
			failed := make(chan error, 100)
			// A quarter of the attempt timeout passes until the client asks the other node. Only a node
			// that says nothing must take that long.
			attempt := 40 * time.Second
			if errors.Is(one.why, ErrNoLeader) {
				attempt = 2 * time.Second
			}
			client, err := Dial(within(t, 30*time.Second), []string{follower.addr(), leader.addr()},
				WithAttemptTimeout(attempt), WithHooks(Hooks{FailedAttempt: func(err error) { failed <- err }}))
			if errors.Is(one.why, ErrProtocol) {
				if !errors.Is(err, ErrProtocol) {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if client.Leader() != leader.addr() {
				t.Error(client.Leader())
			}
			select {
			case err := <-failed:
				if one.why == nil || !errors.Is(err, one.why) {
					t.Error(err)
				}
			default:
				if one.why != nil {
					t.Error("nothing failed")
				}
			}
		})
	}
}

// A leader sends these frames directly after its first welcome.
func TestFramesWithoutAnAnswerKeepOrEndTheConnection(t *testing.T) {
	notice := func(node uint64) []byte {
		return append(head{kind: kindLeader, argument: 6, id: node}.appendTo(nil), "node:1"...)
	}
	for name, one := range map[string]struct {
		frames []byte
		why    error
	}{
		"a ping":                  {head{kind: kindPing, id: 7}.appendTo(nil), nil},
		"a pong":                  {head{kind: kindPong, id: 8}.appendTo(nil), nil},
		"a notice of itself":      {notice(1), nil},
		"a notice of no leader":   {head{kind: kindLeader}.appendTo(nil), nil},
		"a notice of another":     {notice(2), ErrNotLeader},
		"a goodbye":               {head{kind: kindGoodbye}.appendTo(nil), ErrShuttingDown},
		"an invalid ping":         {head{kind: kindPing, flags: 1}.appendTo(nil), ErrProtocol},
		"an invalid pong":         {head{kind: kindPong, code: 1}.appendTo(nil), ErrProtocol},
		"an invalid goodbye":      {head{kind: kindGoodbye, id: 1}.appendTo(nil), ErrProtocol},
		"an invalid notice":       {head{kind: kindLeader, flags: 1}.appendTo(nil), ErrProtocol},
		"what only a client says": {head{kind: kindRequest}.appendTo(nil), ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			leader, source := startNode(t, 1), &oracle{}
			leader.ask = source.serve
			// The node pings last. The pong to this ping shows that the client has read everything.
			leader.behind = func() []byte {
				if leader.met.Load() > 1 {
					return nil
				}
				return append(one.frames, head{kind: kindPing, id: 9}.appendTo(nil)...)
			}
			pongs, failed := make(chan uint64, 100), make(chan error, 100)
			leader.heard = func(h head) {
				if h.kind == kindPong {
					pongs <- h.id
				}
			}
			dial(t, []string{leader.addr()}, WithHooks(Hooks{FailedAttempt: func(err error) { failed <- err }}))
			var heard []uint64
			for len(heard) == 0 || heard[len(heard)-1] != 9 {
				select {
				case id := <-pongs:
					heard = append(heard, id)
				case err := <-failed:
					if one.why == nil || !errors.Is(err, one.why) {
						t.Error(err)
					}
					return
				case <-time.After(10 * time.Second):
					t.Fatal("no pong")
				}
			}
			want := []uint64{9}
			if name == "a ping" {
				want = []uint64{7, 9}
			}
			if one.why != nil || !slices.Equal(heard, want) {
				t.Error("the client stays; pongs:", heard)
			}
		})
	}
}

// The leader takes connections and says nothing, so that a refresh takes as long as an attempt may.
// Meanwhile the client keeps its idle connection, and begins no second refresh.
func TestAnIdleClientPingsAlsoWhileARefreshTakesLong(t *testing.T) {
	leader := startNode(t, 1)
	leader.onHello = func() *welcome {
		if leader.met.Load() > 1 {
			return nil
		}
		w := leader.welcome(leader)
		w.idleMillis = 300
		return w
	}
	pings := make(chan struct{}, 100)
	leader.heard = func(h head) {
		if h.kind == kindPing {
			pings <- struct{}{}
		}
	}
	dial(t, []string{leader.addr()}, WithAttemptTimeout(5*time.Minute), WithRefresh(100*time.Millisecond))
	for range 10 {
		select {
		case <-pings:
		case <-time.After(10 * time.Second):
			t.Fatal("no ping")
		}
	}
	if met := leader.met.Load(); met != 2 {
		t.Errorf("%d connections", met)
	}
}

// The client may be late, but it is never early.
func TestAnIdleClientPingsAndLearnsTheMembersAtItsPace(t *testing.T) {
	const pace = 100 * time.Millisecond
	leader := startNode(t, 1)
	leader.onHello = func() *welcome {
		w := leader.welcome(leader)
		w.idleMillis = uint32(3 * pace.Milliseconds())
		return w
	}
	pings := make(chan struct{}, 100)
	leader.heard = func(h head) {
		if h.kind == kindPing {
			pings <- struct{}{}
		}
	}
	began := time.Now()
	// The client looks every 20 ms.
	dial(t, []string{leader.addr()}, WithAttemptTimeout(pace), WithRefresh(pace))
	before := leader.met.Load()
	for range 3 {
		select {
		case <-pings:
		case <-time.After(10 * time.Second):
			t.Fatal("no ping")
		}
	}
	if took := time.Since(began); took < 3*pace {
		t.Errorf("three pings in %v", took)
	}
	for deadline := time.Now().Add(10 * time.Second); leader.met.Load() < before+3; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the members are not learned again")
		}
	}
	times := leader.met.Load() - before
	if took := time.Since(began); took < time.Duration(times)*pace {
		t.Errorf("the members were learned %d times in %v", times, took)
	}
}
