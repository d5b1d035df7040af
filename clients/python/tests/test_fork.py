"""Tests of clients in a process that was made by a fork. They must not use the connections of the
process that made them."""

import asyncio
import os
import unittest
from typing import Callable

import epicepoch
from epicepoch import ClosedError, blocking

from .thread import NodeThread


class Forks(unittest.TestCase):
    def setUp(self) -> None:
        self.node = NodeThread(self)

    def fails_in_a_child(self, call: Callable[[], object], close: Callable[[], object]) -> None:
        """Check that a call fails with ClosedError in a child process, and that closing the client
        there is harmless."""
        child = os.fork()
        if child == 0:
            try:
                call()
            except ClosedError:
                close()
                os._exit(7)
            finally:
                os._exit(1)
        self.assertEqual(os.WEXITSTATUS(os.waitpid(child, 0)[1]), 7)

    def test_a_blocking_client_does_not_survive_a_fork(self) -> None:
        with blocking.Client([self.node.addr]) as client:
            self.fails_in_a_child(client.timestamp, client.close)
            client.timestamp()

    def test_an_asyncio_client_does_not_survive_a_fork(self) -> None:
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        client = epicepoch.Client([self.node.addr])
        run = loop.run_until_complete
        before = run(client.timestamp(10))
        self.fails_in_a_child(lambda: run(client.timestamp(10)), lambda: run(client.close()))
        # The node has got no request of the child, and the connection of this process is as before.
        self.assertLess(before, run(client.timestamp(10)))
        self.assertEqual((self.node.asked, self.node.met), (2, 1))
        run(client.close())
