"""Tests of the client with scripted nodes: callers, answers, leaders."""

import asyncio
import copy
import dataclasses
import socket
import time
from typing import Callable
from unittest import mock

from epicepoch import (
    Client,
    ClosedError,
    CountError,
    DeadlineExceededError,
    Member,
    NoQuorumError,
    Options,
    ProtocolError,
    Timestamp,
    TimestampRange,
    UnreachableError,
    WentBackwardsError,
    WrongClusterError,
    connection,
    frame,
    requests,
)
from epicepoch.directory import IDLE_MAX
from epicepoch.frame import Head
from epicepoch.session import WATCH_SECONDS_MAX

from .node import Case, Peer, address, encoded, later, notice, session, timed, until


class Callers(Case):
    async def test_a_caller_never_joins_a_request_that_was_sent(self) -> None:
        leader = await self.node()
        held: list[Callable[[], None]] = []

        def ask(peer: Peer, id: int, count: int) -> None:
            index = self.oracle.take(count)  # Allocated now, sent later.
            held.append(lambda: peer.answer(id, count, index))

        leader.ask = ask
        client = await self.client(leader, in_flight=1)
        early = self.call(client)
        await until(lambda: len(held) == 1)
        # The node has now allocated the first request's timestamp. The calls below begin after
        # that, so they must not share it.
        late = [self.call(client) for _ in range(3)]
        await until(lambda: len(session(client).requests.waiting) == 3)
        held[0]()
        await until(lambda: len(held) == 2)
        held[1]()
        first = (await early).first
        others = [(await one).first for one in late]
        self.assertTrue(all(first < one for one in others))
        self.assertEqual((len(set(others)), leader.asked), (3, 2))

    async def test_a_latest_timestamp_takes_none_or_one_that_nobody_else_gets(self) -> None:
        for features in (0, frame.FEATURE_LATEST):
            leader = await self.node()
            leader.on_hello = lambda: leader.welcome(leader, features=features)
            client = await self.client(leader)
            before = await self.get(client)
            latest = await client.latest()
            self.assertEqual(latest.index - before.index, 1 - features)
            after = await self.get(client)
            self.assertEqual(after.index - latest.index, 1)
            await client.close()

    async def test_a_latest_timestamp_is_the_last_of_a_shared_request(self) -> None:
        batch = requests.Batch(0.0, None)
        futures: list[asyncio.Future[requests.Outcome]] = []
        for count in (requests.LATEST, 2, requests.LATEST, 3):
            futures.append(asyncio.get_running_loop().create_future())
            batch.waiters.append(requests.Waiter(count, futures[-1]))
            batch.count += count
        batch.finish(TimestampRange(Timestamp(1, 10), batch.count))
        got = [future.result() for future in futures]
        self.assertEqual(got, [Timestamp(1, index) for index in (14, 10, 14, 12)])

    async def test_a_latest_timestamp_may_be_the_one_that_was_returned(self) -> None:
        def at(index: int) -> TimestampRange:
            return TimestampRange(Timestamp(1, index), 1)

        reader = requests.Asked(0, True, at(9).first, 0.0)
        writer = requests.Asked(1, False, at(9).first, 0.0)
        reader.check("a:1", at(9), True)
        writer.check("a:1", at(10), False)
        for sent, index, is_latest, error in (
            (reader, 8, True, WentBackwardsError),
            (reader, 10, False, ProtocolError),
            (writer, 9, False, WentBackwardsError),
            (writer, 10, True, ProtocolError),
        ):
            with self.assertRaises(error):
                sent.check("a:1", at(index), is_latest)

    async def test_many_callers_share_requests_and_get_distinct_timestamps(self) -> None:
        leader = await self.node()
        client = await self.client(leader)

        async def calls() -> list[Timestamp]:
            return [await client.timestamp() for _ in range(20)]

        results = await asyncio.gather(*(calls() for _ in range(200)))
        for mine in results:
            self.assertEqual(mine, sorted(mine))
        self.assertEqual(len({one for mine in results for one in mine}), 200 * 20)
        self.assertLess(leader.asked, 200 * 20 / 10)

    async def test_callers_that_leave_do_not_disturb_those_who_join(self) -> None:
        leader = await self.node()

        def ask(peer: Peer, id: int, count: int) -> None:
            if leader.asked % 50 == 0:
                peer.hang_up()
            else:
                self.oracle.serve(peer, id, count)

        leader.ask = ask
        client = await self.client(leader, in_flight=2)
        given: list[Timestamp] = []

        async def caller(at: int) -> None:
            for turn in range(50):
                try:
                    short = turn % 7 * 0.0002
                    given.append(await client.timestamp(10 if at % 2 else short))
                except DeadlineExceededError:
                    self.assertEqual(at % 2, 0)

        await asyncio.gather(*(caller(at) for at in range(32)))
        self.assertEqual(len(set(given)), len(given))
        self.assertGreaterEqual(len(given), 16 * 50)

    async def test_a_cancelled_caller_leaves_the_others_alone(self) -> None:
        leader = await self.node()
        held: list[Callable[[], None]] = []
        leader.ask = lambda *asked: held.append(lambda: self.oracle.serve(*asked))
        client = await self.client(leader, in_flight=1)
        gone, stays = self.call(client), self.call(client)
        waiting = self.call(client, 7)
        await until(lambda: held)
        for one in (gone, waiting):
            one.cancel()
            await self.fails(asyncio.CancelledError, one)
        held.pop(0)()
        await until(lambda: held)
        held.pop(0)()
        await stays
        self.assertEqual(leader.asked, 2)

    async def test_callers_that_have_gone_are_forgotten_while_no_node_leads(self) -> None:
        node = await self.node()
        node.on_hello = lambda: None
        client = self.open(node)
        for _ in range(10):
            calls = [self.call(client) for _ in range(requests.FORGET_MIN // 4)]
            await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.sleep(0)
        self.assertLessEqual(len(session(client).requests.waiting), requests.FORGET_MIN)

    async def test_an_answer_after_the_deadline_goes_to_nobody(self) -> None:
        leader = await self.node()

        def ask(peer: Peer, id: int, count: int) -> None:
            # Block the loop beyond the deadline. Then the answer and the deadline come in the same
            # turn of the loop, the answer first.
            time.sleep(0.03)
            self.oracle.serve(peer, id, count)

        leader.ask = ask
        client = await self.client(leader)
        await self.fails(DeadlineExceededError, client.timestamp(0.01))

    async def test_a_call_without_time_sends_nothing(self) -> None:
        leader = await self.node()
        client = await self.client(leader)
        for timeout in (0, -1, float("nan")):
            await self.fails(DeadlineExceededError, client.timestamp(timeout))
        self.assertEqual(leader.asked, 0)

    async def test_a_count_outside_the_limits_is_refused(self) -> None:
        leader = await self.node()
        client = await self.client(leader)
        for count in (0, -1, 2**32 + 1, 1.5):
            await self.fails(CountError, client.timestamps(count))  # type: ignore[arg-type]
        self.assertEqual(leader.asked, 0)
        self.assertEqual(len(await client.timestamps(2**32)), 2**32)

    async def test_a_closed_client_ends_its_calls_and_connections(self) -> None:
        leader = await self.node()
        leader.ask = lambda *_: None
        client = await self.client(leader)
        calls = [self.call(client) for _ in range(9)]
        await until(lambda: leader.asked)
        await client.close()
        for call in calls:
            await self.fails(ClosedError, call)
        await self.fails(ClosedError, client.timestamp())
        await self.fails(ClosedError, client.connect())
        await until(lambda: not any(peer.is_open for peer in leader.peers))
        await client.close()

    async def test_a_client_that_is_closed_while_it_connects_says_so(self) -> None:
        node = await self.node()
        node.on_hello = lambda: None
        client = self.open(node)
        connecting = asyncio.ensure_future(client.connect())
        await until(lambda: node.met)
        await client.close()
        await self.fails(ClosedError, connecting)

    async def test_a_bug_ends_the_client(self) -> None:
        leader = await self.node()
        client = await self.client(leader)
        await self.get(client)
        leader.ask = lambda *_: None
        call = self.call(client)
        await until(lambda: leader.asked == 2)
        with self.assertLogs("epicepoch", "CRITICAL"):
            with mock.patch.object(session(client).directory, "backoff", lambda: 1 // 0):
                leader.on_hello = lambda: None
                leader.hang_up()
                await until(lambda: leader.met == 2)
                leader.hang_up()
                error = await self.fails(ClosedError, call)
        self.assertIn("ZeroDivisionError", str(error))
        # Later calls fail at once, too.
        for work in (client.timestamp(100), client.connect(100)):
            await self.fails(ClosedError, asyncio.wait_for(work, 10))

    async def test_a_client_whose_tasks_are_cancelled_is_closed(self) -> None:
        leader = await self.node()
        client = await self.client(leader)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await until(lambda: not leader.peers[0].is_open)
        for work in (client.timestamp(100), client.connect(100)):
            error = await self.fails(ClosedError, work)
            self.assertIn("cancelled", str(error))

    async def test_a_client_belongs_to_one_loop(self) -> None:
        leader = await self.node()
        client = await self.client(leader)

        def elsewhere() -> None:
            with self.assertRaises(RuntimeError):
                asyncio.run(client.timestamp())

        await asyncio.get_running_loop().run_in_executor(None, elsewhere)


class Answers(Case):
    async def test_answers_may_come_in_another_order(self) -> None:
        leader = await self.node()
        held: list[Callable[[], None]] = []
        leader.ask = lambda *asked: held.append(lambda: self.oracle.serve(*asked))
        client = await self.client(leader, in_flight=3)
        calls = []
        for count in (3, 5, 7):
            calls.append(self.call(client, count))
            await until(lambda: len(held) == len(calls))
        for answer in reversed(held):
            answer()
        self.assertEqual([len(await call) for call in calls], [3, 5, 7])

    async def test_answers_that_go_backwards_are_refused_loudly(self) -> None:
        leader = await self.node()
        leader.ask = lambda peer, id, count: peer.answer(id, count, 10 - leader.asked)
        client = await self.client(leader)
        await self.get(client)
        with self.assertLogs("epicepoch", "ERROR"):
            await self.fails(WentBackwardsError, client.timestamp())

    async def test_an_answer_that_goes_backwards_fails_every_call_that_waits(self) -> None:
        leader = await self.node()
        held: list[Callable[[int], None]] = []
        leader.ask = lambda peer, id, count: held.append(
            lambda index: peer.answer(id, count, index)
        )
        client = await self.client(leader, in_flight=2)
        warm = self.call(client)
        await until(lambda: held)
        held.pop()(10)
        await warm
        # Two calls are in flight, and the third one waits for another request.
        calls = []
        for _ in range(2):
            calls.append(self.call(client))
            await until(lambda: len(held) == len(calls))
        calls.append(self.call(client))
        await until(lambda: session(client).requests.waiting)
        with self.assertLogs("epicepoch", "ERROR"):
            held[0](5)
            for call in calls:
                await self.fails(WentBackwardsError, call)

    async def test_an_answer_of_another_count_is_none(self) -> None:
        leader = await self.node()
        leader.ask = lambda peer, id, count: peer.answer(id, count + 1, 1)
        client = await self.client(leader)
        with self.assertLogs("epicepoch", "ERROR"):
            await self.fails(ProtocolError, client.timestamps(5))

    async def test_another_cluster_is_refused(self) -> None:
        leader = await self.node()
        client = await self.client(leader)
        await self.get(client)
        self.assertEqual(client.cluster, leader.welcome(leader).cluster)
        other = dataclasses.replace(leader.welcome(leader), cluster=frame.Cluster(b"1" * 16, 1))
        leader.on_hello = lambda: other
        leader.hang_up()
        with self.assertLogs("epicepoch", "ERROR"):
            await self.fails(WrongClusterError, client.timestamp())

    async def test_a_cluster_of_another_name_is_refused(self) -> None:
        leader = await self.node()
        client = self.open(leader, cluster_name="payments")
        with self.assertLogs("epicepoch", "ERROR"):
            error = await self.fails(WrongClusterError, client.connect())
        self.assertIn("payments", str(error))
        # Now the node has the right name. The same client can connect.
        leader.on_hello = lambda: leader.welcome(leader, cluster_name="payments")
        await client.connect(10)
        await self.get(client)

    async def test_a_server_of_another_protocol_is_no_oracle(self) -> None:
        async def answer(reader: object, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 ready")
            self.addCleanup(writer.close)

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        self.addCleanup(server.close)
        node = await self.node()
        node.addr = address(server.sockets[0])
        with self.assertLogs("epicepoch", "ERROR"):
            error = await self.fails(ProtocolError, self.open(node).connect(10))
        self.assertIn(node.addr, str(error))


class Leaders(Case):
    async def test_a_follower_names_the_leader_and_the_client_goes_there(self) -> None:
        leader, follower = await self.node(1), await self.node(2)
        follower.on_hello = lambda: follower.welcome(leader)
        client = await self.client(follower)
        self.assertEqual(len(await client.timestamps(5)), 5)
        self.assertEqual((client.leader, follower.asked), (leader.addr, 0))

    async def test_a_host_whose_first_address_is_dead_is_reached_by_the_next(self) -> None:
        node = await self.node()
        # This socket accepts nothing. When its queue is full, the system answers no further
        # connection.
        dead = socket.create_server(("127.0.0.1", 0), backlog=0)
        self.addCleanup(dead.close)
        for _ in range(4):
            queued = socket.socket()
            queued.setblocking(False)
            queued.connect_ex(dead.getsockname())
            self.addCleanup(queued.close)
        alive = node.server.sockets[0].getsockname()

        async def lookup(*_: object, **__: object) -> list[object]:
            kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*kind, dead.getsockname()), (*kind, alive)]

        with mock.patch.object(connection, "lookup", lookup):
            client = Client(["twins.example:1"], Options(attempt_timeout=2))
            self.addAsyncCleanup(client.close)
            await client.connect(5)

    async def test_a_lost_answer_is_asked_for_again(self) -> None:
        leader = await self.node()

        def ask(peer: Peer, id: int, count: int) -> None:
            index = self.oracle.take(count)
            if leader.asked == 1:
                peer.hang_up()
            else:
                peer.answer(id, count, index)

        leader.ask = ask
        client = await self.client(leader)
        self.assertEqual((await self.get(client)).index, 2)

    async def test_a_leader_that_goes_silent_is_replaced_within_the_call(self) -> None:
        old, new = await self.node(1), await self.node(2)
        members = (Member(1, old.addr), Member(2, new.addr))
        old.on_hello = lambda: old.welcome(old, members=members)
        client = await self.client(old, attempt_timeout=0.05)
        before = await self.get(client)
        old.ask = lambda *_: None
        old.on_hello = lambda: None
        self.assertLess(before, await self.get(client))
        self.assertEqual(client.leader, new.addr)

    async def test_a_notice_of_a_new_leader_is_followed(self) -> None:
        old, new = await self.node(1), await self.node(2)
        old.ask = lambda peer, id, count: peer.say(notice(2, new.addr))
        client = await self.client(old)
        await self.get(client)
        self.assertEqual(client.leader, new.addr)

    async def test_a_node_that_is_elected_while_the_client_listens_is_asked(self) -> None:
        for behind in (True, False):
            node = await self.node()
            node.on_hello = lambda node=node: node.welcome(None)  # type: ignore[misc]
            if behind:
                # Send these frames in one piece with the welcome.
                node.behind = frame.ping(5) + notice(1, node.addr) + frame.ping(6)
            client = self.open(node)
            call = self.call(client)
            await until(lambda: node.welcomed)
            if not behind:
                await asyncio.sleep(0.01)  # Mostly enough to read the welcome.
                node.peers[0].say(notice(0, "") + notice(1, node.addr) + frame.ping(6))
            await call
            await until(lambda: 6 in node.peers[0].pongs)
            self.assertEqual(node.met, 1)

    async def test_a_goodbye_sends_the_client_elsewhere(self) -> None:
        old, new = await self.node(1), await self.node(2)
        client = await self.client(old, new)
        await self.get(client)
        old.ask = lambda peer, id, count: peer.say(Head(frame.GOODBYE).encode())
        await self.get(client)
        self.assertEqual(client.leader, new.addr)

    async def test_members_are_kept_fresh(self) -> None:
        leader = await self.node()
        client = await self.client(leader, refresh_interval=0.1)
        members = (Member(1, leader.addr), Member(9, "new.example:8080"))
        leader.on_hello = lambda: leader.welcome(leader, members=members)
        await until(lambda: client.members == [leader.addr, "new.example:8080"])

    async def test_an_idle_connection_is_kept_while_the_members_are_learned(self) -> None:
        leader = await self.node()
        leader.on_hello = lambda: leader.welcome(leader, idle_ms=300)
        await self.client(leader, refresh_interval=0.1, attempt_timeout=600)
        await until(lambda: leader.pings >= 3 and leader.met >= 4)
        # The node does not answer any more. Only one connection at a time asks for the members.
        silent: list[int] = []
        leader.on_hello = lambda: silent.append(1)
        await until(lambda: silent)
        pings = leader.pings
        await until(lambda: leader.pings >= pings + 3)
        self.assertEqual(len(silent), 1)

    async def test_a_bad_address_in_a_hint_harms_nothing(self) -> None:
        follower, leader = await self.node(1), await self.node(2)
        for addr in ("nonsense", "a:b", "[::1:1", "\u00e9" * 70 + ":1", "." * 9 + ":1", "x:99999"):
            hinted = Member(7, addr)
            follower.on_hello = lambda: dataclasses.replace(follower.welcome(None), leader=hinted)
            client = self.open(follower, leader, attempt_timeout=0.5)
            await self.get(client)
            await client.close()

    async def test_two_nodes_that_name_each_other_are_not_asked_without_pause(self) -> None:
        one, two = await self.node(1), await self.node(2)
        one.ask = lambda peer, id, count: peer.refuse(id, 1, two.addr)
        two.ask = lambda peer, id, count: peer.refuse(id, 1, one.addr)
        client = await self.client(one, two)
        await self.fails(DeadlineExceededError, client.timestamp(0.5))
        self.assertLess(one.met + two.met, 80)

    async def test_an_idle_client_seldom_looks_for_a_leader(self) -> None:
        leader = await self.node()
        client = await self.client(leader)
        await self.get(client)
        session(client).directory.failed_attempts = 100  # As if 100 attempts had failed in a row.
        leader.on_hello = lambda: dataclasses.replace(leader.welcome(None), in_flight_max=0)
        met = leader.met
        leader.hang_up()
        with self.assertLogs("epicepoch", "ERROR"):
            await asyncio.sleep(1)
        self.assertIn(leader.met - met, range(0, 5))
        # A new call does not wait for the end of a long pause.
        leader.on_hello = lambda: leader.welcome(leader)
        self.assertLess(await timed(self.get(client)), IDLE_MAX / 2)

    async def test_the_error_of_a_call_is_its_own_copy(self) -> None:
        leader = await self.node()
        leader.ask = lambda peer, id, count: peer.refuse(id, 66, "")
        client = await self.client(leader, in_flight=1)
        outcomes = await asyncio.gather(
            *(client.timestamp() for _ in range(3)), return_exceptions=True
        )
        self.assertEqual(len({id(one) for one in outcomes}), 3)
        self.assertEqual({repr(one) for one in outcomes}, {repr(copy.copy(outcomes[0]))})


class Deadlines(Case):
    async def test_the_error_says_why_it_took_so_long(self) -> None:
        leader = await self.node()
        client = await self.client(leader, attempt_timeout=0.05)
        leader.ask = lambda peer, id, count: peer.refuse(id, 2, "")
        error = await self.fails(DeadlineExceededError, client.timestamp(2))
        self.assertIsInstance(error.last, (NoQuorumError, UnreachableError))
        leader.ask = lambda *_: None
        error = await self.fails(DeadlineExceededError, client.timestamp(2))
        self.assertIsInstance(error.last, UnreachableError)
        self.assertIn("did not answer in time", str(error))

    async def test_a_node_that_accepts_nothing_is_said_to_be_unreachable(self) -> None:
        # The socket keeps the port, so that no other process listens there during the test.
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            client = Client([address(closed)])
            self.addAsyncCleanup(client.close)
            error = await self.fails(DeadlineExceededError, client.connect(0.5))
        self.assertIsInstance(error.last, UnreachableError)
        self.assertIsInstance(error, TimeoutError)

    async def test_the_reason_is_not_one_that_was_over_before_the_call(self) -> None:
        leader = await self.node()

        def ask(peer: Peer, id: int, count: int) -> None:
            if leader.asked == 1:
                peer.refuse(id, 4)
            elif leader.asked == 2:
                self.oracle.serve(peer, id, count)

        leader.ask = ask
        client = await self.client(leader)
        await self.get(client)
        error = await self.fails(DeadlineExceededError, client.timestamp(0.1))
        self.assertIsNone(error.last)

    async def test_a_welcome_that_has_arrived_is_read_after_a_pause(self) -> None:
        node = await self.node()

        def hello() -> None:
            node.peers[-1].say(encoded(node.welcome(node)))
            time.sleep(0.6)  # Block the loop beyond the timeout, as if the process stood still.

        node.on_hello = hello
        await self.client(node, attempt_timeout=0.5)
        self.assertEqual(node.met, 1)

    async def test_an_answer_that_has_arrived_is_read_after_a_pause(self) -> None:
        leader = await self.node()
        held: list[Callable[[], None]] = []
        attempt_timeout, sleep = 0.5, asyncio.sleep

        async def pauses(seconds: float) -> None:
            await sleep(seconds)
            if seconds == WATCH_SECONDS_MAX and held:
                # The client is about to look for a silent leader. The answer comes, and the process
                # stands still.
                held.pop()()
                time.sleep(2 * attempt_timeout)

        leader.ask = lambda *asked: held.append(lambda: self.oracle.serve(*asked))
        with mock.patch.object(asyncio, "sleep", pauses):
            client = await self.client(leader, attempt_timeout=attempt_timeout)
            await self.get(client)
        self.assertEqual((leader.asked, leader.met), (1, 1))

    async def test_a_slow_node_is_no_silent_one(self) -> None:
        leader = await self.node()
        leader.ask = lambda *asked: later(0.03, self.oracle.serve, *asked)
        client = await self.client(leader)
        for _ in range(10):
            await self.get(client)
        self.assertEqual(leader.met, 1)
