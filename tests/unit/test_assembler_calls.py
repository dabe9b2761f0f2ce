"""Calls of every kind of tool become the items and events of that kind."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import BackendEvent, CallDelta, Finished, ReasoningDelta, TextDelta
from antiphon.context.toolbox import OfferedTool
from antiphon.engine.assembler import Assembler
from antiphon.engine.sink import EventSink
from antiphon.protocol import events as api
from antiphon.protocol.items import decode_stored_item
from antiphon.protocol.lifecycle import StreamChecker
from antiphon.protocol.tools import FunctionTool
from tests.scenarios import strict

NODE = "resp_" + "0" * 36
RESPONSE = json.dumps({"id": NODE, "status": "in_progress", "output": []}).encode()


def offer(name: str, kind: Any = "function", **fields: Any) -> OfferedTool:
    """A tool as a chat model is offered it."""
    told = {"own_name": name, **fields}
    return OfferedTool(name=name, kind=kind, function=FunctionTool(name=name), **told)


TOOLS = [
    offer("plain"),
    offer("crm__find", namespace="crm", own_name="find"),
    offer("slow", is_async=True),
    offer("code", "custom"),
    offer("crm__note", "custom", namespace="crm", own_name="note", is_async=True),
    offer("tool_search", "tool_search"),
    offer("local_shell", "local_shell"),
    offer("shell", "shell"),
    offer("apply_patch", "apply_patch"),
]


class Run:
    """One assembler fed to its end, and all that it sent, checked."""

    def __init__(self, *events: BackendEvent, emit: bool = True, **settings: Any) -> None:
        sink = EventSink(emit=emit)
        sink.send_response(api.ResponseCreated, RESPONSE)
        sink.send_response(api.ResponseInProgress, RESPONSE)
        self.assembler = Assembler(
            sink,
            node_id=NODE,
            first_position=0,
            is_taken=lambda call_id: False,
            offered={tool.name: tool for tool in TOOLS},
            **settings,
        )
        for event in events:
            self.assembler.feed([event])
        self.events = [json.loads(data) for _, data in sink.take()]
        self.output: list[dict[str, Any]] = [json.loads(raw) for raw in self.assembler.output]
        checker = StreamChecker()
        for event in self.events:
            assert checker.feed(event) == []
            if "response" not in event and not _is_half(event.get("item", {})):
                strict.check_event(event)
        done = [event["item"] for event in self.events if event["type"] == "response.output_item.done"]
        outcome = self.assembler.outcome
        failed = outcome is not None and outcome.status in ("failed", "cancelled")
        # A call that broke off with the response is never told as done, nor is half a program, and what is behind it.
        halves = [
            item
            for item in self.output
            if item["type"].endswith("_call") and item.get("status") == "incomplete"
        ]
        if not failed and all(item["type"] != "custom_tool_call" for item in halves):
            halves = []
        whole = [item for item in self.output if item not in halves]
        assert done == (whole if emit else [])
        assert self.assembler.shown == self.assembler.output
        assert decode_all(self.assembler.output) == [item["type"] for item in self.output]

    @property
    def names(self) -> list[str]:
        """The events of the items, without the envelope and without deltas."""
        return [
            event["type"].removeprefix("response.")
            for event in self.events[2:]
            if not event["type"].endswith(".delta")
        ]

    @property
    def codes(self) -> list[str]:
        """The codes of the warnings."""
        return [code for code, _ in self.assembler.warnings]

    @property
    def status(self) -> str:
        """How it ended."""
        assert self.assembler.outcome is not None
        return self.assembler.outcome.status


def _is_half(item: dict[str, Any]) -> bool:
    """The one item that the package's types do not have: a custom call that was cut off says so."""
    return item.get("type") == "custom_tool_call" and "status" in item


def decode_all(output: list[bytes]) -> list[str]:
    """The types of the items as the store's readers see them."""
    return [type(decode_stored_item(raw).value).__struct_config__.tag for raw in output]  # type: ignore[misc]


def call(name: str, arguments: str, reason: Any = "stop", **settings: Any) -> Run:
    """One call in two pieces."""
    middle = len(arguments) // 2
    first = CallDelta(0, "call_a", name, arguments[:middle])
    return Run(first, CallDelta(0, "", "", arguments[middle:]), Finished(reason), **settings)


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        ("plain", {"name": "plain"}),
        ("crm__find", {"name": "find", "namespace": "crm"}),
        ("slow", {"name": "slow", "async": True}),
        ("unheard_of", {"name": "unheard_of"}),
    ],
)
def test_a_function_call_bears_the_tools_own_name(name: str, traits: dict[str, Any]) -> None:
    """Responses API 2.4 and 3.2: namespace and async stand in the item; the flat name is the model's alone."""
    run = call(name, '{"x":1}')
    (item,) = run.output
    item.pop("id")
    assert item == {
        "type": "function_call",
        "status": "completed",
        "call_id": "call_a",
        **traits,
        "arguments": '{"x":1}',
    }


