package epicepoch

import (
	"fmt"
	"testing"
	"time"
)

func TestAHintToANodeThatHasJustFailedIsIgnored(t *testing.T) {
	failed := time.Unix(1000, 0)
	for name, one := range map[string]struct {
		addr     string
		after    time.Duration
		followed bool
	}{
		"at once":        {"failed:1", 0, false},
		"almost too old": {"failed:1", suspicion - 1, false},
		"too old":        {"failed:1", suspicion, true},
		"another node":   {"other:1", 0, true},
	} {
		d := newDirectory([]string{"seed:1"})
		d.fail("failed:1", failed)
		followed := d.follow(one.addr, failed.Add(one.after))
		if followed != one.followed || (d.leader == one.addr) != followed {
			t.Errorf("%s: followed %v, the leader is %q", name, followed, d.leader)
		}
	}
}

// The directory forgets all suspects when there are too many, so its memory has a limit.
func TestSuspectsHaveALimit(t *testing.T) {
	d, now := newDirectory([]string{"seed:1"}), time.Unix(1000, 0)
	for at := range 2*membersMax + 1 {
		d.fail(fmt.Sprintf("node:%d", at), now)
		if !d.isSuspect("node:0", now) {
			t.Fatalf("forgotten after %d", at)
		}
	}
	d.fail("last:1", now)
	if !d.isSuspect("last:1", now) || len(d.suspects) != 1 {
		t.Errorf("%d suspects", len(d.suspects))
	}
}

func TestPausesDoubleUpToTheirLimits(t *testing.T) {
	d := newDirectory([]string{"seed:1"})
	within := func(name string, got, most time.Duration) {
		if got > most || got < most/2 {
			t.Errorf("%d failures: a pause of %v %s, not %v at most", d.failedAttempts, got, name, most)
		}
	}
	grown := time.Millisecond
	for range 100 {
		pause, idle := d.backoff()
		within("with callers", pause, min(grown, 50*time.Millisecond))
		within("without callers", idle, min(grown, 5*time.Second))
		grown = min(2*grown, 5*time.Second)
	}
	for most := range time.Duration(4) {
		within("of nanoseconds", jitter(most), most)
	}
}
