"""What a model is not shown as it was is told to the client, and what it is shown is nobody else's."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.protocol.errors import StoreError
from antiphon.store.memory import MemoryStore
from tests.fake_upstream import END, MODEL, FakeUpstream, Reply, make_chunk, make_head, make_stream
from tests.scenarios.client import read_text
from tests.scenarios.serving import GatedBackend, serve, serve_doubles
from tests.scenarios.test_tools import CLOCK, WEATHER, give, list_calls, make

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def list_warnings(response: dict[str, Any]) -> list[str]:
    """What the response warns of."""
    return [warning["message"] for warning in response.get("antiphon", {}).get("warnings", [])]


def think() -> Reply:
    """An upstream answer with reasoning before it."""
    said = make_chunk({"content": "ok"}, "stop", usage=USAGE)
    return Reply([make_head(), make_chunk({"reasoning_content": "hm"}), said, END])


def call(arguments: str, finish: str) -> Reply:
    """An upstream answer of one call."""
    function = {"name": "get_time", "arguments": arguments}
    delta = {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]}
    return Reply([make_head(), make_chunk(delta), make_chunk({}, finish, usage=USAGE), END])


@pytest.mark.parametrize("cache_bytes", [1 << 28, 0])
@pytest.mark.parametrize(
    ("first", "answers", "told"),
    [
        (think(), False, "Earlier reasoning is not sent back to this model."),
        (
            call('{"broken', "tool_calls"),
            True,
            "The arguments of call call_1 are no JSON object; they were wrapped.",
        ),
        (call('{"a"', "length"), False, "The call call_1 was cut off before its arguments were whole"),
    ],
)
def test_what_of_the_history_is_changed_is_told_with_every_round_that_continues_it(
    tmp_path: Path, first: Reply, answers: bool, told: str, cache_bytes: int
) -> None:
    """Ours: nothing is lost silently; the same by id as with the full history, from memory or the store."""

    async def story() -> None:
        replies = [first, *[Reply(make_stream("ok", usage=USAGE)) for _ in range(2)]]
        async with FakeUpstream(lambda _: replies.pop(0)) as upstream:
            sections: dict[str, Any] = {
                "endpoints": {"fake": {"url": upstream.url, "profile": "mute"}},
                "profiles": {"mute": {"reasoning_field": "none"}},
                "limits": {"window_cache_bytes": cache_bytes},
            }
            async with serve(tmp_path, None, **sections) as client:
                shared: dict[str, Any] = {"model": MODEL, "tools": [CLOCK]}
                odd = await client.create(input="Go.", **shared)
                again: Any = [give(each, "12:00") for each in list_calls(odd)] if answers else "And?"
                second = await client.create(input=again, previous_response_id=odd["id"], **shared)
                third = await client.create(input="And?", previous_response_id=second["id"], **shared)
                for response in (second, third):
                    assert [text for text in list_warnings(response) if text.startswith(told)], response

    asyncio.run(story())


def test_a_branch_that_is_asked_twice_never_sees_what_another_branch_says_meanwhile() -> None:
    """Ours: no branch sees another; a forced call that is asked for again continues the same history."""

    async def story() -> None:
        backend = GatedBackend({"rules": [{"when": "secret", "text": "Noted."}, {"text": "No call."}]})
        async with serve_doubles(backend) as client:
            root = await client.create(input="Hello.")
            backend.gate_at = 1
            forced = {"tools": [WEATHER], "tool_choice": "required", "previous_response_id": root["id"]}
            asking = asyncio.create_task(
                client.send("POST", "/v1/responses", {"model": "scripted", "input": [], **forced})
            )
            await backend.waiting.wait()
            backend.gate_at = None
            await client.create(input="The secret is marmalade.", previous_response_id=root["id"])
            backend.gate.set()
            await asking
            seen = [json.dumps([piece.decode() for piece in ask.transcript]) for ask in backend.asks]
            assert len(seen) == 4
            assert [text for text in seen if "marmalade" in text] == [seen[2]]

    asyncio.run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_other_tools_than_before_are_no_truncation(tmp_path: Path, stream: bool) -> None:
    """Ours: a prompt that tells of fewer tools is shorter, and nothing of the history is missing."""

    async def story() -> None:
        async with serve(tmp_path, {"rules": [{"text": "ok"}]}) as client:
            parent: str | None = None
            allowed = {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "get_time"}],
            }
            for choice in ("auto", "none", "auto", allowed):
                response = await make(
                    client,
                    stream,
                    input="Go.",
                    tools=[WEATHER, CLOCK],
                    tool_choice=choice,
                    previous_response_id=parent,
                )
                assert list_warnings(response) == []
                parent = response["id"]

    asyncio.run(story())


def test_a_deletion_that_could_not_be_finished_is_read_from_memory_no_more() -> None:
    """Ours: whatever the storage says, a deleted text goes to no model."""

    class Failing(MemoryStore):
        async def delete(self, tenant: str, node_id: str) -> bool:
            await super().delete(tenant, node_id)
            raise StoreError("The store's log could not be emptied.")

    async def story() -> None:
        backend = GatedBackend({"rules": [{"text": "ok"}]})
        async with serve_doubles(backend, Failing()) as client:
            root = await client.create(input="The secret is marmalade.")
            child = await client.create(input="And?", previous_response_id=root["id"])
            assert (await client.delete(root["id"])).status == 500
            asked = len(backend.asks)
            for parent in (root["id"], child["id"]):
                body = {"model": "scripted", "input": "Go on.", "previous_response_id": parent}
                answer = await client.send("POST", "/v1/responses", body)
                assert answer.error["code"] == "previous_response_not_found"
            assert len(backend.asks) == asked

    asyncio.run(story())


def test_a_list_shows_items_whose_unknown_keys_have_the_names_of_others(tmp_path: Path) -> None:
    """Ours: unknown keys are kept, whatever they are called."""

    async def story() -> None:
        async with serve(tmp_path, {"rules": [{"text": "ok"}]}) as client:
            items = [
                {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "output": ["x"]},
                {"type": "function_call_output", "call_id": "c1", "output": "1"},
                {"type": "reasoning", "summary": [], "output": [None]},
                {"role": "user", "content": "Go."},
            ]
            response = await client.create(input=items)
            assert read_text(response) == "ok"
            assert await client.count_items(response["id"]) == len(items)

    asyncio.run(story())


def test_a_body_that_was_lost_with_an_upgrade_says_so(tmp_path: Path) -> None:
    """Ours: clients that offer HTTP/2 in clear text (h2c) are told what to leave out."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            headers = {"upgrade": "h2c", "content-type": "application/json"}
            answer = await client.send("POST", "/v1/responses", b"", headers)
            assert answer.status == 400
            assert "--http1.1" in answer.error["message"]

    asyncio.run(story())


def test_a_small_compressed_body_that_unpacks_to_millions_of_arrays_is_refused_cheaply(
    tmp_path: Path,
) -> None:
    """Ours: a body is never turned into a tree before it is known to be small enough for one."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            for body in (
                b'{"model":"scripted","input":"x","metadata":{"a":[' + b"[]," * 1_000_000 + b"[]]}}",
                b'{"model":"scripted","input":[{"role":"user","content":"x","z":['
                + b"[]," * 1_000_000
                + b"[]]}]}",
            ):
                answer = await client.send("POST", "/v1/responses", body)
                assert (answer.status, answer.error["code"]) == (400, "invalid_value")

    asyncio.run(story())
