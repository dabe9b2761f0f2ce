"""A server that is told to stop: responses may end for a while, then each client is told."""

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.backends.scripted import ScriptedBackend, parse_script
from antiphon.engine import Catalog, Engine, Services
from antiphon.server import Application
from antiphon.store.memory import MemoryStore
from tests.fake_upstream import MODEL, FakeUpstream, Reply, Request
from tests.scenarios.client import Answer, StrictClient
from tests.scenarios.process import ServerProcess, start_server

#: An answer that takes far longer than the server waits.
SLOW = {"rules": [{"texts": ["one ", "two ", "three"], "pause_s": 60}]}


def test_a_stream_that_outlives_the_wait_gets_its_terminal_event_and_can_be_read(tmp_path: Path) -> None:
    """Ours: exactly one terminal event, also when the server stops."""
    seen: list[dict[str, Any]] = []

    async def story() -> None:
        async with server.connect() as client, client.open_stream(input="Go.") as events:
            await anext(events)
            server.ask_to_stop()
            async for event in events:
                seen.append(event)

    with start_server(tmp_path, SLOW, ANTIPHON_LIMITS__SHUTDOWN_S="0.2") as server:
        asyncio.run(story())
        assert server.wait() == 0
    last = seen[-1]
    assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")

    async def look() -> None:
        async with server.connect() as client:
            assert (await client.retrieve(last["response"]["id"])).body == last["response"]

    with start_server(tmp_path) as server:
        asyncio.run(look())


def test_a_second_signal_ends_at_once_what_still_runs(tmp_path: Path) -> None:
    """Ours: nobody waits for `limits.shutdown_s` then, and each client still hears one end."""
    ends: list[dict[str, Any]] = []

    async def follow(client: StrictClient, begun: asyncio.Event, **body: Any) -> None:
        async with client.open_stream(input="Go.", **body) as events:
            async for event in events:
                if event["type"] == "response.in_progress":
                    begun.set()
            ends.append(event)

    async def story() -> None:
        async with server.connect() as client:
            begun = [asyncio.Event(), asyncio.Event()]
            streams = [
                asyncio.create_task(follow(client, begun[0])),
                asyncio.create_task(follow(client, begun[1], background=True)),
            ]
            plain = asyncio.create_task(client.post({"input": "Go."}))
            for event in begun:
                await event.wait()
            # The request before is known to the server once this is answered.
            for _ in range(3):
                await client.send("GET", "/v1/models")
            server.ask_to_stop()
            while "stopping" not in (tmp_path / "server.log").read_text():
                await asyncio.sleep(0)
            assert not any(task.done() for task in (*streams, plain))
            server.ask_to_stop()
            await asyncio.gather(*streams)
            told = await plain
            assert (told.status, told.error["code"]) == (503, "server_error")

    with start_server(tmp_path, SLOW, ANTIPHON_LIMITS__SHUTDOWN_S="3600") as server:
        asyncio.run(asyncio.wait_for(story(), 40))
        assert server.wait() == 0
    for end in ends:
        assert (end["type"], end["response"]["error"]["code"]) == ("response.failed", "server_error")
    assert len(ends) == 2


#: Routes that ask a model server and answer at once, and bodies for them.
PLAIN = (
    ("/v1/responses", {"model": MODEL, "input": "Go."}),
    ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "Go."}]}),
    ("/v1/responses/input_tokens", {"model": MODEL, "input": "Go."}),
)


class Silence(FakeUpstream):
    """A llama.cpp that lists its models and answers nothing else; `silent` grows with each question."""

    silent = 0

    def reply(self, request: Request) -> Reply:
        """Nothing, until its client leaves."""
        if request.path.endswith("/models"):
            return super().reply(request)
        self.silent += 1
        return Reply([], end="hold")


@pytest.mark.parametrize(("path", "body"), PLAIN)
def test_whoever_waits_for_a_status_when_the_wait_ends_is_told_to_come_again(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    """Ours: 503 in the API's shape with `retry-after`, on every route that asks a model server."""

    async def play(server: ServerProcess, upstream: Silence) -> Answer:
        async with server.connect() as client:
            asking = asyncio.create_task(client.send("POST", path, body))
            while not upstream.silent:
                await asyncio.sleep(0)
            server.ask_to_stop()
            return await asking

    async def story() -> None:
        async with Silence(lambda _: Reply([]), owned_by="llamacpp") as upstream:
            with ExitStack() as stack:
                starting = start_server(tmp_path, upstream=upstream.url, ANTIPHON_LIMITS__SHUTDOWN_S="0.2")
                # It asks the model server while it starts, which runs here.
                server = await asyncio.to_thread(stack.enter_context, starting)
                upstream.silent = 0
                told = await play(server, upstream)
                assert (told.status, told.error["code"]) == (503, "server_error")
                assert (told.headers["retry-after"], told.headers["connection"]) == ("5", "close")
                assert await asyncio.to_thread(server.wait) == 0

    asyncio.run(asyncio.wait_for(story(), 40))


def test_a_plain_request_that_is_cut_short_is_answered_in_the_apis_shape() -> None:
    """Ours: an error object and a status that clients retry, never a bare page."""

    async def story() -> list[dict[str, Any]]:
        backend = ScriptedBackend("scripted", parse_script(json.dumps(SLOW), "json"))
        engine = Engine(Services(catalog=Catalog({"scripted": backend}, {}), store=MemoryStore()))
        sent: list[dict[str, Any]] = []
        received = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if received.is_set():
                await asyncio.Event().wait()
            received.set()
            body = msgspec.json.encode({"model": "scripted", "input": "Go."})
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers}
        request = asyncio.create_task(Application(engine)(scope, receive, send))
        while not backend.streams_open:
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert backend.streams_open == 0
        return sent

    start, body = asyncio.run(story())
    assert start["status"] == 503
    error = msgspec.json.decode(body["body"])["error"]
    assert (error["type"], error["code"]) == ("server_error", "server_error")
    assert dict(start["headers"])[b"retry-after"] == b"5"
