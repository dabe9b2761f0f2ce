"""What is deleted from a conversation, and conversations of any shape and size."""

import asyncio
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon.store.memory import MemoryStore
from antiphon.store.sqlite import SqliteStore
from tests.scenarios.client import StrictClient, read_text
from tests.scenarios.conversing import (
    NODE,
    TOOL,
    list_all,
    list_texts,
    new_conversation,
    run,
    say,
    show_asked,
)
from tests.scenarios.following import poll, queue
from tests.scenarios.serving import GatedBackend, hash_key, serve, serve_doubles

SCRIPT: dict[str, Any] = {
    "rules": [
        {"after_output": True, "text": "Done."},
        {"when": "^refuse", "error": {"status": 400, "message": "Bad."}},
        {"when": "^break", "text": "Half an", "error": {"at": "after", "status": 500, "message": "Boom."}},
        {"when": "^call", "calls": [{"name": "look", "arguments": {}, "id": "call_1"}]},
        {"when": r"\?$", "act": "recall"},
        {"act": "note"},
    ]
}

# Deletion


def test_a_deleted_item_is_gone_from_lists_from_the_window_and_from_the_files(tmp_path: Path) -> None:
    """responses-API section 'Endpoints', row 15; as decided: deletion is real."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(
            client, "Remember this word: xylophonist.", "Remember this colour: green."
        )
        await client.create(input="Hello.", conversation=conversation_id)
        path = f"/v1/conversations/{conversation_id}"
        items = await list_all(client, conversation_id)
        answer = await client.send("DELETE", f"{path}/items/{items[0]['id']}")
        assert answer.body == (await client.send("GET", path)).body
        again = await client.send("DELETE", f"{path}/items/{items[0]['id']}")
        assert again.status == 404
        assert (await client.send("GET", f"{path}/items/{items[0]['id']}")).status == 404
        listed = await list_all(client, conversation_id)
        assert [item["id"] for item in listed] == [item["id"] for item in items[1:]]
        cursor = await client.send("GET", f"{path}/items?after={items[0]['id']}")
        assert (cursor.status, cursor.error["param"]) == (404, "after")
        asked = await client.create(input="What was the word?", conversation=conversation_id)
        assert "xylophonist" not in read_text(asked)
        told = await client.create(input="What was the colour?", conversation=conversation_id)
        assert "green" in read_text(told)
        files = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
        assert not any(b"xylophonist" in text for text in files)

    run(tmp_path, story)


def test_a_call_is_deleted_together_with_its_output_wherever_they_stand(tmp_path: Path) -> None:
    """As decided: an item is blanked with its pair."""

    async def story(client: StrictClient) -> None:
        for doomed in ("function_call", "function_call_output"):
            conversation_id = await new_conversation(client)
            await client.create(input="call it", conversation=conversation_id, tools=[TOOL])
            output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
            await client.create(input=[output], conversation=conversation_id, tools=[TOOL])
            items = await list_all(client, conversation_id)
            kinds = [item["type"] for item in items]
            assert kinds == ["message", "function_call", "function_call_output", "message"]
            item_id = items[kinds.index(doomed)]["id"]
            answer = await client.send("DELETE", f"/v1/conversations/{conversation_id}/items/{item_id}")
            assert answer.status == 200
            assert [item["type"] for item in await list_all(client, conversation_id)] == [
                "message",
                "message",
            ]
            await client.create(input="Go on.", conversation=conversation_id)

    run(tmp_path, story)


def test_a_deleted_response_leaves_a_conversation_that_goes_on_without_it() -> None:
    """As decided: a conversation goes on behind the tombstone; a half without its other half is left out, and told."""

    async def story() -> None:
        backend = GatedBackend(SCRIPT)
        async with asyncio.timeout(30), serve_doubles(backend) as client:
            conversation_id = await new_conversation(client, "Remember this word: plum.")
            call = await client.create(input="call it", conversation=conversation_id, tools=[TOOL])
            output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
            answer = await client.create(input=[output], conversation=conversation_id, tools=[TOOL])
            assert (await client.delete(call["id"])).status == 200
            assert (await client.send("GET", f"/v1/conversations/{conversation_id}")).status == 200
            asked = await client.create(input="What was the word?", conversation=conversation_id)
            assert "plum" in read_text(asked)
            assert "call it" not in show_asked(backend.asks[-1])
            assert "seen" not in show_asked(backend.asks[-1])
            warnings = [each["message"] for each in asked["antiphon"]["warnings"]]
            assert warnings == [
                (
                    "No call call_1 stands before its output (it was deleted, or never added); the output is not "
                    "shown to the model."
                )
            ]
            # A chain through it has no such mercy.
            error = await client.refuse(input="x", previous_response_id=answer["id"])
            assert error["code"] == "previous_response_not_found"
            # The tip itself may be deleted.
            assert (await client.delete(asked["id"])).status == 200
            last = await client.create(input="What was the word?", conversation=conversation_id)
            assert "plum" in read_text(last)
            assert show_asked(backend.asks[-1]).count("What was the word?") == 1
            listed = await list_all(client, conversation_id)
            assert [item["type"] for item in listed] == [
                "message",
                "function_call_output",
                "message",
                "message",
                "message",
            ]

    asyncio.run(story())


def test_what_is_deleted_while_a_response_runs_is_gone_for_the_next_one() -> None:
    """Ours: the running response has read it; nothing that comes later does, and the conversation goes on."""

    async def story() -> None:
        backend = GatedBackend(SCRIPT)
        for way in ({}, {"background": True}):
            async with asyncio.timeout(30), serve_doubles(backend) as client:
                conversation_id = await new_conversation(client, "one")
                doomed = await client.create(input="the secret is xylophonist", conversation=conversation_id)
                backend.gate_at = 1
                backend.gate.clear()
                backend.waiting.clear()
                running = asyncio.create_task(
                    client.post({"input": "two", "conversation": conversation_id, **way})
                )
                await backend.waiting.wait()
                assert "xylophonist" in show_asked(backend.asks[-1])
                # It is the tip.
                assert (await client.delete(doomed["id"])).status == 200
                backend.gate.set()
                assert (await poll(client, (await running).body["id"]))["status"] == "completed"
                backend.gate_at = None
                await client.create(input="three", conversation=conversation_id)
                assert "xylophonist" not in show_asked(backend.asks[-1])
                texts = await list_texts(client, conversation_id)
                assert (texts[0], texts[1], texts[3]) == ("one", "two", "three")

    asyncio.run(story())


def test_a_deleted_conversation_leaves_its_responses(tmp_path: Path) -> None:
    """responses-API section 'Endpoints', row 11: items are not deleted."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client, "Remember this word: plum.")
        response = await client.create(input="What was the word?", conversation=conversation_id)
        await client.send("DELETE", f"/v1/conversations/{conversation_id}")
        assert (await client.retrieve(response["id"])).body == response
        assert (await client.list_items(response["id"])).status == 200
        chained = await client.create(input="And the word?", previous_response_id=response["id"])
        assert "plum" in read_text(chained)
        assert (await client.refuse(404, input="x", conversation=conversation_id))["param"] is None

    run(tmp_path, story)


