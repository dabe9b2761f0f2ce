"""Single items replaced by `null` in a node's arrays.

It knows where an item begins and ends, and nothing else of it. Invariant: positions stay, and every other item
keeps its bytes.
"""

from collections.abc import Collection

import msgspec

from antiphon.protocol.errors import StoreError

_BLANK = b"null"


def blank_positions(given: bytes, made: bytes, positions: Collection[int]) -> tuple[bytes, bytes, list[int]]:
    """Input and output of a node with the items at these positions blanked, and where that was an item.

    Positions count the input first, then the output; `[a,b]`, `[c]`, {1, 2, 9} -> `[a,null]`, `[null]`, [1, 2].
    An array without a blanked item is returned as it was given. Raises `StoreError` for what is no JSON array.
    """
    inputs, outputs = _split(given), _split(made)
    count = len(inputs)
    items = inputs + outputs
    blanked = [
        position
        for position in sorted(set(positions))
        if 0 <= position < len(items) and items[position] != _BLANK
    ]
    for position in blanked:
        items[position] = _BLANK
    if blanked and blanked[0] < count:
        given = _join(items[:count])
    if blanked and blanked[-1] >= count:
        made = _join(items[count:])
    return given, made, blanked


def _split(array: bytes) -> list[bytes]:
    try:
        return [bytes(item).strip() for item in msgspec.json.decode(array, type=list[msgspec.Raw])]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreError(f"The items of the round are no JSON array: {error}.") from error


def _join(items: list[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"
