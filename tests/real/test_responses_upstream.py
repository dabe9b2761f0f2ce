"""llama.cpp's own Responses interface behind ours: it keeps nothing and says little, we keep and say all."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask, BackendEvent, Finished, ItemClosed, Opened
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.responses import ResponsesBackend
from antiphon.protocol.errors import BackendRefusedError, ContextOverflowError
from antiphon.protocol.lifecycle import StreamChecker
from antiphon.protocol.requests import decode_create_request
from tests.contracts.backend_suite import flatten, join_text
from tests.fake_upstream import FakeUpstream, Reply, Request, make_body
from tests.real.llama_server import ALIAS
from tests.real.processes import ANSWER_S, AntiphonServer, LlamaServer, run_serve
from tests.real.speaking import make_filler, make_request, read_text, user

#: Not known to anybody, with a number that a careless decoder would rewrite.
UNKNOWN = b'"x_mood":{"calm":1.50,"since":[1e2,null]}'


@pytest.fixture(scope="module")
def server(llama: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AntiphonServer]:
    """Our server before llama.cpp's Responses interface, as a user configures it."""
    folder = tmp_path_factory.mktemp("responses")
    config = folder / "antiphon.toml"
    config.write_text(
        f'[endpoints.llama]\ndialect = "responses"\nurl = "{llama.url}/v1/responses"\n', "utf-8"
    )
    with run_serve(["--config", str(config)], folder) as running:
        yield running
    log = (folder / "antiphon.log").read_text("utf-8")
    assert "Traceback" not in log, log


def ask_backend(url: str, body: dict[str, Any]) -> tuple[list[BackendEvent], int | None]:
    """All events of one answer, and the count of its prompt beforehand."""

    async def run() -> tuple[list[BackendEvent], int | None]:
        backend = ResponsesBackend(Endpoint(name="llama", url=f"{url}/v1"))
        try:
            profile = (await backend.get_facts(ALIAS)).profile
            assert profile.name == "llama.cpp"
            request = decode_create_request(msgspec.json.encode(body))
            segment = backend.transcribe(request.input, profile, at_start=True)
            ask = Ask(model=ALIAS, profile=profile, transcript=[segment.body], request=request)
            counted = await backend.count_tokens(ask)
            return flatten([batch async for batch in backend.stream(ask)]), counted
        finally:
            await backend.close()

    return asyncio.run(asyncio.wait_for(run(), ANSWER_S))


def test_unknown_fields_pass_both_ways(llama: LlamaServer) -> None:
    """Ours: through the real server, with a tap that sees what it is sent and adds to what it says."""
    sent: list[bytes] = []

    class Tap(FakeUpstream):
        """Hands every request on to llama.cpp; its messages get one more field."""

        def reply(self, request: Request) -> Reply:
            asked = urllib.request.Request(
                llama.url + request.path,
                data=request.body or None,
                headers={"content-type": "application/json"},
                method=request.method,
            )
            with urllib.request.urlopen(asked, timeout=ANSWER_S) as answer:
                told, kind = answer.read(), answer.headers["content-type"]
            if request.path.endswith("/responses"):
                sent.append(request.body)
                told = told.replace(b'"role":"assistant"}', b'"role":"assistant",' + UNKNOWN + b"}")
            return Reply([make_body(told, content_type=kind)])

    item = b'{"role":"user","content":"Say hello.",' + UNKNOWN + b"}"

    async def run() -> list[BackendEvent]:
        async with Tap(lambda request: Reply([])) as tap:
            backend = ResponsesBackend(Endpoint(name="llama", url=tap.url))
            try:
                profile = (await backend.get_facts(ALIAS)).profile
                request = decode_create_request(b'{"model":"m","input":[%b],"max_output_tokens":16}' % item)
                segment = backend.transcribe(request.input, profile, at_start=True)
                ask = Ask(model=ALIAS, profile=profile, transcript=[segment.body], request=request)
                return flatten([batch async for batch in backend.stream(ask)])
            finally:
                await backend.close()

    events = asyncio.run(asyncio.wait_for(run(), ANSWER_S))
    assert item in sent[0]
    [closed] = [event for event in events if isinstance(event, ItemClosed)]
    assert UNKNOWN in closed.item


