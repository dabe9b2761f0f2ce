"""Zero retention on a real process: what was said is in no file, while the server runs and after it was killed."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fake_upstream import (
    MODEL,
    FakeUpstream,
    Reply,
    Request,
    make_body,
    make_chunk,
    make_head,
    make_json,
)
from tests.scenarios.client import StrictClient, find_terminal
from tests.scenarios.process import ServerProcess, start_server

WORD = "xylophonist"
SAID = f"Remember this word: {WORD}."
SCRIPT = {
    "rules": [
        {"when": "fail", "error": {"status": 500, "message": f"cannot parse: {WORD}"}},
        {"when": "linger", "texts": [f"{WORD} "] * 100, "pause_s": 0.5},
        {"tool_forced": True, "act": "call_tools"},
        {"when": WORD, "act": "note", "reasoning": f"They said {WORD}."},
        {"act": "note"},
    ]
}
LOOK = {
    "type": "function",
    "name": f"look_{WORD}",
    "description": SAID,
    "parameters": {"type": "object", "properties": {WORD: {"type": "string", "description": SAID}}},
}
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
#: A server that nobody runs.
DEAD_URL = f"http://127.0.0.1:9/{WORD}"
KEYS = {"keeps": "the-key-that-keeps", "forgets": "the-key-that-forgets"}


def count_word(folder: Path, word: str = WORD) -> int:
    """How often a word stands in the data folder and the log."""
    paths = [*(folder / "data").rglob("*"), folder / "server.log"]
    texts = [path.read_bytes() for path in paths if path.is_file()]
    assert len(texts) >= 4
    return sum(text.count(word.encode()) for text in texts)


def list_sayings() -> list[dict[str, Any]]:
    """Every part of a request that can hold a word, one or two at a time; all of them are answered."""
    text = base64.b64encode(SAID.encode()).decode()
    file = {"type": "input_file", "filename": f"{WORD}.txt", "file_data": f"data:text/plain;base64,{text}"}
    image = {
        "type": "input_image",
        "image_url": f"data:image/png;base64,{IMAGE}",
        "detail": "low",
        "name": WORD,
    }
    call: dict[str, Any] = {
        "type": "function_call",
        "call_id": WORD,
        "name": WORD,
        "arguments": f'{{"a":"{WORD}"}}',
    }
    output = {"type": "function_call_output", "call_id": WORD, "output": SAID}
    custom = {
        "type": "custom",
        "name": "c",
        "description": SAID,
        "format": {"type": "grammar", "syntax": "regex"},
    }
    custom["format"]["definition"] = f"({WORD})?.*"  # type: ignore[index]
    mcp = {"type": "mcp", "server_label": WORD, "server_url": DEAD_URL}
    secrets = {"headers": {"x-a": WORD}, "authorization": WORD}
    return [
        {"input": SAID, "include": ["reasoning.encrypted_content"]},
        {
            "input": SAID,
            "instructions": SAID,
            "metadata": {WORD: SAID},
            "user": WORD,
            "safety_identifier": WORD,
        },
        {"input": SAID, "prompt_cache_key": WORD, "client_metadata": {WORD: WORD}},
        {"input": SAID, "tools": [LOOK], "tool_choice": {"type": "function", "name": LOOK["name"]}},
        {"input": SAID, "tools": [custom]},
        {"input": SAID, "tools": [{**mcp, **secrets}]},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": SAID}, file, image]}]},
        {"input": [call, output, {"role": "system", "content": SAID, "odd": WORD}]},
        {
            "input": [
                {"type": "message", "role": "assistant", "content": SAID, "id": f"msg_{WORD}"},
                {"content": SAID, "role": "user"},
            ]
        },
        {
            "input": SAID,
            "truncation": "auto",
            "text": {
                "format": {"type": "json_schema", "name": WORD, "schema": {"type": "object", "title": WORD}}
            },
        },
    ]


def list_refused() -> list[dict[str, Any]]:
    """Requests that are refused, most with an error that quotes them."""
    return [
        {"input": SAID, WORD: 1},
        {"input": SAID, "model": WORD},
        {"input": SAID, "temperature": WORD},
        {"input": SAID, "metadata": {WORD: 5}},
        {"input": SAID, "reasoning": {"effort": WORD}},
        {"input": SAID, "previous_response_id": f"resp_{WORD}"},
        {"input": SAID, "prompt": {"id": WORD}},
        {"input": SAID, "tools": [{"type": WORD}]},
        {
            "input": SAID,
            "tools": [
                {
                    "type": "custom",
                    "name": "c",
                    "format": {"type": "grammar", "syntax": "lark", "definition": f"{WORD}: ("},
                }
            ],
        },
        {"input": SAID, "tools": [{**LOOK, "parameters": {"type": WORD}}]},
        {"input": [{"type": "item_reference", "id": f"msg_{WORD}"}]},
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": WORD}]},
        {"input": [{"type": "function_call_output", "call_id": WORD, "output": WORD}]},
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_image", "image_url": f"https://{WORD}.example/a.png"}],
                }
            ]
        },
        {
            "input": [
                {
                    "role": "user",
                    "content": [{"type": "input_file", "filename": f"{WORD}.pdf", "file_data": WORD}],
                }
            ]
        },
    ]


async def say_everything(client: StrictClient, **more: Any) -> None:
    """Every way to say the word, and what becomes of it."""
    whole = await client.create(
        input=SAID, include=["reasoning.encrypted_content"], **{"store": True, **more}
    )
    assert whole["store"] is False
    assert (await client.retrieve(whole["id"])).status == 404
    events = await client.stream(input=SAID, **more)
    assert [event["response"]["store"] for event in events if "response" in event] == [False] * 3
    error = await client.refuse(input=SAID, previous_response_id=whole["id"], **more)
    assert error["code"] == "previous_response_not_found"
    # What the client holds is enough to go on.
    follow = await client.create(input=[{"role": "user", "content": SAID}, *whole["output"]], **more)
    assert follow["status"] == "completed"
    client.echoed_keys = frozenset({"odd"})
    for body in list_sayings():
        response = await client.create(**body, **more)
        assert response["store"] is False
        assert find_terminal(await client.stream(**body, **more))["status"] == "completed"
        counted = {key: body[key] for key in body if key in ("input", "instructions", "tools")}
        answer = await client.send("POST", "/v1/responses/input_tokens", {"model": "scripted", **counted})
        assert answer.status == 200, answer.body
    for body in list_refused():
        for stream in (False, True):
            answer = await client.post({**body, "stream": stream, **more})
            assert 400 <= answer.status < 500, (body, answer.body)
    for garbage in (f'{{"model": "scripted", "input": "{WORD}', f"{WORD}", f'["{WORD}"]'):
        assert (await client.post(garbage.encode())).status == 400
    for method, path in (
        ("GET", f"/v1/responses/resp_{WORD}"),
        ("DELETE", f"/v1/conversations/conv_{WORD}/items/msg_{WORD}"),
        ("GET", f"/v1/models/{WORD}"),
        ("GET", f"/{WORD}?{WORD}={WORD}"),
        ("GET", f"/v1/models?{WORD}={WORD}"),
    ):
        answer = await client.send(method, path)
        assert answer.status in (400, 404), (path, answer.body)


async def try_to_keep(client: StrictClient) -> None:
    """What needs to be kept is refused where nothing is."""
    error = await client.refuse(input=SAID, background=True)
    assert (error["code"], error["param"]) == ("zero_retention", "background")
    error = await client.refuse(input=SAID, conversation="conv_1")
    assert (error["code"], error["param"]) == ("zero_retention", "conversation")
    items = [{"type": "message", "role": "user", "content": SAID}]
    for path in ("/v1/conversations", "/v1/conversations/conv_1", "/v1/conversations/conv_1/items"):
        answer = await client.send("POST", path, {"items": items, "metadata": {"word": WORD}})
        assert answer.status == 400, answer.body


def answer_badly(request: Request) -> Reply:
    """A model server that quotes the word in whatever way of failing the prompt asks for."""
    begun = [make_head(), make_chunk({"reasoning_content": SAID}), make_chunk({"content": SAID})]
    said = str(request.json["messages"][-1]["content"])
    if "crash" in said:
        return Reply(begun, end="reset")
    if "end early" in said:
        return Reply(begun, end="close")
    if "error" in said:
        return Reply(
            [make_json({"error": {"message": SAID, "code": WORD, "type": WORD, "param": WORD}}, status=500)]
        )
    if "refuse" in said:
        return Reply([make_json({"error": {"message": SAID, "code": WORD}}, status=400)])
    if "limit" in said:
        return Reply([make_json({"error": {"message": SAID}}, status=429, extra=f"retry-after: {WORD}\r\n")])
    if "forbid" in said:
        return Reply([make_json({"error": {"message": SAID}}, status=401)])
    if "page" in said:
        return Reply([make_body(f"<html>{SAID}</html>".encode(), content_type="text/html")])
    assert "garbage" in said
    return Reply([make_body(f'data: {{"choices": [{WORD}'.encode(), content_type="text/event-stream")])


FAILINGS = ("crash", "end early", "error", "refuse", "limit", "forbid", "page", "garbage")


@asynccontextmanager
async def start_beside_bad_upstream(folder: Path, **variables: str) -> AsyncIterator[ServerProcess]:
    """A server that has the bad model server as a second endpoint."""
    async with FakeUpstream(answer_badly) as upstream:
        with (folder / "antiphon.toml").open("a") as file:
            file.write(f"[endpoints.bad]\nurl = '{upstream.url}'\n")
        starting = start_server(folder, SCRIPT, **variables)
        # It asks the model server for its models before it is there.
        server = await asyncio.to_thread(starting.__enter__)
        try:
            yield server
        finally:
            starting.__exit__(None, None, None)


async def meet_failures(client: StrictClient, **more: Any) -> None:
    """Each failure of the model server, as an error and within a stream."""
    for failing in FAILINGS:
        body = {"model": MODEL, "input": f"{failing}: {SAID}", **more}
        answer = await client.post(body)
        assert answer.status in (400, 429, 500, 502), answer.body
        assert answer.error["code"] != "model_not_found"
        came = await client.exchange(json.dumps({**body, "stream": True}).encode())
        assert not isinstance(came, list) or find_terminal(came)["status"] in ("failed", "incomplete")


async def fail(client: StrictClient) -> None:
    """The model server's words reach the client, whole and in a stream."""
    assert WORD in (await client.refuse(502, input=f"fail {WORD}", store=False))["message"]