@pytest.mark.parametrize(
    ("name", "traits"),
    [("code", {"name": "code"}), ("crm__note", {"name": "note", "namespace": "crm", "async": True})],
)
def test_a_custom_call_holds_the_raw_text(name: str, traits: dict[str, Any]) -> None:
    """Responses API 4.3: input "" when it is added, deltas, done."""
    run = call(name, '{"input": "print(\\"hi\\")\\n"}')
    (item,) = run.output
    item_id = item.pop("id")
    assert item == {"type": "custom_tool_call", "call_id": "call_a", **traits, "input": 'print("hi")\n'}
    assert run.names == [
        "output_item.added",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert run.events[2]["item"] == {**item, "id": item_id, "input": ""}
    deltas = [event["delta"] for event in run.events if event["type"].endswith("input.delta")]
    assert "".join(deltas) == 'print("hi")\n'
    assert all(deltas)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 7), st.booleans())
def test_any_input_of_a_custom_tool_comes_back_exactly(text: str, size: int, ascii_only: bool) -> None:
    """The raw string travels through a chat backend reversibly."""
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    pieces = [arguments[at : at + size] for at in range(0, len(arguments), size)]
    run = Run(*[CallDelta(0, "a", "code", piece) for piece in pieces], Finished("stop"))
    assert run.output[0]["input"] == text
    assert run.codes == []


def test_an_input_that_was_cut_off_is_marked() -> None:
    """Responses API 4.5: half an input must not be replayed as a whole one."""
    run = call("code", '{"input": "abc', "length")
    assert run.output[0]["status"] == "incomplete"
    assert run.output[0]["input"] == "abc"
    assert run.assembler.calls == []
    assert "output_item.done" not in run.names


def test_json_around_an_input_that_is_not_whole_is_told() -> None:
    """Promise 1: nothing is lost silently."""
    run = call("code", '{"input": "abc", "more": 1}')
    assert run.output[0]["input"] == "abc"
    assert run.codes == ["custom_input_repaired"]


def test_a_search_for_tools_is_an_item_with_an_object() -> None:
    """Responses API 3.2: arguments as they are, carried out by the client."""
    run = call("tool_search", '{"query": "mail", "limit": 3}')
    (item,) = run.output
    assert item["arguments"] == {"query": "mail", "limit": 3}
    assert (item["execution"], item["status"], item["call_id"]) == ("client", "completed", "call_a")
    assert run.names == ["output_item.added", "output_item.done"]


def test_a_command_for_the_local_shell() -> None:
    """Responses API 3.2: `env` is always there."""
    run = call("local_shell", '{"command": ["ls", "-l"], "timeout_ms": 5, "env": null, "why": "to see"}')
    assert run.output[0]["action"] == {"type": "exec", "command": ["ls", "-l"], "env": {}, "timeout_ms": 5}
    assert run.names == ["output_item.added", "output_item.done"]


@pytest.mark.parametrize("obfuscate", [True, False])
def test_commands_for_the_shell_have_events_without_an_item_id(obfuscate: bool) -> None:
    """Responses API 4.3 and its list of event fields."""
    run = call("shell", '{"commands": ["ls", "pwd"], "timeout_ms": 9}')
    assert run.output[0]["action"] == {"commands": ["ls", "pwd"], "timeout_ms": 9}
    assert run.names == [
        "output_item.added",
        *["shell_call_command.added", "shell_call_command.done"] * 2,
        "output_item.done",
    ]
    inner = [event for event in run.events if "command_index" in event]
    assert not any("item_id" in event for event in inner)
    assert [event["command_index"] for event in inner] == [0, 0, 0, 1, 1, 1]
    assert run.events[2]["item"]["action"]["commands"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        '{"type": "update_file", "path": "a.py", "diff": "@@\\n-a\\n+b"}',
        '{"operation": {"type": "update_file", "path": "a.py", "diff": "@@\\n-a\\n+b"}}',
    ],
)
def test_a_patch_is_an_operation(arguments: str) -> None:
    """Responses API 3.2."""
    run = call("apply_patch", arguments)
    assert run.output[0]["operation"] == {"type": "update_file", "path": "a.py", "diff": "@@\n-a\n+b"}
    assert run.output[0]["status"] == "completed"


