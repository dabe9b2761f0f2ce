"""A tool's JSON schema -> one that servers' constrained decoding takes: pure.

llama.cpp (by LLGuidance or by GBNF), Ollama and vLLM each refuse, or read wrongly, what another takes; so
only what all of them know is sent. Invariant: what is left out allows more, never less, except that
strings and lists have an end and that an object which names its properties has no others.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

#: The longest string in an argument; llama.cpp's grammars refuse longer repetitions than this.
STRING_CHARACTERS = 2_000
#: The most entries of a list in an argument.
LIST_ITEMS = 100
#: Deeper than this a schema is left open: references may name themselves.
DEPTH = 16
#: What all tools of a request may come to; what goes over it is left open. A reference is cheap to write and may
#: stand for much.
NODES = 10_000
BYTES = 1 << 20

#: What one node of a schema comes to, on the generous side.
NODE_BYTES = 64
#: Keywords by which an object may have properties that `properties` does not name.
_MORE_PROPERTIES = frozenset(
    {"allOf", "if", "then", "else", "dependentSchemas", "patternProperties", "$dynamicRef"}
)
_FORMATS = frozenset({"date", "time", "date-time", "uuid"})
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")

_Schema = dict[str, Any]


class Budget:
    """How much of schemas may still be written, over all tools of one request."""

    def __init__(self) -> None:
        self.nodes = NODES
        self.bytes = BYTES

    def is_spent(self) -> bool:
        """Whether what comes now is left open."""
        return self.nodes < 0 or self.bytes < 0

    def has_room(self, count: int) -> bool:
        """Whether so many more parts could be written."""
        return count <= self.nodes and not self.is_spent()


def loosen_parameters(parameters: Mapping[str, Any] | None, budget: Budget | None = None) -> _Schema:
    """The schema of a call's arguments; a function without parameters takes an empty object.

    `{"type":"object","properties":{"a":{"type":"string","pattern":"x+"}}}` ->
    `{"type":"object","properties":{"a":{"type":"string","maxLength":2000}},"additionalProperties":false}`
    """
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    loosened = _Loosener(parameters, budget or Budget()).loosen(parameters, 0, frozenset())
    # Arguments are an object, whatever the schema forgets to say.
    kinds = loosened.get("anyOf", [loosened])
    objects = [kind for kind in kinds if kind.get("type") == "object"]
    if not objects:
        return {"type": "object"}
    return {"anyOf": objects} if len(objects) > 1 else objects[0]


def _make_any() -> _Schema:
    """Any value. Spelled out, since llama.cpp's grammars read a schema that says nothing as an object."""
    plain: list[_Schema] = [{"type": "string", "maxLength": STRING_CHARACTERS}]
    plain += [{"type": kind} for kind in ("number", "boolean", "null", "object")]
    items = {"anyOf": [*plain, {"type": "array"}]}
    return {"anyOf": [*plain, {"type": "array", "items": items, "maxItems": LIST_ITEMS}]}


class _Loosener:
    """One walk over a schema; `root` is where its references start."""

    def __init__(self, root: Mapping[str, Any], budget: Budget) -> None:
        self._root = root
        self._budget = budget

    def loosen(self, schema: Any, depth: int, within: frozenset[str]) -> _Schema:
        """`within`: the references that lead here."""
        self._budget.nodes -= 1
        self._budget.bytes -= NODE_BYTES
        if not isinstance(schema, Mapping) or depth > DEPTH or self._budget.is_spent():
            return _make_any()
        target = schema.get("$ref")
        if isinstance(target, str):
            found = None if target in within else self._find(target)
            if found is None:
                return _make_any()
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            return self.loosen(_merge([beside, found]), depth + 1, within | {target})
        if isinstance(schema.get("allOf"), list):
            parts = self._list_parts(schema, within)
            return _make_any() if parts is None else self.loosen(_merge(parts), depth + 1, within)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            self._budget.bytes -= len(msgspec.json.encode(values))
            if self._budget.is_spent():
                return _make_any()
            return {"const": schema["const"]} if "const" in schema else {"enum": values}
        return self._loosen_kinds(schema, depth, within)

    def _list_parts(
        self, schema: Mapping[str, Any], within: frozenset[str]
    ) -> list[Mapping[str, Any]] | None:
        """A schema beside its `allOf`, then the parts of that, references followed; None where it is too much."""
        open_parts: list[Any] = [schema]
        parts: list[Mapping[str, Any]] = []
        seen = set(within)
        while open_parts:
            part = open_parts.pop(0)
            self._budget.nodes -= 1
            if not isinstance(part, Mapping):
                continue
            inner = part.get("allOf")
            if isinstance(inner, list):
                if not self._budget.has_room(len(inner)):
                    return None
                open_parts = [*inner, *open_parts]
            target = part.get("$ref")
            if isinstance(target, str) and target not in seen:
                seen.add(target)
                found = self._find(target)
                if found is None:
                    return None
                open_parts.insert(0, found)
            parts.append({key: value for key, value in part.items() if key not in ("allOf", "$ref")})
        return parts

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
        if not isinstance(choices, list) or not choices or not self._budget.has_room(len(choices)):
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
        if isinstance(named, Mapping) and not self._budget.has_room(len(named)):
            return loosened
        if isinstance(named, Mapping):
            self._budget.bytes -= sum(map(len, map(str, named)))
            loosened["properties"] = {
                str(key): self.loosen(value, depth + 1, within) for key, value in named.items()
            }
            required = schema.get("required")
            if isinstance(required, list):
                must = {key for key in required if isinstance(key, str)}
                loosened["required"] = [key for key in named if key in must]
            # Other keywords may name more properties than these.
            loosened["additionalProperties"] = _may_have_more(schema)
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


def _may_have_more(schema: Mapping[str, Any]) -> bool:
    """Whether an object may have properties that its `properties` do not name."""
    if not _MORE_PROPERTIES.isdisjoint(schema):
        return True
    choices = [*_read_list(schema, "anyOf"), *_read_list(schema, "oneOf")]
    # Choices that only say which of them are required name none.
    return any(not isinstance(choice, Mapping) or bool(choice.keys() - {"required"}) for choice in choices)


def _read_list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _merge(parts: Sequence[Mapping[str, Any]]) -> _Schema:
    """Schemas that all hold, as one; where two say different things of the same, the first holds."""
    merged: _Schema = {}
    properties: _Schema = {}
    required: dict[Any, None] = {}
    for part in parts:
        for key, value in part.items():
            if key == "properties" and isinstance(value, Mapping):
                for name, schema in value.items():
                    # The same property twice: both hold.
                    known = properties.get(name)
                    properties[name] = schema if known is None else {"allOf": [known, schema]}
            elif key == "required" and isinstance(value, list):
                required.update(dict.fromkeys(each for each in value if isinstance(each, str)))
            else:
                merged.setdefault(key, value)
    if properties:
        merged["properties"] = properties
    if required:
        merged["required"] = list(required)
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
