"""Each write of our server to its client fails or hangs once, and each wait of a request is cancelled once.

The model server is stopped, the round is stored as cancelled, or as completed if it had ended, and nothing
is left running.
"""

import asyncio
import contextlib
import functools
import socket
import struct
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import pytest
import uvicorn

from antiphon.bootstrap import build_app
from antiphon.config import load_config
from antiphon.server import Application
from tests.fake_upstream import (
    END,
    MODEL,
    TIMEOUT_S,
    FakeUpstream,
    Reply,
    Request,
    Step,
    make_chunk,
    make_head,
)
from tests.faults.anomaly import Fault, walk
from tests.faults.test_anomalies_dialect import count_stored

#: How a write fails: the client resets and the server drops what is written; the write raises, as ASGI allows;
#: the client does not read, and the write does not return.
Failure: TypeAlias = Literal["reset", "raise", "hang"]
FAILURES: tuple[Failure, ...] = get_args(Failure)
WORDS = ("One ", "two ", "three ", "four.")
#: A client that does not read is given up after this long.
WRITE_TIMEOUT_S = 0.1
LIMITS = {"write_timeout_s": WRITE_TIMEOUT_S, "keep_alive_s": 0.05, "idle_timeout_s": TIMEOUT_S}
#: Where a hang would be: far above what the limits allow, far below the test's own time-out.
BOUND_S = 5.0


LAST_CHUNK = b"0\r\n\r\n"
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/v1/responses",
    "query_string": b"",
    "headers": [(b"content-type", b"application/json")],
}


async def _receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _drop(_: dict[str, Any]) -> None:
    return


class Story:
    """One request and its model server, which ends its answer only once the client has its last word."""

    def __init__(
        self, app: Application, upstream: FakeUpstream, folder: Path, words: Sequence[str] = WORDS
    ) -> None:
        self.app = app
        self.words = words
        self.upstream = upstream
        self.folder = folder
        #: Lets the model server finish.
        self.gate = asyncio.Event()
        self.before = asyncio.all_tasks()

    def answer(self, _: Request) -> Reply:
        """The words, each in a read of its own; then the gate."""
        pause = asyncio.Event()
        pause.set()
        steps: list[Step] = [make_head(), pause]
        for word in self.words:
            steps += [make_chunk({"content": word}), pause]
        # The body ends a while behind the answer's end.
        done, body_end = END[: -len(LAST_CHUNK)], LAST_CHUNK
        return Reply([*steps, self.gate, make_chunk({}, "stop"), pause, done, pause, pause, body_end])

    def note_read(self, body: bytes) -> None:
        """The client has the last word: the model server may finish."""
        if self.words[-1].encode() in body:
            self.gate.set()

    async def settle(self) -> None:
        """Nothing that the request began is still running; the connections of the model server may."""
        tasks = {
            task
            for task in asyncio.all_tasks() - self.before
            if "FakeUpstream" not in task.get_coro().__qualname__  # type: ignore[union-attr]
        }
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=BOUND_S)
            assert not pending, f"left running: {pending}"

    async def check(
        self, fault: Fault, *, ends: frozenset[str] = frozenset({"cancelled", "completed"})
    ) -> str:
        """What must hold after any failure; returns how the round is stored, which is one of `ends`."""
        await self.settle()
        # Behind a closed gate the model server ends for one reason: that it was stopped.
        await asyncio.wait_for(self.upstream.wait_idle(), BOUND_S)
        # What the request had put in the writer's queue is written before this is.
        await asyncio.wait_for(
            self.app(SCOPE | {"method": "GET", "path": "/ready"}, _receive, _drop), BOUND_S
        )
        stored = count_stored(self.folder)
        assert sum(stored.values()) <= 1, stored
        assert set(stored) <= ends, stored
        if "completed" in stored:
            assert self.gate.is_set()
        if not fault.struck:
            assert stored == {"completed": 1}
        status = next(iter(stored), "not stored")
        # A round that the model server was asked for is stored, whatever became of it.
        assert stored or not self.upstream.asked
        # And the next client is served as if nothing had been.
        self.gate.set()
        line = Line(self, Fault(0), "reset", stream=True)
        await asyncio.wait_for(line.run(), BOUND_S)
        assert line.sent.endswith(b"data: [DONE]\n\n")
        assert b"event: response.completed" in line.sent
        await self.settle()
        return status


