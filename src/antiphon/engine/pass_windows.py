"""The window that a pass leaves, before it is sealed: what stays, what stands for the rest, and what it supersedes.

It asks nobody anything. Invariant: whatever was on the path, or stood for something on it, is covered by the window.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from antiphon.context.budget import Budget
from antiphon.context.factsheet import extract_facts
from antiphon.context.item_texts import tell_item
from antiphon.context.ladder import LadderPlan
from antiphon.context.left_out import LeftOut, list_left_out
from antiphon.context.rows import Removal, Row
from antiphon.context.sealed_window import (
    SealedItem,
    SealedNode,
    SealedWindow,
    hash_item,
    is_system,
    list_covered,
)
from antiphon.context.summary import Summary
from antiphon.context.truncation import count_leading
from antiphon.engine.path_rows import PathRows
from antiphon.engine.paths import read_blanks
from antiphon.engine.sealed_windows import is_compaction
from antiphon.protocol.items import Item


class Draft(msgspec.Struct, kw_only=True):
    """A window that is laid out and not sealed yet."""

    window: SealedWindow
    removals: Sequence[Removal]
    summary: Summary | None = None


class Drafting(msgspec.Struct, kw_only=True):
    """Lays out windows of one path. `blinded`: the images that were taken out before any plan."""

    item_id: str
    node_id: str
    model: str
    path: PathRows
    #: Stored nodes beside the path's own that its items come from.
    sources: Sequence[SealedNode] = ()
    blinded: Sequence[Removal] = ()

    def draft_free(self, plan: LadderPlan) -> Draft:
        """A window without a new summary; those that there are already stay."""
        earlier = list(self.path.windows.values())
        items = [row for row in plan.rows if row.replaced != "summary"]
        places = [at for at, row in enumerate(plan.rows) if row.replaced == "summary"]
        window = self._make_window(
            items,
            summary_at=places[0] if places else 0,
            summary="\n\n".join(each.summary for each in earlier if each.summary),
            is_extract=any(each.is_extract for each in earlier),
            facts=_join_facts(earlier),
            left_out=tuple(entry for each in earlier for entry in each.left_out),
        )
        return Draft(window=window, removals=self._list_removals(plan))

    def draft_summary(self, plan: LadderPlan, summary: Summary, budget: Budget) -> Draft:
        """A window with a summary in the place of what does not stay."""
        gone = list_summarised(plan)
        earlier = list(self.path.windows.values())
        facts, _ = extract_facts(
            [tell_item(item) for item in self._list_whole(gone)],
            earlier=[fact for each in earlier for fact in each.facts],
            budget_tokens=budget.facts_tokens,
        )
        left_out = list_left_out(
            [entry for each in earlier for entry in each.left_out], gone, budget.index_tokens
        )
        window = self._make_window(
            plan.rows,
            summary_at=_find_summary_place(plan.rows),
            summary=summary.text,
            is_extract=summary.is_extract,
            facts=facts,
            left_out=left_out,
        )
        return Draft(window=window, removals=self._list_removals(plan), summary=summary)

    def _list_whole(self, rows: Sequence[Row]) -> list[Item]:
        """The items of rows as they were before any rung touched them, where they are still there."""
        told = {row.id: item for row, item in zip(self.path.rows, self.path.items, strict=True)}
        whole = {row.id: row.item for row in self.path.raw}
        return [
            told[row.id] if row.replaced is None else whole[row.id]
            for row in rows
            # A line that stands for a result names nothing of it.
            if row.replaced is None or row.id in whole
        ]

    def _list_removals(self, plan: LadderPlan) -> list[Removal]:
        gone = {removal.id for removal in plan.removals if removal.rung in ("elide", "summary")}
        return [*(removal for removal in self.blinded if removal.id not in gone), *plan.removals]

    def _make_window(
        self,
        rows: Sequence[Row],
        *,
        summary_at: int,
        summary: str,
        is_extract: bool,
        facts: tuple[str, ...],
        left_out: tuple[LeftOut, ...],
    ) -> SealedWindow:
        return SealedWindow(
            id=self.item_id,
            model=self.model,
            summary=summary,
            is_extract=is_extract,
            facts=facts,
            left_out=left_out,
            items=tuple(
                SealedItem(row.id, row.node, row.item.raw, row.replaced, row.root, row.place) for row in rows
            ),
            summary_at=summary_at,
            covers=_list_covers(self.path, rows),
            nodes=self._list_nodes(),
        )

    def _list_nodes(self) -> tuple[SealedNode, ...]:
        """The stored nodes that the window was made from, with what was gone from them then."""
        path = self.path
        nodes = {each.id: each for window in path.windows.values() for each in window.nodes}
        stored = {row.node for row in path.raw if row.node}
        nodes.update(
            (node.id, SealedNode(node.id, read_blanks(node))) for node in path.nodes if node.id in stored
        )
        if self.node_id in stored:
            nodes[self.node_id] = SealedNode(self.node_id)
        for source in self.sources:
            nodes.setdefault(source.id, source)
        return tuple(nodes.values())


def list_summarised(plan: LadderPlan) -> list[Row]:
    """What only the summary will tell, but for an earlier summary, which is told of apart."""
    return [row for row in plan.summarised if row.replaced != "summary"]


def _find_summary_place(rows: Sequence[Row]) -> int:
    """Behind the leading system text, and behind another server's compaction: it reads nothing that stands before."""
    leading = count_leading([row.item for row in rows])
    return max((at + 1 for at, row in enumerate(rows) if is_compaction(row.item)), default=leading)


def _join_facts(windows: Sequence[SealedWindow]) -> tuple[str, ...]:
    """The facts of one window as they are, of several as one sheet."""
    if len(windows) == 1:
        return windows[0].facts
    told = [fact for window in windows for fact in window.facts]
    return extract_facts((), earlier=told, budget_tokens=sum(len(fact.encode()) for fact in told))[0]


def _list_covers(path: PathRows, rows: Sequence[Row]) -> bytes:
    """The hashes of all that the window stands for: what is on the path, and what its earlier windows stood for."""
    gone = set(map(id, path.superseded))
    covers = Counter(
        hash_item(row.item) for row in path.raw if id(row) not in gone and not is_system(row.item)
    )
    for window in path.windows.values():
        covers += list_covered(window)
    # A client may send what it was given in the place of a message: it is the same one.
    covers |= Counter(
        hash_item(row.item)
        for row in rows
        if row.replaced not in (None, "summary") and not is_system(row.item)
    )
    return b"".join(covers.elements())
