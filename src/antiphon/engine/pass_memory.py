"""Windows that passes left for clients which send their whole history with each request, and drop the item.

In memory alone, bounded. Invariant: a window is only used for a history that begins with the very items that it was
made from, of the same tenant.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from antiphon.context.rows import Removal, Row
from antiphon.context.sealed_window import SealedWindow, hash_item

#: Conversations whose newest window is remembered, and the bytes of all of them.
KEPT: Final = 1_024
KEPT_BYTES: Final = 32 << 20
#: What a removal takes in memory, about.
REMOVAL_BYTES: Final = 300


class Left(msgspec.Struct):
    """The window that stood for the first `count` rows, whose digest this is."""

    window: SealedWindow
    count: int
    digest: bytes
    size: int
    #: What this window and those before it have removed, and whose the summary is.
    removals: tuple[Removal, ...]
    summary: str | None
    #: Where each removed item stood among the rows; -1 where it was none of them.
    places: tuple[int, ...]
    #: The first node of the path that the rows stood on.
    root: str


def take_over(left: Left, rows: Sequence[Row]) -> Left:
    """What a pass has left, told by the ids of another request's rows for the same items."""

    def name(item_id: str, place: int) -> str:
        return rows[place].id if item_id and 0 <= place < left.count else item_id

    removals = [
        msgspec.structs.replace(removal, id=name(removal.id, place))
        for removal, place in zip(left.removals, left.places, strict=True)
    ]
    root = rows[0].root if rows else ""
    told = [
        msgspec.structs.replace(
            entry, first=name(entry.first, entry.place), last=name(entry.last, entry.end), root=root
        )
        if entry.root == left.root
        else entry
        for entry in left.window.left_out
    ]
    window = msgspec.structs.replace(left.window, left_out=tuple(told))
    return msgspec.structs.replace(left, window=window, removals=tuple(removals))


class PassMemory:
    """The newest window of each conversation, by a name of some bytes."""

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._left: OrderedDict[bytes, Left] = OrderedDict()
        self._size = 0

    def note(
        self,
        conversation: bytes,
        rows: Sequence[Row],
        window: SealedWindow,
        removals: Sequence[Removal],
        summary: str | None,
    ) -> None:
        """A pass has left this window of these rows; `summary`: whose one is in it."""
        self._drop(conversation)
        size = sum(len(item.raw) for item in window.items) + len(window.summary) + len(window.covers)
        size += REMOVAL_BYTES * len(removals)
        places = {row.id: place for place, row in enumerate(rows)}
        self._left[conversation] = Left(
            window,
            len(rows),
            _digest(rows),
            size,
            tuple(removals),
            summary,
            tuple(places.get(removal.id, -1) for removal in removals),
            rows[0].root if rows else "",
        )
        self._size += size
        while self._left and (len(self._left) > KEPT or self._size > self._limit_bytes):
            self._drop(next(iter(self._left)))

    def find(self, conversation: bytes, rows: Sequence[Row]) -> "Left | None":
        """What an earlier pass left of the first rows; None where there is none."""
        left = self._left.get(conversation)
        if left is None or len(rows) < left.count or _digest(rows[: left.count]) != left.digest:
            return None
        self._left.move_to_end(conversation)
        return left

    def forget(self) -> None:
        """Something was deleted: nothing that may hold it stays in memory."""
        self._left.clear()
        self._size = 0

    def _drop(self, conversation: bytes) -> None:
        left = self._left.pop(conversation, None)
        if left is not None:
            self._size -= left.size


def _digest(rows: Sequence[Row]) -> bytes:
    return hashlib.sha256(b"".join(hash_item(row.item) for row in rows)).digest()
