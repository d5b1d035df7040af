"""The client for asyncio."""

import asyncio
import copy
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Optional

from .errors import (
    ClosedError,
    CountError,
    DeadlineExceededError,
    EpicEpochError,
    not_compact,
)
from .frame import COUNT_MAX, Cluster
from .options import Options
from .requests import LATEST, Outcome, Waiter, deadline_exceeded
from .session import Session
from .timestamp import Timestamp, TimestampRange


class Client:
    """A client of one cluster, for asyncio. Share one client: calls at the same time share a
    request.

    It finds the leader through the client address (``host:port``) of any member. It connects at its
    first call, and belongs to the event loop of that call. ``async with`` connects at its
    beginning, and closes the client at its end::

        async with epicepoch.Client(["db1:8080", "db2:8080", "db3:8080"]) as client:
            start = await client.timestamp()

    A client does not survive a fork. Make one in each process.
    """

    def __init__(self, addrs: Iterable[str], options: Options = Options()) -> None:
        """Make a client. Raise ValueError if there is no address, or one that is not host:port."""
        self._addrs = checked(addrs)
        self._options = options
        self._session: Optional[Session] = None
        self._closed = False

    async def connect(self, timeout: Optional[float] = None) -> None:
        """Return when the leader is found. Raise DeadlineExceededError if it is not found in time.
        An error that no retry heals is raised at once."""
        session = self._started()
        within = self._options.timeout if timeout is None else timeout
        found = session.found()
        await asyncio.wait({found}, timeout=within if within > 0 else 0)
        if not found.done():
            raise DeadlineExceededError(session.last_error)
        error = found.result()
        if error is not None:
            raise copy.copy(error)

    async def timestamp(self, timeout: Optional[float] = None) -> Timestamp:
        """Return one timestamp. It is above every timestamp that any client of the cluster got
        before this call began. See ``timestamps`` for the errors."""
        return await self._call(1, timeout)

    async def timestamps(self, count: int, timeout: Optional[float] = None) -> TimestampRange:
        """Return count timestamps of one epoch with consecutive indexes, 1 to 2**32 of them.

        If the leader fails, the call takes longer. It raises DeadlineExceededError after the
        timeout, by default that of the options. The error's ``last`` says why the call took so
        long. The call raises any other EpicEpochError only if no retry helps. Cancelling a call
        does not disturb other calls.
        """
        check_count(count)
        return TimestampRange(await self._call(count, timeout), count)

    async def latest(self, timeout: Optional[float] = None) -> Timestamp:
        """Return the latest timestamp, and take none. Every timestamp that any client of the
        cluster got before this call began is at or below it. Every timestamp that is asked for
        after this call has returned is above it.

        It is no watermark: a writer that has a timestamp at or below it may not have written yet.
        It is not unique, so it must not be used as an id. See ``timestamps`` for the errors.
        """
        return await self._call(LATEST, timeout)

    async def compact_timestamp(self, timeout: Optional[float] = None) -> int:
        """Return one timestamp in 64 bits, ``milliseconds << 18 | index``: that of ``timestamp``,
        and in the same order. It is below 2**63. Raise NotCompactError unless the cluster gives
        compact timestamps (``TIMESTAMP_FORMAT=compact``). See ``timestamps`` for other errors."""
        return (await self.compact_timestamps(1, timeout))[0]

    async def compact_timestamps(self, count: int, timeout: Optional[float] = None) -> range:
        """Return count consecutive timestamps of one millisecond in 64 bits, 1 to 2**18 of them.
        See ``compact_timestamp``. A larger count raises CountError or BadCountError."""
        return compact_of(await self.timestamps(count, timeout))

    async def compact_latest(self, timeout: Optional[float] = None) -> int:
        """Return the timestamp of ``latest`` in 64 bits. See ``compact_timestamp``."""
        return compact_of(TimestampRange(await self.latest(timeout), 1))[0]

    @property
    def members(self) -> list[str]:
        """The client addresses of the members, as the client last learned them."""
        return [] if self._session is None else list(self._session.directory.members)

    @property
    def leader(self) -> str:
        """The address of the leader, or an empty text if none is known."""
        connection = None if self._session is None else self._session.connection
        return "" if connection is None else connection.addr

    @property
    def cluster(self) -> Optional[Cluster]:
        """The id and history of this client's cluster, or None before a node has named them."""
        return None if self._session is None else self._session.cluster

    async def close(self) -> None:
        """End all calls with ClosedError, and close the connections."""
        self._closed = True
        # After a fork, the connections belong to the other process.
        if self._session is not None and self._session.process == os.getpid():
            await self._session.close()

    async def __aenter__(self) -> "Client":
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        await self.close()

    def _started(self) -> Session:
        if self._session is not None and self._session.closed is not None:
            raise copy.copy(self._session.closed)
        if self._closed:
            raise closed()
        if self._session is None:
            self._session = Session(self._addrs, self._options)
        elif self._session.process != os.getpid():
            raise forked()
        elif self._session.loop is not asyncio.get_running_loop():
            raise RuntimeError("this client belongs to another event loop")
        return self._session

    async def _call(self, count: int, timeout: Optional[float]) -> Timestamp:
        session = self._started()
        loop = session.loop
        within = self._options.timeout if timeout is None else timeout
        deadline = loop.time() + within
        future: asyncio.Future[Outcome] = loop.create_future()
        waiter = Waiter(count, future)
        if not within > 0:
            raise deadline_exceeded(waiter, session.last_error)
        timer = loop.call_at(deadline, waiter.finish, None)
        try:
            session.ask(waiter)
            outcome = await future
        finally:
            timer.cancel()
        if isinstance(outcome, Timestamp) and loop.time() < deadline:
            return outcome
        if isinstance(outcome, EpicEpochError):
            raise copy.copy(outcome)  # Its other callers raise it, too.
        raise deadline_exceeded(waiter, session.last_error)


def checked(addrs: Iterable[str]) -> list[str]:
    """Return the addresses. Raise ValueError if there is none, or one that is not host:port."""
    if isinstance(addrs, str):
        raise ValueError(f"addresses are a list, such as [{addrs!r}]")
    known = list(addrs)
    if not known:
        raise ValueError("no address is given")
    for addr in known:
        host, _, port = addr.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"{addr!r} is not host:port")
    return known


def check_count(count: int) -> None:
    if not isinstance(count, int) or not 1 <= count <= COUNT_MAX:
        raise CountError(f"{count} timestamps asked for, allowed are 1 to {COUNT_MAX}")


def compact_of(answer: TimestampRange) -> range:
    """Return the compact spellings of an answer. Raise NotCompactError if it has none."""
    spellings = answer.compact()
    if spellings is None:
        raise not_compact(answer.first)
    return spellings


def closed() -> ClosedError:
    return ClosedError("the client is closed")


def forked() -> ClosedError:
    return ClosedError("the client was made before a fork; make one in this process")
