"""The server as a process of its own: started from the command line, killed without warning.

It knows the command line and no scenario. Invariant: no process outlives its block.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from antiphon.client import NetworkTransport
from antiphon.client.transport import TransportLimits
from tests.scenarios.client import StrictClient

#: Until a server has started or ended; reached only when something hangs.
BOUND_S = 30.0
_ANNOUNCEMENT = "antiphon: serving on "
_SOURCES = Path(__file__).parents[2] / "src"


class ServerProcess:
    """A running `antiphon serve`."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self._process = process
        self.pid = process.pid
        #: The base of the API, ending with `/v1`.
        self.url = url

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(BOUND_S)

    def ask_to_stop(self) -> None:
        """SIGTERM: running responses may end."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Until it has ended; its exit status."""
        return self._process.wait(BOUND_S)

    def read_rest(self) -> str:
        """What it still wrote to its standard output; it must have ended."""
        assert self._process.poll() is not None
        assert self._process.stdout is not None
        return self._process.stdout.read()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[StrictClient]:
        """A checking client over real sockets."""
        limits = TransportLimits(idle_timeout_s=BOUND_S, connect_timeout_s=BOUND_S)
        transport = NetworkTransport(self.url.removesuffix("/v1"), limits)
        try:
            yield StrictClient(transport)
        finally:
            await transport.close()


@contextmanager
def start_server(
    folder: Path, script: dict[str, Any] | None = None, *, upstream: str | None = None, **variables: str
) -> Iterator[ServerProcess]:
    """`antiphon serve` on a free port with the data folder `folder/data`; killed at the end.

    The scripted model answers, or the model server at the address `upstream`.
    """
    models = ["--scripted"] if upstream is None else ["--upstream", upstream]
    command = [sys.executable, "-m", "antiphon", "serve", *models, "--port", "0"]
    command += ["--data", str(folder / "data")]
    if script is not None:
        path = folder / "script.json"
        path.write_text(json.dumps(script))
        command += ["--script", str(path)]
    environ = {**os.environ, "PYTHONPATH": str(_SOURCES), **variables}
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environ, cwd=folder, text=True
        )
    try:
        yield ServerProcess(process, _read_url(process, folder / "server.log"))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(BOUND_S)
        if process.stdout is not None:
            process.stdout.close()


def _read_url(process: "subprocess.Popen[str]", log: Path) -> str:
    assert process.stdout is not None
    watchdog = threading.Timer(BOUND_S, process.kill)
    watchdog.start()
    try:
        line = process.stdout.readline()
    finally:
        watchdog.cancel()
    assert line.startswith(_ANNOUNCEMENT), f"{line!r}: {log.read_text()}"
    return line.removeprefix(_ANNOUNCEMENT).strip()
