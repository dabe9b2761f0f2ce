"""The scripted model and tools of every kind: it sees calls and results, and calls by flat names."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask, BackendEvent, CallDelta, TextDelta
from antiphon.backends.scripted import ScriptedBackend, parse_script
from antiphon.backends.scripted.window import read_window
from antiphon.context import Profile, build_toolbox
from antiphon.protocol.content import InputText
from antiphon.protocol.items import Item, Message, decode_items
from antiphon.protocol.tools import decode_tools
from tests.unit.test_items import ALL

PROFILE = Profile()
USER = {"role": "user", "content": "Hello."}
MCP = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "s",
    "name": "t",
    "arguments": '{"a":1}',
    "output": "o",
}


def ask(*items: dict[str, Any], tools: Any = (), **fields: Any) -> Ask:
    """An ask as the engine makes it."""
    segment = ScriptedBackend().transcribe(decode_items(msgspec.json.encode(items)), PROFILE, at_start=True)
    box = build_toolbox(
        decode_tools(msgspec.json.encode(tools)),
        choice="auto",
        choice_given=False,
        model="m",
        profile=PROFILE,
        can_search=True,
        can_call_mcp=True,
    )
    return Ask(
        model="m",
        profile=PROFILE,
        system=segment.lead,
        transcript=[segment.body],
        tools=[tool.function for tool in box.offered],
        tool_choice=box.choice,
        **fields,
    )


def see(*items: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What the model sees: kind, name and text of each piece."""
    return [(piece.kind, piece.name, piece.text) for piece in read_window(ask(*items)).pieces]


def play(script: str, asked: Ask) -> list[BackendEvent]:
    """The events of one answer."""

    async def collect() -> list[BackendEvent]:
        backend = ScriptedBackend(script=parse_script(script))
        return [event async for batch in backend.stream(asked) for event in batch]

    return asyncio.run(collect())


def read_calls(events: list[BackendEvent]) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    calls: dict[int, tuple[str, str]] = {}
    for event in events:
        if isinstance(event, CallDelta):
            name, arguments = calls.get(event.index, ("", ""))
            calls[event.index] = (name + event.name, arguments + event.arguments)
    return list(calls.values())


@pytest.mark.parametrize(
    ("items", "pieces"),
    [
        (
            [
                {"type": "function_call", "call_id": "1", "name": "say", "namespace": "n", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "x"},
            ],
            [("call", "n__say", "{}"), ("output", "", "x")],
        ),
        (
            [
                {"type": "custom_tool_call", "call_id": "1", "name": "c", "input": "raw"},
                {"type": "custom_tool_call_output", "call_id": "1", "output": "x"},
            ],
            [("call", "c", "raw"), ("output", "", "x")],
        ),
        (
            [
                {"type": "shell_call", "call_id": "1", "action": {"commands": ["ls"]}},
                {
                    "type": "shell_call_output",
                    "call_id": "1",
                    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
                },
            ],
            [("call", "shell", '{"commands":["ls"]}'), ("output", "", "[exit code 0]\na")],
        ),
        ([MCP], [("call", "s__t", '{"a":1}'), ("output", "", "o")]),
        (
            [
                {"type": "agent_message", "author": "a", "content": "hi"},
                {"type": "additional_tools", "tools": []},
                {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True},
            ],
            [("user", "", "hi")],
        ),
    ],
)
def test_it_sees_calls_and_results_of_every_kind(items: Any, pieces: Any) -> None:
    """Ours: the fake sees what a chat model is told."""
    assert see(USER, *items)[1:] == pieces


def test_an_async_call_has_its_stand_in_and_its_late_result() -> None:
    """Spec: async tools."""
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "async": True}
    output = {"type": "function_call_output", "call_id": "1", "output": "x"}
    waiting, said, late = see(USER, call, {"role": "assistant", "content": "Started."}, output)[2:]
    assert (waiting[0], waiting[2][:8], said[2], late) == (
        "output",
        "[running",
        "Started.",
        ("output", "", "x"),
    )


@pytest.mark.parametrize("example", ALL, ids=lambda value: str(value["type"]))
def test_every_item_is_read_and_counted_the_same_with_and_without_an_id(example: dict[str, Any]) -> None:
    """Ours: a continued window counts what the same history sent in full counts."""
    if example["type"] == "item_reference":
        return
    counts = {
        read_window(ask(USER, example)).tokens,
        read_window(ask(USER, {**example, "x_new": None})).tokens,
    }
    assert len(counts) == 1


def test_it_sees_the_text_that_a_file_has_become() -> None:
    """Ours: files are read before a model is asked, whatever stands in the item's bytes."""
    sent = {"role": "user", "content": [{"type": "input_file", "file_data": "data:text/plain;base64,aGk="}]}
    (item,) = decode_items(msgspec.json.encode([sent]))
    assert isinstance(item.value, Message)
    view = msgspec.structs.replace(item.value, content=[InputText("hi")])
    segment = ScriptedBackend().transcribe([Item(item.type, item.raw, view)], PROFILE, at_start=True)
    window = read_window(Ask(model="m", profile=PROFILE, transcript=[segment.body]))
    assert window.last_user_text() == "hi"


def test_a_script_calls_any_flat_name_with_any_arguments() -> None:
    """Ours: what a model writes is for the engine to judge."""
    script = """
    [[answers]]
    calls = [
        { name = "n__say", arguments = '{"a":' },
        { name = "c", arguments = { input = "raw text" } },
        { name = "shell", arguments = { commands = ["ls"] } },
    ]
    """
    assert read_calls(play(script, ask(USER))) == [
        ("n__say", '{"a":'),
        ("c", '{"input":"raw text"}'),
        ("shell", '{"commands":["ls"]}'),
    ]


def test_each_generation_behind_a_hosted_call_is_an_answer_of_its_own() -> None:
    """Ours: one response may take several generations, so a script has an answer for each."""
    script = '[[answers]]\ntext = "one"\n[[answers]]\ntext = "two"\n[[answers]]\ntext = "three"'
    said = {"role": "assistant", "content": "one"}
    told = [
        "".join(event.text for event in play(script, ask(*items)) if isinstance(event, TextDelta))
        for items in ([USER], [USER, MCP], [USER, MCP, said, USER])
    ]
    assert told == ["one", "two", "three"]


def test_the_built_in_model_calls_a_custom_tool_and_a_member_of_a_namespace() -> None:
    """Ours: it finds tools by the names that a user says."""
    tools = [
        {"type": "custom", "name": "run_code"},
        {
            "type": "namespace",
            "name": "mcp__echo",
            "description": "Echo.",
            "tools": [{"type": "function", "name": "say"}],
        },
    ]
    script = '[[answers]]\nact = "call_tools"'
    (custom,) = read_calls(
        play(script, ask({"role": "user", "content": 'Use run_code with "x"'}, tools=tools))
    )
    assert custom[0] == "run_code"
    assert list(msgspec.json.decode(custom[1])) == ["input"]
    (member,) = read_calls(play(script, ask({"role": "user", "content": "Use say."}, tools=tools)))
    assert member == ("mcp__echo__say", "{}")
