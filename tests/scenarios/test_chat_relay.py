"""Chat Completions handed on: the same bytes as without us, failures as they came, no work for a client that left."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from antiphon.client import ConnectionFailedError
from tests.fake_upstream import (
    MODEL,
    FakeUpstream,
    Reply,
    Request,
    frame,
    make_body,
    make_head,
    make_json,
    make_stream,
)
from tests.scenarios.client import StrictClient
from tests.scenarios.houses import House, open_house
from tests.scenarios.serving import hash_key

PATH = "/v1/chat/completions"
BODY = b'{ "model" : "fake-model", "messages":[{"role":"user","content":"\\u00e9"}], "x_unknown":1.0,"stream": true }'
OURS = {"antiphon-version", "x-request-id"}
#: What a server may leave out, or what concerns one connection alone.
CONNECTION = {"connection", "transfer-encoding", "content-length", "date", "server"}


@asynccontextmanager
async def relay(folder: Path, answer: Callable[[Request], Reply], **settings: Any) -> AsyncIterator[House]:
    """Our server before one that answers so."""
    async with (
        asyncio.timeout(40),
        FakeUpstream(answer) as upstream,
        open_house(folder, upstream, settings=settings) as house,
    ):
        yield house


async def ask(house: House, body: bytes, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and all bytes of an answer."""
    sent = {"content-type": "application/json", **headers}
    reply = await house.transport.send("POST", PATH, sent, body)
    try:
        return reply.status, dict(reply.headers), await reply.read()
    finally:
        await reply.close()


async def ask_directly(house: House, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """The same of the model server itself."""
    url = f"{house.upstream.url}/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as answer:
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()


STREAM = Reply(make_stream("a", "b", usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}))
WHOLE = Reply(
    [make_body(b'{"choices": [ {"x":1.50} ]}\n', content_type="application/json", extra="x-odd: 1\r\n")]
)
REFUSED = Reply(
    [make_json({"error": {"message": "Too long.", "code": "context_length_exceeded"}}, status=400)]
)
LIMITED = Reply([make_json({"detail": "slow down"}, status=429, extra="retry-after: 7\r\n")])
HTML = Reply([make_body(b"<h1>busy</h1>", status=503, content_type="text/html")])


@pytest.mark.parametrize("reply", [STREAM, WHOLE, REFUSED, LIMITED, HTML])
def test_an_answer_is_the_direct_one_but_for_our_headers(tmp_path: Path, reply: Reply) -> None:
    """Decided: through us or not, the same status, headers and bytes; errors as they came."""

    async def story() -> None:
        async with relay(tmp_path, lambda _: reply) as house:
            status, headers, body = await ask(house, BODY)
            assert house.upstream.asked[-1].body == BODY
            told = {name: value for name, value in headers.items() if name not in OURS | CONNECTION}
            assert set(headers) >= OURS
            direct = await ask_directly(house, BODY)
            assert (status, body) == (direct[0], direct[2])
            assert told == {name: value for name, value in direct[1].items() if name not in CONNECTION}

    asyncio.run(story())


@pytest.mark.parametrize(
    "extra",
    [b"x-odd: caf\xe9", "x-odd: \u20ac".encode(), b"x-odd: a\x01b", b"content-type: text/html; charset=\xff"],
)
def test_a_header_that_nobody_should_send_is_left_out(tmp_path: Path, extra: bytes) -> None:
    """RFC 9110, section 5.5: such bytes are not interpreted, so they are not handed on either."""
    kind = b"" if extra.startswith(b"content-type") else b"content-type: application/json\r\n"
    reply = Reply([b"HTTP/1.1 200 OK\r\n%bcontent-length: 2\r\n%b\r\nx-good: 1\r\n\r\n{}" % (kind, extra)])

    async def story() -> None:
        async with relay(tmp_path, lambda _: reply) as house:
            status, headers, body = await ask(house, BODY)
            assert (status, body, headers["x-good"]) == (200, b"{}", "1")
            assert "x-odd" not in headers
            assert headers.get("content-type", "application/json") == "application/json"

    asyncio.run(story())


def test_limits_and_account_at_the_server_are_not_told_as_the_clients_own(tmp_path: Path) -> None:
    """Ours: `x-ratelimit-*` is about the client's key at this server; whose account is used there stays ours."""
    extra = (
        "X-RateLimit-Remaining-Requests: 7\r\nx-ratelimit-limit-tokens: 9\r\nratelimit-policy: 5;w=1\r\n"
        "openai-organization: org-secret\r\nOpenAI-Processing-MS: 12\r\nanthropic-ratelimit-requests-limit: 4\r\n"
        "cf-ray: 1\r\nretry-after: 3\r\n"
    )
    keys = {"laptop": {"sha256": hash_key("a"), "requests_per_minute": 30}, "free": {"sha256": hash_key("b")}}
    told = {"x-ratelimit-limit-requests": "30", "x-ratelimit-remaining-requests": "29"}

    async def story() -> None:
        reply = Reply([make_json({"id": "x"}, extra=extra)])
        async with relay(tmp_path, lambda _: reply, keys=keys) as house:
            for key, expected in (("a", {**told, "x-ratelimit-reset-requests": "2s"}), ("b", {})):
                _, headers, _ = await ask(house, BODY, authorization=f"Bearer {key}")
                assert headers["retry-after"] == "3"
                begun = ("x-ratelimit", "ratelimit", "openai", "anthropic", "cf-")
                assert {name: value for name, value in headers.items() if name.startswith(begun)} == expected

    asyncio.run(story())


