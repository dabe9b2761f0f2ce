"""A model server that speaks Responses itself: we keep the state, it is told everything each time, byte-true."""

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.checker import CheckOptions, Verdict, run_check, select_requirements
from tests.fake_upstream import (
    MODEL,
    FakeUpstream,
    Reply,
    Request,
    make_event,
    make_json,
    make_response_stream,
)
from tests.scenarios.client import read_text
from tests.scenarios.houses import House, list_codes, open_house, read_array, write
from tests.scenarios.houses import think as think_aloud

STREAMS = pytest.mark.parametrize("stream", [False, True])
#: A field that nobody knows, with numbers that a careless decoder would rewrite.
MOOD = b'"x_mood":{"calm":1.50,"since":[1e2,null]}'
SEALED = ["reasoning.encrypted_content"]
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 16,
}


def say(text: str, number: int = 1) -> dict[str, Any]:
    """A message of the server's."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": f"msg_up{number}",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }


def think(blob: str, number: int = 1) -> dict[str, Any]:
    """Reasoning under the server's own seal."""
    return {"type": "reasoning", "id": f"rs_up{number}", "summary": [], "encrypted_content": blob}


def call(name: str, number: int = 1) -> dict[str, Any]:
    """A call of the server's."""
    return {
        "type": "function_call",
        "id": f"fc_up{number}",
        "call_id": f"call_up{number}",
        "name": name,
        "arguments": "{}",
        "status": "completed",
    }


def answer(*items: dict[str, Any] | bytes, inner: dict[int, list[bytes]] | None = None, **last: Any) -> Reply:
    """A whole stream: each item added, what happens inside, and done."""
    events: list[bytes] = []
    raws = [msgspec.Raw(item if isinstance(item, bytes) else msgspec.json.encode(item)) for item in items]
    number = 0
    events.append(
        make_event("response.created", sequence_number=0, response={"id": "resp_up", "status": "in_progress"})
    )
    for index, raw in enumerate(raws):
        begun = {**msgspec.json.decode(raw)}
        if begun["type"] == "message":
            begun |= {"status": "in_progress", "content": []}
        events.append(make_event("response.output_item.added", output_index=index, item=begun))
        events += (inner or {}).get(index, [])
        if begun["type"] == "message":
            place = {"item_id": begun["id"], "output_index": index, "content_index": 0}
            part = msgspec.json.decode(raw)["content"][0]
            empty = {**part, "text": ""}
            events.append(make_event("response.content_part.added", **place, part=empty))
            for word in part["text"].split(" "):
                number += 1
                events.append(make_event("response.output_text.delta", **place, delta=word, logprobs=[]))
                if word != part["text"].split(" ")[-1]:
                    events.append(make_event("response.output_text.delta", **place, delta=" ", logprobs=[]))
            events.append(make_event("response.output_text.done", **place, text=part["text"], logprobs=[]))
            events.append(make_event("response.content_part.done", **place, part=part))
        events.append(make_event("response.output_item.done", output_index=index, item=raw))
    response = {
        "id": "resp_up",
        "object": "response",
        "status": "completed",
        "output": raws,
        "usage": USAGE,
        **last,
    }
    name = "response.completed" if response["status"] == "completed" else f"response.{response['status']}"
    return Reply(make_response_stream(*events, make_event(name, response=response)))


def run(
    folder: Path, replies: list[Reply], story: Callable[[House], Any], settings: dict[str, Any] | None = None
) -> None:
    """Our server before one that speaks Responses."""

    async def main() -> None:
        waiting = iter(replies)
        async with asyncio.timeout(40), FakeUpstream(lambda _: next(waiting)) as upstream:
            async with open_house(folder, upstream, settings=make_settings(upstream, settings)) as house:
                await story(house)
            assert len(upstream.asked) == len(replies)

    asyncio.run(main())


