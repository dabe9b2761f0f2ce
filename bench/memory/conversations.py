"""Coding conversations as an agent has them, made up from a seed: users, rounds of calls, results of all sizes.

It knows items of the Responses API and no server. Invariants: the same seed gives the same conversation; each fact
stands word for word in an item of the kind that its `place` says; in two only where the same file is read again.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bench.memory.facts import Fact, FactSource, Kind, Place, split_words

Item: TypeAlias = dict[str, Any]
#: The output of a call: text, or parts with an image.
Result: TypeAlias = str | list[Item]

TOOLS: list[Item] = [
    {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {key: {"type": "string"} for key in keys},
            "required": keys,
            "additionalProperties": False,
        },
        "strict": True,
    }
    for name, description, keys in (
        ("read_file", "Read a file of the repository.", ["path"]),
        ("write_file", "Write a file of the repository.", ["path", "content"]),
        ("grep", "Search the repository for a pattern.", ["pattern", "path"]),
        ("run", "Run a command and wait for it.", ["command"]),
        ("wait", "Wait for a job to print something.", ["job"]),
        ("screenshot", "Take a picture of a page.", ["url"]),
    )
]


@dataclass(frozen=True)
class Call:
    """A call and what it gave."""

    name: str
    arguments: dict[str, str]
    result: Result

    @property
    def encoded_arguments(self) -> str:
        """As a model writes them."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Round:
    """What a user said, if it is a round that a user began, and what the model answered to that and to the results."""

    said: str
    answer: str
    calls: tuple[Call, ...]
    #: Data URLs of what the user showed.
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Conversation:
    """Rounds, and the facts in them. The last round has no calls: everything is answered."""

    number: int
    instructions: str
    rounds: tuple[Round, ...]
    facts: tuple[Fact, ...]


#: `tiny` fits the window of a small model.
Size: TypeAlias = Literal["full", "small", "tiny"]
#: Rounds, and the lines of a long result.
_ROUNDS: dict[Size, tuple[int, int]] = {"full": (20, 60), "small": (10, 16), "tiny": (20, 24)}
_LINES: dict[Size, tuple[int, int]] = {"full": (40, 260), "small": (30, 60), "tiny": (5, 12)}
#: How many rounds a user's wish takes.
_ROUNDS_A_TURN = (3, 7)
#: What a conversation holds of each kind at least, and where.
_PLANTED: tuple[tuple[Kind, Place, int], ...] = (
    ("sentence", "user", 4),
    ("path", "user", 2),
    ("URL", "user", 1),
    ("quantity", "user", 1),
    ("image", "user", 8),
    ("decision", "assistant", 3),
    ("done", "assistant", 3),
    ("open", "assistant", 3),
    ("hash", "assistant", 1),
    ("path", "call", 3),
    ("id", "call", 1),
    ("path", "result", 4),
    ("id", "result", 4),
    ("hash", "result", 3),
    ("error code", "result", 4),
    ("URL", "result", 3),
    ("quantity", "result", 4),
    ("image", "result", 2),
)
_WORDS = split_words(
    "value cursor handler request offset result total entry stream bucket limit index reader state frame "
    "signal shard branch ticket column filter packet digest record volume window socket holder layer"
)


def make_conversations(seed: int, count: int, size: Size = "full") -> Iterator[Conversation]:
    """So many conversations; each depends on the seed and its number alone."""
    for number in range(count):
        yield make_conversation(seed, number, size)


def make_conversation(seed: int, number: int, size: Size = "full") -> Conversation:
    """One conversation."""
    return _Maker(random.Random(f"{seed}/{number}"), size).make(number)


