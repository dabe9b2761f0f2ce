"""What the honest double refuses, one rule for each kind of wrong request, and the forms that it takes.

A rule has the name of the error that it is about, so that a double can be made which leaves it out. It knows no
server. Invariant: a rule raises `RequestError` that names the field, or does nothing.
"""

import difflib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from antiphon.checker.doubles.sealing import open_seal
from antiphon.protocol.errors import NotFoundError, RequestError

Item = dict[str, Any]

#: Field -> the types that it may have.
FIELDS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "input": (str, list),
    "instructions": (str,),
    "previous_response_id": (str,),
    "conversation": (str, dict),
    "store": (bool,),
    "stream": (bool,),
    "background": (bool,),
    "include": (list,),
    "tools": (list,),
    "tool_choice": (str, dict),
    "parallel_tool_calls": (bool,),
    "max_output_tokens": (int,),
    "temperature": (int, float),
    "top_p": (int, float),
    "top_logprobs": (int,),
    "metadata": (dict,),
    "truncation": (str,),
    "text": (dict,),
    "context_management": (list,),
}
#: Field -> the texts that it may hold.
VALUES: dict[str, tuple[str, ...]] = {
    "truncation": ("auto", "disabled"),
    "tool_choice": ("auto", "none", "required"),
}
INCLUDABLE: Final = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)
#: Items that the toy model is told of; the API's others are refused by their type.
TAKEN_ITEMS: Final = ("message", "function_call", "function_call_output")
#: Items that hold a window; the second name is the first one's alias.
COMPACTIONS: Final = ("compaction", "compaction_summary")
#: The item that asks for one.
TRIGGER: Final = "compaction_trigger"
#: A response that compacts needs room for it.
LEAST_COMPACTION_TOKENS: Final = 20_000
#: No prompt is compacted under so many tokens.
LEAST_THRESHOLD: Final = 1_000
#: The API's other types of items end like this, or are these.
_KNOWN_ENDS: Final = (
    "_call",
    "_output",
    "_tools",
    "_request",
    "_response",
    "_message",
    "_update",
    "_trigger",
)
_KNOWN_ITEMS: Final = ("reasoning", "compaction", "compaction_summary", "program")
_ASSISTANT_PARTS: Final = ("output_text", "refusal")
_INPUT_PARTS: Final = ("input_text", "input_image")
_OTHER_PARTS: Final = ("input_file", "input_audio", "input_video")


def invalid_value(where: str, value: Any, told: str = "") -> RequestError:
    """A value that the API does not have."""
    return RequestError(
        f"Invalid value at '{where}': '{value}'. {told}".strip(), param=where, code="invalid_value"
    )


def unsupported(where: str, what: str) -> RequestError:
    """Something of the API that this server does not do."""
    message = f"Unsupported parameter: '{where}' ({what}) is not supported here."
    return RequestError(message, param=where, code="unsupported_parameter")


def list_items(given: Any) -> list[Item]:
    """An input as items: a text is one user message."""
    if given is None:
        return []
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return [{"type": "message", **item} for item in given]


def _walk(body: dict[str, Any]) -> Iterator[tuple[str, Item]]:
    given = body.get("input")
    items = given if isinstance(given, list) else []
    for index, item in enumerate(items):
        yield f"input[{index}]", {"type": "message", **item}


def _refuse_missing(body: dict[str, Any], name: str) -> None:
    has_context = bool(body.get("previous_response_id") or body.get("conversation"))
    if name not in body and not (name == "input" and has_context):
        raise RequestError(
            f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
        )


def check_model_given(body: dict[str, Any]) -> None:
    """A request without a model."""
    _refuse_missing(body, "model")


def check_moved(body: dict[str, Any]) -> None:
    """A parameter of another API."""
    if "messages" in body and "input" not in body:
        raise RequestError(
            "Unsupported parameter: 'messages'. It is 'input' here.",
            param="messages",
            code="unsupported_parameter",
        )


def check_input_given(body: dict[str, Any]) -> None:
    """A request without input."""
    _refuse_missing(body, "input")


def check_not_empty(body: dict[str, Any]) -> None:
    """A request with nothing to answer."""
    if not body.get("input", "x") and not (body.get("previous_response_id") or body.get("conversation")):
        raise RequestError(
            'One of "input" or "previous_response_id" must be provided.', code="missing_required_parameter"
        )


def check_keys(body: dict[str, Any]) -> None:
    """The first parameter that there is not."""
    for name in body:
        if name not in FIELDS:
            raise RequestError(
                f"Unknown parameter: '{name}'.{suggest(name)}", param=name, code="unknown_parameter"
            )


def suggest(name: str) -> str:
    """Which known parameter is meant by a misspelt one."""
    near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.85)
    return f" Did you mean '{near[0]}'?" if near else ""


