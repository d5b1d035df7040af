"""Tests of hedging: which of two answers the caller gets, and what happens to the other one."""

import asyncio
import contextlib
import random
import unittest
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, Callable, NamedTuple, Optional, cast
from unittest import mock

from epicepoch import (
    Client,
    Member,
    Options,
    ProtocolError,
    Timestamp,
    TimestampRange,
    UnreachableError,
    WentBackwardsError,
    frame,
    hedge,
)
from epicepoch.connection import Connection, connect
from epicepoch.directory import Directory
from epicepoch.frame import Head, Welcome
from epicepoch.hedge import Hedger
from epicepoch.session import Session

from .node import Case, Node, Peer, encoded, later, notice, session, timed, until

AFTER = 0.02
ATTEMPT = 8.0
"""The client leaves a silent node after this time. It is far longer than AFTER, so only the hedge
can bring an answer in time."""


class Question(NamedTuple):
    """A request that a node has read. The test answers it by hand."""

    peer: Peer
    id: int
    size: int

    def answer(self, index: int) -> None:
        self.peer.answer(self.id, self.size, index)


class Hand:
    """Keeps the requests that a node has read, until the test answers them."""

    def __init__(self) -> None:
        self.kept: list[Question] = []

    def ask(self, peer: Peer, id: int, count: int) -> None:
        self.kept.append(Question(peer, id, count))

    async def take(self, wanted: Callable[[Question], bool]) -> Question:
        """Wait for a request that is wanted, and remove it."""
        await until(lambda: any(wanted(one) for one in self.kept))
        found = next(one for one in self.kept if wanted(one))
        self.kept.remove(found)
        return found


class Scripted:
    """A session whose clock a test moves, with a leader. Work is done when it is begun."""

    options = Options(attempt_timeout=0.5)
    cluster = None

    def __init__(self, is_busy: bool) -> None:
        self.now = 0.0
        self.loop = SimpleNamespace(time=lambda: self.now)
        self.connection = SimpleNamespace(addr="leader:1")
        self.directory = Directory(["leader:1"])
        batch = SimpleNamespace(sent=float("inf"))
        self.requests = SimpleNamespace(
            in_flight={1: batch} if is_busy else {}, is_awaited=lambda: False
        )

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        with contextlib.suppress(StopIteration):
            work.send(None)


class Pauses(unittest.TestCase):
    """Tests of when the second connection is dialled. They have their own clock."""

    def dials(self, seconds: float, is_silent: bool, is_busy: bool) -> list[tuple[float, float]]:
        """Return when a node was dialled that never answers or refuses everything, and how long
        the client would have waited for it."""
        session, dials = Scripted(is_busy), []

        async def connect(addr: str, options: Options, cluster: None, limit: float) -> Connection:
            dials.append((session.now, limit))
            if is_silent:
                session.now += limit
                raise UnreachableError("silent") from asyncio.TimeoutError()
            raise UnreachableError("refused")

        hedger = Hedger(cast(Session, session), AFTER)
        with mock.patch.object(hedge, "connect", connect):
            while session.now < seconds:
                hedger._turn(session.now)
                session.now += 0.005
        return dials

    def test_a_silent_node_gets_more_time_up_to_the_attempt_timeout(self) -> None:
        limits = [limit for _, limit in self.dials(10, is_silent=True, is_busy=True)]
        self.assertEqual(limits[:3], [0.0625, 0.125, 0.25])
        self.assertEqual(set(limits[3:]), {0.5})

    def test_the_second_connection_is_dialled_more_and_more_seldom(self) -> None:
        # The pause doubles from 1 ms to 50 ms, and while no call waits, to 5 s. Up to half of it is
        # left out. Before the pause, the client waits for the node.
        for is_silent, is_busy, fewest, most in (
            (True, True, 16, 22),
            (False, True, 80, 118),
            (True, False, 8, 14),
            (False, False, 10, 16),
        ):
            with self.subTest(is_silent=is_silent, is_busy=is_busy):
                dials = self.dials(10, is_silent, is_busy)
                self.assertIn(len(dials), range(fewest, most + 1))

    def test_pauses_are_random(self) -> None:
        self.assertNotEqual(self.dials(1, False, True), self.dials(1, False, True))


