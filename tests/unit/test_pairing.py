"""Calls and outputs along a path: who is owed an answer, and what does not fit."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item, decode_items
from antiphon.sessions.pairing import check_pairing, list_approvals


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


CUSTOM: dict[str, Any] = {"type": "custom_tool_call", "call_id": "a", "name": "c", "input": "x"}
SHELL: dict[str, Any] = {"type": "shell_call", "call_id": "a", "action": {"commands": ["ls"]}}
PATCH: dict[str, Any] = {
    "type": "apply_patch_call",
    "call_id": "a",
    "status": "completed",
    "operation": {"type": "delete_file", "path": "x"},
}
SEARCH: dict[str, Any] = {"type": "tool_search_call", "call_id": "a", "execution": "client", "arguments": {}}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([CUSTOM], "No tool output found for custom tool call a."),
        ([SHELL], "No tool output found for shell call a."),
        ([PATCH], "No tool output found for apply patch call a."),
        ([SEARCH], "No tool output found for tool search call a."),
        (
            [{"type": "custom_tool_call_output", "call_id": "a", "output": "x"}],
            "No tool call found for custom tool call output with call_id a.",
        ),
        (
            [{"type": "shell_call_output", "call_id": "a", "output": []}],
            "No tool call found for shell call output with call_id a.",
        ),
    ],
)
def test_each_kind_of_call_is_told_by_its_name(members: list[dict[str, Any]], message: str) -> None:
    """Responses API 6.3: the text has variants for custom and shell calls."""
    with pytest.raises(RequestError) as caught:
        check_pairing(items(*members))
    assert (caught.value.message, caught.value.param) == (message, "input")


def test_an_open_call_of_the_path_is_told_by_its_kind_where_that_is_known() -> None:
    """Ours: a path keeps ids; what is no function's call can be named beside them."""
    with pytest.raises(RequestError, match="No tool output found for shell call a"):
        check_pairing([], open_calls={"a"}, call_types={"a": "shell_call"})


def test_a_search_that_a_server_ran_needs_no_output() -> None:
    """Spec: tool_search_call with execution server is answered by the server."""
    check_pairing(items({**SEARCH, "execution": "server"}))


LATER = {**call("a"), "async": True}


@pytest.mark.parametrize(
    "members",
    [
        [LATER],
        [LATER, TEXT],
        [LATER, output("a")],
        [LATER, output("a"), output("a")],
        [{**CUSTOM, "async": True}, TEXT],
    ],
)
def test_an_async_call_is_answered_late_or_twice_or_never(members: list[dict[str, Any]]) -> None:
    """Responses API 2.4, measured live."""
    check_pairing(items(*members))


def test_an_earlier_async_call_may_be_answered_again() -> None:
    """Responses API 2.4: in successive requests, too; an unknown call id is still refused."""
    for members in ([], [output("a")], [output("a"), TEXT, output("a")]):
        check_pairing(items(*members), async_calls={"a"}, is_earlier_call={"a"}.__contains__)
        check_pairing(items(*members), open_calls={"a"}, async_calls={"a"})
    with pytest.raises(RequestError, match="No tool call found"):
        check_pairing(items(output("b")), async_calls={"a"})
    with pytest.raises(RequestError, match="Duplicate call"):
        check_pairing(items(call("a")), async_calls={"a"}, is_earlier_call={"a"}.__contains__)


ASKED: dict[str, Any] = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "s",
    "name": "t",
    "arguments": "{}",
}
ANSWER: dict[str, Any] = {
    "type": "mcp_approval_response",
    "approval_request_id": "mcpr_1",
    "approve": True,
}


def test_an_approval_needs_its_request_and_comes_once() -> None:
    """Ours, by analogy with calls and outputs."""
    check_pairing(items(ASKED))
    check_pairing(items(ASKED, ANSWER))
    check_pairing(items(ANSWER), approvals={"mcpr_1": False})
    with pytest.raises(RequestError) as caught:
        check_pairing(items(ANSWER))
    assert (caught.value.param, caught.value.message) == (
        "input",
        "No approval request found for MCP approval response with approval_request_id mcpr_1.",
    )
    for members, approvals in (([ASKED, ANSWER, ANSWER], None), ([ANSWER], {"mcpr_1": True})):
        with pytest.raises(RequestError, match="mcpr_1 has its response already"):
            check_pairing(items(*members), approvals=approvals)


def test_the_approvals_of_a_path_are_listed() -> None:
    """Ours."""
    other = {**ASKED, "id": "mcpr_2"}
    assert list_approvals(items(TEXT, ASKED, other, ANSWER)) == {"mcpr_1": True, "mcpr_2": False}


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


@pytest.mark.parametrize("call_types", [{}, {"c": "custom_tool_call"}])
def test_an_output_of_another_kind_than_its_call_is_refused(call_types: dict[str, str]) -> None:
    """Responses API: each kind of call has its own kind of output."""
    kind = "function_call_output" if call_types else "custom_tool_call_output"
    wrong = items({"type": kind, "call_id": "c", "output": "x"})
    with pytest.raises(RequestError, match="must be an item of type"):
        check_pairing(wrong, open_calls=["c"], call_types=call_types)
