"""The other processes: started, asked for their CPU and memory, stopped.

It knows no requests. CPU and memory are those of a whole process tree, threads included: from /proc where
there is one, else from `ps` (coarser). Invariant: what was started here is stopped here.
"""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 20.0
#: What a job may take, and how much longer its process is waited for.
JOB_TIMEOUT_S = 120.0
JOB_GRACE_S = 10.0

_SERVING = re.compile(r"serving on http://[^:]+:(\d+)/")
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class BenchError(Exception):
    """Something that was to be measured did not work."""


class Child:
    """A Python process of ours whose standard output is read line by line."""

    def __init__(self, *arguments: str, folder: Path = ROOT) -> None:
        source = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        # Nobody's configuration is measured, but the defaults.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            env={**kept, "PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._name = " ".join(arguments[:3])
        self._lines: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def read_line(self, timeout_s: float) -> str:
        """The next line; raises `BenchError` when none comes in time."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except Empty:
            raise BenchError(f"{self._name} said nothing for {timeout_s:g} s") from None
        if line is None:
            raise BenchError(f"{self._name} ended with status {self._process.wait(STOP_TIMEOUT_S)}")
        return line

    def write_line(self, line: str) -> None:
        """One line to its standard input."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BenchError(f"{self._name} takes no more jobs ({error})") from error

    def stop(self) -> None:
        """Ask it to end, wait, and end it if it does not."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


@contextmanager
def start_upstream() -> Iterator[int]:
    """The fake model server; yields its port."""
    child = Child("-m", "bench.fake_upstream")
    try:
        yield int(child.read_line(START_TIMEOUT_S))
    finally:
        child.stop()


@contextmanager
def start_server(upstream_port: int, data: Path, *options: str) -> Iterator["Server"]:
    """Antiphon as users start it; yields it once it serves."""
    url = f"http://127.0.0.1:{upstream_port}"
    child = Child(
        *options,
        *("-m", "antiphon", "serve", "--upstream", url, "--model", "bench"),
        *("--port", "0", "--data", str(data)),
        folder=data,
    )
    try:
        yield Server(child.pid, read_port(child, START_TIMEOUT_S))
    finally:
        child.stop()


def read_port(child: Child, timeout_s: float) -> int:
    """The port that a starting server says it listens on; each of its lines may take so long."""
    while (found := _SERVING.search(child.read_line(timeout_s))) is None:
        pass
    return int(found[1])


class Server:
    """The running server."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def read_cpu_s(self) -> float:
        """CPU seconds that its processes have used so far."""
        return sum(cpu_s for cpu_s, _ in _read_tree(self.pid))

    def read_resident_bytes(self) -> int:
        """Memory that its processes hold now."""
        return sum(resident for _, resident in _read_tree(self.pid))


class LoadClient:
    """The process that sends requests."""

    def __init__(self, child: Child) -> None:
        self._child = child

    def run(self, **job: Any) -> dict[str, Any]:
        """The result of a job; raises `BenchError` when it failed."""
        self._child.write_line(json.dumps({"timeout_s": JOB_TIMEOUT_S, **job}))
        result: dict[str, Any] = json.loads(self._child.read_line(JOB_TIMEOUT_S + JOB_GRACE_S))
        if "error" in result:
            raise BenchError(f"{job['kind']} on {job['path']}: {result['error']}")
        return result


@contextmanager
def start_client() -> Iterator[LoadClient]:
    """The client process, waiting for jobs."""
    child = Child("-m", "bench.load")
    try:
        yield LoadClient(child)
    finally:
        child.stop()


def _read_tree(pid: int) -> list[tuple[float, int]]:
    """CPU seconds and resident bytes of a process and all that descend from it."""
    rows = _read_proc() if Path("/proc/self/stat").exists() else _read_ps()
    children: dict[int, list[int]] = {}
    for each, (parent, _, _) in rows.items():
        children.setdefault(parent, []).append(each)
    tree, waiting = [], [pid]
    while waiting:
        each = waiting.pop()
        if each in rows:
            tree.append(rows[each][1:])
        waiting.extend(children.get(each, ()))
    if not tree:
        raise BenchError(f"process {pid} is gone")
    return tree


def _read_proc() -> dict[int, tuple[int, float, int]]:
    rows = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            # It ended between the listing and the reading.
            continue
        # The name, in parentheses, may hold anything; the third field comes behind it.
        fields = text.rpartition(")")[2].split()
        ticks = sum(int(fields[at]) for at in range(11, 15))
        rows[int(stat.parent.name)] = (int(fields[1]), ticks / _CLOCK_TICKS, int(fields[21]) * _PAGE_BYTES)
    return rows


def _read_ps() -> dict[int, tuple[int, float, int]]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,rss=,time="],
        capture_output=True,
        text=True,
        check=True,
        timeout=STOP_TIMEOUT_S,
    ).stdout
    rows = {}
    for line in listing.splitlines():
        pid, parent, kib, clock = line.split(None, 3)
        rows[int(pid)] = (int(parent), read_clock(clock), int(kib) * 1024)
    return rows


def read_clock(clock: str) -> float:
    """`[[dd-]hh:]mm:ss[.cc]` -> seconds."""
    days, _, rest = clock.strip().rpartition("-")
    seconds = 0.0
    for part in rest.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds + 86_400 * int(days or 0)
