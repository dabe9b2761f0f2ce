"""Events of a Responses server -> backend events: pure, one decoder per stream.

It says which item an event is of, keeps items in order, and reads how the answer ended; what is inside an item is
`open_item`'s. Invariant: items are handed on strictly one after another, and after `close()` exactly one
terminal event has been returned, whatever came in.
"""

from collections import deque
from contextlib import suppress

import msgspec
from msgspec import Raw

from antiphon.backends.interface import BackendEvent, BackendUsage, Failed, Finished, FinishReason
from antiphon.backends.refusals import read_failure
from antiphon.backends.responses.item_forms import INCOMPLETE, read_type, unmake_item
from antiphon.backends.responses.json_fields import (
    Fields,
    is_told,
    read_fields,
    read_list,
    read_number,
    read_object,
    read_text,
)
from antiphon.backends.responses.open_item import OpenItem
from antiphon.backends.responses.told_warnings import read_warnings
from antiphon.backends.usage import make_usage
from antiphon.protocol.errors import AntiphonError, BackendError

#: What of later items may wait for an item that is not done, in bytes of their events.
WAITING_BYTES = 16 << 20
#: No answer has more items than this; what one event tells of them all is worked off at once.
ITEMS = 2_000

_TERMINALS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
#: Events of the response as a whole that say nothing that we do not say ourselves.
_BEGINNINGS = frozenset({"response.created", "response.queued", "response.in_progress"})
#: Items that can be ended as incomplete where the server broke off; the phases of others are not ours to say, and
#: clients run the calls that are ended.
_CUTTABLE = frozenset({"message", "reasoning"})
#: Those that the last one may be where the length was reached.
_CUT_BY_LENGTH = _CUTTABLE | {"function_call", "custom_tool_call"}
#: Beginnings of events that tell the kind of their item, where no item was begun.
_FAMILIES = (
    ("response.output_text.", "message"),
    ("response.refusal.", "message"),
    ("response.content_part.", "message"),
    ("response.reasoning", "reasoning"),
)

_encode = msgspec.json.Encoder().encode


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


_decode_usage = msgspec.json.Decoder(_Usage | None, strict=False).decode


class _Lane:
    """One item, and what waits of it for the items before it."""

    __slots__ = ("final", "has_ended", "is_closed", "item", "told_index", "waiting")

    def __init__(self, item: OpenItem, told_index: int | None) -> None:
        self.item = item
        self.told_index = told_index
        #: Its finished form, once the server has told it.
        self.final: bytes | None = None
        #: The server has told its end, and it is held back.
        self.has_ended = False
        self.is_closed = False
        self.waiting: list[BackendEvent] = [item.opening]

    def end_as(self, raw: bytes, told: Fields) -> None:
        """Its finished form; raises `BackendError` for one of another type."""
        if read_type(told) != self.item.type:
            raise BackendError("The model server began an output item as one type and ended it as another.")
        self.final = raw

    def may_have(self, index: int | None) -> bool:
        """Whether an output index is this item's, or either is not told."""
        return index is None or self.told_index is None or self.told_index == index


