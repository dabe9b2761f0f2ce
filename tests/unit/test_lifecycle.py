"""The lifecycle: what may follow what, and what is said of a stream that breaks the order."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.errors import LifecycleError
from antiphon.protocol.events import EVENT_TYPES, OutputTextDelta, decode_event
from antiphon.protocol.lifecycle import (
    ANY_EVENT,
    ITEM_ADDED,
    ITEM_DONE,
    TABLE,
    TERMINAL_EVENTS,
    Lifecycle,
    StreamChecker,
    draw_table,
    is_terminal,
)

#: What may stand between added and done, for every kind; `*` may be repeated or left out.
SEQUENCES = {
    "message": "content_part.added output_text.delta* output_text.annotation.added* output_text.done"
    " content_part.done",
    "reasoning": "reasoning_summary_part.added reasoning_summary_text.delta* reasoning_summary_text.done"
    " reasoning_summary_part.done content_part.added reasoning_text.delta* reasoning_text.done"
    " content_part.done",
    "function_call": "function_call_arguments.delta* function_call_arguments.done",
    "custom_tool_call": "custom_tool_call_input.delta* custom_tool_call_input.done",
    "mcp_list_tools": "mcp_list_tools.in_progress mcp_list_tools.completed",
    "mcp_call": "mcp_call.in_progress mcp_call_arguments.delta* mcp_call_arguments.done mcp_call.failed",
    "web_search_call": "web_search_call.in_progress web_search_call.searching web_search_call.completed",
    "file_search_call": "file_search_call.in_progress file_search_call.searching file_search_call.completed",
    "code_interpreter_call": "code_interpreter_call.in_progress code_interpreter_call_code.delta*"
    " code_interpreter_call_code.done code_interpreter_call.interpreting code_interpreter_call.completed",
    "image_generation_call": "image_generation_call.in_progress image_generation_call.generating"
    " image_generation_call.partial_image* image_generation_call.completed",
    "shell_call": "shell_call_command.added shell_call_command.delta* shell_call_command.done",
    "shell_call_output": "shell_call_output_content.delta* shell_call_output_content.done",
    "compaction": "compaction.compacting*",
    "computer_call": "",
    "unheard_of": "",
}

#: Kinds that may also end with nothing in between.
REPEATABLE = {"shell_call_output", "compaction", "computer_call", "unheard_of"}

BEGIN = ["response.created", "response.in_progress"]


def opened(item_type: str = "message", *, interleaved: bool = False) -> Lifecycle:
    lifecycle = Lifecycle(interleaved=interleaved)
    for event_type in BEGIN:
        lifecycle.advance(event_type)
    lifecycle.advance(ITEM_ADDED, 0, item_type)
    return lifecycle


def walk(lifecycle: Lifecycle, steps: list[str]) -> None:
    for step in steps:
        lifecycle.advance(step, 0)


@given(data=st.data(), kinds=st.lists(st.sampled_from(sorted(SEQUENCES)), max_size=5), queued=st.booleans())
def test_every_kind_passes_in_its_own_order(data: st.DataObject, kinds: list[str], queued: bool) -> None:
    """Responses API, streaming: envelope order and the sequence of every kind, with keep-alives between."""
    lifecycle = Lifecycle()
    lifecycle.advance("response.created")
    if queued:
        lifecycle.advance("response.queued")
    lifecycle.advance("response.in_progress")
    for index, kind in enumerate(kinds):
        lifecycle.advance(ITEM_ADDED, index, kind)
        for step in SEQUENCES[kind].split():
            times = data.draw(st.integers(0, 3)) if step.endswith("*") else 1
            for _ in range(times):
                lifecycle.advance("response." + step.removesuffix("*"), index)
                lifecycle.advance("response.in_progress")
        lifecycle.advance(ITEM_DONE, index)
    assert not lifecycle.is_over
    lifecycle.advance(data.draw(st.sampled_from(sorted(TERMINAL_EVENTS))))
    lifecycle.end()
    assert lifecycle.is_over


@pytest.mark.parametrize("kind", sorted(set(SEQUENCES) - REPEATABLE))
def test_no_step_of_a_kind_may_be_left_out(kind: str) -> None:
    """Responses API, streaming: the sequences are not optional."""
    steps = [f"response.{step}" for step in SEQUENCES[kind].split() if not step.endswith("*")]
    for missing in range(len(steps)):
        lifecycle = opened(kind)
        with pytest.raises(LifecycleError):
            walk(lifecycle, [*steps[:missing], *steps[missing + 1 :], ITEM_DONE])


def test_a_refusal_is_a_part_of_a_message() -> None:
    """Responses API, streaming: refusal and text are parts of their own."""
    lifecycle = opened()
    for step in ("content_part.added", "refusal.delta", "refusal.done", "content_part.done"):
        lifecycle.advance(f"response.{step}", 0)
    lifecycle.advance("response.content_part.added", 0)
    lifecycle.advance("response.output_text.delta", 0)
    with pytest.raises(LifecycleError, match=r"refusal\.delta may not come in state text of message"):
        lifecycle.advance("response.refusal.delta", 0)


def test_a_response_may_fail_at_once_or_after_an_error() -> None:
    """Responses API, ending badly: created -> failed; an error is followed by `response.failed` alone."""
    lifecycle = Lifecycle()
    lifecycle.advance("response.created")
    lifecycle.advance("response.failed")
    lifecycle.end()
    lifecycle = opened()
    lifecycle.advance("error")
    for event_type, index in [(ITEM_DONE, 0), ("response.completed", None), (ITEM_ADDED, 1)]:
        with pytest.raises(LifecycleError):
            lifecycle.advance(event_type, index, "message")
    lifecycle.advance("response.failed")
    lifecycle.end()


@pytest.mark.parametrize("terminal", sorted(TERMINAL_EVENTS))
def test_nothing_comes_after_a_terminal_event(terminal: str) -> None:
    """Responses API, streaming: exactly one terminal event, last."""
    assert is_terminal(terminal)
    lifecycle = Lifecycle()
    for event_type in [*BEGIN, terminal]:
        lifecycle.advance(event_type)
    for event_type in [*BEGIN, *TERMINAL_EVENTS, "error"]:
        with pytest.raises(LifecycleError, match="allowed: nothing"):
            lifecycle.advance(event_type)
    with pytest.raises(LifecycleError, match="allowed: nothing"):
        lifecycle.advance(ITEM_ADDED, 0, "message")


def test_a_stream_without_a_terminal_event_is_not_over() -> None:
    """Responses API, streaming: exactly one terminal event."""
    with pytest.raises(LifecycleError, match="without a terminal event"):
        opened().end()


def test_items_are_numbered_and_come_one_after_another() -> None:
    """Responses API, streaming: output_index grows by one; the next item starts after the last is done."""
    lifecycle = opened("computer_call")
    with pytest.raises(LifecycleError, match="the item at 0 is not done"):
        lifecycle.advance(ITEM_ADDED, 1, "message")
    with pytest.raises(LifecycleError, match="items are not done: output_index 0"):
        lifecycle.advance("response.completed")
    lifecycle.advance(ITEM_DONE, 0)
    for wrong in (0, 2):
        with pytest.raises(LifecycleError, match=f"output_index is {wrong}, expected 1"):
            lifecycle.advance(ITEM_ADDED, wrong, "message")
    with pytest.raises(LifecycleError, match="no item is open at output_index 0"):
        lifecycle.advance(ITEM_DONE, 0)
    with pytest.raises(LifecycleError, match="needs an output_index"):
        lifecycle.advance(ITEM_ADDED)
    with pytest.raises(LifecycleError, match="needs an item type"):
        lifecycle.advance(ITEM_ADDED, 1)
    lifecycle.advance(ITEM_ADDED, 1, "message")


def test_interleaved_items_are_tolerated_on_request() -> None:
    """Responses API, parallel calls: the SDKs tolerate items that overlap."""
    lifecycle = opened("function_call", interleaved=True)
    lifecycle.advance(ITEM_ADDED, 1, "function_call")
    for index in (1, 0):
        lifecycle.advance("response.function_call_arguments.done", index)
        lifecycle.advance(ITEM_DONE, index)
    lifecycle.advance("response.completed")


def test_a_refused_step_changes_nothing() -> None:
    """Ours: the state after an error is the state before it."""
    lifecycle = opened()
    with pytest.raises(LifecycleError):
        lifecycle.advance(ITEM_DONE + "x", 0)
    lifecycle.advance("response.content_part.added", 0)


def test_every_event_of_the_table_has_a_struct_and_nearly_every_struct_a_row() -> None:
    """Ours: the table and the events are one vocabulary."""
    named = {event for _, _, event in TABLE}
    assert named - set(EVENT_TYPES) == {"response.reasoning.delta", "response.reasoning.done", ANY_EVENT}
    assert set(EVENT_TYPES) - named == {"response.steer"}


def test_the_drawing_has_a_row_for_every_row_of_the_table() -> None:
    """Ours: the documentation shows the table itself."""
    drawing = draw_table()
    for (scope, state, event), following in TABLE.items():
        assert f"### {scope}\n" in drawing
        assert f"| {state} | `{event}` | {following} |" in drawing
    assert drawing.count("` |") == len(TABLE)


# What the checker says of streams.

TEXT_PART = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def good_stream() -> list[dict[str, Any]]:
    """A message and a function call, as they should be."""
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {**TEXT_PART, "text": "Hello"}
    message_done = {**message, "status": "completed", "content": [part]}
    call = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "f", "arguments": ""}
    call_done = {**call, "arguments": '{"a":1}'}
    response = {"id": "resp_1", "status": "in_progress", "output": []}
    text = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    arguments = {"item_id": "fc_1", "output_index": 1}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": ITEM_ADDED, "output_index": 0, "item": message},
        {"type": "response.content_part.added", **text, "part": TEXT_PART},
        {"type": "response.output_text.delta", **text, "delta": "Hel", "logprobs": []},
        {"type": "response.output_text.delta", **text, "delta": "lo", "logprobs": []},
        {"type": "response.output_text.done", **text, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **text, "part": part},
        {"type": ITEM_DONE, "output_index": 0, "item": message_done},
        {"type": ITEM_ADDED, "output_index": 1, "item": call},
        {"type": "response.function_call_arguments.delta", **arguments, "delta": '{"a":1}'},
        {"type": "response.function_call_arguments.done", **arguments, "arguments": '{"a":1}'},
        {"type": ITEM_DONE, "output_index": 1, "item": call_done},
        {
            "type": "response.completed",
            "response": {"id": "resp_1", "status": "completed", "output": [message_done, call_done]},
        },
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def check(events: list[dict[str, Any]]) -> list[str]:
    checker = StreamChecker()
    return [fault for event in events for fault in checker.feed(event)] + checker.end()


def test_a_good_stream_has_no_faults() -> None:
    """Responses API, streaming."""
    assert check(good_stream()) == []


def test_events_are_checked_as_structs_too() -> None:
    """Ours: the agent reads structs, the checker may read JSON."""
    checker = StreamChecker()
    structs = [decode_event(json.dumps(event).encode()) for event in good_stream()]
    assert [fault for event in structs for fault in checker.feed(event)] == []
    assert checker.end() == []
    assert StreamChecker().feed(OutputTextDelta(-1, "", -1, -1, "x")) == [
        "response.output_text.delta has no sequence_number",
        "response.output_text.delta has no output_index",
    ]


@pytest.mark.parametrize(
    ("place", "change", "told"),
    [
        (4, {"sequence_number": 5}, "sequence_number is 5, expected 4"),
        (4, {"sequence_number": None}, "has no sequence_number"),
        (5, {"delta": "l"}, "the deltas make 4 characters that differ from the 5 of text"),
        (5, {"delta": None}, "delta is no text"),
        (6, {"text": None}, "text is no text"),
        (10, {"delta": "{}"}, "differ from the 7 of arguments"),
        (3, {"content_index": 1}, "content_index is 1, expected 0"),
        (5, {"item_id": "msg_2"}, "item_id is msg_2, but the item's id is msg_1"),
        (5, {"output_index": 3}, "no item is open at output_index 3"),
        (5, {"output_index": None}, "has no output_index"),
        (1, {"response": {"id": "resp_2"}}, "the response id is resp_2, before it was resp_1"),
        (1, {"response": None}, "has no response object"),
        (0, {"response": {}}, "the response has no id"),
        (8, {"item": {"id": "msg_1", "type": "message", "content": []}}, "content[0].text of the item"),
        (8, {"item": None}, "has no item"),
        (12, {"item": {"id": "fc_2", "type": "function_call", "call_id": "call_1"}}, "id is 'fc_2'"),
        (12, {"item": {"id": "fc_1", "type": "function_call", "call_id": "call_2"}}, "call_id is 'call_2'"),
        (12, {"item": {"id": "fc_1", "type": "mcp_call", "call_id": "call_1"}}, "type is 'mcp_call'"),
        (13, {"response": {"id": "resp_1", "status": "failed", "output": []}}, "the status is failed"),
        (
            13,
            {"response": {"id": "resp_1", "status": "completed", "output": []}},
            "output has 0 items, but 2",
        ),
        (13, {"response": {"id": "resp_1", "status": "completed"}}, "the response has no output list"),
        (0, {"type": None}, "an event has no type"),
    ],
)
def test_a_fault_is_found(place: int, change: dict[str, Any], told: str) -> None:
    """Responses API, streaming, and what the SDKs' accumulators hold to be invalid."""
    events = good_stream()
    events[place] = {**events[place], **change}
    assert any(told in fault for fault in check(events)), check(events)


