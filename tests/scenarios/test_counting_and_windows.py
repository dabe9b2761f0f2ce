"""Tokens counted before they are spent, history that does not fit, and the report of what the model saw."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fake_upstream import END, MODEL, Reply, make_body, make_chunk, make_head
from tests.scenarios.client import StrictClient, find_terminal, read_text
from tests.scenarios.houses import House, list_codes, read_array, run, think
from tests.scenarios.serving import serve

STREAMS = pytest.mark.parametrize("stream", [False, True])
#: A script whose window is small enough to be filled by hand.
SMALL: dict[str, Any] = {
    "window_tokens": 400,
    "rules": [{"when": r"\?\s*$", "act": "recall"}, {"act": "note"}],
}
LONG = "word " * 60
TOOL = {"type": "function", "name": "plain", "parameters": {"type": "object"}, "strict": False}


async def make(client: StrictClient, stream: bool, **body: Any) -> dict[str, Any]:
    """A response by either way."""
    return find_terminal(await client.stream(**body)) if stream else await client.create(**body)


async def count(client: StrictClient, **body: Any) -> dict[str, Any]:
    """What `input_tokens` says."""
    answer = await client.send("POST", "/v1/responses/input_tokens", {"model": "scripted", **body})
    assert answer.status == 200, answer.body
    told: dict[str, Any] = answer.body
    return told


async def report(client: StrictClient, response_id: str) -> dict[str, Any]:
    """The window report of a response."""
    answer = await client.send("GET", f"/v1/responses/{response_id}/window")
    assert answer.status == 200, answer.body
    told: dict[str, Any] = answer.body
    return told


@STREAMS
def test_the_count_is_what_usage_says_later(tmp_path: Path, stream: bool) -> None:
    """Spec: input_tokens counts what the model would be shown, path, tools and conversation included."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            conversation = (await client.send("POST", "/v1/conversations", {})).body["id"]
            first = await make(client, stream, input="My name is Ada.", conversation=conversation)
            bodies: list[dict[str, Any]] = [
                {"input": "Hello."},
                {"input": "Hello.", "instructions": "Be brief."},
                {"input": "Hello.", "tools": [TOOL]},
                {"input": "Hello.", "tools": [TOOL], "tool_choice": "none"},
                {"input": "Hello.", "previous_response_id": first["id"]},
                {"input": "Hello.", "conversation": conversation},
                {"input": [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]},
            ]
            for body in bodies:
                told = await count(client, **body)
                made = await make(client, stream, **body)
                assert told == {
                    "object": "response.input_tokens",
                    "input_tokens": made["usage"]["input_tokens"],
                }

    asyncio.run(story())


def test_an_estimate_is_told_as_one(tmp_path: Path) -> None:
    """Ours: a server that cannot count is estimated for, and learns from what the model server reports."""

    async def story(house: House) -> None:
        body: dict[str, Any] = {"model": MODEL, "input": "How are you today?"}
        told = await count(house.client, **body)
        assert told["antiphon"] == {"estimated": True}
        assert 3 < told["input_tokens"] < 40
        assert house.upstream.asked == []
        made = await house.make(**body)
        assert made["usage"]["input_tokens"] == 100

    run(tmp_path, ["Well."], story)


@STREAMS
def test_the_oldest_history_is_dropped_and_told(tmp_path: Path, stream: bool) -> None:
    """Spec: truncation auto; reported, kept, and chains go on."""

    async def story() -> None:
        async with serve(tmp_path, SMALL) as client:
            parent: str | None = None
            for number in range(5):
                made = await make(
                    client,
                    stream,
                    input=f"Remember word{number}. {LONG}",
                    previous_response_id=parent,
                    truncation="auto",
                )
                parent = made["id"]
            assert list_codes(made) == ["history_truncated"]
            dropped = made["antiphon"]["dropped"]
            assert made["antiphon"]["dropped_count"] == len(dropped)
            assert made["truncation"] == "auto"
            assert made["usage"]["input_tokens"] <= 400
            # All of it is still there.
            page = await client.list_items(made["id"], order="asc", limit=100)
            assert len(page.body["data"]) == 9
            assert [row["id"] for row in dropped] == [item["id"] for item in page.body["data"]][
                : len(dropped)
            ]
            read = (await client.retrieve(made["id"])).body
            assert read["antiphon"] == made["antiphon"]
            told = await report(client, made["id"])
            assert told["dropped"] == dropped
            assert [row["tokens"] for row in told["items"] if not row["shown"]] == [
                row["tokens"] for row in dropped
            ]
            assert [row["reason"] for row in told["items"] if not row["shown"]] == ["dropped"] * len(dropped)
            assert told["input_tokens"] == {
                "reported": made["usage"]["input_tokens"],
                "counted": made["usage"]["input_tokens"],
                "exact": True,
            }
            # Without it, the same request is refused, with the numbers.
            error = await client.refuse(input=LONG, previous_response_id=parent)
            assert error["code"] == "context_length_exceeded"
            assert "400" in error["message"]
            after = await make(
                client, stream, input="What was word4?", previous_response_id=parent, truncation="auto"
            )
            assert list_codes(after) == ["history_truncated"]
            assert after["status"] == "completed"

    asyncio.run(story())


