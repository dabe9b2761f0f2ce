"""Making a prompt fit its window: refused with numbers, or, with `truncation: auto`, without its oldest history.

It counts as little as it can: first by bytes, then by estimate, and it asks the backend only where the estimate is
close. It knows no stores. Invariant: what is left out is listed, and nothing is left out of a prompt that fits.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from antiphon.backends import Ask
from antiphon.context.counts import Calibration, Size, add_sizes
from antiphon.context.truncation import (
    STEP_SHARE,
    DroppedItem,
    Entry,
    TruncationPlan,
    count_leading,
    find_newest,
    make_entries,
    plan_truncation,
    reserve_tokens,
)
from antiphon.engine.catalog import Target
from antiphon.engine.counting import (
    Count,
    TokenCounter,
    count_exactly,
    list_frame,
    list_prompt,
    make_target_key,
)
from antiphon.protocol.errors import ContextOverflowError
from antiphon.protocol.items import (
    Compaction,
    CompactionSummary,
    Item,
    Message,
    get_call_id,
    make_user_message,
)

#: An estimate under this share of the room, or over the other, settles it; between them the backend is asked.
CLEARLY_UNDER: Final = 0.7
CLEARLY_OVER: Final = 1.5
#: A plan is checked against the backend's count, and made anew with it, this often.
PLANS_PER_ROUND: Final = 3
#: A plan that is still too long takes one line more, this often.
STEPS_PER_PLAN: Final = 16
#: How often a prompt is sent that may be shortened, the first time included; the last time nothing that can go is left.
OVERFLOW_ATTEMPTS: Final = 7
#: Each time that a shorter prompt was refused too, the next step is larger by this factor.
STEP_GROWTH: Final = 1.5
#: Items are transcribed in portions of this many, so that other clients need not wait for all of them.
ITEMS_AT_ONCE: Final = 128
#: A prompt is a few tokens more than its bytes at most: templates mark each message.
MARK_TOKENS: Final = 16
#: Stands where history was left out before something that is no user message; many templates begin with one.
LEFT_OUT_TEXT: Final = "[Earlier messages were left out, since they do not fit into the context window.]"
#: The code of the warning that history was left out.
HISTORY_TRUNCATED: Final = "history_truncated"


@dataclass(slots=True, kw_only=True)
class History:
    """What a prompt is made of: the items of the path and of the request, each with its id, as they are transcribed.

    `make_system`: the whole system text from the leading system and developer text of the path.
    """

    items: Sequence[tuple[str, Item]]
    new_items: Sequence[tuple[str, Item]]
    make_system: Callable[[str], str]
    #: The path's items, then the request's; and, worked out once, how large each of them is.
    everything: list[tuple[str, Item]] = field(init=False)
    sizes: list[Size] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.everything = [*self.items, *self.new_items]

    @property
    def newest(self) -> int:
        """Where what is asked now begins: never inside the path."""
        return len(self.items) + find_newest([item for _, item in self.new_items])


class Fitted(msgspec.Struct, kw_only=True):
    """A prompt that fits, as far as it can be made to; `dropped` is empty where nothing had to go."""

    ask: Ask
    dropped: tuple[DroppedItem, ...] = ()
    #: About how long the prompt was that was refused before this one.
    refused_tokens: int = 0
    #: What the transcription of the shorter history warns of.
    notes: tuple[str, ...] = ()

    @property
    def warning(self) -> tuple[str, str] | None:
        """The warning of the response; None where nothing was left out."""
        if not self.dropped:
            return None
        tokens = sum(item.tokens for item in self.dropped)
        were = "1 item was" if len(self.dropped) == 1 else f"{len(self.dropped)} items were"
        text = (
            "The history does not fit into the model's window: its oldest "
            f"{were} not shown to the model (about {tokens} tokens). All of it is kept and can be read."
        )
        warnings = [("history_truncated", text)]
        return warnings[0]


# Whether it fits


def fits_surely(ask: Ask, room_tokens: int) -> bool:
    """Whether the prompt's bytes alone say that it fits: no token is less than a byte. Cheap, and never wrong.

    A prompt with an image may be more tokens than bytes, so it is never sure.
    """
    pieces = list_frame(ask)
    size = sum(map(len, pieces)) + sum(map(len, ask.transcript))
    if size + MARK_TOKENS * (len(pieces) + len(ask.transcript) + 1) > room_tokens:
        return False
    return not any(b'"image_url"' in piece or b'"input_image"' in piece for piece in ask.transcript)


async def find_size(ask: Ask, *, target: Target, counter: TokenCounter, room_tokens: int) -> Count | None:
    """The tokens of a prompt; None where it surely fits. Exact where that matters and the backend can tell."""
    if fits_surely(ask, room_tokens):
        return None
    key = make_target_key(target.backend, target.model)
    estimate = await counter.estimate(key, list_prompt(ask))
    if CLEARLY_UNDER * room_tokens < estimate < CLEARLY_OVER * room_tokens:
        exact = await count_exactly(ask, target.backend)
        if exact is not None:
            return Count(exact, exact=True)
    return Count(estimate, exact=False)


async def find_overflow(ask: Ask, *, target: Target, counter: TokenCounter) -> Count | None:
    """The size of a prompt that leaves too little room for an answer, for `fit`; None where it fits. Mostly cheap."""
    window = target.window_tokens
    if window is None:
        return None
    room = _find_room(ask, window, exact=False)
    count = await find_size(ask, target=target, counter=counter, room_tokens=room)
    return count if count is not None and count.tokens > _find_room(ask, window, exact=count.exact) else None


async def refuse_overflow(ask: Ask, *, target: Target, counter: TokenCounter) -> None:
    """For a server that would cut the prompt without a word: raise `ContextOverflowError` where it does not fit.

    An estimate must be over by its own error; where the window is not known, nothing can be said.
    """
    window = target.profile.window_tokens
    if window is None:
        return
    count = await find_size(ask, target=target, counter=counter, room_tokens=window)
    if count is None:
        return
    if count.exact and count.tokens > window:
        raise ContextOverflowError(prompt_tokens=count.tokens, window_tokens=window)
    error_share = counter.get_error_share(make_target_key(target.backend, target.model))
    if not count.exact and count.tokens > window * (1 + error_share):
        told = (ContextOverflowError.__doc__ or "").strip()
        error = ContextOverflowError(
            f"{told} (the prompt has about {count.tokens} tokens, by estimate, the window holds {window})"
        )
        error.prompt_tokens = count.tokens
        error.window_tokens = window
        raise error


def _find_room(ask: Ask, window_tokens: int, *, exact: bool) -> int:
    reserve = reserve_tokens(
        window_tokens,
        ask.max_output_tokens,
        exact=exact,
        holds_output=ask.profile.refuses_large_limits,
    )
    return max(window_tokens - reserve, 0)


# Making it fit


async def fit(
    ask: Ask, history: History, *, target: Target, counter: TokenCounter, size: Count | None = None
) -> Fitted:
    """The ask without the oldest history that there is no room for; as it was where it fits or nothing can go.

    `size`: what `find_overflow` said, where it was asked already.
    """
    size = size or await find_overflow(ask, target=target, counter=counter)
    window = target.window_tokens
    if size is None or window is None:
        return Fitted(ask=ask)
    cut = await _start_cut(ask, history, target, counter)
    if size.exact:
        cut.learn(range(len(cut.entries)), size.tokens)
    return await _cut_until_it_fits(cut, _find_room(ask, window, exact=size.exact), int(window * STEP_SHARE))


async def after_overflow(
    error: ContextOverflowError,
    fitted: Fitted,
    history: History,
    *,
    target: Target,
    counter: TokenCounter,
    attempt: int = 0,
) -> Fitted | None:
    """What to try after the backend said that `fitted` does not fit; None when nothing more can go.

    The numbers of the error are believed; where it has none, or they did not do, ever larger steps are dropped, and in
    the end whatever can go. `attempt`: how often something was tried after such an error before.
    """
    cut = await _start_cut(fitted.ask, history, target, counter)
    dropped = {item.id for item in fitted.dropped}
    kept = [at for at, (item_id, _) in enumerate(history.everything) if item_id not in dropped]
    told = None if error.at_least else error.prompt_tokens
    if told is not None:
        cut.learn(kept, told)
        counter.note(make_target_key(target.backend, target.model), list_prompt(fitted.ask), told)
    sent = cut.count(kept)
    window = error.window_tokens or target.window_tokens
    step = max(int((window or sent) * STEP_SHARE), 1)
    less = sent - int(step * STEP_GROWTH**attempt)
    room = less if window is None else _find_room(fitted.ask, window, exact=True)
    if told is None or attempt:
        room = min(room, less)
    if attempt >= OVERFLOW_ATTEMPTS - 2:
        room = 0
    # Where that leaves the plan as it was, the next step goes, or all that can.
    for each in (min(room, sent - 1), sent - step, 0):
        shorter = await _cut_until_it_fits(cut, max(each, 0), step)
        if len(shorter.dropped) > len(fitted.dropped):
            return msgspec.structs.replace(shorter, refused_tokens=sent)
    return None


@dataclass(slots=True, kw_only=True)
class _Cut:
    """One prompt that is being shortened: the sizes of its parts, and what the model makes of them."""

    ask: Ask
    history: History
    target: Target
    entries: list[Entry]
    frame: Size
    calibration: Calibration
    #: The model's own count of such a prompt, by our estimate of it.
    factor: float = 1.0

    def count(self, kept: Sequence[int]) -> int:
        """The prompt that shows these positions, as the model counts it, about."""
        return round(self._estimate(kept) * self.factor)

    def learn(self, kept: Sequence[int], tokens: int) -> None:
        """The model's count of the prompt that shows these positions."""
        self.factor = max(tokens, 1) / max(self._estimate(kept), 1)

    def _estimate(self, kept: Sequence[int]) -> int:
        return self.calibration.apply(add_sizes([self.frame, *(self.history.sizes[at] for at in kept)]))

    def plan(self, room_tokens: int, step_tokens: int) -> TruncationPlan:
        """In our own tokens all through: they never change, so neither do the lines at which history is cut."""
        room = 0
        kept: Sequence[int] = range(len(self.entries))
        for _ in range(2):
            # What is left may be of another kind than what goes: other rates, another ratio.
            own = self.frame.own_tokens + sum(self.entries[at].tokens for at in kept)
            room = int(room_tokens * own / max(self.count(kept), 1)) - self.frame.own_tokens
            plan = plan_truncation(self.entries, room, step_tokens)
            kept = plan.kept
        for _ in range(STEPS_PER_PLAN):
            further = plan_truncation(self.entries, min(room, plan.tokens - 1), step_tokens)
            if self.count(plan.kept) <= room_tokens or further.dropped == plan.dropped:
                break
            plan = further
        return plan

    def build(self, plan: TruncationPlan) -> Fitted:
        """The ask that shows what the plan keeps."""
        ask, notes = _render(self.ask, self.history, plan.kept, self.target)
        return Fitted(ask=ask, dropped=tuple(self._tell(at) for at in plan.dropped), notes=notes)

    def _tell(self, position: int) -> DroppedItem:
        item_id, item = self.history.everything[position]
        tokens = round(self.calibration.scale(self.history.sizes[position]) * self.factor)
        return DroppedItem(item_id, item.type, tokens)


