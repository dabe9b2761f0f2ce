"""The routes of a stored response: read, stream again, cancel, delete, list its input, see its window.

And those that take what a response is made from, and make none: count it, compact it.
"""

import asyncio
from typing import Any

import msgspec

from antiphon.engine import Engine, EventSource
from antiphon.protocol.compact_request import decode_compact_request
from antiphon.protocol.count_request import decode_count_request
from antiphon.protocol.errors import RequestError
from antiphon.protocol.responses import (
    CompactedResponse,
    DeletedResponse,
    InputTokens,
    ListPage,
    Response,
)
from antiphon.server.bodies import LARGE_BODY_BYTES, check_input_length
from antiphon.server.include import INCLUDE, read_include
from antiphon.server.route import (
    AFTER,
    LIMIT,
    ORDER,
    Call,
    Query,
    RouteSpec,
    read_flag,
    read_integer,
    read_limit,
    read_newest_first,
)
from antiphon.server.settings import ServerLimits

_encode = msgspec.json.Encoder().encode
_ONE = "/v1/responses/{response_id}"
_CHOICE: dict[str, Any] = {"type": "string", "enum": ["true", "false"]}
_FLAG: dict[str, Any] = {**_CHOICE, "default": "false"}


class ResponseRoutes:
    """Responses over HTTP, but for creating one."""

    def __init__(self, engine: Engine, limits: ServerLimits) -> None:
        self._engine = engine
        self._limits = limits

    def list_specs(self) -> tuple[RouteSpec, ...]:
        """The routes; those of one response last, for another word in their path would be an id there."""
        return (*self._list_making(), *self._list_stored())

    def _list_making(self) -> tuple[RouteSpec, ...]:
        return (
            RouteSpec(
                method="POST",
                path="/v1/responses/input_tokens",
                name="countInputTokens",
                summary="How many tokens a request's input has.",
                handler=self._count,
                answer=InputTokens,
                body="CountRequest",
                errors=("404", "429", "502", "503"),
                asks_model=True,
            ),
            RouteSpec(
                method="POST",
                path="/v1/responses/compact",
                name="compactResponse",
                summary="Make a window smaller: its user messages, and one sealed item for all the rest.",
                handler=self._compact,
                answer=CompactedResponse,
                body="CompactRequest",
                errors=("404", "429", "502", "503", "504"),
                asks_model=True,
            ),
        )

    def _list_stored(self) -> tuple[RouteSpec, ...]:
        return (
            RouteSpec(
                method="GET",
                path=_ONE,
                name="retrieveResponse",
                summary="Read a stored response, or stream a background one again.",
                handler=self._retrieve,
                answer=Response,
                query=(
                    INCLUDE,
                    Query("stream", _FLAG),
                    Query("starting_after", {"type": "integer", "minimum": 0}),
                    Query("include_obfuscation", _CHOICE),
                ),
                errors=("404",),
                streams=True,
            ),
            RouteSpec(
                method="DELETE",
                path=_ONE,
                name="deleteResponse",
                summary="Delete a response.",
                handler=self._delete,
                answer=DeletedResponse,
                errors=("404",),
            ),
            RouteSpec(
                method="POST",
                path=_ONE + "/cancel",
                name="cancelResponse",
                summary="Cancel a background response.",
                handler=self._cancel,
                answer=Response,
                errors=("404",),
            ),
            RouteSpec(
                method="GET",
                path=_ONE + "/input_items",
                name="listInputItems",
                summary="The items that a response answered, newest first unless asked otherwise.",
                handler=self._list_input_items,
                answer=ListPage,
                query=(LIMIT, ORDER, AFTER, INCLUDE),
                errors=("404",),
            ),
            RouteSpec(
                method="GET",
                path=_ONE + "/window",
                name="getWindow",
                summary="What the model saw, item by item.",
                handler=self._get_window,
                errors=("404",),
                ours=True,
            ),
        )

    async def _count(self, call: Call) -> bytes:
        request = decode_count_request(call.body)
        return _encode(await self._engine.count_input(request, call.tenant))

    async def _compact(self, call: Call) -> bytes:
        if len(call.body) < LARGE_BODY_BYTES:
            request = decode_compact_request(call.body)
        else:
            request = await asyncio.to_thread(decode_compact_request, call.body)
        check_input_length(request, self._limits)
        compacted = await self._engine.compact(
            request, call.tenant, zero_retention=call.access.zero_retention
        )
        return _encode(compacted)

    async def _retrieve(self, call: Call) -> bytes | EventSource:
        response_id = call.get_path("response_id")
        include = read_include(call)
        if not read_flag(call, "stream"):
            _refuse_stream_options(call)
            return _encode(await self._engine.retrieve(call.tenant, response_id, include))
        return await self._engine.background.follow(
            call.tenant,
            response_id,
            after=read_integer(call, "starting_after", -1, minimum=0),
            obfuscate=_read_obfuscation(call),
        )

    async def _delete(self, call: Call) -> bytes:
        return _encode(await self._engine.delete(call.tenant, call.get_path("response_id")))

    async def _cancel(self, call: Call) -> bytes:
        return _encode(await self._engine.background.cancel(call.tenant, call.get_path("response_id")))

    async def _list_input_items(self, call: Call) -> bytes:
        page = await self._engine.list_input_items(
            call.tenant,
            call.get_path("response_id"),
            limit=read_limit(call),
            after=call.get_query("after"),
            newest_first=read_newest_first(call),
            include=read_include(call),
        )
        return _encode(page)

    async def _get_window(self, call: Call) -> bytes:
        return _encode(await self._engine.get_window(call.tenant, call.get_path("response_id")))


def _read_obfuscation(call: Call) -> bool | None:
    """Whether deltas are padded; None where it is not said: as they were first sent."""
    return None if call.get_query("include_obfuscation") is None else read_flag(call, "include_obfuscation")


def _refuse_stream_options(call: Call) -> None:
    """What belongs to a stream has no effect without one."""
    for name in ("starting_after", "include_obfuscation"):
        if call.get_query(name) is not None:
            raise RequestError(
                f"The '{name}' parameter is only allowed with 'stream=true'.",
                param=name,
                code="invalid_value",
            )
