// The client of the example in Go. It has the same rows, protocol and workload as the client in
// Rust (src/bank.rs), and gets its timestamps through clients/go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
)

const (
	on  = 1
	off = 0
	// Of a hundred transactions, how many are audits and, below, how many are audits or changes of
	// duty.
	audits          = 4
	auditsAndDuties = 14
	amountMax       = 20
	// dialTimeout allows for an election during the start.
	dialTimeout = 10 * time.Second
)

type settings struct {
	name, stores, oracle, history string
	threads, accounts, pairs      int
	seed                          uint64
}

func main() {
	var s settings
	flag.StringVar(&s.name, "name", "", "of its transactions in the history")
	flag.StringVar(&s.stores, "stores", "", "addresses of all stores, in the order that every client knows")
	flag.StringVar(&s.oracle, "oracle", "", "client addresses of the oracle's nodes")
	flag.StringVar(&s.history, "history", "", "file to write")
	flag.IntVar(&s.threads, "threads", 4, "transactions at once")
	flag.IntVar(&s.accounts, "accounts", 40, "accounts, at least 2")
	flag.IntVar(&s.pairs, "pairs", 4, "pairs of people on duty")
	flag.Uint64Var(&s.seed, "seed", 0, "of what is drawn")
	flag.Parse()
	if err := s.run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run works until the input of this process ends or an error occurs.
func (s settings) run() error {
	if s.accounts < 2 || s.threads < 1 {
		return errors.New("at least 2 accounts and 1 thread are needed")
	}
	file, err := os.Create(s.history)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	oracle, err := epicepoch.Dial(ctx, strings.Split(s.oracle, ","))
	if err != nil {
		return err
	}
	defer oracle.Close()
	var (
		stop  atomic.Bool
		all   sync.WaitGroup
		log   = &history{file: file}
		fault = make(chan error, s.threads)
	)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	for thread := range s.threads {
		connected, err := connect(strings.Split(s.stores, ","))
		if err != nil {
			return err
		}
		w := &world{name: fmt.Sprintf("%s.%d", s.name, thread), stores: connected, oracle: oracle, history: log}
		rng := rand.New(rand.NewPCG(s.seed, uint64(thread)))
		all.Add(1)
		go func() {
			defer all.Done()
			if err := s.work(w, rng, &stop); err != nil {
				stop.Store(true)
				fault <- fmt.Errorf("%s: %w", w.name, err)
			}
		}()
	}
	all.Wait()
	select {
	case err := <-fault:
		return err
	default:
		return nil
	}
}

func (s settings) work(w *world, rng *rand.Rand, stop *atomic.Bool) error {
	for !stop.Load() {
		err := s.once(w, rng)
		if errors.Is(err, context.DeadlineExceeded) {
			err = w.history.record(noTimestamp{Line: "no_timestamp", Why: err.Error()})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// once runs one transaction of a random kind.
func (s settings) once(w *world, rng *rand.Rand) error {
	switch kind := rng.IntN(100); {
	case kind < audits:
		return w.transact("audit", s.audit)
	case kind < auditsAndDuties && s.pairs > 0:
		pair, who := rng.IntN(s.pairs), rng.IntN(2)
		return w.transact("duty", func(t *transaction) error { return changeDuty(t, pair, who) })
	default:
		from := rng.IntN(s.accounts)
		to := (from + 1 + rng.IntN(s.accounts-1)) % s.accounts
		amount := 1 + rng.Int64N(amountMax)
		return w.transact("transfer", func(t *transaction) error { return transfer(t, from, to, amount) })
	}
}

func (s settings) audit(t *transaction) error {
	for at := range s.accounts {
		if _, err := t.read(account(at)); err != nil {
			return err
		}
	}
	for at := range 2 * s.pairs {
		if _, err := t.read(duty(at/2, at%2)); err != nil {
			return err
		}
	}
	return nil
}

func transfer(t *transaction, from, to int, amount int64) error {
	held, err := t.read(account(from))
	if err != nil {
		return err
	}
	other, err := t.read(account(to))
	if err != nil {
		return err
	}
	if amount = min(amount, held); amount > 0 {
		t.write(account(from), held-amount)
		t.write(account(to), other+amount)
	}
	return nil
}

// changeDuty goes off duty if the other person of the pair is on duty, and comes back otherwise.
// Two of these at once may show write skew.
func changeDuty(t *transaction, pair, who int) error {
	me, err := t.read(duty(pair, who))
	if err != nil {
		return err
	}
	other, err := t.read(duty(pair, 1-who))
	if err != nil {
		return err
	}
	if me == off {
		t.write(duty(pair, who), on)
	} else if other == on {
		t.write(duty(pair, who), off)
	}
	return nil
}

func account(at int) string     { return fmt.Sprintf("account/%d", at) }
func duty(pair, who int) string { return fmt.Sprintf("duty/%d/%d", pair, who) }
