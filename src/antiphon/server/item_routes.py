"""Antiphon's own routes to stored items by their ids: what a window leaves out is fetched here."""

import msgspec

from antiphon.engine import Engine
from antiphon.engine.item_reading import ItemReader
from antiphon.protocol.checks import missing_parameter
from antiphon.protocol.responses import ListPage
from antiphon.server.include import INCLUDE, read_include
from antiphon.server.route import (
    AFTER,
    LIMIT,
    QUERY_CHARACTERS,
    Call,
    Query,
    RouteSpec,
    read_limit,
    read_word,
)

_encode = msgspec.json.Encoder().encode
_END = {"type": "string", "maxLength": QUERY_CHARACTERS}
_FROM = Query("from", _END)
_TO = Query("to", _END)
#: A range is read in its own direction unless asked otherwise.
_ORDERS = ("asc", "desc")
_ORDER = Query("order", {"type": "string", "enum": [*_ORDERS], "default": "asc"})


class ItemRoutes:
    """Stored items over HTTP, whichever response or conversation they stand in."""

    def __init__(self, engine: Engine) -> None:
        self._items = ItemReader(engine.services.store)

    def list_specs(self) -> tuple[RouteSpec, ...]:
        """The routes."""
        return (
            RouteSpec(
                method="GET",
                path="/v1/items",
                name="listItemRange",
                summary="The stored items of one path from one id to another, oldest first unless asked otherwise.",
                handler=self._list_range,
                answer=ListPage,
                query=(_FROM, _TO, LIMIT, _ORDER, AFTER, INCLUDE),
                errors=("404",),
                ours=True,
            ),
            RouteSpec(
                method="GET",
                path="/v1/items/{item_id}",
                name="retrieveItem",
                summary="One stored item.",
                handler=self._get_item,
                query=(INCLUDE,),
                errors=("404",),
                ours=True,
            ),
        )

    async def _list_range(self, call: Call) -> bytes:
        page = await self._items.list_range(
            call.tenant,
            _read_end(call, _FROM),
            _read_end(call, _TO),
            limit=read_limit(call),
            after=call.get_query("after"),
            newest_first=read_word(call, "order", _ORDERS, "asc") == "desc",
            include=read_include(call),
        )
        return _encode(page)

    async def _get_item(self, call: Call) -> bytes:
        return await self._items.read_item(call.tenant, call.get_path("item_id"), read_include(call))


def _read_end(call: Call, query: Query) -> str:
    item_id = call.get_query(query.name)
    if not item_id:
        raise missing_parameter(query.name)
    return item_id
