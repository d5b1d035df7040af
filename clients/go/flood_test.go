package epicepoch

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
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

// piped returns an outbox without drain, and the other end of its connection.
func piped(t *testing.T, timeout time.Duration) (*outbox, net.Conn) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() {
		near.Close()
		far.Close()
	})
	far.SetReadDeadline(time.Now().Add(10 * time.Second))
	return newOutbox(near, timeout), far
}

// begin begins a write, and returns when it is in progress. The returned function waits until it
// has ended.
func (o *outbox) begin(frames string) (wait func()) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		o.write([]byte(frames))
	}()
	for begun := false; !begun; time.Sleep(time.Millisecond) {
		o.mu.Lock()
		begun = o.busy
		o.mu.Unlock()
	}
	return func() { <-over }
}

func expect(t *testing.T, far net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(far, got); err != nil || string(got) != want {
		t.Fatalf("%q, not %q: %v", got, want, err)
	}
}

func TestFramesAreWrittenInOrderAlsoAfterASlowWrite(t *testing.T) {
	o, far := piped(t, 10*time.Second)
	// A write that finds no other one needs no drain.
	for _, frame := range []string{"a", "b"} {
		wait := o.begin(frame)
		expect(t, far, frame)
		wait()
	}
	wait := o.begin("1")
	// The node does not read yet, so these two return before they are written.
	o.write([]byte("2"))
	o.write([]byte("3"))
	var drained sync.WaitGroup
	drained.Add(1)
	go func() {
		defer drained.Done()
		o.drain()
	}()
	expect(t, far, "123")
	wait()
	// The next writes do not wait for others.
	for range 100 {
		drained.Add(1)
		go func() {
			defer drained.Done()
			o.write([]byte("n"))
		}()
		expect(t, far, "n")
	}
	o.leave(errLeft)
	drained.Wait()
}

func TestFramesThatWaitForASlowWriteHaveALimit(t *testing.T) {
	o, _ := piped(t, 10*time.Second)
	o.begin("1")
	o.write(make([]byte, outboxMax-headSize))
	o.write(make([]byte, headSize))
	if why := o.left(); why != nil {
		t.Fatal("left below the limit:", why)
	}
	o.write([]byte{1})
	if why := o.left(); why != errDoesNotRead {
		t.Fatal(why)
	}
}

func TestAFailedWriteEndsTheConnectionAndSaysWhy(t *testing.T) {
	slow, _ := piped(t, time.Millisecond)
	slow.write([]byte("1"))
	if why := slow.left(); why != errDoesNotRead {
		t.Error(why)
	}
	gone, far := piped(t, 10*time.Second)
	far.Close()
	gone.write([]byte("1"))
	if why := gone.left(); !errors.Is(why, io.ErrClosedPipe) {
		t.Error(why)
	}
}
