"""A client that believes nothing: each answer and each event is checked before a test sees it.

It knows the routes' shapes and no scenario. Invariant: whatever a test reads through it was valid.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from antiphon.client import Transport
from antiphon.client.transport import Reply
from antiphon.protocol.lifecycle import StreamChecker
from tests.scenarios import strict

DONE = b"data: [DONE]\n\n"


class Answer(NamedTuple):
    """One answer that is not a stream."""

    status: int
    headers: dict[str, str]
    body: Any
    raw: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error object; fails when it is none."""
        assert self.status >= 400, self.body
        error: dict[str, Any] = self.body["error"]
        return error


class StrictClient:
    """Asks one server through a transport, and checks whatever comes back."""

    def __init__(self, transport: Transport, *, key: str | None = None) -> None:
        self._transport = transport
        self._key = key
        #: Keys of items that the test itself sent and that no model of the package has.
        self.echoed_keys: frozenset[str] = frozenset()

    @property
    def transport(self) -> Transport:
        """For what is no request with an answer: a connection."""
        return self._transport

    def with_key(self, key: str | None) -> "StrictClient":
        """The same server, asked with another key."""
        return StrictClient(self._transport, key=key)

    async def create(self, **body: Any) -> dict[str, Any]:
        """A response, made without streaming; fails unless the status is 200."""
        answer = await self.post(body)
        assert answer.status == 200, answer.body
        assert answer.body["status"] in ("completed", "incomplete")
        members: dict[str, Any] = answer.body
        return members

    async def refuse(self, status: int = 400, **body: Any) -> dict[str, Any]:
        """The error object of a request that must be refused with this status."""
        answer = await self.post(body)
        assert answer.status == status, answer.body
        return answer.error

    async def post(self, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """`POST /v1/responses`, not streaming; `body` is bytes as they are or a value to encode."""
        filled = {"model": "scripted", **body} if isinstance(body, dict) else body
        return await self.send("POST", "/v1/responses", filled, headers)

    async def retrieve(self, response_id: str) -> Answer:
        """`GET /v1/responses/{id}`."""
        return await self.send("GET", f"/v1/responses/{quote(response_id, safe='')}")

    async def delete(self, response_id: str) -> Answer:
        """`DELETE /v1/responses/{id}`."""
        return await self.send("DELETE", f"/v1/responses/{quote(response_id, safe='')}")

    async def list_items(self, response_id: str, **query: Any) -> Answer:
        """`GET /v1/responses/{id}/input_items`."""
        path = f"/v1/responses/{quote(response_id, safe='')}/input_items"
        return await self.send("GET", f"{path}?{urlencode(query)}" if query else path)

    async def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Any request whose answer is JSON."""
        reply = await self._open(method, path, body, headers)
        try:
            return _check_answer(method, path, reply, await reply.read(), self.echoed_keys)
        finally:
            await reply.close()

    async def count_items(self, response_id: str) -> int:
        """How many items a page shows, which may hold anything that a client put into them."""
        reply = await self._open("GET", f"/v1/responses/{response_id}/input_items?limit=100", None, None)
        try:
            assert reply.status == 200
            return len(json.loads(await reply.read())["data"])
        finally:
            await reply.close()

    async def exchange(self, body: bytes) -> Answer | list[dict[str, Any]]:
        """`POST /v1/responses` with bytes as they are: an answer, or all events if it is a stream."""
        reply = await self._open("POST", "/v1/responses", body, None)
        try:
            if reply.headers["content-type"].startswith("application/json"):
                raw = await reply.read()
                return _check_answer("POST", "/v1/responses", reply, raw, self.echoed_keys)
            _check_headers(reply.headers, "text/event-stream; charset=utf-8")
            options = json.loads(body).get("stream_options") or {}
            asks = bool(options.get("include_obfuscation"))
            async with aclosing(_read_events(reply, obfuscated=asks)) as events:
                return [event async for event in events]
        finally:
            await reply.close()

    async def stream(self, **body: Any) -> list[dict[str, Any]]:
        """All events of a stream, to its proper end."""
        async with self.open_stream(**body) as events:
            return [event async for event in events]

    @asynccontextmanager
    async def open_stream(self, **body: Any) -> AsyncIterator[AsyncGenerator[dict[str, Any], None]]:
        """The events of a stream as they come; leaving early cancels it."""
        sent = {"model": "scripted", "stream": True, **body}
        reply = await self._open("POST", "/v1/responses", sent, {"accept": "text/event-stream"})
        try:
            assert reply.status == 200, await reply.read()
            _check_headers(reply.headers, "text/event-stream; charset=utf-8")
            asks = bool((body.get("stream_options") or {}).get("include_obfuscation"))
            async with aclosing(_read_events(reply, obfuscated=asks)) as events:
                yield events
        finally:
            await reply.close()

    @asynccontextmanager
    async def open_frames(
        self, method: str, path: str, body: Any = None
    ) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """The frames of a stream, byte for byte, `[DONE]` left out: for one that may begin in the middle."""
        reply = await self._open(method, path, body, {"accept": "text/event-stream"})
        try:
            assert reply.status == 200, await reply.read()
            _check_headers(reply.headers, "text/event-stream; charset=utf-8")
            async with aclosing(_read_frames(reply)) as frames:
                yield frames
        finally:
            await reply.close()

    async def _open(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None) -> Reply:
        sent = dict(headers or {})
        if self._key is not None:
            sent.setdefault("authorization", f"Bearer {self._key}")
        if body is not None:
            sent.setdefault("content-type", "application/json")
        encoded = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return await self._transport.send(method, path, sent, encoded)


def find_terminal(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The Response of the last event."""
    response: dict[str, Any] = events[-1]["response"]
    return response


def join_deltas(events: list[dict[str, Any]], kind: str) -> str:
    """The sum of the deltas of one kind."""
    return "".join(event["delta"] for event in events if event["type"] == kind)


def read_text(response: Mapping[str, Any]) -> str:
    """What the SDKs call `output_text`."""
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


def _check_headers(headers: Mapping[str, str], content_type: str) -> None:
    assert headers["content-type"] == content_type
    assert headers["x-request-id"].startswith("req_")
    assert headers["antiphon-version"]


def _check_answer(method: str, path: str, reply: Reply, raw: bytes, echoed: frozenset[str]) -> Answer:
    _check_headers(reply.headers, "application/json")
    assert int(reply.headers["content-length"]) == len(raw)
    body = json.loads(raw)
    answer = Answer(reply.status, reply.headers, body, raw)
    if reply.status >= 400:
        strict.check_error(body)
        return answer
    assert reply.status == 200
    route = path.partition("?")[0]
    if route.endswith("/input_items"):
        strict.check_page(body, echoed)
    elif route.endswith("/input_tokens"):
        strict.check_count(body)
    elif route == "/v1/responses/compact" and method == "POST":
        strict.check_compacted(body)
    elif route == "/v1/items":
        strict.check_page(body, echoed)
    elif route.startswith("/v1/items/"):
        strict.check_listed_item({key: body[key] for key in body if key not in echoed})
    elif route.endswith("/window"):
        strict.check_window(body)
    elif route.startswith("/v1/responses"):
        strict.check_deleted(body) if method == "DELETE" else strict.check_response(body)
    elif route.startswith("/v1/conversations") and route.endswith("/items"):
        strict.check_page(body, echoed)
    elif route.startswith("/v1/conversations") and "/items/" in route and method == "GET":
        strict.check_listed_item(body)
    elif route.startswith("/v1/conversations"):
        strict.check_conversation(body, deleted=method == "DELETE" and "/items/" not in route)
    elif route == "/v1/models":
        strict.check_models(body)
    elif route.startswith("/v1/models/"):
        strict.check_model(body)
    return answer


async def _read_events(reply: Reply, *, obfuscated: bool) -> AsyncGenerator[dict[str, Any], None]:
    checker = StreamChecker()
    ended = False
    async for chunk in reply.chunks():
        # Whole frames in every write: some clients lose a frame that two writes share.
        assert chunk.endswith(b"\n\n"), chunk
        for frame in chunk.split(b"\n\n")[:-1]:
            assert not ended, f"something came after [DONE]: {frame!r}"
            if frame + b"\n\n" == DONE:
                ended = True
                continue
            event = read_frame(frame)
            strict.check_event(event)
            is_padded = "obfuscation" in event
            assert is_padded == (obfuscated and event["type"].endswith(".delta")), event
            faults = checker.feed(event)
            assert not faults, faults
            yield event
    assert ended, "the stream ended without [DONE]"
    assert checker.end() == []


async def _read_frames(reply: Reply) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in reply.chunks():
        *frames, rest = (rest + chunk).split(b"\n\n")
        for frame in frames:
            if frame + b"\n\n" == DONE:
                assert frame is frames[-1], "something came after [DONE]"
                assert not rest
                return
            yield frame
    raise AssertionError("the stream ended without [DONE]")


def read_frame(frame: bytes) -> dict[str, Any]:
    """The event of one frame; fails unless both of its lines name the same type."""
    lines = frame.split(b"\n")
    assert len(lines) == 2, frame
    assert lines[0].startswith(b"event: ")
    assert lines[1].startswith(b"data: ")
    event: dict[str, Any] = json.loads(lines[1][6:])
    assert lines[0][7:].decode() == event["type"]
    return event
