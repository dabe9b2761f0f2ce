"""One pass of the ladder over a window: measured, planned, summarised if need be, and sealed as a compaction item.

The ladder itself is `context`'s; here are the counts, the model and the seal. Invariants: a pass that does not make the
window shorter changes nothing and says so; nothing that was removed is untold; and the window that a pass gives is read
from the sealed item by the same code that will read it later.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from antiphon.backends import Ask, BackendUsage, Segment
from antiphon.context.budget import Budget, make_budget
from antiphon.context.elision import drop_row_images
from antiphon.context.factsheet import extract_facts
from antiphon.context.item_texts import tell_item
from antiphon.context.ladder import LadderPlan, list_selectable, plan_free, plan_summary
from antiphon.context.left_out import LeftOut, list_left_out
from antiphon.context.rows import Mark, Removal, Row, add_tokens, report_removals
from antiphon.context.seal import SealError
from antiphon.context.sealed_window import (
    HASH_BYTES,
    SealedItem,
    SealedNode,
    SealedWindow,
    expand,
    hash_item,
    is_system,
    list_covered,
)
from antiphon.context.summary import SPARE_CALLS, Summary, SummaryJob, extract_summary, summarise
from antiphon.context.summary_texts import SummaryTexts, note_omission, split_omission
from antiphon.context.truncation import count_leading
from antiphon.engine.asking import join_system
from antiphon.engine.catalog import Target
from antiphon.engine.compaction_orders import Order, PassReason
from antiphon.engine.continuing import resolve_kept, transcribe_anew
from antiphon.engine.counting import (
    count_exactly,
    list_frame,
    list_prompt,
    make_target_key,
)
from antiphon.engine.fitting import transcribe_alone
from antiphon.engine.gather import Plan, load_plan_rows
from antiphon.engine.path_rows import PathRows
from antiphon.engine.paths import read_blanks
from antiphon.engine.sealed_windows import seal_window
from antiphon.engine.services import Services
from antiphon.engine.settings import decode_outcome
from antiphon.engine.summarising import Summariser
from antiphon.protocol.errors import (
    BackendError,
    CompactionFailedError,
    ContextOverflowError,
    RequestError,
)
from antiphon.protocol.item_forms import derive_item_id
from antiphon.protocol.items import Compaction as CompactionItem
from antiphon.protocol.items import Item, Message, encode_item, get_call_id, is_call, is_call_output

_log = logging.getLogger("antiphon.engine")

#: Less than this is not worth a model call: a summary has its own length.
SUMMARISED_MIN_TOKENS: Final = 256
#: A window that came out longer than it was planned is planned again, this often in all.
PLANS_PER_PASS: Final = 3
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


class _Draft(msgspec.Struct, kw_only=True):
    """A window that is laid out and not sealed yet."""

    window: SealedWindow
    removals: Sequence[Removal]
    summary: Summary | None = None


class _Result(msgspec.Struct, kw_only=True):
    draft: _Draft
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
        self._settings = services.compaction
        self._counter = services.counter.of_tenant(plan.tenant)
        self._key = make_target_key(plan.target.backend, plan.target.model)
        self._summariser: Summariser | None = None
        self._planned_tokens = 0
        #: What the summariser was asked, and the ids of what it was told.
        self._job: SummaryJob | None = None
        self._told: set[str] = set()
        self._prompt_tokens = 0
        #: The images that the model cannot see.
        self._blinded: list[Removal] = []

    async def run(self) -> Pass | RefusedPass:
        """Free rungs, then a summary; the first that is enough."""
        path = await load_plan_rows(self._plan, self._services)
        if not path.rows:
            raise RequestError("There is nothing to compact: the conversation is empty.", param="input")
        measured = self._blind(await self._measure(path))
        self._prompt_tokens = measured.prompt_tokens
        marks = await self._collect_marks(path)
        result: _Result | None = None
        told = measured
        for _ in range(PLANS_PER_PASS):
            budget = self._make_budget(told)
            draft = await self._lay_out(path, told, budget, marks, result.draft if result else None)
            result = await self._open(draft, path, measured)
            budget = self._make_budget(told)
            if result.tokens <= budget.limit_tokens or result.tokens <= self._planned_tokens:
                break
            # What is left may be of another kind than what went: other rates, another ratio.
            told = _scale(told, result.tokens / max(self._planned_tokens, 1))
        return await self._judge(path, measured, budget, result)

    # Numbers

    async def _measure(self, path: PathRows) -> _Measured:
        plan = self._plan
        pieces = [transcribe_alone(item, plan.target) for item in path.items]
        sizes = await self._counter.measure(self._key, pieces)
        frame = await self._counter.measure(self._key, list_frame(plan.ask))
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
        if size is not None and size.exact:
            return size.tokens
        return await count_exactly(self._plan.ask, self._plan.target.backend)

    @property
    def _window_tokens(self) -> int | None:
        """What the model takes, as far as it is known by now: the calls for a summary may have told it."""
        told = self._error.window_tokens if self._error is not None else None
        learned = self._summariser.learned_window if self._summariser is not None else None
        known = [each for each in (told, learned, self._plan.target.window_tokens) if each is not None]
        return min(known, default=None)

    def _make_budget(self, measured: _Measured) -> Budget:
        limits = self._settings.limits
        window = self._window_tokens
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
            threshold = min(known, default=int(measured.prompt_tokens * BLIND_SHARE))
        return make_budget(
            limits,
            window_tokens=window,
            threshold_tokens=threshold,
            prompt_tokens=measured.prompt_tokens,
            frame_tokens=measured.frame_tokens,
        )

    def _blind(self, measured: _Measured) -> _Measured:
        """A model that cannot see is left no image, whatever else there is room for."""
        if self._plan.target.profile.sees_images is not False:
            return measured
        rows = list(measured.rows)
        for at, row in enumerate(rows):
            dropped = drop_row_images(row)
            if dropped is not None:
                rows[at] = dropped
                freed = max(row.tokens - dropped.tokens, 0)
                self._blinded.append(Removal(row.id, row.item.type, "drop_images", "image", freed))
        return msgspec.structs.replace(measured, rows=rows)

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
        path: PathRows,
        measured: _Measured,
        budget: Budget,
        marks: Mapping[str, Mark],
        earlier: _Draft | None,
    ) -> _Draft:
        """The window after a pass, as the method allows; `earlier`: one that came out too long."""
        method = self._order.method
        free = plan_free(measured.rows, budget, marks)
        self._planned_tokens = free.tokens
        is_enough = free.tokens <= budget.target_tokens
        if method == "elide" or (method == "auto" and is_enough and earlier is None):
            return self._draft_free(path, free)
        own = measured.rows
        plan = plan_summary(own, budget, marks)
        gone = _list_summarised(plan)
        if not gone or (method == "auto" and add_tokens(gone) < SUMMARISED_MIN_TOKENS):
            # Nothing is worth a summary; but what alone is too long may have been cut.
            return self._draft_free(path, free if free.fits or plan.summarised else plan)
        summary = earlier.summary if earlier is not None else None
        if summary is None:
            summary = await self._summarise(path, measured, plan, budget, own)
            budget = self._make_budget(measured)
        plan = plan_summary(own, budget, marks, retain=frozenset(summary.retained))
        summary = await self._fold(summary, _list_summarised(plan), path, budget)
        self._planned_tokens = plan.tokens
        if not plan.fits:
            window = self._window_tokens
            if window is not None and min(plan.tokens, free.tokens) > window:
                raise CompactionFailedError
            if free.tokens <= plan.tokens:
                # It takes away what costs nothing, and is no worse.
                self._planned_tokens = free.tokens
                return self._draft_free(path, free)
        return self._draft_summary(path, plan, summary, budget)

    async def _fold(self, summary: Summary, gone: Sequence[Row], path: PathRows, budget: Budget) -> Summary:
        """Less stayed than was planned at first: what the summary was not told of is folded into it, or it says so."""
        unread = [row for row in gone if row.id not in self._told]
        job, summariser = self._job, self._summariser
        if not unread or job is None or summariser is None:
            return summary
        told = {row.id: item for row, item in zip(path.rows, path.items, strict=True)}
        if summary.is_extract:
            rows = [msgspec.structs.replace(row, item=told[row.id]) for row in gone]
            again = extract_summary(
                msgspec.structs.replace(job, rows=rows, summary_tokens=budget.summary_tokens)
            )
            self._told.update(row.id for row in rows)
            return msgspec.structs.replace(summary, text=again.text)
        window = self._window_tokens or job.window_tokens or self._prompt_tokens
        room = max(int(window * (1 - self._settings.limits.reserve_share)), 1)
        if summary.calls >= -(-self._prompt_tokens // room) + SPARE_CALLS:
            return _note_unread(summary, unread)
        more = await summarise(
            msgspec.structs.replace(
                job,
                rows=[msgspec.structs.replace(row, item=told[row.id]) for row in unread],
                previous=summary.text,
                selectable={},
                prompt_tokens=None,
                window_tokens=self._window_tokens if job.window_tokens is not None else None,
                summary_tokens=budget.summary_tokens,
            ),
            summariser.ask,
        )
        self._told.update(row.id for row in unread)
        return msgspec.structs.replace(
            more,
            retained=summary.retained,
            calls=summary.calls + more.calls,
            repairs=summary.repairs + more.repairs,
            omitted_items=summary.omitted_items + more.omitted_items,
            omitted_tokens=summary.omitted_tokens + more.omitted_tokens,
            problems=(*summary.problems, *more.problems),
        )

    def _draft_free(self, path: PathRows, plan: LadderPlan) -> _Draft:
        """A window without a new summary; those that there are already stay."""
        earlier = list(path.windows.values())
        items = [row for row in plan.rows if row.replaced != "summary"]
        places = [at for at, row in enumerate(plan.rows) if row.replaced == "summary"]
        window = self._make_window(
            path,
            items,
            summary_at=places[0] if places else 0,
            summary="\n\n".join(each.summary for each in earlier if each.summary),
            is_extract=any(each.is_extract for each in earlier),
            facts=_join_facts(earlier),
            left_out=tuple(entry for each in earlier for entry in each.left_out),
        )
        return _Draft(window=window, removals=self._list_removals(plan))

    def _draft_summary(self, path: PathRows, plan: LadderPlan, summary: Summary, budget: Budget) -> _Draft:
        gone = _list_summarised(plan)
        earlier = list(path.windows.values())
        told = {row.id: item for row, item in zip(path.rows, path.items, strict=True)}
        facts, _ = extract_facts(
            [tell_item(told[row.id]) for row in gone],
            earlier=[fact for each in earlier for fact in each.facts],
            budget_tokens=budget.facts_tokens,
        )
        left_out = list_left_out(
            [entry for each in earlier for entry in each.left_out], gone, budget.index_tokens
        )
        window = self._make_window(
            path,
            plan.rows,
            summary_at=count_leading([row.item for row in plan.rows]),
            summary=summary.text,
            is_extract=summary.is_extract,
            facts=facts,
            left_out=left_out,
        )
        return _Draft(window=window, removals=self._list_removals(plan), summary=summary)

    def _list_removals(self, plan: LadderPlan) -> list[Removal]:
        gone = {removal.id for removal in plan.removals if removal.rung in ("elide", "summary")}
        return [*(removal for removal in self._blinded if removal.id not in gone), *plan.removals]

    def _make_window(
        self,
        path: PathRows,
        rows: Sequence[Row],
        *,
        summary_at: int,
        summary: str,
        is_extract: bool,
        facts: tuple[str, ...],
        left_out: tuple[LeftOut, ...],
    ) -> SealedWindow:
        return SealedWindow(
            id=self._item_id,
            model=self._plan.request.model,
            summary=summary,
            is_extract=is_extract,
            facts=facts,
            left_out=left_out,
            items=tuple(SealedItem(row.id, row.node, row.item.raw, row.replaced) for row in rows),
            summary_at=summary_at,
            covers=_list_covers(path),
            nodes=self._list_nodes(path),
        )

    def _list_nodes(self, path: PathRows) -> tuple[SealedNode, ...]:
        """The stored nodes that the window was made from, with what was gone from them then."""
        nodes = {each.id: each for window in path.windows.values() for each in window.nodes}
        stored = {row.node for row in path.raw if row.node}
        own = self._plan.node_id
        nodes.update(
            (node.id, SealedNode(node.id, read_blanks(node))) for node in path.nodes if node.id in stored
        )
        if own in stored:
            nodes[own] = SealedNode(own)
        return tuple(nodes.values())

    # The summary

    async def _summarise(
        self, path: PathRows, measured: _Measured, plan: LadderPlan, budget: Budget, own: Sequence[Row]
    ) -> Summary:
        told = {row.id: item for row, item in zip(path.rows, path.items, strict=True)}
        tokens = {row.id: row.tokens for row in own}
        gone = self._told = {row.id for row in _list_summarised(plan)}
        rows = [
            msgspec.structs.replace(row, item=told[row.id])
            for row in own[: max(at for at, row in enumerate(own) if row.id in gone) + 1]
            if row.id in gone or _is_said_by_user(row)
        ]
        target, is_own = await self._find_summariser()
        profile = target.profile
        in_place = is_own and not self._blinded and not _list_open(path.items)
        self._summariser = Summariser(target, self._plan.ask if in_place else None, is_own=is_own)
        job = self._job = SummaryJob(
            rows=rows,
            stays=frozenset(row.id for row in rows if row.id not in gone),
            previous="\n\n".join(window.summary for window in path.windows.values() if window.summary),
            selectable={each: tokens[each] for each in list_selectable(own, budget) if each in gone},
            retained_tokens=budget.retained_tokens,
            window_tokens=self._find_limit(target, is_own=is_own),
            prompt_tokens=measured.prompt_tokens if in_place and self._error is None else None,
            summary_tokens=budget.summary_tokens,
            limits=self._settings.limits,
            sees_images=profile.sees_images is True,
            takes_schema=not in_place
            or not self._plan.ask.tools
            or (profile.tools == "native" and profile.takes_schema_with_tools),
            forces_tool=profile.forces_tool_cached and profile.tool_choice != "ignored",
            texts=self._make_texts(),
        )
        if self._order.method == "extract":
            return extract_summary(job)
        return await summarise(job, self._summariser.ask)

    def _find_limit(self, target: Target, *, is_own: bool) -> int | None:
        """What a request for a summary may have; where a longer one would be cut without a word, surely less."""
        window = self._window_tokens if is_own else target.window_tokens
        if window is None or not target.profile.truncates_silently:
            return window
        key = make_target_key(target.backend, target.model)
        return int(window / (1 + self._counter.get_error_share(key)))

    async def _find_summariser(self) -> tuple[Target, bool]:
        """The model that writes the summary, and whether it is the conversation's own."""
        name = self._settings.model
        if name is None or name == self._plan.request.model:
            return self._plan.target, True
        try:
            return await self._services.catalog.find(name), False
        except (RequestError, BackendError) as error:
            _log.warning(
                "the model for summaries cannot be had, so the conversation's own is asked: %s", error.message
            )
            return self._plan.target, True

    def _make_texts(self) -> SummaryTexts:
        texts = SummaryTexts()
        wishes = self._settings.prompt
        if not wishes:
            return texts
        return msgspec.structs.replace(texts, demands=f"{wishes}\n\n{texts.demands}")

    # The result

    async def _open(self, draft: _Draft, path: PathRows, measured: _Measured) -> _Result:
        """The window as later rounds will read it, with its size."""
        item = encode_item(CompactionItem(id=self._item_id, encrypted_content=""))
        raw = [*path.raw, Row(id=self._item_id, item=item, node=self._own_node(path))]
        expansion = expand(raw, {**path.windows, self._item_id: draft.window})
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
        self, path: PathRows, measured: _Measured, budget: Budget, result: _Result | None
    ) -> Pass | RefusedPass:
        """A pass counts when the window is short enough; a client that asked for an item gets one in any case."""
        summary = result.draft.summary if result is not None else None
        refused = self._find_fault(measured, budget, result)
        if refused and self._order.is_whole:
            # The item then holds the window as it is.
            result = await self._open(self._draft_free(path, _keep(measured)), path, measured)
        warnings = self._list_warnings(summary, refused)
        report = self._report(path, measured, result, summary, refused)
        usage = self._find_usage()
        if result is None or (refused and not self._order.is_whole):
            return RefusedPass(usage=usage, report=report, warnings=warnings)
        return Pass(
            item=self._seal(result.draft.window),
            rows=result.rows,
            items=result.items,
            segment=result.segment,
            usage=usage,
            report=report,
            warnings=warnings,
        )

    def _find_fault(self, measured: _Measured, budget: Budget, result: _Result | None) -> str:
        """Why a pass does not count; empty where it does."""
        if result is None or not result.draft.removals:
            return "There was nothing to remove."
        if result.tokens >= measured.prompt_tokens:
            return f"The window would not be shorter: {result.tokens} tokens after {measured.prompt_tokens} before."
        window = self._window_tokens
        is_bound = self._reason in ("threshold", "policy") and result.tokens > budget.limit_tokens
        if is_bound or (window is not None and result.tokens > window):
            aim = budget.limit_tokens
            return f"The window would still be too long: {result.tokens} tokens, where {aim} are aimed at."
        return ""

    def _list_warnings(self, summary: Summary | None, refused: str) -> list[tuple[str, str]]:
        warnings: list[tuple[str, str]] = []
        if summary is not None and summary.is_extract and self._order.method != "extract":
            why = f" {summary.problems[-1]}" if summary.problems else ""
            text = f"No model gave a usable summary, so it was put together by rule.{why}"
            warnings.append(("compaction_extract", text))
        if refused and not self._order.is_whole:
            text = f"The window was not compacted. {refused} The history is shown as it was."
            warnings.append(("compaction_refused", text))
        if self._summariser is not None:
            warnings += self._summariser.warnings
        return warnings

    def _report(
        self,
        path: PathRows,
        measured: _Measured,
        result: _Result | None,
        summary: Summary | None,
        refused: str,
    ) -> dict[str, Any]:
        removals = result.draft.removals if result is not None else ()
        rungs = {removal.rung for removal in removals}
        report: dict[str, Any] = {
            "reason": self._reason,
            "rungs": [rung for rung in _RUNGS if rung in rungs],
            "tokens_before": measured.prompt_tokens,
            "tokens_after": measured.prompt_tokens if refused or result is None else result.tokens,
            "model_calls": self._summariser.calls if self._summariser is not None else 0,
            "repairs": summary.repairs if summary is not None else 0,
            "summary": None if summary is None or refused else "extract" if summary.is_extract else "model",
        }
        usage = self._summariser.usage if self._summariser is not None else None
        if usage is not None:
            report["usage"] = msgspec.to_builtins(usage)
        report |= report_removals(() if refused else removals)
        if summary is not None and summary.omitted_items:
            report["omitted"] = {"items": summary.omitted_items, "tokens": summary.omitted_tokens}
        nodes = {row.id: row.node for row in path.rows}
        if not refused and any(not nodes.get(removal.id) for removal in removals):
            report["kept_by_client"] = True
        if refused:
            report["refused"] = refused
        return report

    def _find_usage(self) -> BackendUsage | None:
        if self._summariser is None or not self._summariser.calls:
            return BackendUsage(0, 0, 0, 0, 0)
        return self._summariser.usage

    def _seal(self, window: SealedWindow) -> Item:
        try:
            return seal_window(window, self._plan.tenant, self._services.seal_keys)
        except SealError as error:
            raise CompactionFailedError(f"The compacted window cannot be sealed: {error.message}") from error


