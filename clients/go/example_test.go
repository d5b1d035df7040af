package epicepoch_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
)

// A transaction takes one timestamp when it starts and one when it commits.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	client, err := epicepoch.Dial(ctx, []string{"localhost:8881", "localhost:8882", "localhost:8883"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	start, err := client.Timestamp(ctx)
	if err != nil {
		log.Fatal(err)
	}
	commit, err := client.Timestamp(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(start.Before(commit))
}

// A transaction asks for its commit timestamp while it still reads.
func ExampleClient_Go() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	client, err := epicepoch.Dial(ctx, []string{"localhost:8881", "localhost:8882", "localhost:8883"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	read := func() []string { return []string{"a row"} }
	// The oracle is asked while the transaction reads.
	commit := client.Go(ctx, 1)
	rows := read()
	answer, err := commit.Wait()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(rows), answer.First)
}

// A program waits for a timestamp or for something else.
func ExampleCall_Done() {
	client, err := epicepoch.Dial(context.Background(), []string{"localhost:8881"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	shutdown := make(chan os.Signal, 1)
	signal.Notify(shutdown, os.Interrupt)
	commit := client.Go(context.Background(), 1)
	select {
	case <-commit.Done():
		fmt.Println(commit.Wait())
	case <-shutdown:
		return
	}
}

func ExampleTimestamp_Time() {
	timestamp, err := epicepoch.Parse("17979cfe3d85cd150000000000000007")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(timestamp.Time().Format(time.RFC3339Nano), timestamp.Index)
	// Output: 2023-11-14T22:13:20.123456789Z 7
}

// A query for all rows of an hour goes from the lowest timestamp of the hour's beginning to the
// highest timestamp of its end.
func ExampleLowest() {
	from := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	fmt.Println(epicepoch.Lowest(from))
	fmt.Println(epicepoch.Highest(from.Add(time.Hour - 1)))
	// Output:
	// 18ea03d18c73a0000000000000000000
	// 18ea0717bd2c3fffffffffffffffffff
}

func ExampleRange_All() {
	run := epicepoch.Range{First: epicepoch.Timestamp{Epoch: 1, Index: 7}, Count: 3}
	for timestamp := range run.All() {
		fmt.Println(timestamp.Index)
	}
	// Output:
	// 7
	// 8
	// 9
}

// An error says both that the context ended and why it took so long.
func ExampleClient_Timestamps() {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := epicepoch.Dial(ctx, []string{"localhost:1"})
	fmt.Println(errors.Is(err, context.DeadlineExceeded), errors.Is(err, epicepoch.ErrUnreachable))
	// Output: true true
}

// A writer of interval mode waits before others may see what it wrote.
func ExampleClient_Interval() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	addrs := []string{"localhost:8881", "localhost:8882", "localhost:8883"}
	client, err := epicepoch.Dial(ctx, addrs, epicepoch.WithIntervals())
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	write := func(at epicepoch.Timestamp) { fmt.Println("written at", at) }
	show := func(at epicepoch.Timestamp) { fmt.Println("visible at", at) }
	stamp, err := client.Interval(ctx)
	if err != nil {
		log.Fatal(err)
	}
	write(stamp.Timestamp)
	if err := client.CommitWait(ctx, stamp); err != nil {
		return // The wait is not over: let nobody see the write.
	}
	show(stamp.Timestamp)
}
