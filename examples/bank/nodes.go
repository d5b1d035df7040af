package bank

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	nodeCount = 3
	// readyWithin limits each wait for a node or a leader.
	readyWithin = 30 * time.Second
	askWithin   = time.Second
	askEvery    = 5 * time.Millisecond
)

// Nodes are three nodes of the oracle on loopback.
type Nodes struct {
	binary, dir string
	settings    []string
	http, raft  []string
	ask         *http.Client

	mu      sync.Mutex
	running []*exec.Cmd
}

// Binary returns the path in EPICEPOCH_BIN. Without this variable it builds the binary of this tree.
func Binary(ctx context.Context) (string, error) {
	if path := os.Getenv("EPICEPOCH_BIN"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("EPICEPOCH_BIN: %w", err)
		}
		return filepath.Abs(path)
	}
	root, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(root, "crates", "cli", "Cargo.toml")); missing == nil {
			break
		}
		if root == filepath.Dir(root) {
			return "", errors.New("set EPICEPOCH_BIN to the epicepoch binary, or start this in its source tree")
		}
		root = filepath.Dir(root)
	}
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, "cargo", "build", "--quiet", "--locked", "--package", "epicepoch")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("set EPICEPOCH_BIN to the epicepoch binary, or install cargo: %w", err)
	}
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = filepath.Join(root, "target")
	}
	return filepath.Join(target, "debug", "epicepoch"), nil
}

