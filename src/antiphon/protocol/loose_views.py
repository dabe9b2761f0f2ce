"""Typed views of items that break a rule of the input: a model, or its server, may have made them.

It knows structs and JSON values alone. Invariant: every value of a view has the type that its field declares, so
that no reader meets another one; only bounds (lengths, patterns) and the words of a status are not held to.
"""

from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from antiphon.protocol.content import InputText, Part

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_PLAIN: dict[type, tuple[type, ...]] = {
    inspect.StrType: (str,),
    inspect.IntType: (int,),
    inspect.FloatType: (float, int),
    inspect.BoolType: (bool,),
    inspect.NoneType: (type(None),),
}


class _UnfitError(ValueError):
    """A value that has not the type of its field."""


def build_view(struct: type[_Struct], fields: dict[str, Any]) -> _Struct | None:
    """The struct from decoded JSON; None where a value that it must have is missing, or of another type.

    An optional member of another type is left out. A part of a message that is none is named in its place.
    """
    try:
        view: _Struct = _build(_inspect(struct), fields)
    except (_UnfitError, RecursionError):
        return None
    return view


@lru_cache(maxsize=256)
def _inspect(struct: type) -> inspect.StructType:
    told = inspect.type_info(struct)
    if not isinstance(told, inspect.StructType):
        raise TypeError(f"{struct} is no struct")
    return told


def _build(kind: inspect.StructType, fields: dict[str, Any]) -> Any:
    members: dict[str, Any] = {}
    for field in kind.fields:
        if field.encode_name not in fields:
            if field.required:
                raise _UnfitError(field.name)
            continue
        value = fields[field.encode_name]
        if field.name == "status" and isinstance(value, str):
            members[field.name] = value
            continue
        try:
            members[field.name] = _convert(value, field.type)
        except _UnfitError:
            if field.required:
                raise
    return kind.cls(**members)


def _convert(value: Any, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _convert(value, kind.type)
    if isinstance(kind, inspect.AnyType):
        return value
    if isinstance(kind, inspect.UnionType):
        return _convert_to_one(value, kind)
    if isinstance(kind, inspect.LiteralType):
        if isinstance(value, str) and value in kind.values:
            return value
    elif isinstance(kind, inspect.StructType):
        if isinstance(value, dict) and _bears_tag(value, kind):
            return _build(kind, value)
    elif isinstance(kind, inspect.ListType):
        if isinstance(value, list):
            return [_convert_member(member, kind.item_type) for member in value]
    elif isinstance(kind, inspect.DictType):
        if isinstance(value, dict):
            return {key: _convert(member, kind.value_type) for key, member in value.items()}
    elif isinstance(value, _PLAIN.get(type(kind), ())) and (
        not isinstance(value, bool) or isinstance(kind, inspect.BoolType)
    ):
        return value
    raise _UnfitError


def _convert_to_one(value: Any, kind: inspect.UnionType) -> Any:
    for member in kind.types:
        try:
            return _convert(value, member)
        except _UnfitError:
            continue
    raise _UnfitError


def _convert_member(value: Any, kind: inspect.Type) -> Any:
    try:
        return _convert(value, kind)
    except _UnfitError:
        if not _holds_text(kind):
            raise
    told = value.get("type") if isinstance(value, dict) else None
    return InputText(f"[{told if isinstance(told, str) else 'part'}: not shown]")


def _holds_text(kind: inspect.Type) -> bool:
    """Whether a list has parts of several kinds, text among them."""
    return isinstance(kind, inspect.UnionType) and any(
        isinstance(member, inspect.StructType) and member.cls is InputText for member in kind.types
    )


def _bears_tag(value: dict[str, Any], kind: inspect.StructType) -> bool:
    if kind.tag_field is None:
        return True
    told = value.get(kind.tag_field)
    # An item's type was read before; some say none.
    return told == kind.tag or (told is None and not issubclass(kind.cls, Part))
