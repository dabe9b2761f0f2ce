"""Tools that run here, in the corners where parts meet: limits, padding, seals, lists that failed, tools by items."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.hosted import SearchHit
from antiphon.hosted.mcp import is_sdk_installed
from antiphon.hosted.scripted import ScriptedSearch
from tests.fake_upstream import END, MODEL, Reply, make_chunk, make_head
from tests.scenarios.client import read_text
from tests.scenarios.houses import Generation, House, check_prefixes, list_codes, open_house, play, run, think
from tests.scenarios.mcp_server import TOKEN, McpServerThread

STREAMS = pytest.mark.parametrize("stream", [False, True])
WEB = {"type": "web_search"}
LOOK = [("web_search", '{"query":"fjords"}')]
ASK_WEATHER = [("home__weather", '{"city":"Oslo"}')]
WORD: dict[str, Any] = {
    "type": "custom",
    "name": "word",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"},
}
NEEDS_SDK = pytest.mark.skipif(not is_sdk_installed(), reason="the extra `mcp` is not installed")


def make_search() -> ScriptedSearch:
    """A search that finds one page."""
    return ScriptedSearch({"fjords": [SearchHit("https://fjords.example/", "Fjords", "Deep.")]})


@pytest.fixture
def server() -> Iterator[McpServerThread]:
    """A server of its own for each test."""
    running = McpServerThread()
    yield running
    running.stop()


def declare(server: McpServerThread, **more: Any) -> dict[str, Any]:
    """The tool of a request."""
    return {
        "type": "mcp",
        "server_label": "home",
        "server_url": server.url,
        "authorization": TOKEN,
        "require_approval": "never",
        **more,
    }


def list_kinds(response: dict[str, Any]) -> list[str]:
    """The types of the output."""
    return [item["type"] for item in response["output"]]


@STREAMS
def test_the_limit_of_the_output_holds_over_all_generations(tmp_path: Path, stream: bool) -> None:
    """Spec: `max_output_tokens` covers the response; what is spent ends it, with what was found."""

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB], max_output_tokens=30)
        assert made["status"] == "completed"
        limits = [asked.json["max_tokens"] for asked in house.upstream.asked]
        assert limits == [30, 25]

    run(tmp_path, [LOOK, "Deep."], story, search=make_search())


@STREAMS
def test_a_response_that_is_spent_after_a_call_is_incomplete(tmp_path: Path, stream: bool) -> None:
    """Spec: incomplete by max_output_tokens; the next round goes on from what was found."""
    call = {
        "index": 0,
        "id": "a",
        "type": "function",
        "function": {"name": "web_search", "arguments": LOOK[0][1]},
    }
    usage = {"prompt_tokens": 9, "completion_tokens": 16, "total_tokens": 25}
    spent = Reply(
        [make_head(), make_chunk({"tool_calls": [call]}), make_chunk({}, "tool_calls", usage=usage), END]
    )

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB], max_output_tokens=16)
        assert (made["status"], list_kinds(made)) == ("incomplete", ["web_search_call"])
        assert made["incomplete_details"] == {"reason": "max_output_tokens"}
        after = await house.make(stream=stream, input="Go on.", tools=[WEB], previous_response_id=made["id"])
        assert read_text(after) == "Deep."
        assert [m["role"] for m in house.messages] == ["user", "assistant", "tool", "user"]

    run(tmp_path, [spent, "Deep."], story, search=make_search())


@STREAMS
def test_a_call_that_was_cut_off_is_no_failure(tmp_path: Path, stream: bool) -> None:
    """Decided: what the limit cut is incomplete, with a warning that the call was not run."""
    call = {
        "index": 0,
        "id": "a",
        "type": "function",
        "function": {"name": "web_search", "arguments": '{"que'},
    }
    cut = Reply([make_head(), make_chunk({"tool_calls": [call]}), make_chunk({}, "length"), END])

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB])
        assert (made["status"], made["output"]) == ("incomplete", [])
        assert made["incomplete_details"] == {"reason": "max_output_tokens"}
        assert list_codes(made) == ["hosted_call_dropped"]
        after = await house.make(stream=stream, input="Go on.", previous_response_id=made["id"])
        assert read_text(after) == "ok"
        assert [m["role"] for m in house.messages] == ["user", "user"]

    run(tmp_path, [cut, "ok"], story, search=make_search())


@NEEDS_SDK
def test_every_delta_is_padded_where_that_is_asked(tmp_path: Path, server: McpServerThread) -> None:
    """Decided: obfuscation of every delta, also of calls that are made here."""

    async def story(house: House) -> None:
        made = await house.make(
            stream=True,
            input="?",
            tools=[declare(server), WORD],
            stream_options={"include_obfuscation": True},
        )
        assert list_kinds(made) == ["mcp_list_tools", "mcp_call", "custom_tool_call"]
        padded = {event["type"] for event in house.events if "obfuscation" in event}
        assert padded == {"response.mcp_call_arguments.delta", "response.custom_tool_call_input.delta"}

    run(tmp_path, [ASK_WEATHER, [("word", '{"input":"abc"}')]], story)


@STREAMS
def test_reasoning_of_each_generation_is_sealed_for_itself(tmp_path: Path, stream: bool) -> None:
    """Codex with hosted tools: nothing stored, all of it replayed."""
    call = {
        "index": 0,
        "id": "a",
        "type": "function",
        "function": {"name": "web_search", "arguments": LOOK[0][1]},
    }
    first_step = Reply(
        [
            make_head(),
            make_chunk({"reasoning_content": "First."}),
            make_chunk({"tool_calls": [call]}),
            make_chunk({}, "tool_calls"),
            END,
        ]
    )
    include = ["reasoning.encrypted_content", "web_search_call.results"]

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB], store=False, include=include)
        assert list_kinds(made) == ["reasoning", "web_search_call", "reasoning", "message"]
        history = [{"role": "user", "content": "?"}, *made["output"], {"role": "user", "content": "Sure?"}]
        bare = [{**item, "summary": []} if item.get("type") == "reasoning" else item for item in history]
        for sent in (history, bare):
            await house.make(stream=stream, input=sent, tools=[WEB], store=False, include=include)
            thoughts = [m.get("reasoning_content") for m in house.messages if m["role"] == "assistant"]
            assert thoughts == ["First.", "Second."]
        check_prefixes(type("Three", (), {"asked": house.upstream.asked[:3]})())

    run(tmp_path, [first_step, think("Second.", "Deep."), "a", "b"], story, search=make_search())


@NEEDS_SDK
@STREAMS
@pytest.mark.parametrize("by_id", [True, False])
def test_a_list_that_failed_is_asked_for_again(
    tmp_path: Path, server: McpServerThread, stream: bool, by_id: bool
) -> None:
    """Ours: a server that was down is not down for ever."""

    async def story(house: House) -> None:
        wrong = declare(server, authorization="wrong-token-1234")
        first = await house.make(stream=stream, input="?", tools=[wrong])
        assert list_codes(first) == ["mcp_listing_failed"]
        if by_id:
            more: dict[str, Any] = {"previous_response_id": first["id"], "input": "Again?"}
        else:
            history = [{"role": "user", "content": "?"}, *first["output"]]
            more = {"input": [*history, {"role": "user", "content": "Again?"}]}
        second = await house.make(stream=stream, tools=[declare(server)], **more)
        assert list_kinds(second) == ["mcp_list_tools", "mcp_call", "message"]
        check_prefixes(house.upstream, same_tools=False)

    run(tmp_path, ["No.", ASK_WEATHER, "4."], story)


@NEEDS_SDK
@STREAMS
def test_a_list_of_some_tools_comes_back_in_the_client_s_own_history(
    tmp_path: Path, server: McpServerThread, stream: bool
) -> None:
    """Ours: with `allowed_tools` the server is listed once, too, whichever way history comes back."""

    async def story(house: House) -> None:
        tools = [declare(server, allowed_tools=["weather"])]
        first = await house.make(stream=stream, input="?", tools=tools, store=False)
        history = [{"role": "user", "content": "?"}, *first["output"], {"role": "user", "content": "Again?"}]
        second = await house.make(stream=stream, input=history, tools=tools, store=False)
        assert list_kinds(second) == ["mcp_call", "message"]
        assert server.asked == ["list", "call weather"]

    run(tmp_path, ["Hm.", ASK_WEATHER, "4."], story)


@STREAMS
def test_tools_that_items_bring_may_run_here(tmp_path: Path, stream: bool) -> None:
    """Codex: `additional_tools` may name web search; it stays offered by id."""
    item = {"type": "additional_tools", "role": "developer", "tools": [WEB]}

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input=[item, {"role": "user", "content": "?"}])
        assert list_kinds(first) == ["web_search_call", "message"]
        second = await house.make(stream=stream, input="Again?", previous_response_id=first["id"])
        assert list_kinds(second) == ["web_search_call", "message"]
        check_prefixes(house.upstream)

    run(tmp_path, [LOOK, "Deep.", LOOK, "Deep."], story, search=make_search())


@NEEDS_SDK
def test_a_count_without_the_server_s_list_is_an_estimate(tmp_path: Path, server: McpServerThread) -> None:
    """Ours: counting asks no MCP server; what is not in the count is told."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"rules": [{"text": "ok"}]}))

    async def main() -> None:
        settings = {"endpoints": {"s": {"dialect": "scripted", "script": str(path)}}, "models": {}}
        async with play([]) as upstream, open_house(tmp_path, upstream, settings=settings) as house:

            async def count(**body: Any) -> dict[str, Any]:
                sent = {"model": "scripted", "input": "?", "tools": [declare(server)], **body}
                answer = await house.client.send("POST", "/v1/responses/input_tokens", sent)
                told: dict[str, Any] = answer.body
                return told

            assert (await count())["antiphon"] == {"estimated": True}
            assert server.asked == []
            first = await house.make(model="scripted", input="?", tools=[declare(server)])
            told = await count(previous_response_id=first["id"])
            assert "antiphon" not in told
            second = await house.make(
                model="scripted", input="?", tools=[declare(server)], previous_response_id=first["id"]
            )
            assert told["input_tokens"] == second["usage"]["input_tokens"]
            window = await house.get(f"/v1/responses/{first['id']}/window")
            assert window["input_tokens"]["counted"] == first["usage"]["input_tokens"]

    asyncio.run(main())


