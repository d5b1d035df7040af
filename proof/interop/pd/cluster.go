package main

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
	members     = 3
	readyWithin = 30 * time.Second
	askWithin   = 1500 * time.Millisecond
)

// cluster has three nodes, each a process.
type cluster struct {
	binary, dir string
	settings    []string
	raft, http  []string

	mu    sync.Mutex
	nodes []*exec.Cmd
}

// startCluster starts a cluster with these settings, beside those of its nodes.
func startCluster(binary string, settings ...string) (*cluster, error) {
	dir, err := os.MkdirTemp("", "epicepoch-pd-")
	if err != nil {
		return nil, err
	}
	c := &cluster{binary: binary, dir: dir, settings: settings, nodes: make([]*exec.Cmd, members)}
	taken := map[string]bool{}
	for range members {
		for _, list := range []*[]string{&c.raft, &c.http} {
			addr, err := freeAddress(taken)
			if err != nil {
				return nil, errors.Join(err, c.close())
			}
			*list = append(*list, addr)
		}
	}
	for at := range c.nodes {
		if err := c.start(at); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	for _, addr := range c.http {
		if err := until(func() bool { return saysYes(addr, "/ready") }); err != nil {
			return nil, errors.Join(fmt.Errorf("%s is not ready: %w\n%s", addr, err, c.logs()), c.close())
		}
	}
	return c, nil
}

// freeAddress returns an address at which nothing listens. Its port is below those that the system
// gives to outgoing connections.
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

func (c *cluster) start(at int) error {
	var peers []string
	for other, addr := range c.raft {
		peers = append(peers, fmt.Sprintf("%d=%s", other+1, addr))
	}
	_, port, _ := net.SplitHostPort(c.http[at])
	node := exec.Command(c.binary, "serve")
	node.Dir = c.dir
	node.Env = append([]string{
		fmt.Sprintf("NODE_ID=%d", at+1),
		"RAFT_ADDR=" + c.raft[at],
		"HTTP_PORT=" + port,
		"ADVERTISE_ADDR=" + c.http[at],
		"PEERS=" + strings.Join(peers, ","),
		"BOOTSTRAP=1",
		"HTTP3=off",
		"DATA_DIR=" + filepath.Join(c.dir, fmt.Sprint(at+1)),
	}, c.settings...)
	log, err := os.OpenFile(c.log(at), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	node.Stdout, node.Stderr = log, log
	if err := node.Start(); err != nil {
		return err
	}
	c.mu.Lock()
	c.nodes[at] = node
	c.mu.Unlock()
	return nil
}

// stop sends a signal to a node, and waits for its end.
func (c *cluster) stop(at int, how syscall.Signal) error {
	c.mu.Lock()
	node := c.nodes[at]
	c.nodes[at] = nil
	c.mu.Unlock()
	if node == nil {
		return nil
	}
	if err := node.Process.Signal(how); err != nil {
		return err
	}
	var ended *exec.ExitError
	if err := node.Wait(); err != nil && !errors.As(err, &ended) {
		return err
	}
	return nil
}

// leader returns the node that leads, once there is one.
func (c *cluster) leader() (int, error) {
	found := -1
	err := until(func() bool {
		for at, addr := range c.http {
			if saysYes(addr, "/leader") {
				found = at
				return true
			}
		}
		return false
	})
	return found, err
}

// close kills all nodes and removes their files.
func (c *cluster) close() error {
	var all error
	for at := range c.nodes {
		all = errors.Join(all, c.stop(at, syscall.SIGKILL))
	}
	return errors.Join(all, os.RemoveAll(c.dir))
}

func (c *cluster) log(at int) string {
	return filepath.Join(c.dir, fmt.Sprintf("%d.log", at+1))
}

// logs returns the end of each node's log.
func (c *cluster) logs() string {
	const tail = 2000
	var all strings.Builder
	for at := range c.nodes {
		text, _ := os.ReadFile(c.log(at))
		fmt.Fprintf(&all, "--- node %d\n%s\n", at+1, text[max(0, len(text)-tail):])
	}
	return all.String()
}

var plain = &http.Client{Timeout: askWithin}

// saysYes tells whether a node answers with the status 200.
func saysYes(addr, path string) bool {
	answer, err := plain.Get("http://" + addr + path)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode == http.StatusOK
}

// until waits until look says yes.
func until(look func() bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	for !look() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("not so after %v", readyWithin)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}
