"""One connection to a node: the handshake, bytes to frames and back, and the reason of its end.

It decides nothing about requests. It passes frames to a receiver. While there is no receiver,
frames wait unread.
"""

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any, Callable, Optional, TypeVar, cast

from .dial import dial, lookup
from .errors import (
    BadRequestError,
    EpicEpochError,
    NotReadyError,
    ProtocolError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
    UnsupportedError,
    WrongClusterError,
    refusal,
)
from .frame import (
    ERROR,
    FEATURE_DIRECT,
    FEATURE_LATEST,
    GOODBYE,
    HELLO,
    LEADER,
    PING,
    PONG,
    REQUEST,
    WELCOME,
    Cluster,
    Decoder,
    Head,
    Member,
    Welcome,
    check_plain,
    hello,
    pong,
    read_error,
    read_leader,
    read_welcome,
)
from .options import Options

AGENT = "epicepoch-python/0.1"
OUTBOX_MAX = 64 << 10
"""The most bytes that wait until the node reads. This is enough for about 4,000 pongs."""
TLS_ALERT = 0x15
"""The first byte of a TLS server's answer to anything but TLS (RFC 8446, section 5.1)."""
NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE")
"""What OpenSSL calls an answer that is not TLS. Which one it is depends on its version."""
NO_TLS = "this port does not speak TLS: leave Options.tls out, or set CLIENT_TLS on the node"
PLAIN = "this client speaks plain text: set Options.tls"

Receiver = Callable[[Head, bytes], None]
READ_TURNS = 4
"""How many turns of the loop the client waits after a timeout. The first two read a frame that has
arrived, and the work that waits for the frame ends in the others."""
T = TypeVar("T")


