"""Clusters of real nodes on loopback, for tests. EPICEPOCH_BIN is the path of their binary."""

import contextlib
import os
import pathlib
import random
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

BINARY = os.environ.get("EPICEPOCH_BIN", "")
if BINARY:
    BINARY = str(pathlib.Path(BINARY).resolve())
given: set[str] = set()


def free_address() -> str:
    """Return an address at which nothing listens, another one at each call. Its port is below the
    ports that the system gives to outgoing connections. Otherwise some connection could take the
    port before the node listens there."""
    while True:
        host, port = "127.0.0.1", random.randrange(20000, 32000)
        addr = f"{host}:{port}"
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            if addr not in given:
                given.add(addr)
                return addr


class Process:
    """A process of a node. It ends at the end of its test at the latest."""

    def __init__(self, test: unittest.TestCase, directory: str, addr: str, *words: str) -> None:
        with open(os.path.join(directory, "log"), "ab") as log:
            self.node = subprocess.Popen(
                [BINARY, "serve", "--http-port", addr.rpartition(":")[2], "--bootstrap"]
                + ["--data-dir", os.path.join(directory, "data"), *words],
                # Without a certificate, a node writes one into its working directory.
                cwd=directory,
                stdout=log,
                stderr=log,
            )
        test.addCleanup(self.stop, signal.SIGKILL)

    def stop(self, how: signal.Signals) -> None:
        if self.node.poll() is None:
            self.node.send_signal(how)
            self.node.wait()


class Cluster:
    """Three nodes."""

    def __init__(self, test: unittest.TestCase) -> None:
        self.test = test
        self.addrs = [free_address() for _ in range(3)]
        self.raft = [free_address() for _ in range(3)]
        self.directories = [directory(test) for _ in range(3)]
        self.nodes = [self.start(at) for at in range(3)]
        for at in range(3):
            self.wait("/ready", at)

    def start(self, at: int) -> Process:
        peers = ",".join(f"{other + 1}={addr}" for other, addr in enumerate(self.raft))
        words = ["--node-id", str(at + 1), "--raft-addr", self.raft[at], "--peers", peers]
        return Process(self.test, self.directories[at], self.addrs[at], *words)

    def lose_leader(self, how: signal.Signals) -> None:
        """Stop the leader, wait until another node leads, and start the stopped node again."""
        at = self.wait("/leader", 0, 1, 2)
        self.nodes[at].stop(how)
        self.wait("/leader", 0, 1, 2)
        self.nodes[at] = self.start(at)
        self.wait("/ready", at)

    def wait(self, path: str, *nodes: int) -> int:
        """Wait until one of these nodes answers this path with 200, and return that node's
        position."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for at in nodes:
                url = f"http://{self.addrs[at]}{path}"
                with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as got:
                    if got.status == 200:
                        return at
            time.sleep(0.01)
        raise AssertionError(f"no node of {nodes} answers {path}")


def directory(test: unittest.TestCase) -> str:
    made = tempfile.TemporaryDirectory()
    test.addCleanup(made.cleanup)
    return made.name
