"""Building the window report: the stored path, seen the way in which it was sent.

The prompt itself is rendered by the code that renders prompts, and given here. It writes nothing. Invariant: the tokens
of parts and items add up to one count of the whole prompt.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from antiphon.backends import Ask
from antiphon.context.counts import CONSTANT_LIMIT_TOKENS, RATIO_LIMITS, apportion
from antiphon.context.rows import Row, Rung
from antiphon.context.truncation import DroppedItem
from antiphon.context.window_report import (
    CountedBy,
    PartKind,
    Reason,
    WindowPart,
    WindowReport,
    WindowTokens,
    WindowWarning,
)
from antiphon.engine.catalog import Target
from antiphon.engine.counting import (
    Count,
    TokenCounter,
    count_exactly,
    count_input,
    encode_system,
    encode_tools,
    make_target_key,
)
from antiphon.engine.fitting import transcribe_alone
from antiphon.engine.paths import has_gaps
from antiphon.engine.settings import StoredOutcome, decode_outcome, decode_settings
from antiphon.engine.window_items import ITEMS_AT_ONCE, PathLister, RemovedItem, Resolve, ShownItem
from antiphon.protocol.items import Item
from antiphon.sessions import Node
from antiphon.store import Record

#: Up to this many items, and bytes of a prompt, the backend is asked for the count of each; beyond, we estimate.
ITEMS_COUNTED: Final = 64
PROMPT_COUNTED_BYTES: Final = 256 << 10
#: All those counts together are waited for this long.
ITEM_COUNTS_TIMEOUT_S: Final = 15.0
_PATH_CHANGED: Final = (
    "Items of this path were deleted. What was deleted after this response was made is missing in this report, so "
    "that `counted` is of another prompt than `reported`."
)
_NO_REASONS: Final[Mapping[str, Reason]] = {}
_NO_RUNGS: Final[Mapping[str, Rung]] = {}


async def build_window_report(
    record: Record,
    path: Sequence[Node],
    *,
    ask: Ask,
    target: Target,
    counter: TokenCounter,
    make_system: Callable[[str], str],
    resolve: Resolve | None = None,
    reasons: Mapping[str, Reason] = _NO_REASONS,
    superseded: Mapping[str, Rung] = _NO_RUNGS,
    replaced: Mapping[str, Rung] = _NO_RUNGS,
    prompt: Sequence[Row] | None = None,
) -> WindowReport:
    """What the model saw when it made the response `record`, the last node of `path`.

    `ask`: the prompt as it was sent, rendered anew. `make_system`: the whole system text from the leading system and
    developer text. `resolve`: items with their content as it is sent. `reasons`: why items, by id, are not shown where
    that cannot be seen from the items. `superseded`: the items that a compaction stands for, by id, with the rung that
    removed them; `replaced`: those that are shown shortened. `prompt`: the rows behind `ask`, in its order, with their
    items as they are sent; where a compaction was opened they are not those of the path.
    """
    outcome = decode_outcome(record.outcome)
    lister = PathLister(
        path,
        target,
        dropped=frozenset(item_id for item_id, _, _ in outcome.dropped),
        reasons=reasons,
        superseded=superseded,
        replaced=replaced,
        prompt=prompt,
    )
    listed = await lister.run(resolve)
    told = {item_id: tokens for item_id, _, tokens in outcome.dropped}
    for row in listed.rows:
        row.tokens = told.get(row.id, 0)
    count = await count_input(ask, target.backend, counter, make_target_key(target.backend, target.model))
    parts = _list_parts(record, target, ask)
    counting = _Counting(target, counter, make_system, record, outcome, count)
    counted_by = await _fill_tokens(listed.shown, parts, ask, counting)
    await _note_removed(listed.removed, counting)
    reported = _get_reported(outcome)
    warnings = [*outcome.warnings]
    if not (count.exact and reported == count.tokens) and has_gaps(path):
        warnings.append(("path_changed", _PATH_CHANGED))
    return WindowReport(
        response_id=record.id,
        model=decode_settings(record.settings).model,
        window_tokens=target.profile.window_tokens,
        input_tokens=WindowTokens(reported=reported, counted=count.tokens, exact=count.exact),
        counted_by=counted_by,
        parts=parts,
        items=listed.rows,
        dropped=[DroppedItem(*each) for each in outcome.dropped],
        warnings=[WindowWarning(code, message) for code, message in warnings],
        system=ask.system,
        messages=msgspec.Raw(b"[" + b",".join(piece for piece in ask.transcript if piece) + b"]"),
    )


class _Counting(msgspec.Struct, frozen=True):
    """What the tokens of a report are counted with."""

    target: Target
    counter: TokenCounter
    make_system: Callable[[str], str]
    record: Record
    outcome: StoredOutcome
    count: Count

    @property
    def instructions(self) -> str:
        """The request's own instructions."""
        return self.record.instructions.decode() if self.record.instructions is not None else ""

    @property
    def total(self) -> int:
        """What the tokens must add up to: the backend's word, as far as it can be of this prompt."""
        reported = _get_reported(self.outcome)
        counted = self.count.tokens
        if self.count.exact or reported is None:
            return counted
        lowest, highest = RATIO_LIMITS
        # A number that no tokenizer explains is of more, or less, than this prompt.
        believed = counted * lowest <= reported <= counted * highest + CONSTANT_LIMIT_TOKENS
        return reported if believed else counted


