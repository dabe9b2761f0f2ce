"""Seals: state that a client carries for us, as text that only this server can open.

Pure: nonce and keys are arguments. It does not know what is sealed. Invariant: what `open_seal` returns is, byte for
byte, what `seal` was given for the same kind and tenant; any other text raises `SealError`, and another tenant's
seal raises the same as a damaged one.
"""

import base64
import hashlib
import re
import zlib
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.item_types import ENCRYPTED_MAX_LENGTH

#: What every seal begins with; it and the rest are URL-safe.
PREFIX: Final = "antiphon_"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
#: The most that is sealed, and that a seal may unpack to.
PLAIN_MAX_BYTES: Final = 64 << 20

_VERSION: Final = 1
_HEAD_BYTES: Final = 2
_KEY_ID: Final = re.compile(r"[a-z0-9]{1,32}")

SealKind: TypeAlias = Literal["reasoning", "compaction"]
SealReason: TypeAlias = Literal[
    "damaged", "deleted", "foreign", "unknown_key", "unknown_version", "too_large"
]
#: What is told of each reason. "damaged" also stands for a seal of another tenant or kind.
REASONS: Final[dict[SealReason, str]] = {
    "damaged": "Encrypted content could not be decrypted or parsed.",
    "deleted": "It covers something that was deleted.",
    "foreign": "It was not sealed by this server.",
    "unknown_key": "It was sealed with a key that this server does not have.",
    "unknown_version": "It was sealed by another version of this server.",
    "too_large": f"It is longer than {ENCRYPTED_MAX_LENGTH} characters, or holds more than {PLAIN_MAX_BYTES} bytes.",
}


class SealError(AntiphonError):
    """The sealed text cannot be opened."""

    def __init__(self, reason: SealReason) -> None:
        super().__init__(REASONS[reason])
        self.reason: SealReason = reason


class SealKeys:
    """The keys that open seals, by id, and which of them seals; they never show themselves."""

    __slots__ = ("_ciphers", "current")

    def __init__(self, keys: Mapping[str, bytes], current: str) -> None:
        """Raises `ValueError` unless every key has 32 bytes and a short id, and `current` is one of them."""
        if current not in keys:
            raise ValueError(f"there is no key {current!r} that could be the current one")
        for key_id, key in keys.items():
            if not _KEY_ID.fullmatch(key_id):
                raise ValueError(f"{key_id!r} is no key id: 1 to 32 lower-case letters and digits")
            if len(key) != KEY_BYTES:
                raise ValueError(f"key {key_id} must have {KEY_BYTES} bytes")
        self._ciphers = {key_id: ChaCha20Poly1305(key) for key_id, key in keys.items()}
        self.current = current

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        return tuple(self._ciphers)

    def find_cipher(self, key_id: str) -> ChaCha20Poly1305 | None:
        """The cipher of a key; None for an unknown id."""
        return self._ciphers.get(key_id)

    def __repr__(self) -> str:
        return f"SealKeys({', '.join(self._ciphers)}; current {self.current})"


def derive_key_id(key: bytes) -> str:
    """The id of a key: 8 hexadecimal digits that tell nothing of the key, the same wherever it is kept."""
    return hashlib.sha256(b"antiphon seal key id\0" + key).hexdigest()[:8]


def is_seal(text: str) -> bool:
    """Whether a text claims to be a seal of an Antiphon server."""
    return text.startswith(PREFIX)


def seal(plain: bytes, *, kind: SealKind, tenant: str, keys: SealKeys, nonce: bytes) -> str:
    """Seal bytes with the current key; `nonce` is 12 random bytes that were never used before.

    Raises `SealError` ("too_large") for more than `PLAIN_MAX_BYTES`, or what compresses to more than the API's
    20,971,520 characters.
    """
    if len(plain) > PLAIN_MAX_BYTES:
        raise SealError("too_large")
    key_id = keys.current
    cipher = keys.find_cipher(key_id)
    assert cipher is not None
    bound = _bind(_VERSION, key_id, kind, tenant)
    body = cipher.encrypt(nonce, zlib.compress(plain), bound)
    head = bytes((_VERSION, len(key_id))) + key_id.encode("ascii")
    text = PREFIX + _to_text(head + nonce + body)
    if len(text) > ENCRYPTED_MAX_LENGTH:
        raise SealError("too_large")
    return text


def open_seal(text: str, *, kind: SealKind, tenant: str, keys: SealKeys) -> bytes:
    """The bytes that were sealed for this kind and tenant; raises `SealError` with the reason."""
    if not is_seal(text):
        raise SealError("foreign")
    if len(text) > ENCRYPTED_MAX_LENGTH:
        raise SealError("too_large")
    blob = _from_text(text[len(PREFIX) :])
    if len(blob) < _HEAD_BYTES:
        raise SealError("damaged")
    version, id_bytes = blob[0], blob[1]
    if version != _VERSION:
        raise SealError("unknown_version")
    start = _HEAD_BYTES + id_bytes
    key_id = blob[_HEAD_BYTES:start].decode("latin-1")
    nonce, body = blob[start : start + NONCE_BYTES], blob[start + NONCE_BYTES :]
    if len(nonce) < NONCE_BYTES or not _KEY_ID.fullmatch(key_id):
        raise SealError("damaged")
    cipher = keys.find_cipher(key_id)
    if cipher is None:
        raise SealError("unknown_key")
    try:
        packed = cipher.decrypt(nonce, body, _bind(version, key_id, kind, tenant))
    except InvalidTag:
        raise SealError("damaged") from None
    return _unpack(packed)


def _bind(version: int, key_id: str, kind: str, tenant: str) -> bytes:
    """What a seal is bound to; lengths keep two different bindings from reading the same."""
    parts = [part.encode("utf-8", "surrogatepass") for part in (key_id, kind, tenant)]
    return bytes((version,)) + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _to_text(blob: bytes) -> str:
    return base64.urlsafe_b64encode(blob).rstrip(b"=").decode("ascii")


def _from_text(text: str) -> bytes:
    try:
        blob = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise SealError("damaged") from None
    # The decoder takes more than one spelling of the same bytes; a seal has one.
    if _to_text(blob) != text:
        raise SealError("damaged")
    return blob


def _unpack(packed: bytes) -> bytes:
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(packed, PLAIN_MAX_BYTES + 1)
    except zlib.error:
        raise SealError("damaged") from None
    if len(plain) > PLAIN_MAX_BYTES:
        raise SealError("too_large")
    if not reader.eof or reader.unused_data:
        raise SealError("damaged")
    return plain
