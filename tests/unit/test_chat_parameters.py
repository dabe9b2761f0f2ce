"""A tool's JSON schema -> one that every server's constrained decoding takes: a table, and what always holds."""

from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends.chat_completions.parameters import LIST_ITEMS, STRING_CHARACTERS, loosen_parameters

STRING = {"type": "string", "maxLength": STRING_CHARACTERS}
PLAIN: list[Any] = [STRING, *({"type": kind} for kind in ("number", "boolean", "null", "object"))]
ANY = {
    "anyOf": [
        *PLAIN,
        {"type": "array", "items": {"anyOf": [*PLAIN, {"type": "array"}]}, "maxItems": LIST_ITEMS},
    ]
}
#: All that is ever sent.
KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "minLength"),
    *("maxLength", "minimum", "maximum", "enum", "const", "anyOf", "format"),
}


def closed(*required: str, **properties: Any) -> dict[str, Any]:
    """An object with these properties alone."""
    told: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**told, "required": list(required)} if required else told


def loosen_one(schema: Any, **beside: Any) -> Any:
    """What becomes of the schema of one parameter."""
    parameters = {"type": "object", "properties": {"x": schema}, **beside}
    return loosen_parameters(parameters)["properties"]["x"]


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": "string", "description": "d", "title": "t", "default": "x", "examples": ["x"]}, STRING),
        ({"type": "string", "pattern": "^(?=x)x+$"}, STRING),
        ({"type": "string", "format": "uri"}, STRING),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        (
            {"type": "string", "minLength": 2, "maxLength": 5},
            {"type": "string", "minLength": 2, "maxLength": 5},
        ),
        ({"type": "string", "maxLength": 10**6}, STRING),
        ({"type": "string", "minLength": 10**6}, STRING),
        ({"type": "string", "enum": ["a", "b"]}, {"enum": ["a", "b"]}),
        ({"const": None}, {"const": None}),
        (
            {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
            {"type": "integer", "minimum": 1, "maximum": 8},
        ),
        ({"type": "integer", "minimum": 9, "maximum": 1, "multipleOf": 3}, {"type": "integer"}),
        ({"type": "number", "minimum": 0.5}, {"type": "number"}),
        ({"type": ["string", "null"]}, {"anyOf": [STRING, {"type": "null"}]}),
        (
            {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
            {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        ),
        ({"anyOf": [{"type": "null"}]}, {"type": "null"}),
        ({"type": "array"}, {"type": "array", "items": ANY, "maxItems": LIST_ITEMS}),
        (
            {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3, "uniqueItems": True},
            {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
        ),
        (
            {"prefixItems": [{"type": "null"}, {"type": "boolean"}]},
            {
                "type": "array",
                "items": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
                "maxItems": LIST_ITEMS,
            },
        ),
        ({"type": "object"}, {"type": "object"}),
        ({"type": "object", "additionalProperties": False}, closed()),
        (
            {"type": "object", "additionalProperties": {"type": "null"}},
            {"type": "object", "additionalProperties": {"type": "null"}},
        ),
        (
            {"properties": {"a": {"type": "null"}}, "required": ["a", "b"], "patternProperties": {"^x": {}}},
            {
                "type": "object",
                "properties": {"a": {"type": "null"}},
                "required": ["a"],
                "additionalProperties": True,
            },
        ),
        # Grammars of llama.cpp read either part of this alone.
        (
            {"properties": {"a": {"type": "null"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            closed(a={"type": "null"}),
        ),
        (
            {
                "allOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]}],
                "properties": {"b": True},
            },
            closed("a", a={"type": "null"}, b=ANY),
        ),
        ({"not": {"type": "string"}}, ANY),
        ({"type": "string", "if": {"const": "a"}, "then": {}}, STRING),
        ({"type": "file"}, ANY),
        ({"enum": []}, ANY),
        ({}, ANY),
        (True, ANY),
    ],
)
def test_a_parameter_is_told_in_what_every_server_takes(schema: Any, sent: Any) -> None:
    """llama.cpp's LLGuidance and GBNF, Ollama, vLLM: what they document as supported, and what they misread."""
    if "anyOf" in sent and sent is not ANY:
        sent = {"anyOf": list(sent["anyOf"])}
    assert loosen_one(schema) == sent


@pytest.mark.parametrize(
    ("parameters", "sent"),
    [
        (None, closed()),
        ({}, closed()),
        ({"type": "object", "properties": {}}, closed()),
        ({"type": "string"}, {"type": "object"}),
        ({"anyOf": [{"type": "null"}]}, {"type": "object"}),
    ],
)
def test_arguments_are_an_object(parameters: Any, sent: Any) -> None:
    """Ours: whatever the tool's schema says."""
    assert loosen_parameters(parameters) == sent


def test_references_are_resolved_and_those_without_end_left_open() -> None:
    """JSON Schema 8.2.3; the tool's root is not the root of what is sent."""
    definitions = {
        "$defs": {"a/b": {"type": "null"}, "Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}},
        "definitions": {"List": [{"type": "boolean"}]},
    }
    for schema, sent in (
        ({"$ref": "#/$defs/a~1b", "description": "d"}, {"type": "null"}),
        ({"allOf": [{"$ref": "#/$defs/a~1b"}]}, {"type": "null"}),
        ({"$ref": "#/definitions/List/0"}, {"type": "boolean"}),
        ({"$ref": "#/$defs/Node"}, closed(next=ANY)),
        ({"$ref": "#/$defs/None"}, ANY),
        ({"$ref": "https://example.org/schema"}, ANY),
    ):
        assert loosen_one(schema, **definitions) == sent


def test_a_schema_that_multiplies_is_left_open_at_some_size() -> None:
    """Ours: twenty levels of two references each would be a million copies."""
    definitions = {
        str(level): {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/{level + 1}"} for side in ("a", "b")},
        }
        for level in range(20)
    }
    sent = loosen_parameters(
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/0"}}, "$defs": definitions}
    )
    assert len(msgspec.json.encode(sent)) < 3_000_000


SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=2)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *sorted(KEYWORDS),
                    "$ref",
                    "allOf",
                    "oneOf",
                    "prefixItems",
                    "not",
                    "pattern",
                    "exclusiveMinimum",
                ]
            ),
            inner | st.sampled_from(["string", "object", "array", "integer", "#", "#/properties"]),
            max_size=5,
        )
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.text("ab", max_size=1), ANYTHING, max_size=3))
def test_whatever_a_client_sends_becomes_a_valid_schema(properties: Any) -> None:
    """Ours: a tool that cannot be expressed must not make the server refuse the request."""
    sent = loosen_parameters({"type": "object", "properties": properties})
    jsonschema.Draft202012Validator.check_schema(sent)
    assert keywords(sent) <= KEYWORDS
    assert sent["type"] == "object"


def keywords(schema: Any) -> set[str]:
    """All keywords of a schema, wherever a schema may stand in it."""
    if not isinstance(schema, dict):
        return set()
    found = set(schema)
    for inner in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        found |= keywords(inner)
    return found | keywords(schema.get("items")) | keywords(schema.get("additionalProperties"))
