"""The client's contract, held by both transports: over a socket, and straight into an application."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import parse_qsl

import pytest
import uvicorn

from antiphon.client import (
    AddressError,
    ApplicationFailedError,
    AppTransport,
    ClientError,
    ConnectionFailedError,
    NetworkTransport,
    ResponsesClient,
    Transport,
    TransportLimits,
    resolve_responses_url,
)
from antiphon.client.app_run import MAX_WAITING_CHUNKS, Message, Receive, Send
from antiphon.protocol.events import Event, OutputTextDelta, UnknownEvent
from antiphon.protocol.sse import DONE, SseEvent, encode_sse

#: Every wait of these tests ends.
WAIT_S = 20.0

Scope = Any


def delta(number: int, text: str) -> bytes:
    event = {
        "type": "response.output_text.delta",
        "sequence_number": number,
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": text,
        "logprobs": [],
    }
    return encode_sse("response.output_text.delta", json.dumps(event).encode())


class SmallServer:
    """A raw ASGI application that answers like a Responses server, as the request's `mode` says."""

    def __init__(self) -> None:
        self.client_left = threading.Event()
        self._go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        asked = json.loads(body) if body else {}
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["path"] == "/v1/go":
            self._go.set()
            await answer(send, 200, b"")
        elif (mode := asked.get("mode")) is not None:
            await getattr(self, f"answer_{mode}")(receive, send)
        else:
            seen = {
                "method": scope["method"],
                "path": scope["path"],
                "query": parse_qsl(scope["query_string"].decode()),
                "authorization": headers.get("authorization"),
                "body": asked,
            }
            await answer(send, 200, json.dumps(seen).encode())

    async def answer_stepwise(self, receive: Receive, send: Send) -> None:
        await begin(send)
        await send(piece(delta(0, "first")))
        await self._go.wait()
        await send(piece(delta(1, "second") + DONE))
        await send({"type": "http.response.body", "body": b""})

    async def answer_endless(self, receive: Receive, send: Send) -> None:
        await begin(send)
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send(piece(delta(0, "again")))
            await asyncio.sleep(0)
        self.client_left.set()

    async def answer_error(self, receive: Receive, send: Send) -> None:
        error = {"message": "no such model", "type": "invalid_request_error", "param": "model", "code": "c"}
        await answer(send, 404, json.dumps({"error": error}).encode())

    async def answer_text(self, receive: Receive, send: Send) -> None:
        await answer(send, 502, b"<h1>Bad gateway</h1>", "text/html")

    async def answer_nonsense(self, receive: Receive, send: Send) -> None:
        await answer(send, 200, b"{nonsense", "text/plain")

    async def answer_json(self, receive: Receive, send: Send) -> None:
        await answer(send, 200, b'{"id":"resp_1"}')

    async def answer_silence(self, receive: Receive, send: Send) -> None:
        await receive()

    async def answer_sudden_silence(self, receive: Receive, send: Send) -> None:
        await begin(send)
        await send(piece(delta(0, "then")))
        await receive()

    async def answer_failure(self, receive: Receive, send: Send) -> None:
        await begin(send)
        await send(piece(delta(0, "then")))
        raise RuntimeError("broken on purpose")

    async def answer_odd(self, receive: Receive, send: Send) -> None:
        await begin(send)
        await send(piece(b'data: {"type":"response.new","sequence_number":4}\n\n: ping\n\ndata: rubbish\n\n'))
        await send({"type": "http.response.body", "body": b'data: {"error":{"message":"boo"}}'})

    async def answer_much(self, receive: Receive, send: Send) -> None:
        await begin(send)
        for number in range(500):
            await send(piece(delta(number, "é" * 100)))
        await send({"type": "http.response.body", "body": DONE})