class ResponsesDecoder:
    """Feed it the `data` of each server-sent event, or a whole response object; it returns our events.

    `one_at_a_time`: an item ends when the next begins. `hides_cuts`: an answer that is called completed may have
    been cut by `max_output_tokens`, so the end of an item is held back until what follows is known.
    """

    def __init__(
        self,
        *,
        window_tokens: int | None = None,
        max_output_tokens: int | None = None,
        one_at_a_time: bool = False,
        hides_cuts: bool = False,
        call_id_stem: str = "call",
    ) -> None:
        self._window_tokens = window_tokens
        self._max_output_tokens = max_output_tokens
        self._one_at_a_time = one_at_a_time
        self._hides_cuts = hides_cuts
        self._call_id_stem = call_id_stem
        self._lanes: list[_Lane] = []
        #: By the item's id and by its call's.
        self._by_id: dict[str, _Lane] = {}
        #: The first lane that is not done: what is said of it is handed on at once.
        self._current = 0
        self._waiting_bytes = 0
        self._warnings: tuple[tuple[str, str], ...] = ()
        self._over = False

    @property
    def ended(self) -> bool:
        """Whether a terminal event has been returned; nothing more will come."""
        return self._over

    @property
    def is_finished(self) -> bool:
        """Never before the terminal event, which tells everything at once."""
        return self._over

    def feed(self, data: bytes, *, complete: bool = True) -> list[BackendEvent]:
        """The events of one payload; empty for what carries nothing.

        Not `complete`: the stream ended inside this payload, so it may be anything.
        """
        if self._over:
            return []
        out: list[BackendEvent] = []
        try:
            if data.startswith(b"[DONE]"):
                self._finish("stop", None, [], out)
                return out
            if not data.isascii():
                # What is handed on as bytes is looked at nowhere else.
                data.decode()
            self._read(read_fields(data), data, out)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not complete:
                return []
            return out + self.fail(
                BackendError(f"The model server sent an event that cannot be read: {error}.")
            )
        except BackendError as error:
            return out + self.fail(error)
        return out

    def close(self) -> list[BackendEvent]:
        """The stream is over; without a terminal event it was cut off."""
        return self.fail(BackendError("The model server closed the stream before the end of its answer."))

    def break_off(self, error: BackendError) -> list[BackendEvent]:
        """The connection broke."""
        return self.fail(error)

    def fail_by(self, error: bytes) -> list[BackendEvent]:
        """The server told an error, as JSON."""
        return self.fail(read_failure(error))

    def fail(self, error: AntiphonError) -> list[BackendEvent]:
        """What was said so far, then the terminal event for a failure."""
        if self._over:
            return []
        self._over = True
        out: list[BackendEvent] = []
        # What has failed already may do so again; the rest of it is not told.
        with suppress(BackendError, msgspec.DecodeError, RecursionError):
            self._break_off(out)
        return [*out, Failed(error=error)]

    def _break_off(self, out: list[BackendEvent]) -> None:
        self._settle(out)
        for lane in self._lanes[self._current :]:
            if lane.is_closed:
                continue
            if lane.item.scope not in _CUTTABLE:
                # It stays open, as an answer that breaks off may leave it; what waits for it is not told.
                return
            self._end(lane, out, status=INCOMPLETE)

    # Events

    def _read(self, fields: Fields, data: bytes, out: list[BackendEvent]) -> None:
        name = read_text(fields.get("type"))
        if name is None:
            self._read_untyped(fields, data, out)
        elif name in _TERMINALS:
            response = read_object(fields.get("response")) or {}
            self._read_end(response, name.removeprefix("response."), out)
        elif name == "error":
            out += self.fail_by(data)
        elif name == "response.output_item.added":
            self._settle(out)
            self._add(bytes(fields["item"]) if "item" in fields else b"{}", fields, out)
        elif name == "response.output_item.done":
            self._settle(out)
            self._take_done(bytes(fields["item"]) if "item" in fields else b"{}", fields, out)
        elif name not in _BEGINNINGS:
            self._settle(out)
            self._take_inner(name, fields, len(data), out)

    def _read_untyped(self, fields: Fields, data: bytes, out: list[BackendEvent]) -> None:
        """A whole response, or an error in a line of its own; anything else says nothing."""
        if "output" in fields or read_text(fields.get("object")) == "response":
            self._read_end(fields, read_text(fields.get("status")) or "completed", out)
        elif is_told(fields.get("error")):
            out += self.fail_by(data)

    def _add(self, raw: bytes, fields: Fields, out: list[BackendEvent]) -> _Lane:
        if len(self._lanes) >= ITEMS:
            raise BackendError(f"The model server sent more than {ITEMS} output items.")
        if self._one_at_a_time:
            for earlier in self._lanes[self._current :]:
                self._end(earlier, out)
        index = len(self._lanes)
        item = OpenItem(index, raw, call_id=f"{self._call_id_stem}_{index}")
        lane = _Lane(item, read_number(fields.get("output_index")))
        self._lanes.append(lane)
        self._by_id.update({told: lane for told in (item.id, item.call_id) if told})
        self._hand_on(out)
        return lane

    def _take_done(self, raw: bytes, fields: Fields, out: list[BackendEvent]) -> None:
        told = read_fields(raw)
        lane = self._find_item(told, fields)
        if lane is None:
            lane = self._add(_encode(unmake_item(told)), fields, out)
        if lane.is_closed or lane.has_ended:
            return
        lane.end_as(raw, told)
        lane.has_ended = True
        if not self._hides_cuts:
            self._end(lane, out)

    def _take_inner(self, name: str, fields: Fields, size: int, out: list[BackendEvent]) -> None:
        lane = self._find_lane(fields)
        if lane is None:
            kind = _guess_type(name, fields)
            if kind is None:
                # Nothing is known of the item yet; its end will tell all of it.
                return
            begun = {"type": kind, "id": read_text(fields.get("item_id"))}
            lane = self._add(_encode({key: value for key, value in begun.items() if value}), fields, out)
        if lane.is_closed:
            if name.endswith(".delta") and read_text(fields.get("delta")):
                raise BackendError(f"The model server sent more of an item that had ended ({name}).")
            return
        events = lane.item.take(name, fields)
        lane.waiting += events
        if lane is self._lanes[self._current]:
            self._hand_on(out)
        else:
            self._waiting_bytes += size
            if self._waiting_bytes > WAITING_BYTES:
                raise BackendError(
                    "The model server interleaves items that are too large to be put in order."
                )
        if lane.item.fault is not None:
            raise lane.item.fault

    # Which item

    def _find_lane(self, fields: Fields) -> _Lane | None:
        """The item that an event is of: by id, else by its index, else the one that was begun last."""
        told_id = read_text(fields.get("item_id"))
        if told_id and told_id in self._by_id:
            return self._by_id[told_id]
        index = read_number(fields.get("output_index"))
        for lane in reversed(self._lanes[self._current :]):
            # An id that is another item's is of one that was not begun.
            if not lane.is_closed and not (told_id and lane.item.id) and lane.may_have(index):
                return lane
        return None

    def _find_item(self, told: Fields, fields: Fields) -> _Lane | None:
        """The begun item that a finished one is."""
        for key in ("id", "call_id"):
            lane = self._by_id.get(read_text(told.get(key)) or "")
            if lane is not None:
                return lane
        index = read_number(fields.get("output_index"))
        for lane in self._lanes[self._current :]:
            if lane.is_closed or lane.item.type != read_type(told):
                continue
            if lane.item.id and is_told(told.get("id")) and index is None:
                continue
            if lane.may_have(index):
                return lane
        return None

    # Order

    def _end(self, lane: _Lane, out: list[BackendEvent], *, status: Raw | None = None) -> None:
        if not lane.is_closed:
            lane.waiting += lane.item.close(lane.final, status=status)
            lane.is_closed = True
            self._hand_on(out)
            if lane.item.fault is not None:
                raise lane.item.fault

    def _settle(self, out: list[BackendEvent]) -> None:
        """End what was held back: more follows, so it was not cut."""
        if self._hides_cuts:
            for lane in self._lanes[self._current :]:
                if lane.has_ended:
                    self._end(lane, out)

    def _hand_on(self, out: list[BackendEvent]) -> None:
        """Everything up to the end of the first item that is not done."""
        while self._current < len(self._lanes):
            lane = self._lanes[self._current]
            out += lane.waiting
            lane.waiting = []
            if not lane.is_closed:
                return
            self._current += 1

    # The end

    def _read_end(self, response: Fields, told: str, out: list[BackendEvent]) -> None:
        status = read_text(response.get("status")) or told
        if status in ("failed", "cancelled", "queued", "in_progress"):
            out += self._fail_with(response, status)
            return
        self._warnings = read_warnings(response.get("antiphon"))
        usage = _read_usage(response.get("usage"))
        reason: FinishReason = "stop"
        if "incomplete" in (status, told):
            details = read_object(response.get("incomplete_details")) or {}
            is_filtered = read_text(details.get("reason")) == "content_filter"
            reason = "content_filter" if is_filtered else "length"
        elif self._was_cut(usage):
            reason = "length"
        self._finish(reason, usage, read_list(response.get("output")), out)

    def _fail_with(self, response: Fields, status: str) -> list[BackendEvent]:
        error = response.get("error")
        if error is not None and is_told(error):
            return self.fail_by(bytes(error))
        return self.fail(BackendError(f"The model server ended its answer as {status} and said no more."))

    def _finish(
        self, reason: FinishReason, usage: BackendUsage | None, output: list[Raw], out: list[BackendEvent]
    ) -> None:
        told_items = _ToldItems(self._lanes)
        for position, raw in enumerate(output):
            self._reconcile(position, bytes(raw), told_items, out)
        unfinished = self._lanes[self._current :]
        for lane in unfinished:
            is_cut = reason == "length" and lane is self._lanes[-1] and lane.item.type in _CUT_BY_LENGTH
            self._end(lane, out, status=INCOMPLETE if is_cut else None)
        self._over = True
        out.append(Finished(reason=reason, usage=usage, warnings=self._warnings))

    def _reconcile(
        self, position: int, raw: bytes, told_items: "_ToldItems", out: list[BackendEvent]
    ) -> None:
        """What the finished response has of an item whose end, or of which anything at all, was not told."""
        told = read_fields(raw)
        lane = told_items.find(position, told)
        if lane is None:
            lane = self._add(_encode(unmake_item(told)), {}, out)
        if lane.final is None and not lane.is_closed:
            lane.end_as(raw, told)

    def _was_cut(self, usage: BackendUsage | None) -> bool:
        """llama.cpp calls completed what a limit cut, and Ollama does; what the window cut anyone may."""
        if usage is None:
            return False
        if usage.input_tokens + usage.output_tokens == self._window_tokens:
            return True
        limit = self._max_output_tokens
        return self._hides_cuts and limit is not None and usage.output_tokens >= limit


