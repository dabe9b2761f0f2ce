"""An ask -> the body of a Chat Completions request: pure.

Order of the prompt: tools, system text, transcript; for a model that cannot call tools they are part of
the system text. Invariant: a parameter that the client left out is
not sent, so the server's own default holds.
"""

from typing import Any

import msgspec

from antiphon.backends.chat_completions.schema_tools import (
    ANSWER_TOKENS,
    build_format,
    describe_tools,
    uses_schema,
)
from antiphon.backends.chat_completions.transcript import encode_system
from antiphon.backends.interface import Ask
from antiphon.protocol.requests import TextFormat
from antiphon.protocol.tools import FunctionTool

_encode = msgspec.json.Encoder().encode
_ANY_OBJECT: dict[str, Any] = {"name": "object", "schema": {"type": "object"}}


def encode_request(ask: Ask) -> bytes:
    """The whole body; always streaming."""
    options = _encode(_encode_options(ask))
    return _encode_prompt(ask, b',"stream":true' + (b"," if len(options) > 2 else b"") + options[1:])


def encode_count(ask: Ask) -> bytes:
    """The body of a count request: what the prompt is made of, nothing else."""
    if ask.effort is None or ask.profile.effort_field != "chat_template_kwargs":
        return _encode_prompt(ask, b"}")
    return _encode_prompt(ask, b',"chat_template_kwargs":' + _encode(_template_arguments(ask.effort)) + b"}")


def _encode_prompt(ask: Ask, tail: bytes) -> bytes:
    """Model, tools and messages, then `tail`. A long transcript is copied once, by the one join."""
    head = b'{"model":' + _encode(ask.model)
    system = ask.system
    if uses_schema(ask):
        system = f"{describe_tools(ask)}\n\n{system}" if system else describe_tools(ask)
    elif ask.tools and ask.tool_choice != "none":
        head += b',"tools":' + _encode([_encode_tool(tool) for tool in _offered(ask)])
    messages = [encode_system(system)] if system else []
    messages.extend(ask.transcript)
    head += b',"messages":['
    if not messages:
        return head + b"]" + tail
    messages[0] = head + messages[0]
    messages[-1] += b"]" + tail
    return b",".join(messages)


def _offered(ask: Ask) -> list[FunctionTool]:
    """A server that takes only the word `required` is forced to one tool by being offered no other."""
    if ask.forced_tool is None or ask.profile.tool_choice == "named":
        return list(ask.tools)
    return [tool for tool in ask.tools if tool.name == ask.forced_tool]


def _encode_tool(tool: FunctionTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _encode_options(ask: Ask) -> dict[str, Any]:
    profile = ask.profile
    options: dict[str, Any] = {}
    if profile.stream_usage:
        options["stream_options"] = {"include_usage": True}
    if profile.asks_for_progress:
        options["return_progress"] = True
    if uses_schema(ask):
        options["response_format"] = build_format(ask)
    elif ask.tools and ask.tool_choice != "none":
        _encode_tool_choice(ask, options)
    limit = ask.max_output_tokens if ask.max_output_tokens is not None else _limit_answer(ask)
    if limit is not None:
        options[profile.max_tokens_field] = limit
    for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        value = getattr(ask, name)
        if value is not None:
            options[name] = value
    if ask.top_logprobs is not None:
        options["logprobs"] = True
        # llama.cpp tells nothing at all when it is asked for no alternatives; the decoder cuts them off.
        options["top_logprobs"] = max(ask.top_logprobs, 1)
    if "response_format" not in options and ask.text_format is not None and ask.text_format.type != "text":
        options["response_format"] = _encode_format(ask.text_format, ask)
    if ask.verbosity is not None:
        options["verbosity"] = ask.verbosity
    if ask.effort is not None:
        _encode_effort(ask.effort, ask, options)
    options.update(ask.hints)
    return options


def _limit_answer(ask: Ask) -> int | None:
    """A limit of ours where the client set none; a server that refuses what its window cannot hold gets none."""
    if not uses_schema(ask) or ask.profile.refuses_large_limits:
        return None
    return ANSWER_TOKENS


def _encode_tool_choice(ask: Ask, options: dict[str, Any]) -> None:
    if ask.forced_tool is not None and ask.profile.tool_choice == "named":
        options["tool_choice"] = {"type": "function", "function": {"name": ask.forced_tool}}
    elif ask.forced_tool is not None or ask.tool_choice == "required":
        options["tool_choice"] = "required"
    if ask.parallel_tool_calls is not None:
        options["parallel_tool_calls"] = ask.parallel_tool_calls
    elif ask.profile.asks_for_parallel_calls:
        options["parallel_tool_calls"] = True


def _encode_effort(effort: str, ask: Ask, options: dict[str, Any]) -> None:
    if ask.profile.effort_field == "reasoning_effort":
        options["reasoning_effort"] = effort
        return
    options["chat_template_kwargs"] = _template_arguments(effort)


def _template_arguments(effort: str) -> dict[str, Any]:
    """llama.cpp hands these to the model's template."""
    if effort == "none":
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": effort}


def _encode_format(text_format: TextFormat, ask: Ask) -> dict[str, Any]:
    if text_format.type == "json_object":
        if ask.profile.json_object == "native":
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": _ANY_OBJECT}
    schema: dict[str, Any] = {"name": text_format.name, "schema": text_format.schema}
    if text_format.description is not None:
        schema["description"] = text_format.description
    if text_format.strict is not None:
        schema["strict"] = text_format.strict
    return {"type": "json_schema", "json_schema": schema}
