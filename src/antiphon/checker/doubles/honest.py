"""The honest double: a tiny Responses server with every route, which keeps all that it is told.

It is an ASGI application, made of the parts that answer, converse, compact, work in the background and talk.
Invariant: it passes every requirement, and each method under "seams" is one thing that a server can get wrong.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from antiphon.checker.doubles.answering import MODEL, MODELS, Record
from antiphon.checker.doubles.rules import Item, list_items
from antiphon.checker.doubles.talking import TalkingDouble
from antiphon.checker.doubles.toy import (
    Receive,
    Scope,
    Send,
    as_http,
    count_item,
    list_outputs,
    live,
    read_body,
    read_key,
    send_bytes,
    send_events,
    send_json,
)
from antiphon.checker.doubles.working import Job
from antiphon.protocol.errors import MethodNotAllowedError, NotFoundError, RequestError, UpgradeRequiredError

__all__ = [
    "MODEL",
    "HonestDouble",
    "Item",
    "Record",
    "Scope",
    "Send",
    "count_item",
    "list_items",
    "list_outputs",
    "read_key",
    "send_bytes",
    "send_events",
    "send_json",
]

_COUNTED = (
    *("model", "input", "previous_response_id", "conversation", "instructions", "tools", "tool_choice"),
    *("parallel_tool_calls", "text", "truncation"),
)


class HonestDouble(TalkingDouble):
    """Keeps every round, every conversation and every job, and refuses what it does not know."""

    # The seams.

    def make_error(self, error: RequestError) -> Any:
        """The body of a refusal."""
        return {"error": error.to_object()}

    async def refuse_socket(self, send: Send) -> None:
        """Answers an upgrade over HTTP."""
        try:
            await send_json(as_http(send), 200, self.answer_upgrade())
        except RequestError as error:
            await self.refuse(as_http(send), error, False)

    async def refuse(self, send: Send, error: RequestError, stream: bool) -> None:
        """Sends a refusal."""
        await send_json(send, error.status, self.make_error(error))

    def check_count(self, body: dict[str, Any]) -> None:
        """Refuses what makes no prompt."""
        for name in body:
            if name not in _COUNTED:
                raise RequestError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")

    def count_input(self, body: dict[str, Any]) -> int | None:
        """The tokens of a request that is not answered."""
        self.check(body)
        _, _, window, instructions = self.gather(body)
        return self.count_tokens(window, instructions, body)

    def list_models(self) -> list[dict[str, Any]]:
        """The models that there are."""
        return [{"id": name, "object": "model", "created": 0, "owned_by": "toys"} for name in MODELS]

    def find_model(self, name: str) -> dict[str, Any]:
        """One model."""
        for model in self.list_models():
            if model["id"] == name:
                return model
        raise NotFoundError(f"The model '{name}' does not exist.", param="model", code="model_not_found")

    def answer_unknown(self, method: str, path: str) -> Any:
        """What a path that there is not is answered with."""
        raise NotFoundError(f"Unknown request URL: {method} {path}.", code="unknown_url")

    def answer_method(self, method: str, path: str) -> Any:
        """What a wrong method is answered with."""
        raise MethodNotAllowedError(f"Not allowed to {method} on {path}.")

    def answer_upgrade(self) -> Any:
        """What a request for a WebSocket is answered with."""
        raise UpgradeRequiredError

    def read_json(self, raw: bytes) -> dict[str, Any]:
        """The body of a request."""
        try:
            body = msgspec.json.decode(raw or b"{}")
        except msgspec.DecodeError as error:
            raise RequestError("The body is no JSON.", code="invalid_json") from error
        return body if isinstance(body, dict) else {}

    # The machinery: the same for every double.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        if scope["type"] == "websocket":
            await self.talk(scope, receive, send)
            return
        raw = await read_body(receive)
        try:
            await self.route(scope, raw, send)
        except RequestError as error:
            await self.refuse(send, error, b'"stream":true' in raw)

    async def route(self, scope: Scope, raw: bytes, send: Send) -> None:
        """Answers one HTTP request."""
        method, path = scope["method"], scope["path"]
        tenant = self.choose_tenant(read_key(scope))
        self.tenant = tenant
        self.records = self.tenants.setdefault(tenant, {})
        self.conversations = self.shelves.setdefault(tenant, {})
        parts = path.strip("/").split("/")
        query = dict(parse_qsl(scope.get("query_string", b"").decode()))
        for name in ("responses", "conversations", "models"):
            if name in parts:
                rest = parts[parts.index(name) + 1 :]
                answer = await self._route_under(name, method, rest, raw, query, scope, send)
                if answer is not None:
                    await send_json(send, 200, answer)
                return
        if parts[-1] == "restart" and method == "POST":
            self.restart()
            await send_json(send, 200, {})
        else:
            await send_json(send, 200, self.answer_unknown(method, path))

    async def _route_under(
        self,
        name: str,
        method: str,
        rest: list[str],
        raw: bytes,
        query: dict[str, str],
        scope: Scope,
        send: Send,
    ) -> Any:
        """The answer; None where it was sent."""
        if name == "conversations":
            return self.route_conversations(method, rest, self.read_json(raw), query)
        if name == "models":
            return self._route_models(method, rest)
        if rest:
            return await self._route_stored(method, rest, raw, query, send)
        if method == "POST":
            return await self._create(self.prepare(self.read_json(raw)), send)
        if dict(scope["headers"]).get(b"upgrade", b"").lower() == b"websocket":
            return self.answer_upgrade()
        return self.answer_method(method, scope["path"])

    async def _create(self, body: dict[str, Any], send: Send) -> Any:
        if body.get("background") is True:
            self.check(body)
            job = self.start_job(body)
            if not body.get("stream"):
                return self.begin(job)
            await send_events(send, self.number(self.stream_job(job)))
            self.end(job)
            return None
        response = self.respond(body)
        if not body.get("stream"):
            return response
        await send_events(send, self.number(self.stream(response)))
        return None

    def _route_models(self, method: str, rest: list[str]) -> Any:
        if not rest:
            return {"object": "list", "data": self.list_models()}
        model = self.find_model("/".join(rest))
        return model if method == "GET" else self.answer_method(method, "/models")

    async def _route_stored(
        self, method: str, rest: list[str], raw: bytes, query: dict[str, str], send: Send
    ) -> Any:
        if rest == ["input_tokens"]:
            body = self.read_json(raw)
            self.check_count(body)
            return {"object": "response.input_tokens", "input_tokens": self.count_input(body)}
        if rest == ["compact"] and method == "POST":
            return self.compact(self.read_json(raw))
        if rest == ["compact"] or rest[1:] == ["window"]:
            return self.answer_unknown(method, f"/responses/{'/'.join(rest)}")
        record, job = self.find_record(rest[0]), self.jobs.get(rest[0])
        if rest[1:] == ["cancel"]:
            return self.refuse_cancel(record) if job is None else self.cancel(job)
        if rest[1:] == ["input_items"]:
            return self.make_page(self.list_input_items(record), query)
        if method == "DELETE":
            self.delete(rest[0])
            return {"id": rest[0], "object": "response", "deleted": True}
        if query.get("stream") == "true":
            await send_events(send, iter(self._follow(record, job, query)))
            return None
        if job is not None:
            self.look(job)
            return self.show_job(job)
        return self.retrieve(record)

    def _follow(self, record: Record, job: Job | None, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        if job is None or not job.streamed:
            return self.refuse_stream(record)
        events = list(self.number(self.stream_job(job)))
        self.end(job)
        return iter(self.choose_tail(events, int(query.get("starting_after", -1))))
