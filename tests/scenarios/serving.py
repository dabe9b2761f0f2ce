"""Servers for scenarios, in this process: configured as a person would, or with doubles at the seams.

It knows bootstrap, and no scenario. Invariant: when a server's block is left, everything of it is closed.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from antiphon.backends import Ask, BackendEvent
from antiphon.backends.scripted import ScriptedBackend, parse_script
from antiphon.bootstrap import build_app
from antiphon.client.app_transport import AppTransport
from antiphon.client.transport import TransportLimits
from antiphon.config import load_config
from antiphon.engine import BackgroundSettings, Catalog, Engine, Services, WindowCache
from antiphon.server import Admission, Application, ServerLimits
from antiphon.store import Store
from antiphon.store.memory import MemoryStore
from tests.scenarios.client import StrictClient

#: No wait in a scenario is longer.
WAIT_S = 20.0
_TRANSPORT_LIMITS = TransportLimits(idle_timeout_s=WAIT_S, close_timeout_s=WAIT_S)


def hash_key(key: str) -> str:
    """What the configuration holds of an API key."""
    return hashlib.sha256(key.encode()).hexdigest()


@asynccontextmanager
async def serve(
    folder: Path, script: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> AsyncIterator[StrictClient]:
    """The server as `antiphon serve --scripted [--script FILE]`, with more sections of configuration."""
    async with serve_app(folder, script, **sections) as (_, transport):
        yield StrictClient(transport)


@asynccontextmanager
async def serve_app(
    folder: Path, script: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> AsyncIterator[tuple[Application, AppTransport]]:
    """The same, as the ASGI application and a transport to it."""
    endpoint = {"dialect": "scripted"}
    if script is not None:
        path = folder / "script.json"
        path.write_text(json.dumps(script))
        endpoint["script"] = str(path)
    flags = {"server": {"data": str(folder / "data")}, "endpoints": {"scripted": endpoint}, **sections}
    async with build_app(load_config(flags, environ={}, cwd=folder)) as app:
        transport = AppTransport(app, _TRANSPORT_LIMITS)
        try:
            yield app, transport
        finally:
            await transport.close()


@asynccontextmanager
async def serve_doubles(
    backend: ScriptedBackend,
    store: Store | None = None,
    *,
    cache_bytes: int = 1 << 28,
    background: BackgroundSettings | None = None,
    admission: Admission | None = None,
    idle_s: float = WAIT_S,
    **limits: Any,
) -> AsyncIterator[StrictClient]:
    """A server over the doubles that a test holds in its hands; its client waits `idle_s` for anything to come."""
    services = Services(
        catalog=Catalog({backend.name: backend}, {}),
        store=store or MemoryStore(),
        cache=WindowCache(cache_bytes),
    )
    engine = Engine(services, background=background)
    await engine.start()
    transport = AppTransport(
        Application(engine, limits=ServerLimits(**limits), admission=admission),
        TransportLimits(idle_timeout_s=idle_s, close_timeout_s=WAIT_S),
    )
    try:
        yield StrictClient(transport)
    finally:
        await transport.close()
        await engine.close()


class GatedBackend(ScriptedBackend):
    """A scripted backend that waits at its gate before the n-th batch (0 is `Opened`), and keeps its asks."""

    def __init__(self, script: dict[str, Any], *, gate_at: int | None = None) -> None:
        super().__init__("scripted", parse_script(json.dumps(script), "json"))
        self.gate_at = gate_at
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.asks: list[Ask] = []

    async def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        """The script's answer, with one pause that the test ends."""
        self.asks.append(ask)
        batches = super().stream(ask)
        try:
            number = 0
            while True:
                if number == self.gate_at:
                    self.waiting.set()
                    await self.gate.wait()
                try:
                    batch = await anext(batches)
                except StopAsyncIteration:
                    return
                yield batch
                number += 1
        finally:
            await batches.aclose()
