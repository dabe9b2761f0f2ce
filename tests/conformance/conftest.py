"""What the conformance tests run against: our own server in this process."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from antiphon.client.app_transport import AsgiApp

OpenApp = Callable[[], AbstractAsyncContextManager[AsgiApp]]

#: The keys of two tenants; no secrets.
KEYS = {"ada": "key-of-ada-for-tests", "ben": "key-of-ben-for-tests"}


@pytest.fixture
def scripted_app(tmp_path: Path) -> OpenApp:
    """Opens our server with the scripted backend and a store of its own, as `antiphon serve --scripted`.

    It knows two keys; opened again, it has the data of the time before.
    """

    @asynccontextmanager
    async def open_app() -> AsyncIterator[AsgiApp]:
        from antiphon.bootstrap import build_app
        from antiphon.config import load_config

        flags = {
            "server": {"data": str(tmp_path / "data")},
            "endpoints": {"scripted": {"dialect": "scripted"}},
            "models": {"scripted": {"endpoint": "scripted"}},
            "keys": {
                name: {"sha256": hashlib.sha256(key.encode()).hexdigest()} for name, key in KEYS.items()
            },
        }
        async with build_app(load_config(flags, environ={}, cwd=tmp_path)) as app:
            yield app

    return open_app
