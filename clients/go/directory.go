package epicepoch

import (
	"math/rand/v2"
	"slices"
	"time"
)

// directory decides which node the client asks next, and how long it pauses before that. It does no
// IO and reads no clock.
type directory struct {
	seeds   []string
	members []string
	// leader is the address at which the leader probably is, or "".
	leader string
	// suspects are nodes that failed a short time ago. The client does not follow hints to them at
	// once, because other nodes may not have noticed the failure.
	suspects       map[string]time.Time
	turn           int
	failedAttempts int
}

const (
	backoffMin = time.Millisecond
	backoffMax = 50 * time.Millisecond
	// idleMax is the longest pause of a client without callers. A new call ends the pause.
	idleMax          = 5 * time.Second
	backoffDoublings = 13
	// suspicion is how long the client ignores hints to a failed node. It is longer than an
	// election takes. If the failed node itself says that it leads, the client believes it.
	suspicion = time.Second
)

func newDirectory(seeds []string) *directory {
	return &directory{seeds: slices.Clone(seeds), suspects: make(map[string]time.Time)}
}

// next returns the leader if one is known. Otherwise it returns one address after another: the
// members first, then the other seeds.
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

// nearest returns all addresses in the order of preference of a program that lists the nearest nodes
// first: the seeds, then the other members.
func (d *directory) nearest() []string {
	all := slices.Clone(d.seeds)
	for _, member := range d.members {
		if !slices.Contains(all, member) {
			all = append(all, member)
		}
	}
	return all
}

// other returns the next address that differs from the given one, or the given one if no other is
// known.
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

// learn applies a node's report of the cluster.
func (d *directory) learn(members []Member) {
	if len(members) == 0 {
		return
	}
	d.members = d.members[:0]
	for _, one := range members {
		d.members = append(d.members, one.Addr)
	}
}

// isSuspect returns whether the node failed a short time ago.
func (d *directory) isSuspect(addr string, now time.Time) bool {
	failed, ok := d.suspects[addr]
	return ok && now.Sub(failed) < suspicion
}

// follow follows a hint unless the named node failed a short time ago. It returns whether it did.
func (d *directory) follow(addr string, now time.Time) bool {
	if d.isSuspect(addr, now) {
		return false
	}
	d.leader = addr
	return true
}

// fail records a failed node. If this node was the leader, the client no longer knows a leader.
func (d *directory) fail(addr string, now time.Time) {
	if d.leader == addr {
		d.leader = ""
	}
	if len(d.suspects) > 2*membersMax {
		clear(d.suspects)
	}
	d.suspects[addr] = now
}

// succeed records a node that says that it leads. Only an answer resets the count of failures.
func (d *directory) succeed(addr string) {
	d.leader = addr
	delete(d.suspects, addr)
}

// backoff records a failed attempt, and returns the pauses of [backoff].
func (d *directory) backoff() (pause, idle time.Duration) {
	d.failedAttempts++
	return backoff(d.failedAttempts - 1)
}

// backoff returns two pauses before the next attempt: one while callers wait, and one while none
// waits. Both double with each earlier failure, each up to its own limit. Up to half of a pause is
// random, so that clients that lost the same leader do not return at the same moment.
func backoff(failures int) (pause, idle time.Duration) {
	grown := backoffMin << min(failures, backoffDoublings)
	return jitter(min(grown, backoffMax)), jitter(min(grown, idleMax))
}

func jitter(most time.Duration) time.Duration {
	return most - time.Duration(rand.Int64N(int64(most)/2+1))
}

// overloadPause returns the pause after a leader's overload. Half of it is random, so that clients
// do not come back at the same moment.
func overloadPause() time.Duration {
	return jitter(backoffMax)
}
