"""Today's `openai-agents` and `openai` packages compact: the session that does it by itself, and the SDKs' calls."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.context.sealed_window import HEADING
from antiphon.context.summary_texts import DEFAULT_TEXTS
from tests.clients.between import serve_upstream
from tests.clients.codex_answers import call, list_outputs, read_messages, say
from tests.clients.codex_wire import tap
from tests.clients.installed import find_node, find_python
from tests.clients.node import run_node_tests
from tests.clients.python import run_python_tests
from tests.fake_upstream import Reply, Request
from tests.scenarios.process import ServerProcess, start_server

pytestmark = pytest.mark.clients

SCRIPT: dict[str, Any] = {
    "rules": [
        {"after_output": True, "act": "repeat_outputs"},
        {"names_tool": True, "act": "call_tools"},
        {"when": r"\?\s*$", "act": "recall"},
        {"act": "note"},
    ]
}
#: The same model under names that the packages take for OpenAI's.
ALIASES = """\
[models.gpt-scripted]
endpoint = "scripted"
model = "scripted"

[models.gpt-other]
endpoint = "scripted"
model = "scripted"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of this module that can share it."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "antiphon.toml").write_text(ALIASES)
    with start_server(folder, SCRIPT) as running:
        yield running


@pytest.mark.parametrize("mode", ["auto", "input", "previous_response_id"])
def test_a_session_compacts_twice_in_each_of_its_modes(
    server: ServerProcess, tmp_path: Path, mode: str
) -> None:
    """Client: `OpenAIResponsesCompactionSession`, streamed and not; what the user said is remembered each time."""
    find_python()
    with tap(server.url) as wire:
        run_python_tests("py_agents_compaction.py", tmp_path, "TestSession", SERVER_URL=wire.url, MODES=mode)
        heads = [connection.sent for connection in wire.connections]
    posted = b"".join(bytes(head) for head in heads).count(b"POST /v1/responses/compact ")
    assert posted == 2 * 2 + 2


def test_an_agent_goes_on_after_its_server_compacted(server: ServerProcess, tmp_path: Path) -> None:
    """Client: `context_management` in the settings of an agent that continues by id."""
    find_python()
    run_python_tests("py_agents_compaction.py", tmp_path, "TestManaged", SERVER_URL=server.url)


def test_the_model_server_sees_each_thing_once(tmp_path: Path) -> None:
    """Ours: after each compaction of a session what the user said stands once in the window, as does the summary."""
    find_python()
    summaries = 0

    def answer(request: Request) -> Reply:
        nonlocal summaries
        text = json.dumps(read_messages(request))
        if json.dumps(DEFAULT_TEXTS.in_place)[1:-1] in text or json.dumps(DEFAULT_TEXTS.system)[1:-1] in text:
            summaries += 1
            return say(f"Summary number {summaries}.")
        said = [message["content"] for message in read_messages(request) if message["role"] == "user"]
        if "What was the word?" in json.dumps(said[-1]):
            return say("The word is marmalade.")
        if list_outputs(request) or "Remember" in json.dumps(said[-1]):
            return say("It rains. " * 300)
        return call("get_weather", {"city": "Oslo"}, f"call_{len(read_messages(request))}")

    names = ALIASES.replace('endpoint = "scripted"', 'endpoint = "upstream"').replace(
        'model = "scripted"', 'model = "fake-model"'
    )
    (tmp_path / "antiphon.toml").write_text(names)
    with serve_upstream(answer) as upstream, start_server(tmp_path, upstream=upstream.url) as running:
        run_python_tests(
            "py_agents_compaction.py", tmp_path, "TestSession", SERVER_URL=running.url, MODES="input"
        )
    heading = json.dumps(HEADING)[1:-1]
    compacted = [request for request in upstream.asked if heading in json.dumps(read_messages(request))]
    assert compacted
    for request in upstream.asked:
        text = json.dumps(read_messages(request))
        assert text.count("Remember this word: marmalade.") == 1
        assert text.count(heading) <= 1


def test_openai_python_compacts_with_both_clients(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 8.1: `responses.compact()`, a trigger, `context_management` and the stream accumulators."""
    find_python()
    run_python_tests("py_openai_compaction.py", tmp_path, SERVER_URL=server.url)


def test_openai_node_compacts(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 8.3: the same through the package for Node.js, whose accumulator refuses what does not fit."""
    find_node()
    run_node_tests("openai_compaction.mjs", tmp_path, SERVER_URL=server.url)
