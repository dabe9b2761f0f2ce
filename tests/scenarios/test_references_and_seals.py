"""Items named by id, and reasoning that clients carry under seal, before a model server that wants it back."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.fake_upstream import MODEL
from tests.scenarios.client import find_terminal, read_text
from tests.scenarios.houses import House, check_prefixes, list_codes, open_house, play, read_array, run, think
from tests.scenarios.serving import hash_key

STREAMS = pytest.mark.parametrize("stream", [False, True])
SECRET = "The sum is forty-two."
SEALED = ["reasoning.encrypted_content"]
KEYS = {"ann": {"sha256": hash_key("key-ann")}, "ben": {"sha256": hash_key("key-ben")}}


def pick_reasoning(response: dict[str, Any]) -> dict[str, Any]:
    """The one reasoning item."""
    found: list[dict[str, Any]] = [item for item in response["output"] if item["type"] == "reasoning"]
    assert len(found) == 1
    return found[0]


def replayed(house: House) -> list[str | None]:
    """The reasoning of each assistant message of the last request."""
    return [m.get("reasoning_content") for m in house.messages if m["role"] == "assistant"]


@STREAMS
@pytest.mark.parametrize("way", ["id", "history", "stripped"])
def test_reasoning_comes_back_to_the_model(tmp_path: Path, stream: bool, way: str) -> None:
    """Codex: nothing is stored, the client sends the sealed item back, with or without its summary."""

    async def story(house: House) -> None:
        stored = way == "id"
        first = await house.make(stream=stream, input="Sum?", include=SEALED, store=stored)
        reasoning = pick_reasoning(first)
        assert reasoning["encrypted_content"]
        assert SECRET not in reasoning["encrypted_content"]
        assert [part["text"] for part in reasoning["summary"]] == [SECRET]
        history = [
            {"role": "user", "content": "Sum?"},
            *first["output"],
            {"role": "user", "content": "Sure?"},
        ]
        if way == "stripped":
            kept = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
            history = [kept if item.get("type") == "reasoning" else item for item in history]
        if stored:
            second = await house.make(stream=stream, input="Sure?", previous_response_id=first["id"])
        else:
            second = await house.make(stream=stream, input=history, include=SEALED, store=False)
        assert replayed(house) == [SECRET]
        check_prefixes(house.upstream)
        assert list_codes(second) == []

    run(tmp_path, [think(SECRET, "42."), "Yes."], story)


def test_sealed_reasoning_survives_a_restart_and_stays_out_of_the_store(tmp_path: Path) -> None:
    """Decided: keys are kept beside the data; `store: false` leaves nothing in any file."""

    async def story() -> None:
        async with play([think(SECRET, "42."), "Yes."]) as upstream:
            async with open_house(tmp_path, upstream) as house:
                first = await house.make(stream=True, input="Sum?", include=SEALED, store=False)
            async with open_house(tmp_path, upstream) as house:
                await house.make(input=[{"role": "user", "content": "Sum?"}, *first["output"]], store=False)
                assert replayed(house) == [SECRET]
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(SECRET.encode() in content for content in files)

    asyncio.run(story())


def test_another_tenant_s_seal_is_refused(tmp_path: Path) -> None:
    """Decided: bound to the tenant; what is foreign and what is damaged are refused by the same code."""

    async def story(house: House) -> None:
        ann, ben = house.client.with_key("key-ann"), house.client.with_key("key-ben")
        made = await ann.create(model=MODEL, input="Sum?", include=SEALED, store=False)
        reasoning = pick_reasoning(made)
        kept = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
        damaged = {**kept, "encrypted_content": reasoning["encrypted_content"][:-4] + "AAAA"}
        user = {"role": "user", "content": "Sure?"}
        for client, item in ((ben, kept), (ann, damaged)):
            error = await client.refuse(model=MODEL, input=[item, user])
            assert error["code"] == "invalid_encrypted_content"
            assert SECRET not in json.dumps(error)
        await ann.create(model=MODEL, input=[kept, user])

    run(tmp_path, [think(SECRET, "42."), "Yes."], story, settings={"keys": KEYS})


@STREAMS
def test_an_item_is_named_by_its_id(tmp_path: Path, stream: bool) -> None:
    """Spec: item_reference; the same prompt as with the items themselves, from anywhere in the store."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Sum?")
        listed = await house.list_items(first["id"])
        ids = [listed[0]["id"], *[item["id"] for item in first["output"]]]
        named: list[Any] = [{"type": "item_reference", "id": item_id} for item_id in ids]
        # The SDK's form has no type for a reference.
        named[0] = {"id": ids[0], "type": None}
        question = {"role": "user", "content": "Sure?"}
        second = await house.make(stream=stream, input=[*named, question])
        check_prefixes(house.upstream)
        assert replayed(house) == [SECRET]
        shown = await house.list_items(second["id"])
        assert [item["id"] for item in shown][:3] == ids
        assert [item["type"] for item in shown] == ["message", "reasoning", "message", "message"]
        third = await house.make(stream=stream, input="?", previous_response_id=second["id"])
        check_prefixes(house.upstream)
        assert list_codes(third) == []

    run(tmp_path, [think(SECRET, "42."), "Yes.", "Hm."], story)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    """Spec: 404 for an unknown reference; foreign and deleted items give the same text."""

    async def story(house: House) -> None:
        ann, ben = house.client.with_key("key-ann"), house.client.with_key("key-ben")
        made = await ann.create(model=MODEL, input="Sum?")
        item_id = made["output"][0]["id"]
        reference = [{"type": "item_reference", "id": item_id}]
        foreign = await ben.refuse(404, model=MODEL, input=reference)
        assert (await ann.delete(made["id"])).status == 200
        deleted = await ann.refuse(404, model=MODEL, input=reference)
        assert foreign == deleted
        assert item_id in foreign["message"]

    run(tmp_path, ["42."], story, settings={"keys": KEYS})