def test_another_tenant_finds_nothing_of_a_conversation(tmp_path: Path) -> None:
    """As decided: foreign and unknown are answered alike."""

    async def story() -> None:
        keys = {"one": {"sha256": hash_key("k1")}, "two": {"sha256": hash_key("k2")}}
        async with asyncio.timeout(30), serve(tmp_path, SCRIPT, keys=keys) as client:
            owner, other = client.with_key("k1"), client.with_key("k2")
            conversation_id = await new_conversation(owner)
            path = f"/v1/conversations/{conversation_id}"
            sent = {"items": [say("mine", id="msg_1")]}
            await owner.send("POST", f"{path}/items", sent)
            for method, rest, body in (
                ("GET", "", None),
                ("POST", "", {"metadata": {}}),
                ("GET", "/items", None),
                ("POST", "/items", sent),
                ("GET", "/items/msg_1", None),
                ("DELETE", "/items/msg_1", None),
                ("DELETE", "", None),
            ):
                foreign = await other.send(method, path + rest, body)
                unknown = await other.send(method, f"/v1/conversations/conv_{NODE}{rest}", body)
                assert foreign.status == unknown.status == 404
                assert foreign.raw == unknown.raw.replace(b"conv_" + NODE.encode(), conversation_id.encode())
            assert (await other.post({"input": "x", "conversation": conversation_id})).status == 404
            # The id is nobody's there: what was sent is taken.
            own = await new_conversation(other)
            added = await other.send(
                "POST", f"/v1/conversations/{own}/items", {"items": [say("ours", id="msg_1")]}
            )
            assert added.body["data"][0]["content"][0]["text"] == "ours"
            assert await list_texts(owner, conversation_id) == ["mine"]

    asyncio.run(story())


