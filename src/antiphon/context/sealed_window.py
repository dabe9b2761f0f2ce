"""The window that a compaction item holds, and what stands in the item's place once it is opened.

Pure: sealing and opening are done elsewhere. Invariants: a window read back is the one that was written; each item of
a path appears exactly once in what `expand` gives, in its order, and system and developer items never move.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from antiphon.context.left_out import LeftOut, render_left_out
from antiphon.context.rows import Row, Rung
from antiphon.protocol.items import (
    Item,
    Message,
    decode_stored_item,
    get_call_id,
    is_call_output,
    make_user_message,
)

#: The form of what is sealed; a window of another form is not read.
VERSION: Final = 1
HASH_BYTES: Final = 32
#: What the model is told before a summary; it is the same in every window.
HEADING: Final = (
    "[The earlier part of this conversation was compacted to make room. What follows in this message was written from "
    "it; the messages behind it are original. Work that is told as done is done: go on from the newest instruction.]"
)
_SYSTEM_ROLES: Final = ("system", "developer")
#: Fields that say nothing of what an item means, or that servers and clients add and drop.
_UNHASHED: Final = frozenset({"id", "status", "created_by", "phase", "annotations", "logprobs"})
#: The fields by which messages, calls and outputs are known; of other types every field counts.
_KNOWN_FIELDS: Final = frozenset(
    {"type", "role", "content", "call_id", "name", "namespace", "arguments", "input", "output"}
)
_KNOWN_TYPES: Final = frozenset(
    {
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
    }
)
_PART_FIELDS: Final = frozenset(
    {"type", "text", "refusal", "image_url", "file_id", "file_url", "file_data", "filename", "input_audio"}
)

_encode_canonical = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode


class SealedItem(msgspec.Struct, frozen=True, array_like=True):
    """An item of a sealed window: its id, the node that stores it, its bytes, and which rung replaced it, if any.

    `root`, `place`: where it stands on its path, as in `Row`.
    """

    id: str
    node: str
    raw: bytes
    replaced: Rung | None = None
    root: str = ""
    place: int = -1


class SealedNode(msgspec.Struct, frozen=True, array_like=True):
    """A stored node that the window was made from, and the positions that were blank then."""

    id: str
    blanks: tuple[int, ...] = ()


class SealedWindow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole window. `items[:summary_at]` stand before the summary; `covers` are the hashes of what it supersedes."""

    version: Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)] = VERSION
    #: The id of the compaction item.
    id: str
    model: str
    summary: str = ""
    #: Whether the summary was put together by rule, since no model gave one.
    is_extract: bool = False
    facts: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    items: tuple[SealedItem, ...] = ()
    summary_at: int = 0
    covers: bytes = b""
    nodes: tuple[SealedNode, ...] = ()

    @property
    def has_summary(self) -> bool:
        """Whether something stands in the place of items, and not only the items themselves."""
        return bool(self.summary or self.facts or self.left_out)


encode_window = msgspec.msgpack.Encoder().encode
_decode_window = msgspec.msgpack.Decoder(SealedWindow).decode


def decode_window(plain: bytes) -> SealedWindow:
    """Read what `encode_window` wrote; raises `msgspec.MsgspecError` for anything else."""
    window = _decode_window(plain)
    if len(window.covers) % HASH_BYTES or not 0 <= window.summary_at <= len(window.items):
        raise msgspec.ValidationError("the window does not fit together")
    return window


# What is the same item


