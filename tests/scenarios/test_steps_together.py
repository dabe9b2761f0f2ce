"""One response of several generations, as a whole: its cost, its later rounds, its ends, its removal."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.hosted import SearchHit, SearchProvider, SearchQuery
from antiphon.hosted.scripted import ScriptedSearch
from tests.fake_upstream import (
    END,
    MODEL,
    FakeUpstream,
    Reply,
    Request,
    frame,
    make_chunk,
    make_head,
    make_json,
)
from tests.scenarios.client import find_terminal, read_text
from tests.scenarios.houses import (
    House,
    check_prefixes,
    list_codes,
    open_house,
    play,
    read_array,
    run,
    write,
)

STREAMS = pytest.mark.parametrize("stream", [False, True])
WEB = {"type": "web_search"}
HITS = [SearchHit("https://fjords.example/deep", "Deep fjords", "Sognefjord is 1,303 m deep.")]
LOOK = [("web_search", '{"query":"fjords"}')]
SLOW: dict[str, Any] = {"type": "function", "name": "slow", "parameters": {"type": "object"}, "async": True}
PLAIN: dict[str, Any] = {
    "type": "function",
    "name": "plain",
    "parameters": {"type": "object"},
    "strict": False,
}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
WORD: dict[str, Any] = {"type": "custom", "name": "word", "format": GRAMMAR}


def make_search() -> ScriptedSearch:
    """A search that finds one page."""
    return ScriptedSearch({"fjords": HITS})


class Counting:
    """A model server that counts its prompts truly: a token for four bytes of messages and tools."""

    def __init__(self, *generations: Any) -> None:
        self._waiting = iter(generations)

    def __call__(self, request: Request) -> Reply:
        tokens = (len(read_array(request)) + len(read_array(request, "tools"))) // 4
        return write(next(self._waiting), prompt_tokens=tokens)


@STREAMS
@pytest.mark.parametrize("cache_bytes", [1 << 28, 0])
@pytest.mark.parametrize(
    ("tools", "steps"),
    [
        ([WEB], [LOOK, "Deep.", "Bye.", "Still here."]),
        ([SLOW], [[("slow", "{}")], "Started.", "Bye.", "Still here."]),
        ([WORD], [[("word", '{"input":"7"}')], [("word", '{"input":"a"}')], "Bye.", "Still here."]),
    ],
)
def test_usage_is_the_sum_and_nothing_is_called_truncated(
    tmp_path: Path, stream: bool, tools: list[dict[str, Any]], steps: list[Any], cache_bytes: int
) -> None:
    """Ours: what a later prompt is held against is the last prompt that its history made."""

    async def main() -> None:
        async with asyncio.timeout(40), FakeUpstream(Counting(*steps)) as upstream:
            limits = {"limits": {"window_cache_bytes": cache_bytes}}
            async with open_house(tmp_path, upstream, search=make_search(), settings=limits) as house:
                first = await house.make(stream=stream, input="Go.", tools=tools)
                told = [
                    (len(read_array(asked)) + len(read_array(asked, "tools"))) // 4
                    for asked in upstream.asked
                ]
                assert len(told) == 2
                assert first["usage"]["input_tokens"] == sum(told)
                assert first["usage"]["output_tokens"] == 10
                assert first["usage"]["total_tokens"] == sum(told) + 10
                given = [
                    {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}
                    for item in first["output"]
                    if item["type"] == "custom_tool_call"
                ]
                more = [*given, {"role": "user", "content": "Thanks."}]
                second = await house.make(
                    stream=stream, input=more, tools=tools, previous_response_id=first["id"]
                )
                third = await house.make(
                    stream=stream, input="?", tools=tools, previous_response_id=second["id"]
                )
                assert list_codes(second) == list_codes(third) == []

    asyncio.run(main())


@STREAMS
def test_the_count_and_the_report_know_the_tools_that_run_here(tmp_path: Path, stream: bool) -> None:
    """Ours: `input_tokens` is what the first generation costs; the report tells of the prompt, not of the sum."""
    script = {
        "rules": [
            {"after_output": True, "text": "Deep."},
            {"calls": [{"name": "web_search", "arguments": {"query": "fjords"}}]},
        ]
    }
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))

    async def main() -> None:
        async with play([]) as upstream:
            settings = {"endpoints": {"s": {"dialect": "scripted", "script": str(path)}}, "models": {}}
            async with open_house(tmp_path, upstream, search=make_search(), settings=settings) as house:
                body: dict[str, Any] = {"model": "scripted", "input": "How deep?", "tools": [WEB]}
                bare = await house.client.send(
                    "POST", "/v1/responses/input_tokens", {"model": "scripted", "input": "How deep?"}
                )
                counted = await house.client.send("POST", "/v1/responses/input_tokens", body)
                made = await house.make(stream=stream, **body)
                assert [item["type"] for item in made["output"]] == ["web_search_call", "message"]
                told = await house.get(f"/v1/responses/{made['id']}/window")
                tokens = counted.body["input_tokens"]
                assert tokens > bare.body["input_tokens"]
                assert told["input_tokens"] == {"reported": tokens, "counted": tokens, "exact": True}
                assert [part["kind"] for part in told["parts"]] == ["tools"]
                # What opens every answer is nobody's, and shared out.
                assert told["parts"][0]["tokens"] >= tokens - bare.body["input_tokens"]
                assert made["usage"]["input_tokens"] > 2 * tokens

    asyncio.run(main())


@STREAMS
def test_what_is_thought_and_said_between_calls_is_kept_in_order(tmp_path: Path, stream: bool) -> None:
    """Ours: the next round shows the model the bytes of this one's steps."""
    call = {
        "index": 0,
        "id": "a",
        "type": "function",
        "function": {"name": "web_search", "arguments": LOOK[0][1]},
    }
    first_step = Reply(
        [
            make_head(),
            make_chunk({"reasoning_content": "I should look."}),
            make_chunk({"content": "Let me look."}),
            make_chunk({"tool_calls": [call]}),
            make_chunk({}, "tool_calls"),
            END,
        ]
    )
    second_step = Reply(
        [
            make_head(),
            make_chunk({"reasoning_content": "Aha."}),
            make_chunk({"content": "Deep."}, "stop"),
            END,
        ]
    )

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="How deep?", tools=[WEB])
        assert [item["type"] for item in made["output"]] == [
            "reasoning",
            "message",
            "web_search_call",
            "reasoning",
            "message",
        ]
        await house.make(stream=stream, input="Sure?", tools=[WEB], previous_response_id=made["id"])
        check_prefixes(house.upstream)
        assert [m.get("reasoning_content") for m in house.messages if m["role"] == "assistant"] == [
            "I should look.",
            "Aha.",
        ]

    run(tmp_path, [first_step, second_step, "Yes."], story, search=make_search())


