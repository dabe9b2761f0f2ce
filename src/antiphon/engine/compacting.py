"""One pass of the ladder over a window: measured, planned, summarised if need be, and sealed as a compaction item.

The ladder itself is `context`'s; here are the counts, the model and the seal. Invariants: a pass that does not make the
window shorter changes nothing and says so; nothing that was removed is untold; and the window that a pass gives is read
from the sealed item by the same code that will read it later.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from antiphon.backends import Ask, BackendUsage, Segment
from antiphon.context.budget import Budget, make_budget
from antiphon.context.elision import drop_row_images
from antiphon.context.ladder import LadderPlan, plan_free, plan_summary
from antiphon.context.rows import Mark, Removal, Row, add_tokens, report_removals
from antiphon.context.seal import SealError
from antiphon.context.sealed_window import SealedNode, SealedWindow, expand, hash_item
from antiphon.context.summary import Summary
from antiphon.engine.asking import join_system
from antiphon.engine.compaction_orders import Order, PassReason, limit_window
from antiphon.engine.continuing import resolve_kept, transcribe_anew
from antiphon.engine.counting import (
    count_exactly,
    list_frame,
    list_prompt,
    make_target_key,
)
from antiphon.engine.fitting import transcribe_alone
from antiphon.engine.gather import Plan, load_plan_rows
from antiphon.engine.pass_memory import Left, take_over
from antiphon.engine.pass_summary import SummaryWriter
from antiphon.engine.pass_windows import Draft, Drafting, list_summarised
from antiphon.engine.path_rows import PathRows
from antiphon.engine.paths import read_blanks
from antiphon.engine.references import NODE_PREFIXES, parse_derived_id
from antiphon.engine.sealed_windows import seal_window
from antiphon.engine.services import Services
from antiphon.engine.settings import decode_outcome
from antiphon.protocol.errors import CompactionFailedError, ContextOverflowError, RequestError
from antiphon.protocol.item_forms import derive_item_id
from antiphon.protocol.items import Compaction as CompactionItem
from antiphon.protocol.items import Item, encode_item

#: Less than this is not worth a model call: a summary has its own length.
SUMMARISED_MIN_TOKENS: Final = 256
#: A window that came out longer than it was planned is planned again, this often in all.
PLANS_PER_PASS: Final = 3
#: A pass may miss its aim by this share: no plan is better than its counts.
TOLERANCE_SHARE: Final = 0.02
#: Where nobody knows how much a model takes, a prompt that was refused is made this much smaller.
BLIND_SHARE: Final = 0.6
#: Of a pass, what each rung is told as.
_RUNGS: Final = ("elide", "drop_images", "snapshot", "summary", "cut")


class Pass(msgspec.Struct, kw_only=True):
    """What a pass gave: the item, and the window that stands in its place. `report` is what the response says of it."""

    item: Item
    rows: list[Row]
    items: list[Item]
    segment: Segment
    #: The ids of the nodes that it was made from.
    sources: list[str]
    usage: BackendUsage | None
    report: dict[str, Any]
    warnings: list[tuple[str, str]]


class RefusedPass(msgspec.Struct, kw_only=True):
    """A pass that came to nothing: the window stays as it was, and this is said of it."""

    usage: BackendUsage | None
    report: dict[str, Any]
    warnings: list[tuple[str, str]]


class _Measured(msgspec.Struct, kw_only=True):
    """A window with its numbers, as the model counts."""

    rows: list[Row]
    prompt_tokens: int
    frame_tokens: int
    #: The model's count of such a prompt, by our estimate of it; and whether the model has counted this one.
    factor: float
    is_exact: bool


class _Result(msgspec.Struct, kw_only=True):
    draft: Draft
    rows: list[Row]
    items: list[Item]
    segment: Segment
    tokens: int


async def run_pass(
    plan: Plan,
    order: Order,
    services: Services,
    *,
    reason: PassReason,
    position: int,
    error: ContextOverflowError | None = None,
) -> Pass | RefusedPass:
    """Compact the window behind a plan's prompt.

    `position`: where the item stands in the node. `error`: the refusal that it answers. Raises
    `CompactionFailedError` where nothing fits.
    """
    work = _Work(plan, order, services, reason, position, error)
    return await work.run()


class _Work:
    """One pass."""

    def __init__(
        self,
        plan: Plan,
        order: Order,
        services: Services,
        reason: PassReason,
        position: int,
        error: ContextOverflowError | None,
    ) -> None:
        self._plan = plan
        self._order = order
        self._services = services
        self._reason: PassReason = reason
        self._error = error
        self._item_id = derive_item_id("compaction", plan.node_id, position)
        self._limits = services.compaction.limits
        self._counter = services.counter.of_tenant(plan.tenant)
        self._key = make_target_key(plan.target.backend, plan.target.model)
        #: The prompt that is made shorter, and whether it is another than the request's own.
        self._ask = plan.ask
        self._left: Left | None = None
        self._writer: SummaryWriter | None = None
        self._planned_tokens = 0

    async def run(self) -> Pass | RefusedPass:
        """Free rungs, then a summary; the first that is enough."""
        path = await load_plan_rows(self._plan, self._services)
        if not path.rows:
            raise RequestError("There is nothing to compact: the conversation is empty.", param="input")
        path = await self._take_up(path)
        measured = await self._measure(path)
        if self._left is not None and measured.prompt_tokens <= (self._order.threshold_tokens or 0):
            return await self._reuse(path, measured)
        measured, blinded = self._blind(measured)
        self._writer = self._make_writer(path, measured, may_show=not blinded)
        drafting = self._make_drafting(path, await self._find_sources(path), blinded)
        marks = await self._collect_marks(path)
        told, earlier = measured, None
        for attempt in range(1, PLANS_PER_PASS + 1):
            draft = await self._lay_out(drafting, told, self._make_budget(told), marks, earlier)
            if attempt == 1 and self._writer.calls and not measured.is_exact:
                # The model has counted prompts by now, and may have told what it takes.
                measured, _ = self._blind(await self._measure(path))
                told = measured
            result = await self._open(draft, path, measured)
            budget = self._make_budget(told)
            is_short = result.tokens <= max(budget.limit_tokens, self._planned_tokens)
            if is_short or attempt == PLANS_PER_PASS:
                break
            # What is left may be of another kind than what went: other rates, another ratio.
            told = _scale(told, result.tokens / max(self._planned_tokens, 1))
            earlier = draft
        return await self._judge(drafting, measured, budget, result)

    def _make_writer(self, path: PathRows, measured: _Measured, *, may_show: bool) -> SummaryWriter:
        return SummaryWriter(
            path,
            self._plan.target,
            self._ask if may_show and self._error is None else None,
            self._services,
            self._counter,
            model=self._plan.request.model,
            method=self._order.method,
            window_tokens=self._find_window(),
            prompt_tokens=measured.prompt_tokens,
        )

    def _make_drafting(
        self, path: PathRows, sources: Sequence[SealedNode], blinded: Sequence[Removal] = ()
    ) -> Drafting:
        return Drafting(
            item_id=self._item_id,
            node_id=self._plan.node_id,
            model=self._plan.request.model,
            path=path,
            sources=sources,
            blinded=blinded,
        )

    # What an earlier pass left

    async def _take_up(self, path: PathRows) -> PathRows:
        """The path with the window of an earlier pass in it, where its client sends all and has dropped the item."""
        if self._order.is_whole or self._plan.origin.node is not None or path.windows:
            return path
        left = self._services.passes.find(self._name_reuse(), path.raw)
        if left is None:
            return path
        left = take_over(left, path.raw)
        window, count = left.window, left.count
        self._left = left
        item = encode_item(CompactionItem(id=window.id, encrypted_content=""))
        rows = [*path.raw[:count], Row(id=window.id, item=item), *path.raw[count:]]
        expansion = expand(rows, {window.id: window})
        # What stays as it was is this request's own, by its own ids.
        own = _match_rows(expansion.rows, path.raw[:count])
        items = await self._resolve(own, path)
        self._ask = self._make_ask(transcribe_anew(items, self._plan.target))
        return msgspec.structs.replace(
            path,
            rows=own,
            items=items,
            new_count=len(items),
            superseded=expansion.superseded,
            windows=expansion.windows,
        )

    def _name_reuse(self) -> bytes:
        """A window is only used again for what asks for the same: the method, the marks, and where items are kept."""
        order = self._order
        asked = msgspec.json.encode([order.method, sorted(order.marks.items()), self._plan.request.store])
        return hashlib.sha256(self._plan.conversation_name + asked).digest()

    async def _reuse(self, path: PathRows, measured: _Measured) -> Pass:
        """That window is short enough still: nothing is removed, and no model is asked."""
        drafting = self._make_drafting(path, await self._find_sources(path))
        result = await self._open(drafting.draft_free(_keep(measured)), path, measured)
        report = self._report(path, measured, result, refused="")
        return self._finish(path, result, report, [])

    # Numbers

    async def _measure(self, path: PathRows) -> _Measured:
        plan = self._plan
        pieces = [transcribe_alone(item, plan.target) for item in path.items]
        sizes = await self._counter.measure(self._key, pieces)
        # The leading system text of the path is rows of its own.
        system = join_system(plan.target, plan.request.instructions, "")
        bare = msgspec.structs.replace(self._ask, system=system)
        frame = await self._counter.measure(self._key, list_frame(bare))
        scale = sizes.calibration.scale
        own = [scale(size) for size in sizes.sizes]
        own_frame = sum(scale(size) for size in frame.sizes) + sizes.calibration.constant
        estimate = max(sum(own) + own_frame, 1)
        counted = await self._count_prompt()
        total = estimate if counted is None else counted
        factor = total / estimate
        rows = [
            msgspec.structs.replace(row, tokens=round(tokens * factor))
            for row, tokens in zip(path.rows, own, strict=True)
        ]
        return _Measured(
            rows=rows,
            prompt_tokens=total,
            frame_tokens=round(own_frame * factor),
            factor=factor,
            is_exact=counted is not None,
        )

    async def _count_prompt(self) -> int | None:
        """The model's own count of the prompt; None where nobody tells it."""
        error = self._error
        if error is not None and error.prompt_tokens is not None and not error.at_least:
            return error.prompt_tokens
        size = self._plan.size
        if size is not None and size.exact and self._left is None:
            return size.tokens
        return await count_exactly(self._ask, self._plan.target.backend)

    def _find_window(self) -> int | None:
        """What the model takes, as far as it is known by now: the calls for a summary may have told it."""
        if self._writer is not None:
            return self._writer.window_tokens
        told = self._error.window_tokens if self._error is not None else None
        window = limit_window(self._plan.target, self._plan.request.max_output_tokens)
        known = [each for each in (told, window) if each is not None]
        return min(known, default=None)

    def _make_budget(self, measured: _Measured) -> Budget:
        limits = self._limits
        window = self._find_window()
        if window is not None and not measured.is_exact:
            # What we only estimate may be longer by so much.
            window = int(window / (1 + self._counter.get_error_share(self._key)))
        threshold: int | None = None
        if not self._order.is_whole:
            known = [
                each
                for each in (
                    self._order.threshold_tokens if self._reason != "overflow" else None,
                    int(window * limits.at_share) if window is not None else None,
                )
                if each is not None
            ]
            blind = int(measured.prompt_tokens * BLIND_SHARE)
            if self._error is not None and self._error.window_tokens is None:
                # Whatever is known of the window, this prompt was too long for it.
                known.append(blind)
            threshold = min(known, default=blind)
        return make_budget(
            limits,
            window_tokens=window,
            threshold_tokens=threshold,
            prompt_tokens=measured.prompt_tokens,
            frame_tokens=measured.frame_tokens,
        )

    def _blind(self, measured: _Measured) -> tuple[_Measured, list[Removal]]:
        """A model that cannot see is left no image, whatever else there is room for."""
        if self._plan.target.profile.sees_images is not False:
            return measured, []
        rows = list(measured.rows)
        removals: list[Removal] = []
        for at, row in enumerate(rows):
            dropped = drop_row_images(row, whatever_it_saves=True)
            if dropped is not None:
                rows[at] = dropped
                freed = max(row.tokens - dropped.tokens, 0)
                removals.append(Removal(row.id, row.item.type, "drop_images", "image", freed))
        return msgspec.structs.replace(measured, rows=rows), removals

    async def _collect_marks(self, path: PathRows) -> Mapping[str, Mark]:
        """What clients said of results along the path; the newest word counts."""
        marks: dict[str, Mark] = {}
        ids = [node.id for node in path.nodes if node.kind == "response"]
        outcomes = await self._services.rounds.load_outcomes(self._plan.tenant, ids) if ids else {}
        for node_id in ids:
            if node_id in outcomes:
                marks.update(decode_outcome(outcomes[node_id]).marks)
        return {**marks, **self._order.marks}

    # Plans

    async def _lay_out(
        self,
        drafting: Drafting,
        measured: _Measured,
        budget: Budget,
        marks: Mapping[str, Mark],
        earlier: Draft | None,
    ) -> Draft:
        """The window after a pass, as the method allows; `earlier`: one that came out too long."""
        method, rows, writer = self._order.method, measured.rows, self._writer
        assert writer is not None
        free = await asyncio.to_thread(plan_free, rows, budget, marks)
        self._planned_tokens = free.tokens
        is_enough = free.tokens <= budget.target_tokens
        if method == "elide" or (method == "auto" and is_enough and earlier is None):
            return await asyncio.to_thread(drafting.draft_free, free)
        plan = await asyncio.to_thread(plan_summary, rows, budget, marks)
        gone = list_summarised(plan)
        is_little = add_tokens(gone) < SUMMARISED_MIN_TOKENS
        if not gone or (method == "auto" and is_little and free.fits):
            # Nothing is worth a summary; but what alone is too long may have been cut.
            kept = free if free.fits or plan.summarised else plan
            return await asyncio.to_thread(drafting.draft_free, kept)
        summary = earlier.summary if earlier is not None else None
        if summary is None:
            summary = await writer.write(rows, plan, budget)
            budget = self._make_budget(measured)
        retain = frozenset(summary.retained)
        plan = await asyncio.to_thread(plan_summary, rows, budget, marks, retain=retain)
        summary = await writer.fold(summary, plan, budget)
        self._planned_tokens = plan.tokens
        if not plan.fits:
            window = self._find_window()
            if window is not None and min(plan.tokens, free.tokens) > window:
                least = min(plan.tokens, free.tokens)
                raise CompactionFailedError(
                    f"The window could not be compacted: what must stay in it has about {least} tokens, "
                    f"{budget.frame_tokens} of them instructions and tools, and the model takes {window}. The history "
                    "is as it was. Use a model with a larger window, or shorten what is longest."
                )
            if free.tokens <= plan.tokens:
                # It takes away what costs nothing, and is no worse.
                self._planned_tokens = free.tokens
                return await asyncio.to_thread(drafting.draft_free, free)
        return await asyncio.to_thread(drafting.draft_summary, plan, summary, budget)

    # The result

    async def _open(self, draft: Draft, path: PathRows, measured: _Measured) -> _Result:
        """The window as later rounds will read it, with its size."""
        item = encode_item(CompactionItem(id=self._item_id, encrypted_content=""))
        raw = [*path.raw, Row(id=self._item_id, item=item, node=self._own_node(path))]
        windows = {**path.windows, self._item_id: draft.window}
        expansion = await asyncio.to_thread(expand, raw, windows)
        items = await self._resolve(expansion.rows, path)
        segment = transcribe_anew(items, self._plan.target)
        ask = self._make_ask(segment)
        exact = await count_exactly(ask, self._plan.target.backend)
        if exact is None:
            estimate = await self._counter.estimate(self._key, list_prompt(ask))
            exact = round(estimate * measured.factor)
        return _Result(draft=draft, rows=expansion.rows, items=items, segment=segment, tokens=exact)

    def _own_node(self, path: PathRows) -> str:
        own = self._plan.node_id
        return own if any(row.node == own for row in path.raw) else ""

    async def _resolve(self, rows: Sequence[Row], path: PathRows) -> list[Item]:
        """Rows as the model is shown them; those that are shown as they were are not read again."""
        known = {row.id: (row.item.raw, item) for row, item in zip(path.rows, path.items, strict=True)}
        resolved: list[Item] = []
        for row in rows:
            raw, item = known.get(row.id, (b"", row.item))
            if raw == row.item.raw:
                resolved.append(item)
                continue
            told, _ = await resolve_kept([row.item], self._plan.tenant, self._plan.target, self._services)
            resolved += told
        return resolved

    def _make_ask(self, segment: Segment) -> Ask:
        plan = self._plan
        return msgspec.structs.replace(
            plan.ask,
            system=join_system(plan.target, plan.request.instructions, segment.lead),
            transcript=[segment.body] if segment.body else [],
        )

    # The verdict

    async def _judge(
        self, drafting: Drafting, measured: _Measured, budget: Budget, result: _Result
    ) -> Pass | RefusedPass:
        """A pass counts when the window is short enough; a client that asked for an item gets one in any case."""
        path, summary = drafting.path, result.draft.summary
        refused = self._find_fault(measured, budget, result)
        warnings = self._list_warnings(summary, refused)
        if refused and self._order.is_whole:
            # The item then holds the window as it is.
            result = await self._open(drafting.draft_free(_keep(measured)), path, measured)
        report = self._report(path, measured, result, refused=refused)
        report["repairs"] = summary.repairs if summary is not None else 0
        if refused and not self._order.is_whole:
            return RefusedPass(usage=self._find_usage(), report=report, warnings=warnings)
        return self._finish(path, result, report, warnings)

    def _finish(
        self, path: PathRows, result: _Result, report: dict[str, Any], warnings: list[tuple[str, str]]
    ) -> Pass:
        if not self._order.is_whole and self._plan.origin.node is None:
            self._note_window(
                self._name_reuse(),
                path.raw,
                result.draft.window,
                self._list_removals(result),
                report["summary"],
            )
        return Pass(
            item=self._seal(result.draft.window),
            rows=result.rows,
            items=result.items,
            segment=result.segment,
            sources=[node.id for node in result.draft.window.nodes],
            usage=self._find_usage(),
            report=report,
            warnings=warnings,
        )

    def _note_window(self, *left: Any) -> None:
        """Remember what a pass has left, unless something was deleted while it was made."""
        if self._services.windows.deletion_count == self._plan.since_deletion:
            self._services.passes.note(*left)

    async def _find_sources(self, path: PathRows) -> list[SealedNode]:
        """The stored nodes that the request's own items were read from, or are copies of, as they are now."""
        wanted = set(self._plan.referenced)
        for row in path.raw:
            derived = parse_derived_id(row.id) if not row.node else None
            if derived is not None:
                wanted.update(prefix + derived[0] for prefix in NODE_PREFIXES)
        wanted.discard(self._plan.node_id)
        if not wanted:
            return []
        rounds, tenant = self._services.rounds, self._plan.tenant
        left = sorted(wanted - await rounds.find_deleted(tenant, wanted))
        found: dict[str, SealedNode] = {}
        while left:
            node_id = left.pop()
            if node_id not in found:
                nodes = await rounds.load_path(tenant, node_id, skip_deleted=True)
                found.update((node.id, SealedNode(node.id, read_blanks(node))) for node in nodes or ())
        return [found[node_id] for node_id in sorted(wanted & found.keys())]

    def _list_removals(self, result: _Result) -> list[Removal]:
        """What is not in the window any more, with what an earlier pass had taken."""
        gone = {removal.id for removal in result.draft.removals}
        earlier = self._left.removals if self._left is not None else ()
        return [*(removal for removal in earlier if removal.id not in gone), *result.draft.removals]

    def _find_fault(self, measured: _Measured, budget: Budget, result: _Result) -> str:
        """Why a pass does not count; empty where it does."""
        if not result.draft.removals:
            return "There was nothing to remove."
        if result.tokens >= measured.prompt_tokens:
            return f"The window would not be shorter: {result.tokens} tokens after {measured.prompt_tokens} before."
        window = self._find_window()
        aim = budget.limit_tokens * (1 + TOLERANCE_SHARE)
        is_bound = self._reason in ("threshold", "policy") and result.tokens > aim
        # Where the prompt does not fit as it is, whatever fits is better.
        is_bound = is_bound and not (window is not None and measured.prompt_tokens > window)
        if is_bound or (window is not None and result.tokens > window):
            told = f"{result.tokens} tokens, where {budget.limit_tokens} are aimed at"
            return f"The window would still be too long: {told}."
        return ""

    def _list_warnings(self, summary: Summary | None, refused: str) -> list[tuple[str, str]]:
        warnings: list[tuple[str, str]] = []
        if summary is not None and summary.is_extract and self._order.method != "extract":
            why = (
                f" What went wrong: {'; '.join(dict.fromkeys(summary.problems))}." if summary.problems else ""
            )
            text = f"No model gave a usable summary, so it was put together by rule.{why}"
            warnings.append(("compaction_extract", text))
        if refused and not self._order.is_whole:
            text = f"The window was not compacted. {refused} The history is shown as it was."
            warnings.append(("compaction_refused", text))
        if self._writer is not None:
            warnings += self._writer.warnings
        return warnings

    def _report(
        self, path: PathRows, measured: _Measured, result: _Result, *, refused: str
    ) -> dict[str, Any]:
        """What the response says of the pass."""
        # Of a window that stays as it was, this is nothing but the images that its model cannot see.
        is_kept = not refused or self._order.is_whole
        removals = self._list_removals(result) if is_kept else []
        summary = result.draft.summary if is_kept else None
        rungs = {removal.rung for removal in result.draft.removals} if is_kept else set()
        told = self._left.summary if self._left is not None and is_kept else None
        if summary is not None:
            told = "extract" if summary.is_extract else "model"
        writer = self._writer
        report: dict[str, Any] = {
            "reason": self._reason,
            "rungs": [rung for rung in _RUNGS if rung in rungs],
            "tokens_before": self._plan.size.tokens
            if self._left is not None and self._plan.size is not None
            else measured.prompt_tokens,
            "tokens_after": result.tokens if is_kept and not refused else measured.prompt_tokens,
            "model_calls": writer.calls if writer is not None else 0,
            "repairs": 0,
            "summary": told,
        }
        if self._left is not None:
            report["reused"] = True
        if writer is not None and writer.usage is not None:
            report["usage"] = msgspec.to_builtins(writer.usage)
        report |= report_removals(removals)
        if summary is not None and summary.omitted_items:
            report["omitted"] = {"items": summary.omitted_items, "tokens": summary.omitted_tokens}
        nodes = {row.id: row.node for row in (*path.rows, *path.raw)}
        if any(not nodes.get(removal.id) for removal in removals):
            report["kept_by_client"] = True
        if refused:
            report["refused"] = refused
        return report

    def _find_usage(self) -> BackendUsage | None:
        if self._writer is None or not self._writer.calls:
            return BackendUsage(0, 0, 0, 0, 0)
        return self._writer.usage

    def _seal(self, window: SealedWindow) -> Item:
        try:
            return seal_window(window, self._plan.tenant, self._services.seal_keys)
        except SealError as error:
            raise CompactionFailedError(f"The compacted window cannot be sealed: {error.message}") from error


def _match_rows(rows: Sequence[Row], own: Sequence[Row]) -> list[Row]:
    """The rows of a window, those that are unchanged as the rows of a request that holds the same items."""
    waiting: dict[bytes, list[Row]] = {}
    for row in reversed(own):
        waiting.setdefault(hash_item(row.item), []).append(row)
    matched: list[Row] = []
    for row in rows:
        same = waiting.get(hash_item(row.item)) if row.replaced is None else None
        matched.append(same.pop() if same else row)
    return matched


def _keep(measured: _Measured) -> LadderPlan:
    """The plan that changes nothing."""
    return LadderPlan(
        rows=tuple(measured.rows), summarised=(), removals=(), tokens=measured.prompt_tokens, fits=True
    )


def _scale(measured: _Measured, factor: float) -> _Measured:
    """The rows as they turned out to be counted."""
    rows = [msgspec.structs.replace(row, tokens=round(row.tokens * factor)) for row in measured.rows]
    return msgspec.structs.replace(measured, rows=rows)
