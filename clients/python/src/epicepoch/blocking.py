"""The client for threads. It runs the asyncio client on a thread of its own."""

import asyncio
import concurrent.futures
import contextlib
import copy
import os
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Optional, TypeVar

from . import client
from .errors import DeadlineExceededError, EpicEpochError
from .frame import Cluster
from .options import Options
from .requests import LATEST, Outcome, Waiter, deadline_exceeded
from .session import Session
from .timestamp import Timestamp, TimestampRange

T = TypeVar("T")

CLOSE_SECONDS = 5
"""How long ``close`` waits for tasks that are not the client's own, and then for its thread."""


class Client:
    """A client of one cluster, for threads. Share one client: calls at the same time share a
    request.

    The client begins to look for the leader when it is made. ``with`` waits for the leader at its
    beginning, and closes the client at its end::

        with epicepoch.blocking.Client(["db1:8080", "db2:8080", "db3:8080"]) as client:
            start = client.timestamp()

    A client does not survive a fork. Make one in each process. The hooks of its observer and its
    ``token_source`` run on the client's own thread, and must not call the client.
    """

    def __init__(self, addrs: Iterable[str], options: Options = Options()) -> None:
        """Make a client. Raise ValueError if there is no address, or one that is not host:port."""
        self._client = client.Client(addrs, options)
        self._options = options
        self._process = os.getpid()
        self._lock = threading.RLock()
        """Held while work is handed to the client's thread. So the thread gets no work after
        ``close``, which it would never do. A handler of a signal may run while its own thread holds
        the lock, and may call the client."""
        self._closed = False
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="epicepoch", daemon=True)
        self._thread.start()
        self._session: Session = self._on_loop(self._start())

    def connect(self, timeout: Optional[float] = None) -> None:
        """Return when the leader is found. See ``epicepoch.Client.connect``."""
        within = self._options.timeout if timeout is None else timeout
        # Without a timeout above 0, the client's thread still needs time to say what it knows.
        limit = within if within > 0 else self._options.timeout
        self._on_loop(self._client.connect(within), limit)

    def timestamp(self, timeout: Optional[float] = None) -> Timestamp:
        """Return one timestamp. See ``epicepoch.Client.timestamp``."""
        return self._call(1, timeout)

    def timestamps(self, count: int, timeout: Optional[float] = None) -> TimestampRange:
        """Return count timestamps. See ``epicepoch.Client.timestamps``."""
        client.check_count(count)
        return TimestampRange(self._call(count, timeout), count)

    def latest(self, timeout: Optional[float] = None) -> Timestamp:
        """Return the latest timestamp. It is no watermark, and not unique. See
        ``epicepoch.Client.latest``."""
        return self._call(LATEST, timeout)

    def compact_timestamp(self, timeout: Optional[float] = None) -> int:
        """Return one timestamp in 64 bits. See ``epicepoch.Client.compact_timestamp``."""
        return self.compact_timestamps(1, timeout)[0]

    def compact_timestamps(self, count: int, timeout: Optional[float] = None) -> range:
        """Return count timestamps in 64 bits. See ``epicepoch.Client.compact_timestamps``."""
        return client.compact_of(self.timestamps(count, timeout))

    def compact_latest(self, timeout: Optional[float] = None) -> int:
        """Return the latest timestamp in 64 bits. See ``epicepoch.Client.compact_latest``."""
        return client.compact_of(TimestampRange(self.latest(timeout), 1))[0]

    @property
    def members(self) -> list[str]:
        """The client addresses of the members, as the client last learned them."""
        return self._client.members

    @property
    def leader(self) -> str:
        """The address of the leader, or an empty text if none is known."""
        return self._client.leader

    @property
    def cluster(self) -> Optional[Cluster]:
        """The id and history of this client's cluster, or None before a node has named them."""
        return self._client.cluster

    def close(self) -> None:
        """End all calls with ClosedError, and return when the client's thread has ended, after at
        most ten seconds. The thread ends late if a hook or a ``token_source`` is slow."""
        if os.getpid() != self._process:
            return
        self._check_thread()
        with self._lock:
            if not self._closed:
                self._ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
                self._closed = True
        self._thread.join(2 * CLOSE_SECONDS)

    def __enter__(self) -> "Client":
        try:
            self.connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _work(self) -> None:
        try:
            # asyncio lets these errors of a token_source out of the loop. Run the loop again, so
            # that the task that got the error ends the client with it.
            while not self._stopped:
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()
        finally:
            self._loop.close()

    async def _start(self) -> Session:
        return self._client._started()

    async def _end(self) -> None:
        """Close the client, wait until its callers know, and stop the loop."""
        try:
            await self._client.close()
            calls = asyncio.all_tasks() - {asyncio.current_task()}
            if calls:
                # A hook may have begun a task of its own, which may never end.
                _, late = await asyncio.wait(calls, timeout=CLOSE_SECONDS)
                for task in late:
                    task.cancel()
            await asyncio.sleep(0)  # The last of them tells its caller now.
        finally:
            self._stopped = True
            self._loop.stop()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a hook of the client called the client, which would wait for itself"
            )

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Keep the client open while work is handed to its thread. Raise an error if it is
        closed."""
        if os.getpid() != self._process:
            raise client.forked()  # The lock may be held by a thread that this process has not.
        self._check_thread()
        with self._lock:
            if self._closed:
                raise client.closed()
            try:
                yield
            except RuntimeError:  # A signal's handler has closed the client, and its loop.
                raise client.closed() from None

    def _on_loop(self, work: Coroutine[Any, Any, T], timeout: float = threading.TIMEOUT_MAX) -> T:
        """Do some work on the client's thread. The timeout holds even if a hook or a token_source
        blocks that thread."""
        try:
            with self._open():
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        try:
            # Not result(timeout): since Python 3.11, its error could be the work's own.
            concurrent.futures.wait({future}, min(timeout, threading.TIMEOUT_MAX))
            if not future.done():
                raise DeadlineExceededError(self._session.last_error)
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _call(self, count: int, timeout: Optional[float]) -> Timestamp:
        within = self._options.timeout if timeout is None else timeout
        deadline = time.monotonic() + within
        future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()
        waiter = Waiter(count, future)
        outcome: Outcome = None
        with self._open():
            if within > 0:
                self._loop.call_soon_threadsafe(self._session.ask, waiter)
        if within > 0:
            try:
                outcome = future.result(min(within, threading.TIMEOUT_MAX))
            except concurrent.futures.TimeoutError:
                pass
            finally:
                future.cancel()
        if isinstance(outcome, Timestamp) and time.monotonic() < deadline:
            return outcome
        if isinstance(outcome, EpicEpochError):
            raise copy.copy(outcome)  # Its other callers raise it, too.
        raise deadline_exceeded(waiter, self._session.last_error)
