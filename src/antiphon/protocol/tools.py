"""Tools and the choice among them: decoding, the checks across tools, and the echo in a response.

Knows nothing of running a tool. Invariant: a key that is not in the contract is refused, and the secrets of
an MCP server (`authorization`, `headers`) are never echoed.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from antiphon.protocol import checks
from antiphon.protocol.errors import RequestError
from antiphon.protocol.mcp_addresses import check_server, cut_query
from antiphon.protocol.tool_forms import (
    AllowedToolsChoice,
    ApplyPatchChoice,
    ApplyPatchTool,
    AutoContainer,
    ChoiceWord,
    CodeInterpreterChoice,
    CodeInterpreterTool,
    ComputerChoice,
    ComputerPreviewChoice,
    ComputerPreviewTool,
    ComputerTool,
    ComputerUseChoice,
    CustomChoice,
    CustomTool,
    DatedWebSearchChoice,
    DatedWebSearchPreviewTool,
    DatedWebSearchTool,
    DomainFilters,
    FileSearchChoice,
    FileSearchTool,
    FunctionChoice,
    FunctionTool,
    GrammarFormat,
    HostedChoice,
    HybridSearch,
    ImageGenerationChoice,
    ImageGenerationTool,
    ImageMask,
    LocalShellTool,
    McpApprovalRules,
    McpChoice,
    McpTool,
    McpToolFilter,
    NamespaceTool,
    PlainFormat,
    ProgrammaticChoice,
    ProgrammaticTool,
    RankingOptions,
    ShellChoice,
    ShellTool,
    Tool,
    ToolChoice,
    ToolForm,
    ToolSearchTool,
    UserLocation,
    WebSearchChoice,
    WebSearchPreviewTool,
    WebSearchTool,
)

__all__ = [
    "SECRET_KEYS",
    "AllowedToolsChoice",
    "ApplyPatchChoice",
    "ApplyPatchTool",
    "AutoContainer",
    "ChoiceWord",
    "CodeInterpreterChoice",
    "CodeInterpreterTool",
    "ComputerChoice",
    "ComputerPreviewChoice",
    "ComputerPreviewTool",
    "ComputerTool",
    "ComputerUseChoice",
    "CustomChoice",
    "CustomTool",
    "DatedWebSearchChoice",
    "DatedWebSearchPreviewTool",
    "DatedWebSearchTool",
    "DomainFilters",
    "FileSearchChoice",
    "FileSearchTool",
    "FunctionChoice",
    "FunctionTool",
    "GrammarFormat",
    "HostedChoice",
    "HybridSearch",
    "ImageGenerationChoice",
    "ImageGenerationTool",
    "ImageMask",
    "LocalShellTool",
    "McpApprovalRules",
    "McpChoice",
    "McpTool",
    "McpToolFilter",
    "NamespaceTool",
    "PlainFormat",
    "ProgrammaticChoice",
    "ProgrammaticTool",
    "RankingOptions",
    "ShellChoice",
    "ShellTool",
    "Tool",
    "ToolChoice",
    "ToolForm",
    "ToolSearchTool",
    "UserLocation",
    "WebSearchChoice",
    "WebSearchPreviewTool",
    "WebSearchTool",
    "check_parameters",
    "check_tool_choice",
    "check_tool_keys",
    "decode_tool_choice",
    "decode_tools",
    "echo_tool",
    "echo_tool_choice",
    "get_tool_type",
]

_decode_tools = msgspec.json.Decoder(list[Tool]).decode
_decode_choice = msgspec.json.Decoder(ToolChoice).decode
_decode_any = msgspec.json.Decoder().decode

#: Keys of a tool that must never leave the server again.
SECRET_KEYS: Final = ("authorization", "headers")


def get_tool_type(tool: ToolForm) -> str:
    """The wire name of a tool's or a choice's type: `FunctionTool(...)` -> `"function"`."""
    return str(type(tool).__struct_config__.tag)


def decode_tools(raw: bytes | msgspec.Raw, where: str = "tools") -> list[Tool]:
    """Decode the tools of a request; raises `RequestError` at the first one that is wrong."""
    try:
        tools = _decode_tools(raw)
    except (msgspec.ValidationError, RecursionError) as error:
        _refuse_chat_tools(raw, where)
        checks.refuse(raw, list[Tool], where, error)
    _check_names(tools, where)
    return tools


def _refuse_chat_tools(raw: bytes | msgspec.Raw, where: str) -> None:
    """A tool in the Chat Completions shape lacks a name here; that says more than its unknown key."""
    try:
        tools = _decode_any(raw)
    except msgspec.ValidationError:
        return
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if _is_chat_tool(tool):
            raise checks.missing_parameter(f"{where}[{index}].name")


def _is_chat_tool(tool: Any) -> bool:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return False
    return "function" in tool and "name" not in tool


def check_tool_keys(tools: Any, where: str = "tools") -> None:
    """Raise for the first unknown key in decoded tools, those in the Chat Completions shape left out."""
    if isinstance(tools, list):
        own = [None if _is_chat_tool(tool) else tool for tool in tools]
        checks.check_keys(own, checks.get_shape(list[Tool]), where)


def _check_names(tools: list[Tool], where: str) -> None:
    seen: set[str] = set()
    labels: set[str] = set()
    for index, tool in enumerate(tools):
        path = f"{where}[{index}]"
        if isinstance(tool, McpTool):
            if tool.server_label in labels:
                message = f"Duplicate MCP server_label: '{tool.server_label}'. Give every MCP server its own."
                raise RequestError(message, param=f"{path}.server_label", code="invalid_value")
            labels.add(tool.server_label)
            check_server(tool, path)
        if isinstance(tool, FunctionTool):
            check_parameters(tool.name, tool.parameters, f"{path}.parameters")
        if isinstance(tool, NamespaceTool):
            _check_names(list(tool.tools), f"{path}.tools")
        if isinstance(tool, (FunctionTool, CustomTool, NamespaceTool)):
            if tool.name in seen:
                message = f"Duplicate tool name: '{tool.name}'. Tool names must be unique."
                raise RequestError(message, param=f"{path}.name", code="invalid_value")
            seen.add(tool.name)


def check_parameters(name: str, parameters: dict[str, Any] | None, where: str) -> None:
    """Raise when a function's parameters are a JSON schema of anything but an object."""
    found = "object" if parameters is None else parameters.get("type", "object")
    if found == "object" or (isinstance(found, list) and "object" in found):
        return
    raise RequestError(
        f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', "
        f"got 'type: {msgspec.json.encode(found).decode()}'.",
        param=where,
        code="invalid_function_parameters",
    )


