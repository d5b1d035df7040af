"""Tests of the client for threads, with a node on another thread."""

import asyncio
import contextlib
import threading
import time
import unittest
from typing import Any, Callable
from unittest import mock

from epicepoch import (
    ClosedError,
    CountError,
    DeadlineExceededError,
    Observer,
    Options,
    Timestamp,
    UnsupportedError,
    blocking,
)

from .node import later
from .thread import NodeThread


class Blocking(unittest.TestCase):
    def setUp(self) -> None:
        self.node = NodeThread(self)

    def test_threads_share_requests_and_get_distinct_timestamps(self) -> None:
        serve = self.node.ask
        # The node answers after 2 ms. So several callers wait at once and share a request.
        self.node.ask = lambda *asked: later(0.002, serve, *asked)
        given: list[Timestamp] = []
        with blocking.Client([self.node.addr]) as client:

            def caller() -> None:
                mine = [client.timestamp() for _ in range(20)]
                self.assertEqual(mine, sorted(mine))
                given.extend(mine)

            threads = [threading.Thread(target=caller) for _ in range(32)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual((client.leader, client.members), (self.node.addr, [self.node.addr]))
            self.assertEqual(client.cluster, self.node.welcome(self.node).cluster)
        self.assertEqual(len(set(given)), 32 * 20)
        self.assertLess(self.node.asked, 32 * 20 / 2)

    def test_a_range_has_its_count(self) -> None:
        with blocking.Client([self.node.addr]) as client:
            self.assertEqual(len(client.timestamps(5)), 5)
            with self.assertRaises(CountError):
                client.timestamps(0)

    def test_a_call_ends_at_its_deadline_and_its_late_answer_goes_to_nobody(self) -> None:
        asked = threading.Event()
        self.node.ask = lambda *_: asked.set()
        with blocking.Client([self.node.addr], Options(attempt_timeout=5)) as client:
            for timeout in (0, 0.5):
                began = time.monotonic()
                with self.assertRaises(DeadlineExceededError):
                    client.timestamp(timeout)
                self.assertGreaterEqual(time.monotonic() - began, timeout)
            # Only the second call has sent a request. The call with a timeout of 0 has sent none.
            self.assertTrue(asked.wait(10))
            self.assertEqual(client._session.requests._last_id, 1)

    def test_a_token_source_that_ends_its_thread_ends_the_client(self) -> None:
        for error in (SystemExit("no token"), KeyboardInterrupt("no token")):
            source = mock.Mock(side_effect=error)
            with self.assertLogs("epicepoch", "CRITICAL"):
                client = blocking.Client([self.node.addr], Options(token_source=source))
                for call in (client.connect, client.timestamp):
                    with self.assertRaisesRegex(ClosedError, "no token"):
                        call(10)
            client.close()
            self.assertFalse(client._thread.is_alive())

    def test_a_hook_that_ends_its_thread_harms_nothing(self) -> None:
        hooks = mock.Mock(Observer, **{"answered.side_effect": SystemExit("of the hook")})
        with self.assertLogs("epicepoch", "ERROR"):
            with blocking.Client([self.node.addr], Options(observer=hooks)) as client:
                for _ in range(2):
                    client.timestamp(10)
        self.assertEqual(hooks.answered.call_count, 2)

    def test_connecting_ends_at_its_deadline_while_a_token_source_blocks(self) -> None:
        over, ended = threading.Event(), threading.Event()

        def source() -> str:
            over.wait(10)
            ended.set()
            return ""

        client = blocking.Client([self.node.addr], Options(token_source=source))
        with self.assertRaises(DeadlineExceededError):
            client.connect(0.1)
        self.assertFalse(ended.is_set())
        over.set()
        client.connect(10)
        client.connect(0)
        client.close()

    def test_an_error_reaches_its_caller(self) -> None:
        self.node.ask = lambda peer, id, count: peer.refuse(id, 66)
        with blocking.Client([self.node.addr]) as client, self.assertRaises(UnsupportedError):
            client.timestamp()

    def test_a_closed_client_ends_its_calls_and_its_thread(self) -> None:
        asked = threading.Event()
        self.node.ask = lambda *_: asked.set()
        client = blocking.Client([self.node.addr], Options(attempt_timeout=5))
        outcomes: list[Exception] = []

        def caller() -> None:
            try:
                client.timestamp()
            except ClosedError as error:
                outcomes.append(error)

        thread = threading.Thread(target=caller)
        thread.start()
        self.assertTrue(asked.wait(10))
        client.close()
        client.close()
        thread.join(10)
        self.assertEqual(len(outcomes), 1)
        self.assertFalse(client._thread.is_alive())
        with self.assertRaises(ClosedError):
            client.timestamp()
        with self.assertRaises(ClosedError):
            client.connect()

    def test_a_closed_client_says_so_to_a_thread_that_has_its_threads_number(self) -> None:
        client = blocking.Client([self.node.addr])
        client.close()
        outcomes: list[BaseException] = []

        def caller() -> None:
            # The system gives the number of an ended thread to a later one.
            client._thread._ident = threading.get_ident()  # type: ignore[attr-defined]
            try:
                client.close()
                client.timestamp()
            except BaseException as error:
                outcomes.append(error)

        thread = threading.Thread(target=caller)
        thread.start()
        thread.join(10)
        self.assertEqual([type(each) for each in outcomes], [ClosedError])

    def test_a_task_of_a_hook_that_never_ends_does_not_hold_up_close(self) -> None:
        ended = threading.Event()
        tasks = []

        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        class Hooks(Observer):
            def answered(self, callers: int, timestamps: int, took: float) -> None:
                tasks.append(asyncio.ensure_future(endless()))

        with mock.patch.object(blocking, "CLOSE_SECONDS", 0.1):
            client = blocking.Client([self.node.addr], Options(observer=Hooks()))
            client.timestamp(10)
            while not tasks:
                time.sleep(0.001)
            client.close()
            client._thread.join(10)
        self.assertFalse(client._thread.is_alive())
        self.assertTrue(ended.is_set())

    def test_a_handler_of_a_signal_may_close_the_client_while_its_thread_calls(self) -> None:
        client = blocking.Client([self.node.addr])
        client.connect(10)
        hand_over = client._loop.call_soon_threadsafe

        def interrupted(*arguments: Any) -> object:
            # The handler runs at this moment, while the call has the lock.
            client._loop.call_soon_threadsafe = hand_over  # type: ignore[method-assign]
            client.close()
            return hand_over(*arguments)

        with mock.patch.object(client._loop, "call_soon_threadsafe", interrupted):
            with self.assertRaises(ClosedError):
                client.timestamp(10)
        self.assertFalse(client._thread.is_alive())

    def test_a_client_that_finds_no_leader_leaves_no_thread(self) -> None:
        self.node.on_hello = lambda: None
        before = threading.active_count()
        with self.assertRaises(DeadlineExceededError):
            with blocking.Client([self.node.addr], Options(timeout=0.1)):
                pass
        self.assertEqual(threading.active_count(), before)

    def test_a_call_that_meets_close_ends_with_it(self) -> None:
        """The call hands its work to the client's thread at the moment at which close is called.
        If close does not wait for this, the work comes after the last turn of the loop, and the
        call would wait for an answer for ever."""
        calls: list[Callable[[blocking.Client], object]] = [
            lambda client: client.timestamp(20),
            lambda client: client.connect(20),
        ]
        for call in calls:
            client = blocking.Client([self.node.addr])
            client.connect(10)
            loop = client._loop
            hands_over, stopped, handed = threading.Event(), threading.Event(), threading.Event()
            hand_over, close_loop = loop.call_soon_threadsafe, loop.close

            def late(*work: Any) -> Any:
                if threading.current_thread() is not caller:
                    return hand_over(*work)
                hands_over.set()
                stopped.wait(0.1)  # Nothing stops the loop, unless close does not wait.
                try:
                    return hand_over(*work)
                finally:
                    handed.set()

            def close() -> None:
                stopped.set()
                handed.wait(10)
                close_loop()

            def run() -> None:
                with contextlib.suppress(ClosedError):
                    call(client)

            caller = threading.Thread(target=run, daemon=True)
            with mock.patch.multiple(loop, call_soon_threadsafe=late, close=close):
                caller.start()
                self.assertTrue(hands_over.wait(10))
                client.close()
            caller.join(10)
            self.assertFalse(caller.is_alive())

    def test_a_hook_that_calls_its_client_gets_an_error(self) -> None:
        outcomes: list[BaseException] = []
        called = threading.Event()

        class Hooks(Observer):
            def answered(self, callers: int, timestamps: int, took: float) -> None:
                for work in (client.timestamp, client.connect, client.close):
                    try:
                        work()
                    except RuntimeError as error:
                        outcomes.append(error)
                called.set()

        client = blocking.Client([self.node.addr], Options(observer=Hooks()))
        client.timestamp(10)
        self.assertTrue(called.wait(10))
        self.assertEqual(len(outcomes), 3)
        client.close()
