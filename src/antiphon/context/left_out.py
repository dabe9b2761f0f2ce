"""What a compaction left out of a window, named so that it can be fetched: single items, and ranges of neighbours.

Pure. Invariant: every item that was left out stands in exactly one entry, in order, whatever room there is to tell of
them; only how finely they are told depends on the room.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from antiphon.context.rows import Row
from antiphon.protocol.items import (
    CALL_OUTPUT_TYPES,
    Item,
    Message,
    get_call_id,
    is_call_output,
    message_text,
)

#: A label is a reminder, not the content.
LABEL_CHARACTERS: Final = 80
#: Tokens are estimated where no model counts: one for three bytes never tells too few for text.
BYTES_PER_TOKEN: Final = 3
#: Arguments longer than this are not read for the one that says most.
_ARGUMENTS_CHARACTERS: Final = 16_384
#: The arguments that say best what a call was about, the best first.
_TELLING: Final = (
    "path",
    "file_path",
    "filePath",
    "filename",
    "file",
    "command",
    "cmd",
    "commands",
    "query",
    "pattern",
    "url",
    "input",
)
_FETCHING: Final = (
    "[Left out here, and stored. One: `GET /v1/items/{id}`; a range: `GET /v1/items?from={first}&to={last}`.]"
)
_NOT_STORED: Final = "not stored by this server; the client that sent them holds them"

_decode = msgspec.json.Decoder().decode


class LeftOut(msgspec.Struct, frozen=True, array_like=True):
    """One item or a range of neighbours: the ids of its first and last item (equal for one), and what it holds.

    `label`: for one item, what it is, in a few words. Empty ids where this server keeps nothing of it. `root`: the
    first node of its path, `place` and `end`: where on that path the first and the last item stand, if known. A range
    leads along one path.
    """

    first: str
    last: str
    items: int
    tokens: int
    label: str = ""
    root: str = ""
    place: int = -1
    end: int = -1

    @property
    def is_fetchable(self) -> bool:
        """Whether this server gives the items by their ids."""
        return bool(self.first)


def list_left_out(earlier: Sequence[LeftOut], rows: Sequence[Row], budget_tokens: int) -> tuple[LeftOut, ...]:
    """The entries of an earlier compaction and those of the rows that this one leaves out, told within a budget.

    They stand in the order of their paths. Where they need more than `budget_tokens`, neighbours on one path become
    ranges, the oldest first; in the end one range for each path and one count are left, which are told in any case. The
    summary of an earlier compaction is no item: what it stands for is in `earlier`.
    """
    entries = list(_merge_unstored(_sort_entries([*earlier, *_make_entries(rows)])))
    room_bytes = budget_tokens * BYTES_PER_TOKEN - len(_FETCHING)
    for gathers in (False, True):
        entries, fits = _merge_until(entries, room_bytes, gathers=gathers)
        if fits:
            break
    return tuple(_merge_unstored(entries))


def render_left_out(entries: Sequence[LeftOut]) -> str:
    """The lines that the model reads; empty where nothing was left out."""
    if not entries:
        return ""
    head = [_FETCHING] if any(entry.is_fetchable for entry in entries) else []
    return "\n".join([*head, *map(_render_entry, entries)])


# Telling


def _render_entry(entry: LeftOut) -> str:
    size = f"{entry.tokens:,} token{'' if entry.tokens == 1 else 's'}"
    count = f"{entry.items:,} item{'' if entry.items == 1 else 's'}"
    if not entry.is_fetchable:
        return f"- {count}, {size}: {_NOT_STORED}"
    if entry.items == 1:
        return f"- {entry.first} {entry.label}: {size}" if entry.label else f"- {entry.first}: {size}"
    return f"- {entry.first} to {entry.last}: {count}, {size}"


def _measure(entry: LeftOut) -> int:
    return len(_render_entry(entry).encode("utf-8", "replace")) + 1


# Merging


def _sort_entries(entries: Sequence[LeftOut]) -> list[LeftOut]:
    """Path by path, each in its order: what an earlier compaction kept and this one does not is older than some."""
    ranks: dict[str, int] = {}
    places: dict[str, int] = {}
    keys: list[tuple[int, int]] = []
    for entry in entries:
        rank = ranks.setdefault(entry.root, len(ranks))
        # What has no place stands behind what it came behind.
        place = entry.place if entry.place >= 0 else places.get(entry.root, -1)
        places[entry.root] = place
        keys.append((rank, place))
    return [entries[at] for at in sorted(range(len(entries)), key=keys.__getitem__)]


def _merge_unstored(entries: Iterable[LeftOut]) -> Iterator[LeftOut]:
    """Neighbours that nobody can fetch here are one count from the start: there is nothing to tell them apart by."""
    held: LeftOut | None = None
    for entry in entries:
        if held is not None and not held.is_fetchable and not entry.is_fetchable:
            held = _join(held, entry)
            continue
        if held is not None:
            yield held
        held = entry
    if held is not None:
        yield held


def _join(one: LeftOut, other: LeftOut) -> LeftOut:
    last = one if one.end > other.end >= 0 else other
    return LeftOut(
        one.first,
        last.last,
        one.items + other.items,
        one.tokens + other.tokens,
        root=one.root,
        place=one.place,
        end=last.end,
    )


def _find_place(merged: Sequence[LeftOut], entry: LeftOut, *, gathers: bool) -> int | None:
    """The entry that takes another in: its neighbour of the same kind, or any of its kind where all are gathered."""
    first = 0 if gathers else max(len(merged) - 1, 0)
    for position in range(first, len(merged)):
        if _may_join(merged[position], entry):
            return position
    return None


def _may_join(one: LeftOut, other: LeftOut) -> bool:
    """Whether two entries are of one kind: what can be fetched is a range of one path alone."""
    if one.is_fetchable != other.is_fetchable:
        return False
    return not one.is_fetchable or one.root == other.root


def _merge_until(entries: Sequence[LeftOut], room_bytes: int, *, gathers: bool) -> tuple[list[LeftOut], bool]:
    """The entries with as few of the oldest merged as fit, and whether they fit at all.

    `gathers`: those that cannot be fetched no longer part the ranges; all of them are one count.
    """
    rest = sum(map(_measure, entries))
    taken = 0
    merged: list[LeftOut] = []
    for position, entry in enumerate(entries):
        if taken + rest <= room_bytes:
            return [*merged, *entries[position:]], True
        rest -= _measure(entry)
        place = _find_place(merged, entry, gathers=gathers)
        if place is None:
            merged.append(entry)
            taken += _measure(entry)
        else:
            taken -= _measure(merged[place])
            merged[place] = _join(merged[place], entry)
            taken += _measure(merged[place])
    return merged, taken <= room_bytes


# Labels


def _make_entries(rows: Sequence[Row]) -> list[LeftOut]:
    calls = {
        call_id: _describe_call(row.item)
        for row in rows
        if row.item.type in CALL_OUTPUT_TYPES and (call_id := get_call_id(row.item))
    }
    return [_make_entry(row, calls) for row in rows if row.replaced != "summary"]


def _make_entry(row: Row, calls: Mapping[str, str]) -> LeftOut:
    if not row.is_fetchable:
        return LeftOut("", "", 1, row.tokens, root=row.root, place=row.place, end=row.place)
    label = _shorten(_describe(row.item, calls))
    return LeftOut(row.id, row.id, 1, row.tokens, label, row.root, row.place, row.place)


def _describe(item: Item, calls: Mapping[str, str]) -> str:
    """What an item is: `function_call_output of read_file src/a.py`, `user message: Please mend the parser`."""
    if isinstance(item.value, Message):
        said = message_text(item.value)[:_ARGUMENTS_CHARACTERS]
        return f"{item.value.role} message: {said}" if said.strip() else f"{item.value.role} message"
    if is_call_output(item):
        call = calls.get(get_call_id(item) or "") or getattr(item.value, "name", None) or ""
        return f"{item.type} of {call}" if call else item.type
    if item.type in CALL_OUTPUT_TYPES:
        return f"{item.type} {_describe_call(item)}"
    return item.type


def _describe_call(item: Item) -> str:
    """A call in a few words: its name, if any, and its most telling argument."""
    value: Any = item.value
    name = getattr(value, "name", None)
    about = ""
    if isinstance(arguments := getattr(value, "arguments", None), str):
        about = _find_telling(arguments)
    elif isinstance(given := getattr(value, "input", None), str):
        about = given[:_ARGUMENTS_CHARACTERS]
    elif (action := getattr(value, "action", None)) is not None:
        about = _tell(getattr(action, "command", None) or getattr(action, "commands", None))
    elif (operation := getattr(value, "operation", None)) is not None:
        about = _tell(getattr(operation, "path", None))
    return _shorten(" ".join(part for part in (name, about) if isinstance(part, str) and part))


def _find_telling(arguments: str) -> str:
    """The argument that says most: `{"limit":5,"path":"src/a.py"}` -> `src/a.py`, or the first text."""
    if len(arguments) > _ARGUMENTS_CHARACTERS:
        return ""
    try:
        fields = _decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return ""
    if not isinstance(fields, dict):
        return _tell(fields)
    named = [fields[name] for name in _TELLING if name in fields]
    return next((told for value in [*named, *fields.values()] if (told := _tell(value))), "")


def _tell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(each for each in value[:LABEL_CHARACTERS] if isinstance(each, str))
    return ""


def _shorten(text: str) -> str:
    """One line of printable text, not longer than a label."""
    line = " ".join(
        "".join(each if each.isprintable() else " " for each in text[: LABEL_CHARACTERS * 4]).split()
    )
    return line if len(line) <= LABEL_CHARACTERS else f"{line[: LABEL_CHARACTERS - 3]}..."