def test_a_deletion_has_no_diff() -> None:
    """Responses API 3.2: what an operation does not have is left out."""
    run = call("apply_patch", '{"type": "delete_file", "path": "a.py", "diff": ""}')
    assert run.output[0]["operation"] == {"type": "delete_file", "path": "a.py"}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("shell", '{"commands": "ls"}'),
        ("shell", "{}"),
        ("shell", '{"commands": []}'),
        ("shell", '{"commands": ["ls"], "timeout_ms": -1}'),
        ("shell", '{"commands": ["ls"], "max_output_length": -1}'),
        ("local_shell", '{"command": []}'),
        ("local_shell", '{"command": ["ls"], "timeout_ms": -1}'),
        ("shell", '{"action": 3}'),
        ("local_shell", '{"command": [1]}'),
        ("apply_patch", '{"type": "update_file", "path": ""}'),
        ("apply_patch", '{"type": "rename_file", "path": "a"}'),
        ("apply_patch", "*** Begin Patch"),
        ("tool_search", "[1]"),
        ("tool_search", '{"query": '),
        ("tool_search", "[" * 100_000),
    ],
)
def test_arguments_that_do_not_fit_are_dropped_and_told(name: str, arguments: str) -> None:
    """Ours: never a crash; what is left decides how the response ends."""
    run = call(name, arguments)
    assert (run.output, run.codes, run.status) == ([], ["invalid_tool_call"], "failed")
    beside = Run(TextDelta("Look."), CallDelta(0, "a", name, arguments), Finished("stop"))
    assert [item["type"] for item in beside.output] == ["message"]
    assert (beside.codes, beside.status) == (["invalid_tool_call"], "completed")
    reasoned = Run(ReasoningDelta("Hm."), CallDelta(0, "a", name, arguments), Finished("stop"))
    assert reasoned.status == "incomplete"


def test_a_buffered_call_that_was_cut_off_leaves_an_incomplete_response() -> None:
    """Responses API 4.5: the limit was the client's, so nothing failed."""
    run = call("shell", '{"commands": ["l', "length")
    assert (run.output, run.codes, run.status) == ([], ["invalid_tool_call"], "incomplete")
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.incomplete_reason == "max_output_tokens"


def test_calls_of_several_kinds_come_one_after_the_other() -> None:
    """Responses API 4.7, whatever the order of the fragments."""
    run = Run(
        CallDelta(0, "a", "shell", '{"commands":'),
        CallDelta(1, "b", "code", '{"input":'),
        CallDelta(2, "c", "plain", "{}"),
        CallDelta(0, "", "", '["ls"]}'),
        CallDelta(1, "", "", ' "x"}'),
        Finished("stop"),
    )
    assert [item["type"] for item in run.output] == ["shell_call", "custom_tool_call", "function_call"]
    assert run.assembler.calls == ["a", "b", "c"]
    ids = [item["id"] for item in run.output]
    assert len(set(ids)) == 3
    assert ids[1].startswith("ctc_")


def test_a_dropped_call_takes_no_place_in_the_output() -> None:
    """Responses API 4.2: output_index grows by one."""
    run = Run(
        CallDelta(0, "a", "plain", "{}"),
        CallDelta(1, "b", "shell", "{}"),
        CallDelta(2, "c", "plain", "{}"),
        Finished("stop"),
    )
    added = [event for event in run.events if event["type"] == "response.output_item.added"]
    assert [event["output_index"] for event in added] == [0, 1]


def test_reasoning_is_sealed_in_the_finished_item_alone() -> None:
    """Responses API 4.3: encrypted_content is final in the done item."""
    run = Run(
        ReasoningDelta("a"), ReasoningDelta("b"), TextDelta("x"), Finished("stop"), seal=lambda t: f"<{t}>"
    )
    assert run.output[0]["encrypted_content"] == "<ab>"
    assert "encrypted_content" not in run.events[2]["item"]


def test_an_answer_says_what_it_cites() -> None:
    """Responses API 4.3: annotations come between the text and its done event."""
    found = {"type": "url_citation", "url": "https://a.b", "title": "A", "start_index": 0, "end_index": 1}
    run = Run(TextDelta("x"), Finished("stop"), cite=lambda text: [found] if text == "x" else [])
    assert run.output[0]["content"][0]["annotations"] == [found]
    assert run.names == [
        "output_item.added",
        "content_part.added",
        "output_text.annotation.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]


@pytest.mark.parametrize("name", ["plain", "code", "shell", "tool_search", "apply_patch"])
def test_the_same_items_are_made_when_nobody_streams(name: str) -> None:
    """Ours: events are told of items, never the other way round."""
    arguments = {
        "shell": '{"commands": ["ls"]}',
        "apply_patch": '{"type": "delete_file", "path": "a"}',
    }.get(name, '{"input": "x"}')
    assert call(name, arguments, emit=False).assembler.output == call(name, arguments).assembler.output


PIECES = st.sampled_from(["", " ", "{", "}", '{"input":', '"', "\\", "u00", '{"commands":["ls"]}', "é😀"])
CALLS: st.SearchStrategy[BackendEvent] = st.builds(
    CallDelta,
    st.integers(0, 3),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(["", *(tool.name for tool in TOOLS)]),
    PIECES,
)
ANYTHING = st.one_of(CALLS, PIECES.map(TextDelta), PIECES.map(ReasoningDelta))


@given(st.lists(ANYTHING, max_size=25), st.sampled_from(["stop", "length"]))
def test_any_calls_make_a_lawful_stream_and_one_outcome(events: list[BackendEvent], reason: Any) -> None:
    """Invariant: every item that was added is done, in order, and `outcome` is set exactly once."""
    run = Run(*events, Finished(reason))
    assert run.assembler.outcome is not None
    if run.status == "completed":
        assert any(item["type"] != "reasoning" for item in run.output)
