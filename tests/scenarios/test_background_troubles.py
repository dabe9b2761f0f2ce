"""Background responses that are deleted, fail to be stored, or outlive their server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine import BackgroundSettings
from antiphon.protocol.errors import StoreError
from antiphon.store import EventChunk, Record
from antiphon.store.memory import MemoryStore
from tests.scenarios.client import StrictClient, read_frame
from tests.scenarios.following import cancel, open_new, poll, queue, read_again
from tests.scenarios.queueing import SCRIPT, check, run
from tests.scenarios.serving import GatedBackend, serve, serve_doubles

# Deletion


def test_a_running_response_is_not_deleted_and_an_ended_one_with_its_events(tmp_path: Path) -> None:
    """Ours: cancel first; as decided, what is deleted is in no file."""

    async def story() -> None:
        async with asyncio.timeout(60), serve(tmp_path, SCRIPT) as client:
            async with open_new(client, "what about the xylophonist") as frames:
                response_id = read_frame(await anext(frames))["response"]["id"]
                answer = await client.delete(response_id)
                if answer.status == 400:
                    assert "cancel it first" in answer.error["message"]
                async for _ in frames:
                    pass
            await poll(client, response_id)
            assert (await client.delete(response_id)).status in (200, 404)
            assert (await client.retrieve(response_id)).status == 404
            again = await client.send("GET", f"/v1/responses/{response_id}?stream=true")
            assert again.status == 404
            files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
            assert not any(b"xylophonist" in path.read_bytes() for path in files)

    asyncio.run(story())


def test_deleting_is_refused_until_the_end_is_stored() -> None:
    """Ours: whether it waits or runs."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        ids = [(await queue(client))["id"] for _ in range(2)]
        await backend.waiting.wait()
        for each in ids:
            answer = await client.delete(each)
            assert answer.status == 400
            assert "cancel it first" in answer.error["message"]
        backend.gate.set()
        for each in ids:
            await poll(client, each)
            assert (await client.delete(each)).status == 200

    run(story, gate_at=0, workers=1)


class SlowStore(MemoryStore):
    """A store whose last write of events waits at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()

    async def append_events(self, tenant: str, node_id: str, chunk: EventChunk) -> None:
        """Keep events; the terminal one when the gate is open."""
        if b'"response.completed"' in chunk.body:
            self.waiting.set()
            await self.gate.wait()
        await super().append_events(tenant, node_id, chunk)


def test_a_deletion_waits_for_the_last_event_of_what_it_deletes() -> None:
    """Ours: the terminal event tells all words once more; it must not be stored behind their deletion."""

    async def story() -> None:
        store = SlowStore()
        async with asyncio.timeout(30), serve_doubles(GatedBackend(SCRIPT), store) as client:
            conversation = (await client.send("POST", "/v1/conversations", {})).body["id"]
            path = f"/v1/conversations/{conversation}"
            async with open_new(client, conversation=conversation) as frames:
                response_id = read_frame(await anext(frames))["response"]["id"]
                await store.waiting.wait()
                response = (await client.retrieve(response_id)).body
                assert response["status"] == "completed"
                item_id = response["output"][-1]["id"]
                locked = await client.send("DELETE", f"{path}/items/{item_id}")
                assert locked.error["code"] == "conversation_locked"
                deleting = asyncio.create_task(client.delete(response_id))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not deleting.done()
                store.gate.set()
                async for _frame in frames:
                    pass
            assert (await deleting).status == 200
            assert await store.load_events("default", response_id) == []
            assert not await store.list_events()

    asyncio.run(story())


def test_a_response_whose_parent_is_deleted_meanwhile_fails_and_says_so() -> None:
    """Ours: it is stored as failed, by itself, and its stream ends."""

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        backend.gate.set()
        parent = await client.create(input="go")
        backend.gate.clear()
        backend.waiting.clear()
        async with open_new(client, previous_response_id=parent["id"]) as frames:
            seen = [await anext(frames)]
            await backend.waiting.wait()
            await client.delete(parent["id"])
            backend.gate.set()
            seen += [frame async for frame in frames]
        events = check(seen)
        assert events[-1]["response"]["status"] == "failed"
        ended = await poll(client, events[0]["response"]["id"])
        assert (ended["status"], ended["previous_response_id"]) == ("failed", None)
        assert parent["id"] in ended["error"]["message"]
        assert await read_again(client, ended["id"]) == seen

    run(story, gate_at=0)


# Trouble of our own


class FailingStore(MemoryStore):
    """A store that fails in one of its methods, some times."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = {"record": 0, "append_events": 0, "start_job": 0, "load_job": 0}

    def _fail(self, name: str) -> None:
        if self.failures[name]:
            self.failures[name] -= 1
            raise StoreError("The disk is full.")

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        """Keep a round, or fail."""
        self._fail("record")
        await super().record(record, conversation=conversation)

    async def append_events(self, tenant: str, node_id: str, chunk: EventChunk) -> None:
        """Keep events, or fail."""
        self._fail("append_events")
        await super().append_events(tenant, node_id, chunk)

    async def start_job(self, tenant: str, job_id: str) -> None:
        """Start a job, or fail."""
        self._fail("start_job")
        await super().start_job(tenant, job_id)


