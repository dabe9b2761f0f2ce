"""Conversations: durable tips over HTTP, their items, and responses that run in them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.client import StrictClient, read_text
from tests.scenarios.conversing import (
    LOCKED,
    list_all,
    list_texts,
    new_conversation,
    run,
    say,
)
from tests.scenarios.serving import GatedBackend, serve_doubles

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

# The object


def test_a_conversation_is_created_read_changed_and_deleted(tmp_path: Path) -> None:
    """responses-API section 'Endpoints', rows 8 to 11."""

    async def story(client: StrictClient) -> None:
        bodies: tuple[Any, ...] = (None, {}, {"items": [], "metadata": {}}, {"items": None, "metadata": None})
        for body in bodies:
            answer = await client.send("POST", "/v1/conversations", body)
            assert answer.status == 200, answer.body
            assert answer.body["metadata"] == {}
            assert answer.body["id"].startswith("conv_")
        path = f"/v1/conversations/{answer.body['id']}"
        assert (await client.send("GET", path)).body == answer.body
        empty = (await client.send("GET", f"{path}/items")).body
        assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
        # Replaced as a whole, never merged.
        await client.send("POST", path, {"metadata": {"a": "1", "b": "2"}})
        changed = await client.send("POST", path, {"metadata": {"c": "3"}})
        assert changed.body == {**answer.body, "metadata": {"c": "3"}}
        assert (await client.send("GET", path)).body == changed.body
        assert (await client.send("POST", path, {"metadata": None})).body["metadata"] == {}
        deleted = await client.send("DELETE", path)
        assert deleted.body["object"] == "conversation.deleted"
        requests: tuple[tuple[str, str, Any], ...] = (
            ("GET", "", None),
            ("DELETE", "", None),
            ("POST", "", {"metadata": {}}),
            ("GET", "/items", None),
            ("POST", "/items", {"items": [say("x")]}),
            ("GET", "/items/msg_1", None),
            ("DELETE", "/items/msg_1", None),
        )
        for method, rest, sent in requests:
            gone = await client.send(method, path + rest, sent)
            assert gone.status == 404
            assert gone.error == {
                "message": f"Conversation with id '{answer.body['id']}' not found.",
                "type": "invalid_request_error",
                "param": None,
                "code": None,
            }

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (
            {"metadata": {f"k{number}": "v" for number in range(17)}},
            "metadata",
            "object_above_max_properties",
        ),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
        ({"metadata": {"k" * 65: "v"}}, None, "property_name_above_max_length"),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_type"),
        ({"metadata": []}, "metadata", "invalid_type"),
        ({"itens": []}, "itens", "unknown_parameter"),
        ({"items": {}}, "items", "invalid_type"),
        ({"items": [say("x")] * 21}, "items", "array_above_max_length"),
        ({"items": [say("x", id="fc_1")]}, "items[0].id", "invalid_value"),
        ({"items": [{"type": "bogus"}]}, "items[0]", "invalid_value"),
        ({"items": [{"type": "compaction_trigger"}]}, "items[0]", "invalid_value"),
        (
            {"items": [{"type": "reasoning", "summary": []}]},
            "items[0].encrypted_content",
            "missing_required_parameter",
        ),
    ],
)
def test_a_body_that_is_wrong_is_refused_by_name_and_nothing_is_created(
    tmp_path: Path, body: Any, param: str | None, code: str
) -> None:
    """responses-API sections 'Request-shape errors' and 'Details measured live'."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client)
        paths = ["/v1/conversations"]
        if "items" in body:
            paths.append(f"/v1/conversations/{conversation_id}/items")
        if "metadata" in body:
            paths.append(f"/v1/conversations/{conversation_id}")
        for path in paths:
            answer = await client.send("POST", path, body)
            assert answer.status == 400, answer.body
            assert answer.error["code"] == code, answer.error
            assert param is None or answer.error["param"] == param
        assert await list_all(client, conversation_id) == []

    run(tmp_path, story)


