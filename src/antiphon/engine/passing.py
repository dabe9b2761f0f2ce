"""An output item that is handed on as it is: from a server that speaks Responses, or from a tool run here.

Numbers, indexes and missing ids are ours, the rest stays as the bytes that came. What the sender left out of
the order is filled in; an event that has no place is left out. It knows nothing of where items come from.
Invariant: the item's stream follows the lifecycle table, and what is stored is the item as it was closed.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import msgspec

from antiphon.backends import ItemEvent
from antiphon.engine.sink import EventSink
from antiphon.engine.writers import Writer
from antiphon.protocol.errors import BackendError, ProtocolError
from antiphon.protocol.events import EVENT_TYPES, OutputItemAdded, OutputItemDone
from antiphon.protocol.lifecycle import ITEM_DONE, TABLE

#: Rewrites an item's bytes, its type given, into what the client gets of it.
Show = Callable[[bytes, str], bytes]
#: The ids that an item is handed out with, its type and members given: `id`, and `call_id` where it is another.
NameItem = Callable[[str, Mapping[str, msgspec.Raw]], dict[str, str]]

_encode = msgspec.json.Encoder().encode
_decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode = msgspec.json.Decoder().decode

#: Families of events that make up a text: the member of a part, or of the item, that holds it.
_PART_TEXTS: Final = {
    "response.output_text": ("content", "output_text", "text"),
    "response.refusal": ("content", "refusal", "refusal"),
    "response.reasoning_text": ("content", "reasoning_text", "text"),
    "response.reasoning": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text": ("summary", "summary_text", "text"),
}
_ITEM_TEXTS: Final = {
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
    "response.code_interpreter_call_code": "code",
    "response.shell_call_command": "command",
}
_PART_ENDS: Final = {
    "response.content_part.added": "content",
    "response.content_part.done": "content",
    "response.reasoning_summary_part.added": "summary",
    "response.reasoning_summary_part.done": "summary",
}
_INDEX_NAMES: Final = {"content": "content_index", "summary": "summary_index"}
#: Members of events that are written here.
#: A name goes into a line of its own on the wire.
_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_OWN_FIELDS: Final = frozenset({"type", "sequence_number", "item_id", "output_index", "obfuscation"})
#: What an item that broke off says of itself, where `incomplete` is no status of its kind.
_BROKEN_STATUS: Final = {"image_generation_call": "failed", "mcp_call": "failed"}
_NO_BROKEN_STATUS: Final = frozenset({"apply_patch_call", "apply_patch_call_output"})


class _Part:
    """A part of the item: where it stands, what was told of it, and the text so far."""

    __slots__ = ("annotations", "family", "members", "pieces", "place")

    def __init__(self, place: str, members: dict[str, Any]) -> None:
        self.place = place
        self.members = members
        self.annotations: list[Any] = list(members.get("annotations") or [])
        self.pieces: list[str] = []
        self.family = next(
            (name for name, (_, kind, _) in _PART_TEXTS.items() if kind == members.get("type")), ""
        )

    def render(self) -> dict[str, Any]:
        """The part with its text so far."""
        if not self.family:
            return self.members
        _, _, key = _PART_TEXTS[self.family]
        told = {**self.members, key: "".join(self.pieces) or self.members.get(key, "")}
        return {**told, "annotations": self.annotations} if self.annotations else told


class PassingWriter(Writer):
    """One such item, from its opening to its end."""

    def __init__(self, sink: EventSink, index: int, item: bytes, *, show: Show, name: NameItem) -> None:
        fields = _read_object(item)
        item_type = _decode(fields["type"]) if "type" in fields else "message"
        self.item_type = item_type if isinstance(item_type, str) else "message"
        #: The ids that it bears from here on, whatever the sender calls it.
        self._names = name(self.item_type, fields)
        super().__init__(sink, self._names["id"], index)
        self._show = show
        self._added = _put_names(item, fields, self._names)
        self._parts: list[_Part] = []
        self._part_open = False
        self._texts: dict[str, list[str]] = {}
        self._command = 0
        #: The finished item's members, once they are known.
        self._final: dict[str, msgspec.Raw] = {}
        #: What the client gets, once the item is closed.
        self.shown = b""
        if sink.emit:
            sink.send_item(OutputItemAdded, index, self.item_type, show(self._added, self.item_type))

    def pass_event(self, event: ItemEvent) -> None:
        """An event inside the item; what belongs to a whole response or to the item's ends is left out."""
        if event.name in _NOT_INSIDE or not _LEGAL_NAME.fullmatch(event.name):
            return
        if self._sink.emit:
            way = self._sink.find_way(event.name, self._index, self._may_fill(event.name))
            if way is None:
                return
            for name in way:
                self._fill(name, event.name)
            self._send_rest(event.name, event.fields)
            self._sink.send_passed(event.name, self._index, self._complete(event.name, event.fields))
        self._gather(event.name, event.fields)

    def finish(self, item: bytes) -> bytes:
        """The item is done; returns the bytes to store."""
        fields = _read_object(item)
        self._final = fields
        return self._end(_put_names(item, fields, self._names), broken=False)

    def close(self, status: str) -> bytes:
        """The item broke off, whatever the status of the others: it keeps what has come of it."""
        return self._end(_encode(self._build_broken()), broken=True)

    def _end(self, item: bytes, *, broken: bool) -> bytes:
        self.shown = self._show(item, self.item_type)
        if self._sink.emit:
            may_fill = self._may_fill(ITEM_DONE, broken=broken)
            for name in self._sink.find_way(ITEM_DONE, self._index, may_fill) or ():
                self._fill(name, ITEM_DONE)
            self._sink.send_item(OutputItemDone, self._index, self.item_type, self.shown)
        return item

    def _may_fill(self, wanted: str, *, broken: bool = False) -> Callable[[str], bool]:
        """Which events may be put in on the way to another one: never a text, and none of another part's kind."""
        open_family = self._parts[-1].family if self._part_open else ""
        if not open_family and wanted.rpartition(".")[0] in _PART_TEXTS:
            open_family = wanted.rpartition(".")[0]
        if ("reasoning" in open_family) != (self.item_type == "reasoning"):
            # A part that is none of the item's kind: the item's own texts stand for it.
            open_family = ""

        def may_fill(name: str) -> bool:
            family, _, step = name.rpartition(".")
            if step == "delta" or name in _UNFILLABLE or name in (_SUCCESSES if broken else _FAILURES):
                return False
            if family in _PART_TEXTS:
                return family == (open_family or self._guess_family())
            if name in _PART_ENDS and self._part_open:
                return _PART_ENDS[name] == self._parts[-1].place
            return True

        return may_fill

    def _guess_family(self) -> str:
        """The texts of a part whose own type was not told."""
        if self.item_type != "reasoning":
            return "response.output_text"
        place = self._parts[-1].place if self._part_open else "summary"
        return "response.reasoning_text" if place == "content" else "response.reasoning_summary_text"

    def _fill(self, name: str, wanted: str) -> None:
        """An event that the sender left out, made from what has come."""
        family, _, step = name.rpartition(".")
        fields: dict[str, Any] = {}
        if name in _PART_ENDS:
            place = _PART_ENDS[name]
            if step == "added":
                fields["part"] = _start_part(place, wanted.rpartition(".")[0], self.item_type)
            else:
                fields["part"] = self._parts[-1].render()
        elif family in _PART_TEXTS or family in _ITEM_TEXTS:
            fields[_find_key(family)] = self._find_text(family) if step == "done" else ""
        elif family == "response.shell_call_output_content":
            fields["output"] = []
        self._send_rest(name, fields)
        self._sink.send_passed(name, self._index, self._complete(name, fields))
        self._gather(name, fields)

    def _find_text(self, family: str) -> str:
        """The whole text of a family: what the finished item holds, if it goes on from what has come."""
        gathered = self._read_gathered(family)
        if family in _ITEM_TEXTS:
            told = _to_builtins(self._final.get(_ITEM_TEXTS[family]))
        else:
            place, _, key = _PART_TEXTS[family]
            position = sum(part.place == place for part in self._parts) - 1
            parts = _to_builtins(self._final.get(place)) or []
            part = parts[position] if 0 <= position < len(parts) else None
            told = part.get(key) if isinstance(part, dict) else None
        return told if isinstance(told, str) and told.startswith(gathered) else gathered

    def _read_gathered(self, family: str) -> str:
        if family in _ITEM_TEXTS:
            return "".join(self._texts.get(_ITEM_TEXTS[family], ()))
        return "".join(self._parts[-1].pieces) if self._part_open else ""

    def _send_rest(self, name: str, fields: dict[str, Any]) -> None:
        """A text that is told as a whole is told as deltas first, for clients add these up."""
        family, _, step = name.rpartition(".")
        if step != "done" or (family not in _PART_TEXTS and family not in _ITEM_TEXTS):
            return
        whole = _to_builtins(fields.get(_find_key(family)))
        gathered = self._read_gathered(family)
        if not isinstance(whole, str) or len(whole) == len(gathered) or not whole.startswith(gathered):
            return
        index_names = {key: fields[key] for key in _COUNTED if key in fields}
        rest = {**index_names, "delta": whole[len(gathered) :]}
        self._sink.send_passed(f"{family}.delta", self._index, self._complete(f"{family}.delta", rest))
        self._gather(f"{family}.delta", rest)

    def _complete(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        """All members of an event but its type and number."""
        names_item, expected = _read_shape(name)
        told: dict[str, Any] = {"item_id": self._id} if names_item else {}
        told["output_index"] = self._index
        for key, default in expected:
            if key in fields:
                told[key] = fields[key]
            elif key in _COUNTED:
                told[key] = self._count(key, name)
            elif default is msgspec.NODEFAULT:
                raise ProtocolError(f"{name} was made without {key}.")
            elif default is not msgspec.UNSET:
                told[key] = default
        if len(told) < len(fields) + 1 + names_item:
            told.update((key, value) for key, value in fields.items() if key not in _OWN_FIELDS)
        return told

    def _count(self, index_name: str, event_name: str) -> int:
        """An index that the sender left out."""
        if index_name == "command_index":
            return self._command
        if index_name == "annotation_index":
            return len(self._parts[-1].annotations) if self._parts else 0
        place = "content" if index_name == "content_index" else "summary"
        count = sum(part.place == place for part in self._parts)
        return count if event_name.endswith("_part.added") else max(count - 1, 0)

    def _gather(self, name: str, fields: dict[str, Any]) -> None:
        """Remember what the item would hold if it broke off here."""
        family, _, step = name.rpartition(".")
        if name in _PART_ENDS:
            self._gather_part(_PART_ENDS[name], step, _to_builtins(fields.get("part")))
        elif family in _PART_TEXTS:
            place, kind, key = _PART_TEXTS[family]
            if not self._part_open:
                self._gather_part(place, "added", {"type": kind, **_EMPTY_PARTS[kind]})
            _gather_text(self._parts[-1].pieces, step, fields, key)
        elif name == "response.output_text.annotation.added":
            if self._part_open:
                self._parts[-1].annotations.append(_to_builtins(fields.get("annotation")))
        elif family in _ITEM_TEXTS:
            key = _ITEM_TEXTS[family]
            pieces = self._texts.setdefault(key, [])
            if key == "command" and step == "added":
                pieces[:] = [str(_to_builtins(fields.get("command", "")))]
                return
            _gather_text(pieces, step, fields, key)
            self._command += key == "command" and step == "done"

    def _gather_part(self, place: str, step: str, part: Any) -> None:
        members = part if isinstance(part, dict) else {}
        if step == "added":
            self._parts.append(_Part(place, members))
            self._part_open = True
        elif self._part_open:
            self._parts[-1] = _Part(place, members or self._parts[-1].render())
            self._part_open = False

    def _build_broken(self) -> dict[str, Any]:
        item: dict[str, Any] = dict(_decode_raws(self._added))
        for place in ("content", "summary"):
            parts = [part.render() for part in self._parts if part.place == place]
            if parts:
                item[place] = parts
        item.update((key, "".join(pieces)) for key, pieces in self._texts.items() if key != "command")
        if "status" in item and self.item_type not in _NO_BROKEN_STATUS:
            item["status"] = _BROKEN_STATUS.get(self.item_type, "incomplete")
        return item


_EMPTY_PARTS: Final[dict[str, dict[str, Any]]] = {
    "output_text": {"annotations": [], "logprobs": [], "text": ""},
    "refusal": {"refusal": ""},
    "reasoning_text": {"text": ""},
    "summary_text": {"text": ""},
}
#: Events that cannot be made up.
_UNFILLABLE: Final = frozenset(
    {
        "response.output_text.annotation.added",
        "response.image_generation_call.partial_image",
        "response.reasoning.done",
        ITEM_DONE,
    }
)
_SUCCESSES: Final = frozenset({"response.mcp_call.completed", "response.mcp_list_tools.completed"})
_FAILURES: Final = frozenset({"response.mcp_call.failed", "response.mcp_list_tools.failed"})
_NOT_INSIDE: Final = frozenset({ITEM_DONE, *(event for scope, _, event in TABLE if scope == "response")})
_COUNTED: Final = frozenset({"content_index", "summary_index", "annotation_index", "command_index"})


@lru_cache(maxsize=256)
def _read_shape(name: str) -> tuple[bool, tuple[tuple[str, Any], ...]]:
    """Whether an event names its item, and its further members with their defaults."""
    struct = EVENT_TYPES.get(name)
    if struct is None:
        return True, ()
    members = tuple(
        (field.name, field.default)
        for field in msgspec.structs.fields(struct)
        if field.name not in _OWN_FIELDS
    )
    return "item_id" in struct.__struct_fields__, members


def _start_part(place: str, family: str, item_type: str) -> dict[str, Any]:
    if family in _PART_TEXTS and _PART_TEXTS[family][0] == place:
        kind = _PART_TEXTS[family][1]
    elif place == "summary":
        kind = "summary_text"
    else:
        kind = "reasoning_text" if item_type == "reasoning" else "output_text"
    return {"type": kind, **_EMPTY_PARTS[kind]}


def _find_key(family: str) -> str:
    """The member that holds the whole text in a family's done event."""
    return _ITEM_TEXTS[family] if family in _ITEM_TEXTS else _PART_TEXTS[family][2]


def _gather_text(pieces: list[str], step: str, fields: dict[str, Any], key: str) -> None:
    told = fields.get("delta" if step == "delta" else key)
    if type(told) is msgspec.Raw:
        told = _decode(told)
    if not isinstance(told, str):
        return
    if step == "delta":
        pieces.append(told)
    elif step == "done":
        pieces[:] = [told]


def _to_builtins(value: Any) -> Any:
    return _decode(value) if isinstance(value, msgspec.Raw) else value


def _read_object(item: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decode_raws(item)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BackendError("The model server sent an output item that is no JSON object.") from error


def name_own(make_id: Callable[[str], str]) -> NameItem:
    """Names items that are made here: by `make_id`, its type given, unless it bears an id."""

    def name(item_type: str, fields: Mapping[str, msgspec.Raw]) -> dict[str, str]:
        told = _decode(fields["id"]) if "id" in fields else None
        return {"id": told if isinstance(told, str) and told else make_id(item_type)}

    return name


def _put_names(item: bytes, fields: Mapping[str, msgspec.Raw], names: Mapping[str, str]) -> bytes:
    """The item with these ids, and all else as it came; the same bytes where it bears them."""
    if all(key in fields and _decode(fields[key]) == value for key, value in names.items()):
        return item
    return _encode(
        {"id": names["id"], **{name: value for name, value in fields.items() if name != "id"}, **names}
    )