def test_a_changed_item_in_the_final_output_is_found() -> None:
    """Responses API, streaming: the terminal output equals the done items."""
    events = good_stream()
    output = [dict(item) for item in events[-1]["response"]["output"]]
    output[0]["id"] = "msg_9"
    output[1]["arguments"] = "{}"
    events[-1] = {**events[-1], "response": {**events[-1]["response"], "output": output}}
    assert check(events) == [
        "response.completed: output[0]: id is 'msg_9', before it was 'msg_1'",
        "response.completed: output[1]: the item is not the one that was done",
    ]


def test_a_missing_event_is_one_fault_and_not_one_for_every_delta() -> None:
    """Ours: a report must stay readable."""
    events = good_stream()
    del events[3]
    events[3:3] = [{**events[3], "delta": ""}] * 50
    for number, event in enumerate(events):
        events[number] = {**event, "sequence_number": number}
    (fault,) = check(events)
    assert fault == (
        "response.output_text.delta may not come in state open of message (output_index 0); "
        "allowed: response.content_part.added, response.output_item.done"
    )


def test_every_event_that_is_left_out_is_missed() -> None:
    """Ours: leaving out any single event but a keep-alive shows, whatever the numbers say."""
    for missing in range(len(good_stream())):
        events = good_stream()
        del events[missing]
        numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
        assert check(numbered), missing


