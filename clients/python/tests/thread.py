"""A node on a thread of its own, for tests that block."""

import asyncio
import threading
import unittest

from .node import Node, Oracle


class NodeThread(Node):
    """A scripted node on its own thread. It listens until the end of a test."""

    def __init__(self, test: unittest.TestCase) -> None:
        super().__init__(1, Oracle())
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        asyncio.run_coroutine_threadsafe(self.listen(), loop).result()

        def stop() -> None:
            asyncio.run_coroutine_threadsafe(self.stop(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

        test.addCleanup(stop)