@NEEDS_SDK
@STREAMS
@pytest.mark.parametrize("declared", [True, False])
def test_a_call_of_a_tool_that_is_no_longer_offered_is_dropped(
    tmp_path: Path, server: McpServerThread, stream: bool, declared: bool
) -> None:
    """Ours: a model remembers tools; no client could make a call of a server's tool."""
    call = {
        "index": 0,
        "id": "a",
        "type": "function",
        "function": {"name": "home__weather", "arguments": "{}"},
    }
    both = Reply(
        [
            make_head(),
            make_chunk({"content": "Hm."}),
            make_chunk({"tool_calls": [call]}),
            make_chunk({}, "stop"),
            END,
        ]
    )

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="?", tools=[declare(server)])
        more: dict[str, Any] = {"tools": [declare(server)], "tool_choice": "none"} if declared else {}
        made = await house.make(stream=stream, input="?", previous_response_id=first["id"], **more)
        assert list_kinds(made) == ["message"]
        assert list_codes(made) == ["hidden_call_dropped"]

    run(tmp_path, ["a", both], story)


@STREAMS
def test_a_forced_custom_tool_with_a_grammar_is_held_to_both(tmp_path: Path, stream: bool) -> None:
    """Ours: text instead of the call is asked about once, a wrong input once; all of it is paid for."""

    async def story(house: House) -> None:
        made = await house.make(
            stream=stream, input="?", tools=[WORD], tool_choice={"type": "custom", "name": "word"}
        )
        (call,) = made["output"]
        assert call["input"] == "abc"
        assert list_codes(made) == ["tool_call_asked_again"] * 2
        assert made["usage"]["input_tokens"] == 600

    steps: list[Generation] = ["I will not.", [("word", '{"input":"7"}')], [("word", '{"input":"abc"}')]]
    run(tmp_path, steps, story)


