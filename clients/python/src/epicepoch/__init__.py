"""Python client of EpicEpoch, a replicated timestamp oracle.

The oracle gives unique, strictly increasing timestamps of 16 bytes. ``Client`` is for asyncio,
``blocking.Client`` for threads. A client finds the leader, follows it when it moves, and merges
callers that ask at the same time into one request. A caller joins only a request that has not been
sent yet, so its timestamp is allocated after it asked. If an answer is lost, its timestamps are
never used; nothing else is lost. So asking again is always safe, and the client asks again until
the caller's deadline.
"""

from . import blocking
from .client import Client
from .errors import (
    BadCountError,
    BadRequestError,
    ClosedError,
    CountError,
    DeadlineExceededError,
    EpicEpochError,
    ForbiddenError,
    InternalError,
    NoLeaderError,
    NoQuorumError,
    NotCompactError,
    NotLeaderError,
    NotReadyError,
    OtherModeError,
    OverloadedError,
    ProtocolError,
    RefusedError,
    ShuttingDownError,
    TokenError,
    TooManyCallsError,
    UnauthorizedError,
    UnreachableError,
    UnsupportedError,
    UnsupportedVersionError,
    WentBackwardsError,
    WrongClusterError,
)
from .frame import Cluster, Member
from .options import Observer, Options
from .timestamp import Timestamp, TimestampRange

__version__ = "0.2.0"

__all__ = [
    "BadCountError",
    "BadRequestError",
    "Client",
    "ClosedError",
    "Cluster",
    "CountError",
    "DeadlineExceededError",
    "EpicEpochError",
    "ForbiddenError",
    "InternalError",
    "Member",
    "NoLeaderError",
    "NoQuorumError",
    "NotCompactError",
    "NotLeaderError",
    "NotReadyError",
    "Observer",
    "Options",
    "OtherModeError",
    "OverloadedError",
    "ProtocolError",
    "RefusedError",
    "ShuttingDownError",
    "Timestamp",
    "TimestampRange",
    "TokenError",
    "TooManyCallsError",
    "UnauthorizedError",
    "UnreachableError",
    "UnsupportedError",
    "UnsupportedVersionError",
    "WentBackwardsError",
    "WrongClusterError",
    "blocking",
]