def test_a_failed_response_may_list_its_finished_items_or_none() -> None:
    """Responses API, ending badly: servers differ, both are read."""
    events = good_stream()[:9]
    done = events[8]["item"]
    for output in ([], [done]):
        failed = {"id": "resp_1", "status": "failed", "output": output}
        end = {"type": "response.failed", "sequence_number": 9, "response": failed}
        assert check([*events, end]) == []


@given(
    events=st.lists(
        st.dictionaries(
            st.sampled_from(["type", "sequence_number", "output_index", "item", "response", "delta", "text"]),
            st.none()
            | st.integers(-2, 3)
            | st.sampled_from([*EVENT_TYPES, "x"])
            | st.lists(st.integers(), max_size=1)
            | st.dictionaries(
                st.sampled_from(["id", "type", "output", "content"]), st.none() | st.lists(st.none())
            ),
        ),
        max_size=8,
    )
)
def test_no_stream_makes_the_checker_fail(events: list[dict[str, Any]]) -> None:
    """Ours: whatever a server sends, the answer is a list of faults."""
    assert all(isinstance(fault, str) for fault in check(events))


# Items that nobody knows, and ways through the table.


def test_inside_an_item_of_an_unknown_type_any_event_may_come() -> None:
    """Promise 1: a newer server's items are handed on with whatever happens inside them."""
    lifecycle = opened("unheard_of")
    walk(lifecycle, ["response.unheard_of.begun", "response.output_text.delta"])
    with pytest.raises(LifecycleError):
        lifecycle.advance(ITEM_ADDED, 0, "unheard_of")
    lifecycle.advance(ITEM_DONE, 0)
    with pytest.raises(LifecycleError, match="no item is open"):
        lifecycle.advance("response.unheard_of.begun", 0)


