"""WebSocket mode of our own server, where it cannot be seen from outside alone: upstream bytes, the disk, limits."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.client import Socket, Transport, UpgradeRefusedError
from antiphon.protocol.lifecycle import TERMINAL_EVENTS
from antiphon.server import Admission, AdmissionLimits
from tests.fake_upstream import MODEL, FakeUpstream, Reply, make_chunk, make_head
from tests.scenarios.houses import House, check_prefixes, open_house, run
from tests.scenarios.houses import play as play_generations
from tests.scenarios.serving import WAIT_S, GatedBackend, hash_key, serve_app, serve_doubles

PATH = "/v1/responses"


class Talk:
    """One connection."""

    def __init__(self, socket: Socket, model: str) -> None:
        self.socket = socket
        self.model = model

    async def begin(self, **body: Any) -> None:
        await self.socket.send_text(json.dumps({"type": "response.create", "model": self.model, **body}))

    async def read(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.socket.receive())
        return event

    async def finish(self) -> dict[str, Any]:
        """The next terminal event or error frame."""
        while True:
            event = await self.read()
            if event["type"] in TERMINAL_EVENTS or event["type"] == "error":
                return event

    async def make(self, **body: Any) -> dict[str, Any]:
        """A response that must complete."""
        await self.begin(**body)
        event = await self.finish()
        assert event["type"] == "response.completed", event
        response: dict[str, Any] = event["response"]
        return response

    async def refuse(self, **body: Any) -> dict[str, Any]:
        """The error frame of a request that must be refused."""
        await self.begin(**body)
        event = await self.finish()
        assert event["type"] == "error", event
        return event


@asynccontextmanager
async def talk(transport: Transport, model: str = MODEL, **headers: str) -> AsyncIterator[Talk]:
    """A connection that is closed at the end."""
    socket = await transport.open_socket(PATH, headers)
    try:
        yield Talk(socket, model)
    finally:
        await socket.close()


def play(
    folder: Path, story: Callable[[Transport], Awaitable[None]], script: Any = None, **sections: Any
) -> None:
    """A story over the scripted model."""

    async def main() -> None:
        async with asyncio.timeout(2 * WAIT_S), serve_app(folder, script, **sections) as (_, transport):
            await story(transport)

    asyncio.run(main())


SCRIPTED: dict[str, Any] = {"models": {"scripted": {"endpoint": "scripted"}}}


def test_the_prompt_grows_by_its_end_alone_over_a_connection(tmp_path: Path) -> None:
    """Ours: an unchanged prefix stays byte-identical, so that the backend's prompt cache is kept."""

    async def story(house: House) -> None:
        async with talk(house.transport) as line:
            parent = None
            for text in ("one", "two", "three"):
                more: dict[str, Any] = {"previous_response_id": parent} if parent else {}
                parent = (await line.make(input=text, store=False, **more))["id"]
        check_prefixes(house.upstream)

    run(tmp_path, ["a", "b", "c"], story)


def test_what_was_warmed_up_is_sent_as_if_it_had_been_one_request(tmp_path: Path) -> None:
    """Ours: system text of a warm-up is one leading system message with what follows."""
    system = {"role": "system", "content": "Rules."}

    async def story(house: House) -> None:
        async with talk(house.transport) as line:
            warm = await line.make(input=[system], generate=False, store=False)
            assert (warm["output"], warm["usage"]["total_tokens"]) == ([], 0)
            assert house.upstream.asked == []
            await line.make(input="hello", previous_response_id=warm["id"], store=False)
            warmed = house.messages
            await line.make(input=[system, {"role": "user", "content": "hello"}], store=False)
            assert house.messages == warmed
            assert [message["role"] for message in warmed] == ["system", "user"]

    run(tmp_path, ["a", "b"], story)


