"""The frames of the native protocol (docs/protocol.md of the project).

Everything that is read has a limit, and a violation is a ProtocolError. This module does no IO.
"""

import struct
from dataclasses import dataclass
from typing import NamedTuple, Optional

from .errors import ProtocolError, RefusedError, refusal
from .timestamp import U64_MAX, Timestamp, TimestampRange

COUNT_MAX = 1 << 32
"""The largest count of a request in version 1."""
HEAD_SIZE = 16
WIDE_TAIL_SIZE = 16
TAIL_MAX = 32768
MEMBERS_MAX = 64
NAME_MAX = 64
TOKEN_MAX = 256
ADDRESS_MAX = 260
ERROR_TEXT_MAX = 512
IDLE_DEFAULT_MS = 120_000
IDLE_MIN_MS = 300
"""The shortest idle limit that the client accepts from a node."""

REQUEST = 0x01
PING = 0x02
PONG = 0x03
GOODBYE = 0x04
ANSWER = 0x41
HELLO = 0x80
WELCOME = 0x81
ERROR = 0x82
LEADER = 0x83

MAGIC = 0x45504F434854534F  # EPOCHTSO
VERSION = 1
ERROR_CLOSES = 1
FLAG_LATEST = 1
"""The flag of a request for the latest timestamp, and of its answer."""
FLAG_LEASE = 2
"""The flag of an answer that the lease of the leader has proved."""
FEATURE_LATEST = 1
# This client follows to the leader: no node sends its requests on.
FEATURE_DIRECT = 4
"""The feature of a node that answers requests for the latest timestamp."""

FEATURES_TAG = 0x0001
CLUSTER_NAME_TAG = 0x0002
CLUSTER_TAG = 0x0003
AGENT_TAG = 0x0004
NODE_TAG = 0x0005
LEADER_TAG = 0x0006
IN_FLIGHT_MAX_TAG = 0x0007
IDLE_TAG = 0x0008
COUNT_MAX_TAG = 0x0009
MEMBER_TAG = 0x000A
TOKEN_TAG = 0x8001
GUARANTEE_TAG = 0x8002
TIMESTAMP_FORMAT_TAG = 0x8004
MUST_KNOW_TAG = 0x8000

GUARANTEES = {"quorum": 0, "lease": 1}
"""The guarantees that a client hello may name, and their values there."""
TIMESTAMP_FORMATS = {"wide": 0, "compact": 1}
"""The formats of timestamps that a client hello may name, and their values there."""

_HEAD = struct.Struct(">BBHIQ")
_FIELD = struct.Struct(">HH")
_CLUSTER = struct.Struct(">16sQ")
_U64 = struct.Struct(">Q")
_NO_CLUSTER_ID = bytes(16)


class Head(NamedTuple):
    """The first 16 bytes of every frame."""

    kind: int
    flags: int = 0
    code: int = 0
    argument: int = 0
    id: int = 0

    def encode(self) -> bytes:
        return _HEAD.pack(*self)

    def tail_size(self) -> int:
        """Return how many bytes follow the head."""
        size_class = self.kind >> 6
        if size_class == 0:
            return 0
        if size_class == 1:
            return WIDE_TAIL_SIZE
        if size_class == 2:
            if self.argument > TAIL_MAX:
                raise ProtocolError(f"a tail of {self.argument} bytes, the limit is {TAIL_MAX}")
            return self.argument
        raise ProtocolError(f"kind {self.kind:#x} has no length")


class Cluster(NamedTuple):
    """A cluster and its history."""

    id: bytes
    """The cluster's id: 16 bytes, drawn at random when the cluster was founded."""
    history: int
    """The history, which changes when the cluster is restored from a backup."""


class Member(NamedTuple):
    """A node and its client address."""

    node: int
    """The node's id, never 0."""
    addr: str
    """``host:port``."""


@dataclass(frozen=True)
class Welcome:
    """The node's part of the handshake."""

    node: int
    in_flight_max: int
    count_max: int
    features: int = 0
    cluster_name: str = ""
    cluster: Optional[Cluster] = None
    leader: Optional[Member] = None
    idle_ms: int = 0
    members: tuple[Member, ...] = ()

    @property
    def leads(self) -> bool:
        """Whether the node has called itself the leader."""
        return self.leader is not None and self.leader.node == self.node

    @property
    def ping_every(self) -> float:
        """The time between pings on an idle connection, in seconds."""
        return max(self.idle_ms or IDLE_DEFAULT_MS, IDLE_MIN_MS) / 3000