def test_a_server_without_retention_keeps_no_word(tmp_path: Path) -> None:
    """Decided: not in the database, its log files or the log, while it runs, after kill -9 and after a restart."""

    async def story() -> None:
        async with start_beside_bad_upstream(tmp_path, ANTIPHON_SERVER__ZERO_RETENTION="true") as server:
            async with server.connect() as client:
                await say_everything(client)
                await try_to_keep(client)
                await fail(client)
                await meet_failures(client)
                assert count_word(tmp_path) == 0
            server.kill()
            assert count_word(tmp_path) == 0
            assert WORD not in server.read_rest()

    asyncio.run(story())
    with start_server(tmp_path, SCRIPT):
        assert count_word(tmp_path) == 0
    assert "req_" in (tmp_path / "server.log").read_text()


def test_a_key_without_retention_keeps_nothing_beside_one_that_keeps(tmp_path: Path) -> None:
    """Decided: per key; what another key of the tenant stored can be read and deleted."""
    for name, key in KEYS.items():
        digest = hashlib.sha256(key.encode()).hexdigest()
        with (tmp_path / "antiphon.toml").open("a") as file:
            file.write(f"[keys.{name}]\nsha256 = '{digest}'\ntenant = 'ada'\n")
            file.write(f"zero_retention = {str(name == 'forgets').lower()}\n")

    async def story(server: ServerProcess) -> None:
        async with server.connect() as client:
            keeps, forgets = (client.with_key(KEYS[name]) for name in ("keeps", "forgets"))
            kept = await keeps.create(input="Remember this word: gooseberry.")
            await say_everything(forgets)
            await try_to_keep(forgets)
            await fail(forgets)
            assert (await forgets.retrieve(kept["id"])).status == 200
            branch = await forgets.create(input=SAID, previous_response_id=kept["id"])
            assert branch["store"] is False
            assert count_word(tmp_path) == 0
            assert count_word(tmp_path, "gooseberry") > 0
            assert (await forgets.delete(kept["id"])).status == 200
            assert count_word(tmp_path, "gooseberry") == 0

    with start_server(tmp_path, SCRIPT) as server:
        asyncio.run(story(server))
        server.kill()
        assert count_word(tmp_path) == count_word(tmp_path, "gooseberry") == 0


