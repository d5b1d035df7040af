"""Tests of the client with real nodes: leaders are killed and stopped; nodes require TLS and
tokens."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import time
import unittest
from typing import Optional

from epicepoch import (
    Client,
    DeadlineExceededError,
    EpicEpochError,
    Observer,
    Options,
    RefusedError,
    Timestamp,
    UnauthorizedError,
)
from epicepoch.blocking import Client as Blocking

from .cluster import BINARY, Cluster, Process, directory, free_address

CALLERS = 8


@unittest.skipUnless(BINARY, "EPICEPOCH_BIN names no binary")
class Losses(unittest.TestCase):
    def test_calls_outlive_their_leaders_in_one_order(self) -> None:
        """Two clients, one for asyncio and one for threads, ask while leaders are lost. If a call
        ends before another begins, its answer must be below the other's."""
        cluster = Cluster(self)
        highest: Optional[Timestamp] = None
        given: list[Timestamp] = []
        over = False

        def check(floor: Optional[Timestamp], got: Timestamp) -> None:
            nonlocal highest
            self.assertTrue(floor is None or floor < got)
            highest = max(highest or got, got)
            given.append(got)

        async def caller(client: Client) -> None:
            while not over:
                floor = highest
                check(floor, await client.timestamp(5))
                await asyncio.sleep(0.001)

        def thread(client: Blocking) -> None:
            while not over:
                floor = highest
                check(floor, client.timestamp(5))
                time.sleep(0.001)

        async def run() -> None:
            nonlocal over
            loop = asyncio.get_running_loop()
            async with Client(cluster.addrs) as client:
                with Blocking(cluster.addrs) as other:
                    calls = [asyncio.ensure_future(caller(client)) for _ in range(CALLERS)]
                    calls.append(loop.run_in_executor(None, thread, other))  # type: ignore[arg-type]
                    for how in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
                        before = len(given)
                        await loop.run_in_executor(None, cluster.lose_leader, how)
                        self.assertGreater(len(given), before)
                    over = True
                    await asyncio.gather(*calls)

        asyncio.run(run())
        self.assertEqual(len(set(given)), len(given))


@unittest.skipUnless(BINARY, "EPICEPOCH_BIN names no binary")
class Security(unittest.TestCase):
    def certificates(self) -> str:
        """Let the binary make an authority, and certificates for a node and a client."""
        made = directory(self)
        for kind, *names in (["ca"], ["node", "1=127.0.0.1"], ["client", "app"]):
            command = [BINARY, "certs", kind, "--dir", made, *names]
            subprocess.run(command, check=True, capture_output=True)
        return made

    def trusting(self, made: str, shown: str = "") -> ssl.SSLContext:
        """Return a context that trusts the authority in the directory made. If shown is another
        directory, the context also has the client certificate from there."""
        context = ssl.create_default_context(cafile=os.path.join(made, "ca.pem"))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if shown:
            pair = (os.path.join(shown, "client-app" + end) for end in (".pem", ".key"))
            context.load_cert_chain(*pair)
        return context

    def test_a_secured_node_serves_its_own_clients_alone(self) -> None:
        made, foreign = self.certificates(), self.certificates()
        addr, home = free_address(), directory(self)
        tokens = os.path.join(home, "tokens")
        token = "app-0123456789abcdef0123456789abcdef"
        with open(tokens, "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(token + "\n")
        words = ["--single", "--node-id", "1", "--raft-addr", free_address(), "--client-tls", "on"]
        for setting, name in (
            ("--cert-file", "node-1.pem"),
            ("--key-file", "node-1.key"),
            ("--client-ca-file", "ca.pem"),
            ("--client-token-file", tokens),
        ):
            words += [setting, os.path.join(made, name)]
        Process(self, home, addr, *words)
        leaders: list[str] = []

        class Watch(Observer):
            def connected(self, addr: str) -> None:
                leaders.append(addr)

        good = Options(
            tls=lambda: self.trusting(made, made),
            token=token,
            timeout=20,
            attempt_timeout=5,
            observer=Watch(),
        )
        with Blocking([addr], good) as client:
            last = client.timestamp()
            for _ in range(100):
                last, before = client.timestamp(), last
                self.assertLess(before, last)
            self.assertEqual(leaders, [addr])
            mine, strangers = self.trusting(made, made), self.trusting(made, foreign)
            for name, kind, why, options in (
                ("plain", RefusedError, "this port speaks TLS", Options(token=token)),
                ("plain", RefusedError, "set Options.tls", Options(token=token)),
                ("no token", UnauthorizedError, "missing token: set", Options(tls=mine)),
                ("no certificate", DeadlineExceededError, "", Options(tls=self.trusting(made))),
                ("a stranger's certificate", DeadlineExceededError, "", Options(tls=strangers)),
                (
                    "another authority",
                    DeadlineExceededError,
                    "verify failed",
                    Options(tls=self.trusting(foreign, made)),
                ),
                (
                    "another name",
                    DeadlineExceededError,
                    "elsewhere.example",
                    Options(tls=mine, tls_server_name="elsewhere.example"),
                ),
            ):
                with self.subTest(name), contextlib.closing(Blocking([addr], options)) as refused:
                    with self.assertRaises(EpicEpochError) as caught:
                        refused.connect(1)
                    self.assertIsInstance(caught.exception, kind)
                    self.assertIn(why, str(caught.exception))
            # The node has refused those clients, and must still answer this one.
            client.timestamp()
