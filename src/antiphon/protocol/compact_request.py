"""`POST /v1/responses/compact` as data: the fields of a create request that say what is compacted, and by whom.

They are read and checked as there. It knows no windows. Invariant: what comes out is a request of which nothing is
stored or streamed; only its window is wanted.
"""

from typing import Any, Final

import msgspec

from antiphon.protocol import checks
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item
from antiphon.protocol.request_schema import describe_create_request
from antiphon.protocol.requests import CreateRequest, check_known, read_fields

#: The API's fields, in its order, and of a create request those that a client sends along so that the model that
#: writes the summary sees the prompt that it saw before.
COMPACT_FIELDS: Final = (
    "model",
    "input",
    "previous_response_id",
    "instructions",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "service_tier",
    "image",
    "tools",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "antiphon",
)
_NULL: Final = b"null"


def decode_compact_request(body: bytes) -> CreateRequest:
    """Decode and check a body; raises `RequestError` in the words and the order of a create request."""
    raws = {name: raw for name, raw in checks.decode_body(body).items() if not _is_null_input(name, raw)}
    if bytes(raws.get("model", _NULL)) in (_NULL, b'""'):
        raise checks.missing_parameter("model")
    if not any(_is_given(raws, name) for name in ("input", "previous_response_id", "messages")):
        raise checks.missing_parameter("input")
    check_known(raws, COMPACT_FIELDS)
    request = CreateRequest(**read_fields(raws), store=False)
    _refuse_trigger(request.input)
    if not request.input and not request.previous_response_id:
        raise RequestError(
            'One of "input" or "previous_response_id" must be provided.', code="missing_required_parameter"
        )
    return request


def describe_compact_request(ref_template: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the body, and the components of a create request, which it refers to by `ref_template`."""
    create, components = describe_create_request(ref_template)
    properties = {name: create["properties"][name] for name in COMPACT_FIELDS}
    return {**create, "properties": properties, "required": ["model"]}, components


def _is_given(raws: dict[str, msgspec.Raw], name: str) -> bool:
    return name in raws and bytes(raws[name]) != _NULL


def _is_null_input(name: str, raw: msgspec.Raw) -> bool:
    """Here alone the API's clients may send `input` as null, which is to leave it out."""
    return name == "input" and bytes(raw) == _NULL


def _refuse_trigger(items: list[Item]) -> None:
    """A trigger asks another route for what this one does anyway; with both it would be unclear where a window ends."""
    for position, item in enumerate(items):
        if item.type == "compaction_trigger":
            raise RequestError(
                f"Invalid value: 'compaction_trigger' at 'input[{position}]'. This endpoint compacts the whole window "
                "without it: leave the item out, or send it to POST /v1/responses.",
                param=f"input[{position}]",
                code="invalid_value",
            )
