"""`POST /v1/responses/input_tokens` as data: the fields of a create request that make a prompt, and no other.

They are read and checked as there. It knows no counts. Invariant: whatever is taken here changes the prompt that is
counted, or is checked against it.
"""

from typing import Any, Final

import msgspec

from antiphon.protocol import checks
from antiphon.protocol.errors import RequestError
from antiphon.protocol.request_schema import describe_create_request
from antiphon.protocol.requests import CreateRequest, check_known, check_together, read_fields

#: The fields, in the API's order.
COUNT_FIELDS: Final = (
    "model",
    "input",
    "previous_response_id",
    "conversation",
    "tools",
    "tool_choice",
    "text",
    "parallel_tool_calls",
    "reasoning",
    "truncation",
    "instructions",
    "personality",
)
_NULL: Final = b"null"


def decode_count_request(body: bytes) -> CreateRequest:
    """Decode and check a body; raises `RequestError` in the words and the order of a create request."""
    raws = checks.decode_body(body)
    if not _is_given(raws, "model"):
        # A prompt is told and counted by a model's own server.
        raise checks.missing_parameter("model")
    check_known(raws, COUNT_FIELDS)
    if not any(_is_given(raws, name) for name in ("input", "previous_response_id", "conversation")):
        raise checks.missing_parameter("input")
    personality = raws.pop("personality", None)
    request = CreateRequest(**read_fields(raws))
    _refuse_personality(personality)
    request.tool_choice_given = _is_given(raws, "tool_choice")
    check_together(request)
    return request


def describe_count_request(ref_template: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the body, and the components of a create request, which it refers to by `ref_template`."""
    create, components = describe_create_request(ref_template)
    properties = {name: create["properties"][name] for name in COUNT_FIELDS if name in create["properties"]}
    properties["personality"] = {"type": "null", "description": "Refused: no model here has a personality."}
    return {**create, "properties": properties, "required": ["model"]}, components


def _is_given(raws: dict[str, msgspec.Raw], name: str) -> bool:
    return name in raws and bytes(raws[name]) != _NULL


def _refuse_personality(raw: msgspec.Raw | None) -> None:
    """A personality is a text of the vendor's that only the vendor can put into a prompt and count."""
    if raw is None or bytes(raw) == _NULL:
        return
    checks.check_value(raw, "personality")
    value = msgspec.json.decode(raw)
    if not isinstance(value, str):
        raise checks.invalid_type("personality", "a string", value)
    raise RequestError(
        "Unsupported parameter: 'personality' has no meaning for the models of this server. "
        "Put what it should say into 'instructions'.",
        param="personality",
        code="unsupported_parameter",
    )