def make_settings(upstream: FakeUpstream, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """The endpoint as one of dialect `responses`."""
    return {"endpoints": {"fake": {"url": upstream.url, "dialect": "responses"}}, **(more or {})}


def list_types(items: list[dict[str, Any]]) -> list[str]:
    """The types of items as they were sent; a message may leave its own out."""
    return [item.get("type", "message") for item in items]


async def ask_raw(house: House, body: bytes) -> bytes:
    """The bytes of an answer that holds what no type of the package knows."""
    reply = await house.transport.send("POST", "/v1/responses", {"content-type": "application/json"}, body)
    try:
        raw = await reply.read()
        assert reply.status == 200, raw
        return raw
    finally:
        await reply.close()


@STREAMS
def test_by_id_it_is_sent_the_whole_input_and_keeps_nothing(tmp_path: Path, stream: bool) -> None:
    """Decided: `store: false` upstream, the history is ours; each input begins with the bytes of the one before."""
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Look.", tools=[tool], metadata={"a": "b"})
        assert first["id"].startswith("resp_")
        assert first["usage"] == USAGE
        (made,) = first["output"]
        assert made["call_id"] == "call_up1"
        output = {"type": "function_call_output", "call_id": "call_up1", "output": "seen"}
        second = await house.make(
            stream=stream, input=[output], tools=[tool], previous_response_id=first["id"]
        )
        third = await house.make(stream=stream, input="Thanks.", previous_response_id=second["id"])
        assert read_text(third) == "Bye."
        for asked in house.upstream.asked:
            assert asked.json["store"] is False
            assert not {"previous_response_id", "conversation", "background"} & set(asked.json)
        inputs = [read_array(asked, "input") for asked in house.upstream.asked]
        for before, after in itertools.pairwise(inputs):
            assert after.startswith(before[:-1] + b",")
        assert list_types(house.upstream.asked[-1].json["input"]) == [
            "message",
            "function_call",
            "function_call_output",
            "message",
            "message",
        ]
        assert not any(map(list_codes, (first, second, third)))
        window = await house.get(f"/v1/responses/{third['id']}/window")
        assert window["messages"] == house.upstream.asked[-1].json["input"]

    replies = [
        answer(call("look")),
        answer(say("I see a tree."), usage={**USAGE, "input_tokens": 21, "total_tokens": 26}),
        answer(say("Bye.", 2), usage={**USAGE, "input_tokens": 31, "total_tokens": 36}),
    ]
    run(tmp_path, replies, story)


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_fields_pass_byte_true_both_ways(tmp_path: Path, stream: bool) -> None:
    """Decided: what we do not know is not ours to lose; by id and from the list too."""
    user = b'{"role":"user","content":[{"type":"input_text","text":"Hi",' + MOOD + b"}]," + MOOD + b"}"
    message = msgspec.json.encode(say("Hello you."))[:-1] + b"," + MOOD + b"}"
    odd = b'{"type":"x_vendor:thing","id":"x_1",' + MOOD + b"}"

    async def story(house: House) -> None:
        body = b'{"model":"fake-model","input":[%b],"stream":%b}'
        raw = await ask_raw(house, body % (user, b"true" if stream else b"false"))
        assert user in house.upstream.asked[0].body
        assert message in raw
        assert odd in raw
        response_id = raw.partition(b'"id":"resp_')[2].partition(b'"')[0].decode()
        more = (
            b'{"model":"fake-model","input":"And?","previous_response_id":"resp_%b"}' % response_id.encode()
        )
        await ask_raw(house, more)
        sent = read_array(house.upstream.asked[1], "input")
        for item in (user, message, odd):
            assert item in sent
        reply = await house.transport.send("GET", f"/v1/responses/resp_{response_id}", {}, None)
        read = await reply.read()
        await reply.close()
        assert message in read
        assert odd in read

    run(tmp_path, [answer(odd, message), answer(say("Yes.", 2))], story)


@STREAMS
@pytest.mark.parametrize("way", ["id", "history", "restart"])
def test_its_sealed_reasoning_survives(tmp_path: Path, stream: bool, way: str) -> None:
    """Decided: its encrypted reasoning is asked for, kept and given back, whether or not the client asks for it."""

    async def main() -> None:
        replies = iter([answer(think("gAAAblob"), say("42.")), answer(say("Yes.", 2))])
        async with asyncio.timeout(40), FakeUpstream(lambda _: next(replies)) as upstream:
            settings = make_settings(upstream)
            async with open_house(tmp_path, upstream, settings=settings) as house:
                include = SEALED if way == "history" else []
                first = await house.make(stream=stream, input="Sum?", include=include, store=way != "history")
                assert SEALED[0] in upstream.asked[0].json["include"]
                assert first["output"][0].get("encrypted_content") == ("gAAAblob" if include else None)
                if way != "restart":
                    await ask_again(house, first)
            if way == "restart":
                async with open_house(tmp_path, upstream, settings=settings) as house:
                    await ask_again(house, first)
            blobs = [item.get("encrypted_content") for item in upstream.asked[1].json["input"]]
            assert blobs == [None, "gAAAblob", None, None]

    async def ask_again(house: House, first: dict[str, Any]) -> None:
        question = {"role": "user", "content": "Sure?"}
        if way == "history":
            history = [{"role": "user", "content": "Sum?"}, *first["output"], question]
            await house.make(stream=stream, input=history, include=SEALED, store=False)
        else:
            await house.make(stream=stream, input=[question], previous_response_id=first["id"])

    asyncio.run(main())


@STREAMS
def test_hosted_tools_of_the_server_pass(tmp_path: Path, stream: bool) -> None:
    """Decided: its own tools are its own; their events and items are handed on."""
    looked = {
        "type": "web_search_call",
        "id": "ws_up1",
        "status": "completed",
        "action": {"type": "search", "query": "fjords", "queries": ["fjords"]},
    }
    inner = [
        make_event(f"response.web_search_call.{name}", item_id="ws_up1", output_index=0)
        for name in ("in_progress", "searching", "completed")
    ]

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="How deep?", tools=[{"type": "web_search"}])
        assert [item["type"] for item in made["output"]] == ["web_search_call", "message"]
        assert house.upstream.asked[0].json["tools"][0]["type"] == "web_search"
        if stream:
            assert [kind for kind in house.kinds if "web_search" in kind] == [
                f"response.web_search_call.{name}" for name in ("in_progress", "searching", "completed")
            ]
        await house.make(stream=stream, input="And?", previous_response_id=made["id"])
        assert house.upstream.asked[1].json["input"][1] == looked

    run(tmp_path, [answer(looked, say("Deep."), inner={0: inner}), answer(say("No.", 2))], story)


