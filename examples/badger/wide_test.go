package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/epicepoch/epicepoch/examples/bank"
)

// Badger's timestamps have 64 bits. If the cluster gives wide ones, the error says what to do.
func TestAWideClusterIsRefusedWithAdvice(t *testing.T) {
	binary, err := bank.Binary(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := bank.StartWideNodes(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Close()
	_, err = work(nodes.Addrs(), time.Second, none)
	const advice = "change the cluster with epicepoch settings set TIMESTAMP_FORMAT=compact"
	if err == nil || !strings.Contains(err.Error(), advice) {
		t.Fatal(err)
	}
}
