"""The JSON Schema of a create request, from the same table that checks it. It knows no server.

Invariant: a field that `decode_create_request` knows stands here, and no other.
"""

from typing import Any

import msgspec

from antiphon.protocol.items import KnownItem
from antiphon.protocol.requests import FIELDS
from antiphon.protocol.tools import Tool

#: Fields that are read by a function of their own, with the type that says what they take.
_OWN_SHAPES: dict[str, Any] = {"input": str | list[KnownItem], "tools": list[Tool]}


def describe_create_request(ref_template: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of the body, and the components that it refers to by `ref_template` (`.../{name}`)."""
    shapes = [_OWN_SHAPES.get(name, rule.shape) for name, rule in FIELDS.items()]
    schemas, components = msgspec.json.schema_components(shapes, ref_template=ref_template)
    properties = dict(zip(FIELDS, schemas, strict=True))
    body = {
        "type": "object",
        "properties": properties,
        "required": ["model"],
        "additionalProperties": False,
    }
    return body, components
