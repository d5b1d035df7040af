package main

import (
	"context"
	"fmt"
	"time"

	"github.com/epicepoch/epicepoch/examples/bank"
)

const (
	members     = 3
	readyWithin = 30 * time.Second
	askWithin   = 1500 * time.Millisecond
)

// cluster has three nodes, each a process.
type cluster struct {
	*bank.Nodes
	// http has their addresses for clients.
	http []string
}

// startCluster starts a cluster with these settings, beside those of its nodes.
func startCluster(binary string, settings ...string) (*cluster, error) {
	nodes, err := bank.Start(binary, append(settings, "HTTP3=off")...)
	if err != nil {
		return nil, err
	}
	return &cluster{nodes, nodes.Addrs()}, nil
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
