"""Background responses in scenarios: run and read. It knows no scenario."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.engine import BackgroundSettings
from antiphon.protocol.lifecycle import StreamChecker
from antiphon.store.memory import MemoryStore
from tests.scenarios import strict
from tests.scenarios.client import StrictClient, read_frame
from tests.scenarios.serving import GatedBackend, serve_doubles

TEXT = "one two three four five"
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": "^refuse", "error": {"status": 400, "message": "Bad."}},
        {"when": "^break", "text": "Half an", "error": {"at": "after", "status": 500, "message": "Boom."}},
        {"when": "^cut", "text": TEXT, "finish": "length"},
        {"when": "^what", "act": "recall"},
        {"reasoning": "Let me see.", "text": TEXT},
    ]
}
Story = Callable[[StrictClient, GatedBackend], Awaitable[None]]


def run(
    story: Story,
    *,
    gate_at: int | None = None,
    store: MemoryStore | None = None,
    **background: Any,
) -> None:
    """A story with a server over doubles; the backend waits at its gate if there is one."""

    async def whole() -> None:
        backend = GatedBackend(SCRIPT, gate_at=gate_at)
        settings = BackgroundSettings(**background)
        async with asyncio.timeout(60), serve_doubles(backend, store, background=settings) as client:
            await story(client, backend)

    asyncio.run(whole())


def check(frames: list[bytes]) -> list[dict[str, Any]]:
    """The events of a whole stream, each of them and their order valid."""
    events = [read_frame(frame) for frame in frames]
    checker = StreamChecker()
    for event in events:
        strict.check_event(event)
        assert checker.feed(event) == []
    assert checker.end() == []
    return events