@STREAMS
def test_a_prompt_that_cannot_be_made_to_fit_is_refused(tmp_path: Path, stream: bool) -> None:
    """Spec: what is asked now is never dropped."""

    async def story() -> None:
        async with serve(tmp_path, SMALL) as client:
            error = await client.refuse(input="word " * 500, truncation="auto", stream=stream)
            assert error["code"] == "context_length_exceeded"

    asyncio.run(story())


@STREAMS
def test_a_server_that_says_that_it_does_not_fit_is_asked_again(tmp_path: Path, stream: bool) -> None:
    """Ours: the numbers of the refusal are believed; the same bytes stand in the report."""
    refusal = {
        "error": {
            "message": "This model's maximum context length is 300 tokens. However, your messages resulted in 400 "
            "tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }
    too_long = Reply([make_body(msgspec.json.encode(refusal), status=400, content_type="application/json")])

    async def story(house: House) -> None:
        parent: str | None = None
        for number in range(3):
            made = await house.make(input=f"{number} {LONG}", previous_response_id=parent)
            parent = made["id"]
        made = await house.make(stream=stream, input="Now?", previous_response_id=parent, truncation="auto")
        assert list_codes(made) == ["history_truncated"]
        told = await house.get(f"/v1/responses/{made['id']}/window")
        assert json.dumps(told["messages"]) == json.dumps(house.messages)
        assert len(house.upstream.asked[-1].body) < len(house.upstream.asked[-2].body)
        error = await house.refuse(input="Now?", previous_response_id=parent)
        assert error["code"] == "context_length_exceeded"
        assert "300" in error["message"]
        assert "400" in error["message"]

    run(tmp_path, ["a", "b", "c", too_long, "d", too_long], story)


@STREAMS
def test_the_report_is_what_was_sent_byte_for_byte(tmp_path: Path, stream: bool) -> None:
    """Ours: system text, reasoning, tools, files: rendered anew, they are the same bytes."""
    tools = [TOOL, {"type": "namespace", "name": "ns", "description": "", "tools": [TOOL]}]

    async def story(house: House) -> None:
        first = await house.make(
            stream=stream,
            instructions="Be brief.",
            input=[
                {"role": "developer", "content": "Sandboxed."},
                {"role": "user", "content": "é \U0001f600?"},
            ],
            tools=tools,
        )
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
        second = await house.make(
            stream=stream,
            input=[output],
            previous_response_id=first["id"],
            tools=tools,
            instructions="Be long.",
        )
        third = await house.make(
            stream=stream, input=[{"role": "developer", "content": "x"}], previous_response_id=second["id"]
        )
        for response, asked in zip((first, second, third), house.upstream.asked, strict=True):
            raw = (await house.client.send("GET", f"/v1/responses/{response['id']}/window")).raw
            told = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            system = msgspec.json.decode(told["system"])
            sent = asked.json["messages"]
            if system:
                assert sent[0] == {"role": "system", "content": system}
                head = msgspec.json.encode(sent[0])
                assert read_array(asked) == b"[" + head + b"," + bytes(told["messages"])[1:]
            else:
                assert read_array(asked) == bytes(told["messages"])
            report_ = msgspec.json.decode(raw)
            usage = response["usage"] or {}
            assert report_["input_tokens"]["reported"] == usage.get("input_tokens")
            assert report_["response_id"] == response["id"]

    run(tmp_path, [[("ns__plain", "{}")], think("hm", "a"), "b"], story)


def test_the_report_of_a_response_whose_parent_is_gone(tmp_path: Path) -> None:
    """Decided: deletion is real; the report tells what is left."""

    async def story(house: House) -> None:
        first = await house.make(input="The secret is marmalade.")
        second = await house.make(input="Second.", previous_response_id=first["id"])
        third = await house.make(input="Third.", previous_response_id=second["id"])
        assert (await house.client.delete(first["id"])).status == 200
        for response in (second, third):
            told = await house.get(f"/v1/responses/{response['id']}/window")
            assert "marmalade" not in json.dumps(told)
            assert told["messages"][-1]["role"] == "user"
            assert [each["code"] for each in told["warnings"]] == ["path_changed"]
        assert len(told["messages"]) == 3
        gone = await house.client.send("GET", f"/v1/responses/{first['id']}/window")
        assert gone.status == 404

    run(tmp_path, ["a", "b", "c"], story)


@STREAMS
def test_the_report_of_a_response_of_several_generations(tmp_path: Path, stream: bool) -> None:
    """Ours: it is of the prompt of the request, which all generations share."""
    tool = {"type": "function", "name": "slow", "parameters": {"type": "object"}, "async": True}

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="Go.", tools=[tool])
        told = await house.get(f"/v1/responses/{made['id']}/window")
        assert told["messages"] == house.upstream.asked[0].json["messages"]
        assert read_text(made) == "Started."

    run(tmp_path, [[("slow", "{}")], "Started."], story)


@STREAMS
def test_an_answer_that_the_window_cut_is_incomplete(tmp_path: Path, stream: bool) -> None:
    """Spec: the output shares the window."""
    cut = Reply([make_head(), make_chunk({"content": "Half an"}), make_chunk({}, "length"), END])

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="Go.")
        assert made["status"] == "incomplete"
        assert made["incomplete_details"] == {"reason": "max_output_tokens"}

    run(tmp_path, [cut], story)


