"""Reasoning under seal: what comes back is read, what does not open is refused in the API's words."""

import re

import msgspec
import pytest

from antiphon.context.seal import PREFIX, SealKeys, seal
from antiphon.engine.sealing import (
    make_temporary_keys,
    open_reasoning,
    reopen_reasoning,
    seal_reasoning,
)
from antiphon.protocol.content import ReasoningText, SummaryText
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item, Reasoning, decode_item

KEYS = make_temporary_keys()
DAMAGED = "Reason: Encrypted content could not be decrypted or parsed."


def make_item(blob: str | None, **keys: object) -> Item:
    """A reasoning item as a client sends it, with a key that we do not know."""
    fields = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": blob, "odd": 1, **keys}
    raw = msgspec.json.encode({name: value for name, value in fields.items() if value is not None})
    return decode_item(raw, "input[3]")


def refuse(item: Item, tenant: str = "ada", keys: SealKeys = KEYS) -> RequestError:
    """The refusal of an item."""
    with pytest.raises(RequestError) as caught:
        open_reasoning(item, tenant, keys, "input[3]")
    assert (caught.value.status, caught.value.code, caught.value.param) == (
        400,
        "invalid_encrypted_content",
        None,
    )
    return caught.value


@pytest.mark.parametrize("content", [None, []])
def test_what_was_sealed_is_read_and_the_bytes_stay(content: list[object] | None) -> None:
    """Decided: raw bytes are kept, the view is what the model is told."""
    item = make_item(seal_reasoning("Es ist 42.", "ada", KEYS), content=content)
    opened = open_reasoning(item, "ada", KEYS, "input[3]")
    assert opened.raw == item.raw
    assert opened.value == Reasoning(id="rs_1", summary=[], content=[ReasoningText("Es ist 42.")])


def test_a_text_in_plain_is_kept_beside_its_seal() -> None:
    """Ours: what this server answers holds the summary and the seal; the client may send both back."""
    summary = [{"type": "summary_text", "text": "In short."}]
    item = make_item(seal_reasoning("At length.", "ada", KEYS), summary=summary)
    opened = open_reasoning(item, "ada", KEYS, "input[3]")
    assert opened.value == Reasoning(id="rs_1", summary=[SummaryText("In short.")])
    assert DAMAGED in refuse(make_item(seal_reasoning("", "ben", KEYS), summary=summary)).message


def test_other_items_come_back_as_they_are() -> None:
    """Ours."""
    plain = make_item(None)
    message = decode_item(b'{"role": "user", "content": "x"}', "input[0]")
    for item in (plain, message):
        assert open_reasoning(item, "ada", KEYS, "input[3]") is item
        assert reopen_reasoning(item, "ada", KEYS) == (item, None)


def test_a_damaged_seal_is_refused_in_the_api_s_words() -> None:
    """Responses API 5.4: with the id of the item."""
    blob = seal_reasoning("x", "ada", KEYS)
    error = refuse(make_item(blob[:-5]))
    assert error.message == f"The encrypted content for item rs_1 could not be verified. {DAMAGED}"


def test_without_an_id_the_ends_of_the_blob_are_quoted() -> None:
    """Responses API 5.4: "garb...bage"."""
    error = refuse(make_item("garbage", id=None))
    assert error.message == (
        "The encrypted content garb...bage could not be verified. "
        "Reason: It was not sealed by this server. It stands at input[3]."
    )
    assert "Reason: It was not sealed by this server." in refuse(make_item("")).message


def test_another_tenant_s_seal_is_told_as_a_damaged_one() -> None:
    """Ours: nothing leaks, not even that it would open for somebody."""
    blob = seal_reasoning("x", "ben", KEYS)
    assert refuse(make_item(blob)).message == refuse(make_item(blob[:-1] + "A" * 5)).message


def test_a_seal_of_another_kind_or_of_no_text_is_damaged() -> None:
    """Ours."""
    summary = seal(b"x", kind="compaction", tenant="ada", keys=KEYS, nonce=bytes(12))
    bytes_ = seal(b"\xff", kind="reasoning", tenant="ada", keys=KEYS, nonce=bytes(12))
    for blob in (summary, bytes_):
        assert DAMAGED in refuse(make_item(blob)).message


def test_another_server_s_seal_names_its_key_as_the_reason() -> None:
    """Ours: after a lost key file a person must be able to see what happened."""
    blob = seal_reasoning("x", "ada", make_temporary_keys())
    assert "a key that this server does not have" in refuse(make_item(blob)).message


def test_what_was_stored_and_opens_no_more_is_no_error() -> None:
    """Ours: history that was accepted can be continued, and the response says what the model does not see."""
    blob = seal_reasoning("x", "ada", KEYS)
    assert reopen_reasoning(make_item(blob), "ada", KEYS)[0].value == Reasoning(
        id="rs_1", summary=[], content=[ReasoningText("x")]
    )
    item, note = reopen_reasoning(make_item(blob), "ada", make_temporary_keys())
    assert item.value == Reasoning(id="rs_1", summary=[])
    assert item.raw == make_item(blob).raw
    assert note is not None
    assert re.fullmatch(
        r"Earlier sealed reasoning is not shown to the model\. It was sealed with a key .*\.", note
    )
    plain = make_item(blob, content=[{"type": "reasoning_text", "text": "y"}])
    item, note = reopen_reasoning(plain, "ada", make_temporary_keys())
    assert (item.value, note) == (Reasoning(id="rs_1", summary=[], content=[ReasoningText("y")]), None)


def test_two_seals_of_one_text_differ() -> None:
    """Ours: a nonce is used once."""
    first, second = (seal_reasoning("x", "ada", KEYS) for _ in range(2))
    assert first != second
    assert first.startswith(PREFIX)
