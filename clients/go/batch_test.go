package epicepoch

import (
	"context"
	"testing"
)

// A batch goes back to the pool only when it is done and its last caller has read the answer. A
// caller that leaves early does not change this, because the client holds the batch until it is
// done.
func TestABatchIsHeldUntilItIsDoneAndAllHaveLeft(t *testing.T) {
	b := newBatch()
	b.join(1, nil)
	b.leave()
	if held := b.holders.Load(); held != 1 {
		t.Fatalf("%d hold a batch that nobody has sent", held)
	}
	if offset := b.join(2, nil); offset != 1 || b.waiting() != 1 {
		t.Fatalf("offset %d, %d wait", offset, b.waiting())
	}
	want := Range{First: Timestamp{Epoch: 1}, Count: 3}
	b.finish(want, nil)
	if held := b.holders.Load(); held != 1 {
		t.Fatalf("%d hold a batch that one caller has not read", held)
	}
	<-b.done
	if b.answer != want {
		t.Fatal(b.answer)
	}
	b.leave()
	if held := b.holders.Load(); held != 0 {
		t.Fatalf("%d hold a batch that nobody uses", held)
	}
}

// The answer is ready and the context has ended, both before the caller looks. The caller must get
// the end of the context.
func TestAnAnswerAfterTheEndOfTheContextGoesToNobody(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 100 {
		b := newBatch()
		b.join(1, nil)
		b.finish(Range{First: Timestamp{Epoch: 1}, Count: 1}, nil)
		if b.wait(ctx, nil) == nil {
			t.Fatal("an answer was given to a caller that had left")
		}
	}
}
