"""Admission as clients meet it: waiting for a place, limits of a key, and a server that stops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.contents import ContentReader
from antiphon.engine.files import FileReader, PdfExtractor, PdfLimits
from antiphon.server import Admission, AdmissionLimits
from tests.fake_upstream import MODEL, FakeUpstream, Reply, Request, make_stream
from tests.scenarios.client import StrictClient, read_text
from tests.scenarios.houses import open_house
from tests.scenarios.process import ServerProcess, start_server
from tests.scenarios.serving import GatedBackend, hash_key, serve, serve_doubles
from tests.scenarios.test_socket import Line, head
from tests.unit.test_files import build_pdf, make_url, write_page

SCRIPT: dict[str, Any] = {"rules": [{"text": "ok"}]}
BOUND_S = 20.0
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hi."}]}
LIMITED = ("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests")


async def wait_for(admission: Admission, waiting: int) -> None:
    """Until so many requests wait."""
    async with asyncio.timeout(BOUND_S):
        while admission.waiting != waiting:
            await asyncio.sleep(0)


def test_a_request_waits_for_a_place_and_a_line_that_is_full_says_so() -> None:
    """Decided: who finds the line full, or waits too long, gets 429 with `retry-after`, before any event."""

    async def story() -> None:
        backend = GatedBackend(SCRIPT, gate_at=1)
        admission = Admission(AdmissionLimits(max_responses=1, max_waiting=1))
        async with serve_doubles(backend, admission=admission) as client:
            first = asyncio.create_task(client.stream(input="one"))
            await asyncio.wait_for(backend.waiting.wait(), BOUND_S)
            second = asyncio.create_task(client.create(input="two"))
            await wait_for(admission, 1)
            for streams in (False, True):
                answer = await client.post({"input": "three", "stream": streams})
                assert (answer.status, answer.headers["retry-after"]) == (429, "5")
                assert answer.error["type"] == "rate_limit_error"
                assert answer.error["code"] == "rate_limit_exceeded"
                assert "limits.max_waiting = 1" in answer.error["message"]
            # What asks no model needs no place.
            assert (await client.send("GET", "/v1/models")).status == 200
            assert len(backend.asks) == 1
            backend.gate.set()
            assert (await first)[-1]["type"] == "response.completed"
            assert read_text(await second) == "ok"
            assert read_text(await client.create(input="four")) == "ok"

    asyncio.run(story())


def test_a_client_that_leaves_while_it_waits_makes_room_at_once() -> None:
    """Ours: a place in the line belongs to a client that is there."""

    async def story() -> None:
        backend = GatedBackend(SCRIPT, gate_at=1)
        admission = Admission(AdmissionLimits(max_responses=1, max_waiting=2))
        async with serve_doubles(backend, admission=admission) as client:
            first = asyncio.create_task(client.create(input="one"))
            await asyncio.wait_for(backend.waiting.wait(), BOUND_S)
            leaver = asyncio.create_task(client.create(input="two"))
            chatter = asyncio.create_task(client.send("POST", "/v1/chat/completions", CHAT))
            await wait_for(admission, 2)
            for task in (leaver, chatter):
                task.cancel()
            await asyncio.gather(leaver, chatter, return_exceptions=True)
            await wait_for(admission, 0)
            backend.gate.set()
            await first
            assert len(backend.asks) == 1
            assert read_text(await client.create(input="three")) == "ok"

    asyncio.run(story())


class SilentCounter(FakeUpstream):
    """A llama.cpp that lists its models, and never says how it counts."""

    asked_to_count: asyncio.Event

    def reply(self, request: Request) -> Reply:
        """Silence after the list."""
        if request.path.endswith("/models"):
            return super().reply(request)
        self.asked_to_count.set()
        return Reply([], end="hold")


def test_a_client_that_leaves_while_its_tokens_are_counted_makes_room_at_once(tmp_path: Path) -> None:
    """Ours: the place belongs to a client that is there, whichever route it asked."""

    async def story() -> None:
        upstream = SilentCounter(lambda _: Reply([]), owned_by="llamacpp")
        upstream.asked_to_count = asyncio.Event()
        settings = {"limits": {"max_responses": 1, "max_waiting": 0}}
        # With a place it is refused for its model.
        chat = {**CHAT, "model": "nothing"}
        async with upstream, open_house(tmp_path, upstream, settings=settings) as house:
            client = house.client
            counted = {"model": MODEL, "input": "Hi."}
            counting = asyncio.create_task(client.send("POST", "/v1/responses/input_tokens", counted))
            await asyncio.wait_for(upstream.asked_to_count.wait(), BOUND_S)
            assert (await client.send("POST", "/v1/chat/completions", chat)).status == 429
            counting.cancel()
            await asyncio.wait({counting})
            # The server hears of it within a few steps, long before it would give up its question.
            for _ in range(100):
                answer = await client.send("POST", "/v1/chat/completions", chat)
                if answer.status != 429:
                    break
            assert answer.status == 404

    asyncio.run(asyncio.wait_for(story(), BOUND_S))


@asynccontextmanager
async def serve_keys(folder: Path, **limits: int) -> AsyncIterator[tuple[StrictClient, StrictClient]]:
    """A server with a limited key and a free one of the same tenant."""
    keys = {
        "limited": {"sha256": hash_key("a"), "tenant": "anna", **limits},
        "free": {"sha256": hash_key("b"), "tenant": "anna"},
    }
    async with serve(folder, SCRIPT, keys=keys) as client:
        yield client.with_key("a"), client.with_key("b")


def test_a_key_has_so_many_requests_a_minute_and_is_told_how_many_are_left(tmp_path: Path) -> None:
    """OpenAI's guide on rate limits: the three headers; 429 with `retry-after`."""

    async def story() -> None:
        async with serve_keys(tmp_path, requests_per_minute=4) as (limited, free):
            answers = [await limited.post({"input": "Hi."})]
            answers.append(await limited.post({"input": "Hi.", "background": True}))
            answers.append(
                await limited.send(
                    "POST", "/v1/responses/input_tokens", {"model": "scripted", "input": "Hi."}
                )
            )
            answers.append(await limited.post({"input": "Hi.", "model": "nothing"}))
            assert [answer.status for answer in answers] == [200, 200, 200, 400]
            assert [answer.headers[LIMITED[0]] for answer in answers] == ["4"] * 4
            assert [answer.headers[LIMITED[1]] for answer in answers] == ["3", "2", "1", "0"]
            refused = await limited.post({"input": "Hi."})
            assert refused.status == 429
            assert refused.error["code"] == "rate_limit_exceeded"
            assert "keys.limited.requests_per_minute = 4" in refused.error["message"]
            assert 1 <= int(refused.headers["retry-after"]) <= 15
            assert refused.headers[LIMITED[1]] == "0"
            # Reading is no request to a model, and another key is another key.
            assert (await limited.retrieve(answers[0].body["id"])).status == 200
            told = await free.post({"input": "Hi."})
            assert told.status == 200
            assert not set(LIMITED) & set(told.headers)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("limits", "body"),
    [
        ({"max_responses": 1, "max_waiting": 0}, {}),
        ({"max_responses": 1, "queue_wait_s": 0.01}, {}),
        ({"max_responses": 1, "queue_wait_s": 0.01}, {"stream": True}),
        ({"background_queue": 0, "background_workers": 1}, {"background": True}),
        ({"background_queue": 0, "background_workers": 1}, {"background": True, "stream": True}),
    ],
)
def test_what_the_server_refuses_for_its_own_sake_is_not_counted(
    tmp_path: Path, limits: dict[str, Any], body: dict[str, Any]
) -> None:
    """Ours: the minute is for what is served; the answer tells that it is all there still."""

    async def story() -> None:
        script = {"rules": [{"texts": ["a", "b"], "pause_s": 60}]}
        keys = {
            "limited": {"sha256": hash_key("a"), "requests_per_minute": 2},
            "free": {"sha256": hash_key("b")},
        }
        async with serve(tmp_path, script, keys=keys, limits=limits) as client:
            holding = {**body, "stream": True}
            async with client.with_key("b").open_stream(input="Hi.", **holding) as events:
                await anext(events)
                for _ in range(4):
                    refused = await client.with_key("a").post({"input": "Hi.", **body})
                    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
                    told = [refused.headers[name] for name in (*LIMITED, "retry-after")]
                    assert told == ["2", "2", "0ms", "5"]
                    assert refused.error["message"].endswith("Please try again in 5s.")

    asyncio.run(story())


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/v1/responses/input_tokens"], ids=["create", "input_tokens"]
)
def test_files_that_wait_for_others_are_refused_like_requests_that_do(tmp_path: Path, path: str) -> None:
    """Ours: what passes when the client waits is 429 with `retry-after`, and not counted."""
    url = make_url(build_pdf(write_page(b"x")), "application/pdf")
    content = [{"type": "input_file", "filename": "a.pdf", "file_data": url}]
    body = {"model": MODEL, "input": [{"role": "user", "content": content}]}
    keys = {"limited": {"sha256": hash_key("a"), "requests_per_minute": 2}}

    async def story() -> None:
        upstream = FakeUpstream(lambda _: Reply(make_stream("ok")))
        async with upstream, open_house(tmp_path, upstream, settings={"keys": keys}) as house:
            house.engine.services.contents = ContentReader(
                files=FileReader(PdfExtractor(PdfLimits(waiting=0)))
            )
            for _ in range(3):
                refused = await house.client.with_key("a").send("POST", path, body)
                assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
                assert [refused.headers[name] for name in (*LIMITED, "retry-after")] == ["2", "2", "0ms", "5"]
            assert not upstream.asked

    asyncio.run(story())