@pytest.mark.parametrize("store", [False, True])
@pytest.mark.parametrize(
    "warmed",
    [
        [{"type": "message", "role": "assistant", "content": "How can I help?"}],
        [
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "o"},
        ],
        [{"role": "system", "content": f"Rule {number}."} for number in range(300)],
        [{"role": "user", "content": "a"}, {"type": "reasoning", "summary": []}],
    ],
    ids=["an answer", "a call", "many rules", "words"],
)
def test_a_warm_up_of_any_items_leaves_no_trace_in_the_prompt(
    tmp_path: Path, warmed: list[dict[str, Any]], store: bool
) -> None:
    """Ours: a user message is made up for a prompt that has none, never for a history."""
    last = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "hello"}]

    async def story(house: House) -> None:
        async with talk(house.transport) as line:
            await line.make(input=[*warmed, *last], store=False)
            at_once = house.messages
            first = await line.make(input=warmed, generate=False, store=store)
            second = await line.make(
                input=last[:1], generate=False, store=store, previous_response_id=first["id"]
            )
            third = await line.make(input=last[1:], previous_response_id=second["id"], store=store)
            assert house.messages == at_once
            await line.make(input="more", previous_response_id=third["id"], store=store)
            assert house.messages[: len(at_once)] == at_once

    run(tmp_path, ["a", "b", "c"], story)


def test_an_id_of_any_length_makes_no_error_of_that_length(tmp_path: Path) -> None:
    """Ours: what an error quotes of a client's ids is cut."""
    long = "x" * 100_000

    async def story(transport: Transport) -> None:
        async with talk(transport, "scripted") as line:
            for body in (
                {"previous_response_id": long},
                {"conversation": long},
                {"model": long},
                {"input": [{"type": "item_reference", "id": long}]},
            ):
                error = await line.refuse(**{"input": "a", **body})
                assert len(error["error"]["message"]) < 400, list(body)

    play(tmp_path, story, **SCRIPTED)


def test_nothing_of_an_unstored_chain_is_on_the_disk(tmp_path: Path) -> None:
    """Decided: a planted word is in no file of the data folder, while the server runs and after it."""
    word = b"zanzibarquux"

    def scan() -> list[Path]:
        return [
            path for path in (tmp_path / "data").rglob("*") if path.is_file() and word in path.read_bytes()
        ]

    async def story(transport: Transport) -> None:
        async with talk(transport, "scripted") as line:
            first = await line.make(input=f"The word is {word.decode()}.", store=False)
            await line.make(input="again", previous_response_id=first["id"])
            assert scan() == []

    play(tmp_path, story, **SCRIPTED)
    assert (tmp_path / "data").is_dir()
    assert scan() == []


def test_what_continues_an_unstored_response_is_not_stored_and_cannot_be(tmp_path: Path) -> None:
    """Ours: left out it is false and echoed so; true is refused by its name, and the parent stays."""

    async def story(transport: Transport) -> None:
        async with talk(transport, "scripted") as line:
            first = await line.make(input="one", store=False)
            second = await line.make(input="two", previous_response_id=first["id"])
            assert second["store"] is False
            error = await line.refuse(input="three", previous_response_id=second["id"], store=True)
            assert (error["status"], error["error"]["code"]) == (400, "invalid_value")
            assert error["error"]["param"] == "store"

    play(tmp_path, story, **SCRIPTED)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (PATH, {"authorization": "Bearer wrong"}, 401),
        (PATH, {}, 401),
        ("/v1/elsewhere", {"authorization": "Bearer k"}, 404),
    ],
)
def test_a_refused_upgrade_is_an_answer_over_http(
    tmp_path: Path, path: str, headers: dict[str, str], status: int
) -> None:
    """Ours: the API's error object instead of a connection."""

    async def story(transport: Transport) -> None:
        with pytest.raises(UpgradeRefusedError) as refused:
            await transport.open_socket(path, headers)
        assert refused.value.status == status
        assert set(refused.value.error) == {"message", "type", "param", "code"}

    play(tmp_path, story, **SCRIPTED, keys={"a": {"sha256": hash_key("k")}})


def test_a_page_from_elsewhere_gets_no_connection(tmp_path: Path) -> None:
    """Ours: where no keys are needed, a foreign origin is refused as for every other request."""

    async def story(transport: Transport) -> None:
        with pytest.raises(UpgradeRefusedError) as refused:
            await transport.open_socket(PATH, {"origin": "https://example.org"})
        assert refused.value.status == 403

    play(tmp_path, story, **SCRIPTED)


