"""Refusals of a malformed value: which rule it breaks, where, in the API's own words.

Works on any Struct type through `msgspec.inspect`, so that the Structs are the only description of the
wire. It runs only after the fast decoder has refused a value. Invariant: it raises `RequestError` alone.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Final, Literal, NoReturn, get_args, get_origin, get_type_hints

import msgspec
from msgspec import inspect

from antiphon.protocol.errors import RequestError, shorten_quoted

#: Deepest nesting of arrays and objects in a body. Beyond it, later steps could run out of stack.
MAX_DEPTH = 100
#: One value of a request, or one input item, may hold this many arrays and objects.
MAX_CONTAINERS: Final = 100_000
#: An allowed key within this edit distance of an unknown one is suggested.
SUGGESTION_DISTANCE = 2

_decode_any = msgspec.json.Decoder().decode
#: An escaped half of a character without its other half.
_LONE_SURROGATE: Final = re.compile(
    rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})(?<!\\)(?:\\\\)*\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_AROUND: Final = 24
_decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


# Bodies


def decode_body(body: bytes) -> dict[str, msgspec.Raw]:
    """The JSON object in a request body: the raw bytes of each of its values, none of them looked into.

    A body is never decoded whole: a small one can stand for a tree that fills the memory. Raises
    `RequestError` for what is not one JSON object in valid UTF-8; `check_value` looks into the values.
    """
    try:
        if not body.isascii():
            body.decode()
        return _decode_raws(body)
    except RecursionError as error:
        raise _unreadable(f"it is nested deeper than {MAX_DEPTH} levels") from error
    except msgspec.ValidationError as error:
        raise _unreadable("the top level must be an object") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise _unreadable(_explain(error, body)) from error


def check_value(raw: bytes | msgspec.Raw, where: str) -> None:
    """Raise when a value is no valid JSON all through, is nested too deeply, or holds too much to look at."""
    data = bytes(raw)
    containers = data.count(b"[") + data.count(b"{")
    if containers > MAX_CONTAINERS:
        raise RequestError(
            f"Invalid '{where}': it holds more than {MAX_CONTAINERS} arrays and objects. Send less at once.",
            param=where,
            code="invalid_value",
        )
    try:
        tree = _decode_any(data)
    except RecursionError as error:
        raise _unreadable(f"it is nested deeper than {MAX_DEPTH} levels") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise _unreadable(_explain(error, data)) from error
    # Cheap upper bound first: most values never pay for the walk.
    if containers > MAX_DEPTH and is_too_deep(tree):
        raise _unreadable(f"it is nested deeper than {MAX_DEPTH} levels")


def _explain(error: ValueError | msgspec.MsgspecError, data: bytes) -> str:
    """Why bytes are no JSON; the parser calls several things truncated."""
    if not data.strip():
        return "it is empty. Send a JSON object"
    reason = str(error)
    place = _BYTE.search(reason)
    # Only what stands around the fault is searched: the body may be long.
    end = int(place[1]) + _AROUND if place is not None else len(data)
    lone = _LONE_SURROGATE.search(data[max(0, end - 2 * _AROUND) : end])
    if lone is not None:
        escape = lone[0].rpartition(b"\\u")[2][:4].decode()
        return f"it holds \\u{escape} alone, which is half of a character. Send both halves, or leave it out"
    return "it ends before its JSON does" if "truncated" in reason else reason


def _unreadable(reason: str) -> RequestError:
    return RequestError(f"We could not parse the JSON body of your request: {reason}.")


def is_too_deep(tree: Any) -> bool:
    """Whether arrays and objects nest deeper than `MAX_DEPTH`; walks level by level, without recursion."""
    level = [tree] if type(tree) is dict or type(tree) is list else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


# Words


def name_kind(value: Any) -> str:
    """What a JSON value is, with its article: `16.5` -> `"a decimal number"`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a decimal number"
    return "an array" if isinstance(value, (list, tuple)) else "an object"


def join_words(words: Iterable[Any]) -> str:
    """Quoted words as a sentence lists them: `'a', 'b', and 'c'`; two: `'a' and 'b'`."""
    quoted = [f"'{word}'" for word in words]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def join_path(where: str, key: str | int) -> str:
    """The param path of a member: `("input", 0)` -> `"input[0]"`, `("", "model")` -> `"model"`; long keys are cut."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    name = _shorten(key)
    return f"{where}.{name}" if where else name


# Errors, one function each


def missing_parameter(where: str) -> RequestError:
    """A required key is not there."""
    return RequestError(
        f"Missing required parameter: '{where}'.", param=where, code="missing_required_parameter"
    )


def invalid_type(where: str, expected: str, value: Any) -> RequestError:
    """A value of another JSON kind than the field's."""
    message = f"Invalid type for '{where}': expected {expected}, but got {name_kind(value)} instead."
    return RequestError(message, param=where, code="invalid_type")


