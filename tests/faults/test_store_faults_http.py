"""Bad storage over HTTP: an error before success is claimed, and service as before once it is healed."""

import asyncio
import contextlib
import resource
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.protocol.errors import StoreError
from antiphon.sessions import Node
from antiphon.store import Record, StoreSettings
from antiphon.store.files import DATABASE_NAME
from antiphon.store.memory import MemoryStore
from antiphon.store.sqlite import SqliteStore
from tests.scenarios.client import StrictClient, find_terminal, read_text
from tests.scenarios.process import start_server
from tests.scenarios.serving import GatedBackend, serve_doubles

SCRIPT = {"window_tokens": 10**9, "rules": [{"text": "ok"}]}


class FaultyStore(MemoryStore):
    """A store whose named methods fail."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()

    def _fail(self, name: str) -> None:
        if name in self.broken:
            raise StoreError("The disk is on fire.")

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        self._fail("record")
        await super().record(record, conversation=conversation)

    async def load(self, tenant: str, node_id: str) -> Record | None:
        self._fail("load")
        return await super().load(tenant, node_id)

    async def load_path(self, tenant: str, node_id: str, *, skip_deleted: bool = False) -> list[Node] | None:
        self._fail("load_path")
        return await super().load_path(tenant, node_id, skip_deleted=skip_deleted)

    async def delete(self, tenant: str, node_id: str) -> bool:
        self._fail("delete")
        return await super().delete(tenant, node_id)

    async def check(self) -> None:
        self._fail("check")
        await super().check()


FAILURE = {"message": "The disk is on fire.", "type": "server_error", "param": None, "code": None}


def test_a_response_that_could_not_be_stored_is_never_claimed() -> None:
    """Decided and ours: an error before success was claimed, streaming or not."""
    store = FaultyStore()

    async def story() -> None:
        async with serve_doubles(GatedBackend(SCRIPT), store) as client:
            root = await client.create(input="one")
            store.broken = {"record"}
            for parent in (None, root["id"]):
                error = await client.refuse(500, input="two", previous_response_id=parent)
                assert error == FAILURE
                events = await client.stream(input="two", previous_response_id=parent)
                assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
                failed = find_terminal(events)
                assert failed["error"] == {"code": "server_error", "message": "The disk is on fire."}
                assert (await client.retrieve(failed["id"])).status == 404
                error = await client.refuse(input="x", previous_response_id=failed["id"])
                assert error["code"] == "previous_response_not_found"
            # What is not to be stored does not care.
            await client.create(input="two", previous_response_id=root["id"], store=False)
            store.broken = set()
            healed = await client.create(input="two", previous_response_id=root["id"])
            assert (await client.retrieve(healed["id"])).body == healed

    asyncio.run(story())


def test_storage_that_cannot_be_read_is_told_as_such() -> None:
    """Ours: a failing store is never taken for an unknown id."""
    store = FaultyStore()

    async def story() -> None:
        async with serve_doubles(GatedBackend(SCRIPT), store) as client:
            root = await client.create(input="one")
            store.broken = {"load", "load_path", "delete", "check"}
            answers = [
                await client.retrieve(root["id"]),
                await client.list_items(root["id"]),
                await client.delete(root["id"]),
                await client.send("GET", "/ready"),
                await client.post({"input": "x", "previous_response_id": "resp_" + "0" * 36}),
            ]
            assert [(answer.status, answer.error) for answer in answers] == [(500, FAILURE)] * 5
            assert (await client.send("GET", "/health")).status == 200
            store.broken = set()
            assert (await client.send("GET", "/ready")).status == 200
            assert (await client.retrieve(root["id"])).body == root

    asyncio.run(story())


def test_a_cancelled_response_that_cannot_be_stored_troubles_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Decided: the client is gone; the log says what was lost."""
    store = FaultyStore()
    backend = GatedBackend({"rules": [{"when": "stop", "text": "One two."}, {"text": "ok"}]}, gate_at=2)

    async def story() -> None:
        async with serve_doubles(backend, store) as client:
            store.broken = {"record"}
            async with client.open_stream(input="stop") as events:
                await anext(events)
                await backend.waiting.wait()
            assert backend.streams_open == 0
            store.broken = set()
            backend.gate.set()
            assert read_text(await client.create(input="x")) == "ok"

    asyncio.run(story())
    assert "could not be stored" in caplog.text


@contextlib.asynccontextmanager
async def serve_sqlite(folder: Path) -> AsyncIterator[StrictClient]:
    """A server on the real store, which gives up waiting for a lock at once."""
    store = SqliteStore.open(folder, StoreSettings(busy_timeout_s=0.05, check_timeout_s=1.0))
    async with serve_doubles(GatedBackend(SCRIPT), store) as client:
        yield client


def test_a_locked_database_fails_requests_until_it_is_free(tmp_path: Path) -> None:
    """Ours: database locked: an error before success was claimed; then healing."""

    async def story() -> None:
        async with serve_sqlite(tmp_path) as client:
            root = await client.create(input="one")
            with contextlib.closing(sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                error = await client.refuse(500, input="two", previous_response_id=root["id"])
                assert error["type"] == "server_error"
                failed = find_terminal(await client.stream(input="two", previous_response_id=root["id"]))
                assert failed["status"] == "failed"
                assert (await client.delete(root["id"])).status == 500
                assert (await client.send("GET", "/ready")).status == 500
                # Reading goes on.
                assert (await client.retrieve(root["id"])).body == root
                other.execute("ROLLBACK")
            assert (await client.retrieve(failed["id"])).status == 404
            healed = await client.create(input="two", previous_response_id=root["id"])
            assert (await client.retrieve(healed["id"])).body == healed
            assert (await client.send("GET", "/ready")).status == 200

    asyncio.run(story())


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process are Linux's")
def test_a_full_disk_fails_requests_until_there_is_room(tmp_path: Path) -> None:
    """Ours: disk full: an error before success was claimed; real, by a file-size limit."""

    async def story() -> None:
        async with server.connect() as client:
            kept = [await client.create(input="one")]
            limit = 1 << 20
            resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            failures = 0
            for number in range(64):
                body: dict[str, Any] = {"input": make_noise(number), "previous_response_id": kept[-1]["id"]}
                if number % 2:
                    response = find_terminal(await client.stream(**body))
                    if response["status"] == "failed":
                        failures += 1
                        assert (await client.retrieve(response["id"])).status == 404
                        continue
                else:
                    answer = await client.post(body)
                    if answer.status == 500:
                        assert answer.error["type"] == "server_error"
                        failures += 1
                        continue
                    response = answer.body
                kept.append(response)
                if failures > 4:
                    break
            assert failures > 4, "the limit was never reached"
            resource.prlimit(
                server.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
            kept.append(await client.create(input="after", previous_response_id=kept[-1]["id"]))
            for response in kept:
                assert (await client.retrieve(response["id"])).body == response

    with start_server(tmp_path, SCRIPT) as server:
        asyncio.run(story())


def make_noise(number: int) -> str:
    """About 60 kB that no compression makes small."""
    import random

    return random.Random(number).randbytes(30_000).hex()
