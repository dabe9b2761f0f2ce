"""How the families of probes take refusals, and what they find wrong with responses and events."""

from typing import Any

import msgspec
import pytest

from antiphon.checker.answers import Refusal
from antiphon.checker.requirements.events import find_member_faults
from antiphon.checker.requirements.judging import (
    dig,
    expect_refusal,
    find_unserved,
    find_warning,
    holds,
    judge_refusal,
    read_objects,
)
from antiphon.checker.requirements.open_responses import (
    RESPONSE_KEYS,
    find_event_faults,
    find_response_faults,
)
from antiphon.checker.subject import Fetched
from antiphon.checker.verdicts import Verdict

PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN


def make_error(status: int, **error: Any) -> Fetched:
    """An HTTP answer with an error object."""
    body = {"message": "No.", "type": "invalid_request_error", "param": None, "code": None, **error}
    return Fetched(status, {}, msgspec.json.encode({"error": body}))


@pytest.mark.parametrize(
    ("refusal", "verdict"),
    [
        (Refusal(400, "Unsupported.", param="top_p"), PASS),
        (Refusal(400, "top_p is not known here."), PASS),
        (Refusal(422, "top_p: extra fields not permitted"), PASS),
        (Refusal(400, "Bad request."), FAIL),
        (Refusal(500, "top_p broke something"), UNKNOWN),
        (Refusal(429, "top_p later"), UNKNOWN),
    ],
)
def test_a_refusal_is_honest_where_it_names_the_field(refusal: Refusal, verdict: Verdict) -> None:
    """Ours: nothing is accepted without effect, and what is refused is named."""
    assert judge_refusal(refusal, "top_p").verdict is verdict


@pytest.mark.parametrize(
    ("fetched", "verdict"),
    [
        (make_error(404, message="Item with id 'x' not found.", code="gone"), PASS),
        (make_error(404, message="Item with id 'x' not found."), FAIL),
        (make_error(400, message="Item with id 'x' not found.", code="gone"), FAIL),
        (make_error(404, code="gone"), FAIL),
        (make_error(500, message="'x'", code="gone"), UNKNOWN),
        (make_error(429, message="'x'", code="gone"), UNKNOWN),
        (Fetched(200, {}, b"{}"), FAIL),
    ],
)
def test_an_error_has_its_status_its_code_and_a_name(fetched: Fetched, verdict: Verdict) -> None:
    """Responses API, errors."""
    outcome = expect_refusal(fetched, "an unknown item", status=404, code="gone", names=("'x'",))
    assert outcome.verdict is verdict


def test_a_route_that_is_not_there_is_no_fault() -> None:
    """Ours: a server need not have conversations."""
    outcome = find_unserved(make_error(404), "conversations")
    assert outcome is not None
    assert (outcome.verdict, outcome.needs) == (UNKNOWN, "a server that has conversations")
    assert find_unserved(Fetched(200, {}, b"{}"), "conversations") is None
    assert find_unserved(make_error(400), "conversations") is None


def test_values_are_found_by_their_path_and_compared_by_what_is_wanted() -> None:
    """Ours: more may stand there, less may not; true is not 1."""
    body = {
        "tools": [{"type": "mcp", "filters": {"a": 1}}],
        "antiphon": {"warnings": [{"code": "c", "message": "m x"}, 7]},
    }
    assert dig(body, "tools.0.filters.a") == 1
    assert [dig(body, path) for path in ("tools.1", "tools.x", "nothing.at.all", "tools.0.type.0")] == [
        None
    ] * 4
    assert holds(body, {"tools": [{"type": "mcp"}]})
    assert not holds(body, {"tools": []})
    assert not holds({"a": 1}, {"a": True})
    assert find_warning(body, "x") == "c: m x"
    assert find_warning(body, "y") is None
    assert read_objects([{}, 1, None]) == [{}]
    assert read_objects("text") == []


def make_response(**more: Any) -> dict[str, Any]:
    """A response that fits the contract, and what differs."""
    chosen: dict[str, Any] = {
        name: None if None in types else types[0]() if types[0] is not None else None
        for name, types in RESPONSE_KEYS.items()
    }
    return {**chosen, "object": "response", "status": "completed", **more}


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({}, None),
        ({"temperature": None}, "temperature is NoneType"),
        ({"store": 1}, "store is int"),
        ({"top_logprobs": True}, "top_logprobs is bool"),
        ({"status": "done"}, "status is 'done'"),
        ({"usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}}, "cached_tokens is no number"),
        ({"output": [{"type": "telegram"}]}, "none of the contract's"),
        (
            {"output": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}]},
            "is null",
        ),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0] has no description, parameters, strict"),
        ({"output": 7}, "output is int"),
    ],
)
def test_a_response_is_held_against_the_contract(more: dict[str, Any], fault: str | None) -> None:
    """Open Responses, contract 2026-04-24: ResponseResource."""
    faults = find_response_faults(make_response(**more))
    assert (faults == []) if fault is None else any(fault in told for told in faults), faults


def test_a_response_without_a_key_is_none() -> None:
    """Open Responses, contract 2026-04-24: every key is required."""
    for name in RESPONSE_KEYS:
        response = make_response()
        del response[name]
        assert find_response_faults(response) != []
    assert find_response_faults([]) == ["there is no response object"]


@pytest.mark.parametrize(
    ("event", "faults"),
    [
        ({"type": "response.queued", "sequence_number": 1, "response": {}}, []),
        ({"type": "response.queued", "sequence_number": 1}, ["response is missing"]),
        (
            {"type": "response.queued", "sequence_number": True, "response": []},
            ["response is list", "sequence_number is missing"],
        ),
        ({"type": "error", "sequence_number": 1, "code": None, "message": "It broke.", "param": None}, []),
        ({"type": "error", "sequence_number": 1, "error": {"message": "It broke."}}, []),
        ({"type": "response.steer.accepted", "steer": {}}, []),
        ({"type": "response.steer.accepted", "steer": "s"}, ["steer is str"]),
    ],
)
def test_an_event_has_its_members(event: dict[str, Any], faults: list[str]) -> None:
    """Responses API, streaming events; an error is nested on the wire and flat in the SDKs."""
    assert find_member_faults(event, event["type"]) == faults


def test_an_event_of_another_union_is_found() -> None:
    """Open Responses, contract 2026-04-24: its own names for raw reasoning."""
    assert find_event_faults({"type": "response.reasoning.delta", "sequence_number": 0}) == []
    assert find_event_faults({"type": "response.reasoning_text.delta", "sequence_number": 0}) != []
