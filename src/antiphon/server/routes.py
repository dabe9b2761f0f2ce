"""Every route but the hot one: reading responses back, models, health, the OpenAPI document.

Handlers return bytes or raise; who asks was settled before them. Invariant: for a tenant, somebody
else's response and no response at all give the same answer.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.routing import Match, Route

from antiphon.engine import Engine
from antiphon.protocol.errors import MethodNotAllowedError, NotFoundError, RequestError, UpgradeRequiredError
from antiphon.protocol.responses import ModelList, ModelObject
from antiphon.server.keys import Keyring
from antiphon.server.openapi import render_openapi
from antiphon.server.replies import send_json

_encode = msgspec.json.Encoder().encode
Handler: TypeAlias = Callable[[Request, str], Awaitable[bytes]]

#: Page sizes of list routes.
MAX_LIMIT = 100
DEFAULT_LIMIT = 20
#: What clients ask of a probe before any key is at hand.
OPEN_PATHS = frozenset({"/health", "/ready"})
#: Endpoints of the API that are not served yet, and what to do instead.
UNSERVED = (
    (("POST",), "/v1/responses/compact", "Start a new chain, or branch from an earlier response."),
    (("POST",), "/v1/responses/input_tokens", "The usage of each response tells its count."),
    (("POST",), "/v1/responses/{response_id}/cancel", "Close the connection to stop a response."),
    (("POST",), "/v1/conversations", "Continue with previous_response_id."),
    (("GET", "POST", "DELETE"), "/v1/conversations/{conversation_id}", "Continue with previous_response_id."),
    (
        ("GET", "POST"),
        "/v1/conversations/{conversation_id}/items",
        "GET /v1/responses/{response_id}/input_items lists a path's items.",
    ),
    (
        ("GET", "DELETE"),
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "GET /v1/responses/{response_id}/input_items lists a path's items.",
    ),
    (("POST",), "/v1/chat/completions", "Use POST /v1/responses."),
)


class Routes:
    """The router and its handlers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._openapi: bytes | None = None
        table: list[tuple[str, str, Handler]] = [
            ("GET", "/v1/responses/{response_id}", self._retrieve),
            ("DELETE", "/v1/responses/{response_id}", self._delete),
            ("GET", "/v1/responses/{response_id}/input_items", self._list_input_items),
            ("GET", "/v1/models", self._list_models),
            ("GET", "/v1/models/{model:path}", self._get_model),
            ("GET", "/openapi.json", self._get_openapi),
            ("GET", "/health", self._get_health),
            ("GET", "/ready", self._get_ready),
        ]
        self._table = [
            (Route(path, endpoint=_unused, methods=[method]), handler) for method, path, handler in table
        ]
        self._unserved = [
            (Route(path, endpoint=_unused, methods=list(methods)), hint) for methods, path, hint in UNSERVED
        ]

    async def answer(
        self, scope: Any, headers: dict[bytes, bytes], keys: Keyring, send: Any, request_id: bytes
    ) -> None:
        """Find the handler and send what it returns."""
        handler, child_scope = self._find(scope, headers)
        tenant = "" if scope["path"] in OPEN_PATHS else keys.find_tenant(headers)
        request = Request({**scope, **child_scope})
        await send_json(send, request_id, await handler(request, tenant))

    def _find(self, scope: Any, headers: dict[bytes, bytes]) -> tuple[Handler, Any]:
        method, path = scope["method"], scope["path"]
        allowed: set[str] = {"POST"} if path == "/v1/responses" else set()
        if path == "/v1/responses" and headers.get(b"upgrade", b"").lower() == b"websocket":
            raise UpgradeRequiredError
        # Before what is served: `compact` would be the id of a response there.
        self._refuse_unserved(scope, Match.FULL)
        for route, handler in self._table:
            match, child_scope = route.matches(scope)
            if match is Match.FULL:
                return handler, child_scope
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        if allowed:
            allow = ", ".join(sorted(allowed))
            raise MethodNotAllowedError(
                f"Not allowed to {method} on {path}. Allowed: {allow}.", headers={"allow": allow}
            )
        self._refuse_unserved(scope, Match.PARTIAL)
        raise NotFoundError(
            f"Unknown request URL: {method} {path}. {self._suggest_path(scope)}", code="unknown_url"
        )

    def _refuse_unserved(self, scope: Any, wanted: Match) -> None:
        for route, hint in self._unserved:
            if route.matches(scope)[0] is wanted:
                raise NotFoundError(
                    f"{scope['method']} {scope['path']}: this endpoint of the API is not served yet. {hint}",
                    code="unknown_url",
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
        if scope["path"] == "/v1/responses":
            return True
        routes = [route for route, _ in (*self._table, *self._unserved)]
        return any(route.matches(scope)[0] is not Match.NONE for route in routes)

    async def _retrieve(self, request: Request, tenant: str) -> bytes:
        _check_query(request, "include", "include[]", "stream")
        if request.query_params.get("stream", "false") != "false":
            raise RequestError(
                "Only a response that was created with 'background' and 'stream' can be streamed again; "
                "read it without 'stream'.",
                param="stream",
            )
        response = await self._engine.retrieve(tenant, request.path_params["response_id"])
        return _encode(response)

    async def _delete(self, request: Request, tenant: str) -> bytes:
        return _encode(await self._engine.delete(tenant, request.path_params["response_id"]))

    async def _list_input_items(self, request: Request, tenant: str) -> bytes:
        _check_query(request, "limit", "order", "after", "include", "include[]")
        page = await self._engine.list_input_items(
            tenant,
            request.path_params["response_id"],
            limit=_read_limit(request),
            after=request.query_params.get("after"),
            newest_first=_read_order(request) == "desc",
        )
        return _encode(page)

    async def _list_models(self, request: Request, tenant: str) -> bytes:
        rows = await self._engine.list_models()
        return _encode(
            ModelList(data=[ModelObject(row.name, "model", row.created, row.owned_by) for row in rows])
        )

    async def _get_model(self, request: Request, tenant: str) -> bytes:
        name = request.path_params["model"]
        for row in await self._engine.list_models():
            if row.name == name:
                return _encode(ModelObject(row.name, "model", row.created, row.owned_by))
        raise NotFoundError(f"The model '{name}' does not exist.", param="model", code="model_not_found")

    async def _get_openapi(self, request: Request, tenant: str) -> bytes:
        if self._openapi is None:
            self._openapi = render_openapi()
        return self._openapi

    async def _get_health(self, request: Request, tenant: str) -> bytes:
        return b'{"status":"ok"}'

    async def _get_ready(self, request: Request, tenant: str) -> bytes:
        await self._engine.check()
        return b'{"status":"ready"}'


async def _unused(request: Request) -> None:
    """Starlette wants an endpoint; handlers are called by `Routes.answer`."""


def _check_query(request: Request, *known: str) -> None:
    for name in request.query_params:
        if name not in known:
            raise RequestError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def _read_limit(request: Request) -> int:
    text = request.query_params.get("limit")
    if text is None:
        return DEFAULT_LIMIT
    if re.fullmatch(r"-?[0-9]{1,9}", text) is None:
        raise RequestError(
            f"Invalid type for 'limit': expected an integer, but got '{text[:50]}' instead.",
            param="limit",
            code="invalid_type",
        )
    limit = int(text)
    if limit < 1:
        raise RequestError(
            f"Invalid 'limit': integer below minimum value. Expected a value >= 1, but got {limit} instead.",
            param="limit",
            code="integer_below_min_value",
        )
    if limit > MAX_LIMIT:
        raise RequestError(
            f"Invalid 'limit': integer above maximum value. Expected a value <= {MAX_LIMIT}, "
            f"but got {limit} instead.",
            param="limit",
            code="integer_above_max_value",
        )
    return limit


def _read_order(request: Request) -> str:
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(
            f"Invalid value: '{order[:50]}'. Supported values are: 'asc' and 'desc'.",
            param="order",
            code="invalid_value",
        )
    return order