@pytest.mark.parametrize("kind", ["message", "computer_call", "mcp_approval_request"])
def test_inside_an_item_of_a_known_type_nothing_unknown_may_come(kind: str) -> None:
    """Responses API, streaming: the sequences are what clients are built for."""
    with pytest.raises(LifecycleError):
        opened(kind).advance("response.unheard_of", 0)


def test_the_way_to_an_event_is_the_shortest_lawful_one() -> None:
    """Ours: what a server left out can be filled in, and a state is not changed by asking."""
    lifecycle = opened()

    def quiet(name: str) -> bool:
        return not name.endswith(".delta")

    assert lifecycle.find_way(ITEM_DONE, 0, quiet) == ()
    assert lifecycle.find_way("response.output_text.delta", 0, quiet) == ("response.content_part.added",)
    lifecycle.advance("response.content_part.added", 0)
    way = lifecycle.find_way(ITEM_DONE, 0, quiet)
    assert way == ("response.output_text.done", "response.content_part.done")
    walk(lifecycle, [*way, ITEM_DONE])
    assert lifecycle.find_way(ITEM_DONE, 0, quiet) is None
    assert opened().find_way("response.unheard_of", 0, quiet) is None
    assert opened("unheard_of").find_way("response.unheard_of", 0, quiet) == ()
    assert opened("web_search_call").find_way(ITEM_DONE, 0, lambda name: False) is None
