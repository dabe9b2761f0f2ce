"""The child process with the model server, kept running: started, watched, restarted, ended.

It knows no dialect. Invariant: `url` and `key` never change, so a restart is invisible but for the answers
it broke; no child outlives `close`, nor this process.
"""

import asyncio
import logging
import math
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from antiphon.backends.endpoint import Endpoint, EndpointClient
from antiphon.backends.local.child import READY, ChildSettings
from antiphon.backends.local.machine import count_cores, find_missing
from antiphon.protocol.errors import BackendError, BackendTimeoutError

_log = logging.getLogger("antiphon.backends.local")

HOST = "127.0.0.1"
#: A child whose connections are refused has ended; the news of it takes a moment.
END_NOTICE_S = 2.0
#: Told to end, a child has this long.
STOP_S = 5.0
CHILD_COMMAND = (
    sys.executable,
    # No module of the current folder's may stand in for one of ours.
    "-P",
    "-m",
    "antiphon.backends.local.child",
)
_HEALTH_POLL_S = 0.02
#: What is kept of a child's log.
TAIL_BYTES = 8192
TAIL_LINES = 12
_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGILL: "this processor lacks an instruction that the runtime uses",
    signal.SIGKILL: "the system may be out of memory",
}


class LocalRuntimeError(BackendError):
    """The embedded model is not running."""

    code = "server_is_overloaded"

    def __init__(self, message: str | None = None, *, last_words: str = "") -> None:
        super().__init__(message)
        #: The end of the child's log; it names files of this machine, so it is no client's business.
        self.last_words = last_words


class RuntimeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run: a model file under a name, within these bounds."""

    name: str
    model: Path
    context_tokens: int = 16_384
    parallel: int = 2
    #: 0: as many as there are cores.
    threads: int = 0


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long a model server is waited for, and how often it is started again."""

    #: A large model on a slow disk takes its time.
    start_s: float = 120.0
    #: A request waits this long for a model server that is starting.
    ready_wait_s: float = 60.0
    #: Waits before the first, second, ... restart in a row; one more crash, and it is given up.
    restart_waits_s: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 4.0)
    #: A child that answered this long starts a new row.
    steady_s: float = 60.0
    #: After it was given up, a request that comes this much later starts it anew.
    given_up_s: float = 60.0


