"""Where the events of one stream are numbered, checked against the lifecycle table and encoded.

It knows no transport: an encoded event is its name and its JSON, framed by whoever sends it. Invariant:
numbers go up by one from 0, and nothing leaves that the table does not allow.
"""

from typing import Any, TypeAlias

import msgspec

from antiphon.engine.ids import make_obfuscation
from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.events import DeltaEncoder, ErrorEvent, Event, encode_event
from antiphon.protocol.lifecycle import Lifecycle

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
