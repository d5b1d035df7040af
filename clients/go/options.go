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
	token          func() string
	dial           func(ctx context.Context, addr string) (net.Conn, error)
	tls            func() *tls.Config // nil for plain TCP
	log            *slog.Logger
	hooks          Hooks
}

// Hooks are called as things happen, for metrics. They must return quickly: some are called where
// answers are read. Each may be nil.
type Hooks struct {
	// Answered is called once per request that brought timestamps: how many callers shared it, how
	// many timestamps they got, and how long it took from sending to answer.
	Answered func(callers int, timestamps uint64, took time.Duration)
	// Failed is called once per refused request, once per connection that ends, whether or not
	// anybody waits for it, and once per attempt to find a leader that found none. Of an idle client
	// it tells of outages all the same.
	Failed func(err error)
	// LeaderChanged is called when requests go to another address than before.
	LeaderChanged func(addr string)
}

func defaults() options {
	var dialer net.Dialer
	return options{
		attemptTimeout: 250 * time.Millisecond,
		callTimeout:    30 * time.Second,
		inFlight:       4,
		refresh:        30 * time.Second,
		token:          func() string { return "" },
		dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr)
		},
		log: slog.New(slog.DiscardHandler),
	}
}

// check refuses what cannot be meant.
func (o *options) check() error {
	switch {
	case len(o.clusterName) > nameMax:
		return fmt.Errorf("epicepoch: %q is no name of a cluster, it is longer than %d bytes", o.clusterName, nameMax)
	case o.callTimeout <= 0:
		return fmt.Errorf("epicepoch: a call timeout of %v, it must be above 0", o.callTimeout)
	case o.hedgeAfter < 0:
		return fmt.Errorf("epicepoch: a hedge after %v, it must be above 0, or 0 for never", o.hedgeAfter)
	case o.token == nil:
		return errors.New("epicepoch: the source of tokens is nil")
	case o.dial == nil:
		return errors.New("epicepoch: the dialer is nil")
	case o.log == nil:
		return errors.New("epicepoch: the logger is nil")
	}
	return nil
}

// WithClusterName refuses nodes of another cluster name, 1 to 64 bytes. Default: any, and from then on the cluster
// of the first node that answers.
func WithClusterName(name string) Option { return func(o *options) { o.clusterName = name } }

// WithAttemptTimeout says how long one node may take to accept a connection, to read or to answer before
// another one is asked. Default 250 ms: longer than a loaded node needs, and short enough to find
// the new leader at the time when it is elected. At least 10 ms.
func WithAttemptTimeout(timeout time.Duration) Option {
	return func(o *options) { o.attemptTimeout = max(timeout, 10*time.Millisecond) }
}

// WithCallTimeout bounds [Dial], and calls whose context has no deadline. Default 30 s; above 0.
func WithCallTimeout(timeout time.Duration) Option {
	return func(o *options) { o.callTimeout = timeout }
}

// WithInFlight says how many requests may be under way at once, 1 to 256. Default 4: callers that
// come while as many are under way share the next one. More lowers the latency under light load
// and costs more requests under heavy load.
func WithInFlight(requests int) Option {
	return func(o *options) { o.inFlight = min(max(requests, 1), inFlightMax) }
}

// WithRefresh says how often the list of members is read anew. Default 30 s, at least 100 ms.
func WithRefresh(every time.Duration) Option {
	return func(o *options) { o.refresh = max(every, 100*time.Millisecond) }
}

// WithHedgeAfter asks a second time for a request that has no answer after that long, over another
// connection to the leader, or where that one gives nothing, of the next known node. The first answer
// wins, the timestamps of the other are skipped. It is looked for every 5 ms, or every after if that
// is shorter, but for 1 ms. Default: 0, never. It costs a connection and, where the whole cluster is
// slow, up to twice the requests.
func WithHedgeAfter(after time.Duration) Option { return func(o *options) { o.hedgeAfter = after } }

// WithToken sends a token to every node: one of its CLIENT_TOKEN_FILE, at most 256 visible ASCII characters.
// Default: none. It is not for anybody else on the way: use it over TLS.
func WithToken(token string) Option { return WithTokenSource(func() string { return token }) }

// WithTokenSource asks for the token of [WithToken] whenever a connection begins, so that it can change under a
// running client. Empty is none. It must return quickly.
func WithTokenSource(token func() string) Option { return func(o *options) { o.token = token } }

// WithDialer replaces how connections are made.
func WithDialer(dial func(ctx context.Context, addr string) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithLogger tells of leader changes and failures. Default: nothing is logged.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithHooks observes requests, for metrics.
func WithHooks(hooks Hooks) Option { return func(o *options) { o.hooks = hooks } }

// inFlightMax is the most that [WithInFlight] takes; a node reads at most 1024 ahead.
const inFlightMax = 256
