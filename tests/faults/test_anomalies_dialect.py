"""Each read of an answer, each write of a request and each kept connection fails once, in every way.

One end with the right error, nothing recorded as completed that was not whole, and the pool goes on.
"""

import asyncio
import contextlib
import functools
import socket
import sqlite3
import struct
import tempfile
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import pytest

from antiphon.backends import Ask, BackendEvent, Finished
from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.profiles import PROFILES
from antiphon.protocol.errors import AntiphonError, BackendError, BackendTimeoutError
from antiphon.protocol.items import make_user_message
from antiphon.store.files import DATABASE_NAME
from antiphon.store.rows import STATUSES
from tests.fake_upstream import MODEL, TIMEOUT_S, FakeUpstream, Reply, Request, Step, make_stream
from tests.faults.anomaly import Fault, walk
from tests.faults.test_upstream_through_server import House, open_house

#: How a connection fails: it is reset or closed, nothing more comes or is read, or what comes is no HTTP.
Failure: TypeAlias = Literal["reset", "close", "stall", "garbage"]
FAILURES: tuple[Failure, ...] = get_args(Failure)
#: Short enough to be waited for, long enough for a busy machine.
SILENCE_S = 0.25
GARBAGE = b"zz\r\n\x00 this is no chunk\r\n\r\n"
WORDS = ("One ", "two ", "three ", "four.")
ANSWER = make_stream(*WORDS, usage={"prompt_tokens": 3, "completion_tokens": 4})
#: The answer is whole, for all that matters, when this many of its pieces have come: head, words, finish.
WHOLE = 1 + len(WORDS) + 1


def make_reply(fault: Fault, failure: Failure) -> Reply:
    """The answer up to the read that fails; each piece in a read of its own."""
    pause = asyncio.Event()
    pause.set()
    steps: list[Step] = []
    for step in ANSWER:
        if fault.strikes():
            if failure == "garbage":
                return Reply([*steps, GARBAGE], end="close")
            return Reply(steps, end="hold" if failure == "stall" else failure)
        # Waiting for what has happened already gives the reader several turns of the loop.
        steps += [step, pause]
    return Reply(steps)


def count_stored(folder: Path) -> dict[str, int]:
    """How many responses the store holds, by status."""
    with contextlib.closing(sqlite3.connect(folder / "data" / DATABASE_NAME)) as connection:
        rows = connection.execute("SELECT status, count(*) FROM nodes GROUP BY status").fetchall()
    return {STATUSES[status]: number for status, number in rows}


def run_reads(fault: Fault, failure: Failure, *, stream: bool) -> str:
    """A request whose answer fails, then one that does not, through the whole server."""

    async def work(house: House, folder: Path) -> str:
        async with asyncio.timeout(TIMEOUT_S):
            seen = await house.ask(stream=stream)
        outcome = seen.outcome
        stored = count_stored(folder)
        assert stored.get("completed", 0) == (outcome == "completed")
        if outcome == "completed":
            # A kept connection that ends before a byte of the answer may have been stale: it was tried once more.
            assert fault.struck == 0 or fault.n > WHOLE or len(house.upstream.asked) == 2
            assert len(house.upstream.asked) == (2 if fault.n == 1 else 1)
            assert read_words(seen.response) == "".join(WORDS)
        else:
            assert 0 < fault.n <= WHOLE
            error = seen.response["error"] if seen.status == 200 else seen.value["error"]
            assert error["code" if seen.status == 200 else "type"] == "server_error"
            said = "was silent" if failure == "stall" else "broke the connection"
            assert said in error["message"] or (failure == "close" and fault.n > 1), error
            if seen.status != 200:
                assert seen.status == (504 if failure == "stall" else 502)
        # The pool has healed: whatever comes now is answered, over one connection or a fresh one.
        parent = {"previous_response_id": seen.response["id"]} if outcome == "completed" else {}
        after = await asyncio.gather(*(house.ask(stream=each, **parent) for each in (stream, not stream)))
        assert [each.outcome for each in after] == ["completed"] * 2
        assert count_stored(folder)["completed"] == 2 + (outcome == "completed")
        return outcome

    async def main() -> str:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            # What follows the struck answer is answered whole: a fault strikes once.
            answer = functools.partial(make_answer, fault=fault, failure=failure)
            async with open_house(folder, answer, idle_timeout_s=SILENCE_S) as house:
                outcome = await work(house, folder)
            return outcome

    return asyncio.run(main())


def make_answer(_: Request, fault: Fault, failure: Failure) -> Reply:
    """The first completion meets the fault."""
    reply = make_reply(fault, failure)
    fault.heal()
    return reply


def read_words(response: Any) -> str:
    """The text of a response with one message."""
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def walk_reads(failure: Failure, *, stream: bool, step: int = 1) -> None:
    """The walk over the reads of an answer."""
    name = f"dialect, read: {failure}, {'streaming' if stream else 'not streaming'}"
    assert walk(name, functools.partial(run_reads, failure=failure, stream=stream), step=step) > len(ANSWER)


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("failure", FAILURES)
def test_any_read_of_an_answer_fails_and_there_is_one_end(failure: Failure, stream: bool) -> None:
    """Dialect contract: after the first event failure is an event; ours: the pool heals. Silence takes its time."""
    walk_reads(failure, stream=stream, step=4 if failure == "stall" else 1)


@pytest.mark.faults_long
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_any_read_of_an_answer_never_comes_and_there_is_one_end(stream: bool) -> None:
    """Decided: the idle time-out, at each read."""
    walk_reads("stall", stream=stream)


PIECE_BYTES = 1 << 16
#: More than the system's buffers hold, so that a server that stops reading stops the sending too.
LONG_TEXT = "long " * 1_600_000


