package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/epicepoch/epicepoch/examples/bank"
)

// TestMain lets the test's binary be the process that owns the store.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == lifeCommand {
		if err := runLife(os.Args[2:]); err != nil {
			bank.Fail(exampleName, err)
		}
		return
	}
	os.Exit(m.Run())
}

func TestThePlantedMistakesAreFound(t *testing.T) {
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
	for plant, rule := range plants {
		t.Run(string(plant), func(t *testing.T) {
			t.Parallel()
			done, err := work(nodes.Addrs(), 2*time.Second, plant)
			if err != nil {
				t.Fatal(err)
			}
			if done.report.Counts[rule] == 0 {
				t.Errorf("no %s\n%s", rule, done.report)
			}
		})
	}
}
