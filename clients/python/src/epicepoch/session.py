"""The work of a client on one event loop. It keeps a connection to the leader, and sends requests
over it. It follows leadership to another node, and retries if a retry may heal an error.

Nothing here is thread-safe. An event of a connection changes the session's state at once, in the
callback of the event. So no call meets a connection that has ended.
"""

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterable
from typing import Any, Callable, Optional

from .connection import Connection, connect
from .directory import Directory, overload_pause
from .errors import (
    BadCountError,
    ClosedError,
    EpicEpochError,
    NoLeaderError,
    NotLeaderError,
    OverloadedError,
    ProtocolError,
    RefusedError,
    ShuttingDownError,
    UnauthorizedError,
    UnreachableError,
)
from .frame import (
    ANSWER,
    ERROR,
    GOODBYE,
    LEADER,
    Cluster,
    Head,
    Welcome,
    ping,
    read_answer,
    read_error,
    read_leader,
)
from .hedge import Hedger
from .options import Options
from .requests import Batch, Requests, Waiter
from .timestamp import TimestampRange

HOPS_MAX = 3
"""How many hints to a leader are followed in a row without a pause."""
WATCH_SECONDS_MAX = 0.1
"""The longest time between two checks of the connection."""

log = logging.getLogger("epicepoch")
log.addHandler(logging.NullHandler())


