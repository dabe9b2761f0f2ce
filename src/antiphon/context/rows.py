"""What the compaction ladder works on: the items of a window, one row each, and what was done to them.

Pure data. Invariant: a row's `item` is what the model is shown; where the ladder put something shorter in its place,
`replaced` says so, and the whole item is found by `id`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from antiphon.protocol.items import Item

#: The steps of the ladder that remove something, cheapest first; `cut` shortens what alone does not fit.
Rung: TypeAlias = Literal["elide", "drop_images", "snapshot", "summary", "cut"]
RemovalReason: TypeAlias = Literal["uneventful", "superseded", "old", "image", "summarised", "too_long"]
#: What a client says of the result of a call; `keep` protects it from the free rungs.
Mark: TypeAlias = Literal["uneventful", "superseded", "keep"]

#: The response lists this many removed items; the rest are counted.
REMOVED_SHOWN = 100


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a window.

    `id`: what it is fetched by. `tokens`: what it costs as it stands here, as the model counts. `node`: the stored node
    that holds it, or will; empty where this server keeps nothing of it. `root`, `place`: the first node of its path,
    and where on that path it stands.
    """

    id: str
    item: Item
    tokens: int = 0
    node: str = ""
    root: str = ""
    place: int = -1
    #: Which rung has put `item` into the place of the whole one; None for an item as it came.
    replaced: Rung | None = None

    @property
    def is_fetchable(self) -> bool:
        """Whether `GET /v1/items/{id}` gives the whole item."""
        return bool(self.node)


class Removal(msgspec.Struct, frozen=True):
    """What one rung took out of a window: the item, and how many tokens that freed."""

    id: str
    type: str
    rung: Rung
    reason: RemovalReason
    tokens: int


def report_removals(removals: Sequence[Removal]) -> dict[str, Any]:
    """The keys of a pass in the response: the first items that were removed, and how many and how much in all."""
    return {
        "removed": [msgspec.to_builtins(removal) for removal in removals[:REMOVED_SHOWN]],
        "removed_count": len(removals),
        "removed_tokens": sum(removal.tokens for removal in removals),
    }


def add_tokens(rows: Iterable[Row]) -> int:
    """The tokens of rows together."""
    return sum(row.tokens for row in rows)
