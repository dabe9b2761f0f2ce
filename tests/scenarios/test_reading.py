"""Reading back: responses, their items in pages, models; and that a tenant sees its own alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.client import Answer, StrictClient, find_terminal
from tests.scenarios.serving import hash_key, serve

USER_KEYS = {"id", "type", "role", "content", "status"}


def user(text: str, **more: Any) -> dict[str, Any]:
    """A user message as clients write it."""
    return {"role": "user", "content": text, **more}


def list_texts(page: dict[str, Any]) -> list[str]:
    """The text of each message on a page."""
    return [item["content"][0]["text"] for item in page["data"]]


def not_found(response_id: str) -> dict[str, Any]:
    """Responses API 6.3: what every route says of an unknown response."""
    return {
        "message": f"Response with id '{response_id}' not found.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


def test_a_response_reads_as_it_was_sent(tmp_path: Path) -> None:
    """Responses API 1 and 2.1: the same object, every echo included."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            body = {
                "input": [user("Hello.")],
                "instructions": "Be brief.",
                "metadata": {"a": "1", "b": ""},
                "temperature": 0.25,
                "top_p": 0.5,
                "presence_penalty": 0.5,
                "frequency_penalty": -0.5,
                "max_output_tokens": 100,
                "parallel_tool_calls": True,
                "prompt_cache_key": "key",
                "prompt_cache_retention": "24h",
                "prompt_cache_options": {"mode": "explicit", "ttl": "12h"},
                "safety_identifier": "me",
                "user": "you",
                "service_tier": "auto",
                "top_logprobs": 3,
                "reasoning": {"summary": "auto"},
                "truncation": "disabled",
            }
            collected = await client.create(**body)
            streamed = find_terminal(await client.stream(**body))
            for response in (collected, streamed):
                assert (await client.retrieve(response["id"])).body == response
                for name in set(body) - {"input", "reasoning", "service_tier"}:
                    assert response[name] == body[name], name
                assert response["reasoning"]["summary"] == "auto"
                assert response["service_tier"] == "default"
                assert response["id"].startswith("resp_")

    asyncio.run(story())


def test_reading_takes_the_query_of_the_api_and_no_other(tmp_path: Path) -> None:
    """Responses API 1: `stream=true` only for background streams; unknown parameters are refused."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            response = await client.create(input="Hello.")
            path = f"/v1/responses/{response['id']}"
            for query in (
                "include[]=message.output_text.logprobs",
                "include=reasoning.encrypted_content",
                "stream=false",
            ):
                assert (await client.send("GET", f"{path}?{query}")).body == response
            for query, param in (
                ("stream=true", "stream"),
                ("stream=yes", "stream"),
                ("wrong=1", "wrong"),
                ("include=x", "include[0]"),
                ("include[]=x", "include[0]"),
                ("starting_after=1", "starting_after"),
                ("include_obfuscation=true", "include_obfuscation"),
            ):
                answer = await client.send("GET", f"{path}?{query}")
                assert (answer.status, answer.error["param"]) == (400, param)

    asyncio.run(story())


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_join_to_the_whole_list(tmp_path: Path, order: str, limit: int) -> None:
    """Responses API 1.1: `after` is exclusive and works in both orders, `has_more` tells of what is left."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            first = await client.create(input=[user(f"first {n}") for n in range(3)])
            second = await client.create(
                input=[user(f"second {n}") for n in range(2)], previous_response_id=first["id"]
            )
            whole = (await client.list_items(second["id"], order="asc", limit=100)).body["data"]
            assert [item["role"] for item in whole] == [*["user"] * 3, "assistant", *["user"] * 2]
            assert whole[3] == first["output"][0]
            expected = whole if order == "asc" else whole[::-1]
            found: list[Any] = []
            query: dict[str, Any] = {"order": order, "limit": limit}
            while True:
                page = (await client.list_items(second["id"], **query)).body
                found += page["data"]
                assert page["has_more"] == (len(found) < len(expected))
                if not page["has_more"]:
                    break
                assert len(page["data"]) == limit
                query["after"] = page["last_id"]
            assert found == expected
            end = await client.list_items(second["id"], order=order, after=expected[-1]["id"])
            assert end.body == {
                "object": "list",
                "data": [],
                "first_id": None,
                "last_id": None,
                "has_more": False,
            }

    asyncio.run(story())