def check_nested_keys(body: dict[str, Any]) -> None:
    """The first unknown key in `text`."""
    for name in body.get("text") or {}:
        if name not in ("format", "verbosity"):
            raise RequestError(
                f"Unknown parameter: 'text.{name}'.", param=f"text.{name}", code="unknown_parameter"
            )


def check_types(body: dict[str, Any]) -> None:
    """The first value of a wrong type."""
    for name, types in FIELDS.items():
        value = body.get(name)
        if value is None and not (name == "input" and name in body):
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise RequestError(f"Invalid type for '{name}'.", param=name, code="invalid_type")


def check_enums(body: dict[str, Any]) -> None:
    """The first text outside its list."""
    for name, values in VALUES.items():
        value = body.get(name)
        if isinstance(value, str) and value not in values:
            raise RequestError(f"Invalid value: '{value}'.", param=name, code="invalid_value")


def check_roles(body: dict[str, Any]) -> None:
    """Messages of unknown roles."""
    for where, item in _walk(body):
        if item["type"] == "message" and item.get("role") not in ("user", "assistant", "system", "developer"):
            raise invalid_value(where, item.get("role"))


def check_item_types(body: dict[str, Any]) -> None:
    """Items of types that the API does not have."""
    for where, item in _walk(body):
        kind = str(item["type"])
        is_known = kind in TAKEN_ITEMS or kind in _KNOWN_ITEMS or kind.endswith(_KNOWN_ENDS)
        if not is_known and kind != "item_reference":
            raise invalid_value(where, kind)


def check_told_items(body: dict[str, Any]) -> None:
    """Items that the toy model cannot be told of; sealed ones that cannot be opened first."""
    for where, item in _walk(body):
        is_sealed = item["type"] in COMPACTIONS and open_seal(item.get("encrypted_content")) is not None
        if item["type"] not in (*TAKEN_ITEMS, TRIGGER, "item_reference") and not is_sealed:
            raise unsupported(where, f"items of type '{item['type']}'")


def check_seals(body: dict[str, Any]) -> None:
    """Sealed content that this server did not make."""
    for _, item in _walk(body):
        text = item.get("encrypted_content")
        if text is not None and (item["type"] not in COMPACTIONS or open_seal(text) is None):
            raise find_seal_broken(item)


def check_parts(body: dict[str, Any]) -> None:
    """Parts that a role cannot hold."""
    for where, item in _walk(body):
        content = item.get("content")
        if item["type"] != "message" or not isinstance(content, list):
            continue
        allowed = _ASSISTANT_PARTS if item.get("role") == "assistant" else (*_INPUT_PARTS, *_OTHER_PARTS)
        for index, part in enumerate(content):
            if part.get("type") not in allowed:
                raise invalid_value(f"{where}.content[{index}]", part.get("type"))


def check_told_parts(body: dict[str, Any]) -> None:
    """Parts that the toy model cannot be told of."""
    for where, item in _walk(body):
        content = item.get("content")
        for index, part in enumerate(content if isinstance(content, list) else []):
            place = f"{where}.content[{index}]"
            if part.get("type") in _OTHER_PARTS:
                raise unsupported(place, f"parts of type '{part['type']}'")
            if "file_id" in part:
                raise unsupported(f"{place}.file_id", "there are no files")


def check_ids(body: dict[str, Any]) -> None:
    """Ids with another type's prefix."""
    for where, item in _walk(body):
        item_id = item.get("id")
        if item["type"] == "message" and isinstance(item_id, str) and not item_id.startswith("msg"):
            raise invalid_value(f"{where}.id", item_id, "Expected an ID that begins with 'msg'.")


def check_repeated(body: dict[str, Any]) -> None:
    """One id twice."""
    seen: set[str] = set()
    for _, item in _walk(body):
        item_id = item.get("id")
        if isinstance(item_id, str) and item["type"] != "item_reference":
            if item_id in seen:
                raise RequestError(f"Duplicate item found with id {item_id}.", param="input")
            seen.add(item_id)


def check_include(body: dict[str, Any]) -> None:
    """Values of include that the API does not have."""
    for index, value in enumerate(body.get("include") or []):
        if value not in INCLUDABLE:
            raise invalid_value(f"include[{index}]", value)


def check_told_include(body: dict[str, Any]) -> None:
    """Values of include of which there is nothing here."""
    for index, value in enumerate(body.get("include") or []):
        raise unsupported(f"include[{index}]", str(value))


def check_budget(body: dict[str, Any]) -> None:
    """An output budget under the minimum."""
    if (body.get("max_output_tokens") or 16) < 16:
        raise RequestError(
            "Invalid 'max_output_tokens': integer below minimum value.",
            param="max_output_tokens",
            code="integer_below_min_value",
        )


