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

// agent is how this client names itself to nodes.
const agent = "epicepoch-go/0.1"

// readBuffer holds some hundred answers.
const readBuffer = 16 << 10

// errLeft is why nothing that comes over a connection counts any more.
var errLeft = errors.New("it was left")

// connection is one TCP connection whose hello is over.
type connection struct {
	addr    string
	net     net.Conn
	out     *outbox
	frames  frames
	welcome *welcome
	// answered is set by the first answer. Only whoever reads the connection uses it.
	answered bool
}

// connect dials and greets; the context bounds both.
func connect(ctx context.Context, o *options, addr string, expected *Cluster) (*connection, error) {
	stream, err := o.connect(ctx, addr)
	if err != nil {
		return nil, unreachable(addr, err)
	}
	c := &connection{addr: addr, net: stream, out: newOutbox(stream, o.attemptTimeout)}
	reader := bufio.NewReaderSize(stream, readBuffer)
	c.frames.from = reader
	if err := c.greet(ctx, o, reader, expected); err != nil {
		stream.Close()
		return nil, err
	}
	return c, nil
}

func (c *connection) greet(ctx context.Context, o *options, reader *bufio.Reader, expected *Cluster) error {
	if deadline, ok := ctx.Deadline(); ok {
		c.net.SetDeadline(deadline)
	}
	stop := context.AfterFunc(ctx, func() { c.net.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	token := o.token()
	if !isToken(token) {
		return ErrToken
	}
	greeting := hello{clusterName: o.clusterName, cluster: expected, agent: agent, token: token}
	if _, err := c.net.Write(greeting.appendTo(nil)); err != nil {
		return unreachable(c.addr, err)
	}
	// What is no oracle may say less than a frame, and then wait.
	if kind, err := reader.Peek(1); err == nil && kind[0] != kindWelcome && kind[0] != kindError {
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
			// A node that does not look at the name that was asked for.
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
		return refusal
	}
}

// homeless is what a node gets that leads and names no cluster: its timestamps may have any order.
func (c *connection) homeless() error {
	return &Error{Addr: c.addr, Code: 11, Text: "it leads and names no cluster"}
}

// leads says whether the node called itself the leader.
func (c *connection) leads() bool {
	return c.welcome.leader != nil && c.welcome.leader.Node == c.welcome.node
}

// ended says why nothing more can be read: whoever left the connection knows best.
func (c *connection) ended(err error) error {
	if why := c.out.left(); why != nil {
		err = why
	}
	return c.broken(err)
}

// broken names the node. What breaks the protocol is not cured by another attempt; everything else
// is.
func (c *connection) broken(err error) error {
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
