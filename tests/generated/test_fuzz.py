"""Requests generated from our own OpenAPI document: no 5xx, no broken stream, no hang, no leak."""

import asyncio
import gc
import json
import os
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from antiphon.client import Socket, Transport
from antiphon.client.transport import Reply
from tests.generated.fuzzing import Fuzzer
from tests.generated.upstreams import CHAT_MODEL, RESPONSES_MODEL, open_upstreams
from tests.scenarios.serving import WAIT_S, serve_app

#: In the default run, and under the marker `fuzz`.
SMALL = 600
LARGE = 20_000
#: So many clients ask at once in the large run.
LANES = 4
#: The whole large run may take so long.
LARGE_S = 240.0
#: What a run may add to this process once it is warm; its caches are kept far smaller.
GROWTH_BYTES = 96 << 20
SHOWN_FAULTS = 12
#: Model name -> how often it is asked.
MODELS = {
    "scripted": 50,
    CHAT_MODEL: 20,
    RESPONSES_MODEL: 12,
    "by-schema": 8,
    "blind": 4,
    "failing": 2,
    "cut-off": 2,
    "slow": 4,
    "unknown-model": 2,
}
SCRIPT: dict[str, Any] = {
    "models": ["scripted", "failing", "cut-off", "slow"],
    "rules": [
        {"model": "failing", "error": {"status": 500, "message": "It fails."}},
        {
            "model": "cut-off",
            "text": "One two",
            "error": {"at": "after", "status": 500, "message": "It broke."},
        },
        {"tool_forced": True, "act": "call_tools"},
        # What runs in the background is still at work when the next request comes.
        {"model": "slow", "text": "One two three four.", "pause_s": 0.005},
        {"when": "recall", "act": "recall"},
        {"when": "one two", "text": "One two three.", "reasoning": "Well."},
        {"when": "a b", "text": "Cut", "finish": "length"},
        {"names_tool": True, "act": "call_tools"},
        {"wants_json": True, "act": "fill_schema"},
        {"after_output": True, "act": "repeat_outputs"},
        {"when": "^x$", "refusal": "No."},
        {"act": "note"},
    ],
}


