"""Codex, the coding agent from npm, as its users run it: its own home, no terminal, our server behind it.

It runs the native program and reads its events; what it sent is the business of `codex_wire`. Invariant: no run
takes longer than its bound, and nothing of the person's own Codex is read or written.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.clients.installed import PLACE, find_codex, find_old_codex

#: A run of a few rounds takes a second; ten times what a busy machine needs.
RUN_S = 60.0
COMMAND_S = 30.0
SOURCES = Path(__file__).parents[2] / "src"
#: Small pauses and few retries, so that what fails fails soon.
CONFIG = """\
model = "{model}"
model_provider = "antiphon"
{top}
approval_policy = "never"
sandbox_mode = "danger-full-access"
allow_login_shell = false
check_for_update_on_startup = false

[model_providers.antiphon]
name = "{name}"
base_url = "{url}"
wire_api = "responses"
supports_websockets = {websocket}
{provider}

[analytics]
enabled = false

[features]
plugins = false
unbounded_connection_retries = false
{tables}
"""
#: What Codex must be told of a model.
MODEL_ENTRY: dict[str, Any] = {
    "display_name": "Model",
    "base_instructions": "You are a coding agent. Work step by step.",
    "supported_reasoning_levels": [],
    "shell_type": "shell_command",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "support_verbosity": False,
    "supports_reasoning_summaries": False,
    "truncation_policy": {"mode": "bytes", "limit": 10000},
    "experimental_supported_tools": [],
    "apply_patch_tool_type": "freeform",
    "input_modalities": ["text", "image"],
    "context_window": 200_000,
    "supports_parallel_tool_calls": True,
}


@dataclass(frozen=True)
class Run:
    """One run of `codex exec`: its exit status, its events, and what it wrote to standard error."""

    status: int
    events: list[dict[str, Any]]
    complaints: str

    @property
    def thread(self) -> str:
        """What `resume` takes."""
        (started,) = self.find("thread.started")
        thread: str = started["thread_id"]
        return thread

    @property
    def said(self) -> list[str]:
        """The texts of the model."""
        return [item["text"] for item in self.list_items("agent_message")]

    @property
    def failure(self) -> str:
        """Why the turn failed; empty when it did not."""
        return "\n".join(event["error"]["message"] for event in self.find("turn.failed"))

    @property
    def troubles(self) -> list[str]:
        """Everything that was shown as an error or a reconnection."""
        shown = [item["message"] for item in self.list_items("error")]
        return [*shown, *(event["message"] for event in self.find("error"))]

    def find(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event for event in self.events if event["type"] == kind]

    def list_items(self, kind: str) -> list[dict[str, Any]]:
        """The finished items of a kind."""
        items = [event["item"] for event in self.find("item.completed")]
        return [item for item in items if item["type"] == kind]

    def expect_done(self) -> "Run":
        """Itself, after a turn that was completed without a trouble."""
        assert self.status == 0, (self.events, self.complaints)
        assert self.find("turn.completed"), self.events
        assert not self.failure
        assert not self.troubles
        return self


@dataclass(frozen=True)
class Codex:
    """A home and a project of its own."""

    home: Path
    project: Path
    program: Path

    def write_config(self, url: str, *options: str, status: int = 0, **variables: str) -> str:
        """Have `antiphon codex-config` write its configuration, as a person would; both outputs of the command."""
        command = [sys.executable, "-m", "antiphon", "codex-config", "--url", url, "--out", str(self.home)]
        done = subprocess.run(
            [*command, *options],
            env={**os.environ, "PYTHONPATH": str(SOURCES), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def configure(
        self,
        url: str,
        *,
        model: str = "fake-model",
        name: str = "Antiphon",
        websocket: bool = False,
        entry: dict[str, Any] | None = None,
        top: str = "",
        provider: str = "request_max_retries = 2\nstream_max_retries = 2",
        tables: str = "",
    ) -> None:
        """Write its configuration and its catalog of one model."""
        catalog = self.home / "catalog.json"
        described = {**MODEL_ENTRY, "slug": model, **(entry or {})}
        catalog.write_text(json.dumps({"models": [described]}), encoding="utf-8")
        written = CONFIG.format(
            model=model,
            name=name,
            url=url,
            websocket=str(websocket).lower(),
            top=f"model_catalog_json = {json.dumps(str(catalog))}\n{top}",
            provider=provider,
            tables=tables,
        )
        (self.home / "config.toml").write_text(written, encoding="utf-8")

    def run(self, prompt: str, *options: str, resume: str | None = None, **variables: str) -> Run:
        """One turn: a new one, or the next one of the thread `resume`."""
        return self.read(self.start(prompt, *options, resume=resume, **variables))

    def start(
        self, prompt: str, *options: str, resume: str | None = None, **variables: str
    ) -> "subprocess.Popen[str]":
        """The same, while it runs; `read` must follow."""
        command = [str(self.program), "exec", *(["resume", resume] if resume is not None else [])]
        # `-i` takes all that follows, so the prompt stands behind an option of another kind.
        command += [*options, "--skip-git-repo-check", "--json", prompt]
        environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.home),
            "CODEX_HOME": str(self.home),
            **variables,
        }
        return subprocess.Popen(
            command,
            cwd=self.project,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read(self, process: "subprocess.Popen[str]") -> Run:
        """What became of a run."""
        with process:
            try:
                output, complaints = process.communicate(timeout=RUN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                output, complaints = process.communicate()
                raise AssertionError(f"codex did not end in {RUN_S} s:\n{output}\n{complaints}") from None
        events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        return Run(process.returncode, events, complaints)

    def read_lines(self, name: str) -> Sequence[str]:
        """The lines of a file of the project; none when it is not there."""
        path = self.project / name
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@contextmanager
def make_codex(project: Path, *, is_old: bool = False) -> Iterator[Codex]:
    """Codex with an empty home, removed at the end; outside the folder for temporary files, of which Codex warns."""
    program = find_old_codex() if is_old else find_codex()
    project.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="codex-home-", dir=PLACE) as home:
        yield Codex(Path(home), project, program)