def test_what_a_route_must_have_is_asked_for(tmp_path: Path) -> None:
    """responses-API section 'Details measured live': items missing, none, and metadata missing."""

    async def story(client: StrictClient) -> None:
        path = f"/v1/conversations/{await new_conversation(client)}"
        for rest, body, param, code in (
            ("/items", {}, "items", "missing_required_parameter"),
            ("/items", {"items": None}, "items", "missing_required_parameter"),
            ("/items", {"items": []}, "items", "empty_array"),
            ("", {}, "metadata", "missing_required_parameter"),
        ):
            error = (await client.send("POST", path + rest, body)).error
            assert (error["param"], error["code"]) == (param, code)
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "include[]=nothing", "bogus=1"):
            assert (await client.send("GET", f"{path}/items?{query}")).status == 400

    run(tmp_path, story)


# Items


def test_added_items_are_listed_in_their_normal_form_and_answered_alone(tmp_path: Path) -> None:
    """responses-API section 'Details measured live': strings become parts, status and id are given."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client, "one", "two")
        path = f"/v1/conversations/{conversation_id}/items"
        sent = [
            {"role": "developer", "content": "three"},
            {"role": "assistant", "content": "four"},
            say("five", id="msg_mine"),
        ]
        added = (
            await client.send("POST", f"{path}?include[]=message.output_text.logprobs", {"items": sent})
        ).body
        assert [item["status"] for item in added["data"]] == ["completed"] * 3
        assert [item["role"] for item in added["data"]] == ["developer", "assistant", "user"]
        kinds = [item["content"][0]["type"] for item in added["data"]]
        assert kinds == ["input_text", "output_text", "input_text"]
        assert added["data"][2]["id"] == added["last_id"] == "msg_mine"
        assert added["has_more"] is False
        assert await list_texts(client, conversation_id) == ["one", "two", "three", "four", "five"]
        for item in added["data"]:
            assert (await client.send("GET", f"{path}/{item['id']}")).body == item
        missing = await client.send("GET", f"{path}/msg_unknown")
        assert missing.status == 404
        assert (
            missing.error["message"]
            == f"Item with id 'msg_unknown' not found in conversation '{conversation_id}'."
        )

    run(tmp_path, story)


def test_pages_meet_without_gap_in_both_orders(tmp_path: Path) -> None:
    """responses-API section 'Details measured live': `after` is exclusive, `has_more` looks in its direction."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client, "one", "two", "three")
        path = f"/v1/conversations/{conversation_id}/items"
        await client.send("POST", path, {"items": [say("four", id="msg_four"), say("five")]})
        await client.create(input="six", conversation=conversation_id)
        whole = [item["id"] for item in await list_all(client, conversation_id)]
        assert len(whole) == 7
        for order, expected in (("asc", whole), ("desc", whole[::-1])):
            for limit in (1, 2, 3, 6, 7, 8):
                seen: list[str] = []
                after = ""
                while True:
                    page = (await client.send("GET", f"{path}?order={order}&limit={limit}{after}")).body
                    seen += [item["id"] for item in page["data"]]
                    assert page["has_more"] == (len(seen) < len(expected))
                    if not page["has_more"]:
                        break
                    after = f"&after={page['last_id']}"
                assert seen == expected
            # The default is 20, newest first.
            assert (await client.send("GET", f"{path}?order={order}&after={expected[-1]}")).body["data"] == []
        for cursor in ("msg_unknown", "msg_" + "a" * 40):
            answer = await client.send("GET", f"{path}?after={cursor}")
            assert (answer.status, answer.error["param"], answer.error["code"]) == (404, "after", None)
            assert answer.error["message"] == f"No item found with id '{cursor}'"

    run(tmp_path, story)


