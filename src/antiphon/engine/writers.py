"""One output item being written: its events as they come, its bytes when it is done.

A writer knows its own kind of item alone. Invariant: the text of the done events and of the item is
exactly the sum of the deltas.
"""

from typing import Any, Protocol

import msgspec

from antiphon.engine.sink import EventSink
from antiphon.protocol import events
from antiphon.protocol.events import DeltaEncoder

_encode = msgspec.json.Encoder().encode

_TEXT_DELTA = "response.output_text.delta"
_REFUSAL_DELTA = "response.refusal.delta"
_SUMMARY_DELTA = "response.reasoning_summary_text.delta"
_ARGUMENTS_DELTA = "response.function_call_arguments.delta"


class Writer(Protocol):
    """What the assembler needs of the item that is open."""

    def close(self, status: str) -> bytes:
        """Finish the item; returns its bytes."""
        ...


class TextWriter:
    """An assistant message with one text part."""

    item_type = "message"

    def __init__(self, sink: EventSink, item_id: str, index: int) -> None:
        self._sink = sink
        self._id = item_id
        self._index = index
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._encoder = DeltaEncoder(_TEXT_DELTA, item_id, index, content_index=0)
        if sink.emit:
            sink.send_item(events.OutputItemAdded, index, "message", self._item("in_progress", []))
            part = _encode(_text_part("", []))
            sink.send_inner(events.ContentPartAdded, item_id, index, 0, msgspec.Raw(part))

    def write(self, text: str, logprobs: list[dict[str, Any]] | None) -> None:
        """A piece of text."""
        self._pieces.append(text)
        encoded = None
        if logprobs:
            self._logprobs.extend(logprobs)
            encoded = _encode(logprobs)
        if self._sink.emit:
            self._sink.send_delta(_TEXT_DELTA, self._encoder, self._index, text, encoded)

    def close(self, status: str) -> bytes:
        """Finish the message; returns its bytes."""
        text = "".join(self._pieces)
        part = _text_part(text, self._logprobs)
        item = self._item(status, [part])
        if self._sink.emit:
            logprobs = msgspec.Raw(_encode(self._logprobs))
            self._sink.send_inner(events.OutputTextDone, self._id, self._index, 0, text, logprobs)
            self._sink.send_inner(
                events.ContentPartDone, self._id, self._index, 0, msgspec.Raw(_encode(part))
            )
            self._sink.send_item(events.OutputItemDone, self._index, "message", item)
        return item

    def _item(self, status: str, content: list[dict[str, Any]]) -> bytes:
        return _encode_message(self._id, status, content)


class RefusalWriter:
    """An assistant message with one refusal part."""

    item_type = "message"

    def __init__(self, sink: EventSink, item_id: str, index: int) -> None:
        self._sink = sink
        self._id = item_id
        self._index = index
        self._pieces: list[str] = []
        self._encoder = DeltaEncoder(_REFUSAL_DELTA, item_id, index, content_index=0)
        if sink.emit:
            sink.send_item(
                events.OutputItemAdded, index, "message", _encode_message(item_id, "in_progress", [])
            )
            part = _encode({"type": "refusal", "refusal": ""})
            sink.send_inner(events.ContentPartAdded, item_id, index, 0, msgspec.Raw(part))

    def write(self, text: str) -> None:
        """A piece of the refusal."""
        self._pieces.append(text)
        if self._sink.emit:
            self._sink.send_delta(_REFUSAL_DELTA, self._encoder, self._index, text)

    def close(self, status: str) -> bytes:
        """Finish the message; returns its bytes."""
        text = "".join(self._pieces)
        part = {"type": "refusal", "refusal": text}
        item = _encode_message(self._id, status, [part])
        if self._sink.emit:
            self._sink.send_inner(events.RefusalDone, self._id, self._index, 0, text)
            self._sink.send_inner(
                events.ContentPartDone, self._id, self._index, 0, msgspec.Raw(_encode(part))
            )
            self._sink.send_item(events.OutputItemDone, self._index, "message", item)
        return item


class ReasoningWriter:
    """A reasoning item; raw reasoning is told as its summary, which every client reads."""

    item_type = "reasoning"

    def __init__(self, sink: EventSink, item_id: str, index: int) -> None:
        self._sink = sink
        self._id = item_id
        self._index = index
        self._pieces: list[str] = []
        self._encoder = DeltaEncoder(_SUMMARY_DELTA, item_id, index, summary_index=0)
        if sink.emit:
            sink.send_item(events.OutputItemAdded, index, "reasoning", self._item("in_progress", []))
            part = _encode({"type": "summary_text", "text": ""})
            sink.send_inner(events.ReasoningSummaryPartAdded, item_id, index, 0, msgspec.Raw(part))

    def write(self, text: str) -> None:
        """A piece of reasoning."""
        self._pieces.append(text)
        if self._sink.emit:
            self._sink.send_delta(_SUMMARY_DELTA, self._encoder, self._index, text)

    def close(self, status: str) -> bytes:
        """Finish the item; returns its bytes."""
        text = "".join(self._pieces)
        part = {"type": "summary_text", "text": text}
        item = self._item(status, [part])
        if self._sink.emit:
            self._sink.send_inner(events.ReasoningSummaryTextDone, self._id, self._index, 0, text)
            raw = msgspec.Raw(_encode(part))
            self._sink.send_inner(events.ReasoningSummaryPartDone, self._id, self._index, 0, raw)
            self._sink.send_item(events.OutputItemDone, self._index, "reasoning", item)
        return item

    def _item(self, status: str, summary: list[dict[str, Any]]) -> bytes:
        return _encode({"id": self._id, "type": "reasoning", "summary": summary, "status": status})


class CallWriter:
    """A function call."""

    item_type = "function_call"

    def __init__(self, sink: EventSink, item_id: str, index: int, *, call_id: str, name: str) -> None:
        self._sink = sink
        self._id = item_id
        self._index = index
        self._pieces: list[str] = []
        self.call_id = call_id
        self.name = name
        self._encoder = DeltaEncoder(_ARGUMENTS_DELTA, item_id, index)
        if sink.emit:
            sink.send_item(events.OutputItemAdded, index, "function_call", self._item("in_progress", ""))

    @property
    def arguments(self) -> str:
        """What has come so far."""
        return "".join(self._pieces)

    def write(self, arguments: str) -> None:
        """A piece of the arguments."""
        self._pieces.append(arguments)
        if self._sink.emit:
            self._sink.send_delta(_ARGUMENTS_DELTA, self._encoder, self._index, arguments)

    def close(self, status: str) -> bytes:
        """Finish the call; returns its bytes."""
        if status == "completed" and not self.arguments.strip():
            # A call without arguments is a call with none: clients parse the text as JSON.
            self.write("{}")
        arguments = self.arguments
        item = self._item(status, arguments)
        if self._sink.emit:
            self._sink.send_inner(events.FunctionCallArgumentsDone, self._id, self._index, arguments)
            self._sink.send_item(events.OutputItemDone, self._index, "function_call", item)
        return item

    def _item(self, status: str, arguments: str) -> bytes:
        return _encode(
            {
                "id": self._id,
                "type": "function_call",
                "status": status,
                "call_id": self.call_id,
                "name": self.name,
                "arguments": arguments,
            }
        )


def _encode_message(item_id: str, status: str, content: list[dict[str, Any]]) -> bytes:
    return _encode(
        {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}
    )


def _text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": logprobs, "text": text}
