"""Tools for models that cannot call them: told in the system text, answered by constrained JSON. Pure.

The model is asked for `{"reply": ...}` or for `{"name": ..., "arguments": ...}`; `schema_answers` reads it.
Invariant: the text depends on the tools and the form of a reply alone, so it is the same in every round.
"""

from typing import Any

import msgspec

from antiphon.backends.chat_completions.parameters import Budget, loosen_parameters
from antiphon.backends.interface import Ask
from antiphon.protocol.requests import TextFormat
from antiphon.protocol.tools import FunctionTool

#: The most calls in one answer.
PARALLEL_CALLS = 8
#: The longest answer where the client sets no limit: JSON that a small model cannot end would fill the window.
ANSWER_TOKENS = 2_048

_encode = msgspec.json.Encoder().encode

#: Wordings matter to small models. Of some twenty that were tried, this one has the default model call the
#: fitting function in ten requests of ten, and greet in words; with milder ones it makes results up.
_INTRODUCTION = (
    "You are an assistant with functions. You cannot know, search, compute or do anything by yourself that a "
    "function does: call it.\nFunctions, one a line:"
)
_CALL_FORM = 'To call a function, answer {"name": "function name", "arguments": {...}}.'
_CALLS_FORM = "Several calls at once: a list of them."
_REPLY_FORM = 'When no function fits, or after its result, answer {"reply": "text"}.'
_JSON_REPLY_FORM = 'When no function fits, or after its result, answer {"reply": ...}, the reply being JSON'


def uses_schema(ask: Ask) -> bool:
    """Whether the answer to this ask is constrained JSON that may be a call."""
    return ask.profile.tools == "schema" and bool(ask.tools) and ask.tool_choice != "none"


def wants_json_reply(ask: Ask) -> bool:
    """Whether a reply must be JSON of the client's own form."""
    return ask.text_format is not None and ask.text_format.type != "text"


def describe_tools(ask: Ask) -> str:
    """The system text about the tools, their schemas as the client wrote them."""
    lines = [_INTRODUCTION, *map(_describe_tool, ask.tools), ""]
    forms = [_CALL_FORM, _describe_reply(ask.text_format)]
    if ask.parallel_tool_calls is not False:
        forms.append(_CALLS_FORM)
    return "\n".join([*lines, " ".join(forms)])


def _describe_reply(text_format: TextFormat | None) -> str:
    if text_format is None or text_format.type == "text":
        return _REPLY_FORM
    if text_format.schema is None:
        return f"{_JSON_REPLY_FORM}."
    return f"{_JSON_REPLY_FORM} by this schema: {_encode(text_format.schema).decode()}."


def _describe_tool(tool: FunctionTool) -> str:
    told: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        told["description"] = tool.description
    told["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return _encode(told).decode()


def build_format(ask: Ask) -> dict[str, Any]:
    """The `response_format` that lets the model do what `tool_choice` allows, and nothing else."""
    tools = [tool for tool in ask.tools if ask.forced_tool in (None, tool.name)]
    budget = Budget()
    calls = [_call_schema(tool, budget) for tool in tools]
    options = list(calls)
    definitions: dict[str, Any] = {}
    if ask.parallel_tool_calls is not False and ask.forced_tool is None:
        items = {"anyOf": calls} if len(calls) > 1 else calls[0]
        options.append({"type": "array", "items": items, "minItems": 2, "maxItems": PARALLEL_CALLS})
    if ask.tool_choice != "required":
        options.append(_object(reply=_reply_schema(ask.text_format, definitions)))
    schema: dict[str, Any] = {"anyOf": options} if len(options) > 1 else options[0]
    if definitions:
        schema = {**schema, "$defs": definitions}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _call_schema(tool: FunctionTool, budget: Budget) -> dict[str, Any]:
    return _object(name={"const": tool.name}, arguments=loosen_parameters(tool.parameters, budget))


def _reply_schema(text_format: TextFormat | None, definitions: dict[str, Any]) -> dict[str, Any]:
    """A reply is as long as it gets, like any text; the limit is the answer's."""
    if text_format is None or text_format.type == "text":
        return {"type": "string", "minLength": 1}
    schema = text_format.schema
    if schema is None:
        return {"type": "object"}
    moved = _move_references(schema)
    if moved == schema:
        return schema
    # Its references start at its own root, which is not the root any more.
    definitions["reply"] = moved
    return {"$ref": "#/$defs/reply"}


def _move_references(value: Any) -> Any:
    if isinstance(value, list):
        return [_move_references(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _move_references(entry) for key, entry in value.items()}
    target = value.get("$ref")
    if isinstance(target, str) and target.startswith("#"):
        moved["$ref"] = f"#/$defs/reply{target[1:]}"
    return moved


def _object(**properties: Any) -> dict[str, Any]:
    """An object with these properties, in this order."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
