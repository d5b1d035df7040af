package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
)

const (
	// lockTTL is how long other transactions respect a lock.
	lockTTL = 500 * time.Millisecond
	// callTimeout is the timeout of a call to the oracle; the Rust client has the same.
	callTimeout         = 2 * time.Second
	pauseMin            = 250 * time.Microsecond
	pauseDoublings      = 6
	readAttemptsMax     = 128
	prewriteAttemptsMax = 3
)

// aborted is the reason why a transaction was aborted: "conflict", "locked", "rolled_back" or
// "no_timestamp".
type aborted string

func (a aborted) Error() string { return string(a) }

// world has what the transactions of one goroutine use: stores, oracle, history.
type world struct {
	name    string
	stores  stores
	oracle  *epicepoch.Client
	history *history
}

// transaction follows Percolator's protocol as src/transaction.rs does: it reads the snapshot at
// its start timestamp, and locks its rows. When it holds every lock, it takes its commit timestamp.
// It is committed when its primary row is committed.
type transaction struct {
	*world
	start   epicepoch.Timestamp
	reads   []seen
	writes  []written
	figures figures
}

// transact runs body in a transaction, commits its writes, and records it. It returns errors that a
// retry cannot cure. If there was no start timestamp, it returns the context's error.
func (w *world) transact(kind string, body func(*transaction) error) error {
	t := &transaction{world: w, reads: []seen{}, writes: []written{}}
	var err error
	if t.start, err = t.timestamp(); err != nil {
		return err
	}
	var result outcome
	if err = body(t); err == nil {
		result, err = t.commit()
	}
	var why aborted
	if errors.As(err, &why) {
		result = outcome{Is: "aborted", Why: string(why)}
	} else if err != nil {
		return err
	}
	return w.history.record(ended{
		Line: "ended", Client: w.name, Kind: kind, Start: t.start, Reads: t.reads, Writes: t.writes,
		Outcome: result, Figures: t.figures,
	})
}

// read returns the row as of the start timestamp.
func (t *transaction) read(row string) (int64, error) {
	for attempt := range readAttemptsMax {
		answer, err := t.stores.call(request{Op: "get", Row: row, At: &t.start})
		if err != nil {
			return 0, err
		}
		switch answer.Is {
		case "value":
			found := &version{Commit: answer.Commit, Start: answer.Start, Value: answer.Value}
			t.reads = append(t.reads, seen{Row: row, Version: found})
			return answer.Value, nil
		case "missing":
			t.reads = append(t.reads, seen{Row: row})
			return 0, nil
		case "locked":
			// The lock's owner may commit at a timestamp that belongs to this snapshot. So resolve
			// the lock before reading.
			resolved, err := t.resolve(row, answer)
			if err != nil {
				return 0, err
			}
			if !resolved {
				about := pauseMin << min(attempt, pauseDoublings)
				time.Sleep(about/2 + rand.N(about))
			}
		default:
			return 0, unexpected(answer)
		}
	}
	return 0, aborted("locked")
}

// write sets the row's value, which takes effect if the transaction commits. A transaction writes a
// row only once.
func (t *transaction) write(row string, value int64) {
	t.writes = append(t.writes, written{Row: row, Value: value})
}

func (t *transaction) commit() (outcome, error) {
	if len(t.writes) == 0 {
		return outcome{Is: "read_only"}, nil
	}
	slices.SortFunc(t.writes, func(a, b written) int { return strings.Compare(a.Row, b.Row) })
	primary := t.writes[0].Row
	line := trying{Line: "trying", Client: t.name, Start: t.start, Writes: t.writes}
	if err := t.history.record(line); err != nil {
		return outcome{}, err
	}
	// 1. Lock every row, the primary first.
	for at, write := range t.writes {
		if err := t.prewrite(write, primary); err != nil {
			return outcome{}, t.giveUp(t.writes[:at], err)
		}
	}
	// 2. Only now take the commit timestamp.
	commit, err := t.timestamp()
	if errors.Is(err, context.DeadlineExceeded) {
		return outcome{}, t.giveUp(t.writes, aborted("no_timestamp"))
	} else if err != nil {
		return outcome{}, err
	}
	// 3. The primary decides.
	is, err := t.commitRow(primary, commit)
	if err != nil {
		return outcome{}, err
	}
	if is == "rolled_back" {
		return outcome{}, t.giveUp(t.writes[1:], aborted("rolled_back"))
	}
	// 4. The others follow.
	for _, write := range t.writes[1:] {
		if _, err := t.commitRow(write.Row, commit); err != nil {
			return outcome{}, err
		}
	}
	return outcome{Is: "committed", Commit: &commit}, nil
}

func (t *transaction) commitRow(row string, commit epicepoch.Timestamp) (string, error) {
	answer, err := t.stores.call(request{Op: "commit", Row: row, Start: &t.start, Commit: &commit})
	if err == nil && answer.Is != "done" && answer.Is != "rolled_back" {
		err = unexpected(answer)
	}
	return answer.Is, err
}

func (t *transaction) prewrite(write written, primary string) error {
	for range prewriteAttemptsMax {
		answer, err := t.stores.call(request{
			Op: "prewrite", Row: write.Row, Start: &t.start, Value: write.Value, Primary: primary,
			TTL: lockTTL.Milliseconds(),
		})
		if err != nil {
			return err
		}
		switch answer.Is {
		case "done":
			return nil
		case "conflict", "rolled_back":
			return aborted(answer.Is)
		case "locked":
			if resolved, err := t.resolve(write.Row, answer); err != nil {
				return err
			} else if !resolved {
				return aborted("locked")
			}
		default:
			return unexpected(answer)
		}
	}
	return aborted("locked")
}

// resolve removes a lock whose owner has ended or died. The primary's store decides whether it has.
// resolve returns false if the owner may still be running.
func (t *transaction) resolve(row string, lock reply) (bool, error) {
	fate, err := t.stores.call(request{Op: "status", Row: lock.Primary, Start: &lock.Start})
	if err != nil {
		return false, err
	}
	isPrimary := row == lock.Primary
	switch fate.Is {
	case "alive":
		return false, nil
	case "committed":
		if !isPrimary {
			t.figures.Forward++
			_, err = t.stores.call(request{Op: "commit", Row: row, Start: &lock.Start, Commit: &fate.Commit})
		}
	case "rolled_back":
		t.figures.Back++
		if !isPrimary {
			_, err = t.stores.call(request{Op: "rollback", Row: row, Start: &lock.Start})
		}
	default:
		err = unexpected(fate)
	}
	return err == nil, err
}

// giveUp removes the locks of the transaction, and returns the given reason.
func (t *transaction) giveUp(locked []written, why error) error {
	for _, write := range locked {
		if _, err := t.stores.call(request{Op: "rollback", Row: write.Row, Start: &t.start}); err != nil {
			return err
		}
	}
	return why
}

func (t *transaction) timestamp() (epicepoch.Timestamp, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return t.oracle.Timestamp(ctx)
}