def _get_reported(outcome: StoredOutcome) -> int | None:
    """Of the prompt of the request: what tools that run here gave came later, and is no part of the report."""
    return outcome.first_prompt_tokens


async def _note_removed(removed: Sequence[RemovedItem], counting: _Counting) -> None:
    """Tell of each item that a compaction touched what that freed, by estimate."""
    target = counting.target
    if not removed:
        return
    pieces: list[bytes] = []
    for position, each in enumerate(removed):
        if position % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
            await asyncio.sleep(0)
        pieces.append(transcribe_alone(each.whole, target))
        pieces.append(transcribe_alone(each.shown, target) if each.shown is not None else b"")
    key = make_target_key(target.backend, target.model)
    tokens = await counting.counter.estimate_many(key, pieces)
    for each, whole, left in zip(removed, tokens[::2], tokens[1::2], strict=True):
        each.row.removed_tokens = max(whole - left, 0)


def _list_parts(record: Record, target: Target, ask: Ask) -> list[WindowPart]:
    there: dict[PartKind, bool] = {
        "tools": bool(encode_tools(ask)),
        "server_prompt": bool(target.system_prompt),
        "instructions": bool(record.instructions),
    }
    return [WindowPart(kind=kind) for kind, is_there in there.items() if is_there]


async def _fill_tokens(
    told: Sequence[ShownItem], parts: list[WindowPart], ask: Ask, counting: _Counting
) -> CountedBy:
    shown = [each.item for each in told]
    weights = await _weigh_by_backend(shown, parts, ask, counting)
    counted_by: CountedBy = "backend" if weights is not None else "estimate"
    if weights is None:
        weights = await _weigh_by_estimate(shown, parts, ask, counting)
    tokens = apportion(weights, counting.total)
    for part, number in zip(parts, tokens, strict=False):
        part.tokens = number
    for each, number in zip(told, tokens[len(parts) :], strict=True):
        each.row.tokens = number
    return counted_by


async def _weigh_by_estimate(
    shown: list[Item], parts: list[WindowPart], ask: Ask, counting: _Counting
) -> list[int]:
    """Parts, then items, each by its estimate."""
    texts: dict[PartKind, bytes] = {
        "tools": encode_tools(ask),
        "server_prompt": encode_system(counting.target.system_prompt),
        "instructions": encode_system(counting.instructions),
    }
    pieces = [texts[part.kind] for part in parts]
    pieces += [transcribe_alone(item, counting.target) for item in shown]
    key = make_target_key(counting.target.backend, counting.target.model)
    return await counting.counter.estimate_many(key, pieces)


async def _weigh_by_backend(
    shown: list[Item], parts: list[WindowPart], ask: Ask, counting: _Counting
) -> list[int] | None:
    """Parts, then items, each by what the prompt's count grows with it; None where the backend cannot tell."""
    if not counting.count.exact or len(shown) > ITEMS_COUNTED:
        return None
    if sum(map(len, ask.transcript)) > PROMPT_COUNTED_BYTES:
        return None
    try:
        async with asyncio.timeout(ITEM_COUNTS_TIMEOUT_S):
            return await _count_growth(shown, parts, ask, counting)
    except TimeoutError:
        return None


async def _count_growth(
    shown: list[Item], parts: list[WindowPart], ask: Ask, counting: _Counting
) -> list[int] | None:
    backend = counting.target.backend
    weights: list[int] = []
    for part in parts:
        without = await count_exactly(_leave_out(part.kind, ask, counting), backend)
        if without is None:
            return None
        weights.append(max(counting.count.tokens - without, 0))
    # Not every server counts a prompt without messages; then what stands around the items is what the parts weigh.
    bare = msgspec.structs.replace(ask, system=counting.make_system(""), transcript=())
    before = await count_exactly(bare, backend)
    if before is None:
        before = sum(weights)
    for length in range(1, len(shown) + 1):
        segment = backend.transcribe(shown[:length], counting.target.profile, at_start=True)
        prefix = msgspec.structs.replace(
            ask,
            system=counting.make_system(segment.lead),
            transcript=[segment.body] if segment.body else (),
        )
        count = await count_exactly(prefix, backend)
        if count is None:
            return None
        weights.append(max(count - before, 0))
        before = count
    return weights


def _leave_out(kind: PartKind, ask: Ask, counting: _Counting) -> Ask:
    if kind == "tools":
        return msgspec.structs.replace(ask, tools=(), tool_choice="none", forced_tool=None)
    text = counting.target.system_prompt if kind == "server_prompt" else counting.instructions
    return msgspec.structs.replace(ask, system=ask.system.replace(text, "", 1).strip("\n"))
