"""Tests of refusals, of limits, and of nodes that flood the client: what the client does, and how
often it asks."""

import asyncio
import socket
import ssl
from typing import Any, Callable, cast
from unittest import mock

from epicepoch import (
    Client,
    ClosedError,
    CountError,
    DeadlineExceededError,
    InternalError,
    NotReadyError,
    Observer,
    Options,
    ProtocolError,
    TokenError,
    TooManyCallsError,
    UnauthorizedError,
    UnreachableError,
    UnsupportedError,
    connection,
    frame,
    requests,
)
from epicepoch.directory import BACKOFF_MAX

from .node import CLUSTER, Case, Peer, address, encoded, later, notice, session, until


class Refusals(Case):
    async def test_a_leader_that_refuses_everything_is_not_asked_without_pause(self) -> None:
        leader = await self.node()
        leader.ask = lambda peer, id, count: peer.refuse(id, 12)
        client = await self.client(leader)
        error = await self.fails(DeadlineExceededError, client.timestamp(2))
        self.assertIsInstance(error.last, InternalError)
        # The pause between attempts grows from 1 ms to 50 ms, which allows at most about 85
        # attempts in two seconds. The limit is twice that.
        self.assertLess(leader.met, 170)

    async def test_a_refusal_that_no_retry_heals_is_seen_at_once(self) -> None:
        leader = await self.node()
        leader.ask = lambda peer, id, count: peer.refuse(id, 66, "not by this node")
        client = await self.client(leader)
        error = await self.fails(UnsupportedError, client.timestamp())
        self.assertEqual(
            (error.addr, error.code, error.text), (leader.addr, 66, "not by this node")
        )
        leader.ask = self.oracle.serve
        await self.get(client)
        self.assertEqual((leader.asked, leader.met), (2, 1))

    async def test_a_refused_hello_is_seen_at_once(self) -> None:
        leader = await self.node()
        leader.on_hello = lambda: leader.peers[-1].refuse(0, 18, "no token", closes=True)
        client = self.open(leader)
        with self.assertLogs("epicepoch", "ERROR"):
            error = await self.fails(UnauthorizedError, client.connect(10))
            await self.fails(UnauthorizedError, client.timestamp())
        self.assertIn("missing token: set Options.token", str(error))
        # About a token that was sent, the node knows more than the client.
        client = self.open(leader, token="wrong")
        with self.assertLogs("epicepoch", "ERROR"):
            error = await self.fails(UnauthorizedError, client.connect(10))
        self.assertEqual(error.text, "no token")

    async def answering(self, text: bytes) -> str:
        """Start a server that answers the first bytes with these, and return its address."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(2048)
            writer.write(text)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        self.addCleanup(server.close)
        return address(server.sockets[0])

    async def test_a_port_that_speaks_tls_is_called_that(self) -> None:
        # A TLS server, such as a proxy in front of the node, answers plain text with an alert.
        client = Client([await self.answering(b"\x15\x03\x01\x00\x02\x02\x46")])
        self.addAsyncCleanup(client.close)
        with self.assertLogs("epicepoch", "ERROR"):
            error = await self.fails(ProtocolError, client.connect(10))
        self.assertIn("this port speaks TLS; this client speaks plain text: set", str(error))

    async def test_a_port_that_does_not_speak_tls_is_called_that(self) -> None:
        # A node without TLS answers the beginning of a TLS handshake like this.
        addr = await self.answering(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
        client = Client([addr], Options(tls=ssl.create_default_context(), timeout=2))
        self.addAsyncCleanup(client.close)
        error = await self.fails(DeadlineExceededError, client.connect())
        self.assertIn("this port does not speak TLS: leave Options.tls out", str(error))

    async def test_a_function_that_returns_no_context_never_means_plain_text(self) -> None:
        node = await self.node()
        tls = cast(Callable[[], ssl.SSLContext], lambda: None)
        client = self.open(node, tls=tls, token="secret", timeout=0.5)
        error = await self.fails(DeadlineExceededError, client.connect())
        self.assertIn("the function of Options.tls returned no SSLContext", str(error))
        self.assertEqual(node.met, 0)

    async def test_a_refusal_of_nothing_breaks_the_protocol(self) -> None:
        for code in (2, 4, 66):
            leader = await self.node()
            leader.ask = lambda peer, id, count: peer.refuse(id + 1, code)
            client = await self.client(leader)
            with self.assertLogs("epicepoch", "ERROR"):
                await self.fails(ProtocolError, client.timestamp())

    async def test_an_overloaded_leader_has_a_pause_from_all_callers(self) -> None:
        leader = await self.node()
        times: list[float] = []

        def ask(peer: Peer, id: int, count: int) -> None:
            times.append(asyncio.get_running_loop().time())
            if leader.asked == 1:
                later(0.01, peer.refuse, id, 4)
            else:
                self.oracle.serve(peer, id, count)

        leader.ask = ask
        client = await self.client(leader, in_flight=1)
        first, second = self.call(client), self.call(client)
        await first
        await second
        # The pause is random, between half of BACKOFF_MAX and all of it.
        self.assertGreaterEqual(times[1] - times[0], BACKOFF_MAX / 2)
        self.assertEqual((leader.met, leader.asked), (1, 2))

    async def test_a_leader_without_a_cluster_is_not_asked(self) -> None:
        leader = await self.node()
        client = await self.client(leader)
        await self.get(client)
        # A node that names no cluster says that it leads. It says so in its welcome, or in a notice
        # after the welcome.
        for named in (leader, None):
            leader.on_hello = lambda: leader.welcome(named, cluster=None)
            leader.behind = b"" if named else notice(1, leader.addr)
            asked = leader.asked
            leader.hang_up()
            error = await self.fails(DeadlineExceededError, client.timestamp(2))
            self.assertIsInstance(error.last, NotReadyError)
            self.assertEqual(leader.asked, asked)
            leader.on_hello, leader.behind = (lambda: leader.welcome(leader)), b""
            await self.get(client)

    async def test_a_source_of_tokens_is_asked_for_each_connection(self) -> None:
        leader = await self.node()
        tokens = iter(["one", "two"])
        seen = []

        def hello(*arguments: Any) -> bytes:
            seen.append(arguments[3])
            return frame.hello(*arguments)

        with mock.patch.object(connection, "hello", hello):
            client = await self.client(leader, token_source=lambda: next(tokens))
            leader.hang_up()
            await self.get(client)
        self.assertEqual(seen, ["one", "two"])

    async def test_a_connection_whose_token_is_revoked_is_lost_and_its_calls_are_not(self) -> None:
        leader, follower = await self.node(1), await self.node(2)

        def ask(peer: Peer, id: int, count: int) -> None:
            if leader.asked % 2:
                peer.refuse(0, 18, "revoked", closes=True)
            else:
                self.oracle.serve(peer, id, count)

        leader.ask = ask
        source, hooks = mock.Mock(side_effect=["old", "new", "wrong"]), mock.Mock(Observer)
        client = await self.client(leader, follower, token_source=source, observer=hooks)
        await self.get(client)
        # The leader has not failed, so no other node is asked.
        self.assertEqual((source.call_count, leader.met, follower.met), (2, 2, 0))
        (error,) = hooks.failed_attempt.call_args.args
        self.assertIsInstance(error, UnreachableError)
        self.assertIn("UNAUTHORIZED: revoked", str(error))
        # If the next token is not valid, either, the call fails at once.
        leader.on_hello = lambda: leader.peers[-1].refuse(0, 18, "no such token", closes=True)
        with self.assertLogs("epicepoch", "ERROR"):
            error = await self.fails(UnauthorizedError, client.timestamp(10))
        self.assertEqual(error.text, "no such token")

    async def test_a_source_without_a_token_is_asked_again(self) -> None:
        leader = await self.node()

        def fails() -> str:
            raise ClosedError("the store of tokens is closed")

        def good() -> str:
            return "good"

        def ends() -> str:
            raise StopIteration

        sources: list[tuple[Callable[[], str], str]] = [
            (fails, "the store of tokens is closed"),
            (lambda: "a b", "token_source"),
            (ends, "StopIteration"),
        ]
        for source, said in sources:
            tokens = iter([source, source, good])
            client = self.open(leader, token_source=lambda: next(tokens)())
            await self.get(client)
            await client.close()
            client = self.open(leader, token_source=source)
            error = await self.fails(DeadlineExceededError, client.timestamp(2))
            self.assertIsInstance(error.last, UnreachableError)
            self.assertIn(said, str(error))
        with self.assertRaises(TokenError):
            Options(token="a b")

    async def test_a_pause_ends_although_its_timer_fires_early(self) -> None:
        leader = await self.node()

        def ask(peer: Peer, id: int, count: int) -> None:
            if leader.asked == 1:
                peer.refuse(id, 4)
            else:
                self.oracle.serve(peer, id, count)

        leader.ask = ask
        client = await self.client(leader)
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def early(when: float, *work: Any, **context: Any) -> asyncio.TimerHandle:
            # The timers of uvloop have whole milliseconds, and may fire before their time.
            return call_at(when - BACKOFF_MAX / 4, *work, **context)

        with mock.patch.object(loop, "call_at", early):
            await self.get(client)
        self.assertEqual((leader.asked, leader.met), (2, 1))


class Limits(Case):
    async def test_the_limits_of_a_welcome_are_kept(self) -> None:
        leader = await self.node()
        counts, depths = [], []
        depth = 0

        def answer(*asked: Any) -> None:
            nonlocal depth
            depth -= 1
            self.oracle.serve(*asked)

        def ask(peer: Peer, id: int, count: int) -> None:
            nonlocal depth
            depth += 1
            counts.append(count)
            depths.append(depth)
            later(0.005, answer, peer, id, count)

        leader.on_hello = lambda: leader.welcome(leader, count_max=10, in_flight_max=2)
        leader.ask = ask
        client = await self.client(leader, in_flight=8)
        for call in [self.call(client, 4) for _ in range(12)]:
            self.assertEqual(len(await call), 4)
        self.assertEqual((max(counts), max(depths)), (8, 2))
        await self.fails(CountError, client.timestamps(11))

    async def test_callers_who_met_without_a_leader_part_if_the_next_one_gives_less(self) -> None:
        leader = await self.node()
        client = await self.client(leader)
        leader.on_hello = lambda: None
        leader.hang_up()
        await until(lambda: not client.leader)
        calls = [self.call(client, 4) for _ in range(5)]
        too_many = self.call(client, 11)
        await asyncio.sleep(0.01)
        counts = []

        def ask(peer: Peer, id: int, count: int) -> None:
            counts.append(count)
            self.oracle.serve(peer, id, count)

        leader.ask = ask
        leader.on_hello = lambda: leader.welcome(leader, count_max=10)
        leader.hang_up()
        for call in calls:
            self.assertEqual(len(await call), 4)
        self.assertEqual(counts, [8, 8, 4])
        await self.fails(CountError, too_many)

    async def test_the_queue_of_callers_has_a_limit(self) -> None:
        node = await self.node()
        node.on_hello = lambda: None
        client = self.open(node)
        with mock.patch.object(requests, "CALLERS_MAX", 3):
            calls = [self.call(client) for _ in range(4)]
            await self.fails(TooManyCallsError, calls[3])
        await client.close()
        await asyncio.gather(*calls, return_exceptions=True)

    async def test_callers_that_have_gone_take_no_place_in_a_full_queue(self) -> None:
        def waiter() -> requests.Waiter:
            return requests.Waiter(1, asyncio.get_running_loop().create_future())

        most = 3 * requests.FORGET_MIN
        with mock.patch.object(requests, "CALLERS_MAX", most):
            queue = requests.Requests(1)
            gone = [waiter() for _ in range(most)]
            for one in gone:
                queue.add(one)
            for one in gone:
                one.finish(None)
            stays = [waiter() for _ in range(most)]
            for one in stays:
                queue.add(one)
            self.assertEqual(list(queue.waiting), stays)
            refused = waiter()
            queue.add(refused)
        self.assertIsInstance(refused.future.result(), TooManyCallsError)

    async def test_a_node_that_pings_and_does_not_read_is_left(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.addCleanup(listener.close)
        node = await self.node()
        node.addr = address(listener)
        loop = asyncio.get_running_loop()
        met = 0

        async def flood() -> None:
            nonlocal met
            while True:
                stream, _ = await loop.sock_accept(listener)
                met += 1
                self.addCleanup(stream.close)
                try:
                    await loop.sock_sendall(stream, encoded(node.welcome(node, cluster=CLUSTER)))
                    while True:
                        await loop.sock_sendall(stream, frame.ping(1) * 256)
                except OSError:
                    pass

        flooding = asyncio.ensure_future(flood())
        self.addCleanup(flooding.cancel)
        client = await self.client(node, attempt_timeout=0.2)
        transport = session(client).connection._transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await until(lambda: met >= 2)
        error = await self.fails(DeadlineExceededError, client.timestamp(0.1))
        self.assertLess(0, met, error)

    async def test_a_client_that_a_bug_has_closed_says_so_to_each_call(self) -> None:
        class Bug(BaseException):
            pass

        class Watch(Observer):
            def connected(self, addr: str) -> None:
                if broken:
                    raise Bug("no Exception")

        broken = False
        leader = await self.node()
        client = await self.client(leader, observer=Watch())
        leader.ask = lambda peer, id, count: peer.hang_up()
        broken = True
        with self.assertLogs("epicepoch", "CRITICAL"):
            for _ in range(2):
                error = await self.fails(ClosedError, client.timestamp())
                self.assertIn("no Exception", str(error))

    async def test_hooks_see_what_happens_and_harm_nothing(self) -> None:
        seen: list[Any] = []

        class Watch(Observer):
            def answered(self, callers: int, timestamps: int, took: float) -> None:
                seen.append((callers, timestamps))
                raise RuntimeError("a bug of the observer")

            def failed_attempt(self, error: Exception) -> None:
                seen.append(type(error))

            def connected(self, addr: str) -> None:
                seen.append(addr)

        leader = await self.node()
        client = await self.client(leader, in_flight=1, observer=Watch())
        leader.ask = lambda peer, id, count: peer.refuse(id, 66)
        with self.assertLogs("epicepoch", "ERROR"):
            await self.fails(UnsupportedError, client.timestamp())
            leader.ask = self.oracle.serve
            await asyncio.gather(*(client.timestamps(3) for _ in range(3)))
        self.assertEqual(seen, [leader.addr, UnsupportedError, (1, 3), (2, 6)])
        self.assertGreater(session(client).requests.highest.index, 0)
