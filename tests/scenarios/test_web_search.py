"""Web search that this server runs: what clients see of it, what the model sees, and what happens without it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from antiphon.hosted import HostedToolError, SearchHit
from antiphon.hosted.scripted import ScriptedSearch
from tests.scenarios.client import read_text
from tests.scenarios.houses import House, check_prefixes, list_codes, open_house, play, read_array, run

STREAMS = pytest.mark.parametrize("stream", [False, True])
WEB = {"type": "web_search"}
#: The API knows the choice by the tool's first name alone.
FORCED = {"type": "web_search_preview"}
HITS = [
    SearchHit("https://fjords.example/deep", "Deep fjords", "Sognefjord is 1,303 m deep."),
    SearchHit("https://fjords.example/long", "Long fjords", "It is 205 km long."),
]
RESULTS = [{"url": hit.url, "title": hit.title, "snippet": hit.snippet} for hit in HITS]
SOURCES = [{"type": "url", "url": hit.url} for hit in HITS]
INCLUDE = ["web_search_call.results", "web_search_call.action.sources"]
TABLE = {"fjords": HITS}
LOOK = [("web_search", '{"query":"fjords"}')]
ANSWER = "It is deep ([Deep fjords](https://fjords.example/deep))."
SEEN = (
    "[1] Deep fjords\nhttps://fjords.example/deep\nSognefjord is 1,303 m deep.\n\n"
    "[2] Long fjords\nhttps://fjords.example/long\nIt is 205 km long."
)


def pick_search(items: list[dict[str, Any]]) -> dict[str, Any]:
    """The one search among items."""
    (search,) = [item for item in items if item["type"] == "web_search_call"]
    return search


@STREAMS
@pytest.mark.parametrize("cache_bytes", [1 << 28, 0])
@pytest.mark.parametrize("include", [[], INCLUDE, INCLUDE[:1], INCLUDE[1:]])
def test_a_search_is_run_shown_and_cited(
    tmp_path: Path, stream: bool, include: list[str], cache_bytes: int
) -> None:
    """Spec: web_search_call; hits and sources only where `include` asks, in answers, reads, lists and events."""
    search = ScriptedSearch(TABLE)
    shows_results, shows_sources = INCLUDE[0] in include, INCLUDE[1] in include
    query = "&".join(f"include[]={name}" for name in include)

    def check(item: dict[str, Any]) -> None:
        assert item["status"] == "completed"
        assert item["action"]["query"] == "fjords"
        assert ("results" in item) == shows_results
        assert ("sources" in item["action"]) == shows_sources
        if shows_results:
            assert item["results"] == RESULTS
        if shows_sources:
            assert item["action"]["sources"] == SOURCES

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="How deep?", tools=[WEB], include=include)
        looked, said = first["output"]
        check(looked)
        (part,) = said["content"]
        start = ANSWER.index("[")
        assert part["annotations"] == [
            {
                "type": "url_citation",
                "start_index": start,
                "end_index": len(ANSWER) - 2,
                "url": HITS[0].url,
                "title": HITS[0].title,
            }
        ]
        if stream:
            kinds = [kind for kind in house.kinds if "web_search" in kind or "annotation" in kind]
            assert kinds == [
                "response.web_search_call.in_progress",
                "response.web_search_call.searching",
                "response.web_search_call.completed",
                "response.output_text.annotation.added",
            ]
            check(pick_search([e["item"] for e in house.events if e["type"] == "response.output_item.done"]))
        assert house.messages[-1]["content"] == SEEN
        seen = read_array(house.upstream.asked[-1])
        second = await house.make(
            stream=stream, previous_response_id=first["id"], input="How long?", tools=[WEB]
        )
        check_prefixes(house.upstream)
        assert read_array(house.upstream.asked[-1]).startswith(seen[:-1] + b",")
        plain = await house.get(f"/v1/responses/{first['id']}")
        assert "results" not in pick_search(plain["output"])
        assert "sources" not in pick_search(plain["output"])["action"]
        asked = await house.get(f"/v1/responses/{first['id']}?{query}")
        check(pick_search(asked["output"]))
        listed = await house.get(f"/v1/responses/{second['id']}/input_items?{query}")
        check(pick_search(listed["data"]))
        assert [each.text for each in search.queries] == ["fjords"]

    settings = {"limits": {"window_cache_bytes": cache_bytes}}
    run(tmp_path, [LOOK, ANSWER, "205 km."], story, search=search, settings=settings)


@STREAMS
def test_history_without_what_was_found_says_so_to_the_model(tmp_path: Path, stream: bool) -> None:
    """Ours: a client that sends back what it was shown gives the model what it was shown."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="How deep?", tools=[WEB], include=INCLUDE)
        for output, told in (
            (first["output"], SEEN),
            (
                [
                    {**item, "results": None} if item["type"] == "web_search_call" else item
                    for item in first["output"]
                ],
                "[1] https://fjords.example/deep\n[2] https://fjords.example/long",
            ),
        ):
            history = [{"role": "user", "content": "How deep?"}, *output, {"role": "user", "content": "Hm?"}]
            await house.make(stream=stream, input=history, tools=[WEB])
            assert [m["content"] for m in house.messages if m["role"] == "tool"] == [told]

    run(tmp_path, [LOOK, ANSWER, "a", "b"], story, search=ScriptedSearch(TABLE))