def test_a_server_without_the_mode_answers_426(tmp_path: Path) -> None:
    """Ours: `server.websocket = false`."""

    async def story(transport: Transport) -> None:
        with pytest.raises(UpgradeRefusedError) as refused:
            await transport.open_socket(PATH, {})
        assert refused.value.status == 426

    play(tmp_path, story, **SCRIPTED, server={"data": str(tmp_path / "data"), "websocket": False})


def test_a_key_of_zero_retention_continues_on_its_connection_alone(tmp_path: Path) -> None:
    """Decided: store is false whatever is asked for, and the chain is held in memory."""

    async def story(transport: Transport) -> None:
        async with talk(transport, "scripted", authorization="Bearer k") as line:
            first = await line.make(input="one", store=True)
            assert first["store"] is False
            second = await line.make(input="two", previous_response_id=first["id"], store=True)
            assert second["store"] is False
            await line.make(input="two", previous_response_id=second["id"])
        async with talk(transport, "scripted", authorization="Bearer k") as line:
            error = await line.refuse(input="three", previous_response_id=first["id"])
            assert error["error"]["code"] == "previous_response_not_found"

    play(tmp_path, story, **SCRIPTED, keys={"a": {"sha256": hash_key("k"), "zero_retention": True}})


def test_a_deleted_ancestor_ends_the_unstored_chain(tmp_path: Path) -> None:
    """Decided: a continuation through what was deleted is not found."""

    async def story(house: House) -> None:
        stored = await house.make(input="one")
        async with talk(house.transport) as line:
            held = await line.make(input="two", previous_response_id=stored["id"], store=False)
            assert (await house.client.send("DELETE", f"{PATH}/{stored['id']}")).status == 200
            error = await line.refuse(input="three", previous_response_id=held["id"], store=False)
            assert error["error"]["code"] == "previous_response_not_found"

    run(tmp_path, ["a", "b"], story)


def test_items_of_an_unstored_chain_can_be_referred_to_on_their_connection(tmp_path: Path) -> None:
    """Ours: by the id that its answer gave."""

    async def story(house: House) -> None:
        async with talk(house.transport) as line:
            first = await line.make(input="one", store=False)
            reference = {"type": "item_reference", "id": first["output"][0]["id"]}
            await line.make(input=[reference, {"role": "user", "content": "two"}], store=False)
            assert "the answer" in json.dumps(house.messages)

    run(tmp_path, ["the answer", "b"], story)


def test_a_conversation_goes_on_over_a_connection(tmp_path: Path) -> None:
    """Responses API, conversation: what was answered over a connection is appended."""

    async def story(house: House) -> None:
        made = await house.client.send("POST", "/v1/conversations", {})
        async with talk(house.transport) as line:
            await line.make(input="one", conversation=made.body["id"])
            await line.make(input="two", conversation=made.body["id"])
        assert [message["content"] for message in house.messages] == ["one", "a", "two"]

    run(tmp_path, ["a", "b"], story)


def test_more_requests_than_may_wait_are_told_to_come_back(tmp_path: Path) -> None:
    """Ours: 429 in the lane's order, with the time to wait; those that wait are answered all the same."""
    limits = {"websocket_waiting": 2, "websocket_running": 1}

    async def story(transport: Transport) -> None:
        async with talk(transport, "scripted") as line:
            for _ in range(5):
                await line.begin(input="hello")
            ends = [await line.finish() for _ in range(5)]
            refused = [end for end in ends if end["type"] == "error"]
            assert refused
            assert {end["status"] for end in refused} == {429}
            assert all(int(end["headers"]["retry-after"]) >= 1 for end in refused)
            assert (await line.make(input="after"))["status"] == "completed"

    play(tmp_path, story, **SCRIPTED, limits=limits)


