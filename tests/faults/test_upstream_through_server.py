"""A failing model server seen by a client of ours: one end, whatever byte it dies at."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.bootstrap import build_app
from antiphon.client.app_transport import AppTransport
from antiphon.config import load_config
from antiphon.protocol.sse import SseDecoder
from tests.fake_upstream import (
    MODEL,
    TIMEOUT_S,
    Answer,
    FakeUpstream,
    Reply,
    Step,
    make_chunk,
    make_head,
    make_json,
    make_stream,
)
from tests.wire import read_http

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
KEY = "sk-upstream-0123456789"
#: Walked by every byte of head and body: a stream, calls, reasoning, an error inside, one document, a refusal.
WALKED = (
    "ollama/text.sse",
    "vllm/parallel_calls.sse",
    "ollama/think_tags.sse",
    "openai/refusal.sse",
    "vllm/error_in_stream.sse",
    "llama.cpp/text.http",
    "llama.cpp/not_streamed.http",
    "llama.cpp/overflow.http",
)


class Seen:
    """What a client got: a status, and events or an object."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.events: list[tuple[str, Any]] = []
        self.value: Any = None
        if headers["content-type"].startswith("text/event-stream"):
            *frames, done = SseDecoder().feed(body)
            assert done.data == b"[DONE]"
            self.events = [(frame.event, msgspec.json.decode(frame.data)) for frame in frames]
        else:
            self.value = msgspec.json.decode(body)

    @property
    def outcome(self) -> str:
        """How it ended, in a word; every form of an end that is none fails here."""
        if self.status != 200:
            assert set(self.value) == {"error"}
            assert set(self.value["error"]) == {"message", "type", "param", "code"}
            assert self.value["error"]["message"]
            return f"HTTP {self.status}"
        if not self.events:
            assert self.value["status"] in ("completed", "incomplete")
            return str(self.value["status"])
        names = [name for name, _ in self.events]
        assert [name for name in names if name in TERMINAL] == names[-1:]
        assert ("error" in names) is (names[-1] == "response.failed")
        assert [event["sequence_number"] for _, event in self.events] == list(range(len(names)))
        return names[-1].removeprefix("response.")

    @property
    def response(self) -> Any:
        """The response object at the end."""
        return self.events[-1][1]["response"] if self.events else self.value


class House:
    """Our server before a fake one."""

    def __init__(self, transport: AppTransport, upstream: FakeUpstream) -> None:
        self._transport = transport
        self.upstream = upstream

    async def ask(self, *, stream: bool, **fields: Any) -> Seen:
        """One request, to its end."""
        body = msgspec.json.encode({"model": MODEL, "input": "Hi", "stream": stream, **fields})
        headers = {"content-type": "application/json"}
        reply = await self._transport.send("POST", "/v1/responses", headers, body)
        try:
            return Seen(reply.status, reply.headers, await reply.read())
        finally:
            await reply.close()


@asynccontextmanager
async def open_house(folder: Path, answer: Answer, **limits: Any) -> AsyncIterator[House]:
    """The whole server, as configured by a file, in this process."""
    async with FakeUpstream(answer) as upstream:
        flags = {
            "server": {"data": str(folder / "data")},
            "endpoints": {"fake": {"url": upstream.url, "key_env": "FAKE_KEY"}},
            "limits": limits,
        }
        config = load_config(flags, environ={"FAKE_KEY": KEY}, cwd=folder)
        async with build_app(config) as app:
            transport = AppTransport(app)
            try:
                yield House(transport, upstream)
            finally:
                await transport.close()


def run(folder: Path, answer: Answer, work: Callable[[House], Awaitable[Any]], **limits: Any) -> Any:
    """Work with a house; bounded."""

    async def main() -> Any:
        async with open_house(folder, answer, **limits) as house:
            return await work(house)

    return asyncio.run(main())


def walk(folder: Path, name: str, *, stream: bool, step: int) -> None:
    """The server dies after n bytes of the recorded answer, for n = 0, step, 2 step, ... and the whole."""
    raw = read_http(name)
    cut = len(raw)

    async def work(house: House) -> dict[str, int]:
        nonlocal cut
        whole = await asyncio.wait_for(house.ask(stream=stream), TIMEOUT_S)
        counts: dict[str, int] = {}
        for cut in (*range(0, len(raw), step), len(raw)):
            seen = await asyncio.wait_for(house.ask(stream=stream), TIMEOUT_S)
            try:
                outcome = seen.outcome
            except AssertionError as error:
                raise AssertionError(f"{name}, n = {cut}: no proper end") from error
            counts[outcome] = counts.get(outcome, 0) + 1
            if outcome in ("completed", "incomplete"):
                said = [item.get("content") or item.get("arguments") for item in seen.response["output"]]
                assert said == [
                    item.get("content") or item.get("arguments") for item in whole.response["output"]
                ]
        assert outcome == whole.outcome
        return counts

    counts = run(folder, lambda _: Reply([raw[:cut]], end="close"), work)
    runs = sum(counts.values())
    mode = "streaming" if stream else "not streaming"
    print(f"{name}, {mode}: n = 0, {step}, ... {len(raw)}; one end in {runs} of {runs} runs: {counts}")


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("name", WALKED)
def test_a_server_that_dies_at_some_bytes_leaves_one_end(name: str, stream: bool, tmp_path: Path) -> None:
    """Ours: a sample of the walk below."""
    walk(tmp_path, name, stream=stream, step=61)


@pytest.mark.faults_long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("name", WALKED)
def test_a_server_that_dies_at_any_byte_leaves_one_end(name: str, stream: bool, tmp_path: Path) -> None:
    """Ours: every n of the recorded answer, head included."""
    walk(tmp_path, name, stream=stream, step=1)