def test_an_id_that_is_stored_links_the_stored_item_whatever_was_sent(tmp_path: Path) -> None:
    """responses-API section 'Details measured live': a client-supplied id of an existing item is a reference."""

    async def story(client: StrictClient) -> None:
        first = await new_conversation(client)
        path = f"/v1/conversations/{first}/items"
        added = (await client.send("POST", path, {"items": [say("own", id="msg_own"), say("given")]})).body[
            "data"
        ]
        response = await client.create(input="Remember this word: plum.")
        message = response["output"][0]
        second = await new_conversation(client)
        other = f"/v1/conversations/{second}/items"
        sent = [
            say("forged", id="msg_own"),
            say("forged", id=added[1]["id"]),
            {"type": "item_reference", "id": message["id"]},
        ]
        # Twice in one request is as wrong as twice in two: ids name one item of a conversation each.
        for repeated in (say("forged", id="msg_own"), {"type": "item_reference", "id": "msg_own"}):
            twice = await client.send("POST", other, {"items": [*sent, repeated]})
            assert (twice.status, twice.error["code"]) == (400, "item_already_in_conversation")
            twice = await client.send("POST", "/v1/conversations", {"items": [say("new", id="msg_new")] * 2})
            assert (twice.status, twice.error["code"]) == (400, "item_already_in_conversation")
        assert await list_all(client, second) == []
        linked = (await client.send("POST", other, {"items": sent})).body["data"]
        assert [item["id"] for item in linked] == ["msg_own", added[1]["id"], message["id"]]
        texts = [item["content"][0]["text"] for item in linked]
        assert texts == ["own", "given", read_text(response)]
        for item_id in ("msg_own", added[1]["id"], message["id"]):
            again = await client.send("POST", other, {"items": [say("new"), say("x", id=item_id)]})
            assert again.error == {
                "message": "Item already in conversation",
                "type": "invalid_request_error",
                "param": "items",
                "code": "item_already_in_conversation",
            }
        unknown = await client.send(
            "POST", other, {"items": [{"type": "item_reference", "id": "msg_unknown"}]}
        )
        assert unknown.status == 404
        assert len(await list_all(client, second)) == 3
        # An item that is only named like one of another tenant is new.
        assert await list_texts(client, first) == ["own", "given"]

    run(tmp_path, story)


def _call(call_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}", **fields}


def _output(call_id: str, text: str = "seen") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


@pytest.mark.parametrize(
    ("earlier", "added", "param", "told"),
    [
        ([], [_output("c"), _call("c")], "items[1]", "The output of call c stands before it."),
        ([_output("c")], [_call("c")], "items[0]", "The output of call c stands before it."),
        ([], [_call("c"), say("x"), _call("c")], "items[2]", "Duplicate call found with call_id c."),
        ([_call("c")], [_call("c")], "items[0]", "Duplicate call found with call_id c."),
        ([], [_call("c"), _output("c"), _output("c")], "items[2]", "The call c has its output already."),
        ([_call("c"), _output("c")], [_output("c")], "items[0]", "The call c has its output already."),
        ([], [{"type": "tool_search_output", "tools": []}], "items[0].call_id", "Missing required parameter"),
    ],
)
def test_calls_and_outputs_that_no_response_could_send_on_are_refused(
    tmp_path: Path, earlier: list[Any], added: list[Any], param: str | None, told: str
) -> None:
    """Ours: what is refused as input of a response is refused as an item of a conversation, as far as it is known."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client)
        path = f"/v1/conversations/{conversation_id}/items"
        if earlier:
            assert (await client.send("POST", path, {"items": earlier})).status == 200
        answer = await client.send("POST", path, {"items": added})
        assert answer.status == 400, answer.body
        assert param is None or answer.error["param"] == param
        assert answer.error["message"].startswith(told)
        assert len(await list_all(client, conversation_id)) == len(earlier)

    run(tmp_path, story)


def test_a_call_may_be_answered_later_and_an_async_one_twice(tmp_path: Path) -> None:
    """As responses have it."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client)
        path = f"/v1/conversations/{conversation_id}/items"
        for items in (
            [say("Remember this word: plum."), _call("c"), _call("d", **{"async": True})],
            [_output("d", "waiting"), _output("c")],
            [_output("d", "done")],
        ):
            answer = await client.send("POST", path, {"items": items})
            assert answer.status == 200, answer.body
        asked = await client.create(input="What was the word?", conversation=conversation_id)
        assert "plum" in read_text(asked)

    run(tmp_path, story)


