"""A request leaves nothing behind for the garbage collector, which therefore runs rarely."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon import bootstrap
from antiphon.config import load_config

REQUESTS = 5


async def post(app: Any, body: dict[str, Any]) -> None:
    """One request straight into the application; the client stays until the answer is whole."""
    messages = [{"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}]
    whole = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await whole.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            whole.set()

    headers = [(b"content-type", b"application/json")]
    await app({"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers}, receive, send)
    assert whole.is_set()


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_makes_no_reference_cycles(stream: bool, tmp_path: Path) -> None:
    """Ours: a cycle keeps a request's whole body alive until a collection, and collections are rare by choice."""

    async def story() -> list[str]:
        flags = {"server": {"data": str(tmp_path)}, "endpoints": {"scripted": {"dialect": "scripted"}}}
        async with bootstrap.build_app(load_config(flags, {}, tmp_path)) as app:
            body = {"model": "scripted", "input": "Hello.", "stream": stream}
            await post(app, body)
            gc.collect()
            gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            try:
                for _ in range(REQUESTS):
                    await post(app, body)
                # What was cancelled at a request's end still has to run out.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                gc.collect()
                return [
                    type(left).__qualname__
                    for left in gc.garbage
                    if type(left).__module__.startswith("antiphon")
                ]
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    assert asyncio.run(story()) == []