class Decoder:
    """Cuts bytes into frames, whatever pieces the bytes arrive in. It holds at most an incomplete
    frame and the bytes of one read."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Append bytes that have arrived."""
        del self._bytes[: self._at]
        self._at = 0
        self._bytes += data

    def next(self) -> Optional[tuple[Head, bytes]]:
        """Return the next frame, or None if it is not complete yet."""
        tail_at = self._at + HEAD_SIZE
        if len(self._bytes) < tail_at:
            return None
        head = Head._make(_HEAD.unpack_from(self._bytes, self._at))
        end = tail_at + head.tail_size()
        if len(self._bytes) < end:
            return None
        self._at = end
        return head, bytes(self._bytes[tail_at:end])


def request(id: int, count: int) -> bytes:
    """Encode a request for 1 to 2**32 timestamps."""
    return _HEAD.pack(REQUEST, 0, 0, count - 1, id)


def latest(id: int) -> bytes:
    """Encode a request for the latest timestamp."""
    return _HEAD.pack(REQUEST, FLAG_LATEST, 0, 0, id)


def ping(id: int) -> bytes:
    return Head(PING, id=id).encode()


def pong(id: int) -> bytes:
    return Head(PONG, id=id).encode()


def hello(
    agent: str,
    cluster_name: str = "",
    cluster: Optional[Cluster] = None,
    token: str = "",
    features: int = 0,
    guarantee: str = "",
    timestamp_format: str = "",
) -> bytes:
    """Encode the client's part of the handshake."""
    fields = field(FEATURES_TAG, _U64.pack(features)) if features else b""
    if cluster_name:
        fields += field(CLUSTER_NAME_TAG, cluster_name.encode())
    if cluster is not None:
        fields += field(CLUSTER_TAG, _CLUSTER.pack(*cluster))
    if agent:
        fields += field(AGENT_TAG, agent.encode())
    if token:
        fields += field(TOKEN_TAG, token.encode())
    if guarantee:
        fields += field(GUARANTEE_TAG, bytes([GUARANTEES[guarantee]]))
    if timestamp_format:
        fields += field(TIMESTAMP_FORMAT_TAG, bytes([TIMESTAMP_FORMATS[timestamp_format]]))
    return Head(HELLO, VERSION, VERSION << 8, len(fields), MAGIC).encode() + fields


def field(tag: int, value: bytes) -> bytes:
    return _FIELD.pack(tag, len(value)) + value


def check_plain(head: Head) -> None:
    """Check a Ping, Pong or Goodbye."""
    if head.flags or head.code or head.argument or (head.kind == GOODBYE and head.id):
        raise ProtocolError(f"a frame of kind {head.kind:#x} with reserved bits")


def read_answer(head: Head, tail: bytes, guarantee: str) -> tuple[TimestampRange, bool]:
    """Return the timestamps, and whether they are the latest one, and not for this client alone.
    Only a client that asks for a lease accepts an answer that a lease has proved."""
    if guarantee == "lease":
        head = head._replace(flags=head.flags & ~FLAG_LEASE)
    elif head.flags & FLAG_LEASE:
        raise ProtocolError("an answer that a lease has proved, which was not asked for")
    is_latest = head.flags == FLAG_LATEST
    if head.code or head.flags & ~FLAG_LATEST or (is_latest and head.argument):
        raise ProtocolError("an answer with reserved bits")
    first, count = Timestamp.from_bytes(tail), head.argument + 1
    if first.index + count - 1 > U64_MAX:
        raise ProtocolError("an answer that leaves its epoch")
    return TimestampRange(first, count), is_latest


def read_error(head: Head, tail: bytes, addr: str) -> tuple[RefusedError, bool]:
    """Return the refusal, and whether the node closes the connection after it."""
    if head.flags & ~ERROR_CLOSES:
        raise ProtocolError("an error with unknown flags")
    text = _text("an error", tail, ERROR_TEXT_MAX)
    return refusal(addr, head.code, text), bool(head.flags & ERROR_CLOSES)