def test_an_output_that_is_linked_without_its_call_is_not_shown_and_nothing_untrue_is_said(
    tmp_path: Path,
) -> None:
    """Ours: the call was never deleted from this conversation; it never was there."""

    async def story(client: StrictClient) -> None:
        items = [_call("c"), {**_output("c"), "id": "fc_out"}]
        assert (await client.send("POST", "/v1/conversations", {"items": items})).status == 200
        conversation_id = await new_conversation(client, "Hello.")
        path = f"/v1/conversations/{conversation_id}/items"
        linked = await client.send("POST", path, {"items": [{"type": "item_reference", "id": "fc_out"}]})
        assert linked.status == 200
        asked = await client.create(input="What was the word?", conversation=conversation_id)
        assert [each["message"] for each in asked["antiphon"]["warnings"]] == [
            (
                "No call c stands before its output (it was deleted, or never added); the output is not shown to the "
                "model."
            )
        ]

    run(tmp_path, story)


def test_what_only_include_shows_is_left_out_otherwise(tmp_path: Path) -> None:
    """responses-API section 'Endpoints', rows 12 to 14: `include[]`."""

    async def story(client: StrictClient) -> None:
        action = {"type": "search", "query": "q", "sources": [{"type": "url", "url": "http://x.example/"}]}
        item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
        conversation_id = await new_conversation(client)
        path = f"/v1/conversations/{conversation_id}/items"
        include = "include[]=web_search_call.action.sources"
        added = await client.send("POST", f"{path}?{include}", {"items": [item]})
        assert "sources" in added.body["data"][0]["action"]
        assert "sources" not in (await client.send("GET", path)).body["data"][0]["action"]
        assert "sources" in (await client.send("GET", f"{path}?{include}")).body["data"][0]["action"]
        assert "sources" not in (await client.send("GET", f"{path}/ws_1")).body["action"]
        assert "sources" in (await client.send("GET", f"{path}/ws_1?{include}")).body["action"]

    run(tmp_path, story)


# Responses in a conversation


