"""Where the events of one stream are numbered, checked against the lifecycle table and encoded.

It knows no transport: an encoded event is its name and its JSON, framed by whoever sends it. Invariant:
numbers go up by one from 0, and nothing leaves that the table does not allow.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from antiphon.engine.ids import make_obfuscation
from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.events import DeltaEncoder, ErrorEvent, Event, ShellCallCommandDelta, encode_event
from antiphon.protocol.lifecycle import Lifecycle

_encode = msgspec.json.Encoder().encode

#: An event's name and its JSON.
EncodedEvent: TypeAlias = tuple[str, bytes]


class EventSink:
    """Collects events until they are taken; with `emit` off it drops them all (nobody streams)."""

    def __init__(self, *, emit: bool, obfuscate: bool = False) -> None:
        self.emit = emit
        self._obfuscate = obfuscate
        self._lifecycle = Lifecycle()
        self._events: list[EncodedEvent] = []
        self._next = 0

    def take(self) -> list[EncodedEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def send_response(self, event: type[Event], response: bytes) -> None:
        """A lifecycle event with the whole response object."""
        if self.emit:
            self._send(event(self._next, msgspec.Raw(response)), None, None)  # type: ignore[call-arg]

    def send_item(self, event: type[Event], output_index: int, item_type: str, item: bytes) -> None:
        """An output item begins or is done."""
        if self.emit:
            self._send(
                event(self._next, output_index, msgspec.Raw(item)),  # type: ignore[call-arg]
                output_index,
                item_type,
            )

    def send_inner(self, event: type[Event], item_id: str, output_index: int, *fields: Any) -> None:
        """An event inside an item; `fields` in the order of the event's struct."""
        if self.emit:
            self._send(event(self._next, item_id, output_index, *fields), output_index, None)  # type: ignore[call-arg]

    def send_unnamed(self, event: type[Event], output_index: int, *fields: Any) -> None:
        """An event inside an item that does not name the item: those of shell commands."""
        if self.emit:
            made = event(self._next, output_index, *fields)  # type: ignore[call-arg]
            if self._obfuscate and isinstance(made, ShellCallCommandDelta):
                made.obfuscation = make_obfuscation()
            self._send(made, output_index, None)

    def send_passed(self, name: str, output_index: int, fields: dict[str, Any]) -> None:
        """An event that is handed on as it is; `fields` are all but type, number and padding."""
        if not self.emit:
            return
        self._lifecycle.advance(name, output_index)
        told = {"type": name, "sequence_number": self._next, **fields}
        if self._obfuscate and name.endswith(".delta"):
            told["obfuscation"] = make_obfuscation()
        self._events.append((name, _encode(told)))
        self._next += 1

    def find_way(
        self, name: str, output_index: int, may_fill: Callable[[str], bool]
    ) -> tuple[str, ...] | None:
        """The events that must come first; see `Lifecycle.find_way`."""
        return self._lifecycle.find_way(name, output_index, may_fill)

    def send_delta(
        self, name: str, encoder: DeltaEncoder, output_index: int, delta: str, logprobs: bytes | None = None
    ) -> None:
        """The hot path: a delta whose constant parts are encoded already."""
        self._lifecycle.advance(name, output_index)
        padding = make_obfuscation() if self._obfuscate else None
        self._events.append((name, encoder.encode(self._next, delta, padding, logprobs)))
        self._next += 1

    def send_error(self, error: AntiphonError) -> None:
        """The nested `error` event; `response.failed` follows."""
        if self.emit:
            self._send(ErrorEvent(self._next, error.to_object()), None, None)

    def _send(self, event: Event, output_index: int | None, item_type: str | None) -> None:
        self._lifecycle.advance(event.type, output_index, item_type)
        self._events.append((event.type, encode_event(event)))
        self._next += 1