def test_the_newest_twenty_items_come_first(tmp_path: Path) -> None:
    """Responses API 1: limit 20 and order desc are the defaults."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            response = await client.create(input=[user(str(number)) for number in range(30)])
            page = (await client.list_items(response["id"])).body
            assert list_texts(page) == [str(number) for number in range(29, 9, -1)]
            assert page["has_more"]

    asyncio.run(story())


def test_listed_items_have_their_normal_form_and_the_same_id_everywhere(tmp_path: Path) -> None:
    """Responses API 3.4 and as decided: string content becomes parts, ids are derived and stay."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            first = await client.create(
                input=[
                    user("one"),
                    {"role": "system", "content": [{"type": "input_text", "text": "two"}]},
                    {"type": "message", "role": "assistant", "content": "three"},
                    user("four", id="msg_mine"),
                ]
            )
            second = await client.create(input="five", previous_response_id=first["id"])
            own = (await client.list_items(first["id"], order="asc")).body["data"]
            later = (await client.list_items(second["id"], order="asc")).body["data"]
            assert later[:4] == own
            assert own[0] == {
                "id": own[0]["id"],
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{"type": "input_text", "text": "one"}],
            }
            assert own[2]["content"] == [
                {"type": "output_text", "text": "three", "annotations": [], "logprobs": []}
            ]
            assert own[3]["id"] == "msg_mine"
            assert len({item["id"] for item in later}) == 6

    asyncio.run(story())


def test_wrong_paging_is_refused(tmp_path: Path) -> None:
    """Responses API 1.1 and 6.3."""
    table: list[tuple[dict[str, Any], int, str, str | None]] = [
        ({"limit": 0}, 400, "limit", "integer_below_min_value"),
        ({"limit": 101}, 400, "limit", "integer_above_max_value"),
        ({"limit": -1}, 400, "limit", "integer_below_min_value"),
        ({"limit": "ten"}, 400, "limit", "invalid_type"),
        ({"limit": ""}, 400, "limit", "invalid_type"),
        ({"limit": "1_0"}, 400, "limit", "invalid_type"),
        ({"limit": "\u0663"}, 400, "limit", "invalid_type"),
        ({"limit": "2.0"}, 400, "limit", "invalid_type"),
        ({"limit": "9" * 5000}, 400, "limit", None),
        ({"order": "up"}, 400, "order", "invalid_value"),
        ({"before": "x"}, 400, "before", "unknown_parameter"),
        ({"after": "msg_nowhere"}, 404, "after", None),
        ({"after": ""}, 404, "after", None),
    ]

    async def story() -> None:
        async with serve(tmp_path) as client:
            response = await client.create(input="Hello.")
            for query, status, param, code in table:
                answer = await client.list_items(response["id"], **query)
                assert answer.status == status, query
                assert answer.error["param"] == param
                if code is not None or status == 404:
                    assert answer.error["code"] == code
            answer = await client.list_items(response["id"], after="msg_nowhere")
            assert answer.error["message"] == "No item found with id 'msg_nowhere'"

    asyncio.run(story())