def test_a_response_reads_the_conversation_and_adds_its_input_and_output_at_the_end(tmp_path: Path) -> None:
    """responses-API sections 'POST /responses request fields' and 'Details measured live'."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client, "Remember this word: marmalade.")
        first = await client.create(input="What was the word?", conversation=conversation_id)
        assert "marmalade" in read_text(first)
        assert first["conversation"] == {"id": conversation_id}
        assert first["previous_response_id"] is None
        second = await client.create(input="And the word?", conversation={"id": conversation_id})
        assert second["conversation"] == {"id": conversation_id}
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        assert (await client.retrieve(second["id"])).body == second
        listed = await list_all(client, conversation_id)
        assert [item["role"] for item in listed] == ["user", "user", "assistant", "user", "assistant"]
        assert listed[2]["id"] == first["output"][0]["id"]
        # A chain that goes on from it is no part of the conversation.
        chained = await client.create(input="And the word?", previous_response_id=second["id"])
        assert "conversation" not in chained or chained["conversation"] is None
        assert "marmalade" in read_text(chained)
        assert len(await list_all(client, conversation_id)) == 5
        # It is read, and nothing is added.
        unstored = await client.create(input="What was the word?", conversation=conversation_id, store=False)
        assert "marmalade" in read_text(unstored)
        assert unstored["conversation"] == {"id": conversation_id}
        assert len(await list_all(client, conversation_id)) == 5
        items = (await client.list_items(second["id"], order="asc")).body["data"]
        assert [item["id"] for item in items] == [item["id"] for item in listed[:4]]

    run(tmp_path, story)


def test_what_does_not_go_with_a_conversation_is_refused(tmp_path: Path) -> None:
    """responses-API section 'State errors'."""

    async def story(client: StrictClient) -> None:
        unknown = await client.refuse(404, input="x", conversation="conv_unknown")
        assert unknown == {
            "message": "Conversation with id 'conv_unknown' not found.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
        conversation_id = await new_conversation(client)
        response = await client.create(input="x")
        both = await client.refuse(
            input="x", conversation=conversation_id, previous_response_id=response["id"]
        )
        assert both["code"] == "mutually_exclusive_parameters"
        # The node of added items is no response, whatever its id.
        added = await client.send("POST", f"/v1/conversations/{conversation_id}/items", {"items": [say("x")]})
        digits = added.body["first_id"].removeprefix("msg_")[:36]
        for node_id in (f"items_{digits}", f"resp_{digits}"):
            assert (await client.retrieve(node_id)).status == 404
            assert (await client.delete(node_id)).status == 404
            assert (await client.list_items(node_id)).status == 404
            error = await client.refuse(input="x", previous_response_id=node_id)
            assert error["code"] == "previous_response_not_found"

    run(tmp_path, story)


def test_a_response_that_fails_or_is_refused_adds_nothing_and_frees_the_conversation(tmp_path: Path) -> None:
    """As decided: completed and incomplete responses alone are added; every end lets the conversation go."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client, "one")
        output = [{"type": "function_call_output", "call_id": "call_x", "output": "x"}]
        image = [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]
        for status, body in (
            (400, {"input": "refuse"}),
            (502, {"input": "break"}),
            (400, {"input": output}),
            (400, {"input": image}),
            (400, {"input": "x", "model": "unknown"}),
        ):
            answer = await client.post({**body, "conversation": conversation_id})
            assert answer.status == status, answer.body
            assert answer.error["code"] != "conversation_locked"
        events = await client.stream(input="break", conversation=conversation_id)
        assert events[-1]["response"]["status"] == "failed"
        assert events[-1]["response"]["conversation"] == {"id": conversation_id}
        assert await list_texts(client, conversation_id) == ["one"]
        await client.create(input="two", conversation=conversation_id)
        assert (await list_texts(client, conversation_id))[:2] == ["one", "two"]

    run(tmp_path, story)


