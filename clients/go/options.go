package epicepoch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"
)

// Option changes a default of [Dial].
type Option func(*options)

type options struct {
	clusterName    string
	attemptTimeout time.Duration
	callTimeout    time.Duration
	inFlight       int
	refresh        time.Duration
	hedgeAfter     time.Duration
	guarantee      Guarantee
	needsCompact   bool
	onlyIntervals  bool
	asksIntervals  bool // set by the client, for connections of interval mode
	token          func() string
	fixedToken     string // the token of WithToken; "" if the token is a source's
	dial           func(ctx context.Context, addr string) (net.Conn, error)
	tls            func() *tls.Config // nil for plain TCP
	lacksTLS       bool               // the config of WithTLS was nil
	log            *slog.Logger
	hooks          Hooks
	callsMax       int // most calls of [Client.Go] that wait
}

// Hooks are functions that the client calls, for metrics. They must return quickly, because some
// are called on the goroutine that reads answers. None may call [Client.Close], which waits until the
// hook has returned. Answered and FailedAttempt may run on several goroutines at once. Each hook may be
// nil.
type Hooks struct {
	// Answered is called for each answered request. Its arguments are the number of callers that
	// shared the request, the number of timestamps, and the time from sending to answer. The number of
	// timestamps is 0 if all callers ask for the latest one.
	Answered func(callers int, timestamps uint64, took time.Duration)
	// FailedAttempt is called for each refused request, for each connection that ends, and for each
	// failed attempt to find a leader. The client also calls it while no call waits.
	FailedAttempt func(err error)
	// Connected is called when the client has connected to a leader, also to the same one again.
	Connected func(addr string)
}

func defaults() options {
	return options{
		attemptTimeout: 500 * time.Millisecond,
		callTimeout:    2 * time.Second,
		inFlight:       4,
		refresh:        30 * time.Second,
		token:          func() string { return "" },
		dial:           nodeNames.dial,
		log:            slog.New(slog.DiscardHandler),
		callsMax:       1 << 20,
	}
}

// check rejects invalid options.
func (o *options) check() error {
	switch {
	case len(o.clusterName) > nameMax:
		return fmt.Errorf("epicepoch: %q is no name of a cluster, it is longer than %d bytes", o.clusterName, nameMax)
	case o.callTimeout <= 0:
		return fmt.Errorf("epicepoch: a call timeout of %v, it must be above 0", o.callTimeout)
	case o.hedgeAfter < 0:
		return fmt.Errorf("epicepoch: a hedge after %v, it must be above 0, or 0 for never", o.hedgeAfter)
	case o.guarantee > GuaranteeLease:
		return fmt.Errorf("epicepoch: %d is no guarantee", o.guarantee)
	case !isToken(o.fixedToken):
		return ErrToken
	case o.token == nil:
		return errors.New("epicepoch: the source of tokens is nil")
	case o.lacksTLS:
		return errors.New("epicepoch: the config of WithTLS is nil: give one, or leave WithTLS out for plain TCP")
	case o.dial == nil:
		return errors.New("epicepoch: the dialer is nil")
	case o.log == nil:
		return errors.New("epicepoch: the logger is nil")
	}
	return nil
}

// WithClusterName rejects nodes of a cluster with another name. A name has 1 to 64 bytes. By
// default any name is accepted. The client then keeps to the cluster of the first node that
// answers.
func WithClusterName(name string) Option { return func(o *options) { o.clusterName = name } }

// WithAttemptTimeout sets how long one node may take to accept a connection, to read or to answer.
// After that time the client asks another node. Default 500 ms: longer than a loaded node needs,
// and shorter than a caller wants to wait in a failover. At least 10 ms.
func WithAttemptTimeout(timeout time.Duration) Option {
	return func(o *options) { o.attemptTimeout = max(timeout, 10*time.Millisecond) }
}

// WithCallTimeout limits [Dial] and calls, if their context has no deadline. It counts from the
// beginning of the call. Default 2 s, the time of several elections, as in the clients of all
// languages. The limit must be above 0.
func WithCallTimeout(timeout time.Duration) Option {
	return func(o *options) { o.callTimeout = timeout }
}

