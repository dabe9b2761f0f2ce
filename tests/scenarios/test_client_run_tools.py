"""Shells and patches that the client runs: there and back, and what a model's bad arguments come to."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fake_upstream import END, Reply, make_chunk, make_head
from tests.scenarios.client import read_text
from tests.scenarios.houses import House, check_prefixes, list_codes, run

STREAMS = pytest.mark.parametrize("stream", [False, True])
SHELL: dict[str, Any] = {"type": "shell", "environment": {"type": "local"}}
LOCAL_SHELL: dict[str, Any] = {"type": "local_shell"}
PATCH: dict[str, Any] = {"type": "apply_patch"}

#: The tool, the arguments of the model, the item, its output, and what the model is told of that.
ROUND_TRIPS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "shell": (
        SHELL,
        {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": 500},
        {"action": {"commands": ["ls", "pwd"], "timeout_ms": 1000, "max_output_length": 500}},
        {
            "type": "shell_call_output",
            "max_output_length": 500,
            "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
                {"stdout": "", "stderr": "slow", "outcome": {"type": "timeout"}},
            ],
        },
        "[command 1: exit code 0]\na\n\n[command 2: timed out]\n[stderr]\nslow",
    ),
    "local_shell": (
        LOCAL_SHELL,
        {"command": ["ls", "-l"], "working_directory": "/tmp"},
        {"action": {"type": "exec", "command": ["ls", "-l"], "env": {}, "working_directory": "/tmp"}},
        {"type": "local_shell_call_output", "output": '{"stdout":"a"}'},
        '{"stdout":"a"}',
    ),
    "create": (
        PATCH,
        {"type": "create_file", "path": "a", "diff": "+a"},
        {"operation": {"type": "create_file", "path": "a", "diff": "+a"}},
        {"type": "apply_patch_call_output", "status": "completed", "output": "made"},
        "[completed]\nmade",
    ),
    "delete": (
        PATCH,
        {"type": "delete_file", "path": "a"},
        {"operation": {"type": "delete_file", "path": "a"}},
        {"type": "apply_patch_call_output", "status": "failed"},
        "[failed]",
    ),
}


@STREAMS
@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_a_call_goes_to_the_client_and_its_output_to_the_model(
    tmp_path: Path, name: str, stream: bool, by_id: bool
) -> None:
    """Spec: shell, local_shell and apply_patch calls; the model reads its own call again in its own words."""
    tool, arguments, fields, output, told = ROUND_TRIPS[name]
    flat = str(tool["type"])

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Go.", tools=[tool])
        (call,) = first["output"]
        assert call["type"] == f"{flat}_call"
        assert call["status"] == "completed"
        for key, value in fields.items():
            assert {k: v for k, v in call[key].items() if v is not None} == value
        # A local shell's output names its call by `id`.
        given = {**output, "id" if flat == "local_shell" else "call_id": call["call_id"]}
        error = await house.refuse(previous_response_id=first["id"], input="?", tools=[tool])
        named = f"{flat.replace('_', ' ')} call {call['call_id']}"
        assert error["message"] == f"No tool output found for {named}."
        if by_id:
            second = await house.make(
                stream=stream, previous_response_id=first["id"], input=[given], tools=[tool]
            )
        else:
            history = [{"role": "user", "content": "Go."}, call, given]
            second = await house.make(stream=stream, input=history, tools=[tool])
        assert read_text(second) == "Done."
        check_prefixes(house.upstream)
        _, made, result = house.messages
        (sent,) = made["tool_calls"]
        assert (sent["id"], sent["function"]["name"]) == (call["call_id"], flat)
        assert json.loads(sent["function"]["arguments"]) == arguments
        assert (result["tool_call_id"], result["content"]) == (call["call_id"], told)
        items = await house.list_items(second["id"])
        assert [item["type"] for item in items] == ["message", f"{flat}_call", f"{flat}_call_output"]

    run(tmp_path, [[(flat, json.dumps(arguments))], "Done."], story)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "shell": (SHELL, '{"commands":"ls"}'),
    "shell without a command": (SHELL, '{"commands":[]}'),
    "local_shell": (LOCAL_SHELL, '{"command":'),
    "local_shell without a command": (LOCAL_SHELL, '{"command":[]}'),
    "apply_patch": (PATCH, '{"type":"rename_file","path":"a"}'),
    "tool_search": ({"type": "tool_search", "execution": "client"}, "[1]"),
}


@STREAMS
@pytest.mark.parametrize("name", BAD)
def test_arguments_that_make_no_call_are_asked_for_again(tmp_path: Path, name: str, stream: bool) -> None:
    """Ours: once; nothing of the first attempt is in the response or in later prompts."""
    tool, bad = BAD[name]
    flat = str(tool["type"])
    good = {
        "shell": '{"commands":["ls"]}',
        "local_shell": '{"command":["ls"]}',
        "apply_patch": '{"type":"delete_file","path":"a"}',
        "tool_search": '{"query":"x"}',
    }[flat]

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="Go.", tools=[tool])
        assert [item["type"] for item in made["output"]] == [f"{flat}_call"]
        assert list_codes(made) == ["tool_call_asked_again"]
        assert bad in house.messages[-1]["content"]
        assert house.messages[-1]["role"] == "user"
        assert made["usage"]["input_tokens"] == 300

    run(tmp_path, [[(flat, bad)], [(flat, good)]], story)


@STREAMS
@pytest.mark.parametrize("name", BAD)
def test_arguments_that_are_wrong_twice_fail_as_an_answer_that_is_none(
    tmp_path: Path, name: str, stream: bool
) -> None:
    """Ours: a call that no client could read is dropped with a warning; an answer of nothing else has failed."""
    tool, bad = BAD[name]
    flat = str(tool["type"])

    async def story(house: House) -> None:
        body: dict[str, Any] = {"model": "fake-model", "input": "Go.", "tools": [tool]}
        if not stream:
            error = await house.client.refuse(502, **body)
            assert error["message"].startswith("The model's answer was empty.")
            return
        failed = (await house.client.stream(**body))[-1]
        assert failed["type"] == "response.failed"
        assert list_codes(failed["response"]) == ["tool_call_asked_again", "invalid_tool_call"]

    run(tmp_path, [[(flat, bad)], [(flat, bad)]], story)


@STREAMS
@pytest.mark.parametrize("name", BAD)
def test_with_too_little_output_left_nobody_is_asked_again(tmp_path: Path, name: str, stream: bool) -> None:
    """Ours: the limit is why there is no call, so the response is incomplete and has not failed."""
    tool, bad = BAD[name]

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="Go.", tools=[tool], max_output_tokens=20)
        assert (made["status"], made["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert made["output"] == []
        assert list_codes(made) == ["invalid_tool_call"]
        assert len(house.upstream.asked) == 1

    run(tmp_path, [[(str(tool["type"]), bad)]], story)


@STREAMS
def test_a_bad_call_beside_text_is_dropped_and_the_text_stays(tmp_path: Path, stream: bool) -> None:
    """Ours: what the client has read already is not said again, so nobody is asked again."""
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "shell", "arguments": "{"}}
    both = Reply(
        [
            make_head(),
            make_chunk({"content": "Let me see."}),
            make_chunk({"tool_calls": [call]}),
            make_chunk({}, "tool_calls"),
            END,
        ]
    )

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="Go.", tools=[SHELL])
        assert read_text(made) == "Let me see."
        assert [item["type"] for item in made["output"]] == ["message"]
        assert list_codes(made) == ["invalid_tool_call"]
        after = await house.make(stream=stream, previous_response_id=made["id"], input="And?", tools=[SHELL])
        assert [m["role"] for m in house.messages] == ["user", "assistant", "user"]
        assert list_codes(after) == []

    run(tmp_path, [both, "Nothing."], story)


@pytest.mark.parametrize("kind", ["additional_tools", "tool_search_output"])
def test_grammars_that_items_bring_are_checked_at_once(tmp_path: Path, kind: str) -> None:
    """Ours: like those of `tools`, and named by their place."""
    tool = {
        "type": "custom",
        "name": "g",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: ("},
    }
    call = {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {}}
    brought: dict[str, Any] = {"type": kind, "tools": [{"type": "function", "name": "f"}, tool]}
    if kind == "additional_tools":
        items = [{"role": "user", "content": "Go."}, {**brought, "role": "developer"}]
    else:
        found = {**brought, "call_id": "c", "execution": "client", "status": "completed"}
        items = [{**call, "status": "completed"}, found]

    async def story(house: House) -> None:
        error = await house.client.refuse(400, model="fake-model", input=items)
        assert error["param"] == "input[1].tools[1].format.definition"

    run(tmp_path, [], story)
