"""`truncation: auto`: which items of a path are left out so that the prompt fits.

Whole groups are dropped, oldest first: a call with its outputs, reasoning with what it led to. Pure: the tokens are
arguments. Invariant: the same path and room give the same plan, what is kept keeps its order, and no call is kept
without the outputs it has, nor an output without its call.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from antiphon.protocol.items import (
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    Message,
    Reasoning,
    get_call_id,
    get_item_id,
    is_call,
    is_call_output,
)

#: Of the window, what is kept free for the answer where the request sets no limit for it.
RESERVE_SHARE: Final = 0.1
#: Of the window, the most that an answer's limit keeps free; a model seldom uses all that it may.
RESERVE_LIMIT_SHARE: Final = 0.4
#: Of the window, what is kept free for the error of an estimate.
ESTIMATE_MARGIN_SHARE: Final = 0.05
#: History is dropped in steps of this share of the window, so that the rounds between two steps begin alike.
STEP_SHARE: Final = 0.12
#: The response lists this many dropped items; the rest are counted.
DROPPED_SHOWN: Final = 100

_SYSTEM_ROLES: Final = ("system", "developer")
#: Items that stand for something else than themselves: tools, settings, a whole earlier path.
_KEPT_TYPES: Final = frozenset(
    {"additional_tools", "compaction", "compaction_summary", "configuration_update"}
)


class Entry(msgspec.Struct, frozen=True):
    """One item to a plan: what it costs, which items it goes with, and whether it may go at all."""

    tokens: int
    group: int
    droppable: bool


class TruncationPlan(msgspec.Struct, frozen=True):
    """Which positions stay and which go, both in order; `tokens`: what those that stay cost."""

    kept: tuple[int, ...]
    dropped: tuple[int, ...]
    tokens: int


class DroppedItem(msgspec.Struct, frozen=True):
    """An item that the model is not shown because there is no room for it."""

    id: str
    type: str
    tokens: int


def report_dropped(dropped: Sequence[DroppedItem]) -> dict[str, Any]:
    """The response's own keys: the first items that were left out, and how many and how much in all."""
    if not dropped:
        return {}
    return {
        "dropped": [msgspec.to_builtins(item) for item in dropped[:DROPPED_SHOWN]],
        "dropped_count": len(dropped),
        "dropped_tokens": sum(item.tokens for item in dropped),
    }


def reserve_tokens(
    window_tokens: int, max_output_tokens: int | None, *, exact: bool, holds_output: bool = False
) -> int:
    """What of the window stays free. `holds_output`: the server refuses a limit that the window has no room for."""
    if max_output_tokens is None:
        reserve = int(window_tokens * RESERVE_SHARE)
    elif holds_output:
        reserve = max_output_tokens
    else:
        reserve = min(max_output_tokens, int(window_tokens * RESERVE_LIMIT_SHARE))
    return reserve if exact else max(reserve, int(window_tokens * ESTIMATE_MARGIN_SHARE))


# Groups


def find_newest(items: Sequence[Item]) -> int:
    """Where what the client says now begins in a request's input: behind the last item that a model made."""
    for position in range(len(items) - 1, -1, -1):
        if _is_made(items[position]):
            return position + 1
    return 0


def _is_made(item: Item) -> bool:
    if isinstance(item.value, Message):
        return item.value.role == "assistant"
    return not is_call_output(item) and not isinstance(item.value, McpApprovalResponse)


def group_items(items: Sequence[Item]) -> list[int]:
    """The group of each item, named by the position of its first member.

    [user, reasoning, call 1, call 2, output 1, output 2, user] -> [0, 1, 1, 1, 1, 1, 6]
    """
    groups = list(range(len(items)))

    def find(position: int) -> int:
        while groups[position] != position:
            groups[position] = groups[groups[position]]
            position = groups[position]
        return position

    for earlier, later in _find_links(items):
        first, second = sorted((find(earlier), find(later)))
        groups[second] = first
    return [find(position) for position in range(len(items))]