class Connection(asyncio.Protocol):
    """A connection. It can be used when ``connect`` has returned it."""

    welcome: Welcome

    def __init__(self, addr: str) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self.addr = addr
        self.answered = False
        """Whether the node has answered a request."""
        self.ended: asyncio.Future[EpicEpochError] = loop.create_future()
        """Done when the connection has ended. The result says why."""
        self.on_end: Optional[Callable[[EpicEpochError], None]] = None
        """The function that is called when the connection ends, before any other code learns of the
        end."""
        self.blocked_since: Optional[float] = None
        """The time since which bytes wait because the node does not read, or None."""
        self.silence = f"{addr} did not answer in time"
        """What to say if the handshake takes too long."""
        self._first_frame: asyncio.Future[tuple[Head, bytes]] = loop.create_future()
        self._outbox = bytearray()
        """The bytes that wait while the node does not read."""
        self._heard = False
        self._is_tls = False
        self._receiver: Optional[Receiver] = None
        self._decoder = Decoder()
        self._transport: Optional[asyncio.Transport] = None

    def write(self, frames: bytes) -> None:
        """Send frames, now or when the node reads."""
        if self._transport is None or self.ended.done():
            return
        if self.blocked_since is None:
            self._transport.write(frames)
        elif len(self._outbox) + len(frames) > OUTBOX_MAX:
            self.leave(UnreachableError(f"{self.addr} does not read"))
        else:
            self._outbox += frames

    def receive(self, receiver: Receiver) -> None:
        """Pass frames to this receiver from now on, first those that have arrived already. An error
        that the receiver raises ends the connection."""
        self._receiver = receiver
        if self._transport is not None and not self.ended.done():
            self._transport.resume_reading()
        self._deliver()

    def pause(self) -> None:
        """Keep frames that arrive from now on for the next receiver."""
        self._receiver = None
        if self._transport is not None:
            self._transport.pause_reading()

    def leave(self, why: EpicEpochError) -> None:
        """Close the connection at once, for a reason. If this is called again, the first reason
        stays."""
        if self.ended.done():
            return
        self.ended.set_result(why)
        if self._transport is not None:
            self._transport.abort()
        if self.on_end is not None:
            self.on_end(why)

    def take_plain(self, head: Head) -> bool:
        """Check a ping, pong or goodbye, and answer a ping. Raise an error for a frame that no node
        sends. Return whether the frame is dealt with."""
        if head.kind in (PING, PONG, GOODBYE):
            check_plain(head)
            if head.kind == PING:
                self.write(pong(head.id))
            return head.kind != GOODBYE
        if head.kind in (REQUEST, HELLO, WELCOME):
            raise ProtocolError(f"a frame of kind {head.kind:#x}, which nodes do not send")
        return False

    async def handshake(
        self, options: Options, expected: Optional[Cluster], timeout: float
    ) -> None:
        """Dial and do the handshake. The caller limits the time by this timeout."""
        host, _, port = self.addr.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:
            tls, token = options.current_tls(), options.current_token()
        except Exception as error:
            # The function may return a token the next time, so a retry may help.
            raise unreachable(self.addr, error) from error
        self._is_tls = tls is not None
        silence, self.silence = self.silence, f"{self.addr}: the lookup of {host} took too long"
        began = self._loop.time()
        addresses = await lookup(host, int(port), timeout)
        self.silence = silence
        sock = await dial(addresses, max(timeout - (self._loop.time() - began), 0))
        try:
            name = (options.tls_server_name or host) if self._is_tls else None
            await self._loop.create_connection(
                lambda: self, sock=sock, ssl=tls, server_hostname=name
            )
        except ssl.SSLError as error:
            if error.reason in NOT_TLS:
                raise UnreachableError(f"{self.addr}: {NO_TLS}") from error
            raise
        name, guarantee = options.cluster_name, options.guarantee
        form, features = options.timestamp_format, FEATURE_LATEST | FEATURE_DIRECT
        self.write(hello(AGENT, name, expected, token, features, guarantee, form))
        await self._either(self._first_frame)
        if not self._first_frame.done():
            raise self.ended.result()
        head, tail = self._first_frame.result()
        if head.kind == ERROR:
            raise self._advise(read_error(head, tail, self.addr)[0], token, guarantee)
        self.welcome = welcome = read_welcome(head, tail)
        if options.cluster_name not in ("", welcome.cluster_name):
            # The client hello named a cluster. A node of another cluster should refuse it, but this
            # node has answered.
            text = f"a cluster named {welcome.cluster_name!r}, not {options.cluster_name!r}"
            raise WrongClusterError(self.addr, 64, text)
        if expected is not None and welcome.cluster not in (None, expected):
            text = "another cluster, or another history of it, than this client has met"
            raise WrongClusterError(self.addr, 64, text)
        if welcome.leads:
            self.check_cluster()

    def _advise(self, error: RefusedError, token: str, guarantee: str) -> RefusedError:
        """Add to a refused handshake what the program must set."""
        if isinstance(error, UnauthorizedError) and not token:
            text = "missing token: set Options.token or Options.token_source"
            return refusal(self.addr, error.code, f"{text}; the node says: {error.text}")
        if isinstance(error, UnsupportedError) and guarantee:
            # A node refuses a guarantee only if it does not know the field.
            text = "this node is too old for guarantees: update it, or leave Options.guarantee out"
            return refusal(self.addr, error.code, f"{text}; the node says: {error.text}")
        if isinstance(error, BadRequestError) and not self._is_tls:
            # A node that accepts only TLS answers this. Its text says so.
            return refusal(self.addr, error.code, f"{error.text}; {PLAIN}")
        return error

    @property
    def has_latest(self) -> bool:
        """Whether the node answers requests for the latest timestamp."""
        return bool(self.welcome.features & FEATURE_LATEST)

    def check_cluster(self) -> None:
        """Refuse a leader that names no cluster: its timestamps may have any order."""
        if self.welcome.cluster is None:
            raise NotReadyError(self.addr, 11, "it leads and names no cluster")

    async def await_leader(self, timeout: float) -> Optional[Member]:
        """Listen for a while to a node that knows no leader. Nodes send a notice when they learn of
        a leader. Return the leader, or None."""
        found: asyncio.Future[Member] = self._loop.create_future()

        def receive(head: Head, tail: bytes) -> None:
            leader = read_leader(head, tail) if head.kind == LEADER else None
            if leader is not None and not found.done():
                self.pause()
                found.set_result(leader)

        self.receive(receive)
        await self._either(found, timeout)
        if found.done():
            return found.result()
        if self.ended.done():
            raise self.ended.result()
        return None

    async def _either(self, future: "asyncio.Future[Any]", timeout: Optional[float] = None) -> None:
        """Wait for a future, the end of the connection, or a timeout."""
        futures: set[asyncio.Future[Any]] = {future, self.ended}
        await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    # asyncio calls the methods below.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # Bytes are to wait in the outbox, not in asyncio's buffer, so the buffer's limit is as low
        # as possible. It is not 0: TLS stops when the buffer reaches its limit, and would always
        # stop at 0.
        self._transport.set_write_buffer_limits(high=1)
        if self.ended.done():
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        if not self._heard and data[0] not in (WELCOME, ERROR):
            # A server of another protocol may send less than a frame and then wait. So check the
            # first byte before a whole frame has come.
            what = f"a byte of {data[0]:#x} as answer to a hello"
            if data[0] == TLS_ALERT and not self._is_tls:
                what = f"this port speaks TLS; {PLAIN}"
            self.leave(ProtocolError(f"{self.addr}: {what}"))
            return
        self._heard = True
        self._decoder.feed(data)
        self._deliver()

    def eof_received(self) -> None:
        self.leave(UnreachableError(f"{self.addr} closed the connection"))

    def connection_lost(self, exc: Optional[Exception]) -> None:
        why = f": {exc}" if exc is not None else ""
        self.leave(UnreachableError(f"{self.addr} closed the connection{why}"))

    def pause_writing(self) -> None:
        self.blocked_since = self._loop.time()

    def resume_writing(self) -> None:
        self.blocked_since = None
        frames = bytes(self._outbox)
        self._outbox.clear()
        if frames:
            self.write(frames)

    def _deliver(self) -> None:
        try:
            while not self.ended.done():
                if self._receiver is None and self._first_frame.done():
                    return
                frame = self._decoder.next()
                if frame is None:
                    return
                if self._receiver is not None:
                    self._receiver(*frame)
                else:
                    self.pause()
                    self._first_frame.set_result(frame)
        except EpicEpochError as error:
            self.leave(located(self.addr, error))


