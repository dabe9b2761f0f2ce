"""What Codex sent and was sent, byte for byte: a relay of connections between it and the server.

It knows HTTP and WebSocket frames as far as it must to find requests in a record. Invariant: bytes go through
unchanged, until a cut ends the connection as a broken network does.
"""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.parse import urlsplit

_BOUND_S = 30.0
_PIECE_BYTES = 65536
_HEAD_END = b"\r\n\r\n"


@dataclass
class Connection:
    """Both directions of one connection, as far as they went through."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    @property
    def head(self) -> str:
        """The request line and headers of the first request."""
        return self.sent.partition(_HEAD_END)[0].decode("latin-1").lower()

    @property
    def is_socket(self) -> bool:
        """Whether the client asked for an upgrade."""
        return "\r\nupgrade: websocket" in self.head


@dataclass
class Wire:
    """The record of a relay. `cut(connection)` is asked after every piece of an answer."""

    url: str = ""
    connections: list[Connection] = field(default_factory=list)
    cut: Callable[[Connection], bool] | None = None

    @property
    def bodies(self) -> list[bytes]:
        """The body of every POST, in order."""
        return [
            body
            for connection in self.connections
            if not connection.is_socket
            for body in split_bodies(bytes(connection.sent))
        ]

    @property
    def frames(self) -> list[bytes]:
        """The text of every WebSocket frame that the client sent, in order."""
        return [
            text
            for connection in self.connections
            if connection.is_socket
            for text in split_frames(bytes(connection.sent.partition(_HEAD_END)[2]))
        ]


@contextmanager
def tap(url: str) -> Iterator[Wire]:
    """A relay to the server with this base address."""
    target = urlsplit(url)
    wire = Wire()
    loop = asyncio.new_event_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _relay(wire, (target.hostname or "", target.port or 80), reader, writer)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            tasks.discard(task)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        starting = asyncio.start_server(serve, "127.0.0.1", 0)
        server = asyncio.run_coroutine_threadsafe(starting, loop).result(_BOUND_S)
        wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{target.path}"
        try:
            yield wire
        finally:
            asyncio.run_coroutine_threadsafe(stop(server), loop).result(_BOUND_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_BOUND_S)
        loop.close()


async def _relay(
    wire: Wire, target: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    connection = Connection()
    wire.connections.append(connection)
    onward_reader, onward = await asyncio.open_connection(*target)
    there = asyncio.create_task(_pump(reader, onward, connection.sent))
    try:
        while piece := await onward_reader.read(_PIECE_BYTES):
            connection.received += piece
            writer.write(piece)
            await writer.drain()
            if wire.cut is not None and wire.cut(connection):
                _reset(writer)
                return
    finally:
        there.cancel()
        await asyncio.gather(there, return_exceptions=True)
        onward.close()
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        record += piece
        writer.write(piece)
        await writer.drain()
    writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def split_bodies(sent: bytes) -> list[bytes]:
    """The bodies of the requests on one connection."""
    bodies = []
    while sent:
        head, _, rest = sent.partition(_HEAD_END)
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        size = int(length[1]) if length is not None else 0
        if size:
            bodies.append(rest[:size])
        sent = rest[size:]
    return bodies


def split_frames(sent: bytes) -> list[bytes]:
    """The texts in the masked frames of a client (RFC 6455, 5.2); pings and closing are left out."""
    texts, at = [], 0
    while at + 2 <= len(sent):
        kind, size = sent[at] & 15, sent[at + 1] & 127
        at += 2
        if size >= 126:
            width = 2 if size == 126 else 8
            size = int.from_bytes(sent[at : at + width], "big")
            at += width
        mask, at = sent[at : at + 4], at + 4
        payload = sent[at : at + size]
        at += size
        key = (mask * (len(payload) // 4 + 1))[: len(payload)]
        text = (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(len(payload), "big")
        if kind == 1:
            texts.append(text)
    return texts


def find_list_end(body: bytes, key: str) -> int:
    """Where the list under a top-level key ends: the place of its closing bracket."""
    at = body.index(b'"%b":[' % key.encode()) + len(key) + 4
    depth, quoted, escaped = 0, False, False
    for place in range(at - 1, len(body)):
        byte = body[place]
        if quoted:
            escaped, quoted = (byte == 0x5C and not escaped), not (byte == 0x22 and not escaped)
        elif byte == 0x22:
            quoted = True
        elif byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
            if not depth:
                return place
    raise AssertionError(f"the list {key} does not end")


def check_prefixes(bodies: list[bytes], key: str) -> None:
    """Each body begins with the bytes of the one before, up to the end of its list under the key."""
    assert len(bodies) > 1
    for earlier, later in pairwise(bodies):
        end = find_list_end(earlier, key)
        assert later[:end] == earlier[:end]
        assert later[end : end + 1] in (b",", b"]")


def cut_before(bodies: list[bytes], key: str) -> list[bytes]:
    """The bodies from the list under the key on, for those that differ before it."""
    return [body[body.index(b'"%b":[' % key.encode()) :] for body in bodies]
