"""Today's openai-agents through a real server; the program in `programs` holds the expectations."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import serve_upstream
from tests.clients.codex_answers import call_in_turn, read_messages
from tests.clients.codex_wire import check_prefixes, tap
from tests.clients.installed import find_python
from tests.clients.python import run_guide, run_python_tests
from tests.docs.blocks import ROOT, read_blocks
from tests.scenarios.process import ServerProcess, start_server

pytestmark = pytest.mark.clients

GUIDE = "openai-agents.md"
CITIES = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Bergen")]
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": "^think", "reasoning": "Let me see.", "text": "Thought."},
        {"when": "^both", "after_output": False, "calls": CITIES},
        {"tool_forced": True, "act": "call_tools"},
        {"after_output": True, "act": "repeat_outputs"},
        {"names_tool": True, "act": "call_tools"},
        {"wants_json": True, "act": "fill_schema"},
        {"when": r"\?\s*$", "act": "recall"},
        {"act": "note"},
    ]
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of this module."""
    find_python()
    with start_server(tmp_path_factory.mktemp("server"), SCRIPT) as running:
        yield running


def test_agents_use_tools_hand_over_and_fill_types(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 8.2: what runs send, streamed and not, and what they make of the answers."""
    run_python_tests("py_agents.py", tmp_path, "TestRuns", SERVER_URL=server.url)


def test_agents_go_on_by_conversation_by_id_and_by_history(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 8.2: `OpenAIConversationsSession`, `previous_response_id`, and a session of their own."""
    run_python_tests("py_agents.py", tmp_path, "TestState", SERVER_URL=server.url)


def test_agents_run_over_one_websocket(server: ServerProcess, tmp_path: Path) -> None:
    """Client: a session's runs are asked for over WebSocket alone; what is not stored is continued there."""
    with tap(server.url) as wire:
        run_python_tests("py_agents.py", tmp_path, "TestSocket", SERVER_URL=wire.url)
        frames = [json.loads(frame) for frame in wire.frames]
        bodies = [json.loads(body) for body in wire.bodies]
    assert {frame["type"] for frame in frames} == {"response.create"}
    assert not any("model" in body for body in bodies), "a response was asked for over HTTP"
    assert any(frame.get("store") is False and frame.get("previous_response_id") for frame in frames)


@pytest.mark.parametrize("how", ["session", "id", "socket"])
def test_the_model_server_sees_all_of_it_each_time(tmp_path: Path, how: str) -> None:
    """Ours: however an agent goes on, each request to the model server begins with the bytes of the one before."""
    find_python()
    answer = call_in_turn(("get_weather", {"city": "Oslo"}), ("get_weather", {"city": "Bergen"}))
    with serve_upstream(answer) as upstream, start_server(tmp_path, upstream=upstream.url) as running:
        run_python_tests(
            "py_agents.py", tmp_path, "TestUpstream", SERVER_URL=running.url, MODEL="fake-model", HOW=how
        )
    assert len(upstream.asked) == 9
    check_prefixes([request.body for request in upstream.asked], "messages")
    messages = read_messages(upstream.asked[-1])
    task = ["user", "assistant", "tool", "assistant", "tool"]
    assert [each["role"] for each in messages] == ["system", *[*task, "assistant"] * 2, *task]
    assert [each["content"] for each in messages if each["role"] == "user"] == [
        f"Task {number}." for number in range(3)
    ]
    outputs = ["4 degrees in Oslo", "6 degrees in Bergen"] * 3
    assert [each["content"] for each in messages if each["role"] == "tool"] == outputs


def test_the_guide_is_one_program_that_prints_what_it_says(tmp_path: Path) -> None:
    """Ours: a reader who copies the examples of the guide in order gets what it shows."""
    find_python()
    (config,) = [
        each.text for each in read_blocks(ROOT / "docs" / "guides" / GUIDE) if each.language == "toml"
    ]
    (tmp_path / "antiphon.toml").write_text(config, encoding="utf-8")
    with start_server(tmp_path) as running:
        run_guide(GUIDE, running.url, tmp_path)
