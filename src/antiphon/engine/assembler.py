"""Backend events -> output items and API events, in strict order: one item at a time.

It knows nothing of requests, stores or transports. Invariant: whatever comes, every item that was added
is done, in order, and `outcome` is set exactly once.
"""

from collections.abc import Callable, Iterable

import msgspec

from antiphon.backends import (
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.engine.ids import make_call_id
from antiphon.engine.names import fit_name, is_legal_call_id
from antiphon.engine.sink import EventSink
from antiphon.engine.writers import CallWriter, ItemWriter, ReasoningWriter, RefusalWriter, TextWriter
from antiphon.protocol.errors import AntiphonError, BackendError
from antiphon.protocol.items import derive_item_id
from antiphon.sessions import Status

_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Outcome(msgspec.Struct):
    """How a generation ended."""

    status: Status
    usage: BackendUsage | None = None
    error: AntiphonError | None = None
    incomplete_reason: str | None = None


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
        offered_tools: frozenset[str] = frozenset(),
    ) -> None:
        self._sink = sink
        self._node_id = node_id
        self._first_position = first_position
        self._is_taken = is_taken
        self._single_call = single_call
        self._hidden_tools = hidden_tools
        self._offered_tools = offered_tools
        self._writer: ItemWriter | None = None
        self._slot: int | None = None
        self._done_slots: set[int] = set()
        self._dropped_slots: set[int] = set()
        self._call_ids: set[str] = set()
        self._pending: dict[int, _PendingCall] = {}
        self._space = ""
        self._has_answer = False
        #: The bytes of the items that are done.
        self.output: list[bytes] = []
        #: Completed calls by id.
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

    def fail(self, error: AntiphonError) -> None:
        """End here: what is open is closed as incomplete."""
        if self.outcome is None:
            self._close_all("incomplete")
            self.outcome = Outcome(status="failed", error=error)

    def cancel(self) -> None:
        """The client left: what is open is closed as incomplete, nothing more is made."""
        if self.outcome is None:
            self._close_all("incomplete")
            self.outcome = Outcome(status="cancelled")

    def _open_text(self, event: TextDelta) -> None:
        # Blank text before or between calls is a template's habit, not an answer; it is kept until text comes.
        text = self._space + event.text
        if not text.strip():
            self._space = text
            return
        self._space = ""
        self._close_calls()
        self._close("completed")
        self._writer = TextWriter(self._sink, *self._next_item("message"))
        self._has_answer = True
        self._writer.write_with_logprobs(text, event.logprobs)

    def _take_reasoning(self, event: ReasoningDelta) -> None:
        if not isinstance(self._writer, ReasoningWriter):
            self._close_calls()
            self._close("completed")
            self._writer = ReasoningWriter(self._sink, *self._next_item("reasoning"))
        self._writer.write(event.text)

    def _take_refusal(self, event: RefusalDelta) -> None:
        if not isinstance(self._writer, RefusalWriter):
            self._close_calls()
            self._close("completed")
            self._writer = RefusalWriter(self._sink, *self._next_item("message"))
            self._has_answer = True
        self._writer.write(event.text)

    def _take_call(self, event: CallDelta) -> None:
        if event.index == self._slot and isinstance(self._writer, CallWriter):
            if event.arguments:
                self._writer.write(event.arguments)
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
        if not isinstance(self._writer, CallWriter) or _is_object(self._writer.text):
            self._start_pending(event.index)

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
        item_id, index = self._next_item("function_call")
        self._writer = CallWriter(self._sink, item_id, index, call_id=call_id, name=pending.name)
        self._slot = slot
        self._has_answer = True
        arguments = "".join(pending.pieces)
        if arguments:
            self._writer.write(arguments)

    def _fit_name(self, name: str) -> str:
        fitted = fit_name(name, self._offered_tools)
        if fitted != name:
            self.warnings.append(
                ("call_renamed", f"The model called {name[:200]}; that was read as {fitted}.")
            )
        return fitted

    def _must_drop(self, name: str) -> bool:
        """Whether a call must not reach the client, though the model made it; a warning says so."""
        if name in self._hidden_tools:
            text = f"tool_choice does not allow {name}; a call of it was dropped."
            self.warnings.append(("hidden_call_dropped", text))
            return True
        if self._single_call and (self.calls or isinstance(self._writer, CallWriter)):
            text = f"parallel_tool_calls is false; a further call of {name} was dropped."
            self.warnings.append(("parallel_call_dropped", text))
            return True
        return False

    def _close_calls(self, status: str = "completed") -> None:
        """Start every call that waits, closing the one before it: something else comes after them."""
        for slot in sorted(self._pending):
            pending = self._pending[slot]
            if pending.name:
                self._start_pending(slot, status)
                continue
            del self._pending[slot]
            told = "".join(pending.pieces)
            self.warnings.append(("nameless_call", f"The model server sent a call without a name: {told}"))

    def _close(self, status: str) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if isinstance(writer, CallWriter) and self._slot is not None:
            self._done_slots.add(self._slot)
            self._slot = None
            if status == "completed":
                self.calls.append(writer.call_id)
        self.output.append(writer.close(status))

    def _close_all(self, last_status: str) -> None:
        self._close_calls(last_status)
        if self._space and not self._has_answer and self._writer is None:
            # Nothing but blanks: then they are the answer.
            self._writer = TextWriter(self._sink, *self._next_item("message"))
            self._has_answer = True
            self._writer.write(self._space)
        self._close(last_status)

    def _finish(self, event: Finished) -> None:
        cut = event.reason != "stop"
        self._close_all("incomplete" if cut else "completed")
        self.outcome = self._judge(event)

    def _judge(self, event: Finished) -> Outcome:
        """An empty generation is never completed."""
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(event.reason)
        if not self.output:
            error = BackendError("The model's answer was empty.", code="server_error")
            return Outcome(status="failed", usage=event.usage, error=error)
        if reason is not None:
            return Outcome(status="incomplete", usage=event.usage, incomplete_reason=reason)
        if not self._has_answer:
            self.warnings.append(("reasoning_only", "The model stopped after reasoning, without an answer."))
            return Outcome(status="incomplete", usage=event.usage)
        return Outcome(status="completed", usage=event.usage)

    def _next_item(self, item_type: str) -> tuple[str, int]:
        index = len(self.output)
        return derive_item_id(item_type, self._node_id, self._first_position + index), index


def _is_object(text: str) -> bool:
    try:
        _decode_object(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
