package epicepoch

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// node is a server whose behaviour a test decides.
type node struct {
	t        *testing.T
	listener net.Listener
	id       uint64
	// onHello returns the welcome. If it returns nil, the node accepts the connection and sends nothing.
	onHello func() *welcome
	// behind returns bytes that the node sends directly after the welcome.
	behind func() []byte
	// heard, if set, is called for every frame that the node reads, before the node acts on it.
	heard func(h head)
	// ask is called for every request. It may write to the connection, now or later.
	ask func(to *peer, id, count uint64)
	// stamp is called for every request of interval mode.
	stamp func(to *peer, id, count uint64)
	asked atomic.Int64
	met   atomic.Int64
	mu    sync.Mutex
	peers []*peer
	down  bool
}

// peer is a client's connection, on the node's side.
type peer struct {
	net.Conn
	mu sync.Mutex
}

var testCluster = Cluster{ID: [16]byte{1, 2, 3}, History: 1}

func startNode(t *testing.T, id uint64) *node {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, listener: listener, id: id}
	n.onHello = func() *welcome { return n.welcome(n) }
	n.behind = func() []byte { return nil }
	t.Cleanup(func() {
		listener.Close()
		n.hangUp()
	})
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			one := &peer{Conn: stream}
			n.mu.Lock()
			down := n.down
			if !down {
				n.peers = append(n.peers, one)
			}
			n.mu.Unlock()
			if down {
				one.Close()
				continue
			}
			n.met.Add(1)
			go n.converse(one)
		}
	}()
	return n
}

func (n *node) addr() string { return n.listener.Addr().String() }

// goDown makes the node close its connections, and each later one at once. It keeps its port: another process could
// listen there otherwise.
func (n *node) goDown() {
	n.mu.Lock()
	n.down = true
	n.mu.Unlock()
	n.hangUp()
}

func (n *node) hangUp() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, one := range n.peers {
		one.Close()
	}
	n.peers = nil
}

// welcome returns a welcome that names this leader, or none if it is nil.
func (n *node) welcome(leader *node) *welcome {
	w := &welcome{cluster: &testCluster, node: n.id, inFlightMax: 1024, idleMillis: 60000, countMax: countMax}
	w.members = []Member{{Node: n.id, Addr: n.addr()}}
	if leader != nil {
		w.leader = &Member{Node: leader.id, Addr: leader.addr()}
	}
	return w
}

func (w *welcome) frame() []byte {
	fields := appendField(nil, tagNode, binary.BigEndian.AppendUint64(nil, w.node))
	if w.features != 0 {
		fields = appendField(fields, tagFeatures, binary.BigEndian.AppendUint64(nil, w.features))
	}
	fields = appendField(fields, tagInFlightMax, binary.BigEndian.AppendUint32(nil, w.inFlightMax))
	fields = appendField(fields, tagIdle, binary.BigEndian.AppendUint32(nil, w.idleMillis))
	fields = appendField(fields, tagCountMax, binary.BigEndian.AppendUint64(nil, w.countMax))
	if w.clusterName != "" {
		fields = appendField(fields, tagClusterName, []byte(w.clusterName))
	}
	if w.cluster != nil {
		value := binary.BigEndian.AppendUint64(append([]byte(nil), w.cluster.ID[:]...), w.cluster.History)
		fields = appendField(fields, tagCluster, value)
	}
	if w.leader != nil {
		value := binary.BigEndian.AppendUint64(nil, w.leader.Node)
		fields = appendField(fields, tagLeader, append(value, w.leader.Addr...))
	}
	for _, one := range w.members {
		value := binary.BigEndian.AppendUint64(nil, one.Node)
		fields = appendField(fields, tagMember, append(value, one.Addr...))
	}
	first := head{kind: kindWelcome, flags: version, argument: uint32(len(fields)), id: magic}
	return append(first.appendTo(nil), fields...)
}

func (n *node) converse(to *peer) {
	defer to.Close()
	f := frames{from: bufio.NewReader(to)}
	for {
		h, _, err := f.next()
		if err != nil {
			return
		}
		if n.heard != nil {
			n.heard(h)
		}
		switch h.kind {
		case kindHello:
			w := n.onHello()
			if w == nil {
				continue
			}
			to.say(append(w.frame(), n.behind()...))
		case kindRequest:
			n.asked.Add(1)
			n.ask(to, h.id, uint64(h.argument)+1)
		case kindIntervalRequest:
			n.asked.Add(1)
			n.stamp(to, h.id, uint64(h.argument)+1)
		case kindPing:
			h.kind = kindPong
			to.say(h.appendTo(nil))
		}
	}
}

func (p *peer) say(frame []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Write(frame)
}

func (p *peer) answer(id, count uint64, first Timestamp) {
	h := head{kind: kindAnswer, argument: uint32(count - 1), id: id}
	p.say(first.Append(h.appendTo(nil)))
}

func (p *peer) refuse(id uint64, code Code, text string) {
	h := head{kind: kindError, code: uint16(code), argument: uint32(len(text)), id: id}
	p.say(append(h.appendTo(nil), text...))
}

// dismiss refuses a request because the token of the connection is no longer valid. It is the last frame.
func (p *peer) dismiss(id uint64) {
	p.say(head{kind: kindError, flags: errorCloses, code: 18, id: id}.appendTo(nil))
}

// refuseHello answers the hello of the newest connection with an error.
func (n *node) refuseHello(code Code, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers[len(n.peers)-1].refuse(0, code, text)
}

// oracle allocates rising timestamps.
type oracle struct {
	mu   sync.Mutex
	next uint64
}

func (o *oracle) take(count uint64) Timestamp {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := Timestamp{Epoch: 1, Index: o.next}
	o.next += count
	return first
}

func (o *oracle) serve(to *peer, id, count uint64) { to.answer(id, count, o.take(count)) }

func dial(t *testing.T, addrs []string, opts ...Option) *Client {
	t.Helper()
	client, err := Dial(within(t, 10*time.Second), addrs, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// untilItFails returns a context that ends with the second failed attempt of the client with this option.
// The client then knows the reason of the first one.
func untilItFails(t *testing.T) (context.Context, Option) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t, 10*time.Second))
	var failed atomic.Int64
	return ctx, WithHooks(Hooks{FailedAttempt: func(error) {
		if failed.Add(1) == 2 {
			cancel()
		}
	}})
}

func within(t *testing.T, timeout time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	t.Cleanup(cancel)
	return ctx
}