@STREAMS
def test_its_failures_are_told_as_ours(tmp_path: Path, stream: bool) -> None:
    """Decided: before the stream a status, within it `response.failed`; an overflow by its code."""
    error = {"code": "server_error", "message": "Boom."}
    failed = answer(say("Half an"), status="failed", error=error)
    refused = Reply(
        [
            make_json(
                {
                    "error": {
                        "message": "Too long.",
                        "code": "context_length_exceeded",
                        "type": "invalid_request_error",
                    }
                },
                status=400,
            )
        ]
    )
    limited = Reply([make_json({"error": {"message": "Wait."}}, status=429, extra="retry-after: 3\r\n")])
    cut = answer(say("Half an"), status="incomplete", incomplete_details={"reason": "max_output_tokens"})

    async def story(house: House) -> None:
        body: dict[str, Any] = {"model": MODEL, "input": "?", "stream": stream}
        if stream:
            last = (await house.client.stream(**body))[-1]
            assert last["type"] == "response.failed"
            assert last["response"]["error"]["code"] == "server_error"
            assert "Boom." in last["response"]["error"]["message"]
        else:
            assert "Boom." in (await house.client.refuse(502, **body))["message"]
        assert (await house.client.refuse(400, **body))["code"] == "context_length_exceeded"
        answer_ = await house.client.post(body)
        assert (answer_.status, answer_.headers["retry-after"]) == (429, "3")
        made = await house.make(stream=stream, input="?")
        assert made["incomplete_details"] == {"reason": "max_output_tokens"}
        assert read_text(made) == "Half an"

    run(tmp_path, [failed, refused, limited, cut], story)


def test_conversations_and_background_over_it(tmp_path: Path) -> None:
    """Ours: both are ours alone."""

    async def story(house: House) -> None:
        conversation = (await house.client.send("POST", "/v1/conversations", {})).body["id"]
        first = await house.make(stream=True, background=True, input="1", conversation=conversation)
        assert first["conversation"] == {"id": conversation}
        second = await house.make(stream=True, input="2", conversation=conversation)
        assert read_text(second) == "b"
        assert [
            item["content"][0]["text"] if isinstance(item["content"], list) else item["content"]
            for item in house.upstream.asked[1].json["input"]
        ] == ["1", "a", "2"]
        page = await house.get(f"/v1/conversations/{conversation}/items?order=asc")
        assert [item["role"] for item in page["data"]] == ["user", "assistant", "user", "assistant"]

    run(tmp_path, [answer(say("a")), answer(say("b", 2))], story)


