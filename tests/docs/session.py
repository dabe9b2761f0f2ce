"""Runs the examples of one page, in order, in a folder of their own, against servers that the page starts.

It knows commands and ports, not pages. An `antiphon serve` is started for real on a free port (the plain
`--scripted` one is shared), and addresses in later examples mean that server. A command about a server that
nobody has here, or that would download a model, is only parsed. Invariant: every process that was started is
stopped, every wait is bounded.
"""

import importlib.util
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from antiphon.backends.scripted import parse_script
from antiphon.cli import antiphon
from antiphon.config import load_config
from tests.docs.blocks import ROOT, Block

#: No wait for a process or its first line is longer.
WAIT_S = 30.0
PLAIN_SERVE = "antiphon serve --scripted"
_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):(8300|9400)")
_DOUBLE = re.compile(r"^python -m antiphon\.checker\.doubles (\S+) (\d+)$")
#: A server that stands for the reader's own.
_FOREIGN = re.compile(r"\.example\b|(?:localhost|127\.0\.0\.1):(?!8300\b|9400\b)\d+")
#: What takes minutes or leaves the page's folder: only looked at.
_LONG = re.compile(r"make |\.venv/bin/")
#: What would download a real model: its command and options are parsed.
_DOWNLOADS = re.compile(r"antiphon (?:serve(?:$| --local\b)|models (?:pull|verify|rm)\b)")
_MARK = "--next-example--"
#: What differs from run to run, and what stands for it in a page.
_CHANGING = (
    (re.compile(r"\b(resp|conv|msg|fc|rs|req)_[0-9a-f]{20,}"), r"\1_..."),
    (re.compile(r"\bcall_[0-9A-Za-z]{20,}"), "call_..."),
    (re.compile(r"\b\d+\.\d s\b"), "0.0 s"),
    (re.compile(r'"(created_at|completed_at)": ?\d+'), r'"\1": ...'),
)


class Server:
    """A process that serves, and where."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], folder: Path, ready: str) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.announcement = self._read_until(ready)
        found = re.search(r"http://(127\.0\.0\.1:\d+)", self.announcement)
        assert found is not None, self.announcement
        self.address = found[1]

    def _read_until(self, ready: str) -> str:
        """What the process prints up to the line that says it is ready."""
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        os.set_blocking(stream, False)
        said = b""
        until = time.monotonic() + WAIT_S
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while ready not in said.decode(errors="replace"):
                assert selector.select(max(until - time.monotonic(), 0)), f"not ready in time: {said!r}"
                piece = os.read(stream, 65536)
                assert piece, f"it ended: {said!r}"
                said += piece
        return said.decode()

    def stop(self) -> None:
        """Stop the process and wait for it."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate(timeout=WAIT_S)
            raise


def make_environment(folder: Path) -> dict[str, str]:
    """An environment in which `antiphon` is this one, and the user's folders are in `folder`."""
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "PYTHONPATH") if name in os.environ}
    return {
        **kept,
        "PATH": binaries,
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_DATA_HOME": str(folder / "share"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "PYTHONUNBUFFERED": "1",
    }


def start_server(arguments: Sequence[str], folder: Path) -> Server:
    """`antiphon serve` with these arguments, on a free port, with a data folder of its own."""
    command = [sys.executable, "-m", "antiphon", "serve", *arguments, "--port", "0", "--data", "data"]
    return Server(command, make_environment(folder), folder, "  curl ")


