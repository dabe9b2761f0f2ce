"""Items in pages, as the list routes give them, and single items found by id.

It knows nodes and places of items alone. Invariant: an item has the same id in every list. Only what a page
shows is decoded, so that a page of a long path costs little more than one of a short path.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from antiphon.engine.paths import Place, read_places
from antiphon.engine.references import parse_derived_id
from antiphon.protocol.errors import NotFoundError, shorten_quoted
from antiphon.protocol.item_forms import normalise_item
from antiphon.protocol.items import Item, get_call_id
from antiphon.protocol.responses import ListPage
from antiphon.protocol.showing import show_item
from antiphon.sessions import Node


def list_input_items(
    path: Sequence[Node],
    *,
    limit: int,
    after: str | None,
    newest_first: bool,
    include: Sequence[str] = (),
) -> ListPage:
    """One page of what the last node of a path answered: the path's items, then the node's own input."""
    last = path[-1]
    asked = [*path[:-1], Node(id=last.id, parent=last.parent, kind=last.kind, input=last.input)]
    return list_items(asked, limit=limit, after=after, newest_first=newest_first, include=include)


def list_items(
    path: Sequence[Node],
    *,
    limit: int,
    after: str | None,
    newest_first: bool,
    include: Sequence[str] = (),
) -> ListPage:
    """One page of all items of a path; raises `NotFoundError` for a cursor that is not in the list."""
    nodes = path[::-1] if newest_first else path
    start: int | None = 0
    if after is not None:
        start = _find_last_node(nodes, after)
        if start is None:
            raise NotFoundError(f"No item found with id '{shorten_quoted(after)}'", param="after")
    page: list[Place] = []
    # One more than is shown tells whether there is more.
    for place in _walk_behind(nodes[start:], after, newest_first=newest_first):
        page.append(place)
        if len(page) > limit:
            break
    shown = page[:limit]
    return ListPage(
        data=[
            msgspec.Raw(show_item(normalise_item(place.item, place.id), place.item.type, include))
            for place in shown
        ],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(page) > limit,
    )


def find_places(path: Sequence[Node], item_id: str) -> list[tuple[Node, Place]]:
    """Every place of a path whose item is listed under an id, root first."""
    needle = _Needle(item_id)
    return [
        (node, place)
        for node in path
        if needle.may_be_in(node)
        for place in read_places(node)
        if place.id == item_id
    ]


def find_halves(path: Sequence[Node], call_ids: Iterable[str]) -> list[Item]:
    """The calls and outputs of a path that bear one of these call ids, root first."""
    wanted = set(call_ids)
    needles = [_Needle(call_id) for call_id in wanted]
    return [
        place.item
        for node in path
        if any(needle.may_be_in(node) for needle in needles)
        for place in read_places(node)
        if get_call_id(place.item) in wanted
    ]


def _find_last_node(nodes: Sequence[Node], item_id: str) -> int | None:
    """The last node that lists an item under this id; None when there is none."""
    needle = _Needle(item_id)
    for at in range(len(nodes) - 1, -1, -1):
        if needle.may_be_in(nodes[at]) and any(place.id == item_id for place in read_places(nodes[at])):
            return at
    return None


def _walk_behind(nodes: Sequence[Node], after: str | None, *, newest_first: bool) -> Iterator[Place]:
    """The places behind the last one of this id, which is in the first node; from the start without an id.

    Ids are unique along a path; were one not, whoever pages would come to the end all the same.
    """
    for at, node in enumerate(nodes):
        places = read_places(node)
        if newest_first:
            places.reverse()
        if at == 0 and after is not None:
            last = max(position for position, place in enumerate(places) if place.id == after)
            places = places[last + 1 :]
        yield from places


class _Needle:
    """An item id that is looked for, quickly passing over nodes that cannot have it."""

    def __init__(self, item_id: str) -> None:
        derived = parse_derived_id(item_id)
        self._digits = None if derived is None else derived[0]
        # A client's own id stands in the item's bytes; any character of it may be escaped there.
        plain = item_id.isascii() and item_id.replace("_", "").replace("-", "").isalnum()
        self._bytes = item_id.encode() if plain else None

    def may_be_in(self, node: Node) -> bool:
        if self._digits is not None and node.id.endswith(self._digits):
            return True
        if self._bytes is None:
            return True
        if self._bytes in node.input or self._bytes in node.output:
            return True
        # An escape may spell any character.
        return b"\\u00" in node.input or b"\\u00" in node.output