@pytest.mark.parametrize("name", ["record", "append_events", "start_job"])
@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_a_store_that_fails_for_a_while_leaves_no_response_without_an_end(name: str, times: int) -> None:
    """Ours: it is tried again; meanwhile the response can be read, and its readers wait."""
    store = FailingStore()

    async def story(client: StrictClient, backend: GatedBackend) -> None:
        async with open_new(client) as frames:
            seen = [await anext(frames)]
            response_id = read_frame(seen[0])["response"]["id"]
            await backend.waiting.wait()
            store.failures[name] = times
            backend.gate.set()
            seen += [frame async for frame in frames]
        events = check(seen)
        ended = await poll(client, response_id)
        assert ended["status"] == events[-1]["response"]["status"]
        assert await read_again(client, response_id) == seen
        assert not await store.list_jobs()

    # Before the first batch of the model's words; the store's own pace decides which write is hit.
    run(story, gate_at=0 if name != "start_job" else 1, store=store)


# The next server


def test_what_waited_is_there_from_the_first_moment_of_the_next_server() -> None:
    """Ours: before a worker takes it up it can be read, followed and cancelled, and its conversation is taken."""

    async def first(store: MemoryStore) -> tuple[list[bytes], list[str], str]:
        backend = GatedBackend(SCRIPT, gate_at=1)
        settings = BackgroundSettings(workers=1, keep_alive_s=0.01)
        async with asyncio.timeout(30), serve_doubles(backend, store, background=settings) as client:
            conversation = (await client.send("POST", "/v1/conversations", {})).body["id"]
            await queue(client)
            await backend.waiting.wait()
            async with open_new(client) as frames:
                # Kept alive while it waited: more numbers than a round made anew would give.
                seen = [await anext(frames) for _ in range(5)]
            body: dict[str, Any] = {"conversation": conversation, "instructions": "Be brief."}
            ids = [
                (await queue(client, f"say {number}", **body if number == 1 else {}))["id"]
                for number in range(3)
            ]
            return seen, ids, conversation

    async def second(store: MemoryStore, seen: list[bytes], ids: list[str], conversation: str) -> None:
        backend = GatedBackend(SCRIPT, gate_at=0)
        settings = BackgroundSettings(workers=1)
        async with asyncio.timeout(30), serve_doubles(backend, store, background=settings) as client:
            response_id = read_frame(seen[0])["response"]["id"]
            await backend.waiting.wait()
            shown = (await client.retrieve(ids[1])).body
            assert (shown["status"], shown["instructions"]) == ("queued", "Be brief.")
            assert shown["conversation"] == {"id": conversation}
            items = (await client.list_items(ids[0])).body["data"]
            assert [item["content"][0]["text"] for item in items] == ["say 0"]
            locked = await client.refuse(input="x", conversation=conversation)
            assert locked["code"] == "conversation_locked"
            assert (await client.delete(ids[0])).status == 400
            assert (await cancel(client, ids[1])).body["status"] == "cancelled"
            assert (await client.retrieve(ids[1])).body["conversation"] == {"id": conversation}
            rest = asyncio.create_task(read_again(client, response_id, len(seen) - 1))
            backend.gate.set()
            await client.create(input="x", conversation=conversation)
            assert check([*seen, *await rest])[-1]["type"] == "response.completed"
            for each in (ids[0], ids[2]):
                assert (await poll(client, each))["status"] == "completed"
            assert (
                len((await client.send("GET", f"/v1/conversations/{conversation}/items")).body["data"]) == 3
            )

    store = ReopenedStore()
    asyncio.run(second(store, *asyncio.run(first(store))))


