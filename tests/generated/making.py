"""Values out of JSON schemas, and what can be done to a value so that it fits its schema no longer.

It knows schemas and the names of properties, no route. Invariant: one seed makes the same values.
"""

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

#: Below this depth only what must be there is made.
DEEP = 7
PNG = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6"
    "kgAAAABJRU5ErkJggg=="
)
WORDS = (
    "Hello.",
    "look",
    "recall",
    "x",
    "a b c",
    "one two three",
    "naïve",
    "日本語",
    "\U0001f600 \u2028",
    "{}",
    "0",
)
#: Texts that break what was not written with care.
ODD_TEXTS = (
    "",
    " ",
    "\x00",
    "\u202e\u0000\ufeff",
    "e\u0301" * 40,
    "'; DROP TABLE nodes; --",
    "../../etc/passwd",
    "%00%0a%0d",
    "data: [DONE]\n\n",
    "<think></think>",
    "null",
    "x" * 65,
    "x" * 129,
    "x" * 5000,
    "\r\n\t\\\"'",
)
#: No text at all: JSON that holds them is refused.
BROKEN_TEXTS = ("\ud800", "\udfff\ud800")
ODD_NUMBERS = (
    0,
    -1,
    1,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    0.1,
    -0.0,
    1e308,
    1e-320,
    16,
    20,
)
_NEST_MARK = "nested-this-deep:"
_NEST = re.compile(f'"{_NEST_MARK}([0-9]+)([lo])"')
NAME_LETTERS = "abcdefghijklmnopqrstuvwxyz_-0123456789"