class _Maker:
    """One conversation in the making."""

    def __init__(self, chance: random.Random, size: Size) -> None:
        self._chance = chance
        self._size = size
        source = FactSource(chance)
        self._facts = [source.make(kind, place) for kind, place, count in _PLANTED for _ in range(count)]
        self._files: list[Call] = []

    def make(self, number: int) -> Conversation:
        """Shape first, then every fact gets its place in it."""
        count = self._chance.randint(*_ROUNDS[self._size])
        starts = self._draw_starts(count)
        planned = self._spread(count, starts)
        rounds = tuple(
            self._make_round(planned[at], begins=at in starts, ends=at + 1 in starts or at + 1 == count)
            for at in range(count)
        )
        instructions = "You are a careful coding agent. You work in one repository and run its tests."
        return Conversation(number, instructions, rounds, tuple(self._facts))

    def _draw_starts(self, count: int) -> list[int]:
        """The rounds that a user begins."""
        starts = [0]
        while (at := starts[-1] + self._chance.randint(*_ROUNDS_A_TURN)) <= count - 2:
            starts.append(at)
        return starts

    def _spread(self, count: int, starts: Sequence[int]) -> list[list[Fact]]:
        """The facts of each round. A round that ends a turn has no calls, and so no results."""
        planned: list[list[Fact]] = [[] for _ in range(count)]
        working = [at for at in range(count - 1) if at + 1 not in starts]
        for fact in self._facts:
            if fact.place == "user":
                at = self._chance.choice(starts)
            elif fact.place == "assistant":
                at = self._chance.randrange(count)
            else:
                at = self._chance.choice(working)
            planned[at].append(fact)
        return planned

    def _make_round(self, facts: Sequence[Fact], *, begins: bool, ends: bool) -> Round:
        """A round of the facts that it shall hold."""
        by_place: dict[Place, list[Fact]] = {"user": [], "assistant": [], "call": [], "result": []}
        for fact in facts:
            by_place[fact.place].append(fact)
        said = self._say([fact for fact in by_place["user"] if fact.kind != "image"]) if begins else ""
        images = tuple(fact.value for fact in by_place["user"] if fact.kind == "image")
        answer = " ".join([self._fill(8), *map(_tell, by_place["assistant"]), self._fill(5)])
        calls = () if ends else tuple(self._make_calls(by_place["call"], by_place["result"]))
        return Round(said, answer, calls, images)

    def _say(self, facts: Sequence[Fact]) -> str:
        """What a user says: a wish, the facts, sometimes a long log that was pasted."""
        lines = [f"Now look at the {self._fill(3)}.", *map(_tell, facts)]
        if self._chance.random() < 0.2:
            lines.append(self._make_code(self._chance.randint(*_LINES[self._size]) // 3))
        return "\n".join(lines)

    def _make_calls(self, in_calls: Sequence[Fact], in_results: Sequence[Fact]) -> Iterator[Call]:
        """One to three calls at once; the facts are dealt out to those that can hold them."""
        images = [fact for fact in in_results if fact.kind == "image"]
        texts = [fact for fact in in_results if fact.kind != "image"]
        for fact in in_calls:
            yield self._call_with(fact)
        for fact in images:
            shown = [
                {"type": "input_text", "text": f"Picture taken. {self._fill(10)}"},
                make_image(fact.value),
            ]
            yield Call(
                "screenshot", {"url": f"http://localhost:{self._chance.randrange(3000, 9999)}/"}, shown
            )
        if texts:
            yield self._work(texts)
        for _ in range(self._chance.choice((0, 0, 1, 2)) if in_results or in_calls else 1):
            yield self._idle() if self._chance.random() < 0.35 else self._work([])

    def _call_with(self, fact: Fact) -> Call:
        """A call whose arguments hold a fact."""
        if fact.kind == "path":
            return Call("write_file", {"path": fact.value, "content": self._make_code(6)}, "Written.")
        return Call(
            "run", {"command": f"./tools/replay --request {fact.value} --dry-run"}, "Replayed 1 request."
        )

    def _work(self, facts: Sequence[Fact]) -> Call:
        """A call with something in its result."""
        if not facts and self._files and self._chance.random() < 0.4:
            # The same file once more, as it was: the reading before is superseded.
            return self._chance.choice(self._files)
        lines = self._chance.randint(*_LINES[self._size]) if self._chance.random() < 0.5 else 4
        body = self._make_code(lines).split("\n")
        for fact in facts:
            body.insert(self._chance.randint(len(body) // 4, len(body) - len(body) // 4), _tell(fact))
        text = "\n".join(body)
        kind = self._chance.random()
        if kind < 0.4:
            call = Call("read_file", {"path": f"lib/{self._fill(2, '_')}{len(self._files)}.py"}, text)
            self._files.append(call)
            return call
        if kind < 0.7:
            failed = self._chance.random() < 0.5
            told = f"{text}\nTests failed: {self._chance.randrange(2, 40)}. Exit code 1." if failed else text
            return Call("run", {"command": f"make {self._fill(2, '-')}"}, told)
        return Call("grep", {"pattern": self._fill(1), "path": self._fill(2, "/")}, text)

    def _idle(self) -> Call:
        """A call that gave nothing."""
        return self._chance.choice(
            (
                Call("grep", {"pattern": self._fill(2, "_"), "path": "src"}, "0 matches"),
                Call(
                    "wait",
                    {"job": f"job-{self._chance.randrange(90)}"},
                    "Timed out after 30 s; no new output.",
                ),
                Call("run", {"command": f"touch {self._fill(2, '_')}.stamp"}, ""),
            )
        )

    def _make_code(self, lines: int) -> str:
        return "\n".join(
            f"    {self._fill(2, '_')} = {self._fill(2, '.')}({self._fill(1)})" for _ in range(lines)
        )

    def _fill(self, words: int, between: str = " ") -> str:
        return between.join(self._chance.choices(_WORDS, k=words))


def _tell(fact: Fact) -> str:
    """The line of a text that holds a fact; what reads it by rule needs no more than people do."""
    forms: dict[Kind, str] = {
        "path": "see {} for that",
        "id": "seen as {} in the log",
        "hash": "at commit {} it was fine",
        "error code": "it failed with {} twice",
        "URL": "described at {} in full",
        "quantity": "measured {} on average",
    }
    return forms.get(fact.kind, "{}").format(fact.value)


def make_image(url: str) -> Item:
    """An image as a part."""
    return {"type": "input_image", "image_url": url}


def make_user_message(text: str, images: Sequence[str] = ()) -> Item:
    """What a user said, as it is sent."""
    parts: list[Item] = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": [*parts, *map(make_image, images)]}
