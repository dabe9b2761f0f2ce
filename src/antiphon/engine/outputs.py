"""What of an output a later round is told, and what of it counts: only a client's own items bring more than words.

It knows items and the node that they stand in. Invariant: no output of another server brings tools, settings,
approvals or system text; what was made here is known by its id, which tells node and place (`foreign_ids`).
"""

from collections.abc import Iterable, Sequence
from typing import Final

from antiphon.engine.references import parse_derived_id
from antiphon.protocol.items import Item, Message, get_item_id, is_call_output

#: Items that later rounds need as items: they bring tools or settings, or wait for an approval.
REMEMBERED: Final = frozenset(
    {
        "additional_tools",
        "configuration_update",
        "tool_search_output",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
    }
)
#: Those of them that are made here.
_MADE_HERE: Final = frozenset({"mcp_list_tools", "mcp_approval_request"})
#: What only a client can say, whoever reads it.
_CLIENTS_WORD: Final = frozenset(
    {
        "additional_tools",
        "configuration_update",
        "mcp_approval_response",
        "item_reference",
        "compaction_trigger",
    }
)
#: Results of calls that a server may have run itself.
_SERVERS_RESULTS: Final = frozenset({"shell_call_output"})


def list_told(output: Iterable[Item], *, speaks_responses: bool) -> tuple[list[Item], list[str]]:
    """The items of an output that a model is told, and what was left out, in words.

    `speaks_responses`: it is told as items, so that results of the server's own tools find their place.
    """
    told: list[Item] = []
    notes: dict[str, None] = {}
    for item in output:
        note = _find_note(item, speaks_responses=speaks_responses)
        if note is None:
            told.append(item)
        else:
            notes[note] = None
    return told, list(notes)


def is_told(item: Item, *, speaks_responses: bool) -> bool:
    """Whether a model is told this output item."""
    return _find_note(item, speaks_responses=speaks_responses) is None


def _find_note(item: Item, *, speaks_responses: bool) -> str | None:
    value = item.value
    if item.type == "message" and not (isinstance(value, Message) and value.role == "assistant"):
        return "A model server answered with a message that is not the assistant's; it is not shown to the model."
    if item.type in _CLIENTS_WORD:
        return (
            f"A model server answered with an item of type '{item.type}', which only a client can send; it has "
            "no effect and is not shown to the model."
        )
    if not speaks_responses and is_call_output(item) and item.type not in _SERVERS_RESULTS:
        return (
            f"A model server answered with an item of type '{item.type}', which only a client can send; it is not "
            "shown to the model."
        )
    return None


def list_remembered(
    items: Sequence[Item], output: Sequence[Item], node_id: str, *, speaks_responses: bool
) -> tuple[Item, ...]:
    """The items of a node that later rounds need as items: the client's, and of the output what was made here.

    `speaks_responses`: the path goes on at such a server, whose own requests for approval are answered there.
    """
    own = tuple(item for item in output if item.type in _MADE_HERE and _was_made_here(item, node_id))
    if speaks_responses:
        own = tuple(item for item in output if item.type == "mcp_approval_request")
    return (*(item for item in items if item.type in REMEMBERED), *own)


def list_answered(items: Iterable[Item], output: Iterable[Item]) -> Iterable[Item]:
    """The items that answer calls: the client's, and results of tools that a server ran itself."""
    yield from (item for item in items if is_call_output(item))
    yield from (item for item in output if item.type in _SERVERS_RESULTS)


def _was_made_here(item: Item, node_id: str) -> bool:
    derived = parse_derived_id(get_item_id(item) or "")
    return derived is not None and derived[0] == node_id.partition("_")[2]
