"""What a stream said, and what is wrong with it, one question at a time.

Pure: it knows no server and no requirement. Invariant: nothing here raises, whatever the events hold; each
function answers its own question alone, so that one fault is not reported as another.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from antiphon.checker.answers import decode_json
from antiphon.protocol.errors import LifecycleError
from antiphon.protocol.lifecycle import ITEM_ADDED, ITEM_DONE, PLAIN, TERMINAL_EVENTS, Lifecycle
from antiphon.protocol.sse import SseDecoder

Event = dict[str, Any]

#: Faults that one question reports, at most.
MAX_FAULTS = 5
#: What may stand in a stream beside events.
END_MARK = b"[DONE]"

#: Family of events -> the member that its done event tells, where the item holds it, and the part's index.
_FAMILIES: dict[str, tuple[str, str | None, str | None]] = {
    "response.output_text": ("text", "content", "content_index"),
    "response.refusal": ("refusal", "content", "content_index"),
    "response.reasoning_summary_text": ("text", "summary", "summary_index"),
    "response.reasoning_text": ("text", "content", "content_index"),
    "response.reasoning": ("text", "content", "content_index"),
    "response.function_call_arguments": ("arguments", None, None),
    "response.custom_tool_call_input": ("input", None, None),
}
_CALL_EVENTS = ("response.function_call_arguments.delta", "response.function_call_arguments.done")


class Recording(msgspec.Struct, frozen=True):
    """The events of one stream in their order; `strays` are data after the last event that are no end mark."""

    events: list[Event]
    strays: int = 0

    @property
    def terminal(self) -> Event | None:
        """The first terminal event."""
        return next((event for event in self.events if read_type(event) in TERMINAL_EVENTS), None)

    @property
    def response(self) -> dict[str, Any]:
        """The response of the terminal event; empty where there is none."""
        response = (self.terminal or {}).get("response")
        return response if isinstance(response, dict) else {}

    @property
    def outputs(self) -> list[Any]:
        """The items of the terminal event's response."""
        output = self.response.get("output")
        return output if isinstance(output, list) else []


def decode_recording(raw: bytes) -> Recording:
    """The events in a body; raises `SseTooLargeError`."""
    decoder = SseDecoder()
    frames = [frame for frame in (*decoder.feed(raw), *decoder.close()) if frame.complete]
    events, strays = [], 0
    for frame in frames:
        event = decode_json(frame.data)
        if isinstance(event, dict):
            events.append(event)
            strays = 0
        elif frame.data.strip() not in (b"", END_MARK):
            strays += 1
    return Recording(events, strays)


def read_type(event: Event) -> str:
    """The event's type; a bare error line of some servers is an `error`, another without type is ''."""
    told = event.get("type", "error" if "error" in event else "")
    return told if isinstance(told, str) else ""


def find_order_faults(recording: Recording) -> list[str]:
    """What comes where the lifecycle does not allow it, up to the first terminal event."""
    lifecycle, faults = Lifecycle(), []
    for event in recording.events:
        told = read_type(event)
        # An extension's events may stand anywhere.
        if told and told != "error" and not told.startswith("response."):
            continue
        item = event.get("item")
        item_type = item.get("type", "message") if isinstance(item, dict) else PLAIN
        place = (told, _read_index(event), item_type if isinstance(item_type, str) else PLAIN)
        try:
            lifecycle.advance(*place)
        except LifecycleError as fault:
            faults.append(fault.message)
            lifecycle.force(*place)
        if told in TERMINAL_EVENTS:
            break
    return faults[:MAX_FAULTS]


def find_number_faults(recording: Recording) -> list[str]:
    """Events whose `sequence_number` is not their place in the stream."""
    faults = []
    for place, event in enumerate(recording.events):
        number = event.get("sequence_number")
        if type(number) is not int or number != place:
            faults.append(f"event {place} ({read_type(event)}) has sequence_number {number!r}")
    return faults[:MAX_FAULTS]


def find_ending_faults(recording: Recording) -> list[str]:
    """Anything but one terminal event, last."""
    kinds = [read_type(event) for event in recording.events]
    ends = [place for place, kind in enumerate(kinds) if kind in TERMINAL_EVENTS]
    if not ends:
        last = kinds[-1] if kinds else "nothing"
        return [f"the stream ended without a terminal event, after {last}"]
    faults = []
    if len(ends) > 1:
        faults.append(f"{len(ends)} terminal events: {', '.join(kinds[place] for place in ends)}")
    later = [kind for kind in kinds[ends[0] + 1 :] if kind not in TERMINAL_EVENTS]
    if later or recording.strays:
        faults.append(f"after the terminal event came {', '.join(later[:3]) or 'other data'}")
    return faults


def find_text_faults(recording: Recording) -> list[str]:
    """Deltas that do not make the text of their done event, or of the finished item."""
    told: dict[tuple[int | None, str, int | None], str] = {}
    faults: list[str] = []
    for event in recording.events:
        family, _, kind = read_type(event).rpartition(".")
        if family not in _FAMILIES or kind not in ("delta", "done"):
            continue
        field, _, index_name = _FAMILIES[family]
        # A missing index is a fault of the order; there is one part then.
        key = _read_index(event), family, (_read_index(event, index_name) or 0) if index_name else None
        text = event.get("delta" if kind == "delta" else field)
        if kind == "delta":
            told[key] = told.get(key, "") + (text if isinstance(text, str) else "")
        elif text != told.setdefault(key, ""):
            faults.append(f"{family}: the deltas make {told[key]!r}, the done event tells {text!r}")
    done = _index_items(recording, ITEM_DONE)
    for (index, family, part), text in told.items():
        held = _read_held(done.get(index), family, part)
        if held != text:
            faults.append(f"{family}: the deltas make {text!r}, the finished item holds {held!r}")
    faults += _find_untold(done, {(index, part) for index, family, part in told if _FAMILIES[family][1]})
    return faults[:MAX_FAULTS]


