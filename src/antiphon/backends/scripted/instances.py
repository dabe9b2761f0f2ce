"""A small value that fits a JSON schema, filled from a text where that makes sense.

Pure and deterministic. It follows const, default, examples, enum, type, required, bounds, items, $ref
and the `...Of` keys; a `pattern` is not solved. Invariants: only required properties are given; a keyword whose value
has another form than JSON Schema gives it says nothing, and no schema makes a value of any size.
"""

import math
import re
from typing import Any, NamedTuple

#: How far references are followed before a value is left empty.
MAX_DEPTH = 32
#: The most members of a list, and characters that a text is filled up to.
MAX_MEMBERS = 1_000
MAX_CHARACTERS = 100_000

#: What the values of keywords are; of others any value will do.
_FORMS: dict[str, type | tuple[type, ...]] = {
    "$ref": str,
    "allOf": list,
    "anyOf": list,
    "enum": list,
    "examples": list,
    "exclusiveMaximum": (int, float),
    "exclusiveMinimum": (int, float),
    "format": str,
    "maxLength": int,
    "maximum": (int, float),
    "minItems": int,
    "minLength": int,
    "minimum": (int, float),
    "multipleOf": (int, float),
    "oneOf": list,
    "properties": dict,
    "required": list,
    "type": (str, list),
}
_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "email": "someone@example.com",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
_QUOTED = re.compile(r"[\"“`']([^\"”`'\n]{1,200})[\"”`'](?!\w)")
#: "the weather in Paris", "at 10 Downing Street": the words that follow the preposition.
_PLACE = re.compile(r"\b(?:in|for|at|of|to|from|about|with)\s+((?:[A-Z0-9][\w-]*)(?:\s+[A-Z][\w-]*)*)")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


class Source(NamedTuple):
    """What strings and numbers are taken from."""

    text: str
    #: A word to prefer over what is found in the text.
    word: str = ""


def build_instance(schema: Any, source: Source) -> Any:
    """A value for the schema: {"type": "object", "properties": {"city": {"type": "string"}},
    "required": ["city"]} with "Weather in Paris?" -> {"city": "Paris"}."""
    return _build(schema, source, schema, 0)


def _build(schema: Any, source: Source, root: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return source.word or _pick_word(source.text)
    schema = _read(schema)
    if "$ref" in schema:
        return _build(_resolve(schema["$ref"], root), source, root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("examples"):
        return schema["examples"][0]
    if schema.get("enum"):
        return _pick_member(schema["enum"], source.text)
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return _build(_pick_branch(schema[key]), source, root, depth + 1)
    if schema.get("allOf"):
        return _build(_merge(schema, root), source, root, depth + 1)
    return _build_typed(schema, source, root, depth)


def _read(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without the keywords whose values are none."""
    return {key: value for key, value in schema.items() if _has_form(value, _FORMS.get(key))}


def _has_form(value: Any, form: type | tuple[type, ...] | None) -> bool:
    if form is None:
        return True
    # A number in JSON is no truth value, and some have no finite one.
    if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
        return False
    return isinstance(value, form)


def _build_typed(schema: dict[str, Any], source: Source, root: Any, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind == "object":
        properties = schema.get("properties", {})
        return {
            name: _build(properties.get(name, {}), source, root, depth + 1)
            for name in schema.get("required", ())[:MAX_MEMBERS]
            if isinstance(name, str)
        }
    if kind == "array":
        items = schema.get("items", {})
        return [
            _build(items, source, root, depth + 1) for _ in range(min(schema.get("minItems", 0), MAX_MEMBERS))
        ]
    if kind in ("integer", "number"):
        return _pick_number(schema, source.text, whole=kind == "integer")
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return _pick_text(schema, source)


def _resolve(reference: str, root: Any) -> Any:
    """A local reference: `#/$defs/x`; anything else is any value."""
    node = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if part:
            node = node.get(part, {}) if isinstance(node, dict) else {}
    return node


def _pick_branch(branches: list[Any]) -> Any:
    usable = [b for b in branches if not (isinstance(b, dict) and b.get("type") == "null")]
    return usable[0] if usable else branches[0]


def _merge(schema: dict[str, Any], root: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
    for member in schema["allOf"]:
        branch = _read(member) if isinstance(member, dict) else {}
        if "$ref" in branch:
            found = _resolve(branch["$ref"], root)
            branch = _read(found) if isinstance(found, dict) else {}
        properties = {**merged.get("properties", {}), **branch.get("properties", {})}
        required = [*merged.get("required", ()), *branch.get("required", ())]
        merged = {**merged, **branch}
        if properties:
            merged["properties"] = properties
        if required:
            merged["required"] = list(dict.fromkeys(name for name in required if isinstance(name, str)))
    return merged


def _pick_member(members: list[Any], text: str) -> Any:
    """The member that the text names, else the first."""
    named = (m for m in members if re.search(rf"\b{re.escape(str(m))}\b", text, re.IGNORECASE))
    return next(named, members[0])


def _pick_number(schema: dict[str, Any], text: str, *, whole: bool) -> int | float:
    found = _NUMBER.search(text)
    candidates = [float(found.group())] if found else []
    low, high = schema.get("minimum"), schema.get("maximum")
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    step = schema.get("multipleOf") or 1
    candidates += [0.0, step]
    candidates += [bound for bound in (low, high) if bound is not None]
    candidates += [over + step] if over is not None else []
    candidates += [under - step] if under is not None else []
    # The next multiple above a lower bound.
    candidates += [math.ceil(bound / step) * step for bound in (low, over) if bound is not None]
    if over is not None and under is not None:
        candidates.append((over + under) / 2)
    for number in candidates:
        if (
            (low is None or number >= low)
            and (high is None or number <= high)
            and (over is None or number > over)
            and (under is None or number < under)
            and ("multipleOf" not in schema or math.isclose(number / step, round(number / step)))
            and (not whole or float(number).is_integer())
        ):
            return int(number) if whole else number
    return 0


def _pick_text(schema: dict[str, Any], source: Source) -> str:
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    text = source.word or _pick_word(source.text)
    text = text[: max(schema.get("maxLength", len(text)), 0)]
    return text.ljust(min(schema.get("minLength", 0), MAX_CHARACTERS), ".")


def _pick_word(text: str) -> str:
    """What the text is about: what it quotes, else what follows a preposition, else all of it, shortened."""
    quoted, place = _QUOTED.search(text), _PLACE.search(text)
    found = quoted or place
    return found.group(1) if found else text.strip()[:200]
