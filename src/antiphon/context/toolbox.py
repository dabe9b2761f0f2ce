"""Tools as they are declared -> what a chat model is offered, reversibly.

Every tool that the client runs becomes a function under a flat name; the ones that this server runs are
handed on as `hosted`. It knows no items but those that bring tools. Invariant: what is declared is offered,
hosted, held back by the choice among tools, or named in a warning or an error; and no two tools that are
offered share a flat name.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from antiphon.context.profiles import Profile
from antiphon.context.tool_choices import WEB_SEARCHES, Chosen, Entry, choose
from antiphon.context.tool_functions import (
    APPLY_PATCH_FUNCTION,
    LOCAL_SHELL_FUNCTION,
    tell_custom,
    tell_function,
    tell_search,
    tell_shell,
)
from antiphon.context.tool_names import (
    APPLY_PATCH_NAME,
    LOCAL_SHELL_NAME,
    SHELL_NAME,
    TOOL_SEARCH_NAME,
    WEB_SEARCH_NAME,
    flatten_name,
)
from antiphon.context.tool_refusals import refuse_tool, unsupported_tool
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import AdditionalTools, Item, ToolSearchOutput
from antiphon.protocol.tools import (
    ApplyPatchTool,
    CustomTool,
    FunctionTool,
    GrammarFormat,
    LocalShellTool,
    McpTool,
    NamespaceTool,
    ShellTool,
    Tool,
    ToolChoice,
    ToolSearchTool,
    decode_tools,
    get_tool_type,
)

ToolKind: TypeAlias = Literal[
    "function", "custom", "tool_search", "local_shell", "shell", "apply_patch", "web_search", "mcp"
]
_MCP_REMEDY = "MCP is not installed on this server; its operator adds it with: pip install 'mcp>=2.3,<3'."
_SEARCH_REMEDY = "This server has no web search configured; leave the tool out, or let the model choose."


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a chat model calls it: `name` is flat; `own_name` and `namespace` are what the client knows."""

    name: str
    kind: ToolKind
    function: FunctionTool
    own_name: str
    namespace: str | None = None
    is_async: bool = False
    grammar: GrammarFormat | None = None
    server_label: str | None = None


class Toolbox(msgspec.Struct, kw_only=True):
    """The tools of one request. `hidden`: flat names that are declared and may not be called now."""

    offered: tuple[OfferedTool, ...] = ()
    hidden: frozenset[str] = frozenset()
    choice: Literal["auto", "none", "required"] = "none"
    forced: str | None = None
    #: Web search and MCP tools, narrowed to what the choice among tools allows.
    hosted: tuple[Tool, ...] = ()
    warnings: list[tuple[str, str]] = msgspec.field(default_factory=list)


def build_toolbox(
    tools: Sequence[Tool],
    *,
    choice: ToolChoice,
    choice_given: bool,
    model: str,
    profile: Profile,
    can_search: bool,
    can_call_mcp: bool,
    declared: int | None = None,
) -> Toolbox:
    """What of the declared tools a chat model is offered, and what it must do with them.

    `tools` are the request's own, then those that items brought; the first `declared` ones (default: all)
    stand in `tools`, the others are told as `input`. Of two with the same name the later one counts, in the
    place of the first. Raises `RequestError` for tools and choices that cannot be carried out.
    """
    count = len(tools) if declared is None else declared
    if choice_given and not tools and choice not in ("auto", "none"):
        raise RequestError(
            "Invalid 'tool_choice': a tool can only be forced when 'tools' are given.",
            param="tool_choice",
            code="invalid_value",
        )
    entries = _collect(tools, count)
    _check_reachable(entries.values())
    _check_flat_names(
        entry for entry in entries.values() if can_search or not isinstance(entry.tool, WEB_SEARCHES)
    )
    if not can_call_mcp:
        _refuse_mcp(entries.values())
    chosen = choose(choice, [entry for entry in entries.values() if not entry.is_deferred])
    box = Toolbox()
    if not can_search:
        _leave_out_search(chosen, box)
    if profile.tools == "none" and chosen.entries:
        _leave_out_all(chosen, model, box)
    if chosen.word == "required" and not chosen.entries:
        raise RequestError(
            "Invalid 'tool_choice': none of the tools that it could force can be called now.",
            param="tool_choice",
            code="invalid_value",
        )
    box.offered = tuple(_offer(entry) for entry in chosen.entries if not entry.is_hosted)
    box.hosted = tuple(entry.tool for entry in chosen.entries if entry.is_hosted)
    shown = {entry.flat_name for entry in chosen.entries}
    if chosen.forced is not None:
        shown &= {chosen.forced}
    # The tools of an MCP server go by names that only its own list tells.
    named = [entry for entry in entries.values() if not isinstance(entry.tool, McpTool)]
    box.hidden = frozenset(entry.flat_name for entry in named) - shown
    if chosen.entries:
        box.choice, box.forced = chosen.word, chosen.forced
    return box


