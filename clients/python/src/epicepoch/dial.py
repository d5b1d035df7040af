"""Opens a TCP connection to a host. It knows nothing of the protocol.

A host may have several addresses. If one does not answer soon, the next one is tried beside it, and
the first that accepts is used (Happy Eyeballs, RFC 8305). asyncio has an option for this, but
uvloop has not.
"""

import asyncio
import socket
from typing import Any

from .resolver import RESOLVER

NEXT_ADDRESS_AFTER = 0.25
"""How long an address is tried before the next one, in seconds, unless the timeout is short. RFC
8305 recommends this time."""
ADDRESSES_MAX = 64
"""The most addresses of a name that are tried: as many as a cluster has members."""


async def dial(addresses: list[Any], timeout: float) -> socket.socket:
    """Connect to any of these addresses, and return the socket. The caller limits the time by this
    timeout. Raise OSError if no address accepts."""
    loop = asyncio.get_running_loop()
    found = addresses[:ADDRESSES_MAX]
    # The last address has half of the time, however many there are. So the pause may be shorter
    # than the 10 ms that RFC 8305, section 8, asks for.
    pause = min(NEXT_ADDRESS_AFTER, timeout / (2 * max(len(found), 1)))
    attempts: dict[asyncio.Future[None], socket.socket] = {}
    error = OSError("the name has no address")
    try:
        while found or attempts:
            if found:
                family, kind, protocol, _, address = found.pop(0)
                try:
                    one = socket.socket(family, kind, protocol)
                except OSError as unknown_family:  # The system may have no IPv6.
                    error = unknown_family
                    continue
                one.setblocking(False)
                attempts[asyncio.ensure_future(loop.sock_connect(one, address))] = one
            done, _ = await asyncio.wait(
                attempts, timeout=pause if found else None, return_when=asyncio.FIRST_COMPLETED
            )
            for attempt in done:
                failure = attempt.exception()
                if failure is None:
                    return attempts.pop(attempt)
                if not isinstance(failure, OSError):
                    raise failure
                error = failure
                attempts.pop(attempt).close()
        raise error
    finally:
        for attempt in attempts:
            attempt.cancel()
        if attempts:
            await asyncio.wait(attempts)  # Now the loop has forgotten their sockets.
        for attempt, one in attempts.items():
            if not attempt.cancelled():
                attempt.exception()  # Otherwise asyncio reports the error as lost.
            one.close()


async def lookup(host: str, port: int, timeout: float) -> list[Any]:
    """Return the addresses of a host, as ``socket.getaddrinfo`` does. The caller limits its whole
    attempt by this timeout."""
    try:
        # A literal address needs no other thread.
        flags = socket.AI_NUMERICHOST
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror:
        found = await RESOLVER.resolve(host, timeout)
        return [(*one[:4], (one[4][0], port, *one[4][2:])) for one in found]