class SlowReader:
    """A server that reads a request piece by piece, and fails at the piece that the fault strikes."""

    def __init__(self, fault: Fault, failure: Failure) -> None:
        self._fault = fault
        self._failure = failure
        self._handlers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def __aenter__(self) -> "SlowReader":
        listener = socket.socket()
        # What the system takes in by itself is little, so that a reader that stops is felt.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
        listener.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=PIECE_BYTES)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._handlers):
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            self._handlers.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
        left = next((int(value) for name, _, value in lines if name == b"content-length"), 0)
        while left:
            if self._fault.strikes():
                await self._fail(writer)
                return False
            left -= len(await reader.readexactly(min(left, PIECE_BYTES)))
        for step in ANSWER:
            assert isinstance(step, bytes)
            writer.write(step)
        await writer.drain()
        return True

    async def _fail(self, writer: asyncio.StreamWriter) -> None:
        if self._failure == "stall":
            await asyncio.sleep(TIMEOUT_S)
        elif self._failure == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        elif self._failure == "garbage":
            writer.write(GARBAGE)


def make_ask(text: str) -> Ask:
    """One user message."""
    profile = PROFILES["default"]
    segment = transcribe([make_user_message(text)], profile, at_start=True)
    return Ask(model=MODEL, profile=profile, transcript=[segment.body])


async def collect(backend: ChatCompletionsBackend, text: str = "Hi") -> list[BackendEvent] | AntiphonError:
    """The events of one answer, or what was raised before any."""
    try:
        return [event async for batch in backend.stream(make_ask(text)) for event in batch]
    except AntiphonError as error:
        return error


def run_writes(fault: Fault, failure: Failure) -> str:
    """A long request whose server stops reading, then one that is read whole."""

    async def main() -> str:
        async with SlowReader(fault, failure) as server:
            backend = ChatCompletionsBackend(
                Endpoint(name="slow", url=server.url, idle_timeout_s=SILENCE_S, connect_timeout_s=SILENCE_S)
            )
            try:
                async with asyncio.timeout(TIMEOUT_S / 2):
                    got = await collect(backend, LONG_TEXT)
                fault.heal()
                assert isinstance(await collect(backend, LONG_TEXT), list)
            finally:
                await backend.close()
        if isinstance(got, list):
            assert isinstance(got[-1], Finished)
            assert not fault.struck
            return "whole"
        assert type(got) is (BackendTimeoutError if failure == "stall" else BackendError)
        return str(got.status)

    return asyncio.run(main())


@pytest.mark.parametrize("failure", FAILURES)
def test_some_write_of_a_request_fails_and_it_is_told(failure: Failure) -> None:
    """Ours: a sample of the walk below."""
    step = 64 if failure == "stall" else 16
    assert walk(f"dialect, write: {failure}", functools.partial(run_writes, failure=failure), step=step) > 120


@pytest.mark.faults_long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("failure", FAILURES)
def test_any_write_of_a_request_fails_and_it_is_told(failure: Failure) -> None:
    """Decided: 502, and 504 for silence, while the request is being sent too; every wait is bounded."""
    assert walk(f"dialect, write: {failure}", functools.partial(run_writes, failure=failure)) > 120


POOL = 6


class PooledUpstream(FakeUpstream):
    """A server whose answers to a full pool come together, and whose kept connections can be ended one by one."""

    def __init__(self, fault: Fault, end: Literal["close", "reset"], *, lasts: bool) -> None:
        super().__init__(self._answer_one)
        self._fault = fault
        self._end = end
        self._together = asyncio.Event()
        self.lasts = lasts

    def _answer_one(self, _: Request) -> Reply:
        if len(self.asked) < POOL:
            return Reply([self._together, *ANSWER], end=self._choose_end())
        self._together.set()
        return Reply(ANSWER, end=self._choose_end())

    def _choose_end(self) -> Literal["keep", "close", "reset"]:
        """How a connection ends after it has served: kept, unless the fault strikes it."""
        return self._end if len(self.asked) <= POOL and self._fault.strikes() else "keep"


def run_pool(fault: Fault, end: Literal["close", "reset"], *, lasts: bool) -> str:
    """A pool of kept connections of which the n-th, or all from the n-th, have ended behind their answer."""

    async def main() -> str:
        async with PooledUpstream(fault, end, lasts=lasts) as upstream, asyncio.timeout(TIMEOUT_S):
            backend = ChatCompletionsBackend(
                Endpoint(name="fake", url=upstream.url, idle_timeout_s=TIMEOUT_S)
            )
            try:
                for _ in range(3):
                    answers = await asyncio.gather(*(collect(backend) for _ in range(POOL)))
                    for answer in answers:
                        assert isinstance(answer, list), answer
                        assert isinstance(answer[-1], Finished)
                await upstream.wait_idle()
                # One answer to each request, and no more connections than were needed.
                assert len(upstream.asked) == 3 * POOL
                assert upstream.connections <= POOL + fault.struck
            finally:
                await backend.close()
        return f"{upstream.connections} connections"

    return asyncio.run(main())


@pytest.mark.parametrize("lasts", [False, True], ids=["one", "all from there"])
@pytest.mark.parametrize("end", ["close", "reset"])
def test_any_kept_connection_is_stale_and_nobody_notices(end: Literal["close", "reset"], lasts: bool) -> None:
    """Ours: llama.cpp promises to keep connections and closes them; requests are answered all the same."""
    name = f"dialect, pool of {POOL}: {end} behind the answer, {'all from n' if lasts else 'connection n'}"
    assert walk(name, functools.partial(run_pool, end=end, lasts=lasts), lasts=lasts) == POOL + 1