// WithInFlight sets how many requests may be in flight at once, 1 to 256. Default 4. When that many
// are in flight, new callers share the next request. A higher value lowers the latency under light
// load and costs more requests under heavy load.
func WithInFlight(requests int) Option {
	return func(o *options) { o.inFlight = min(max(requests, 1), inFlightMax) }
}

// WithRefresh sets how often the client learns the members again. Default 30 s, at least 100 ms.
func WithRefresh(every time.Duration) Option {
	return func(o *options) { o.refresh = max(every, 100*time.Millisecond) }
}

// WithHedgeAfter sends a request a second time if it has had no answer for the time after. The copy
// goes over another connection to the leader. If that connection fails, the copy goes to the next
// known node. The first answer counts; the timestamps of the other answer are never used. The
// client looks for slow requests every after, but at least every 5 ms and at most every 1 ms.
// Default 0, which means never. Hedging costs a connection and, if the whole cluster is slow, up to
// twice the requests.
func WithHedgeAfter(after time.Duration) Option { return func(o *options) { o.hedgeAfter = after } }

// Guarantee is what a request asks to be proved before it is answered.
type Guarantee uint8

const (
	// GuaranteeDefault names no guarantee: requests get that of the cluster, a quorum.
	GuaranteeDefault Guarantee = iota
	// GuaranteeQuorum asks a quorum. The order of timestamps never depends on a clock.
	GuaranteeQuorum
	// GuaranteeLease lets the leader answer without asking a quorum, while it has a lease.
	GuaranteeLease
)

// value returns the value of the guarantee in a client hello.
func (g Guarantee) value() (value byte, isNamed bool) { return byte(g) - 1, g != GuaranteeDefault }

// WithGuarantee sets the guarantee that all requests of the client ask for. With GuaranteeLease, the
// leader may answer without asking a quorum. If a clock then runs at a wrong rate, or stands still
// with its machine, a timestamp may lie below one that was answered before. No timestamp is given
// twice. All clients of a keyspace must use one guarantee. A node that is too old for
// guarantees refuses the client with [ErrUnsupported]. So name one only when all nodes are new
// enough, and stop naming it before they go back. Default: requests name none.
func WithGuarantee(guarantee Guarantee) Option {
	return func(o *options) { o.guarantee = guarantee }
}

// WithCompact says that all timestamps must be compact. A cluster that gives wide timestamps refuses
// all calls with [ErrNotCompact]. Programs that convert timestamps with [Timestamp.Compact] need it;
// [Client.CompactTimestamp] checks each one itself. A node that is too old for the setting refuses the
// client with [ErrUnsupported].
func WithCompact() Option { return func(o *options) { o.needsCompact = true } }

// WithIntervals is for programs that call only [Client.Interval], [Client.Intervals] and
// [Client.MustRetry]. [Dial] then returns at once and looks for no leader: in interval mode, nodes
// answer without one. Calls for timestamps of quorum mode fail with [ErrOtherMode].
func WithIntervals() Option { return func(o *options) { o.onlyIntervals = true } }

// WithToken sends a token to every node. The token must be in the node's CLIENT_TOKEN_FILE, and has
// at most 256 visible ASCII characters. Default: none. Use it only over TLS; otherwise anyone on
// the network path can read it.
func WithToken(token string) Option {
	return func(o *options) { o.token, o.fixedToken = func() string { return token }, token }
}

// WithTokenSource calls a function for the token of [WithToken] at each connection, so that the
// token can change. An empty text stands for no token. After an invalid token the client tries
// again, as if the node were unreachable. The function must return quickly.
func WithTokenSource(token func() string) Option {
	return func(o *options) { o.token, o.fixedToken = token, "" }
}

// WithDialer sets the function that makes connections.
func WithDialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithLogger logs leader changes and failures. Default: nothing is logged.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithHooks sets functions that observe requests, for metrics.
func WithHooks(hooks Hooks) Option { return func(o *options) { o.hooks = hooks } }

// inFlightMax is the limit of [WithInFlight]. It is below 1024, the number of requests that a node
// reads before it answers.
const inFlightMax = 256