def test_a_request_that_is_not_stored_leaves_no_word(tmp_path: Path) -> None:
    """Decided: the same holds for any `store: false` request, even if the model server fails and quotes it."""

    async def story() -> None:
        async with start_beside_bad_upstream(tmp_path) as server:
            async with server.connect() as client:
                # What is stored beside it is there.
                items = [{"type": "message", "role": "user", "content": "gooseberry"}]
                made = await client.send("POST", "/v1/conversations", {"items": items})
                # It is read and not added to.
                await client.create(input=SAID, conversation=made.body["id"], store=False)
                await client.stream(input=SAID, conversation=made.body["id"], store=False)
                await say_everything(client, store=False)
                await fail(client)
                await meet_failures(client, store=False)
                await client.refuse(input=SAID, background=True, store=False)
                assert count_word(tmp_path) == 0
                assert count_word(tmp_path, "gooseberry") > 0
            server.kill()
            assert count_word(tmp_path) == 0
            assert WORD not in server.read_rest()

    asyncio.run(story())
    assert "BackendError" in (tmp_path / "server.log").read_text()


@pytest.mark.parametrize("body", [{"store": False}, {}])
def test_a_process_that_is_killed_in_the_middle_of_an_answer_leaves_no_word(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    """Decided: kill -9 while it streams; whatever it held in memory is in no file."""

    async def story(server: ServerProcess) -> None:
        said = {"input": f"linger {SAID}", "instructions": SAID, **body}
        async with server.connect() as client, client.open_stream(**said) as events:
            async for event in events:
                if event["type"] == "response.output_text.delta":
                    break
            assert count_word(tmp_path) == 0
            server.kill()
            assert count_word(tmp_path) == 0

    variables = {} if body else {"ANTIPHON_SERVER__ZERO_RETENTION": "true"}
    with start_server(tmp_path, SCRIPT, **variables) as server:
        asyncio.run(story(server))
    with start_server(tmp_path, SCRIPT, **variables):
        assert count_word(tmp_path) == 0


async def keep_responses(client: StrictClient) -> list[str]:
    """Stored responses of every kind that hold the word; their ids."""
    client.echoed_keys = frozenset({"odd"})
    ids: list[str] = []
    for body in list_sayings():
        ids.append((await client.create(**body))["id"])
        events = await client.stream(**body, previous_response_id=ids[0])
        ids.append(find_terminal(events)["id"])
        # Its events are stored too.
        ids.append(find_terminal(await client.stream(**body, background=True))["id"])
    return ids


def test_deleted_responses_leave_no_word(tmp_path: Path) -> None:
    """Decided: deletion is real, at once; settings, tools, metadata and the events of background ones included."""

    async def story(server: ServerProcess) -> None:
        async with server.connect() as client:
            ids = await keep_responses(client)
            assert count_word(tmp_path) > len(ids)
            for response_id in ids:
                assert (await client.delete(response_id)).status == 200
            assert count_word(tmp_path) == 0
            for response_id in ids:
                assert (await client.retrieve(response_id)).status == 404

    with start_server(tmp_path, SCRIPT) as server:
        asyncio.run(story(server))
        server.kill()
        assert count_word(tmp_path) == 0
        assert WORD not in server.read_rest()
    with start_server(tmp_path, SCRIPT):
        assert count_word(tmp_path) == 0


def test_deleted_items_and_conversations_leave_no_word(tmp_path: Path) -> None:
    """Decided: an item goes with its pair; metadata that was replaced or deleted goes; the rest of it stays."""

    async def story(server: ServerProcess) -> None:
        async with server.connect() as client:
            items: list[dict[str, Any]] = [
                {"type": "message", "role": "user", "content": SAID},
                {
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": "look",
                    "arguments": f'{{"a":"{WORD}"}}',
                },
                {"type": "function_call_output", "call_id": "call_1", "output": SAID},
                {"type": "message", "role": "user", "content": "gooseberry", "id": "msg_stays1"},
            ]
            made = await client.send(
                "POST", "/v1/conversations", {"items": items[:1], "metadata": {"word": WORD}}
            )
            place = f"/v1/conversations/{made.body['id']}"
            assert (await client.send("POST", f"{place}/items", {"items": items[1:]})).status == 200
            answered = await client.create(input=SAID, conversation=made.body["id"])
            assert count_word(tmp_path) > 4
            # The new metadata replaces the old.
            assert (await client.send("POST", place, {"metadata": {"word": "quincunx"}})).status == 200
            assert (await client.delete(answered["id"])).status == 200
            listed = (await client.send("GET", f"{place}/items?limit=100&order=asc")).body["data"]
            for item in listed:
                if item["type"] in ("message", "function_call") and item["id"] != "msg_stays1":
                    assert (await client.send("DELETE", f"{place}/items/{item['id']}")).status == 200, item
            assert count_word(tmp_path) == 0
            left = (await client.send("GET", f"{place}/items")).body["data"]
            assert [item["id"] for item in left] == ["msg_stays1"]
            assert min(count_word(tmp_path, word) for word in ("gooseberry", "quincunx")) > 0
            assert (await client.send("DELETE", f"{place}/items/msg_stays1")).status == 200
            assert count_word(tmp_path, "gooseberry") == 0
            assert (await client.send("DELETE", place)).status == 200
            assert count_word(tmp_path, "quincunx") == 0

    with start_server(tmp_path, SCRIPT) as server:
        asyncio.run(story(server))
        server.kill()
        for word in (WORD, "gooseberry", "quincunx"):
            assert count_word(tmp_path, word) == 0