class Walker:
    """Does anything at all to one conversation, and knows what must be left of it."""

    def __init__(self, client: StrictClient, backend: GatedBackend, conversation_id: str, seed: int) -> None:
        self._client = client
        self._backend = backend
        self._id = conversation_id
        self._chance = random.Random(seed)
        #: What is there: the item's id, its word, and the response that holds it.
        self._items: list[tuple[str, str, str]] = []
        self._words = 0
        #: Words that must be nowhere any more.
        self.gone: list[str] = []

    def _make_word(self) -> str:
        self._words += 1
        return f"w{self._words:04d}x"

    async def step(self) -> None:
        """One thing, and a look at everything."""
        doings = [self.respond, self.respond, self.add, self.delete_item, self.delete_response, self.branch]
        await self._chance.choice(doings)()
        listed = await list_all(self._client, self._id)
        assert [item["id"] for item in listed] == [item_id for item_id, _, _ in self._items]

    async def respond(self) -> None:
        """A response, in one of the three ways."""
        word = self._make_word()
        body: dict[str, Any] = {"input": f"say {word}", "conversation": self._id}
        way = self._chance.choice(["plain", "streamed", "background"])
        if way == "plain":
            response = await self._client.create(**body)
        elif way == "streamed":
            response = (await self._client.stream(**body))[-1]["response"]
        else:
            queued = await queue(self._client, body["input"], conversation=self._id)
            response = await poll(self._client, queued["id"])
        asked = re.findall(r"w\d{4}x", show_asked(self._backend.asks[-1]))
        assert asked == [said for _, said, _ in self._items if said] + [word]
        given = (await self._client.list_items(response["id"], limit=1)).body["data"][0]
        self._items.append((given["id"], word, response["id"]))
        self._items.append((response["output"][0]["id"], "", response["id"]))

    async def add(self) -> None:
        """Some items."""
        words = [self._make_word() for _ in range(self._chance.randint(1, 3))]
        items = [
            say(word, **({"id": f"msg_own_{word[1:5]}"} if self._chance.random() < 0.5 else {}))
            for word in words
        ]
        added = await self._client.send("POST", f"/v1/conversations/{self._id}/items", {"items": items})
        self._items += [(item["id"], word, "") for item, word in zip(added.body["data"], words, strict=True)]

    async def delete_item(self) -> None:
        """Any item."""
        if self._items:
            at = self._chance.randrange(len(self._items))
            item_id, word, _ = self._items.pop(at)
            path = f"/v1/conversations/{self._id}/items/{item_id}"
            assert (await self._client.send("DELETE", path)).status == 200
            assert (await self._client.send("DELETE", path)).status == 404
            self.gone += [word] if word else []

    async def delete_response(self) -> None:
        """Any response that is left at least in part."""
        ids = [owner for _, _, owner in self._items if owner]
        if ids:
            doomed = self._chance.choice(ids)
            assert (await self._client.delete(doomed)).status == 200
            self.gone += [word for _, word, owner in self._items if owner == doomed and word]
            self._items = [row for row in self._items if row[2] != doomed]

    async def branch(self) -> None:
        """A chain that leaves from here adds nothing, whether it may begin or not."""
        ids = [owner for _, _, owner in self._items if owner]
        if ids:
            body = {"input": "branch", "previous_response_id": self._chance.choice(ids)}
            answer = await self._client.post(body)
            assert answer.status == 200 or answer.error["code"] == "previous_response_not_found"


@pytest.mark.parametrize("cache_bytes", [1 << 28, 1])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_done_to_a_conversation_it_holds_what_is_left(
    tmp_path: Path, seed: int, cache_bytes: int
) -> None:
    """Ours: lists, windows in memory and windows made anew agree; what was deleted is in no file."""

    async def story() -> None:
        backend = GatedBackend({"rules": [{"text": "Noted."}]})
        store = SqliteStore.open(tmp_path / "data")
        async with asyncio.timeout(60), serve_doubles(backend, store, cache_bytes=cache_bytes) as client:
            walker = Walker(client, backend, await new_conversation(client), seed)
            for _ in range(80):
                await walker.step()
            files = [path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file()]
            assert walker.gone
            for word in walker.gone:
                assert not any(word.encode() in text for text in files), word

    asyncio.run(story())


# Size


class CountingStore(MemoryStore):
    """A store that counts how many nodes its paths had."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes_read = 0

    async def load_path(self, tenant: str, node_id: str, *, skip_deleted: bool = False) -> Any:
        """The path, counted."""
        path = await super().load_path(tenant, node_id, skip_deleted=skip_deleted)
        self.nodes_read += len(path or ())
        return path


def test_adding_items_reads_nothing_of_what_is_there_unless_an_id_is_stored_already() -> None:
    """Ours: five thousand items cost five thousand times what one costs."""

    async def story() -> None:
        store = CountingStore()
        async with asyncio.timeout(60), serve_doubles(GatedBackend(SCRIPT), store) as client:
            conversation_id = await new_conversation(client)
            path = f"/v1/conversations/{conversation_id}/items"
            for number in range(50):
                items = [
                    say(f"{number}.{at}", **({"id": f"msg_{number}_{at}"} if at % 2 else {}))
                    for at in range(20)
                ]
                assert (await client.send("POST", path, {"items": items})).status == 200
            assert store.nodes_read == 0
            listed = await list_all(client, conversation_id)
            assert len(listed) == 1000
            assert len({item["id"] for item in listed}) == 1000

    asyncio.run(story())


@pytest.mark.faults_long
@pytest.mark.timeout(600)
def test_five_thousand_items_are_added_and_listed(tmp_path: Path) -> None:
    """Ours, measured: a hundred items at the end cost what they cost at the start, up to reading the path."""

    async def story(client: StrictClient) -> None:
        for size in (20, 1):
            conversation_id = await new_conversation(client)
            path = f"/v1/conversations/{conversation_id}/items"
            started = time.perf_counter()
            for first in range(0, 5000, size):
                items = [say(f"message number {first + at}") for at in range(size)]
                answer = await client.send("POST", path, {"items": items})
                assert answer.status == 200
            added = time.perf_counter()
            assert len(await list_all(client, conversation_id)) == 5000
            listed = time.perf_counter()
            print(json.dumps({"per_request": size, "adding_s": added - started, "listing_s": listed - added}))

    run(tmp_path, story)
