"""JSON objects one level deep: each value stays the bytes that arrived.

It knows no items and no events. Invariant: what is not asked for is never decoded, so it is never changed.
"""

import msgspec
from msgspec import Raw

Fields = dict[str, Raw]

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_number = msgspec.json.Decoder(int).decode
_encode = msgspec.json.Encoder().encode

_NULL = b"null"


def read_fields(raw: bytes | Raw) -> Fields:
    """The members of an object; raises `msgspec.DecodeError` for anything else."""
    return _decode_fields(raw)


def read_object(raw: Raw | None) -> Fields | None:
    """The members of an object, or None where there is none."""
    if raw is None or not bytes(raw).startswith(b"{"):
        return None
    return _decode_fields(raw)


def read_list(raw: Raw | None) -> list[Raw]:
    """The members of an array; none where there is none."""
    return _decode_list(raw) if raw is not None and bytes(raw).startswith(b"[") else []


def read_text(raw: Raw | None) -> str | None:
    """A string, or None where there is none."""
    return _decode_text(raw) if raw is not None and bytes(raw).startswith(b'"') else None


def read_number(raw: Raw | None) -> int | None:
    """An integer that is not negative, or None where there is none."""
    if raw is None:
        return None
    data = bytes(raw)
    return _decode_number(data) if data.isdigit() and len(data) < 10 else None


def is_told(raw: Raw | None) -> bool:
    """Whether a member is there and not null."""
    return raw is not None and bytes(raw) != _NULL


def to_raw(value: object) -> Raw:
    """The JSON of a value as a member."""
    return Raw(_encode(value))
