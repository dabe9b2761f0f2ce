"""Backend events -> output items and API events, in strict order: one item at a time.

It knows nothing of requests, stores or transports. Invariant: whatever comes, every item that was added
is done, in order, and `outcome` is set exactly once.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from antiphon.backends import (
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    ItemClosed,
    ItemEvent,
    ItemOpened,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.context.toolbox import OfferedTool
from antiphon.engine.client_calls import BUFFERED_KINDS, get_item_type
from antiphon.engine.foreign_ids import ForeignIds
from antiphon.engine.ids import make_call_id
from antiphon.engine.names import find_hidden, fit_name, is_legal_call_id
from antiphon.engine.passing import PassingWriter, Show, name_own
from antiphon.engine.sink import EventSink
from antiphon.engine.spending import Spending
from antiphon.engine.writers import (
    CALL_WRITERS,
    BufferedCallWriter,
    CallWriter,
    Cite,
    CustomCallWriter,
    ReasoningWriter,
    RefusalWriter,
    TextWriter,
    Writer,
)
from antiphon.protocol.errors import AntiphonError, BackendError
from antiphon.protocol.items import derive_item_id
from antiphon.sessions import Status

#: Events of items that have to wait until the one before them is done.
WAITING_EVENTS = 10_000
#: What is read to find out early that a call is whole; beyond it, the calls behind it wait for the end.
EARLY_CHARACTERS = 4_000_000
#: How many of the calls that came to nothing are told with an empty answer.
QUOTED_DROPS = 3

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Outcome(msgspec.Struct):
    """How a response ended; `usage` is that of all its generations."""

    status: Status
    usage: BackendUsage | None = None
    error: AntiphonError | None = None
    incomplete_reason: str | None = None
    #: The server's counts of the first prompt and of the last: what a truncation is noticed by.
    first_prompt_tokens: int | None = None
    last_prompt_tokens: int | None = None


def show_whole(item: bytes, item_type: str) -> bytes:
    """Shows an item as it is stored."""
    return item


class _PendingCall:
    """Fragments of a call that has to wait until the one before it is done."""

    __slots__ = ("id", "name", "pieces")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []


class Assembler:
    """Builds the output of one response."""

    def __init__(
        self,
        sink: EventSink,
        *,
        node_id: str,
        first_position: int,
        is_taken: Callable[[str], bool],
        single_call: bool = False,
        hidden_tools: frozenset[str] = frozenset(),
        hidden_prefixes: tuple[str, ...] = (),
        offered: Mapping[str, OfferedTool] | None = None,
        show: Show = show_whole,
        seal: Callable[[str], str] | None = None,
        cite: Cite | None = None,
        foreign_ids: ForeignIds | None = None,
    ) -> None:
        """`foreign_ids`: the items that are handed on were made by another server, which named them."""
        self._sink = sink
        self._node_id = node_id
        self._first_position = first_position
        self._is_taken = is_taken
        self._single_call = single_call
        self._hidden_tools = hidden_tools
        self._hidden_prefixes = hidden_prefixes
        self._offered = offered or {}
        self._show = show
        self._seal = seal
        self._cite = cite
        self._foreign_ids = foreign_ids
        self._writer: Writer | None = None
        self._slot: int | None = None
        #: Whether the running call may have become whole, and how much was read to find that out.
        self._has_grown = False
        self._read_early = 0
        self._done_slots: set[int] = set()
        self._dropped_slots: set[int] = set()
        self._call_ids: set[str] = set()
        self._pending: dict[int, _PendingCall] = {}
        self._space = ""
        self._has_answer = False
        #: Where the running generation's items begin, and how many calls it has made.
        self._step_start = 0
        self._step_calls = 0
        #: Whether it has said or asked anything, and why calls of it came to nothing.
        self._step_answered = False
        self._step_drops: list[str] = []
        self._was_cut = False
        self._passed_index: int | None = None
        self._waiting: list[ItemOpened | ItemEvent | ItemClosed] = []
        self._spending = Spending()
        #: The bytes of the items that are done, as they are stored.
        self.output: list[bytes] = []
        #: The same items as the client gets them; the same objects where nothing differs.
        self.shown: list[bytes] = []
        #: The ids of calls that are whole.
        self.calls: list[str] = []
        self.warnings: list[tuple[str, str]] = []
        self.outcome: Outcome | None = None

    def feed(self, batch: Iterable[BackendEvent]) -> None:
        """Take what has arrived; events go to the sink."""
        for event in batch:
            if self.outcome is not None:
                return
            if type(event) is TextDelta:
                writer = self._writer
                if type(writer) is TextWriter:
                    if event.logprobs is None:
                        writer.write(event.text)
                    else:
                        writer.write_with_logprobs(event.text, event.logprobs)
                else:
                    self._open_text(event)
            elif type(event) is CallDelta:
                self._take_call(event)
            elif type(event) is ReasoningDelta:
                self._take_reasoning(event)
            elif type(event) is RefusalDelta:
                self._take_refusal(event)
            elif type(event) is Finished:
                self._finish(event)
            elif type(event) is Failed:
                self.fail(event.error)
            elif type(event) is ItemEvent or type(event) is ItemOpened or type(event) is ItemClosed:
                self._take_passed(event)

    def end_step(self, usage: BackendUsage | None, *, answered: bool, asks_again: bool = False) -> None:
        """See `Progress.end_step`."""
        if self.outcome is not None:
            return
        self._close_all("completed")
        self._spending.add(usage)
        self._spending.asks_again = asks_again
        self._dropped_slots.clear()
        self._done_slots.clear()
        self._step_calls = 0
        self._step_answered = False
        self._step_drops.clear()
        if not answered:
            self._has_answer = False
            self._step_start = len(self.output)

    def note_cut(self) -> None:
        """See `Progress.note_cut`."""
        self._was_cut = True

    def begin_answer(self) -> None:
        """See `Progress.begin_answer`."""
        self._has_answer = self._step_answered = False
        self._step_start = len(self.output)

    def note_drop(self, warning: tuple[str, str]) -> None:
        """See `Progress.note_drop`."""
        self.warnings.append(warning)
        self._step_drops.append(warning[1])

    def _note_answer(self) -> None:
        self._has_answer = self._step_answered = True

    def fail(self, error: AntiphonError) -> None:
        """End here: what is open is closed as incomplete."""
        if self.outcome is None:
            self._break_off()
            self.outcome = Outcome(status="failed", error=error)

    def end_unasked(self) -> None:
        """The model is not asked at all: a whole response without output, which cost nothing."""
        if self.outcome is None:
            self.outcome = Outcome(status="completed", usage=BackendUsage(0, 0, 0, 0, 0))

    def add_compaction(self, item: bytes, opening: bytes) -> None:
        """A compaction item, made here and whole; it begins as `opening` says."""
        self._close_calls()
        self._close("completed")
        name = name_own(self._make_item_id)
        writer = PassingWriter(self._sink, len(self.output), opening, show=self._show, name=name)
        self.output.append(writer.finish(item))
        self.shown.append(writer.shown)
        self.begin_answer()

    def end_compacted(self, usage: BackendUsage | None) -> None:
        """A compaction is the whole answer."""
        if self.outcome is None:
            self.outcome = Outcome(status="completed", usage=usage)

    def end_spent(self) -> None:
        """What was allowed for the answer is used up before it has begun."""
        if self.outcome is None:
            reason = "max_output_tokens"
            self.outcome = Outcome(status="incomplete", usage=self._spending.total, incomplete_reason=reason)
            self.warnings += self._spending.warnings

    def add_aside(self, usage: BackendUsage | None) -> None:
        """Count what something else than the answer has cost."""
        self._spending.add_aside(usage)

    def cancel(self) -> None:
        """The client left: what is open is closed as incomplete, nothing more is made."""
        if self.outcome is None:
            self._break_off()
            self.outcome = Outcome(status="cancelled")

    def _break_off(self) -> None:
        """Close what is open as incomplete. A call that is not whole is kept and shown, and not told as done:

        clients run a call when they hear that it is done, and would run half of one, then again after the retry.
        """
        emits = self._sink.emit
        self._sink.emit = emits and not _is_run_by_client(self._writer)
        self._close("incomplete")
        # Calls that waited for that one have not even been told of.
        self._sink.emit = False
        self._close_calls("incomplete")
        self._close("incomplete")
        self._sink.emit = emits
        self._close_all("incomplete")

    def _open_text(self, event: TextDelta) -> None:
        # Blank text before or between calls is a template's habit, not an answer; it is kept until text comes.
        text = self._space + event.text
        if not text.strip():
            self._space = text
            return
        self._space = ""
        self._close_calls()
        self._close("completed")
        self._writer = TextWriter(self._sink, *self._next_item("message"), cite=self._cite)
        self._note_answer()
        self._writer.write_with_logprobs(text, event.logprobs)

    def _take_reasoning(self, event: ReasoningDelta) -> None:
        if not isinstance(self._writer, ReasoningWriter):
            self._close_calls()
            self._close("completed")
            self._writer = ReasoningWriter(self._sink, *self._next_item("reasoning"), seal=self._seal)
        self._writer.write(event.text)

    def _take_refusal(self, event: RefusalDelta) -> None:
        if not isinstance(self._writer, RefusalWriter):
            self._close_calls()
            self._close("completed")
            self._writer = RefusalWriter(self._sink, *self._next_item("message"))
            self._note_answer()
        self._writer.write(event.text)

    def _take_passed(self, event: ItemOpened | ItemEvent | ItemClosed) -> None:
        """One passed item at a time: what belongs to another one waits until it is done."""
        if self._passed_index is not None and event.index != self._passed_index:
            if len(self._waiting) >= WAITING_EVENTS:
                self.fail(BackendError("The model server sent too many items at the same time."))
                return
            self._waiting.append(event)
            return
        try:
            self._pass_on(event)
        except AntiphonError as error:
            self.fail(error)
            return
        if self._passed_index is None and self._waiting:
            waiting, self._waiting = self._waiting, []
            self.feed(waiting)

    def _pass_on(self, event: ItemOpened | ItemEvent | ItemClosed) -> None:
        writer = self._writer
        if type(event) is ItemOpened:
            self._open_passed(event.index, event.item)
        elif type(event) is ItemEvent:
            # What comes late for an item that is done says nothing that its bytes do not say.
            if type(writer) is PassingWriter:
                writer.pass_event(event)
        elif type(event) is ItemClosed:
            if type(writer) is not PassingWriter:
                # Some servers tell of an item only once it is done.
                writer = self._open_passed(event.index, event.item)
            item = writer.finish(event.item)
            self._writer = self._passed_index = None
            if writer.item_type != "reasoning":
                self._note_answer()
            self.output.append(item)
            self.shown.append(writer.shown)

    def _open_passed(self, index: int, item: bytes) -> PassingWriter:
        self._close_calls()
        self._close("completed")
        self._space = ""
        foreign = self._foreign_ids
        # Made here and not kept: to hold a method of one's own would be a cycle.
        name = foreign.name if foreign is not None else name_own(self._make_item_id)
        writer = PassingWriter(self._sink, len(self.output), item, show=self._show, name=name)
        self._writer = writer
        self._passed_index = index
        return writer

    def _take_call(self, event: CallDelta) -> None:
        writer = self._writer
        if event.index == self._slot and isinstance(writer, CALL_WRITERS):
            if event.arguments:
                writer.write(event.arguments)
                self._has_grown = True
            return
        if event.index in self._dropped_slots:
            return
        if event.index in self._done_slots:
            if event.arguments.strip():
                self.fail(BackendError("The model server sent more of a call that it had ended."))
            return
        pending = self._pending.setdefault(event.index, _PendingCall())
        pending.id = pending.id or event.id
        pending.name = pending.name or self._fit_name(event.name)
        pending.pieces.append(event.arguments)
        if not isinstance(writer, CALL_WRITERS) or self._is_whole(writer):
            self._start_pending(event.index)

    def _is_whole(self, writer: CallWriter | CustomCallWriter | BufferedCallWriter) -> bool:
        """Whether the running call has all its arguments, though nobody said so."""
        if not self._has_grown or self._read_early > EARLY_CHARACTERS:
            return False
        self._has_grown = False
        text = writer.text
        self._read_early += len(text)
        return _is_object(text)

    def _start_pending(self, slot: int, status: str = "completed") -> None:
        pending = self._pending[slot]
        if not pending.name:
            return
        del self._pending[slot]
        if self._must_drop(pending.name):
            self._dropped_slots.add(slot)
            return
        self._close(status)
        self._space = ""
        call_id = pending.id
        if not is_legal_call_id(call_id) or call_id in self._call_ids or self._is_taken(call_id):
            # Some servers count calls from zero in every answer; on a path an id names one call.
            call_id = make_call_id()
        self._call_ids.add(call_id)
        writer = self._make_call_writer(call_id, pending.name)
        self._writer = writer
        self._slot = slot
        self._has_grown = True
        self._step_calls += 1
        if type(writer) is not BufferedCallWriter:
            self._note_answer()
        arguments = "".join(pending.pieces)
        if arguments:
            writer.write(arguments)

    def _make_call_writer(
        self, call_id: str, name: str
    ) -> CallWriter | CustomCallWriter | BufferedCallWriter:
        tool = self._offered.get(name)
        if tool is None or tool.kind not in _OWN_WRITERS:
            item_id, index = self._next_item("function_call")
            return CallWriter(self._sink, item_id, index, call_id=call_id, name=name, tool=tool)
        if tool.kind == "custom":
            item_id, index = self._next_item("custom_tool_call")
            return CustomCallWriter(self._sink, item_id, index, call_id=call_id, name=name, tool=tool)
        item_id, index = self._next_item(get_item_type(tool.kind))
        return BufferedCallWriter(self._sink, item_id, index, call_id=call_id, tool=tool)

    def _fit_name(self, name: str) -> str:
        fitted = fit_name(name, self._offered)
        if fitted not in self._offered:
            hidden = find_hidden(name, self._hidden_tools, self._hidden_prefixes)
            if hidden is not None:
                return hidden
        if fitted != name:
            self.warnings.append(
                ("call_renamed", f"The model called {name[:200]}; that was read as {fitted}.")
            )
        return fitted

    def _must_drop(self, name: str) -> bool:
        """Whether a call must not reach the client, though the model made it; a warning says so."""
        if self._is_hidden(name):
            text = f"{name} cannot be called in this response (tool_choice, or not there); a call of it was dropped."
            self.note_drop(("hidden_call_dropped", text))
            return True
        if self._single_call and self._step_calls:
            text = f"parallel_tool_calls is false; a further call of {name} was dropped."
            self.note_drop(("parallel_call_dropped", text))
            return True
        return False

    def _is_hidden(self, name: str) -> bool:
        if name in self._offered:
            return name in self._hidden_tools
        return find_hidden(name, self._hidden_tools, self._hidden_prefixes) is not None

    def _close_calls(self, status: str = "completed") -> None:
        """Start every call that waits, closing the one before it: something else comes after them."""
        for slot in sorted(self._pending):
            pending = self._pending[slot]
            if pending.name:
                self._start_pending(slot, status)
                continue
            del self._pending[slot]
            told = "".join(pending.pieces)
            self.note_drop(("nameless_call", f"The model server sent a call without a name: {told[:2_000]}"))

    def _close(self, status: str) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if type(writer) is PassingWriter:
            self._passed_index = None
        item = writer.close(status)
        if isinstance(writer, CALL_WRITERS) and self._slot is not None:
            self._done_slots.add(self._slot)
            self._slot = None
            if not self._keep_call(writer, item, status):
                return
        if item is None:
            return
        self.output.append(item)
        self.shown.append(writer.shown if type(writer) is PassingWriter else item)

    def _keep_call(
        self, writer: CallWriter | CustomCallWriter | BufferedCallWriter, item: bytes | None, status: str
    ) -> bool:
        """Note a call that is done; False where it came to nothing, which a warning then says."""
        if type(writer) is CustomCallWriter and writer.problem:
            text = f"The input of call {writer.call_id} was taken from JSON that was not whole: {writer.problem}."
            self.warnings.append(("custom_input_repaired", text))
        if type(writer) is BufferedCallWriter:
            if item is None:
                self._was_cut = self._was_cut or status != "completed"
                text = f"A call of {writer.item_type.removesuffix('_call')} was dropped: {writer.problem}."
                self.note_drop(("invalid_tool_call", text))
                return False
            self._note_answer()
        if status == "completed":
            self.calls.append(writer.call_id)
        return True

    def _close_all(self, last_status: str) -> None:
        self._waiting.clear()
        self._passed_index = None
        self._close_calls(last_status)
        if self._space and not self._has_answer and self._writer is None:
            # Nothing but blanks: then they are the answer.
            self._writer = TextWriter(self._sink, *self._next_item("message"), cite=self._cite)
            self._note_answer()
            self._writer.write(self._space)
        self._space = ""
        self._close(last_status)

    def _has_half_program(self) -> bool:
        """Whether a call is open whose input clients run as it is; half of the others' JSON cannot be read."""
        waiting = (self._offered.get(pending.name) for pending in self._pending.values())
        return type(self._writer) is CustomCallWriter or any(
            tool is not None and tool.kind == "custom" for tool in waiting
        )

    def _finish(self, event: Finished) -> None:
        self._spending.add(event.usage)
        if self._passed_index is not None or self._waiting:
            self.fail(BackendError("The model server's answer ended within an output item."))
            return
        cut = event.reason != "stop"
        if cut and self._has_half_program():
            self._break_off()
        else:
            self._close_all("incomplete" if cut else "completed")
        outcome = self._judge(event)
        outcome.usage = self._spending.total
        outcome.first_prompt_tokens = self._spending.first_prompt_tokens
        outcome.last_prompt_tokens = self._spending.last_prompt_tokens
        self.warnings += self._spending.warnings
        self.warnings += event.warnings
        self.outcome = outcome

    def _judge(self, event: Finished) -> Outcome:
        """An empty generation is never completed."""
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(event.reason)
        if reason is not None and (self.output or self._was_cut):
            return Outcome(status="incomplete", incomplete_reason=reason)
        if len(self.output) == self._step_start:
            text = " ".join(["The model's answer was empty.", *self._step_drops[:QUOTED_DROPS]])
            error = BackendError(text, code="server_error")
            return Outcome(status="failed", error=error)
        if not self._has_answer:
            self.warnings.append(("reasoning_only", "The model stopped after reasoning, without an answer."))
            return Outcome(status="incomplete")
        if self._step_drops and not self._step_answered:
            # Its last words were calls that nobody runs: it has not answered, and warnings say so.
            return Outcome(status="incomplete")
        return Outcome(status="completed")

    def _next_item(self, item_type: str) -> tuple[str, int]:
        return self._make_item_id(item_type), len(self.output)

    def _make_item_id(self, item_type: str) -> str:
        return derive_item_id(item_type, self._node_id, self._first_position + len(self.output))


#: Kinds of tools whose calls are no function calls; those that a server runs never come here.
_OWN_WRITERS = BUFFERED_KINDS | {"custom"}


def _is_object(text: str) -> bool:
    try:
        _decode_object(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


#: The calls that clients run, as a server names them that hands on its own items.
_RUN_BY_CLIENT = frozenset(
    {
        "function_call",
        "custom_tool_call",
        "local_shell_call",
        "shell_call",
        "apply_patch_call",
        "tool_search_call",
        "computer_call",
    }
)


def _is_run_by_client(writer: Writer | None) -> bool:
    if type(writer) is PassingWriter:
        return writer.item_type in _RUN_BY_CLIENT
    return isinstance(writer, CALL_WRITERS)
