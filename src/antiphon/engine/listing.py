"""Items in pages, as the list routes give them, and single items found by id.

It knows nodes and places of items alone. Invariant: an item has the same id in every list. Only what a page
shows is decoded, so that a page of a long path costs little more than one of a short path.
"""

from collections.abc import Iterator, Sequence

import msgspec

from antiphon.engine.paths import Place, read_places
from antiphon.engine.references import parse_derived_id
from antiphon.protocol.errors import NotFoundError
from antiphon.protocol.item_forms import normalise_item
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
    start = 0
    if after is not None:
        start = _find_node(nodes, after)
        if start == len(nodes):
            raise NotFoundError(f"No item found with id '{after}'", param="after")
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


def _find_node(nodes: Sequence[Node], item_id: str) -> int:
    """The first node that lists an item under this id; their number when there is none."""
    needle = _Needle(item_id)
    for at, node in enumerate(nodes):
        if needle.may_be_in(node) and any(place.id == item_id for place in read_places(node)):
            return at
    return len(nodes)


def _walk_behind(nodes: Sequence[Node], after: str | None, *, newest_first: bool) -> Iterator[Place]:
    """The places behind the first one of this id, which is in the first node; from the start without an id."""
    passed = after is None
    for node in nodes:
        places = read_places(node)
        for place in reversed(places) if newest_first else places:
            if passed:
                yield place
            elif place.id == after:
                passed = True


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