async def answer(send: Send, status: int, body: bytes, content_type: str = "application/json") -> None:
    headers = [(b"Content-Type", content_type.encode()), (b"X-Request-Id", b"req_1")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def begin(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


class Stage:
    """One server and the way to it."""

    def __init__(self, server: SmallServer, connect: Callable[[TransportLimits], Transport]) -> None:
        self.server = server
        self._connect = connect

    def play(
        self,
        story: Callable[[ResponsesClient], Coroutine[Any, Any, None]],
        *,
        limits: TransportLimits | None = None,
    ) -> None:
        async def run() -> None:
            transport = self._connect(limits or TransportLimits(idle_timeout_s=WAIT_S))
            client = ResponsesClient(transport, api_key="sk-1")
            try:
                await asyncio.wait_for(story(client), WAIT_S)
            finally:
                await client.close()

        asyncio.run(run())


@pytest.fixture(params=["network", "app"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    server = SmallServer()
    if request.param == "app":
        yield Stage(server, lambda limits: AppTransport(server, limits))
        return
    config = uvicorn.Config(server, lifespan="off", ws="none", log_level="critical", loop="asyncio")
    running = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield Stage(server, lambda limits: NetworkTransport(address, limits))
        finally:
            running.should_exit = True
            thread.join(WAIT_S)
    assert not thread.is_alive()


def test_requests_arrive_as_they_were_meant(stage: Stage) -> None:
    """Responses API, endpoints: method, path, query arrays, key and JSON body."""

    async def story(client: ResponsesClient) -> None:
        created = await client.create({"model": "m", "input": "é"})
        assert created.status == 200
        assert created.headers["x-request-id"] == "req_1"
        assert created.body == {
            "method": "POST",
            "path": "/v1/responses",
            "query": [],
            "authorization": "Bearer sk-1",
            "body": {"model": "m", "input": "é"},
        }
        retrieved = (await client.retrieve("resp_1", include=["a", "b"], stream=False)).body
        assert (retrieved["method"], retrieved["path"]) == ("GET", "/v1/responses/resp_1")
        assert retrieved["query"] == [["include[]", "a"], ["include[]", "b"], ["stream", "false"]]
        deleted = (await client.delete("a/../b")).body
        assert (deleted["method"], deleted["path"]) == ("DELETE", "/v1/responses/a/../b")
        listed = (await client.list_input_items("resp_1", limit=2, after=None, order="asc")).body
        assert listed["path"] == "/v1/responses/resp_1/input_items"
        assert listed["query"] == [["limit", "2"], ["order", "asc"]]
        assert (await client.list_models()).body["path"] == "/v1/models"

    stage.play(story)


def test_an_empty_answer_is_an_empty_object(stage: Stage) -> None:
    """Ours: a deletion may be answered with any 2xx and no body."""

    async def story(client: ResponsesClient) -> None:
        assert (await client.request("POST", "/go", body={})).body == {}

    stage.play(story)


def test_events_arrive_while_the_answer_is_still_being_written(stage: Stage) -> None:
    """Ours: the second event is only sent when the client has reacted to the first."""

    async def story(client: ResponsesClient) -> None:
        async with client.stream({"mode": "stepwise"}) as stream:
            events = aiter(stream)
            first = await anext(events)
            await client.request("POST", "/go", body={})
            rest = [event async for event in events]
        assert [text_of(event) for event in [first, *rest]] == ["first", "second"]

    stage.play(story)


def test_leaving_a_stream_tells_the_server(stage: Stage) -> None:
    """Ours: closing cancels, so that no model works for nobody."""

    async def story(client: ResponsesClient) -> None:
        async with client.stream({"mode": "endless"}) as stream:
            assert text_of(await anext(aiter(stream))) == "again"
        assert await asyncio.to_thread(stage.server.client_left.wait, WAIT_S)

    stage.play(story)


def test_a_long_stream_arrives_whole(stage: Stage) -> None:
    """Ours: neither the cuts of the network nor a full queue lose anything."""

    async def story(client: ResponsesClient) -> None:
        async with client.stream({"mode": "much"}) as stream:
            numbers = [event.sequence_number async for event in stream]
        assert numbers == list(range(500))

    stage.play(story)


def test_frames_show_the_end_mark(stage: Stage) -> None:
    """Open Responses: the checker must see whether `[DONE]` was sent."""

    async def story(client: ResponsesClient) -> None:
        async with client.stream({"mode": "much"}) as stream:
            frames = [frame async for frame in stream.frames()]
        assert frames[-1] == SseEvent("message", b"[DONE]")

    stage.play(story)


def test_odd_data_in_a_stream_is_handed_on(stage: Stage) -> None:
    """Ours: an agent must survive what it does not know, and an error at the end must not be lost."""

    async def story(client: ResponsesClient) -> None:
        async with client.stream({"mode": "odd"}) as stream:
            new, rubbish, error = [event async for event in stream]
        assert (new.type, new.sequence_number) == ("response.new", 4)
        assert isinstance(rubbish, UnknownEvent)
        assert rubbish.raw == b"rubbish"
        assert error.type == "error"

    stage.play(story)


@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_answer_is_raised_with_its_parts(stage: Stage, streamed: bool) -> None:
    """Responses API, errors: status and error object reach the caller."""

    async def story(client: ResponsesClient) -> None:
        with pytest.raises(ClientError) as caught:
            await ask(client, {"mode": "error"}, streamed=streamed)
        assert caught.value.status == 404
        assert caught.value.error == {
            "message": "no such model",
            "type": "invalid_request_error",
            "param": "model",
            "code": "c",
        }
        assert caught.value.code == "c"
        assert "no such model" in caught.value.message

    stage.play(story)


@pytest.mark.parametrize(
    ("mode", "streamed", "status", "told"),
    [
        ("text", False, 502, "Bad gateway"),
        ("text", True, 502, "Bad gateway"),
        ("nonsense", False, 200, "no JSON"),
        ("json", True, 200, "instead of a stream"),
    ],
)
def test_an_unreadable_answer_is_an_error_too(
    stage: Stage, mode: str, streamed: bool, status: int, told: str
) -> None:
    """Ours: proxies answer with HTML, and some servers ignore `stream`."""

    async def story(client: ResponsesClient) -> None:
        with pytest.raises(ClientError, match=told) as caught:
            await ask(client, {"mode": mode}, streamed=streamed)
        assert caught.value.status == status
        assert caught.value.body_text

    stage.play(story)


@pytest.mark.parametrize("mode", ["silence", "sudden_silence"])
def test_silence_ends_with_an_error(stage: Stage, mode: str) -> None:
    """Ours: every wait is bounded, before the status and inside the stream."""

    async def story(client: ResponsesClient) -> None:
        with pytest.raises(ConnectionFailedError, match=r"0\.2 s"):
            await ask(client, {"mode": mode}, streamed=True)

    stage.play(story, limits=TransportLimits(idle_timeout_s=0.2))


def test_a_stream_that_breaks_off_is_an_error(stage: Stage) -> None:
    """Ours: an answer cut in the middle must not pass for a whole one."""

    async def story(client: ResponsesClient) -> None:
        with pytest.raises(ConnectionFailedError):
            await ask(client, {"mode": "failure"}, streamed=True)

    stage.play(story)


def test_a_body_over_the_limit_is_an_error(stage: Stage) -> None:
    """Ours: a server must not be able to fill the memory."""

    async def story(client: ResponsesClient) -> None:
        with pytest.raises(ConnectionFailedError, match="more than 1000 bytes"):
            await client.create({"mode": "much"})

    stage.play(story, limits=TransportLimits(max_body_bytes=1000, idle_timeout_s=WAIT_S))


def test_a_server_that_is_not_there_is_told_apart() -> None:
    """Ours: "start the server" is another advice than "mend the request"."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        async def story() -> None:
            transport = NetworkTransport(address)
            try:
                with pytest.raises(ConnectionFailedError, match=f"cannot reach {address}"):
                    await ResponsesClient(transport).list_models()
            finally:
                await transport.close()

        asyncio.run(asyncio.wait_for(story(), WAIT_S))


def test_an_exception_of_the_application_is_told() -> None:
    """Ours: a bug in this process must show itself, with its cause."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("secret cause")

    async def story() -> None:
        with pytest.raises(ApplicationFailedError, match="KeyError") as caught:
            await ResponsesClient(AppTransport(app)).list_models()
        assert isinstance(caught.value.__cause__, KeyError)

    asyncio.run(asyncio.wait_for(story(), WAIT_S))


def test_an_application_without_an_answer_is_an_error() -> None:
    """Ours: returning without a status must not hang the client."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    async def story() -> None:
        with pytest.raises(ApplicationFailedError, match="without an answer"):
            await ResponsesClient(AppTransport(app)).list_models()

    asyncio.run(asyncio.wait_for(story(), WAIT_S))


def test_an_application_does_not_run_ahead_of_its_reader() -> None:
    """Ours: the queue between them is bounded."""
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await begin(send)
        for number in range(1000):
            await send(piece(delta(number, "x")))
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    async def story() -> None:
        async with ResponsesClient(AppTransport(app)).stream({}) as stream:
            await anext(aiter(stream))
            for _ in range(100):
                await asyncio.sleep(0)
            assert sent <= MAX_WAITING_CHUNKS + 1

    asyncio.run(asyncio.wait_for(story(), WAIT_S))


def test_an_application_that_ignores_a_disconnect_is_cancelled() -> None:
    """Ours: closing ends in bounded time and says what was wrong."""
    was_cancelled = False

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal was_cancelled
        await begin(send)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    async def story() -> None:
        transport = AppTransport(app, TransportLimits(close_timeout_s=0.05))
        stream = ResponsesClient(transport).stream({})
        await stream.__aenter__()
        with pytest.raises(ApplicationFailedError, match="did not end"):
            await stream.__aexit__(None, None, None)

    asyncio.run(asyncio.wait_for(story(), WAIT_S))
    assert was_cancelled


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:11434", ("http://localhost:11434", "/v1")),
        ("localhost", ("http://localhost", "/v1")),
        ("127.0.0.1:8080", ("http://127.0.0.1:8080", "/v1")),
        ("[::1]:8080", ("http://[::1]:8080", "/v1")),
        ("box.lan:8080/api", ("http://box.lan:8080", "/api")),
        ("api.example.com", ("https://api.example.com", "/v1")),
        ("http://h/v1", ("http://h", "/v1")),
        ("http://h/v1/", ("http://h", "/v1")),
        ("http://h", ("http://h", "/v1")),
        ("http://h/", ("http://h", "/v1")),
        ("https://h/a/b/responses", ("https://h", "/a/b")),
        ("https://h/v1/responses/", ("https://h", "/v1")),
        ("http://h/responses", ("http://h", "")),
        (" http://h:1/v1 ", ("http://h:1", "/v1")),
    ],
)
def test_an_address_may_be_a_host_a_base_or_an_endpoint(url: str, expected: tuple[str, str]) -> None:
    """Ours: users paste whichever they have."""
    assert resolve_responses_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "ftp://h",
        "ws://h",
        "http://h:99999",
        "h:port",
        "http://me:pw@h",
        "http://h/v1?a=1",
        "a b",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    """Ours."""
    with pytest.raises(AddressError):
        resolve_responses_url(url)


def test_importing_the_client_loads_no_http_library() -> None:
    """Ours: a command that needs no network starts fast."""
    code = "import sys, antiphon.client; print('aiohttp' in sys.modules, 'yarl' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout.split() == ["False", "False"]


async def ask(client: ResponsesClient, body: dict[str, Any], *, streamed: bool) -> list[Event]:
    if not streamed:
        await client.create(body)
        return []
    async with client.stream(body) as stream:
        return [event async for event in stream]


def text_of(event: Event) -> str:
    assert isinstance(event, OutputTextDelta)
    return event.delta
