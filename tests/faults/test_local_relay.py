"""A Chat Completions request to the embedded model: handed on to its process, and to the next one if that has died."""

import asyncio
import os
import signal
from pathlib import Path

from tests.faults.fake_model_child import DELTAS
from tests.faults.test_local_child import run_backend

TIMEOUT_S = 60.0
BODY = b'{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hello"}]}'


def test_a_request_is_handed_on_and_survives_a_killed_child(tmp_path: Path) -> None:
    """Ours: what a dying child gave no answer to is asked of the next one, on this route too."""

    async def story() -> None:
        async with run_backend(tmp_path) as (backend, runtime):
            for _ in range(2):
                relayed = await backend.relay("/chat/completions", BODY)
                body = b"".join([piece async for piece in relayed.chunks])
                assert relayed.status == 200
                assert relayed.headers["content-type"] == "text/event-stream"
                assert body.endswith(b"data: [DONE]\n\n")
                assert all(text.encode() in body for text in DELTAS)
                assert runtime.pid is not None
                os.kill(runtime.pid, signal.SIGKILL)

    asyncio.run(asyncio.wait_for(story(), TIMEOUT_S))
