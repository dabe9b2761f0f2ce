"""Calls that a model wrote as text -> calls: pure.

Models without tools write `{"name": ..., "arguments": ...}`, bare, in a fence or in `<tool_call>` marks. It
knows the names that were offered and nothing else. Invariant: what turns out to be no call is given back
as the text that it was, nothing of it lost.
"""

import itertools
import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from antiphon.backends.interface import BackendEvent, CallDelta, TextDelta

#: A text that may be a call is held back until its end is seen, but not more of it than this.
HELD_CHARACTERS = 64_000
#: What is held back and not longer than this is looked at again with each piece.
SHORT_CHARACTERS = 1_000
#: Calls that a server tells as such are numbered from 0; those in texts from here.
FIRST_SLOT = 1_000
#: How a block begins -> how it ends. The longer ones first: one is the beginning of the others.
_BLOCKS = {"```json": "```", "```tool_call": "```", "```": "```", "<tool_call>": "</tool_call>"}
_FIRST_KEYS = ('"name"', '"arguments"', '"parameters"')
_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})
_BLANKS = " \t\r\n"
_SPACE = re.compile(r"\s*")
#: What stands before the first call of a block.
_OPENING = re.compile(r"(?:```json|```tool_call|```|<tool_call>)?[ \t\r\n\[]*")
#: The longest word that a block or an object of a call begins with.
_OPENER_CHARACTERS = len('"parameters"')

_decoder = json.JSONDecoder()


class CallText(NamedTuple):
    """A call as it was written; `arguments` is JSON text."""

    name: str
    arguments: str


def may_begin_call(text: str, at: int = 0) -> bool:
    """Whether what stands at `at` can still become a call: true for every beginning of one."""
    start = _skip(_SPACE, text, at)
    begun = text[start : start + _OPENER_CHARACTERS]
    if any(opener.startswith(begun) for opener in _BLOCKS):
        return True
    start = _skip(_OPENING, text, start)
    if start == len(text):
        return True
    if text[start] != "{":
        return False
    start = _skip(_SPACE, text, start + 1)
    begun = text[start : start + _OPENER_CHARACTERS]
    return any(key.startswith(begun) or begun.startswith(key) for key in _FIRST_KEYS)


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found is not None else at


def read_calls(text: str, names: Collection[str]) -> list[CallText] | None:
    """The calls that a text consists of, if it consists of calls of offered functions alone.

    `{"name":"f","arguments":{"a":1}}` -> `[CallText("f", '{"a":1}')]`
    """
    calls: list[CallText] = []
    at = _skip_blanks(text, 0)
    while at < len(text):
        try:
            value, at = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        for entry in value if isinstance(value, list) else (value,):
            call = _read_call(entry, names)
            if call is None:
                return None
            calls.append(call)
        at = _skip_blanks(text, at)
    return calls or None


