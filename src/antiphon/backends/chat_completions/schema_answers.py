"""An answer in the form that `schema_tools` asked for -> text and calls, while it arrives: pure.

It reads `{"reply": ...}`, `{"name": ..., "arguments": ...}` and lists of the latter, at any cut of the text.
Invariant: nothing of an answer in another form is lost; it is read as free text.
"""

import itertools
import json
import re
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from antiphon.backends.chat_completions.call_texts import FIRST_SLOT, CallSalvager
from antiphon.backends.chat_completions.parameters import LIST_ITEMS, STRING_CHARACTERS
from antiphon.backends.interface import BackendEvent, CallDelta, TextDelta

#: A key or a function's name is not longer than this; what is longer is none.
NAME_CHARACTERS = 500

_BLANKS = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_PLAIN = re.compile(r'[^"\\]+')
_SCALAR = re.compile(r'[^ \t\r\n"{}\[\],]+')
_LOW_HALF = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_LOW_HALF_BEGUN = re.compile(r"(?:\\(?:u(?:[dD](?:[c-fC-F][0-9a-fA-F]{0,2})?)?)?)?\Z")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"
}  # fmt: skip
#: Stands for half a character, which no text can hold.
_REPLACEMENT = "\ufffd"


class _Entry:
    """One object of the answer."""

    __slots__ = ("known", "name", "pieces", "slot")

    def __init__(self) -> None:
        #: Whether it has turned out to be a reply or a call of an offered function.
        self.known = False
        self.name = ""
        self.slot = -1
        self.pieces: list[str] = []


