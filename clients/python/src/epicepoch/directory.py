"""Decides which node the client asks next, and after what pause. It does no IO and reads no
clock."""

import random
from collections.abc import Iterable, Sequence

from .frame import MEMBERS_MAX, Member

BACKOFF_MIN = 0.001
BACKOFF_MAX = 0.05
IDLE_MAX = 5.0
"""The longest pause of a client without callers. A new call ends the pause."""
BACKOFF_DOUBLINGS = 13
SUSPICION = 1.0
"""How long the client ignores hints to a failed node. It is longer than an election takes. If the
failed node itself says that it leads, the client believes it."""


class Directory:
    """The addresses that a client knows."""

    def __init__(self, seeds: Iterable[str]) -> None:
        self._seeds = list(seeds)
        self.members: list[str] = []
        self.leader = ""
        """The address at which the leader probably is, or empty."""
        self.failed_attempts = 0
        """Failures since the last answer."""
        self._suspects: dict[str, float] = {}
        self._turn = 0

    def next(self) -> str:
        """Return the leader if one is known, otherwise one address after another: the members
        first, then the other seeds."""
        return self.leader or self._next_of_all()

    def other(self, than: str) -> str:
        """Return the next address that differs from the given one, if any other is known."""
        addr = self._next_of_all()
        return self._next_of_all() if addr == than else addr

    def _next_of_all(self) -> str:
        known = self.members + [seed for seed in self._seeds if seed not in self.members]
        addr = known[self._turn % len(known)]
        self._turn += 1
        return addr

    def learn(self, members: Sequence[Member]) -> None:
        """Apply a node's report of the cluster."""
        if members:
            self.members = [member.addr for member in members]

    def is_suspect(self, addr: str, now: float) -> bool:
        """Return whether this node failed a short time ago. Other nodes may not know of the failure
        yet."""
        failed = self._suspects.get(addr)
        return failed is not None and now - failed < SUSPICION

    def follow(self, addr: str, now: float) -> bool:
        """Take the named node for the leader, unless it is suspect. Return whether it was taken."""
        if self.is_suspect(addr, now):
            return False
        self.leader = addr
        return True

    def fail(self, addr: str, now: float) -> None:
        """Record a failed node. If this node was the leader, no leader is known any more."""
        if self.leader == addr:
            self.leader = ""
        if len(self._suspects) > 2 * MEMBERS_MAX:
            self._suspects.clear()
        self._suspects[addr] = now

    def succeed(self, addr: str) -> None:
        """Record a node that says that it leads. Only an answer resets the count of failures."""
        self.leader = addr
        self._suspects.pop(addr, None)

    def backoff(self) -> tuple[float, float]:
        """Record a failed attempt, and return the two pauses of ``backoff``."""
        self.failed_attempts += 1
        return backoff(self.failed_attempts - 1)


def backoff(failures: int) -> tuple[float, float]:
    """Return two pauses before the next attempt: one while callers wait, and one while none waits.
    Both double with each earlier failure, each up to its own limit."""
    grown = BACKOFF_MIN * (1 << min(failures, BACKOFF_DOUBLINGS))
    return jitter(min(grown, BACKOFF_MAX)), jitter(min(grown, IDLE_MAX))


def jitter(longest: float) -> float:
    """Return a pause of which up to half is random, so that clients that lost the same leader do
    not return at the same moment."""
    return longest * random.uniform(0.5, 1)


def overload_pause() -> float:
    """Return how long the client waits before it asks an overloaded leader again."""
    return jitter(BACKOFF_MAX)
