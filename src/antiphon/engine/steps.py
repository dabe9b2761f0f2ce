"""One response, many steps: tools that this server runs, async tools, and calls that must be checked first.

The source of a response's backend events. After a generation the calls of hosted tools are run and the model
is asked again, until it answers or the client must act. It knows no API events. Invariant: the model is always
shown what a later round will show it of the same items; and closing the source ends whatever runs.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Protocol

import msgspec

from antiphon.backends import (
    Ask,
    Backend,
    BackendEvent,
    CallDelta,
    Failed,
    Finished,
    Opened,
    RefusalDelta,
    TextDelta,
)
from antiphon.context.toolbox import OfferedTool, Toolbox
from antiphon.engine.client_calls import BUFFERED_KINDS, find_fault
from antiphon.engine.custom_input import decode_input
from antiphon.engine.forced import stream_forced
from antiphon.engine.grammars import GrammarChecker
from antiphon.engine.names import find_hidden, fit_name
from antiphon.engine.progress import Progress
from antiphon.hosted import HostedToolError
from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.items import decode_stored_item, make_user_message
from antiphon.protocol.requests import MIN_OUTPUT_TOKENS

#: A model that has not answered after this many generations is asked for its answer without hosted tools.
MAX_STEPS: Final = 32
#: How often the model goes on behind calls of async tools alone.
ASYNC_CONTINUATIONS: Final = 4
#: What of a refused call is quoted to the model, in characters.
QUOTED_CHARACTERS: Final = 4_000

Batches = AsyncGenerator[list[BackendEvent], None]


class HostedRunner(Protocol):
    """The tools that this server runs for one response."""

    #: What the response must say of them; whoever reads it takes it.
    warnings: list[tuple[str, str]]

    def open(self) -> Batches:
        """What comes before the model is asked: lists of tools, and calls that were just approved."""
        ...

    @property
    def offered(self) -> tuple[OfferedTool, ...]:
        """The tools, once they are open."""
        ...

    def owns(self, name: str) -> bool:
        """Whether a call of this name is run here."""
        ...

    def run(self, name: str, arguments: str) -> Batches:
        """Run one call: one item."""
        ...

    @property
    def must_stop(self) -> bool:
        """Whether the response ends here, because a person has to decide."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether no further call may be run."""
        ...

    async def close(self) -> None:
        """Let go of connections; a second time does nothing."""
        ...


def stream_steps(
    backend: Backend,
    ask: Ask,
    *,
    toolbox: Toolbox,
    hosted: HostedRunner | None,
    assembler: Progress,
    warnings: list[tuple[str, str]],
    grammars: GrammarChecker | None = None,
) -> Batches:
    """The events of a whole response, with the contract of `Backend.stream`.

    `assembler` is fed with each batch before the next one is asked for. Most responses are one generation, and
    then this is the backend's own stream.
    """
    if hosted is None and not any(map(_needs_steps, toolbox.offered)):
        return _open_generation(backend, ask, warnings, assembler, toolbox)
    return _Steps(backend, ask, toolbox, hosted, assembler, warnings, grammars).run()


def _open_generation(
    backend: Backend, ask: Ask, warnings: list[tuple[str, str]], assembler: Progress, toolbox: Toolbox
) -> Batches:
    if ask.tool_choice == "required":

        def is_hidden(name: str) -> bool:
            return find_hidden(name, toolbox.hidden, toolbox.hidden_prefixes) is not None

        return stream_forced(backend, ask, warnings, assembler, is_hidden=is_hidden)
    return backend.stream(ask)


def offer_hosted(ask: Ask, toolbox: Toolbox, found: Sequence[OfferedTool]) -> Ask:
    """The ask with the tools that are run here behind those of the client."""
    if toolbox.choice == "none":
        return ask
    tools = [tool.function for tool in (*toolbox.offered, *found)]
    return msgspec.structs.replace(
        ask, tools=tools, tool_choice=toolbox.choice if tools else "none", forced_tool=toolbox.forced
    )


def find_missing(toolbox: Toolbox, offered: Collection[str]) -> str | None:
    """What must be called and is not offered; None where nothing is amiss. `offered`: flat names."""
    if toolbox.choice != "required":
        return None
    if toolbox.forced is not None:
        return None if toolbox.forced in offered else toolbox.forced
    return None if offered else "a tool"


def _needs_steps(tool: OfferedTool) -> bool:
    return tool.is_async or _needs_check(tool)


def _needs_check(tool: OfferedTool) -> bool:
    """Whether calls of the tool are withheld until they are whole and found to be right."""
    return tool.grammar is not None or tool.kind in BUFFERED_KINDS


