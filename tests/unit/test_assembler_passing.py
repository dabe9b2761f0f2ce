"""Items that are handed on as they are: bytes kept, numbers and order our own."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import (
    BackendEvent,
    Failed,
    Finished,
    ItemClosed,
    ItemEvent,
    ItemOpened,
    TextDelta,
)
from antiphon.engine.assembler import WAITING_EVENTS, Assembler
from antiphon.engine.sink import EventSink
from antiphon.protocol import events as api
from antiphon.protocol.errors import BackendError
from antiphon.protocol.lifecycle import StreamChecker

RUN_BY_CLIENT = {
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
    "tool_search_call",
    "computer_call",
}
NODE = "resp_" + "0" * 36
RESPONSE = json.dumps({"id": NODE, "status": "in_progress", "output": []}).encode()
STOP = Finished("stop")


class Run:
    """One assembler fed with items, and all that it sent, checked."""

    def __init__(self, *events: BackendEvent, emit: bool = True, end: str = "", **settings: Any) -> None:
        sink = EventSink(emit=emit, obfuscate=settings.pop("obfuscate", False))
        sink.send_response(api.ResponseCreated, RESPONSE)
        sink.send_response(api.ResponseInProgress, RESPONSE)
        self.assembler = Assembler(
            sink, node_id=NODE, first_position=0, is_taken=lambda call_id: False, **settings
        )
        for event in events:
            self.assembler.feed([event])
        if end == "cancel":
            self.assembler.cancel()
        self.raw = [data for _, data in sink.take()]
        self.events = [json.loads(data) for data in self.raw]
        checker = StreamChecker()
        faults = [fault for event in self.events for fault in checker.feed(event)]
        assert faults == []
        self.output: list[dict[str, Any]] = [json.loads(raw) for raw in self.assembler.output]
        self.shown: list[dict[str, Any]] = [json.loads(raw) for raw in self.assembler.shown]
        done = [event["item"] for event in self.events if event["type"] == "response.output_item.done"]
        whole = self.shown
        if self.status in ("failed", "cancelled") and whole and whole[-1]["type"] in RUN_BY_CLIENT:
            # A call that broke off with the response is never told as done.
            whole = whole if whole[-1].get("status") == "completed" else whole[:-1]
        assert done == (whole if emit else [])

    @property
    def names(self) -> list[str]:
        """The events of the items."""
        return [event["type"].removeprefix("response.") for event in self.events[2:]]

    @property
    def status(self) -> str:
        """How it ended."""
        assert self.assembler.outcome is not None
        return self.assembler.outcome.status


def opened(item: dict[str, Any] | bytes, index: int = 0) -> ItemOpened:
    """An item begins."""
    return ItemOpened(index, item if isinstance(item, bytes) else json.dumps(item).encode())


def closed(item: dict[str, Any] | bytes, index: int = 0) -> ItemClosed:
    """An item is done."""
    return ItemClosed(index, item if isinstance(item, bytes) else json.dumps(item).encode())


def event(name: str, index: int = 0, **fields: Any) -> ItemEvent:
    """Something happens inside it."""
    return ItemEvent(index, f"response.{name}", fields)


PART = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
MESSAGE = {"id": "msg_x", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
SAID = {**MESSAGE, "status": "completed", "content": [{**PART, "text": "Hi"}]}
TALK = [
    event("content_part.added", content_index=0, part=PART),
    event("output_text.delta", content_index=0, delta="H", logprobs=[]),
    event("output_text.delta", content_index=0, delta="i", logprobs=msgspec.Raw(b"[]")),
    event("output_text.done", content_index=0, text="Hi", logprobs=[]),
    event("content_part.done", content_index=0, part={**PART, "text": "Hi"}),
]


def test_a_message_passes_with_numbers_of_our_own() -> None:
    """Responses API 4.1 and 4.2: numbers and indexes count this stream's events."""
    run = Run(TextDelta("First."), opened(MESSAGE, 7), *retell(TALK, 7), closed(SAID, 7), STOP)
    assert [each["sequence_number"] for each in run.events] == list(range(len(run.events)))
    passed = [each for each in run.events if each.get("item_id") == "msg_x"]
    assert {each["output_index"] for each in passed} == {1}
    assert [each["delta"] for each in passed if "delta" in each] == ["H", "i"]
    assert run.output[1] == SAID
    assert run.status == "completed"


def retell(events: list[ItemEvent], index: int) -> list[ItemEvent]:
    """The same events of another item."""
    return [ItemEvent(index, each.name, each.fields) for each in events]