def read_memory() -> int:
    """Bytes of this process that are resident now."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def settle(baseline: set["asyncio.Task[Any]"]) -> set["asyncio.Task[Any]"]:
    """The tasks that are left of what began since, after what is still at work had time to end."""
    # The fake model servers have a task for each connection.
    left = {task for task in asyncio.all_tasks() - baseline if "FakeUpstream" not in repr(task.get_coro())}
    if left:
        _, left = await asyncio.wait(left, timeout=WAIT_S)
    return left


Wrap: TypeAlias = Callable[[Transport], Transport]


async def run_fuzz(
    folder: Path,
    seed: int,
    count: int,
    *,
    lanes: int = 1,
    wrap: Wrap = lambda each: each,
    request_s: float = WAIT_S,
) -> Fuzzer:
    """So many requests to a server over four kinds of models; `wrap` may stand between them."""
    async with open_upstreams() as (chat, responses):
        sections: dict[str, Any] = {
            "endpoints": {
                "scripted": {"dialect": "scripted", "script": str(folder / "script.json")},
                "chat": {"url": chat.url},
                "responses": {"url": responses.url, "dialect": "responses"},
            },
            "models": {
                "by-schema": {"endpoint": "chat", "model": CHAT_MODEL, "profile": "by-schema"},
                "blind": {"endpoint": "chat", "model": CHAT_MODEL, "profile": "blind"},
            },
            "profiles": {"by-schema": {"tools": "schema"}, "blind": {"sees_images": False, "tools": "none"}},
            "search": {"url": chat.url},
            "limits": {"window_cache_bytes": 1 << 20, "background_events_s": 1},
        }
        async with serve_app(folder, SCRIPT, **sections) as (_, transport):
            reply = await transport.send("GET", "/openapi.json", {}, None)
            document = json.loads(await reply.read())
            await reply.close()
            fuzzer = Fuzzer(wrap(transport), document, seed, MODELS, request_s)
            # Connections and workers that stay are there after the first requests.
            baseline = asyncio.all_tasks()
            await fuzzer.run(count // 4, lanes=lanes)
            gc.collect()
            warm = read_memory()
            await fuzzer.run(count - count // 4, lanes=lanes)
            gc.collect()
            growth = read_memory() - warm
            left = await settle(baseline)
            if left:
                fuzzer.faults.append(f"tasks were left: {left}")
            if growth > GROWTH_BYTES:
                fuzzer.faults.append(f"memory grew by {growth >> 20} MiB")
            return fuzzer


def check(fuzzer: Fuzzer) -> None:
    """Fail with what was found, each with its request."""
    shown = "\n\n".join(fuzzer.faults[:SHOWN_FAULTS])
    assert not fuzzer.faults, f"seed {fuzzer.seed}: {len(fuzzer.faults)} faults\n{shown}"


def test_generated_requests_break_nothing(tmp_path: Path) -> None:
    """Ours: a small part of the long run, from a seed that stays."""
    check(asyncio.run(run_fuzz(tmp_path, 1, SMALL)))


@pytest.mark.fuzz
@pytest.mark.timeout(LARGE_S + 60)
def test_twenty_thousand_generated_requests_break_nothing(tmp_path: Path) -> None:
    """Ours: no 5xx, no stream that breaks the lifecycle table, no hang, no leak; from a seed of the moment."""
    seed = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"FUZZ_SEED={seed}")
    began = time.monotonic()
    fuzzer = asyncio.run(run_fuzz(tmp_path, seed, LARGE, lanes=LANES))
    took_s = time.monotonic() - began
    print(f"{LARGE} requests in {took_s:.0f} s, {fuzzer.streams} streams")
    check(fuzzer)
    assert took_s < LARGE_S
    # A generator that is refused everywhere would show nothing.
    answered = {(path, method) for method, path, status in fuzzer.statuses if status == 200}
    assert set(fuzzer.operations) - answered == {("/v1/models/{model}", "delete")}
    assert fuzzer.statuses["post", "/v1/responses", 200] > LARGE // 10
    assert fuzzer.streams > LARGE // 40


class Faulty:
    """A transport that spoils some answers, as a broken server would."""

    def __init__(self, inner: Transport, spoil: "Spoil") -> None:
        self._inner = inner
        self._spoil = spoil

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """The answer, read whole and spoiled."""
        reply = await self._inner.send(method, path, headers, body)
        try:
            raw = await reply.read()
        finally:
            await reply.close()
        is_stream = reply.headers["content-type"].startswith("text/event-stream")
        return ReadReply(*await self._spoil(reply.status, dict(reply.headers), raw, is_stream))

    async def open_socket(self, path: str, headers: Mapping[str, str]) -> Socket:
        """A connection, not spoiled."""
        return await self._inner.open_socket(path, headers)

    async def close(self) -> None:
        """It opened nothing."""


class ReadReply:
    """An answer that is there already."""

    def __init__(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.status = status
        self.headers = headers
        self._raw = raw

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """All of it at once."""
        yield self._raw

    async def read(self) -> bytes:
        """All of it."""
        return self._raw

    async def close(self) -> None:
        """Nothing is open."""


Spoiled: TypeAlias = tuple[int, dict[str, str], bytes]
Spoil: TypeAlias = Callable[[int, dict[str, str], bytes, bool], Awaitable[Spoiled]]


async def fail(status: int, headers: dict[str, str], raw: bytes, is_stream: bool) -> Spoiled:
    return (500 if status == 404 else status), headers, raw


async def forget_param(status: int, headers: dict[str, str], raw: bytes, is_stream: bool) -> Spoiled:
    return status, headers, raw.replace(b'"param":', b'"parameter":') if status == 400 else raw


async def forget_usage(status: int, headers: dict[str, str], raw: bytes, is_stream: bool) -> Spoiled:
    return status, headers, raw.replace(b'"usage":', b'"use":') if status == 200 and not is_stream else raw


async def mistype(status: int, headers: dict[str, str], raw: bytes, is_stream: bool) -> Spoiled:
    return status, headers, raw.replace(b'"has_more":', b'"has_more":0,"x":') if status == 200 else raw


async def lose_event(status: int, headers: dict[str, str], raw: bytes, is_stream: bool) -> Spoiled:
    if not is_stream:
        return status, headers, raw
    frames = raw.split(b"\n\n")
    return status, headers, b"\n\n".join(frames[:3] + frames[4:])


async def hang(status: int, headers: dict[str, str], raw: bytes, is_stream: bool) -> Spoiled:
    if status == 404:
        await asyncio.Event().wait()
    return status, headers, raw


SPOILS: dict[str, tuple[Spoil, str]] = {
    "500": (fail, "an error of the server"),
    "envelope": (forget_param, "error: ['code', 'message', 'parameter', 'type']"),
    "response": (forget_usage, "usage"),
    "schema": (mistype, "does not fit its schema"),
    "stream": (lose_event, "sequence_number"),
    "hang": (hang, "no answer within"),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_server_with_a_fault_is_found_out(tmp_path: Path, name: str) -> None:
    """Ours: each thing that is looked at is seen when it is broken."""
    spoil, told = SPOILS[name]
    count, request_s = (60, 0.1) if name == "hang" else (300, WAIT_S)
    run = run_fuzz(tmp_path, 2, count, wrap=lambda each: Faulty(each, spoil), request_s=request_s)
    fuzzer = asyncio.run(run)
    assert any(told in fault for fault in fuzzer.faults), fuzzer.faults[:3]
    assert all("curl -sX" in fault for fault in fuzzer.faults)
