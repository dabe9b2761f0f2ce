"""What the honest double seals a window with: JSON and its checksum, in one text.

It keeps no secret; it tells what a double made from what it did not. Invariant: what is opened is what was sealed.
"""

import base64
import hashlib
from typing import Any

import msgspec


class Sealed(msgspec.Struct):
    """What a compaction item holds. `closes`: it stands for everything before it, not only for what it left out."""

    tenant: str
    closes: bool
    items: list[dict[str, Any]]


def seal(sealed: Sealed) -> str:
    """The text that holds it."""
    raw = msgspec.json.encode(sealed)
    return base64.urlsafe_b64encode(hashlib.sha256(raw).digest()[:8] + raw).decode()


def open_seal(text: Any) -> Sealed | None:
    """What the text holds; None where it was not made by `seal`."""
    try:
        raw = base64.urlsafe_b64decode(text)
        if hashlib.sha256(raw[8:]).digest()[:8] != raw[:8]:
            return None
        return msgspec.json.decode(raw[8:], type=Sealed)
    except (ValueError, TypeError, AttributeError, msgspec.DecodeError):
        return None