class Line:
    """The two ends of one ASGI exchange; the n-th message sent meets the fault."""

    def __init__(self, story: Story, fault: Fault, failure: Failure, *, stream: bool) -> None:
        self._story = story
        self._fault = fault
        self._failure = failure
        self._stream = stream
        self._body: bytes | None = msgspec.json.encode({"model": MODEL, "input": "Hi", "stream": stream})
        self._gone = asyncio.Event()
        self._broken = False
        self.sent = b""

    async def run(self, drive: Callable[[Awaitable[None]], Awaitable[None]] | None = None) -> None:
        """The application's whole work on the request."""
        if not self._stream:
            self._story.gate.set()
        work = self._story.app(SCOPE, self._receive, self._send)
        await (drive(work) if drive is not None else work)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self._broken or self._fault.strikes():
            self._broken = True
            await self._fail()
            return
        body = message.get("body", b"")
        self.sent += body
        self._story.note_read(body)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._gone.set()
        # A server's write gives way to others.
        await asyncio.sleep(0)

    async def _fail(self) -> None:
        if self._failure == "hang":
            await asyncio.Event().wait()
        self._gone.set()
        if self._failure == "raise":
            raise ConnectionResetError("the client is gone")
        await asyncio.sleep(0)


@asynccontextmanager
async def open_story(words: Sequence[str] = WORDS) -> AsyncIterator[Story]:
    """The whole server before a model server that waits at its gate."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with FakeUpstream(lambda _: Reply([])) as upstream:
            flags = {
                "server": {"data": str(folder / "data")},
                "endpoints": {"fake": {"url": upstream.url}},
                "limits": LIMITS,
            }
            async with build_app(load_config(flags, environ={}, cwd=folder)) as app:
                story = Story(app, upstream, folder, words)
                upstream.answer = story.answer
                yield story


async def run_bounded(work: Coroutine[Any, Any, None]) -> None:
    """Run it to its own end: a cancellation by a time-out would count as one."""
    task = asyncio.create_task(work)
    await asyncio.wait({task}, timeout=BOUND_S)
    is_late = not task.done()
    task.cancel()
    await asyncio.wait({task}, timeout=BOUND_S)
    assert not is_late, "the request did not end"
    task.result()


def run_sends(fault: Fault, failure: Failure, *, stream: bool) -> str:
    """A request whose n-th write to the client fails."""

    async def main() -> str:
        async with open_story() as story:
            line = Line(story, fault, failure, stream=stream)
            await run_bounded(line.run())
            return await story.check(fault)

    return asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("failure", FAILURES)
def test_any_write_to_the_client_fails_and_the_model_is_stopped(
    failure: Failure, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Decided: stored as cancelled, or completed if it had ended; ours: no task is left."""
    name = f"client, write: {failure}, {'streaming' if stream else 'not streaming'}"
    n = walk(name, functools.partial(run_sends, failure=failure, stream=stream))
    # The head, the first events, one write for each word at the most, and the end.
    assert n >= (5 if stream else 3)
    assert "fault of our own" not in caplog.text


class CancelledAt:
    """Runs a coroutine and cancels its task while it waits for the n-th time."""

    def __init__(self, work: Awaitable[None], fault: Fault) -> None:
        self._work = work
        self._fault = fault

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._work.__await__()
        waits_for = next(steps, self)
        while waits_for is not self:
            if self._fault.strikes():
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                result = yield waits_for
            except BaseException as error:
                try:
                    waits_for = steps.throw(error)
                except StopIteration:
                    return
            else:
                try:
                    waits_for = steps.send(result)
                except StopIteration:
                    return


def run_cancelled(fault: Fault, *, stream: bool) -> str:
    """A request whose own task is cancelled at its n-th wait."""

    async def main() -> str:
        async def drive(work: Awaitable[None]) -> None:
            await CancelledAt(work, fault)

        async with open_story() as story:
            task = asyncio.create_task(Line(story, Fault(0), "reset", stream=stream).run(drive))
            await asyncio.wait({task}, timeout=BOUND_S)
            assert task.done(), "the request did not end"
            assert task.cancelled() or task.exception() is None
            # The client has not left: it is told that the response failed, unless it hears nothing before its end.
            return await story.check(fault, ends=frozenset({"cancelled", "completed", "failed"}))

    return asyncio.run(main())


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_a_request_is_cancelled_at_any_wait_and_nothing_is_left(stream: bool, lasts: bool) -> None:
    """Ours: as at a server's stop; the client does not leave, the task itself is cancelled, once or again and again."""
    how = f"{'again and again' if lasts else 'once'}, {'streaming' if stream else 'not streaming'}"
    name = f"request cancelled at its n-th wait, {how}"
    assert walk(name, functools.partial(run_cancelled, stream=stream), lasts=lasts) > 5


