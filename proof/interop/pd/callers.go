package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	epicepoch "github.com/epicepoch/epicepoch/clients/go"
	pd "github.com/tikv/pd/client"
)

const (
	// indexBits is the number of bits of a compact timestamp below the milliseconds.
	indexBits = 18
	// deadline is the time that a caller gives a call. Within it, the caller repeats what fails, as
	// TiDB does with this client.
	deadline = 5 * time.Second
	pause    = 10 * time.Millisecond
)

// run is a load on a cluster: what was answered, and what failed.
type run struct {
	start time.Time

	mu      sync.Mutex
	answers []answer
	// errors counts the errors that PD's client returned to callers, by their text.
	errors map[string]int
	// missed are the calls that had no answer within their deadline.
	missed []string
}

func newRun() *run { return &run{start: time.Now(), errors: map[string]int{}} }

// call repeats ask until it succeeds, and records the answer.
func (r *run) call(ctx context.Context, by string, ask func(context.Context) (first, count uint64, err error)) {
	limit := time.Now().Add(deadline)
	callCtx, cancel := context.WithDeadline(ctx, limit)
	defer cancel()
	began := time.Since(r.start)
	for {
		// A timestamp is above all that were given before its request. So a repetition may count as
		// a part of the call that began first.
		first, count, err := ask(callCtx)
		over := time.Since(r.start)
		if err == nil {
			r.mu.Lock()
			r.answers = append(r.answers, answer{by: by, began: began, over: over, first: first, count: count})
			r.mu.Unlock()
			return
		}
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		if by == "pd" {
			r.errors[brief(err)]++
		}
		late := time.Now().After(limit)
		if late {
			r.missed = append(r.missed, fmt.Sprintf("%s at %v: %v", by, began, err))
		}
		r.mu.Unlock()
		if late {
			return
		}
		time.Sleep(pause)
	}
}

// brief shortens the text of an error, so that equal ones can be counted.
func brief(err error) string {
	text := err.Error()
	if at := strings.Index(text, "desc = "); at >= 0 {
		text = text[at+len("desc = "):]
	}
	for _, word := range strings.Fields(text) {
		if strings.Contains(word, "127.0.0.1:") {
			text = strings.ReplaceAll(text, word, "ADDRESS")
		}
	}
	return text
}

// askPD asks with PD's client.
func askPD(client pd.Client) func(context.Context) (uint64, uint64, error) {
	return func(ctx context.Context) (uint64, uint64, error) {
		physical, logical, err := client.GetTS(ctx)
		return uint64(physical)<<indexBits | uint64(logical), 1, err
	}
}

// askNative asks with our client, over the native protocol.
func askNative(client *epicepoch.Client, count uint64) func(context.Context) (uint64, uint64, error) {
	return func(ctx context.Context) (uint64, uint64, error) {
		got, err := client.Timestamps(ctx, count)
		if err != nil {
			return 0, 0, err
		}
		first, err := compact(got.First.Epoch, got.First.Index)
		return first, count, err
	}
}

// askHTTP asks over HTTP/1.1, at the node that led last.
func askHTTP(c *cluster, count uint64) func(context.Context) (uint64, uint64, error) {
	client, leader := &http.Client{Timeout: time.Second}, c.http[0]
	next := 0
	return func(ctx context.Context) (uint64, uint64, error) {
		url := fmt.Sprintf("http://%s/timestamp?n=%d&format=range", leader, count)
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return 0, 0, err
		}
		got, err := client.Do(request)
		if err == nil {
			defer got.Body.Close()
			var body []byte
			if body, err = io.ReadAll(got.Body); err == nil && got.StatusCode == http.StatusOK && len(body) == 24 {
				first, err := compact(binary.BigEndian.Uint64(body), binary.BigEndian.Uint64(body[8:]))
				return first, count, err
			}
			if addr := got.Header.Get("epicepoch-leader"); addr != "" {
				leader = addr
				return 0, 0, fmt.Errorf("the leader is %s", addr)
			}
			err = fmt.Errorf("status %d: %q", got.StatusCode, body)
		}
		next++
		leader = c.http[next%members]
		return 0, 0, err
	}
}

// compact makes one number of an epoch and an index.
func compact(epoch, index uint64) (uint64, error) {
	ms := epoch / uint64(time.Millisecond)
	if epoch%uint64(time.Millisecond) != 0 || index >= 1<<indexBits {
		return 0, fmt.Errorf("epoch %d, index %d: no compact timestamp", epoch, index)
	}
	return ms<<indexBits | index, nil
}
