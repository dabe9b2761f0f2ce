"""The contract of web search: one suite for the fake and for SearXNG, and what SearXNG alone can do wrong.

SearXNG is played on loopback, as its documentation has the JSON API (`/search?q=...&format=json`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import msgspec
import pytest
from aiohttp import web

from antiphon.hosted import HostedToolError, SearchHit, SearchProvider, SearchQuery
from antiphon.hosted.domains import clean_domain, is_allowed
from antiphon.hosted.scripted import ScriptedSearch
from antiphon.hosted.searxng import MAX_ANSWER_BYTES, SearxngSearch, build_text

FJORDS = (
    SearchHit("https://fjords.example.no/deep", "Deep fjords", "Sognefjord is 1,303 m deep."),
    SearchHit("https://example.com/wide", "Wide fjords", ""),
    SearchHit("https://example.com/docs/a", "Docs", "A page of the docs."),
    SearchHit("https://notexample.com/", "Another", "Not the same domain."),
)
Table: TypeAlias = Mapping[str, Sequence[SearchHit] | HostedToolError]
Play: TypeAlias = Callable[[Table], AbstractAsyncContextManager[SearchProvider]]
Answer: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve(answer: Answer) -> AsyncIterator[str]:
    """An HTTP server on loopback that answers every request so."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def play_fake(table: Table) -> AsyncIterator[SearchProvider]:
    provider = ScriptedSearch(table)
    yield provider
    await provider.close()


@asynccontextmanager
async def play_searxng(table: Table) -> AsyncIterator[SearchProvider]:
    """SearXNG with engines that know nothing of `site:`, and two hits on a page."""

    async def answer(request: web.Request) -> web.Response:
        assert request.path == "/search"
        assert request.query["format"] == "json"
        text = next((key for key in table if request.query["q"].startswith(key)), "")
        found = table.get(text, ())
        if isinstance(found, HostedToolError):
            return web.Response(status=500, text="broken")
        start = (int(request.query["pageno"]) - 1) * 2
        return web.json_response({"results": [to_result(hit) for hit in found[start : start + 2]]})

    async with serve(answer) as url:
        provider = SearxngSearch(url, timeout_s=10)
        try:
            yield provider
        finally:
            await provider.close()


def to_result(hit: SearchHit) -> dict[str, Any]:
    return {"url": hit.url, "title": hit.title, "content": hit.snippet, "engine": "any", "score": 1.0}


PLAYERS = pytest.mark.parametrize("play", [play_fake, play_searxng])


def search(play: Play, table: Table, query: SearchQuery) -> list[SearchHit]:
    async def run() -> list[SearchHit]:
        async with play(table) as provider:
            return await provider.search(query)

    return asyncio.run(run())


@PLAYERS
def test_hits_come_best_first_and_whole(play: Play) -> None:
    """Ours: the seam of web search."""
    assert search(play, {"fjords": FJORDS}, SearchQuery(text="fjords")) == list(FJORDS)


@PLAYERS
def test_no_more_hits_come_than_were_asked_for(play: Play) -> None:
    """Ours: the seam of web search."""
    assert search(play, {"fjords": FJORDS}, SearchQuery(text="fjords", count=1)) == [FJORDS[0]]


@PLAYERS
def test_a_query_that_finds_nothing_is_no_failure(play: Play) -> None:
    """Ours: the seam of web search."""
    assert search(play, {"fjords": FJORDS}, SearchQuery(text="lakes")) == []


@PLAYERS
def test_domains_hold_whatever_the_engines_do(play: Play) -> None:
    """Responses API, web search: `filters.allowed_domains` means the domain and its subdomains."""
    allowed = SearchQuery(text="fjords", allowed_domains=["example.com", "example.no"])
    assert search(play, {"fjords": FJORDS}, allowed) == list(FJORDS[:3])
    blocked = SearchQuery(
        text="fjords", allowed_domains=["example.com"], blocked_domains=["example.com/docs"]
    )
    assert search(play, {"fjords": FJORDS}, blocked) == [FJORDS[1]]


@PLAYERS
def test_a_page_comes_once(play: Play) -> None:
    """Ours: engines find the same page."""
    twice = (FJORDS[0], SearchHit(FJORDS[0].url, "Again", "Again."), FJORDS[1])
    assert search(play, {"fjords": twice}, SearchQuery(text="fjords")) == list(FJORDS[:2])


@PLAYERS
def test_a_failure_is_an_error_of_hosted_tools(play: Play) -> None:
    """Ours: the seam of web search."""
    with pytest.raises(HostedToolError):
        search(play, {"fjords": HostedToolError("broken")}, SearchQuery(text="fjords"))


def test_what_was_asked_stands_in_the_fake() -> None:
    """Ours: a fake tells what it was asked."""
    provider = ScriptedSearch({})
    query = SearchQuery(text="fjords", country="NO")
    assert asyncio.run(provider.search(query)) == []
    assert provider.queries == [query]


