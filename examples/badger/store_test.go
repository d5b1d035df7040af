package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
)

const (
	// testMax limits what a test waits for.
	testMax = 10 * time.Second
	// noPatience lets readers abandon each commit in flight, endless lets them abandon none.
	noPatience = time.Nanosecond
	endless    = time.Hour
)

// script is an oracle whose answers a test sends.
type script struct {
	asked   chan struct{}
	answers chan uint64
}

// take implements stamps.
func (s *script) take(ctx context.Context) (stamp, error) {
	s.asked <- struct{}{}
	select {
	case ts := <-s.answers:
		return stamp{TS: ts}, nil
	case <-ctx.Done():
		return stamp{}, ctx.Err()
	}
}

// testStore opens a new store at the timestamp 1.
func testStore(t *testing.T, patience time.Duration) (*store, *script) {
	t.Helper()
	s, oracle, err := openAt(t, t.TempDir(), 1, patience)
	if err != nil {
		t.Fatal(err)
	}
	return s, oracle
}

func openAt(t *testing.T, dir string, ts uint64, patience time.Duration) (*store, *script, error) {
	t.Helper()
	oracle := &script{asked: make(chan struct{}, 16), answers: make(chan uint64, 16)}
	oracle.answers <- ts
	s, err := openStore(bounded(t), dir, oracle, patience, none)
	<-oracle.asked
	if err == nil {
		t.Cleanup(func() { _ = s.close() })
	}
	return s, oracle, err
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testMax)
	t.Cleanup(cancel)
	return ctx
}

// beginAt starts a transaction at a timestamp.
func beginAt(t *testing.T, s *store, oracle *script, ts uint64) *transaction {
	t.Helper()
	oracle.answers <- ts
	one, err := s.begin(bounded(t))
	<-oracle.asked
	if err != nil {
		t.Fatal(err)
	}
	return one
}

// prepareAt takes a commit timestamp.
func prepareAt(t *testing.T, one *transaction, oracle *script, ts uint64) {
	t.Helper()
	oracle.answers <- ts
	_, err := one.prepare(bounded(t))
	<-oracle.asked
	if err != nil {
		t.Fatal(err)
	}
}

// valueOf returns the value in a snapshot.
func valueOf(t *testing.T, one *transaction) string {
	t.Helper()
	item, err := one.txn.Get([]byte("x"))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	value, err := item.ValueCopy(nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

// set sets x.
func set(t *testing.T, one *transaction, value string) {
	t.Helper()
	if err := one.set([]byte("x"), []byte(value)); err != nil {
		t.Fatal(err)
	}
}

// writeAt commits x in a transaction of its own.
func writeAt(t *testing.T, s *store, oracle *script, start, commit uint64, value string) {
	t.Helper()
	one := beginAt(t, s, oracle, start)
	defer one.end()
	set(t, one, value)
	prepareAt(t, one, oracle, commit)
	if err := one.finish(); err != nil {
		t.Fatal(err)
	}
}

// Two transactions write a key, and the second has not read it. Whichever is first, the other one is
// aborted, also if the first to finish has the higher timestamp.
func TestATransactionThatWritesBlindlyIsInConflict(t *testing.T) {
	for _, isBlindFirst := range []bool{false, true} {
		for _, blindCommit := range []uint64{40, 60} {
			t.Run(fmt.Sprintf("blind at %d, first %v", blindCommit, isBlindFirst), func(t *testing.T) {
				s, oracle := testStore(t, endless)
				writeAt(t, s, oracle, 10, 20, "100")
				reader, blind := beginAt(t, s, oracle, 30), beginAt(t, s, oracle, 31)
				if valueOf(t, reader) != "100" {
					t.Fatal("the first value is not there")
				}
				set(t, reader, "90")
				set(t, blind, "500")
				prepareAt(t, blind, oracle, blindCommit)
				prepareAt(t, reader, oracle, 50)
				first, second, right := reader, blind, "90"
				if isBlindFirst {
					first, second, right = blind, reader, "500"
				}
				if err := first.finish(); err != nil {
					t.Fatal(err)
				}
				if err := second.finish(); !errors.Is(err, badger.ErrConflict) {
					t.Errorf("the second one has committed, too: %v", err)
				}
				reader.end()
				blind.end()
				if value := valueOf(t, beginAt(t, s, oracle, 70)); value != right {
					t.Errorf("x is %s, not %s", value, right)
				}
			})
		}
	}
}

func TestAStoreAboveTheOracleIsRefusedWithAdvice(t *testing.T) {
	dir := t.TempDir()
	commit := uint64(1_700_000_000_000)<<18 | 7
	s, oracle, err := openAt(t, dir, 1, endless)
	if err != nil {
		t.Fatal(err)
	}
	writeAt(t, s, oracle, 2, commit, "100")
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	for _, ts := range []uint64{100, commit} {
		_, _, err := openAt(t, dir, ts, endless)
		if err == nil {
			t.Fatalf("opened at %d", ts)
		}
		for _, part := range []string{
			fmt.Sprintf("a commit at %d, and the oracle gave only %d", commit, ts),
			"epicepoch clock advance-to 1700000000001ms --yes", "RESTORE_FLOOR=1700000000001ms",
		} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("no %q in: %v", part, err)
			}
		}
	}
	s, oracle, err = openAt(t, dir, commit+1, endless)
	if err != nil {
		t.Fatal(err)
	}
	if value := valueOf(t, beginAt(t, s, oracle, commit+2)); value != "100" {
		t.Fatal(value)
	}
}