class LocalRuntime:
    """The model server of one endpoint. It starts when it is first waited for.

    `command` is the program of the child, which keeps to what `child` says of itself.
    """

    def __init__(
        self,
        settings: RuntimeSettings,
        *,
        command: Sequence[str] = CHILD_COMMAND,
        patience: Patience | None = None,
    ) -> None:
        self._settings = settings
        self._command = command
        self._patience = patience or Patience()
        self._port = _find_port()
        self.key = secrets.token_urlsafe(32)
        #: The base of its API, for the dialect.
        self.url = f"http://{HOST}:{self._port}/v1"
        self._reserved: socket.socket | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._child: _Child | None = None
        self._life = 0
        #: Set while it is known how things stand: it answers, or it was given up.
        self._settled = asyncio.Event()
        self._failure: LocalRuntimeError | None = None
        self._failed_at = 0.0
        #: Whether somebody is told the child's last words, so that the log need not be.
        self._is_watched = False

    @property
    def pid(self) -> int | None:
        """The child that answers now."""
        return self._child.process.pid if self._child is not None and self._settled.is_set() else None

    async def start(self) -> None:
        """Until the model server answers; its error has the child's last words, for whoever starts it."""
        self._is_watched = True
        try:
            # A first start may take longer than a request would wait.
            await self.wait_ready(within_s=self._patience.start_s + self._patience.ready_wait_s)
        except LocalRuntimeError as error:
            raise LocalRuntimeError(error.message + error.last_words) from error
        finally:
            self._is_watched = False

    async def wait_ready(self, *, within_s: float | None = None) -> int:
        """Until the model server answers; the number of this life of it, for `wait_ended`.

        Starts it when it is not running. Raises `LocalRuntimeError` when it cannot be started, or was given
        up a short while ago, and `BackendTimeoutError` when it takes too long.
        """
        limit_s = self._patience.ready_wait_s if within_s is None else within_s
        self._begin()
        try:
            async with asyncio.timeout(limit_s):
                await self._settled.wait()
        except TimeoutError as error:
            raise BackendTimeoutError(
                f"The embedded model {self._settings.name} was not ready within {limit_s:g} s."
            ) from error
        if self._failure is not None:
            raise LocalRuntimeError(self._failure.message, last_words=self._failure.last_words)
        return self._life

    async def wait_ended(self, life: int) -> bool:
        """Whether that life has ended, or does within a moment."""
        child = self._child
        if life != self._life or child is None:
            return True
        try:
            async with asyncio.timeout(END_NOTICE_S):
                await child.process.wait()
        except TimeoutError:
            return False
        # The supervisor hears of it by the same news; nobody may be faster and still take it for ready.
        if life == self._life and self._failure is None:
            self._settled.clear()
        return True

    def _begin(self) -> None:
        if self._supervisor is not None and not self._supervisor.done():
            return
        if self._failure is not None and time.monotonic() < self._failed_at + self._patience.given_up_s:
            return
        self._failure = None
        self._settled.clear()
        self._supervisor = asyncio.create_task(self._supervise())

    async def _supervise(self) -> None:
        """Run one child after another, until it is given up or cancelled."""
        try:
            await self._run_children()
        except LocalRuntimeError as error:
            self._give_up(error)
        except OSError as error:
            self._give_up(LocalRuntimeError(f"The embedded model cannot be started: {error}."))

    def _give_up(self, failure: LocalRuntimeError) -> None:
        if failure.last_words and not self._is_watched:
            _log.error("%s%s", failure.message, failure.last_words)
        self._failure = failure
        self._failed_at = time.monotonic()
        self._settled.set()

    async def _run_children(self) -> None:
        missing = await asyncio.to_thread(find_missing)
        if missing is not None:
            raise LocalRuntimeError(missing)
        if self._reserved is None:
            self._reserved = _reserve_port(self._port)
        crashes = 0
        while True:
            lived_s, end = await self._run_child(first=crashes == 0)
            crashes = 1 if lived_s >= self._patience.steady_s else crashes + 1
            _log.error("the model server of %s ended: %s", self._settings.name, end)
            waits_s = self._patience.restart_waits_s
            if crashes > len(waits_s):
                pause_s = self._patience.given_up_s
                problem = f"ended {crashes} times in a row and is left alone for {pause_s:g} s"
                _log.error("the model server of %s %s", self._settings.name, problem)
                raise LocalRuntimeError(
                    f"The model server of {self._settings.name} {problem}; the log says how it ended."
                )
            await asyncio.sleep(waits_s[crashes - 1])

    async def _run_child(self, *, first: bool) -> tuple[float, str]:
        """One child from start to end: how long it answered, and how it ended.

        The `first` one has to start: what keeps it from that will not have changed a moment later.
        """
        self._life += 1
        child = self._child = await _Child.spawn(self._command, self._settings, self._port, self.key)
        try:
            try:
                await child.wait_ready(self.url, self.key, self._patience.start_s)
            except LocalRuntimeError:
                if first:
                    raise
                return 0.0, await child.describe_end() + child.render_tail()
            ready_at = time.monotonic()
            self._settled.set()
            await child.process.wait()
            self._settled.clear()
            # Not its last words: behind its start they may quote what it was asked.
            return time.monotonic() - ready_at, await child.describe_end()
        finally:
            self._settled.clear()
            await child.end()

    async def close(self) -> None:
        """End the child and let go of the port."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait({self._supervisor})
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        self._give_up(LocalRuntimeError("The embedded model was closed."))
        self._failed_at = math.inf


class _Child:
    """One run of the child process."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self._name = name
        self._tail = b""
        self._reader = asyncio.create_task(self._read_log())

    @classmethod
    async def spawn(cls, command: Sequence[str], settings: RuntimeSettings, port: int, key: str) -> "_Child":
        """A child that has been told its settings."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C in a terminal is for us alone; we end the child when its streams have ended.
            start_new_session=True,
        )
        child = cls(process, settings.name)
        told = ChildSettings(
            parent=os.getpid(),
            port=port,
            key=key,
            model=str(settings.model),
            alias=settings.name,
            context_tokens=settings.context_tokens,
            parallel=settings.parallel,
            threads=settings.threads or count_cores(),
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(told) + b"\n")
        return child

    async def _read_log(self) -> None:
        assert self.process.stderr is not None
        while piece := await self.process.stderr.read(TAIL_BYTES):
            self._tail = (self._tail + piece)[-TAIL_BYTES:]

    async def wait_ready(self, url: str, key: str, start_s: float) -> None:
        """Until it answers requests; raises `LocalRuntimeError` with its last words."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(start_s):
                if await self.process.stdout.readline() != READY:
                    problem = f"The embedded model {self._name} could not be started: "
                    problem += await self.describe_end()
                    raise LocalRuntimeError(problem, last_words=self.render_tail())
                await _wait_healthy(Endpoint(name=self._name, url=url, key=key))
        except TimeoutError as error:
            raise LocalRuntimeError(
                f"The embedded model {self._name} did not start within {start_s:g} s.",
                last_words=self.render_tail(),
            ) from error

    async def describe_end(self) -> str:
        """How it ended."""
        # Whoever closed its output is ending; its log is whole when the process is gone.
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
                await asyncio.wait({self._reader})
        except TimeoutError:
            return "it hangs."
        return f"{_describe_status(self.process.returncode or 0)}."

    def render_tail(self) -> str:
        """Its last words, on lines of their own."""
        lines = self._tail.decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
        return "".join(f"\n  {line}" for line in ("it said last:", *lines)) if lines else ""

    async def end(self) -> None:
        """End it, however it is: it keeps nothing that has to be saved."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        await self._reader


async def _wait_healthy(endpoint: Endpoint) -> None:
    """Until `/health` says so."""
    client = EndpointClient(endpoint)
    try:
        while True:
            try:
                answer = await client.ask_json("GET", endpoint.url.removesuffix("/v1") + "/health")
            except BackendError:
                answer = None
            if answer == {"status": "ok"}:
                return
            await asyncio.sleep(_HEALTH_POLL_S)
    finally:
        await client.close()


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"it ended with status {status}"
    hint = _SIGNAL_HINTS.get(-status)
    return f"it was ended by signal {-status}{f'; {hint}' if hint else ''}"


def _find_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _reserve_port(port: int) -> socket.socket:
    """Hold a port that a child of this user may listen on, so that while none does no stranger can."""
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((HOST, port))
    except OSError:
        reserved.close()
        raise
    return reserved
