package epicepoch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// cluster is a cluster of three real nodes on loopback.
type cluster struct {
	t    testing.TB
	bin  string
	dir  string
	http []string
	raft []string
	// env are settings of every node, such as "MAX_N=7".
	env   []string
	nodes []*exec.Cmd
}

// oracleBinary returns the path in EPICEPOCH_BIN. Without this variable it builds the binary of
// this tree, once, so that a missing binary never skips a test.
var oracleBinary = sync.OnceValues(func() (string, error) {
	if bin := os.Getenv("EPICEPOCH_BIN"); bin != "" {
		return filepath.Abs(bin)
	}
	build := exec.Command("cargo", "build", "--quiet", "--locked", "--package", "epicepoch")
	build.Dir = filepath.Join("..", "..")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("set EPICEPOCH_BIN to the epicepoch binary, or install cargo: %w\n%s", err, said)
	}
	return filepath.Abs(filepath.Join("..", "..", "target", "debug", "epicepoch"))
})

// startCluster starts three nodes with these settings.
func startCluster(t testing.TB, env ...string) *cluster {
	t.Helper()
	bin, err := oracleBinary()
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{t: t, bin: bin, dir: t.TempDir(), env: env, nodes: make([]*exec.Cmd, 3)}
	for range 3 {
		c.http = append(c.http, freeAddress(t))
		c.raft = append(c.raft, freeAddress(t))
	}
	for at := range c.nodes {
		c.start(at)
	}
	t.Cleanup(func() {
		for at := range c.nodes {
			c.stop(at, syscall.SIGKILL)
		}
	})
	for at := range c.nodes {
		c.await(at)
	}
	return c
}

// freeAddress returns an address at which nothing listens. Its port is below the ports that the
// system gives to outgoing connections. Otherwise some connection could take the port before the
// node listens there.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(12000)
		if _, isTaken := givenPorts.LoadOrStore(port, true); isTaken {
			continue
		}
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			defer listener.Close()
			return listener.Addr().String()
		}
	}
	t.Fatal("no free port between 20000 and 32000")
	return ""
}

// givenPorts are the ports that freeAddress has returned.
var givenPorts sync.Map

func (c *cluster) start(at int) {
	c.t.Helper()
	var peers []string
	for other, addr := range c.raft {
		peers = append(peers, fmt.Sprintf("%d=%s", other+1, addr))
	}
	_, port, _ := net.SplitHostPort(c.http[at])
	node := exec.Command(c.bin, "serve", "--node-id", fmt.Sprint(at+1), "--raft-addr", c.raft[at],
		"--http-port", port, "--peers", strings.Join(peers, ","), "--bootstrap",
		"--data-dir", filepath.Join(c.dir, fmt.Sprint(at+1)))
	// Without a certificate, a node writes one into its working directory.
	node.Dir = c.dir
	node.Env = append(os.Environ(), c.env...)
	log, err := os.OpenFile(filepath.Join(c.dir, fmt.Sprintf("%d.log", at+1)), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	node.Stdout, node.Stderr = log, log
	if err := node.Start(); err != nil {
		c.t.Fatal(err)
	}
	log.Close()
	c.nodes[at] = node
}

func (c *cluster) stop(at int, how syscall.Signal) {
	if node := c.nodes[at]; node != nil {
		c.nodes[at] = nil
		node.Process.Signal(how)
		node.Wait()
	}
}

func (c *cluster) await(at int) {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if answer, err := http.Get("http://" + c.http[at] + "/ready"); err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(c.dir, fmt.Sprintf("%d.log", at+1)))
			c.t.Fatalf("node %d is not ready:\n%s", at+1, log)
		}
	}
}

// leader waits until a node leads, and returns this node's position in the list of nodes.
func (c *cluster) leader() int {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for at, addr := range c.http {
			if answer, err := http.Get("http://" + addr + "/leader"); err == nil {
				answer.Body.Close()
				if answer.StatusCode == http.StatusOK {
					return at
				}
			}
		}
	}
	c.t.Fatal("nobody leads")
	return 0
}

