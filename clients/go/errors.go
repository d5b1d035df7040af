package epicepoch

import (
	"errors"
	"fmt"
)

// Code is the number of an error on the wire.
type Code uint16

// What a node answers instead of timestamps. Match them with [errors.Is]. The client itself retries
// those that another attempt can cure; a caller sees them only as the reason why its context ended
// first, or as the reason why nothing can help.
var (
	// ErrNotLeader: another node leads.
	ErrNotLeader = errors.New("NOT_LEADER")
	// ErrNoQuorum: the leader cannot reach a majority.
	ErrNoQuorum = errors.New("NO_QUORUM")
	// ErrNoLeader: an election is under way, or no majority is up.
	ErrNoLeader = errors.New("NO_LEADER")
	// ErrOverloaded: more requests wait than the node takes.
	ErrOverloaded = errors.New("OVERLOADED")
	// ErrBadRequest: this client broke the protocol; please report it.
	ErrBadRequest = errors.New("BAD_REQUEST")
	// ErrShuttingDown: the node stops.
	ErrShuttingDown = errors.New("SHUTTING_DOWN")
	// ErrNotReady: the node has not joined its cluster yet.
	ErrNotReady = errors.New("NOT_READY")
	// ErrInternal: the node is broken; its log says why.
	ErrInternal = errors.New("INTERNAL")
	// ErrForbidden: the node does not give timestamps over this port.
	ErrForbidden = errors.New("FORBIDDEN")
	// ErrUnauthorized: the node takes only clients with a token of its file; see [WithToken].
	ErrUnauthorized = errors.New("UNAUTHORIZED")
	// ErrWrongCluster: the address belongs to another cluster, or to another history of it.
	ErrWrongCluster = errors.New("WRONG_CLUSTER")
	// ErrUnsupportedVersion: client and node have no protocol version in common.
	ErrUnsupportedVersion = errors.New("UNSUPPORTED_VERSION")
	// ErrUnsupported: the node does not know what was asked.
	ErrUnsupported = errors.New("UNSUPPORTED")
)

// What the client itself says.
var (
	// ErrClosed: [Client.Close] was called.
	ErrClosed = errors.New("epicepoch: the client is closed")
	// ErrCount: a count outside 1 to 2^32.
	ErrCount = errors.New("epicepoch: the count must be 1 to 4294967296")
	// ErrToken: what [WithToken] was given is longer than 256 bytes or not visible ASCII.
	ErrToken = errors.New("epicepoch: a token is at most 256 visible ASCII characters")
	// ErrUnreachable: a node accepts no connection, lost one, or did not answer in time.
	ErrUnreachable = errors.New("epicepoch: a node cannot be reached")
	// ErrProtocol: an answer that no oracle gives; the address is probably wrong.
	ErrProtocol = errors.New("epicepoch: not an answer of an oracle")
	// ErrWentBackwards: a timestamp was not above one that this client had returned before. Never
	// use it. Two clusters behind one address, or a cluster restored without a new history, do this.
	ErrWentBackwards = errors.New("epicepoch: timestamps went backwards")
)

var sentinels = map[Code]error{
	1: ErrNotLeader, 2: ErrNoQuorum, 3: ErrNoLeader, 4: ErrOverloaded, 7: ErrBadRequest,
	10: ErrShuttingDown, 11: ErrNotReady, 12: ErrInternal, 13: ErrForbidden, 18: ErrUnauthorized, 64: ErrWrongCluster,
	65: ErrUnsupportedVersion, 66: ErrUnsupported,
}

// Error is what a node answered instead of timestamps.
type Error struct {
	// Addr is the node that was asked.
	Addr string
	// Code is the number on the wire.
	Code Code
	// Text is the node's advice to people; with [ErrNotLeader] it is the leader's address.
	Text string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("epicepoch: %s refused with %v", e.Addr, e.Unwrap())
	}
	return fmt.Sprintf("epicepoch: %s refused with %v: %s", e.Addr, e.Unwrap(), e.Text)
}

// Unwrap returns the sentinel of the code. An unknown code is [ErrInternal].
func (e *Error) Unwrap() error {
	if sentinel, ok := sentinels[e.Code]; ok {
		return sentinel
	}
	return ErrInternal
}

// isCurable says whether another attempt, here or elsewhere, can end better.
func isCurable(err error) bool {
	for _, curable := range [...]error{
		ErrNotLeader, ErrNoQuorum, ErrNoLeader, ErrOverloaded, ErrShuttingDown, ErrNotReady,
		ErrInternal, ErrUnreachable,
	} {
		if errors.Is(err, curable) {
			return true
		}
	}
	return false
}

// interrupted is a context's end together with why it took so long.
type interrupted struct {
	context error
	last    error
}

func (e *interrupted) Error() string {
	return fmt.Sprintf("%v: %v", e.context, e.last)
}

func (e *interrupted) Unwrap() []error { return []error{e.context, e.last} }
