package epicepoch

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// lookupsMax limits the names that are looked up, or whose answer is kept, at a time. A cluster
	// has fewer members.
	lookupsMax = 64
	// lookupKept is how long the answer of a slow lookup is kept. The JVM also keeps answers for 30 s.
	lookupKept = 30 * time.Second
	// nextAddressAfter is how long an address is tried before the next one, unless the time of the
	// attempt is short. RFC 8305 recommends this time.
	nextAddressAfter = 250 * time.Millisecond
	// addressesMax limits the addresses of a name that are tried: as many as a cluster has members.
	addressesMax = 64
)

// names looks up the names of nodes, and connects to them. A lookup takes as long as a name server
// that does not answer. A [net.Dialer] gives it up with the attempt to connect and begins again with
// the next one, so a lookup that takes longer than an attempt would never succeed. Where the C library
// does the lookup, each of these also leaves a thread behind. So all attempts share one lookup of a
// name, which goes on when an attempt gives up, and whose answer serves the next one.
type names struct {
	look func(ctx context.Context, host string) ([]net.IPAddr, error)
	// dialOne connects to an IP address.
	dialOne func(ctx context.Context, addr string) (net.Conn, error)
	mu      sync.Mutex
	lookups map[string]*lookup // guarded by mu
}

// lookup is a lookup that has begun. The fields after done are set before done is closed.
type lookup struct {
	done  chan struct{}
	ended time.Time
	found []net.IPAddr
	err   error
}

// nodeNames has the lookups of all clients of the process.
var nodeNames = newNames(func(ctx context.Context, host string) ([]net.IPAddr, error) {
	return net.DefaultResolver.LookupIPAddr(ctx, host)
})

func newNames(look func(ctx context.Context, host string) ([]net.IPAddr, error)) *names {
	var dialer net.Dialer
	dialOne := func(ctx context.Context, addr string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", addr)
	}
	return &names{look: look, dialOne: dialOne, lookups: make(map[string]*lookup)}
}

// dial connects to the address host:port. It is the default of [WithDialer].
func (n *names) dial(ctx context.Context, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil || host == "" {
		return n.dialOne(ctx, addr)
	}
	found, err := n.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	addrs := make([]string, len(found))
	for at, one := range found {
		addrs[at] = net.JoinHostPort(one.String(), port)
	}
	return n.dialAny(ctx, addrs)
}

// resolve returns the addresses of a host, of which there is at least one.
func (n *names) resolve(ctx context.Context, host string) ([]net.IPAddr, error) {
	l, err := n.join(host)
	if err != nil {
		return nil, err
	}
	return n.await(ctx, host, l)
}

// await waits for the answer of a lookup. An answer stays for the next attempt unless it reaches an
// attempt that has at least half of its time left: less may be too short to connect.
func (n *names) await(ctx context.Context, host string, l *lookup) ([]net.IPAddr, error) {
	began := time.Now()
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("the lookup of %s took too long: %w", host, ctx.Err())
	}
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) >= time.Since(began) {
		n.forget(host, l)
	}
	if l.err == nil && len(l.found) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	return l.found, l.err
}

// join returns the lookup of the host that goes on, or whose answer is kept. Without one, it begins a
// lookup. A kept answer serves only one attempt, because the address may have changed.
func (n *names) join(host string) (*lookup, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if l := n.lookups[host]; l != nil {
		if !l.isOver() {
			return l, nil
		}
		delete(n.lookups, host)
		if time.Since(l.ended) < lookupKept {
			return l, nil
		}
	}
	if len(n.lookups) >= lookupsMax && !n.forgetOne() {
		return nil, fmt.Errorf("the lookup of %s must wait: %d others go on", host, lookupsMax)
	}
	l := &lookup{done: make(chan struct{})}
	n.lookups[host] = l
	go func() {
		l.found, l.err = n.look(context.Background(), host)
		l.ended = time.Now()
		if l.err != nil {
			n.forget(host, l)
		}
		close(l.done)
	}()
	return l, nil
}

// forget forgets a lookup that is over, unless another one of the host has begun.
func (n *names) forget(host string, l *lookup) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.lookups[host] == l {
		delete(n.lookups, host)
	}
}

// forgetOne forgets a kept answer, and returns whether there was one. The caller holds mu.
func (n *names) forgetOne() bool {
	for host, l := range n.lookups {
		if l.isOver() {
			delete(n.lookups, host)
			return true
		}
	}
	return false
}

func (l *lookup) isOver() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// dialAny connects to any of these IP addresses. If one does not answer soon, the next one is tried
// beside it, and the first that accepts is used (Happy Eyeballs, RFC 8305). When it returns, all other
// attempts have ended.
func (n *names) dialAny(ctx context.Context, addrs []string) (net.Conn, error) {
	addrs = addrs[:min(len(addrs), addressesMax)]
	pause := nextAddressAfter
	if deadline, ok := ctx.Deadline(); ok {
		// The last address has half of the time, however many there are. So the pause may be shorter
		// than the 10 ms that RFC 8305, section 8, asks for.
		pause = min(pause, time.Until(deadline)/time.Duration(2*len(addrs)))
	}
	type result struct {
		conn net.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	results := make(chan result)
	begun, ended := 0, 0
	defer func() {
		cancel()
		for ; ended < begun; ended++ {
			// Another attempt may connect, too, before it notices that it is cancelled.
			if late := <-results; late.conn != nil {
				late.conn.Close()
			}
		}
	}()
	var next <-chan time.Time
	var last error
	for {
		if begun < len(addrs) && next == nil {
			addr := addrs[begun]
			begun++
			go func() {
				conn, err := n.dialOne(ctx, addr)
				results <- result{conn, err}
			}()
			next = time.After(pause)
		}
		if begun == ended {
			return nil, last
		}
		select {
		case one := <-results:
			ended++
			if one.err == nil {
				return one.conn, nil
			}
			last, next = one.err, nil
		case <-next:
			next = nil
		}
	}
}