def test_a_key_that_has_too_many_open_is_told_what_its_minute_has_left(tmp_path: Path) -> None:
    """Ours: every 429 of a key with a limit per minute has the three headers."""

    async def story() -> None:
        script = {"rules": [{"texts": ["a", "b"], "pause_s": 60}]}
        keys = {"limited": {"sha256": hash_key("a"), "max_responses": 1, "requests_per_minute": 2}}
        async with serve(tmp_path, script, keys=keys) as client:
            limited = client.with_key("a")
            async with limited.open_stream(input="Hi.") as events:
                await anext(events)
                for _ in range(3):
                    refused = await limited.post({"input": "Hi."})
                    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
                    assert [refused.headers[name] for name in LIMITED[:2]] == ["2", "1"]

    asyncio.run(story())


def test_a_streamed_answer_tells_the_limits_too(tmp_path: Path) -> None:
    """Ours: the headers come with the head of the stream."""
    hashed = hash_key("a")
    body = b'{"model": "scripted", "input": "Hi.", "stream": true}'
    variables: dict[str, Any] = {
        "ANTIPHON_KEYS__LAPTOP__SHA256": hashed,
        "ANTIPHON_KEYS__LAPTOP__REQUESTS_PER_MINUTE": "60",
    }
    with start_server(tmp_path, SCRIPT, **variables) as server, Line(server) as line:
        line.write(head("POST", "/v1/responses", "authorization: Bearer a", length=len(body)) + body)
        status, headers = line.read_head()
        assert (status, headers[LIMITED[0]], headers[LIMITED[1]]) == (200, "60", "59")
        assert headers[LIMITED[2]] == "1s"


