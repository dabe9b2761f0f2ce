"""A server that is told to stop: responses may end for a while, then each client is told."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.backends.scripted import ScriptedBackend, parse_script
from antiphon.engine import Catalog, Engine, Services
from antiphon.server import Application
from antiphon.store.memory import MemoryStore
from tests.scenarios.process import start_server

#: An answer that takes far longer than the server waits.
SLOW = {"rules": [{"texts": ["one ", "two ", "three"], "pause_s": 60}]}


def test_a_stream_that_outlives_the_wait_gets_its_terminal_event_and_can_be_read(tmp_path: Path) -> None:
    """Ours: exactly one terminal event, also when the server stops."""
    seen: list[dict[str, Any]] = []

    async def story() -> None:
        async with server.connect() as client, client.open_stream(input="Go.") as events:
            await anext(events)
            server.ask_to_stop()
            async for event in events:
                seen.append(event)

    with start_server(tmp_path, SLOW, ANTIPHON_LIMITS__SHUTDOWN_S="0.2") as server:
        asyncio.run(story())
        assert server.wait() == 0
    last = seen[-1]
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")

    async def look() -> None:
        async with server.connect() as client:
            assert (await client.retrieve(last["response"]["id"])).body == last["response"]

    with start_server(tmp_path) as server:
        asyncio.run(look())


def test_a_plain_request_that_is_cut_short_is_answered_in_the_apis_shape() -> None:
    """Ours: an error object and a status that clients retry, never a bare page."""

    async def story() -> list[dict[str, Any]]:
        backend = ScriptedBackend("scripted", parse_script(json.dumps(SLOW), "json"))
        engine = Engine(Services(catalog=Catalog({"scripted": backend}, {}), store=MemoryStore()))
        sent: list[dict[str, Any]] = []
        received = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if received.is_set():
                await asyncio.Event().wait()
            received.set()
            body = msgspec.json.encode({"model": "scripted", "input": "Go."})
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers}
        request = asyncio.create_task(Application(engine)(scope, receive, send))
        while not backend.streams_open:
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert backend.streams_open == 0
        return sent

    start, body = asyncio.run(story())
    assert start["status"] == 503
    error = msgspec.json.decode(body["body"])["error"]
    assert (error["type"], error["code"]) == ("server_error", "server_error")
