"""A tool's JSON schema -> one that servers' constrained decoding takes: pure.

llama.cpp (by LLGuidance or by GBNF), Ollama and vLLM each refuse, or read wrongly, what another takes; so
only what all of them know is sent. Invariant: what is left out allows more, never less, except that
strings and lists have an end and that an object which names its properties has no others.
"""

from collections.abc import Mapping
from typing import Any

#: The longest string in an argument; llama.cpp's grammars refuse longer repetitions than this.
STRING_CHARACTERS = 2_000
#: The most entries of a list in an argument.
LIST_ITEMS = 100
#: Deeper, or more, than this of one schema is left open: references may name themselves.
DEPTH = 16
NODES = 2_000

_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

_Schema = dict[str, Any]


def loosen_parameters(parameters: Mapping[str, Any] | None) -> _Schema:
    """The schema of a call's arguments; a function without parameters takes an empty object.

    `{"type":"object","properties":{"a":{"type":"string","pattern":"x+"}}}` ->
    `{"type":"object","properties":{"a":{"type":"string","maxLength":2000}},"additionalProperties":false}`
    """
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    loosened = _Loosener(parameters).loosen(parameters, 0, frozenset())
    # Arguments are an object, whatever the schema forgets to say.
    return loosened if loosened.get("type") == "object" or "anyOf" in loosened else {"type": "object"}


def _make_any() -> _Schema:
    """Any value. Spelled out, since llama.cpp's grammars read a schema that says nothing as an object."""
    plain: list[_Schema] = [{"type": "string", "maxLength": STRING_CHARACTERS}]
    plain += [{"type": kind} for kind in ("number", "boolean", "null", "object")]
    items = {"anyOf": [*plain, {"type": "array"}]}
    return {"anyOf": [*plain, {"type": "array", "items": items, "maxItems": LIST_ITEMS}]}


