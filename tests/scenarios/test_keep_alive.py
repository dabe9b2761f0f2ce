"""An hour of silence of a model, in virtual time: signs of life, and the answer at its end."""

import asyncio
import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from antiphon.bootstrap import build_app
from antiphon.client import SocketClosedError
from antiphon.client.app_transport import AppTransport
from antiphon.client.transport import TransportLimits
from antiphon.config import load_config
from antiphon.engine import BackgroundSettings
from tests.fake_upstream import FakeUpstream, Reply, make_chunk, make_head
from tests.scenarios.client import StrictClient, find_terminal, read_frame, read_text
from tests.scenarios.following import open_new
from tests.scenarios.serving import GatedBackend, serve_doubles
from tests.scenarios.virtual_time import VirtualLoop, run_virtually

HOUR_S = 3_600.0
KEEP_ALIVE_S = 15.0
SIGNS = int(HOUR_S / KEEP_ALIVE_S)
SCRIPT: dict[str, Any] = {"rules": [{"texts": ["Here", " I am."]}]}
#: What 200 signs may leave in memory; the test itself keeps a word for each.
LEFT_BYTES = 64 << 10


class SilentBackend(GatedBackend):
    """A model that begins, and then says nothing for an hour."""

    def __init__(self) -> None:
        super().__init__(SCRIPT, gate_at=1)

    def begin_silence(self) -> None:
        """From now on, in the loop's time; a little before the sign that would come at the same moment."""
        asyncio.get_running_loop().call_later(HOUR_S + 1, self.gate.set)


def test_an_hour_of_silence_is_240_signs_of_life_and_then_the_answer() -> None:
    """Decided: silence repeats `response.in_progress` every `limits.keep_alive_s`; 15 s by default."""

    async def story() -> tuple[list[str], list[int], str]:
        backend = SilentBackend()
        backend.begin_silence()
        kinds: list[str] = []
        used: list[int] = []
        async with serve_doubles(backend) as client, client.open_stream(input="Hi.") as stream:
            async for event in stream:
                assert event["sequence_number"] == len(kinds)
                kinds.append(event["type"])
                if len(kinds) in (20, 220):
                    gc.collect()
                    used.append(tracemalloc.get_traced_memory()[0])
            assert asyncio.get_running_loop().time() >= HOUR_S
        return kinds, used, read_text(event["response"])

    tracemalloc.start()
    try:
        kinds, used, text = run_virtually(story())
    finally:
        tracemalloc.stop()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[2 : 2 + SIGNS] == ["response.in_progress"] * SIGNS
    assert "response.in_progress" not in kinds[2 + SIGNS :]
    assert text == "Here I am."
    assert used[1] - used[0] < LEFT_BYTES


def test_a_background_stream_is_kept_alive_as_long() -> None:
    """Decided: the same signs for a client that follows a background response."""

    async def story() -> list[dict[str, Any]]:
        backend = SilentBackend()
        backend.begin_silence()
        background = BackgroundSettings(keep_alive_s=KEEP_ALIVE_S)
        async with serve_doubles(backend, background=background) as client, open_new(client) as frames:
            return [read_frame(frame) async for frame in frames]

    events = run_virtually(story())
    kinds = [event["type"] for event in events]
    signs = kinds.count("response.in_progress") - 1
    assert signs == SIGNS
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(numbers)
    assert read_text(find_terminal(events)) == "Here I am."


def test_a_connection_is_kept_alive_as_long_and_then_closed_for_its_age() -> None:
    """Decided: the same signs over a WebSocket; the age limit lets what runs end, and closes with 1000."""

    async def story() -> list[dict[str, Any]]:
        backend = SilentBackend()
        backend.begin_silence()
        events: list[dict[str, Any]] = []
        async with serve_doubles(backend) as client:
            socket = await client.transport.open_socket("/v1/responses", {})
            body = {"type": "response.create", "model": "scripted", "input": "Hi.", "store": False}
            await socket.send_text(json.dumps(body))
            while not events or events[-1]["type"] != "error":
                events.append(json.loads(await socket.receive()))
            with pytest.raises(SocketClosedError) as closed:
                await socket.receive()
            assert closed.value.close_code == 1000
        return events

    events = run_virtually(story())
    errors = [event for event in events if event["type"] == "error"]
    told = [event for event in events if event["type"] != "error"]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told].count("response.in_progress") == SIGNS + 1
    assert read_text(find_terminal(told)) == "Here I am."
    assert [error["error"]["code"] for error in errors] == ["websocket_connection_limit_reached"]


def test_a_collected_answer_comes_after_an_hour_as_well() -> None:
    """Ours: nothing but the model server's own silence ends a request that is not streamed."""

    async def story() -> str:
        backend = SilentBackend()
        backend.begin_silence()
        async with serve_doubles(backend, idle_s=2 * HOUR_S) as client:
            return read_text(await client.create(input="Hi."))

    assert run_virtually(story()) == "Here I am."


def test_signs_stop_when_the_client_leaves() -> None:
    """Ours: a client that is gone leaves no timer behind."""

    async def story() -> None:
        backend = SilentBackend()
        async with serve_doubles(backend) as client:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            # The server's own clockwork runs by the time it has answered.
            await client.send("GET", "/v1/models")
            before = loop.count_timers()
            async with client.open_stream(input="Hi.") as stream:
                for _ in range(10):
                    await anext(stream)
                assert loop.count_timers() > before
            assert backend.streams_open == 0
            assert loop.count_timers() == before

    run_virtually(story())


@pytest.mark.parametrize("silent_at", ["head", "text"])
def test_a_model_server_that_is_silent_too_long_is_given_up_in_virtual_time_too(
    tmp_path: Path, silent_at: str
) -> None:
    """Setting `limits.idle_timeout_s`: signs to the client are no signs of the model server."""

    async def story() -> dict[str, Any]:
        begun = [make_head(), make_chunk({"content": "Here"})] if silent_at == "text" else []
        async with FakeUpstream(lambda _: Reply(begun, "hold")) as upstream:
            flags = {
                "server": {"data": str(tmp_path / "data")},
                "endpoints": {"fake": {"url": upstream.url}},
                "limits": {"idle_timeout_s": 12.0, "keep_alive_s": 2.0},
            }
            async with build_app(load_config(flags, environ={}, cwd=tmp_path)) as app:
                transport = AppTransport(app, TransportLimits())
                try:
                    events = await StrictClient(transport).stream(model="fake-model", input="Hi.")
                finally:
                    await transport.close()
                assert 12 <= asyncio.get_running_loop().time() < 20
                assert [event["type"] for event in events].count("response.in_progress") > 3
                return find_terminal(events)

    response = run_virtually(story())
    assert response["status"] == "failed"
    assert "was silent for 12 s" in response["error"]["message"]