// Callers ask without pause while leaders are killed or stopped. Every caller's answers must rise,
// and no timestamp may be given twice. If a call ends before another call begins, its answer must
// be below the other's.
func TestACallOutlivesItsLeader(t *testing.T) {
	c := startCluster(t)
	client, err := Dial(within(t, 30*time.Second), c.http)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const callers = 8
	var (
		all     sync.WaitGroup
		stop    atomic.Bool
		longest atomic.Int64
		mu      sync.Mutex
		highest Timestamp
		given   = make(map[Timestamp]bool)
	)
	for range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for !stop.Load() {
				mu.Lock()
				floor := highest
				mu.Unlock()
				began := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				got, err := client.Timestamp(ctx)
				cancel()
				if err != nil {
					t.Errorf("a call failed: %v", err)
					return
				}
				took := int64(time.Since(began))
				for last := longest.Load(); took > last && !longest.CompareAndSwap(last, took); last = longest.Load() {
				}
				mu.Lock()
				if !floor.Before(got) {
					t.Errorf("%v is not above %v, which was complete before", got, floor)
				}
				if given[got] {
					t.Errorf("%v was given twice", got)
				}
				given[got] = true
				if highest.Before(got) {
					highest = got
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
			}
		}()
	}
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGKILL} {
		at := c.leader()
		standstill := standstills(t)
		longest.Store(0)
		c.stop(at, how)
		c.leader()
		// Wait until the new leader has answered a call.
		mu.Lock()
		before := highest
		mu.Unlock()
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			mu.Lock()
			moved := before.Before(highest)
			mu.Unlock()
			if moved || t.Failed() {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("nobody is answered")
			}
		}
		t.Logf("%v: the longest call took %v", how, time.Duration(longest.Load()))
		// The limit of 1 s is far above the time that a lost leader costs a call
		// (docs/operations/outages.md), and far below the caller's deadline. Time in which the
		// machine stood still is not counted.
		stood := standstill()
		if took := time.Duration(longest.Load()); took-min(stallsPerCall*stood, stallsMax) > time.Second {
			t.Errorf("%v: a call took %v, and the machine stood still for %v at most", how, took, stood)
		}
		c.start(at)
		c.await(at)
	}
	stop.Store(true)
	all.Wait()
}

// stallsPerCall is how many stalls of the machine can delay one call. Four processes can stall one
// after another: the old leader, the new leader, the node that votes for the new leader, and the
// client.
const stallsPerCall = 4

// stallsMax is the longest time that is allowed for these stalls. A client that blocks its own CPU
// also looks like a machine that stalls.
const stallsMax = time.Second

// standstills measures how long the machine stands still. The returned function ends the
// measurement and returns the longest standstill.
func standstills(t *testing.T) func() time.Duration {
	const pause = time.Millisecond
	var stop atomic.Bool
	t.Cleanup(func() { stop.Store(true) })
	longest := make(chan time.Duration, 1)
	go func() {
		var most time.Duration
		for !stop.Load() {
			before := time.Now()
			time.Sleep(pause)
			most = max(most, time.Since(before)-pause)
		}
		longest <- most
	}()
	return func() time.Duration {
		stop.Store(true)
		return <-longest
	}
}

// Measures one caller, which asks again only when it has its answer.
func BenchmarkOneCaller(b *testing.B) {
	client := benchClient(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Timestamp(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

// Measures a thousand callers that share one client. The reported ns/op is the time per timestamp.
func BenchmarkThousandCallers(b *testing.B) {
	client := benchClient(b)
	b.ReportAllocs()
	const callers = 1000
	var all sync.WaitGroup
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ResetTimer()
	for range callers {
		all.Add(1)
		go func() {
			defer all.Done()
			for left.Add(-1) >= 0 {
				if _, err := client.Timestamp(context.Background()); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "timestamps/s")
}

func benchClient(b *testing.B) *Client {
	b.Helper()
	addrs := startCluster(b).http
	client, err := Dial(context.Background(), addrs)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { client.Close() })
	return client
}

// Measures one goroutine that keeps a thousand asynchronous calls in progress.
func BenchmarkThousandFutures(b *testing.B) {
	client := benchClient(b)
	b.ReportAllocs()
	calls := make([]*Call, 1000)
	b.ResetTimer()
	for at := range b.N {
		turn := &calls[at%len(calls)]
		if *turn != nil {
			if _, err := (*turn).Wait(); err != nil {
				b.Fatal(err)
			}
		}
		*turn = client.Go(context.Background(), 1)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "timestamps/s")
}
