"""Calls, outputs and messages of every kind -> what a chat model is told: functions, results, texts.

One item at a time, without the request or the path. Invariant: the same item always gives the same words, so
the prompt of a path keeps its prefix.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from antiphon.context.tool_functions import INPUT_KEY
from antiphon.context.tool_names import (
    APPLY_PATCH_NAME,
    LOCAL_SHELL_NAME,
    SHELL_NAME,
    TOOL_SEARCH_NAME,
    WEB_SEARCH_NAME,
    flatten_name,
)
from antiphon.protocol.content import InputImage, InputText, ToolOutputPart
from antiphon.protocol.hosted_items import (
    ExitOutcome,
    FindInPageAction,
    OpenPageAction,
    SearchAction,
    ShellResult,
)
from antiphon.protocol.items import (
    AgentMessage,
    ApplyPatchCall,
    ApplyPatchCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    ShellCall,
    ShellCallOutput,
    ToolSearchCall,
    ToolSearchOutput,
    WebSearchCall,
    get_call_id,
    is_call,
    is_call_output,
)

#: How the stand-in for a result begins that comes later.
RUNNING_TEXT: Final = "[running; the result comes later"
#: The result of a call that a person has to allow first.
APPROVAL_TEXT: Final = "[the user is asked for approval; the call is made once it is given]"
_NO_RESULT: Final = "[no result]"

Content: TypeAlias = str | Sequence[ToolOutputPart]

_encode_json = msgspec.json.Encoder().encode


class LoweredCall(msgspec.Struct, frozen=True, gc=False):
    """A call as a chat model makes it: the flat name of a function, and its arguments as JSON text."""

    call_id: str
    name: str
    arguments: str
    is_async: bool = False


class LoweredOutput(msgspec.Struct, frozen=True):
    """The result of a call: text, or parts where it holds images."""

    call_id: str
    content: Content


class LoweredMessage(msgspec.Struct, frozen=True):
    """What is told as a user message under a mark, such as `agent message from lead`."""

    mark: str
    content: Content


def lower_call(item: Item) -> LoweredCall | None:
    """The call that an item holds; None where it holds none that a chat model can be told of."""
    lower = _CALLS.get(type(item.value))
    return lower(item, item.value) if lower is not None else None


def lower_output(item: Item) -> LoweredOutput | None:
    """The result that an item holds; a call that holds its own result has one too, an async call a stand-in."""
    lower = _OUTPUTS.get(type(item.value))
    return lower(item, item.value) if lower is not None else None


def lower_message(item: Item) -> LoweredMessage | None:
    """What an item says in words of its own: a message between agents, or that a call was not allowed."""
    lower = _MESSAGES.get(type(item.value))
    return lower(item.value) if lower is not None else None


def tell_running(call_id: str) -> str:
    """What stands for the result of an async call until it comes; the id says later whose result it is."""
    return f"{RUNNING_TEXT} as the result of call {call_id}]"


def mark_late(call_id: str) -> str:
    """The mark over a result that comes late: `result of call call_1`."""
    return f"result of call {call_id}"


# Calls


def _lower_function(_: Item, value: FunctionCall) -> LoweredCall:
    return LoweredCall(
        value.call_id, flatten_name(value.namespace, value.name), value.arguments, bool(value.is_async)
    )


def _lower_custom(_: Item, value: CustomToolCall) -> LoweredCall:
    arguments = _encode({INPUT_KEY: value.input})
    return LoweredCall(
        value.call_id, flatten_name(value.namespace, value.name), arguments, bool(value.is_async)
    )


def _lower_mcp(item: Item, value: McpCall | McpApprovalRequest) -> LoweredCall:
    return LoweredCall(_own_call_id(item), flatten_name(value.server_label, value.name), value.arguments)


def _lower_web_search(item: Item, value: WebSearchCall) -> LoweredCall:
    return LoweredCall(_own_call_id(item), WEB_SEARCH_NAME, _encode(_search_arguments(value)))


def _lower_tool_search(item: Item, value: ToolSearchCall) -> LoweredCall | None:
    if value.call_id is None or not is_call(item):
        # Another server ran it; the tools that it found are offered, and that is all there is to tell.
        return None
    arguments = value.arguments if isinstance(value.arguments, str) else _encode(value.arguments)
    return LoweredCall(value.call_id, TOOL_SEARCH_NAME, arguments)


def _lower_local_shell(_: Item, value: LocalShellCall) -> LoweredCall:
    action = msgspec.to_builtins(value.action)
    told = {key: field for key, field in action.items() if key != "type" and field}
    return LoweredCall(value.call_id, LOCAL_SHELL_NAME, _encode(told))


def _lower_shell(_: Item, value: ShellCall) -> LoweredCall:
    return LoweredCall(value.call_id, SHELL_NAME, _encode(value.action))


def _lower_patch(_: Item, value: ApplyPatchCall) -> LoweredCall:
    return LoweredCall(value.call_id, APPLY_PATCH_NAME, _encode(value.operation))


_CALLS: Final[dict[type, Callable[[Item, Any], LoweredCall | None]]] = {
    ApplyPatchCall: _lower_patch,
    CustomToolCall: _lower_custom,
    FunctionCall: _lower_function,
    LocalShellCall: _lower_local_shell,
    McpApprovalRequest: _lower_mcp,
    McpCall: _lower_mcp,
    ShellCall: _lower_shell,
    ToolSearchCall: _lower_tool_search,
    WebSearchCall: _lower_web_search,
}


# Results


def _lower_stand_in(_: Item, value: FunctionCall | CustomToolCall) -> LoweredOutput | None:
    return LoweredOutput(value.call_id, tell_running(value.call_id)) if value.is_async else None


def _lower_plain(_: Item, value: FunctionCallOutput | CustomToolCallOutput) -> LoweredOutput:
    return LoweredOutput(value.call_id, value.output)


def _lower_local_shell_output(item: Item, value: LocalShellCallOutput) -> LoweredOutput | None:
    call_id = get_call_id(item)
    return LoweredOutput(call_id, value.output) if call_id else None


def _lower_shell_output(_: Item, value: ShellCallOutput) -> LoweredOutput:
    several = len(value.output) > 1
    told = [_tell_shell_result(result, at if several else 0) for at, result in enumerate(value.output, 1)]
    return LoweredOutput(value.call_id, "\n\n".join(told))


def _lower_patch_output(_: Item, value: ApplyPatchCallOutput) -> LoweredOutput:
    told = f"[{value.status}]\n{value.output}" if value.output else f"[{value.status}]"
    return LoweredOutput(value.call_id, told)


def _lower_found_tools(item: Item, value: ToolSearchOutput) -> LoweredOutput | None:
    if value.call_id is None or not is_call_output(item):
        return None
    return LoweredOutput(value.call_id, _tell_found_tools(value.tools))


_OUTPUTS: Final[dict[type, Callable[[Item, Any], LoweredOutput | None]]] = {
    ApplyPatchCallOutput: _lower_patch_output,
    CustomToolCall: _lower_stand_in,
    CustomToolCallOutput: _lower_plain,
    FunctionCall: _lower_stand_in,
    FunctionCallOutput: _lower_plain,
    LocalShellCallOutput: _lower_local_shell_output,
    McpApprovalRequest: lambda item, _: LoweredOutput(_own_call_id(item), APPROVAL_TEXT),
    McpCall: lambda item, value: LoweredOutput(_own_call_id(item), _tell_mcp_result(value)),
    ShellCallOutput: _lower_shell_output,
    ToolSearchOutput: _lower_found_tools,
    WebSearchCall: lambda item, value: LoweredOutput(_own_call_id(item), tell_search_results(value)),
}


# Messages


def _lower_agent_message(value: AgentMessage) -> LoweredMessage:
    ends = [f"{word} {name}" for word, name in (("from", value.author), ("to", value.recipient)) if name]
    return LoweredMessage(" ".join(["agent message", *ends]), _read_agent_parts(value))


def _lower_denial(value: McpApprovalResponse) -> LoweredMessage | None:
    if value.approve:
        return None
    told = f"The user does not allow the call {value.approval_request_id}. Do not make it again."
    return LoweredMessage("approval denied", f"{told} Reason: {value.reason}" if value.reason else told)


_MESSAGES: Final[dict[type, Callable[[Any], LoweredMessage | None]]] = {
    AgentMessage: _lower_agent_message,
    McpApprovalResponse: _lower_denial,
}


# Words


def _read_agent_parts(value: AgentMessage) -> Content:
    if isinstance(value.content, str):
        return value.content
    parts: list[ToolOutputPart] = []
    for part in value.content:
        if part.get("type") == "input_image" and str(part.get("image_url")).startswith("data:image/"):
            parts.append(InputImage(image_url=part["image_url"]))
        else:
            text = part.get("text")
            parts.append(InputText(text if isinstance(text, str) else f"[{part.get('type')}]"))
    return parts


def _own_call_id(item: Item) -> str:
    """The id of a call that is answered in its own item: the item's, else one made from its bytes."""
    own: str | None = getattr(item.value, "id", None)
    return own or f"call_{hashlib.sha256(item.raw).hexdigest()[:24]}"