def invalid_value(where: str, value: Any, supported: Iterable[Any]) -> RequestError:
    """A value of the right kind that is none of the supported ones."""
    message = f"Invalid value: '{_shorten(value)}'. Supported values are: {join_words(supported)}."
    return RequestError(message, param=where, code="invalid_value")


def invalid_prefix(where: str, value: str, prefix: str) -> RequestError:
    """An id of some other kind of thing."""
    message = f"Invalid '{where}': '{shorten_quoted(value)}'. Expected an ID that begins with '{prefix}'."
    return RequestError(message, param=where, code="invalid_value")


def unknown_parameter(where: str, key: str, allowed: Iterable[str], sent: Iterable[str]) -> RequestError:
    """A key that is not in the contract, with a suggestion when one is near and was not sent."""
    path = join_path(where, key)
    message = f"Unknown parameter: '{path}'."
    nearest = find_nearest(key, set(allowed) - set(sent))
    if nearest is not None:
        message += f" Did you mean '{join_path(where, nearest)}'?"
    return RequestError(message, param=path, code="unknown_parameter")


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def find_nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate within `SUGGESTION_DISTANCE` edits: the nearest, then the first in the alphabet."""
    found = [
        (distance, candidate)
        for candidate in candidates
        if (distance := measure_distance(word, candidate)) <= SUGGESTION_DISTANCE
    ]
    return min(found)[1] if found else None


def measure_distance(left: str, right: str) -> int:
    """The edit distance (insert, delete, replace); any number over the limit when it is over the limit."""
    if abs(len(left) - len(right)) > SUGGESTION_DISTANCE:
        return SUGGESTION_DISTANCE + 1
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        previous, row = row, [i]
        for j, b in enumerate(right, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (a != b)))
    return row[-1]


# Walking a value along its type


@functools.cache
def get_shape(kind: Any) -> inspect.Type:
    """The description of a type that `check_shape` and `check_keys` walk."""
    _learn_order(kind)
    return inspect.type_info(kind)


#: Supported values in the order in which they were declared; `msgspec.inspect` sorts them.
_DECLARED: dict[frozenset[Any], tuple[Any, ...]] = {}


@functools.cache
def _learn_order(kind: Any) -> None:
    """Note the declared order of every `Literal` in a type."""
    if get_origin(kind) is Literal:
        _DECLARED.setdefault(frozenset(get_args(kind)), get_args(kind))
    elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for hint in get_type_hints(kind).values():
            _learn_order(hint)
    else:
        for member in get_args(kind):
            _learn_order(member)


def check_keys(value: Any, shape: inspect.Type, where: str) -> None:
    """Raise for the first key, at any depth, that a closed Struct does not know."""
    if isinstance(shape, inspect.UnionType):
        for member in _pick_members(value, shape):
            check_keys(value, member, where)
    elif isinstance(shape, inspect.StructType) and isinstance(value, dict):
        _check_struct_keys(value, shape, where)
    elif isinstance(shape, (inspect.ListType, inspect.VarTupleType)) and isinstance(value, list):
        for index, member_value in enumerate(value):
            check_keys(member_value, shape.item_type, join_path(where, index))
    elif isinstance(shape, inspect.DictType) and isinstance(value, dict):
        for key, member_value in value.items():
            check_keys(member_value, shape.value_type, join_path(where, key))


def _check_struct_keys(value: dict[str, Any], shape: inspect.StructType, where: str) -> None:
    fields = {field.encode_name: field for field in shape.fields}
    allowed = {*fields, shape.tag_field} if shape.tag_field else set(fields)
    for key, member_value in value.items():
        if key in fields:
            check_keys(member_value, fields[key].type, join_path(where, key))
        elif shape.forbid_unknown_fields and key not in allowed:
            raise unknown_parameter(where, key, allowed, value)


def _pick_members(value: Any, shape: inspect.UnionType) -> list[inspect.Type]:
    """The members of a union that a value can be; for objects, those whose tag it bears."""
    if not isinstance(value, dict):
        return [member for member in shape.types if _fits_kind(value, member)]
    structs = [member for member in shape.types if isinstance(member, inspect.StructType)]
    tagged = [member for member in structs if member.tag_field and value.get(member.tag_field) == member.tag]
    if tagged:
        return list(tagged)
    untagged: list[inspect.Type] = [member for member in structs if member.tag_field is None]
    return untagged or [member for member in shape.types if isinstance(member, inspect.DictType)]


def check_shape(value: Any, shape: inspect.Type, where: str) -> None:
    """Raise for the first rule of a type that a decoded JSON value breaks; return when it breaks none."""
    if isinstance(shape, inspect.UnionType):
        _check_union(value, shape, where)
        return
    if not _fits_kind(value, shape):
        raise invalid_type(where, _name_expected([shape]), value)
    check = _CHECKS.get(type(shape))
    if check is not None:
        check(value, shape, where)


def _check_union(value: Any, shape: inspect.UnionType, where: str) -> None:
    fitting = [member for member in shape.types if _fits_kind(value, member)]
    if not fitting:
        raise invalid_type(where, _name_expected(shape.types), value)
    if isinstance(value, dict):
        picked = _pick_members(value, shape)
        if not picked:
            _refuse_tag(value, shape, where)
        fitting = picked
    literals = [member for member in fitting if isinstance(member, inspect.LiteralType)]
    if literals and len(literals) < len(fitting):
        fitting = [member for member in fitting if member not in literals or value in member.values]
    check_shape(value, fitting[0], where)


def _refuse_tag(value: dict[str, Any], shape: inspect.UnionType, where: str) -> NoReturn:
    structs = [member for member in shape.types if isinstance(member, inspect.StructType)]
    tag_field = next((member.tag_field for member in structs if member.tag_field), None) or "type"
    path = join_path(where, tag_field)
    tag = value.get(tag_field)
    if tag is None:
        raise missing_parameter(path)
    if not isinstance(tag, str):
        raise invalid_type(path, "a string", tag)
    raise invalid_value(path, tag, [member.tag for member in structs])


def _fits_kind(value: Any, shape: inspect.Type) -> bool:
    """Whether a value is of the JSON kind that a type is written in."""
    kinds = _KINDS.get(type(shape))
    if isinstance(shape, inspect.LiteralType):
        return any(type(value) is type(allowed) for allowed in shape.values)
    return kinds is None or type(value) in kinds


def _name_expected(shapes: Sequence[inspect.Type]) -> str:
    names: list[str] = []
    for shape in shapes:
        name = _name_shape(shape)
        if name and name not in names:
            names.append(name)
    if len(names) == 1:
        return names[0]
    return "one of " + " or ".join([names[0], *(name.split(" ", 1)[-1] for name in names[1:])])


def _name_shape(shape: inspect.Type) -> str:
    if isinstance(shape, inspect.LiteralType):
        return name_kind(shape.values[0])
    if isinstance(shape, (inspect.ListType, inspect.VarTupleType)):
        item = shape.item_type
        first = item.types[0] if isinstance(item, inspect.UnionType) else item
        name = _name_shape(first)
        return f"an array of {name.split(' ', 1)[1]}s" if name else "an array"
    return _NAMES.get(type(shape), "")


_KINDS: dict[type[inspect.Type], tuple[type, ...]] = {
    inspect.NoneType: (type(None),),
    inspect.BoolType: (bool,),
    inspect.IntType: (int,),
    inspect.FloatType: (int, float),
    inspect.StrType: (str,),
    inspect.ListType: (list,),
    inspect.VarTupleType: (list,),
    inspect.DictType: (dict,),
    inspect.StructType: (dict,),
}
_NAMES: dict[type[inspect.Type], str] = {
    inspect.BoolType: "a boolean",
    inspect.IntType: "an integer",
    inspect.FloatType: "a decimal number",
    inspect.StrType: "a string",
    inspect.DictType: "an object",
    inspect.StructType: "an object",
}


def _check_number(value: float, shape: inspect.IntType | inspect.FloatType, where: str) -> None:
    kind = "integer" if isinstance(shape, inspect.IntType) else "decimal"
    if shape.ge is not None and value < shape.ge:
        message = f"Invalid '{where}': {kind} below minimum value. "
        message += f"Expected a value >= {_show_number(shape.ge)}, but got {value} instead."
        raise RequestError(message, param=where, code=f"{kind}_below_min_value")
    if shape.le is not None and value > shape.le:
        message = f"Invalid '{where}': {kind} above maximum value. "
        message += f"Expected a value <= {_show_number(shape.le)}, but got {value} instead."
        raise RequestError(message, param=where, code=f"{kind}_above_max_value")


def _show_number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _check_text(value: str, shape: inspect.StrType, where: str) -> None:
    if shape.max_length is not None and len(value) > shape.max_length:
        raise RequestError(
            f"Invalid '{where}': string too long. Expected a string with maximum length "
            f"{shape.max_length}, but got a string with length {len(value)} instead.",
            param=where,
            code="string_above_max_length",
        )
    if shape.min_length is not None and len(value) < shape.min_length:
        raise RequestError(
            f"Invalid '{where}': empty string. Expected a string with minimum length "
            f"{shape.min_length}, but got an empty string instead.",
            param=where,
            code="empty_string",
        )
    if shape.pattern is not None:
        _check_pattern(value, shape.pattern, where)


def _check_pattern(value: str, pattern: str, where: str) -> None:
    # The decoder's own matcher decides, so that both always agree.
    try:
        msgspec.convert(value, _pattern_type(pattern))
    except msgspec.ValidationError as error:
        message = f"Invalid '{where}': string does not match pattern. "
        message += f"Expected a string that matches the pattern '{pattern}'."
        raise RequestError(message, param=where, code="invalid_value") from error


@functools.cache
def _pattern_type(pattern: str) -> Any:
    return Annotated[str, msgspec.Meta(pattern=pattern)]


def _check_literal(value: Any, shape: inspect.LiteralType, where: str) -> None:
    if value not in shape.values:
        raise invalid_value(where, value, _DECLARED.get(frozenset(shape.values), shape.values))


def _check_list(value: list[Any], shape: inspect.ListType | inspect.VarTupleType, where: str) -> None:
    check_length(value, shape.min_length, shape.max_length, where)
    for index, member in enumerate(value):
        check_shape(member, shape.item_type, join_path(where, index))


def check_length(value: Sequence[Any], least: int | None, most: int | None, where: str) -> None:
    """Raise when an array is shorter or longer than allowed."""
    if least is not None and len(value) < least:
        raise RequestError(
            f"Invalid '{where}': empty array. Expected an array with minimum length {least}, "
            "but got an empty array instead.",
            param=where,
            code="empty_array",
        )
    if most is not None and len(value) > most:
        raise RequestError(
            f"Invalid '{where}': array too long. Expected an array with maximum length {most}, "
            f"but got an array with length {len(value)} instead.",
            param=where,
            code="array_above_max_length",
        )


def _check_dict(value: dict[str, Any], shape: inspect.DictType, where: str) -> None:
    if shape.max_length is not None and len(value) > shape.max_length:
        raise RequestError(
            f"Invalid '{where}': too many properties. Expected an object with at most "
            f"{shape.max_length} properties, but got an object with {len(value)} properties instead.",
            param=where,
            code="object_above_max_properties",
        )
    longest = shape.key_type.max_length if isinstance(shape.key_type, inspect.StrType) else None
    for key, member in value.items():
        path = join_path(where, key)
        if longest is not None and len(key) > longest:
            raise RequestError(
                f"Invalid '{where}': property name too long. Expected a property name with maximum length "
                f"{longest}, but got a property name with length {len(key)} instead.",
                param=path,
                code="property_name_above_max_length",
            )
        check_shape(member, shape.value_type, path)


def _check_struct(value: dict[str, Any], shape: inspect.StructType, where: str) -> None:
    if shape.tag_field is not None:
        tag = value.get(shape.tag_field, shape.tag)
        path = join_path(where, shape.tag_field)
        if not isinstance(tag, str):
            raise invalid_type(path, "a string", tag)
        if tag != shape.tag:
            raise invalid_value(path, tag, [shape.tag])
    for field in shape.fields:
        path = join_path(where, field.encode_name)
        if field.encode_name in value:
            check_shape(value[field.encode_name], field.type, path)
        elif field.required:
            raise missing_parameter(path)


_CHECKS: dict[type[inspect.Type], Callable[[Any, Any, str], None]] = {
    inspect.IntType: _check_number,
    inspect.FloatType: _check_number,
    inspect.StrType: _check_text,
    inspect.LiteralType: _check_literal,
    inspect.ListType: _check_list,
    inspect.VarTupleType: _check_list,
    inspect.DictType: _check_dict,
    inspect.StructType: _check_struct,
}


def refuse(raw: bytes | msgspec.Raw, kind: Any, where: str, cause: Exception) -> NoReturn:
    """Raise the `RequestError` that says why the decoder for `kind` refused `raw`."""
    try:
        value = _decode_any(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise _unreadable(str(error)) from error
    shape = get_shape(kind)
    check_keys(value, shape, where)
    check_shape(value, shape, where)
    # The walk knows every rule that our types state; this is for a rule of the decoder's own.
    reason = str(cause)
    raise RequestError(f"Invalid value for '{where}': {reason}", param=where, code="invalid_value") from cause
