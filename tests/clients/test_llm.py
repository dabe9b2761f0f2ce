"""The command `llm`, today's, through a real server; what it sends is read off a relay."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import Relay, relay_to
from tests.clients.guides import ADDRESS, check_outputs, read_examples
from tests.clients.installed import find_python
from tests.clients.python import run_command
from tests.docs.blocks import ROOT, read_blocks
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

GUIDE = "llm.md"


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """A relay to one server for all tests of this module."""
    find_python()
    with start_server(tmp_path_factory.mktemp("server")) as running, relay_to(running.url) as made:
        yield made


@pytest.fixture
def folder(relay: Relay, tmp_path: Path) -> Path:
    """A folder of `llm` with the models of the guide."""
    (models,) = (block for block in read_blocks(ROOT / "docs" / "guides" / GUIDE) if block.language == "yaml")
    text = models.text.replace(ADDRESS, relay.url)
    (tmp_path / "extra-openai-models.yaml").write_text(text, encoding="utf-8")
    relay.sent.clear()
    return tmp_path


def ask(folder: Path, *arguments: str) -> str:
    """What `llm` prints."""
    return run_command(["llm", *arguments], folder, LLM_USER_PATH=str(folder)).strip()


def read_kinds(body: Any) -> list[str]:
    """The kinds of items in a request, a message as its role."""
    return [item.get("role") or item["type"] for item in body["input"]]


def test_a_conversation_goes_on_with_its_history(relay: Relay, folder: Path) -> None:
    """Client: `-c` sends what the server answered back to it, and the answer proves that it was read."""
    assert ask(folder, "-m", "antiphon", "Remember the code word: marmalade.") == "Noted: marmalade."
    assert ask(folder, "-c", "What was the code word?") == "The code word is marmalade."
    assert [body["model"] for body in relay.sent] == ["scripted"] * 2
    assert read_kinds(relay.sent[1]) == ["user", "assistant", "user"]


def test_a_schema_is_filled_and_tokens_are_logged(relay: Relay, folder: Path) -> None:
    """Client: `--schema` is a JSON format; usage reaches the log."""
    said = ask(folder, "-m", "antiphon", "--no-stream", "--schema", "city str", "The city is Oslo.")
    assert json.loads(said) == {"city": "Oslo"}
    (logged,) = json.loads(ask(folder, "logs", "-n", "1", "--json"))
    assert logged["input_tokens"] > 0
    assert logged["output_tokens"] > 0
    (body,) = relay.sent
    assert body["text"]["format"]["type"] == "json_schema"


def test_tools_are_called_and_the_conversation_goes_on(relay: Relay, folder: Path) -> None:
    """Client: the call and its output are sent back, then the next question with all of it."""
    tool = "def get_weather(city: str) -> str:\n    return f'{len(city)} degrees'\n"
    said = ask(folder, "-m", "antiphon", "--functions", tool, "My name is Ada. Use get_weather for Oslo.")
    assert "get_weather returned: 4 degrees" in said
    assert read_kinds(relay.sent[1])[-2:] == ["function_call", "function_call_output"]
    assert relay.sent[1]["input"][-1]["output"] == "4 degrees"
    assert ask(folder, "-c", "What is my name?") == "The name is Ada."
    kinds = ["user", "function_call", "function_call_output", "assistant", "user"]
    assert read_kinds(relay.sent[-1]) == kinds


def test_a_refusal_is_told(relay: Relay, folder: Path) -> None:
    """Client: the message of the error is printed, and the command fails."""
    with pytest.raises(AssertionError, match=r"Error: .*window"):
        ask(folder, "-m", "antiphon", "a b " * 25_000)


def test_the_guide_prints_what_it_says(relay: Relay, folder: Path) -> None:
    """Ours: a reader who copies the examples of the guide in order gets what it shows."""
    examples = read_examples(GUIDE, "shell", "py")
    commands = [
        [*(["sh", "-ec"] if example.block.language == "shell" else ["python", "-c"]), example.block.text]
        for example in examples
    ]
    outputs = [run_command(command, folder, LLM_USER_PATH=str(folder)) for command in commands]
    check_outputs(GUIDE, examples, outputs)
