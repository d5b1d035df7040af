package epicepoch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"
)

// The frames of docs/protocol.md. Everything that is read has a limit, and a violation is an error.

const (
	headSize       = 16
	wideSize       = 32
	welcomeTailMax = 32768
	membersMax     = 64
	nameMax        = 64
	tokenMax       = 256
	addressMax     = 260
	errorTextMax   = 512

	kindRequest = 0x01
	kindPing    = 0x02
	kindPong    = 0x03
	kindGoodbye = 0x04
	// kindIntervalRequest and kindIntervalAnswer are of interval mode.
	kindIntervalRequest = 0x05
	kindAnswer          = 0x41
	kindIntervalAnswer  = 0x43
	kindHello           = 0x80
	kindWelcome         = 0x81
	kindError           = 0x82
	kindLeader          = 0x83

	magic   = 0x45504f434854534f // EPOCHTSO
	version = 1

	tagFeatures    = 0x0001
	tagClusterName = 0x0002
	tagCluster     = 0x0003
	tagAgent       = 0x0004
	tagNode        = 0x0005
	tagLeader      = 0x0006
	tagInFlightMax = 0x0007
	tagIdle        = 0x0008
	tagCountMax    = 0x0009
	tagMember      = 0x000a
	tagToken       = 0x8001
	tagGuarantee   = 0x8002
	tagMustKnow    = 0x8000
	// tagTimestampFormat is the field with the format that all timestamps must have.
	tagTimestampFormat = 0x8004
	// formatCompact is the value of that field for compact timestamps.
	formatCompact = 1

	errorCloses = 1
	// flagLatest is the flag of a request for the latest timestamp, and of its answer.
	flagLatest = 1
	// flagLease is the flag of an answer that the lease of the leader has proved.
	flagLease = 2
	// featureLatest is the feature of a node that answers such requests.
	featureLatest = 1
	// featureIntervals is the feature of a node that knows interval mode.
	featureIntervals = 2
	// featureDirect says that this client follows to the leader: no node sends its requests on.
	featureDirect = 4
)

const (
	// idleDefault is the idle limit of a node whose welcome names none.
	idleDefault = 120 * time.Second
	// idleMin is the shortest idle limit that the client accepts from a node.
	idleMin = 300 * time.Millisecond
)

// countMax is the largest count of a request in version 1.
const countMax = uint64(1) << 32

// head is the first 16 bytes of every frame.
type head struct {
	kind     byte
	flags    byte
	code     uint16
	argument uint32
	id       uint64
}

// Cluster names a cluster and its history.
type Cluster struct {
	// ID is drawn at random when a cluster is founded.
	ID [16]byte
	// History changes when a cluster is restored from a backup.
	History uint64
}

// Member is a node and its client address.
type Member struct {
	// Node is the node's id, never 0.
	Node uint64
	// Addr is host:port.
	Addr string
}

// welcome is the node's part of the handshake.
type welcome struct {
	features    uint64
	clusterName string
	cluster     *Cluster
	node        uint64
	leader      *Member
	inFlightMax uint32
	idleMillis  uint32
	countMax    uint64
	members     []Member
}

// hello is the client's part of the handshake.
type hello struct {
	features    uint64
	clusterName string
	cluster     *Cluster
	agent       string
	token       string
	guarantee   Guarantee
	// needsCompact says that all timestamps of the connection must be compact.
	needsCompact bool
}

func protocolError(format string, arguments ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, arguments...))
}

func readHead(from []byte) head {
	return head{
		kind: from[0], flags: from[1], code: binary.BigEndian.Uint16(from[2:]),
		argument: binary.BigEndian.Uint32(from[4:]), id: binary.BigEndian.Uint64(from[8:]),
	}
}

func (h head) appendTo(to []byte) []byte {
	to = append(to, h.kind, h.flags)
	to = binary.BigEndian.AppendUint16(to, h.code)
	to = binary.BigEndian.AppendUint32(to, h.argument)
	return binary.BigEndian.AppendUint64(to, h.id)
}

// tailSize returns how many bytes follow the head.
func (h head) tailSize() (int, error) {
	switch h.kind >> 6 {
	case 0:
		return 0, nil
	case 1:
		return wideSize - headSize, nil
	case 2:
		if h.argument > welcomeTailMax {
			return 0, protocolError("a tail of %d bytes, the limit is %d", h.argument, welcomeTailMax)
		}
		return int(h.argument), nil
	default:
		return 0, protocolError("kind %#x has no length", h.kind)
	}
}

