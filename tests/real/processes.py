"""The two servers of these tests as processes, and what can be asked of each from outside.

llama.cpp is asked by its own routes, so its word is independent of ours. Invariant: every wait has an end,
and every process started here ends with its block.
"""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antiphon.client import NetworkTransport, ResponsesClient, TransportLimits

ROOT = Path(__file__).resolve().parents[2]
#: Until a process says that it listens.
START_S = 60.0
#: Until one answer of a server has come.
ANSWER_S = 60.0
#: Until a process that was told to end has ended.
STOP_S = 20.0
#: Between two questions to a server about the same thing.
POLL_S = 0.02

Message = dict[str, Any]


class LlamaServer:
    """A running llama.cpp server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Its JSON answer: POST where there is a body, else GET."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return json.load(answer)

    def count(self, messages: list[Message]) -> int:
        """The prompt tokens of these messages, by its own count."""
        answer = self.ask("/v1/chat/completions/input_tokens", {"messages": messages})
        count: int = answer["input_tokens"]
        return count

    def complete(self, messages: list[Message], **options: Any) -> Any:
        """A chat completion asked for straight, with nobody between."""
        return self.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, **options})

    def read_counters(self) -> dict[str, float]:
        """Its counters since it started, without their prefix."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=ANSWER_S) as answer:
            lines = answer.read().decode().splitlines()
        pairs = [line.split() for line in lines if line and not line.startswith("#")]
        return {name.removeprefix("llamacpp:"): float(value) for name, value in pairs}

    def busy_slots(self) -> list[Any]:
        """The slots at work, as it describes them."""
        return [slot for slot in self.ask("/slots") if slot["is_processing"]]


class AntiphonServer:
    """A running `antiphon serve`."""

    def __init__(self, url: str, process: subprocess.Popen[bytes]) -> None:
        #: Ends with `/v1`.
        self.url = url
        self.pid = process.pid
        self._process = process

    def open_client(self) -> ResponsesClient:
        """A client, for one event loop; close it there."""
        limits = TransportLimits(idle_timeout_s=ANSWER_S)
        return ResponsesClient(NetworkTransport(self.url.removesuffix("/v1"), limits))

    def kill(self) -> None:
        """kill -9."""
        self._process.send_signal(signal.SIGKILL)
        assert self._process.wait(STOP_S) == -signal.SIGKILL


@contextmanager
def run_llama(model: Path, folder: Path) -> Iterator[LlamaServer]:
    """A llama.cpp server with that model; its log goes into `folder`."""
    command = [sys.executable, "-m", "tests.real.llama_server", str(model)]
    # Without it OpenMP's threads spin, and a busy machine is ten times slower. Read when the library loads.
    environment = {"GOMP_SPINCOUNT": "1000"}
    with _run(command, folder / "llama.log", environment) as process:
        yield LlamaServer(_read_until(process, "http://", folder / "llama.log"))


@contextmanager
def run_antiphon(
    upstream: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[AntiphonServer]:
    """`antiphon serve` before that server, with its data and its log in `folder`."""
    with run_serve(["--upstream", upstream], folder, environment) as server:
        yield server


@contextmanager
def run_serve(
    arguments: list[str], folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[AntiphonServer]:
    """`antiphon serve` with these options, with its data and its log in `folder`."""
    command = [sys.executable, "-m", "antiphon", "serve", *arguments, "--port", "0"]
    command += ["--data", str(folder / "data")]
    with _run(command, folder / "antiphon.log", environment or {}) as process:
        said = _read_until(process, "antiphon: serving on ", folder / "antiphon.log")
        yield AntiphonServer(said.rpartition(" ")[2], process)


def run_command(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """An `antiphon` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "antiphon", *arguments],
        cwd=ROOT,
        env=_make_environment({}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


async def wait_until(condition: Callable[[], bool], what: str, *, timeout_s: float) -> float:
    """Ask again and again, at most so long; the seconds that it took."""
    start_s = time.monotonic()
    # In a thread: connections that were let go of are closed by this loop.
    while not await asyncio.to_thread(condition):
        waited_s = time.monotonic() - start_s
        assert waited_s < timeout_s, f"not within {timeout_s:g} s: {what}"
        # Questions without a pause would take the CPU that the model needs.
        await asyncio.sleep(POLL_S)
    return time.monotonic() - start_s


@contextmanager
def _run(command: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("ab") as sink,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=_make_environment(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)
                raise


def _make_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Ours without settings of a developer's own, and with the package under test."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **changes}


def _read_until(process: subprocess.Popen[bytes], start: str, log: Path) -> str:
    """The first line of standard output that begins so."""
    assert process.stdout is not None
    deadline_s = time.monotonic() + START_S
    said = b""
    while (left_s := deadline_s - time.monotonic()) > 0:
        readable, _, _ = select.select([process.stdout], [], [], left_s)
        piece = os.read(process.stdout.fileno(), 65536) if readable else b""
        if readable and not piece:
            break
        said += piece
        for line in said.decode(errors="replace").splitlines(keepends=True):
            if line.startswith(start) and line.endswith("\n"):
                return line.strip()
    raise AssertionError(
        f"{' '.join(map(str, process.args))} did not start; it said:\n"  # type: ignore[arg-type]
        f"{said.decode(errors='replace')}\n{log.read_text(errors='replace')[-4000:]}"
    )