class _Call:
    """A call of the running generation."""

    __slots__ = ("held", "id", "index", "name", "pieces", "told_name")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        #: The name as the model told it.
        self.told_name = ""
        self.pieces: list[str] = []
        self.held = True

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self.pieces)

    def to_delta(self) -> CallDelta:
        """The call so far in one piece."""
        return CallDelta(self.index, self.id, self.name, self.arguments)


class _Generation:
    """Sorts the events of one generation: what passes, what is withheld, and how it ended."""

    def __init__(self, offered: Mapping[str, OfferedTool], hosted: HostedRunner | None) -> None:
        self._offered = offered
        self._hosted = hosted
        self._calls: dict[int, _Call] = {}
        self.finished: Finished | None = None
        #: Whether visible text came.
        self.spoke = False

    def sort(self, batch: list[BackendEvent], *, opened: bool) -> list[BackendEvent]:
        """What passes at once."""
        passed: list[BackendEvent] = []
        for event in batch:
            if type(event) is CallDelta:
                self._sort_call(event, passed)
            elif type(event) is Finished:
                self.finished = event
            elif type(event) is not Opened or not opened:
                if type(event) is TextDelta or type(event) is RefusalDelta:
                    self.spoke = self.spoke or not event.text.isspace()
                passed.append(event)
        return passed

    def list_calls(self, *, held: bool) -> list[_Call]:
        """The calls that were withheld or passed, in the order of their first pieces."""
        return [call for call in self._calls.values() if call.held is held]

    def _sort_call(self, event: CallDelta, passed: list[BackendEvent]) -> None:
        call = self._calls.get(event.index)
        if call is None:
            call = self._calls[event.index] = _Call(event.index)
        elif not call.held:
            passed.append(event)
            return
        call.id = call.id or event.id
        call.pieces.append(event.arguments)
        if call.name or not event.name:
            return
        call.told_name = event.name
        call.name = fit_name(event.name, self._offered)
        if not self._is_withheld(call.name):
            call.held = False
            # The assembler fits the name itself, and tells of it.
            passed.append(CallDelta(call.index, call.id, event.name, call.arguments))

    def _is_withheld(self, name: str) -> bool:
        if self._hosted is not None and self._hosted.owns(name):
            return True
        tool = self._offered.get(name)
        return tool is not None and _needs_check(tool)


