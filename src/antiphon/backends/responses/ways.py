"""Ways through the lifecycle table: which events must still come before another may.

It walks the table of `protocol.lifecycle` and knows no payloads. Invariant: a way holds only events that can be
made up from what an item holds.
"""

import functools
from typing import Final

from antiphon.protocol.events import EVENT_TYPES
from antiphon.protocol.item_kinds import ITEM_TYPES
from antiphon.protocol.lifecycle import ITEM_DONE, PLAIN, TABLE, UNKNOWN

#: Events that begin a part, and the index that counts it.
PART_STARTS: Final = {
    "response.content_part.added": "content_index",
    "response.reasoning_summary_part.added": "summary_index",
    "response.shell_call_command.added": "command_index",
}
#: Events that end what began there.
PART_ENDS: Final = frozenset(
    {
        "response.content_part.done",
        "response.reasoning_summary_part.done",
        "response.shell_call_command.done",
    }
)
#: Open Responses' names for the API's events.
OTHER_NAMES: Final = {
    "response.reasoning.delta": "response.reasoning_text.delta",
    "response.reasoning.done": "response.reasoning_text.done",
}
#: Only the server can say these.
_NEVER_MADE: Final = frozenset(
    {
        "response.output_text.annotation.added",
        "response.mcp_call.failed",
        "response.mcp_list_tools.failed",
        "response.image_generation_call.partial_image",
        "response.compaction.compacting",
    }
)

_FOLLOWING: Final[dict[tuple[str, str], dict[str, str]]] = {}
for (_scope, _state, _event), _next in TABLE.items():
    if _event in EVENT_TYPES:
        _FOLLOWING.setdefault((_scope, _state), {})[_event] = _next


def find_scope(item_type: str) -> str:
    """The scope of the table that a type of item belongs to."""
    if item_type in ITEM_TYPES:
        return item_type if (item_type, "open") in _FOLLOWING else PLAIN
    return UNKNOWN


def follow(scope: str, state: str, event: str) -> str | None:
    """The state behind an event; None where it may not come."""
    return _FOLLOWING.get((scope, state), {}).get(event)


@functools.cache
def find_way(scope: str, state: str, event: str, *, may_start: bool = True) -> tuple[str, ...] | None:
    """The fewest events after which `event` may come; None where none will do.

    `may_start`: the way may begin a part. `("message", "text", "response.content_part.done")` ->
    `("response.output_text.done",)`
    """
    ways: list[tuple[str, tuple[str, ...]]] = [(state, ())]
    seen = {state}
    for place, way in ways:
        following = _FOLLOWING.get((scope, place), {})
        if event in following:
            return way
        for step, target in following.items():
            if target not in seen and _can_make(step, may_start=may_start):
                seen.add(target)
                ways.append((target, (*way, step)))
    return None


def _can_make(step: str, *, may_start: bool) -> bool:
    if step == ITEM_DONE or step in _NEVER_MADE or step.endswith(".delta"):
        return False
    return may_start or step not in PART_STARTS
