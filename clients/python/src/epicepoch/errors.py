"""The errors of a client. If a retry may heal an error, the client tries again until the caller's
deadline."""

from typing import ClassVar, Optional


class EpicEpochError(Exception):
    """The base of all errors of this package."""

    is_retried: ClassVar[bool] = False
    """Whether the client tries again after this error. If so, a caller sees the error only as the
    ``last`` of a DeadlineExceededError."""


class ClosedError(EpicEpochError):
    """The client is closed."""


class CountError(EpicEpochError, ValueError):
    """The count is not within 1 to 2**32, or it is above the leader's limit."""


class TokenError(EpicEpochError, ValueError):
    """The token is longer than 256 characters, or not visible ASCII. A call never raises this:
    ``Options`` raises it for ``token``. The client tries again after an invalid token of
    ``token_source``."""


class TooManyCallsError(EpicEpochError):
    """Too many calls wait for one client. Retry when some have ended."""


class DeadlineExceededError(EpicEpochError, TimeoutError):
    """No timestamp came before the deadline. Try again later, or with a longer timeout."""

    last: Optional[EpicEpochError]
    """Why the call took so long: the client's last failure since its last success."""

    def __init__(self, last: Optional[EpicEpochError] = None) -> None:
        super().__init__(last)
        self.last = last

    def __str__(self) -> str:
        return f"no timestamp before the deadline: {self.last or 'no answer yet'}"


class UnreachableError(EpicEpochError):
    """A node accepted no connection, closed one, or did not answer in time. Or the function for
    tokens or TLS contexts failed."""

    is_retried = True


class ProtocolError(EpicEpochError):
    """No oracle gives such an answer. The address is probably wrong."""


class WentBackwardsError(EpicEpochError):
    """A timestamp was not above one that this client had returned before, or a latest timestamp was
    below one. The caller does not get it.

    The cause is two clusters behind one address, or a cluster restored without a new history.
    """


class RefusedError(EpicEpochError):
    """A node refused. The subclass says why. A code that this version does not know is an
    InternalError."""

    name: ClassVar[str]
    """The name of the error in the project's documents."""

    def __init__(self, addr: str, code: int, text: str = "") -> None:
        super().__init__(addr, code, text)
        self.addr = addr
        """The address of the node."""
        self.code = code
        """The number on the wire."""
        self.text = text
        """The node's advice. With NotLeaderError it is the leader's address."""

    def __str__(self) -> str:
        said = f"{self.addr} refused with {self.name}"
        return f"{said}: {self.text}" if self.text else said


class NotLeaderError(RefusedError):
    """Another node leads."""

    name = "NOT_LEADER"
    is_retried = True


class NoQuorumError(RefusedError):
    """The leader cannot reach a majority."""

    name = "NO_QUORUM"
    is_retried = True


class NoLeaderError(RefusedError):
    """An election is in progress, or no majority is up."""

    name = "NO_LEADER"
    is_retried = True


class OverloadedError(RefusedError):
    """More requests wait than the node accepts."""

    name = "OVERLOADED"
    is_retried = True


class BadRequestError(RefusedError):
    """This client broke the protocol; please report it."""

    name = "BAD_REQUEST"


class ShuttingDownError(RefusedError):
    """The node is shutting down."""

    name = "SHUTTING_DOWN"
    is_retried = True


class NotReadyError(RefusedError):
    """The node has not joined its cluster yet."""

    name = "NOT_READY"
    is_retried = True


class InternalError(RefusedError):
    """The node is broken; its log says why."""

    name = "INTERNAL"
    is_retried = True


class ForbiddenError(RefusedError):
    """The node does not give timestamps over this port."""

    name = "FORBIDDEN"


class UnauthorizedError(RefusedError):
    """The node accepts only clients that send a token from its token file; see
    ``Options.token``."""

    name = "UNAUTHORIZED"


class BadCountError(RefusedError):
    """The count is above what the cluster gives at once: 2^18, if it gives compact timestamps."""

    name = "BAD_COUNT"


class NotCompactError(RefusedError):
    """The cluster gives wide timestamps, which have no compact spelling. A node refused because of
    that, or gave a wide timestamp to a call for a compact one; ``addr`` is empty then. Call
    ``timestamp`` instead, or have an operator change the cluster with ``epicepoch settings set
    TIMESTAMP_FORMAT=compact``."""

    name = "NOT_COMPACT"

    def __str__(self) -> str:
        return super().__str__() if self.addr else self.text


class OtherModeError(RefusedError):
    """The cluster is in interval mode, and gives no timestamps of quorum mode."""

    name = "OTHER_MODE"


class WrongClusterError(RefusedError):
    """The node belongs to another cluster, or to another history of this client's cluster."""

    name = "WRONG_CLUSTER"


class UnsupportedVersionError(RefusedError):
    """Client and node have no protocol version in common."""

    name = "UNSUPPORTED_VERSION"


class UnsupportedError(RefusedError):
    """The node does not know the request."""

    name = "UNSUPPORTED"


REFUSALS: dict[int, type[RefusedError]] = {
    1: NotLeaderError,
    2: NoQuorumError,
    3: NoLeaderError,
    4: OverloadedError,
    5: BadCountError,
    7: BadRequestError,
    10: ShuttingDownError,
    11: NotReadyError,
    12: InternalError,
    13: ForbiddenError,
    18: UnauthorizedError,
    19: NotCompactError,
    22: OtherModeError,
    64: WrongClusterError,
    65: UnsupportedVersionError,
    66: UnsupportedError,
}


def not_compact(first: object) -> NotCompactError:
    """Return the error for a call for compact timestamps that got a wide one."""
    advice = "change the cluster with epicepoch settings set TIMESTAMP_FORMAT=compact"
    text = f"the cluster gave {first}, which does not fit into 64 bits: {advice}"
    return NotCompactError("", 19, text)


def refusal(addr: str, code: int, text: str = "") -> RefusedError:
    """Return the error for a number on the wire."""
    return REFUSALS.get(code, InternalError)(addr, code, text)