def test_bytes_are_kept_as_they_came() -> None:
    """Idea 3: an unknown key, the order of keys and the way numbers are written survive."""
    told = (
        b'{"zz": 1.50, "id":"msg_x",  "type":"message","role":"assistant","content":[],"status":"completed"}'
    )
    run = Run(opened(told), closed(told), STOP)
    assert run.assembler.output == [told]
    assert run.assembler.shown[0] is run.assembler.output[0]
    assert told in run.raw[-1]


@pytest.mark.parametrize("missing", [{}, {"id": None}, {"id": ""}])
def test_an_item_without_an_id_gets_one_of_ours(missing: dict[str, Any]) -> None:
    """Responses API 3.1: the same id in the events, the item and the store."""
    item = {"type": "message", "role": "assistant", "content": [], "status": "completed", **missing, "zz": 1}
    run = Run(opened(item), *TALK, closed({**item, "content": SAID["content"]}), STOP)
    (item_id,) = {each["item_id"] for each in run.events if "item_id" in each}
    assert item_id.startswith("msg_0")
    assert run.output[0]["id"] == item_id
    assert run.output[0]["zz"] == 1


def test_an_item_that_changes_its_id_keeps_the_first_one() -> None:
    """Responses API 4.3: an item's events and its end name the same item."""
    run = Run(opened(MESSAGE), *TALK, closed({**SAID, "id": "msg_y"}), STOP)
    assert run.output[0]["id"] == "msg_x"


def test_what_the_client_is_shown_may_be_less_than_what_is_stored() -> None:
    """Responses API, `include`: results of a search are kept and shown only when asked for."""
    item = {"id": "ws_1", "type": "web_search_call", "status": "completed", "results": [1]}
    begun = {"id": "ws_1", "type": "web_search_call", "status": "in_progress"}
    run = Run(
        opened(begun),
        event("web_search_call.in_progress"),
        event("web_search_call.searching"),
        event("web_search_call.completed"),
        closed(item),
        STOP,
        show=lambda raw, item_type: (
            raw.replace(b', "results": [1]', b"") if item_type == "web_search_call" else raw
        ),
    )
    assert run.output == [item]
    assert "results" not in run.shown[0]
    assert run.status == "completed"


def test_items_that_overlap_come_one_after_the_other() -> None:
    """Responses API 4.2: the next item starts after the previous is done; what comes early waits."""
    second = {**MESSAGE, "id": "msg_y"}
    run = Run(
        opened(MESSAGE, 0),
        opened(second, 1),
        *[each for pair in zip(TALK, retell(TALK, 1), strict=True) for each in pair],
        closed({**SAID, "id": "msg_y"}, 1),
        closed(SAID, 0),
        STOP,
    )
    assert [item["id"] for item in run.output] == ["msg_x", "msg_y"]


def test_waiting_is_bounded() -> None:
    """Every queue is limited."""
    many = [event("output_text.delta", 1, content_index=0, delta="x", logprobs=[])] * (WAITING_EVENTS + 1)
    run = Run(opened(MESSAGE, 0), *many)
    assert run.status == "failed"
    assert run.output[0]["status"] == "incomplete"


def test_unknown_events_of_an_unknown_item_pass() -> None:
    """Promise 1: a type that we do not know is handed on, with whatever happens inside it."""
    item = {"id": "hol_1", "type": "hologram", "depth": 3}
    run = Run(opened(item), event("hologram.spin", angle=msgspec.Raw(b"9.0"), delta=1), closed(item), STOP)
    assert run.names == ["output_item.added", "hologram.spin", "output_item.done"]
    assert b'"item_id":"hol_1","output_index":0,"angle":9.0,"delta":1' in run.raw[3]
    assert run.status == "completed"


def test_unknown_events_of_a_known_item_are_left_out() -> None:
    """Ours: a client that knows the kind knows its events."""
    run = Run(opened(MESSAGE), event("output_text.shimmer", x=1), *TALK, closed(SAID), STOP)
    assert "output_text.shimmer" not in run.names


def test_unknown_fields_of_an_event_pass() -> None:
    """Promise 1: a field that we do not know is handed on; the sender's padding is not."""
    said = event("output_text.delta", content_index=0, delta="Hi", logprobs=[], mood=[1], obfuscation="zz")
    run = Run(opened(MESSAGE), TALK[0], said, *TALK[3:], closed(SAID), STOP)
    (delta,) = [each for each in run.events if "delta" in each]
    assert delta["mood"] == [1]
    assert "obfuscation" not in delta
    padded = Run(opened(MESSAGE), TALK[0], said, *TALK[3:], closed(SAID), STOP, obfuscate=True)
    (delta,) = [each for each in padded.events if "delta" in each]
    assert delta["obfuscation"] != "zz"