def find_id_faults(recording: Recording) -> list[str]:
    """Ids that change: of the response, and of each item from added to done to the final response."""
    responses = [event["response"] for event in recording.events if isinstance(event.get("response"), dict)]
    ids = list(dict.fromkeys(repr(response.get("id")) for response in responses))
    faults = [] if len(ids) <= 1 else [f"the response has the ids {', '.join(ids)}"]
    added, done = _index_items(recording, ITEM_ADDED), _index_items(recording, ITEM_DONE)
    final: dict[int | None, dict[str, Any]] = {
        index: item for index, item in enumerate(recording.outputs) if isinstance(item, dict)
    }
    for index, item in added.items():
        for place, later in (("done", done), ("in the final response", final)):
            faults += [
                f"item {index}: {name} is {item.get(name)!r} when added, {later[index].get(name)!r} {place}"
                for name in ("id", "type", "call_id")
                if index in later and later[index].get(name) != item.get(name)
            ]
    for event in recording.events:
        item = added.get(_read_index(event), {})
        if "item_id" in event and event["item_id"] != item.get("id", event["item_id"]):
            told = f"{read_type(event)} names item {event['item_id']!r}, added was {item.get('id')!r}"
            faults.append(told)
    return list(dict.fromkeys(faults))[:MAX_FAULTS]


def find_final_faults(recording: Recording) -> list[str]:
    """Where the terminal event's response is not what was streamed."""
    kind = read_type(recording.terminal or {})
    faults = []
    status = recording.response.get("status")
    # A cancelled response has no terminal event of its own.
    if status not in (kind.removeprefix("response."), "cancelled"):
        faults.append(f"{kind} carries a response whose status is {status!r}")
    done = [item for _, item in sorted(_index_items(recording, ITEM_DONE).items(), key=_order_key)]
    if len(recording.outputs) != len(done):
        faults.append(f"{len(done)} items were done, {len(recording.outputs)} stand in the final response")
    for index, (item, final) in enumerate(zip(done, recording.outputs, strict=False)):
        if _describe(item) != _describe(final):
            faults.append(f"item {index} of the final response is not the one that was done")
    return faults[:MAX_FAULTS]


def find_call_faults(recording: Recording) -> list[str] | None:
    """Function calls without their whole sequence of events; None where there is no call."""
    added, done = _index_items(recording, ITEM_ADDED), _index_items(recording, ITEM_DONE)
    calls = {index for index, item in (added | done).items() if item.get("type") == "function_call"}
    if not calls:
        return None
    faults = []
    for index in sorted(calls, key=lambda index: -1 if index is None else index):
        kinds = [read_type(event) for event in recording.events if _read_index(event) == index]
        middle = [kind for kind in kinds[1:-1] if kind != _CALL_EVENTS[0]]
        whole = kinds[:1] == [ITEM_ADDED] and kinds[-1:] == [ITEM_DONE] and middle == [_CALL_EVENTS[1]]
        if index is None or not whole:
            faults.append(f"the call at output_index {index} came as {', '.join(kinds[:6])}")
        start = added.get(index, {})
        if start and (start.get("arguments") or not start.get("call_id") or not start.get("name")):
            faults.append(
                f"the call at output_index {index} is added with arguments, or without call_id or name"
            )
    return faults[:MAX_FAULTS]


def _read_index(event: Event, name: str = "output_index") -> int | None:
    index = event.get(name)
    return index if type(index) is int and 0 <= index < 2**31 else None


def _index_items(recording: Recording, kind: str) -> dict[int | None, dict[str, Any]]:
    """output_index -> the item in its first event of this kind."""
    found: dict[int | None, dict[str, Any]] = {}
    for event in recording.events:
        if read_type(event) == kind and isinstance(event.get("item"), dict):
            found.setdefault(_read_index(event), event["item"])
    return found


def _order_key(entry: tuple[int | None, Any]) -> int:
    return -1 if entry[0] is None else entry[0]


def _read_held(item: dict[str, Any] | None, family: str, part: int | None) -> Any:
    """The text of one part, or of the item itself."""
    field, place, _ = _FAMILIES[family]
    if item is None or place is None:
        return None if item is None else item.get(field)
    parts = item.get(place)
    if not isinstance(parts, list) or part is None or part >= len(parts) or not isinstance(parts[part], dict):
        return None
    return parts[part].get(field)


def _find_untold(
    done: dict[int | None, dict[str, Any]], told: set[tuple[int | None, int | None]]
) -> Iterator[str]:
    """Text of messages that no delta told."""
    for index, item in done.items():
        content = item.get("content")
        if item.get("type") != "message" or not isinstance(content, list):
            continue
        for part, held in enumerate(content):
            if isinstance(held, dict) and held.get("text") and (index, part) not in told:
                yield f"part {part} of item {index} has a text, and no delta told it"


def _describe(item: Any) -> Any:
    """What a client would show or carry out of an item."""
    if not isinstance(item, dict):
        return item
    parts = [
        (part.get("type"), part.get("text"), part.get("refusal")) if isinstance(part, dict) else part
        for place in ("content", "summary")
        if isinstance(item.get(place), list)
        for part in item[place]
    ]
    return [*(item.get(name) for name in ("type", "role", "name", "arguments", "input")), parts]
