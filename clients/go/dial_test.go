package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

const aName = "node.example"

// scriptedNames returns names whose lookups wait until the test closes the channel. All names have the
// address 127.0.0.1.
func scriptedNames() (n *names, asked *atomic.Int64, answers chan struct{}) {
	asked, answers = new(atomic.Int64), make(chan struct{})
	n = newNames(func(ctx context.Context, host string) ([]net.IPAddr, error) {
		asked.Add(1)
		select {
		case <-answers:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if host == "unknown.example" {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		return []net.IPAddr{{IP: net.IPv4(127, 0, 0, 1)}}, nil
	})
	return n, asked, answers
}

// waitFor waits until the lookup of a host is over.
func (n *names) waitFor(t *testing.T, host string) {
	t.Helper()
	n.mu.Lock()
	l := n.lookups[host]
	n.mu.Unlock()
	select {
	case <-l.done:
	case <-time.After(10 * time.Second):
		t.Fatal("the lookup goes on")
	}
}

func TestALookupThatTakesLongerThanAnAttemptServesALaterOne(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = source.serve
	n, asked, answers := scriptedNames()
	var failed, before atomic.Int64
	_, port, _ := net.SplitHostPort(leader.addr())
	client, err := Dial(within(t, 30*time.Second), []string{net.JoinHostPort(aName, port)}, WithDialer(n.dial),
		WithAttemptTimeout(50*time.Millisecond), WithHooks(Hooks{FailedAttempt: func(err error) {
			if !isTimeout(err) {
				t.Error(err)
			}
			if failed.Add(1) == 3 {
				before.Store(asked.Load())
				close(answers)
			}
		}}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if before.Load() != 1 {
		t.Error(before.Load(), "lookups")
	}
}

// lateContext is the context of an attempt that has no time left, but goes on.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now(), true }

func TestAnAnswerIsKeptForOneAttemptIfNoneGotItInTimeAndItIsNotOld(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, one := range map[string]struct {
		first   context.Context
		age     time.Duration
		lookups int64
	}{
		"no attempt waits": {over, 0, 1},
		"old":              {over, lookupKept, 2},
		"too late":         {lateContext{within(t, 10*time.Second)}, 0, 1},
		"in time":          {within(t, 10*time.Second), 0, 2},
	} {
		n, asked, answers := scriptedNames()
		l, err := n.join(aName)
		if err != nil {
			t.Fatal(err)
		}
		if one.first == over {
			if got, err := n.await(over, aName, l); !errors.Is(err, context.Canceled) {
				t.Error(name, got, err)
			}
		}
		close(answers)
		<-l.done
		if one.first != over {
			if got, err := n.await(one.first, aName, l); err != nil || len(got) != 1 {
				t.Error(name, got, err)
			}
		}
		l.ended = l.ended.Add(-one.age)
		resolve := func(lookups int64) {
			t.Helper()
			got, err := n.resolve(within(t, 10*time.Second), aName)
			if err != nil || len(got) != 1 || asked.Load() != lookups {
				t.Errorf("%s: %v, %v, %d lookups", name, got, err, asked.Load())
			}
		}
		resolve(one.lookups)
		if one.lookups == 1 {
			resolve(2)
		}
	}
}

func TestAFailedLookupIsNotKept(t *testing.T) {
	n, asked, answers := scriptedNames()
	close(answers)
	for lookups := range int64(2) {
		_, err := n.dial(within(t, 10*time.Second), "unknown.example:1")
		var unknown *net.DNSError
		if !errors.As(err, &unknown) || asked.Load() != lookups+1 {
			t.Error(err, asked.Load(), "lookups")
		}
	}
}

func TestTheNumberOfLookupsIsLimited(t *testing.T) {
	n, asked, answers := scriptedNames()
	name := func(at int) string { return fmt.Sprintf("%d.example", at) }
	for at := range lookupsMax {
		if _, err := n.join(name(at)); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := n.join(aName); err == nil {
		t.Error("one lookup more:", l)
	}
	close(answers)
	for at := range lookupsMax {
		n.waitFor(t, name(at))
	}
	// A kept answer makes place.
	if _, err := n.resolve(within(t, 10*time.Second), aName); err != nil || asked.Load() != lookupsMax+1 {
		t.Error(err, asked.Load(), "lookups")
	}
	if len(n.lookups) > lookupsMax {
		t.Error(len(n.lookups), "names")
	}
}

func TestALiteralAddressNeedsNoLookup(t *testing.T) {
	n, asked, _ := scriptedNames()
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	for _, addr := range []string{"127.0.0.1:1", "[::1]:1", "[fe80::1%eth0]:1"} {
		n.dialOne = func(_ context.Context, dialed string) (net.Conn, error) {
			if dialed != addr {
				t.Error(dialed, "instead of", addr)
			}
			return near, nil
		}
		if got, err := n.dial(within(t, 10*time.Second), addr); err != nil || got != near || asked.Load() != 0 {
			t.Error(addr, got, err, asked.Load(), "lookups")
		}
	}
}

func TestAHostWithADeadAddressIsReachedByTheNext(t *testing.T) {
	for name, dead := range map[string]func(ctx context.Context) error{
		"silent":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"refused": func(context.Context) error { return errors.New("refused") },
	} {
		n, _, _ := scriptedNames()
		ended := make(chan struct{})
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		n.dialOne = func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == "dead:1" {
				defer close(ended)
				return nil, dead(ctx)
			}
			return near, nil
		}
		got, err := n.dialAny(within(t, 10*time.Second), []string{"dead:1", "alive:1"})
		if err != nil || got != near {
			t.Error(name, got, err)
		}
		select {
		case <-ended: // The attempt at the dead address is given up before dialAny returns.
		default:
			t.Error(name, "goes on")
		}
	}
}

func TestAHostWithOnlyDeadAddressesSaysWhy(t *testing.T) {
	n, _, _ := scriptedNames()
	refused := errors.New("refused")
	n.dialOne = func(context.Context, string) (net.Conn, error) { return nil, refused }
	if got, err := n.dialAny(within(t, 10*time.Second), []string{"a:1", "b:1"}); !errors.Is(err, refused) {
		t.Error(got, err)
	}
}

func TestAConnectionThatComesSecondIsClosed(t *testing.T) {
	n, _, _ := scriptedNames()
	first, far := net.Pipe()
	defer first.Close()
	defer far.Close()
	second, peer := net.Pipe()
	begun := make(chan struct{})
	n.dialOne = func(ctx context.Context, addr string) (net.Conn, error) {
		if addr == "late:1" {
			close(begun)
			<-ctx.Done()
			return second, nil
		}
		<-begun
		return first, nil
	}
	got, err := n.dialAny(within(t, 10*time.Second), []string{"late:1", "first:1"})
	if err != nil || got != first {
		t.Error(got, err)
	}
	peer.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := peer.Read(make([]byte, 1)); isTimeout(err) {
		t.Error("it stays open")
	}
}

func TestOnlySoManyAddressesAreTried(t *testing.T) {
	n, _, _ := scriptedNames()
	var tried atomic.Int64
	n.dialOne = func(context.Context, string) (net.Conn, error) {
		tried.Add(1)
		return nil, errors.New("refused")
	}
	got, err := n.dialAny(within(t, 10*time.Second), make([]string, 1000))
	if err == nil || tried.Load() != addressesMax {
		t.Error(got, err, tried.Load(), "addresses")
	}
}