def test_log_probabilities_and_annotations_stay_as_they_came() -> None:
    """Idea 3."""
    found = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
    logprobs = msgspec.Raw(b'[{"token":"Hi","logprob":-0.10,"top_logprobs":[]}]')
    run = Run(
        opened(MESSAGE),
        TALK[0],
        event("output_text.delta", content_index=0, delta="Hi", logprobs=logprobs),
        event("output_text.annotation.added", content_index=0, annotation_index=0, annotation=found),
        *TALK[3:],
        closed(SAID),
        STOP,
    )
    assert b'"logprobs":[{"token":"Hi","logprob":-0.10,"top_logprobs":[]}]' in run.raw[4]
    assert run.events[5]["annotation"] == found


REASONING = {"id": "rs_1", "type": "reasoning", "summary": [], "content": []}
THOUGHT = {**REASONING, "content": [{"type": "reasoning_text", "text": "Hm"}]}


def test_events_that_a_server_leaves_out_are_filled_in() -> None:
    """llama.cpp and others send deltas without the part around them; clients' accumulators need it."""
    run = Run(
        opened(REASONING),
        event("reasoning_text.delta", content_index=0, delta="H"),
        event("reasoning_text.delta", content_index=0, delta="m"),
        closed(THOUGHT),
        opened(MESSAGE, 1),
        event("output_text.delta", 1, delta="Hi"),
        closed(SAID, 1),
        opened({"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": ""}, 2),
        closed({"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, 2),
        STOP,
    )
    assert run.names == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert run.events[3]["part"] == {"type": "reasoning_text", "text": ""}
    assert run.events[6]["text"] == "Hm"


def test_a_text_that_is_told_as_a_whole_is_told_as_deltas_first() -> None:
    """Responses API, streaming: the deltas make up the text."""
    run = Run(opened(MESSAGE), *TALK[:2], *TALK[3:], closed(SAID), STOP)
    assert [each["delta"] for each in run.events if "delta" in each] == ["H", "i"]
    run = Run(opened(MESSAGE), TALK[0], closed(SAID), STOP)
    assert [each["delta"] for each in run.events if "delta" in each] == ["Hi"]


def test_a_refusal_without_its_part_gets_the_part_of_a_refusal() -> None:
    """Responses API 4.3."""
    refused = {**SAID, "content": [{"type": "refusal", "refusal": "No"}]}
    run = Run(opened(MESSAGE), event("refusal.delta", delta="No"), closed(refused), STOP)
    assert run.events[3]["part"] == {"type": "refusal", "refusal": ""}
    assert run.names[3:5] == ["refusal.done", "content_part.done"]


@pytest.mark.parametrize("end", ["fail", "cancel", "finish"])
def test_an_item_that_breaks_off_keeps_what_has_come(end: str) -> None:
    """Responses API 4.5: what is open is closed as incomplete."""
    ends: dict[str, list[BackendEvent]] = {"fail": [Failed(BackendError("x"))], "finish": [STOP]}
    last = ends.get(end, [])
    run = Run(opened(MESSAGE), *TALK[:3], *last, end=end)
    assert run.output == [{**MESSAGE, "status": "incomplete", "content": [{**PART, "text": "Hi"}]}]
    assert run.status == ("cancelled" if end == "cancel" else "failed")
    silent = Run(opened(MESSAGE), *TALK[:3], *last, end=end, emit=False)
    assert silent.assembler.output == run.assembler.output


@pytest.mark.parametrize(
    ("item", "events", "broken"),
    [
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "status": "in_progress"},
            [event("function_call_arguments.delta", delta='{"a')],
            {"arguments": '{"a', "status": "incomplete"},
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": ""},
            [event("custom_tool_call_input.delta", delta="ab")],
            {"input": "ab"},
        ),
        (
            {"type": "mcp_call", "server_label": "s", "name": "f", "arguments": "", "status": "in_progress"},
            [event("mcp_call.in_progress"), event("mcp_call_arguments.delta", delta="{}")],
            {"arguments": "{}", "status": "failed"},
        ),
        (
            {"type": "web_search_call", "status": "in_progress"},
            [event("web_search_call.in_progress")],
            {"status": "incomplete"},
        ),
        (
            {"type": "mcp_list_tools", "server_label": "s", "tools": []},
            [event("mcp_list_tools.in_progress")],
            {},
        ),
        ({"type": "apply_patch_call", "call_id": "c", "status": "in_progress"}, [], {}),
        (
            {"type": "shell_call", "call_id": "c", "status": "in_progress", "action": {"commands": []}},
            [event("shell_call_command.added", command=""), event("shell_call_command.delta", delta="ls")],
            {"status": "incomplete"},
        ),
        (
            {"type": "reasoning", "summary": [], "status": "in_progress"},
            [
                event("reasoning_summary_part.added", part={"type": "summary_text", "text": ""}),
                event("reasoning_summary_text.delta", delta="Hm"),
            ],
            {"summary": [{"type": "summary_text", "text": "Hm"}], "status": "incomplete"},
        ),
        ({"type": "hologram"}, [event("hologram.spin")], {}),
    ],
)
def test_every_kind_can_break_off(
    item: dict[str, Any], events: list[ItemEvent], broken: dict[str, Any]
) -> None:
    """Responses API 4.5, and the lifecycle table: the way to the end is a lawful one."""
    item = {"id": "it_1", **item}
    run = Run(opened(item), *events, Failed(BackendError("x")))
    assert run.output == [{**item, **broken}]
    # A call that a client runs is told as done only when it is whole.
    assert (run.names[-1] == "output_item.done") == (item["type"] not in RUN_BY_CLIENT)


