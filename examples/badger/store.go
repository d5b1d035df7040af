package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// store gives snapshot isolation to a Badger database whose timestamps come from the oracle.
//
// Badger checks conflicts by read and commit timestamps, but it lets the caller choose them. So one
// rule is left to the caller: a snapshot at R must contain each commit below R. A commit takes its
// timestamp before it writes, so at the moment when a reader gets R, a commit below R may not be in
// the store yet. The reader waits for it.
//
// A commit registers before it asks the oracle. The oracle gives a later request a higher timestamp.
// So if a commit registers after a reader has R, its timestamp is above R. The reader has to wait
// only for the commits that are registered when it gets R.
type store struct {
	db     *badger.DB
	plant  plant
	stamps stamps

	mu sync.Mutex
	// open has the transactions that may still read or commit.
	open map[*transaction]struct{}
	// commits has the commits that a reader may have to wait for.
	commits map[*commit]struct{}
	// highest is the highest timestamp of an answer so far.
	highest uint64
	// untilClean counts down the commits to the next [store.clean].
	untilClean int
}

// stamps asks for timestamps.
type stamps interface {
	// take returns a timestamp and when it was asked for.
	take(ctx context.Context) (stamp, error)
}

// patience is how long readers wait for a commit that does not reach the store, from its beginning.
// Then they abandon it. A commit normally takes a few milliseconds.
const patience = 100 * time.Millisecond

// cleanEvery is after how many commits Badger may forget what it needed to find conflicts.
const cleanEvery = 256

// errAbandoned: a reader did not wait any longer for this commit, so it must not happen.
var errAbandoned = errors.New("the commit took too long, and a reader went on without it")

// commit is the way of a transaction into the store.
type commit struct {
	began time.Time
	// state and ts are guarded by the mutex of the store.
	state commitState
	ts    uint64
	// stamped is closed when ts is known, done when the commit has ended in any way.
	stamped, done chan struct{}
}

type commitState int

const (
	// waiting: the commit waits for its timestamp, or its client has not gone on yet. A reader may
	// abandon it.
	waiting commitState = iota
	// writing: Badger has it. A reader must wait.
	writing
	// abandoned: it must not write any more.
	abandoned
)

// transaction reads one snapshot and collects writes.
type transaction struct {
	store *store
	start stamp
	txn   *badger.Txn
	// floor is a lower bound of the snapshot's timestamp, while the oracle is asked for it.
	floor  uint64
	commit *commit
}

func openStore(dir string, plant plant, stamps stamps) (*store, error) {
	db, err := openDB(dir, plant)
	if err != nil {
		return nil, err
	}
	return &store{
		db: db, plant: plant, stamps: stamps, untilClean: cleanEvery,
		open: map[*transaction]struct{}{}, commits: map[*commit]struct{}{},
	}, nil
}

func openDB(dir string, plant plant) (*badger.DB, error) {
	options := badger.DefaultOptions(dir).
		WithLoggingLevel(badger.ERROR).
		// The checker reads all versions.
		WithNumVersionsToKeep(1 << 30).
		WithDetectConflicts(plant != noConflicts).
		// A small store, so that its files are also merged in a short run.
		WithMemTableSize(1 << 20).
		WithValueLogFileSize(1 << 20).
		WithValueThreshold(1 << 10).
		WithBlockCacheSize(4 << 20).
		WithNumCompactors(2)
	return badger.OpenManaged(options)
}

func (s *store) close() error { return s.db.Close() }

// begin starts a transaction. Its snapshot contains each transaction that has committed before, also
// those that other clients have committed.
func (s *store) begin(ctx context.Context) (*transaction, error) {
	t := &transaction{store: s}
	s.mu.Lock()
	t.floor = s.highest
	s.open[t] = struct{}{}
	s.mu.Unlock()
	start, err := s.stamps.take(ctx)
	if err != nil {
		t.end()
		return nil, err
	}
	t.start = start
	s.mu.Lock()
	t.floor = start.TS
	s.highest = max(s.highest, start.TS)
	before := make([]*commit, 0, len(s.commits))
	for one := range s.commits {
		before = append(before, one)
	}
	s.mu.Unlock()
	if s.plant != noWait {
		for _, one := range before {
			if err := s.await(ctx, one, start.TS); err != nil {
				t.end()
				return nil, err
			}
		}
	}
	t.txn = s.db.NewTransactionAt(start.TS, true)
	return t, nil
}