// slowCommit returns a commit that has waited for its timestamp for 10 s.
func slowCommit(t *testing.T, s *store, oracle *script) (one *transaction, prepared chan error) {
	t.Helper()
	one = beginAt(t, s, oracle, 30)
	set(t, one, "90")
	prepared = make(chan error, 1)
	ctx := bounded(t)
	go func() {
		_, err := one.prepare(ctx)
		prepared <- err
	}()
	<-oracle.asked
	s.mu.Lock()
	defer s.mu.Unlock()
	one.commit.began = one.commit.began.Add(-10 * time.Second)
	return one, prepared
}

func TestAReaderWaitsAsLongAsThePatienceOfItsStore(t *testing.T) {
	s, oracle := testStore(t, endless)
	slow, prepared := slowCommit(t, s, oracle)
	// A reader at 50 waits, and the oracle does not answer the commit.
	waits, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.await(waits, slow.commit, 50); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the reader did not wait: %v", err)
	}
	oracle.answers <- 40
	if err := <-prepared; err != nil {
		t.Fatal(err)
	}
	if err := slow.finish(); err != nil {
		t.Fatal(err)
	}
	if value := valueOf(t, beginAt(t, s, oracle, 50)); value != "90" {
		t.Fatal(value)
	}
}

func TestAReaderWithoutPatienceAbandonsACommit(t *testing.T) {
	s, oracle := testStore(t, noPatience)
	slow, prepared := slowCommit(t, s, oracle)
	if err := s.await(bounded(t), slow.commit, 50); err != nil {
		t.Fatal(err)
	}
	oracle.answers <- 40
	if err := <-prepared; !errors.Is(err, errAbandoned) {
		t.Fatal(err)
	}
	if err := slow.finish(); !errors.Is(err, errAbandoned) {
		t.Fatal(err)
	}
	// Its client never ends it. Nevertheless, Badger may forget what it needed for its conflicts.
	if len(s.open) != 0 || len(s.commits) != 0 {
		t.Fatalf("%d transactions are open, and %d commits", len(s.open), len(s.commits))
	}
}

func TestAnEndedTransactionStopsNoReader(t *testing.T) {
	s, oracle := testStore(t, endless)
	one := beginAt(t, s, oracle, 30)
	set(t, one, "90")
	prepareAt(t, one, oracle, 40)
	one.end()
	one.end()
	if value := valueOf(t, beginAt(t, s, oracle, 50)); value != "" {
		t.Fatal(value)
	}
	if err := one.finish(); !errors.Is(err, errAbandoned) {
		t.Fatal(err)
	}
}

// A commit fails in Badger, which may have it in its log. No reader may pass it: it could appear in its
// snapshot when the store is opened again.
func TestNoSnapshotBeginsAboveACommitWithoutAKnownOutcome(t *testing.T) {
	s, oracle := testStore(t, endless)
	one := beginAt(t, s, oracle, 30)
	set(t, one, "90")
	prepareAt(t, one, oracle, 40)
	// This reader waits for the commit, or comes when it has failed.
	ctx := bounded(t)
	waits := make(chan error, 1)
	oracle.answers <- 50
	go func() {
		_, err := s.begin(ctx)
		waits <- err
	}()
	<-oracle.asked
	// A closed database fails.
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	err := one.finish()
	if !errors.Is(err, errUnknown) || !errors.Is(err, badger.ErrBlockedWrites) {
		t.Fatal(err)
	}
	one.end()
	if err := <-waits; !errors.Is(err, errUnknown) {
		t.Errorf("a reader passed the commit: %v", err)
	}
	oracle.answers <- 60
	if _, err := s.begin(ctx); !errors.Is(err, errUnknown) {
		t.Errorf("a later reader began: %v", err)
	}
}
