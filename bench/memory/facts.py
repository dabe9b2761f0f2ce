"""Planted facts: what kinds there are, and how one of a kind is made up.

It knows no conversation. Invariant: no two facts of a source hold the same words, so that one found is that one.
"""

import base64
import random
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal[
    "path", "id", "hash", "error code", "URL", "quantity", "sentence", "decision", "done", "open", "image"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: Which words of the conversation hold a fact.
Place: TypeAlias = Literal["user", "assistant", "call", "result"]


def split_words(text: str) -> list[str]:
    """`"a b"` -> `["a", "b"]`: what is chosen from."""
    return text.split()


_AREAS = split_words(
    "billing search auth media export import ledger session gateway mailer index cache audit"
)
_PARTS = split_words("router parser writer schema worker client policy loader buffer cursor token batch")
_ENDINGS = split_words("py ts rs go toml sql yaml md")
_UNITS = split_words("ms s MiB GiB % req/s rows °C kB/s")
_ERRORS = split_words("ECONN EPERM TS PGSQL E RUSTC AUTH HTTP")
_COLOURS = split_words("amber violet crimson teal ivory olive copper indigo maroon silver")
_BEASTS = split_words("heron badger lynx otter falcon marten weasel plover beaver curlew")
#: Width and height, multiples of eight; and how many points are drawn by chance.
_PNG_SIZE = (1400, 1400)
_PNG_POINTS = 160


@dataclass(frozen=True)
class Fact:
    """Words that must not be lost. `value` stands as it is in one item: no quotes, no line breaks."""

    kind: Kind
    value: str
    place: Place


class FactSource:
    """Makes facts up, one after another."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._made: set[str] = set()
        self._makers: dict[Kind, Callable[[], str]] = {
            "path": self._make_path,
            "id": self._make_id,
            "hash": lambda: self._hex(self._chance.choice((40, 12))),
            "error code": lambda: f"{self._pick(_ERRORS)}-{self._chance.randrange(10_000, 99_999)}",
            "URL": self._make_url,
            "quantity": self._make_quantity,
            "sentence": self._make_sentence,
            "decision": self._make_decision,
            "done": lambda: (
                f"Done: the {self._name()} of {self._pick(_AREAS)} is migrated and its tests pass."
            ),
            "open": lambda: f"Still open: the {self._name()} of {self._pick(_AREAS)} has no rollback yet.",
            "image": self._make_image,
        }

    def make(self, kind: Kind, place: Place) -> Fact:
        """A fact that was not made before."""
        while (value := self._makers[kind]()) in self._made:
            pass
        self._made.add(value)
        return Fact(kind, value, place)

    def _pick(self, words: list[str]) -> str:
        return self._chance.choice(words)

    def _hex(self, digits: int) -> str:
        return f"{self._chance.getrandbits(4 * digits):0{digits}x}"

    def _name(self) -> str:
        """Words that are in no other fact."""
        number = self._chance.randrange(1_000, 9_999)
        return f"{self._pick(_COLOURS)} {self._pick(_BEASTS)} {self._pick(_PARTS)} {number}"

    def _make_path(self) -> str:
        folder = "/".join(self._chance.sample(_AREAS, self._chance.randrange(1, 4)))
        name = f"{self._pick(_PARTS)}_{self._pick(_BEASTS)}{self._chance.randrange(100, 999)}"
        return f"src/{folder}/{name}.{self._pick(_ENDINGS)}"

    def _make_id(self) -> str:
        forms = (
            f"req-{self._hex(20)}",
            f"{self._hex(8)}-{self._hex(4)}-4{self._hex(3)}-a{self._hex(3)}-{self._hex(12)}",
            f"{self._pick(_AREAS).upper()}-{self._chance.randrange(10_000, 99_999)}",
        )
        return self._chance.choice(forms)

    def _make_url(self) -> str:
        host = f"{self._pick(_BEASTS)}.{self._pick(_AREAS)}.example.com"
        return f"https://{host}/{self._pick(_PARTS)}/{self._hex(6)}?page={self._chance.randrange(10, 99)}"

    def _make_quantity(self) -> str:
        whole, part = self._chance.randrange(100, 9_999), self._chance.randrange(10, 99)
        return f"{whole}.{part} {self._pick(_UNITS)}"

    def _make_sentence(self) -> str:
        """What a user says, and must be kept as it was said."""
        forms = (
            "Never touch the {} without asking me first, whatever the linter says.",
            "I want the {} to answer in the old format until the end of March.",
            "Please keep the {} as slow as it is; two customers depend on it.",
            "The {} has to work without a network, we ship it on ships.",
        )
        return self._chance.choice(forms).format(self._name())

    def _make_decision(self) -> str:
        forms = (
            "I decided to keep the {} in one transaction instead of a queue.",
            "We go with the {} because the alternative failed under load.",
            "The {} stays synchronous; an async version was tried and rejected.",
        )
        return self._chance.choice(forms).format(self._name())

    def _make_image(self) -> str:
        """A PNG of a large screen in black and white, some points of it by chance, as a data URL."""
        width, height = _PNG_SIZE
        points = self._chance.randbytes(_PNG_POINTS // 8).ljust(width // 8, b"\0")
        rows = b"\0" + points + (b"\0" + bytes(width // 8)) * (height - 1)
        head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
        chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
        png = b"\x89PNG\r\n\x1a\n" + b"".join(_make_chunk(name, data) for name, data in chunks)
        return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _make_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
