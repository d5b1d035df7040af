package epicepoch

import (
	"errors"
	"fmt"
)

// Code is the number of an error on the wire.
type Code uint16

// Errors that a node answers. Match them with [errors.Is]. If a retry may cure an error, the client
// tries again. The caller sees such an error only when its context ends, as the reason for the
// delay. All other errors end the call at once.
var (
	// ErrNotLeader: another node leads.
	ErrNotLeader = errors.New("NOT_LEADER")
	// ErrNoQuorum: the leader cannot reach a majority.
	ErrNoQuorum = errors.New("NO_QUORUM")
	// ErrNoLeader: an election is in progress, or no majority is up.
	ErrNoLeader = errors.New("NO_LEADER")
	// ErrOverloaded: more requests wait than the node accepts.
	ErrOverloaded = errors.New("OVERLOADED")
	// ErrBadCount: the count is above what the cluster gives at once. A cluster that gives compact
	// timestamps gives at most 2^18 of them.
	ErrBadCount = errors.New("BAD_COUNT")
	// ErrBadRequest: this client broke the protocol; please report it.
	ErrBadRequest = errors.New("BAD_REQUEST")
	// ErrShuttingDown: the node is shutting down.
	ErrShuttingDown = errors.New("SHUTTING_DOWN")
	// ErrNotReady: the node has not joined its cluster yet.
	ErrNotReady = errors.New("NOT_READY")
	// ErrInternal: the node is broken; its log says why.
	ErrInternal = errors.New("INTERNAL")
	// ErrForbidden: the node does not give timestamps over this port.
	ErrForbidden = errors.New("FORBIDDEN")
	// ErrUnauthorized: the node accepts only clients that send a token from its token file; see
	// [WithToken].
	ErrUnauthorized = errors.New("UNAUTHORIZED")
	// ErrNotCompact: the cluster gives wide timestamps, which have no compact spelling. See
	// [Client.CompactTimestamp] and [WithCompact].
	ErrNotCompact = errors.New("NOT_COMPACT")
	// ErrUncertain: in interval mode, the node does not know the time well enough.
	ErrUncertain = errors.New("UNCERTAIN")
	// ErrOtherMode: the cluster is in the other mode. In interval mode it gives only intervals, see
	// [Client.Interval]; in quorum mode it gives none.
	ErrOtherMode = errors.New("OTHER_MODE")
	// ErrWrongCluster: the node belongs to another cluster, or to another history of this client's
	// cluster.
	ErrWrongCluster = errors.New("WRONG_CLUSTER")
	// ErrUnsupportedVersion: client and node have no protocol version in common.
	ErrUnsupportedVersion = errors.New("UNSUPPORTED_VERSION")
	// ErrUnsupported: the node does not know the request.
	ErrUnsupported = errors.New("UNSUPPORTED")
)

// Errors that the client itself reports.
var (
	// ErrClosed: [Client.Close] was called.
	ErrClosed = errors.New("epicepoch: the client is closed")
	// ErrCount: the count is not within 1 to 2^32.
	ErrCount = errors.New("epicepoch: the count must be 1 to 4294967296")
	// ErrTooManyCalls: 2^20 calls of [Client.Go] wait. Try again when some have ended. Calls of
	// [Client.Timestamps] have no limit.
	ErrTooManyCalls = errors.New("epicepoch: too many calls wait")
	// ErrToken: the token is longer than 256 bytes or not visible ASCII. [Dial] returns it for
	// [WithToken]. The client tries again after an invalid token of [WithTokenSource].
	ErrToken = errors.New("epicepoch: a token is at most 256 visible ASCII characters")
	// ErrUnreachable: a node accepted no connection, closed one, or did not answer in time.
	ErrUnreachable = errors.New("epicepoch: a node cannot be reached")
	// ErrProtocol: the answer is invalid. The address is probably wrong.
	ErrProtocol = errors.New("epicepoch: not an answer of an oracle")
	// ErrWentBackwards: a timestamp was not above one that this client had returned before, or
	// a latest timestamp was below one. The caller does not get it, because it may have been given
	// before. The cause is two clusters behind one address, or a cluster restored without a new
	// history.
	ErrWentBackwards = errors.New("epicepoch: timestamps went backwards")
)

var sentinels = map[Code]error{
	1: ErrNotLeader, 2: ErrNoQuorum, 3: ErrNoLeader, 4: ErrOverloaded, 5: ErrBadCount, 7: ErrBadRequest,
	10: ErrShuttingDown, 11: ErrNotReady, 12: ErrInternal, 13: ErrForbidden, 18: ErrUnauthorized, 19: ErrNotCompact,
	21: ErrUncertain, 22: ErrOtherMode,
	64: ErrWrongCluster, 65: ErrUnsupportedVersion, 66: ErrUnsupported,
}

// Error is an error that a node answered.
type Error struct {
	// Addr is the address of the node.
	Addr string
	// Code is the number on the wire.
	Code Code
	// Text is the node's advice. With [ErrNotLeader] it is the leader's address.
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

// isCurable returns whether a retry, at this node or another, may succeed.
func isCurable(err error) bool {
	for _, curable := range [...]error{
		ErrNotLeader, ErrNoQuorum, ErrNoLeader, ErrOverloaded, ErrShuttingDown, ErrNotReady,
		ErrInternal, ErrUncertain, ErrUnreachable,
	} {
		if errors.Is(err, curable) {
			return true
		}
	}
	return false
}

// isTimeout returns whether something took too long.
func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// interrupted is the error of a context that ended, with the reason for the delay.
type interrupted struct {
	context error
	last    error
}

func (e *interrupted) Error() string {
	return fmt.Sprintf("%v: %v", e.context, e.last)
}

func (e *interrupted) Unwrap() []error { return []error{e.context, e.last} }
