package epicepoch

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAnInvalidTokenIsRetriedUntilTheSourceHasAValidOne(t *testing.T) {
	leader, source := startNode(t, 1), &oracle{next: 1}
	leader.ask = source.serve
	var tries atomic.Int64
	client := dial(t, []string{leader.addr()}, WithTokenSource(func() string {
		if tries.Add(1) <= 2 {
			return "not a token"
		}
		return "token"
	}))
	get(t, client)
	if got := tries.Load(); got != 3 {
		t.Error(got, "tokens were asked for")
	}
	ctx, hook := untilItFails(t)
	_, err := Dial(ctx, []string{leader.addr()}, hook, WithTokenSource(func() string { return "not a token" }),
		WithAttemptTimeout(10*time.Second))
	for _, cause := range []error{context.Canceled, ErrUnreachable, ErrToken} {
		if !errors.Is(err, cause) {
			t.Errorf("%v is not %v", err, cause)
		}
	}
	// A token that never changes is an error of the program.
	_, err = Dial(within(t, 10*time.Second), []string{leader.addr()}, WithToken("not a token"))
	if !errors.Is(err, ErrToken) || errors.Is(err, ErrUnreachable) {
		t.Error(err)
	}
}

// A node ends the connection of a client whose token is no longer valid. The source has the new one.
func TestATokenThatIsNoLongerValidIsReplacedWithinTheCall(t *testing.T) {
	leader, other, source := startNode(t, 1), startNode(t, 2), &oracle{next: 1}
	var isRevoked, isRefused atomic.Bool
	var tokens atomic.Int64
	other.onHello = func() *welcome { return other.welcome(leader) }
	leader.ask = func(to *peer, id, count uint64) {
		if isRevoked.CompareAndSwap(true, false) {
			to.dismiss(id)
			return
		}
		source.serve(to, id, count)
	}
	leader.onHello = func() *welcome {
		if isRefused.Load() {
			leader.refuseHello(18, "invalid token")
			return nil
		}
		return leader.welcome(leader)
	}
	addrs := []string{leader.addr(), other.addr()}
	client := dial(t, addrs, WithAttemptTimeout(10*time.Second), WithTokenSource(func() string {
		tokens.Add(1)
		return "token"
	}))
	get(t, client)
	before := other.met.Load()
	isRevoked.Store(true)
	get(t, client)
	// The node that dismissed the client still leads.
	if tokens.Load() != leader.met.Load()+other.met.Load() || leader.met.Load() != 2 || other.met.Load() != before {
		t.Error(tokens.Load(), "tokens were asked for,", leader.met.Load(), "connections,", other.met.Load(), "others")
	}
	// The new token is wrong, too.
	isRefused.Store(true)
	isRevoked.Store(true)
	got, err := client.Timestamp(within(t, 10*time.Second))
	if !errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		t.Error(got, err)
	}
}

func TestATokenThatIsNoLongerValidIsReplacedInIntervalModeToo(t *testing.T) {
	node, other := startStampingNode(t, 1, someday), startStampingNode(t, 2, someday)
	stamp, hello := node.stamp, node.onHello
	var revoked, tokens, failed atomic.Int64
	var isRefused atomic.Bool
	node.stamp = func(to *peer, id, count uint64) {
		if revoked.Add(-1) >= 0 {
			to.dismiss(id)
			return
		}
		stamp(to, id, count)
	}
	node.onHello = func() *welcome {
		if isRefused.Load() {
			node.refuseHello(18, "invalid token")
			return nil
		}
		return hello()
	}
	client := dialNodes(t, []string{node.addr(), other.addr()}, WithTokenSource(func() string {
		tokens.Add(1)
		return "token"
	}), WithHooks(Hooks{FailedAttempt: func(error) { failed.Add(1) }}))
	// The first call makes the connection; the second one finds it without a token.
	for dismissals := range int64(2) {
		revoked.Store(dismissals)
		got, err := client.Interval(within(t, 30*time.Second))
		if err != nil || got.Timestamp.Index>>48&0x7fff != 1 || tokens.Load() != 1+dismissals || failed.Load() != 0 {
			t.Error(got, err, tokens.Load(), failed.Load())
		}
	}
	// A node that accepts the new token and then does not is passed over.
	revoked.Store(2)
	got, err := client.Interval(within(t, 30*time.Second))
	if err != nil || got.Timestamp.Index>>48&0x7fff != 2 || failed.Load() != 1 {
		t.Error(got, err, failed.Load())
	}
	other.goDown()
	isRefused.Store(true)
	got, err = client.Interval(within(t, 30*time.Second))
	if !errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrUnreachable) || errors.Is(err, context.DeadlineExceeded) {
		t.Error(got, err)
	}
}

func TestASecondConnectionThatDoesNotOpenEndsNoCall(t *testing.T) {
	for _, why := range []string{"no token", "a refusal"} {
		leader := startNode(t, 1)
		var tokens, failed atomic.Int64
		asked := make(chan func(), 1)
		leader.ask = func(to *peer, id, count uint64) {
			asked <- func() { to.answer(id, count, Timestamp{Epoch: 1, Index: 1}) }
		}
		leader.onHello = func() *welcome {
			if leader.met.Load() == 1 {
				return leader.welcome(leader)
			}
			failed.Add(1)
			leader.refuseHello(18, "no token")
			return nil
		}
		token := func() string {
			if why == "no token" && tokens.Add(1) > 1 {
				failed.Add(1)
				return "not a token"
			}
			return ""
		}
		client := dial(t, []string{leader.addr()}, WithHedgeAfter(hedgeAfter), WithAttemptTimeout(hedgeAttempt),
			WithTokenSource(token))
		got := make(chan error, 1)
		go func() {
			_, err := client.Timestamp(within(t, 10*time.Second))
			got <- err
		}()
		answer := <-asked
		// The next attempt begins a second after the one before has failed.
		for deadline := time.Now().Add(10 * time.Second); failed.Load() < 2; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(why, ": no second attempt")
			}
		}
		answer()
		if err := <-got; err != nil {
			t.Error(why, err)
		}
	}
}

func TestALeaderThatNamesItselfKeepsTheSecondConnection(t *testing.T) {
	leader := startNode(t, 1)
	var main first
	taken, source := make(chan struct{}, 1), &oracle{next: 1}
	leader.ask = func(to *peer, id, count uint64) {
		if main.is(to) {
			return
		}
		// This notice names the node itself, which says nothing new.
		notice := head{kind: kindLeader, argument: uint32(len(leader.addr())), id: leader.id}
		to.say(append(notice.appendTo(nil), leader.addr()...))
		source.serve(to, id, count)
		select {
		case taken <- struct{}{}:
		default:
		}
	}
	client := hedging(t, leader.addr())
	get(t, client)
	get(t, client)
	<-taken
	if met := leader.met.Load(); met != 2 {
		t.Error(met, "connections")
	}
}

func TestATokenHasAtMost256VisibleCharacters(t *testing.T) {
	for text, valid := range map[string]bool{
		"": true, "!": true, "~": true, " ": false, "\x7f": false, "a\tb": false, "\u00e9": false,
		strings.Repeat("t", 256): true, strings.Repeat("t", 257): false,
	} {
		if isToken(text) != valid {
			t.Errorf("%q: %v", text, !valid)
		}
	}
}
