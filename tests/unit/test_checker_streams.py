"""The checker's pure reading of streams, of cuts and of notices; and the restart command."""

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.checker import run_restart_command
from antiphon.checker.answers import Answer, read_response
from antiphon.checker.doubles import HonestDouble
from antiphon.checker.recordings import (
    Recording,
    decode_recording,
    find_call_faults,
    find_ending_faults,
    find_final_faults,
    find_id_faults,
    find_number_faults,
    find_order_faults,
    find_text_faults,
)
from antiphon.checker.requirements.filling import takes_too_long
from antiphon.checker.requirements.speaking import CUT_TOKENS, find_notice, judge_cut
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Verdict

Find = Callable[[Recording], list[str] | None]
QUESTIONS: tuple[Find, ...] = (
    find_order_faults,
    find_number_faults,
    find_ending_faults,
    find_text_faults,
    find_id_faults,
    find_final_faults,
    find_call_faults,
)
TOOL = {"type": "function", "name": "open_vault", "parameters": {"properties": {"name": {}}}}


def record(*, calls: bool = False) -> list[dict[str, Any]]:
    """The honest double's events for a text, or for a call."""
    body: dict[str, Any] = {
        "model": "toy",
        "input": "What word did I tell you? The word is blue.",
        "stream": True,
    }
    if calls:
        body |= {"tools": [TOOL], "tool_choice": "required"}
    double = HonestDouble()
    return list(double.number(double.stream(double.respond(body))))