class Session:
    """The examples of one page."""

    def __init__(self, folder: Path, shared: Server, blocks: Sequence[Block]) -> None:
        self._folder = folder
        self._shared = shared
        self._environ = make_environment(folder)
        self._blocks = blocks
        self._servers: list[Server] = []
        #: Documented port -> where that is now.
        self._places = {"8300": shared.address}
        self._python_outputs: list[str] | None = None
        self._output = ""

    def close(self) -> None:
        """Stop what was started."""
        for server in self._servers:
            server.stop()

    def run(self, block: Block) -> None:
        """Run one block, or compare the output of the last one."""
        if block.comment == "output":
            assert matches(block.text, self._output), f"\n{block.text}\n--- but was ---\n{self._output}"
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            self._write_toml(block)
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "console":
            self._run_console(block)
        elif block.language == "sh":
            self._run_shell(block)

    def _write_toml(self, block: Block) -> None:
        """A file of the page: its first line is a comment with its name; a name of ours says what it is."""
        name = block.text.partition("\n")[0].removeprefix("#").strip()
        assert re.fullmatch(r"[\w-]+\.toml", name), f"a TOML example begins with '# NAME.toml', not {name!r}"
        path = self._folder / name
        path.write_text(block.text, encoding="utf-8")
        if name != "antiphon.toml":
            parse_script(block.text)
            return
        environ = dict.fromkeys(re.findall(r'key_env = "(\w+)"', block.text), "a-key")
        for file in re.findall(r'(?:system_prompt_file|script) = "(\S+)"', block.text):
            (self._folder / file).touch()
        load_config(environ=environ, cwd=self._folder, file=path)

    def _run_python(self, block: Block) -> None:
        """All of a page's Python is one program: later examples use the names of earlier ones."""
        blocks = [each for each in self._blocks if each.language == "python"]
        if self._python_outputs is None:
            program = f"\nprint({_MARK!r})\n".join(self._place(each.text) for each in blocks)
            self._python_outputs = self._execute([sys.executable, "-c", program]).split(f"{_MARK}\n")
        self._output = self._python_outputs[blocks.index(block)]

    def _run_shell(self, block: Block) -> None:
        """Server lines start servers, lines about servers that are not ours are parsed, the rest is run."""
        ours: list[str] = []
        shows_failure = False
        for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
            double = _DOUBLE.match(line)
            if line == PLAIN_SERVE:
                self._places["8300"] = self._shared.address
            elif _FOREIGN.search(line) or _DOWNLOADS.search(line):
                check_options(line)
            elif _LONG.match(line):
                check_target(line)
            elif line.startswith("antiphon serve "):
                server = start_server(shlex.split(line)[2:], self._folder)
                self._servers.append(server)
                self._places["8300"] = server.address
            elif double:
                self._start_double(double[1], double[2])
                shows_failure = True
            else:
                ours.append(self._place(line))
        if ours:
            self._output = self._execute(["sh", "-ec", "\n".join(ours)], may_fail=shows_failure)

    def _start_double(self, name: str, port: str) -> None:
        program = (
            "import sys, uvicorn; from antiphon.checker.doubles import DOUBLES;"
            "uvicorn.run(DOUBLES[sys.argv[1]](), host='127.0.0.1', port=0)"
        )
        command = [sys.executable, "-c", program, name]
        server = Server(command, self._environ, self._folder, "Uvicorn running on")
        self._servers.append(server)
        self._places[port] = server.address

    def _run_console(self, block: Block) -> None:
        """Commands behind `$ `, each followed by its output; `...` stands for any lines."""
        parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        commands, expected = [], []
        for part in parts:
            command, rest = _take_command(part)
            commands.append(self._place(command))
            expected.append(rest)
        # The next command sees the status of the one before it.
        script = "\n".join(f"{command}\ns=$?; echo {_MARK}; (exit $s)" for command in commands)
        outputs = self._execute(["sh", "-c", f"{script}\ntrue"]).split(f"{_MARK}\n")
        for command, wanted, was in zip(commands, expected, outputs, strict=False):
            assert matches(wanted, was), f"$ {command}\n{wanted}\n--- but was ---\n{was}"

    def _place(self, text: str) -> str:
        """The text with the documented addresses replaced by those of the servers that run now."""
        ours = f"--url {self._places['8300']}"
        text = re.sub(r"\bantiphon ask (?!--url)", f"antiphon ask {ours} ", text)
        return _ADDRESS.sub(lambda found: self._places.get(found[1], found[0]), text)

    def _execute(self, command: Sequence[str], *, may_fail: bool = False) -> str:
        if any("curl " in word for word in command) and shutil.which("curl") is None:
            pytest.skip("this machine has no curl")
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert may_fail or done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}"
        output = done.stdout
        for port, address in self._places.items():
            output = output.replace(address, f"127.0.0.1:{port}")
        return output


def _take_command(part: str) -> tuple[str, str]:
    """The command with its continued lines, and the output behind it."""
    lines = part.splitlines(keepends=True)
    taken = 1
    while lines[taken - 1].rstrip("\n").endswith("\\"):
        taken += 1
    return "".join(lines[:taken]).rstrip("\n"), "".join(lines[taken:])


def matches(expected: str, actual: str) -> bool:
    """Whether an output is the documented one; a line `...` stands for any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + "\n"
        for line in _settle(expected).strip().splitlines()
    )
    lines = "".join(f"{line.rstrip()}\n" for line in _settle(actual).strip().splitlines())
    return re.fullmatch(pattern, lines) is not None


def _settle(text: str) -> str:
    for changing, constant in _CHANGING:
        text = changing.sub(constant, text)
    return text


def check_target(line: str) -> None:
    """A `make` line's target, or a module run from the repository, exists."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{re.escape(words[1])}:", makefile, re.MULTILINE), line
    elif words[1:2] == ["-m"]:
        assert importlib.util.find_spec(words[2]) is not None, line


def check_options(line: str) -> None:
    """An `antiphon` line about what the tests do not have: its command and options exist."""
    words = shlex.split(line, comments=True)
    if words and words[0] == "antiphon":
        context = click.Context(antiphon, info_name="antiphon")
        command: click.Command | None = antiphon
        rest = words[1:]
        while isinstance(command, click.Group):
            _, command, rest = command.resolve_command(context, rest)
        assert command is not None
        command.make_context(command.name, rest, parent=context)
