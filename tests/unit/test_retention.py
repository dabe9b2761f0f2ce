"""Zero retention: nothing of a request is kept, and what needs keeping is refused by name."""

import msgspec
import pytest

from antiphon.engine.retention import apply_zero_retention, refuse_conversation_write
from antiphon.protocol.errors import RequestError
from antiphon.protocol.requests import CreateRequest, decode_create_request


def make_request(**fields: object) -> CreateRequest:
    """A request of a client."""
    return decode_create_request(msgspec.json.encode({"model": "m", "input": "x", **fields}))


@pytest.mark.parametrize("store", [True, False, None])
def test_nothing_is_stored_whatever_is_sent(store: bool | None) -> None:
    """Decided: `store` is forced false, and echoed so."""
    request = make_request(store=store, background=False, previous_response_id="resp_1")
    apply_zero_retention(request)
    assert request.store is False
    assert request.previous_response_id == "resp_1"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"background": True, "store": False}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}, "store": False}, "conversation"),
    ],
)
def test_what_has_to_be_kept_is_refused(fields: dict[str, object], param: str) -> None:
    """Decided: a background response and a conversation cannot be without being kept."""
    with pytest.raises(RequestError) as caught:
        apply_zero_retention(make_request(**fields))
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "zero_retention", param)
    assert f"Leave '{param}' out" in error.message


def test_conversations_are_not_written() -> None:
    """Decided: what exists can be read and deleted; nothing is created or added."""
    refuse_conversation_write(zero_retention=False)
    with pytest.raises(RequestError, match="can be read and deleted") as caught:
        refuse_conversation_write(zero_retention=True)
    assert (caught.value.status, caught.value.code) == (400, "zero_retention")