FAULTS: tuple[tuple[str, Reply, int, str], ...] = (
    ("401", Reply([make_json({"error": {"message": f"bad key {KEY}"}}, status=401)]), 500, "server_error"),
    ("400", Reply([make_json({"error": {"message": "No."}}, status=400)]), 400, "invalid_prompt"),
    ("429", Reply([make_json({}, status=429, extra="retry-after: 7\r\n")]), 429, "rate_limit_exceeded"),
    ("500", Reply([make_json({}, status=500)]), 502, "server_error"),
    ("503", Reply([make_json({}, status=503)]), 502, "server_is_overloaded"),
    ("overflow", Reply([read_http("llama.cpp/overflow.http")]), 400, "context_length_exceeded"),
    ("closed", Reply([], end="close"), 502, "server_error"),
    ("reset", Reply([], end="reset"), 502, "server_error"),
    ("garbage", Reply([b"garbage\r\n\r\n"], end="close"), 502, "server_error"),
    ("silent", Reply([], end="hold"), 504, "server_error"),
)
FAULT_IDS = [name for name, *_ in FAULTS]


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize(("name", "reply", "status", "code"), FAULTS, ids=FAULT_IDS)
def test_a_refusal_before_the_stream_is_an_http_error(
    name: str, reply: Reply, status: int, code: str, stream: bool, tmp_path: Path
) -> None:
    """Decided: what the server says before the status is sent is the status."""
    seen = run(tmp_path, lambda _: reply, lambda house: house.ask(stream=stream), idle_timeout_s=0.3)
    assert seen.outcome == f"HTTP {status}"
    assert seen.headers.get("retry-after") == ("7" if name == "429" else None)
    assert KEY not in str(seen.value)


@pytest.mark.parametrize(("name", "reply", "status", "code"), FAULTS, ids=FAULT_IDS)
def test_a_refusal_after_the_stream_began_is_an_error_event(
    name: str, reply: Reply, status: int, code: str, tmp_path: Path
) -> None:
    """Decided: once the status was sent, nested `error`, then `response.failed`."""
    gate = asyncio.Event()
    late = Reply([gate, *reply.steps], end=reply.end)

    async def work(house: House) -> Seen:
        asking = asyncio.create_task(house.ask(stream=True))
        await house.upstream.wait_asked()
        gate.set()
        return await asyncio.wait_for(asking, TIMEOUT_S)

    # The wait for the status is 0: the stream begins at once, whatever the server does then.
    seen = run(tmp_path, lambda _: late, work, idle_timeout_s=0.3, status_wait_s=0)
    assert seen.outcome == "failed", name
    assert seen.response["error"]["code"] == code
    assert KEY not in str(seen.events)


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize(
    "steps",
    [[], [make_head()], [make_head(), make_chunk({"content": "Half"})]],
    ids=["no byte", "head", "text"],
)
def test_a_client_that_leaves_stops_the_model_server(
    steps: Sequence[Step], stream: bool, tmp_path: Path
) -> None:
    """Public issue (ollama 11889): in every phase, streaming or not."""

    async def work(house: House) -> None:
        asking = asyncio.create_task(house.ask(stream=stream))
        request = await house.upstream.wait_asked()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(request.left.wait(), TIMEOUT_S)
        house.upstream.answer = lambda _: Reply(make_stream("Hello"))
        assert (await house.ask(stream=stream)).outcome == "completed"

    run(tmp_path, lambda _: Reply(steps, end="hold"), work)


def test_calls_of_every_fixture_reach_the_client_whole(tmp_path: Path) -> None:
    """Ours: text beside calls, parallel calls, calls without ids, each with its own index and a unique id."""
    names = iter(
        [
            "vllm/parallel_calls.sse",
            "others/missing_ids.sse",
            "openai/parallel_fragments.sse",
            "ollama/text_beside_call.sse",
        ]
    )

    async def work(house: House) -> list[Any]:
        found = []
        for _ in range(4):
            seen = await house.ask(stream=True)
            assert seen.outcome == "completed"
            output = seen.response["output"]
            calls = [item for item in output if item["type"] == "function_call"]
            assert len({item["call_id"] for item in calls}) == len(calls)
            assert all(item["call_id"] for item in calls)
            found.append([(item["name"], item["arguments"]) for item in calls])
        return found

    assert run(tmp_path, lambda _: Reply([read_http(next(names))]), work) == [
        [("get_weather", '{"city": "Oslo"}'), ("get_weather", '{"city": "Rome"}')],
        [("get_weather", '{"city":"Oslo"}'), ("get_weather", '{"city":"Rome"}'), ("get_time", "{}")],
        [("get_weather", '{"city":"Oslo"}'), ("get_time", "{}")],
        [("get_time", "{}")],
    ]


def test_the_messages_sent_for_the_next_round_begin_with_this_rounds(tmp_path: Path) -> None:
    """Ours: byte for byte, over ten rounds by `previous_response_id`."""

    async def work(house: House) -> list[bytes]:
        parent: dict[str, Any] = {}
        for number in range(10):
            seen = await house.ask(stream=number % 2 == 0, input=f"Round {number} — é", **parent)
            assert seen.outcome == "completed"
            parent = {"previous_response_id": seen.response["id"]}
        return [request.body for request in house.upstream.asked]

    bodies = run(tmp_path, lambda _: Reply(make_stream("<think>hm</think>", "An answer.")), work)
    for before, after in itertools.pairwise(bodies):
        messages = before[: before.index(b'],"stream"')]
        assert after.startswith(messages + b",")