@STREAMS
def test_a_chain_moves_to_it_and_back(tmp_path: Path, stream: bool) -> None:
    """Ours: the same items, told in each server's own form; our seals are not its, and its are not ours."""
    chat_call = [("look", '{"a":1}')]

    async def main() -> None:
        replies = iter(
            [
                write(chat_call),
                answer(think("gAAAblob"), say("I see.")),
                write("And I."),
                answer(say("Bye.", 2)),
            ]
        )

        def reply(request: Request) -> Reply:
            made = next(replies)
            assert request.path.endswith("/responses") == (request.json["model"] == "native")
            return made

        tool = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
        async with asyncio.timeout(40), FakeUpstream(reply, models=("chat", "native")) as upstream:
            settings = {
                "endpoints": {"a": {"url": upstream.url}, "b": {"url": upstream.url, "dialect": "responses"}},
                "models": {"chat": {"endpoint": "a"}, "native": {"endpoint": "b"}},
            }
            async with open_house(tmp_path, upstream, settings=settings) as house:
                first = await house.make(stream=stream, model="chat", input="Look.", tools=[tool])
                (made,) = first["output"]
                output = {"type": "function_call_output", "call_id": made["call_id"], "output": "tree"}
                second = await house.make(
                    stream=stream,
                    model="native",
                    input=[output],
                    tools=[tool],
                    previous_response_id=first["id"],
                )
                told = upstream.asked[1].json["input"]
                assert list_types(told) == ["message", "function_call", "function_call_output"]
                third = await house.make(
                    stream=stream, model="chat", input="And?", previous_response_id=second["id"]
                )
                assert [m["role"] for m in house.messages] == [
                    "user",
                    "assistant",
                    "tool",
                    "assistant",
                    "user",
                ]
                assert list_codes(third) == ["transcript"]
                fourth = await house.make(
                    stream=stream, model="native", input="Bye.", previous_response_id=third["id"]
                )
                told = upstream.asked[3].json["input"]
                assert list_types(told) == [
                    "message",
                    "function_call",
                    "function_call_output",
                    "reasoning",
                    "message",
                    "message",
                    "message",
                    "message",
                ]
                assert told[3]["encrypted_content"] == "gAAAblob"
                assert list_codes(fourth) == []

    asyncio.run(main())


@STREAMS
def test_our_own_seals_are_left_out_and_told(tmp_path: Path, stream: bool) -> None:
    """Ours: a blob of ours means nothing to another server."""

    async def main() -> None:
        replies = iter([think_aloud("hm", "42."), answer(say("Yes."))])
        async with (
            asyncio.timeout(40),
            FakeUpstream(lambda _: next(replies), models=("chat", "native")) as upstream,
        ):
            settings = {
                "endpoints": {"a": {"url": upstream.url}, "b": {"url": upstream.url, "dialect": "responses"}},
                "models": {"chat": {"endpoint": "a"}, "native": {"endpoint": "b"}},
            }
            async with open_house(tmp_path, upstream, settings=settings) as house:
                first = await house.make(stream=stream, model="chat", input="Sum?", include=SEALED)
                second = await house.make(
                    stream=stream, model="native", input="Sure?", previous_response_id=first["id"]
                )
                assert list_codes(second) == ["transcript"]
                told = upstream.asked[1].json["input"]
                assert list_types(told) == ["message", "message", "message"]
                assert "antiphon_" not in json.dumps(told)

    asyncio.run(main())


def test_mcp_credentials_go_to_it_and_nowhere_else(tmp_path: Path) -> None:
    """Decided: such a server runs its own MCP tools; what it needs for that is not stored."""
    tool = {
        "type": "mcp",
        "server_label": "home",
        "server_url": "https://mcp.example/",
        "authorization": "token-abcdef-123456",
        "headers": {"X-Secret": "header-secret-987654"},
    }

    async def story(house: House) -> None:
        made = await house.make(stream=True, input="?", tools=[tool])
        sent = house.upstream.asked[0].json["tools"][0]
        assert (sent["authorization"], sent["headers"]) == (tool["authorization"], tool["headers"])
        assert "token-abcdef" not in json.dumps(made)
        assert "header-secret" not in json.dumps(made)
        await house.make(input="?", previous_response_id=made["id"])

    run(tmp_path, [answer(say("a")), answer(say("b", 2))], story)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"token-abcdef" in content or b"header-secret" in content for content in files)


