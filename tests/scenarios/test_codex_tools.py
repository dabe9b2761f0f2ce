"""Tools as a coding agent declares them: namespaces, a patch grammar, deferred tools, tools in items, other agents."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fake_upstream import END, Reply, make_chunk, make_head
from tests.scenarios.client import read_text
from tests.scenarios.houses import House, check_prefixes, list_codes, open_house, play, read_array, run

STREAMS = pytest.mark.parametrize("stream", [False, True])
#: The grammar of patches, as agents send it.
PATCH_GRAMMAR = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
PATCH: dict[str, Any] = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
GOOD = "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch\n"
BAD = "*** Begin Patch\n+hello\n"
SAY: dict[str, Any] = {
    "type": "function",
    "name": "say",
    "description": "Says it.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    "strict": False,
}
ECHO = {"type": "namespace", "name": "mcp__echo", "description": "Echoes.", "tools": [SAY]}
SEARCH = {"type": "tool_search", "execution": "client"}
DEFERRED = {**ECHO, "tools": [{**SAY, "defer_loading": True}]}
INSTRUCTIONS = "You are a coding agent."


def wrap(patch: str) -> str:
    """The arguments as a chat model writes them."""
    return json.dumps({"input": patch})


def give(call: dict[str, Any], output: str) -> dict[str, Any]:
    """The output of a call, of the kind that belongs to it."""
    return {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": output}


@STREAMS
def test_an_agent_s_turn_keeps_one_growing_prompt(tmp_path: Path, stream: bool) -> None:
    """Codex: instructions, namespaces and a patch tool, several rounds by full history with nothing stored."""
    shared: dict[str, Any] = {
        "instructions": INSTRUCTIONS,
        "tools": [ECHO, PATCH],
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": stream,
    }

    async def story(house: House) -> None:
        history: list[dict[str, Any]] = [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Sandboxed."}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Make a.txt."}]},
        ]
        first = await house.make(input=history, **shared)
        (say,) = first["output"]
        assert (say["name"], say["namespace"]) == ("say", "mcp__echo")
        history += [say, give(say, "said")]
        second = await house.make(input=history, **shared)
        (patch,) = second["output"]
        assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", GOOD)
        history += [patch, give(patch, "Done.")]
        third = await house.make(input=history, **shared)
        assert read_text(third) == "Made."
        assert not any(map(list_codes, (first, second, third)))
        check_prefixes(house.upstream)
        assert house.messages[0] == {"role": "system", "content": f"{INSTRUCTIONS}\n\nSandboxed."}

    run(tmp_path, [[("mcp__echo__say", '{"text":"hi"}')], [("apply_patch", wrap(GOOD))], "Made."], story)


@STREAMS
@pytest.mark.parametrize(
    ("answers", "codes", "patch"),
    [
        ([GOOD], [], GOOD),
        ([BAD, GOOD], ["tool_call_asked_again"], GOOD),
        ([BAD, BAD], ["tool_call_asked_again", "grammar_mismatch"], BAD),
    ],
)
def test_a_patch_is_held_against_its_grammar(
    tmp_path: Path, stream: bool, answers: list[str], codes: list[str], patch: str
) -> None:
    """Ours: the model is asked once more; what is wrong twice is handed out, and told of."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Go.", tools=[PATCH])
        (call,) = first["output"]
        assert (call["type"], call["input"]) == ("custom_tool_call", patch)
        assert list_codes(first) == codes
        assert first["usage"]["output_tokens"] == 5 * len(answers)
        if stream:
            assert "".join(e["delta"] for e in house.events if e["type"].endswith("input.delta")) == patch
        again = len(house.upstream.asked) - 1
        if again:
            assert "was not accepted" in house.messages[-1]["content"]
            assert read_array(house.upstream.asked[-1]).startswith(read_array(house.upstream.asked[0])[:-1])
        second = await house.make(
            stream=stream, previous_response_id=first["id"], input=[give(call, "ok")], tools=[PATCH]
        )
        # What was wrong the first time is nowhere in the history.
        assert [message["role"] for message in house.messages] == ["user", "assistant", "tool"]
        assert json.loads(house.messages[1]["tool_calls"][0]["function"]["arguments"]) == {"input": patch}
        assert list_codes(second) == []

    run(tmp_path, [*([("apply_patch", wrap(each))] for each in answers), "Done."], story)


@STREAMS
def test_a_custom_call_that_was_cut_off_says_so(tmp_path: Path, stream: bool) -> None:
    """Ours: the status `incomplete` on a custom call is the one thing that the package does not know."""
    plain = {"type": "custom", "name": "run_code"}

    async def story(house: House) -> None:
        cut = await house.make(stream=stream, input="Go.", tools=[plain], max_output_tokens=16)
        assert cut["incomplete_details"] == {"reason": "max_output_tokens"}
        (call,) = cut["output"]
        assert (call["type"], call["status"], call["input"]) == ("custom_tool_call", "incomplete", "print(")
        after = await house.make(stream=stream, previous_response_id=cut["id"], input="Again.", tools=[plain])
        assert [message["role"] for message in house.messages] == ["user", "user"]
        assert list_codes(after) == ["transcript"]

    begun = {
        "index": 0,
        "id": "up",
        "type": "function",
        "function": {"name": "run_code", "arguments": '{"input":"print('},
    }
    cut = Reply([make_head(), make_chunk({"tool_calls": [begun]}), make_chunk({}, "length"), END])
    run(tmp_path, [cut, "ok"], story)


