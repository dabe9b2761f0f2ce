"""The events of a response whose window may be compacted: before the model is asked, or when it was asked too much.

It runs passes and puts their windows into the plan; what the model answers comes from a source that it is given. It
knows no transport. Invariants: a compaction item comes before anything that the model says; a prompt that was refused
for its length is asked once more at most; and a pass that fails leaves plan and history as they were.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

import msgspec

from antiphon.backends import BackendEvent, Failed, Opened
from antiphon.engine.asking import join_system
from antiphon.engine.assembler import Assembler
from antiphon.engine.compacting import Pass, RefusedPass, run_pass
from antiphon.engine.compaction_orders import Order, PassReason
from antiphon.engine.fitting import History
from antiphon.engine.gather import Plan, add_recall, fit_plan
from antiphon.engine.services import Services
from antiphon.engine.windows import restart
from antiphon.protocol.errors import AntiphonError, CompactionFailedError, ContextOverflowError
from antiphon.protocol.items import Compaction, Item, encode_item, get_item_id
from antiphon.protocol.requests import MIN_OUTPUT_TOKENS

_log = logging.getLogger("antiphon.engine")

Batches: TypeAlias = AsyncGenerator[list[BackendEvent], None]

_FAILED_OFTEN: Final = (
    "The window is due to be compacted, but the last three attempts in this conversation came to nothing, so none was "
    "made. A compaction that is asked for is made all the same."
)


def stream_compacting(
    plan: Plan, services: Services, assembler: Assembler, answer: Callable[[], Batches]
) -> Batches:
    """The events of the whole response; `answer` asks the model what the plan says by then."""
    assert plan.order is not None
    return _Compacting(plan, plan.order, services, assembler, answer).run()


class _Compacting:
    """One response."""

    def __init__(
        self,
        plan: Plan,
        order: Order,
        services: Services,
        assembler: Assembler,
        answer: Callable[[], Batches],
    ) -> None:
        self._plan = plan
        self._order = order
        self._services = services
        self._assembler = assembler
        self._answer = answer
        self._was_compacted = False

    async def run(self) -> Batches:
        """A pass where one is due, then the answer; a pass and one more try where that is refused for its length."""
        if self._plan.is_due and not self._order.is_whole and self._has_failed_often():
            self._plan.warnings.append(("compaction_refused", _FAILED_OFTEN))
            await fit_plan(self._plan, self._services)
        elif self._plan.is_due:
            yield [Opened()]
            await self._compact(self._order.reason)
            yield []
            if self._assembler.outcome is not None:
                return
            if not self._was_compacted:
                # Then it is as if nothing had been asked for.
                await fit_plan(self._plan, self._services)
        overflow: ContextOverflowError | None = None
        shown = False
        try:
            async with aclosing(self._answer()) as batches:
                async for batch in batches:
                    if not shown:
                        raise_overflow(batch)
                    shown = shown or any(type(event) is not Opened for event in batch)
                    yield batch
            return
        except ContextOverflowError as error:
            if not shown and self._was_compacted:
                self._learn(error, int(self._plan.passes[-1]["tokens_after"]))
            if shown or self._was_compacted:
                raise
            overflow = error
        yield [Opened()]
        await self._recover(overflow)
        yield []
        async with aclosing(self._answer()) as batches:
            async for batch in batches:
                self._look(batch)
                yield batch

    def _look(self, batch: list[BackendEvent]) -> None:
        """A prompt that is refused once more says how much is too much, for the next response."""
        try:
            raise_overflow(batch)
        except ContextOverflowError as error:
            self._learn(error, int(self._plan.passes[-1]["tokens_after"]))

    def _learn(self, error: ContextOverflowError, refused_tokens: int) -> None:
        catalog, target = self._services.catalog, self._plan.target
        if error.window_tokens is not None:
            catalog.learn_window(target, error.window_tokens)
        else:
            # What was refused may have been the output that was allowed with it.
            catalog.learn_limit(target, refused_tokens + (self._plan.ask.max_output_tokens or 0))

    def _has_failed_often(self) -> bool:
        return self._services.breaker.is_open(self._plan.conversation_name, self._prompt_tokens)

    @property
    def _prompt_tokens(self) -> int:
        return self._plan.size.tokens if self._plan.size is not None else 0

    async def _compact(self, reason: PassReason) -> None:
        """A pass before the model is asked; where it is the whole answer, a failure is the response's."""
        try:
            done = await self._run(reason)
        except (CompactionFailedError, ContextOverflowError) as error:
            if self._order.is_whole:
                raise
            self._plan.warnings.append(("compaction_failed", error.message))
            return
        if isinstance(done, Pass):
            await self._take(done)

    async def _recover(self, overflow: ContextOverflowError) -> None:
        """A pass after a refusal; where it does not help, the refusal stands."""
        try:
            done = await self._run("overflow", overflow)
        except CompactionFailedError as error:
            _log.info("a window that was refused for its length could not be compacted: %s", error.message)
            raise _tell_tried(overflow, error.message) from error
        self._learn(overflow, int(done.report["tokens_before"]))
        if not isinstance(done, Pass):
            raise _tell_tried(overflow, str(done.report.get("refused", "")))
        await self._take(done)

    async def _run(
        self, reason: PassReason, overflow: ContextOverflowError | None = None
    ) -> Pass | RefusedPass:
        plan, breaker = self._plan, self._services.breaker
        conversation = plan.conversation_name
        position = len(plan.given) + len(self._assembler.output)
        try:
            done = await run_pass(
                plan, self._order, self._services, reason=reason, position=position, error=overflow
            )
        except AntiphonError:
            breaker.note(conversation, self._prompt_tokens, succeeded=False)
            raise
        breaker.note(conversation, self._prompt_tokens, succeeded=isinstance(done, Pass))
        plan.passes.append(done.report)
        plan.warnings += done.warnings
        if self._order.is_asked and not self._order.is_whole:
            self._assembler.add_aside(done.usage)
        return done

    async def _take(self, done: Pass) -> None:
        """From here on the window is what the item holds."""
        self._was_compacted = True
        adopt(self._plan, done.items, [row.id for row in done.rows], done)
        self._assembler.add_compaction(done.item.raw, _open_item(done.item))
        if self._order.is_whole:
            self._assembler.end_compacted(done.usage)
            return
        add_recall(self._plan, self._services)
        if self._pay(done):
            await fit_plan(self._plan, self._services)
        else:
            self._assembler.end_spent()

    def _pay(self, done: Pass) -> bool:
        """A pass that the client asked for is paid out of its output; whether enough is left to go on."""
        limit = self._plan.request.max_output_tokens
        if limit is None or not self._order.is_asked or done.usage is None or not done.usage.output_tokens:
            return True
        left = limit - done.usage.output_tokens
        if left < MIN_OUTPUT_TOKENS:
            return False
        self._plan.ask.max_output_tokens = left
        if self._plan.ask.request is not None:
            self._plan.ask.request = msgspec.structs.replace(self._plan.ask.request, max_output_tokens=left)
        return True


