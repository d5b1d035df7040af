package epicepoch

import (
	"sync"
	"testing"
	"time"
)

// question is a request that a node has read. The test answers it by hand.
type question struct {
	to    *peer
	id    uint64
	count uint64
}

// hand keeps the requests that a node has read, until the test answers them.
type hand struct {
	t    *testing.T
	mu   sync.Mutex
	kept []question
}

func (h *hand) ask(to *peer, id, count uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.kept = append(h.kept, question{to, id, count})
}

// take waits for a request that is wanted, and removes it.
func (h *hand) take(wanted func(question) bool) question {
	h.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		h.mu.Lock()
		for at, one := range h.kept {
			if wanted(one) {
				h.kept = append(h.kept[:at:at], h.kept[at+1:]...)
				h.mu.Unlock()
				return one
			}
		}
		h.mu.Unlock()
	}
	h.t.Fatal("no such request")
	return question{}
}

// over waits for the next request that comes over the given connection.
func (h *hand) over(main *peer) question {
	h.t.Helper()
	return h.take(func(q question) bool { return q.to == main })
}

func (q question) answer(index uint64) { q.to.answer(q.id, q.count, Timestamp{Epoch: 1, Index: index}) }

// call asks for a timestamp in the background.
func call(t *testing.T, client *Client) <-chan Timestamp {
	t.Helper()
	ctx, got := within(t, 10*time.Second), make(chan Timestamp, 1)
	go func() {
		one, err := client.Timestamp(ctx)
		if err != nil {
			t.Error(err)
		}
		got <- one
	}()
	return got
}

// copied returns whether the client still waits for an answer to the copy of this request.
func (c *Client) copied(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.hedge.copies[id]
	return ok
}

// A request and its copy both get an answer. Whichever comes second, its range goes to no caller.
// Callers that wait meanwhile may get timestamps below that range.
func TestABurntRangeGoesToNoCaller(t *testing.T) {
	for _, played := range []struct {
		name        string
		isCopyFirst bool
		call        func(*testing.T, *Client) <-chan Timestamp
	}{
		{"the copy is burnt", false, call},
		{"the first is burnt", true, call},
		{"the copy is burnt, and the callers do not wait", false, future},
		{"the first is burnt, and the callers do not wait", true, future},
	} {
		t.Run(played.name, func(t *testing.T) {
			call, isCopyFirst := played.call, played.isCopyFirst
			leader, played := startNode(t, 1), &hand{t: t}
			leader.ask = played.ask
			client := dial(t, []string{leader.addr()}, WithHedgeAfter(hedgeAfter),
				WithAttemptTimeout(hedgeAttempt), WithInFlight(2))
			expect := func(got <-chan Timestamp, index uint64) {
				t.Helper()
				if one := <-got; one != (Timestamp{Epoch: 1, Index: index}) {
					t.Errorf("%v, not %d", one, index)
				}
			}
			warm := call(t, client)
			first := played.take(func(question) bool { return true })
			main := first.to
			first.answer(1)
			expect(warm, 1)

			slow := call(t, client)
			asked := played.over(main)
			again := played.take(func(q question) bool { return q.to != main && q.id == asked.id })
			// Two more callers ask. The first one's request is in flight. The second one's request
			// waits, because the limit of requests in flight is 2.
			sent := call(t, client)
			next := played.over(main)
			open := call(t, client)
			for joined := false; !joined; time.Sleep(time.Millisecond) {
				client.mu.Lock()
				joined = len(client.pending) == 1
				client.mu.Unlock()
			}

			if isCopyFirst {
				again.answer(10)
				expect(slow, 10)
				// The client reads the answers of one connection in their order. So it has read
				// this second answer to the slow request when the next answers come.
				asked.answer(20)
			} else {
				asked.answer(10)
				expect(slow, 10)
				again.answer(20)
				for client.copied(asked.id) {
					time.Sleep(time.Millisecond)
				}
			}
			last := played.over(main)
			next.answer(12)
			expect(sent, 12)
			last.answer(13)
			expect(open, 13)
			later := call(t, client)
			played.over(main).answer(14)
			expect(later, 14)
		})
	}
}
