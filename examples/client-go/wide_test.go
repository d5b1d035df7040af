package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"

	"github.com/epicepoch/epicepoch/examples/bank"
	"github.com/epicepoch/epicepoch/examples/client-go/tikvoracle"
)

// TiKV's timestamps have 64 bits. If the cluster gives wide ones, each error says what to do.
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
	client, err := epicepoch.Dial(context.Background(), nodes.Addrs())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	own, ctx := tikvoracle.New(client), context.Background()
	defer own.Close()
	_, timestamp := own.GetTimestamp(ctx, global)
	_, async := own.GetTimestampAsync(ctx, global).Wait()
	_, low := own.GetLowResolutionTimestamp(ctx, global)
	_, stale := own.GetStaleTimestamp(ctx, global.TxnScope, 1)
	for _, err := range []error{timestamp, async, low, stale, own.ValidateReadTS(ctx, 1, false, global)} {
		const advice = "change the cluster with epicepoch settings set TIMESTAMP_FORMAT=compact"
		if !errors.Is(err, epicepoch.ErrNotCompact) || !strings.Contains(err.Error(), advice) {
			t.Error(err)
		}
	}
}