class SchemaReader:
    """Feed it events; text comes back as what it says. `json_reply`: a reply is any JSON value, given as text."""

    def __init__(self, names: Collection[str], *, json_reply: bool) -> None:
        self._names = names
        self._json_reply = json_reply
        self._slots = itertools.count(FIRST_SLOT)
        self._salvager = CallSalvager(names, self._slots)
        self._text = ""
        self._at = 0
        self._step = "start"
        #: What has been read of an entry that is not known yet.
        self._held: list[str] = []
        self._entry = _Entry()
        self._in_list = False
        self._any_known = False
        self._key = ""
        self._sink = ""
        self._depth = 0
        self._in_string = False
        #: Whether the answer was cut off: it has no end, or something in it is as long as we allow.
        self.cut = False

    def read(self, events: list[BackendEvent]) -> list[BackendEvent]:
        """The events with their texts read. Log probabilities of JSON are none of the text's."""
        passed: list[BackendEvent] = []
        for event in events:
            if type(event) is TextDelta:
                passed += self._feed(event.text)
            else:
                passed.append(event)
        return passed

    def close(self) -> list[BackendEvent]:
        """The answer is over: what is held back, as text."""
        events: list[BackendEvent] = []
        if self._step == "free":
            return self._salvager.close()
        rest = "".join(self._held) + self._text
        if self._entry.known or (self._any_known and not rest.strip()):
            # A part of an escape may be left; it is no text.
            self.cut = self.cut or self._entry.known or self._in_list
        elif rest:
            events += self._salvager.feed(rest) + self._salvager.close()
        self._step = "free"
        self._text = ""
        return events

    def _feed(self, text: str) -> list[BackendEvent]:
        self._text += text
        events: list[BackendEvent] = []
        while self._at < len(self._text) and _STEPS[self._step](self, events):
            pass
        self._text = self._text[self._at :]
        self._at = 0
        return events

    def _take(self, end: int) -> str:
        piece = self._text[self._at : end]
        self._at = end
        if not self._entry.known:
            self._held.append(piece)
        return piece

    def _peek(self) -> str:
        """The next character that is not blank; "" while there is none."""
        match = _BLANKS.match(self._text, self._at)
        if match is not None and match.end() > self._at:
            self._take(match.end())
        return self._text[self._at] if self._at < len(self._text) else ""

    def _give_up(self, events: list[BackendEvent]) -> bool:
        """This is not what was asked for: from here on it is free text."""
        rest = "".join(self._held) + self._text[self._at :]
        self._held = []
        self._at = len(self._text)
        self._step = "free"
        self._entry = _Entry()
        events += self._salvager.feed(rest)
        return False

    def _read_free(self, events: list[BackendEvent]) -> bool:
        rest = self._text[self._at :]
        self._at = len(self._text)
        events += self._salvager.feed(rest)
        return False

    def _read_start(self, events: list[BackendEvent]) -> bool:
        """Before an entry: `{`, and around and between the entries of a list `[`, `,` and `]`."""
        sign = self._peek()
        if not sign:
            return False
        if sign == "{":
            self._take(self._at + 1)
            self._step = "key"
        elif sign == "[" and not self._in_list:
            self._take(self._at + 1)
            self._in_list = True
        elif sign in ",]" and self._in_list and self._any_known:
            self._take(self._at + 1)
            self._in_list = sign == ","
            self._held = []
        else:
            return self._give_up(events)
        return True

    def _read_key(self, events: list[BackendEvent]) -> bool:
        sign = self._peek()
        if not sign:
            return False
        if sign == ",":
            self._take(self._at + 1)
            return True
        if sign == "}":
            return self._end_entry(events)
        key = self._read_name()
        if key is None:
            return self._wait_or_give_up(events)
        self._key = key
        self._step = "colon"
        return True

    def _read_colon(self, events: list[BackendEvent]) -> bool:
        sign = self._peek()
        if sign == ":":
            self._take(self._at + 1)
            self._step = "value"
            return True
        return self._give_up(events) if sign else False

    def _read_value(self, events: list[BackendEvent]) -> bool:
        sign = self._peek()
        if not sign:
            return False
        if self._key == "name" and not self._entry.name:
            return self._read_function(events)
        if self._key == "reply":
            self._know()
            self._sink = "reply"
        elif self._key in ("arguments", "parameters") and not self._entry.pieces and sign != "n":
            self._sink = "arguments"
        else:
            self._sink = ""
        self._depth = 0
        self._in_string = False
        self._step = "raw"
        if sign == '"' and (self._sink == "arguments" or (self._sink == "reply" and not self._json_reply)):
            self._take(self._at + 1)
            self._step = "string"
        return True

    def _read_function(self, events: list[BackendEvent]) -> bool:
        """The name of the function; streaming can begin once it is one that was offered."""
        start = self._at
        name = self._read_name()
        if name is None:
            return self._wait_or_give_up(events)
        if name not in self._names:
            if self._entry.known:
                self._held = [self._text[start : self._at]]
            return self._give_up(events)
        entry = self._entry
        self._know()
        entry.name = name
        entry.slot = next(self._slots)
        events.append(CallDelta(entry.slot, "", name, "".join(entry.pieces)))
        self._step = "key"
        return True

    def _read_name(self) -> str | None:
        """A whole short string, decoded; None: there is none, or not yet."""
        match = _STRING.match(self._text, self._at)
        if match is None:
            return None
        try:
            value = json.loads(match[0], strict=False)
        except ValueError:
            return None
        self._take(match.end())
        return str(value)

    def _wait_or_give_up(self, events: list[BackendEvent]) -> bool:
        begun = self._text[self._at] == '"' and _STRING.match(self._text, self._at) is None
        if begun and len(self._text) - self._at <= NAME_CHARACTERS:
            return False
        return self._give_up(events)

    def _know(self) -> None:
        self._entry.known = self._any_known = True
        self._held = []

    def _end_entry(self, events: list[BackendEvent]) -> bool:
        entry = self._entry
        if not entry.known:
            return self._give_up(events)
        self._take(self._at + 1)
        if entry.name and not entry.pieces:
            events.append(CallDelta(entry.slot, "", entry.name, "{}"))
        self.cut = self.cut or _is_at_limit("".join(entry.pieces))
        self._entry = _Entry()
        self._step = "start"
        return True

    def _read_string(self, events: list[BackendEvent]) -> bool:
        """A string whose text is wanted, not its JSON."""
        text = self._text
        pieces: list[str] = []
        while self._at < len(text):
            sign = text[self._at]
            if sign == '"':
                self._take(self._at + 1)
                self._step = "key"
                break
            if sign == "\\":
                found = read_escape(text, self._at)
                if found is None:
                    break
                pieces.append(found[0])
                self._take(found[1])
            elif match := _PLAIN.match(text, self._at):
                pieces.append(self._take(match.end()))
        self._pour("".join(pieces), events)
        return self._step == "key"

    def _read_raw(self, events: list[BackendEvent]) -> bool:
        """A value whose JSON is wanted, without the blanks between its parts."""
        pieces: list[str] = []
        while self._at < len(self._text) and self._step == "raw":
            piece = self._read_string_part() if self._in_string else self._read_part()
            if piece is None:
                break
            pieces.append(piece)
        self._pour("".join(pieces), events)
        return self._step == "key"

    def _read_string_part(self) -> str | None:
        text, at = self._text, self._at
        if text[at] == "\\":
            return self._take(at + 2) if at + 1 < len(text) else None
        if text[at] == '"':
            self._in_string = False
            if not self._depth:
                self._step = "key"
            return self._take(at + 1)
        match = _PLAIN.match(text, at)
        return self._take(match.end()) if match is not None else None

    def _read_part(self) -> str:
        sign = self._text[self._at]
        if not self._depth and sign in ",}]":
            # A number or a word has no sign of its own at its end.
            self._step = "key"
            return ""
        if sign in " \t\r\n":
            self._take(self._at + 1)
            return ""
        if match := _SCALAR.match(self._text, self._at):
            return self._take(match.end())
        if sign in "{[":
            self._depth += 1
        elif sign in "}]":
            self._depth -= 1
            if not self._depth:
                self._step = "key"
        self._in_string = sign == '"'
        return self._take(self._at + 1)

    def _pour(self, piece: str, events: list[BackendEvent]) -> None:
        if not piece or not self._sink:
            return
        if self._sink == "reply":
            events.append(TextDelta(piece))
            return
        entry = self._entry
        entry.pieces.append(piece)
        if entry.name:
            events.append(CallDelta(entry.slot, "", entry.name, piece))


