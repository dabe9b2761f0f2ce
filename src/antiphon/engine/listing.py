"""The items of a response's context, in pages: the path's items, then the request's own.

It knows stored nodes alone. Invariant: an item has the same id in every list.
"""

import msgspec

from antiphon.protocol.errors import NotFoundError
from antiphon.protocol.item_forms import derive_item_id, normalise_item
from antiphon.protocol.items import Item, decode_stored_item, get_item_id
from antiphon.protocol.responses import ListPage
from antiphon.sessions import Node

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


def list_input_items(path: list[Node], *, limit: int, after: str | None, newest_first: bool) -> ListPage:
    """One page; raises `NotFoundError` for a cursor that is not in the list."""
    rows = _read_rows(path)
    if newest_first:
        rows.reverse()
    start = 0
    if after is not None:
        start = next((at + 1 for at, (item_id, _) in enumerate(rows) if item_id == after), 0)
        if start == 0:
            raise NotFoundError(f"No item found with id '{after}'", param="after")
    page = rows[start : start + limit]
    return ListPage(
        data=[msgspec.Raw(normalise_item(item, item_id)) for item_id, item in page],
        first_id=page[0][0] if page else None,
        last_id=page[-1][0] if page else None,
        has_more=len(rows) > start + limit,
    )


def _read_rows(path: list[Node]) -> list[tuple[str, Item]]:
    rows: list[tuple[str, Item]] = []
    for node in path:
        raws = _decode_raws(node.input)
        if node is not path[-1]:
            raws = [*raws, *_decode_raws(node.output)]
        for position, raw in enumerate(raws):
            item = decode_stored_item(raw)
            rows.append((get_item_id(item) or derive_item_id(item.type, node.id, position), item))
    return rows
