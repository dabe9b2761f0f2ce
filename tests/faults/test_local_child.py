"""The embedded model's process fails in every way it can; requests get one clear end, and the next one works.

The child here is a stand-in that keeps the real one's promises; the real one stands in `tests/real`.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.backends import Ask, BackendEvent, Failed, Finished, Opened, TextDelta
from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.local.backend import LocalBackend
from antiphon.backends.local.runtime import LocalRuntime, LocalRuntimeError, Patience, RuntimeSettings
from antiphon.backends.profiles import PROFILES
from antiphon.protocol.errors import BackendError, BackendTimeoutError
from tests.faults.fake_model_child import DELTAS

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "tests.faults.fake_model_child")
#: Until a process that lost its parent is gone; reached only when it stays.
GONE_S = 30.0
#: Ends with its standard input, or with the process that starts it; says so by closing its output.
ORPHAN = """
import os, signal, sys
from antiphon.backends.local.child import end_with_parent
end_with_parent(os.getppid())
os.write(1, b"x")
signal.pause()
"""
#: Starts that process, holding the other end of its input, and waits.
PARENT = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE)
signal.pause()
"""


@asynccontextmanager
async def run_backend(
    folder: Path, wish: str = "good", patience: Patience | None = None, command: tuple[str, ...] = COMMAND
) -> AsyncIterator[tuple[LocalBackend, LocalRuntime]]:
    """A backend with a child that behaves as wished."""
    model = folder / "model.gguf"
    model.write_text(wish)
    runtime = LocalRuntime(RuntimeSettings(name="tiny", model=model), command=command, patience=patience)
    endpoint = Endpoint(name="local", url=runtime.url, key=runtime.key)
    backend = LocalBackend(runtime, ChatCompletionsBackend(endpoint))
    try:
        yield backend, runtime
    finally:
        await backend.close()


async def collect(backend: LocalBackend, said: str) -> list[BackendEvent]:
    """Every event of one answer."""
    message = b'{"role":"user","content":"%s"}' % said.encode()
    ask = Ask(model="tiny", profile=PROFILES["llama.cpp"], transcript=[message])
    return [event async for batch in backend.stream(ask) for event in batch]


async def see_given_up(runtime: LocalRuntime) -> None:
    """One life of the child after another."""
    while True:
        await runtime.wait_ended(await runtime.wait_ready())