// await waits until the commit is in the store, will never be, or is above the timestamp.
func (s *store) await(ctx context.Context, one *commit, ts uint64) error {
	tired := time.NewTimer(time.Until(one.began.Add(patience)))
	defer tired.Stop()
	select {
	case <-one.stamped:
		s.mu.Lock()
		isAbove := one.ts > ts
		s.mu.Unlock()
		if isAbove {
			return nil
		}
	case <-one.done:
		return nil
	case <-tired.C:
		if s.abandon(one) {
			return nil
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-one.done:
		return nil
	case <-tired.C:
		if s.abandon(one) {
			return nil
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	// Badger has it, and does not take long.
	select {
	case <-one.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// abandon forbids a commit that has not reached Badger. It returns false if the commit has.
func (s *store) abandon(one *commit) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch one.state {
	case writing:
		return false
	case waiting:
		one.state = abandoned
		s.forget(one)
	case abandoned:
	}
	return true
}

// forget ends a commit. The caller holds mu.
func (s *store) forget(one *commit) {
	if _, isKnown := s.commits[one]; isKnown {
		delete(s.commits, one)
		close(one.done)
	}
}

// prepare takes the commit timestamp.
func (t *transaction) prepare(ctx context.Context) (stamp, error) {
	s := t.store
	one := &commit{began: time.Now(), stamped: make(chan struct{}), done: make(chan struct{})}
	t.commit = one
	// This comes before the question to the oracle. A reader that does not find the commit here has a
	// timestamp below it.
	s.mu.Lock()
	s.commits[one] = struct{}{}
	s.mu.Unlock()
	at, err := s.stamps.take(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.forget(one)
		return stamp{}, err
	}
	s.highest = max(s.highest, at.TS)
	one.ts = at.TS
	close(one.stamped)
	if one.state == abandoned {
		return at, errAbandoned
	}
	return at, nil
}

// finish writes at the commit timestamp. [badger.ErrConflict] and [errAbandoned] say that nothing was
// written.
func (t *transaction) finish() error {
	s, one := t.store, t.commit
	s.mu.Lock()
	isTooLate := one.state == abandoned
	if !isTooLate {
		one.state = writing
	}
	s.mu.Unlock()
	if isTooLate && s.plant != lateCommit {
		return errAbandoned
	}
	err := t.txn.CommitAt(one.ts, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(one)
	if s.untilClean--; s.untilClean <= 0 {
		s.untilClean = cleanEvery
		s.clean()
	}
	return err
}

// end releases the snapshot. It may be called in any state of the transaction, more than once.
func (t *transaction) end() {
	if t.txn != nil {
		t.txn.Discard()
	}
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	delete(t.store.open, t)
}

// clean lets Badger forget the writes that no open transaction can be in conflict with. Badger stops
// the process if a commit comes at or below them, so nothing is forgotten while a mistake is planted:
// the checker has to find it. The caller holds mu.
func (s *store) clean() {
	if s.plant != none {
		return
	}
	lowest := s.highest
	for t := range s.open {
		lowest = min(lowest, t.floor)
	}
	s.db.SetDiscardTs(lowest)
}

// versions reads all versions of all keys.
func versions(dir string, each func(key string, ts uint64, value []byte) error) (err error) {
	db, err := openDB(dir, none)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	txn := db.NewTransactionAt(^uint64(0), false)
	defer txn.Discard()
	options := badger.DefaultIteratorOptions
	options.AllVersions = true
	rows := txn.NewIterator(options)
	defer rows.Close()
	for rows.Rewind(); rows.Valid(); rows.Next() {
		item := rows.Item()
		if item.IsDeletedOrExpired() {
			return fmt.Errorf("%s has a version without a value at %d", item.Key(), item.Version())
		}
		err := item.Value(func(value []byte) error { return each(string(item.Key()), item.Version(), value) })
		if err != nil {
			return err
		}
	}
	return nil
}
