package epicepoch

import (
	"errors"
	"strings"
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