class _Steps:
    """One response's steps."""

    def __init__(
        self,
        backend: Backend,
        ask: Ask,
        toolbox: Toolbox,
        hosted: HostedRunner | None,
        assembler: Progress,
        warnings: list[tuple[str, str]],
        grammars: GrammarChecker | None,
    ) -> None:
        self._backend = backend
        self._ask = ask
        self._base = list(ask.transcript)
        self._tools = [tool.function for tool in toolbox.offered]
        self._toolbox = toolbox
        self._hosted = hosted
        self._assembler = assembler
        #: What stands in the output before, a compaction, is in the prompt already.
        self._start = len(assembler.output)
        self._warnings = warnings
        self._grammars = grammars
        self._offered = {tool.name: tool for tool in toolbox.offered}
        self._left = ask.max_output_tokens
        self._opened = False
        self._over = False
        self._refused = False
        self._steps = 0
        self._continuations = 0
        self._asked_again = False
        self._without_hosted = False

    async def run(self) -> Batches:
        """All events; an error before the first one is raised, a later one is an event.

        Hosted tools are closed at the end, except behind an error that is raised.
        """
        try:
            async with aclosing(self._run_steps()) as batches:
                async for batch in batches:
                    yield batch
        except AntiphonError as error:
            # A refused response may be asked for again, with the same tools.
            self._refused = not self._opened
            if self._refused:
                raise
            yield [Failed(error)]
        finally:
            if self._hosted is not None and not self._refused:
                await self._hosted.close()

    async def _run_steps(self) -> Batches:
        async with aclosing(self._open_hosted()) as batches:
            async for batch in batches:
                yield batch
        while not self._over and self._assembler.outcome is None:
            self._steps += 1
            generation = _Generation(self._offered, self._hosted)
            async with aclosing(self._generate(generation)) as batches:
                async for batch in batches:
                    yield batch
            if generation.finished is None or self._assembler.outcome is not None:
                return
            async with aclosing(self._settle(generation, generation.finished)) as batches:
                async for batch in batches:
                    yield batch

    async def _open_hosted(self) -> Batches:
        """Items that come before the model is asked; then the response has begun, and is said to have."""
        if self._hosted is None:
            return
        async with aclosing(self._hosted.open()) as batches:
            async for batch in batches:
                if not self._opened:
                    self._opened = True
                    yield [Opened()]
                yield batch
        self._take_warnings()
        self._assembler.begin_answer()
        if len(self._assembler.output) > self._start:
            # Calls that were approved were made: the model is told what they gave.
            self._ask = msgspec.structs.replace(
                self._ask, transcript=[*self._base, *self._transcribe_output()]
            )
        found = self._hosted.offered
        self._offered.update((tool.name, tool) for tool in found)
        missing = find_missing(self._toolbox, self._offered)
        if missing is not None:
            raise HostedToolError(f"The request demands a call of {missing}, and that cannot be offered now.")
        self._ask = offer_hosted(self._ask, self._toolbox, found)

    async def _generate(self, generation: _Generation) -> Batches:
        stream = _open_generation(self._backend, self._ask, self._warnings, self._assembler, self._toolbox)
        async with aclosing(stream):
            async for batch in stream:
                passed = generation.sort(batch, opened=self._opened)
                self._opened = True
                if passed:
                    yield passed

    async def _settle(self, generation: _Generation, finished: Finished) -> Batches:
        """What follows from a generation: withheld calls are checked, run or handed out; then on, or the end."""
        if finished.usage is not None and self._left is not None:
            self._left -= finished.usage.output_tokens
        held = generation.list_calls(held=True)
        hosted = [call for call in held if self._hosted is not None and self._hosted.owns(call.name)]
        checked = [call for call in held if call not in hosted]
        passed = generation.list_calls(held=False)
        if finished.reason != "stop":
            for call in hosted:
                self._drop(call, "it was cut off")
                self._assembler.note_cut()
            self._over = True
            yield [*(call.to_delta() for call in checked), finished]
            return
        faults = await self._check(checked)
        if faults and self._may_ask_again(generation, faults, passed, held):
            self._ask_again(finished, faults)
            return
        if faults and self._is_too_short_for_another(faults, passed, held):
            for _, tool, fault in faults:
                text = f"A call of {tool.own_name} was dropped: {fault}, and too little output is left for another."
                self._assembler.note_drop(("invalid_tool_call", text))
            self._assembler.note_cut()
            self._over = True
            yield [Finished("length", finished.usage)]
            return
        self._tell_mismatches(faults)
        if checked:
            yield [call.to_delta() for call in checked]
        ran = False
        for position, call in enumerate(hosted):
            if not self._may_run(call, is_first=not (position or passed or checked)):
                continue
            ran = True
            assert self._hosted is not None
            async with aclosing(self._hosted.run(call.name, call.arguments or "{}")) as batches:
                async for batch in batches:
                    yield batch
        self._take_warnings()
        # Of a call whose arguments make none the client is told nothing but the warning.
        lost = [call for call, tool, _ in faults if tool.grammar is None]
        told = [call for call in (*passed, *checked) if call not in lost]
        if self._goes_on(told, finished, ran=ran):
            return
        self._over = True
        cut = ran and self._is_spent() and not (self._is_stopped() or told)
        yield [Finished("length", finished.usage) if cut else finished]

    async def _check(self, calls: list[_Call]) -> list[tuple[_Call, OfferedTool, str]]:
        """The calls that are not right, with the reason."""
        faults = []
        for call in calls:
            tool = self._offered.get(call.name)
            if tool is None:
                continue
            if tool.grammar is None:
                fault = find_fault(tool, call.arguments)
            else:
                fault = await self._check_grammar(tool, call)
            if fault is not None:
                faults.append((call, tool, fault))
        return faults

    async def _check_grammar(self, tool: OfferedTool, call: _Call) -> str | None:
        if tool.grammar is None:
            return None
        if self._grammars is None:
            self._warn_unchecked(tool, "this server checks no grammars")
            return None
        verdict = await self._grammars.check_text(tool.grammar, decode_input(call.arguments))
        if verdict.unchecked:
            self._warn_unchecked(tool, verdict.unchecked)
        return verdict.fault or None

    def _warn_unchecked(self, tool: OfferedTool, reason: str) -> None:
        text = f"The input of a call of {tool.own_name} was not held against its grammar: {reason}."
        self._warnings.append(("grammar_unchecked", text))

    def _may_ask_again(
        self,
        generation: _Generation,
        faults: list[tuple[_Call, OfferedTool, str]],
        passed: list[_Call],
        held: list[_Call],
    ) -> bool:
        """Once a response, and only where nothing else came that the client or this server must act upon."""
        if self._asked_again or passed or len(held) != len(faults) or self._has_hardly_any_left():
            return False
        return not generation.spoke or all(tool.grammar is not None for _, tool, _ in faults)

    def _has_hardly_any_left(self) -> bool:
        """Whether less output is left than anybody may ask for."""
        return self._left is not None and self._left < MIN_OUTPUT_TOKENS

    def _is_too_short_for_another(
        self, faults: list[tuple[_Call, OfferedTool, str]], passed: list[_Call], held: list[_Call]
    ) -> bool:
        """Whether nothing but calls came of which the client is told nothing, and the limit allows no other try."""
        if passed or len(held) != len(faults) or any(tool.grammar is not None for _, tool, _ in faults):
            return False
        return self._has_hardly_any_left()

    def _ask_again(self, finished: Finished, faults: list[tuple[_Call, OfferedTool, str]]) -> None:
        self._asked_again = True
        said = []
        for call, tool, fault in faults:
            text = f"A call of {tool.own_name} was not right, so the model was asked again: {fault}."
            self._warnings.append(("tool_call_asked_again", text))
            quoted = call.arguments[:QUOTED_CHARACTERS]
            said.append(f"Your call of {call.name} was not accepted: {fault}. Its arguments were:\n{quoted}")
        said.append("Call it again, correctly.")
        self._assembler.end_step(finished.usage, answered=False, asks_again=True)
        message = make_user_message("\n\n".join(said))
        segment = self._backend.transcribe([message], self._ask.profile, at_start=False)
        self._ask = msgspec.structs.replace(
            self._ask,
            transcript=[*self._base, *self._transcribe_output(), segment.body],
            max_output_tokens=self._left,
        )

    def _tell_mismatches(self, faults: list[tuple[_Call, OfferedTool, str]]) -> None:
        """Calls that do not follow their grammar are handed out all the same; other faults the assembler tells."""
        for _, tool, fault in faults:
            if tool.grammar is not None:
                text = f"The input of a call of {tool.own_name} does not follow its grammar: {fault}."
                self._warnings.append(("grammar_mismatch", text))

    def _may_run(self, call: _Call, *, is_first: bool) -> bool:
        # A call that waits for approval holds none of those back that were made beside it.
        if self._hosted is None or self._assembler.outcome is not None:
            self._drop(call, "the response ends before it")
        elif self._ask.parallel_tool_calls is False and not is_first:
            self._drop(call, "parallel_tool_calls is false")
        elif self._hosted.exhausted:
            self._drop(call, "max_tool_calls is reached")
        elif self._without_hosted:
            self._drop(call, "the model had called tools too often")
        else:
            return True
        return False

    def _take_warnings(self) -> None:
        if self._hosted is not None:
            self._warnings += self._hosted.warnings
            self._hosted.warnings.clear()

    def _drop(self, call: _Call, reason: str) -> None:
        self._assembler.note_drop(("hosted_call_dropped", f"A call of {call.name} was not run: {reason}."))

    def _is_spent(self) -> bool:
        return self._left is not None and self._left <= 0

    def _is_stopped(self) -> bool:
        return self._hosted is not None and self._hosted.must_stop

    def _goes_on(self, calls: list[_Call], finished: Finished, *, ran: bool) -> bool:
        """Whether the model is asked once more in this response; then everything is laid out for it."""
        calls = [call for call in calls if call.name and not self._is_hidden(call)]
        waits = any(not self._is_async(call.name) for call in calls)
        if waits or self._is_stopped() or self._is_spent() or not (ran or calls):
            return False
        if not ran:
            self._continuations += 1
            if self._continuations > ASYNC_CONTINUATIONS:
                return False
        if self._steps >= MAX_STEPS and not self._without_hosted:
            text = (
                f"The model was asked {MAX_STEPS} times and had not answered; hosted tools were taken away."
            )
            self._warnings.append(("max_steps", text))
            self._without_hosted = True
        if self._hosted is not None and self._hosted.exhausted:
            self._without_hosted = True
        self._assembler.end_step(finished.usage, answered=not ran or self._without_hosted)
        self._lay_out()
        return True

    def _is_hidden(self, call: _Call) -> bool:
        if call.name in self._offered:
            return call.name in self._toolbox.hidden
        return find_hidden(call.told_name, self._toolbox.hidden, self._toolbox.hidden_prefixes) is not None

    def _is_async(self, name: str) -> bool:
        tool = self._offered.get(name)
        return tool is not None and tool.is_async

    def _lay_out(self) -> None:
        """The next ask: all items so far, no forced tool any more, what is left of the output's limit."""
        tools = self._tools if self._without_hosted else list(self._ask.tools)
        self._ask = msgspec.structs.replace(
            self._ask,
            transcript=[*self._base, *self._transcribe_output()],
            tools=tools,
            tool_choice="auto" if tools else "none",
            forced_tool=None,
            max_output_tokens=self._left,
        )

    def _transcribe_output(self) -> list[bytes]:
        """The output so far, as a later round will transcribe it."""
        items = [decode_stored_item(raw) for raw in self._assembler.output[self._start :]]
        segment = self._backend.transcribe(items, self._ask.profile, at_start=False)
        return [segment.body] if segment.body else []
