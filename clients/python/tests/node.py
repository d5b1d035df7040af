"""Nodes whose behaviour a test decides. They run on the test's event loop."""

import asyncio
import struct
import unittest
from collections.abc import Awaitable, Coroutine
from typing import Any, Callable, Optional, TypeVar

import epicepoch
from epicepoch import Client, Cluster, Member, Options, Timestamp, frame
from epicepoch.frame import Decoder, Head, Welcome

CLUSTER = Cluster(bytes([1, 2, 3]) + bytes(13), 1)
T = TypeVar("T")


class Peer(asyncio.Protocol):
    """A client's connection, on the node's side."""

    def __init__(self, node: "Node") -> None:
        self.node = node
        self.decoder = Decoder()
        self.is_open = True
        self.pongs: list[int] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.node.met += 1
        self.node.peers.append(self)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self.is_open = False

    def data_received(self, data: bytes) -> None:
        self.decoder.feed(data)
        while self.is_open:
            received = self.decoder.next()
            if received is None:
                return
            self.node.handle(self, *received)

    def say(self, data: bytes) -> None:
        self.transport.write(data)

    def answer(self, id: int, count: int, index: int, epoch: int = 1) -> None:
        head = Head(frame.ANSWER, argument=count - 1, id=id)
        self.say(head.encode() + bytes(Timestamp(epoch, index)))

    def refuse(self, id: int, code: int, text: str = "", closes: bool = False) -> None:
        self.say(Head(frame.ERROR, int(closes), code, len(text), id).encode() + text.encode())

    def hang_up(self) -> None:
        self.is_open = False
        self.transport.abort()


Ask = Callable[[Peer, int, int], None]


class Node:
    """A node. ``on_hello`` returns the welcome; if it returns None, the node accepts the connection
    and sends nothing. ``ask`` is called for every request and may answer now or later."""

    def __init__(self, id: int, oracle: "Oracle") -> None:
        self.id = id
        self.oracle = oracle
        self.on_hello: Callable[[], Optional[Welcome]] = lambda: self.welcome(self)
        self.behind = b""
        """Bytes that follow the welcome."""
        self.ask: Ask = oracle.serve
        self.asked = 0
        self.pings = 0
        self.met = 0
        self.welcomed = 0
        self.peers: list[Peer] = []

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Peer(self), "127.0.0.1", 0)
        self.addr = address(self.server.sockets[0])

    def welcome(self, leader: Optional["Node"], **others: Any) -> Welcome:
        values = dict(
            node=self.id,
            in_flight_max=1024,
            count_max=frame.COUNT_MAX,
            idle_ms=60000,
            cluster=CLUSTER,
            leader=Member(leader.id, leader.addr) if leader is not None else None,
            members=(Member(self.id, self.addr),),
        )
        values.update(others)
        return Welcome(**values)  # type: ignore[arg-type]

    def handle(self, peer: Peer, head: Head, tail: bytes) -> None:
        if head.kind == frame.HELLO:
            welcome = self.on_hello()
            if welcome is not None:
                peer.say(encoded(welcome) + self.behind)
            self.welcomed += 1
        elif head.kind == frame.REQUEST:
            self.asked += 1
            if head.flags == frame.FLAG_LATEST:
                answer = Head(frame.ANSWER, frame.FLAG_LATEST, id=head.id).encode()
                peer.say(answer + bytes(Timestamp(1, self.oracle.next - 1)))
                return
            self.ask(peer, head.id, head.argument + 1)
        elif head.kind == frame.PING:
            self.pings += 1
            peer.say(frame.pong(head.id))
        elif head.kind == frame.PONG:
            peer.pongs.append(head.id)

    def hang_up(self) -> None:
        for peer in self.peers:
            peer.hang_up()
        self.peers.clear()

    async def stop(self) -> None:
        self.server.close()
        self.hang_up()
        await asyncio.sleep(0)


def address(listener: Any) -> str:
    """Return the address of a listening socket."""
    return "{}:{}".format(*listener.getsockname())