class _ToldItems:
    """The items that were begun, for the output of the finished response: each of them stands there once.

    What it costs to find one does not grow with their number.
    """

    def __init__(self, lanes: list[_Lane]) -> None:
        self._lanes = list(lanes)
        self._found: set[_Lane] = set()
        self._named: dict[str, deque[_Lane]] = {}
        #: By type, those that are not done: with an id of their own or without one.
        self._open: dict[tuple[str, bool], deque[_Lane]] = {}
        for lane in lanes:
            for name in {lane.item.id, lane.item.call_id}:
                if name:
                    self._named.setdefault(name, deque()).append(lane)
            if not lane.is_closed:
                self._open.setdefault((lane.item.type, bool(lane.item.id)), deque()).append(lane)

    def find(self, position: int, told: Fields) -> _Lane | None:
        """The begun item that this one is: by its id, else the next of its type, else the one in its place."""
        item_type = read_type(told)
        for key in ("id", "call_id"):
            lane = self._take(self._named.get(read_text(told.get(key)) or ""))
            if lane is not None:
                return lane
        lane = self._take(self._open.get((item_type, False)))
        if lane is None and not is_told(told.get("id")):
            lane = self._take(self._open.get((item_type, True)))
        if lane is None and position < len(self._lanes):
            # Told before, under another id.
            there = self._lanes[position]
            if there.item.type == item_type and there not in self._found:
                self._found.add(there)
                lane = there
        return lane

    def _take(self, waiting: deque[_Lane] | None) -> _Lane | None:
        while waiting:
            lane = waiting.popleft()
            if lane not in self._found:
                self._found.add(lane)
                return lane
        return None


def _guess_type(name: str, fields: Fields) -> str | None:
    """The type of an item that was not begun, where an event inside it tells what it is."""
    part = read_object(fields.get("part")) or {}
    if read_text(part.get("type")) == "reasoning_text":
        return "reasoning"
    return next((kind for start, kind in _FAMILIES if name.startswith(start)), None)


def _read_usage(raw: Raw | None) -> BackendUsage | None:
    try:
        usage = _decode_usage(raw) if raw is not None else None
    except msgspec.DecodeError:
        return None
    if usage is None:
        return None
    prompt = usage.input_tokens_details or _InputDetails()
    details = usage.output_tokens_details or _OutputDetails()
    return make_usage(
        usage.input_tokens,
        usage.output_tokens,
        cached_tokens=prompt.cached_tokens,
        cache_write_tokens=prompt.cache_write_tokens,
        reasoning_tokens=details.reasoning_tokens,
    )
