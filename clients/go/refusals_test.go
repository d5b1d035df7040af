package epicepoch

import (
	"errors"
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
	client := dial(t, []string{leader.addr()}, WithAttemptTimeout(50*time.Millisecond))
	_, err := client.Timestamp(within(t, 500*time.Millisecond))
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
		client := dial(t, []string{leader.addr()})
		get(t, client)
		notifies.Store(later)
		homeless.Store(true)
		leader.hangUp()
		<-welcomed
		_, err := client.Timestamp(within(t, 300*time.Millisecond))
		if !errors.Is(err, ErrNotReady) {
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
