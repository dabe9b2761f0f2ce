"""Real Codex with exactly the files that `antiphon codex-config` wrote for the running server."""

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import serve_upstream
from tests.clients.codex import Codex, make_codex
from tests.clients.codex_answers import (
    call_in_turn,
    list_outputs,
    list_tools,
    read_messages,
    run_in_turn,
    say,
)
from tests.clients.codex_wire import check_prefixes, tap
from tests.clients.guides import read_examples
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

OVER_BOTH = pytest.mark.parametrize("websocket", [False, True], ids=["http", "websocket"])


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Codex]:
    """Codex with a home of its own."""
    with make_codex(tmp_path / "project") as made:
        yield made


def read_catalog(codex: Codex) -> dict[str, Any]:
    """The entries that were written, by their names."""
    models = json.loads((codex.home / "antiphon-models.json").read_text(encoding="utf-8"))["models"]
    return {model["slug"]: model for model in models}


@OVER_BOTH
def test_codex_works_with_what_the_command_wrote(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Ours: no line is added by hand; tools, a patch and a resumed thread work, and no warning is shown."""
    patch = "*** Begin Patch\n*** Add File: new.txt\n+hello\n*** End Patch\n"
    task = call_in_turn(("exec_command", {"cmd": "echo one >> lines.txt"}), ("apply_patch", {"input": patch}))
    profiles = {
        "ANTIPHON_MODELS__SMALL__ENDPOINT": "upstream",
        "ANTIPHON_MODELS__SMALL__MODEL": "fake-model",
        "ANTIPHON_MODELS__SMALL__PROFILE": "small",
        "ANTIPHON_PROFILES__SMALL__WINDOW_TOKENS": "60000",
        "ANTIPHON_PROFILES__SMALL__SEES_IMAGES": "false",
    }
    with (
        serve_upstream(task) as upstream,
        start_server(tmp_path, None, upstream=upstream.url, **profiles) as server,
        tap(server.url) as wire,
    ):
        way = "--websocket" if websocket else "--no-websocket"
        said = codex.write_config(wire.url, "--model", "small", "--model", "fake-model", way)
        assert "does not tell how many tokens fake-model holds" in said
        catalog = read_catalog(codex)
        assert list(catalog) == ["small", "fake-model"]
        assert catalog["small"]["context_window"] == 60000
        assert catalog["small"]["input_modalities"] == ["text"]
        assert "context_window" not in catalog["fake-model"]
        run = codex.run("Do it.", "-s", "danger-full-access").expect_done()
        assert codex.read_lines("lines.txt") == ["one"]
        assert codex.read_lines("new.txt") == ["hello"]
        (codex.project / "new.txt").unlink()
        codex.run("Again.", "-c", 'sandbox_mode="danger-full-access"', resume=run.thread).expect_done()
    assert codex.read_lines("lines.txt") == ["one", "one"]
    assert bool(wire.frames) == websocket
    assert "apply_patch" in list_tools(upstream.asked[0])
    assert read_messages(upstream.asked[0])[0]["content"].startswith("You are a coding agent.")
    assert len(list_outputs(upstream.asked[-1])) == 2
    check_prefixes([request.body for request in upstream.asked], "messages")


def test_codex_sends_the_key_that_the_command_was_told_of(codex: Codex, tmp_path: Path) -> None:
    """Ours: the key is read from the same variable by both, and stands in no file."""
    digest = hashlib.sha256(b"sk-right").hexdigest()
    with (
        serve_upstream(run_in_turn("echo one >> lines.txt")) as upstream,
        start_server(tmp_path, upstream=upstream.url, ANTIPHON_KEYS__ONE__SHA256=digest) as server,
    ):
        assert "--key-env" in codex.write_config(server.url, status=1)
        codex.write_config(server.url, "--key-env", "LAB_KEY", LAB_KEY="sk-right")
        assert "sk-right" not in (codex.home / "config.toml").read_text()
        codex.run("Do it.", "-s", "danger-full-access", LAB_KEY="sk-right").expect_done()
    assert codex.read_lines("lines.txt") == ["one"]


def test_the_window_that_was_told_makes_codex_summarise_in_time(codex: Codex, tmp_path: Path) -> None:
    """Client: at nine tenths of the window Codex asks for a summary by itself, without tools, and goes on with it."""
    with (
        serve_upstream(lambda _: say("A word.")) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        # Every answer of the model server counts 920 tokens, more than nine tenths.
        codex.write_config(server.url, "--window", "1000")
        run = codex.run("A word?")
        assert run.status == 0, run.events
        assert all(list_tools(request) for request in upstream.asked)
        again = codex.run("Another?", resume=run.thread)
    assert again.status == 0, again.events
    summaries = [request for request in upstream.asked if not list_tools(request)]
    assert summaries
    assert "CONTEXT CHECKPOINT COMPACTION" in json.dumps(read_messages(summaries[0])[-1])
    assert "Another language model" in json.dumps(read_messages(upstream.asked[-1]))


def test_the_guide_s_commands_do_what_it_says(codex: Codex, tmp_path: Path) -> None:
    """Ours: a reader who copies the commands of the guide in order gets a file, made by the tool that it names."""
    (example,) = [
        each.block.text
        for each in read_examples("codex.md", "bash")
        if each.block.text.startswith("CODEX_HOME=")
    ]
    _, *command, prompt = shlex.split(example)
    assert command[:3] == ["codex", "exec", "--skip-git-repo-check"]
    with start_server(tmp_path) as server:
        codex.write_config(server.url)
        codex.run(prompt, *command[3:]).expect_done()
    assert codex.read_lines("hello.txt") == ["hello"]
