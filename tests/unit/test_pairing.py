"""Calls and outputs along a path: who is owed an answer, and what does not fit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item, decode_items
from antiphon.sessions.pairing import check_pairing


def items(*members: dict[str, Any]) -> list[Item]:
    """Items from their JSON."""
    return decode_items(json.dumps(members).encode(), "input")


def call(call_id: str, item_id: str | None = None) -> dict[str, Any]:
    """A function call."""
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}", "id": item_id}


def output(call_id: str) -> dict[str, Any]:
    """Its output."""
    return {"type": "function_call_output", "call_id": call_id, "output": "x"}


TEXT: dict[str, Any] = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("members", "open_calls"),
    [
        ([], ()),
        ([TEXT], ()),
        ([call("a"), output("a")], ()),
        ([call("a"), TEXT, output("a")], ()),
        ([call("a"), call("b"), output("b"), output("a")], ()),
        ([output("a")], ("a",)),
        ([TEXT, output("b"), TEXT, output("a")], ("a", "b")),
        ([output("a"), call("b"), output("b")], ("a",)),
        ([{**TEXT, "id": "msg_1"}, {**TEXT, "id": "msg_2"}], ()),
        ([TEXT, TEXT], ()),
    ],
)
def test_what_pairs_up_is_accepted(members: list[dict[str, Any]], open_calls: tuple[str, ...]) -> None:
    """Responses API 6.3, pairing rules: an output may come anywhere after its call."""
    check_pairing(items(*members), open_calls=frozenset(open_calls))


@pytest.mark.parametrize(
    ("members", "open_calls", "message"),
    [
        ([output("a")], (), "No tool call found for function call output with call_id a."),
        ([output("a"), call("a")], (), "No tool call found for function call output with call_id a."),
        ([call("a")], (), "No tool output found for function call a."),
        ([], ("a",), "No tool output found for function call a."),
        ([TEXT], ("a",), "No tool output found for function call a."),
        ([call("a"), call("b"), output("a")], (), "No tool output found for function call b."),
        ([call("a"), output("a"), output("a")], (), None),
        ([call("a"), call("a"), output("a")], (), None),
        (
            [{**TEXT, "id": "msg_1"}, {**TEXT, "id": "msg_1"}],
            (),
            "Duplicate item found with id msg_1. Remove duplicate items from your input and try again.",
        ),
    ],
)
def test_what_does_not_pair_up_is_refused(
    members: list[dict[str, Any]], open_calls: tuple[str, ...], message: str | None
) -> None:
    """Responses API 6.3: param input, code null, the API's own words where it has them."""
    with pytest.raises(RequestError) as caught:
        check_pairing(items(*members), open_calls=frozenset(open_calls))
    error = caught.value
    assert (error.status, error.param, error.code) == (400, "input", None)
    if message is not None:
        assert error.message == message


def test_the_path_is_asked_too() -> None:
    """Responses API 6.3: duplicates against earlier rounds, and outputs of calls that were answered there."""
    with pytest.raises(RequestError, match="Duplicate item found with id msg_1"):
        check_pairing(items({**TEXT, "id": "msg_1"}), is_earlier_item={"msg_1"}.__contains__)
    with pytest.raises(RequestError, match="call_id a"):
        check_pairing(items(call("a"), output("a")), is_earlier_call={"a"}.__contains__)
    with pytest.raises(RequestError, match="a has its output already"):
        check_pairing(items(output("a")), is_earlier_call={"a"}.__contains__)


MEMBERS = st.sampled_from([TEXT, *[make(name) for make in (call, output) for name in "abc"]])


@given(st.lists(MEMBERS, max_size=8), st.frozensets(st.sampled_from("abc")))
def test_it_agrees_with_the_plain_rule(members: list[dict[str, Any]], open_calls: frozenset[str]) -> None:
    """Invariant: after it returns, every output has its call before it and no call is left open."""
    waiting, known, fits = set(open_calls), set(open_calls), True
    for member in members:
        name = str(member.get("call_id"))
        if member.get("type") == "function_call":
            # An earlier open call of the same id is what `is_earlier_call` tells of.
            fits &= name not in known
            waiting.add(name)
            known.add(name)
        elif member.get("type") == "function_call_output":
            fits &= name in waiting
            waiting.discard(name)
    fits &= not waiting
    try:
        check_pairing(items(*members), open_calls=open_calls, is_earlier_call=open_calls.__contains__)
    except RequestError:
        assert not fits
    else:
        assert fits
