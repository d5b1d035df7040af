package epicepoch

import (
	"errors"
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