def load_tools(items: Sequence[Item], where: str = "input") -> list[Tool]:
    """The tools that `additional_tools` and `tool_search_output` items bring, in their order.

    They are checked like the tools of a request; what was found by a search can be called at once. Raises
    `RequestError` at the first one that is wrong (`input[2].tools[0].name`).
    """
    loaded: list[Tool] = []
    for position, item in enumerate(items):
        value = item.value
        if not isinstance(value, AdditionalTools | ToolSearchOutput):
            continue
        path = f"{where}[{position}].tools"
        tools = decode_tools(msgspec.json.encode(value.tools), path)
        for index, tool in enumerate(tools):
            refuse_tool(tool, f"{path}[{index}]")
        loaded += map(_undefer, tools) if isinstance(value, ToolSearchOutput) else tools
    return loaded


def _undefer(tool: Tool) -> Tool:
    if isinstance(tool, NamespaceTool):
        members = [msgspec.structs.replace(member, defer_loading=None) for member in tool.tools]
        return msgspec.structs.replace(tool, tools=members)
    if isinstance(tool, FunctionTool | CustomTool | McpTool):
        return msgspec.structs.replace(tool, defer_loading=None)
    return tool


def _collect(tools: Sequence[Tool], count: int) -> dict[tuple[str, ...], Entry]:
    """The tools one by one, namespaces opened, by what tells them apart."""
    entries: dict[tuple[str, ...], Entry] = {}
    for index, tool in enumerate(tools):
        where = f"tools[{index}]" if index < count else "input"
        if index < count:
            # What items brought was judged when it was loaded.
            refuse_tool(tool, where)
        for entry in _open(tool, where):
            key = entry.key
            if key in entries and entry.is_deferred:
                # It was found already, and is only declared again.
                continue
            entries[key] = entry
    return entries


def _open(tool: Tool, where: str) -> Iterator[Entry]:
    if isinstance(tool, NamespaceTool):
        for index, member in enumerate(tool.tools):
            path = where if where == "input" else f"{where}.tools[{index}]"
            yield Entry(member, flatten_name(tool.name, member.name), path, tool)
    elif isinstance(tool, FunctionTool | CustomTool):
        yield Entry(tool, flatten_name(None, tool.name), where)
    elif isinstance(tool, WEB_SEARCHES):
        yield Entry(tool, WEB_SEARCH_NAME, where)
    elif isinstance(tool, McpTool):
        # Its tools get names of their own once its server has listed them.
        yield Entry(tool, flatten_name(tool.server_label, "*"), where)
    else:
        yield Entry(tool, _FIXED_NAMES[type(tool)], where)


_FIXED_NAMES: dict[type, str] = {
    ToolSearchTool: TOOL_SEARCH_NAME,
    LocalShellTool: LOCAL_SHELL_NAME,
    ShellTool: SHELL_NAME,
    ApplyPatchTool: APPLY_PATCH_NAME,
}