def test_the_count_is_the_usage_and_a_cut_is_told(llama: LlamaServer) -> None:
    """llama.cpp says `completed` where `max_output_tokens` cut the answer; its counts tell otherwise."""
    events, counted = ask_backend(llama.url, make_request("Count from one to ninety.", max_output_tokens=16))
    assert events[0] == Opened()
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.usage is not None
    assert last.usage.input_tokens == counted
    assert (last.reason, last.usage.output_tokens) == ("length", 16)
    [closed] = [event for event in events if isinstance(event, ItemClosed)]
    item = msgspec.json.decode(closed.item)
    assert item["status"] == "incomplete"
    assert item["content"][0]["text"] == join_text(events) != ""


def test_a_schema_is_enforced(llama: LlamaServer) -> None:
    """Its own interface ignores `text.format`; what its chat route reads is sent beside it."""
    schema = {"type": "array", "items": {"enum": [1000, 2000]}, "minItems": 3, "maxItems": 3}
    text = {"format": {"type": "json_schema", "name": "numbers", "schema": schema}}
    events, _ = ask_backend(llama.url, make_request("Hello.", text=text, max_output_tokens=60))
    assert set(msgspec.json.decode(join_text(events))) <= {1000, 2000}


def test_what_it_would_ignore_or_cannot_hold_is_an_error(llama: LlamaServer) -> None:
    """Ours: nothing is accepted without effect; an overflow has its numbers."""
    with pytest.raises(BackendRefusedError, match="max_tool_calls"):
        ask_backend(llama.url, make_request("Hi", max_tool_calls=1))
    with pytest.raises(ContextOverflowError, match="the window holds 2048"):
        ask_backend(llama.url, make_request(make_filler(150)))


def test_a_conversation_goes_on_by_id(server: AntiphonServer) -> None:
    """Ours: the state is kept here, although the server behind refuses `previous_response_id`."""

    async def run() -> None:
        client = server.open_client()

        async def ask(said: str | list[Any], **options: Any) -> Any:
            return (await client.create(make_request(said, **options))).body

        try:
            first = await ask("My code word is walnut.")
            second = await ask("What is my code word?", previous_response_id=first["id"])
            whole = [user("My code word is walnut."), *first["output"], user("What is my code word?")]
            third = await ask(whole)
        finally:
            await client.close()
        assert read_text(second)
        assert second["usage"]["input_tokens"] == third["usage"]["input_tokens"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]

    asyncio.run(asyncio.wait_for(run(), 3 * ANSWER_S))


def test_its_thin_stream_reaches_the_client_whole(server: AntiphonServer) -> None:
    """Specification of the stream: numbers, indices and the ends of parts, none of which llama.cpp sends."""

    async def run() -> None:
        client = server.open_client()
        checker = StreamChecker()
        faults: list[str] = []
        deltas = 0
        try:
            async with client.stream({**make_request("Say hello."), "stream": True}) as stream:
                async for event in stream.events():
                    faults += checker.feed(event)
                    deltas += event.type == "response.output_text.delta"
        finally:
            await client.close()
        assert faults + checker.end() == []
        assert deltas > 2

    asyncio.run(asyncio.wait_for(run(), ANSWER_S))


def test_chat_completions_go_through(server: AntiphonServer, llama: LlamaServer) -> None:
    """Ours: the other API of the same server is handed on unchanged."""
    messages = [user("Say hello.")]
    body = {"model": ALIAS, "messages": messages, "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"{server.url}/chat/completions",
        data=msgspec.json.encode(body),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        told = msgspec.json.decode(answer.read())
    assert told["object"] == "chat.completion"
    assert told["usage"]["prompt_tokens"] == llama.count(messages)
    assert "timings" in told