def record_reasoning() -> list[dict[str, Any]]:
    """A response whose one item is a reasoning summary in two deltas."""
    item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "So it is."}]}
    place = {"output_index": 0, "item_id": "rs_1", "summary_index": 0}
    part, opened = (
        {"type": "summary_text", "text": ""},
        {"id": "resp_1", "status": "in_progress", "output": []},
    )
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": opened},
        {"type": "response.in_progress", "response": opened},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "summary": []}},
        {"type": "response.reasoning_summary_part.added", **place, "part": part},
        {"type": "response.reasoning_summary_text.delta", **place, "delta": "So "},
        {"type": "response.reasoning_summary_text.delta", **place, "delta": "it is."},
        {"type": "response.reasoning_summary_text.done", **place, "text": "So it is."},
        {"type": "response.reasoning_summary_part.done", **place, "part": item["summary"][0]},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {
            "type": "response.incomplete",
            "response": {
                **opened,
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
                "output": [item],
            },
        },
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def find_all(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Question -> faults, where there are any."""
    answers = {find.__name__: find(Recording(events)) for find in QUESTIONS}
    return {name: faults for name, faults in answers.items() if faults}


@pytest.mark.parametrize(
    "events", [record(), record(calls=True), record_reasoning()], ids=["text", "call", "reasoning"]
)
def test_a_right_stream_has_no_fault(events: list[dict[str, Any]]) -> None:
    """Responses API, streaming."""
    assert find_all(events) == {}


def change(events: list[dict[str, Any]], kind: str, **members: Any) -> list[dict[str, Any]]:
    """The events with members of the first one of this kind replaced."""
    place = next(place for place, event in enumerate(events) if event["type"] == kind)
    return [*events[:place], {**events[place], **members}, *events[place + 1 :]]


@pytest.mark.parametrize(
    ("events", "guilty"),
    [
        (record()[1:], {"find_order_faults", "find_number_faults"}),
        (record()[:-1], {"find_ending_faults", "find_final_faults"}),
        ([*record(), record()[-1]], {"find_ending_faults", "find_number_faults"}),
        (change(record(), "response.output_text.delta", delta="green"), {"find_text_faults"}),
        (change(record(), "response.output_text.done", text="green"), {"find_text_faults"}),
        (change(record(), "response.output_text.delta", item_id="msg_other"), {"find_id_faults"}),
        (change(record(), "response.in_progress", response={"id": "resp_other"}), {"find_id_faults"}),
        (
            change(record_reasoning(), "response.reasoning_summary_text.delta", delta="No, "),
            {"find_text_faults"},
        ),
        (
            change(record(calls=True), "response.function_call_arguments.done", arguments="{}"),
            {"find_text_faults"},
        ),
        (
            change(record(calls=True), "response.output_item.added", item={"type": "function_call"}),
            {"find_id_faults", "find_call_faults"},
        ),
    ],
)
def test_each_question_is_answered_alone(events: list[dict[str, Any]], guilty: set[str]) -> None:
    """Ours: one fault is not reported as another."""
    assert set(find_all(events)) == guilty


def test_text_that_no_delta_told_is_found() -> None:
    """Responses API, streaming; servers that send the whole text with the finished item alone."""
    events = [event for event in record() if not event["type"].startswith("response.output_text")]
    assert find_text_faults(Recording(events)) == ["part 0 of item 0 has a text, and no delta told it"]


def test_events_of_an_extension_may_stand_anywhere() -> None:
    """Open Responses, extensions: clients skip what they do not know."""
    events = record()
    assert (
        find_order_faults(Recording([{"type": "acme:note"}, *events[:3], {"type": "acme:note"}, *events[3:]]))
        == []
    )


def test_only_the_end_mark_may_follow_the_terminal_event() -> None:
    """Open Responses: a literal [DONE]."""
    body = b"".join(b"data: %s\n\n" % msgspec.json.encode(event) for event in record())
    assert find_ending_faults(decode_recording(body + b"data: [DONE]\n\n")) == []
    assert find_ending_faults(decode_recording(body + b"data: bye\n\n")) == [
        "after the terminal event came other data"
    ]
    assert find_ending_faults(Recording([])) == ["the stream ended without a terminal event, after nothing"]


def test_no_stream_breaks_a_question() -> None:
    """Ours: members of wrong types, missing, or huge."""
    chance = random.Random(1)
    junk: list[Any] = [None, True, -1, 10**15, "", "x", [], {}, [None], [[]], {"type": 7}, {"id": []}]
    for _ in range(600):
        events = msgspec.json.decode(msgspec.json.encode(chance.choice([record(), record(calls=True)])))
        for _ in range(3):
            event = chance.choice(events)
            target = chance.choice([event, *(value for value in event.values() if isinstance(value, dict))])
            if target:
                target[chance.choice(list(target))] = chance.choice(junk)
        for find in QUESTIONS:
            faults = find(Recording(events))
            assert faults is None or all(isinstance(fault, str) for fault in faults)


def answer(status: str, text: str, tokens: int | None, reason: str | None = None) -> Answer:
    """An answer to the long task."""
    body = {
        "id": "resp_1",
        "status": status,
        "output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}],
        "usage": None if tokens is None else {"output_tokens": tokens},
        "incomplete_details": {"reason": reason} if reason else None,
    }
    found = read_response(body)
    assert isinstance(found, Answer)
    return found


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (answer("incomplete", "one, two", CUT_TOKENS, "max_output_tokens"), Verdict.PASS),
        (answer("incomplete", "one, two", None, "max_output_tokens"), Verdict.PASS),
        (answer("incomplete", "one, two", CUT_TOKENS, "content_filter"), Verdict.FAIL),
        (answer("incomplete", "one, two", CUT_TOKENS), Verdict.FAIL),
        (answer("completed", "one, two", CUT_TOKENS), Verdict.FAIL),
        (answer("completed", "one, two", CUT_TOKENS + 1), Verdict.FAIL),
        (answer("completed", "one " * 40, None), Verdict.FAIL),
        (answer("completed", "I would rather not.", 5), Verdict.UNKNOWN),
        (answer("completed", "I would rather not.", None), Verdict.UNKNOWN),
    ],
)
def test_a_cut_is_judged_by_tokens_status_and_reason(found: Answer, verdict: Verdict) -> None:
    """Responses API, max_output_tokens; llama.cpp's own route completes what it cut."""
    assert judge_cut(found).verdict is verdict


@pytest.mark.parametrize(
    ("members", "notice"),
    [
        ({}, None),
        ({"truncation": "disabled", "antiphon": {"warnings": [{"code": "tools_left_out"}]}}, None),
        ({"truncation": "auto"}, "truncation 'auto'"),
        (
            {"antiphon": {"warnings": [{"code": "upstream_truncated"}]}},
            "antiphon.warnings upstream_truncated",
        ),
        ({"antiphon": {"compaction": {"passes": 1}}}, "antiphon.compaction"),
        ({"antiphon": {"warnings": 7}}, None),
        ({"antiphon": "yes"}, None),
    ],
)
def test_a_notice_that_history_was_left_out_is_found(members: dict[str, Any], notice: str | None) -> None:
    """Ours, and Responses API, truncation."""
    found = read_response({"id": "resp_1", "status": "completed", "output": [], **members})
    assert isinstance(found, Answer)
    assert find_notice(found) == notice


@pytest.mark.parametrize(
    ("spent_s", "last_s", "too_long"),
    [(1.0, 1.0, False), (20.0, 10.0, False), (21.0, 10.0, True), (1.0, 20.0, True)],
)
def test_a_history_grows_no_further_than_time_allows(spent_s: float, last_s: float, too_long: bool) -> None:
    """Ours: a slow machine reads a long prompt for minutes; a fifth of the probe's time may be expected."""
    assert takes_too_long(spent_s, last_s, 300.0) is too_long


# The restart command.


def test_what_the_restart_command_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    """Ours: a server started in the background holds the command's output open for as long as it runs."""
    pid = tmp_path / "pid"
    waits = f"{sys.executable} -c 'import time; time.sleep(60)'"
    asyncio.run(run_restart_command(f"{waits} & echo $! > {pid}", timeout_s=20))
    # Raises where the process has been ended with the command.
    asyncio.run(run_restart_command(f"kill {pid.read_text().strip()}", timeout_s=20))


def test_a_restart_command_that_fails_says_what_it_said() -> None:
    """Ours."""
    with pytest.raises(UndecidedError, match="failed with status 3: no such unit"):
        asyncio.run(run_restart_command("echo no such unit; exit 3"))


def test_a_restart_command_that_hangs_is_killed(tmp_path: Path) -> None:
    """Ours: with what it runs in the foreground."""
    late = tmp_path / "late"
    with pytest.raises(UndecidedError, match=r"did not end in 0\.2 s"):
        asyncio.run(run_restart_command(f"sleep 30; touch {late}", timeout_s=0.2))
    assert not late.exists()
