"""One output item being written: its events as they come, its bytes when it is done.

A writer knows its own kind of item alone. Invariant: the text of the done events and of the item is
exactly the sum of the deltas.
"""

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from antiphon.engine.sink import EventSink
from antiphon.protocol import events
from antiphon.protocol.events import DeltaEncoder

_encode = msgspec.json.Encoder().encode


class ItemWriter(ABC):
    """What all writers share: the pieces of one growing text, each sent as a delta event."""

    item_type = ""
    delta_event = ""

    def __init__(self, sink: EventSink, item_id: str, index: int, **part: int) -> None:
        self._sink = sink
        self._id = item_id
        self._index = index
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

    @abstractmethod
    def close(self, status: str) -> bytes:
        """Finish the item; returns its bytes."""

    def _send_added(self, item: bytes) -> None:
        self._sink.send_item(events.OutputItemAdded, self._index, self.item_type, item)

    def _send_done(self, item: bytes) -> bytes:
        self._sink.send_item(events.OutputItemDone, self._index, self.item_type, item)
        return item

    def _send(self, event: type[events.Event], *fields: Any) -> None:
        self._sink.send_inner(event, self._id, self._index, *fields)


class TextWriter(ItemWriter):
    """An assistant message with one text part."""

    item_type = "message"
    delta_event = "response.output_text.delta"

    def __init__(self, sink: EventSink, item_id: str, index: int) -> None:
        super().__init__(sink, item_id, index, content_index=0)
        self._logprobs: list[dict[str, Any]] = []
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
        item = _encode_message(self._id, status, [part])
        if self._sink.emit:
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
    """A reasoning item; raw reasoning is told as its summary, which every client reads."""

    item_type = "reasoning"
    delta_event = "response.reasoning_summary_text.delta"

    def __init__(self, sink: EventSink, item_id: str, index: int) -> None:
        super().__init__(sink, item_id, index, summary_index=0)
        if sink.emit:
            self._send_added(self._encode_item("in_progress", []))
            self._send(events.ReasoningSummaryPartAdded, 0, _to_raw({"type": "summary_text", "text": ""}))

    def close(self, status: str) -> bytes:
        """Finish the item; returns its bytes."""
        text = self.text
        part = {"type": "summary_text", "text": text}
        item = self._encode_item(status, [part])
        if self._sink.emit:
            self._send(events.ReasoningSummaryTextDone, 0, text)
            self._send(events.ReasoningSummaryPartDone, 0, _to_raw(part))
            self._send_done(item)
        return item

    def _encode_item(self, status: str, summary: list[dict[str, Any]]) -> bytes:
        return _encode({"id": self._id, "type": "reasoning", "summary": summary, "status": status})


class CallWriter(ItemWriter):
    """A function call; its text is the arguments."""

    item_type = "function_call"
    delta_event = "response.function_call_arguments.delta"

    def __init__(self, sink: EventSink, item_id: str, index: int, *, call_id: str, name: str) -> None:
        super().__init__(sink, item_id, index)
        self.call_id = call_id
        self.name = name
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
