"""Measures the client: one caller, a thousand callers, and callers on threads.

For comparison, programs of the same structure measure a bare echo on loopback, and INCR of Redis if
its server and its client are installed. EPICEPOCH_BIN names the binary; use a release build.
"""

import argparse
import asyncio
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Awaitable, Iterator
from typing import Any, Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "src"))

import epicepoch
from tests.cluster import Cluster, free_address

HERE = pathlib.Path(__file__).resolve().parent
CALLERS = 1000


async def one_caller(seconds: float, call: Callable[[], Awaitable[Any]]) -> float:
    """Return the median duration of a call of one caller, in microseconds."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return sorted(took)[len(took) // 2] * 1e6


async def many_callers(seconds: float, call: Callable[[], Awaitable[Any]]) -> float:
    """Return the calls per second of a thousand callers."""
    end = time.perf_counter() + seconds

    async def caller() -> int:
        calls = 0
        while time.perf_counter() < end:
            await call()
            calls += 1
        return calls

    began = time.perf_counter()
    calls = await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return sum(calls) / (time.perf_counter() - began)


async def measure(name: str, seconds: float, call: Callable[[], Awaitable[Any]]) -> None:
    await one_caller(seconds / 5, call)
    one = await one_caller(seconds, call)
    many = await many_callers(seconds, call)
    print(f"{name:<28} one caller p50 {one:7.1f} us, {CALLERS} callers {many:9.0f}/s", flush=True)


def threads(seconds: float, addrs: list[str]) -> None:
    """Measure the client for threads."""
    with epicepoch.blocking.Client(addrs) as client:
        end = time.perf_counter() + seconds
        took = []
        while time.perf_counter() < end:
            began = time.perf_counter()
            client.timestamp()
            took.append(time.perf_counter() - began)
        counts = []
        end = time.perf_counter() + seconds

        def caller() -> None:
            calls = 0
            while time.perf_counter() < end:
                client.timestamp()
                calls += 1
            counts.append(calls)

        callers = [threading.Thread(target=caller) for _ in range(50)]
        for one in callers:
            one.start()
        for one in callers:
            one.join()
    p50, rate = sorted(took)[len(took) // 2] * 1e6, sum(counts) / seconds
    print(f"{'epicepoch, threads':<28} one caller p50 {p50:7.1f} us,   50 callers {rate:9.0f}/s")


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Ask(asyncio.Protocol):
    """Sends 16 bytes to the echo and waits for 16 bytes, one call at a time."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.waiter.set_result(data)

    async def call(self) -> bytes:
        self.waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.transport.write(bytes(16))
        return await self.waiter


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """Run an echo server in its own process, because nodes are processes, too. Yield its port."""
    code = (
        "import asyncio, bench\n"
        "async def main():\n"
        "    loop = asyncio.get_running_loop()\n"
        "    server = await loop.create_server(bench.Echo, '127.0.0.1', 0)\n"
        "    print(server.sockets[0].getsockname()[1], flush=True)\n"
        "    await server.serve_forever()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=HERE, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Run a Redis server, if the server and the client of Redis are installed. Yield its address,
    otherwise an empty text."""
    server = shutil.which("redis-server")
    try:
        import redis.asyncio  # type: ignore[import-not-found,unused-ignore] # noqa: F401
    except ImportError:
        server = None
    if server is None:
        yield ""
        return
    addr = free_address()
    with tempfile.TemporaryDirectory() as directory:
        words = [server, "--port", addr.rpartition(":")[2], "--save", "", "--dir", directory]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        try:
            while True:
                with contextlib.suppress(OSError):
                    socket.create_connection(("127.0.0.1", int(addr.rpartition(":")[2]))).close()
                    break
                time.sleep(0.01)
            yield addr
        finally:
            process.kill()
            process.wait()


async def run(seconds: float, addrs: list[str], echo_port: int, redis_addr: str) -> None:
    loop = asyncio.get_running_loop()
    transport, ask = await loop.create_connection(Ask, "127.0.0.1", echo_port)
    one = await one_caller(seconds, ask.call)
    transport.close()
    print(f"{'echo of 16 bytes':<28} one caller p50 {one:7.1f} us")
    async with epicepoch.Client(addrs) as client:
        await measure("epicepoch, asyncio", seconds, client.timestamp)
    if redis_addr:
        import redis.asyncio

        pool = redis.asyncio.BlockingConnectionPool.from_url(
            f"redis://{redis_addr}", max_connections=50, timeout=None
        )
        other = redis.asyncio.Redis(connection_pool=pool)
        await measure("redis INCR, 50 connections", seconds, lambda: other.incr("counter"))
        await other.aclose()
        await pool.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each figure")
    seconds = parser.parse_args().seconds
    if not os.environ.get("EPICEPOCH_BIN"):
        sys.exit("EPICEPOCH_BIN names no binary")
    version, load = sys.version.split()[0], os.getloadavg()[0]
    print(f"Python {version}, {os.cpu_count()} processors, load {load:.1f}")
    test = unittest.TestCase()
    try:
        addrs = Cluster(test).addrs
        with echo() as port, redis() as redis_addr:
            asyncio.run(run(seconds, addrs, port, redis_addr))
        threads(seconds, addrs)
    finally:
        test.doCleanups()


if __name__ == "__main__":
    main()
