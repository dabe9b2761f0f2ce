r"""Characters that a server cut in two: `"a\ud83d"` in one payload, `"\ude00b"` in the next.

JSON escapes characters beyond U+FFFF as two halves (RFC 8259 section 7), and servers that send a text token by
token may send one half each time. It knows JSON strings, and no API. Invariant: every payload that it gives can be
decoded as far as escapes go, the texts add up to what was meant, and a half without its other half is U+FFFD.
"""

import re
from typing import Final

_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)
_REPLACEMENT: Final = rb"\ufffd"
_QUOTE: Final = b'"'
#: The length of `\\ud83d`.
_HALF_BYTES: Final = 6


class HalfJoiner:
    """Feed it the payloads of a stream; it gives them back, one late where the next may hold the other half."""

    def __init__(self) -> None:
        self._late: bytes | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no payload waits."""
        return self._late is None

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are ready, in their order."""
        if self._late is None and not _has_half(data):
            return [data]
        late, self._late = self._late, None
        ready: list[bytes] = []
        if late is not None:
            late, data = _move(late, data)
            ready.append(_replace(late))
        if any(_ends_string(data, at) for at, is_high in _find_lone(data) if is_high):
            self._late = data
        else:
            ready.append(_replace(data))
        return ready

    def end(self) -> list[bytes]:
        """What still waits, when nothing more comes."""
        late, self._late = self._late, None
        return [] if late is None else [_replace(late)]


def _has_half(data: bytes) -> bool:
    return b"\\ud" in data or b"\\uD" in data


def _find_lone(data: bytes) -> list[tuple[int, bool]]:
    """Where halves without their other half stand, and whether it is a first half."""
    if not _has_half(data):
        return []
    found: list[tuple[int, bool]] = []
    high_end = -1
    for match in _ESCAPE.finditer(data):
        code = int(match[1], 16) if match[1] else 0
        if 0xD800 <= code <= 0xDBFF:
            found.append((match.start(), True))
            high_end = match.end()
        elif 0xDC00 <= code <= 0xDFFF:
            if match.start() == high_end:
                found.pop()
            else:
                found.append((match.start(), False))
            high_end = -1
    return found


def _ends_string(data: bytes, at: int) -> bool:
    return data[at + _HALF_BYTES : at + _HALF_BYTES + 1] == _QUOTE


def _begins_string(data: bytes, at: int) -> bool:
    # A quote that is part of a text is escaped.
    return data[at - 1 : at] == _QUOTE and data[at - 2 : at - 1] != b"\\"


def _move(late: bytes, data: bytes) -> tuple[bytes, bytes]:
    """The payloads with the first halves at the ends of strings moved to their other halves in the second one."""
    highs = [at for at, is_high in _find_lone(late) if is_high and _ends_string(late, at)]
    lows = [at for at, is_high in _find_lone(data) if not is_high and _begins_string(data, at)]
    pairs = list(zip(highs, lows, strict=False))
    moved = {low: late[high : high + _HALF_BYTES] + data[low : low + _HALF_BYTES] for high, low in pairs}
    return _change(late, {high: b"" for high, _ in pairs}), _change(data, moved)


def _replace(data: bytes) -> bytes:
    return _change(data, {at: _REPLACEMENT for at, _ in _find_lone(data)})


def _change(data: bytes, changes: dict[int, bytes]) -> bytes:
    """The payload with other bytes instead of the halves at these places, which rise."""
    if not changes:
        return data
    pieces: list[bytes] = []
    end = 0
    for at, other in changes.items():
        pieces += (data[end:at], other)
        end = at + _HALF_BYTES
    return b"".join([*pieces, data[end:]])