@STREAMS
def test_an_approval_in_a_conversation(tmp_path: Path, stream: bool) -> None:
    """Ours: the request waits in the conversation, and its answer comes with the next response."""
    if not is_sdk_installed():
        pytest.skip("the extra `mcp` is not installed")
    server = McpServerThread()
    tools = [declare(server, require_approval="always")]

    async def story(house: House) -> None:
        conversation = (await house.client.send("POST", "/v1/conversations", {})).body["id"]
        shared: dict[str, Any] = {"stream": stream, "tools": tools, "conversation": conversation}
        first = await house.make(input="Weather?", **shared)
        asked = first["output"][-1]
        assert asked["type"] == "mcp_approval_request"
        answer = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
        second = await house.make(input=[answer], **shared)
        assert list_kinds(second) == ["mcp_call", "message"]
        third = await house.make(input="Again?", **shared)
        assert list_kinds(third) == ["message"]
        assert server.calls == ["weather"]

    try:
        run(tmp_path, [ASK_WEATHER, "4.", "Done."], story)
    finally:
        server.stop()


@pytest.mark.parametrize("cached", [True, False])
def test_an_approval_that_is_added_to_a_conversation_is_acted_upon(tmp_path: Path, cached: bool) -> None:
    """Ours: the next response makes the call, once; one that may not call the server does not use it up."""
    if not is_sdk_installed():
        pytest.skip("the extra `mcp` is not installed")
    server = McpServerThread()
    tools = [declare(server, require_approval="always")]

    async def story(house: House) -> None:
        conversation = (await house.client.send("POST", "/v1/conversations", {})).body["id"]
        shared: dict[str, Any] = {"tools": tools, "conversation": conversation}
        first = await house.make(input="Weather?", **shared)
        asked = first["output"][-1]
        answer = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
        path = f"/v1/conversations/{conversation}/items"
        assert (await house.client.send("POST", path, {"items": [answer]})).status == 200
        error = await house.client.refuse(400, model="fake-model", input="Go.", tool_choice="none", **shared)
        assert "tool_choice" in error["message"]
        second = await house.make(input="Go.", **shared)
        assert list_kinds(second) == ["mcp_call", "message"]
        assert second["output"][0]["approval_request_id"] == asked["id"]
        assert list_kinds(await house.make(input="Again?", **shared)) == ["message"]
        assert server.calls == ["weather"]

    try:
        settings = {"limits": {"window_cache_bytes": 1 << 28 if cached else 0}}
        run(tmp_path, [ASK_WEATHER, "4.", "Done."], story, settings=settings)
    finally:
        server.stop()


def test_a_model_server_is_never_told_of_tools_that_run_nowhere(tmp_path: Path) -> None:
    """Ours: what is left out is left out of the request, and the response says so once."""

    async def story(house: House) -> None:
        first = await house.make(input="?", tools=[WEB], parallel_tool_calls=False)
        assert "tools" not in house.upstream.asked[0].json
        assert "parallel_tool_calls" not in house.upstream.asked[0].json
        assert list_codes(first) == ["tools_left_out"]
        assert first["model"] == MODEL

    run(tmp_path, ["ok"], story)
