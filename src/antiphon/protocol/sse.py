"""Server-sent events: bytes to events and back.

It knows the framing alone: not what an event means, and no transport. Invariant: the events that come
out do not depend on where the bytes were cut. Every end of line of the standard is read (LF, CRLF, CR).
"""

from typing import Final

import msgspec

#: The end of a stream, as OpenAI's clients expect it.
DONE: Final = b"data: [DONE]\n\n"

#: The default limit of one event; a response with large images in its terminal event still fits.
MAX_EVENT_BYTES: Final = 64 * 1024 * 1024

#: The name of an event whose block did not name it.
DEFAULT_EVENT: Final = "message"

#: The name given to a line of JSON where server-sent events should be: some servers report errors so.
STRAY_EVENT: Final = "stray"

_BOM: Final = b"\xef\xbb\xbf"


class SseEvent(msgspec.Struct, frozen=True, gc=False):
    """One event; not `complete` when the stream ended before the blank line that closes it."""

    event: str
    data: bytes
    complete: bool = True


class SseTooLargeError(ValueError):
    """One server-sent event is larger than the limit."""


def encode_sse(event_type: str, data: bytes) -> bytes:
    """One event as a frame; `data` is one line, as JSON without line breaks is."""
    return b"event: %b\ndata: %b\n\n" % (event_type.encode(), data)


class SseDecoder:
    """Turns chunks of bytes into events; a block without data is no event.

    The limit counts the bytes of one line and of one event's data; over it `SseTooLargeError` is raised
    and the decoder is of no further use.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._at_start = True
        #: The last chunk ended with CR, so an LF that comes first belongs to it.
        self._after_cr = False
        #: Pieces of a line whose end has not come yet: joined once, when it comes.
        self._line: list[bytes] = []
        self._line_bytes = 0
        #: What the lines of an unfinished block said.
        self._event = ""
        self._data: list[bytes] = []
        self._data_bytes = 0
        #: Nothing of an earlier chunk waits for this one.
        self._is_clean = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that this chunk completes."""
        if (
            self._is_clean
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and chunk.count(b"\n") == 2
            and b"\r" not in chunk
            and len(chunk) <= self._max_event_bytes
        ):
            # One whole event, alone: what a server that streams token by token sends.
            return [SseEvent(DEFAULT_EVENT, chunk[6:-2])]
        events = self._feed(chunk)
        self._is_clean = not (self._at_start or self._after_cr or self._line or self._data or self._event)
        return events

    def _feed(self, chunk: bytes) -> list[SseEvent]:
        if self._at_start:
            chunk = self._skip_bom(chunk)
        if not chunk:
            return []
        if self._after_cr:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._line:
            if b"\n" not in chunk:
                self._keep_line(chunk)
                return []
            chunk = b"".join([*self._line, chunk])
            self._line.clear()
            self._line_bytes = 0
        events: list[SseEvent] = []
        if not self._data and not self._event and len(chunk) <= self._max_event_bytes:
            end = chunk.rfind(b"\n\n")
            if end >= 0:
                self._take_blocks(chunk[:end].split(b"\n\n"), events)
                chunk = chunk[end + 2 :]
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            self._take_line(line, events)
        if rest:
            self._keep_line(rest)
        return events

    @property
    def is_quiet(self) -> bool:
        """Whether nothing waits for its end but a comment, which says nothing."""
        return not self._data and not self._event and (not self._line or self._line[0].startswith(b":"))

    def close(self) -> list[SseEvent]:
        """The event that the end of the stream cut off, if there is one: marked as not complete."""
        events: list[SseEvent] = []
        if self._line:
            self._take_line(b"".join(self._line), events)
            self._line.clear()
        self._end_block(events)
        return [SseEvent(event.event, event.data, complete=False) for event in events]

    def _skip_bom(self, chunk: bytes) -> bytes:
        chunk = b"".join([*self._line, chunk])
        self._line.clear()
        self._line_bytes = 0
        if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
            self._line = [chunk] if chunk else []
            return b""
        self._at_start = False
        return chunk.removeprefix(_BOM)

    def _keep_line(self, piece: bytes) -> None:
        self._line.append(piece)
        self._line_bytes += len(piece)
        self._check_size(self._line_bytes)

    def _check_size(self, size: int) -> None:
        if size > self._max_event_bytes:
            raise SseTooLargeError(f"a server-sent event has more than {self._max_event_bytes} bytes")

    def _take_blocks(self, blocks: list[bytes], events: list[SseEvent]) -> None:
        """The usual forms of a whole block without going through its lines one by one."""
        for block in blocks:
            breaks = block.count(b"\n")
            if breaks == 0 and block.startswith(b"data: "):
                events.append(SseEvent(DEFAULT_EVENT, block[6:]))
                continue
            if breaks == 1 and block.startswith(b"event: "):
                head, found, data = block.partition(b"\ndata: ")
                if found and len(head) > len(b"event: "):
                    events.append(SseEvent(head[7:].decode(errors="replace"), data))
                    continue
            for line in block.split(b"\n"):
                self._take_line(line, events)
            self._end_block(events)

    def _take_line(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            self._end_block(events)
            return
        self._check_size(len(line))
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_bytes += len(value) + 1
            self._check_size(self._data_bytes - 1)
        elif field == b"event":
            self._event = value.removeprefix(b" ").decode(errors="replace")
        elif line.startswith(b"{"):
            events.append(SseEvent(STRAY_EVENT, line))

    def _end_block(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent(self._event or DEFAULT_EVENT, b"\n".join(self._data)))
            self._data = []
            self._data_bytes = 0
        self._event = ""