@STREAMS
def test_a_search_that_fails_is_told_and_the_response_goes_on(
    tmp_path: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Ours: to the model, to the client, and in the log without what was looked for."""
    search = ScriptedSearch({"fjords": HostedToolError("The search is down.")})

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="How deep?", tools=[WEB], include=INCLUDE)
        looked = pick_search(made["output"])
        assert (looked["status"], looked["results"], looked["action"]["sources"]) == ("failed", [], [])
        assert list_codes(made) == ["search_failed"]
        assert "The search is down." in made["antiphon"]["warnings"][0]["message"]
        lines = [record.getMessage() for record in caplog.records if "search" in record.getMessage()]
        assert lines == ["a web search failed: The search is down."]
        assert "error" not in looked
        assert house.messages[-1]["content"] == "Error: The search is down."
        again = await house.make(stream=stream, previous_response_id=made["id"], input="?", tools=[WEB])
        assert [m["content"] for m in house.messages if m["role"] == "tool"] == ["Error: The search is down."]
        assert again["status"] == "completed"

    run(tmp_path, [LOOK, "I do not know.", "No."], story, search=search)


@STREAMS
def test_without_a_provider_it_is_left_out_or_refused(tmp_path: Path, stream: bool) -> None:
    """Ours: offered, it is left out with a warning; forced, the request is refused."""

    async def story(house: House) -> None:
        for choice in (FORCED, "required"):
            error = await house.refuse(input="?", tools=[WEB], tool_choice=choice, stream=stream)
            assert (error["param"], error["code"]) == ("tool_choice", "unsupported_parameter")
            if choice == FORCED:
                assert "[search] url" in error["message"]
        made = await house.make(stream=stream, input="?", tools=[WEB])
        assert list_codes(made) == ["tools_left_out"]
        assert made["tools"][0]["type"] == "web_search"
        assert house.told == []

    run(tmp_path, ["ok"], story)


@STREAMS
def test_no_more_calls_are_run_than_the_request_allows(tmp_path: Path, stream: bool) -> None:
    """Spec: `max_tool_calls`; the model then answers without hosted tools."""
    search = ScriptedSearch(TABLE)
    twice = [*LOOK, ("web_search", '{"query":"lakes"}')]

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB], max_tool_calls=1)
        assert made["max_tool_calls"] == 1
        assert [item["type"] for item in made["output"]] == ["web_search_call", "message"]
        assert list_codes(made) == ["hosted_call_dropped"]
        assert house.told == []
        assert [each.text for each in search.queries] == ["fjords"]

    run(tmp_path, [twice, "ok"], story, search=search)


@STREAMS
def test_a_forced_search_is_made_first(tmp_path: Path, stream: bool) -> None:
    """Spec: `tool_choice` names the hosted tool; after its call the model is free."""

    async def story(house: House) -> None:
        made = await house.make(stream=stream, input="?", tools=[WEB], tool_choice=FORCED)
        assert [item["type"] for item in made["output"]] == ["web_search_call", "message"]
        choices = [asked.json.get("tool_choice") for asked in house.upstream.asked]
        assert choices[0] != choices[1]
        assert choices[1] in (None, "auto")

    run(tmp_path, [LOOK, ANSWER], story, search=ScriptedSearch(TABLE))


@STREAMS
def test_a_function_of_the_client_beside_a_search(tmp_path: Path, stream: bool) -> None:
    """Ours: the search is run, the client's call handed out; both results stand in the next prompt."""
    plain = {"type": "function", "name": "plain", "parameters": {"type": "object"}}

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="?", tools=[WEB, plain])
        assert {item["type"] for item in first["output"]} == {"web_search_call", "function_call"}
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        given = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
        second = await house.make(
            stream=stream, previous_response_id=first["id"], input=[given], tools=[WEB, plain]
        )
        assert read_text(second) == "Done."
        assert {m["content"] for m in house.messages if m["role"] == "tool"} == {SEEN, "ok"}
        open_calls: set[str] = set()
        for message in house.messages:
            if message["role"] == "tool":
                open_calls.remove(message["tool_call_id"])
            else:
                assert not open_calls
                open_calls = {each["id"] for each in message.get("tool_calls", ())}

    run(tmp_path, [[*LOOK, ("plain", "{}")], "Done."], story, search=ScriptedSearch(TABLE))