async def connect(
    addr: str, options: Options, expected: Optional[Cluster], timeout: float
) -> Connection:
    """Return a connection after its handshake. Raise an EpicEpochError if there is none in time."""
    connection, connected = Connection(addr), False
    try:
        await within(timeout, connection.handshake(options, expected, timeout))
        connected = True
        return connection
    except EpicEpochError as error:
        raise located(addr, error) from None
    except asyncio.TimeoutError as error:
        raise UnreachableError(connection.silence) from error
    except Exception as error:
        # Such an error comes from the system, from TLS, or from a bad address in a hint.
        raise unreachable(addr, error) from error
    finally:
        if not connected:
            connection.leave(UnreachableError(f"{addr} was left"))


def unreachable(addr: str, error: Exception) -> UnreachableError:
    # Some errors have no text.
    return UnreachableError(f"{addr}: {str(error) or type(error).__name__}")


def located(addr: str, error: EpicEpochError) -> EpicEpochError:
    """Add the node's address to an error of the protocol."""
    if type(error) is ProtocolError and not str(error).startswith(addr):
        return ProtocolError(f"{addr}: {error}")
    return error


async def within(timeout: float, work: Coroutine[Any, Any, T]) -> T:
    """Do some work, but not for longer than the timeout. Python's own wait_for can lose a
    cancellation in versions 3.9 to 3.11; this function does not."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout)
        # If the whole process has stood still, the answer may have come and not been read yet.
        for _ in range(READ_TURNS):
            if not task.done():
                await asyncio.sleep(0)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # Reads the error, so that asyncio does not report it as lost.
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()