class Session:
    """The state of a client. It must be made on the event loop that it uses."""

    def __init__(self, addrs: Iterable[str], options: Options) -> None:
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()
        """The process of this session. After a fork, the other process has a copy of it."""
        self.options = options
        self.directory = Directory(addrs)
        self.requests = Requests(options.in_flight)
        self.cluster: Optional[Cluster] = None
        self.connection: Optional[Connection] = None
        """The connection to the leader."""
        self.last_error: Optional[EpicEpochError] = None
        """The last failure since the last answer or new connection."""
        self.closed: Optional[ClosedError] = None
        """Why the client is closed."""
        self.ready: asyncio.Future[Optional[EpicEpochError]] = self.loop.create_future()
        """Done when the client first connects to a leader, or, with the error, at an error that no
        retry heals."""
        self._wanted: asyncio.Future[None] = self.loop.create_future()
        """A call that finds no connection completes this future."""
        self._rest: Optional[asyncio.TimerHandle] = None
        """The timer that ends the pause for an overloaded leader. Nothing is sent in that pause."""
        self._woken = 0
        """How many callers the last answer woke."""
        self._pumps = False
        """Whether requests are sent at the end of this turn of the loop."""
        self._logged = ""
        """The last error that was logged. The same error may come with every attempt, and is logged
        once."""
        self._refreshes = False
        """Whether the members are being learned again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.hedger = Hedger(self, options.hedge_after) if options.hedge_after else None
        self.begin(self._run())
        self.begin(self._watch())
        if self.hedger is not None:
            self.begin(self.hedger.run())

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that ends with the client at the latest."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if self.closed is None:
                # The program has cancelled all tasks of the loop. Calls would wait for nothing.
                self._end(ClosedError("the client's tasks were cancelled"))
            return
        error = task.exception()
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            log.critical("a function of the program has ended the client", exc_info=error)
            self._end(ClosedError(f"a function of the program has ended the client: {error!r}"))
        elif error is not None:
            log.critical("a task of the client failed; please report it", exc_info=error)
            self._end(ClosedError(f"the client has a bug: {error!r}"))

    def ask(self, waiter: Waiter) -> None:
        """Let a caller wait for an answer. It joins a request that has not been sent yet."""
        if self.closed is not None:
            waiter.finish(self.closed)
            return
        self.requests.add(waiter)
        if self.connection is None:
            if not self._wanted.done():
                self._wanted.set_result(None)
        elif self._woken <= 1:
            self.pump()
        elif not self._pumps:
            # The last answer woke several callers, and they are about to ask again. Wait for the
            # end of this turn, so that they join this request before it is sent.
            self._pumps = True
            self.loop.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pumps = False
        self.pump()

    def pump(self) -> None:
        """Send the requests of waiting callers, up to the limit of requests in flight."""
        if self.connection is not None and self._rest is None:
            frames = self.requests.seal(self.loop.time())
            if frames:
                self.connection.write(frames)

    def found(self) -> "asyncio.Future[Optional[EpicEpochError]]":
        """Return a future that is done when a leader is found, or, with the error, at an error that
        no retry heals. An error before this call does not count, because its cause may be over."""
        if self.ready.done() and self.ready.result() is not None:
            self.ready = self.loop.create_future()
            if self.connection is not None:
                self.ready.set_result(None)
            elif not self._wanted.done():
                self._wanted.set_result(None)
        return self.ready

    async def close(self) -> None:
        """End all calls and connections."""
        self._end(ClosedError("the client is closed"))
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks))
        await asyncio.sleep(0)  # asyncio closes the sockets of aborted connections now.

    def _end(self, error: ClosedError) -> None:
        """End all calls with this error, and all connections and tasks. Calls to come get the
        error of the first end."""
        self.closed = self.closed or error
        if not self.ready.done():
            self.ready.set_result(error)
        if self.connection is not None:
            self.connection.leave(error)
        self.requests.fail_all(error)
        self._end_rest()
        if self.hedger is not None:
            self.hedger.leave()
        for task in self._tasks:
            task.cancel()

    def fail(self, error: EpicEpochError) -> None:
        """End all calls with an error that no retry heals, and leave the leader."""
        if self.connection is not None:
            self.connection.leave(error)
        else:
            self.requests.fail_all(error)

    def observe(self, hook: Callable[..., None], *arguments: Any) -> None:
        try:
            hook(*arguments)
        except (Exception, SystemExit):  # A SystemExit would stop the session halfway.
            log.exception("a hook of the observer failed")

    def answered(self, connection: Connection, batch: Batch, answer: TimestampRange) -> None:
        """Send the requests of waiting callers, and give an answer to its callers."""
        self.last_error = None
        self.directory.failed_attempts = 0
        connection.answered = True
        self.requests.rose(answer)
        self.pump()
        self._woken = len(batch.waiters)
        batch.finish(answer)
        took = self.loop.time() - batch.sent
        self.observe(self.options.observer.answered, len(batch.waiters), batch.count, took)

    # Finding the leader.

    async def _run(self) -> None:
        """Keep a connection to the leader until the client is closed."""
        fruitless = 0  # How many connections in a row have brought no answer.
        while True:
            connection = await self._establish()
            why = await self._serve(connection)
            fruitless = 0 if connection.answered else fruitless + 1
            # The client follows a hint to another leader at once. But it follows only HOPS_MAX in a
            # row without a pause, because two nodes may name each other.
            if isinstance(why, OverloadedError):
                await asyncio.sleep(overload_pause())
            elif fruitless > (HOPS_MAX if isinstance(why, NotLeaderError) else 0):
                await self._pause()

    async def _establish(self) -> Connection:
        hops = 0
        while True:
            addr = self.directory.next()
            try:
                connection = await self._try(addr, hops < HOPS_MAX)
                if connection is not None:
                    return connection
                hops += 1
            except EpicEpochError as error:
                hops = 0
                self._failed(error)
                await self._pause()

    async def _try(self, addr: str, may_follow: bool) -> Optional[Connection]:
        """Ask one node whether it leads, and return the connection. Return None if the node names
        another leader that the client may ask at once."""
        options, directory = self.options, self.directory
        try:
            connection = await connect(addr, options, self.cluster, options.attempt_timeout)
        except EpicEpochError:
            directory.fail(addr, self.loop.time())
            raise
        leads = False
        try:
            self._meet(connection.welcome)
            leader = connection.welcome.leader
            is_followed = False
            if not connection.welcome.leads:
                is_followed = may_follow and leader is not None and self._follow(leader.addr)
                if not is_followed:
                    directory.leader = ""
                    leader = await connection.await_leader(options.attempt_timeout / 4)
            if leader is not None and leader.node == connection.welcome.node:
                connection.check_cluster()
                directory.succeed(addr)
                leads = True
                return connection
            if is_followed or (may_follow and leader is not None and self._follow(leader.addr)):
                return None
            raise NoLeaderError(addr, 3)
        finally:
            if not leads:
                connection.leave(UnreachableError(f"{addr} does not lead"))

    def _follow(self, addr: str) -> bool:
        return self.directory.follow(addr, self.loop.time())

    def _meet(self, welcome: Welcome) -> None:
        """Apply a node's report of the cluster. The client keeps to the cluster of the first
        report."""
        self.cluster = self.cluster or welcome.cluster
        self.directory.learn(welcome.members)

    async def _pause(self) -> None:
        """Wait before the next attempt. The pause grows with each failure, and is much longer while
        no caller waits."""
        pause, idle = self.directory.backoff()
        await asyncio.sleep(pause)
        if self.ready.done() and not self.requests.is_awaited():
            self._wanted = self.loop.create_future()
            await asyncio.wait({self._wanted}, timeout=idle - pause)

    def _failed(self, error: EpicEpochError) -> None:
        """Record a failure. If no retry heals it, end all waiting calls with it."""
        self.last_error = error
        self.observe(self.options.observer.failed_attempt, error)
        if error.is_retried:
            self.requests.retry_all(error)
            return
        if str(error) != self._logged:
            self._logged = str(error)
            log.error("no retry helps: %s", error)
        if not self.ready.done():
            self.ready.set_result(error)
        self.requests.fail_all(error)

    # Serving callers over a connection to the leader.

    async def _serve(self, connection: Connection) -> EpicEpochError:
        """Let callers use the connection until it ends. Return why it ended."""
        if connection.ended.done():
            self._ended(connection, connection.ended.result())
            return connection.ended.result()
        self.connection = connection
        connection.on_end = lambda error: self._ended(connection, error)
        welcome = connection.welcome
        self.requests.limit(welcome.count_max, welcome.in_flight_max, connection.has_latest)
        self.last_error = None
        self._end_rest()
        if not self.ready.done():
            self.ready.set_result(None)
        log.info("following the leader at %s", connection.addr)
        self.observe(self.options.observer.connected, connection.addr)
        self.pump()
        connection.receive(self._receive)
        return await asyncio.shield(connection.ended)

    def _ended(self, connection: Connection, why: EpicEpochError) -> None:
        """Put the callers of a connection that has ended back into the queue."""
        self.connection = None
        now, addr = self.loop.time(), connection.addr
        answering = self.hedger.lost() if self.hedger is not None else ""
        if self.closed:
            return
        log.info("left the leader at %s: %s", addr, why)
        self._failed(why)
        if answering and why.is_retried:
            self.directory.succeed(answering)
        elif isinstance(why, NotLeaderError) and why.text != addr:
            # The client believes a node that says that it does not lead. The leader that the node
            # names may be one that has just failed.
            if not self.directory.follow(why.text, now):
                self.directory.leader = ""
        elif not isinstance(why.__cause__, UnauthorizedError):
            # A node that wants a new token has not failed.
            self.directory.fail(addr, now)

    def _receive(self, head: Head, tail: bytes) -> None:
        """Handle a frame of the leader."""
        connection = self.connection
        if connection is None or connection.take_plain(head):
            return
        if head.kind == ANSWER:
            self._take_answer(connection, head.id, *read_answer(head, tail, self.options.guarantee))
        elif head.kind == ERROR:
            refusal, closes = read_error(head, tail, connection.addr)
            if closes and isinstance(refusal, UnauthorizedError):
                # The token is no longer valid, and the program may have a new one. If it has none,
                # the next client hello is refused, which ends the calls.
                raise UnreachableError(str(refusal)) from refusal
            if closes:
                raise refusal
            self._take_refusal(head.id, refusal)
        elif head.kind == GOODBYE:
            raise ShuttingDownError(connection.addr, 10)
        elif head.kind == LEADER:
            leader = read_leader(head, tail)
            if leader is not None and leader.node != connection.welcome.node:
                # The named leader is only a hint. But a node names another leader only when it does
                # not lead itself.
                raise NotLeaderError(connection.addr, 1, leader.addr)

    def _take_answer(
        self, connection: Connection, id: int, answer: TimestampRange, is_latest: bool
    ) -> None:
        batch = self.requests.in_flight.get(id)
        if batch is None:
            if self.hedger is None or not self.hedger.take_burnt(id, answer, is_latest):
                raise ProtocolError(f"an answer to request {id}, which is not in flight")
            return
        batch.asked.check(connection.addr, answer, is_latest)
        del self.requests.in_flight[id]
        self.answered(connection, batch, answer)

    def _take_refusal(self, id: int, refusal: RefusedError) -> None:
        """Handle a refusal of one request. Raise the refusal if this node cannot serve further
        requests."""
        batch = self.requests.in_flight.pop(id, None)
        if batch is None and not (self.hedger is not None and self.hedger.forgive(id)):
            raise ProtocolError(f"a refusal of request {id}, which is not in flight")
        is_smaller = isinstance(refusal, BadCountError) and (
            batch is not None and self.requests.became_compact(batch)
        )
        if batch is not None and (refusal.is_retried or is_smaller):
            self.requests.retry(batch, refusal)
        elif batch is not None:
            batch.fail(refusal)
        if refusal.is_retried and not isinstance(refusal, OverloadedError):
            raise refusal
        self.last_error = refusal
        self.observe(self.options.observer.failed_attempt, refusal)
        if isinstance(refusal, OverloadedError):
            self._begin_rest()
        self.pump()

    def _begin_rest(self) -> None:
        """Pause requests to an overloaded leader. Calls during the pause share the next
        requests."""

        def end() -> None:
            # A timer may fire early, so the timer itself ends the pause, and not the time. The
            # timers of uvloop have whole milliseconds.
            self._end_rest()
            self.pump()

        if self._rest is None:
            self._rest = self.loop.call_later(overload_pause(), end)

    def _end_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    async def _watch(self) -> None:
        """Leave a silent node, keep an idle connection alive, and refresh the members."""
        attempt_timeout = self.options.attempt_timeout
        refreshed = pinged = self.loop.time()
        while True:
            await asyncio.sleep(min(attempt_timeout / 5, WATCH_SECONDS_MAX))
            now = self.loop.time()
            # If the loop has stood still, answers may wait unread. Two turns read them.
            for _ in range(2):
                await asyncio.sleep(0)
            connection = self.connection
            if connection is None:
                continue
            since = connection.blocked_since
            if now - self._oldest(now) > attempt_timeout:
                connection.leave(UnreachableError(f"{connection.addr} did not answer in time"))
            elif since is not None and now - since > attempt_timeout:
                connection.leave(UnreachableError(f"{connection.addr} does not read"))
            elif now - refreshed > self.options.refresh_interval and not self._refreshes:
                refreshed, self._refreshes = now, True
                self.begin(self._refresh(connection.addr))
            if now - pinged > connection.welcome.ping_every:
                pinged = now
                connection.write(ping(1))

    def _oldest(self, now: float) -> float:
        """Return the time at which the oldest request without an answer of the leader was sent.
        Return now if there is no such request."""
        oldest = self.hedger.oldest(now) if self.hedger is not None else now
        return min([oldest] + [batch.sent for batch in self.requests.in_flight.values()])

    async def _refresh(self, addr: str) -> None:
        """Learn the members from a new handshake."""
        options = self.options
        try:
            connection = await connect(addr, options, self.cluster, options.attempt_timeout)
        except EpicEpochError as error:
            log.debug("the list of members was not read: %s", error)
            return
        finally:
            self._refreshes = False
        self._meet(connection.welcome)
        connection.leave(UnreachableError(f"{addr} was left"))
