"""The raw text of a custom tool out of the JSON that a chat model wraps it in, while it arrives.

Arguments of any other shape than `{"input": "..."}` are the raw text themselves. It knows no items and no
events. Invariant: the pieces that it gives add up to the same text, however the arguments are split.
"""

import re

#: What stands before the text; whitespace as JSON has it.
_HEAD = re.compile(r'[ \t\r\n]*\{[ \t\r\n]*"input"[ \t\r\n]*:[ \t\r\n]*"')
#: Blanks in it are matched one by one, so that any beginning of a head is recognised.
_HEAD_TOKENS = ("{", '"input"', ":", '"')
_BLANKS = " \t\r\n"
#: A head is not longer than this; what is longer is the raw text itself.
HEAD_CHARACTERS = 256
_TAIL = "}"
#: What of a wrong tail is told.
_TAIL_CHARACTERS = 100
_SIMPLE = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PLAIN = re.compile(r'[^"\\]+')
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPE_LENGTH = 6
#: Half a surrogate pair alone is no text.
_REPLACEMENT = "\ufffd"


class InputDecoder:
    """Feed it pieces of arguments; it gives pieces of the text."""

    __slots__ = ("_rest", "_state", "problem")

    def __init__(self) -> None:
        self._state = "head"
        self._rest = ""
        #: What was not quite right, once it is known; "" while all is well.
        self.problem = ""

    def feed(self, piece: str) -> str:
        """The text that has become certain."""
        if self._state == "raw":
            return piece
        if self._state == "tail":
            self._read_tail(piece)
            return ""
        self._rest += piece
        if self._state == "head":
            self._read_head()
        if self._state == "raw":
            told, self._rest = self._rest, ""
            return told
        return self._read_text() if self._state == "text" else ""

    def end(self, *, cut: bool) -> str:
        """What is left when no more comes; `cut` says that more was meant to come."""
        left, self._rest = self._rest, ""
        if self._state == "head":
            self._state = "raw"
            # A head that was only begun says nothing yet; when it was cut, it was on its way to be one.
            return "" if cut and _HEAD_TOKENS[0] in left else left
        if self._state == "text":
            if cut:
                return ""
            self.problem = "its end was missing"
            return _REPLACEMENT if left.startswith("\\u") else left
        if self._state == "tail" and not cut and left != _TAIL:
            self.problem = f"after the text came: {left}"
        return ""

    def _read_tail(self, piece: str) -> None:
        """Keep what tells whether the tail is right, and no more of a wrong one than is told."""
        self._rest = (self._rest + piece).strip(_BLANKS)[:_TAIL_CHARACTERS]

    def _read_head(self) -> None:
        match = _HEAD.match(self._rest, 0, HEAD_CHARACTERS)
        if match is not None:
            self._state = "text"
            self._rest = self._rest[match.end() :]
        elif len(self._rest) >= HEAD_CHARACTERS or not _may_become_head(self._rest):
            self._state = "raw"

    def _read_text(self) -> str:
        told: list[str] = []
        rest, at = self._rest, 0
        while at < len(rest):
            plain = _PLAIN.match(rest, at)
            if plain is not None:
                told.append(plain[0])
                at = plain.end()
                continue
            if rest[at] == '"':
                self._state = "tail"
                self._rest = ""
                self._read_tail(rest[at + 1 :])
                return "".join(told)
            text, following = self._read_escape(rest, at)
            if following == at:
                break
            told.append(text)
            at = following
        self._rest = rest[at:]
        return "".join(told)

    def _read_escape(self, rest: str, at: int) -> tuple[str, int]:
        """An escape's text, and where it ends: where it began when more must come."""
        if at + 1 == len(rest):
            return "", at
        letter = rest[at + 1]
        if letter in _SIMPLE:
            return _SIMPLE[letter], at + 2
        if letter != "u":
            # No escape of JSON: both characters were meant.
            self.problem = "it had an escape that JSON does not know"
            return rest[at : at + 2], at + 2
        digits = rest[at + 2 : at + _ESCAPE_LENGTH]
        if not _HEX4.fullmatch(digits):
            if len(digits) < 4 and re.fullmatch("[0-9a-fA-F]*", digits):
                return "", at
            self.problem = "it had an escape that JSON does not know"
            return rest[at : at + 2], at + 2
        code = int(digits, 16)
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code), at + _ESCAPE_LENGTH
        return self._read_pair(rest, at, code)

    def _read_pair(self, rest: str, at: int, high: int) -> tuple[str, int]:
        second = rest[at + _ESCAPE_LENGTH : at + 2 * _ESCAPE_LENGTH]
        if high < 0xDC00:
            if re.fullmatch(r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", second):
                low = int(second[-4:], 16)
                return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)), at + 2 * _ESCAPE_LENGTH
            if re.fullmatch(r"(\\(u([dD]([c-fC-F][0-9a-fA-F]?)?)?)?)?", second):
                return "", at
        self.problem = "it had half a surrogate pair"
        return _REPLACEMENT, at + _ESCAPE_LENGTH


def _may_become_head(text: str) -> bool:
    """Whether more text could make this the head."""
    at = 0
    for token in _HEAD_TOKENS:
        while at < len(text) and text[at] in _BLANKS:
            at += 1
        left = text[at : at + len(token)]
        if not token.startswith(left):
            return False
        if len(left) < len(token):
            return True
        at += len(token)
    return True


def decode_input(arguments: str) -> str:
    """The raw text in whole arguments: '{"input": "a"}' -> "a"."""
    decoder = InputDecoder()
    return decoder.feed(arguments) + decoder.end(cut=False)