def test_what_cannot_be_an_item_fails_the_response() -> None:
    """Ours: a server's nonsense is the server's fault, told in a sentence."""
    for wrong in (opened(b"5"), closed(b"{"), opened(b'["message"]')):
        run = Run(TextDelta("x"), wrong)
        assert run.status == "failed"
        assert run.assembler.outcome is not None
        assert isinstance(run.assembler.outcome.error, BackendError)


def test_an_item_that_is_told_once_it_is_done_is_kept() -> None:
    """Promise 1: nothing is lost; its two ends are told after one another."""
    run = Run(TextDelta("x"), closed(SAID), STOP)
    assert run.output[1] == SAID
    assert run.names[-2:] == ["output_item.added", "output_item.done"]


def test_events_of_an_item_that_is_done_change_nothing() -> None:
    """Ours: the finished item says it all."""
    run = Run(opened(MESSAGE), *TALK, closed(SAID), TALK[-1], STOP)
    assert (run.output, run.status) == ([SAID], "completed")


def test_reasoning_alone_is_no_answer() -> None:
    """Decided: reasoning only is incomplete."""
    assert Run(opened(REASONING), closed(THOUGHT), STOP).status == "incomplete"


NAMES = st.sampled_from(
    sorted(name.removeprefix("response.") for name in api.EVENT_TYPES if "steer" not in name)
)
FIELDS: dict[str, Any] = {
    "delta": "x",
    "text": "x",
    "refusal": "x",
    "arguments": "{}",
    "input": "x",
    "code": "x",
    "command": "ls",
    "output": [],
    "part": PART,
    "annotation": {},
    "partial_image_index": 0,
    "partial_image_b64": "",
    "response": {},
    "item": {},
    "error": {},
}
KINDS = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "custom_tool_call",
        "mcp_call",
        "shell_call",
        "web_search_call",
        "mcp_list_tools",
        "image_generation_call",
        "code_interpreter_call",
        "computer_call",
        "hologram",
    ]
)


@given(KINDS, st.lists(NAMES, max_size=12), st.booleans())
def test_any_events_of_any_item_make_an_ordered_stream(kind: str, names: list[str], finishes: bool) -> None:
    """Invariant: whatever a server sends, what leaves follows the lifecycle table."""
    sink = EventSink(emit=True)
    sink.send_response(api.ResponseCreated, RESPONSE)
    sink.send_response(api.ResponseInProgress, RESPONSE)
    assembler = Assembler(sink, node_id=NODE, first_position=0, is_taken=lambda call_id: False)
    item = json.dumps({"id": "it_1", "type": kind, "status": "in_progress"}).encode()
    assembler.feed([ItemOpened(0, item), *[ItemEvent(0, f"response.{name}", FIELDS) for name in names]])
    assembler.feed([ItemClosed(0, item), STOP] if finishes else [Failed(BackendError("x"))])
    assert len(assembler.output) == 1
    ends = [name for name, _ in sink.take()][-1] == "response.output_item.done"
    assert ends == (finishes or kind not in RUN_BY_CLIENT)
