"""Today's LangChain through a real server; the program in `programs` holds the expectations."""

from pathlib import Path
from typing import Any

import pytest

from tests.clients.codex_wire import tap
from tests.clients.installed import find_python
from tests.clients.python import run_guide, run_python_tests
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

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


def test_chat_openai_keeps_its_state_either_way(tmp_path: Path) -> None:
    """Client: `use_responses_api` with whole histories and with `use_previous_response_id`; tools, formats, agents."""
    find_python()
    with start_server(tmp_path, SCRIPT) as running, tap(running.url) as wire:
        run_python_tests("py_langchain.py", tmp_path, SERVER_URL=wire.url)
        asked = [connection.head.split(" ")[1] for connection in wire.connections]
    assert set(asked) <= {"/v1/responses"} | {
        path for path in asked if path.startswith("/v1/responses/resp_")
    }


def test_the_guide_is_one_program_that_prints_what_it_says(tmp_path: Path) -> None:
    """Ours: a reader who copies the examples of the guide in order gets what it shows."""
    find_python()
    with start_server(tmp_path) as running:
        run_guide("langchain.md", running.url, tmp_path)
