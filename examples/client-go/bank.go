package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	"github.com/pingcap/kvproto/pkg/kvrpcpb"
	tikverr "github.com/tikv/client-go/v2/error"
	"github.com/tikv/client-go/v2/oracle"
	"github.com/tikv/client-go/v2/testutils"
	"github.com/tikv/client-go/v2/tikv"
	"github.com/tikv/client-go/v2/txnkv/transaction"

	"github.com/epicepoch/epicepoch/examples/bank"
	"github.com/epicepoch/epicepoch/examples/client-go/tikvoracle"
)

const (
	accounts     = 32
	firstBalance = 100
	workers      = 8
	// dieEvery is how many transfers there are for one whose client is killed in its commit.
	dieEvery = 60
	// lockTTL is how long the lock of a killed client lasts, in ms.
	lockTTL = 30
	// freshEvery is how old client-go's newest timestamp may be when it looks at such a lock.
	freshEvery = 20 * time.Millisecond
	// transactionMax limits one transaction.
	transactionMax = 20 * time.Second
	// expiredMax is how many transactions of a hundred may lose their locks on a slow machine.
	expiredMax = 5
)

// theBank is a store with accounts, and the records of its transactions.
type theBank struct {
	store  *tikv.KVStore
	mvcc   testutils.MVCCStore
	oracle *recorder

	mu           sync.Mutex
	txns         []*bank.Txn
	killed, late atomic.Int64
	// expired counts transactions that client-go gave up although they were the first.
	expired atomic.Int64
}

// newBank makes a store of two TiKVs and gives it the oracle.
func newBank(client *epicepoch.Client, plant plant) (*theBank, error) {
	mock, cluster, pd, err := testutils.NewMockTiKV("", nil)
	if err != nil {
		return nil, err
	}
	// The accounts are in two regions.
	testutils.BootstrapWithMultiRegions(cluster, []byte(bank.Account(accounts/2)))
	store, err := tikv.NewTestTiKVStore(mock, pd, nil, nil, 0)
	if err != nil {
		return nil, err
	}
	own := tikvoracle.New(client)
	if err := own.SetLowResolutionTimestampUpdateInterval(freshEvery); err != nil {
		return nil, err
	}
	// From here on, no timestamp comes from PD.
	store.GetOracle().Close()
	b := &theBank{store: store, mvcc: mock.MvccStore}
	b.oracle = &recorder{
		Oracle: own, client: client, events: bank.NewEvents(0), plant: plant, stamps: map[uint64][]bank.Stamp{},
	}
	store.SetOracle(b.oracle)
	return b, nil
}

// run opens the accounts, and lets clients work until the context ends.
func (b *theBank) run(ctx context.Context) error {
	if err := b.openAccounts(); err != nil {
		return err
	}
	err := bank.Workers(ctx, workers, func(_ context.Context, worker, number int) error {
		return b.transaction(fmt.Sprintf("%d.%d", worker, number))
	})
	if all, expired := len(b.records()), b.expired.Load(); err == nil && expired*100 > int64(all)*expiredMax {
		return fmt.Errorf("%d of %d transactions have lost their locks", expired, all)
	}
	return err
}

func (b *theBank) openAccounts() error {
	txn, err := b.store.Begin()
	if err != nil {
		return err
	}
	record := &bank.Txn{ID: "open", Start: b.oracle.stamp(txn.StartTS()), Writes: map[string]int64{}}
	for number := range accounts {
		record.Writes[bank.Account(number)] = firstBalance
	}
	ctx, cancel := context.WithTimeout(context.Background(), transactionMax)
	defer cancel()
	if err := b.commit(ctx, txn, record); err != nil {
		return err
	}
	b.record(record)
	if record.Outcome != bank.Committed {
		return errors.New("the accounts were not opened")
	}
	return nil
}

// transaction moves money between two accounts, or reads all. While a mistake is planted, client-go
// itself may refuse a timestamp; the transaction is then aborted, so that the checker sees it.
func (b *theBank) transaction(id string) error {
	record := &bank.Txn{ID: id, Reads: map[string]bank.Value{}}
	err := b.attempt(record)
	if err != nil && b.oracle.plant == none {
		return err
	}
	if err != nil && record.Commit.TS == 0 {
		record.Outcome = bank.Aborted
	}
	b.record(record)
	return nil
}

func (b *theBank) attempt(record *bank.Txn) error {
	id := record.ID
	ctx, cancel := context.WithTimeout(context.Background(), transactionMax)
	defer cancel()
	txn, err := b.store.Begin()
	if err != nil {
		return fmt.Errorf("%s does not begin: %w", id, err)
	}
	record.Start = b.oracle.stamp(txn.StartTS())
	if rand.IntN(8) == 0 {
		for number := range accounts {
			if err := read(ctx, txn, record, bank.Account(number)); err != nil {
				return err
			}
		}
		record.Outcome = bank.OnlyRead
		return txn.Rollback()
	}
	from := rand.IntN(accounts)
	to := (from + 1 + rand.IntN(accounts-1)) % accounts
	for _, number := range []int{from, to} {
		if err := read(ctx, txn, record, bank.Account(number)); err != nil {
			return err
		}
	}
	source, target := bank.Account(from), bank.Account(to)
	amount := min(record.Reads[source].Balance, 1+rand.Int64N(10))
	record.Writes = map[string]int64{
		source: record.Reads[source].Balance - amount,
		target: record.Reads[target].Balance + amount,
	}
	return b.commit(ctx, txn, record)
}

