"""Two tenants on one server: what is another's and what is nowhere get the same answer, wherever an id can stand."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.scenarios.client import Answer, StrictClient
from tests.scenarios.serving import hash_key, serve

KEYS = {"ada": "key-of-ada", "bob": "key-of-bob"}
SCRIPT = {
    "rules": [
        {"when": "slow", "text": "One two three four.", "pause_s": 0.2},
        {"when": "look", "calls": [{"name": "look", "arguments": {"x": 1}}]},
        {"act": "recall", "reasoning": "Ada thinks of plums."},
    ]
}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
SAID = "Remember this word: plum."
#: Parts of paths that name something that nobody owns.
SHARED_PARTS = {"model"}
#: The bodies of operations that take one.
BODIES: dict[tuple[str, str], Any] = {
    ("post", "/v1/conversations/{conversation_id}"): {"metadata": {"owner": "bob"}},
    ("post", "/v1/conversations/{conversation_id}/items"): {
        "items": [{"type": "message", "role": "user", "content": "Hello."}]
    },
}
#: What may differ between two answers to two requests.
FREE_HEADERS = {"x-request-id", "date"}


class Belongings(NamedTuple):
    """What one tenant has: ids of everything that can be named."""

    response: str
    background: str
    call_response: str
    call: str
    message: str
    reasoning: str
    sealed: dict[str, Any]
    conversation: str
    #: The id of an item of the conversation, given by the server.
    item: str
    #: Ids that the client itself gave to items of the conversation.
    own_item: str
    approval: str


async def settle_in(client: StrictClient, name: str) -> Belongings:
    """Make something of every kind."""
    kept = await client.create(input=SAID, include=["reasoning.encrypted_content"])
    queued = (await client.post({"input": "slow", "background": True})).body
    called = await client.create(input="look", tools=[LOOK])
    call = next(item for item in called["output"] if item["type"] == "function_call")
    reasoning, message = kept["output"]
    approval = {
        "type": "mcp_approval_request",
        "id": f"mcpr_of{name}",
        "name": "echo",
        "arguments": "{}",
        "server_label": "m",
    }
    items = [
        {"type": "message", "role": "user", "content": SAID},
        {"type": "message", "role": "user", "content": SAID, "id": f"msg_of{name}"},
        approval,
    ]
    made = (
        await client.send("POST", "/v1/conversations", {"items": items, "metadata": {"owner": name}})
    ).body
    listed = await client.send("GET", f"/v1/conversations/{made['id']}/items?order=asc")
    return Belongings(
        response=kept["id"],
        background=queued["id"],
        call_response=called["id"],
        call=call["call_id"],
        message=message["id"],
        reasoning=reasoning["id"],
        sealed=reasoning,
        conversation=made["id"],
        item=listed.body["data"][0]["id"],
        own_item=f"msg_of{name}",
        approval=f"mcpr_of{name}",
    )


@asynccontextmanager
async def serve_two(folder: Path) -> AsyncIterator[tuple[StrictClient, StrictClient, StrictClient]]:
    """The server asked by nobody, by ada and by bob."""
    keys = {name: {"sha256": hash_key(key), "tenant": name} for name, key in KEYS.items()}
    async with serve(folder, SCRIPT, keys=keys) as client:
        yield client, client.with_key(KEYS["ada"]), client.with_key(KEYS["bob"])


def make_unknown(known: str) -> str:
    """An id of the same form that nobody has."""
    prefix, _, rest = known.partition("_")
    return f"{prefix}_{re.sub('[a-z0-9]', '0', rest)}"


def compare(unknown: Answer, foreign: Answer, ids: dict[str, str], where: object) -> None:
    """The answers are equal but for the ids; `ids`: the foreign one to the unknown one."""
    assert unknown.status == foreign.status, (where, unknown.body, foreign.body)
    assert unknown.status in (400, 404), (where, unknown.body)
    text = foreign.raw.decode()
    for known, made in ids.items():
        text = text.replace(known, made)
    assert text == unknown.raw.decode(), where
    headers = [
        {key: value for key, value in each.headers.items() if key not in FREE_HEADERS}
        for each in (unknown, foreign)
    ]
    assert headers[0] == headers[1], where


async def read_document(client: StrictClient) -> dict[str, Any]:
    document: dict[str, Any] = (await client.send("GET", "/openapi.json")).body
    return document


def list_parts(path: str) -> list[str]:
    """The names in a path: "/v1/responses/{response_id}" -> ["response_id"]."""
    return re.findall(r"{(\w+)}", path)


def list_owned(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Every operation on something that a tenant owns."""
    return [
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if set(list_parts(path)) - SHARED_PARTS
    ]