def read_leader(head: Head, tail: bytes) -> Optional[Member]:
    """Read a Leader notice. Return None if no node leads."""
    if head.flags or head.code:
        raise ProtocolError("a leader with reserved bits")
    addr = _text("a leader's address", tail, ADDRESS_MAX)
    if (head.id == 0) != (addr == ""):
        raise ProtocolError("a leader without an id or an address")
    return Member(head.id, addr) if addr else None


def read_welcome(head: Head, tail: bytes) -> Welcome:
    if head.id != MAGIC:
        raise ProtocolError("a welcome with another magic")
    if head.flags != VERSION:
        raise ProtocolError(f"version {head.flags}, which was not offered")
    if head.code:
        raise ProtocolError("a welcome with reserved bits")
    values, members = _fields(tail)
    cluster = leader = None
    if CLUSTER_TAG in values:
        cluster = Cluster(*_CLUSTER.unpack(_sized(values, CLUSTER_TAG, _CLUSTER.size)))
        if cluster.id == _NO_CLUSTER_ID:
            raise ProtocolError("a cluster without an id")
    if LEADER_TAG in values:
        leader = _member(LEADER_TAG, values[LEADER_TAG])
    welcome = Welcome(
        node=_number(values, NODE_TAG, 8),
        in_flight_max=_number(values, IN_FLIGHT_MAX_TAG, 4),
        count_max=_number(values, COUNT_MAX_TAG, 8),
        features=_number(values, FEATURES_TAG, 8),
        cluster_name=_text("a cluster's name", values.get(CLUSTER_NAME_TAG, b""), NAME_MAX),
        cluster=cluster,
        leader=leader,
        idle_ms=_number(values, IDLE_TAG, 4),
        members=members,
    )
    if not (welcome.node and welcome.in_flight_max and welcome.count_max):
        raise ProtocolError("a welcome without a node id or its limits")
    return welcome


def is_token(text: str) -> bool:
    """Return whether a text may be given as a token. The empty text may; it means that no token is
    sent."""
    return len(text) <= TOKEN_MAX and all("!" <= char <= "~" for char in text)


def _fields(tail: bytes) -> tuple[dict[int, bytes], tuple[Member, ...]]:
    """Return the fields by tag, and the members. Of the known fields, only the member may come
    several times."""
    values: dict[int, bytes] = {}
    members: list[Member] = []
    at = 0
    while at < len(tail):
        if len(tail) < at + _FIELD.size:
            raise ProtocolError("a field that is cut off")
        tag, length = _FIELD.unpack_from(tail, at)
        at += _FIELD.size + length
        if len(tail) < at:
            raise ProtocolError("a field that is cut off")
        value = tail[at - length : at]
        if tag == MEMBER_TAG:
            if len(members) == MEMBERS_MAX:
                raise ProtocolError(f"more than {MEMBERS_MAX} members")
            members.append(_member(tag, value))
        elif tag >= MUST_KNOW_TAG:
            raise ProtocolError(f"field {tag:#x}, which must be understood and is not")
        elif tag in _ONCE:
            if tag in values:
                raise ProtocolError(f"field {tag:#x} twice")
            values[tag] = value
    return values, tuple(members)


_ONCE: set[int] = set(range(FEATURES_TAG, MEMBER_TAG))
"""The known fields that come at most once. Unknown fields of later versions are skipped."""


def _sized(values: dict[int, bytes], tag: int, size: int) -> bytes:
    value = values[tag]
    if len(value) != size:
        raise ProtocolError(f"field {tag:#x} with {len(value)} bytes")
    return value


def _number(values: dict[int, bytes], tag: int, size: int) -> int:
    return int.from_bytes(_sized(values, tag, size), "big") if tag in values else 0


def _text(what: str, value: bytes, longest: int) -> str:
    if len(value) > longest:
        raise ProtocolError(f"{what} of {len(value)} bytes, the limit is {longest}")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"{what} that is not UTF-8") from None


def _member(tag: int, value: bytes) -> Member:
    if len(value) <= _U64.size:
        raise ProtocolError(f"field {tag:#x} with {len(value)} bytes")
    (node,) = _U64.unpack_from(value)
    if node == 0:
        raise ProtocolError(f"field {tag:#x} with the node id 0")
    return Member(node, _text("a member's address", value[_U64.size :], ADDRESS_MAX))
