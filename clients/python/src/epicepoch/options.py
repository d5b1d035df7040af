"""The options of a client and its hooks for metrics. All times are in seconds."""

import ssl
from dataclasses import dataclass, field
from typing import Callable, Optional, Union

from .errors import EpicEpochError, TokenError
from .frame import GUARANTEES, NAME_MAX, TIMESTAMP_FORMATS, is_token

IN_FLIGHT_LIMIT = 256
"""The limit of ``Options.in_flight``. It is below 1024, the number of requests that a node reads
before it answers."""


class Observer:
    """Hooks for metrics. Subclass it and override what you need.

    The client calls the hooks on the event loop that reads answers, so they must return quickly. A
    blocking client calls them on its own thread. An error that a hook raises is logged and has no
    other effect.
    """

    def answered(self, callers: int, timestamps: int, took: float) -> None:
        """A request was answered: the number of callers that shared it, the number of timestamps,
        and the seconds from sending to answer. The number of timestamps is 0 if all callers ask for
        the latest one."""

    def failed_attempt(self, error: EpicEpochError) -> None:
        """A request was refused, a connection ended, or an attempt to find the leader failed."""

    def connected(self, addr: str) -> None:
        """The client has connected to a leader and sends its requests there."""


@dataclass(frozen=True)
class Options:
    """Options of a client. All have defaults.

    >>> Options(hedge_after=0.02, cluster_name="payments").timeout
    2.0
    """

    timeout: float = 2.0
    """How long connecting may take, and a call without its own timeout. The default is the time of
    several elections. Above 0."""

    attempt_timeout: float = 0.5
    """How long one node may take to accept a connection, to read or to answer. After that time the
    client asks another node. The default is longer than a loaded node needs, and shorter than a
    caller wants to wait when the leader fails. At least 0.01."""

    in_flight: int = 4
    """How many requests may be in flight at once, 1 to 256. When that many are in flight, new
    callers share the next request. A higher value lowers the latency under light load and costs
    more requests under heavy load."""

    refresh_interval: float = 30.0
    """How often the client learns the members again. At least 0.1."""

    cluster_name: str = ""
    """The name of the cluster (``CLUSTER`` of its nodes), up to 64 bytes. Nodes of another name are
    refused. By default any name is accepted, and the client keeps to the cluster of the first node
    that answers."""

    hedge_after: Optional[float] = None
    """Sends a request a second time if it has had no answer for so long. The copy goes over another
    connection to the leader. If that connection fails, the copy goes to the next known node. The
    first answer counts; the timestamps of the other answer are never used. The client looks for
    slow requests every ``hedge_after``, but at least every 5 ms and at most every 1 ms. By default
    never: hedging costs a connection and, if the whole cluster is slow, up to twice the
    requests."""

    guarantee: str = ""
    """The guarantee that all requests ask for: ``"quorum"`` or ``"lease"``. With ``"lease"``, the
    leader may answer without asking a quorum. If a clock then runs at a wrong rate, or stands still
    with its machine, a timestamp may lie below one that was answered before. No timestamp is given
    twice. All clients of a keyspace must use one guarantee. A node that is too old for guarantees
    refuses the client. So name one only when all nodes are new enough, and stop naming it before
    they go back. By default requests name none, and get that of the cluster, a quorum."""

    timestamp_format: str = ""
    """The format that all timestamps must have. With ``"compact"``, a cluster that gives wide ones
    refuses each call with NotCompactError. Programs need it that call ``Timestamp.compact``
    themselves: the calls for compact timestamps check each one. A node that is too old for compact
    timestamps refuses the client. By default none is named, and any timestamp is accepted."""

    token: str = field(default="", repr=False)
    """A token of the nodes' ``CLIENT_TOKEN_FILE``, at most 256 visible ASCII characters. By default
    none. Use tokens only over TLS: otherwise anyone on the network path can read them."""

    token_source: Optional[Callable[[], str]] = None
    """A function that returns the token. It is called at each connection, so that the token can
    change: a node ends a connection whose token is no longer valid, and the client connects again.
    It is used instead of ``token``. If it raises an error or returns an invalid token, the client
    tries again until the deadline, as if the node were unreachable."""

    tls: Union[None, ssl.SSLContext, Callable[[], ssl.SSLContext]] = None
    """The TLS context for every connection, or a function that returns the context for each
    connection. The client uses the context as it is: which authorities it trusts, which versions
    it allows, and whether a node's certificate must be valid for the host that is dialled. By
    default plain TCP."""

    tls_server_name: str = ""
    """The name that a node's certificate must be valid for. By default it is the host that is
    dialled."""

    observer: Observer = field(default_factory=Observer)
    """Hooks for metrics."""

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid value."""
        for name, least in (
            ("timeout", 1e-9),
            ("attempt_timeout", 0.01),
            ("refresh_interval", 0.1),
            ("hedge_after", 1e-9),
        ):
            value = getattr(self, name)
            if value is not None and not least <= value:
                raise ValueError(f"{name} is {value}, allowed are {least} or more")
        if not 1 <= self.in_flight <= IN_FLIGHT_LIMIT:
            raise ValueError(f"in_flight is {self.in_flight}, allowed are 1 to {IN_FLIGHT_LIMIT}")
        if len(self.cluster_name.encode()) > NAME_MAX:
            raise ValueError(f"cluster_name is longer than {NAME_MAX} bytes")
        if self.guarantee not in ("", *GUARANTEES):
            raise ValueError(f"guarantee is {self.guarantee!r}, allowed are {list(GUARANTEES)}")
        if self.timestamp_format not in ("", *TIMESTAMP_FORMATS):
            allowed = list(TIMESTAMP_FORMATS)
            raise ValueError(
                f"timestamp_format is {self.timestamp_format!r}, allowed are {allowed}"
            )
        if not is_token(self.token):
            raise TokenError("token is not at most 256 visible ASCII characters")

    def current_token(self) -> str:
        """Return the token to send now. Raise TokenError if the text is not a valid token."""
        token = self.token_source() if self.token_source is not None else self.token
        if not is_token(token):
            raise TokenError("token_source returned more than 256 visible ASCII characters")
        return token

    def current_tls(self) -> Optional[ssl.SSLContext]:
        """Return the TLS context for a connection that is made now, or None for plain TCP. Raise
        ValueError if the function has returned no context, which must not mean plain TCP."""
        if not callable(self.tls):
            return self.tls
        context = self.tls()
        if not isinstance(context, ssl.SSLContext):
            raise ValueError("the function of Options.tls returned no SSLContext")
        return context
