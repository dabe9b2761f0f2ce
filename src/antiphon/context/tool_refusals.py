"""Tools that no chat model can be given, refused by name with a remedy.

It knows one tool at a time. Invariant: what passes here is offered, run by the server, or left out with a
warning; nothing of it is accepted and forgotten.
"""

from collections.abc import Sequence
from typing import Final

from antiphon.protocol.errors import RequestError
from antiphon.protocol.tools import (
    ApplyPatchTool,
    CodeInterpreterTool,
    ComputerPreviewTool,
    ComputerTool,
    CustomTool,
    FileSearchTool,
    FunctionTool,
    ImageGenerationTool,
    McpTool,
    NamespaceTool,
    ProgrammaticTool,
    ShellTool,
    Tool,
    ToolSearchTool,
    get_tool_type,
)

_CLIENT_RUN = "Declare a function that your program runs instead."
_NOT_RUN: Final[dict[type, str]] = {
    FileSearchTool: "There are no vector stores here. Declare a function that searches, or an MCP server.",
    CodeInterpreterTool: f"This server runs no code. {_CLIENT_RUN}",
    ImageGenerationTool: f"This server makes no images. {_CLIENT_RUN}",
    ComputerTool: f"A chat model cannot drive a computer by this tool. {_CLIENT_RUN}",
    ComputerPreviewTool: f"A chat model cannot drive a computer by this tool. {_CLIENT_RUN}",
    ProgrammaticTool: "A chat model calls its tools directly. Leave it out.",
}
#: The environments of a shell that the client itself runs.
_CLIENT_ENVIRONMENTS = (None, "local")
#: A chat model is told of a namespace with each of its tools: how much longer its description may get by that.
REPEATED_CHARACTERS: Final = 1_048_576
_WITH_CALLERS = (FunctionTool, CustomTool, McpTool, ShellTool, ApplyPatchTool)


def unsupported_tool(where: str, what: str, remedy: str) -> RequestError:
    """The refusal of a tool, or of a setting of it, that a chat model cannot be given here."""
    return RequestError(
        f"Unsupported parameter: '{where}' ({what}). {remedy}", param=where, code="unsupported_parameter"
    )


def refuse_tool(tool: Tool, where: str) -> None:
    """Raise for a tool that a chat model cannot be given, whatever is configured."""
    remedy = _NOT_RUN.get(type(tool))
    if remedy is not None:
        raise unsupported_tool(f"{where}.type", f"'{get_tool_type(tool)}' tools", remedy)
    if isinstance(tool, NamespaceTool):
        _refuse_long_repetition(tool, where)
        for index, member in enumerate(tool.tools):
            refuse_tool(member, f"{where}.tools[{index}]")
    elif isinstance(tool, ToolSearchTool):
        _refuse_hosted_search(tool, where)
    elif isinstance(tool, ShellTool):
        _refuse_container(tool, where)
    elif isinstance(tool, McpTool):
        _refuse_foreign_server(tool, where)
    if isinstance(tool, _WITH_CALLERS) and tool.allowed_callers is not None:
        _refuse_callers(tool.allowed_callers, where)


def _refuse_long_repetition(tool: NamespaceTool, where: str) -> None:
    if len(tool.description) * (len(tool.tools) - 1) > REPEATED_CHARACTERS:
        raise RequestError(
            f"Invalid '{where}.description': a chat model is told it with each of the {len(tool.tools)} tools of "
            f"'{tool.name}', over {REPEATED_CHARACTERS} characters more in all. Shorten it.",
            param=f"{where}.description",
            code="invalid_value",
        )


def _refuse_hosted_search(tool: ToolSearchTool, where: str) -> None:
    if tool.execution != "client":
        raise unsupported_tool(
            f"{where}.execution",
            "a tool search that the server runs",
            "Set it to 'client' and answer the calls with tool_search_output items.",
        )


def _refuse_container(tool: ShellTool, where: str) -> None:
    environment = (tool.environment or {}).get("type")
    if environment not in _CLIENT_ENVIRONMENTS:
        raise unsupported_tool(
            f"{where}.environment",
            f"'{environment}'",
            "There are no containers here. Use {'type': 'local'} and run the commands in your program.",
        )


def _refuse_foreign_server(tool: McpTool, where: str) -> None:
    for field in ("connector_id", "tunnel_id"):
        if getattr(tool, field) is not None:
            raise unsupported_tool(
                f"{where}.{field}",
                "a service of one vendor",
                "Name the MCP server's address in 'server_url'.",
            )
    if not tool.server_url:
        raise RequestError(
            f"Missing required parameter: '{where}.server_url'.",
            param=f"{where}.server_url",
            code="missing_required_parameter",
        )


def _refuse_callers(callers: Sequence[str], where: str) -> None:
    if "direct" not in callers:
        raise unsupported_tool(
            f"{where}.allowed_callers",
            "no direct calls",
            "A chat model calls its tools directly. Add 'direct', or leave it out.",
        )
