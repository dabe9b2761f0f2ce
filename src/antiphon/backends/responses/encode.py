"""An ask -> the body of a Responses request that keeps no state upstream: pure.

The whole request is sent as far as it is about this one answer; what is about state (previous_response_id,
conversation, background) or the window (truncation, context_management) is ours and never sent. Invariant: a
parameter that the client left out is not sent, and one that the server is known to ignore is refused.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.backends.interface import Ask
from antiphon.backends.responses.quirks import Quirks, find_quirks
from antiphon.context import Profile
from antiphon.protocol.errors import BackendRefusedError
from antiphon.protocol.requests import CreateRequest, ReasoningConfig, TextConfig, TextFormat
from antiphon.protocol.tools import (
    AllowedToolsChoice,
    FunctionChoice,
    FunctionTool,
    Tool,
    ToolChoice,
    get_tool_type,
)

#: What must come back for reasoning to be replayed, since the server keeps nothing.
SEALED_REASONING = "reasoning.encrypted_content"

_LOGPROBS = "message.output_text.logprobs"
_ANY_OBJECT: dict[str, Any] = {"name": "object", "schema": {"type": "object"}}

#: Sent by their own names whenever they were given.
_PLAIN_FIELDS = (
    "parallel_tool_calls",
    "max_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "reasoning",
    "prompt",
    "moderation",
    "image",
    "access_programs",
    "service_tier",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "client_metadata",
)
#: What a server's count depends on.
_COUNTED_FIELDS = frozenset(
    {
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "text",
        "reasoning",
        "chat_template_kwargs",
    }
)

#: Parameter -> whether a request asks for what a server would have to do.
_ASKED: dict[str, Callable[[CreateRequest], bool]] = {
    "access_programs": lambda request: request.access_programs is not None,
    "frequency_penalty": lambda request: bool(request.frequency_penalty),
    "image": lambda request: request.image is not None,
    "include": lambda request: _LOGPROBS in request.include,
    "max_tool_calls": lambda request: request.max_tool_calls is not None,
    "moderation": lambda request: request.moderation is not None,
    "parallel_tool_calls": lambda request: request.parallel_tool_calls is False and bool(request.tools),
    "presence_penalty": lambda request: bool(request.presence_penalty),
    "prompt": lambda request: request.prompt is not None,
    "reasoning.context": lambda request: (
        request.reasoning is not None and request.reasoning.context not in (None, "auto", "all_turns")
    ),
    "reasoning.mode": lambda request: (
        request.reasoning is not None and request.reasoning.mode not in (None, "standard")
    ),
    "text.format": lambda request: request.text.format.type == "json_object",
    "tool_choice": lambda request: request.tool_choice_given and request.tool_choice not in ("auto", "none"),
    "top_logprobs": lambda request: bool(request.top_logprobs),
}

_encode = msgspec.json.Encoder().encode


def encode_request(ask: Ask, *, sealed_reasoning: bool = True) -> bytes:
    """The whole body; always streaming, never stored.

    `sealed_reasoning`: ask for the reasoning in a form that can be replayed. Raises `BackendRefusedError` for what
    this kind of server is known to ignore.
    """
    quirks = find_quirks(ask.profile.name)
    request = ask.request if ask.request is not None else _to_request(ask)
    _refuse_ignored(request, quirks, ask.profile)
    options = {"store": False, "stream": True, **_encode_options(request, ask, quirks)}
    include = list(request.include)
    if sealed_reasoning and SEALED_REASONING not in include:
        include.append(SEALED_REASONING)
    if include:
        options["include"] = include
    if quirks.stream_options:
        options["stream_options"] = {"include_obfuscation": False}
    return _encode_body(ask, options)


def encode_count(ask: Ask) -> bytes:
    """The body of a count request: what the prompt is made of, nothing else."""
    request = ask.request if ask.request is not None else _to_request(ask)
    options = _encode_options(request, ask, find_quirks(ask.profile.name))
    return _encode_body(ask, {key: value for key, value in options.items() if key in _COUNTED_FIELDS})


def _encode_body(ask: Ask, options: dict[str, Any]) -> bytes:
    """Model, instructions and options, then the input. A long transcript is copied once, by the one join."""
    head: dict[str, Any] = {"model": ask.model}
    if ask.system:
        head["instructions"] = ask.system
    opening = _encode({**head, **options})[:-1] + b',"input":['
    pieces = [piece for piece in ask.transcript if piece]
    if not pieces:
        return opening + b"]}"
    pieces[0] = opening + pieces[0]
    pieces[-1] += b"]}"
    return b",".join(pieces)


def _encode_options(request: CreateRequest, ask: Ask, quirks: Quirks) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if request.tools and request.tool_choice == "none" and "tool_choice" in quirks.ignored:
        # A server that does not read the word must not see the tools.
        pass
    elif request.tools:
        _encode_tools(request, quirks, options)
    elif request.tool_choice_given:
        # Tools may stand in the input.
        options["tool_choice"] = request.tool_choice
    for name in _PLAIN_FIELDS:
        value = getattr(request, name)
        if value is not None:
            options[name] = value
    limit = ask.max_output_tokens if ask.max_output_tokens is not None else request.max_output_tokens
    if limit is not None:
        options["max_output_tokens"] = limit
    if request.metadata:
        options["metadata"] = request.metadata
    text = _encode_text(request.text)
    if text:
        options["text"] = text
    if quirks.chat_parameters:
        _add_chat_parameters(request, ask, options)
    return options


def _encode_tools(request: CreateRequest, quirks: Quirks, options: dict[str, Any]) -> None:
    """Tools with their secrets; a server that reads words alone is left no choice by being offered no other."""
    choice: ToolChoice = request.tool_choice
    tools: list[Tool] = request.tools
    if quirks.choice_words and isinstance(choice, FunctionChoice):
        tools, choice = [tool for tool in tools if _is_function(tool, choice.name)], "required"
    elif quirks.choice_words and isinstance(choice, AllowedToolsChoice):
        names = {allowed.get("name") for allowed in choice.tools if allowed.get("type") == "function"}
        tools = [tool for tool in tools if isinstance(tool, FunctionTool) and tool.name in names]
        choice = choice.mode
    options["tools"] = tools
    if request.tool_choice_given:
        options["tool_choice"] = choice


def _is_function(tool: Tool, name: str) -> bool:
    return isinstance(tool, FunctionTool) and tool.name == name


def _encode_text(text: TextConfig) -> dict[str, Any]:
    """`text` without what is the default."""
    told: dict[str, Any] = {}
    if text.format.type != "text":
        form = msgspec.to_builtins(text.format)
        told["format"] = {key: value for key, value in form.items() if value is not None}
    if text.verbosity is not None:
        told["verbosity"] = text.verbosity
    return told


def _add_chat_parameters(request: CreateRequest, ask: Ask, options: dict[str, Any]) -> None:
    """llama.cpp answers Responses by its chat route, whose own parameters it still reads."""
    profile = ask.profile
    text_format = request.text.format
    if text_format.type != "text":
        options["response_format"] = _encode_chat_format(text_format, profile)
    effort = request.reasoning.effort if request.reasoning is not None else None
    if effort is not None and profile.effort_field == "chat_template_kwargs":
        thinks = effort != "none"
        arguments = {"enable_thinking": thinks, **({"reasoning_effort": effort} if thinks else {})}
        options["chat_template_kwargs"] = arguments
    if profile.asks_for_parallel_calls and request.tools:
        options.setdefault("parallel_tool_calls", True)
    if profile.asks_for_progress:
        options["return_progress"] = True


def _encode_chat_format(text_format: TextFormat, profile: Profile) -> dict[str, Any]:
    if text_format.type == "json_object":
        if profile.json_object == "native":
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": _ANY_OBJECT}
    schema = {"name": text_format.name, "schema": text_format.schema, "strict": text_format.strict}
    return {"type": "json_schema", "json_schema": {k: v for k, v in schema.items() if v is not None}}


def _refuse_ignored(request: CreateRequest, quirks: Quirks, profile: Profile) -> None:
    for name in sorted(quirks.ignored):
        if _ASKED[name](request):
            raise _refuse(name, f"'{name}' has no effect", profile)
    if request.tools and request.tool_choice != "none" and profile.tools != "native":
        raise _refuse("tools", "'tools' have no effect, since its template knows none,", profile)
    if quirks.tool_types is None:
        return
    for position, tool in enumerate(request.tools):
        kind = get_tool_type(tool)
        if kind not in quirks.tool_types:
            raise _refuse(f"tools[{position}].type", f"'{kind}' tools have no effect", profile)


def _refuse(param: str, problem: str, profile: Profile) -> BackendRefusedError:
    return BackendRefusedError(
        f"Unsupported parameter: {problem} at a model of {profile.name} over its own Responses interface. Leave it "
        "out, or reach the model by the dialect chat_completions.",
        param=param,
        code="unsupported_parameter",
    )


def _to_request(ask: Ask) -> CreateRequest:
    """What the other fields of an ask say, as a request."""
    offered = list(ask.tools) if ask.tool_choice != "none" else []
    choice: ToolChoice = ask.tool_choice
    if ask.forced_tool is not None:
        choice = FunctionChoice(name=ask.forced_tool)
    request = CreateRequest(
        tools=list(offered),
        tool_choice=choice,
        tool_choice_given=bool(offered) and choice != "auto",
        parallel_tool_calls=ask.parallel_tool_calls,
        temperature=ask.temperature,
        top_p=ask.top_p,
        presence_penalty=ask.presence_penalty,
        frequency_penalty=ask.frequency_penalty,
        top_logprobs=ask.top_logprobs,
        include=(_LOGPROBS,) if ask.top_logprobs is not None else (),
        reasoning=msgspec.convert({"effort": ask.effort}, ReasoningConfig) if ask.effort else None,
        text=TextConfig(ask.text_format or TextFormat(), ask.verbosity),
    )
    return msgspec.structs.replace(request, **ask.hints)