def test_a_key_has_so_many_requests_open(tmp_path: Path) -> None:
    """Setting `keys.NAME.max_responses`; a response that is over makes room."""

    async def story() -> None:
        script = {"rules": [{"texts": ["a", "b"], "pause_s": 60}]}
        keys = {"limited": {"sha256": hash_key("a"), "max_responses": 1}}
        async with serve(tmp_path, script, keys=keys) as client:
            limited = client.with_key("a")
            async with limited.open_stream(input="Hi.") as events:
                await anext(events)
                error = await limited.refuse(429, input="Hi.")
                assert "keys.limited.max_responses = 1" in error["message"]
            async with limited.open_stream(input="Hi.") as events:
                await anext(events)

    asyncio.run(story())


def test_a_stop_tells_those_that_wait_and_lets_those_inside_end(tmp_path: Path) -> None:
    """Ours: drain; each client hears one end, a waiting one that it may come again."""
    may_end = asyncio.Event()

    def answer(_: Any) -> Reply:
        first, *rest = make_stream("ok")
        return Reply([first, may_end, *rest])

    async def play(server: ServerProcess, upstream: FakeUpstream) -> None:
        async with server.connect() as client:
            inside = asyncio.create_task(client.create(model="fake-model", input="one"))
            await upstream.wait_asked()
            body = {"model": "fake-model", "input": "two"}
            waiting = [
                asyncio.create_task(client.post({**body, "stream": streams})) for streams in (False, True)
            ]
            # Both are known to the server once it has answered what was sent after them.
            for _ in range(3):
                await client.send("GET", "/v1/models")
            server.ask_to_stop()
            for told in await asyncio.gather(*waiting):
                assert (told.status, told.error["code"]) == (503, "server_error")
                assert told.headers["retry-after"] == "5"
                assert told.headers["connection"] == "close"
            assert not inside.done()
            may_end.set()
            assert read_text(await inside) == "ok"
        assert await asyncio.to_thread(server.wait) == 0

    async def story() -> None:
        settings: dict[str, Any] = {
            "ANTIPHON_LIMITS__MAX_RESPONSES": "1",
            "ANTIPHON_LIMITS__SHUTDOWN_S": "15",
        }
        async with FakeUpstream(answer) as upstream:
            with ExitStack() as stack:
                # It asks the model server while it starts, which runs here.
                starting = start_server(tmp_path, upstream=upstream.url, **settings)
                await play(await asyncio.to_thread(stack.enter_context, starting), upstream)

    asyncio.run(asyncio.wait_for(story(), BOUND_S))


@pytest.mark.parametrize("section", ["max_responses", "max_waiting"])
def test_the_limits_are_settings(tmp_path: Path, section: str) -> None:
    """Ours: what is configured is what is told."""

    async def story() -> None:
        script = {"rules": [{"texts": ["a", "b"], "pause_s": 60}]}
        limits = {"max_responses": 1, "max_waiting": 0}
        async with (
            serve(tmp_path, script, limits=limits) as client,
            client.open_stream(input="Hi.") as events,
        ):
            await anext(events)
            error = await client.refuse(429, input="Hi.")
            assert f"limits.{section} = {limits[section]}" in error["message"]

    asyncio.run(story())
