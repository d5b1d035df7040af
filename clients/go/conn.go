package epicepoch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// agent is this client's name in the client hello.
const agent = "epicepoch-go/0.1"

// readBuffer is the size of the read buffer, in bytes: enough for several hundred answers.
const readBuffer = 16 << 10

// errLeft is the error of a connection that this client has closed. Frames that still come over it
// are ignored.
var errLeft = errors.New("it was left")

// connection is one TCP connection after its handshake.
type connection struct {
	addr    string
	net     net.Conn
	out     *outbox
	frames  frames
	welcome *welcome
	// answered is true when the connection has brought an answer. Only the goroutine that reads the
	// connection uses it.
	answered bool
}

// connect opens a connection and does the handshake. The context limits the time of both.
func connect(ctx context.Context, o *options, addr string, expected *Cluster) (*connection, error) {
	stream, err := o.connect(ctx, addr)
	if err != nil {
		return nil, unreachable(addr, err)
	}
	c := &connection{addr: addr, net: stream, out: newOutbox(stream, o.attemptTimeout)}
	reader := bufio.NewReaderSize(stream, readBuffer)
	c.frames.from = reader
	if err := c.handshake(ctx, o, reader, expected); err != nil {
		stream.Close()
		return nil, err
	}
	return c, nil
}

func (c *connection) handshake(ctx context.Context, o *options, reader *bufio.Reader, expected *Cluster) error {
	if deadline, ok := ctx.Deadline(); ok {
		c.net.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { c.net.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	token := o.token()
	if !isToken(token) {
		// The source may return a valid token the next time, so a retry may help.
		return unreachable(c.addr, ErrToken)
	}
	clientHello := hello{
		features: featureLatest | featureDirect, clusterName: o.clusterName, cluster: expected, agent: agent, token: token,
		guarantee: o.guarantee, needsCompact: o.needsCompact,
	}
	if o.asksIntervals {
		clientHello.features |= featureIntervals
	}
	if _, err := c.net.Write(clientHello.appendTo(nil)); err != nil {
		return unreachable(c.addr, err)
	}
	// A server of another protocol may send less than a frame and then wait. So check the first
	// byte before a whole frame has come.
	if kind, err := reader.Peek(1); err == nil && kind[0] != kindWelcome && kind[0] != kindError {
		if kind[0] == tlsAlert && o.tls == nil {
			return protocolError("%s: %s", c.addr, needsTLS)
		}
		return protocolError("%s answered a hello with a byte of %#x", c.addr, kind[0])
	}
	h, tail, err := c.frames.next()
	if err != nil {
		return c.broken(err)
	}
	switch h.kind {
	case kindWelcome:
		if c.welcome, err = readWelcome(h, tail); err != nil {
			return c.broken(err)
		}
		if name := o.clusterName; name != "" && c.welcome.clusterName != name {
			// The client hello named a cluster. A node of another cluster should refuse it, but
			// this node has answered.
			text := fmt.Sprintf("a cluster named %q, not %q", c.welcome.clusterName, name)
			return &Error{Addr: c.addr, Code: 64, Text: text}
		}
		if expected != nil && c.welcome.cluster != nil && *c.welcome.cluster != *expected {
			text := "another cluster, or another history of it, than this client has met"
			return &Error{Addr: c.addr, Code: 64, Text: text}
		}
		if c.leads() && c.welcome.cluster == nil {
			return c.homeless()
		}
		if !stop() {
			return unreachable(c.addr, ctx.Err())
		}
		return c.net.SetDeadline(time.Time{})
	default:
		refusal, _, err := readError(h, tail, c.addr)
		if err != nil {
			return c.broken(err)
		}
		return o.advise(refusal, token)
	}
}

// advise adds to a refused handshake what the program must set.
func (o *options) advise(refusal *Error, token string) error {
	switch {
	case errors.Is(refusal, ErrUnauthorized) && token == "":
		refusal.Text = "missing token: set WithToken or WithTokenSource; the node says: " + refusal.Text
	case errors.Is(refusal, ErrUnsupported) && o.guarantee != GuaranteeDefault:
		// A node refuses a guarantee only if it does not know the field.
		advice := "this node is too old for guarantees: update it, or leave WithGuarantee out"
		refusal.Text = advice + "; the node says: " + refusal.Text
	case errors.Is(refusal, ErrBadRequest) && o.tls == nil:
		// A node that accepts only TLS answers this. Its text says so.
		refusal.Text += "; this client speaks plain text: set WithTLS"
	}
	return refusal
}

// homeless returns the error for a leader without a cluster, whose timestamps may have any order.
func (c *connection) homeless() error {
	return &Error{Addr: c.addr, Code: 11, Text: "it leads and names no cluster"}
}

// request returns the request for count timestamps, or for the latest one if count is latestCount.
// isLatest is true if the frame asks for the latest one. A node that is too old for that is asked
// for one timestamp, which no caller gets as its own. It is valid as the latest one: it is above all
// that was answered before the request, and below all that is asked for later.
func (c *connection) request(id, count uint64) (frame head, isLatest bool) {
	if count != latestCount {
		return requestFrame(id, count), false
	}
	if c.welcome.features&featureLatest == 0 {
		return requestFrame(id, 1), false
	}
	return latestFrame(id), true
}

// leads returns whether the node has called itself the leader.
func (c *connection) leads() bool {
	return c.welcome.leader != nil && c.welcome.leader.Node == c.welcome.node
}

// ended returns why reading failed. If this client closed the connection, ended returns the
// client's reason for that.
func (c *connection) ended(err error) error {
	if why := c.out.left(); why != nil {
		err = why
	}
	return c.broken(err)
}

// dismissed returns the error of a connection that the node has closed with a refusal. A node does this
// to a client whose token is no longer valid. The source of tokens may have the new one, so the client
// connects again. The next handshake says whether the token is wrong.
func (c *connection) dismissed(refusal *Error) error {
	if errors.Is(refusal, ErrUnauthorized) {
		return unreachable(c.addr, refusal)
	}
	return refusal
}

// broken adds the node's address to an error. After a protocol error, or timestamps that went
// backwards, no retry helps. Every other error becomes [ErrUnreachable], which a retry may cure.
func (c *connection) broken(err error) error {
	if errors.Is(err, ErrWentBackwards) {
		return err
	}
	if errors.Is(err, ErrProtocol) {
		return fmt.Errorf("%w (%s)", err, c.addr)
	}
	return unreachable(c.addr, err)
}

func unreachable(addr string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s closed the connection", ErrUnreachable, addr)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnreachable, addr, err)
}
