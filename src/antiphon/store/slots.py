"""Texts whose time will be over, in slots of one length.

A database overwrites in place only what keeps its length. So texts are cut into pieces of one length, and a
piece that is no longer needed is overwritten with zeros and used again.
Invariant: no row of `slots` is ever removed or changes its length.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from antiphon.store.statements import Statements

#: Part of the file format. Four rows fill a page of 8 KiB, whatever their keys.
SLOT_BYTES = 2030

#: `first` of the text that is no chunk of events but the job's own: its request and its snapshot.
OWN_TEXT = -1
#: Above the number of any event.
NO_LIMIT = (1 << 63) - 1

#: Whose texts: the key of the tenant, and the packed id.
Owner: TypeAlias = tuple[int, bytes | str]


class SlotTable:
    """Writes texts; used by one thread, inside a savepoint."""

    def __init__(self, sql: Statements) -> None:
        self._sql = sql

    def write(self, owner: Owner, first: int, last: int, text: bytes) -> None:
        """Keep a text under its owner and `first`."""
        pieces = _cut(text)
        slots = self._take(len(pieces))
        self._sql.execute_many("fill_slot", zip(pieces, slots, strict=True))
        self._sql.execute_many(
            "take_slot",
            [(*owner, first, position, last, len(text), slot) for position, slot in enumerate(slots)],
        )

    def free(self, owner: Owner, first: int, last: int) -> bool:
        """Blank the owner's texts that are kept under `first` to `last`; False when there are none."""
        span = (*owner, first, last)
        self._sql.execute("blank_slots", span)
        return self._sql.execute("free_slots", span).rowcount > 0

    def find_last(self, owner: Owner) -> int | None:
        """`last` of the owner's newest text; None when there is none."""
        row = self._sql.fetch("find_last_event", owner)
        return None if row is None else int(row[0])

    def _take(self, count: int) -> list[int]:
        """Free slots, the oldest first; those that are missing are added."""
        slots = [slot for (slot,) in self._sql.execute("find_free_slots", (count,)).fetchall()]
        while len(slots) < count:
            slot = self._sql.execute("insert_slot", (SLOT_BYTES,)).lastrowid or 0
            self._sql.execute("insert_piece", (slot, slot))
            slots.append(slot)
        return slots


def join_texts(rows: Sequence[Sequence[Any]], width: int) -> list[tuple[tuple[Any, ...], bytes]]:
    """The texts of rows of pieces: `width` columns that tell the texts apart, then length and piece.

    Rows [("a", 3, "abc..."), ("b", 5, "defgh..."), ...] -> [(("a",), "abc"), (("b",), "defgh"), ...]
    """
    texts = []
    for head, pieces in groupby(rows, key=lambda row: tuple(row[: width + 1])):
        whole = b"".join(map(itemgetter(width + 1), pieces))
        texts.append((head[:width], whole[: head[width]]))
    return texts


def _cut(text: bytes) -> list[bytes]:
    """Pieces of one length, at least one; the last one is filled up with zeros."""
    starts = range(0, len(text) or 1, SLOT_BYTES)
    return [text[start : start + SLOT_BYTES].ljust(SLOT_BYTES, b"\0") for start in starts]