def _find_links(items: Sequence[Item]) -> Iterable[tuple[int, int]]:
    calls: dict[str, int] = {}
    for position, item in enumerate(items):
        if position and _leads_to(items[position - 1], item):
            yield position - 1, position
        name = _name_pair(item)
        if name is None:
            continue
        if _opens_pair(item):
            calls[name] = position
        elif name in calls:
            yield calls[name], position


def _leads_to(item: Item, following: Item) -> bool:
    """Whether two neighbours are one step of the model's: reasoning and its item, a text and its call, two calls."""
    if not _is_made(following):
        return False
    if isinstance(item.value, Reasoning):
        return True
    spoke = isinstance(item.value, Message) and item.value.role == "assistant"
    return (spoke or is_call(item)) and is_call(following)


def _name_pair(item: Item) -> str | None:
    value = item.value
    if isinstance(value, McpApprovalRequest):
        return get_item_id(item)
    if isinstance(value, McpApprovalResponse):
        return value.approval_request_id
    return get_call_id(item) if is_call(item) or is_call_output(item) else None


def _opens_pair(item: Item) -> bool:
    return is_call(item) or isinstance(item.value, McpApprovalRequest)


def _find_unfinished(items: Sequence[Item]) -> set[int]:
    """The calls and approval requests that nothing answers yet."""
    waiting: dict[str, int] = {}
    for position, item in enumerate(items):
        name = _name_pair(item)
        if name is None:
            continue
        if _opens_pair(item):
            waiting[name] = position
        else:
            waiting.pop(name, None)
    return set(waiting.values())


def make_entries(items: Sequence[Item], tokens: Sequence[int], *, newest: int) -> list[Entry]:
    """The items of a path for a plan; from position `newest` on they are what is asked now.

    Never dropped: the leading run of system and developer messages, what is asked now, an unfinished group, and
    whatever goes with one of these.
    """
    groups = group_items(items)
    fixed = {groups[position] for position in _find_unfinished(items)}
    fixed.update(groups[newest:])
    leading = count_leading(items)
    fixed.update(
        groups[position]
        for position, item in enumerate(items)
        if position < leading or item.type in _KEPT_TYPES
    )
    return [
        Entry(cost, group, droppable=group not in fixed) for cost, group in zip(tokens, groups, strict=True)
    ]


def count_leading(items: Sequence[Item]) -> int:
    """How many system and developer messages a path begins with."""
    for position, item in enumerate(items):
        if not isinstance(item.value, Message) or item.value.role not in _SYSTEM_ROLES:
            return position
    return len(items)


# The plan


def plan_truncation(entries: Sequence[Entry], room_tokens: int, step_tokens: int) -> TruncationPlan:
    """Drop the oldest groups until the rest fits into `room_tokens`, or nothing droppable is left.

    Lines stand every `step_tokens` of droppable history, counted from the root; whatever begins before a line goes
    with it, and the first line that makes room is taken. So the start of what is kept depends on the path alone,
    and stays where it is for about a step's worth of new history.
    """
    costs: dict[int, int] = {}
    for entry in entries:
        if entry.droppable:
            costs[entry.group] = costs.get(entry.group, 0) + entry.tokens
    left = sum(entry.tokens for entry in entries)
    gone: set[int] = set()
    line = start = 0
    step = max(step_tokens, 1)
    # Groups stand in the order of their first items: that is how they are named and found.
    for group, cost in costs.items():
        if start >= line:
            if left <= room_tokens:
                break
            line = (start // step + 1) * step
        gone.add(group)
        left -= cost
        start += cost
    positions = range(len(entries))
    return TruncationPlan(
        kept=tuple(at for at in positions if not (entries[at].droppable and entries[at].group in gone)),
        dropped=tuple(at for at in positions if entries[at].droppable and entries[at].group in gone),
        tokens=left,
    )
