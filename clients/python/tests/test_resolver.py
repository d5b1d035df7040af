"""Tests of lookups of names, with a resolver whose answers a test decides."""

import asyncio
import os
import signal
import socket
import threading
from typing import Any
from unittest import mock

from epicepoch import (
    Client,
    EpicEpochError,
    Observer,
    Options,
    UnreachableError,
    dial,
    resolver,
)
from epicepoch.connection import connect
from epicepoch.resolver import RESOLVER, Resolver

from .node import Case, until

NODE = "node.example"


class Names:
    """A resolver that answers when a test says so. All names have the address 127.0.0.1."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()

    def look(self, host: str) -> list[Any]:
        self.asked.append(host)
        self.answers.wait(30)
        if host == "unknown.example":
            raise socket.gaierror("unknown")
        if host == "ended.example":
            raise SystemExit
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, ("127.0.0.1", 0))]


class Lookups(Case):
    def setUp(self) -> None:
        super().setUp()
        self.names = Names()
        self.addCleanup(self.names.answers.set)  # Otherwise the thread of a lookup stays.
        self.resolver = Resolver(self.names.look)

    async def resolve(self, host: str = NODE, timeout: float = 10) -> Any:
        return await asyncio.wait_for(self.resolver.resolve(host, timeout), 10)

    async def test_a_lookup_that_takes_longer_than_an_attempt_serves_a_later_one(self) -> None:
        node = await self.node()
        failures: list[Exception] = []

        class Failures(Observer):
            def failed_attempt(self, error: EpicEpochError) -> None:
                failures.append(error)

        with mock.patch.object(dial, "RESOLVER", self.resolver):
            addr = f"{NODE}:{node.addr.rpartition(':')[2]}"
            client = Client([addr], Options(attempt_timeout=0.05, observer=Failures()))
            self.addAsyncCleanup(client.close)
            call = asyncio.ensure_future(client.timestamp(10))
            await until(lambda: len(failures) >= 3)
            self.assertEqual(self.names.asked, [NODE])
            self.names.answers.set()
            await call
        self.assertEqual(str(failures[0]), f"{addr}: the lookup of {NODE} took too long")
        # The program's own work has the default executor for itself.
        self.assertIsNone(getattr(asyncio.get_running_loop(), "_default_executor"))

    async def test_attempts_at_the_same_time_share_a_lookup(self) -> None:
        calls = [asyncio.ensure_future(self.resolve()) for _ in range(5)]
        await until(lambda: self.names.asked)
        calls[0].cancel()
        self.names.answers.set()
        found = await asyncio.gather(*calls[1:])
        self.assertEqual(found, [found[0]] * 4)
        self.assertEqual(found[0][0][4], ("127.0.0.1", 0))
        self.assertEqual(self.names.asked, [NODE])

    async def test_an_answer_is_kept_if_no_attempt_had_time_for_it_and_it_is_not_old(self) -> None:
        self.names.answers.set()
        for timeout, kept, lookups in ((-1.0, 1e9, 1), (1e9, 1e9, 2), (-1.0, 0.0, 2)):
            self.names.asked.clear()
            self.resolver.reset()
            with mock.patch.object(resolver, "KEPT", kept):
                await self.resolve(timeout=timeout)
                await self.resolve()
                self.assertEqual(len(self.names.asked), lookups)
                if lookups == 1:
                    await self.resolve()
                    self.assertEqual(len(self.names.asked), 2)

    async def test_an_answer_for_which_no_attempt_waits_is_kept(self) -> None:
        call = asyncio.ensure_future(self.resolve())
        await until(lambda: self.names.asked)
        call.cancel()
        await asyncio.wait({call})
        self.names.answers.set()
        await until(lambda: self.resolver._lookups[NODE].ended is not None)
        await self.resolve()
        self.assertEqual(self.names.asked, [NODE])

    async def test_a_failed_lookup_is_not_kept(self) -> None:
        self.names.answers.set()
        for lookups in (1, 2):
            await self.fails(socket.gaierror, self.resolve("unknown.example", -1))
            self.assertEqual(len(self.names.asked), lookups)

    async def test_a_lookup_whose_thread_ends_is_an_error(self) -> None:
        self.names.answers.set()
        for lookups in (1, 2):
            error = await self.fails(OSError, self.resolve("ended.example", -1))
            self.assertEqual(str(error), "the lookup ended without an answer")
            self.assertEqual(len(self.names.asked), lookups)

    async def test_the_number_of_lookups_is_limited(self) -> None:
        with mock.patch.object(resolver, "LOOKUPS_MAX", 2):
            calls = [asyncio.ensure_future(self.resolve(f"{at}.example", -1)) for at in range(2)]
            await until(lambda: len(self.names.asked) == 2)
            await self.fails(OSError, self.resolve())
            self.assertEqual(len(self.names.asked), 2)
            self.names.answers.set()
            await asyncio.gather(*calls)
            # A kept answer makes place.
            await self.resolve()
            self.assertEqual(self.names.asked[2:], [NODE])

    async def test_a_lookup_outlives_the_event_loop_that_began_it(self) -> None:
        def begin() -> None:
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda *_: None)  # Reports the abandoned attempt.
            work = loop.create_task(self.resolver.resolve(NODE, 10))
            loop.run_until_complete(asyncio.wait({work}, timeout=0))
            # The attempt still waits when its loop is closed.
            abandoned.append(work)
            loop.close()

        abandoned: list[asyncio.Task[Any]] = []
        thread = threading.Thread(target=begin)
        thread.start()
        await until(lambda: not thread.is_alive())
        call = asyncio.ensure_future(self.resolve())
        await until(lambda: self.names.asked)
        self.names.answers.set()
        await call
        self.assertEqual(self.names.asked, [NODE])

    async def test_a_child_process_waits_for_no_lookup_of_its_parent(self) -> None:
        with mock.patch.object(RESOLVER, "_look", self.names.look):
            call = asyncio.ensure_future(RESOLVER.resolve(NODE, 10))
            await until(lambda: self.names.asked)
            with RESOLVER._lock:  # Another thread of the parent may hold it.
                child = os.fork()
                if child == 0:
                    with RESOLVER._lock:
                        os._exit(7 if not RESOLVER._lookups else 1)
            ended: list[int] = []

            def wait() -> bool:
                pid, status = os.waitpid(child, os.WNOHANG)
                ended.append(status)
                return pid == child

            try:
                await until(wait)
            except BaseException:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise
            self.assertEqual(os.WEXITSTATUS(ended[-1]), 7)
            self.names.answers.set()
            await call
        RESOLVER.reset()

    async def test_a_literal_address_needs_no_lookup(self) -> None:
        with mock.patch.object(dial, "RESOLVER", self.resolver):
            for addr in ("127.0.0.1:1", "[::1]:1"):  # No node listens there.
                await self.fails(UnreachableError, connect(addr, Options(), None, 10))
        self.assertEqual(self.names.asked, [])

    async def test_only_so_many_addresses_are_tried(self) -> None:
        tried: list[Any] = []

        def refuse(*given: Any) -> socket.socket:
            tried.append(given)
            raise OSError("refused")

        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))] * 1000
        with mock.patch.object(socket, "socket", refuse):
            await self.fails(OSError, dial.dial(found, 10))
        self.assertEqual(len(tried), dial.ADDRESSES_MAX)