def fill(path: str, ids: dict[str, str]) -> str:
    """The path with its ids; a name that is not known here fails the test."""
    for name in list_parts(path):
        assert name in ids, f"{path} has an id that this test does not know: say what it names"
        path = path.replace("{" + name + "}", ids[name])
    return path


def find_body(method: str, path: str, document: dict[str, Any]) -> Any:
    """A body that the operation takes; one that is not known here fails the test."""
    if "requestBody" not in document["paths"][path][method]:
        return None
    assert (method, path) in BODIES, f"{method} {path} takes a body that this test does not know"
    return BODIES[method, path]


def list_queries(method: str, path: str, document: dict[str, Any]) -> list[str]:
    """No query, and each parameter by itself."""
    named = {"stream": "stream=true", "starting_after": "stream=true&starting_after=1", "limit": "limit=1"}
    named |= {
        "include_obfuscation": "stream=true&include_obfuscation=true",
        "order": "order=asc",
        "after": "after=x",
    }
    named["include"] = "include[]=reasoning.encrypted_content"
    parameters = document["paths"][path][method].get("parameters", ())
    names = [parameter["name"] for parameter in parameters if parameter["in"] == "query"]
    assert set(names) <= set(named), f"{method} {path} has a query that this test does not know"
    return ["", *("?" + named[name] for name in names)]


def test_every_route_with_an_id_answers_for_anothers_as_for_none(tmp_path: Path) -> None:
    """Decided: the routes are those of /openapi.json; status, body and headers are equal but for the id."""

    async def story() -> None:
        async with serve_two(tmp_path) as (_, ada, bob):
            document = await read_document(ada)
            hers, his = await settle_in(ada, "ada"), await settle_in(bob, "bob")
            operations = list_owned(document)
            assert len(operations) >= 11
            before = await list_everything(ada, hers)
            for method, path in operations:
                body = find_body(method, path, document)
                for foreign in list_targets(path, hers, his):
                    unknown = {
                        name: known if known in his else make_unknown(known)
                        for name, known in foreign.items()
                    }
                    for query in list_queries(method, path, document):
                        answers = [
                            await bob.send(method.upper(), fill(path, ids) + query, body)
                            for ids in (unknown, foreign)
                        ]
                        renamed = {foreign[name]: unknown[name] for name in foreign}
                        compare(answers[0], answers[1], renamed, (method, path, query))
            # Nothing of hers was deleted, cancelled, changed or added to.
            assert await list_everything(ada, hers) == before

    asyncio.run(story())


def list_targets(path: str, hers: Belongings, his: Belongings) -> list[dict[str, str]]:
    """The ids to try on a path: hers, and her item in his own conversation."""
    items = (hers.item, hers.own_item, hers.message)
    if "{item_id}" in path:
        places = (hers.conversation, his.conversation)
        return [{"conversation_id": place, "item_id": item} for place in places for item in items]
    if "{conversation_id}" in path:
        return [{"conversation_id": hers.conversation}]
    owned = (hers.response, hers.background, hers.call_response)
    return [dict.fromkeys(list_parts(path), response) for response in owned]


async def list_everything(client: StrictClient, mine: Belongings) -> list[Any]:
    """All that its owner can read, the running one by its id alone."""
    told: list[Any] = []
    for response in (mine.response, mine.call_response):
        for path in ("", "/input_items", "/window"):
            answer = await client.send("GET", f"/v1/responses/{response}{path}")
            assert answer.status == 200, answer.body
            told.append(answer.body)
    running = (await client.retrieve(mine.background)).body
    assert running["status"] in ("queued", "in_progress", "completed"), running["status"]
    for path in ("", "/items", f"/items/{mine.item}", f"/items/{mine.own_item}"):
        answer = await client.send("GET", f"/v1/conversations/{mine.conversation}{path}")
        assert answer.status == 200, answer.body
        told.append(answer.body)
    return told


