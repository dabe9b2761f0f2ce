"""Generated request bodies as frames over one WebSocket with lanes: each gets exactly one end, and nothing hangs."""

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.client import Socket
from antiphon.protocol.lifecycle import TERMINAL_EVENTS, StreamChecker
from tests.generated.fuzzing import FAILURES, Fuzzer
from tests.generated.making import encode
from tests.generated.test_fuzz import MODELS, SCRIPT
from tests.scenarios.serving import WAIT_S, serve_app

SMALL = 120
#: The long run begins no request after this.
LARGE_S = 30.0
LANES = (None, "a", "b", "c")


class Lanes:
    """One connection; what comes is given to the lane that it names."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._come: dict[str | None, asyncio.Queue[dict[str, Any]]] = {
            lane: asyncio.Queue() for lane in LANES
        }

    async def read(self) -> None:
        """Until the connection ends."""
        while True:
            event = json.loads(await self._socket.receive())
            self._come[event.pop("stream_id", None)].put_nowait(event)

    async def ask(self, value: Any, lane: str | None) -> list[dict[str, Any]]:
        """A frame, and what it is answered with up to the end."""
        if isinstance(value, dict):
            value = {**value, "type": "response.create", "stream_id": lane}
            if lane is None:
                del value["stream_id"]
        await self._socket.send_text(encode(value).decode())
        events: list[dict[str, Any]] = []
        async with asyncio.timeout(WAIT_S):
            while not events or not (events[-1]["type"] in TERMINAL_EVENTS or events[-1]["type"] == "error"):
                events.append(await self._come[lane].get())
        return events

    @property
    def left_over(self) -> int:
        """How many frames came that nobody asked for."""
        return sum(queue.qsize() for queue in self._come.values())


def is_readable(value: Any) -> bool:
    """Whether a server can read of such a body on which lane it came."""
    try:
        return isinstance(msgspec.json.decode(encode(value)), dict)
    except (ValueError, RecursionError):
        return False


def judge(events: list[dict[str, Any]], may_fail: bool) -> str | None:
    """What is wrong with one answer."""
    last = events[-1]
    if last["type"] == "error":
        if len(events) > 1:
            return "an error frame stands behind events"
        return None if last["status"] < 500 or (may_fail and last["status"] in FAILURES) else "a server error"
    checker = StreamChecker()
    faults = [fault for event in events for fault in checker.feed(event)] + checker.end()
    if last["type"] == "response.failed" and not may_fail:
        return f"failed: {last['response']['error']}"
    return str(faults) if faults else None


async def run_frames(folder: Path, seed: int, count: int, until_s: float) -> tuple[int, int, list[str]]:
    """So many frames, those answered well, and the faults."""
    limits = {"window_cache_bytes": 1 << 20}
    # The model server of every request is the scripted one.
    models = {name: share for name, share in MODELS.items() if name in (*SCRIPT["models"], "unknown-model")}
    asked, answered, faults = 0, 0, []
    async with serve_app(folder, SCRIPT, limits=limits) as (_, transport):
        reply = await transport.send("GET", "/openapi.json", {}, None)
        fuzzer = Fuzzer(transport, json.loads(await reply.read()), seed, models)
        await reply.close()
        socket = await transport.open_socket("/v1/responses", {})
        lanes = Lanes(socket)
        reading = asyncio.create_task(lanes.read())

        async def work(lane: str | None) -> None:
            nonlocal asked, answered
            while asked < count and time.monotonic() < until_s:
                asked += 1
                value, may_fail = fuzzer.make_create()
                if lane is not None and not is_readable(value):
                    # Its error names no lane, so the default one asks for such things alone.
                    value = {"input": "Hello."}
                events = await lanes.ask(value, lane)
                if (fault := judge(events, may_fail)) is not None:
                    faults.append(f"{fault}\n{str(value)[:2000]}\n{str(events[-1])[:800]}")
                if "response" in events[-1]:
                    answered += 1
                    fuzzer.remember_response(events[-1]["response"])

        try:
            await asyncio.gather(*(work(lane) for lane in LANES))
            assert lanes.left_over == 0
            assert not reading.done()
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            await socket.close()
    return asked, answered, faults


def check(seed: int, found: tuple[int, int, list[str]]) -> None:
    """No fault, and enough that was not refused."""
    asked, answered, faults = found
    assert not faults, f"seed {seed}: {len(faults)} faults\n" + "\n\n".join(faults[:8])
    assert answered > asked // 10


@pytest.mark.timeout(60)
def test_generated_frames_get_one_end_each(tmp_path: Path) -> None:
    """Ours: a small part of the long run, from a seed that stays."""
    check(1, asyncio.run(run_frames(tmp_path, 1, SMALL, time.monotonic() + WAIT_S)))


@pytest.mark.fuzz
@pytest.mark.timeout(LARGE_S + 60)
def test_generated_frames_get_one_end_each_for_half_a_minute(tmp_path: Path) -> None:
    """Ours: from a seed of the moment."""
    seed = int(os.environ.get("FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"FUZZ_SEED={seed}")
    check(seed, asyncio.run(run_frames(tmp_path, seed, 10**6, time.monotonic() + LARGE_S)))
