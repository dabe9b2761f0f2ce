"""Reasoning under seal: what `reasoning.encrypted_content` holds, and the view of it once it is opened.

It knows seals and items, no request and no backend. Invariant: an item's raw bytes stay as they came; only its view
is replaced.
"""

import secrets

import msgspec

from antiphon.context.seal import (
    KEY_BYTES,
    NONCE_BYTES,
    REASONS,
    SealError,
    SealKeys,
    derive_key_id,
    is_seal,
    open_seal,
    seal,
)
from antiphon.protocol.content import ReasoningText
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item, Reasoning

#: Characters of a blob that a refusal quotes from either end.
_QUOTED_CHARACTERS = 4


def make_temporary_keys() -> SealKeys:
    """One new key that is kept nowhere: its seals open as long as this process lives."""
    key = secrets.token_bytes(KEY_BYTES)
    key_id = derive_key_id(key)
    return SealKeys({key_id: key}, key_id)


def seal_reasoning(text: str, tenant: str, keys: SealKeys) -> str:
    """`encrypted_content` for a reasoning text; raises `SealError` for one of more than 64 MiB."""
    return seal(
        text.encode("utf-8"),
        kind="reasoning",
        tenant=tenant,
        keys=keys,
        nonce=secrets.token_bytes(NONCE_BYTES),
    )


def open_reasoning(item: Item, tenant: str, keys: SealKeys, where: str) -> Item:
    """The item as a chat dialect reads it: what is sealed stands in `content`, unless a text is there in plain.

    Any other item, and reasoning that is not sealed, comes back as it is. Raises `RequestError`
    (invalid_encrypted_content) for a seal that does not open; `where` is the item's place, `input[3]`.
    """
    value = item.value
    if not isinstance(value, Reasoning) or value.encrypted_content is None:
        return item
    try:
        text = _open(value.encrypted_content, tenant, keys)
    except SealError as error:
        raise make_seal_refusal(error, value.id, value.encrypted_content, where) from error
    content = value.content if value.content or value.summary else [ReasoningText(text)]
    return _replace_view(item, value, content)


def reopen_reasoning(item: Item, tenant: str, keys: SealKeys) -> tuple[Item, str | None]:
    """As `open_reasoning`, for an item that was accepted before: one that does not open is no error.

    It comes back without the sealed part in its view; with it a sentence when the model therefore sees nothing of it.
    """
    value = item.value
    if not isinstance(value, Reasoning) or value.encrypted_content is None:
        return item, None
    if value.content or value.summary:
        return _replace_view(item, value, value.content), None
    try:
        text = _open(value.encrypted_content, tenant, keys)
    except SealError as error:
        note = f"Earlier sealed reasoning is not shown to the model. {REASONS[error.reason]}"
        return _replace_view(item, value, None), note
    return _replace_view(item, value, [ReasoningText(text)]), None


def leave_out_own(items: list[Item]) -> tuple[list[Item], str | None]:
    """The items as another Responses server may see them: our own seals mean nothing there.

    With a sentence when reasoning was left out for that.
    """
    kept = [item for item in items if not _is_own(item)]
    if len(kept) == len(items):
        return items, None
    return (
        kept,
        "Earlier reasoning that this server sealed is not shown to a model behind another Responses server.",
    )


def _is_own(item: Item) -> bool:
    value = item.value
    return (
        isinstance(value, Reasoning)
        and value.encrypted_content is not None
        and is_seal(value.encrypted_content)
    )


def make_seal_refusal(error: SealError, item_id: str | None, blob: str, where: str) -> RequestError:
    """The API's refusal of `encrypted_content`: it names the item by its id, or else quotes the ends of the blob."""
    place = ""
    subject = f"for item {item_id}"
    if item_id is None:
        subject = f"{blob[:_QUOTED_CHARACTERS]}...{blob[-_QUOTED_CHARACTERS:]}"
        place = f" It stands at {where}."
    return RequestError(
        f"The encrypted content {subject} could not be verified. Reason: {REASONS[error.reason]}{place}",
        code="invalid_encrypted_content",
    )


def _open(blob: str, tenant: str, keys: SealKeys) -> str:
    try:
        return open_seal(blob, kind="reasoning", tenant=tenant, keys=keys).decode("utf-8")
    except UnicodeDecodeError:
        raise SealError("damaged") from None


def _replace_view(item: Item, value: Reasoning, content: list[ReasoningText] | None) -> Item:
    view = msgspec.structs.replace(value, content=content, encrypted_content=None)
    return Item(item.type, item.raw, view)
