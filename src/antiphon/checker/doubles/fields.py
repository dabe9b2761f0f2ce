"""The fields of a request as the honest double checks them: a small table, and the walks over it.

It knows the API's names and types, and no server.
"""

from typing import Any

import msgspec

from antiphon.protocol.errors import RequestError

#: Field -> the types that it may have.
FIELDS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "input": (str, list),
    "instructions": (str,),
    "previous_response_id": (str,),
    "store": (bool,),
    "stream": (bool,),
    "tools": (list,),
    "tool_choice": (str, dict),
    "parallel_tool_calls": (bool,),
    "max_output_tokens": (int,),
    "temperature": (int, float),
    "top_p": (int, float),
    "metadata": (dict,),
    "truncation": (str,),
    "text": (dict,),
    "reasoning": (dict,),
    "include": (list,),
}
#: Field -> the texts that it may hold.
VALUES: dict[str, tuple[str, ...]] = {
    "truncation": ("auto", "disabled"),
    "tool_choice": ("auto", "none", "required"),
}


def check_required(body: dict[str, Any]) -> None:
    """Raise for a request without model, or without input and anything to continue."""
    for name in ("model", "input"):
        if name not in body and not (name == "input" and body.get("previous_response_id")):
            raise RequestError(
                f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
            )
    if not body.get("input", "x") and not body.get("previous_response_id"):
        raise RequestError(
            'One of "input" or "previous_response_id" must be provided.', code="missing_required_parameter"
        )


def check_known(body: dict[str, Any]) -> None:
    """Raise for the first parameter that there is not."""
    for name in body:
        if name not in FIELDS:
            raise RequestError(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")


def check_values(body: dict[str, Any]) -> None:
    """Raise for the first value of a wrong type or outside its list."""
    for name, types in FIELDS.items():
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise RequestError(f"Invalid type for '{name}'.", param=name, code="invalid_type")
        if name in VALUES and isinstance(value, str) and value not in VALUES[name]:
            raise RequestError(f"Invalid value: '{value}'.", param=name, code="invalid_value")


def fill_schema(schema: dict[str, Any]) -> str:
    """JSON that fits a flat schema: the first value of each list, true for the rest."""
    properties = schema.get("properties", {})
    filled = {name: (rule.get("enum") or [True])[0] for name, rule in properties.items()}
    return msgspec.json.encode(filled).decode()
