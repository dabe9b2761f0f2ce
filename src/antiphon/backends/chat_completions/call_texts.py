"""Calls that a model wrote as text -> calls: pure.

Models without tools write `{"name": ..., "arguments": ...}`, bare, in a fence or in `<tool_call>` marks. It
knows the names that were offered and nothing else. Invariant: what turns out to be no call is given back
as the text that it was, nothing of it lost.
"""

import itertools
import json
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec

from antiphon.backends.interface import BackendEvent, CallDelta, TextDelta

#: A text that may be a call is held back until its end is seen, but not more of it than this.
HELD_CHARACTERS = 64_000
#: Calls that a server tells as such are numbered from 0; those in texts from here.
FIRST_SLOT = 1_000
#: How a block begins -> how it ends. The longer ones first: one is the beginning of the others.
_BLOCKS = {"```json": "```", "```tool_call": "```", "```": "```", "<tool_call>": "</tool_call>"}
_FIRST_KEYS = ('"name"', '"arguments"', '"parameters"')
_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})
_BLANKS = " \t\r\n"

_decoder = json.JSONDecoder()


class CallText(NamedTuple):
    """A call as it was written; `arguments` is JSON text."""

    name: str
    arguments: str


def may_begin_call(text: str) -> bool:
    """Whether a text can still become a call: true for every beginning of one."""
    rest = text.lstrip()
    for opener in _BLOCKS:
        if opener.startswith(rest):
            return True
        if rest.startswith(opener):
            rest = rest[len(opener) :]
            break
    rest = rest.lstrip(_BLANKS + "[")
    if not rest:
        return True
    if rest[0] != "{":
        return False
    rest = rest[1:].lstrip()
    return any(key.startswith(rest) or rest.startswith(key) for key in _FIRST_KEYS)


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


class CallSalvager:
    """Reads free text: blocks that begin a line and are calls become calls, the rest stays text."""

    def __init__(self, names: Collection[str], slots: "itertools.count[int]") -> None:
        self._names = names
        self._slots = slots
        self._text = ""
        self._at_line_start = True

    def feed(self, text: str) -> list[BackendEvent]:
        """The events of a piece of text."""
        self._text += text
        events: list[BackendEvent] = []
        while self._text and self._step(events):
            pass
        return events

    def close(self) -> list[BackendEvent]:
        """What is still held back: a call whose block was not closed, or text."""
        text, self._text = self._text, ""
        if not text:
            return []
        calls = read_calls(_open_block(text)[0], self._names)
        return self._make_calls(calls) if calls else [TextDelta(text)]

    def _step(self, events: list[BackendEvent]) -> bool:
        text = self._text
        if self._at_line_start and len(text) <= HELD_CHARACTERS and may_begin_call(text):
            end, inner = _find_block(text)
            if not end:
                return False
            calls = read_calls(inner, self._names)
            events += self._make_calls(calls) if calls else [TextDelta(text[:end])]
            self._at_line_start = False
        else:
            end = text.find("\n") + 1 or len(text)
            events.append(TextDelta(text[:end]))
            self._at_line_start = text[end - 1] == "\n"
        self._text = text[end:]
        return True

    def _make_calls(self, calls: list[CallText]) -> list[BackendEvent]:
        return [CallDelta(next(self._slots), "", call.name, call.arguments) for call in calls]


def _open_block(text: str) -> tuple[str, str]:
    """What stands behind the beginning of a block, and how the block ends ("": with its JSON)."""
    rest = text.lstrip()
    for opener, closer in _BLOCKS.items():
        if rest.startswith(opener):
            return rest[len(opener) :], closer
    return rest, ""


def _find_block(text: str) -> tuple[int, str]:
    """The end of the block that a text begins with, and what is inside; 0: the end has not come."""
    rest, closer = _open_block(text)
    start = len(text) - len(rest)
    if closer:
        inner, found, _ = rest.partition(closer)
        return (start + len(inner) + len(closer), inner) if found else (0, "")
    try:
        _, end = _decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        return 0, ""
    return end, text[start:end]


class NativeSalvager:
    """For servers that take tools, with models that write their call as text nevertheless.

    An answer is taken for a call only if it is nothing else; any other text passes as it comes.
    """

    #: See `SchemaReader.cut`: here the server's word holds.
    cut = False

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held: list[BackendEvent] = []
        self._text = ""
        self._passing = False

    def read(self, events: list[BackendEvent]) -> list[BackendEvent]:
        """The events that can go on; text is held back while it may become a call."""
        if self._passing:
            return events
        self._held += events
        self._text += "".join([event.text for event in events if type(event) is TextDelta])
        if not any(type(event) is CallDelta for event in events):
            if not self._text:
                return self._release()
            if len(self._text) <= HELD_CHARACTERS and may_begin_call(self._text):
                return []
        self._passing = True
        return self._release()

    def close(self) -> list[BackendEvent]:
        """What is still held back, as what it turned out to be."""
        if self._passing or not self._text.strip():
            return self._release()
        salvager = CallSalvager(self._names, itertools.count(FIRST_SLOT))
        found = salvager.feed(self._text) + salvager.close()
        calls = [event for event in found if type(event) is CallDelta]
        rest = "".join([event.text for event in found if type(event) is TextDelta])
        if rest.strip() or not calls:
            return self._release()
        others = [event for event in self._release() if type(event) is not TextDelta]
        return [*others, *calls]

    def _release(self) -> list[BackendEvent]:
        held, self._held = self._held, []
        return held