func read(ctx context.Context, txn *transaction.KVTxn, record *bank.Txn, account string) error {
	entry, err := txn.Get(ctx, []byte(account))
	if tikverr.IsErrNotFound(err) {
		// No snapshot is so old, unless the timestamp is wrong: then the checker finds it.
		record.Reads[account] = bank.Value{}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s at %d: %w", account, txn.StartTS(), err)
	}
	value, err := bank.ParseValue(entry.Value)
	record.Reads[account] = value
	return err
}

// commit writes, or is killed on the way.
func (b *theBank) commit(ctx context.Context, txn *transaction.KVTxn, record *bank.Txn) error {
	for account, balance := range record.Writes {
		value := bank.Value{Balance: balance, Writer: record.ID}
		if err := txn.Set([]byte(account), value.Bytes()); err != nil {
			return err
		}
	}
	if record.ID != "open" && rand.IntN(dieEvery) == 0 {
		return b.die(ctx, txn, record)
	}
	err := txn.Commit(ctx)
	if ts := (transaction.TxnProbe{KVTxn: txn}).GetCommitTS(); ts != 0 {
		record.Commit = b.oracle.stamp(ts)
	}
	switch {
	case err == nil:
		record.Outcome = bank.Committed
	case tikverr.IsErrWriteConflict(err):
		record.Outcome = bank.Aborted
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s does not commit: %w", record.ID, err)
	default:
		// On a machine that stands still for seconds, another client may have found its locks expired.
		// The outcome is unknown; the checker wants all or nothing.
		b.expired.Add(1)
	}
	return nil
}

// die does what a client has done that is killed in its commit: it leaves locks, and half of the time
// also the primary's commit, which decides. The next reader of a lock finishes the work.
func (b *theBank) die(ctx context.Context, txn *transaction.KVTxn, record *bank.Txn) error {
	committer, err := transaction.TxnProbe{KVTxn: txn}.NewCommitter(1)
	if err != nil {
		return err
	}
	committer.SetLockTTL(lockTTL)
	if err := committer.PrewriteAllMutations(ctx); err != nil {
		// It has no commit timestamp. Its locks, if any, expire.
		record.Outcome = bank.Aborted
		if !tikverr.IsErrWriteConflict(err) {
			b.expired.Add(1)
		}
		return nil
	}
	b.killed.Add(1)
	if rand.IntN(2) == 0 {
		return nil
	}
	ts, err := b.store.CurrentTimestamp(oracle.GlobalTxnScope)
	if err != nil {
		return err
	}
	committer.SetCommitTS(ts)
	// The locks may have expired meanwhile; then it is rolled back.
	err = committer.CommitMutations(ctx)
	// client-go takes another timestamp if a reader has moved on to this one.
	record.Commit = b.oracle.stamp(committer.GetCommitTS())
	if err == nil {
		b.late.Add(1)
		record.Outcome = bank.Committed
	}
	return nil
}

func (b *theBank) record(txn *bank.Txn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.txns = append(b.txns, txn)
}

func (b *theBank) records() []*bank.Txn {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.txns
}

// settleMax limits the wait for commits that client-go finishes in the background.
const settleMax = 10 * time.Second

// versions reads all versions of all accounts, when no lock is left.
func (b *theBank) versions() (bank.Versions, error) {
	store, isDebugger := b.mvcc.(interface {
		MvccGetByKey(key []byte) *kvrpcpb.MvccInfo
	})
	if !isDebugger {
		return nil, errors.New("this mock store does not show its versions")
	}
	all := bank.Versions{}
	for number := range accounts {
		account := bank.Account(number)
		info, err := b.unlocked(account, store.MvccGetByKey)
		if err != nil {
			return nil, err
		}
		values := map[uint64][]byte{}
		for _, value := range info.Values {
			values[value.StartTs] = value.Value
		}
		for _, write := range info.Writes {
			if write.Type != kvrpcpb.Op_Put {
				continue
			}
			bytes := values[write.StartTs]
			if bytes == nil {
				bytes = write.ShortValue
			}
			value, err := bank.ParseValue(bytes)
			if err != nil {
				return nil, fmt.Errorf("%s at %d: %w", account, write.CommitTs, err)
			}
			all[account] = append(all[account], bank.Version{TS: write.CommitTs, Value: value})
		}
	}
	return all, nil
}

// unlocked reads an account until it has no lock. A read resolves the lock of a killed client.
func (b *theBank) unlocked(account string, info func([]byte) *kvrpcpb.MvccInfo) (*kvrpcpb.MvccInfo, error) {
	ctx, cancel := context.WithTimeout(context.Background(), settleMax)
	defer cancel()
	for {
		// Without the planted mistake.
		ts, err := b.oracle.Oracle.GetTimestamp(ctx, nil)
		if err != nil {
			return nil, err
		}
		if _, err := b.store.GetSnapshot(ts).Get(ctx, []byte(account)); err != nil {
			return nil, fmt.Errorf("%s: %w", account, err)
		}
		if found := info([]byte(account)); found.Lock == nil {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s keeps a lock for more than %v", account, settleMax)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