@pytest.mark.parametrize("status", [b"101 Switching Protocols", b"600 Odd", b"999 Odd"])
def test_a_status_that_ends_no_request_is_a_failure_of_the_server(tmp_path: Path, status: bytes) -> None:
    """RFC 9110, section 15: an answer has a status of 200 to 599."""
    reply = Reply([b"HTTP/1.1 %b\r\ncontent-length: 2\r\n\r\n{}" % status])

    async def story() -> None:
        async with relay(tmp_path, lambda _: reply) as house:
            told, _, body = await ask(house, BODY)
            assert (told, msgspec.json.decode(body)["error"]["type"]) == (502, "server_error")

    asyncio.run(story())


def test_a_model_by_another_name_is_asked_by_its_own(tmp_path: Path) -> None:
    """Decided: one name is exchanged, every other byte stays."""

    async def story() -> None:
        settings = {"models": {"mine": {"endpoint": "fake", "model": MODEL}}}
        async with relay(tmp_path, lambda _: WHOLE, **settings) as house:
            await ask(house, BODY.replace(b"fake-model", b"mine"))
            assert house.upstream.asked[-1].body == BODY

    asyncio.run(story())


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model":"nobody","messages":[]}', 404, "model_not_found"),
        (b'{"messages":[]}', 400, "missing_required_parameter"),
        (b'{"model":7,"messages":[]}', 400, "invalid_type"),
        (b"{", 400, None),
    ],
)
def test_what_cannot_be_handed_on_is_refused_here(
    tmp_path: Path, body: bytes, status: int, code: str | None
) -> None:
    """Ours: in the API's words, and nobody is asked."""

    async def story() -> None:
        async with relay(tmp_path, lambda _: WHOLE) as house:
            told, _, answer = await ask(house, body)
            error = msgspec.json.decode(answer)["error"]
            assert (told, error["code"]) == (status, code)
            assert house.upstream.asked == []

    asyncio.run(story())


def test_a_key_is_asked_for_and_not_handed_on(tmp_path: Path) -> None:
    """Decided: the client's key is ours, the endpoint's its own."""

    async def story() -> None:
        keys = {"ann": {"sha256": hash_key("key-ann")}}
        async with relay(tmp_path, lambda _: WHOLE, keys=keys) as house:
            assert (await ask(house, BODY))[0] == 401
            assert (await ask(house, BODY, authorization="Bearer key-ann"))[0] == 200
            (asked,) = house.upstream.asked
            assert "key-ann" not in str(asked.headers)

    asyncio.run(story())


def test_a_client_that_leaves_a_stream_ends_it_there(tmp_path: Path) -> None:
    """Ours: closing the answer cancels the server's work."""

    async def story() -> None:
        held = Reply([make_head(), frame(b"data: {}\n\n")], end="hold")
        async with relay(tmp_path, lambda _: held) as house:
            reply = await house.transport.send("POST", PATH, {"content-type": "application/json"}, BODY)
            assert await anext(reply.chunks()) == b"data: {}\n\n"
            await reply.close()
            await asyncio.wait_for(house.upstream.asked[0].left.wait(), 20)

    asyncio.run(story())


def test_a_client_that_leaves_before_the_answer_ends_it_there(tmp_path: Path) -> None:
    """Ours: without `stream` the status comes last, and a client may leave long before."""

    async def story() -> None:
        async with relay(tmp_path, lambda _: Reply([], end="hold")) as house:
            asking = asyncio.create_task(ask(house, BODY))
            asked = await house.upstream.wait_asked()
            asking.cancel()
            await asyncio.wait({asking})
            await asyncio.wait_for(asked.left.wait(), 20)

    asyncio.run(story())


def test_an_answer_that_breaks_off_breaks_off_here_too(tmp_path: Path) -> None:
    """Ours: half an answer is never made to look whole."""

    async def story() -> None:
        half = Reply([make_head(), frame(b"data: {}\n\n")], end="reset")
        async with relay(tmp_path, lambda _: half) as house:
            with pytest.raises(ConnectionFailedError):
                await ask(house, BODY)

    asyncio.run(story())


def test_a_server_that_is_down_is_a_bad_gateway(tmp_path: Path) -> None:
    """Decided: backend down: 502."""

    async def story() -> None:
        async with relay(tmp_path, lambda _: Reply([], end="reset")) as house:
            status, _, body = await ask(house, BODY)
            assert status == 502
            assert "error" in msgspec.json.decode(body)

    asyncio.run(story())


def test_nothing_of_it_is_kept(tmp_path: Path) -> None:
    """Ours: a relayed request is no response; other methods are refused by name."""

    async def story() -> None:
        async with relay(tmp_path, lambda _: WHOLE) as house:
            await ask(house, BODY.replace(b"\\u00e9", b"marmalade"))
            found = [p for p in tmp_path.rglob("*") if p.is_file() and b"marmalade" in p.read_bytes()]
            assert found == []
            client = StrictClient(house.transport)
            answer = await client.send("GET", PATH)
            assert answer.status == 405

    asyncio.run(story())
