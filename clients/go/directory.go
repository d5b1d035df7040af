package epicepoch

import (
	"math/rand/v2"
	"slices"
	"time"
)

// directory decides whom to ask next and how long to wait before. It does no IO and reads no clock.
type directory struct {
	seeds   []string
	members []string
	// leader is who is believed to lead, or "".
	leader string
	// suspects failed lately: a hint that names one is not followed at once, because others may not
	// know yet what this client knows.
	suspects map[string]time.Time
	turn     int
	setbacks int
}

const (
	backoffMin = time.Millisecond
	backoffMax = 50 * time.Millisecond
	// idleMax is the longest pause of a client whose callers want nothing: whoever comes ends it.
	idleMax          = 5 * time.Second
	backoffDoublings = 13
	// suspicion is how long a node that failed is not believed to lead, unless it says so itself:
	// longer than an election takes.
	suspicion = time.Second
)

func newDirectory(seeds []string) *directory {
	return &directory{seeds: slices.Clone(seeds), suspects: make(map[string]time.Time)}
}

// next returns the leader if one is known, else one address after another: members first, then
// seeds that are no members.
func (d *directory) next() string {
	if d.leader != "" {
		return d.leader
	}
	all := slices.Clone(d.members)
	for _, seed := range d.seeds {
		if !slices.Contains(all, seed) {
			all = append(all, seed)
		}
	}
	addr := all[d.turn%len(all)]
	d.turn++
	return addr
}

// other returns the next address that is not this one, or this one if there is no other.
func (d *directory) other(than string) string {
	leader := d.leader
	d.leader = ""
	addr := d.next()
	if addr == than {
		addr = d.next()
	}
	d.leader = leader
	return addr
}

// learn takes in what a node said of the cluster.
func (d *directory) learn(members []Member) {
	if len(members) == 0 {
		return
	}
	d.members = d.members[:0]
	for _, one := range members {
		d.members = append(d.members, one.Addr)
	}
}

// follow believes a hint, if it is not about a node that has just failed; it says whether it did.
func (d *directory) follow(addr string, now time.Time) bool {
	if failed, ok := d.suspects[addr]; ok && now.Sub(failed) < suspicion {
		return false
	}
	d.leader = addr
	return true
}

// fail forgets the leader if it was this one.
func (d *directory) fail(addr string, now time.Time) {
	if d.leader == addr {
		d.leader = ""
	}
	if len(d.suspects) > 2*membersMax {
		clear(d.suspects)
	}
	d.suspects[addr] = now
}

// succeed believes a node that says of itself that it leads. The count of setbacks ends only with
// an answer.
func (d *directory) succeed(addr string) {
	d.leader = addr
	delete(d.suspects, addr)
}

// backoff doubles from setback to setback, up to a limit for clients whose callers wait and up to
// another one for idle ones. Up to half of it is chance, so that clients that lost the same leader
// do not come back in step.
func (d *directory) backoff() (pause, idle time.Duration) {
	grown := backoffMin << min(d.setbacks, backoffDoublings)
	d.setbacks++
	return jitter(min(grown, backoffMax)), jitter(min(grown, idleMax))
}

func jitter(most time.Duration) time.Duration {
	return most - time.Duration(rand.Int64N(int64(most)/2+1))
}

// overloadPause is how long an overloaded leader is left alone; half of it is chance, for the same
// reason.
func overloadPause() time.Duration {
	return jitter(backoffMax)
}
