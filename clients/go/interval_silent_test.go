package epicepoch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// The deadlines of these calls come before the end of an attempt, so none of them asks two nodes if the
// first one is silent.
func TestACallThatEndsAtASilentNodeSendsTheNextOneElsewhere(t *testing.T) {
	silent, other := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	asked, result := make(chan struct{}, 8), make(chan error, 1)
	silent.stamp = func(*peer, uint64, uint64) { asked <- struct{}{} }
	client := dialNodes(t, []string{silent.addr(), other.addr()})
	call := func(ctx context.Context) {
		_, err := client.Interval(ctx)
		result <- err
	}
	ctx := overContext{context.Background(), make(chan struct{})}
	go call(ctx)
	<-asked
	close(ctx.over)
	if err := <-result; !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	go call(within(t, 30*time.Second))
	select {
	case <-asked:
		t.Error("the silent node was asked again")
	case err := <-result:
		if err != nil || other.asked.Load() != 1 {
			t.Error(err, other.asked.Load())
		}
	}
}

// The first node does not even accept a connection in time. The second one has only the rest of the call.
func TestANodeThatHadOnlyTheRestOfACallIsNotSilent(t *testing.T) {
	first, second := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	asked, result := make(chan struct{}, 8), make(chan error, 1)
	second.stamp = func(*peer, uint64, uint64) { asked <- struct{}{} }
	client := dialNodes(t, []string{first.addr(), second.addr()},
		WithDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			if addr == first.addr() {
				return nil, os.ErrDeadlineExceeded
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}))
	ctx := overContext{context.Background(), make(chan struct{})}
	go func() {
		_, err := client.Interval(ctx)
		result <- err
	}()
	<-asked
	close(ctx.over)
	if err := <-result; !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if got := client.stamper.round(); !slices.Equal(got, []string{second.addr(), first.addr()}) {
		t.Error(got)
	}
	if len(client.stamper.silent) != 1 {
		t.Error(client.stamper.silent)
	}
}

func TestACallerThatGivesUpSaysNothingAboutTheNode(t *testing.T) {
	first, second := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	asked, result := make(chan struct{}, 8), make(chan error, 1)
	var isCertain, holds atomic.Bool
	firstStamp, secondStamp := first.stamp, second.stamp
	first.stamp = func(to *peer, id, count uint64) {
		if isCertain.Load() {
			firstStamp(to, id, count)
			return
		}
		to.refuse(id, 21, "")
	}
	second.stamp = func(to *peer, id, count uint64) {
		if holds.CompareAndSwap(true, false) {
			asked <- struct{}{}
			return
		}
		secondStamp(to, id, count)
	}
	client := dialNodes(t, []string{first.addr(), second.addr()})
	if _, err := client.Interval(within(t, 30*time.Second)); err != nil {
		t.Fatal(err)
	}
	isCertain.Store(true)
	holds.Store(true)
	ctx, cancel := context.WithCancel(within(t, 30*time.Second))
	go func() {
		_, err := client.Interval(ctx)
		result <- err
	}()
	<-asked
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got, err := client.Interval(within(t, 30*time.Second)); err != nil || got.Timestamp.Index>>48&0x7fff != 2 {
		t.Error(got, err)
	}
}

func TestASilentNodeIsAskedLastForAWhile(t *testing.T) {
	s := dialNodes(t, []string{"a:1", "b:1", "c:1"}).stamper
	expect := func(addrs ...string) {
		t.Helper()
		if got := s.round(); !slices.Equal(got, addrs) {
			t.Error(got, "not", addrs)
		}
	}
	s.isNotCertain("a:1", true)
	expect("b:1", "c:1", "a:1")
	s.isNotCertain("b:1", true)
	expect("c:1", "a:1", "b:1")
	// The one that was asked last has the last turn.
	s.isNotCertain("a:1", true)
	expect("c:1", "b:1", "a:1")
	s.isCertain("a:1")
	expect("a:1", "c:1", "b:1")
	s.isNotCertain("a:1", false)
	expect("a:1", "c:1", "b:1")
	s.silent["b:1"] = time.Now().Add(-silence)
	expect("a:1", "b:1", "c:1")
	for at := range 1000 {
		s.isNotCertain(fmt.Sprintf("%d:1", at), true)
	}
	if size := len(s.silent); size > 2*membersMax+1 {
		t.Error(size, "nodes are remembered")
	}
}