class _Loosener:
    """One walk over a schema; `root` is where its references start."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._nodes_left = NODES

    def loosen(self, schema: Any, depth: int, within: frozenset[str]) -> _Schema:
        """`within`: the references that lead here."""
        self._nodes_left -= 1
        if not isinstance(schema, Mapping) or depth > DEPTH or self._nodes_left < 0:
            return _make_any()
        target = schema.get("$ref")
        if isinstance(target, str):
            found = None if target in within else self._find(target)
            if found is None:
                return _make_any()
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            return self.loosen({**found, **beside}, depth + 1, within | {target})
        if isinstance(schema.get("allOf"), list):
            return self.loosen(_merge_all(schema), depth + 1, within)
        if "const" in schema:
            return {"const": schema["const"]}
        values = schema.get("enum")
        if isinstance(values, list) and values:
            return {"enum": values}
        return self._loosen_kinds(schema, depth, within)

    def _find(self, target: str) -> Mapping[str, Any] | None:
        """What a reference inside this schema names."""
        if not target.startswith("#"):
            return None
        found: Any = self._root
        for part in target[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and key in found:
                found = found[key]
            elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            else:
                return None
        return found if isinstance(found, Mapping) else None

    def _loosen_kinds(self, schema: Mapping[str, Any], depth: int, within: frozenset[str]) -> _Schema:
        kinds = _read_kinds(schema)
        if len(kinds) == 1:
            return self._loosen_kind(kinds[0], schema, depth, within)
        if kinds:
            return {"anyOf": [self._loosen_kind(kind, schema, depth, within) for kind in kinds]}
        choices = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(choices, list) or not choices:
            return _make_any()
        loosened = [self.loosen(choice, depth + 1, within) for choice in choices]
        return {"anyOf": loosened} if len(loosened) > 1 else loosened[0]

    def _loosen_kind(
        self, kind: str, schema: Mapping[str, Any], depth: int, within: frozenset[str]
    ) -> _Schema:
        if kind == "object":
            return self._loosen_object(schema, depth, within)
        if kind == "array":
            return self._loosen_list(schema, depth, within)
        if kind == "string":
            return _loosen_string(schema)
        if kind == "integer":
            return {"type": "integer", **_read_range(schema)}
        return {"type": kind}

    def _loosen_object(self, schema: Mapping[str, Any], depth: int, within: frozenset[str]) -> _Schema:
        named = schema.get("properties")
        others = schema.get("additionalProperties")
        loosened: _Schema = {"type": "object"}
        if isinstance(named, Mapping):
            loosened["properties"] = {
                str(key): self.loosen(value, depth + 1, within) for key, value in named.items()
            }
            required = schema.get("required")
            if isinstance(required, list):
                loosened["required"] = [key for key in named if key in required]
            loosened["additionalProperties"] = False
        if isinstance(others, Mapping) and others:
            loosened["additionalProperties"] = self.loosen(others, depth + 1, within)
        elif others is True or "patternProperties" in schema:
            loosened["additionalProperties"] = True
        elif others is False and not isinstance(named, Mapping):
            loosened.update({"properties": {}, "additionalProperties": False})
        return loosened

    def _loosen_list(self, schema: Mapping[str, Any], depth: int, within: frozenset[str]) -> _Schema:
        # The entries of a tuple each have a schema; together they are what an entry may be.
        items = schema.get("prefixItems") or schema.get("items")
        if isinstance(items, list) and items:
            items = {
                "anyOf": [*items, *([schema["items"]] if isinstance(schema.get("items"), Mapping) else [])]
            }
        least = min(_read_count(schema, "minItems") or 0, LIST_ITEMS)
        most = min(_read_count(schema, "maxItems", LIST_ITEMS), LIST_ITEMS)
        loosened: _Schema = {"type": "array", "items": self.loosen(items, depth + 1, within)}
        if 0 < least <= most:
            loosened["minItems"] = least
        loosened["maxItems"] = most
        return loosened


def _merge_all(schema: Mapping[str, Any]) -> _Schema:
    """A schema and its list `allOf` as one schema; where two say different things, the first holds."""
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in schema["allOf"]:
        if not isinstance(part, Mapping):
            continue
        for key, value in part.items():
            before = merged.get(key)
            if isinstance(before, Mapping) and isinstance(value, Mapping) and key == "properties":
                merged[key] = {**value, **before}
            elif isinstance(before, list) and isinstance(value, list) and key == "required":
                merged[key] = [*before, *value]
            else:
                merged.setdefault(key, value)
    return merged


def _read_kinds(schema: Mapping[str, Any]) -> list[str]:
    """The types that a schema names, or that its keywords tell."""
    told = schema.get("type")
    kinds = [kind for kind in (told if isinstance(told, list) else [told]) if kind in _TYPES]
    if kinds or told is not None:
        return kinds
    if "properties" in schema or "additionalProperties" in schema:
        return ["object"]
    return ["array"] if "items" in schema or "prefixItems" in schema else []


def _loosen_string(schema: Mapping[str, Any]) -> _Schema:
    form = schema.get("format")
    if isinstance(form, str) and form in _FORMATS:
        return {"type": "string", "format": form}
    most = min(_read_count(schema, "maxLength", STRING_CHARACTERS), STRING_CHARACTERS)
    least = _read_count(schema, "minLength", 0)
    loosened: _Schema = {"type": "string"}
    if 0 < least <= most:
        loosened["minLength"] = least
    return {**loosened, "maxLength": most}


def _read_range(schema: Mapping[str, Any]) -> _Schema:
    """The bounds of an integer, inclusive ones."""
    lows = [_read_integer(schema, "minimum"), _read_integer(schema, "exclusiveMinimum", 1)]
    highs = [_read_integer(schema, "maximum"), _read_integer(schema, "exclusiveMaximum", -1)]
    low = max((value for value in lows if value is not None), default=None)
    high = min((value for value in highs if value is not None), default=None)
    if low is not None and high is not None and low > high:
        return {}
    bounds = {"minimum": low, "maximum": high}
    return {key: value for key, value in bounds.items() if value is not None}


def _read_integer(schema: Mapping[str, Any], key: str, beyond: int = 0) -> int | None:
    value = schema.get(key)
    return value + beyond if isinstance(value, int) and not isinstance(value, bool) else None


def _read_count(schema: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = schema.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