def test_items_of_a_response_below_a_deleted_one_are_its_own(tmp_path: Path) -> None:
    """Decided: the child keeps its own record."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            root = await client.create(input="one")
            tip = await client.create(input="two", previous_response_id=root["id"])
            assert (await client.delete(root["id"])).body == {
                "id": root["id"],
                "object": "response",
                "deleted": True,
            }
            assert list_texts((await client.list_items(tip["id"])).body) == ["two"]
            answer = await client.list_items(root["id"])
            assert (answer.status, answer.error) == (404, not_found(root["id"]))

    asyncio.run(story())


def test_models_are_listed_and_read(tmp_path: Path) -> None:
    """Responses API 1, row 16; as decided: aliases and what the endpoints list; the client's name is echoed."""

    async def story() -> None:
        script = {"models": ["plain", "org/name with space"], "rules": [{"text": "ok"}]}
        models = {"fast": {"endpoint": "scripted", "model": "plain"}}
        async with serve(tmp_path, script, models=models) as client:
            listed = (await client.send("GET", "/v1/models")).body["data"]
            names = [model["id"] for model in listed]
            assert names == ["fast", "plain", "org/name with space"]
            for model in listed:
                path = model["id"].replace(" ", "%20")
                read = (await client.send("GET", f"/v1/models/{path}")).body
                assert read.pop("antiphon") == {
                    "window_tokens": 32768,
                    "sees_images": None,
                    "efforts": [],
                }
                assert read == model
                response = await client.create(input="Hello.", model=model["id"])
                assert response["model"] == model["id"]
            answer = await client.send("GET", "/v1/models/slow")
            assert answer.status == 404
            assert answer.error == {
                "message": "The model 'slow' does not exist.",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
            }
            error = await client.refuse(input="Hello.", model="slow")
            assert error == {
                "message": "The requested model 'slow' does not exist. This server has fast, plain, "
                "org/name with space.",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
            }

    asyncio.run(story())


def test_a_model_that_two_endpoints_list_needs_an_alias(tmp_path: Path) -> None:
    """Decided: a name listed by exactly one endpoint."""

    async def story() -> None:
        more = {"endpoints": {"scripted": {"dialect": "scripted"}, "other": {"dialect": "scripted"}}}
        models = {"mine": {"endpoint": "other", "model": "scripted"}}
        async with serve(tmp_path, **more, models=models) as client:
            error = await client.refuse(input="Hello.")
            assert error["code"] == "model_not_found"
            assert "other, scripted" in error["message"]
            assert (await client.create(input="Hello.", model="mine"))["model"] == "mine"

    asyncio.run(story())


def test_the_model_may_change_along_a_chain(tmp_path: Path) -> None:
    """Responses API 2: every request stands alone apart from items."""

    async def story() -> None:
        script = {"models": ["a", "b"], "rules": [{"when": "(?i)what", "act": "recall"}, {"act": "note"}]}
        async with serve(tmp_path, script) as client:
            first = await client.create(input="Remember this word: plum.", model="a")
            second = await client.create(
                input="What was the word?", model="b", previous_response_id=first["id"]
            )
            assert "plum" in second["output"][0]["content"][0]["text"]

    asyncio.run(story())


def without(answer: Answer, response_id: str) -> tuple[int, Any, list[str]]:
    """An answer without the id that it names, and the names of its headers."""
    return answer.status, answer.raw.replace(response_id.encode(), b"ID"), sorted(answer.headers)


def test_a_foreign_id_and_an_unknown_id_give_the_same_answer_on_every_route(tmp_path: Path) -> None:
    """Ours: a key belongs to a tenant and sees only its data; nothing tells that a foreign id exists."""
    keys = {
        "anna": {"sha256": hash_key("key-a")},
        "second": {"sha256": hash_key("key-a2"), "tenant": "anna"},
        "ben": {"sha256": hash_key("key-b")},
    }

    async def story() -> None:
        async with serve(tmp_path, keys=keys) as client:
            anna, ben = client.with_key("key-a"), client.with_key("key-b")
            foreign = (await anna.create(input="Remember this word: plum."))["id"]
            gone = (await anna.create(input="Remember this word: pear."))["id"]
            assert (await anna.delete(gone)).status == 200
            unknown = foreign[:-1] + ("0" if foreign[-1] != "0" else "1")

            async def ask(response_id: str) -> list[tuple[int, Any, list[str]]]:
                answers = [
                    await ben.retrieve(response_id),
                    await ben.list_items(response_id),
                    await ben.list_items(response_id, after="msg_x"),
                    await ben.delete(response_id),
                    await ben.post({"input": "Hello.", "previous_response_id": response_id}),
                    await ben.post({"input": [], "previous_response_id": response_id}),
                    await ben.post({"input": "Hello.", "previous_response_id": response_id, "stream": True}),
                    await ben.post({"input": "Hello.", "previous_response_id": response_id, "store": False}),
                ]
                return [without(answer, response_id) for answer in answers]

            expected = await ask(unknown)
            assert {status for status, _, _ in expected} == {404, 400}
            assert await ask(foreign) == expected
            assert await ask(gone) == expected
            assert await ask("resp_0") == expected
            # Nothing of it touched the owner's data, and a second key of the tenant sees it.
            again = await client.with_key("key-a2").create(
                input="What was the word?", previous_response_id=foreign
            )
            assert "plum" in again["output"][0]["content"][0]["text"]

    asyncio.run(story())


