package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	"github.com/tikv/client-go/v2/oracle"
	"github.com/tikv/client-go/v2/testutils"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/txnkv/transaction"

	"github.com/epicepoch/epicepoch/examples/bank"
	"github.com/epicepoch/epicepoch/examples/client-go/tikvoracle"
)

const page = "../../docs/migrate-from-pd.md"

// commands returns the commands of the page, in their order.
func commands(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var script []string
	isInside := false
	for line := range strings.SplitSeq(string(text), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "```sh":
			isInside = true
		case line == "```":
			isInside = false
		case isInside:
			script = append(script, line)
		}
	}
	if len(script) != 4 {
		t.Fatalf("%s has these commands, not four: %q", page, script)
	}
	return strings.Join(script, "\n")
}

// TestTheCommandsOfThePageMoveAStoreFromPD runs on a cluster of its own, because it moves the epoch.
func TestTheCommandsOfThePageMoveAStoreFromPD(t *testing.T) {
	binary, err := bank.Binary(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := bank.StartNodes(binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nodes.Close(); err != nil {
			t.Error(err)
		}
	})
	path := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(path, "epicepoch")); err != nil {
		t.Fatal(err)
	}
	for _, ahead := range []time.Duration{0, 20 * time.Second} {
		t.Run(fmt.Sprintf("%v ahead", ahead), func(t *testing.T) {
			store := mockStore(t)
			write(t, store, "old")
			last, err := store.CurrentTimestamp(oracle.GlobalTxnScope)
			if err != nil {
				t.Fatal(err)
			}
			last += uint64(ahead.Milliseconds()) << epicepoch.CompactIndexBits

			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands(t))
			shell.Env = append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH"), fmt.Sprintf("LAST=%d", last),
				"EPICEPOCH_ADDRS="+strings.Join(nodes.Addrs(), ","))
			said, err := shell.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
			t.Logf("%s", said)
			if !strings.Contains(string(said), fmt.Sprintf("is above %d", last)) {
				t.Fatalf("the page's last command is silent:\n%s", said)
			}

			client, err := epicepoch.Dial(ctx, nodes.Addrs())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { client.Close() })
			store.GetOracle().Close()
			own := tikvoracle.New(client)
			store.SetOracle(own)
			if start, commit := write(t, store, "new"); start <= last || commit <= start {
				t.Errorf("the last timestamp of PD was %d; then a transaction ran from %d to %d", last, start, commit)
			}
			for _, key := range []string{"old", "new"} {
				txn, err := store.Begin()
				if err != nil {
					t.Fatal(err)
				}
				if entry, err := txn.Get(ctx, []byte(key)); err != nil || string(entry.Value) != key {
					t.Errorf("%q is %q at %d: %v", key, entry.Value, txn.StartTS(), err)
				}
			}
			lock := lockOfAKilledClient(t, store, "new")
			if isExpired := expires(t, ctx, own, lock); isExpired != (ahead == 0) {
				t.Errorf("the timestamps are %v ahead, and a lock has expired after three times its TTL: %v", ahead, isExpired)
			}
		})
	}
}

// lockMS is the TTL of the lock of a killed client.
const lockMS = 200

// lockOfAKilledClient leaves a lock, and returns its timestamp.
func lockOfAKilledClient(t *testing.T, store *tikv.KVStore, key string) uint64 {
	t.Helper()
	txn, err := store.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := txn.Set([]byte(key), []byte("lost")); err != nil {
		t.Fatal(err)
	}
	committer, err := transaction.TxnProbe{KVTxn: txn}.NewCommitter(1)
	if err != nil {
		t.Fatal(err)
	}
	committer.SetLockTTL(lockMS)
	if err := committer.PrewriteAllMutations(context.Background()); err != nil {
		t.Fatal(err)
	}
	return txn.StartTS()
}

// expires takes timestamps until three times the TTL of a lock have passed by the clock, and returns
// whether the lock has expired.
func expires(t *testing.T, ctx context.Context, own *tikvoracle.Oracle, lock uint64) bool {
	t.Helper()
	for began := time.Now(); time.Since(began) < 3*lockMS*time.Millisecond; time.Sleep(10 * time.Millisecond) {
		if _, err := own.GetTimestamp(ctx, global); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the lock has %d ms of %d left", own.UntilExpired(lock, lockMS, global), lockMS)
	return own.IsExpired(lock, lockMS, global)
}

// mockStore returns a store whose timestamps come from client-go's mock of PD.
func mockStore(t *testing.T) *tikv.KVStore {
	t.Helper()
	mock, cluster, pd, err := testutils.NewMockTiKV("", nil)
	if err != nil {
		t.Fatal(err)
	}
	testutils.BootstrapWithSingleStore(cluster)
	store, err := tikv.NewTestTiKVStore(mock, pd, nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

// write writes a key whose value is its name.
func write(t *testing.T, store *tikv.KVStore, key string) (start, commit uint64) {
	t.Helper()
	txn, err := store.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := txn.Set([]byte(key), []byte(key)); err != nil {
		t.Fatal(err)
	}
	if err := txn.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	return txn.StartTS(), transaction.TxnProbe{KVTxn: txn}.GetCommitTS()
}
