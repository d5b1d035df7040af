package epicepoch

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// flooder is a node that sends a welcome, then pings without end, and reads nothing.
type flooder struct {
	addr string
	met  atomic.Int64
	// full receives a signal when the client has stopped reading. It stops because its pongs are
	// not read.
	full chan struct{}
}

func startFlooder(t *testing.T) *flooder {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &flooder{addr: listener.Addr().String(), full: make(chan struct{}, 1)}
	t.Cleanup(func() { listener.Close() })
	welcomeFrame := (&welcome{
		cluster: &testCluster, node: 1, leader: &Member{Node: 1, Addr: f.addr}, inFlightMax: 1024,
		idleMillis: 60000, countMax: countMax,
	}).frame()
	var pings []byte
	for id := range uint64(256) {
		pings = head{kind: kindPing, id: id}.appendTo(pings)
	}
	go func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			f.met.Add(1)
			t.Cleanup(func() { stream.Close() })
			stream.(*net.TCPConn).SetReadBuffer(4096)
			stream.Write(welcomeFrame)
			go f.flood(stream, pings)
		}
	}()
	return f
}

func (f *flooder) flood(stream net.Conn, pings []byte) {
	for {
		stream.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		if _, err := stream.Write(pings); err != nil {
			select {
			case f.full <- struct{}{}:
			default:
			}
			return
		}
	}
}

// narrow opens a connection with a small send buffer, so that a write blocks soon if the node does
// not read.
func narrow(ctx context.Context, addr string) (net.Conn, error) {
	stream, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err == nil {
		stream.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return stream, err
}

func TestANodeThatPingsAndDoesNotReadIsLeft(t *testing.T) {
	node := startFlooder(t)
	dial(t, []string{node.addr}, WithDialer(narrow), WithAttemptTimeout(200*time.Millisecond))
	for deadline := time.Now().Add(10 * time.Second); node.met.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the client waits for ever until its pongs are read")
		}
	}
}

func TestANodeThatDoesNotReadKeepsNoCallerPastItsContext(t *testing.T) {
	const attempt = 8 * time.Second
	node := startFlooder(t)
	client := dial(t, []string{node.addr}, WithDialer(narrow), WithAttemptTimeout(attempt))
	<-node.full
	began := time.Now()
	_, err := client.Timestamp(within(t, 100*time.Millisecond))
	if took := time.Since(began); took > attempt/4 || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(took, err)
	}
}