class Hedging(Case):
    async def hedging(self, *nodes: Node, **options: Any) -> Client:
        return await self.client(*nodes, hedge_after=AFTER, attempt_timeout=ATTEMPT, **options)

    def stall(self, node: Node) -> list[tuple[Peer, int, int]]:
        """From the next request on, let the node answer nothing over that request's connection, and
        everything over other connections. Return the list of requests that it does not answer."""
        held: list[tuple[Peer, int, int]] = []

        def ask(peer: Peer, id: int, count: int) -> None:
            if not held or held[0][0] is peer:
                held.append((peer, id, count))
            else:
                self.oracle.serve(peer, id, count)

        node.ask = ask
        return held

    async def test_a_burnt_range_goes_to_no_caller_and_raises_no_floor(self) -> None:
        """A request and its copy both get an answer. Whichever comes second, its range goes to no
        caller, and callers that wait meanwhile may get timestamps below it."""
        for copy_is_first in (False, True):
            leader, hand = await self.node(), Hand()
            leader.ask = hand.ask
            client = await self.hedging(leader, in_flight=2)

            async def expect(call: "asyncio.Task[TimestampRange]", index: int) -> None:
                self.assertEqual((await call).first, Timestamp(1, index))

            warm = self.call(client)
            first = await hand.take(lambda one: True)
            main = first.peer

            def over_main(one: Question) -> bool:
                return one.peer is main

            first.answer(1)
            await expect(warm, 1)

            slow = self.call(client)
            asked = await hand.take(over_main)
            again = await hand.take(lambda one: one.peer is not main and one.id == asked.id)
            # Two more callers ask. The first one's request is in flight. The second one's request
            # waits, because the limit of requests in flight is 2.
            sent = self.call(client)
            following = await hand.take(over_main)
            waiting = self.call(client)
            await until(lambda: session(client).requests.waiting)

            if copy_is_first:
                again.answer(10)
                await expect(slow, 10)
                # The client reads the answers of one connection in their order. So it has read this
                # second answer to the slow request when the next answers come.
                asked.answer(20)
            else:
                asked.answer(10)
                await expect(slow, 10)
                again.answer(20)
                await until(lambda: asked.id not in session(client).hedger.copies)
            last = await hand.take(over_main)
            following.answer(12)
            await expect(sent, 12)
            last.answer(13)
            await expect(waiting, 13)
            one_more = self.call(client)
            (await hand.take(over_main)).answer(14)
            await expect(one_more, 14)
            self.assertEqual(session(client).hedger.burnt, {})

    async def test_a_stalled_connection_costs_little_more_than_the_delay_of_the_hedge(self) -> None:
        leader = await self.node()
        client = await self.hedging(leader)
        await self.get(client)
        self.stall(leader)
        # This loop makes more calls than the number of requests that may be in flight.
        for _ in range(12):
            took = await timed(self.get(client))
            self.assertTrue(AFTER <= took < ATTEMPT / 4, took)
        self.assertEqual(leader.met, 2)

    async def test_a_silent_leader_is_left_for_another_that_answers_the_hedge(self) -> None:
        old, new = await self.node(1), await self.node(2)
        members = (Member(1, old.addr), Member(2, new.addr))
        old.on_hello = lambda: old.welcome(old, members=members)
        client = await self.hedging(old)
        await self.get(client)
        old.ask, old.on_hello = (lambda *_: None), (lambda: None)
        session(client).hedger.leave()
        self.assertLess(await timed(self.get(client)), ATTEMPT / 2)
        for _ in range(5):
            await self.get(client)
        self.assertEqual(client.leader, new.addr)

    async def test_a_burnt_answer_that_goes_backwards_is_refused_loudly(self) -> None:
        leader = await self.node()
        client = await self.hedging(leader)
        self.oracle.next = 100
        await self.get(client)
        held = self.stall(leader)
        await self.get(client)
        # The late answer to the first request is wrong. It fails every caller that waits at that
        # moment, also this caller of another request.
        leader.ask = lambda *_: None
        call = self.call(client)
        await asyncio.sleep(0)
        with self.assertLogs("epicepoch", "ERROR"):
            held[0][0].answer(held[0][1], held[0][2], 1)
            await self.fails(WentBackwardsError, call)

    async def test_a_first_answer_may_lie_below_what_was_returned_before_the_hedge(self) -> None:
        leader, hand = await self.node(), Hand()
        leader.ask = hand.ask
        client = await self.hedging(leader)
        slow = self.call(client)
        held = await hand.take(lambda one: True)
        quick = self.call(client)
        (await hand.take(lambda one: one.peer is held.peer and one.id != held.id)).answer(2)
        await quick
        # Wait for the copy of the slow request. Then answer the first request and not the copy.
        await hand.take(lambda one: one.id == held.id)
        held.answer(1)
        self.assertLess((await slow).first, (await quick).first)

    async def test_a_refusal_of_what_the_hedge_answered_is_no_debt_of_the_leader(self) -> None:
        for code in (4, 66):
            leader = await self.node()
            client = await self.hedging(leader)
            await self.get(client)
            held = self.stall(leader)
            await self.get(client)
            self.assertEqual(len(session(client).hedger.burnt), 1)
            leader.ask = self.oracle.serve
            held[0][0].refuse(held[0][1], code)
            await until(lambda: not session(client).hedger.burnt)
            await self.get(client)
            self.assertEqual(leader.met, 2)

    async def test_an_ended_connection_leaves_no_burnt_requests(self) -> None:
        leader = await self.node()
        client = await self.hedging(leader)
        await self.get(client)
        held = self.stall(leader)
        await self.get(client)
        leader.ask = self.oracle.serve
        held[0][0].hang_up()
        await until(lambda: not session(client).hedger.burnt)
        await self.get(client)

    async def test_frames_that_break_the_protocol_break_it_over_the_second_connection(self) -> None:
        bad = [
            Head(frame.PING, flags=1),
            Head(frame.PONG, code=1),
            Head(frame.GOODBYE, id=1),
            Head(frame.LEADER, flags=1),
            Head(frame.REQUEST),
            Head(0xC1),
        ]
        for head in bad:
            leader = await self.node()
            client = await self.hedging(leader)
            await self.get(client)
            held = self.stall(leader)

            def ask(peer: Peer, id: int, count: int) -> None:
                if held and peer is not held[0][0]:
                    peer.say(head.encode())
                else:
                    held.append((peer, id, count))

            leader.ask = ask
            with self.assertLogs("epicepoch", "ERROR"):
                await self.fails(ProtocolError, client.timestamp(ATTEMPT / 4))

    async def test_a_second_connection_that_does_not_open_ends_no_call(self) -> None:
        hand = Hand()

        def token() -> str:
            if leader.met == 1:
                tried.append(1)
                raise OSError("the file of tokens is gone")
            return ""

        def on_hello() -> Optional[Welcome]:
            if leader.met == 1:
                return leader.welcome(leader)
            tried.append(1)
            leader.peers[-1].refuse(0, 18, "no token", closes=True)
            return None

        for source in (token, None):
            tried: list[int] = []
            leader = await self.node()
            leader.on_hello = on_hello
            leader.ask = hand.ask
            client = await self.hedging(leader, token_source=source)
            call = self.call(client)
            asked = await hand.take(lambda one: True)
            await until(lambda: len(tried) >= 1 and not session(client).hedger._opening)
            asked.answer(1)
            await call

    async def test_a_second_connection_that_has_ended_is_not_kept(self) -> None:
        opened: list[Connection] = []

        async def ended(*arguments: Any) -> Connection:
            one = await connect(*arguments)
            one.leave(UnreachableError("it has ended"))
            opened.append(one)
            return one

        leader = await self.node()
        with mock.patch.object(hedge, "connect", ended):
            client = await self.hedging(leader)
            await until(lambda: opened and not session(client).hedger._opening)
        self.assertIsNone(session(client).hedger.connection)

    async def test_a_leader_that_names_itself_keeps_the_second_connection(self) -> None:
        leader = await self.node()
        client = await self.hedging(leader)
        await until(lambda: session(client).hedger.connection)
        second = leader.peers[1]
        second.say(notice(leader.id, leader.addr) + frame.ping(7))
        await until(lambda: second.pongs or not second.is_open)
        self.assertEqual(second.pongs, [7])
        # A notice that names no leader ends the connection.
        second.say(notice(0, ""))
        await until(lambda: not second.is_open)

    async def test_a_second_connection_over_a_slow_link_opens_in_the_end(self) -> None:
        """A slow link needs more time for TCP and the hello than the first limit of a second
        connection."""
        leader, attempt = await self.node(), 2.4

        def on_hello() -> None:
            # The way of a hello and its answer. The first limit is attempt / 8.
            later(attempt / 6, leader.peers[-1].say, encoded(leader.welcome(leader)))

        leader.on_hello = on_hello
        client = await self.client(leader, hedge_after=AFTER, attempt_timeout=attempt)
        await until(lambda: session(client).hedger.connection)

    async def test_an_open_second_connection_ends_the_growth_of_the_pause(self) -> None:
        leader = await self.node()
        client = await self.hedging(leader)
        hedger = session(client).hedger
        await until(lambda: hedger.connection)
        hedger._failures, hedger._late, hedger._idle_until = 100, 1, float("inf")
        hedger.leave()
        call = self.call(client)  # A call ends the pause of an idle client.
        leader.ask = lambda *_: None
        await until(lambda: hedger.connection)
        self.assertEqual((hedger._failures, hedger._late, hedger._idle_until), (0, 0, 0))
        call.cancel()

    async def test_answers_that_overtake_each_other_leave_the_order_of_calls_as_it_is(self) -> None:
        """The answers of a request and its copy come in any order. Even so, a call's timestamps
        must lie above all that were returned before the call began, and no timestamp may be given
        twice."""
        leader, chance = await self.node(), random.Random(7)

        def ask(peer: Peer, id: int, count: int) -> None:
            after = chance.uniform(0.005, 0.06) if chance.randrange(8) == 0 else 0.002
            if chance.randrange(2) == 0:
                later(after, peer.answer, id, count, self.oracle.take(count))
            else:
                later(after, self.oracle.serve, peer, id, count)

        leader.ask = ask
        client = await self.hedging(leader)
        highest: Optional[Timestamp] = None
        calls: list[TimestampRange] = []

        async def caller(count: int) -> None:
            nonlocal highest
            for _ in range(25):
                floor = highest
                got = await client.timestamps(count, 10)
                self.assertTrue(floor is None or floor < got.first)
                highest = max(highest or got.last, got.last)
                calls.append(got)

        await asyncio.gather(*(caller(1 + at % 3) for at in range(16)))
        calls.sort(key=lambda one: one.first)
        for before, after in zip(calls, calls[1:]):
            self.assertLess(before.last, after.first)
        given = sum(one.count for one in calls)
        self.assertGreater(self.oracle.next - 1, given, "nothing was asked twice")
