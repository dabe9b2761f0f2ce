"""Real Codex does its work through the server: tasks of several steps, resumed threads, images, schemas.

Over HTTP it sends its whole history each time, over WebSocket only what is new; the model server must see the same.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import serve_upstream
from tests.clients.codex import Codex, make_codex
from tests.clients.codex_answers import USAGE, call, list_outputs, read_messages, run_in_turn, say
from tests.clients.codex_wire import Wire, check_prefixes, tap
from tests.fake_upstream import FakeUpstream, Reply, Request
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

#: One red pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
TASK = run_in_turn("echo one >> lines.txt && cat lines.txt", "wc -l lines.txt")
OVER_BOTH = pytest.mark.parametrize("websocket", [False, True], ids=["http", "websocket"])


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Codex]:
    """Codex with a home of its own."""
    with make_codex(tmp_path / "project") as made:
        yield made


def check_wire(wire: Wire, upstream: FakeUpstream, *, websocket: bool) -> None:
    """Byte for byte: what Codex sent, and what the model server was sent, only ever grows at the end."""
    check_prefixes([request.body for request in upstream.asked], "messages")
    if not websocket:
        assert not wire.frames
        check_prefixes(wire.bodies, "input")
        return
    assert not wire.bodies
    frames = [json.loads(frame) for frame in wire.frames]
    assert {frame["type"] for frame in frames} == {"response.create"}
    assert not any(frame["store"] for frame in frames)


@OVER_BOTH
def test_a_task_of_two_steps_is_done_and_resumed(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: each command runs once, its output reaches the model, and `exec resume` goes on with the history."""
    with (
        serve_upstream(TASK) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, websocket=websocket)
        run = codex.run("Do it.").expect_done()
        assert run.said == ["Step 0.", "Step 1.", "All done."]
        assert codex.read_lines("lines.txt") == ["one"]
        outputs = [item["aggregated_output"] for item in run.list_items("command_execution")]
        assert outputs == ["one\n", "1 lines.txt\n"]
        (ended,) = run.find("turn.completed")
        assert ended["usage"]["input_tokens"] == 3 * USAGE["prompt_tokens"]
        assert ended["usage"]["output_tokens"] == 3 * 20
        again = codex.run("Again.", resume=run.thread).expect_done()
        assert again.thread == run.thread
        assert codex.read_lines("lines.txt") == ["one", "one"]
    assert len(upstream.asked) == 6
    assert ["2 lines.txt" in output for output in list_outputs(upstream.asked[-1])] == [False, True]
    roles = [message["role"] for message in read_messages(upstream.asked[-1])]
    done = ["assistant", "tool", "assistant", "tool"]
    assert roles[-11:] == ["user", *done, "assistant", "user", *done]
    check_wire(wire, upstream, websocket=websocket)


def test_over_websocket_only_what_is_new_is_sent(codex: Codex, tmp_path: Path) -> None:
    """Client: a warm-up, then `previous_response_id` with `store: false` and nothing but new items."""
    with (
        serve_upstream(TASK) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, websocket=True)
        codex.run("Do it.").expect_done()
    warm_up, *frames = [json.loads(frame) for frame in wire.frames]
    assert warm_up["generate"] is False
    assert len(frames) == len(upstream.asked) == 3
    assert all(frame["previous_response_id"] for frame in frames)
    assert [[item["type"] for item in frame["input"]] for frame in frames[1:]] == [
        ["function_call_output"],
        ["function_call_output"],
    ]
    assert len(wire.connections) == 1


def test_both_ways_show_the_model_the_same(codex: Codex, tmp_path: Path) -> None:
    """Ours: whether Codex sends all or only what is new, the model server gets the same messages and tools."""
    seen = []
    for websocket in (False, True):
        (tmp_path / str(websocket)).mkdir()
        with (
            serve_upstream(run_in_turn("echo one")) as upstream,
            start_server(tmp_path / str(websocket), upstream=upstream.url) as server,
        ):
            codex.configure(server.url, websocket=websocket)
            codex.run("Do it.").expect_done()
            asked = [{**request.json} for request in upstream.asked]
        for body in asked:
            body["messages"] = [hide_times(message) for message in body["messages"]]
        seen.append(asked)
    assert seen[0] == seen[1]


