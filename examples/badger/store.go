package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	epicepoch "github.com/epicepoch/epicepoch/clients/go"
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
//
// Write only with [transaction.set]: Badger alone does not see that two transactions write a key that
// neither of them has read.
type store struct {
	db     *badger.DB
	plant  plant
	stamps stamps
	// patience is how long readers wait for a commit that does not reach the store, from its beginning.
	// Then they abandon it.
	patience time.Duration

	mu sync.Mutex
	// open has the transactions that may still read or commit.
	open map[*transaction]struct{}
	// commits has the commits that a reader may have to wait for.
	commits map[*commit]struct{}
	// highest is the highest timestamp of an answer so far.
	highest uint64
	// untilClean counts down the commits to the next [store.clean].
	untilClean int
	// failed is the error of the first commit whose outcome is unknown.
	failed error
}

// stamps asks for timestamps.
type stamps interface {
	// take returns a timestamp and when it was asked for.
	take(ctx context.Context) (stamp, error)
}

// cleanEvery is after how many commits Badger may forget what it needed to find conflicts.
const cleanEvery = 256

// errAbandoned: a reader did not wait any longer for this commit, so it must not happen.
var errAbandoned = errors.New("the commit took too long, and a reader went on without it")

// errUnknown: a commit has failed, and may be in the store when it is opened again.
var errUnknown = errors.New("it is unknown whether a commit is in the store: stop the process and open the store again")

// commit is the way of a transaction into the store.
type commit struct {
	of    *transaction
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

// openStore opens a store, or makes a new one. Patience is how long readers wait for a slow commit: it
// must be several round trips to the oracle. If it is shorter than one, readers abandon each commit.
//
// A store with a version at or above a new timestamp is refused: snapshots would not contain that
// version, and commits below it would not be seen.
func openStore(
	ctx context.Context, dir string, stamps stamps, patience time.Duration, plant plant,
) (*store, error) {
	db, err := openDB(dir, plant)
	if err != nil {
		return nil, err
	}
	first, err := stamps.take(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	// The check would find some planted mistakes before the checker does.
	if highest := db.MaxVersion(); plant == none && first.TS <= highest {
		return nil, errors.Join(behindError(dir, highest, first.TS), db.Close())
	}
	return &store{
		db: db, plant: plant, stamps: stamps, patience: patience, highest: first.TS, untilClean: cleanEvery,
		open: map[*transaction]struct{}{}, commits: map[*commit]struct{}{},
	}, nil
}

// behindError says that the oracle is not above the store, and what to do.
func behindError(dir string, highest, ts uint64) error {
	next := highest>>epicepoch.CompactIndexBits + 1
	return fmt.Errorf("%s has a commit at %d, and the oracle gave only %d. Is this the store's cluster? If it is, "+
		"it was founded or restored without the store's last timestamps. Stop all programs that use it, and run "+
		"epicepoch clock advance-to %dms --yes. If you have to found or restore the cluster anyway, set "+
		"RESTORE_FLOOR=%dms instead", dir, highest, ts, next, next)
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
	s.mu.Lock()
	failed := s.failed
	s.mu.Unlock()
	if failed != nil {
		t.end()
		return nil, failed
	}
	t.txn = s.db.NewTransactionAt(start.TS, true)
	return t, nil
}

// await waits until the commit is in the store, will never be, or is above the timestamp.
func (s *store) await(ctx context.Context, one *commit, ts uint64) error {
	tired := time.NewTimer(time.Until(one.began.Add(s.patience)))
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
	return s.withdraw(one)
}

// withdraw is abandon for a caller that holds mu.
func (s *store) withdraw(one *commit) bool {
	switch one.state {
	case writing:
		return false
	case waiting:
		one.state = abandoned
		s.forget(one)
		// It can be in conflict with nothing any more.
		delete(s.open, one.of)
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

// set writes a key. Badger compares the keys that a transaction has read with the keys that others have
// written. So set also reads the key: otherwise, of two transactions that write it, one is lost. A
// method that deletes a key must do the same.
func (t *transaction) set(key, value []byte) error {
	if t.store.plant != blindWrites {
		if _, err := t.txn.Get(key); err != nil && !errors.Is(err, badger.ErrKeyNotFound) {
			return err
		}
	}
	return t.txn.Set(key, value)
}

// prepare takes the commit timestamp. Afterwards the transaction must not read or write. Call end if
// finish is not to be called.
func (t *transaction) prepare(ctx context.Context) (stamp, error) {
	s := t.store
	one := &commit{of: t, began: time.Now(), stamped: make(chan struct{}), done: make(chan struct{})}
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
		s.withdraw(one)
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

// finish writes at the commit timestamp. After [badger.ErrConflict] and [errAbandoned], nothing was
// written. After any other error, [errUnknown], the outcome is unknown: the transaction may be in
// Badger's log, and appear when the store is opened again. Then no snapshot begins any more, because it
// might have to contain the transaction. Stop the process and open the store again.
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
	if err != nil && !errors.Is(err, badger.ErrConflict) {
		err = fmt.Errorf("commit at %d: %w: %w", one.ts, errUnknown, err)
		// This comes before forget: a reader that waits for the commit must find it.
		if s.failed == nil {
			s.failed = err
		}
	}
	s.forget(one)
	if s.untilClean--; s.untilClean <= 0 {
		s.untilClean = cleanEvery
		s.clean()
	}
	return err
}

// end releases the snapshot, and withdraws a commit that is prepared and not finished, so that no reader
// waits for it. It may be called in any state of the transaction, more than once.
func (t *transaction) end() {
	if t.txn != nil {
		t.txn.Discard()
	}
	t.store.mu.Lock()
	defer t.store.mu.Unlock()
	if t.commit != nil {
		t.store.withdraw(t.commit)
	}
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
