"""Ids: opaque to clients, ordered by time so that the store's index grows at its end.

Invariant: the 96 random bits make an id unguessable and unique without asking anyone.
"""

import os
import secrets
import string
import time

_ALPHANUMERICS = string.ascii_letters + string.digits


def make_node_id() -> str:
    """12 hex digits of the millisecond, then 24 random ones: the part behind every prefix."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(12).hex()}"


def make_call_id() -> str:
    """`call_` and 24 alphanumerics, for calls whose server gave none."""
    return "call_" + "".join(secrets.choice(_ALPHANUMERICS) for _ in range(24))


def make_item_id(prefix: str) -> str:
    """The id of an item that another server made and named badly: never of the form that tells node and place."""
    return f"{prefix}_" + "".join(secrets.choice(_ALPHANUMERICS) for _ in range(32))


def make_obfuscation() -> str:
    """Padding of a random length that hides how long a delta is."""
    return secrets.token_urlsafe(16)[: 4 + secrets.randbelow(13)]
