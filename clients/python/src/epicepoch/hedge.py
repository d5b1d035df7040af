"""Hedging: slow requests are repeated over a second connection, and the callers get the first
answer. The other answer is checked and dropped. Decision 14 of the project says why the order of
timestamps holds.
"""

import asyncio
from typing import TYPE_CHECKING, Optional

from .connection import Connection, connect
from .directory import backoff
from .errors import (
    EpicEpochError,
    NotLeaderError,
    ProtocolError,
    ShuttingDownError,
    UnreachableError,
    WentBackwardsError,
    WrongClusterError,
)
from .frame import (
    ANSWER,
    ERROR,
    GOODBYE,
    LEADER,
    Head,
    read_answer,
    read_error,
    read_leader,
)
from .requests import Asked, request_for
from .timestamp import TimestampRange

if TYPE_CHECKING:
    from .session import Session

COPIES_MAX = 64
"""The most repeated requests that wait for an answer on the second connection."""
BURNT_MAX = 1024
"""The most requests that were answered over the second connection and not yet over the first. These
are called burnt. A node reads as many requests of a connection before it answers."""


class Hedger:
    """The second connection of a session, and the requests that were sent over it."""

    def __init__(self, session: "Session", after: float) -> None:
        self.session = session
        self.connection: Optional[Connection] = None
        self.copies: dict[int, Asked] = {}
        """The requests that were sent over the second connection and have no answer there yet."""
        self.burnt: dict[int, Asked] = {}
        """The burnt requests, by id: answered over the second connection and not yet over the
        first."""
        self._after = after
        self._timeout = max(after, session.options.attempt_timeout / 8)
        """How long the client waits for one node before it tries the next one."""
        self._opening = False
        self._next = ""
        """The address at which the second connection is opened next. If it is empty, the hedger
        tries the leader first, and then one address after another."""
        self._tried_leader = False
        self._not_before = 0.0
        self._idle_until = 0.0
        """While no call waits, no second connection is opened before this time."""
        self._late = 0
        """How many second connections in a row took too long to open. Each doubles the time for the
        next one, because a handshake may take longer than ``_timeout``."""
        self._failures = 0
        """How many second connections in a row could not be used."""
        self._answered = float("-inf")
        """The time at which the second connection last brought an answer."""

    async def run(self) -> None:
        """Repeat slow requests until the client is closed."""
        while True:
            await asyncio.sleep(min(max(self._after, 0.001), 0.005))
            self._turn(self.session.loop.time())

    def _turn(self, now: float) -> None:
        """Send a copy of each request that is slow now. Open the second connection if there is
        none."""
        session, leader = self.session, self.session.connection
        if any(now - copy.at > self._timeout for copy in self.copies.values()):
            self.leave()
        if leader is None:
            return
        if self.connection is not None:
            frames = self._repeat(now, self.connection)
            if frames:
                self.connection.write(frames)
        elif not self._opening and self._may_open(now):
            addr = self._next or ("" if self._tried_leader else leader.addr)
            self._next, self._tried_leader, self._opening = "", True, True
            session.begin(self._open(addr or session.directory.other(leader.addr)))

    def _may_open(self, now: float) -> bool:
        """Return whether the pause before the next second connection is over. A call that waits
        ends the longer pause of an idle client."""
        requests = self.session.requests
        is_awaited = bool(requests.in_flight) or requests.is_awaited()
        return now > self._not_before and (is_awaited or now > self._idle_until)

    def _repeat(self, now: float, connection: Connection) -> bytes:
        frames = b""
        for id, batch in self.session.requests.in_flight.items():
            if len(self.copies) >= COPIES_MAX or len(self.burnt) >= BURNT_MAX:
                break
            if (
                now - batch.sent >= self._after
                and id not in self.copies
                and batch.count <= connection.welcome.count_max
            ):
                # The client may have returned timestamps since it sent the first request. The
                # answer to the copy must be above these, too.
                frame, is_latest = request_for(id, batch.count, connection.has_latest)
                highest = self.session.requests.highest
                self.copies[id] = Asked(batch.count, is_latest, highest, now)
                frames += frame
        return frames

    def leave(self) -> None:
        """Close the second connection and forget its copies."""
        connection, self.connection = self.connection, None
        self.copies.clear()
        self._not_before = self.session.loop.time()
        if connection is not None:
            connection.leave(UnreachableError(f"{connection.addr} was left"))

    async def _open(self, addr: str) -> None:
        session = self.session
        attempt_timeout = session.options.attempt_timeout
        until = session.loop.time() + self._timeout
        limit = max(self._timeout, min(self._timeout * (1 << self._late), attempt_timeout))
        hint, is_open = "", False
        try:
            connection = await connect(addr, session.options, session.cluster, limit)
            if connection.ended.done():
                return
            welcome = connection.welcome
            if welcome.leads:
                self.connection = connection
                self.copies.clear()
                is_open = True
                self._late, self._failures, self._idle_until = 0, 0, 0.0
                connection.on_end = lambda error: self._ended(connection, error)
                connection.receive(lambda head, tail: self._receive(connection, head, tail))
                return
            connection.leave(UnreachableError(f"{addr} does not lead"))
            if welcome.leader is not None:
                hint = welcome.leader.addr
        except WrongClusterError as error:
            session.fail(error)
        except EpicEpochError as error:
            # The leader answers, or its own connection will say why not.
            if isinstance(error.__cause__, asyncio.TimeoutError) and limit < attempt_timeout:
                self._late += 1
        finally:
            self._opening = False
            if not is_open:
                self._wait(until)
                suspect = session.directory.is_suspect(hint, session.loop.time())
                self._next = "" if suspect else hint

    def _wait(self, until: float) -> None:
        """Let the pause before the next second connection grow, because this one could not be used.
        The pause begins now, but not before the given time."""
        until = max(until, self.session.loop.time())
        pause, idle = backoff(self._failures)
        self._failures += 1
        self._not_before, self._idle_until = until + pause, until + idle

    def _ended(self, connection: Connection, why: EpicEpochError) -> None:
        if self.connection is connection:
            # This end is no sign of a failure, because nodes close idle connections. So the leader
            # may be tried again.
            self._tried_leader = False
            self.leave()
            self._not_before += self._timeout
            if isinstance(why, NotLeaderError):
                self._next = why.text
        if isinstance(why, (ProtocolError, WentBackwardsError)):
            self.session.fail(why)

    def _receive(self, connection: Connection, head: Head, tail: bytes) -> None:
        """Handle a frame of the second connection. An error that this raises ends the
        connection."""
        if connection.take_plain(head):
            return
        if head.kind == ANSWER:
            guarantee = self.session.options.guarantee
            self._take(connection, head.id, *read_answer(head, tail, guarantee))
        elif head.kind == ERROR:
            raise read_error(head, tail, connection.addr)[0]
        elif head.kind == GOODBYE:
            raise ShuttingDownError(connection.addr, 10)
        elif head.kind == LEADER:
            leader = read_leader(head, tail)
            if leader is None or leader.node != connection.welcome.node:
                raise UnreachableError(f"{connection.addr} leads no more")

    def _take(
        self, connection: Connection, id: int, answer: TimestampRange, is_latest: bool
    ) -> None:
        """Pass an answer to its callers, unless they have one already."""
        session = self.session
        copy = self.copies.pop(id, None)
        if copy is None:
            raise ProtocolError(f"an answer to request {id}, which is not in flight")
        copy.check(connection.addr, answer, is_latest)
        self._answered = session.loop.time()
        batch = session.requests.in_flight.pop(id, None)
        if batch is None:
            return
        # The first connection still owes its answer to this request.
        self.burnt[id] = batch.asked
        leader = session.connection
        if leader is not None and leader.welcome.node != connection.welcome.node:
            # Only a leader answers, so the node of the first connection does not lead any more.
            leader.leave(UnreachableError(f"{connection.addr} answers instead of {leader.addr}"))
        session.answered(connection, batch, answer)

    def take_burnt(self, id: int, answer: TimestampRange, is_latest: bool) -> bool:
        """Return whether an answer of the first connection belongs to a request that the second
        connection has already answered. If so, check the answer."""
        first = self.burnt.pop(id, None)
        if first is None:
            return False
        leader = self.session.connection
        first.check(leader.addr if leader is not None else "", answer, is_latest)
        return True

    def forgive(self, id: int) -> bool:
        """Handle a refusal that came over the first connection. Return whether the second
        connection has already answered this request, and forget the request."""
        return self.burnt.pop(id, None) is not None

    def oldest(self, now: float) -> float:
        """Return the time at which the oldest request was sent that only the second connection has
        answered, or now if there is none."""
        return min((first.at for first in self.burnt.values()), default=now)

    def lost(self) -> str:
        """Forget the answers that the first connection owed, because it has ended. If the second
        connection has brought an answer recently, return its address, otherwise an empty text."""
        self.burnt.clear()
        self._tried_leader = False
        connection, now = self.connection, self.session.loop.time()
        if connection is None or now - self._answered > self.session.options.attempt_timeout:
            return ""
        return connection.addr
