"""A client of the Responses API, over any transport.

It knows paths, JSON and the stream's framing; what an answer means is the caller's business. It keeps no
state. Invariant: an answer of status 400 or above is always raised as a `ClientError`.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode

import msgspec

from antiphon.client.addresses import DEFAULT_PREFIX
from antiphon.client.errors import ClientError, ConnectionFailedError
from antiphon.client.transport import Reply, Transport
from antiphon.protocol.events import Event, EventDecodeError, UnknownEvent, decode_event
from antiphon.protocol.sse import SseDecoder, SseEvent, SseTooLargeError


class ResponseReply(msgspec.Struct, frozen=True):
    """One answer: `body` is the decoded JSON, `{}` for an empty body."""

    status: int
    headers: dict[str, str]
    body: Any


class ResponsesClient:
    """Asks one server. `prefix` is the path before `/responses`."""

    def __init__(
        self,
        transport: Transport,
        api_key: str | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._transport = transport
        self._prefix = prefix.rstrip("/")
        self._headers = {"user-agent": "antiphon", **(headers or {})}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def create(self, body: Mapping[str, Any]) -> ResponseReply:
        """POST /responses, the whole answer at once."""
        return await self.request("POST", "/responses", body=body)

    def stream(self, body: Mapping[str, Any]) -> "EventStream":
        """POST /responses with `stream: true`: `async with client.stream(body) as events`."""
        return self.open_stream("POST", "/responses", body={**body, "stream": True})

    async def retrieve(self, response_id: str, **query: Any) -> ResponseReply:
        """GET /responses/ID."""
        return await self.request("GET", f"/responses/{quote(response_id, safe='')}", query=query)

    async def delete(self, response_id: str) -> ResponseReply:
        """DELETE /responses/ID."""
        return await self.request("DELETE", f"/responses/{quote(response_id, safe='')}")

    async def list_input_items(self, response_id: str, **query: Any) -> ResponseReply:
        """GET /responses/ID/input_items; `query`: after, limit, order, include."""
        path = f"/responses/{quote(response_id, safe='')}/input_items"
        return await self.request("GET", path, query=query)

    async def list_models(self) -> ResponseReply:
        """GET /models."""
        return await self.request("GET", "/models")

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> ResponseReply:
        """Any request below the prefix, with a JSON answer.

        Raises `ClientError` for a status of 400 or above and for an answer that is no JSON.
        """
        reply = await self._send(method, path, body, query, "application/json")
        try:
            answer = await reply.read()
        finally:
            await reply.close()
        if reply.status >= 300:
            raise ClientError(reply.status, answer, headers=reply.headers)
        try:
            decoded = msgspec.json.decode(answer) if answer.strip() else {}
        except (msgspec.DecodeError, UnicodeDecodeError) as unreadable:
            raise ClientError(
                reply.status, answer, reason="with what is no JSON", headers=reply.headers
            ) from unreadable
        return ResponseReply(reply.status, reply.headers, decoded)

    def open_stream(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> "EventStream":
        """Any request below the prefix, with a stream of events as its answer."""
        return EventStream(self, method, path, body, query)

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
        accept: str,
    ) -> Reply:
        headers = {**self._headers, "accept": accept}
        encoded = None
        if body is not None:
            headers["content-type"] = "application/json"
            encoded = msgspec.json.encode(body)
        return await self._transport.send(
            method, self._prefix + path + _to_query(query or {}), headers, encoded
        )


class EventStream:
    """The events of one answer: an async context manager, iterated once. Leaving it early cancels."""

    def __init__(
        self,
        client: ResponsesClient,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
    ) -> None:
        self._client = client
        self._request = method, path, body, query
        self._reply: Reply | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """Send the request; raises `ClientError` when the answer is no stream."""
        reply = await self._client._send(*self._request, "text/event-stream")
        try:
            is_json = reply.headers.get("content-type", "").startswith("application/json")
            if reply.status >= 300 or is_json:
                reason = "with JSON instead of a stream" if reply.status < 300 else ""
                raise ClientError(reply.status, await reply.read(), reason=reason, headers=reply.headers)
        except BaseException:
            await reply.close()
            raise
        self._reply, self.status, self.headers = reply, reply.status, reply.headers
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            await reply.close()

    def __aiter__(self) -> AsyncGenerator[Event, None]:
        return self.events()

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events up to `[DONE]` or the end; what is no event comes as an `UnknownEvent`."""
        async with aclosing(self.frames()) as frames:
            async for frame in frames:
                if frame.data.startswith(b"[DONE]"):
                    return
                yield _to_event(frame)

    async def frames(self) -> AsyncGenerator[SseEvent, None]:
        """The server-sent events as they came, `[DONE]` included."""
        if self._reply is None:
            raise RuntimeError("the stream is not open")
        decoder = SseDecoder()
        try:
            async with aclosing(self._reply.chunks()) as chunks:
                async for chunk in chunks:
                    for frame in decoder.feed(chunk):
                        yield frame
        except SseTooLargeError as too_large:
            raise ConnectionFailedError(str(too_large)) from too_large
        for frame in decoder.close():
            yield frame


def _to_event(frame: SseEvent) -> Event:
    try:
        return decode_event(frame.data)
    except EventDecodeError as problem:
        return UnknownEvent(type=frame.event, raw=frame.data, problem=str(problem))


def _to_query(query: Mapping[str, Any]) -> str:
    """`{"include": ["a"], "limit": 2}` -> `?include[]=a&limit=2`, as OpenAI's clients write it."""
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        if isinstance(value, list | tuple):
            pairs += [(f"{name}[]", _to_text(one)) for one in value]
        elif value is not None:
            pairs.append((name, _to_text(value)))
    return f"?{urlencode(pairs)}" if pairs else ""


def _to_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