def hash_item(item: Item) -> bytes:
    """By what an item is known again: 32 bytes of its meaning, whatever ids, statuses and forms it comes with."""
    try:
        fields: Any = _decode(item.raw)
    except (msgspec.MsgspecError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        return hashlib.sha256(item.raw).digest()
    kind = "compaction" if item.type == "compaction_summary" else item.type
    known = {
        name: value
        for name, value in fields.items()
        if value is not None and name not in _UNHASHED and (kind not in _KNOWN_TYPES or name in _KNOWN_FIELDS)
    }
    known["type"] = kind
    if kind == "reasoning" and any(known.get(name) for name in ("summary", "content")):
        # Whoever does not need it may leave the sealed form out.
        known.pop("encrypted_content", None)
    if isinstance(known.get("arguments"), str):
        known["arguments"] = _hash_arguments(known["arguments"])
    for name in ("content", "output"):
        if name in known and kind in _KNOWN_TYPES:
            known[name] = _hash_form(known[name], assistant=known.get("role") == "assistant")
    return hashlib.sha256(_encode_canonical(known)).digest()


def _hash_arguments(arguments: str) -> Any:
    """Arguments by what they say, however they are written; what is no JSON is what it is."""
    try:
        found = _decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return arguments
    return found if isinstance(found, dict) else arguments


def _hash_form(content: Any, *, assistant: bool) -> Any:
    """Content as parts: a string is one part, and parts are what they say."""
    if isinstance(content, str):
        return [{"type": "output_text" if assistant else "input_text", "text": content}]
    if not isinstance(content, list):
        return content
    return [
        {name: value for name, value in part.items() if name in _PART_FIELDS and value is not None}
        if isinstance(part, dict)
        else part
        for part in content
    ]


def list_covered(window: SealedWindow) -> Counter[bytes]:
    """The hashes of what a window supersedes, with how often each stood there."""
    covers = window.covers
    return Counter(covers[at : at + HASH_BYTES] for at in range(0, len(covers), HASH_BYTES))


# What stands in its place


class Expansion(msgspec.Struct, frozen=True):
    """A path with its compaction items opened. `superseded`: the rows that those stand for, in order.

    `windows`: the opened windows that are shown, by the id of their item's row.
    """

    rows: list[Row]
    superseded: list[Row]
    windows: dict[str, SealedWindow]


class _Shown(msgspec.Struct):
    row: Row
    digest: bytes
    #: The row of the compaction item that brought it; empty for an item of the path itself.
    source: str = ""


def expand(rows: Sequence[Row], windows: Mapping[str, SealedWindow]) -> Expansion:
    """The rows with the windows, by the row ids of their compaction items, put into those items' places.

    A covered item that stands before such an item is dropped, as often as it is covered; system and developer items
    stay where they are, and are not shown a second time. Those that a window begins with are shown only where the rows
    begin with none: a client that sends its own has them as they are now. Without windows the rows are what they are.
    """
    if not windows:
        return Expansion(list(rows), [], {})
    return _Expanding(rows, windows).run()


def is_system(item: Item) -> bool:
    """Whether an item is a system or developer message."""
    return isinstance(item.value, Message) and item.value.role in _SYSTEM_ROLES


class _Expanding:
    """A path that is walked from its start; a compaction item changes what was shown before it."""

    def __init__(self, rows: Sequence[Row], windows: Mapping[str, SealedWindow]) -> None:
        self._rows = rows
        self._windows = windows
        self._shown: list[_Shown] = []
        self._superseded: list[Row] = []
        self._opened: dict[str, SealedWindow] = {}
        self._digests = [hash_item(row.item) for row in rows]
        #: System and developer items of the path itself: no window shows them again.
        self._system = Counter(
            digest for row, digest in zip(rows, self._digests, strict=True) if is_system(row.item)
        )
        self._source_digests: dict[str, bytes] = {}

    def run(self) -> Expansion:
        for row, digest in zip(self._rows, self._digests, strict=True):
            window = self._windows.get(row.id)
            if window is None:
                self._shown.append(_Shown(row, digest))
                continue
            if digest in self._source_digests.values():
                # The same item once more says nothing new.
                self._superseded.append(row)
                continue
            self._supersede(window)
            self._opened[row.id] = window
            self._source_digests[row.id] = digest
            self._open(row, window)
        return Expansion([each.row for each in self._shown], self._superseded, self._opened)

    def _supersede(self, window: SealedWindow) -> None:
        """Take what the window stands for out of what is shown."""
        covered = list_covered(window)
        gone = {source for source in self._opened if covered[self._source_digests[source]]}
        for source in gone:
            del self._opened[source]
        kept: list[_Shown] = []
        for each in self._shown:
            if each.source in gone:
                self._superseded.append(each.row)
            elif is_system(each.row.item) and not each.source:
                kept.append(each)
            elif covered[each.digest] > 0:
                covered[each.digest] -= 1
                self._superseded.append(each.row)
            else:
                kept.append(each)
        self._shown = self._supersede_halves(kept)

    def _supersede_halves(self, kept: list[_Shown]) -> list[_Shown]:
        """A call whose result is covered, or a result whose call is: its client changed it, and the window has both."""
        gone = {call_id for row in self._superseded if (call_id := get_call_id(row.item))}
        if not gone:
            return kept
        sides: dict[str, set[bool]] = {}
        for each in kept:
            call_id = get_call_id(each.row.item)
            if call_id in gone and not each.source:
                sides.setdefault(call_id, set()).add(is_call_output(each.row.item))
        halves = {call_id for call_id, found in sides.items() if len(found) == 1}
        self._superseded += [each.row for each in kept if _is_half(each, halves)]
        return [each for each in kept if not _is_half(each, halves)]

    def _open(self, row: Row, window: SealedWindow) -> None:
        """Show what the window holds, but for system items that stand on the path."""
        system = self._system.copy()
        for each in self._shown:
            if each.source and is_system(each.row.item):
                system[each.digest] += 1
        # Whoever sends system text at the start sends all of it as it is now.
        has_lead = is_system(self._rows[0].item)
        in_lead = True
        for position, sealed in enumerate(window.items):
            if position == window.summary_at and window.has_summary:
                self._shown.append(_Shown(_make_summary_row(row, window), b"", row.id))
            item = decode_stored_item(sealed.raw)
            digest = hash_item(item)
            in_lead = in_lead and is_system(item) and sealed.place == position
            if is_system(item) and system[digest] > 0:
                system[digest] -= 1
                continue
            if in_lead and has_lead:
                continue
            shown = Row(
                id=sealed.id,
                item=item,
                node=sealed.node,
                root=sealed.root,
                place=sealed.place,
                replaced=sealed.replaced,
            )
            self._shown.append(_Shown(shown, digest, row.id))
        if window.summary_at == len(window.items) and window.has_summary:
            self._shown.append(_Shown(_make_summary_row(row, window), b"", row.id))


def _is_half(each: _Shown, halves: Collection[str]) -> bool:
    return not each.source and get_call_id(each.row.item) in halves


def _make_summary_row(row: Row, window: SealedWindow) -> Row:
    return Row(id=row.id, item=make_user_message(render_summary(window)), node=row.node, replaced="summary")


def render_summary(window: SealedWindow) -> str:
    """The text of the one message that stands for what a window does not hold as it was."""
    parts = [HEADING, window.summary]
    if window.facts:
        parts.append("\n".join(["[Exact names and numbers from it:]", *window.facts]))
    parts.append(render_left_out(window.left_out))
    return "\n\n".join(part for part in parts if part)
