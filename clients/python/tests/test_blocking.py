"""Tests of the client for threads, with a node on another thread."""

import os
import threading
import time
import unittest

from epicepoch import (
    ClosedError,
    CountError,
    DeadlineExceededError,
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
            for timeout in (0, 0.05):
                began = time.monotonic()
                with self.assertRaises(DeadlineExceededError):
                    client.timestamp(timeout)
                self.assertGreaterEqual(time.monotonic() - began, timeout)
            # Only the second call has sent a request. The call with a timeout of 0 has sent none.
            self.assertTrue(asked.wait(10))
            self.assertEqual(client._session.requests._last_id, 1)

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

    def test_a_client_that_finds_no_leader_leaves_no_thread(self) -> None:
        self.node.greet = lambda: None
        before = threading.active_count()
        with self.assertRaises(DeadlineExceededError):
            with blocking.Client([self.node.addr], Options(timeout=0.1)):
                pass
        self.assertEqual(threading.active_count(), before)

    def test_a_client_does_not_survive_a_fork(self) -> None:
        with blocking.Client([self.node.addr]) as client:
            child = os.fork()
            if child == 0:
                try:
                    client.timestamp()
                except ClosedError:
                    os._exit(7)
                os._exit(1)
            self.assertEqual(os.WEXITSTATUS(os.waitpid(child, 0)[1]), 7)
            client.timestamp()
