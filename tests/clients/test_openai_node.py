"""The official `openai` package for Node.js, over a real socket; the programs in `programs` hold the expectations."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.guides import ADDRESS, MARK, check_outputs, read_examples
from tests.clients.installed import find_node
from tests.clients.node import run_node, run_node_tests
from tests.scenarios.mcp_server import TOKEN, McpServerThread
from tests.scenarios.process import ServerProcess, start_server

pytestmark = pytest.mark.clients

CITIES = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Bergen")]
EDIT = {"type": "create_file", "path": "a.txt", "diff": "+a"}
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": "^refuse 400", "error": {"status": 400, "message": "Bad."}},
        {"when": "^refuse 429", "error": {"status": 429, "message": "Wait."}},
        {"when": "^refuse 500", "error": {"status": 500, "message": "Boom."}},
        {"when": "^break", "text": "Half an", "error": {"at": "after", "status": 500, "message": "Boom."}},
        {"when": "^cut", "text": "Half an", "finish": "length"},
        {"when": "^think", "reasoning": "Let me see.", "text": "Thought."},
        {"when": "^decline", "refusal": "I will not."},
        {"when": "^long", "text": " ".join(f"w\u00f6rd{number} \U0001f40c\n" for number in range(100))},
        {"when": "^slowly", "text": "one two three four five six", "pause_s": 0.02},
        {"when": "^hang", "text": "one two three four five six", "pause_s": 30},
        {"when": "^(both|patch|weather)", "after_output": True, "act": "repeat_outputs"},
        {"when": "^both", "reasoning": "Two cities.", "text": "I look.", "calls": CITIES},
        {"when": "^patch", "calls": [{"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}}]},
        {"when": "^shell", "calls": [{"name": "shell", "arguments": {"commands": ["ls", "pwd"]}}]},
        {"when": "^local", "calls": [{"name": "local_shell", "arguments": {"command": ["ls"]}}]},
        {"when": "^edit", "calls": [{"name": "apply_patch", "arguments": EDIT}]},
        {"when": "^weather", "calls": [{"name": "home__weather", "arguments": {"city": "Oslo"}}]},
        {"when": "^send", "after_output": False, "calls": [{"name": "home__send", "arguments": {}}]},
        {"when": "^search", "after_output": True, "text": "It is [Deep](https://fjords.example/deep)."},
        {"when": "^search", "calls": [{"name": "web_search", "arguments": {"query": "fjords"}}]},
        {
            "when": "^json place",
            "text": json.dumps({"city": "Oslo", "country": None, "streets": ["Karl Johan"]}),
        },
        {"when": "^json wrong", "text": '{"town": "Oslo"}'},
        {"after_output": True, "act": "repeat_outputs"},
        {"when": r"\?\s*$", "act": "recall"},
        {"act": "note"},
    ]
}
HIT = {"url": "https://fjords.example/deep", "title": "Deep", "content": "Sognefjord is deep."}


class Searxng(http.server.BaseHTTPRequestHandler):
    """A search server with one page, in the shape of SearXNG's JSON answers."""

    def do_GET(self) -> None:
        """Answer any search with the one hit."""
        body = json.dumps({"results": [HIT]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: tests print what fails."""


@pytest.fixture(scope="module")
def search_url() -> Iterator[str]:
    """The address of a search server."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Searxng) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, search_url: str) -> Iterator[ServerProcess]:
    """One server for all tests of this module."""
    find_node()
    folder = tmp_path_factory.mktemp("server")
    with start_server(folder, SCRIPT, ANTIPHON_SEARCH__URL=search_url) as running:
        yield running


@contextmanager
def run_mcp_server() -> Iterator[McpServerThread]:
    """The SDK's own MCP server on loopback."""
    running = McpServerThread()
    try:
        yield running
    finally:
        running.stop()


def tell_mcp(mcp: McpServerThread) -> dict[str, str]:
    return {"MCP_URL": mcp.url, "MCP_TOKEN": TOKEN}


def test_streams_of_every_kind_of_item_satisfy_the_accumulator(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 8.3: `responses.stream()` refuses events that do not fit; it ends with what is stored."""
    with run_mcp_server() as mcp:
        run_node_tests("openai_streams.mjs", tmp_path, SERVER_URL=server.url, **tell_mcp(mcp))
        assert mcp.calls == ["weather", "send"]


def test_texts_and_arguments_are_parsed_with_zod(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 8.3: `zodTextFormat`, `zodResponsesFunction`, `parse`, and the package's own tool runner."""
    run_node_tests("openai_parsed.mjs", tmp_path, SERVER_URL=server.url)


def test_state_is_read_paged_counted_cancelled_and_deleted(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 1: every endpoint through the package, and its error classes."""
    run_node_tests("openai_state.mjs", tmp_path, SERVER_URL=server.url)


def test_the_websocket_session_and_its_accumulator_are_satisfied(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Responses API 4.9 and 8.3: lanes, continuation of what is not stored, warm-up, eviction, errors, steering."""
    with run_mcp_server() as mcp:
        run_node_tests("openai_socket.mjs", tmp_path, SERVER_URL=server.url, **tell_mcp(mcp))
        assert mcp.calls == ["weather"]


def test_the_guide_is_one_program_that_prints_what_it_says(tmp_path: Path) -> None:
    """Ours: a reader who copies the examples of the guide in order gets what it shows."""
    find_node()
    examples = read_examples("openai-node.md", "js")
    with start_server(tmp_path) as running:
        program = f'\nconsole.log("{MARK}");\n'.join(example.block.text for example in examples)
        outputs = run_node(program.replace(ADDRESS, running.url), tmp_path).split(f"{MARK}\n")
    check_outputs("openai-node.md", examples, outputs)


def test_a_server_without_websocket_is_told_at_the_upgrade(tmp_path: Path) -> None:
    """Ours: 426 reaches the package's error event; HTTP goes on."""
    find_node()
    with start_server(tmp_path, SCRIPT, ANTIPHON_SERVER__WEBSOCKET="false") as running:
        run_node_tests("openai_refused.mjs", tmp_path, SERVER_URL=running.url, EXPECTED="426")


def test_a_wrong_key_is_told_at_the_upgrade(tmp_path: Path) -> None:
    """Ours: 401 reaches the package's error event, as it does over HTTP."""
    find_node()
    right = hashlib.sha256(b"sk-right").hexdigest()
    with start_server(tmp_path, SCRIPT, ANTIPHON_KEYS__ONE__SHA256=right) as running:
        run_node_tests(
            "openai_refused.mjs", tmp_path, SERVER_URL=running.url, EXPECTED="401", RIGHT="sk-right"
        )


def test_a_server_that_stops_lets_running_responses_end(tmp_path: Path) -> None:
    """Ours: graceful shutdown, as the package sees it; close code 1012 is one that it reconnects after."""
    find_node()
    with start_server(tmp_path, SCRIPT) as running:
        run_node_tests("openai_stopping.mjs", tmp_path, SERVER_URL=running.url, SERVER_PID=str(running.pid))
        assert running.wait() == 0