def test_a_foreign_item_id_is_free_for_another_tenant(tmp_path: Path) -> None:
    """Decided: client-given item ids count inside the tenant."""
    keys = {"anna": {"sha256": hash_key("key-a")}, "ben": {"sha256": hash_key("key-b")}}

    async def story() -> None:
        async with serve(tmp_path, keys=keys) as client:
            for key in ("key-a", "key-b"):
                response = await client.with_key(key).create(input=[user(key, id="msg_same")])
                page = await client.with_key(key).list_items(response["id"])
                assert list_texts(page.body) == [key]

    asyncio.run(story())


def test_without_a_known_key_nothing_is_answered(tmp_path: Path) -> None:
    """Responses API 6, 401; health needs no key."""
    routes = [
        ("POST", "/v1/responses"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/scripted"),
    ]

    async def story() -> None:
        async with serve(tmp_path, keys={"anna": {"sha256": hash_key("key-a")}}) as client:
            wrong: list[dict[str, str]] = [
                {},
                {"authorization": "Bearer wrong"},
                {"authorization": "Bearer "},
                {"authorization": "Basic key-a"},
                {"authorization": "key-a"},
                {"authorization": "Bearer key-a\xff"},
            ]
            for method, path in routes:
                for headers in wrong:
                    body = {"model": "scripted", "input": "Hello."} if method == "POST" else None
                    answer = await client.send(method, path, body, headers)
                    assert answer.status == 401, (method, path, headers)
                    assert answer.error["code"] == "invalid_api_key"
                    assert answer.error["type"] == "invalid_request_error"
            for path in ("/health", "/ready"):
                assert (await client.send("GET", path)).status == 200
            # Case of the scheme and room around the key do not matter; nor does a foreign Host.
            answer = await client.send(
                "GET",
                "/v1/models",
                headers={"authorization": "bearer  key-a ", "host": "example.org", "origin": "https://x.org"},
            )
            assert answer.status == 200

    asyncio.run(story())


def test_health_and_readiness_are_told(tmp_path: Path) -> None:
    """Ours: /health and /ready."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            assert (await client.send("GET", "/health")).body == {"status": "ok"}
            assert (await client.send("GET", "/ready")).body == {"status": "ready"}

    asyncio.run(story())


def test_the_openapi_document_describes_what_is_served(tmp_path: Path) -> None:
    """Ours: /openapi.json; ours: each of its paths answers with something else than 404 or 405."""

    async def story(client: StrictClient) -> None:
        document = (await client.send("GET", "/openapi.json")).body
        assert document["openapi"].startswith("3.1")
        named = {"{response_id}": "resp_1", "{conversation_id}": "conv_1", "{item_id}": "msg_1"}
        for path, methods in document["paths"].items():
            filled = path.replace("{model}", "scripted")
            for name, value in named.items():
                filled = filled.replace(name, value)
            assert "{" not in filled, f"{path} has a part that this test does not know"
            for method in methods:
                answer = await client.send(method.upper(), filled, {} if method == "post" else None)
                assert answer.status != 405
                is_told = any(value in str(answer.body) for value in named.values())
                assert answer.status != 404 or is_told, (method, path)

    async def run() -> None:
        async with serve(tmp_path) as client:
            await story(client)

    asyncio.run(run())