@STREAMS
def test_its_own_approvals_are_its_own(tmp_path: Path, stream: bool) -> None:
    """Decided: what it asked about it is answered; nothing of it is called here."""
    asked = {
        "type": "mcp_approval_request",
        "id": "mcpr_up1",
        "server_label": "home",
        "name": "send",
        "arguments": "{}",
    }
    done = {
        "type": "mcp_call",
        "id": "mcp_up1",
        "server_label": "home",
        "name": "send",
        "arguments": "{}",
        "output": "Sent.",
        "error": None,
        "status": "completed",
        "approval_request_id": "mcpr_up1",
    }
    tool = {"type": "mcp", "server_label": "home", "server_url": "https://mcp.example/"}

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Send.", tools=[tool])
        assert [item["type"] for item in first["output"]] == ["mcp_approval_request"]
        response = {"type": "mcp_approval_response", "approval_request_id": "mcpr_up1", "approve": True}
        second = await house.make(
            stream=stream, input=[response], tools=[tool], previous_response_id=first["id"]
        )
        assert [item["type"] for item in second["output"]] == ["mcp_call", "message"]
        assert second["output"][0]["output"] == "Sent."
        assert list_types(house.upstream.asked[1].json["input"])[1:] == [
            "mcp_approval_request",
            "mcp_approval_response",
        ]

    run(tmp_path, [answer(asked), answer(done, say("Done."))], story)


