"""Today's `openai` package for Python, over a real socket; the programs in `programs` hold the expectations."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import serve_upstream
from tests.clients.codex_answers import read_messages, say
from tests.clients.codex_wire import Connection, tap
from tests.clients.installed import find_python
from tests.clients.python import run_guide, run_python_tests
from tests.fake_upstream import Reply, Request, make_json
from tests.scenarios.process import ServerProcess, start_server

pytestmark = pytest.mark.clients

SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": "^refuse 400", "error": {"status": 400, "message": "Bad."}},
        {"when": "^refuse 429", "error": {"status": 429, "message": "Wait."}},
        {"when": "^refuse 500", "error": {"status": 500, "message": "Boom."}},
        {"when": "^break", "text": "Half an", "error": {"at": "after", "status": 500, "message": "Boom."}},
        {"when": "^cut", "text": "Half an", "finish": "length"},
        {"when": "^think", "reasoning": "Let me see.", "text": "Thought."},
        {"when": "^decline", "refusal": "I will not."},
        {"when": "^slowly", "text": "one two three four five six", "pause_s": 0.05},
        {"when": "^hang", "text": "one two three four five six", "pause_s": 30},
        {"after_output": True, "act": "repeat_outputs"},
        {"names_tool": True, "act": "call_tools"},
        {"wants_json": True, "act": "fill_schema"},
        {"when": r"\?\s*$", "act": "recall"},
        {"act": "note"},
    ]
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of this module that can share it."""
    find_python()
    with start_server(tmp_path_factory.mktemp("server"), SCRIPT) as running:
        yield running


def test_every_endpoint_is_driven_by_both_clients(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 1 and 8.1: what each method returns or raises, blocking and asynchronous."""
    run_python_tests("py_openai_http.py", tmp_path, SERVER_URL=server.url)


def test_a_websocket_is_driven_by_both_clients(server: ServerProcess, tmp_path: Path) -> None:
    """Responses API 4.9: rounds, tools, lanes, warm-up, errors, steering, all through `responses.connect()`."""
    run_python_tests("py_openai_socket.py", tmp_path, "TestSync", "TestAsync", SERVER_URL=server.url)


def test_a_broken_websocket_is_opened_again(server: ServerProcess, tmp_path: Path) -> None:
    """Client: close code 1006 is recoverable; what is stored is continued, what was not is named as gone."""
    broken: list[Connection] = []

    def cut(connection: Connection) -> bool:
        """In the middle of the slow answer, the first time."""
        if broken or b"two " not in connection.received:
            return False
        broken.append(connection)
        return True

    with tap(server.url) as wire:
        wire.cut = cut
        run_python_tests("py_openai_socket.py", tmp_path, "TestReconnect", SERVER_URL=wire.url)
    assert len(broken) == 1
    assert sum(connection.is_socket for connection in wire.connections) == 2


def test_a_server_that_stops_ends_responses_then_connections(tmp_path: Path) -> None:
    """Ours: the terminal event comes before close 1012, which the package takes for recoverable."""
    find_python()
    with start_server(tmp_path, SCRIPT) as running:
        run_python_tests(
            "py_openai_socket.py",
            tmp_path,
            "TestStop",
            SERVER_URL=running.url,
            SERVER_PID=str(running.pid),
        )
        assert running.wait() == 0


def test_a_wrong_key_and_a_right_one(tmp_path: Path) -> None:
    """Ours: 401 at the upgrade and over HTTP; the right key opens both."""
    find_python()
    right = hashlib.sha256(b"sk-right").hexdigest()
    with start_server(tmp_path, SCRIPT, ANTIPHON_KEYS__ONE__SHA256=right) as running:
        for chosen in ("TestKeys", "TestRightKey"):
            run_python_tests(
                "py_openai_socket.py",
                tmp_path,
                chosen,
                SERVER_URL=running.url,
                EXPECTED="401",
                KEY="sk-wrong",
                RIGHT="sk-right",
            )


def test_a_server_without_websocket(tmp_path: Path) -> None:
    """Ours: 426 at the upgrade; HTTP goes on."""
    find_python()
    with start_server(tmp_path, SCRIPT, ANTIPHON_SERVER__WEBSOCKET="false") as running:
        run_python_tests(
            "py_openai_socket.py", tmp_path, "TestKeys", SERVER_URL=running.url, EXPECTED="426", KEY="none"
        )


def test_retries_wait_as_long_as_they_are_told(tmp_path: Path) -> None:
    """Responses API 7: the model server's `retry-after` reaches the package, which obeys it."""
    find_python()

    def answer(request: Request) -> Reply:
        text = read_messages(request)[-1]["content"]
        if text == "wait a second" and len(upstream.asked) > 1:
            return say("Twice asked.")
        return Reply([make_json({"error": {"message": "Busy."}}, status=429, extra="retry-after: 1\r\n")])

    with serve_upstream(answer) as upstream, start_server(tmp_path, upstream=upstream.url) as running:
        run_python_tests("py_openai_retries.py", tmp_path, SERVER_URL=running.url)
        assert len(upstream.asked) == 3


def test_the_guide_is_one_program_that_prints_what_it_says(tmp_path: Path) -> None:
    """Ours: a reader who copies the examples of the guide in order gets what it shows, with today's package."""
    find_python()
    with start_server(tmp_path) as running:
        run_guide("openai-sdk.md", running.url, tmp_path)