def check_logprobs(body: dict[str, Any]) -> None:
    """More alternatives than there can be, and any at all, for the toy model has none."""
    if (body.get("top_logprobs") or 0) > 20:
        raise RequestError(
            "Invalid 'top_logprobs': integer above maximum value.",
            param="top_logprobs",
            code="integer_above_max_value",
        )


def check_temperature(body: dict[str, Any]) -> None:
    """A temperature over the maximum."""
    if (body.get("temperature") or 0) > 2:
        raise RequestError(
            "Invalid 'temperature': decimal above maximum value.",
            param="temperature",
            code="decimal_above_max_value",
        )


def check_pairs(body: dict[str, Any]) -> None:
    """Too much metadata."""
    if len(body.get("metadata") or {}) > 16:
        raise RequestError(
            "Invalid 'metadata': too many properties.", param="metadata", code="object_above_max_properties"
        )


def check_pair_values(body: dict[str, Any]) -> None:
    """Metadata whose values are too long."""
    for key, value in (body.get("metadata") or {}).items():
        if isinstance(value, str) and len(value) > 512:
            raise RequestError(
                f"Invalid 'metadata.{key}': string too long.",
                param=f"metadata.{key}",
                code="string_above_max_length",
            )


def check_pair_keys(body: dict[str, Any]) -> None:
    """Metadata whose keys are too long."""
    if any(len(key) > 64 for key in body.get("metadata") or {}):
        raise RequestError(
            "Invalid 'metadata': property name too long.",
            param="metadata",
            code="property_name_above_max_length",
        )


def check_tool_names(body: dict[str, Any]) -> None:
    """Tools in the Chat Completions shape."""
    for index, tool in enumerate(body.get("tools") or []):
        if tool.get("type") == "function" and "name" not in tool:
            where = f"tools[{index}].name"
            raise RequestError(
                f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter"
            )


def check_tool_types(body: dict[str, Any]) -> None:
    """Tools that this server does not have, and settings of functions that it does not know."""
    known = ("type", "name", "description", "parameters", "strict")
    for index, tool in enumerate(body.get("tools") or []):
        if tool.get("type") != "function":
            raise unsupported(f"tools[{index}].type", f"'{tool.get('type')}' tools")
        for key in tool:
            if key not in known and key != "function":
                raise unsupported(f"tools[{index}].{key}", "of a function")


def check_tool_parameters(body: dict[str, Any]) -> None:
    """Functions whose parameters are no object."""
    for index, tool in enumerate(body.get("tools") or []):
        if (
            tool.get("type") == "function"
            and (tool.get("parameters") or {}).get("type", "object") != "object"
        ):
            raise RequestError(
                f"Invalid schema for function '{tool.get('name')}'.",
                param=f"tools[{index}].parameters",
                code="invalid_function_parameters",
            )


def check_schema(body: dict[str, Any]) -> None:
    """A schema of text.format that is none."""
    chosen = (body.get("text") or {}).get("format") or {}
    if "schema" in chosen and not isinstance(chosen["schema"], dict):
        raise RequestError(
            "Invalid schema at 'text.format.schema'.", param="text.format.schema", code="invalid_json_schema"
        )


def check_choice(body: dict[str, Any]) -> None:
    """A choice of a tool that is not declared."""
    choice = body.get("tool_choice")
    declared = [tool.get("name") for tool in body.get("tools") or []]
    if isinstance(choice, dict) and choice.get("type") == "function" and choice.get("name") not in declared:
        raise invalid_value("tool_choice", choice.get("name"))


def check_context(body: dict[str, Any]) -> None:
    """Two things to continue at once."""
    if body.get("previous_response_id") is not None and body.get("conversation") is not None:
        raise RequestError(
            "Only one of 'previous_response_id' and 'conversation' can be given.",
            code="mutually_exclusive_parameters",
        )


def check_background(body: dict[str, Any]) -> None:
    """Background work that is not stored."""
    if body.get("background") and body.get("store") is False:
        raise RequestError("'background' needs 'store'.", param="background", code="invalid_value")


def check_triggers(body: dict[str, Any]) -> None:
    """More than one trigger."""
    if len(_find_triggers(body)) > 1:
        message = f"Only one '{TRIGGER}' item may be provided."
        raise RequestError(message, param="input", code="invalid_value")


def check_trigger_place(body: dict[str, Any]) -> None:
    """A trigger before other items."""
    if _find_triggers(body) and not is_triggered(body):
        message = f"The '{TRIGGER}' item must be the final input item."
        raise RequestError(message, param="input", code="invalid_value")