def _read_call(value: Any, names: Collection[str]) -> CallText | None:
    if not isinstance(value, dict) or not _KEYS.issuperset(value):
        return None
    name = value.get("name")
    if not isinstance(name, str) or name not in names:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = _decoder.decode(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    # Python's own encoder: it takes whatever its decoder gave, lone halves of characters included.
    return CallText(name, json.dumps(arguments, separators=(",", ":"), ensure_ascii=not _is_sound(arguments)))


def _is_sound(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, RecursionError, OverflowError):
        return False
    return True


def _skip_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANKS:
        at += 1
    return at


class _Held:
    """A text that grows piece by piece and is looked at again only when that pays: linear, however it is cut."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._look_at = 1

    def add(self, text: str) -> bool:
        """One more piece; whether to look at the whole now."""
        self._pieces.append(text)
        self._size += len(text)
        return self._size >= self._look_at

    def take(self) -> str:
        """The whole text, which is then no longer held."""
        text = "".join(self._pieces)
        self._pieces.clear()
        self._size = 0
        self._look_at = 1
        return text

    def keep(self, text: str) -> None:
        """It was looked at in vain."""
        self._pieces = [text]
        self._size = len(text)
        # A short one is looked at with each piece, so that nobody waits for what it turns out to be.
        self._look_at = self._size + 1 + (self._size // 16 if self._size > SHORT_CHARACTERS else 0)


class CallSalvager:
    """Reads free text: blocks that begin a line and are calls become calls, the rest stays text."""

    def __init__(self, names: Collection[str], slots: "itertools.count[int]") -> None:
        self._names = names
        self._slots = slots
        self._held = _Held()
        self._at_line_start = True

    def feed(self, text: str) -> list[BackendEvent]:
        """The events of a piece of text."""
        if not self._held.add(text):
            return []
        whole, at = self._held.take(), 0
        events: list[BackendEvent] = []
        while at < len(whole):
            end = self._step(whole, at, events)
            if end == at:
                self._held.keep(whole[at:])
                break
            at = end
        return events

    def close(self) -> list[BackendEvent]:
        """What is still held back: a call whose block was not closed, or text."""
        text = self._held.take()
        events: list[BackendEvent] = []
        at = 0
        while at < len(text):
            end = self._step(text, at, events)
            if end == at:
                calls = read_calls(text[_open_block(text, at)[0] :], self._names)
                return [*events, *(self._make_calls(calls) if calls else [TextDelta(text[at:])])]
            at = end
        return events

    def _step(self, whole: str, at: int, events: list[BackendEvent]) -> int:
        """Read one block or some lines at `at`; where they end, or `at` itself where more must come."""
        if self._at_line_start and may_begin_call(whole, at):
            end, inner = _find_block(whole, at)
            if end:
                calls = read_calls(inner, self._names)
                events += self._make_calls(calls) if calls else [TextDelta(whole[at:end])]
                self._at_line_start = False
                return end
            if len(whole) - at <= HELD_CHARACTERS:
                return at
        # Every line of a run of blank ones begins nothing that the first of them does not begin.
        start = _skip(_SPACE, whole, at) if self._at_line_start else at
        end = whole.find("\n", start) + 1 or len(whole)
        events.append(TextDelta(whole[at:end]))
        self._at_line_start = whole[end - 1] == "\n"
        return end

    def _make_calls(self, calls: list[CallText]) -> list[BackendEvent]:
        return [CallDelta(next(self._slots), "", call.name, call.arguments) for call in calls]


def _open_block(text: str, at: int) -> tuple[int, str]:
    """Where the inside of the block at `at` begins, and how the block ends ("": with its JSON)."""
    start = _skip(_SPACE, text, at)
    for opener, closer in _BLOCKS.items():
        if text.startswith(opener, start):
            return start + len(opener), closer
    return start, ""


def _find_block(text: str, at: int) -> tuple[int, str]:
    """Where the block at `at` ends, and what is inside; 0: its end has not come, or it is too long."""
    start, closer = _open_block(text, at)
    if closer:
        end = text.find(closer, start, at + HELD_CHARACTERS)
        return (end + len(closer), text[start:end]) if end >= 0 else (0, "")
    try:
        # No more than this: what a failure costs grows with what stands before it.
        _, size = _decoder.raw_decode(text[start : at + HELD_CHARACTERS])
    except (ValueError, RecursionError):
        return 0, ""
    return start + size, text[start : start + size]


class NativeSalvager:
    """For servers that take tools, with models that write their call as text nevertheless.

    An answer is taken for a call only if it is nothing else; any other text passes as it comes.
    """

    #: See `SchemaReader.cut`: here the server's word holds.
    cut = False

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held: list[BackendEvent] = []
        self._text = _Held()
        self._has_text = False
        self._passing = False

    def read(self, events: list[BackendEvent]) -> list[BackendEvent]:
        """The events that can go on; text is held back while it may become a call."""
        if self._passing:
            return events
        self._held += events
        text = "".join([event.text for event in events if type(event) is TextDelta])
        self._has_text = self._has_text or bool(text)
        if not any(type(event) is CallDelta for event in events):
            if not self._has_text:
                return self._release()
            if not self._text.add(text):
                return []
            whole = self._text.take()
            if len(whole) <= HELD_CHARACTERS and may_begin_call(whole):
                self._text.keep(whole)
                return []
        self._passing = True
        return self._release()

    def close(self) -> list[BackendEvent]:
        """What is still held back, as what it turned out to be."""
        text = self._text.take()
        if self._passing or not text.strip():
            return self._release()
        salvager = CallSalvager(self._names, itertools.count(FIRST_SLOT))
        found = salvager.feed(text) + salvager.close()
        calls = [event for event in found if type(event) is CallDelta]
        rest = "".join([event.text for event in found if type(event) is TextDelta])
        if rest.strip() or not calls:
            return self._release()
        others = [event for event in self._release() if type(event) is not TextDelta]
        return [*others, *calls]

    def _release(self) -> list[BackendEvent]:
        held, self._held = self._held, []
        return held