def _tell_tried(overflow: ContextOverflowError, why: str) -> ContextOverflowError:
    """The refusal, with what came of the compaction that was tried."""
    told = ContextOverflowError(f"{overflow.message} A compaction was tried. {why}".rstrip())
    told.prompt_tokens, told.window_tokens = overflow.prompt_tokens, overflow.window_tokens
    return told


def adopt(plan: Plan, items: Sequence[Item], ids: Sequence[str], done: Pass) -> None:
    """Put the window of a pass into a plan: what is asked, and what is kept of it for the next round."""
    plan.window = restart(plan.window, done.sources)
    plan.segment = done.segment
    plan.request.input = list(items)
    plan.was_compacted = True
    plan.dropped = ()
    request, target = plan.request, plan.target
    plan.ask = msgspec.structs.replace(
        plan.ask,
        system=join_system(target, request.instructions, done.segment.lead),
        transcript=[done.segment.body] if done.segment.body else [],
    )
    rows = list(zip(ids, items, strict=True))

    async def load() -> History:
        return History(
            items=[],
            new_items=rows,
            make_system=lambda lead: join_system(target, request.instructions, lead),
        )

    if request.truncation == "auto":
        plan.load_history = load


def raise_overflow(batch: list[BackendEvent]) -> None:
    """Raise the overflow that a server told in its stream before anything else."""
    if not batch:
        return
    *before, last = batch
    error = last.error if type(last) is Failed else None
    if isinstance(error, ContextOverflowError) and all(type(event) is Opened for event in before):
        raise error


def _open_item(item: Item) -> bytes:
    """The item as it begins: its content comes with its end."""
    return encode_item(Compaction(id=get_item_id(item), encrypted_content="")).raw