@asynccontextmanager
async def serve_searxng(asked: list[web.Request]) -> AsyncIterator[str]:
    """SearXNG's JSON API on loopback."""

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        found = [{"url": h.url, "title": h.title, "content": h.snippet} for h in HITS]
        return web.json_response({"results": found if request.query.get("pageno", "1") == "1" else []})

    app = web.Application()
    app.router.add_get("/search", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_a_searxng_server_is_configured_by_its_address(tmp_path: Path) -> None:
    """Ours: `[search] url`; the domains of the request hold."""

    async def story() -> None:
        asked: list[web.Request] = []
        async with (
            serve_searxng(asked) as url,
            play([LOOK, ANSWER]) as upstream,
            open_house(tmp_path, upstream, settings={"search": {"url": url}}) as house,
        ):
            tool = {
                **WEB,
                "filters": {"allowed_domains": ["fjords.example"]},
                "search_context_size": "low",
            }
            made = await house.make(stream=True, input="How deep?", tools=[tool], include=INCLUDE)
            assert pick_search(made["output"])["results"] == RESULTS
            assert made["output"][-1]["content"][0]["annotations"]
        assert "fjords" in asked[0].query["q"]
        assert asked[0].query["format"] == "json"

    asyncio.run(story())


def test_a_search_in_a_conversation_and_in_the_background(tmp_path: Path) -> None:
    """Ours: the same items, read later and listed from the conversation."""

    async def story(house: House) -> None:
        conversation = (await house.client.send("POST", "/v1/conversations", {})).body["id"]
        body = {
            "model": "fake-model",
            "input": "How deep?",
            "tools": [WEB],
            "background": True,
            "include": INCLUDE,
        }
        queued = await house.client.send("POST", "/v1/responses", {**body, "conversation": conversation})
        assert queued.body["status"] == "queued"
        read = await wait_ended(house, queued.body["id"])
        assert "results" not in pick_search(read["output"])
        page = await house.get(f"/v1/conversations/{conversation}/items?include[]={INCLUDE[0]}&order=asc")
        assert [item["type"] for item in page["data"]] == ["message", "web_search_call", "message"]
        assert page["data"][1]["results"] == RESULTS
        assert "sources" not in page["data"][1]["action"]
        one = await house.get(f"/v1/conversations/{conversation}/items/{page['data'][1]['id']}")
        assert "results" not in one

    run(tmp_path, [LOOK, ANSWER], story, search=ScriptedSearch(TABLE))


def test_deleting_a_response_wipes_what_its_searches_found(tmp_path: Path) -> None:
    """Decided: deletion is real; hosted results too, in every file of the data folder."""
    word = b"Sognefjord"

    async def story(house: House) -> None:
        made = await house.make(stream=True, input="How deep?", tools=[WEB])
        assert find_word(tmp_path, word)
        assert (await house.client.delete(made["id"])).status == 200
        assert not find_word(tmp_path, word)
        assert (await house.client.retrieve(made["id"])).status == 404

    run(tmp_path, [LOOK, "Deep."], story, search=ScriptedSearch(TABLE))
    assert not find_word(tmp_path, word)


async def wait_ended(house: House, response_id: str) -> dict[str, Any]:
    """The response once it has ended."""
    async with asyncio.timeout(20):
        while True:
            read: dict[str, Any] = await house.get(f"/v1/responses/{response_id}")
            if read["status"] not in ("queued", "in_progress"):
                return read
            await asyncio.sleep(0.01)


def find_word(folder: Path, word: bytes) -> list[str]:
    """The files that hold a word."""
    return [path.name for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]


def test_arguments_without_a_query_are_an_error_for_the_model(tmp_path: Path) -> None:
    """Ours: no search is run for them."""
    search = ScriptedSearch(TABLE)

    async def story(house: House) -> None:
        made = await house.make(stream=True, input="?", tools=[WEB])
        assert pick_search(made["output"])["status"] == "failed"
        assert house.messages[-1]["content"].startswith("Error: The call has no query")
        assert search.queries == []

    run(tmp_path, [[("web_search", json.dumps({"q": "x"}))], "ok"], story, search=search)