def test_the_conversation_is_free_the_moment_that_the_end_is_told(tmp_path: Path) -> None:
    """Ours: a client may go on as soon as it has read the terminal event."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client)
        for number in range(20):
            async with client.open_stream(input=f"{number}", conversation=conversation_id) as events:
                async for event in events:
                    if event["type"] == "response.completed":
                        await client.create(input=f"{number} b", conversation=conversation_id)
        assert len(await list_all(client, conversation_id)) == 80

    run(tmp_path, story)


def test_while_a_response_runs_nothing_else_happens_in_its_conversation() -> None:
    """responses-API section 'State errors': conversation_locked; foreground, streaming and background."""

    async def try_everything(client: StrictClient, conversation_id: str, item_id: str) -> None:
        path = f"/v1/conversations/{conversation_id}"
        asked = {"input": "x", "model": "scripted", "conversation": conversation_id}
        for method, rest, body in (
            ("POST", "/v1/responses", asked),
            ("POST", "/v1/responses", {**asked, "stream": True}),
            ("POST", "/v1/responses", {**asked, "background": True}),
            ("POST", f"{path}/items", {"items": [say("x")]}),
            ("DELETE", f"{path}/items/{item_id}", None),
            ("DELETE", path, None),
        ):
            error = (await client.send(method, rest, body)).error
            assert error["message"] == LOCKED
            assert (error["param"], error["code"]) == ("conversation", "conversation_locked")
        # Reading is free, and so is the metadata; nothing of the running response is to be seen.
        assert await list_texts(client, conversation_id) == ["one"]
        assert (await client.send("POST", path, {"metadata": {"a": "b"}})).status == 200

    async def foreground(client: StrictClient, conversation_id: str, backend: GatedBackend) -> None:
        running = asyncio.create_task(client.create(input="go", conversation=conversation_id))
        await backend.waiting.wait()
        yield_ = await list_all(client, conversation_id)
        await try_everything(client, conversation_id, yield_[0]["id"])
        backend.gate.set()
        await running

    async def streaming(client: StrictClient, conversation_id: str, backend: GatedBackend) -> None:
        async with client.open_stream(input="go", conversation=conversation_id) as events:
            await anext(events)
            await backend.waiting.wait()
            first = (await list_all(client, conversation_id))[0]
            await try_everything(client, conversation_id, first["id"])
            backend.gate.set()
            async for _ in events:
                pass

    async def background(client: StrictClient, conversation_id: str, backend: GatedBackend) -> None:
        queued = await client.post({"input": "go", "conversation": conversation_id, "background": True})
        await backend.waiting.wait()
        first = (await list_all(client, conversation_id))[0]
        await try_everything(client, conversation_id, first["id"])
        backend.gate.set()
        while (await client.retrieve(queued.body["id"])).body["status"] != "completed":
            await asyncio.sleep(0)

    async def story(way: Callable[[StrictClient, str, GatedBackend], Awaitable[None]]) -> None:
        backend = GatedBackend(SCRIPT, gate_at=1)
        async with asyncio.timeout(30), serve_doubles(backend) as client:
            conversation_id = await new_conversation(client, "one")
            await way(client, conversation_id, backend)
            assert len(await list_all(client, conversation_id)) == 3
            await client.create(input="next", conversation=conversation_id)

    for way in (foreground, streaming, background):
        asyncio.run(story(way))


def test_a_client_that_leaves_frees_the_conversation_and_adds_nothing() -> None:
    """Ours: the round is stored as cancelled, and is no part of the conversation."""

    async def story() -> None:
        backend = GatedBackend(SCRIPT, gate_at=2)
        async with asyncio.timeout(30), serve_doubles(backend) as client:
            conversation_id = await new_conversation(client, "one")
            async with client.open_stream(input="go", conversation=conversation_id) as events:
                response = (await anext(events))["response"]
                await backend.waiting.wait()
            running = asyncio.create_task(client.post({"input": "go", "conversation": conversation_id}))
            backend.waiting.clear()
            await wait_until_free(client, conversation_id)
            running.cancel()
            await asyncio.wait({running})
            await wait_until_free(client, conversation_id)
            backend.gate.set()
            assert await list_texts(client, conversation_id) == ["one"]
            assert (await client.retrieve(response["id"])).body["status"] == "cancelled"
            await client.create(input="next", conversation=conversation_id)

    asyncio.run(story())


async def wait_until_free(client: StrictClient, conversation_id: str) -> None:
    """Until the conversation is not locked; deleting an item that is not there says so without harm."""
    while (await client.send("DELETE", f"/v1/conversations/{conversation_id}/items/msg_none")).status == 400:
        await asyncio.sleep(0)


def test_an_accident_of_our_own_frees_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: whatever is raised while a request is laid out or carried out."""

    async def story() -> None:
        backend = GatedBackend(SCRIPT)
        async with asyncio.timeout(30), serve_doubles(backend) as client:
            conversation_id = await new_conversation(client, "one")

            def burst(*_: Any, **__: Any) -> Any:
                raise RuntimeError("burst")

            for name in ("transcribe", "stream"):
                with monkeypatch.context() as patch:
                    patch.setattr(backend, name, burst)
                    assert (await client.post({"input": "x", "conversation": conversation_id})).status == 500
            await client.create(input="next", conversation=conversation_id)

    asyncio.run(story())


def test_changes_that_need_no_model_wait_for_each_other(tmp_path: Path) -> None:
    """Ours: adding from several places at once loses nothing and refuses nobody."""

    async def story(client: StrictClient) -> None:
        conversation_id = await new_conversation(client)
        path = f"/v1/conversations/{conversation_id}/items"
        answers = await asyncio.gather(
            *(client.send("POST", path, {"items": [say(f"{number}")]}) for number in range(40))
        )
        assert {answer.status for answer in answers} == {200}
        texts = await list_texts(client, conversation_id)
        assert sorted(texts, key=int) == [f"{number}" for number in range(40)]

    run(tmp_path, story)
