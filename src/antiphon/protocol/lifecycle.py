"""Which event may follow which in a Responses stream: one table, and two that walk it.

`Lifecycle` asserts what we send; `StreamChecker` reports what is wrong with what others sent. Neither
knows a transport or a clock. Invariant: an order of events is right if and only if `TABLE` has a row for
every step, items are numbered without gaps, and exactly one terminal event comes, last.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from antiphon.protocol.errors import LifecycleError
from antiphon.protocol.events import UNTOLD, Event, encode_event
from antiphon.protocol.item_kinds import ITEM_TYPES

ITEM_ADDED: Final = "response.output_item.added"
ITEM_DONE: Final = "response.output_item.done"

#: The events after which nothing may come.
TERMINAL_EVENTS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})

#: The scope of every item kind that has no events between added and done.
PLAIN: Final = "other"
#: The scope of items whose type we do not know; nobody can say which events belong inside them.
UNKNOWN: Final = "unknown"
#: Stands for every event that has no row of its own.
ANY_EVENT: Final = "*"

#: (scope, state, event) -> next state. The scope is the response or a kind of item; an item is known from
#: its `added` event to its `done`.
TABLE: Final[dict[tuple[str, str, str], str]] = {
    ("response", "start", "response.created"): "created",
    ("response", "created", "response.queued"): "queued",
    ("response", "created", "response.in_progress"): "in_progress",
    ("response", "created", "error"): "broken",
    ("response", "created", "response.failed"): "failed",
    # Repeated, it keeps the connection alive while a worker is waited for.
    ("response", "queued", "response.queued"): "queued",
    ("response", "queued", "response.in_progress"): "in_progress",
    ("response", "queued", "error"): "broken",
    ("response", "queued", "response.failed"): "failed",
    # Repeated, it keeps the connection alive.
    ("response", "in_progress", "response.in_progress"): "in_progress",
    ("response", "in_progress", ITEM_ADDED): "in_progress",
    ("response", "in_progress", "response.audio.delta"): "in_progress",
    ("response", "in_progress", "response.audio.done"): "in_progress",
    ("response", "in_progress", "response.audio.transcript.delta"): "in_progress",
    ("response", "in_progress", "response.audio.transcript.done"): "in_progress",
    ("response", "in_progress", "response.steer.accepted"): "in_progress",
    ("response", "in_progress", "response.steer.pending"): "in_progress",
    ("response", "in_progress", "response.steer.failed"): "in_progress",
    ("response", "in_progress", "error"): "broken",
    ("response", "in_progress", "response.completed"): "completed",
    ("response", "in_progress", "response.incomplete"): "incomplete",
    ("response", "in_progress", "response.failed"): "failed",
    ("response", "broken", "response.failed"): "failed",
    #
    ("message", "start", ITEM_ADDED): "open",
    ("message", "open", "response.content_part.added"): "part",
    ("message", "part", "response.output_text.delta"): "text",
    ("message", "part", "response.output_text.annotation.added"): "text",
    ("message", "part", "response.output_text.done"): "part_whole",
    ("message", "text", "response.output_text.delta"): "text",
    ("message", "text", "response.output_text.annotation.added"): "text",
    ("message", "text", "response.output_text.done"): "part_whole",
    ("message", "part", "response.refusal.delta"): "refusal",
    ("message", "part", "response.refusal.done"): "part_whole",
    ("message", "refusal", "response.refusal.delta"): "refusal",
    ("message", "refusal", "response.refusal.done"): "part_whole",
    ("message", "part_whole", "response.content_part.done"): "open",
    ("message", "open", ITEM_DONE): "done",
    #
    ("reasoning", "start", ITEM_ADDED): "open",
    ("reasoning", "open", "response.reasoning_summary_part.added"): "summary",
    ("reasoning", "summary", "response.reasoning_summary_text.delta"): "summary",
    ("reasoning", "summary", "response.reasoning_summary_text.done"): "summary_whole",
    ("reasoning", "summary_whole", "response.reasoning_summary_part.done"): "open",
    ("reasoning", "open", "response.content_part.added"): "content",
    ("reasoning", "content", "response.reasoning_text.delta"): "content",
    ("reasoning", "content", "response.reasoning_text.done"): "content_whole",
    # The names that Open Responses has for the same events.
    ("reasoning", "content", "response.reasoning.delta"): "content",
    ("reasoning", "content", "response.reasoning.done"): "content_whole",
    ("reasoning", "content_whole", "response.content_part.done"): "open",
    ("reasoning", "open", ITEM_DONE): "done",
    #
    ("function_call", "start", ITEM_ADDED): "open",
    ("function_call", "open", "response.function_call_arguments.delta"): "open",
    ("function_call", "open", "response.function_call_arguments.done"): "whole",
    ("function_call", "whole", ITEM_DONE): "done",
    #
    ("custom_tool_call", "start", ITEM_ADDED): "open",
    ("custom_tool_call", "open", "response.custom_tool_call_input.delta"): "open",
    ("custom_tool_call", "open", "response.custom_tool_call_input.done"): "whole",
    ("custom_tool_call", "whole", ITEM_DONE): "done",
    #
    ("mcp_list_tools", "start", ITEM_ADDED): "open",
    ("mcp_list_tools", "open", "response.mcp_list_tools.in_progress"): "listing",
    ("mcp_list_tools", "listing", "response.mcp_list_tools.completed"): "whole",
    ("mcp_list_tools", "listing", "response.mcp_list_tools.failed"): "whole",
    ("mcp_list_tools", "whole", ITEM_DONE): "done",
    #
    ("mcp_call", "start", ITEM_ADDED): "open",
    ("mcp_call", "open", "response.mcp_call.in_progress"): "arguments",
    ("mcp_call", "arguments", "response.mcp_call_arguments.delta"): "arguments",
    ("mcp_call", "arguments", "response.mcp_call_arguments.done"): "calling",
    ("mcp_call", "calling", "response.mcp_call.completed"): "whole",
    ("mcp_call", "calling", "response.mcp_call.failed"): "whole",
    ("mcp_call", "whole", ITEM_DONE): "done",
    #
    ("web_search_call", "start", ITEM_ADDED): "open",
    ("web_search_call", "open", "response.web_search_call.in_progress"): "begun",
    ("web_search_call", "begun", "response.web_search_call.searching"): "searching",
    ("web_search_call", "searching", "response.web_search_call.completed"): "whole",
    ("web_search_call", "whole", ITEM_DONE): "done",
    #
    ("file_search_call", "start", ITEM_ADDED): "open",
    ("file_search_call", "open", "response.file_search_call.in_progress"): "begun",
    ("file_search_call", "begun", "response.file_search_call.searching"): "searching",
    ("file_search_call", "searching", "response.file_search_call.completed"): "whole",
    ("file_search_call", "whole", ITEM_DONE): "done",
    #
    ("code_interpreter_call", "start", ITEM_ADDED): "open",
    ("code_interpreter_call", "open", "response.code_interpreter_call.in_progress"): "code",
    ("code_interpreter_call", "code", "response.code_interpreter_call_code.delta"): "code",
    ("code_interpreter_call", "code", "response.code_interpreter_call_code.done"): "code_whole",
    ("code_interpreter_call", "code_whole", "response.code_interpreter_call.interpreting"): "running",
    ("code_interpreter_call", "running", "response.code_interpreter_call.completed"): "whole",
    ("code_interpreter_call", "whole", ITEM_DONE): "done",
    #
    ("image_generation_call", "start", ITEM_ADDED): "open",
    ("image_generation_call", "open", "response.image_generation_call.in_progress"): "begun",
    ("image_generation_call", "begun", "response.image_generation_call.generating"): "generating",
    ("image_generation_call", "generating", "response.image_generation_call.partial_image"): "generating",
    ("image_generation_call", "generating", "response.image_generation_call.completed"): "whole",
    ("image_generation_call", "whole", ITEM_DONE): "done",
    #
    ("shell_call", "start", ITEM_ADDED): "open",
    ("shell_call", "open", "response.shell_call_command.added"): "command",
    ("shell_call", "command", "response.shell_call_command.delta"): "command",
    ("shell_call", "command", "response.shell_call_command.done"): "open",
    ("shell_call", "open", ITEM_DONE): "done",
    #
    ("shell_call_output", "start", ITEM_ADDED): "open",
    ("shell_call_output", "open", "response.shell_call_output_content.delta"): "output",
    ("shell_call_output", "open", "response.shell_call_output_content.done"): "open",
    ("shell_call_output", "output", "response.shell_call_output_content.delta"): "output",
    ("shell_call_output", "output", "response.shell_call_output_content.done"): "open",
    ("shell_call_output", "open", ITEM_DONE): "done",
    #
    ("compaction", "start", ITEM_ADDED): "open",
    ("compaction", "open", "response.compaction.compacting"): "open",
    ("compaction", "open", ITEM_DONE): "done",
    #
    (PLAIN, "start", ITEM_ADDED): "open",
    (PLAIN, "open", ITEM_DONE): "done",
    #
    (UNKNOWN, "start", ITEM_ADDED): "open",
    (UNKNOWN, "open", ITEM_DONE): "done",
    (UNKNOWN, "open", ANY_EVENT): "open",
}


def is_terminal(event_type: str) -> bool:
    """Whether nothing may come after this event."""
    return event_type in TERMINAL_EVENTS


def draw_table() -> str:
    """The table as Markdown, one section a scope."""
    sections: dict[str, list[str]] = {}
    for (scope, state, event), following in TABLE.items():
        rows = sections.setdefault(scope, ["| state | event | next state |", "|---|---|---|"])
        rows.append(f"| {state} | `{event}` | {following} |")
    return "\n".join(f"### {scope}\n\n" + "\n".join(rows) + "\n" for scope, rows in sections.items())


class _Node:
    """One state of one scope, linked to those that may follow: a step is one look-up."""

    __slots__ = ("following", "scope", "state")

    def __init__(self, scope: str, state: str) -> None:
        self.scope = scope
        self.state = state
        self.following: dict[str, _Node] = {}

    def needs_done(self, item: "_Node") -> bool:
        """Whether an open item must be done before this end of a response; a call that was cut off need not be."""
        if self.state == "completed":
            return True
        return self.state == "incomplete" and not item.scope.endswith("_call")


def _link() -> dict[tuple[str, str], _Node]:
    nodes: dict[tuple[str, str], _Node] = {}
    for (scope, state, event), following in TABLE.items():
        node = nodes.setdefault((scope, state), _Node(scope, state))
        node.following[event] = nodes.setdefault((scope, following), _Node(scope, following))
    return nodes


_NODES: Final = _link()

#: Where an event leads when one does not ask whether it may come.
_TARGETS: Final = {(scope, event): _NODES[scope, following] for (scope, _, event), following in TABLE.items()}


class Lifecycle:
    """Walks the table for one stream.

    With `interleaved`, an item may begin before the one before it is done.
    """

    __slots__ = ("_interleaved", "_next_index", "_open", "_response")

    def __init__(self, *, interleaved: bool = False) -> None:
        self._interleaved = interleaved
        self._response = _NODES["response", "start"]
        self._open: dict[int, _Node] = {}
        self._next_index = 0

    @property
    def state(self) -> str:
        """The state of the response."""
        return self._response.state

    @property
    def is_over(self) -> bool:
        """Whether a terminal event has come."""
        return not self._response.following

    def advance(self, event_type: str, output_index: int | None = None, item_type: str | None = None) -> None:
        """One step; `item_type` goes with `response.output_item.added`.

        Raises `LifecycleError` for an event that may not come here; the state is then unchanged.
        """
        if output_index is None:
            self._advance_response(event_type)
            return
        node = self._open.get(output_index)
        if node is None:
            self._add_item(event_type, output_index, item_type)
            return
        following = node.following.get(event_type)
        if following is node:
            return
        if following is None:
            if node.scope == UNKNOWN and event_type != ITEM_ADDED:
                return
            raise _refuse(event_type, node, f" (output_index {output_index})")
        if following.following:
            self._open[output_index] = following
        else:
            del self._open[output_index]

    def find_way(
        self, event_type: str, output_index: int, may_fill: Callable[[str], bool]
    ) -> tuple[str, ...] | None:
        """The shortest run of events after which this one may come in an open item; () when it may come now.

        Only events that `may_fill` allows are put in between; None when there is no such way.
        """
        node = self._open.get(output_index)
        if node is None:
            return None
        if event_type in node.following or (node.scope == UNKNOWN and event_type != ITEM_ADDED):
            return ()
        seen = {node}
        ways: deque[tuple[_Node, tuple[str, ...]]] = deque([(node, ())])
        while ways:
            at, way = ways.popleft()
            for step, following in at.following.items():
                if following in seen or not may_fill(step):
                    continue
                if event_type in following.following:
                    return (*way, step)
                seen.add(following)
                ways.append((following, (*way, step)))
        return None

    def end(self) -> None:
        """The stream is over; raises `LifecycleError` when no terminal event came."""
        if not self.is_over:
            raise LifecycleError(f"the stream ended in state {self.state}, without a terminal event")

    def force(self, event_type: str, output_index: int | None = None, item_type: str | None = None) -> None:
        """Go where the event leads although it may not come: for a checker that has reported it."""
        if output_index is None:
            target = _TARGETS.get(("response", event_type))
            if target is not None:
                self._response = target
                if not target.following or target.state == "broken":
                    self._open.clear()
        elif event_type == ITEM_ADDED:
            if not self.is_over:
                self._response = _NODES["response", "in_progress"]
            self._open[output_index] = _open_node(item_type or PLAIN)
            self._next_index = max(self._next_index, output_index + 1)
        elif event_type == ITEM_DONE:
            self._open.pop(output_index, None)
        elif (node := self._open.get(output_index)) is not None:
            self._open[output_index] = _TARGETS.get((node.scope, event_type), node)

    def _advance_response(self, event_type: str) -> None:
        following = self._response.following.get(event_type)
        if following is None:
            raise _refuse(event_type, self._response, "")
        if event_type == ITEM_ADDED:
            raise LifecycleError(f"{ITEM_ADDED} needs an output_index")
        unfinished = ", ".join(
            f"{index} ({node.scope})" for index, node in self._open.items() if following.needs_done(node)
        )
        if unfinished:
            raise LifecycleError(f"{event_type} while items are not done: output_index {unfinished}")
        # A response that breaks off leaves its unfinished item as it is.
        if not following.following or following.state == "broken":
            self._open.clear()
        self._response = following

    def _add_item(self, event_type: str, output_index: int, item_type: str | None) -> None:
        if event_type != ITEM_ADDED:
            raise LifecycleError(f"{event_type}: no item is open at output_index {output_index}")
        if ITEM_ADDED not in self._response.following:
            raise _refuse(event_type, self._response, "")
        if item_type is None:
            raise LifecycleError(f"{ITEM_ADDED} needs an item type")
        if output_index != self._next_index:
            raise LifecycleError(f"{ITEM_ADDED}: output_index is {output_index}, expected {self._next_index}")
        if self._open and not self._interleaved:
            unfinished = next(iter(self._open))
            raise LifecycleError(
                f"{ITEM_ADDED} at output_index {output_index}: the item at {unfinished} is not done"
            )
        self._open[output_index] = _open_node(item_type)
        self._next_index += 1


#: Kinds of items with events of their own, and those without.
_SCOPES: Final = frozenset(scope for scope, _, _ in TABLE) - {"response"}
_PLAIN_TYPES: Final = frozenset({PLAIN, *ITEM_TYPES})


def _open_node(item_type: str) -> _Node:
    scope = item_type if item_type in _SCOPES else PLAIN if item_type in _PLAIN_TYPES else UNKNOWN
    return _NODES[scope, "open"]


def _refuse(event_type: str, node: _Node, where: str) -> LifecycleError:
    allowed = ", ".join(node.following) or "nothing"
    return LifecycleError(
        f"{event_type} may not come in state {node.state} of {node.scope}{where}; allowed: {allowed}"
    )


#: Families of events whose deltas make up the text of the done event: where that text stands.
_TEXT_FIELDS: Final = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_summary_text": "text",
    "response.reasoning_text": "text",
    "response.reasoning": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
    "response.code_interpreter_call_code": "code",
    "response.shell_call_command": "command",
}

_DELTAS: Final = {f"{family}.delta": family for family in _TEXT_FIELDS}
_DONES: Final = {f"{family}.done": family for family in _TEXT_FIELDS}

#: Members of an item that hold the parts of these families.
_PART_LISTS: Final = {
    "response.output_text": "content",
    "response.refusal": "content",
    "response.reasoning_summary_text": "summary",
    "response.reasoning_text": "content",
    "response.reasoning": "content",
}

#: Events that begin a part: the index that counts it.
_PART_STARTS: Final = {
    "response.content_part.added": "content_index",
    "response.reasoning_summary_part.added": "summary_index",
    "response.shell_call_command.added": "command_index",
}

_IDENTITY: Final = ("id", "type", "call_id")


class _SeenItem:
    """What the events of one item have said so far."""

    __slots__ = ("added", "done", "part_counts", "pieces", "texts")

    def __init__(self, added: Mapping[str, Any]) -> None:
        self.added = added
        self.done: Mapping[str, Any] | None = None
        self.part_counts: dict[str, int] = {}
        #: (family, part index) -> the deltas, and the text of the done event.
        self.pieces: dict[tuple[str, int | None], list[str]] = {}
        self.texts: dict[tuple[str, int | None], str] = {}


class StreamChecker:
    """Reports what is wrong with the events of one stream, each fault once; it never raises for them."""

    def __init__(self, *, interleaved: bool = False) -> None:
        self._lifecycle = Lifecycle(interleaved=interleaved)
        self._next_sequence = 0
        self._response_id: object = None
        self._items: dict[int, _SeenItem] = {}
        self._reported: set[str] = set()

    def feed(self, event: Event | Mapping[str, Any]) -> list[str]:
        """The faults that this event shows, as sentences; empty when all is well."""
        members = msgspec.json.decode(encode_event(event)) if isinstance(event, Event) else event
        event_type = members.get("type")
        if not isinstance(event_type, str):
            return self._report(["an event has no type"])
        faults = self._check_sequence(members, event_type)
        output_index = _told_index(members, "output_index")
        item = members.get("item")
        faults += self._check_order(event_type, output_index, item)
        if "response" in members or event_type in _RESPONSE_EVENTS:
            faults += self._check_response(event_type, members.get("response"))
        if output_index is not None:
            faults += self._check_item_event(event_type, output_index, members)
        return self._report(faults)

    def end(self) -> list[str]:
        """The faults that the end of the stream shows."""
        try:
            self._lifecycle.end()
        except LifecycleError as fault:
            return self._report([fault.message])
        return []

    def _report(self, faults: list[str]) -> list[str]:
        new = [fault for fault in dict.fromkeys(faults) if fault not in self._reported]
        self._reported.update(new)
        return new

    def _check_sequence(self, members: Mapping[str, Any], event_type: str) -> list[str]:
        number = members.get("sequence_number", UNTOLD)
        expected = self._next_sequence
        if type(number) is not int or number == UNTOLD:
            self._next_sequence += 1
            return [f"{event_type} has no sequence_number"]
        self._next_sequence = number + 1
        if number == expected:
            return []
        return [f"{event_type}: sequence_number is {number}, expected {expected}"]

    def _check_order(self, event_type: str, output_index: int | None, item: object) -> list[str]:
        item_type = item.get("type", "message") if isinstance(item, dict) else PLAIN
        item_type = item_type if isinstance(item_type, str) else PLAIN
        if output_index is None and event_type in _INDEXED_EVENTS:
            return [f"{event_type} has no output_index"]
        try:
            self._lifecycle.advance(event_type, output_index, item_type)
        except LifecycleError as fault:
            self._lifecycle.force(event_type, output_index, item_type)
            return [fault.message]
        return []

    def _check_response(self, event_type: str, response: object) -> list[str]:
        if not isinstance(response, dict):
            return [f"{event_type} has no response object"]
        faults = []
        told_id = response.get("id")
        if self._response_id is None:
            self._response_id = told_id
        if not isinstance(told_id, str) or not told_id:
            faults.append(f"{event_type}: the response has no id")
        elif told_id != self._response_id:
            faults.append(f"{event_type}: the response id is {told_id}, before it was {self._response_id}")
        if event_type in TERMINAL_EVENTS:
            faults += self._check_terminal(event_type, response)
        return faults

    def _check_terminal(self, event_type: str, response: Mapping[str, Any]) -> list[str]:
        faults = []
        expected = event_type.removeprefix("response.")
        # A cancelled response has no terminal event of its own.
        if response.get("status") not in (expected, "cancelled"):
            faults.append(f"{event_type}: the status is {response.get('status')}")
        output = response.get("output")
        if not isinstance(output, list):
            return [*faults, f"{event_type}: the response has no output list"]
        done = [seen.done for _, seen in sorted(self._items.items()) if seen.done is not None]
        if expected != "completed":
            output = [item for item in output if not _is_half_call(item, done)]
        # Open to the server: a failed response keeps its finished items, or none.
        if output == done or (expected == "failed" and not output):
            return faults
        if len(output) != len(done):
            faults.append(f"{event_type}: output has {len(output)} items, but {len(done)} were done")
        for index, (final, finished) in enumerate(zip(output, done, strict=False)):
            if final != finished:
                named = _compare_identity(finished, final) or ["the item is not the one that was done"]
                faults += [f"{event_type}: output[{index}]: {text}" for text in named]
        return faults

    def _check_item_event(self, event_type: str, output_index: int, members: Mapping[str, Any]) -> list[str]:
        where = f"{event_type} at output_index {output_index}"
        item = members.get("item")
        if event_type in (ITEM_ADDED, ITEM_DONE) and not isinstance(item, dict):
            return [f"{where} has no item"]
        if event_type == ITEM_ADDED:
            self._items.setdefault(output_index, _SeenItem(item or {}))
            return []
        seen = self._items.get(output_index)
        if seen is None:
            return []
        if event_type == ITEM_DONE:
            seen.done = item or {}
            faults = _compare_identity(seen.added, seen.done) + _compare_texts(seen)
        else:
            faults = _take_part(seen, event_type, members)
            item_id = members.get("item_id")
            if item_id and item_id != seen.added.get("id"):
                faults.append(f"item_id is {item_id}, but the item's id is {seen.added.get('id')}")
        return [f"{where}: {fault}" for fault in faults]


#: Events that belong to an item, and must say to which.
_INDEXED_EVENTS: Final = frozenset(event for scope, _, event in TABLE if scope != "response")

_RESPONSE_EVENTS: Final = TERMINAL_EVENTS | {"response.created", "response.queued", "response.in_progress"}


def _told_index(members: Mapping[str, Any], name: str) -> int | None:
    """An index, or None when it is missing (or was read as untold)."""
    index = members.get(name)
    return index if type(index) is int and index != UNTOLD else None


def _take_part(seen: _SeenItem, event_type: str, members: Mapping[str, Any]) -> list[str]:
    """Count parts, gather deltas, and hold them against the text of the done event."""
    if (index_name := _PART_STARTS.get(event_type)) is not None:
        expected = seen.part_counts.get(index_name, 0)
        seen.part_counts[index_name] = expected + 1
        index = _told_index(members, index_name)
        if members.get("command"):
            seen.pieces[("response.shell_call_command", index)] = [str(members["command"])]
        return [] if index == expected else [f"{index_name} is {index}, expected {expected}"]
    if (family := _DELTAS.get(event_type)) is not None:
        delta = members.get("delta")
        if not isinstance(delta, str):
            return ["delta is no text"]
        seen.pieces.setdefault((family, _part_index(members)), []).append(delta)
    elif (family := _DONES.get(event_type)) is not None:
        key = family, _part_index(members)
        field = _TEXT_FIELDS[family]
        text = members.get(field)
        if not isinstance(text, str):
            return [f"{field} is no text"]
        seen.texts[key] = text
        gathered = "".join(seen.pieces.pop(key, []))
        if gathered != text:
            return [f"the deltas make {len(gathered)} characters that differ from the {len(text)} of {field}"]
    return []


def _part_index(members: Mapping[str, Any]) -> int | None:
    for name in ("content_index", "summary_index", "command_index"):
        if (index := _told_index(members, name)) is not None:
            return index
    return None


def _compare_identity(before: Mapping[str, Any], after: object) -> list[str]:
    if not isinstance(after, dict):
        return ["the item is no object"]
    return [
        f"{name} is {after.get(name)!r}, before it was {before.get(name)!r}"
        for name in _IDENTITY
        if before.get(name) != after.get(name)
    ]


def _compare_texts(seen: _SeenItem) -> list[str]:
    """The finished item must hold the texts that its done events told."""
    item = seen.done or {}
    faults = []
    for (family, index), text in seen.texts.items():
        field = _TEXT_FIELDS[family]
        if family in _PART_LISTS:
            parts = item.get(_PART_LISTS[family])
            place = f"{_PART_LISTS[family]}[{index}].{field}"
            inside = isinstance(parts, list) and index is not None and 0 <= index < len(parts)
            holder = parts[index] if inside and parts else None
        elif family == "response.shell_call_command":
            continue
        else:
            place, holder = field, item
        held = holder.get(field) if isinstance(holder, Mapping) else None
        if held != text:
            faults.append(f"{place} of the item is not the text of {family}.done")
    return faults


def _is_half_call(item: object, done: Sequence[object]) -> bool:
    """Whether it is a call that broke off: a server may show it, and not tell it as done, for clients run what is."""
    if not isinstance(item, dict) or item.get("status") == "completed":
        return False
    return str(item.get("type")).endswith("_call") and item not in done