#: By name, not by bound methods: a reader that holds those is a cycle, left to the collector.
_STEPS: dict[str, Callable[[SchemaReader, list[BackendEvent]], bool]] = {
    "start": SchemaReader._read_start,
    "key": SchemaReader._read_key,
    "colon": SchemaReader._read_colon,
    "value": SchemaReader._read_value,
    "string": SchemaReader._read_string,
    "raw": SchemaReader._read_raw,
    "free": SchemaReader._read_free,
}


def read_escape(text: str, at: int) -> tuple[str, int] | None:
    r"""The character of the escape at `at`, and where it ends; None: not all of it is here.

    Two halves of a character are one; half of one is U+FFFD: `\ud83d\ude00` -> U+1F600.
    """
    if at + 1 >= len(text):
        return None
    sign = text[at + 1]
    if sign != "u":
        return _ESCAPES.get(sign, text[at : at + 2]), at + 2
    digits = text[at + 2 : at + 6]
    if len(digits) < 4:
        return None
    if not _HEX.fullmatch(digits):
        return "\\u", at + 2
    code = int(digits, 16)
    if not 0xD800 <= code <= 0xDFFF:
        return chr(code), at + 6
    if code <= 0xDBFF:
        if low := _LOW_HALF.match(text, at + 6):
            return chr(0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00), at + 12
        if _LOW_HALF_BEGUN.match(text, at + 6):
            return None
    return _REPLACEMENT, at + 6


def _is_at_limit(arguments: str) -> bool:
    """Whether a part of the arguments is as long as the schema lets it be, hence most likely cut off."""
    if len(arguments) < LIST_ITEMS:
        return False
    try:
        return _reaches_limit(msgspec.json.decode(arguments))
    except (msgspec.DecodeError, RecursionError):
        return False


def _reaches_limit(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) == STRING_CHARACTERS
    if isinstance(value, list):
        return len(value) == LIST_ITEMS or any(map(_reaches_limit, value))
    if isinstance(value, dict):
        return any(map(_reaches_limit, value.values()))
    return False
