"""Where each fact is after a compaction: in the window word for word, behind an id that the window names, or lost.

It knows windows and items, and is handed what fetches an item. Invariant: a fact counts as fetchable only if bytes that
were really fetched, by ids that a model can read in the window, hold it word for word.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from bench.memory.facts import Fact

Where: TypeAlias = Literal["verbatim", "fetchable", "held by the client", "lost"]
WHERE: tuple[Where, ...] = ("verbatim", "fetchable", "held by the client", "lost")

#: Ids of items as this server makes them.
_ID = r"[a-z]{2,6}_[0-9A-Za-z]{24,}"
_SINGLE = re.compile(rf"(?<![0-9A-Za-z_-])({_ID})(?![0-9A-Za-z_-])")
#: Two ids with nothing but a dash, dots or `to` between them are the ends of a range.
_RANGE = re.compile(
    rf"(?<![0-9A-Za-z_-])({_ID})\s*(?:\.\.\.?|…|-|–|to|through|until)\s*({_ID})(?![0-9A-Za-z_-])"
)

#: The items behind one id, or from one id to another; empty where there are none.
Fetch: TypeAlias = Callable[[str, str], Awaitable[Sequence[Mapping[str, Any]]]]


@dataclass(frozen=True)
class Window:
    """All that a model reads: texts, arguments of calls, images as their URLs."""

    texts: tuple[str, ...]

    def holds(self, value: str) -> bool:
        """Word for word."""
        return any(value in text for text in self.texts)

    def list_named(self) -> list[tuple[str, str]]:
        """What is named: the first and the last id of each range, the same one twice for a single item."""
        named: dict[tuple[str, str], None] = {}
        for text in self.texts:
            if text.startswith("data:"):
                continue
            for first, last in _RANGE.findall(text):
                named[first, last] = None
            for one in _SINGLE.findall(_RANGE.sub(" ", text)):
                named[one, one] = None
        return list(named)


def read_window(system: str, messages: Iterable[Mapping[str, Any]]) -> Window:
    """The window of a chat prompt."""
    texts = [system]
    for message in messages:
        texts += _list_strings(message.get("content"))
        for call in message.get("tool_calls", ()):
            texts += [call["function"]["name"], call["function"]["arguments"]]
    return Window(tuple(text for text in texts if text))


@dataclass(frozen=True)
class Score:
    """Where every fact was found."""

    places: Mapping[Fact, Where]
    #: Ids that are named and that nothing is behind, though they look like items of this server.
    dead: tuple[str, ...] = ()

    def count(self) -> Counter[Where]:
        """How many facts are where."""
        return Counter(self.places.values())

    def list_lost(self) -> list[Fact]:
        """The facts that are nowhere."""
        return [fact for fact, where in self.places.items() if where == "lost"]


async def score(facts: Sequence[Fact], window: Window, fetch: Fetch, held: Sequence[str] = ()) -> Score:
    """Look for every fact. `held`: what a client that nothing is stored for still has, as texts."""
    missing = [fact for fact in facts if not window.holds(fact.value)]
    fetched: list[str] = []
    dead: list[str] = []
    for first, last in window.list_named() if missing else ():
        items = await fetch(first, last)
        if not items:
            dead.append(first if first == last else f"{first} to {last}")
        fetched += [text for item in items for text in _list_strings(item)]
    found = Window(tuple(dict.fromkeys(fetched)))
    client = Window(tuple(held))
    places: dict[Fact, Where] = {}
    for fact in facts:
        if fact not in missing:
            places[fact] = "verbatim"
        elif found.holds(fact.value):
            places[fact] = "fetchable"
        else:
            places[fact] = "held by the client" if client.holds(fact.value) else "lost"
    return Score(places, tuple(dead))


def list_texts(items: Iterable[Mapping[str, Any]]) -> list[str]:
    """All strings of some items."""
    return [text for item in items for text in _list_strings(item)]


def _list_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _list_strings(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _list_strings(each)