def _search_arguments(value: WebSearchCall) -> dict[str, Any]:
    action = value.action
    if isinstance(action, OpenPageAction):
        return {"open_page": action.url}
    if isinstance(action, FindInPageAction):
        return {"open_page": action.url, "pattern": action.pattern}
    if isinstance(action, SearchAction):
        return {"query": action.query if action.query is not None else "; ".join(action.queries or ())}
    return {}


def tell_search_results(value: WebSearchCall) -> str:
    """What a web search gave, as the model is told: each hit's title, address and snippet."""
    if value.results:
        return "\n\n".join(f"[{at}] {_tell_hit(hit)}" for at, hit in enumerate(value.results, 1))
    sources = getattr(value.action, "sources", None)
    if sources:
        return "\n".join(f"[{at}] {getattr(source, 'url', None)}" for at, source in enumerate(sources, 1))
    if value.error is not None:
        return f"Error: {_tell_error(value.error)}"
    return (
        "Error: the search failed" if value.status == "failed" else "[nothing was found, or it was not kept]"
    )


def _tell_hit(hit: dict[str, Any]) -> str:
    told = [hit.get("title"), hit.get("url"), hit.get("snippet") or hit.get("text")]
    return "\n".join(text for text in told if isinstance(text, str) and text)


def _tell_mcp_result(value: McpCall) -> str:
    if value.error is not None:
        return f"Error: {_tell_error(value.error)}"
    if value.output is None:
        return "Error: the call failed" if value.status == "failed" else _NO_RESULT
    return value.output