def hide_times(message: dict[str, Any]) -> dict[str, Any]:
    """A message without what differs from run to run: Codex tells how long a command took."""
    if message["role"] != "tool":
        return message
    return {**message, "content": message["content"].partition("Process exited")[2]}


def test_a_server_without_websocket_is_used_over_http_at_once(codex: Codex, tmp_path: Path) -> None:
    """Client: the upgrade is answered 426, which Codex takes as a silent word to use HTTP."""
    with (
        serve_upstream(TASK) as upstream,
        start_server(tmp_path, upstream=upstream.url, ANTIPHON_SERVER__WEBSOCKET="false") as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, websocket=True)
        codex.run("Do it.").expect_done()
    upgrades = [connection for connection in wire.connections if connection.is_socket]
    assert len(upgrades) == 1
    assert upgrades[0].received.startswith(b"HTTP/1.1 426 ")
    assert codex.read_lines("lines.txt") == ["one"]
    assert len(wire.bodies) == 3
    check_prefixes(wire.bodies, "input")


@OVER_BOTH
def test_a_schema_of_the_answer_reaches_the_model(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: `--output-schema` is `text.format` in the API and `response_format` before the model server."""
    schema = {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    with (
        serve_upstream(lambda _: say('{"word":', '"marmalade"}')) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        codex.configure(server.url, websocket=websocket)
        run = codex.run("A word?", "--output-schema", str(tmp_path / "schema.json")).expect_done()
    assert json.loads(run.said[-1]) == {"word": "marmalade"}
    told = upstream.asked[-1].json["response_format"]["json_schema"]
    assert told["schema"] == schema
    assert told["strict"] is True


@OVER_BOTH
def test_an_image_reaches_the_model(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: `-i` puts an image between two marks in the user's message."""
    (codex.project / "dot.png").write_bytes(base64.b64decode(DOT))
    with (
        serve_upstream(lambda _: say("A dot.")) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        codex.configure(server.url, websocket=websocket)
        assert codex.run("What is it?", "-i", "dot.png").expect_done().said == ["A dot."]
    content = read_messages(upstream.asked[-1])[-1]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text", "text"]
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert content[-1]["text"] == "What is it?"


def test_an_image_that_a_tool_shows_reaches_the_model(codex: Codex, tmp_path: Path) -> None:
    """Client: `view_image` answers with a list of parts, which a chat model gets as an image of its own."""
    (codex.project / "dot.png").write_bytes(base64.b64decode(DOT))

    def answer(request: Request) -> Reply:
        shown = '"image_url"' in json.dumps(read_messages(request))
        return say("A dot.") if shown else call("view_image", {"path": "dot.png"}, "call_look")

    with (
        serve_upstream(answer) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url)
        assert codex.run("Look at dot.png.").expect_done().said[-1] == "A dot."
    assert len(upstream.asked) == 2
    check_wire(wire, upstream, websocket=False)


@OVER_BOTH
def test_the_scripted_model_serves_codex_too(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Ours: without any model server, as someone who tries it out first."""
    script = {
        "rules": [
            {"after_output": True, "text": "Done."},
            {
                "when": "marmalade",
                "calls": [{"name": "exec_command", "arguments": {"cmd": "echo one >> lines.txt"}}],
            },
        ]
    }
    with start_server(tmp_path, script) as server:
        codex.configure(server.url, model="scripted", websocket=websocket)
        assert codex.run("Marmalade: marmalade.").expect_done().said == ["Done."]
    assert codex.read_lines("lines.txt") == ["one"]
