"""Every route but the hot one: finding it, asking its handler, sending what that returns.

Handlers return JSON, events or another server's answer, or raise; who asks was settled before them.
Invariant: for a tenant, somebody else's response and no response at all give the same answer.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import Match, Route

from antiphon.engine import Engine, EventSource, Relayed
from antiphon.protocol.errors import (
    MethodNotAllowedError,
    NotFoundError,
    OverloadedError,
    ServerStoppingError,
    UpgradeRequiredError,
)
from antiphon.server.admission import Admission, Lease
from antiphon.server.bodies import ClientGoneError, read_body
from antiphon.server.conversation_routes import ConversationRoutes
from antiphon.server.item_routes import ItemRoutes
from antiphon.server.keys import Keyring
from antiphon.server.model_routes import ModelRoutes
from antiphon.server.openapi import render_openapi
from antiphon.server.replies import send_json
from antiphon.server.response_routes import ResponseRoutes
from antiphon.server.route import RESPONSES_PATH, Answer, Call, RouteSpec, check_query
from antiphon.server.settings import ServerLimits
from antiphon.server.status_routes import StatusRoutes
from antiphon.server.streaming import DisconnectWatch, StreamSender, send_relayed

#: APIs that clients may expect beside this one, by the beginnings of their paths.
OTHER_APIS: frozenset[str] = frozenset(
    {
        "assistants",
        "audio",
        "batches",
        "completions",
        "containers",
        "embeddings",
        "evals",
        "files",
        "fine_tuning",
        "images",
        "moderations",
        "organization",
        "realtime",
        "threads",
        "uploads",
        "vector_stores",
        "videos",
    }
)


class Routes:
    """The router and its handlers."""

    def __init__(self, engine: Engine, limits: ServerLimits, admission: Admission) -> None:
        self._limits = limits
        self._admission = admission
        self.specs: tuple[RouteSpec, ...] = (
            *ResponseRoutes(engine, limits).list_specs(),
            *ItemRoutes(engine).list_specs(),
            *ConversationRoutes(engine).list_specs(),
            *ModelRoutes(engine).list_specs(),
            *StatusRoutes(engine, self.describe).list_specs(),
        )
        self._openapi: bytes | None = None
        self._table = [
            (Route(spec.path, endpoint=_unused, methods=[spec.method]), spec) for spec in self.specs
        ]

    async def answer(
        self,
        scope: Any,
        headers: dict[bytes, bytes],
        keys: Keyring,
        receive: Any,
        send: Any,
        request_id: bytes,
    ) -> None:
        """Find the handler and send what it returns."""
        spec, child_scope = self._find(scope, headers)
        access = keys.find_open_access() if spec.open else keys.find_access(headers)
        request = Request({**scope, **child_scope}, receive)
        check_query(spec, request)
        body = b""
        if spec.body is not None and not (spec.body_optional and _has_no_body(headers)):
            body = await read_body(headers, receive, self._limits)
        call = Call(request=request, access=access, body=body)
        if not spec.asks_model:
            await self._send(await spec.handler(call), receive, send, request_id)
            return
        await self._ask_model(spec, call, receive, send, request_id)

    async def _ask_model(
        self, spec: RouteSpec, call: Call, receive: Any, send: Any, request_id: bytes
    ) -> None:
        """Ask when there is a place; a client that leaves waits no longer, neither for it nor for the handler."""
        lease: Lease | None = None
        watch = DisconnectWatch(receive)
        try:
            lease = await self._admission.enter(call.access)
            send.extra = lease.headers
            answer = await spec.handler(call)
            # What sends watches for itself.
            watch.close()
            await self._send(answer, receive, send, request_id)
        except OverloadedError:
            send.extra = self._admission.uncharge(call.access)
            raise
        except asyncio.CancelledError:
            if not watch.left:
                raise
            watch.take_back_cancellation()
            raise ClientGoneError from None
        finally:
            watch.close()
            if lease is not None:
                lease.leave()

    async def _send(self, answer: Answer, receive: Any, send: Any, request_id: bytes) -> None:
        if isinstance(answer, bytes):
            await send_json(send, request_id, answer)
        elif isinstance(answer, Relayed):
            await send_relayed(answer, receive, send, request_id, self._limits)
        else:
            await stream_events(answer, receive, send, request_id, self._limits)

    def _find(self, scope: Any, headers: Mapping[bytes, bytes]) -> tuple[RouteSpec, Any]:
        method, path = scope["method"], scope["path"]
        allowed: set[str] = {"POST"} if path == RESPONSES_PATH else set()
        if path == RESPONSES_PATH and headers.get(b"upgrade", b"").lower() == b"websocket":
            raise UpgradeRequiredError
        for route, spec in self._table:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                return spec, child_scope
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        if allowed:
            allow = ", ".join(sorted(allowed))
            raise MethodNotAllowedError(
                f"Not allowed to {method} on {path}. Allowed: {allow}.", headers={"allow": allow}
            )
        _refuse_other_api(method, path)
        raise NotFoundError(
            f"Unknown request URL: {method} {path}. {self._suggest_path(scope)}", code="unknown_url"
        )

    def _suggest_path(self, scope: Any) -> str:
        """What a path may have meant, when it is only put together wrongly."""
        path = scope["path"]
        start = "" if path.startswith("/v1/") else "The API is under /v1. "
        for candidate in (f"/v1{path}", path.removeprefix("/v1"), path.rstrip("/"), f"/v1{path.rstrip('/')}"):
            if candidate != path and self._is_known({**scope, "path": candidate}):
                return f"{start}Did you mean {candidate}?"
        return f"{start}Please check the URL for typos."

    def _is_known(self, scope: Any) -> bool:
        """Whether the API has something at this path."""
        if scope["path"] == RESPONSES_PATH:
            return True
        return any(route.matches(scope)[0] is not Match.NONE for route, _ in self._table)

    def describe(self) -> bytes:
        """The OpenAPI document."""
        if self._openapi is None:
            self._openapi = render_openapi(self.specs)
        return self._openapi


def _refuse_other_api(method: str, path: str) -> None:
    parts = path.split("/")
    if parts[:2] == ["", "v1"] and len(parts) > 2 and parts[2] in OTHER_APIS:
        raise NotFoundError(
            f"Unknown request URL: {method} {path}. The API of /v1/{parts[2]} is not served here.",
            code="unknown_url",
        )


async def stream_events(
    source: EventSource, receive: Any, send: Any, request_id: bytes, limits: ServerLimits
) -> None:
    """A source's events to the client, until it leaves or they end."""
    watch = DisconnectWatch(receive)
    sender: StreamSender | None = None
    try:
        sender = StreamSender(source, send, watch, limits)
        await sender.run(request_id)
    except (OSError, TimeoutError):
        await source.abandon()
    except asyncio.CancelledError:
        if not watch.left:
            # The server stops: the client is told.
            if sender is not None:
                await sender.interrupt(ServerStoppingError())
            raise
        watch.take_back_cancellation()
        await source.abandon()
    finally:
        watch.close()


def _has_no_body(headers: Mapping[bytes, bytes]) -> bool:
    return headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers


async def _unused(request: Request) -> None:
    """Starlette wants an endpoint; handlers are called by `Routes.answer`."""
