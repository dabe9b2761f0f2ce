"""Backend events become output items in strict order, whatever comes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import (
    BackendEvent,
    CallDelta,
    Failed,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.engine.assembler import Assembler
from antiphon.engine.sink import EventSink
from antiphon.protocol import events as api
from antiphon.protocol.errors import BackendError
from antiphon.protocol.lifecycle import StreamChecker
from tests.scenarios import strict

NODE = "resp_" + "0" * 36
RESPONSE = json.dumps({"id": NODE, "status": "in_progress", "output": []}).encode()


class Run:
    """One assembler fed to its end, with all that it sent."""

    def __init__(self, *batches: list[BackendEvent], single_call: bool = False, taken: tuple[str, ...] = ()):
        self.sink = EventSink(emit=True)
        self.sink.send_response(api.ResponseCreated, RESPONSE)
        self.sink.send_response(api.ResponseInProgress, RESPONSE)
        self.assembler = Assembler(
            self.sink,
            node_id=NODE,
            first_position=1,
            is_taken=taken.__contains__,
            single_call=single_call,
        )
        for batch in batches:
            self.assembler.feed(batch)
        self.events = [json.loads(data) for _, data in self.sink.take()]
        self.output: list[dict[str, Any]] = [json.loads(raw) for raw in self.assembler.output]

    def check(self) -> None:
        """The stream so far is lawful and says what the output says."""
        checker = StreamChecker()
        for event in self.events:
            if "response" not in event:
                strict.check_event(event)
            assert checker.feed(event) == []
        done = [event["item"] for event in self.events if event["type"] == "response.output_item.done"]
        assert done == [item for item in self.output if not self.is_half(item)]
        for item in self.output:
            strict.check_output_item(item)

    def is_half(self, item: dict[str, Any]) -> bool:
        """Whether it is a call that broke off with the response: such a one is never told as done."""
        outcome = self.assembler.outcome
        failed = outcome is not None and outcome.status in ("failed", "cancelled")
        return failed and item["type"].endswith("_call") and item.get("status") == "incomplete"

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Status, name and arguments of the calls."""
        return [
            (item["status"], item["name"], item["arguments"])
            for item in self.output
            if item["type"] == "function_call"
        ]


def end(reason: Any = "stop") -> list[BackendEvent]:
    """The generation ends."""
    return [Finished(reason)]


def test_calls_that_interleave_become_one_item_after_the_other() -> None:
    """Responses API 4.7: each complete before the next, whatever the order of the fragments."""
    run = Run(
        [CallDelta(0, "a", "f", ""), CallDelta(1, "b", "g", '{"y"')],
        [CallDelta(0, "", "", '{"x":'), CallDelta(1, "", "", ":2}"), CallDelta(0, "", "", "1}")],
        end(),
    )
    run.check()
    assert run.calls == [("completed", "f", '{"x":1}'), ("completed", "g", '{"y":2}')]
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.status == "completed"


def test_text_after_calls_is_a_message_of_its_own() -> None:
    """Responses API 4.8: messages and calls may alternate."""
    run = Run(
        [TextDelta("Look. "), CallDelta(0, "a", "f", "{}"), CallDelta(1, "b", "g", "{}")],
        [TextDelta("Done.")],
        end(),
    )
    run.check()
    assert [item["type"] for item in run.output] == [
        "message",
        "function_call",
        "function_call",
        "message",
    ]


def test_blank_text_around_calls_is_no_message() -> None:
    """Ours: templates put line breaks before calls."""
    run = Run([TextDelta("\n\n"), CallDelta(0, "a", "f", "{}"), TextDelta("\n")], end())
    run.check()
    assert [item["type"] for item in run.output] == ["function_call"]


def test_blank_text_before_text_is_kept() -> None:
    """Ours: not one character of an answer is lost."""
    run = Run([TextDelta("\n"), TextDelta(" "), TextDelta("a"), TextDelta(" ")], end())
    run.check()
    assert run.output[0]["content"][0]["text"] == "\n a "


def test_blank_text_alone_is_the_answer() -> None:
    """Ours: blanks were generated, so they are the answer."""
    run = Run([TextDelta(" "), TextDelta("\n")], end())
    run.check()
    assert run.output[0]["content"][0]["text"] == " \n"


def test_a_call_without_arguments_has_an_empty_object() -> None:
    """Ours: clients parse the text as JSON."""
    run = Run([CallDelta(0, "a", "f", "")], end())
    run.check()
    assert run.calls == [("completed", "f", "{}")]


def test_a_call_whose_name_comes_late_waits_for_it() -> None:
    """Ours: calls with missing ids or arguments in one piece."""
    run = Run([CallDelta(0, "", "", '{"x":1}')], [CallDelta(0, "", "f", "")], end())
    run.check()
    assert run.calls == [("completed", "f", '{"x":1}')]
    assert run.output[0]["call_id"].startswith("call_")


def test_a_call_that_never_gets_a_name_is_reported() -> None:
    """Promise 1: nothing is lost silently."""
    run = Run([TextDelta("x"), CallDelta(0, "", "", '{"x":1}')], end())
    run.check()
    assert run.calls == []
    assert [code for code, _ in run.assembler.warnings] == ["nameless_call"]
    assert '{"x":1}' in run.assembler.warnings[0][1]


