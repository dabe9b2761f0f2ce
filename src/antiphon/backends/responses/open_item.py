"""One output item as it is made: what a server says of it, completed so that nothing of the API is missing.

It walks the lifecycle table: an event that may not come yet is preceded by what is missing, one that comes
again is dropped. Invariant: deltas add up to the texts of the done events and of the finished item, and the
item's other bytes are the server's.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from antiphon.backends.interface import BackendEvent, ItemClosed, ItemEvent, ItemOpened
from antiphon.backends.responses.item_forms import (
    COMPLETED,
    IN_PROGRESS,
    TEXT_KEYS,
    fill_item,
    get_text_key,
    read_call_text,
    read_type,
)
from antiphon.backends.responses.json_fields import (
    Fields,
    is_told,
    read_fields,
    read_list,
    read_number,
    read_object,
    read_text,
    to_raw,
)
from antiphon.backends.responses.parts import DELTA_NAMES, PART_EVENTS, TEXT_ENDS, Part, find_kind
from antiphon.backends.responses.ways import (
    OTHER_NAMES,
    PART_ENDS,
    PART_STARTS,
    find_scope,
    find_way,
    follow,
)
from antiphon.protocol.errors import BackendError
from antiphon.protocol.events import EMPTY_LIST, EVENT_TYPES
from antiphon.protocol.lifecycle import ITEM_DONE, UNKNOWN

_encode = msgspec.json.Encoder().encode

#: What may wait inside one item for its text.
DELAYED_EVENTS: Final = 10_000
#: Fields that the engine fills in itself, or that are meant for one connection only.
_OWN_FIELDS = ("type", "sequence_number", "item_id", "output_index", "obfuscation")
#: Done events of items with one text, and where that text stands in them.
_TEXT_DONES = {
    "response.function_call_arguments.done": "arguments",
    "response.custom_tool_call_input.done": "input",
    "response.mcp_call_arguments.done": "arguments",
    "response.code_interpreter_call_code.done": "code",
}
#: Done events, and where the text stands in them.
_TEXT_KEYS = {
    **_TEXT_DONES,
    **{name: "refusal" if "refusal" in name else "text" for name in TEXT_ENDS},
    "response.shell_call_command.done": "command",
}
_TEXT_DELTAS = {name.removesuffix(".done") + ".delta": name for name in _TEXT_DONES}


class OpenItem:
    """Feed it the events of one item; it returns what is handed on, `opening` first and `close()` last."""

    def __init__(self, index: int, raw: bytes, *, call_id: str) -> None:
        fields = read_fields(raw)
        self.index = index
        self.type = read_type(fields)
        self.scope = find_scope(self.type)
        self._state = "open"
        self._call_id = call_id
        self._begun = fill_item(fields, call_id=call_id, status=IN_PROGRESS)
        self._lists: dict[str, list[Part]] = {"content": [], "summary": [], "commands": []}
        self._part: Part | None = None
        self._text = ""
        self._pieces: list[str] = []
        self._images = 0
        #: The finished part that an event tells whose beginning was not.
        self._hint: Raw | None = None
        self._delayed: list[tuple[str, Fields]] = []
        self._is_closing = False
        #: Why the answer cannot be gone on with, behind what has been returned.
        self.fault: BackendError | None = None
        self._final: Fields | None = None
        self.opening = ItemOpened(index, raw if self._begun is fields else _encode(self._begun))

    @property
    def id(self) -> str | None:
        """The item's own id, where the server gave it one."""
        return read_text(self._begun.get("id"))

    @property
    def call_id(self) -> str | None:
        """The id of the call, where it is one."""
        return read_text(self._begun.get("call_id"))

    def take(self, name: str, fields: Fields) -> list[BackendEvent]:
        """One event of the server's; text behind the end of where it belongs is a `fault`."""
        name = OTHER_NAMES.get(name, name)
        given: dict[str, Any] = {key: value for key, value in fields.items() if key not in _OWN_FIELDS}
        if name not in EVENT_TYPES or (self.scope == UNKNOWN and _is_whole(name, given)):
            return [ItemEvent(self.index, name, given)]
        if self._delayed:
            return self._delay(name, fields)
        if (key := _TEXT_KEYS.get(name)) is not None and read_text(given.get(key)) is None:
            # A text that is none tells nothing.
            return []
        told = self._read_told(name, fields)
        if self._is_over(name, told):
            return self._drop(name, given)
        begins_next = self._begins_next(name, told)
        self._hint = given.get("part") if name in PART_ENDS else None
        state = "open" if begins_next else self._state
        way = find_way(self.scope, state, name, may_start=self._may_start(name, told))
        if way is None:
            return self._drop(name, given)
        if self._would_guess(way, begins_next=begins_next):
            return self._delay(name, fields)
        events = self._end_part() if begins_next else []
        for step in way:
            events += self._make(step, wanted=name, told=told)
        return events + self._pass_on(name, given, told)

    def _would_guess(self, way: Sequence[str], *, begins_next: bool) -> bool:
        """Whether a text would be called whole of which nothing at all was told."""
        if self._is_closing or self._hint is not None:
            return False
        if self._part is not None and not self._part.text:
            return begins_next or any(step in TEXT_ENDS for step in way)
        return any(step in _TEXT_DONES for step in way) and not self._text_so_far()

    def _delay(self, name: str, fields: Fields) -> list[BackendEvent]:
        """The finished item will tell the text; what comes behind it waits for that."""
        if len(self._delayed) >= DELAYED_EVENTS:
            self._fail("The model server sends events of an output item whose text it does not tell.")
            return []
        self._delayed.append((name, fields))
        return []

    def close(self, raw: bytes | None, *, status: Raw | None = None) -> list[BackendEvent]:
        """The rest of the item. `raw` is its finished form, where the server told it.

        `status` stands instead of a status that says that all is well.
        """
        final = self._final = read_fields(raw) if raw is not None else None
        self._is_closing = True
        self._hint = None
        events: list[BackendEvent] = []
        delayed, self._delayed = self._delayed, []
        for name, fields in delayed:
            events += self.take(name, fields)
        self._hint = None
        if self._part is not None:
            events += self._catch_up(self._part, self._read_final_part(self._part))
            events += self._end_part()
        if final is not None:
            events += self._make_parts(final, "summary") + self._make_parts(final, "content")
            if (key := TEXT_KEYS.get(self.type)) is not None:
                events += self._catch_up_text(read_call_text(final.get(key)))
        elif (key := TEXT_KEYS.get(self.type)) is not None:
            events += self._catch_up_text(read_text(self._begun.get(key)) or "")
        if self.type == "function_call" and status is None and not self._text_so_far().strip():
            # A call without arguments is a call with none: clients parse the text as JSON.
            events += self._add_text("{}")
        for step in find_way(self.scope, self._state, ITEM_DONE) or ():
            events += self._make(step)
        rendered = self._render(final, status)
        events.append(
            ItemClosed(self.index, raw if raw is not None and rendered == final else _encode(rendered))
        )
        return events

    # Where an event belongs

    def _read_told(self, name: str, fields: Fields) -> int | None:
        for key in ("content_index", "summary_index", "command_index"):
            if key in EVENT_TYPES[name].__struct_fields__:
                return read_number(fields.get(key))
        return None

    def _find_list(self, name: str) -> list[Part] | None:
        place = PART_EVENTS.get(name)
        if place is None:
            return None
        return self._lists[place]

    def _is_over(self, name: str, told: int | None) -> bool:
        """Whether an event is of a part that has been finished."""
        parts = self._find_list(name)
        if parts is None or name in PART_STARTS:
            return False
        if told is None:
            return self._part is None and bool(parts) and not name.endswith(".delta")
        return any(part.told == told for part in parts if part is not self._part)

    def _begins_next(self, name: str, told: int | None) -> bool:
        """Whether an event is of a part behind the open one, whose end was not told."""
        part = self._part
        if part is None or told is None or self._find_list(name) is not self._lists[part.place]:
            return False
        if part.told is None:
            part.told = told
        return told != part.told

    def _may_start(self, name: str, told: int | None) -> bool:
        parts = self._find_list(name)
        if name == "response.output_text.annotation.added":
            # It has no text to begin a part with.
            return False
        return parts is None or name.endswith((".delta", ".added")) or told is not None or not parts

    def _drop(self, name: str, given: dict[str, Any]) -> list[BackendEvent]:
        """Nothing is handed on; text must not be lost that way."""
        if name.endswith(".delta") and read_text(given.get("delta")):
            self._fail(f"The model server sent more of an item that it had ended ({name}).")
        return []

    def _fail(self, text: str) -> None:
        self.fault = self.fault or BackendError(text)

    # What the server says

    def _pass_on(self, name: str, given: dict[str, Any], told: int | None) -> list[BackendEvent]:
        if name in PART_STARTS:
            return self._start_part(name, given, told)
        if name in PART_ENDS:
            return self._finish_part(name, given)
        part = self._part
        if part is not None and self._find_list(name) is not None:
            return self._pass_part_event(part, name, given)
        if name in _TEXT_DELTAS:
            return self._add_text(read_text(given.get("delta")) or "", given)
        if name in _TEXT_DONES:
            key = _TEXT_DONES[name]
            events = self._catch_up_text(read_text(given.get(key)) or "")
            return [*events, *self._emit(name, {**given, key: self._text_so_far()})]
        known = EVENT_TYPES[name].__struct_fields__
        if "command_index" in known:
            given.setdefault("command_index", 0)
        if "partial_image_index" in known:
            given.setdefault("partial_image_index", self._images)
            self._images += 1
        return self._emit(name, given)

    def _pass_part_event(self, part: Part, name: str, given: dict[str, Any]) -> list[BackendEvent]:
        given[part.index_name] = part.position
        part.become(name)
        if name.endswith(".delta"):
            text = read_text(given.get("delta")) or ""
            part.add(text, given.get("logprobs"))
            if not text:
                return []
            given["delta"] = text
            if "logprobs" in EVENT_TYPES[name].__struct_fields__:
                given["logprobs"] = given["logprobs"] if read_list(given.get("logprobs")) else EMPTY_LIST
            return self._emit(name, given)
        if name.endswith(".done"):
            key = get_text_key(part.kind) if part.place != "commands" else "command"
            events = self._catch_up(part, read_text(given.get(key)))
            part.is_whole = True
            given[key] = part.text
            if "logprobs" in EVENT_TYPES[name].__struct_fields__ and not read_list(given.get("logprobs")):
                given["logprobs"] = part.render_logprobs()
            return [*events, *self._emit(name, given)]
        if name == "response.output_text.annotation.added":
            given["annotation_index"] = len(part.annotations)
            part.annotations.append(given.get("annotation", Raw(b"{}")))
        return self._emit(name, given)

    def _start_part(self, name: str, given: dict[str, Any], told: int | None) -> list[BackendEvent]:
        place = PART_EVENTS[name]
        parts = self._lists[place]
        sent = given.get("part")
        kind = find_kind(self.type, place, read_text((read_object(sent) or {}).get("type")))
        part = Part(kind or "", place, len(parts), told)
        parts.append(part)
        if kind is None:
            # The table has no events for parts of this kind; the item has the part.
            return []
        self._part = part
        if place == "commands":
            command = read_text(given.get("command")) or ""
            part.add(command, None)
            return self._emit(name, {**given, "command_index": part.position, "command": command})
        return self._emit(name, {**given, part.index_name: part.position, "part": part.render_start(sent)})

    def _finish_part(self, name: str, given: dict[str, Any]) -> list[BackendEvent]:
        part = self._part
        if part is None:
            return []
        if part.place == "commands":
            events = self._catch_up(part, read_text(given.get("command")))
            given = {**given, "command_index": part.position, "command": part.text}
        else:
            events = []
            given = {**given, part.index_name: part.position, "part": part.render(given.get("part"))}
        part.is_done = True
        self._part = None
        return [*events, *self._emit(name, given)]

    # What the server left out

    def _make(self, step: str, *, wanted: str = "", told: int | None = None) -> list[BackendEvent]:
        """One event that the table wants before another."""
        part = self._part
        if step in PART_STARTS:
            sent = read_text((read_object(self._hint) or {}).get("type"))
            kind = find_kind(self.type, PART_EVENTS[step], sent, wanted=wanted)
            return self._start_part(step, {"part": to_raw({"type": kind})}, told)
        if step in PART_ENDS:
            whole = self._read_final_part(part) if part is not None else None
            return self._finish_part(step, {} if whole is None else {"part": whole})
        if part is not None and self._find_list(step) is not None:
            if part.kind == "refusal" and step == "response.output_text.done":
                step = "response.refusal.done"
            whole = self._hint if self._hint is not None else self._read_final_part(part)
            return [*self._catch_up(part, whole), *self._pass_part_event(part, step, {})]
        if step in _TEXT_DONES:
            key = _TEXT_DONES[step]
            events = self._catch_up_text(read_call_text((self._final or {}).get(key)))
            return [*events, *self._emit(step, {key: self._text_so_far()})]
        if step.endswith(".completed") and is_told((self._final or {}).get("error")):
            step = _FAILURES.get(step, step)
        return self._emit(step, self._list_outputs(step))

    def _list_outputs(self, step: str) -> dict[str, Any]:
        if step != "response.shell_call_output_content.done":
            return {}
        output = (self._final or {}).get("output", EMPTY_LIST)
        return {"command_index": 0, "output": output}

    def _end_part(self) -> list[BackendEvent]:
        """Whatever the open part still needs."""
        events: list[BackendEvent] = []
        while self._part is not None:
            end = next(name for name in PART_ENDS if PART_EVENTS[name] == self._part.place)
            way = find_way(self.scope, self._state, end, may_start=False) or ()
            for step in (*way, end):
                events += self._make(step)
        return events

    def _make_parts(self, final: Fields, place: str) -> list[BackendEvent]:
        """The events of the parts of a finished item that none were sent of."""
        events: list[BackendEvent] = []
        if self.scope not in ("message", "reasoning"):
            return events
        for raw in read_list(final.get(place))[len(self._lists[place]) :]:
            kind = find_kind(self.type, place, read_text((read_object(raw) or {}).get("type")))
            if kind is None:
                self._lists[place].append(Part("", place, len(self._lists[place]), None))
                continue
            start = next(name for name in PART_STARTS if PART_EVENTS[name] == place)
            events += self._start_part(start, {"part": to_raw({"type": kind})}, None)
            part = self._part
            if part is not None:
                events += self._catch_up(part, raw)
            events += self._end_part()
        return events

    def _read_final_part(self, part: Part) -> Raw | None:
        parts = read_list((self._final or {}).get(part.place))
        return parts[part.position] if part.position < len(parts) else None

    def _catch_up(self, part: Part, whole: Raw | str | None) -> list[BackendEvent]:
        """A delta of what a part's whole text has beyond its deltas."""
        if whole is not None and not isinstance(whole, str):
            whole = read_text((read_object(whole) or {}).get(get_text_key(part.kind)))
        if whole is None or not part.takes_text or not whole.startswith(part.text):
            return []
        rest = whole[len(part.text) :]
        return self._pass_part_event(part, part.delta_name, {"delta": to_raw(rest)}) if rest else []

    def _catch_up_text(self, whole: str) -> list[BackendEvent]:
        text = self._text_so_far()
        return self._add_text(whole[len(text) :]) if whole.startswith(text) else []

    def _add_text(self, text: str, given: dict[str, Any] | None = None) -> list[BackendEvent]:
        name = next((delta for delta in _TEXT_DELTAS if self._can_send(delta)), None)
        if not text or name is None:
            return []
        events: list[BackendEvent] = []
        for step in find_way(self.scope, self._state, name) or ():
            events += self._make(step)
        self._pieces.append(text)
        return [*events, *self._emit(name, {**(given or {}), "delta": text})]

    def _can_send(self, delta: str) -> bool:
        return find_way(self.scope, self._state, delta) is not None

    def _text_so_far(self) -> str:
        if self._pieces:
            self._text += "".join(self._pieces)
            self._pieces.clear()
        return self._text

    def _emit(self, name: str, given: dict[str, Any]) -> list[BackendEvent]:
        """An event that the table allows here, if it has all that the API's has."""
        following = follow(self.scope, self._state, name)
        if following is None:
            return []
        if name not in _TEXT_DELTAS and name not in DELTA_NAMES and not _is_whole(name, given):
            return []
        self._state = following
        return [ItemEvent(self.index, name, given)]

    # The finished item

    def _render(self, final: Fields | None, status: Raw | None) -> Fields:
        """The members of the finished item: the server's own, unless something in them must be changed."""
        fields = self._make_final() if final is None else final
        fields = fill_item(fields, call_id=self._call_id, status=COMPLETED)
        changes: Fields = {}
        for key in ("id", "type", "call_id"):
            begun = self._begun.get(key)
            if begun is not None and is_told(begun) and begun != fields.get(key):
                changes[key] = begun
        told_status = read_text(fields.get("status"))
        if told_status == "in_progress":
            changes["status"] = COMPLETED
        if status is not None and told_status in (None, "completed", "in_progress"):
            changes["status"] = status
        for place in ("content", "summary"):
            changed = self._change_parts(fields, place)
            if changed is not None:
                changes[place] = to_raw(changed)
        key = TEXT_KEYS.get(self.type, "")
        if key and read_text(fields.get(key)) != self._text_so_far():
            changes[key] = to_raw(self._text_so_far())
        rendered = {**fields, **changes}
        if "id" in rendered and not is_told(self._begun.get("id")):
            # It began without one, and was given one since.
            del rendered["id"]
        return rendered

    def _make_final(self) -> Fields:
        """What came of an item whose finished form was never told."""
        made = {**self._begun}
        if "status" in made:
            made["status"] = COMPLETED
        for place in ("content", "summary"):
            if self._lists[place]:
                made[place] = to_raw([part.render(None) for part in self._lists[place]])
        return made

    def _change_parts(self, fields: Fields, place: str) -> list[Any] | None:
        """The parts of the finished item with the texts that were sent; None where nothing is to be changed."""
        told = read_list(fields.get(place))
        changed: list[Any] = list(told)
        for part in self._lists[place]:
            if not part.is_done:
                continue
            if part.position >= len(changed):
                changed.append(part.render(None))
                continue
            shown = part.render(changed[part.position])
            changed[part.position] = shown
        return changed if changed != told else None


_FAILURES = {
    "response.mcp_call.completed": "response.mcp_call.failed",
    "response.mcp_list_tools.completed": "response.mcp_list_tools.failed",
}


def _is_whole(name: str, given: dict[str, Any]) -> bool:
    """Whether an event has all fields of the API's, each of its kind."""
    event = {"type": name, "sequence_number": 0, "item_id": "", "output_index": 0, **given}
    try:
        msgspec.json.decode(_encode(event), type=EVENT_TYPES[name])
    except msgspec.DecodeError:
        return False
    return True
