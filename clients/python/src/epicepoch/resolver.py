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
KEPT = 30.0
"""How long the answer of a slow lookup is kept, in seconds. The JVM also keeps answers for 30 s."""

Addresses = list[Any]
"""What ``socket.getaddrinfo`` returns, with port 0."""


class Lookup:
    """A lookup that has begun."""

    def __init__(self) -> None:
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

    async def resolve(self, host: str, timeout: float) -> Addresses:
        """Return the addresses of a host. The caller limits its whole attempt by this timeout. An
        answer stays for the next attempt unless it reaches an attempt that has at least half of its
        time left: less may be too short to connect. Raise OSError if the host has no address, or if
        too many names are being looked up."""
        loop = asyncio.get_running_loop()
        began = time.monotonic()
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
        if time.monotonic() - began <= timeout / 2:
            with self._lock:
                self._forget(host, lookup)
        return lookup.found

    def _forget(self, host: str, lookup: Lookup) -> None:
        """Forget a lookup that is over, unless another one of the host has begun."""
        if self._lookups.get(host) is lookup:
            del self._lookups[host]

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
        lookup.error = OSError("the lookup ended without an answer")
        try:
            lookup.found, lookup.error = self._look(host), None
        except Exception as error:
            lookup.error = error
        finally:
            # Also after an error that ends the thread, such as SystemExit: otherwise all attempts
            # would wait for this lookup for ever.
            with self._lock:
                lookup.ended = time.monotonic()
                if lookup.error is not None:
                    self._forget(host, lookup)
                waiters = list(lookup.waiters.items())
            self._wake(waiters)

    def _wake(
        self, waiters: "list[tuple[asyncio.Future[None], asyncio.AbstractEventLoop]]"
    ) -> None:
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