#: What a request may name, and where: a body from an id.
Naming = Callable[[str], dict[str, Any]]
SHOWN = {"type": "message", "role": "user", "content": "Hello."}
NAMINGS: dict[str, tuple[Naming, tuple[str, ...]]] = {
    "previous_response_id": (
        lambda known: {"input": "x", "previous_response_id": known},
        ("response", "background", "call_response"),
    ),
    "conversation": (lambda known: {"input": "x", "conversation": known}, ("conversation",)),
    "conversation object": (lambda known: {"input": "x", "conversation": {"id": known}}, ("conversation",)),
    "item_reference": (
        lambda known: {"input": [SHOWN, {"type": "item_reference", "id": known}]},
        ("message", "reasoning", "item", "own_item"),
    ),
    "reasoning by id": (
        lambda known: {"input": [{"type": "reasoning", "id": known, "summary": []}, SHOWN]},
        ("reasoning",),
    ),
    "output of a call": (
        lambda known: {"input": [{"type": "function_call_output", "call_id": known, "output": "x"}]},
        ("call",),
    ),
    "approval": (
        lambda known: {
            "input": [{"type": "mcp_approval_response", "approval_request_id": known, "approve": True}]
        },
        ("approval",),
    ),
}


def test_a_path_or_a_body_that_this_test_does_not_know_fails_it() -> None:
    """Ours: a route that is added must be said how to try."""
    operation: dict[str, Any] = {"requestBody": {}, "parameters": [{"in": "query", "name": "depth"}]}
    document = {"paths": {"/v1/things/{thing_id}": {"post": operation}}}
    assert list_owned(document) == [("post", "/v1/things/{thing_id}")]
    with pytest.raises(AssertionError):
        fill("/v1/things/{thing_id}", {"response_id": "resp_1"})
    with pytest.raises(AssertionError):
        find_body("post", "/v1/things/{thing_id}", document)
    with pytest.raises(AssertionError):
        list_queries("post", "/v1/things/{thing_id}", document)


def test_no_request_can_name_what_is_anothers(tmp_path: Path) -> None:
    """Decided: chains, conversations, references, calls and approvals; to answer, to stream, to count, to queue."""

    async def story() -> None:
        async with serve_two(tmp_path) as (_, ada, bob):
            hers = await settle_in(ada, "ada")
            for name, (make_body, kinds) in NAMINGS.items():
                for kind in kinds:
                    known = getattr(hers, kind)
                    made = make_unknown(known)
                    for ask in (create, stream, queue, count):
                        answers = [await ask(bob, make_body(each)) for each in (made, known)]
                        compare(answers[0], answers[1], {known: made}, (name, kind, ask.__name__))

    asyncio.run(story())


async def create(client: StrictClient, body: dict[str, Any]) -> Answer:
    return await client.post(body)


async def stream(client: StrictClient, body: dict[str, Any]) -> Answer:
    return await client.post({**body, "stream": True})


async def queue(client: StrictClient, body: dict[str, Any]) -> Answer:
    return await client.post({**body, "background": True})


async def count(client: StrictClient, body: dict[str, Any]) -> Answer:
    return await client.send("POST", "/v1/responses/input_tokens", {"model": "scripted", **body})


def test_what_can_be_named_by_its_owner_is_not_refused(tmp_path: Path) -> None:
    """The control: the same requests of the owner are answered, so it is the tenant that the refusals are about."""

    async def story() -> None:
        async with serve_two(tmp_path) as (_, ada, __):
            hers = await settle_in(ada, "ada")
            for name, (make_body, kinds) in NAMINGS.items():
                for kind in kinds:
                    if kind in ("background", "call_response", "call", "approval"):
                        # Not ended yet, waiting for an output, or needing a chain to their request.
                        continue
                    answer = await ada.post(make_body(getattr(hers, kind)))
                    assert answer.status == 200, (name, kind, answer.body)

    asyncio.run(story())


