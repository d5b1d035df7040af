package bank

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	exitFound  = 1
	exitFailed = 2
)

// Main is the main function of an example. It parses the arguments, and calls run. The exit code is 0
// if run found no anomaly, 1 if it found one, and 2 if it failed.
func Main[P ~string](
	name string, plants map[P]Rule, run func(duration time.Duration, plant P, out io.Writer) (*Report, error),
) {
	seconds := flag.Float64("seconds", 10, "how long clients work, 1 to 3600")
	planted := flag.String("plant", "", "a mistake that the checker must find (README.md has a list)")
	flag.Parse()
	plant, err := ParsePlant(*planted, plants)
	if err != nil {
		Fail(name, err)
	}
	if *seconds < 1 || *seconds > 3600 || flag.NArg() != 0 {
		Fail(name, errors.New("--seconds is 1 to 3600, and there is no other argument than --plant"))
	}
	report, err := run(time.Duration(*seconds*float64(time.Second)), plant, os.Stdout)
	if err != nil {
		Fail(name, err)
	}
	if len(report.Counts) != 0 {
		os.Exit(exitFound)
	}
}

// Fail ends the process of an example after an error.
func Fail(name string, err error) {
	fmt.Fprintf(os.Stderr, "%s example: %v\n", name, err)
	os.Exit(exitFailed)
}

// ParsePlant returns the planted mistake of this name. The empty name is no mistake.
func ParsePlant[P ~string](name string, plants map[P]Rule) (P, error) {
	if _, isKnown := plants[P(name)]; !isKnown && name != "" {
		return "", fmt.Errorf("--plant %q: the mistakes are %v", name, slices.Sorted(maps.Keys(plants)))
	}
	return P(name), nil
}

// killLeaderEvery is the pause between the loss of two leaders.
const killLeaderEvery = 1500 * time.Millisecond

// UnderKills starts a cluster, and kills its leaders while work uses it. Took is how long work took.
func UnderKills[R any](work func(addrs []string) (R, error)) (done R, kills Kills, took time.Duration, err error) {
	binary, err := Binary(context.Background())
	if err != nil {
		return done, kills, 0, err
	}
	nodes, err := StartNodes(binary)
	if err != nil {
		return done, kills, 0, err
	}
	defer func() { err = errors.Join(err, nodes.Close()) }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	killed := make(chan error, 1)
	go func() {
		var err error
		kills, err = nodes.KillLeaders(ctx, killLeaderEvery)
		killed <- err
	}()
	began := time.Now()
	done, err = work(nodes.Addrs())
	took = time.Since(began)
	cancel()
	err = errors.Join(err, <-killed)
	return done, kills, took, err
}

// Workers calls work in so many goroutines, each again and again, until the context ends. It counts
// the calls of each worker. The first error ends all, and is returned.
func Workers(ctx context.Context, count int, work func(ctx context.Context, worker, call int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var first error
	var once sync.Once
	var all sync.WaitGroup
	for worker := range count {
		all.Add(1)
		go func() {
			defer all.Done()
			for call := 0; ctx.Err() == nil; call++ {
				if err := work(ctx, worker, call); err != nil {
					once.Do(func() { first = err })
					cancel()
				}
			}
		}()
	}
	all.Wait()
	return first
}