def _check_reachable(entries: Iterable[Entry]) -> None:
    """A deferred tool that nothing can find would be declared for nothing."""
    found = list(entries)
    if any(isinstance(entry.tool, ToolSearchTool) for entry in found):
        return
    for entry in found:
        if entry.is_deferred:
            where = entry.locate("defer_loading")
            raise RequestError(
                f"Invalid '{where}': '{entry.label}' is deferred, and no tool search is declared that could find "
                "it. Declare {'type': 'tool_search', 'execution': 'client'}, or leave 'defer_loading' out.",
                param=where,
                code="invalid_value",
            )


def _check_flat_names(entries: Iterable[Entry]) -> None:
    """A chat model knows flat names alone, so two tools of one flat name would be one tool."""
    seen: dict[str, Entry] = {}
    for entry in entries:
        other = seen.setdefault(entry.flat_name, entry)
        if other is not entry:
            where = entry.locate("name")
            raise RequestError(
                f"Invalid '{where}': a chat model would be told of this tool as '{entry.flat_name}', and of "
                f"another one ({_place(other)}) too. Rename one of them.",
                param=where,
                code="invalid_value",
            )


def _place(entry: Entry) -> str:
    return f"{get_tool_type(entry.tool)} '{entry.label}'" if entry.where == "input" else entry.where


def _refuse_mcp(entries: Iterable[Entry]) -> None:
    for entry in entries:
        if isinstance(entry.tool, McpTool):
            raise unsupported_tool(entry.locate("type"), "'mcp' tools", _MCP_REMEDY)


def _leave_out_search(chosen: Chosen, box: Toolbox) -> None:
    """Without a provider, web search is left out where it is merely offered, and refused where it is forced."""
    kept = [entry for entry in chosen.entries if not isinstance(entry.tool, WEB_SEARCHES)]
    if len(kept) == len(chosen.entries):
        return
    if chosen.forced == WEB_SEARCH_NAME or (chosen.word == "required" and not kept):
        raise unsupported_tool("tool_choice", "web search", _SEARCH_REMEDY)
    chosen.entries = kept
    box.warnings.append(
        ("tools_left_out", f"This server has no web search configured; left out: {WEB_SEARCH_NAME}.")
    )


def _leave_out_all(chosen: Chosen, model: str, box: Toolbox) -> None:
    if chosen.word == "required":
        raise RequestError(
            f"The model '{model}' cannot call tools, so 'tool_choice' cannot force it to.",
            param="tool_choice",
            code="unsupported_value",
        )
    left_out = ", ".join(entry.label for entry in chosen.entries)
    box.warnings.append(("tools_left_out", f"The model cannot call tools; left out: {left_out}."))
    chosen.entries = []


def _offer(entry: Entry) -> OfferedTool:
    tool = entry.tool
    namespace = entry.namespace.name if entry.namespace else None
    if isinstance(tool, FunctionTool):
        return OfferedTool(
            name=entry.flat_name,
            kind="function",
            function=tell_function(tool, entry.namespace),
            own_name=tool.name,
            namespace=namespace,
            is_async=bool(tool.is_async),
        )
    if isinstance(tool, CustomTool):
        return OfferedTool(
            name=entry.flat_name,
            kind="custom",
            function=tell_custom(tool, entry.namespace),
            own_name=tool.name,
            namespace=namespace,
            is_async=bool(tool.is_async),
            grammar=tool.format if isinstance(tool.format, GrammarFormat) else None,
        )
    kind, function = _tell_fixed(tool)
    return OfferedTool(name=entry.flat_name, kind=kind, function=function, own_name=entry.flat_name)


def _tell_fixed(tool: Tool) -> tuple[ToolKind, FunctionTool]:
    if isinstance(tool, ToolSearchTool):
        return "tool_search", tell_search(tool)
    if isinstance(tool, ShellTool):
        return "shell", tell_shell(tool)
    if isinstance(tool, LocalShellTool):
        return "local_shell", LOCAL_SHELL_FUNCTION
    return "apply_patch", APPLY_PATCH_FUNCTION