class QuietServer(uvicorn.Server):
    """Uvicorn in a test's loop: the signals are pytest's, and it tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


#: So large that the buffers between a server and a client that does not read are soon full.
LARGE_WORDS = tuple(f"{word.strip()}{'.' * 400_000}" for word in WORDS)
SMALL_BUFFER_BYTES = 1 << 16


@asynccontextmanager
async def listen(app: Application) -> AsyncIterator[int]:
    """The application behind a real socket, as bootstrap sets uvicorn up; the port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
    listener.bind(("127.0.0.1", 0))
    server = QuietServer(uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.wait_for(server.listens.wait(), BOUND_S)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await asyncio.wait_for(serving, BOUND_S)
        listener.close()


class SocketClient:
    """A client that reads event after event, and resets or stops reading at the n-th."""

    def __init__(self, story: Story, port: int, fault: Fault, failure: Literal["reset", "hang"]) -> None:
        self._story = story
        self._port = port
        self._fault = fault
        self._failure = failure
        self._writer: asyncio.StreamWriter | None = None

    async def run(self) -> None:
        """Ask, and read until the end or the fault; a connection that is not read stays open."""
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self._port))
        reader, self._writer = await asyncio.open_connection(sock=raw, limit=1 << 24)
        body = msgspec.json.encode({"model": MODEL, "input": "Hi", "stream": True})
        head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        while True:
            if self._fault.strikes():
                self._fail()
                return
            event = await reader.readuntil(b"\n\n")
            self._story.note_read(event)
            if event.endswith(b"data: [DONE]\n\n"):
                return

    def _fail(self) -> None:
        assert self._writer is not None
        if self._failure == "hang":
            transport = self._writer.transport
            assert isinstance(transport, asyncio.ReadTransport)
            transport.pause_reading()
            return
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    def close(self) -> None:
        """Let go of the connection."""
        if self._writer is not None:
            self._writer.transport.abort()


def run_socket(fault: Fault, failure: Literal["reset", "hang"], *, fast: bool) -> str:
    """A request over a real socket whose client resets or stops reading at its n-th event.

    `fast`: the model server does not wait for anybody, so the end is there while the client hangs.
    """

    async def main() -> str:
        async with open_story(LARGE_WORDS) as story, listen(story.app) as port:
            story.before = asyncio.all_tasks()
            client = SocketClient(story, port, fault, failure)
            if fast:
                story.gate.set()
            try:
                await asyncio.wait_for(client.run(), BOUND_S)
                fault.heal()
                if not fault.struck:
                    client.close()
                status = await story.check(fault)
                return status
            finally:
                client.close()

    return asyncio.run(main())


def walk_socket(failure: Literal["reset", "hang"], *, fast: bool, step: int) -> None:
    """The walk over the events that a client reads from a real socket."""
    name = f"client on a socket, event: {failure}, {'fast' if fast else 'waiting'} model server"
    # Created, in progress, 6 events of an item with text around 4 words, completed, and [DONE].
    assert walk(name, functools.partial(run_socket, failure=failure, fast=fast), step=step) >= 14


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "waiting"])
@pytest.mark.parametrize("failure", ["reset", "hang"])
def test_a_client_fails_at_some_event_of_a_real_stream(failure: Literal["reset", "hang"], fast: bool) -> None:
    """Ours: a sample of the walk below."""
    walk_socket(failure, fast=fast, step=7)


@pytest.mark.faults_long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "waiting"])
@pytest.mark.parametrize("failure", ["reset", "hang"])
def test_a_client_fails_at_any_event_of_a_real_stream(failure: Literal["reset", "hang"], fast: bool) -> None:
    """Decided, over uvicorn: a client that resets or stops reading costs nothing that stays."""
    walk_socket(failure, fast=fast, step=1)
