"""Stored items read by their ids alone, one or all from one to another, wherever on the tree they stand.

It knows the store, and no request. Invariant: an item is found under exactly the id that lists show it by, by its own
tenant alone; what was blanked or deleted is not found, and looks like what never was.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from antiphon.engine.listing import find_places, list_items
from antiphon.engine.paths import Place, read_places
from antiphon.engine.references import NODE_PREFIXES, parse_derived_id
from antiphon.protocol.errors import NotFoundError, RequestError, shorten_quoted
from antiphon.protocol.item_forms import normalise_item
from antiphon.protocol.responses import ListPage
from antiphon.protocol.showing import show_item
from antiphon.sessions import Node
from antiphon.store import Store

_BLANK: Final = msgspec.Raw(b"null")

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.encode


class ItemReader:
    """Reads the items of every tenant from one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def read_item(self, tenant: str, item_id: str, include: Sequence[str] = ()) -> bytes:
        """One item as lists show it; raises `NotFoundError`."""
        found = await self._find(tenant, item_id)
        if found is None:
            raise _make_unknown(item_id)
        _, place = found
        return show_item(normalise_item(place.item, place.id), place.item.type, include)

    async def list_range(
        self,
        tenant: str,
        first_id: str,
        last_id: str,
        *,
        limit: int,
        after: str | None,
        newest_first: bool,
        include: Sequence[str] = (),
    ) -> ListPage:
        """A page of the items from one to another, both included, along the path that leads to the second.

        Raises `NotFoundError` for an id that is not there, and `RequestError` where the first does not stand before
        the second on its path. What was deleted between them is passed over.
        """
        found = await self._find(tenant, last_id)
        path = await self._load_path(tenant, found[0]) if found is not None else None
        if found is None or not path:
            raise _make_unknown(last_id, param="to")
        last = found[1].position
        path[-1] = _cut(path[-1], 0, last)
        starts = find_places(path, first_id)
        if not starts:
            raise await self._explain_apart(tenant, first_id, last_id)
        start, place = starts[-1]
        nodes = path[path.index(start) :]
        nodes[0] = _cut(nodes[0], place.position, None)
        return list_items(nodes, limit=limit, after=after, newest_first=newest_first, include=include)

    async def _find(self, tenant: str, item_id: str) -> tuple[Node, Place] | None:
        """The node and the place of an item: by what its id says, or else by where the ids of clients are listed."""
        derived = parse_derived_id(item_id)
        for node_id in [prefix + derived[0] for prefix in NODE_PREFIXES] if derived is not None else ():
            found = await self._look(tenant, node_id, item_id)
            if found is not None:
                return found
        # A client may have brought an id of ours along from a response that was never stored.
        indexed = await self._store.find_item(tenant, item_id)
        return await self._look(tenant, indexed[0], item_id) if indexed is not None else None

    async def _look(self, tenant: str, node_id: str, item_id: str) -> tuple[Node, Place] | None:
        node = await self._store.load(tenant, node_id)
        places = [] if node is None else read_places(node)
        place = next((place for place in reversed(places) if place.id == item_id), None)
        return (node, place) if node is not None and place is not None else None

    async def _load_path(self, tenant: str, tip: Node) -> list[Node] | None:
        path = await self._store.load_path(tenant, tip.id, skip_deleted=True)
        return path if path and path[-1].id == tip.id else None

    async def _explain_apart(self, tenant: str, first_id: str, last_id: str) -> RequestError:
        if await self._find(tenant, first_id) is None:
            return _make_unknown(first_id, param="from")
        return RequestError(
            f"Invalid 'from': the item '{shorten_quoted(first_id)}' does not stand before the item "
            f"'{shorten_quoted(last_id)}' on one path. Send the older item of one chain or conversation as 'from', and "
            "the newer one as 'to'.",
            param="from",
            code="invalid_value",
        )


def _cut(node: Node, first: int, last: int | None) -> Node:
    """The node with all items blanked that stand before `first` or after `last`; positions stay."""
    given, made = _decode_raws(node.input), _decode_raws(node.output)
    kept = [
        raw if position >= first and (last is None or position <= last) else _BLANK
        for position, raw in enumerate([*given, *made])
    ]
    return Node(
        id=node.id,
        parent=node.parent,
        kind=node.kind,
        status=node.status,
        input=_encode(kept[: len(given)]),
        output=_encode(kept[len(given) :]),
    )


def _make_unknown(item_id: str, *, param: str | None = None) -> NotFoundError:
    return NotFoundError(f"Item with id '{shorten_quoted(item_id)}' not found.", param=param)
