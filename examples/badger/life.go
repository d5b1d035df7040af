package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"
	epicepoch "github.com/epicepoch/epicepoch/clients/go"

	"github.com/epicepoch/epicepoch/examples/bank"
)

// lifeCommand is the first argument of a process that owns the store.
const lifeCommand = "life"

const (
	accounts     = 64
	firstBalance = 100
	// pairs is how many pairs of accounts, the last ones, always have 2 * firstBalance together. So a
	// transaction can divide a pair's money without reading it.
	pairs          = 2
	workers        = 8
	transactionMax = 5 * time.Second
	// patience is many times as long as a commit normally takes: a few milliseconds.
	patience = 100 * time.Millisecond
	// Of so many transfers, one stops for a moment between commit timestamp and commit, one stops for
	// longer than readers wait, and the client of one stops for ever there.
	shortStop, longStop, forEver = 8, 600, 400
	// lateStop is longStop while the mistake late-commit is planted, for a short run.
	lateStop = 40
)

// life is one process that owns the store, until it is killed or told to stop.
type life struct {
	number  uint64
	plant   plant
	store   *store
	history *bank.History
	events  *bank.Events
}

// runLife is the main function of such a process.
func runLife(arguments []string) error {
	flags := flag.NewFlagSet(lifeCommand, flag.ExitOnError)
	number := flags.Uint64("number", 0, "which process of the run this is")
	dir := flags.String("dir", "", "directory of the store and of the history")
	addrs := flags.String("addr", "", "addresses of the oracle")
	planted := flags.String("plant", "", "the mistake to make")
	_ = flags.Parse(arguments)
	plant, err := bank.ParsePlant(*planted, plants)
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	client, err := epicepoch.Dial(ctx, strings.Split(*addrs, ","), epicepoch.WithCallTimeout(transactionMax))
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	defer client.Close()
	l := &life{number: *number, plant: plant, events: bank.NewEvents(*number)}
	if l.history, err = bank.OpenHistory(historyPath(*dir)); err != nil {
		return err
	}
	opening, cancelOpening := context.WithTimeout(context.WithoutCancel(ctx), transactionMax)
	defer cancelOpening()
	oracle := &fromOracle{client: client, events: l.events, plant: plant}
	if l.store, err = openStore(opening, storePath(*dir), oracle, patience, plant); err != nil {
		return errors.Join(err, l.history.Close())
	}
	return errors.Join(l.run(ctx), l.store.close(), l.history.Close())
}

func storePath(dir string) string   { return filepath.Join(dir, "store") }
func historyPath(dir string) string { return filepath.Join(dir, "history") }

// run lets clients work until the context ends.
func (l *life) run(ctx context.Context) error {
	if err := l.openAccounts(); err != nil {
		return err
	}
	// A client that stops for ever leaves its commit as it is; another one takes its place.
	return bank.Workers(ctx, workers, func(ctx context.Context, worker, client int) error {
		return l.work(ctx, fmt.Sprintf("%d.%d.%d", l.number, worker, client))
	})
}

// openAccounts gives each account its first balance, unless a process before has done so.
func (l *life) openAccounts() error {
	ctx, cancel := context.WithTimeout(context.Background(), transactionMax)
	defer cancel()
	t, err := l.store.begin(ctx)
	if err != nil {
		return err
	}
	defer t.end()
	if _, err := t.txn.Get([]byte(bank.Account(0))); !errors.Is(err, badger.ErrKeyNotFound) {
		return err
	}
	record := &bank.Txn{ID: fmt.Sprintf("%d.open", l.number), Start: t.start, Writes: map[string]int64{}}
	for number := range accounts {
		record.Writes[bank.Account(number)] = firstBalance
	}
	_, err = l.commit(ctx, t, record, nil)
	return err
}

// work runs transactions until the context ends, or until this client stops for ever.
func (l *life) work(ctx context.Context, client string) error {
	for number := 0; ctx.Err() == nil; number++ {
		isDead, err := l.transaction(ctx, fmt.Sprintf("%s.%d", client, number))
		if isDead || err != nil {
			return err
		}
	}
	return nil
}