def read_text(events: list[BackendEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_a_crash_in_mid_stream_ends_the_answer_once_and_the_next_one_works(tmp_path: Path) -> None:
    """Ours: a crash is restarted, the response in flight fails cleanly."""

    async def story() -> None:
        async with run_backend(tmp_path) as (backend, runtime):
            await backend.start()
            before = runtime.pid
            events = await collect(backend, "die")
            assert isinstance(events[0], Opened)
            assert [type(event) for event in events if isinstance(event, Finished | Failed)] == [Failed]
            assert isinstance(events[-1], Failed)
            assert isinstance(events[-1].error, BackendError)
            # Asked at once, before the news of the crash can have come.
            events = await collect(backend, "go on")
            assert (read_text(events), type(events[-1])) == ("".join(DELTAS), Finished)
            assert runtime.pid not in (None, before)

    asyncio.run(story())


def test_what_a_killed_child_has_not_answered_is_asked_of_the_next_one(tmp_path: Path) -> None:
    """Ours: kill -9 between two requests costs the second one a moment, not an error."""

    async def story() -> None:
        async with run_backend(tmp_path) as (backend, runtime):
            await collect(backend, "hello")
            for _ in range(3):
                assert runtime.pid is not None
                os.kill(runtime.pid, signal.SIGKILL)
                assert read_text(await collect(backend, "hello")) == "".join(DELTAS)
                assert [facts.name for facts in await backend.list_models()] == ["tiny"]

    asyncio.run(story())


def test_a_request_that_kills_every_child_is_asked_twice_and_then_fails(tmp_path: Path) -> None:
    """Ours: a poisoned prompt must not restart the model server for ever."""

    async def story() -> None:
        async with run_backend(tmp_path) as (backend, _):
            with pytest.raises(BackendError):
                await collect(backend, "die at once")
            assert read_text(await collect(backend, "hello")) == "".join(DELTAS)

    asyncio.run(story())


def test_a_child_that_never_starts_is_told_with_its_last_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: who starts the server sees why, else the log does; a client sees no path of this machine."""

    async def story() -> None:
        async with run_backend(tmp_path, "no start") as (backend, _):
            with pytest.raises(LocalRuntimeError) as told:
                await collect(backend, "hello")
            assert told.value.status == 502
            assert "the model is" not in told.value.message
        assert "the model is: no start" in caplog.text
        caplog.clear()
        async with run_backend(tmp_path, "no start") as (backend, _):
            with pytest.raises(LocalRuntimeError, match=r"ended with status 7(.|\n)*the model is: no start"):
                await backend.start()
            assert (await backend.get_facts("tiny")).name == "tiny"
        assert "the model is" not in caplog.text

    asyncio.run(story())


def test_the_real_child_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    """Ours: a file that is no model ends the start at once, with the runtime's own reason."""

    async def story() -> None:
        runtime = LocalRuntime(RuntimeSettings(name="broken", model=tmp_path / "none.gguf"))
        endpoint = Endpoint(name="local", url=runtime.url, key=runtime.key)
        backend = LocalBackend(runtime, ChatCompletionsBackend(endpoint))
        try:
            with pytest.raises(LocalRuntimeError, match=r"could not be started(.|\n)*none\.gguf"):
                await backend.start()
        finally:
            await backend.close()

    asyncio.run(story())


def test_a_child_that_does_not_get_ready_is_ended(tmp_path: Path) -> None:
    """Ours: the start has a limit, and a request does not wait as long as that."""

    async def story() -> None:
        patience = Patience(start_s=0.5)
        async with run_backend(tmp_path, "never ready", patience) as (backend, _):
            with pytest.raises(LocalRuntimeError, match=r"did not start within 0\.5 s"):
                await backend.start()
        patience = Patience(ready_wait_s=0.2)
        async with run_backend(tmp_path, "never ready", patience) as (backend, _):
            with pytest.raises(BackendTimeoutError):
                await collect(backend, "hello")

    asyncio.run(story())


def test_a_child_that_crashes_again_and_again_is_given_up_and_tried_later(tmp_path: Path) -> None:
    """Ours: bounded restarts, a clear error, and no hand needed once the cause is gone."""

    async def story() -> None:
        patience = Patience(restart_waits_s=(0.0, 0.01), given_up_s=0.0)
        async with run_backend(tmp_path, "good, quick end", patience) as (backend, runtime):
            with pytest.raises(LocalRuntimeError, match="3 times in a row"):
                await asyncio.wait_for(see_given_up(runtime), GONE_S)
            (tmp_path / "model.gguf").write_text("good")
            assert read_text(await collect(backend, "hello")) == "".join(DELTAS)

    asyncio.run(story())


def test_closing_ends_the_child_even_while_it_starts(tmp_path: Path) -> None:
    """Ours: nothing of ours outlives us."""

    async def story() -> None:
        async with run_backend(tmp_path, "never ready") as (backend, runtime):
            starting = asyncio.create_task(backend.start())
            await asyncio.sleep(0)
            await backend.close()
            with pytest.raises(LocalRuntimeError, match="closed"):
                await starting
            assert runtime.pid is None

    asyncio.run(story())


def wait_for_end(output: int) -> bool:
    """Whether everyone who held the other end of this pipe is gone within a bounded time."""
    while select.select([output], [], [], GONE_S)[0]:
        if not os.read(output, 1):
            return True
    return False


def test_a_child_ends_with_its_input() -> None:
    """Ours: works on every system, however the parent ended."""
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 1) == b"x"
        process.stdin.close()
        assert process.wait(GONE_S) == 0


def test_a_child_ends_when_its_parent_is_killed() -> None:
    """Ours: it ends with its parent, after kill -9 too."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, ORPHAN], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        assert os.read(parent.stdout.fileno(), 1) == b"x"
        parent.kill()
        assert wait_for_end(parent.stdout.fileno())
