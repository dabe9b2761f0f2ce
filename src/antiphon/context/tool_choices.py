"""The choice among tools: which of the declared ones may be called, and whether one must be.

It knows tools one by one, namespaces opened, and no profile. Invariant: a list of allowed tools is a hard
limit over every kind of tool, the ones that the server runs included.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from antiphon.context.tool_names import APPLY_PATCH_NAME, SHELL_NAME, WEB_SEARCH_NAME, flatten_name
from antiphon.context.tool_refusals import unsupported_tool
from antiphon.protocol.errors import RequestError
from antiphon.protocol.tools import (
    AllowedToolsChoice,
    ApplyPatchChoice,
    CustomChoice,
    CustomTool,
    DatedWebSearchChoice,
    DatedWebSearchPreviewTool,
    DatedWebSearchTool,
    FunctionChoice,
    FunctionTool,
    McpChoice,
    McpTool,
    McpToolFilter,
    NamespaceTool,
    ShellChoice,
    Tool,
    ToolChoice,
    WebSearchChoice,
    WebSearchPreviewTool,
    WebSearchTool,
    get_tool_type,
)

WEB_SEARCHES: Final = (WebSearchTool, DatedWebSearchTool, WebSearchPreviewTool, DatedWebSearchPreviewTool)
_FORCED_NAMES: Final[dict[type, str]] = {
    WebSearchChoice: WEB_SEARCH_NAME,
    DatedWebSearchChoice: WEB_SEARCH_NAME,
    ShellChoice: SHELL_NAME,
    ApplyPatchChoice: APPLY_PATCH_NAME,
}


class Entry(msgspec.Struct, frozen=True):
    """One declared tool; `where` is its place in the request, `namespace` what it is a member of."""

    tool: Tool
    flat_name: str
    where: str
    namespace: NamespaceTool | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """What tells tools apart: of two with one key the later declaration counts."""
        tool = self.tool
        if isinstance(tool, FunctionTool | CustomTool):
            return ("named", self.namespace.name if self.namespace else "", tool.name)
        if isinstance(tool, McpTool):
            return ("mcp", tool.server_label)
        return ("web_search",) if isinstance(tool, WEB_SEARCHES) else (get_tool_type(tool),)

    @property
    def label(self) -> str:
        """What the client calls it."""
        return self.tool.server_label if isinstance(self.tool, McpTool) else self.flat_name

    @property
    def is_deferred(self) -> bool:
        """Whether a search has to find it first."""
        return bool(getattr(self.tool, "defer_loading", None))

    @property
    def is_hosted(self) -> bool:
        """Whether this server runs it."""
        return isinstance(self.tool, (McpTool, *WEB_SEARCHES))

    def locate(self, field: str) -> str:
        """The param path of one of its fields; a tool that an item brought is told as the input."""
        return self.where if self.where == "input" else f"{self.where}.{field}"


class Chosen(msgspec.Struct):
    """What the choice leaves: the tools, whether one must be called, and which (a flat name)."""

    entries: list[Entry]
    word: Literal["auto", "none", "required"]
    forced: str | None = None


def choose(choice: ToolChoice, entries: Sequence[Entry]) -> Chosen:
    """Apply the choice to the tools that can be called now; raises `RequestError` for what it cannot name."""
    if choice == "none":
        return Chosen([], "none")
    if isinstance(choice, str):
        return Chosen(list(entries), choice)
    if isinstance(choice, AllowedToolsChoice):
        return Chosen(_allow(choice.tools, entries), choice.mode)
    if isinstance(choice, FunctionChoice):
        return Chosen(list(entries), "required", _find_named(FunctionTool, choice.name, entries))
    if isinstance(choice, CustomChoice):
        return Chosen(list(entries), "required", _find_named(CustomTool, choice.name, entries))
    if isinstance(choice, McpChoice):
        return _choose_server(choice, entries)
    forced = _FORCED_NAMES.get(type(choice))
    if forced is None:
        remedy = "Name a tool that is declared and can be called here."
        raise unsupported_tool("tool_choice.type", f"'{get_tool_type(choice)}'", remedy)
    if not any(_is_fixed(entry, forced) for entry in entries):
        raise _not_found(f"'{get_tool_type(choice)}'")
    return Chosen(list(entries), "required", forced)


def _is_fixed(entry: Entry, flat_name: str) -> bool:
    """Whether a tool without a name of its own goes by this one."""
    return entry.flat_name == flat_name and not isinstance(entry.tool, FunctionTool | CustomTool)


def _find_named(kind: type, name: str, entries: Sequence[Entry]) -> str:
    found = [entry for entry in entries if isinstance(entry.tool, kind) and entry.key[-1] == name]
    plain = [entry for entry in found if entry.namespace is None]
    if plain or len(found) == 1:
        return (plain or found)[0].flat_name
    if not found:
        raise _not_found(f"{kind.__struct_config__.tag} '{name}'")  # type: ignore[attr-defined]
    names = ", ".join(entry.namespace.name for entry in found if entry.namespace)
    raise RequestError(
        f"Invalid 'tool_choice': '{name}' stands in several namespaces ({names}). "
        "Use allowed_tools with the 'namespace' of the one you mean.",
        param="tool_choice",
        code="invalid_value",
    )


def _choose_server(choice: McpChoice, entries: Sequence[Entry]) -> Chosen:
    names = None if choice.name is None else {choice.name}
    found = [_narrow(entry, names) for entry in entries if entry.key == ("mcp", choice.server_label)]
    if not found:
        raise _not_found(f"mcp '{choice.server_label}'")
    forced = flatten_name(choice.server_label, choice.name) if choice.name is not None else None
    return Chosen(found, "required", forced)


class _Allowed:
    """A list of allowed tools, to be asked for each tool without walking the list."""

    def __init__(self, rules: Iterable[dict[str, Any]]) -> None:
        #: Types without a name of their own.
        self._types: set[str] = set()
        #: The names of namespaces that are allowed whole; None: all of them are.
        self._namespaces: set[str | None] = set()
        #: Type, name, namespace; a rule without a namespace goes for all of them.
        self._named: set[tuple[str, str, str | None]] = set()
        #: Server labels, with the names of the tools; None: all of them.
        self._servers: dict[str, set[str] | None] = {}
        for rule in rules:
            self._add(rule)

    def _add(self, rule: dict[str, Any]) -> None:
        kind, name, namespace = rule.get("type"), rule.get("name"), rule.get("namespace")
        if not isinstance(kind, str):
            return
        if kind == "mcp":
            self._add_server(rule.get("server_label"), name)
        elif kind == "namespace":
            if name is None or isinstance(name, str):
                self._namespaces.add(name)
        elif isinstance(name, str) and (namespace is None or isinstance(namespace, str)):
            self._named.add((kind, name, namespace))
        self._types.add(kind)

    def _add_server(self, label: Any, name: Any) -> None:
        if not isinstance(label, str):
            return
        known = self._servers.setdefault(label, set())
        if name is None:
            self._servers[label] = None
        elif known is not None:
            known.add(str(name))

    def apply(self, entry: Entry) -> Entry | None:
        """The tool, an MCP server narrowed to the tools of it that are allowed; None when it is not."""
        tool = entry.tool
        own = entry.namespace.name if entry.namespace else None
        if own is not None and not self._namespaces.isdisjoint((None, own)):
            return entry
        if isinstance(tool, McpTool):
            label = tool.server_label
            return _narrow(entry, self._servers[label]) if label in self._servers else None
        kind = get_tool_type(tool)
        if isinstance(tool, FunctionTool | CustomTool):
            fits = not self._named.isdisjoint(((kind, tool.name, None), (kind, tool.name, own)))
        else:
            fits = kind in self._types
        return entry if fits else None


def _allow(allowed: Iterable[dict[str, Any]], entries: Iterable[Entry]) -> list[Entry]:
    rules = _Allowed(allowed)
    return [kept for entry in entries if (kept := rules.apply(entry)) is not None]


def _narrow(entry: Entry, names: set[str] | None) -> Entry:
    """The same MCP server with no other tools than these, of those that it had."""
    tool = entry.tool
    if names is None or not isinstance(tool, McpTool):
        return entry
    limits = tool.allowed_tools
    before = limits.tool_names if isinstance(limits, McpToolFilter) else limits
    kept = sorted(names if before is None else names.intersection(before))
    if isinstance(limits, McpToolFilter):
        narrowed: list[str] | McpToolFilter = msgspec.structs.replace(limits, tool_names=kept)
    else:
        narrowed = kept
    return msgspec.structs.replace(entry, tool=msgspec.structs.replace(tool, allowed_tools=narrowed))


def _not_found(what: str) -> RequestError:
    return RequestError(
        f"Tool choice {what} not found among the tools that can be called now. Declare it in 'tools', "
        "and let a tool search find it first if it has 'defer_loading'.",
        param="tool_choice",
        code="invalid_value",
    )
