"""The factsheet: exact names and numbers of what a compaction summarises, found by rule, told in compact lines.

Pure, and no model. Invariants: each fact stands as it stood in its text, once; the facts of an earlier sheet come
first; what finds no room is counted, and of each kind it is the oldest. A sheet can be read back from its lines.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Final, TypeAlias, get_args

import msgspec

from antiphon.context.fact_patterns import FactKind, find_facts

#: What stands between two facts of a line. No fact holds it: none has a space behind a semicolon.
SEPARATOR: Final = "; "
#: Tokens are estimated where no model counts: one for three bytes.
BYTES_PER_TOKEN: Final = 3
#: The kind of a line that this version did not write.
OTHER: Final = "Other"

_KINDS: Final[tuple[str, ...]] = get_args(FactKind)
#: When a fact was last told: which text, and where in it; earlier sheets stand before all texts.
_Age: TypeAlias = tuple[int, int]
#: Where JSON begins in a text, behind a few words at most: `assistant calls read: {"path":"a.py"}`.
_JSON_START = re.compile(r'[^{\[\n]{0,256}(?=\{\s{0,64}"[^"\\]{1,64}"\s{0,64}:|\[\s{0,64}["{\[])')
_ESCAPED = re.compile(r"\\([\"\\/nrt])")
_UNESCAPED: Final = {"n": "\n", "r": "\n", "t": "\t"}
_decode = msgspec.json.Decoder().decode


def extract_facts(
    texts: Iterable[str], *, earlier: Sequence[str] = (), budget_tokens: int
) -> tuple[tuple[str, ...], int]:
    """The lines of a factsheet over texts, oldest first, and how many facts found no room.

    `earlier`: the lines of an earlier sheet. A line is `Paths: src/a.py:12; tests/test_a.py`, one for each kind. Every
    kind may have its share of the room, and what it does not need goes to the others; of a kind that needs more, the
    facts that were told last are kept.
    """
    ages = _read_lines(earlier)
    for index, text in enumerate(texts):
        for found in find_facts(_open_json(text)):
            facts = ages.setdefault(found.kind, {})
            age = (index, found.position)
            facts[found.text] = max(facts.get(found.text, age), age)
    kinds = {kind: sorted(facts, key=facts.__getitem__) for kind, facts in ages.items() if facts}
    kept = _choose(kinds, budget_tokens * BYTES_PER_TOKEN)
    dropped = sum(len(facts) - len(kept[kind]) for kind, facts in kinds.items())
    return tuple(_render(kind, kept[kind]) for kind in _order_kinds(kept) if kept[kind]), dropped


def _order_kinds(kinds: Iterable[str]) -> Iterator[str]:
    """The known kinds in the order in which they are told, then any others."""
    given = dict.fromkeys(kinds)
    yield from (kind for kind in _KINDS if kind in given)
    yield from (kind for kind in given if kind not in _KINDS)


def _render(kind: str, facts: Sequence[str]) -> str:
    return f"{kind}: {SEPARATOR.join(facts)}"


def _read_lines(lines: Sequence[str]) -> dict[str, dict[str, _Age]]:
    ages: dict[str, dict[str, _Age]] = {}
    places = count()
    for line in lines:
        kind, colon, rest = line.partition(": ")
        if not colon or not kind.isalpha():
            kind, rest = OTHER, line
        facts = ages.setdefault(kind, {})
        facts.update((fact, (-1, next(places))) for fact in rest.split(SEPARATOR) if fact)
    return ages


# Room


def _measure(kind: str, facts: Iterable[str]) -> int:
    """The bytes of a line with its end."""
    return len(kind) + 1 + sum(map(_measure_fact, facts))


def _measure_fact(fact: str) -> int:
    return len(fact.encode("utf-8", "replace")) + len(SEPARATOR)


def _share_room(needs: dict[str, int], room: int) -> dict[str, int]:
    """Room for each kind: all that it needs up to an equal share, and what others leave of theirs."""
    rooms: dict[str, int] = {}
    for place, (kind, need) in enumerate(sorted(needs.items(), key=lambda each: each[1])):
        rooms[kind] = min(need, room // (len(needs) - place))
        room -= rooms[kind]
    return rooms


def _choose(kinds: dict[str, list[str]], room: int) -> dict[str, list[str]]:
    """The facts of each kind that are told: the newest for which there is room."""
    rooms = _share_room({kind: _measure(kind, facts) for kind, facts in kinds.items()}, room)
    places: dict[str, int] = {}
    for kind, facts in kinds.items():
        places[kind], rooms[kind] = _keep_newest(facts, len(facts), rooms[kind] - _measure(kind, ()))
    # Ends of shares, too small for one fact more, are enough for some when taken together.
    spare = sum(left for kind, left in rooms.items() if places[kind] < len(kinds[kind]))
    for kind in _order_kinds(kinds):
        if 0 < places[kind] < len(kinds[kind]):
            places[kind], spare = _keep_newest(kinds[kind], places[kind], spare)
    return {kind: facts[places[kind] :] for kind, facts in kinds.items()}


def _keep_newest(facts: Sequence[str], place: int, room: int) -> tuple[int, int]:
    """How far back from a place there is room, and the room that is left."""
    while place > 0 and (size := _measure_fact(facts[place - 1])) <= room:
        place, room = place - 1, room - size
    return place, room


# Texts


def _open_json(text: str) -> str:
    """The texts that JSON holds, as lines: escapes would else run into the names behind them. Other text as it is."""
    start = _JSON_START.match(text)
    if start is None:
        return text
    head, body = start[0], text[start.end() :]
    try:
        value = _decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # Cut off somewhere, or more stands behind it.
        return head + _ESCAPED.sub(lambda match: _UNESCAPED.get(match[1], match[1]), body)
    lines = (f'{key}: "{each}"' if isinstance(each, str) else f"{key}: {each}" for key, each in _walk(value))
    return "\n".join((head, *lines))


def _walk(value: Any) -> Iterator[tuple[str, str | int | float]]:
    """Every text and number of a decoded value with its key, in order."""
    stack: list[tuple[str, Any]] = [("", value)]
    while stack:
        key, each = stack.pop()
        if isinstance(each, dict):
            stack += [(str(name), member) for name, member in reversed(each.items())]
        elif isinstance(each, list):
            stack += [(key, member) for member in reversed(each)]
        elif each is not None and not isinstance(each, bool):
            yield key, each