@STREAMS
@pytest.mark.parametrize("way", ["id", "restart", "history"])
def test_what_a_search_found_stays_callable(tmp_path: Path, way: str, stream: bool) -> None:
    """Codex: found tools can be called in the next round and every later one, whichever way history comes back."""

    async def story() -> None:
        upstream = play(
            [
                [("tool_search", '{"query":"say"}')],
                [("mcp__echo__say", "{}")],
                [("mcp__echo__say", "{}")],
                "Done.",
            ]
        )
        async with asyncio.timeout(40), upstream:
            history: list[dict[str, Any]] = [{"role": "user", "content": "Say hi."}]
            house_block = open_house(tmp_path, upstream)
            house = await house_block.__aenter__()
            tools = [SEARCH, DEFERRED]
            parent: str | None = None
            new: list[dict[str, Any]] = history
            offers = []
            for _ in range(4):
                if way == "history":
                    made = await house.make(stream=stream, input=history, tools=tools, store=False)
                else:
                    made = await house.make(
                        stream=stream, input=new, tools=tools, previous_response_id=parent
                    )
                offers.append(house.told)
                parent = made["id"]
                (item,) = made["output"]
                if item["type"] == "tool_search_call":
                    assert (item["execution"], item["arguments"]) == ("client", {"query": "say"})
                    new = [
                        {
                            "type": "tool_search_output",
                            "call_id": item["call_id"],
                            "execution": "client",
                            "tools": [DEFERRED],
                        }
                    ]
                elif item["type"] == "function_call":
                    assert (item["name"], item["namespace"]) == ("say", "mcp__echo")
                    new = [give(item, "said")]
                history = [*history, item, *new]
                if way == "restart":
                    await house_block.__aexit__(None, None, None)
                    house_block = open_house(tmp_path, upstream)
                    house = await house_block.__aenter__()
            await house_block.__aexit__(None, None, None)
            found = ["tool_search", "mcp__echo__say"]
            assert offers == [["tool_search"], found, found, found]
            assert item["type"] == "message"
            check_prefixes(upstream, same_tools=False)
            assert len({read_array(asked, "tools") for asked in upstream.asked[1:]}) == 1

    asyncio.run(story())


def test_a_deferred_tool_is_not_called_before_it_was_found(tmp_path: Path) -> None:
    """Spec: tool search; what is not loaded is dropped with a warning."""

    async def story(house: House) -> None:
        made = await house.make(input="Say hi.", tools=[SEARCH, DEFERRED])
        assert read_text(made) == "Hm."
        assert list_codes(made) == ["hidden_call_dropped"]

    call = {
        "index": 0,
        "id": "a",
        "type": "function",
        "function": {"name": "mcp__echo__say", "arguments": "{}"},
    }
    both = Reply(
        [
            make_head(),
            make_chunk({"content": "Hm."}),
            make_chunk({"tool_calls": [call]}),
            make_chunk({}, "stop"),
            END,
        ]
    )
    run(tmp_path, [both], story)


@pytest.mark.parametrize("way", ["id", "restart", "history"])
def test_tools_that_items_brought_stay_offered(tmp_path: Path, way: str) -> None:
    """Codex: `additional_tools` stands before everything else, or comes later and adds to what there is."""
    first_tools = {"type": "additional_tools", "role": "developer", "tools": [ECHO]}
    more_tools = {"type": "additional_tools", "role": "developer", "tools": [PATCH]}

    async def story() -> None:
        async with asyncio.timeout(40), play(["a", [("mcp__echo__say", "{}")], "b", "c"]) as upstream:
            history: list[dict[str, Any]] = []
            parent: str | None = None
            offers = []
            output: list[dict[str, Any]] = []
            asked: list[list[dict[str, Any]]] = [
                [first_tools, {"role": "user", "content": "1"}],
                [{"role": "user", "content": "2"}],
                [],
                [more_tools, {"role": "user", "content": "4"}],
            ]
            for new in asked:
                if output and output[-1]["type"] == "function_call":
                    new = [give(output[-1], "said"), *new]
                history += new
                async with open_house(tmp_path / ("" if way == "restart" else "x"), upstream) as house:
                    if way == "history" or way == "id":
                        made = await house.make(input=history, store=False)
                    else:
                        made = await house.make(input=new, previous_response_id=parent)
                    offers.append(house.told)
                parent, output = made["id"], made["output"]
                history += output
            echo = ["mcp__echo__say"]
            assert offers == [echo, echo, echo, [*echo, "apply_patch"]]
            check_prefixes(upstream, same_tools=False)

    (tmp_path / "x").mkdir()
    asyncio.run(story())


@STREAMS
def test_agents_talk_to_each_other(tmp_path: Path, stream: bool) -> None:
    """Codex: a message of another agent is a marked user message, kept as the item that it is."""
    message = {
        "type": "agent_message",
        "author": "lead",
        "recipient": "worker",
        "content": [{"type": "input_text", "text": "Look at a.py."}],
    }

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input=[message])
        assert house.messages == [
            {"role": "user", "content": "[agent message from lead to worker]\nLook at a.py."}
        ]
        await house.make(stream=stream, previous_response_id=first["id"], input="And?")
        check_prefixes(house.upstream)
        (item, *_) = await house.list_items(first["id"])
        assert {key: item[key] for key in message} == message

    run(tmp_path, ["Looking.", "Found."], story)