@pytest.mark.parametrize("fragments", [["{}"], ["{", "}"], ["", "{", '"a":', "1}"]])
def test_a_further_call_is_dropped_in_whatever_pieces_it_comes(fragments: list[str]) -> None:
    """Responses API 2, `parallel_tool_calls: false`: the first call stays, the response completes."""
    further: list[BackendEvent] = [CallDelta(1, "b", "g", fragments[0])]
    further += [CallDelta(1, "", "", piece) for piece in fragments[1:]]
    run = Run([CallDelta(0, "a", "f", "{}")], further, end(), single_call=True)
    run.check()
    assert run.calls == [("completed", "f", "{}")]
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.status == "completed"
    assert [code for code, _ in run.assembler.warnings] == ["parallel_call_dropped"]


def test_ids_that_are_taken_are_replaced() -> None:
    """Ours: on a path an id names one call."""
    run = Run(
        [CallDelta(0, "a", "f", "{}"), CallDelta(1, "a", "f", "{}"), CallDelta(2, "t", "f", "{}")],
        end(),
        taken=("t",),
    )
    run.check()
    ids = [item["call_id"] for item in run.output]
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert "t" not in ids


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_cut_leaves_only_the_last_item_incomplete(reason: Any) -> None:
    """Responses API 4.5."""
    run = Run([TextDelta("a"), CallDelta(0, "a", "f", '{"x":')], end(reason))
    run.check()
    assert [item["status"] for item in run.output] == ["completed", "incomplete"]
    assert run.calls == [("incomplete", "f", '{"x":')]


def test_whatever_comes_after_the_end_changes_nothing() -> None:
    """Invariant: the outcome is set exactly once."""
    run = Run([TextDelta("a")], end(), [Failed(BackendError("late"))])
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.status == "completed"
    run.assembler.cancel()
    run.assembler.fail(BackendError("later"))
    assert run.assembler.outcome.status == "completed"


def test_a_failure_closes_what_is_open() -> None:
    """Responses API 4.5: what is open is closed as incomplete; a call that is not whole is not told as done.

    Codex runs a call as soon as it is done, whatever its status, and again after the retry.
    """
    run = Run(
        [TextDelta("a"), CallDelta(0, "a", "f", "{"), CallDelta(1, "b", "g", "{")], [Failed(BackendError())]
    )
    run.check()
    assert run.output[0]["status"] == "completed"
    assert {item["status"] for item in run.output[1:]} == {"incomplete"}
    assert [event["type"] for event in run.events].count("response.output_item.done") == 1
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.status == "failed"


PIECES = st.sampled_from(["", " ", "\n", "a", "{", "}", "{}", '{"x":1}', '"', "é😀"])
DELTAS: st.SearchStrategy[BackendEvent] = st.one_of(
    PIECES.map(TextDelta),
    PIECES.map(ReasoningDelta),
    PIECES.map(RefusalDelta),
    st.builds(
        CallDelta,
        st.integers(0, 3),
        st.sampled_from(["", "a", "b", "t"]),
        st.sampled_from(["", "f", "g"]),
        PIECES,
    ),
)
ENDS: st.SearchStrategy[BackendEvent] = st.one_of(
    st.sampled_from([Finished("stop"), Finished("length"), Finished("content_filter")]),
    st.builds(lambda: Failed(BackendError("x"))),
)


@given(st.lists(DELTAS, max_size=25), ENDS, st.booleans())
def test_any_sequence_makes_a_lawful_stream_and_one_outcome(
    deltas: list[BackendEvent], last: BackendEvent, single_call: bool
) -> None:
    """Invariant: every item that was added is done, in order, and `outcome` is set exactly once."""
    run = Run(*[[delta] for delta in deltas], [last], single_call=single_call, taken=("t",))
    run.check()
    outcome = run.assembler.outcome
    assert outcome is not None
    if outcome.status == "completed":
        assert any(item["type"] != "reasoning" for item in run.output)
        assert all(item["status"] == "completed" for item in run.output)
    if outcome.status == "failed":
        assert outcome.error is not None
    call_ids = [item["call_id"] for item in run.output if item["type"] == "function_call"]
    assert len(set(call_ids)) == len(call_ids)
    assert "t" not in call_ids
    if single_call:
        assert len(call_ids) <= 1


@given(st.lists(PIECES, max_size=12), st.sampled_from(["text", "reasoning", "refusal"]))
def test_no_character_of_one_kind_of_answer_is_lost(pieces: list[str], kind: str) -> None:
    """Promise 1: the item's text is the sum of the deltas."""
    make: Any = {"text": TextDelta, "reasoning": ReasoningDelta, "refusal": RefusalDelta}[kind]
    run = Run([make(piece) for piece in pieces], end())
    run.check()
    told = "".join(
        part.get("text") or part.get("refusal") or ""
        for item in run.output
        for part in item.get("content", []) + item.get("summary", [])
    )
    assert told == "".join(pieces)
