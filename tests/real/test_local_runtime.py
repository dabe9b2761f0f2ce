"""`antiphon serve --local` as a user starts it: the real runtime in its child, with the small model.

The model is too weak for more than plumbing, so counts are compared, and texts only printed.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tools.fetch_model import fetch_model

from antiphon.backends.local import ModelError
from antiphon.client import ResponsesClient
from antiphon.protocol.events import OutputTextDelta
from tests.real.processes import AntiphonServer, run_serve, wait_until
from tests.real.speaking import STORY, make_filler, read_text

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(240)]

MODEL = "smollm2-135m-instruct"
ROUNDS = 10
#: See `test_chains`: a token may join the end of a prompt with the beginning of the answer.
JOINED_TOKENS = 2
#: Until a process that was killed, or lost its parent, is gone.
GONE_S = 30.0
TERMINAL = {"response.completed", "response.failed", "response.incomplete"}


@contextmanager
def run_local(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[AntiphonServer]:
    """The embedded small model, from the cache that all of these tests share."""
    try:
        model = fetch_model()
    except ModelError as error:
        pytest.fail(f"these tests need the small model: {error}", pytrace=False)
    started_s = time.monotonic()
    variables = {"ANTIPHON_LOCAL__CACHE": str(model.parent), **(environment or {})}
    with run_serve(["--local", *(arguments or ("--model", MODEL))], folder, variables) as server:
        print(f"\nready after {time.monotonic() - started_s:.2f} s", end="")
        yield server


def find_child(server: AntiphonServer) -> int:
    """The model server's process; there is one at most."""
    found = subprocess.run(
        ["pgrep", "-P", str(server.pid), "-f", "antiphon.backends.local.child"],
        capture_output=True,
        text=True,
        check=False,
    )
    return int(found.stdout.split()[0]) if found.stdout.split() else 0


def is_gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked for its status yet."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return told.stdout.strip()[:1] in ("", "Z")


def make_body(said: str, previous: str | None = None, **options: Any) -> dict[str, Any]:
    body = {"model": MODEL, "input": said, "temperature": 0, "max_output_tokens": 32, **options}
    return body if previous is None else {**body, "previous_response_id": previous}


def count_cached(response: dict[str, Any]) -> int:
    cached: int = response["usage"]["input_tokens_details"]["cached_tokens"]
    return cached


async def tell(client: ResponsesClient, said: str, previous: str | None = None) -> dict[str, Any]:
    """One round."""
    body: dict[str, Any] = (await client.create(make_body(said, previous))).body
    assert (body["status"], body["model"]) in {("completed", MODEL), ("incomplete", MODEL)}
    return body


def test_the_embedded_model_keeps_a_chain_and_its_own_cache_covers_the_earlier_window(tmp_path: Path) -> None:
    """Ours: over ten rounds the count grows, and what was there before is never evaluated again."""

    async def talk(server: AntiphonServer) -> list[dict[str, Any]]:
        client = server.open_client()
        try:
            rounds: list[dict[str, Any]] = []
            for number in range(ROUNDS):
                previous = rounds[-1]["id"] if rounds else None
                rounds.append(await tell(client, f"Tell me about the number {number * 7}.", previous))
            return rounds
        finally:
            await client.close()

    with run_local(tmp_path) as server:
        rounds = asyncio.run(talk(server))
    prompts = [each["usage"]["input_tokens"] for each in rounds]
    cached = [count_cached(each) for each in rounds]
    print("\nprompt tokens", prompts, "\ncached tokens", cached)
    for before, after, kept in zip(prompts, prompts[1:], cached[1:], strict=False):
        assert after > before
        assert kept >= before - JOINED_TOKENS


def test_a_killed_child_fails_the_running_answer_once_and_the_chain_goes_on(tmp_path: Path) -> None:
    """Ours: kill -9 of the model server in mid-stream; then its history is continued by id."""
    seen: list[str] = []

    async def story(server: AntiphonServer) -> tuple[dict[str, Any], dict[str, Any]]:
        client = server.open_client()
        try:
            first = await tell(client, "My name is Ada.")
            child = find_child(server)
            body = make_body(STORY, first["id"], max_output_tokens=1000)
            async with client.stream(body) as events:
                async for event in events:
                    if isinstance(event, OutputTextDelta) and "killed" not in seen:
                        seen.append("killed")
                        os.kill(child, signal.SIGKILL)
                    seen.append(event.type)
            after = await tell(client, "What is my name?", first["id"])
            assert find_child(server) not in (0, child)
            return first, after
        finally:
            await client.close()

    with run_local(tmp_path) as server:
        first, after = asyncio.run(story(server))
    assert seen[-1] == "response.failed"
    assert [each for each in seen if each in TERMINAL] == ["response.failed"]
    assert after["previous_response_id"] == first["id"]
    assert after["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    print("\n", read_text(after))


def test_two_long_conversations_at_once_have_a_whole_window_each(tmp_path: Path) -> None:
    """Ours: out of one pool of one window both got "exceeds the context size", though each of them fits."""

    async def talk(server: AntiphonServer) -> list[dict[str, Any]]:
        client = server.open_client()
        try:
            texts = [f"Keepers of house {number}. {make_filler(34)}" for number in range(2)]
            return await asyncio.gather(*(tell(client, text) for text in texts))
        finally:
            await client.close()

    with run_local(
        tmp_path, "--model", MODEL, environment={"ANTIPHON_LOCAL__CONTEXT_TOKENS": "1024"}
    ) as server:
        told = asyncio.run(talk(server))
    for each in told:
        assert 1024 / 2 < each["usage"]["input_tokens"] < 1024


def test_the_child_ends_with_the_server_however_it_ends(tmp_path: Path) -> None:
    """Ours: kill -9 of the server leaves no model server behind; nor does an ordinary stop."""
    with run_local(tmp_path) as server:
        killed = find_child(server)
        assert killed
        server.kill()
        asyncio.run(wait_until(lambda: is_gone(killed), "the child is gone", timeout_s=GONE_S))
    with run_local(tmp_path) as server:
        stopped = find_child(server)
    asyncio.run(wait_until(lambda: is_gone(stopped), "the child is gone", timeout_s=GONE_S))


def test_the_key_of_the_child_is_in_no_command_line(tmp_path: Path) -> None:
    """Ours: every user of a machine can read the arguments of all processes."""
    with run_local(tmp_path) as server:
        told = subprocess.run(
            ["ps", "-o", "args=", "-p", str(find_child(server))], capture_output=True, text=True, check=True
        )
    assert told.stdout.split()[1:] == ["-P", "-m", "antiphon.backends.local.child"]


def test_a_file_of_ones_own_is_served_under_its_name(tmp_path: Path) -> None:
    """Ours: `--model-file`, and the window is what the model was made for, not more."""

    async def ask(server: AntiphonServer) -> dict[str, Any]:
        client = server.open_client()
        try:
            body = {**make_body("Hello."), "model": "SmolLM2-135M-Instruct.Q4_1"}
            answer: dict[str, Any] = (await client.create(body)).body
            return answer
        finally:
            await client.close()

    with run_local(tmp_path, "--model-file", str(fetch_model())) as server:
        answer = asyncio.run(ask(server))
    assert answer["model"] == "SmolLM2-135M-Instruct.Q4_1"
    assert answer["usage"]["output_tokens"] > 0
