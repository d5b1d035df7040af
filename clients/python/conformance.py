"""The conformance driver of the Python client.

It reads commands, one JSON object per line, and writes the client's answers. See clients/README.md.
With ``--threads`` it drives the client for threads, ``epicepoch.blocking.Client``.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional, TypeVar, Union

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))

import epicepoch

CALLS_MAX = 512
"""The most calls in progress of a client for threads."""
T = TypeVar("T")

# The names of errors that the drivers of all languages share.
FAULTS = [
    (epicepoch.DeadlineExceededError, "deadline"),
    (asyncio.CancelledError, "cancelled"),
    (epicepoch.ClosedError, "closed"),
    (epicepoch.CountError, "count"),
    (epicepoch.WrongClusterError, "wrong_cluster"),
    (epicepoch.WentBackwardsError, "backwards"),
    (epicepoch.ProtocolError, "protocol"),
    (epicepoch.NotCompactError, "not_compact"),
    (epicepoch.RefusedError, "refused"),
]


class Threads:
    """A blocking client. Each of its calls runs on a thread, and looks like a coroutine here."""

    def __init__(self, addrs: list[str], options: epicepoch.Options) -> None:
        self.client = epicepoch.blocking.Client(addrs, options)
        self.threads = ThreadPoolExecutor(CALLS_MAX)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)

    async def connect(self) -> None:
        await self.run(self.client.connect)

    async def timestamps(self, count: int, timeout: Optional[float]) -> epicepoch.TimestampRange:
        return await self.run(self.client.timestamps, count, timeout)

    async def latest(self, timeout: Optional[float]) -> epicepoch.Timestamp:
        return await self.run(self.client.latest, timeout)

    async def compact_timestamps(self, count: int, timeout: Optional[float]) -> range:
        return await self.run(self.client.compact_timestamps, count, timeout)

    async def compact_latest(self, timeout: Optional[float]) -> int:
        return await self.run(self.client.compact_latest, timeout)

    async def close(self) -> None:
        await self.run(self.client.close)


class Driver:
    """The client and its calls in progress."""

    def __init__(self) -> None:
        self.client: Union[epicepoch.Client, Threads]
        self.is_compact = False
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def carry_out(self, line: str) -> None:
        """Begin to carry out a command. Commands begin in the order in which they come."""
        command = json.loads(line)
        task = asyncio.ensure_future(self.reply(command["id"], self.work(command)))
        self.tasks[command["id"]] = task
        task.add_done_callback(lambda _: self.tasks.pop(command["id"]))

    async def reply(self, id: int, work: Awaitable[dict[str, Any]]) -> None:
        reply: dict[str, Any] = {"id": id, "start": time.monotonic_ns()}
        try:
            reply.update(await work)
        except BaseException as error:
            faults = (name for kind, name in FAULTS if isinstance(error, kind))
            reply.update(error=next(faults, "other"), text=str(error) or repr(error))
        reply["end"] = time.monotonic_ns()
        print(json.dumps(reply), flush=True)

    async def work(self, command: dict[str, Any]) -> dict[str, Any]:
        do = command["do"]
        if do == "open":
            self.is_compact = bool(command.get("compact"))
            given = {"timeout": command["timeout_ms"] / 1000} if "timeout_ms" in command else {}
            options = epicepoch.Options(
                **given,
                attempt_timeout=command["attempt_ms"] / 1000,
                refresh_interval=command["refresh_ms"] / 1000,
                cluster_name=command.get("cluster") or "",
                guarantee=command.get("guarantee") or "",
                timestamp_format="compact" if self.is_compact else "",
                hedge_after=command["hedge_ms"] / 1000 if command.get("hedge_ms") else None,
            )
            kind = Threads if "--threads" in sys.argv else epicepoch.Client
            self.client = kind(command["addrs"], options)
            await self.client.connect()
        elif do == "timestamps":
            timeout = command["timeout_ms"] / 1000 if "timeout_ms" in command else None
            if self.is_compact:
                spellings = await self.client.compact_timestamps(command["count"], timeout)
                return {"u64": str(spellings[0]), "count": len(spellings)}
            answer = await self.client.timestamps(command["count"], timeout)
            return {"first": str(answer.first), "count": answer.count}
        elif do == "latest":
            timeout = command["timeout_ms"] / 1000 if "timeout_ms" in command else None
            if self.is_compact:
                return {"u64": str(await self.client.compact_latest(timeout)), "count": 1}
            return {"first": str(await self.client.latest(timeout)), "count": 1}
        elif do == "cancel":
            call = self.tasks.get(command["call"])
            if call is not None:
                call.cancel()
        elif do == "close":
            await self.client.close()
        elif do != "clock":
            raise ValueError(f"unknown command {do!r}")
        return {}


async def main() -> None:
    driver, loop = Driver(), asyncio.get_running_loop()
    ended = asyncio.Event()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(driver.carry_out, line)
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, daemon=True).start()
    await ended.wait()
    client = getattr(driver, "client", None)
    if isinstance(client, Threads):
        client.client.close()  # Ends the calls, so that their threads end.


asyncio.run(main())