@STREAMS
def test_its_tools_of_every_kind_pass(tmp_path: Path, stream: bool) -> None:
    """Decided: namespaces, custom tools and shells are its to know; the calls come as they are."""
    made = [
        {**call("say"), "namespace": "ns"},
        {"type": "custom_tool_call", "id": "ctc_up1", "call_id": "call_c", "name": "word", "input": "abc"},
        {
            "type": "shell_call",
            "id": "sh_up1",
            "call_id": "call_s",
            "status": "completed",
            "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None},
            "environment": None,
        },
    ]
    tools = [
        {
            "type": "namespace",
            "name": "ns",
            "description": "x",
            "tools": [{"type": "function", "name": "say"}],
        },
        {"type": "custom", "name": "word"},
        {"type": "shell", "environment": {"type": "local"}},
    ]
    outputs = [
        {"type": "function_call_output", "call_id": "call_up1", "output": "a"},
        {"type": "custom_tool_call_output", "call_id": "call_c", "output": "b"},
        {
            "type": "shell_call_output",
            "call_id": "call_s",
            "output": [{"stdout": "c", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
    ]

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Go.", tools=tools)
        assert [item["type"] for item in first["output"]] == [item["type"] for item in made]
        assert first["output"][0]["namespace"] == "ns"
        error = await house.refuse(input=outputs[:1], previous_response_id=first["id"], tools=tools)
        assert error["message"] == "No tool output found for custom tool call call_c."
        second = await house.make(stream=stream, input=outputs, previous_response_id=first["id"], tools=tools)
        assert read_text(second) == "Done."
        assert house.upstream.asked[1].json["input"][1:] == [*made, *outputs]

    run(tmp_path, [answer(*made), answer(say("Done.", 2))], story)


@STREAMS
def test_an_item_of_its_own_is_named_by_its_id(tmp_path: Path, stream: bool) -> None:
    """Ours: its ids stay, so a reference finds what it made."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Hi.")
        assert first["output"][0]["id"] == "msg_up1"
        reference = {"type": "item_reference", "id": "msg_up1"}
        await house.make(stream=stream, input=[reference, {"role": "user", "content": "And?"}])
        assert house.upstream.asked[1].json["input"][0] == say("Hello.")

    run(tmp_path, [answer(say("Hello.")), answer(say("b", 2))], story)


@pytest.mark.parametrize(
    ("counted", "count", "asked"),
    [
        ({"object": "response.input_tokens", "input_tokens": 17}, 17, 2),
        ({"object": "response.input_tokens", "input_tokens": 17, "antiphon": {"estimated": True}}, None, 2),
        (None, None, 1),
    ],
)
def test_the_count_route_asks_where_it_can(
    tmp_path: Path, counted: dict[str, Any] | None, count: int | None, asked: int
) -> None:
    """Ours: the server's own count, else an estimate; one without the route is not asked at once again."""

    class CountingUpstream(FakeUpstream):
        def reply(self, request: Request) -> Reply:
            if request.path.endswith("/input_tokens") and counted:
                return Reply([make_json(counted)])
            return super().reply(request)

    async def story(house: House) -> None:
        for _ in range(2):
            made = await house.client.send(
                "POST", "/v1/responses/input_tokens", {"model": MODEL, "input": "How are you?"}
            )
            assert made.body.get("antiphon") == (None if count else {"estimated": True})
            assert count is None or made.body["input_tokens"] == count
        paths = [each.path for each in house.upstream.requests]
        assert paths.count("/v1/responses/input_tokens") == asked

    async def main() -> None:
        async with (
            asyncio.timeout(40),
            CountingUpstream(lambda _: answer(say("x"))) as upstream,
            open_house(tmp_path, upstream, settings=make_settings(upstream)) as house,
        ):
            await story(house)

    asyncio.run(main())


def test_an_estimate_that_is_told_as_one_is_no_broken_promise(tmp_path: Path) -> None:
    """Ours: the checker compares counts, and an estimate is none."""

    async def main() -> None:
        async with (
            asyncio.timeout(40),
            FakeUpstream(lambda _: answer(say("x"))) as upstream,
            open_house(tmp_path, upstream, settings=make_settings(upstream)) as house,
        ):
            chosen = CheckOptions(requirements=select_requirements(["endpoints.input-tokens"]))
            report = await run_check(house.transport, MODEL, chosen)
            assert [each.verdict for each in report.results] == [Verdict.UNKNOWN]
            assert report.results[0].needs == "a model server that counts"

    asyncio.run(main())


@STREAMS
@pytest.mark.parametrize(
    ("status", "told", "code", "param"),
    [
        (
            400,
            {"code": "unsupported_parameter", "param": "tools[0].type"},
            "unsupported_parameter",
            "tools[0].type",
        ),
        (400, {"code": "invalid_encrypted_content", "param": None}, "invalid_encrypted_content", None),
        (404, {"code": None, "param": "prompt.id"}, None, "prompt.id"),
        (400, {"code": "a code\n", "param": "<b>"}, None, None),
        (400, {"code": "c" * 65, "param": 7}, None, None),
        (400, {"code": "KEY-OF-OURS", "param": "x.KEY-OF-OURS"}, "***", "x.***"),
    ],
)
def test_what_its_refusal_names_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
    status: int,
    told: dict[str, Any],
    code: str | None,
    param: str | None,
) -> None:
    """Ours: it has our API, so its parameters are the client's own; what is no word or path is left out."""
    monkeypatch.setenv("UPSTREAM_KEY", "KEY-OF-OURS")
    error = {"message": "Not this one.", "type": "invalid_request_error", **told}
    reply = Reply([make_json({"error": error}, status=status)])

    async def story(house: House) -> None:
        body = {"model": MODEL, "input": "?", "stream": stream}
        got = await house.client.refuse(400, **body)
        assert (got["code"], got["param"]) == (code, param)
        assert "Not this one." in got["message"]

    async def main() -> None:
        async with asyncio.timeout(40), FakeUpstream(lambda _: reply) as upstream:
            endpoint = {"url": upstream.url, "dialect": "responses", "key_env": "UPSTREAM_KEY"}
            settings = {"endpoints": {"fake": endpoint}}
            environ = {"UPSTREAM_KEY": "KEY-OF-OURS"}
            async with open_house(tmp_path, upstream, settings=settings, environ=environ) as house:
                await story(house)

    asyncio.run(main())


@STREAMS
def test_what_it_warns_of_is_handed_on(tmp_path: Path, stream: bool) -> None:
    """Ours: a server of our own kind warns under `antiphon`; what is no warning is left out, and all is bounded."""
    warnings: list[Any] = [
        {"code": "history_truncated", "message": "Much was left out."},
        {"code": "No Code", "message": "x"},
        {"code": "x"},
        7,
        {"code": "long", "message": "m" * 5_000},
    ]

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?")
        told = made["antiphon"]["warnings"]
        assert [each["code"] for each in told] == ["history_truncated", "long"]
        assert told[0]["message"] == "The model server warns: Much was left out."
        assert len(told[1]["message"]) < 1_100
        assert list_codes(await house.make(stream=stream, input="?")) == []

    odd = answer(say("b", 2), antiphon={"warnings": {"code": "x"}})
    run(tmp_path, [answer(say("a"), antiphon={"warnings": warnings}), odd], story)
