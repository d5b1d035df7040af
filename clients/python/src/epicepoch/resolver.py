"""Looks up the names of nodes. It never decides which address is dialled.

A system offers a lookup only as a blocking call. The call takes as long as a name server that does
not answer, and cannot be ended. So each lookup has a thread of its own, and not one of the
program's executor. All clients of the process that want the same name share one lookup. It goes on
when an attempt to connect gives up, and its answer serves the next attempt.
"""

import asyncio
import os
import socket
import threading
import time
from typing import Any, Callable, Optional

LOOKUPS_MAX = 64
"""The most names that are looked up, or whose answer is kept, at a time. A cluster has fewer
members."""
SLOW = 0.01
"""An answer that took this long, in seconds, is kept for the next attempt. No attempt_timeout is
shorter, so every lookup that may be too slow for one attempt serves the next one."""
KEPT = 30.0
"""How long such an answer is kept, in seconds. The JVM also keeps answers for 30 s."""

Addresses = list[Any]
"""What ``socket.getaddrinfo`` returns, with port 0."""


class Lookup:
    """A lookup that has begun."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.ended: Optional[float] = None
        self.found: Addresses = []
        self.error: Optional[Exception] = None
        self.waiters: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}


class Resolver:
    """Looks up names for any number of event loops."""

    def __init__(self, look: Callable[[str], Addresses]) -> None:
        self._look = look
        self.reset()

    def reset(self) -> None:
        """Forget all lookups. After a fork, the child process has none of their threads."""
        self._lock = threading.Lock()
        self._lookups: dict[str, Lookup] = {}

    async def resolve(self, host: str) -> Addresses:
        """Return the addresses of a host. Raise OSError if it has none, or if too many names are
        being looked up."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        with self._lock:
            lookup = self._take(host) or self._begin(host)
            if lookup.ended is None:
                lookup.waiters[over] = loop
            else:
                over.set_result(None)
        try:
            await over
        finally:
            with self._lock:
                lookup.waiters.pop(over, None)
        if lookup.error is not None:
            raise lookup.error
        return lookup.found

    def _take(self, host: str) -> Optional[Lookup]:
        """Return the lookup of this host that goes on, or whose answer is kept. A kept answer
        serves only one attempt, because the address may have changed."""
        lookup = self._lookups.get(host)
        if lookup is None or lookup.ended is None:
            return lookup
        del self._lookups[host]
        return lookup if time.monotonic() - lookup.ended < KEPT else None

    def _begin(self, host: str) -> Lookup:
        if len(self._lookups) >= LOOKUPS_MAX:
            over = [name for name, one in self._lookups.items() if one.ended is not None]
            if not over:
                raise OSError(f"the lookup of {host} must wait: {LOOKUPS_MAX} others go on")
            del self._lookups[over[0]]
        lookup = Lookup()
        # The thread of a daemon does not hold up the end of the program.
        work = threading.Thread(
            target=self._work, args=(host, lookup), name="epicepoch-lookup", daemon=True
        )
        work.start()
        self._lookups[host] = lookup
        return lookup

    def _work(self, host: str, lookup: Lookup) -> None:
        try:
            lookup.found = self._look(host)
        except Exception as error:
            lookup.error = error
        with self._lock:
            lookup.ended = time.monotonic()
            is_slow = lookup.ended - lookup.began >= SLOW
            if lookup.error is not None or not is_slow:
                self._lookups.pop(host, None)
            waiters = list(lookup.waiters.items())
        for over, loop in waiters:
            try:
                loop.call_soon_threadsafe(finish, over)
            except RuntimeError:
                pass  # The loop is closed.


def finish(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)


def look(host: str) -> Addresses:
    return socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)


RESOLVER = Resolver(look)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=RESOLVER.reset)
