"""The body of one answer, in whatever pieces it arrives -> backend events: pure.

It knows both forms that a body may have, server-sent events and one JSON document, and no transport; what
the events mean is the dialect's decoder's to say. Invariant: where the bytes were cut changes nothing; once
`ended`, a terminal event has been returned.
"""

from typing import Protocol

from antiphon.backends.halves import HalfJoiner
from antiphon.backends.interface import BackendEvent
from antiphon.protocol.errors import AntiphonError, BackendError
from antiphon.protocol.sse import SseDecoder, SseTooLargeError

#: One streamed event, or a whole answer that is not streamed, may not be larger than this.
EVENT_BYTES = 16 << 20


class Decoder(Protocol):
    """A dialect's half: the `data` of each server-sent event, or a whole document, to events."""

    @property
    def ended(self) -> bool:
        """Whether a terminal event has been returned."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether the end of the generation has been told."""
        ...

    def feed(self, data: bytes, *, complete: bool = True) -> list[BackendEvent]:
        """The events of one payload; not `complete`: the stream ended inside it."""
        ...

    def close(self) -> list[BackendEvent]:
        """The stream is over: the terminal event, unless it has been returned."""
        ...

    def break_off(self, error: BackendError) -> list[BackendEvent]:
        """The connection broke."""
        ...

    def fail_by(self, error: bytes) -> list[BackendEvent]:
        """The server told an error, as JSON."""
        ...

    def fail(self, error: AntiphonError) -> list[BackendEvent]:
        """The terminal event for a failure."""
        ...


class AnswerReader:
    """Feed it the body; `streamed` is false where the server answered with one JSON document.

    `event_bytes`: the limit where a dialect's events are larger than `EVENT_BYTES`.
    """

    def __init__(self, decoder: Decoder, *, streamed: bool, event_bytes: int | None = None) -> None:
        self._decoder = decoder
        self._event_bytes = event_bytes or EVENT_BYTES
        self._sse = SseDecoder(max_event_bytes=self._event_bytes) if streamed else None
        self._document = bytearray()
        self._is_quiet = False
        self._halves = HalfJoiner()

    @property
    def ended(self) -> bool:
        """Whether the terminal event has been returned; nothing more will come."""
        return self._decoder.ended

    @property
    def is_finished(self) -> bool:
        """Whether the finish reason has come: then only counts and the end of the body can follow."""
        return self._decoder.is_finished

    @property
    def is_quiet(self) -> bool:
        """Whether the last piece was comments alone: a server that is alive, and says nothing."""
        return self._is_quiet

    def feed(self, piece: bytes) -> list[BackendEvent]:
        """What this piece completes."""
        decoder = self._decoder
        self._is_quiet = False
        if decoder.ended:
            return []
        if self._sse is None:
            self._document += piece
            return self._fail_by_size() if len(self._document) > self._event_bytes else []
        events: list[BackendEvent] = []
        try:
            told = self._sse.feed(piece)
            self._is_quiet = not told and self._sse.is_quiet
            for event in told:
                events += self._fail_by(event.data) if event.event == "error" else self._decode(event.data)
        except SseTooLargeError:
            events += self._fail_by_size()
        return events

    def close(self) -> list[BackendEvent]:
        """The body has ended: what is left of it, and the terminal event if that has not come."""
        decoder = self._decoder
        if decoder.ended:
            return []
        if self._sse is None:
            return self._decode(bytes(self._document)) + self._end_halves() + decoder.close()
        events: list[BackendEvent] = []
        for event in self._sse.close():
            if event.complete:
                events += self._decode(event.data)
            else:
                events += self._end_halves() + decoder.feed(event.data, complete=False)
        return events + self._end_halves() + decoder.close()

    def break_off(self, error: BackendError) -> list[BackendEvent]:
        """The connection broke; an answer whose end had been seen is whole nevertheless."""
        return self._end_halves() + self._decoder.break_off(error)

    def _decode(self, data: bytes) -> list[BackendEvent]:
        if self._halves.is_idle and b"\\u" not in data:
            # Nearly every payload, a step less for each.
            return self._decoder.feed(data)
        events: list[BackendEvent] = []
        for ready in self._halves.feed(data):
            events += self._decoder.feed(ready)
        return events

    def _end_halves(self) -> list[BackendEvent]:
        events: list[BackendEvent] = []
        for ready in self._halves.end():
            events += self._decoder.feed(ready)
        return events

    def _fail_by(self, error: bytes) -> list[BackendEvent]:
        return self._end_halves() + self._decoder.fail_by(error)

    def _fail_by_size(self) -> list[BackendEvent]:
        return self._end_halves() + self._decoder.fail(
            BackendError("The model server sent an event that is too large to be one.")
        )