// requestFrame returns a request for count timestamps, 1 <= count <= 2^32.
func requestFrame(id, count uint64) head {
	return head{kind: kindRequest, argument: uint32(count - 1), id: id}
}

// latestFrame returns a request for the latest timestamp.
func latestFrame(id uint64) head {
	return head{kind: kindRequest, flags: flagLatest, id: id}
}

// readRange reads an Answer to a client that asks for a guarantee. isLatest is true if the answer
// holds the latest timestamp, and not timestamps for this client alone. Only a client that asks for a
// lease accepts an answer that a lease has proved.
func readRange(h head, tail []byte, asked Guarantee) (answer Range, isLatest bool, err error) {
	if asked == GuaranteeLease {
		h.flags &^= flagLease
	} else if h.flags&flagLease != 0 {
		return Range{}, false, protocolError("an answer that a lease has proved, which this client has not asked for")
	}
	isLatest = h.flags == flagLatest
	if h.code != 0 || h.flags&^flagLatest != 0 || (isLatest && h.argument != 0) {
		return Range{}, false, protocolError("an answer with reserved bits")
	}
	answer = Range{First: FromBytes([TimestampSize]byte(tail)), Count: uint64(h.argument) + 1}
	if answer.First.Index+(answer.Count-1) < answer.First.Index {
		return Range{}, false, protocolError("an answer that leaves its epoch")
	}
	return answer, isLatest, nil
}

// readError reads an Error. It also returns whether the node closes the connection afterwards.
func readError(h head, tail []byte, addr string) (*Error, bool, error) {
	if h.flags&^errorCloses != 0 {
		return nil, false, protocolError("an error with unknown flags")
	}
	if len(tail) > errorTextMax || !utf8.Valid(tail) {
		return nil, false, protocolError("an error whose text is no text of at most %d bytes", errorTextMax)
	}
	return &Error{Addr: addr, Code: Code(h.code), Text: string(tail)}, h.flags&errorCloses != 0, nil
}

// readLeader reads a Leader notice. It returns nil if no node leads.
func readLeader(h head, tail []byte) (*Member, error) {
	if h.flags != 0 || h.code != 0 {
		return nil, protocolError("a leader with reserved bits")
	}
	if h.id == 0 && len(tail) == 0 {
		return nil, nil
	}
	if h.id == 0 || len(tail) == 0 || len(tail) > addressMax || !utf8.Valid(tail) {
		return nil, protocolError("a leader without an id or an address")
	}
	return &Member{Node: h.id, Addr: string(tail)}, nil
}

// checkPlain checks a Ping, Pong or Goodbye.
func checkPlain(h head) error {
	if h.flags != 0 || h.code != 0 || h.argument != 0 || (h.kind == kindGoodbye && h.id != 0) {
		return protocolError("a frame of kind %#x with reserved bits", h.kind)
	}
	return nil
}

func appendField(to []byte, tag uint16, value []byte) []byte {
	to = binary.BigEndian.AppendUint16(to, tag)
	to = binary.BigEndian.AppendUint16(to, uint16(len(value)))
	return append(to, value...)
}

func (h hello) appendTo(to []byte) []byte {
	var fields []byte
	if h.features != 0 {
		fields = appendField(fields, tagFeatures, binary.BigEndian.AppendUint64(nil, h.features))
	}
	if h.clusterName != "" {
		fields = appendField(fields, tagClusterName, []byte(h.clusterName))
	}
	if h.cluster != nil {
		value := binary.BigEndian.AppendUint64(bytes.Clone(h.cluster.ID[:]), h.cluster.History)
		fields = appendField(fields, tagCluster, value)
	}
	if h.agent != "" {
		fields = appendField(fields, tagAgent, []byte(h.agent))
	}
	if h.token != "" {
		fields = appendField(fields, tagToken, []byte(h.token))
	}
	if value, isNamed := h.guarantee.value(); isNamed {
		fields = appendField(fields, tagGuarantee, []byte{value})
	}
	if h.needsCompact {
		fields = appendField(fields, tagTimestampFormat, []byte{formatCompact})
	}
	first := head{
		kind: kindHello, flags: version, code: version << 8, argument: uint32(len(fields)), id: magic,
	}
	return append(first.appendTo(to), fields...)
}

