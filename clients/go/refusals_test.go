package epicepoch

import (
	"errors"
	"strings"
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
	greeted := make(chan struct{}, 1)
	leader.greet = func() *welcome {
		w := leader.welcome(leader)
		if homeless.Load() {
			w.cluster = nil
			if notifies.Load() {
				w.leader = nil
			}
			select {
			case greeted <- struct{}{}:
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
	// It says so in its welcome, or in a notice behind it.
	for _, later := range []bool{false, true} {
		homeless.Store(false)
		client := dial(t, []string{leader.addr()})
		get(t, client)
		notifies.Store(later)
		homeless.Store(true)
		leader.hangUp()
		<-greeted
		_, err := client.Timestamp(within(t, 300*time.Millisecond))
		if !errors.Is(err, ErrNotReady) {
			t.Error(later, err)
		}
		homeless.Store(false)
		get(t, client)
		client.Close()
	}
}
