// Command conformance is the conformance driver of the Go client. It reads commands, one JSON
// object per line, and writes the client's answers. See clients/README.md. With --futures it makes
// asynchronous calls.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
)

type command struct {
	Do        string   `json:"do"`
	ID        uint64   `json:"id"`
	Addrs     []string `json:"addrs"`
	Count     uint64   `json:"count"`
	Call      uint64   `json:"call"`
	TimeoutMS *int64   `json:"timeout_ms"`
	AttemptMS int64    `json:"attempt_ms"`
	RefreshMS int64    `json:"refresh_ms"`
	Cluster   string   `json:"cluster"`
	HedgeMS   int64    `json:"hedge_ms"`
	Guarantee string   `json:"guarantee"`
	Compact   bool     `json:"compact"`
	Intervals bool     `json:"intervals"`
}

type reply struct {
	ID    uint64 `json:"id"`
	Start int64  `json:"start"`
	End   int64  `json:"end"`
	First string `json:"first,omitempty"`
	U64   string `json:"u64,omitempty"`
	Count uint64 `json:"count,omitempty"`
	Error string `json:"error,omitempty"`
	Text  string `json:"text,omitempty"`
}

// driver holds the client and its calls in progress.
type driver struct {
	origin time.Time
	// isAsync is true if calls are made with Client.Go.
	isAsync bool

	mu     sync.Mutex
	client *epicepoch.Client
	// isCompact is true if the client needs compact timestamps, and the replies have their spellings.
	isCompact bool
	calls     map[uint64]context.CancelFunc
	out       *json.Encoder
}

func main() {
	d := &driver{origin: time.Now(), calls: make(map[uint64]context.CancelFunc), out: json.NewEncoder(os.Stdout)}
	d.isAsync = slices.Contains(os.Args, "--futures")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			fmt.Fprintln(os.Stderr, "not a command:", err)
			os.Exit(1)
		}
		d.carryOut(c)
	}
}

func (d *driver) carryOut(c command) {
	start := d.reading()
	switch c.Do {
	case "open":
		go d.open(c)
	case "timestamps", "latest", "interval":
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		client, isCompact := d.client, d.isCompact
		d.calls[c.ID] = cancel
		d.mu.Unlock()
		go d.call(ctx, client, isCompact, c)
	case "cancel":
		d.mu.Lock()
		cancel := d.calls[c.Call]
		d.mu.Unlock()
		if cancel != nil {
			cancel()
		}
		d.reply(reply{ID: c.ID, Start: start}, nil)
	case "clock":
		d.reply(reply{ID: c.ID, Start: start}, nil)
	case "close":
		d.mu.Lock()
		client := d.client
		d.mu.Unlock()
		go func() {
			err := client.Close()
			d.reply(reply{ID: c.ID, Start: start}, err)
		}()
	default:
		d.reply(reply{ID: c.ID, Start: start}, fmt.Errorf("unknown command %q", c.Do))
	}
}

// open dials the cluster, and returns when the client has found its leader.
func (d *driver) open(c command) {
	start := d.reading()
	opts := []epicepoch.Option{
		epicepoch.WithAttemptTimeout(time.Duration(c.AttemptMS) * time.Millisecond),
		epicepoch.WithClusterName(c.Cluster),
		epicepoch.WithRefresh(time.Duration(c.RefreshMS) * time.Millisecond),
		epicepoch.WithHedgeAfter(time.Duration(c.HedgeMS) * time.Millisecond),
	}
	switch c.Guarantee {
	case "quorum":
		opts = append(opts, epicepoch.WithGuarantee(epicepoch.GuaranteeQuorum))
	case "lease":
		opts = append(opts, epicepoch.WithGuarantee(epicepoch.GuaranteeLease))
	}
	if c.Compact {
		opts = append(opts, epicepoch.WithCompact())
	}
	if c.Intervals {
		opts = append(opts, epicepoch.WithIntervals())
	}
	if c.TimeoutMS != nil {
		opts = append(opts, epicepoch.WithCallTimeout(time.Duration(*c.TimeoutMS)*time.Millisecond))
	}
	client, err := epicepoch.Dial(context.Background(), c.Addrs, opts...)
	d.mu.Lock()
	d.client, d.isCompact = client, c.Compact
	d.mu.Unlock()
	d.reply(reply{ID: c.ID, Start: start}, err)
}

