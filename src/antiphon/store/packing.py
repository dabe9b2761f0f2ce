"""The short forms in which ids and outcomes are stored.

An id of the usual shape stands as its bytes, in two places (row and index); an outcome, which is mostly the
names of the usage fields, stands deflated against those names. A client's item id is only looked up, so
its hash will do. Invariant: what was packed comes back byte for byte, and two ids never pack alike.
"""

import zlib
from hashlib import sha256

from antiphon.protocol.errors import StoreError

PREFIX = "resp_"
ID_BYTES = 18
ITEM_HASH_BYTES = 16
_ID_CHARS = len(PREFIX) + 2 * ID_BYTES

#: What outcomes usually look like. Part of the file format: another text needs a migration.
_USUAL_OUTCOME = (
    b'{"error":null,"error":{"code":"server_error","message":"","incomplete_details":null,'
    b'"incomplete_details":{"reason":"max_output_tokens"},"usage":null,"usage":{"input_tokens":1234,'
    b'"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":56,'
    b'"output_tokens_details":{"reasoning_tokens":0},"total_tokens":1290}}'
)

#: The smallest window and memory: the set-up of larger ones costs more than a short text gains.
_WINDOW_BITS = -9
_MEMORY_LEVEL = 1
_LEVEL = 6


def pack_id(node_id: str) -> bytes | str:
    """The stored form: `resp_` + 36 lower-case hex digits -> 18 bytes; anything else -> itself."""
    if len(node_id) != _ID_CHARS or not node_id.startswith(PREFIX):
        return node_id
    digits = node_id[len(PREFIX) :]
    try:
        packed = bytes.fromhex(digits)
    except ValueError:
        return node_id
    # `fromhex` also takes capitals and spaces, which would not come back as they were.
    return packed if packed.hex() == digits else node_id


def unpack_id(stored: bytes | str) -> str:
    """The id that `pack_id` was given."""
    return stored if isinstance(stored, str) else PREFIX + stored.hex()


def hash_item_id(item_id: str) -> bytes:
    """What a client-given item id is looked up by; the id itself stands in the item alone."""
    return sha256(item_id.encode("utf-8", "surrogatepass")).digest()[:ITEM_HASH_BYTES]


def pack_outcome(outcome: bytes) -> bytes:
    """About 20 bytes for the usual 190; costs 2 us."""
    packer = zlib.compressobj(
        _LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY, _USUAL_OUTCOME
    )
    return packer.compress(outcome) + packer.flush()


def unpack_outcome(stored: bytes) -> bytes:
    """The outcome that `pack_outcome` was given; costs 0.5 us. Raises `StoreError` for anything else."""
    unpacker = zlib.decompressobj(_WINDOW_BITS, _USUAL_OUTCOME)
    try:
        outcome = unpacker.decompress(stored)
    except zlib.error as error:
        raise StoreError(f"A stored outcome is damaged: {error}.") from error
    if not unpacker.eof:
        raise StoreError("A stored outcome is damaged: it is cut off.")
    return outcome