def test_an_item_id_of_the_clients_own_is_anothers_to_use_as_well(tmp_path: Path) -> None:
    """Ours: two tenants may give one id to items of theirs, and each finds its own."""

    async def story() -> None:
        async with serve_two(tmp_path) as (_, ada, bob):
            texts = {"hers": ada, "his": bob}
            places = {}
            for text, client in texts.items():
                items = [{"type": "message", "role": "user", "content": text, "id": "msg_shared1"}]
                made = await client.send("POST", "/v1/conversations", {"items": items})
                places[text] = f"/v1/conversations/{made.body['id']}/items/msg_shared1"
            for text, client in texts.items():
                read = await client.send("GET", places[text])
                assert read.body["content"][0]["text"] == text
                body = {"input": [{"type": "item_reference", "id": "msg_shared1"}]}
                page = await client.list_items((await client.create(**body))["id"])
                assert page.body["data"][0]["content"][0]["text"] == text
            assert (await bob.send("DELETE", places["his"])).status == 200
            assert (await ada.send("GET", places["hers"])).status == 200

    asyncio.run(story())


def test_a_page_begins_after_anothers_item_as_after_none(tmp_path: Path) -> None:
    """Decided: `after` names nothing of another tenant either."""

    async def story() -> None:
        async with serve_two(tmp_path) as (_, ada, bob):
            hers, his = await settle_in(ada, "ada"), await settle_in(bob, "bob")
            for path in (
                f"/v1/responses/{his.response}/input_items",
                f"/v1/conversations/{his.conversation}/items",
            ):
                for known in (hers.item, hers.own_item, hers.message):
                    made = make_unknown(known)
                    answers = [await bob.send("GET", f"{path}?after={each}") for each in (made, known)]
                    compare(answers[0], answers[1], {known: made}, (path, known))

    asyncio.run(story())


def test_anothers_sealed_reasoning_is_told_as_a_damaged_one(tmp_path: Path) -> None:
    """Decided: `invalid_encrypted_content`, in the same words, however well it would open for its owner."""

    async def story() -> None:
        async with serve_two(tmp_path) as (_, ada, bob):
            hers, his = await settle_in(ada, "ada"), await settle_in(bob, "bob")
            blob = his.sealed["encrypted_content"]
            middle = len(blob) // 2
            damaged = blob[:middle] + ("A" if blob[middle] != "A" else "B") + blob[middle + 1 :]
            told = []
            for ask in (create, stream, queue, count):
                for sealed in (damaged, hers.sealed["encrypted_content"]):
                    item = {**his.sealed, "encrypted_content": sealed}
                    answer = await ask(bob, {"input": [item, SHOWN]})
                    assert answer.status == 400, answer.body
                    assert answer.error["code"] == "invalid_encrypted_content"
                    told.append(answer.raw.decode().replace(sealed[-4:], "LAST"))
            for ask in (create, count):
                answer = await ask(ada, {"input": [hers.sealed, SHOWN]})
                assert answer.status == 200, answer.body
            assert len(set(told)) == 1, set(told)

    asyncio.run(story())


def test_no_route_but_the_open_ones_answers_without_a_key(tmp_path: Path) -> None:
    """Ours: 401 on every operation of /openapi.json that is not said to need none, before anything is looked up."""

    async def story() -> None:
        async with serve_two(tmp_path) as (nobody, ada, _):
            document = await read_document(ada)
            hers = await settle_in(ada, "ada")
            ids = {"response_id": hers.response, "conversation_id": hers.conversation, "item_id": hers.item}
            ids["model"] = "scripted"
            for path, methods in document["paths"].items():
                for method, operation in methods.items():
                    body = {"model": "scripted", "input": "x"} if "requestBody" in operation else None
                    for client in (nobody, nobody.with_key("key-of-nobody")):
                        answer = await client.send(method.upper(), fill(path, ids), body)
                        expected = 200 if operation.get("security") == [] else 401
                        assert answer.status == expected, (method, path)

    asyncio.run(story())
