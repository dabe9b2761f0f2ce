"""Tools as they are declared -> what a chat model is offered, reversibly.

Every tool that the client runs becomes a function under a flat name; the ones that this server runs are
handed on as `hosted`. It knows no items but those that bring tools. Invariant: what is declared is offered,
hosted, held back by the choice among tools, or named in a warning or an error; and no two tools that are
offered share a flat name.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

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
    make_prefix,
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
#: Of the name of a tool that cannot be read a warning tells this much.
_NAMED_CHARACTERS: Final = 100
_MCP_REMEDY = "MCP is not installed on this server; its operator adds it with: pip install 'mcp>=2.3,<3'."
_SEARCH_REMEDY = (
    "This server has no web search configured ([search] url); leave the tool out, or let the model choose."
)


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
    """The tools of one request.

    `hidden`: flat names that are declared and that the client may not be handed calls of; with
    `hidden_prefixes`, those of all other names that begin so.
    """

    offered: tuple[OfferedTool, ...] = ()
    hidden: frozenset[str] = frozenset()
    hidden_prefixes: tuple[str, ...] = ()
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
    stored: Sequence[Tool] = (),
) -> Toolbox:
    """What of the declared tools a chat model is offered, and what it must do with them.

    `tools` are the request's own, then those that items brought; the first `declared` ones (default: all)
    stand in `tools`, the others are told as `input`. Of two with the same name the later one counts, in the
    place of the first. `stored` are those that earlier rounds brought: what of them cannot be offered now is left out
    with a warning. Raises `RequestError` for tools and choices that cannot be carried out.
    """
    count = len(tools) if declared is None else declared
    if choice_given and not tools and not stored and choice not in ("auto", "none"):
        raise RequestError(
            "Invalid 'tool_choice': a tool can only be forced when 'tools' are given.",
            param="tool_choice",
            code="invalid_value",
        )
    box = Toolbox()
    entries = _collect(tools, count)
    if stored:
        own = _collect(tools[:count], count)
        entries = _merge_stored(own, entries, _collect_stored(stored), box, can_call_mcp=can_call_mcp)
    _check_reachable(entries.values())
    _check_flat_names(
        entry for entry in entries.values() if can_search or not isinstance(entry.tool, WEB_SEARCHES)
    )
    if not can_call_mcp:
        _refuse_mcp(entries.values())
    chosen = choose(choice, [entry for entry in entries.values() if not entry.is_deferred])
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
    # No client can run what is hosted: the model's calls of it are run here, or are none.
    shown = {tool.name for tool in box.offered}
    if chosen.forced is not None:
        shown &= {chosen.forced}
    # The tools of an MCP server go by names that only its own list tells.
    named = [entry for entry in entries.values() if not isinstance(entry.tool, McpTool)]
    box.hidden = frozenset(entry.flat_name for entry in named) - shown
    box.hidden_prefixes = tuple(
        make_prefix(entry.tool.server_label) for entry in entries.values() if isinstance(entry.tool, McpTool)
    )
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


def load_stored_tools(items: Sequence[Item]) -> tuple[list[Tool], list[tuple[str, str]]]:
    """As `load_tools`, for items of earlier rounds: (tools, warnings about those that no chat model can be given).

    Another server took them, which may know more tools than there are here.
    """
    loaded: list[Tool] = []
    warnings: dict[tuple[str, str], None] = {}
    for item in items:
        value = item.value
        if not isinstance(value, AdditionalTools | ToolSearchOutput):
            continue
        for told in value.tools:
            try:
                tool = decode_tools(msgspec.json.encode([told]), "tools")[0]
                refuse_tool(tool, "tools[0]")
            except RequestError as error:
                warnings[_warn_of_stored(_name_told(told), error.message)] = None
            else:
                loaded.append(_undefer(tool) if isinstance(value, ToolSearchOutput) else tool)
    return loaded, list(warnings)


def _name_told(tool: dict[str, Any]) -> str:
    """What a tool is called that cannot be read."""
    told = tool.get("name") or tool.get("server_label") or tool.get("type")
    return told[:_NAMED_CHARACTERS] if isinstance(told, str) else "a tool without a name"


def _warn_of_stored(name: str, reason: str) -> tuple[str, str]:
    return ("tools_left_out", f"A tool that an earlier item brought is left out: {name}. {reason}")


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


def _collect_stored(stored: Sequence[Tool]) -> dict[tuple[str, ...], Entry]:
    """The tools that earlier rounds brought, one by one; what was found is not hidden again by a declaration."""
    found: dict[tuple[str, ...], Entry] = {}
    for tool in stored:
        for entry in _open(tool, "input"):
            known = found.get(entry.key)
            if known is None or known.is_deferred or not entry.is_deferred:
                found[entry.key] = entry
    return found


def _merge_stored(
    own: Collection[tuple[str, ...]],
    entries: dict[tuple[str, ...], Entry],
    stored: dict[tuple[str, ...], Entry],
    box: Toolbox,
    *,
    can_call_mcp: bool,
) -> dict[tuple[str, ...], Entry]:
    """The request's own tools, then the stored ones that fit beside all of this request's, then its items'.

    That order keeps the beginning of a prompt from round to round.
    """
    names = {entry.flat_name for entry in entries.values()}
    # Of several with one flat name the latest is the one that the model was told of last.
    last = {entry.flat_name: key for key, entry in stored.items()}
    can_find = any(isinstance(entry.tool, ToolSearchTool) for entry in (*entries.values(), *stored.values()))
    merged = {key: entries[key] for key in own}
    for key, entry in stored.items():
        declared = entries.get(key)
        if declared is not None:
            # What was found by a search can be called, also where it is declared again.
            merged[key] = entry if declared.is_deferred and not entry.is_deferred else declared
        elif entry.flat_name in names or last[entry.flat_name] != key:
            box.warnings.append(_warn_of_stored(entry.label, "Another tool goes by the same name."))
        elif entry.is_deferred and not can_find:
            box.warnings.append(
                _warn_of_stored(entry.label, "It is deferred, and no tool search is declared.")
            )
        elif isinstance(entry.tool, McpTool) and not can_call_mcp:
            box.warnings.append(_warn_of_stored(entry.label, _MCP_REMEDY))
        else:
            merged[key] = entry
    return {**merged, **{key: entry for key, entry in entries.items() if key not in merged}}


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
        (
            "tools_left_out",
            f"This server has no web search configured ([search] url); left out: {WEB_SEARCH_NAME}.",
        )
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