def decode_tool_choice(raw: bytes | msgspec.Raw, where: str = "tool_choice") -> ToolChoice:
    """Decode the choice among tools; `check_tool_choice` then holds it against the tools."""
    try:
        return _decode_choice(raw)
    except (msgspec.ValidationError, RecursionError) as error:
        checks.refuse(raw, ToolChoice, where, error)


def check_tool_choice(choice: ToolChoice, tools: list[Tool]) -> None:
    """Raise when a choice names a tool that the request does not declare."""
    if isinstance(choice, str):
        return
    declared = _Declared(tools)
    if isinstance(choice, FunctionChoice):
        declared.check("function", choice.name, "tool_choice")
    elif isinstance(choice, CustomChoice):
        declared.check("custom", choice.name, "tool_choice")
    elif isinstance(choice, McpChoice):
        declared.check("mcp", choice.server_label, "tool_choice")
    elif isinstance(choice, AllowedToolsChoice):
        _check_allowed(choice, declared)


def _check_allowed(choice: AllowedToolsChoice, declared: "_Declared") -> None:
    for index, allowed in enumerate(choice.tools):
        path = f"tool_choice.tools[{index}]"
        tool_type = allowed.get("type")
        if tool_type is None:
            raise checks.missing_parameter(f"{path}.type")
        key = "server_label" if tool_type == "mcp" else "name"
        name = allowed.get(key)
        if name is None and tool_type in ("function", "custom", "mcp"):
            raise checks.missing_parameter(f"{path}.{key}")
        declared.check(str(tool_type), name, path)


class _Declared:
    """The types and names of declared tools, namespaces opened, to be asked without walking the tools."""

    def __init__(self, tools: list[Tool]) -> None:
        #: None stands for any tool of the type.
        self._found: set[tuple[str, str | None]] = set()
        for tool in _flatten(tools):
            tool_type = get_tool_type(tool)
            name = getattr(tool, "server_label" if tool_type == "mcp" else "name", None)
            self._found |= {(tool_type, None), (tool_type, name)}

    def check(self, tool_type: str, name: Any, where: str) -> None:
        """Raise when there is no such tool; no name: when there is none of the type."""
        # A name of another JSON type may have no hash, and names nothing.
        if (name is None or isinstance(name, str)) and (tool_type, name) in self._found:
            return
        label = f"{tool_type} '{name}'" if name is not None else f"'{tool_type}'"
        message = f"Tool choice {label} not found in 'tools' parameter."
        raise RequestError(message, param=where, code="invalid_value")


def _flatten(tools: list[Tool]) -> Iterator[Tool]:
    for tool in tools:
        yield tool
        if isinstance(tool, NamespaceTool):
            yield from tool.tools


def echo_tool(tool: Tool) -> dict[str, Any]:
    """A tool as the response shows it: defaults filled in, secrets left out.

    Function tools always have name, description, parameters and strict (false when it was not sent).
    """
    if isinstance(tool, FunctionTool):
        return _echo_function(tool)
    echo: dict[str, Any] = msgspec.to_builtins(tool)
    for key in SECRET_KEYS:
        echo.pop(key, None)
    if isinstance(tool, McpTool) and tool.server_url:
        echo["server_url"] = cut_query(tool.server_url)
    if isinstance(tool, NamespaceTool):
        echo["tools"] = [echo_tool(member) for member in tool.tools]
    if isinstance(tool, CustomTool):
        echo.setdefault("format", {"type": "text"})
    return echo


def _echo_function(tool: FunctionTool) -> dict[str, Any]:
    echo: dict[str, Any] = {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }
    told: dict[str, Any] = {"async": tool.is_async, "defer_loading": tool.defer_loading}
    told |= {"allowed_callers": tool.allowed_callers, "output_schema": tool.output_schema}
    echo.update({key: value for key, value in told.items() if value is not None})
    return echo


def echo_tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    """A choice as the response shows it."""
    if isinstance(choice, str):
        return choice
    echo: dict[str, Any] = msgspec.to_builtins(choice)
    return echo