def _tell_error(error: Any) -> str:
    if isinstance(error, str):
        return error
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else _encode(error)


def _tell_shell_result(result: Any, number: int) -> str:
    if not isinstance(result, ShellResult):
        # A stored item that breaks a rule of the input has no typed view inside.
        return _encode(result)
    outcome = result.outcome
    ended = f"exit code {outcome.exit_code}" if isinstance(outcome, ExitOutcome) else "timed out"
    told = [f"[command {number}: {ended}]" if number else f"[{ended}]"]
    if result.stdout:
        told.append(result.stdout)
    if result.stderr:
        told += ["[stderr]", result.stderr]
    return "\n".join(told)


def _tell_found_tools(tools: Sequence[dict[str, Any]]) -> str:
    told: list[str] = []
    for tool in tools:
        members = tool.get("tools")
        if tool.get("type") == "namespace" and isinstance(members, list):
            told += [_tell_found(member, tool) for member in members if isinstance(member, dict)]
        else:
            told.append(_tell_found(tool, None))
    return "\n".join(["Found; they can be called now:", *told]) if told else "No tool was found."


def _tell_found(tool: dict[str, Any], namespace: dict[str, Any] | None) -> str:
    own = tool.get("name") or tool.get("server_label") or tool.get("type")
    name = flatten_name(str(namespace.get("name")) if namespace else None, str(own))
    description = tool.get("description")
    return f"- {name}: {description}" if isinstance(description, str) and description else f"- {name}"


def _encode(value: Any) -> str:
    return _encode_json(value).decode()
