"""Asks a cluster for timestamps over HTTP/3 with aioquic, a client of another project.

    aioquic_client.py CA-FILE HOST:PORT [HOST:PORT]...
"""

import asyncio
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration

CALLERS = 32
CALLS = 20
LENGTH = 16


class Client(QuicConnectionProtocol):
    """One connection, with the answers that it waits for."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.open = {}

    def quic_event_received(self, event):
        for what in self.http.handle_event(event):
            if what.stream_id not in self.open:
                continue
            future, headers, body = self.open[what.stream_id]
            if isinstance(what, HeadersReceived):
                headers.update((name.decode(), value.decode()) for name, value in what.headers)
            elif isinstance(what, DataReceived):
                body.extend(what.data)
            if what.stream_ended and not future.done():
                future.set_result((int(headers[":status"]), headers, bytes(body)))

    async def get(self, authority, path):
        stream = self._quic.get_next_available_stream_id()
        future = asyncio.get_running_loop().create_future()
        self.open[stream] = (future, {}, bytearray())
        fields = [(":method", "GET"), (":scheme", "https"), (":authority", authority), (":path", path)]
        self.http.send_headers(
            stream, [(name.encode(), value.encode()) for name, value in fields], end_stream=True
        )
        self.transmit()
        return await asyncio.wait_for(future, 10)


async def ask(client, authority):
    got = []
    for _ in range(CALLS):
        status, _, body = await client.get(authority, "/timestamp")
        assert (status, len(body)) == (200, LENGTH), (status, body)
        assert not got or got[-1] < body, (got[-1], body)
        got.append(body)
    return got


async def check(ca_file, authority):
    """Returns whether this node leads."""
    host, port = authority.rsplit(":", 1)
    quic = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, server_name=host)
    quic.load_verify_locations(ca_file)
    async with connect(host, int(port), configuration=quic, create_protocol=Client) as client:
        status, headers, _ = await client.get(authority, "/timestamp")
        if status == 409:
            assert headers["epicepoch-leader"], headers
            return False
        assert status == 200, (status, headers)
        lists = await asyncio.gather(*(ask(client, authority) for _ in range(CALLERS)))
        everything = [timestamp for own in lists for timestamp in own]
        assert len(set(everything)) == CALLERS * CALLS
        status, _, body = await client.get(authority, "/timestamp?n=65536")
        assert (status, len(body)) == (200, 65536 * LENGTH), status
        status, headers, _ = await client.get(authority, "/timestamp?n=0")
        assert (status, headers["epicepoch-error"]) == (400, "BAD_COUNT"), (status, headers)
        return True


async def main(ca_file, *nodes):
    leaders = [node for node in nodes if await check(ca_file, node)]
    assert len(leaders) == 1, leaders
    print(f"aioquic: {CALLERS * CALLS} timestamps, one order")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