class HangingSearch:
    """A search that never answers, and tells when it was asked and given up."""

    name = "hanging"

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.given_up = asyncio.Event()

    async def search(self, query: SearchQuery) -> list[SearchHit]:
        """See `SearchProvider`."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()
        return []

    async def close(self) -> None:
        """There is nothing to let go of."""


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_tool_too(tmp_path: Path, stream: bool) -> None:
    """Decided: the response is stored as cancelled, and nothing runs on for nobody."""

    async def main() -> None:
        search = HangingSearch()
        provider: SearchProvider = search
        async with (
            asyncio.timeout(40),
            play([LOOK]) as upstream,
            open_house(tmp_path, upstream, search=provider) as house,
        ):
            body = {"model": MODEL, "input": "?", "tools": [WEB], "stream": stream}
            asking = asyncio.create_task(house.client.exchange(json.dumps(body).encode()))
            await search.asked.wait()
            asking.cancel()
            await asyncio.wait({asking})
            await search.given_up.wait()

    asyncio.run(main())


def test_a_response_that_was_left_is_read_as_cancelled(tmp_path: Path) -> None:
    """Decided: a foreground response whose client left is stored as cancelled, and is no parent."""

    async def main() -> None:
        search = HangingSearch()
        async with (
            asyncio.timeout(40),
            play([LOOK]) as upstream,
            open_house(tmp_path, upstream, search=search) as house,
        ):
            async with house.client.open_stream(model=MODEL, input="?", tools=[WEB]) as events:
                created = await anext(events)
                async for event in events:
                    if event["type"] == "response.web_search_call.searching":
                        break
            response_id = created["response"]["id"]
            read = (await house.client.retrieve(response_id)).body
            assert read["status"] == "cancelled"
            (looked,) = read["output"]
            assert (looked["type"], looked["status"]) == ("web_search_call", "incomplete")
            error = await house.refuse(input="?", previous_response_id=response_id)
            assert error["code"] == "previous_response_not_found"

    asyncio.run(main())


def test_cancelling_a_background_response_ends_its_tool(tmp_path: Path) -> None:
    """Spec: cancel; nothing of the output is kept."""

    async def main() -> None:
        search = HangingSearch()
        async with (
            asyncio.timeout(40),
            play([LOOK]) as upstream,
            open_house(tmp_path, upstream, search=search) as house,
        ):
            body = {"model": MODEL, "input": "?", "tools": [WEB], "background": True}
            queued = (await house.client.send("POST", "/v1/responses", body)).body
            await search.asked.wait()
            cancelled = await house.client.send("POST", f"/v1/responses/{queued['id']}/cancel")
            assert (cancelled.body["status"], cancelled.body["output"]) == ("cancelled", [])
            await search.given_up.wait()

    asyncio.run(main())


@STREAMS
@pytest.mark.parametrize("kind", ["refused", "empty", "broken"])
def test_a_later_generation_that_fails_fails_the_response(tmp_path: Path, stream: bool, kind: str) -> None:
    """Ours: after the first event failure is an event; what was found is kept with the failed response."""
    empty = Reply([make_head(), make_chunk({}, "stop"), END])
    refused = Reply([make_json({"error": {"message": "Wait."}}, status=429)])
    broken = Reply([make_head(), frame(b'data: {"choices"')], end="reset")
    reply = {"refused": refused, "empty": empty, "broken": broken}[kind]

    async def story(house: House) -> None:
        body: dict[str, Any] = {"model": MODEL, "input": "?", "tools": [WEB]}
        if not stream:
            answer = await house.client.post(body)
            assert answer.status == (429 if kind == "refused" else 502)
            return
        events = await house.client.stream(**body)
        failed = find_terminal(events)
        assert events[-1]["type"] == "response.failed"
        assert [item["type"] for item in failed["output"]] == ["web_search_call"]
        assert (await house.client.retrieve(failed["id"])).body == failed
        error = await house.refuse(input="?", previous_response_id=failed["id"])
        assert error["code"] == "previous_response_not_found"

    run(tmp_path, [LOOK, reply], story, search=make_search())


@STREAMS
def test_one_call_at_a_time_where_that_is_asked(tmp_path: Path, stream: bool) -> None:
    """Spec: `parallel_tool_calls: false` holds for tools that run here too."""

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB], parallel_tool_calls=False)
        assert [item["type"] for item in made["output"]] == ["web_search_call", "message"]
        assert list_codes(made) == ["hosted_call_dropped"]

    run(tmp_path, [LOOK * 2, "ok"], story, search=make_search())


@STREAMS
def test_nothing_is_stored_of_a_response_that_is_not_to_be(tmp_path: Path, stream: bool) -> None:
    """Decided: `store: false` leaves no byte, of what was found either."""

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB], store=False)
        assert read_text(made) == "Deep."
        assert (await house.client.retrieve(made["id"])).status == 404

    run(tmp_path, [LOOK, "Deep."], story, search=make_search())
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and b"Sognefjord" in p.read_bytes()]


@STREAMS
def test_a_model_whose_tools_are_told_by_schema_can_search(tmp_path: Path, stream: bool) -> None:
    """Ours: hosted tools come with every way of calling."""
    settings: dict[str, Any] = {"profiles": {"small": {"tools": "schema"}}}
    look = json.dumps({"name": "web_search", "arguments": {"query": "fjords"}})
    steps = [look, json.dumps({"reply": "Deep."}), json.dumps({"reply": "Yes."})]

    async def main() -> None:
        async with asyncio.timeout(40), play(steps) as upstream:
            settings["endpoints"] = {"fake": {"url": upstream.url, "profile": "small"}}
            async with open_house(tmp_path, upstream, search=make_search(), settings=settings) as house:
                made = await house.make(stream=stream, input="How deep?", tools=[WEB])
                assert [item["type"] for item in made["output"]] == ["web_search_call", "message"]
                assert read_text(made) == "Deep."
                after = await house.make(
                    stream=stream, input="Sure?", tools=[WEB], previous_response_id=made["id"]
                )
                assert read_text(after) == "Yes."
                check_prefixes(upstream)
                assert "Sognefjord is 1,303 m deep." in json.dumps(house.messages)

    asyncio.run(main())


@STREAMS
def test_tools_that_run_here_are_left_out_for_a_model_that_calls_none(tmp_path: Path, stream: bool) -> None:
    """Ours: a warning, and no hosted tool is offered."""
    settings: dict[str, Any] = {"profiles": {"mute": {"tools": "none"}}}

    async def main() -> None:
        async with asyncio.timeout(40), play(["ok"]) as upstream:
            settings["endpoints"] = {"fake": {"url": upstream.url, "profile": "mute"}}
            async with open_house(tmp_path, upstream, search=make_search(), settings=settings) as house:
                made = await house.make(stream=stream, input="?", tools=[WEB])
                assert list_codes(made) == ["tools_left_out"]
                assert house.told == []
                error = await house.refuse(input="?", tools=[WEB], tool_choice="required")
                assert error["param"] == "tool_choice"

    asyncio.run(main())


@STREAMS
def test_a_bad_patch_beside_a_search_is_asked_for_again_after_it(tmp_path: Path, stream: bool) -> None:
    """Ours: the search is run and shown; the wrong call is handed out with a warning, for the client must act."""

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB, WORD])
        assert sorted(item["type"] for item in made["output"]) == ["custom_tool_call", "web_search_call"]
        assert list_codes(made) == ["grammar_mismatch"]
        (call,) = [item for item in made["output"] if item["type"] == "custom_tool_call"]
        given = {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "no"}
        second = await house.make(
            stream=stream, input=[given], tools=[WEB, WORD], previous_response_id=made["id"]
        )
        assert read_text(second) == "ok"

    run(tmp_path, [[*LOOK, ("word", '{"input":"7"}')], "ok"], story, search=make_search())
