"""The bodies of the Conversations routes: what they hold, and every check that needs no state.

Knows nothing of stores. Invariant: for any bytes, a decoder here returns its Struct or raises `RequestError`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from antiphon.protocol import checks
from antiphon.protocol.items import Item, KnownItem, check_known, decode_items
from antiphon.protocol.requests import Metadata

#: The API takes this many items at once.
MAX_NEW_ITEMS: Final = 20

_NULL: Final = b"null"
_decode_metadata = msgspec.json.Decoder(Metadata).decode


class NewConversation(msgspec.Struct, kw_only=True):
    """The body of `POST /conversations`; all of it may be left out."""

    items: list[Item] = []
    metadata: dict[str, str] = {}


class SentConversation(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /conversations` as it is sent (for the OpenAPI document)."""

    items: list[KnownItem] | None = None
    metadata: Metadata | None = None


class SentMetadata(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /conversations/{conversation_id}` as it is sent."""

    metadata: Metadata


class SentItems(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`POST /conversations/{conversation_id}/items` as it is sent."""

    items: list[KnownItem]


def decode_new_conversation(body: bytes) -> NewConversation:
    """The body of `POST /conversations`; no body at all is an empty one."""
    raws = _read(body or b"{}", ("items", "metadata"))
    return NewConversation(
        items=_decode_items(raws["items"], at_least=0) if _is_given(raws, "items") else [],
        metadata=_decode_metadata_field(raws["metadata"]) if _is_given(raws, "metadata") else {},
    )


def decode_metadata_update(body: bytes) -> dict[str, str]:
    """The body of `POST /conversations/{conversation_id}`: the metadata that replaces the old one."""
    raws = _read(body, ("metadata",))
    if "metadata" not in raws:
        raise checks.missing_parameter("metadata")
    # Null empties it, as the API has it.
    return _decode_metadata_field(raws["metadata"]) if _is_given(raws, "metadata") else {}


def decode_new_items(body: bytes) -> list[Item]:
    """The body of `POST /conversations/{conversation_id}/items`."""
    raws = _read(body, ("items",))
    if not _is_given(raws, "items"):
        raise checks.missing_parameter("items")
    return _decode_items(raws["items"], at_least=1)


def _read(body: bytes, known: tuple[str, ...]) -> dict[str, msgspec.Raw]:
    raws = checks.decode_body(body)
    for name in raws:
        if name not in known:
            raise checks.unknown_parameter("", name, known, raws)
    return raws


def _is_given(raws: Mapping[str, msgspec.Raw], name: str) -> bool:
    return name in raws and bytes(raws[name]) != _NULL


def _decode_items(raw: msgspec.Raw, *, at_least: int) -> list[Item]:
    if not bytes(raw).startswith(b"["):
        checks.check_value(raw, "items")
        raise checks.invalid_type("items", "an array", msgspec.json.decode(raw))
    items = decode_items(raw, "items")
    checks.check_length(items, at_least, MAX_NEW_ITEMS, "items")
    for position, item in enumerate(items):
        # A conversation is bound to no model server that might know more types.
        check_known(item, f"items[{position}]")
    return items


def _decode_metadata_field(raw: msgspec.Raw) -> dict[str, str]:
    checks.check_value(raw, "metadata")
    try:
        return _decode_metadata(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        checks.refuse(raw, Metadata, "metadata", error)
