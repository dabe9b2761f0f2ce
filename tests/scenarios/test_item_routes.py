"""Stored items fetched by their ids: one of them, or all from one to another."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.scenarios.client import Answer, StrictClient
from tests.scenarios.conversing import SCRIPT, TOOL, list_all, new_conversation, say
from tests.scenarios.serving import hash_key, serve

THINKING: dict[str, Any] = {"rules": [{"text": "Done.", "reasoning": "Plums are blue."}]}


def run(folder: Path, story: Callable[[StrictClient], Awaitable[None]], **sections: Any) -> None:
    async def whole() -> None:
        script = sections.pop("script", SCRIPT)
        async with asyncio.timeout(60), serve(folder, script, **sections) as client:
            await story(client)

    asyncio.run(whole())


async def fetch(client: StrictClient, item_id: str, query: str = "") -> Answer:
    return await client.send("GET", f"/v1/items/{quote(item_id, safe='')}{query}")


async def get(client: StrictClient, item_id: str, query: str = "") -> Any:
    answer = await fetch(client, item_id, query)
    assert answer.status == 200, answer.body
    return answer.body


async def ask_range(client: StrictClient, first: str, last: str, **query: Any) -> Answer:
    rest = "".join(f"&{name}={quote(str(value), safe='')}" for name, value in query.items())
    return await client.send("GET", f"/v1/items?from={quote(first, safe='')}&to={quote(last, safe='')}{rest}")


async def read_ids(client: StrictClient, first: str, last: str, **query: Any) -> list[str]:
    """The ids of a range, page by page."""
    ids: list[str] = []
    more = dict(query)
    while True:
        answer = await ask_range(client, first, last, **more)
        assert answer.status == 200, answer.body
        ids += [item["id"] for item in answer.body["data"]]
        if not answer.body["has_more"]:
            return ids
        more["after"] = answer.body["last_id"]


async def talk(client: StrictClient, *texts: str, parent: str | None = None) -> list[dict[str, Any]]:
    """A chain with one response to each text."""
    chain: list[dict[str, Any]] = []
    for text in texts:
        made = await client.create(input=text, previous_response_id=parent)
        chain.append(made)
        parent = made["id"]
    return chain


async def list_path(client: StrictClient, response: dict[str, Any]) -> list[str]:
    """The ids of the path up to a response, oldest first, its output included."""
    page = (await client.list_items(response["id"], order="asc", limit=100)).body
    return [item["id"] for item in (*page["data"], *response["output"])]


def not_found(item_id: str, param: str | None = None) -> dict[str, Any]:
    return {
        "message": f"Item with id '{item_id}' not found.",
        "type": "invalid_request_error",
        "param": param,
        "code": None,
    }


# One item


def test_every_item_that_a_list_shows_is_fetched_in_the_same_form(tmp_path: Path) -> None:
    """Ours: what a window leaves out is named by its id, and comes back as lists show it."""

    async def story(client: StrictClient) -> None:
        called = await client.create(input=[say("Own.", id="msg_mine"), say("call it")], tools=[TOOL])
        answered = await client.create(
            input=[{"type": "function_call_output", "call_id": "call_1", "output": "a" * 5000}],
            previous_response_id=called["id"],
            tools=[TOOL],
        )
        page = (await client.list_items(answered["id"], limit=100)).body
        assert [item["type"] for item in page["data"]] == [
            "function_call_output",
            "function_call",
            "message",
            "message",
        ]
        for item in (*page["data"], *answered["output"]):
            assert await get(client, item["id"]) == item
        assert (await get(client, "msg_mine"))["content"] == [{"type": "input_text", "text": "Own."}]
        conversation = await new_conversation(client, "Hello.", "There.")
        await client.create(conversation=conversation, input="Fine.")
        listed = await list_all(client, conversation)
        assert len(listed) == 4
        for item in listed:
            assert await get(client, item["id"]) == item

    run(tmp_path, story)


def test_what_is_not_stored_any_more_or_never_was_is_not_found(tmp_path: Path) -> None:
    """Decided: deletion is real; deleted, blanked, unstored and unknown look alike."""

    async def story(client: StrictClient) -> None:
        (kept,) = await talk(client, "Hello.")
        gone = await client.create(input=[say("Hello.", id="msg_gone")])
        unstored = await client.create(input="Hello.", store=False)
        conversation = await new_conversation(client, "One.", "Two.")
        one, two = [item["id"] for item in await list_all(client, conversation)]
        ids = [item["id"] for response in (gone, unstored) for item in response["output"]]
        ids.append(gone["output"][0]["id"][:-1] + "0")
        await get(client, "msg_gone")
        assert (await client.delete(gone["id"])).status == 200
        path = f"/v1/conversations/{conversation}/items/{one}"
        assert (await client.send("DELETE", path)).status == 200
        odd = [
            kept["id"],
            conversation,
            "msg_" + "0" * 40,
            "msg_" + "f" * 44,
            "x",
            "a b",
            "ä",
            "\0",
            "x" * 500,
        ]
        for item_id in (*ids, "msg_gone", one, kept["output"][0]["id"][:-1] + "9", *odd):
            answer = await fetch(client, item_id)
            shown = item_id if len(item_id) <= 64 else f"{item_id[:64]}..."
            assert (answer.status, answer.error) == (404, not_found(shown)), item_id
        assert (await client.send("GET", "/v1/items/%FF%ED")).status == 404
        assert (await get(client, two))["content"][0]["text"] == "Two."

    run(tmp_path, story)


def test_of_two_items_with_one_id_of_the_clients_the_newest_is_fetched(tmp_path: Path) -> None:
    """Decided: ids that clients give are not unique; the newest wins inside the tenant."""

    async def story(client: StrictClient) -> None:
        for text in ("old", "new"):
            await client.create(input=[say(text, id="msg_same")])
        assert (await get(client, "msg_same"))["content"][0]["text"] == "new"

    run(tmp_path, story)


def test_sealed_reasoning_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    """Ours: the `include` of other lists, and no other."""
    sealed = "?include[]=reasoning.encrypted_content"

    async def story(client: StrictClient) -> None:
        made = await client.create(input="Hi.", include=["reasoning.encrypted_content"])
        reasoning, message = (item["id"] for item in made["output"])
        shown = await get(client, reasoning, sealed)
        assert shown["encrypted_content"] == made["output"][0]["encrypted_content"]
        hidden = await get(client, reasoning)
        assert hidden == {key: value for key, value in shown.items() if key != "encrypted_content"}
        assert "encrypted_content" not in (await ask_range(client, reasoning, message)).body["data"][0]
        page = await ask_range(client, reasoning, message, include="reasoning.encrypted_content")
        assert page.body["data"][0] == shown
        answer = await fetch(client, reasoning, "?include=x")
        assert (answer.status, answer.error["param"]) == (400, "include[0]")
        answer = await fetch(client, reasoning, "?limit=1")
        assert (answer.status, answer.error["code"]) == (400, "unknown_parameter")

    run(tmp_path, story, script=THINKING)


# Ranges


def test_a_range_is_read_from_one_item_to_another_along_the_path(tmp_path: Path) -> None:
    """Ours: both ends are in it, wherever in their responses they stand."""

    async def story(client: StrictClient) -> None:
        chain = await talk(client, "one", "two", "three", "four")
        ids = await list_path(client, chain[-1])
        assert len(ids) == 8
        for first in range(len(ids)):
            for last in range(first, len(ids)):
                assert await read_ids(client, ids[first], ids[last]) == ids[first : last + 1]
        items = (await ask_range(client, ids[1], ids[6])).body["data"]
        assert items == [await get(client, item_id) for item_id in ids[1:7]]

    run(tmp_path, story)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_range_comes_in_pages_in_either_direction(tmp_path: Path, order: str, limit: int) -> None:
    """Responses-API section 1.1: `after` is exclusive and works in both orders."""

    async def story(client: StrictClient) -> None:
        chain = await talk(client, "one", "two", "three")
        ids = await list_path(client, chain[-1])
        wanted = ids[1:-1] if order == "asc" else ids[-2:0:-1]
        assert await read_ids(client, ids[1], ids[-2], order=order, limit=limit) == wanted
        page = (await ask_range(client, ids[1], ids[-2], order=order, limit=limit)).body
        assert page["has_more"] == (limit < len(wanted))

    run(tmp_path, story)


def test_a_page_has_twenty_items_unless_it_is_told_how_many(tmp_path: Path) -> None:
    """Responses-API section 1: limit 1 to 100, default 20."""

    async def story(client: StrictClient) -> None:
        made = await client.create(input=[say(f"Line {number}.") for number in range(120)])
        ids = [
            item["id"] for item in (await client.list_items(made["id"], order="asc", limit=100)).body["data"]
        ]
        last = made["output"][0]["id"]
        assert len((await ask_range(client, ids[0], last)).body["data"]) == 20
        assert len((await ask_range(client, ids[0], last, limit=100)).body["data"]) == 100
        assert len(await read_ids(client, ids[0], last, limit=50)) == 121
        for limit, code in (
            (0, "integer_below_min_value"),
            (101, "integer_above_max_value"),
            ("x", "invalid_type"),
        ):
            answer = await ask_range(client, ids[0], last, limit=limit)
            assert (answer.status, answer.error["param"], answer.error["code"]) == (400, "limit", code)
        answer = await ask_range(client, ids[0], last, order="up")
        assert (answer.status, answer.error["param"]) == (400, "order")

    run(tmp_path, story)


def test_a_range_of_a_conversation_passes_over_what_was_deleted(tmp_path: Path) -> None:
    """Decided: a conversation goes on with what is left of it."""

    async def story(client: StrictClient) -> None:
        conversation = await new_conversation(client, "One.", "Two.", "Three.")
        made = await client.create(conversation=conversation, input="Four.")
        await client.create(conversation=conversation, input="Five.")
        ids = [item["id"] for item in await list_all(client, conversation)]
        assert await read_ids(client, ids[0], ids[-1]) == ids
        path = f"/v1/conversations/{conversation}/items/{ids[1]}"
        assert (await client.send("DELETE", path)).status == 200
        assert (await client.delete(made["id"])).status == 200
        assert await read_ids(client, ids[0], ids[-1]) == [ids[0], ids[2], *ids[5:]]
        for gone in (ids[1], ids[3], ids[4]):
            answer = await ask_range(client, gone, ids[-1])
            assert (answer.status, answer.error) == (404, not_found(gone, "from"))
            answer = await ask_range(client, ids[0], gone)
            assert (answer.status, answer.error) == (404, not_found(gone, "to"))
            answer = await ask_range(client, ids[0], ids[-1], after=gone)
            assert (answer.status, answer.error["param"]) == (404, "after")

    run(tmp_path, story)


def test_a_range_of_a_chain_that_lost_a_response_has_what_is_left(tmp_path: Path) -> None:
    """Decided: responses that continue from a deleted one stay and can be read."""

    async def story(client: StrictClient) -> None:
        chain = await talk(client, "one", "two", "three")
        ids = await list_path(client, chain[-1])
        assert (await client.delete(chain[1]["id"])).status == 200
        assert await read_ids(client, ids[0], ids[-1]) == [*ids[:2], *ids[4:]]

    run(tmp_path, story)


def test_ends_that_are_not_on_one_path_are_refused_by_name(tmp_path: Path) -> None:
    """Ours: branches are told apart, and a range is read forwards."""

    async def story(client: StrictClient) -> None:
        root, left = await talk(client, "one", "two")
        (right,) = await talk(client, "three", parent=root["id"])
        (other,) = await talk(client, "four")
        ends = {
            name: made["output"][0]["id"]
            for name, made in {"root": root, "left": left, "right": right, "other": other}.items()
        }
        mine = (await list_path(client, left))[-2]
        pairs = [(ends["left"], ends["right"]), (ends["right"], ends["left"]), (ends["left"], ends["root"])]
        pairs += [(ends["other"], ends["left"]), (ends["left"], mine)]
        for first, last in pairs:
            answer = await ask_range(client, first, last)
            assert (answer.status, answer.error["param"]) == (400, "from")
            assert answer.error["code"] == "invalid_value"
            assert first in answer.error["message"]
            assert last in answer.error["message"]
        assert len(await read_ids(client, ends["root"], ends["right"])) == 3
        answer = await ask_range(client, ends["root"], ends["left"], after=ends["right"])
        assert (answer.status, answer.error["param"]) == (404, "after")

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("query", "param"), [("", "from"), ("?to=x", "from"), ("?from=x", "to"), ("?from=&to=x", "from")]
)
def test_a_range_has_two_ends(tmp_path: Path, query: str, param: str) -> None:
    """Responses-API section 'Request-shape errors'."""

    async def story(client: StrictClient) -> None:
        answer = await client.send("GET", f"/v1/items{query}")
        assert (answer.status, answer.error["param"]) == (400, param)
        assert answer.error["code"] == "missing_required_parameter"

    run(tmp_path, story)


# Tenants


def test_another_tenants_items_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    """Decided: what another tenant has and what nobody has give the same answer; the same id may be anyone's."""
    keys = {name: {"sha256": hash_key(name), "tenant": name} for name in ("ada", "bob")}

    async def story(client: StrictClient) -> None:
        ada, bob = client.with_key("ada"), client.with_key("bob")
        hers = await ada.create(input=[say("Mine.", id="msg_same"), say("Plum.")])
        ids = await list_path(ada, hers)
        (his,) = await talk(bob, "Hello.")
        own = await list_path(bob, his)
        for item_id in ids:
            assert (await fetch(bob, item_id)).error == not_found(item_id)
            assert (await ask_range(bob, item_id, own[-1])).error == not_found(item_id, "from")
            assert (await ask_range(bob, own[0], item_id)).error == not_found(item_id, "to")
            assert (await ask_range(bob, ids[0], item_id)).error == not_found(item_id, "to")
            assert (await ask_range(bob, own[0], own[-1], after=item_id)).status == 404
        await bob.create(input=[say("His.", id="msg_same")])
        assert (await get(ada, "msg_same"))["content"][0]["text"] == "Mine."
        assert (await get(bob, "msg_same"))["content"][0]["text"] == "His."
        assert await read_ids(ada, ids[0], ids[-1]) == ids
        assert (await fetch(client, ids[0])).status == 401

    run(tmp_path, story, keys=keys)


def test_the_document_tells_of_both_routes_as_ours(tmp_path: Path) -> None:
    """Ours: an addition to the API says that it is one."""

    async def story(client: StrictClient) -> None:
        paths = (await client.send("GET", "/openapi.json")).body["paths"]
        for path in ("/v1/items", "/v1/items/{item_id}"):
            assert paths[path]["get"]["x-antiphon"] is True
        names = [parameter["name"] for parameter in paths["/v1/items"]["get"]["parameters"]]
        assert names == ["from", "to", "limit", "order", "after", "include"]
        answer = await client.send("DELETE", "/v1/items/msg_1")
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")

    run(tmp_path, story)