class Oracle:
    """Allocates rising timestamps."""

    def __init__(self) -> None:
        self.next = 1

    def take(self, count: int) -> int:
        self.next += count
        return self.next - count

    def serve(self, peer: Peer, id: int, count: int) -> None:
        peer.answer(id, count, self.take(count))


def notice(leader: int, addr: str) -> bytes:
    return Head(frame.LEADER, argument=len(addr), id=leader).encode() + addr.encode()


def encoded(welcome: Welcome) -> bytes:
    """Encode a welcome as a node does."""
    u32, u64 = struct.Struct(">I"), struct.Struct(">Q")
    fields = frame.field(frame.NODE_TAG, u64.pack(welcome.node))
    fields += frame.field(frame.IN_FLIGHT_MAX_TAG, u32.pack(welcome.in_flight_max))
    fields += frame.field(frame.IDLE_TAG, u32.pack(welcome.idle_ms))
    fields += frame.field(frame.COUNT_MAX_TAG, u64.pack(welcome.count_max))
    if welcome.features:
        fields += frame.field(frame.FEATURES_TAG, u64.pack(welcome.features))
    if welcome.cluster_name:
        fields += frame.field(frame.CLUSTER_NAME_TAG, welcome.cluster_name.encode())
    if welcome.cluster is not None:
        cluster = welcome.cluster.id + u64.pack(welcome.cluster.history)
        fields += frame.field(frame.CLUSTER_TAG, cluster)
    if welcome.leader is not None:
        leader = u64.pack(welcome.leader.node) + welcome.leader.addr.encode()
        fields += frame.field(frame.LEADER_TAG, leader)
    for node, addr in welcome.members:
        fields += frame.field(frame.MEMBER_TAG, u64.pack(node) + addr.encode())
    head = Head(frame.WELCOME, frame.VERSION, 0, len(fields), frame.MAGIC)
    return head.encode() + fields


class Case(unittest.IsolatedAsyncioTestCase):
    """A test with scripted nodes, one oracle that they share, and clients."""

    def setUp(self) -> None:
        self.oracle = Oracle()

    async def asyncSetUp(self) -> None:
        # Debug mode, which IsolatedAsyncioTestCase turns on, would take more time than the tests.
        asyncio.get_running_loop().set_debug(False)

    async def node(self, id: int = 1) -> Node:
        one = Node(id, self.oracle)
        await one.listen()
        self.addAsyncCleanup(one.stop)
        return one

    def open(self, *nodes: Node, **options: Any) -> Client:
        """Return a client that has not connected yet. Its attempt timeout is 5 s by default. So it
        does not leave a node only because the machine stalls."""
        options.setdefault("attempt_timeout", 5)
        client = Client([one.addr for one in nodes], Options(**options))
        self.addAsyncCleanup(client.close)
        return client

    async def client(self, *nodes: Node, **options: Any) -> Client:
        client = self.open(*nodes, **options)
        await client.connect(10)
        return client

    async def get(self, client: Client) -> Timestamp:
        return await client.timestamp(10)

    async def fails(self, kind: type[BaseException], work: Awaitable[T]) -> Any:
        """Return the error of some work. The work must fail with an error of this kind."""
        try:
            outcome = await work
        except kind as error:
            return error
        raise AssertionError(f"{outcome} instead of {kind.__name__}")

    def call(self, client: Client, count: int = 1) -> "asyncio.Task[epicepoch.TimestampRange]":
        """Ask for timestamps in the background."""
        return asyncio.ensure_future(client.timestamps(count, 10))


async def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds."""
    deadline = asyncio.get_running_loop().time() + 10
    while not holds():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError("it does not come to hold")
        await asyncio.sleep(0.001)


def session(client: Client) -> Any:
    """Return the inside of a client."""
    return client._session


def later(seconds: float, work: Callable[..., None], *arguments: Any) -> None:
    asyncio.get_running_loop().call_later(seconds, work, *arguments)


async def timed(work: Coroutine[Any, Any, T]) -> float:
    """Return how long some work took, in seconds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await work
    return loop.time() - began