// readWelcome reads a Welcome.
func readWelcome(h head, tail []byte) (*welcome, error) {
	switch {
	case h.id != magic:
		return nil, protocolError("another magic")
	case h.flags != version:
		return nil, protocolError("version %d, which was not offered", h.flags)
	case h.code != 0:
		return nil, protocolError("a welcome with reserved bits")
	}
	var w welcome
	seen := make(map[uint16]bool)
	for len(tail) > 0 {
		if len(tail) < 4 {
			return nil, protocolError("a field that is cut off")
		}
		tag, length := binary.BigEndian.Uint16(tail), int(binary.BigEndian.Uint16(tail[2:]))
		tail = tail[4:]
		if len(tail) < length {
			return nil, protocolError("a field that is cut off")
		}
		value := tail[:length]
		tail = tail[length:]
		// Only the last known field and unknown fields may repeat.
		if seen[tag] && tag < tagMember {
			return nil, protocolError("field %#x twice", tag)
		}
		seen[tag] = true
		if err := w.take(tag, value); err != nil {
			return nil, err
		}
	}
	if w.node == 0 || w.inFlightMax == 0 || w.countMax == 0 {
		return nil, protocolError("a welcome without a node id or its limits")
	}
	return &w, nil
}

// pingEvery returns the time between pings on an idle connection.
func (w *welcome) pingEvery() time.Duration {
	limit := time.Duration(w.idleMillis) * time.Millisecond
	if limit == 0 {
		limit = idleDefault
	}
	return max(limit, idleMin) / 3
}

func (w *welcome) take(tag uint16, value []byte) error {
	var err error
	switch tag {
	case tagFeatures:
		w.features, err = number(tag, value, 8)
	case tagClusterName:
		w.clusterName, err = text(tag, value, nameMax)
	case tagCluster:
		if len(value) != 24 {
			return protocolError("field %#x with %d bytes", tag, len(value))
		}
		w.cluster = &Cluster{ID: [16]byte(value[:16]), History: binary.BigEndian.Uint64(value[16:])}
		if w.cluster.ID == [16]byte{} {
			return protocolError("a cluster without an id")
		}
	case tagNode:
		w.node, err = number(tag, value, 8)
	case tagLeader:
		w.leader, err = member(tag, value)
	case tagInFlightMax:
		var limit uint64
		limit, err = number(tag, value, 4)
		w.inFlightMax = uint32(limit)
	case tagIdle:
		var limit uint64
		limit, err = number(tag, value, 4)
		w.idleMillis = uint32(limit)
	case tagCountMax:
		w.countMax, err = number(tag, value, 8)
	case tagMember:
		if len(w.members) == membersMax {
			return protocolError("more than %d members", membersMax)
		}
		var one *Member
		if one, err = member(tag, value); err == nil {
			w.members = append(w.members, *one)
		}
	default:
		if tag >= tagMustKnow {
			return protocolError("field %#x, which must be understood and is not", tag)
		}
	}
	return err
}

func number(tag uint16, value []byte, size int) (uint64, error) {
	if len(value) != size {
		return 0, protocolError("field %#x with %d bytes", tag, len(value))
	}
	if size == 4 {
		return uint64(binary.BigEndian.Uint32(value)), nil
	}
	return binary.BigEndian.Uint64(value), nil
}

func text(tag uint16, value []byte, longest int) (string, error) {
	if len(value) > longest || !utf8.Valid(value) {
		return "", protocolError("field %#x is no text of at most %d bytes", tag, longest)
	}
	return string(value), nil
}

func member(tag uint16, value []byte) (*Member, error) {
	if len(value) < 9 {
		return nil, protocolError("field %#x with %d bytes", tag, len(value))
	}
	node := binary.BigEndian.Uint64(value)
	addr, err := text(tag, value[8:], addressMax)
	if err == nil && node == 0 {
		err = protocolError("field %#x with the node id 0", tag)
	}
	return &Member{Node: node, Addr: addr}, err
}

// frames reads one frame after another into its own buffer.
type frames struct {
	from io.Reader
	tail [welcomeTailMax]byte
	head [headSize]byte
}

// next returns the next frame. The tail is valid until the next call.
func (f *frames) next() (head, []byte, error) {
	if _, err := io.ReadFull(f.from, f.head[:]); err != nil {
		return head{}, nil, unexpected(err)
	}
	h := readHead(f.head[:])
	size, err := h.tailSize()
	if err != nil {
		return h, nil, err
	}
	tail := f.tail[:size]
	if _, err := io.ReadFull(f.from, tail); err != nil {
		return h, nil, unexpected(err)
	}
	return h, tail, nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// isToken returns whether a text is a valid token. The empty text is one.
func isToken(text string) bool {
	for _, char := range []byte(text) {
		if char <= ' ' || char > '~' {
			return false
		}
	}
	return len(text) <= tokenMax
}