def leave_out(ask: Ask, history: History, dropped: Collection[str], *, target: Target) -> Ask:
    """The ask of a history without some of its items, by id: the bytes that `fit` made when it dropped them."""
    kept = [at for at, (item_id, _) in enumerate(history.everything) if item_id not in dropped]
    return _render(ask, history, kept, target)[0]


def _render(ask: Ask, history: History, kept: Sequence[int], target: Target) -> tuple[Ask, tuple[str, ...]]:
    """The ask that shows what is kept of a history, and what its transcription warns of."""
    everything = history.everything
    items = [everything[at][1] for at in kept]
    if len(kept) < len(everything) and not target.backend.speaks_responses:
        items = _mark_gap(items, count_leading([item for _, item in everything]))
    # The late output of a call that is left out has no call to stand behind.
    late = {
        call_id
        for _, item in everything
        if getattr(item.value, "is_async", None) and (call_id := get_call_id(item))
    }
    segment = target.backend.transcribe(items, target.profile, at_start=True, async_calls=late)
    shown = msgspec.structs.replace(
        ask,
        system=history.make_system(segment.lead),
        transcript=[segment.body] if segment.body else [],
    )
    return shown, segment.warnings


def _mark_gap(kept: list[Item], leading: int) -> list[Item]:
    """What is left of a path begins with a user message, behind the system text that the path begins with.

    So no template meets an answer first, and no later developer message is taken for a leading one.
    """
    first = kept[leading].value if leading < len(kept) else None
    if isinstance(first, Compaction | CompactionSummary) or (
        isinstance(first, Message) and first.role == "user"
    ):
        return kept
    return [*kept[:leading], make_user_message(LEFT_OUT_TEXT), *kept[leading:]]