def test_what_cannot_be_run_any_more_fails_with_the_reason() -> None:
    """Ours: the model is gone, the parent was deleted by the next server, or the job is another version's."""

    async def first(store: MemoryStore) -> list[str]:
        backend = GatedBackend(SCRIPT)
        settings = BackgroundSettings(workers=1)
        async with asyncio.timeout(30), serve_doubles(backend, store, background=settings) as client:
            parent = (await client.create(input="go"))["id"]
            backend.gate_at = 0
            await queue(client)
            await backend.waiting.wait()
            ids = [(await queue(client, previous_response_id=parent))["id"]]
            await client.delete(parent)
            ids.append((await queue(client))["id"])
            async with open_new(client) as frames:
                ids.append(read_frame(await anext(frames))["response"]["id"])
            return ids

    async def second(store: MemoryStore, ids: list[str]) -> None:
        script = {**SCRIPT, "models": ["another"]}
        async with asyncio.timeout(30), serve_doubles(GatedBackend(script), store) as client:
            for each in ids[:2]:
                ended = await poll(client, each)
                assert ended["status"] == "failed"
                assert ended["error"]["message"].startswith(
                    "The server was restarted, and the response cannot be run"
                )
            assert "The requested model 'scripted' does not exist." in ended["error"]["message"]
            check(await read_again(client, ids[2]))

    store = ReopenedStore()
    ids = asyncio.run(first(store))
    asyncio.run(second(store, ids))


class ReopenedStore(MemoryStore):
    """A store that outlives its server, as a folder does."""

    async def close(self) -> None:
        """Stay."""


# Secrets


def test_secrets_of_a_queued_response_are_in_no_file(tmp_path: Path) -> None:
    """As decided: MCP headers and authorization are cut before anything is stored."""
    tool = {
        "type": "mcp",
        "server_label": "wiki",
        "server_url": "http://127.0.0.1:9/mcp",
        "authorization": "sesame-one",
        "headers": {"x-key": "sesame-two"},
    }

    async def story() -> None:
        sections: Any = {"mcp": {"enabled": True}}
        async with asyncio.timeout(60), serve(tmp_path, SCRIPT, **sections) as client:
            answer = await client.post({"input": "go", "background": True, "tools": [tool]})
            assert answer.status == 200, answer.body
            assert b"sesame" not in answer.raw
            ended = await poll(client, answer.body["id"])
            assert "sesame" not in json.dumps(ended)
            files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
            assert not any(b"sesame" in path.read_bytes() for path in files)

    asyncio.run(story())


def test_items_that_bring_secrets_are_not_stored(tmp_path: Path) -> None:
    """Ours: an item is kept as it is, so one with credentials is refused wherever it would be kept."""
    tool = {
        "type": "mcp",
        "server_label": "wiki",
        "server_url": "http://127.0.0.1:9/mcp",
        "authorization": "sesame",
    }
    item = {"type": "additional_tools", "role": "developer", "tools": [tool]}

    async def story() -> None:
        async with asyncio.timeout(60), serve(tmp_path, SCRIPT, mcp={"enabled": True}) as client:
            said = [item, {"role": "user", "content": "go"}]
            for path, body, param in (
                ("/v1/responses", {"model": "scripted", "input": said}, "input[0].tools[0].authorization"),
                (
                    "/v1/responses",
                    {"model": "scripted", "input": said, "background": True},
                    "input[0].tools[0].authorization",
                ),
                ("/v1/conversations", {"items": said}, "items[0].tools[0].authorization"),
            ):
                answer = await client.send("POST", path, body)
                assert (answer.status, answer.error["param"]) == (400, param)
                assert b"sesame" not in answer.raw
            await client.post({"input": said, "store": False})
            files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
            assert not any(b"sesame" in path.read_bytes() for path in files)

    asyncio.run(story())