def test_the_report_says_that_its_path_has_changed_since(tmp_path: Path) -> None:
    """Ours: what is left is counted anew, and is not what was reported then."""

    async def story() -> None:
        async with serve(tmp_path, SMALL) as client:
            items = [{"role": "user", "content": "a b c d e f g"}, {"role": "user", "content": "h"}]
            conversation = (await client.send("POST", "/v1/conversations", {"items": items})).body["id"]
            path = f"/v1/conversations/{conversation}/items"
            made = await make(client, True, input="i", conversation=conversation)
            before = await report(client, made["id"])
            assert before["warnings"] == []
            first = (await client.send("GET", f"{path}?order=asc")).body["data"][0]["id"]
            assert (await client.send("DELETE", f"{path}/{first}")).status == 200
            after = await client.send("GET", f"/v1/responses/{made['id']}/window")
            tokens = after.body["input_tokens"]
            assert tokens["counted"] < tokens["reported"] == before["input_tokens"]["reported"]
            assert [each["code"] for each in after.body["warnings"]] == ["path_changed"]
            # A later response knows nothing of it: what it reported is what there is.
            later = await make(client, True, input="j", conversation=conversation)
            assert (await report(client, later["id"]))["warnings"] == []

    asyncio.run(story())


def test_conversations_pass_over_what_does_not_fit(tmp_path: Path) -> None:
    """Ours: `truncation: auto` with a conversation drops from its beginning."""

    async def story() -> None:
        async with serve(tmp_path, SMALL) as client:
            conversation = (await client.send("POST", "/v1/conversations", {})).body["id"]
            for number in range(5):
                made = await make(
                    client, True, input=f"{number} {LONG}", conversation=conversation, truncation="auto"
                )
            assert list_codes(made) == ["history_truncated"]
            told = await report(client, made["id"])
            assert told["dropped"]
            refused = await client.refuse(input=LONG, conversation=conversation)
            assert refused["code"] == "context_length_exceeded"
            page = await client.send("GET", f"/v1/conversations/{conversation}/items?limit=100")
            assert len(page.body["data"]) == 10

    asyncio.run(story())
