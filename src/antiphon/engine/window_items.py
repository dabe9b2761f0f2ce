"""The rows of a window report: every item of a path, and in which form, if any, a prompt shows it.

It knows paths and the rows of a prompt, no tokens. Invariants: every item of the path has one row, in the path's order;
every row of the prompt is one of them, or was brought by a compaction and stands beside it.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from antiphon.context.rows import Row, Rung
from antiphon.context.window_report import Reason, WindowItem, describe_item, find_reason
from antiphon.engine.catalog import Target
from antiphon.engine.fitting import transcribe_alone
from antiphon.engine.outputs import is_told
from antiphon.engine.paths import Place, read_places
from antiphon.protocol.items import Item, is_call, is_call_output
from antiphon.sessions import Node

#: Items are read in portions of this many, so that other clients need not wait for all of them.
ITEMS_AT_ONCE: Final = 128
_COMPACTIONS: Final = ("compaction", "compaction_summary")

Resolve = Callable[[Sequence[Item]], Awaitable[Sequence[Item]]]


class ShownItem(msgspec.Struct):
    """A row whose item the model was shown, with the item as it was sent."""

    row: WindowItem
    item: Item


class RemovedItem(msgspec.Struct):
    """A row whose item a compaction removed or shortened: the whole of it, and what is shown instead, if anything."""

    row: WindowItem
    whole: Item
    shown: Item | None = None


class ListedItems(msgspec.Struct):
    """`rows` as they are reported; `shown` in the order of the prompt."""

    rows: list[WindowItem]
    shown: list[ShownItem]
    removed: list[RemovedItem]


class PathLister:
    """Lists one path. `prompt`: the rows of the prompt, as they are sent; None: what of the path can be told is."""

    def __init__(
        self,
        path: Sequence[Node],
        target: Target,
        *,
        dropped: frozenset[str],
        reasons: Mapping[str, Reason],
        superseded: Mapping[str, Rung],
        replaced: Mapping[str, Rung],
        prompt: Sequence[Row] | None,
    ) -> None:
        self._places = [
            (node.id, place)
            for node in path
            for place in read_places(node)
            if node is not path[-1] or not place.is_output
        ]
        self._own = {place.id for place in read_places(path[-1]) if place.is_output} if path else set()
        self._target = target
        self._dropped = dropped
        self._reasons = reasons
        self._superseded = superseded
        self._replaced = replaced
        self._prompt = prompt
        self._seen = 0
        self._removed: list[RemovedItem] = []

    async def run(self, resolve: Resolve | None) -> ListedItems:
        """`resolve`: items with their content as it is sent."""
        items: Sequence[Item] = [place.item for _, place in self._places]
        if resolve is not None:
            items = await resolve(items)
        if self._prompt is None:
            return await self._list_path(items)
        return await self._list_prompt(items, self._prompt)

    async def _list_path(self, items: Sequence[Item]) -> ListedItems:
        rows: list[WindowItem] = []
        shown: list[ShownItem] = []
        for (node_id, place), item in zip(self._places, items, strict=True):
            await self._breathe()
            told = not place.is_output or is_told(
                item, speaks_responses=self._target.backend.speaks_responses
            )
            if place.id in self._superseded and place.id not in self._replaced:
                row = self._describe_missing(node_id, place, item)
            else:
                row = self._describe(item, place.id, node_id, self._replaced.get(place.id), told=told)
                if row.shown:
                    shown.append(ShownItem(row, item))
            rows.append(row)
        return ListedItems(rows, shown, self._removed)

    async def _list_prompt(self, items: Sequence[Item], prompt: Sequence[Row]) -> ListedItems:
        free: dict[str, deque[int]] = defaultdict(deque)
        for position, (_, place) in enumerate(self._places):
            free[place.id].append(position)
        rows: list[WindowItem | None] = [None] * len(self._places)
        shown: list[ShownItem] = []
        brought: list[WindowItem] = []
        own: list[WindowItem] = []
        for each in prompt:
            await self._breathe()
            rung = each.replaced or self._replaced.get(each.id)
            at = free[each.id].popleft() if free[each.id] else None
            node_id = self._places[at][0] if at is not None else each.node
            row = self._describe(each.item, each.id, node_id, rung, told=True)
            if rung == "summary":
                # What is sent is a message; what it stands for on the path is the compaction.
                row.type, row.role = "compaction", msgspec.UNSET
            if row.shown:
                shown.append(ShownItem(row, each.item))
            if at is None:
                (own if each.id in self._own else brought).append(row)
                continue
            rows[at] = row
            if rung not in (None, "summary"):
                self._removed.append(RemovedItem(row, items[at], each.item if row.shown else None))
        for position, ((node_id, place), item) in enumerate(zip(self._places, items, strict=True)):
            await self._breathe()
            if rows[position] is None:
                rows[position] = self._describe_missing(node_id, place, item)
        listed = [row for row in rows if row is not None]
        end = self._find_last_compaction()
        return ListedItems([*listed[:end], *brought, *listed[end:], *own], shown, self._removed)

    def _find_last_compaction(self) -> int:
        """Where what a compaction brought is listed: before it, or at the end where it is no item of the path."""
        positions = [at for at, (_, place) in enumerate(self._places) if place.item.type in _COMPACTIONS]
        return positions[-1] if positions else len(self._places)

    def _describe(
        self, item: Item, item_id: str, node_id: str, rung: Rung | None, *, told: bool
    ) -> WindowItem:
        """A row of the prompt; it may still have nothing to be told."""
        reason = self._reasons.get(item_id) or find_reason(
            item,
            dropped=item_id in self._dropped,
            transcribed=told and bool(transcribe_alone(item, self._target)),
        )
        return describe_item(item, item_id, node_id, reason, rung)

    def _describe_missing(self, node_id: str, place: Place, item: Item) -> WindowItem:
        """A row for what the prompt does not hold."""
        rung = self._superseded.get(place.id)
        if rung is not None:
            row = describe_item(item, place.id, node_id, "compacted", rung)
            self._removed.append(RemovedItem(row, item))
            return row
        reason = self._reasons.get(place.id) or find_reason(
            item, dropped=place.id in self._dropped, transcribed=False
        )
        if reason == "not_transcribed":
            if item.type in _COMPACTIONS:
                reason = "opened"
            elif is_call(item) or is_call_output(item):
                reason = "pair_deleted"
        return describe_item(item, place.id, node_id, reason)

    async def _breathe(self) -> None:
        self._seen += 1
        if self._seen % ITEMS_AT_ONCE == 0:
            await asyncio.sleep(0)
