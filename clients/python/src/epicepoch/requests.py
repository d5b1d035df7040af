"""The callers that wait and the requests in flight. It does no IO and reads no clock.

Callers wait in a queue. Sealing takes them from the queue into one request, which is sent at once.
So no caller joins a request that was already sent, and every timestamp is allocated after its
caller asked. A caller that asks for the latest timestamp takes none, and gets the last one of its
request: no timestamp from before is above that one, and later ones are.
"""

import asyncio
import concurrent.futures
import contextlib
from collections import deque
from typing import NamedTuple, Optional, Union

from .errors import (
    CountError,
    DeadlineExceededError,
    EpicEpochError,
    ProtocolError,
    TooManyCallsError,
    WentBackwardsError,
)
from .frame import COUNT_MAX, latest, request
from .timestamp import COMPACT_COUNT_MAX, Timestamp, TimestampRange

LATEST = 0
"""The count of a call for the latest timestamp, which takes none."""
CALLERS_MAX = 1 << 20
"""The most callers that may wait."""
BATCH_CALLERS_MAX = 1 << 14
"""The most callers that share a request. To wake more callers would take longer than a round
trip."""
FORGET_MIN = 1024
"""After so many calls at the earliest, callers that have given up are removed from the queue. To
remove them costs a look at the whole queue."""

Outcome = Union[Timestamp, EpicEpochError, None]
"""The first timestamp of a call, or the error why there is none. None means that the deadline has
come."""
CallFuture = Union[asyncio.Future[Outcome], concurrent.futures.Future[Outcome]]


class Waiter:
    """A call that waits. Its future is done when the call is answered, or when its caller has given
    up."""

    __slots__ = ("count", "future", "last")

    def __init__(self, count: int, future: CallFuture) -> None:
        self.count = count
        self.future = future
        self.last: Optional[EpicEpochError] = None
        """The last failure after which this call was tried again."""

    def finish(self, outcome: Outcome) -> None:
        """Give the outcome to the caller, unless the caller has given up."""
        if not self.future.done():
            # A caller of another thread may give up at this moment.
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                self.future.set_result(outcome)


class Asked(NamedTuple):
    """What is needed to check the answer of a request that was sent over one connection."""

    size: int
    """How many timestamps the callers take together; 0 if all ask for the latest one."""
    is_latest: bool
    """Whether the frame asks for the latest timestamp."""
    floor: Optional[Timestamp]
    """The highest timestamp that the client had returned when it sent the request."""
    at: float
    """The time at which it was sent."""

    def check(self, addr: str, answer: TimestampRange, is_latest: bool) -> None:
        """Raise an error unless an answer of the node at addr has the count of the request and lies
        above the floor. The answer to a frame that asks for the latest one may be the floor."""
        expected = max(self.size, 1)
        if answer.count != expected:
            text = f"an answer of {answer.count} timestamps to a request for {expected}"
            raise ProtocolError(text)
        if is_latest != self.is_latest:
            if is_latest:
                raise ProtocolError("the latest timestamp instead of one for this client alone")
            raise ProtocolError("a timestamp for this client alone instead of the latest one")
        if self.floor is None or self.floor < answer.first:
            return
        if not self.is_latest or answer.first < self.floor:
            text = f"{addr} gave {answer.first}, and {self.floor} was returned before"
            raise WentBackwardsError(text)


def request_for(id: int, count: int, has_latest: bool) -> tuple[bytes, bool]:
    """Encode a request for callers that take so many timestamps. Return it, and whether it asks for
    the latest one. A node that is too old for that is asked for one timestamp, which no caller gets
    as its own. It is valid as the latest one: it is above all that was answered before the request,
    and below all that is asked for later."""
    is_latest = count == LATEST and has_latest
    return (latest(id) if is_latest else request(id, max(count, 1))), is_latest


class Batch:
    """Callers that share a request in flight."""

    __slots__ = ("waiters", "count", "sent", "floor", "is_latest")

    def __init__(self, sent: float, floor: Optional[Timestamp]) -> None:
        self.waiters: list[Waiter] = []
        self.count = 0
        self.sent = sent
        self.floor = floor
        """The highest timestamp that the client had returned when it sent the request."""
        self.is_latest = False
        """Whether the request asks for the latest timestamp."""

    @property
    def asked(self) -> Asked:
        return Asked(self.count, self.is_latest, self.floor, self.sent)

    def finish(self, answer: TimestampRange) -> None:
        """Divide an answer among the callers."""
        epoch, index = answer.first.epoch, answer.first.index
        for waiter in self.waiters:
            own = answer.last if waiter.count == LATEST else Timestamp(epoch, index)
            waiter.finish(own)
            index += waiter.count

    def fail(self, error: EpicEpochError) -> None:
        for waiter in self.waiters:
            waiter.finish(error)