func (d *driver) call(ctx context.Context, client *epicepoch.Client, isCompact bool, c command) {
	start := d.reading()
	// The timeout of a call counts from the call's begin, not from the arrival of the command.
	if c.TimeoutMS != nil {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, time.Duration(*c.TimeoutMS)*time.Millisecond)
		defer end()
	}
	ask := client.Timestamps
	if d.isAsync {
		ask = func(ctx context.Context, count uint64) (epicepoch.Range, error) { return client.Go(ctx, count).Wait() }
	}
	if c.Do == "latest" {
		ask = func(ctx context.Context, _ uint64) (epicepoch.Range, error) {
			latest, err := client.Latest(ctx)
			return epicepoch.Range{First: latest, Count: 1}, err
		}
	}
	if c.Do == "interval" {
		ask = func(ctx context.Context, _ uint64) (epicepoch.Range, error) { return interval(ctx, client) }
	}
	r := reply{ID: c.ID, Start: start}
	var err error
	if isCompact {
		r, err = compact(ctx, client, ask, c, r)
	} else {
		var answer epicepoch.Range
		if answer, err = ask(ctx, c.Count); err == nil {
			r.First, r.Count = answer.First.String(), answer.Count
		}
	}
	d.reply(r, err)
	d.mu.Lock()
	cancel := d.calls[c.ID]
	delete(d.calls, c.ID)
	d.mu.Unlock()
	cancel()
}

// interval makes a call of interval mode, and waits until its timestamp is in the past. The timeout is
// that of the call alone.
func interval(ctx context.Context, client *epicepoch.Client) (epicepoch.Range, error) {
	got, err := client.Interval(ctx)
	if err != nil {
		return epicepoch.Range{}, err
	}
	err = client.CommitWait(context.Background(), got)
	return epicepoch.Range{First: got.Timestamp, Count: got.Count}, err
}

// compact makes a call for compact timestamps. An asynchronous call of ask is converted.
func compact(
	ctx context.Context, client *epicepoch.Client, ask func(context.Context, uint64) (epicepoch.Range, error),
	c command, r reply,
) (reply, error) {
	r.Count = c.Count
	var first uint64
	var err error
	switch {
	case c.Do == "latest":
		r.Count = 1
		first, err = client.CompactLatest(ctx)
	case slices.Contains(os.Args, "--futures"):
		var answer epicepoch.Range
		if answer, err = ask(ctx, c.Count); err == nil {
			first, err = answer.CompactFirst()
		}
	default:
		first, err = client.CompactTimestamps(ctx, c.Count)
	}
	if err != nil {
		r.Count = 0
		return r, err
	}
	r.U64 = strconv.FormatUint(first, 10)
	return r, nil
}

func (d *driver) reading() int64 { return int64(time.Since(d.origin)) }

func (d *driver) reply(r reply, err error) {
	r.End = d.reading()
	if err != nil {
		r.Error, r.Text = fault(err), err.Error()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.out.Encode(r); err != nil {
		os.Exit(1)
	}
}

// fault returns the name of an error that the drivers of all languages share.
func fault(err error) string {
	// The errors of contexts come first in this list. An error at the end of a context also matches
	// the reason for the delay.
	for _, known := range []struct {
		is   error
		name string
	}{
		{context.Canceled, "cancelled"},
		{context.DeadlineExceeded, "deadline"},
		{epicepoch.ErrClosed, "closed"},
		{epicepoch.ErrCount, "count"},
		{epicepoch.ErrWrongCluster, "wrong_cluster"},
		{epicepoch.ErrWentBackwards, "backwards"},
		{epicepoch.ErrProtocol, "protocol"},
		{epicepoch.ErrNotCompact, "not_compact"},
		{epicepoch.ErrBadCount, "refused"},
		{epicepoch.ErrOtherMode, "refused"},
		{epicepoch.ErrBadRequest, "refused"},
		{epicepoch.ErrUnsupported, "refused"},
		{epicepoch.ErrUnsupportedVersion, "refused"},
		{epicepoch.ErrUnauthorized, "refused"},
	} {
		if errors.Is(err, known.is) {
			return known.name
		}
	}
	return "other"
}