# SearXNG alone.


def ask_searxng(answer: Answer, *, timeout_s: float = 10.0, key: str | None = None) -> list[SearchHit]:
    async def run() -> list[SearchHit]:
        async with serve(answer) as url:
            provider = SearxngSearch(url, timeout_s=timeout_s, key=key)
            try:
                return await provider.search(SearchQuery(text="fjords"))
            finally:
                await provider.close()

    return asyncio.run(run())


def answer_with(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, body=body, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (answer_with(403), "settings.yml has json among search.formats"),
        (answer_with(429), "asks to slow down"),
        (answer_with(302, headers={"location": "http://127.0.0.1:1/"}), "redirects are not followed"),
        (answer_with(500), "answered 500"),
        (answer_with(200, b"<html>"), "no JSON object"),
        (answer_with(200, b"[" * 10_000), "no JSON object"),
        (answer_with(200, b" " * (MAX_ANSWER_BYTES + 1)), "more than 4 MiB"),
        (answer_with(200, b'{"unresponsive_engines": [["brave", "timeout"], 7]}'), "engines failed: brave"),
    ],
)
def test_an_answer_that_cannot_be_used_is_told_in_a_sentence(answer: Answer, sentence: str) -> None:
    """SearXNG, Search API: JSON is off by default (403), the limiter answers 429, engines may be silent."""
    with pytest.raises(HostedToolError, match=sentence):
        ask_searxng(answer)


def test_a_server_that_hangs_is_given_up() -> None:
    """Ours: every wait is bounded."""

    async def answer(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(HostedToolError, match=r"did not answer within 0.2 s"):
        ask_searxng(answer, timeout_s=0.2)


def test_a_server_that_is_not_there_is_told() -> None:
    """Ours: a failure says which of the parts failed."""

    async def run() -> None:
        provider = SearxngSearch("http://127.0.0.1:1")
        try:
            await provider.search(SearchQuery(text="fjords"))
        finally:
            await provider.close()

    with pytest.raises(HostedToolError, match="cannot be reached"):
        asyncio.run(run())


def test_results_that_are_odd_are_left_out_and_long_ones_cut() -> None:
    """Ours: engines give what they like."""
    results = [None, {"url": 7}, {"title": "none"}, {"url": "javascript:alert(1)", "title": "no page"}]
    results.append({"url": "https://a.no/", "title": " a \n title\x1b\x00\u202e ", "content": "w " * 2_000})
    body = msgspec.json.encode({"results": results})
    (hit,) = ask_searxng(answer_with(200, body))
    assert (hit.url, hit.title, len(hit.snippet)) == ("https://a.no/", "a title", 1_000)


def test_the_key_is_sent_and_never_shown() -> None:
    """Ours: a secret reaches its server and nothing else."""
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("authorization"))
        return web.json_response({"results": []})

    ask_searxng(answer, key="sesame-123")
    assert seen == ["Bearer sesame-123"]
    assert "sesame" not in repr(SearxngSearch("http://a.no", key="sesame-123"))


def test_domains_are_told_to_the_engines_too() -> None:
    """Ours: a filter after the fact would throw most hits away."""
    query = SearchQuery(
        text="fjords", allowed_domains=["https://A.no/", "b.no"], blocked_domains=["c.no/private"]
    )
    assert build_text(query) == "fjords (site:a.no OR site:b.no) -site:c.no/private"
    assert build_text(SearchQuery(text="x", allowed_domains=["a.no"])) == "x site:a.no"


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("https://example.com", True),
        ("http://www.example.com:8080/x?y", True),
        ("https://EXAMPLE.com./x", True),
        ("https://example.com.evil.org/", False),
        ("https://evilexample.com/", False),
        ("https://evil.org/example.com", False),
        ("https://example.com@evil.org/", False),
        ("ftp://example.com/", False),
        ("https://[broken/", False),
        ("https://example.com/a b", False),
        ("https://example.com/\u202egnp", False),
        ("https://example.com/\x1b[2J", False),
        ("https://me:secret@example.com/", False),
        ("https://example.com/" + "x" * 2_048, False),
    ],
)
def test_a_domain_means_itself_and_its_subdomains(url: str, allowed: bool) -> None:
    """Ours: names that only look like the domain are of another one."""
    assert is_allowed(url, ["example.com"], []) is allowed
    other = ("https://example.com.evil", "https://evilexample", "https://evil.org")
    assert is_allowed(url, [], ["example.com"]) is (not allowed and url.startswith(other))


def test_a_domain_is_cleaned() -> None:
    """Ours: clients write domains in many ways."""
    assert [clean_domain(text) for text in ("https://A.no/x/", "a.no", "")] == ["a.no/x", "a.no", ""]