class Requests:
    """The queue of callers, and the requests in flight by their ids."""

    def __init__(self, in_flight_max: int) -> None:
        self.waiting: deque[Waiter] = deque()
        self.in_flight: dict[int, Batch] = {}
        """In the order of sending."""
        self.highest: Optional[Timestamp] = None
        """The highest timestamp returned."""
        self.count_max = COUNT_MAX
        """The largest count of a request: the smaller one of the last leader's limit and the
        protocol's."""
        self._has_latest = False
        """Whether the leader answers requests for the latest timestamp."""
        self._in_flight_own = self._in_flight_max = in_flight_max
        self._last_id = 0
        self._forget_in = FORGET_MIN
        """After how many calls the callers that have given up are removed."""

    def add(self, waiter: Waiter) -> None:
        """Put a caller into the queue, or refuse it if the queue is full."""
        if self._forget_in == 0:
            self.waiting = deque(one for one in self.waiting if not one.future.done())
            length = len(self.waiting)
            # When the queue is full, or up to FORGET_MIN calls later: each look costs as much as
            # the queue is long.
            self._forget_in = max(FORGET_MIN, min(length, CALLERS_MAX - length))
        self._forget_in -= 1
        if len(self.waiting) >= CALLERS_MAX:
            waiter.finish(TooManyCallsError(f"{CALLERS_MAX} calls wait"))
        else:
            self.waiting.append(waiter)

    def is_awaited(self) -> bool:
        """Return whether a caller waits in the queue."""
        while self.waiting and self.waiting[0].future.done():
            self.waiting.popleft()
        return bool(self.waiting)

    def limit(self, count_max: int, in_flight_max: int, has_latest: bool) -> None:
        """Apply a leader's limits, and whether it answers requests for the latest timestamp."""
        self._has_latest = has_latest
        self.count_max = min(count_max, COUNT_MAX)
        self._in_flight_max = min(in_flight_max, self._in_flight_own)

    def became_compact(self, batch: Batch) -> bool:
        """Apply a refusal of a batch's count. A node refuses more than a millisecond has if its
        cluster has become compact since the welcome. Then the smaller limit holds from now on.
        Return whether this is so, and smaller requests can serve the callers."""
        if batch.count <= COMPACT_COUNT_MAX:
            return False
        self.count_max = min(self.count_max, COMPACT_COUNT_MAX)
        return True

    def seal(self, now: float) -> bytes:
        """Move waiting callers into requests, as many as may be in flight. Return the frames."""
        frames = b""
        while len(self.in_flight) < self._in_flight_max and self.is_awaited():
            batch = self._next_batch(now)
            if batch.waiters:
                self._last_id += 1
                self.in_flight[self._last_id] = batch
                frame, batch.is_latest = request_for(self._last_id, batch.count, self._has_latest)
                frames += frame
        return frames

    def _next_batch(self, now: float) -> Batch:
        batch = Batch(now, self.highest)
        while self.waiting and len(batch.waiters) < BATCH_CALLERS_MAX:
            waiter = self.waiting[0]
            if waiter.count > self.count_max:
                waiter.finish(CountError(f"the leader gives at most {self.count_max} at once"))
            elif batch.count + waiter.count > self.count_max:
                break
            self.waiting.popleft()
            if not waiter.future.done():
                batch.waiters.append(waiter)
                batch.count += waiter.count
        return batch

    def rose(self, answer: TimestampRange) -> None:
        """Record the highest timestamp of an answer that callers get."""
        if self.highest is None or self.highest < answer.last:
            self.highest = answer.last

    def retry(self, batch: Batch, error: EpicEpochError) -> None:
        """Put the callers of a request back at the head of the queue."""
        for waiter in batch.waiters:
            waiter.last = error
        self.waiting.extendleft(reversed(batch.waiters))

    def retry_all(self, error: EpicEpochError) -> None:
        """Put the callers of all requests in flight back into the queue. Record the error for every
        caller in the queue."""
        for batch in reversed(list(self.in_flight.values())):
            self.waiting.extendleft(reversed(batch.waiters))
        self.in_flight.clear()
        for waiter in self.waiting:
            waiter.last = error

    def fail_all(self, error: EpicEpochError) -> None:
        """End all calls with an error."""
        waiters = [one for batch in self.in_flight.values() for one in batch.waiters]
        waiters.extend(self.waiting)
        self.in_flight.clear()
        self.waiting.clear()
        for waiter in waiters:
            waiter.finish(error)


def deadline_exceeded(waiter: Waiter, last: Optional[EpicEpochError]) -> DeadlineExceededError:
    """Return the error of a call that took too long. It has the client's last failure since its
    last success as the reason, or, without one, the call's own last failure."""
    return DeadlineExceededError(last or waiter.last)
