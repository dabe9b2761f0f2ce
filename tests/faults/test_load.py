"""Five hundred streams at once over real sockets: some read late, some leave, and the rest notices nothing.

The server, its model server and the clients are three processes.
"""

import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from antiphon.protocol.lifecycle import StreamChecker
from tests.faults.load_upstream import write_pieces
from tests.scenarios.client import DONE, read_frame, read_text
from tests.scenarios.process import BOUND_S, ServerProcess, start_server

pytestmark = pytest.mark.clients

STREAMS = 500
#: One in ten reads only once the others have ended, one in ten leaves in mid-stream.
SLOW = range(0, STREAMS, 10)
LEAVERS = range(5, STREAMS, 10)
#: A requirement: what nobody reads any more is not written any longer than this.
CANCELLED_WITHIN_S = 1.0
#: What a stream may cost the server: its task, its two connections with their buffers, its events on the way.
STREAM_BYTES = 192 << 10
#: What an answer of 256 KiB may cost on top: its text is in four events of its end, in the record that is stored,
#: and in the cache of windows. The kernel takes it from the server long before its client reads it.
LONG_ANSWER_BYTES = 8 * (256 << 10)
MEMORY_BYTES = STREAMS * STREAM_BYTES + len(SLOW) * LONG_ANSWER_BYTES
RECEIVE_BUFFER_BYTES = 4096
STORY_S = 120.0


class Leave(NamedTuple):
    """Who left, and when, on the machine's monotonic clock."""

    number: int
    at_s: float


@contextmanager
def start_upstream() -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """The model server as a process; its address, and where it tells who left."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.load_upstream"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env={"PYTHONPATH": f"{root / 'src'}:{root}", "PATH": ""},
    )
    watchdog = threading.Timer(STORY_S + BOUND_S, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
    finally:
        watchdog.cancel()
        process.kill()
        process.wait(BOUND_S)
        if process.stdout is not None:
            process.stdout.close()


def read_leaves(process: "subprocess.Popen[str]", count: int) -> dict[int, float]:
    """When the model server's connections for those that left were closed."""
    assert process.stdout is not None
    leaves = {}
    for _ in range(count):
        word, number, at_s = process.stdout.readline().split()
        assert word == "left"
        leaves[int(number)] = float(at_s)
    return leaves


def read_memory(pid: int, name: str) -> int:
    """`VmRSS` or `VmHWM` (its peak) of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {name}")


class Crowd:
    """All clients of one story."""

    def __init__(self, server: ServerProcess) -> None:
        address = urlsplit(server.url)
        assert address.hostname is not None
        assert address.port is not None
        self._address = (address.hostname, address.port)
        self._server = server
        self.slow_may_read = asyncio.Event()
        self.responses: dict[int, dict[str, Any]] = {}

    async def read_whole(self, number: int) -> None:
        """A client that reads as it comes."""
        async with self._ask("whole", number) as (reader, _):
            self._check("whole", number, await reader.read())

    async def read_late(self, number: int) -> None:
        """A client with hardly any room, that reads nothing for long."""
        async with self._ask("slow", number) as (reader, _):
            await self.slow_may_read.wait()
            self._check("slow", number, await reader.read())

    async def leave(self, number: int) -> Leave:
        """A client that goes when it has seen some of the text."""
        async with self._ask("leave", number) as (reader, writer):
            seen = 0
            while seen < 3:
                line = await reader.readline()
                assert line, "the stream ended too early"
                seen += line.startswith(b"event: response.output_text.delta")
            at_s = time.monotonic()
            writer.transport.abort()
            return Leave(number, at_s)

    @asynccontextmanager
    async def _ask(
        self, kind: str, number: int
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        sock = socket.socket()
        sock.setblocking(False)
        if kind == "slow":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        await asyncio.get_running_loop().sock_connect(sock, self._address)
        limit = RECEIVE_BUFFER_BYTES if kind == "slow" else 1 << 16
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
        body = json.dumps({"model": "fake-model", "input": f"{kind} {number}", "stream": True}).encode()
        head = "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        try:
            writer.write(
                f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            )
            writer.write(body)
            yield reader, writer
        finally:
            writer.transport.abort()

    def _check(self, kind: str, number: int, raw: bytes) -> None:
        """Whole, in order, one terminal event, then `[DONE]`."""
        head, _, body = raw.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), raw[:1000]
        *frames, last, rest = join_chunks(body).split(b"\n\n")
        assert (last + b"\n\n", rest) == (DONE, b"")
        checker = StreamChecker()
        texts = []
        for frame in frames:
            event = read_frame(frame)
            assert checker.feed(event) == []
            if event["type"] == "response.output_text.delta":
                texts.append(event["delta"])
        assert checker.end() == []
        assert event["type"] == "response.completed"
        assert "".join(texts) == "".join(write_pieces(kind, str(number)))
        assert read_text(event["response"]) == "".join(texts)
        self.responses[number] = event["response"]

    async def look_again(self) -> None:
        """Everything that was read is stored."""
        async with self._server.connect() as client:
            for response in self.responses.values():
                assert (await client.retrieve(response["id"])).body == response


def join_chunks(body: bytes) -> bytes:
    """Undo the chunks of HTTP/1.1."""
    pieces: list[bytes] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return b"".join(pieces)
        pieces.append(body[:length])
        body = body[length + 2 :]


async def play(server: ServerProcess) -> list[Leave]:
    """Everybody at once; who left."""
    crowd = Crowd(server)
    others = set(range(STREAMS)) - {*SLOW, *LEAVERS}
    async with asyncio.timeout(STORY_S):
        await crowd.read_whole(STREAMS)
        before = read_memory(server.pid, "VmRSS")
        async with asyncio.TaskGroup() as late:
            for number in SLOW:
                late.create_task(crowd.read_late(number))
            async with asyncio.TaskGroup() as group:
                leaving = [group.create_task(crowd.leave(number)) for number in LEAVERS]
                for number in sorted(others):
                    group.create_task(crowd.read_whole(number))
            crowd.slow_may_read.set()
        used = read_memory(server.pid, "VmHWM") - before
        print(f"\nat most {used >> 20} MiB for {STREAMS} streams")
        assert used < MEMORY_BYTES
        assert sorted(crowd.responses) == sorted({*others, *SLOW, STREAMS})
        await crowd.look_again()
    return [task.result() for task in leaving]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("at_once", [1_000, 100], ids=["all at once", "a hundred at once"])
def test_five_hundred_streams_of_which_some_are_slow_and_some_leave(tmp_path: Path, at_once: int) -> None:
    """Ours: memory is bounded, who leaves is cancelled upstream within a second, and nobody else loses anything."""
    settings: dict[str, Any] = {
        "ANTIPHON_LIMITS__MAX_RESPONSES": str(at_once),
        "ANTIPHON_LIMITS__QUEUE_WAIT_S": str(STORY_S),
        "ANTIPHON_LIMITS__ENDPOINT_CONNECTIONS": str(STREAMS),
    }
    with start_upstream() as (url, process), start_server(tmp_path, upstream=url, **settings) as server:
        left = asyncio.run(play(server))
        closed = read_leaves(process, len(left))
    late = {number: closed[number] - at_s for number, at_s in left}
    assert len(late) == len(LEAVERS)
    assert max(late.values()) < CANCELLED_WITHIN_S
    print(f"the last one was cancelled after {max(late.values()) * 1000:.0f} ms")