def check_trigger_budget(body: dict[str, Any]) -> None:
    """A trigger with too small an output budget."""
    if _find_triggers(body) and (body.get("max_output_tokens") or LEAST_COMPACTION_TOKENS) < (
        LEAST_COMPACTION_TOKENS
    ):
        raise RequestError(
            f"'{TRIGGER}' requires 'max_output_tokens' to be at least {LEAST_COMPACTION_TOKENS} when specified.",
            param="max_output_tokens",
            code="invalid_value",
        )


def _find_triggers(body: dict[str, Any]) -> list[str]:
    return [where for where, item in _walk(body) if item["type"] == TRIGGER]


def is_triggered(body: dict[str, Any]) -> bool:
    """Whether the last item asks for a compaction."""
    return [item["type"] for _, item in _walk(body)][-1:] == [TRIGGER]


def check_context_type(body: dict[str, Any]) -> None:
    """A way to manage the context that there is not."""
    for entry in body.get("context_management") or []:
        if entry.get("type", "compaction") != "compaction":
            message = f"Unsupported context_management type: '{entry['type']}'."
            raise RequestError(message, param="context_management")


def check_context_shape(body: dict[str, Any]) -> None:
    """No way to manage the context, one without its type, and one with a key that there is not."""
    where = "context_management"
    if body.get(where) == []:
        raise RequestError(f"Invalid '{where}': empty array.", param=where, code="empty_array")
    for index, entry in enumerate(body.get(where) or []):
        if "type" not in entry:
            raise RequestError(
                f"Missing required parameter: '{where}[{index}].type'.",
                param=f"{where}[{index}].type",
                code="missing_required_parameter",
            )
        for name in entry:
            if name not in ("type", "compact_threshold"):
                name = f"{where}[{index}].{name}"
                raise RequestError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def check_threshold(body: dict[str, Any]) -> None:
    """A threshold that is no whole number, or too small."""
    for index, entry in enumerate(body.get("context_management") or []):
        where, limit = f"context_management[{index}].compact_threshold", entry.get("compact_threshold")
        if limit is None:
            continue
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise RequestError(f"Invalid type for '{where}'.", param=where, code="invalid_type")
        if limit < LEAST_THRESHOLD:
            raise RequestError(
                f"Invalid '{where}': integer below minimum value. Expected a value >= {LEAST_THRESHOLD}, "
                f"but got {limit} instead.",
                param=where,
                code="integer_below_min_value",
            )


Rule = Callable[[dict[str, Any]], None]
#: Every rule, in the order in which they are walked.
RULES: dict[str, Rule] = {
    "missing_model": check_model_given,
    "unsupported_parameter": check_moved,
    "missing_input": check_input_given,
    "unknown_parameter": check_keys,
    "unknown_nested_parameter": check_nested_keys,
    "invalid_type": check_types,
    "invalid_value": check_enums,
    "empty_input": check_not_empty,
    "invalid_role": check_roles,
    "invalid_item_type": check_item_types,
    "invalid_encrypted_content": check_seals,
    "told_items": check_told_items,
    "invalid_part": check_parts,
    "told_parts": check_told_parts,
    "invalid_item_id": check_ids,
    "duplicate_item": check_repeated,
    "invalid_include": check_include,
    "told_include": check_told_include,
    "integer_below_min_value": check_budget,
    "integer_above_max_value": check_logprobs,
    "decimal_above_max_value": check_temperature,
    "object_above_max_properties": check_pairs,
    "string_above_max_length": check_pair_values,
    "property_name_above_max_length": check_pair_keys,
    "missing_tool_name": check_tool_names,
    "told_tools": check_tool_types,
    "invalid_function_parameters": check_tool_parameters,
    "invalid_json_schema": check_schema,
    "unknown_tool_choice": check_choice,
    "mutually_exclusive_parameters": check_context,
    "background": check_background,
    "triggers": check_triggers,
    "trigger_place": check_trigger_place,
    "trigger_budget": check_trigger_budget,
    "context_type": check_context_type,
    "context_shape": check_context_shape,
    "context_threshold": check_threshold,
}


def fill_schema(schema: Any) -> str:
    """JSON that fits a flat schema: the first value of each list, true for the rest."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    filled = {name: (rule.get("enum") or [True])[0] for name, rule in properties.items()}
    return msgspec.json.encode(filled).decode()


def find_seal_broken(item: Item) -> RequestError:
    """The answer to sealed content that cannot be opened."""
    return RequestError(
        f"The encrypted content for item {item.get('id')} could not be verified. Reason: Encrypted content could "
        "not be decrypted or parsed.",
        code="invalid_encrypted_content",
    )


def find_item_missing(item_id: Any) -> NotFoundError:
    """The answer to a reference to an item that there is not."""
    return NotFoundError(f"Item with id '{item_id}' not found.", param="input")