// transaction moves money between two accounts, divides the money of a pair, or reads all.
func (l *life) transaction(ctx context.Context, id string) (isDead bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionMax)
	defer cancel()
	t, err := l.store.begin(ctx)
	if err != nil {
		return false, fmt.Errorf("%s does not begin: %w", id, err)
	}
	defer func() {
		// A client that has stopped for ever does not end its transaction.
		if !isDead {
			t.end()
		}
	}()
	record := &bank.Txn{ID: id, Start: t.start, Reads: map[string]bank.Value{}}
	pair := accounts - 2*(1+rand.IntN(pairs))
	switch rand.IntN(8) {
	case 0:
		for number := range accounts {
			if err := read(t, record, bank.Account(number)); err != nil {
				return false, err
			}
		}
		record.Outcome = bank.OnlyRead
		return false, l.history.Record(record)
	case 1:
		// It writes blindly: it has read nothing.
		part := rand.Int64N(2*firstBalance + 1)
		record.Writes = map[string]int64{bank.Account(pair): part, bank.Account(pair + 1): 2*firstBalance - part}
	case 2:
		err = transfer(t, record, pair, pair+1)
	default:
		const others = accounts - 2*pairs
		from := rand.IntN(others)
		err = transfer(t, record, from, (from+1+rand.IntN(others-1))%others)
	}
	if err != nil {
		return false, err
	}
	return l.commit(ctx, t, record, l.stops)
}

// transfer moves some money.
func transfer(t *transaction, record *bank.Txn, from, to int) error {
	source, target := bank.Account(from), bank.Account(to)
	for _, account := range []string{source, target} {
		if err := read(t, record, account); err != nil {
			return err
		}
	}
	amount := min(record.Reads[source].Balance, 1+rand.Int64N(10))
	record.Writes = map[string]int64{
		source: record.Reads[source].Balance - amount,
		target: record.Reads[target].Balance + amount,
	}
	return nil
}

func read(t *transaction, record *bank.Txn, account string) error {
	item, err := t.txn.Get([]byte(account))
	if errors.Is(err, badger.ErrKeyNotFound) {
		// No snapshot is so old, unless the timestamp is wrong: then the checker finds it.
		record.Reads[account] = bank.Value{}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s at %d: %w", account, t.start.TS, err)
	}
	return item.Value(func(bytes []byte) error {
		value, err := bank.ParseValue(bytes)
		record.Reads[account] = value
		return err
	})
}

// stops stops a client between commit timestamp and commit. It returns whether for ever.
func (l *life) stops(t *transaction) bool {
	switch {
	case rand.IntN(forEver) == 0:
		return true
	case l.plant == lateCommit && rand.IntN(lateStop) == 0:
		// It goes on just after a reader has abandoned it: later, Badger would find a conflict.
		select {
		case <-t.commit.done:
		case <-time.After(2 * patience):
		}
		time.Sleep(rand.N(2 * time.Millisecond))
	case rand.IntN(longStop) == 0:
		time.Sleep(patience + rand.N(10*time.Millisecond))
	case rand.IntN(shortStop) == 0:
		time.Sleep(rand.N(3 * time.Millisecond))
	}
	return false
}

// commit records the transaction and commits it. The record goes first: after a kill, the checker
// has to know what may be in the store.
func (l *life) commit(
	ctx context.Context, t *transaction, record *bank.Txn, stops func(*transaction) bool,
) (isDead bool, err error) {
	for account, balance := range record.Writes {
		value := bank.Value{Balance: balance, Writer: record.ID}
		if err := t.set([]byte(account), value.Bytes()); err != nil {
			return false, err
		}
	}
	record.Commit, err = t.prepare(ctx)
	if errors.Is(err, errAbandoned) {
		record.Outcome = bank.Aborted
		return false, l.history.Record(record)
	}
	if err != nil {
		return false, fmt.Errorf("%s gets no commit timestamp: %w", record.ID, err)
	}
	if err := l.history.Record(record); err != nil {
		return false, err
	}
	if stops != nil && stops(t) {
		return true, nil
	}
	switch err = t.finish(); {
	case err == nil:
		record.Outcome = bank.Committed
	case errors.Is(err, badger.ErrConflict), errors.Is(err, errAbandoned):
		record.Outcome = bank.Aborted
	default:
		return false, fmt.Errorf("%s does not commit: %w", record.ID, err)
	}
	return false, l.history.Record(record)
}