// StartNodes starts a new cluster that gives compact timestamps, and waits until all nodes are ready.
// Close stops it.
func StartNodes(binary string) (*Nodes, error) {
	n, err := Start(binary, "TIMESTAMP_FORMAT=compact")
	if err != nil {
		return nil, err
	}
	if err := n.awaitCompact(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// StartWideNodes starts a cluster as [StartNodes] does, but one that gives wide timestamps.
func StartWideNodes(binary string) (*Nodes, error) { return Start(binary, "TIMESTAMP_FORMAT=wide") }

// Start starts a new cluster with these settings ("NAME=value"), beside those of its nodes. It waits
// until all nodes are ready. Close stops it.
func Start(binary string, settings ...string) (*Nodes, error) {
	dir, err := os.MkdirTemp("", "epicepoch-bank-")
	if err != nil {
		return nil, err
	}
	n := &Nodes{
		binary: binary, dir: dir, settings: settings,
		ask: &http.Client{Timeout: askWithin}, running: make([]*exec.Cmd, nodeCount),
	}
	taken := map[string]bool{}
	for range nodeCount {
		for _, list := range []*[]string{&n.http, &n.raft} {
			addr, err := freeAddress(taken)
			if err != nil {
				return nil, errors.Join(err, n.Close())
			}
			*list = append(*list, addr)
		}
	}
	for at := range nodeCount {
		if err := n.start(at); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	for at := range nodeCount {
		if err := n.awaitReady(at); err != nil {
			return nil, errors.Join(err, n.Close())
		}
	}
	return n, nil
}

// freeAddress returns an address at which nothing listens. Its port is below those that the system
// gives to outgoing connections. Otherwise a connection could take the port before the node does.
func freeAddress(taken map[string]bool) (string, error) {
	for range 100 {
		addr := fmt.Sprintf("127.0.0.1:%d", 20000+rand.IntN(12000))
		if taken[addr] {
			continue
		}
		if listener, err := net.Listen("tcp", addr); err == nil {
			taken[addr] = true
			return addr, listener.Close()
		}
	}
	return "", errors.New("no free port between 20000 and 32000")
}

// Addrs returns the addresses for clients.
func (n *Nodes) Addrs() []string { return n.http }

// Close kills all nodes and removes their files.
func (n *Nodes) Close() error {
	var all error
	for at := range n.running {
		all = errors.Join(all, n.Kill(at))
	}
	return errors.Join(all, os.RemoveAll(n.dir))
}

// Kills is what [Nodes.KillLeaders] did.
type Kills struct {
	// Leaders is how many leaders were killed.
	Leaders int
	// Longest is the longest time until another node led.
	Longest time.Duration
}

func (k Kills) String() string {
	longest := k.Longest.Milliseconds()
	return fmt.Sprintf("%d leaders of the oracle (another one led after %d ms at most)", k.Leaders, longest)
}

// KillLeaders kills the leader each time the pause has passed, and starts it again when another node
// leads, until the context ends. Then all nodes run.
func (n *Nodes) KillLeaders(ctx context.Context, pause time.Duration) (Kills, error) {
	var kills Kills
	for {
		select {
		case <-ctx.Done():
			return kills, nil
		case <-time.After(pause):
		}
		at, err := n.Leader()
		if err != nil {
			return kills, err
		}
		began := time.Now()
		if err := n.Kill(at); err != nil {
			return kills, err
		}
		if _, err := n.Leader(); err != nil {
			return kills, err
		}
		kills.Leaders++
		kills.Longest = max(kills.Longest, time.Since(began))
		if err := n.Restart(at); err != nil {
			return kills, err
		}
	}
}

// Restart starts a node that was killed, and waits until it is ready.
func (n *Nodes) Restart(at int) error {
	if err := n.start(at); err != nil {
		return err
	}
	return n.awaitReady(at)
}

func (n *Nodes) start(at int) error {
	var peers []string
	for other, addr := range n.raft {
		peers = append(peers, fmt.Sprintf("%d=%s", other+1, addr))
	}
	_, port, _ := net.SplitHostPort(n.http[at])
	node := exec.Command(n.binary, "serve")
	node.Env = append([]string{
		fmt.Sprintf("NODE_ID=%d", at+1),
		"RAFT_ADDR=" + n.raft[at],
		"HTTP_PORT=" + port,
		"ADVERTISE_ADDR=" + n.http[at],
		"PEERS=" + strings.Join(peers, ","),
		"BOOTSTRAP=1",
		"DATA_DIR=" + filepath.Join(n.dir, fmt.Sprint(at+1)),
	}, n.settings...)
	// Without a certificate, a node writes one into its working directory.
	node.Dir = n.dir
	log, err := os.OpenFile(n.log(at), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	node.Stdout, node.Stderr = log, log
	if err := node.Start(); err != nil {
		return err
	}
	n.mu.Lock()
	n.running[at] = node
	n.mu.Unlock()
	return nil
}

// Kill kills a node, and waits for its end.
func (n *Nodes) Kill(at int) error {
	n.mu.Lock()
	node := n.running[at]
	n.running[at] = nil
	n.mu.Unlock()
	if node == nil {
		return nil
	}
	if err := node.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	var ended *exec.ExitError
	err := node.Wait()
	if errors.As(err, &ended) && ended.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
		return nil
	}
	return fmt.Errorf("node %d ended by itself: %w\n%s", at+1, err, n.tail(at))
}

func (n *Nodes) awaitReady(at int) error {
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(askEvery) {
		if n.saysYes(n.http[at], "/ready") {
			return nil
		}
	}
	return fmt.Errorf("node %d is not ready after %v:\n%s", at+1, readyWithin, n.tail(at))
}

// awaitCompact waits until a new cluster has taken over its setting, and gives compact timestamps.
func (n *Nodes) awaitCompact() error {
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(askEvery) {
		for _, addr := range n.http {
			if n.saysYes(addr, "/timestamp?format=u64") {
				return nil
			}
		}
	}
	return fmt.Errorf("the cluster gives no compact timestamps after %v:\n%s", readyWithin, n.tail(0))
}

// Leader returns the number of the node that leads, from 0, once there is one.
func (n *Nodes) Leader() (int, error) {
	for deadline := time.Now().Add(readyWithin); time.Now().Before(deadline); time.Sleep(askEvery) {
		for at, addr := range n.http {
			if n.saysYes(addr, "/leader") {
				return at, nil
			}
		}
	}
	return 0, fmt.Errorf("no node leads after %v:\n%s", readyWithin, n.tail(0))
}

// saysYes tells whether a node answers with the status 200.
func (n *Nodes) saysYes(addr, path string) bool {
	answer, err := n.ask.Get("http://" + addr + path)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode == http.StatusOK
}

func (n *Nodes) log(at int) string { return filepath.Join(n.dir, fmt.Sprintf("%d.log", at+1)) }

// Logs returns the end of each node's log.
func (n *Nodes) Logs() string {
	var all strings.Builder
	for at := range n.running {
		fmt.Fprintf(&all, "--- node %d\n%s\n", at+1, n.tail(at))
	}
	return all.String()
}

// tail returns the end of a node's log.
func (n *Nodes) tail(at int) string {
	const most = 2000
	text, err := os.ReadFile(n.log(at))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-most):])
}