class Maker:
    """Makes values of one document's schemas; `hints` make those that a schema says too little of."""

    def __init__(
        self, schemas: Mapping[str, Any], choice: random.Random, hints: Mapping[str, Callable[[], Any]]
    ) -> None:
        self._schemas = schemas
        self._choice = choice
        self._hints = hints
        #: How likely an optional property is there.
        self.optional_share = 0.2

    def resolve(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema that a reference means."""
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def make(self, schema: Mapping[str, Any], depth: int = 0, name: str = "") -> Any:
        """A value that fits the schema, nearly always."""
        if name in self._hints and self._choice.random() < 0.97:
            return self._hints[name]()
        schema = self.resolve(schema)
        if "anyOf" in schema:
            return self._make_any(schema["anyOf"], depth, name)
        if "enum" in schema:
            return self._choice.choice(schema["enum"])
        kind = schema.get("type")
        if kind == "object":
            return self._make_object(schema, depth)
        if kind == "array":
            return self._make_array(schema, depth, name)
        if kind == "string":
            return self._make_text(schema)
        if kind in ("integer", "number"):
            return self._make_number(schema, kind)
        if kind == "boolean":
            return self._choice.random() < 0.5
        if kind == "null":
            return None
        return self.make_anything()

    def make_object(self, schema: Mapping[str, Any], **share: float) -> Any:
        """An object in which each named property is there with a likelihood of its own."""
        schema = self.resolve(schema)
        made = {}
        for key, member in schema["properties"].items():
            if self._choice.random() < share.get(key, share["other"]):
                made[key] = self.make(member, 1, key)
        return made

    def make_anything(self, depth: int = 0) -> Any:
        """Any JSON value."""
        choice = self._choice
        kind = choice.randrange(7 if depth < 3 else 5)
        if kind == 0:
            return None
        if kind == 1:
            return choice.random() < 0.5
        if kind == 2:
            return choice.choice(ODD_NUMBERS)
        if kind in (3, 4):
            return choice.choice(WORDS)
        if kind == 5:
            return [self.make_anything(depth + 1) for _ in range(choice.randrange(3))]
        return {choice.choice(WORDS): self.make_anything(depth + 1) for _ in range(choice.randrange(3))}

    def _make_any(self, options: list[Any], depth: int, name: str) -> Any:
        if depth >= DEEP:
            plain = [each for each in options if "$ref" not in each and each.get("type") != "array"]
            options = plain or options
        return self.make(self._choice.choice(options), depth + 1, name)

    def _make_object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        if "properties" not in schema:
            rest = schema.get("additionalProperties")
            if not isinstance(rest, dict):
                value = self.make_anything(depth)
                return value if isinstance(value, dict) else {}
            count = self._choice.randrange(3)
            return {self._choice.choice(WORDS)[:64]: self.make(rest, depth + 1) for _ in range(count)}
        required = schema.get("required", ())
        made = {}
        for key, member in schema["properties"].items():
            if (
                key in required
                or key == "type"
                or (depth < DEEP and self._choice.random() < self.optional_share)
            ):
                made[key] = self.make(member, depth + 1, key)
        return made

    def _make_array(self, schema: Mapping[str, Any], depth: int, name: str) -> list[Any]:
        least = schema.get("minItems", 0)
        count = least if depth >= DEEP else max(least, self._choice.choice((0, 1, 1, 1, 1, 2, 2, 3, 3, 5)))
        return [self.make(schema.get("items", {}), depth + 1, "") for _ in range(count)]

    def _make_text(self, schema: Mapping[str, Any]) -> str:
        if "pattern" in schema:
            size = self._choice.choice((1, 3, 8, schema.get("maxLength", 64)))
            return "".join(self._choice.choice(NAME_LETTERS) for _ in range(size))
        text = self._choice.choice(WORDS if self._choice.random() < 0.85 else ODD_TEXTS)
        return text[: schema.get("maxLength", len(text))] or ("x" * schema.get("minLength", 0))

    def _make_number(self, schema: Mapping[str, Any], kind: str) -> float:
        low: float = schema.get("minimum", -2)
        high: float = schema.get("maximum", max(low + 100, 100))
        if kind == "integer":
            return self._choice.choice((low, min(low + 1, high), min(low + 20, high), high))
        return self._choice.choice((low, high, low + (high - low) * 0.5))


class Spoiler:
    """Makes a request wrong in one or more places."""

    def __init__(self, choice: random.Random, maker: Maker) -> None:
        self._choice = choice
        self._maker = maker

    def spoil(self, value: Any) -> Any:
        """The value with one to three changes; it is changed in place where it can be."""
        for _ in range(self._choice.choice((1, 1, 1, 2, 3))):
            value = self._spoil_once(value)
        return value

    def _spoil_once(self, value: Any) -> Any:
        places = list(_list_places(value))
        if not places or self._choice.random() < 0.02:
            return self._make_wrong(value)
        holder, key = self._choice.choice(places)
        action = self._choice.randrange(8)
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[self._choice.choice((*WORDS, *ODD_TEXTS, "type", "id", "name"))] = (
                self._maker.make_anything()
            )
        elif action == 2 and isinstance(holder, list):
            holder.extend([holder[key]] * self._choice.choice((1, 2, 30)))
        elif action == 3 and isinstance(holder, dict):
            # A key that is nearly right.
            holder[f"{key}s"] = holder.pop(key)
        elif action == 4:
            holder[key] = _nest(self._choice.choice((3, 60, 600, 5000)), self._choice.random() < 0.5)
        elif action == 5:
            other, other_key = self._choice.choice(places)
            holder[key] = _copy(other[other_key])
        else:
            holder[key] = self._make_wrong(holder[key])
        return value

    def _make_wrong(self, value: Any) -> Any:
        kind = self._choice.randrange(6)
        if kind == 0:
            return self._choice.choice(ODD_NUMBERS)
        if kind == 1:
            return self._choice.choice((*ODD_TEXTS, *BROKEN_TEXTS))
        if kind == 2:
            return None
        if kind == 3:
            return [value]
        if kind == 4:
            return {"type": value}
        return self._maker.make_anything()

    def garble(self, body: bytes) -> bytes:
        """Bytes that are no JSON any more, mostly."""
        choice = self._choice
        at = choice.randrange(len(body) + 1)
        piece = choice.choice(
            (b"", b"\xff", b"\x00", b"\xef\xbb\xbf", b",", b"NaN", b"\\ud800", b"}", b"[" * 3000)
        )
        if choice.random() < 0.3:
            return body[:at]
        return body[:at] + piece + body[at + choice.randrange(3) :]


def _list_places(value: Any, depth: int = 0) -> Any:
    if isinstance(value, dict):
        members: Any = list(value.items())
    elif isinstance(value, list):
        members = list(enumerate(value))
    else:
        return
    for key, member in members:
        yield value, key
        if depth < 40:
            yield from _list_places(member, depth + 1)


def _nest(depth: int, in_lists: bool) -> str:
    """Stands for a deep value; `encode` writes it, for it is deeper than Python's encoder goes."""
    return f"{_NEST_MARK}{depth}{'l' if in_lists else 'o'}"


def encode(value: Any) -> bytes:
    """The JSON of a made value."""
    return _NEST.sub(_write_nest, json.dumps(value)).encode()


def _write_nest(found: re.Match[str]) -> str:
    depth = int(found[1])
    return "[" * depth + "1" + "]" * depth if found[2] == "l" else '{"a":' * depth + "1" + "}" * depth


def _copy(value: Any) -> Any:
    """A copy that shares nothing, so that no value comes to hold itself."""
    if isinstance(value, dict):
        return {key: _copy(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_copy(member) for member in value]
    return value
