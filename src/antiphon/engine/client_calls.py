"""What the arguments of a client-run built-in tool become: shells, patches, the search for tools.

A chat model writes them as a function's arguments; clients get items of their own kinds. It knows no events
and no order. Invariant: the fields that it gives validate as the item's own kind.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from antiphon.context.toolbox import OfferedTool, ToolKind
from antiphon.protocol.hosted_items import ApplyPatchCall, ExecAction, LocalShellCall, ShellAction, ShellCall
from antiphon.protocol.item_types import ToolSearchCall, TypedItem

#: What of such a call is quoted when it does not fit.
QUOTED_CHARACTERS = 300

_decode = msgspec.json.Decoder().decode


class CallShapeError(ValueError):
    """The arguments do not make a call of this kind; the text says why."""


class _Shape(msgspec.Struct, frozen=True):
    item_type: str
    struct: type[TypedItem]
    #: Arguments to the item's own fields.
    fields: Callable[[dict[str, Any]], dict[str, Any]]


def _shape_search(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"execution": "client", "arguments": arguments}


def _shape_exec(arguments: dict[str, Any]) -> dict[str, Any]:
    told = _drop_nulls(arguments.get("action", arguments))
    return {"action": {"type": "exec", "env": {}, **told}}


def _shape_commands(arguments: dict[str, Any]) -> dict[str, Any]:
    told = _drop_nulls(arguments.get("action", arguments))
    return {"action": told}


def _shape_patch(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"operation": _drop_nulls(arguments.get("operation", arguments))}


def _drop_nulls(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CallShapeError("an object was expected")
    return {key: member for key, member in value.items() if member is not None}


_SHAPES: Final[dict[ToolKind, _Shape]] = {
    "tool_search": _Shape("tool_search_call", ToolSearchCall, _shape_search),
    "local_shell": _Shape("local_shell_call", LocalShellCall, _shape_exec),
    "shell": _Shape("shell_call", ShellCall, _shape_commands),
    "apply_patch": _Shape("apply_patch_call", ApplyPatchCall, _shape_patch),
}

#: The kinds whose calls are handed out once they are whole.
BUFFERED_KINDS: Final = frozenset(_SHAPES)


def get_item_type(kind: ToolKind) -> str:
    """The type of the item that a call of a buffered kind becomes."""
    return _SHAPES[kind].item_type


def shape_call(tool: OfferedTool, arguments: str) -> dict[str, Any]:
    """The item's own fields: '{"commands":["ls"]}' -> {"action": {"commands": ["ls"], ...}}.

    Raises `CallShapeError` when the arguments do not fit.
    """
    shape = _SHAPES[tool.kind]
    try:
        told = _decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise CallShapeError(f"the arguments are no JSON: {error}") from error
    if not isinstance(told, dict):
        raise CallShapeError("the arguments are no JSON object")
    try:
        made = {"type": shape.item_type, "call_id": "call", "status": "completed", **shape.fields(told)}
        value = msgspec.convert(made, shape.struct)
    except msgspec.ValidationError as error:
        raise CallShapeError(str(error)) from error
    if isinstance(value, ShellCall | LocalShellCall):
        _check_action(value.action)
    fields = msgspec.to_builtins(value)
    # What the kind does not have is left out, and what every item has is the writer's.
    return {key: member for key, member in fields.items() if key not in ("type", "call_id", "status")}


def _check_action(action: ShellAction | ExecAction) -> None:
    """What no shell can carry out."""
    commands = action.commands if isinstance(action, ShellAction) else action.command
    if not any(command.strip() for command in commands):
        raise CallShapeError("there is no command")
    for name in ("timeout_ms", "max_output_length"):
        number = getattr(action, name, None)
        if number is not None and number < 0:
            raise CallShapeError(f"{name} is negative")


def find_fault(tool: OfferedTool, arguments: str) -> str | None:
    """Why the arguments do not make a call of the tool's kind; None when they do."""
    try:
        shape_call(tool, arguments)
    except CallShapeError as fault:
        return str(fault)
    return None