@pytest.mark.parametrize("limit", ["requests_per_minute", "max_responses"])
def test_a_limited_key_is_told_when_to_come_back_and_warm_ups_are_not_counted(
    tmp_path: Path, limit: str
) -> None:
    """Ours: 429 as an error frame, with what HTTP has in its headers; nothing has been tried, so the parent stays."""
    script = {"rules": [{"when": "slow", "text": "word " * 50, "pause_s": 0.01}, {"text": "ok"}]}
    keys = {"a": {"sha256": hash_key("k"), limit: 1}}

    async def story(transport: Transport) -> None:
        async with talk(transport, "scripted", authorization="Bearer k") as line:
            for _ in range(3):
                warm = await line.make(input="warm", generate=False, store=False)
            await line.begin(input="slow", stream_id="other")
            error = await line.refuse(input="more", previous_response_id=warm["id"])
            assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(error["headers"]["retry-after"]) >= 1
            assert error["error"]["headers"] == error["headers"]
            assert (await line.finish())["type"] == "response.completed"
            await line.make(generate=False, previous_response_id=warm["id"])

    play(tmp_path, story, script, **SCRIPTED, keys=keys)


def test_a_client_that_leaves_gives_back_its_places_in_the_line() -> None:
    """Ours: what waits for a connection that is gone waits no longer, and what ran makes room."""

    async def story() -> None:
        backend = GatedBackend({"rules": [{"text": "ok"}]}, gate_at=1)
        admission = Admission(AdmissionLimits(max_responses=1, max_waiting=3))
        async with (
            asyncio.timeout(2 * WAIT_S),
            serve_doubles(backend, admission=admission) as client,
        ):
            async with talk(client.transport, "scripted") as line:
                for number in range(4):
                    await line.begin(input="one", stream_id=f"lane-{number}")
                await backend.waiting.wait()
                while admission.waiting < 3:
                    await asyncio.sleep(0)
            while admission.waiting:
                await asyncio.sleep(0)
            backend.gate.set()
            async with talk(client.transport, "scripted") as line:
                assert (await line.make(input="two"))["status"] == "completed"
            assert len(backend.asks) == 2

    asyncio.run(story())


def test_a_client_that_leaves_ends_its_request_to_the_model_server(tmp_path: Path) -> None:
    """Decided: what runs for a connection is cancelled upstream within a second of its end."""

    async def main() -> None:
        begun = [make_head(), make_chunk({"content": "Here"})]
        async with (
            asyncio.timeout(2 * WAIT_S),
            FakeUpstream(lambda _: Reply(begun, "hold")) as upstream,
            open_house(tmp_path, upstream) as house,
        ):
            async with talk(house.transport) as line:
                await line.begin(input="one", store=False)
                asked = await upstream.wait_asked()
                assert not asked.left.is_set()
            async with asyncio.timeout(1):
                await asked.left.wait()

    asyncio.run(main())


def test_what_a_connection_held_is_let_go_with_it(tmp_path: Path) -> None:
    """Ours: nothing of a closed connection is in memory."""

    async def story(house: House) -> None:
        memory = house.engine._unstored
        async with talk(house.transport) as line:
            first = await line.make(input="one", store=False)
            await line.make(input="two", previous_response_id=first["id"], stream_id="other")
            assert memory.size_bytes > 0
        while memory.size_bytes:
            await asyncio.sleep(0)

    run(tmp_path, ["a", "b"], story)


def test_another_model_takes_an_unstored_chain_over_with_its_whole_history(tmp_path: Path) -> None:
    """Ours: a chain is not bound to the model server that began it."""

    async def main() -> None:
        async with (
            asyncio.timeout(2 * WAIT_S),
            play_generations(["a"]) as one,
            play_generations(["b"]) as two,
        ):
            settings = {
                "endpoints": {"fake": {"url": one.url}, "second": {"url": two.url}},
                "models": {MODEL: {"endpoint": "fake"}, "other": {"endpoint": "second", "model": MODEL}},
            }
            async with open_house(tmp_path, one, settings=settings) as house, talk(house.transport) as line:
                first = await line.make(input="one", store=False)
                line.model = "other"
                await line.make(input="two", previous_response_id=first["id"], store=False)
            assert len(one.asked) == 1
            assert [message["content"] for message in two.asked[0].json["messages"]] == ["one", "a", "two"]

    asyncio.run(main())