async def _start_cut(ask: Ask, history: History, target: Target, counter: TokenCounter) -> _Cut:
    """Measure each item in the form in which it is sent."""
    key = make_target_key(target.backend, target.model)
    items = [item for _, item in history.everything]
    if not history.sizes:
        pieces: list[bytes] = []
        for position, item in enumerate(items):
            if position % ITEMS_AT_ONCE == ITEMS_AT_ONCE - 1:
                await asyncio.sleep(0)
            pieces.append(transcribe_alone(item, target))
        history.sizes = (await counter.measure(key, pieces)).sizes
    frame = await counter.measure(key, list_frame(ask))
    return _Cut(
        ask=ask,
        history=history,
        target=target,
        entries=make_entries(items, [size.own_tokens for size in history.sizes], newest=history.newest),
        frame=add_sizes(frame.sizes),
        calibration=frame.calibration,
    )


def transcribe_alone(item: Item, target: Target) -> bytes:
    """One item in the backend's own form; empty for what the model is not shown."""
    return target.backend.transcribe([item], target.profile, at_start=False).body


async def _cut_until_it_fits(cut: _Cut, room_tokens: int, step_tokens: int) -> Fitted:
    """Plan, and where the backend counts, plan again with its count of what was planned."""
    plan = cut.plan(room_tokens, step_tokens)
    for _ in range(PLANS_PER_ROUND - 1):
        if not plan.dropped:
            break
        count = await count_exactly(cut.build(plan).ask, cut.target.backend)
        if count is None:
            break
        cut.learn(plan.kept, count)
        better = cut.plan(room_tokens, step_tokens)
        if better.dropped == plan.dropped:
            break
        plan = better
    return cut.build(plan) if plan.dropped else Fitted(ask=cut.ask)
