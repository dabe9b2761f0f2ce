"""Real Codex calls every kind of tool it has through the server, behind a model that knows functions only.

Namespaces, tools with a grammar, tools that are found by a search, and code that calls tools.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import serve_upstream
from tests.clients.codex import Codex, make_codex
from tests.clients.codex_answers import call, call_in_turn, list_outputs, list_tools, say
from tests.clients.codex_wire import check_prefixes, cut_before, tap
from tests.fake_upstream import Reply, Request, make_chunk
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

ECHO = Path(__file__).parent / "programs" / "mcp_echo.py"
PATCH = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
OVER_BOTH = pytest.mark.parametrize("websocket", [False, True], ids=["http", "websocket"])


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Codex]:
    """Codex with a home of its own."""
    with make_codex(tmp_path / "project") as made:
        yield made


def describe_echo() -> str:
    """The part of the configuration that starts the MCP server."""
    command, arguments = json.dumps(sys.executable), json.dumps([str(ECHO), "said.txt"])
    return f"[mcp_servers.echo]\ncommand = {command}\nargs = {arguments}\n"


@OVER_BOTH
def test_a_tool_of_an_mcp_server_is_called_by_its_namespace(
    codex: Codex, tmp_path: Path, websocket: bool
) -> None:
    """Client: the model calls `mcp__echo__say`; Codex runs nothing but `say` of the namespace `mcp__echo`."""
    with (
        serve_upstream(call_in_turn(("mcp__echo__say", {"text": "hi"}))) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, websocket=websocket, tables=describe_echo())
        run = codex.run("Say hi.").expect_done()
    (called,) = run.list_items("mcp_tool_call")
    assert (called["server"], called["tool"], called["status"]) == ("echo", "say", "completed")
    assert codex.read_lines("said.txt") == ["hi"]
    assert "mcp__echo__say" in list_tools(upstream.asked[0])
    (output,) = list_outputs(upstream.asked[-1])
    assert output.endswith("echo: hi")
    check_prefixes([request.body for request in upstream.asked], "messages")
    if not websocket:
        (sent,) = [item for item in json.loads(wire.bodies[-1])["input"] if item["type"] == "function_call"]
        assert (sent["namespace"], sent["name"]) == ("mcp__echo", "say")
        check_prefixes(wire.bodies, "input")


@OVER_BOTH
def test_a_patch_is_applied_through_the_grammar_tool(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: `apply_patch` is a custom tool with a lark grammar; the patch arrives as raw text."""
    with (
        serve_upstream(call_in_turn(("apply_patch", {"input": PATCH}))) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, websocket=websocket)
        run = codex.run("Write it.").expect_done()
    (change,) = run.list_items("file_change")
    assert change["status"] == "completed"
    assert codex.read_lines("new.txt") == ["hello"]
    (output,) = list_outputs(upstream.asked[-1])
    assert "Success. Updated the following files:" in output
    check_prefixes([request.body for request in upstream.asked], "messages")
    bodies = [json.loads(body) for body in wire.frames or wire.bodies]
    (tool,) = [tool for tool in bodies[-1]["tools"] if tool.get("name") == "apply_patch"]
    assert (tool["type"], tool["format"]["syntax"]) == ("custom", "lark")


def test_a_patch_that_breaks_the_grammar_is_asked_for_again(codex: Codex, tmp_path: Path) -> None:
    """Ours: what Codex's own grammar refuses does not reach Codex when the model does better at the second time."""

    def answer(request: Request) -> Reply:
        if list_outputs(request):
            return say("All done.")
        asked_again = request.json["messages"][-1]["content"] != "Write it."
        return call("apply_patch", {"input": PATCH if asked_again else "hello"}, "call_patch")

    with (
        serve_upstream(answer) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        codex.configure(server.url)
        codex.run("Write it.").expect_done()
    assert codex.read_lines("new.txt") == ["hello"]
    assert len(upstream.asked) == 3


@OVER_BOTH
def test_a_tool_that_a_search_found_is_called(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: with `supports_search_tool` Codex hides MCP tools until the model has searched for them."""
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("tool_search", {"query": "echo say", "limit": 3}),
        ("mcp__echo__say", {"text": "hi"}),
    )
    with (
        serve_upstream(call_in_turn(*calls)) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        entry = {"supports_search_tool": True}
        codex.configure(wire.url, websocket=websocket, entry=entry, tables=describe_echo())
        codex.run("Say hi.").expect_done()
    assert codex.read_lines("said.txt") == ["hi"]
    assert ["mcp__echo__say" in list_tools(request) for request in upstream.asked] == [False, True, True]
    # The tools that were found stand before the messages, which only grow.
    check_prefixes(cut_before([request.body for request in upstream.asked], "messages"), "messages")
    if not websocket:
        check_prefixes(wire.bodies, "input")


@OVER_BOTH
def test_code_that_calls_tools_is_run(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: with `use_responses_lite` the tools come as an item of the input, and the model writes JavaScript."""
    command = "const r = await tools.exec_command({cmd: 'echo one | tee -a lines.txt'}); text(r.output);"
    with (
        serve_upstream(call_in_turn(("functions__exec", {"input": command}))) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        entry = {"use_responses_lite": True, "tool_mode": "code_mode_only"}
        codex.configure(wire.url, websocket=websocket, entry=entry)
        codex.run("Do it.").expect_done()
    assert codex.read_lines("lines.txt") == ["one"]
    bodies = [json.loads(body) for body in wire.frames or wire.bodies]
    items = [item for body in bodies for item in body["input"]]
    assert items[0]["type"] == "additional_tools"
    assert not any(body.get("tools") for body in bodies)
    assert "functions__exec" in list_tools(upstream.asked[-1])
    (output,) = list_outputs(upstream.asked[-1])
    assert output.startswith("Script completed")
    check_prefixes([request.body for request in upstream.asked], "messages")


def test_calls_that_are_made_at_once_each_run_once(codex: Codex, tmp_path: Path) -> None:
    """Client: two calls in one answer; Codex sends both calls, then both outputs."""
    functions = [
        {
            "index": number,
            "id": f"call_{word}",
            "type": "function",
            "function": {
                "name": "exec_command",
                "arguments": json.dumps({"cmd": f"echo {word} >> {word}.txt"}),
            },
        }
        for number, word in enumerate(("one", "two"))
    ]

    def answer(request: Request) -> Reply:
        if list_outputs(request):
            return say("All done.")
        reply = call("exec_command", {}, "call_none")
        chunks = [make_chunk({"tool_calls": [function]}) for function in functions]
        return Reply([reply.steps[0], *chunks, *reply.steps[2:]])

    with (
        serve_upstream(answer) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url)
        codex.run("Do both.").expect_done()
    assert [codex.read_lines(f"{word}.txt") for word in ("one", "two")] == [["one"], ["two"]]
    assert len(list_outputs(upstream.asked[-1])) == 2
    check_prefixes(wire.bodies, "input")
    check_prefixes([request.body for request in upstream.asked], "messages")