def _list_summarised(plan: LadderPlan) -> list[Row]:
    """What only the summary will tell, but for an earlier summary, which is told of apart."""
    return [row for row in plan.summarised if row.replaced != "summary"]


def _is_said_by_user(row: Row) -> bool:
    """Whether a row is a user's message: without it nobody would understand what was done, though it stays."""
    value = row.item.value
    return isinstance(value, Message) and value.role == "user" and row.replaced != "summary"


def _note_unread(summary: Summary, unread: Sequence[Row]) -> Summary:
    """A summary that says what it was not told, though it stands for it."""
    text, items, tokens = split_omission(summary.text)
    items, tokens = items + len(unread), tokens + add_tokens(unread)
    return msgspec.structs.replace(
        summary,
        text=f"{note_omission(items, tokens)}\n\n{text}",
        omitted_items=summary.omitted_items + len(unread),
        omitted_tokens=summary.omitted_tokens + add_tokens(unread),
    )


def _join_facts(windows: Sequence[SealedWindow]) -> tuple[str, ...]:
    """The facts of one window as they are, of several as one sheet."""
    if len(windows) == 1:
        return windows[0].facts
    told = [fact for window in windows for fact in window.facts]
    return extract_facts((), earlier=told, budget_tokens=sum(len(fact.encode()) for fact in told))[0]


def _keep(measured: _Measured) -> LadderPlan:
    """The plan that changes nothing."""
    return LadderPlan(
        rows=tuple(measured.rows), summarised=(), removals=(), tokens=measured.prompt_tokens, fits=True
    )


def _scale(measured: _Measured, factor: float) -> _Measured:
    """The rows as they turned out to be counted."""
    rows = [msgspec.structs.replace(row, tokens=round(row.tokens * factor)) for row in measured.rows]
    return msgspec.structs.replace(measured, rows=rows)


def _list_covers(path: PathRows) -> bytes:
    """The hashes of all that the window stands for: what is on the path, and what its earlier windows stood for."""
    covers = Counter(hash_item(row.item) for row in path.raw if not is_system(row.item))
    for window in path.windows.values():
        covers |= list_covered(window)
    return b"".join(digest for digest in covers.elements() if len(digest) == HASH_BYTES)


def _list_open(items: Sequence[Item]) -> set[str]:
    """The calls without an output: behind them no message can stand."""
    answered = {get_call_id(item) for item in items if is_call_output(item)}
    return {
        call_id
        for item in items
        if is_call(item) and (call_id := get_call_id(item)) and call_id not in answered
    }
