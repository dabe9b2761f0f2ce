"""One output item being written: its events as they come, its bytes when it is done.

A writer knows its own kind of item alone. Invariant: the text of the done events and of the item is
exactly the sum of the deltas.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.context.toolbox import OfferedTool
from antiphon.engine.client_calls import CallShapeError, get_item_type, shape_call
from antiphon.engine.custom_input import InputDecoder
from antiphon.engine.sink import EventSink
from antiphon.protocol import events
from antiphon.protocol.events import DeltaEncoder

#: The annotations of a whole text.
Cite = Callable[[str], list[dict[str, Any]]]

_encode = msgspec.json.Encoder().encode


class Writer(ABC):
    """What every writer can do."""

    item_type = ""

    def __init__(self, sink: EventSink, item_id: str, index: int) -> None:
        self._sink = sink
        self._id = item_id
        self._index = index

    @abstractmethod
    def close(self, status: str) -> bytes | None:
        """Finish the item; returns its bytes, or None where nothing became of it."""

    def _send_added(self, item: bytes) -> None:
        self._sink.send_item(events.OutputItemAdded, self._index, self.item_type, item)

    def _send_done(self, item: bytes) -> bytes:
        self._sink.send_item(events.OutputItemDone, self._index, self.item_type, item)
        return item

    def _send(self, event: type[events.Event], *fields: Any) -> None:
        self._sink.send_inner(event, self._id, self._index, *fields)


class ItemWriter(Writer):
    """What most writers share: the pieces of one growing text, each sent as a delta event."""

    delta_event = ""

    def __init__(self, sink: EventSink, item_id: str, index: int, **part: int) -> None:
        super().__init__(sink, item_id, index)
        self._pieces: list[str] = []
        self._encoder = DeltaEncoder(self.delta_event, item_id, index, **part)

    @property
    def text(self) -> str:
        """What has come so far."""
        return "".join(self._pieces)

    def write(self, text: str) -> None:
        """One more piece."""
        self._pieces.append(text)
        if self._sink.emit:
            self._sink.send_delta(self.delta_event, self._encoder, self._index, text)


class TextWriter(ItemWriter):
    """An assistant message with one text part; `cite` finds what it cites once it is whole."""

    item_type = "message"
    delta_event = "response.output_text.delta"

    def __init__(self, sink: EventSink, item_id: str, index: int, *, cite: Cite | None = None) -> None:
        super().__init__(sink, item_id, index, content_index=0)
        self._logprobs: list[dict[str, Any]] = []
        self._cite = cite
        if sink.emit:
            self._send_added(_encode_message(item_id, "in_progress", []))
            self._send(events.ContentPartAdded, 0, _to_raw(_text_part("", [])))

    def write_with_logprobs(self, text: str, logprobs: list[dict[str, Any]] | None) -> None:
        """One more piece, and its log probabilities if they were asked for."""
        if not logprobs:
            self.write(text)
            return
        self._pieces.append(text)
        self._logprobs.extend(logprobs)
        if self._sink.emit:
            self._sink.send_delta(
                self.delta_event, self._encoder, self._index, text, _encode(_shape_for_events(logprobs))
            )

    def close(self, status: str) -> bytes:
        """Finish the message; returns its bytes."""
        text = self.text
        part = _text_part(text, self._logprobs)
        if self._cite is not None:
            part["annotations"] = self._cite(text)
        item = _encode_message(self._id, status, [part])
        if self._sink.emit:
            for position, annotation in enumerate(part["annotations"]):
                self._send(events.OutputTextAnnotationAdded, 0, position, _to_raw(annotation))
            self._send(events.OutputTextDone, 0, text, _to_raw(_shape_for_events(self._logprobs)))
            self._send(events.ContentPartDone, 0, _to_raw(part))
            self._send_done(item)
        return item


class RefusalWriter(ItemWriter):
    """An assistant message with one refusal part."""

    item_type = "message"
    delta_event = "response.refusal.delta"

    def __init__(self, sink: EventSink, item_id: str, index: int) -> None:
        super().__init__(sink, item_id, index, content_index=0)
        if sink.emit:
            self._send_added(_encode_message(item_id, "in_progress", []))
            self._send(events.ContentPartAdded, 0, _to_raw({"type": "refusal", "refusal": ""}))

    def close(self, status: str) -> bytes:
        """Finish the message; returns its bytes."""
        text = self.text
        part = {"type": "refusal", "refusal": text}
        item = _encode_message(self._id, status, [part])
        if self._sink.emit:
            self._send(events.RefusalDone, 0, text)
            self._send(events.ContentPartDone, 0, _to_raw(part))
            self._send_done(item)
        return item


class ReasoningWriter(ItemWriter):
    """A reasoning item; raw reasoning is told as its summary, which every client reads.

    With `seal` the finished item carries the text sealed as well.
    """

    item_type = "reasoning"
    delta_event = "response.reasoning_summary_text.delta"

    def __init__(
        self, sink: EventSink, item_id: str, index: int, *, seal: Callable[[str], str] | None = None
    ) -> None:
        super().__init__(sink, item_id, index, summary_index=0)
        self._seal = seal
        if sink.emit:
            self._send_added(self._encode_item("in_progress", []))
            self._send(events.ReasoningSummaryPartAdded, 0, _to_raw({"type": "summary_text", "text": ""}))

    def close(self, status: str) -> bytes:
        """Finish the item; returns its bytes."""
        text = self.text
        part = {"type": "summary_text", "text": text}
        seal = self._seal(text) if self._seal is not None else ""
        sealed = {"encrypted_content": seal} if seal else {}
        item = self._encode_item(status, [part], sealed)
        if self._sink.emit:
            self._send(events.ReasoningSummaryTextDone, 0, text)
            self._send(events.ReasoningSummaryPartDone, 0, _to_raw(part))
            self._send_done(item)
        return item

    def _encode_item(
        self, status: str, summary: list[dict[str, Any]], sealed: dict[str, str] | None = None
    ) -> bytes:
        return _encode(
            {"id": self._id, "type": "reasoning", "summary": summary, **(sealed or {}), "status": status}
        )


class CallWriter(ItemWriter):
    """A function call; its text is the arguments."""

    item_type = "function_call"
    delta_event = "response.function_call_arguments.delta"

    def __init__(
        self,
        sink: EventSink,
        item_id: str,
        index: int,
        *,
        call_id: str,
        name: str,
        tool: OfferedTool | None = None,
    ) -> None:
        super().__init__(sink, item_id, index)
        self.call_id = call_id
        self._traits = _read_traits(name, tool)
        if sink.emit:
            self._send_added(self._encode_item("in_progress", ""))

    def close(self, status: str) -> bytes:
        """Finish the call; returns its bytes."""
        if status == "completed" and not self.text.strip():
            # A call without arguments is a call with none: clients parse the text as JSON.
            self.write("{}")
        arguments = self.text
        item = self._encode_item(status, arguments)
        if self._sink.emit:
            self._send(events.FunctionCallArgumentsDone, arguments)
            self._send_done(item)
        return item

    def _encode_item(self, status: str, arguments: str) -> bytes:
        return _encode(
            {
                "id": self._id,
                "type": "function_call",
                "status": status,
                "call_id": self.call_id,
                **self._traits,
                "arguments": arguments,
            }
        )


class CustomCallWriter(ItemWriter):
    """A call of a custom tool; its text is the arguments, what is sent is the raw input inside them."""

    item_type = "custom_tool_call"
    delta_event = "response.custom_tool_call_input.delta"

    def __init__(
        self, sink: EventSink, item_id: str, index: int, *, call_id: str, name: str, tool: OfferedTool
    ) -> None:
        super().__init__(sink, item_id, index)
        self.call_id = call_id
        self._traits = _read_traits(name, tool)
        self._decoder = InputDecoder()
        self._input: list[str] = []
        if sink.emit:
            self._send_added(self._encode_item("in_progress", ""))

    @property
    def problem(self) -> str:
        """What was not quite right with the JSON around the input; "" when all was well."""
        return self._decoder.problem

    def write(self, text: str) -> None:
        """One more piece of the arguments."""
        self._pieces.append(text)
        self._write_input(self._decoder.feed(text))

    def close(self, status: str) -> bytes:
        """Finish the call; returns its bytes."""
        self._write_input(self._decoder.end(cut=status != "completed"))
        whole = "".join(self._input)
        item = self._encode_item(status, whole)
        if self._sink.emit:
            self._send(events.CustomToolCallInputDone, whole)
            self._send_done(item)
        return item

    def _write_input(self, text: str) -> None:
        if not text:
            return
        self._input.append(text)
        if self._sink.emit:
            self._sink.send_delta(self.delta_event, self._encoder, self._index, text)

    def _encode_item(self, status: str, whole: str) -> bytes:
        # The API's item has no status; half an input must be known as such, or it would be replayed.
        told = {"status": status} if status == "incomplete" else {}
        return _encode(
            {
                "id": self._id,
                "type": "custom_tool_call",
                **told,
                "call_id": self.call_id,
                **self._traits,
                "input": whole,
            }
        )


class BufferedCallWriter(Writer):
    """A call of a client-run built-in tool; nothing of it is sent until its arguments are whole and fit."""

    def __init__(self, sink: EventSink, item_id: str, index: int, *, call_id: str, tool: OfferedTool) -> None:
        super().__init__(sink, item_id, index)
        self.call_id = call_id
        self.item_type = get_item_type(tool.kind)
        self._tool = tool
        self._pieces: list[str] = []
        #: Why nothing became of the call.
        self.problem = ""

    @property
    def text(self) -> str:
        """The arguments so far."""
        return "".join(self._pieces)

    def write(self, text: str) -> None:
        """One more piece of the arguments."""
        self._pieces.append(text)

    def close(self, status: str) -> bytes | None:
        """Finish the call; returns its bytes, or None where its arguments do not make one."""
        if status != "completed":
            self.problem = "it was cut off"
            return None
        try:
            fields = shape_call(self._tool, self.text)
        except CallShapeError as fault:
            self.problem = str(fault)
            return None
        item = self._encode_item("completed", fields)
        if self._sink.emit:
            begun = (
                {**fields, "action": {**fields["action"], "commands": []}} if self._has_commands() else fields
            )
            self._send_added(self._encode_item("in_progress", begun))
            if self._has_commands():
                self._send_commands(fields["action"]["commands"])
            self._send_done(item)
        return item

    def _has_commands(self) -> bool:
        return self.item_type == "shell_call"

    def _send_commands(self, commands: list[str]) -> None:
        """The events of commands name no item: Responses API, event fields."""
        for position, command in enumerate(commands):
            self._sink.send_unnamed(events.ShellCallCommandAdded, self._index, position, "")
            self._sink.send_unnamed(events.ShellCallCommandDelta, self._index, position, command)
            self._sink.send_unnamed(events.ShellCallCommandDone, self._index, position, command)

    def _encode_item(self, status: str, fields: dict[str, Any]) -> bytes:
        head = {"id": self._id, "type": self.item_type, "status": status, "call_id": self.call_id}
        return _encode({**head, **fields})


#: Writers of calls that the client answers.
CALL_WRITERS = (CallWriter, CustomCallWriter, BufferedCallWriter)


def _read_traits(name: str, tool: OfferedTool | None) -> dict[str, Any]:
    """What a call's item says of its tool: the tool's own name, its namespace, whether it is async."""
    if tool is None:
        return {"name": name}
    traits: dict[str, Any] = {"name": tool.own_name}
    if tool.namespace is not None:
        traits["namespace"] = tool.namespace
    if tool.is_async:
        traits["async"] = True
    return traits


def _encode_message(item_id: str, status: str, content: list[dict[str, Any]]) -> bytes:
    return _encode(
        {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}
    )


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": logprobs, "text": text}


def _shape_for_events(logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The API's events have no `bytes` in log probabilities; the finished part has."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [
                {"token": other["token"], "logprob": other["logprob"]} for other in entry["top_logprobs"]
            ],
        }
        for entry in logprobs
    ]


def _to_raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(_encode(value))