@STREAMS
def test_reasoning_by_id_alone_is_looked_up(tmp_path: Path, stream: bool) -> None:
    """Spec: the SDK's reasoning items without content name what is stored."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Sum?")
        reasoning, said = first["output"]
        bare = {"type": "reasoning", "id": reasoning["id"], "summary": []}
        history = [{"role": "user", "content": "Sum?"}, bare, said, {"role": "user", "content": "Sure?"}]
        await house.make(stream=stream, input=history)
        assert replayed(house) == [SECRET]
        check_prefixes(house.upstream)

    run(tmp_path, [think(SECRET, "42."), "Yes."], story)


@STREAMS
def test_a_model_that_wants_no_reasoning_back_is_not_shown_any(tmp_path: Path, stream: bool) -> None:
    """Ours: the client is told so."""
    settings = {
        "endpoints": {"fake": {"url": "", "profile": "mute"}},
        "profiles": {"mute": {"reasoning_field": "none"}},
    }

    async def story() -> None:
        async with play([think(SECRET, "42."), "Yes."]) as upstream:
            settings["endpoints"]["fake"]["url"] = upstream.url
            async with open_house(tmp_path, upstream, settings=settings) as house:
                first = await house.make(stream=stream, input="Sum?", include=SEALED, store=False)
                history = [{"role": "user", "content": "Sum?"}, *first["output"]]
                second = await house.make(stream=stream, input=history, store=False)
                assert SECRET.encode() not in read_array(upstream.asked[-1])
                assert list_codes(second) == ["transcript"]
                assert read_text(second) == "Yes."

    asyncio.run(story())


def test_a_sealed_stream_says_the_same_in_every_place(tmp_path: Path) -> None:
    """Ours: the blob of the item's end is the blob of the final response."""

    async def story(house: House) -> None:
        await house.make(stream=True, input="Sum?", include=SEALED)
        done = [e["item"] for e in house.events if e["type"] == "response.output_item.done"]
        final = find_terminal(house.events)
        assert pick_reasoning({"output": done}) == pick_reasoning(final)
        asked = await house.get(f"/v1/responses/{final['id']}?include[]={SEALED[0]}")
        assert asked["output"] == final["output"]

    run(tmp_path, [think(SECRET, "42.")], story)
