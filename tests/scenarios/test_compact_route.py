"""`POST /v1/responses/compact` at the door: what reaches the engine, what never does, and who waits for it.

In the first part the engine writes down what it is asked for, in the second it is the real one; what a compaction does
to a history is told elsewhere.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.client.app_transport import AppTransport
from antiphon.client.transport import TransportLimits
from antiphon.engine import Catalog, Engine, Services, WindowCache
from antiphon.protocol.errors import RequestError
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.responses import CompactedResponse, Usage
from antiphon.server import Admission, AdmissionLimits, Application, ServerLimits
from antiphon.server.keys import DEFAULT_TENANT, Key, KeyLimits, Keyring
from antiphon.store.memory import MemoryStore
from tests.scenarios.client import Answer, StrictClient, read_text
from tests.scenarios.conversing import say
from tests.scenarios.serving import GatedBackend, hash_key, serve, serve_doubles

BOUND_S = 20.0
PATH = "/v1/responses/compact"
SCRIPT: dict[str, Any] = {"rules": [{"text": "ok"}]}
BODY: dict[str, Any] = {"model": "scripted", "input": "Hello."}
OUTPUT: list[dict[str, Any]] = [
    {
        "id": "msg_1",
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hello."}],
        "status": "completed",
    },
    {"id": "cmp_1", "type": "compaction", "encrypted_content": "sealed"},
]


class NotingEngine(Engine):
    """An engine whose compactions are these two items, once its gate is open."""

    def __init__(self) -> None:
        backend = GatedBackend(SCRIPT)
        catalog = Catalog({backend.name: backend}, {})
        super().__init__(Services(catalog=catalog, store=MemoryStore(), cache=WindowCache(1 << 20)))
        self.asked: list[tuple[CreateRequest, str, bool]] = []
        self.error: RequestError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.left = 0

    async def compact(
        self, request: CreateRequest, tenant: str, *, zero_retention: bool = False
    ) -> CompactedResponse:
        """What it was asked for is kept."""
        self.asked.append((request, tenant, zero_retention))
        self.begun.set()
        if self.error is not None:
            raise self.error
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        return CompactedResponse(
            id="resp_1",
            created_at=1_790_000_000,
            output=[msgspec.Raw(json.dumps(item).encode()) for item in OUTPUT],
            usage=Usage(input_tokens=9, output_tokens=3, total_tokens=12),
        )


@asynccontextmanager
async def open_door(
    admission: Admission | None = None, keys: Keyring | None = None, **limits: Any
) -> AsyncIterator[tuple[NotingEngine, StrictClient]]:
    engine = NotingEngine()
    await engine.start()
    app = Application(engine, keys=keys, limits=ServerLimits(**limits), admission=admission)
    transport = AppTransport(app, TransportLimits(idle_timeout_s=BOUND_S, close_timeout_s=BOUND_S))
    try:
        yield engine, StrictClient(transport)
    finally:
        await transport.close()
        await engine.close()


def run(story: Callable[[NotingEngine, StrictClient], Awaitable[None]], **door: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(2 * BOUND_S), open_door(**door) as (engine, client):
            await story(engine, client)

    asyncio.run(whole())


async def compact(client: StrictClient, **fields: Any) -> Answer:
    return await client.send("POST", PATH, {**BODY, **fields})


def test_a_compaction_is_answered_in_the_shape_of_the_api() -> None:
    """Responses-API section 'POST /responses/compact': user messages, then one compaction item; usage always."""

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        answer = await compact(client, previous_response_id="resp_7", instructions="Be brief.")
        assert answer.status == 200
        assert answer.body == {
            "id": "resp_1",
            "object": "response.compaction",
            "created_at": 1_790_000_000,
            "output": OUTPUT,
            "usage": {
                "input_tokens": 9,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": 3,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 12,
            },
        }
        ((request, tenant, zero_retention),) = engine.asked
        assert (request.previous_response_id, request.instructions) == ("resp_7", "Be brief.")
        assert (request.store, request.stream) == (False, False)
        assert (tenant, zero_retention) == (DEFAULT_TENANT, False)

    run(story)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": "Hello."}, "missing_required_parameter", "model"),
        ({"model": "scripted"}, "missing_required_parameter", "input"),
        ({**BODY, "stream": True}, "unknown_parameter", "stream"),
        ({**BODY, "input": [{"type": "compaction_trigger"}]}, "invalid_value", "input[0]"),
        (b"{", None, None),
        (None, None, None),
    ],
)
def test_what_is_wrong_in_itself_never_reaches_the_engine(body: Any, code: str | None, param: str) -> None:
    """Open Responses 'compact-missing-model', and the rest of the request's own checks."""

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        answer = await client.send("POST", PATH, body)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
        assert engine.asked == []

    run(story)


def test_the_engines_refusal_is_the_answer() -> None:
    """Ours: one shape for every error."""

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        engine.error = RequestError("Not today.", param="input", code="context_length_exceeded")
        answer = await compact(client)
        assert (answer.status, answer.error["message"]) == (400, "Not today.")

    run(story)


def test_long_inputs_are_refused_and_large_ones_are_read() -> None:
    """Ours: the limits of a create request."""

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        answer = await compact(client, input=[{"role": "user", "content": "x"}] * 6)
        assert (answer.status, answer.error["code"]) == (400, "array_above_max_length")
        assert engine.asked == []
        assert (await compact(client, input="x" * (2 << 20))).status == 200
        ((request, _, _),) = engine.asked
        assert len(request.input[0].raw) > 2 << 20

    run(story, max_input_items=5)


def test_a_key_of_which_nothing_is_kept_may_compact() -> None:
    """Responses-API section 'POST /responses/compact': stateless, so zero retention is no hindrance."""
    keys = Keyring(
        [
            Key(sha256=hash_key("plain"), tenant="ada"),
            Key(sha256=hash_key("strict"), tenant="bob", zero_retention=True),
        ]
    )

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        assert (await compact(client)).status == 401
        for key in ("plain", "strict"):
            assert (await compact(client.with_key(key))).status == 200
        assert [asked[1:] for asked in engine.asked] == [("ada", False), ("bob", True)]

    run(story, keys=keys)


def test_a_compaction_counts_for_its_key() -> None:
    """Decided: a key has so many requests that ask a model."""
    limits = KeyLimits(name="k", requests_per_minute=1)
    keys = Keyring([Key(sha256=hash_key("k"), tenant="ada", limits=limits)])

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        mine = client.with_key("k")
        answer = await compact(mine)
        assert (answer.status, answer.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        assert (await compact(mine)).status == 429
        assert len(engine.asked) == 1

    run(story, keys=keys)


def test_a_compaction_takes_a_place_like_a_response() -> None:
    """Ours: it asks the model, so it waits with all others, and who finds the line full is told so."""
    admission = Admission(AdmissionLimits(max_responses=1, max_waiting=0))

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        engine.gate.clear()
        first = asyncio.create_task(compact(client))
        await engine.begun.wait()
        for answer in (await compact(client), await client.post({"input": "Hi."})):
            assert (answer.status, answer.headers["retry-after"]) == (429, "5")
        engine.gate.set()
        assert (await first).status == 200
        assert len(engine.asked) == 1
        await client.create(input="Hi.")

    run(story, admission=admission)


def test_a_client_that_leaves_ends_its_compaction_and_makes_room() -> None:
    """Ours: no model writes a summary for nobody."""
    admission = Admission(AdmissionLimits(max_responses=1, max_waiting=0))

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        engine.gate.clear()
        leaver = asyncio.create_task(compact(client))
        await engine.begun.wait()
        leaver.cancel()
        await asyncio.wait({leaver})
        # The server hears of it within a few steps.
        for _ in range(1000):
            if engine.left:
                break
            await asyncio.sleep(0)
        assert engine.left == 1
        engine.gate.set()
        for _ in range(1000):
            answer = await compact(client)
            if answer.status != 429:
                break
        assert answer.status == 200

    run(story, admission=admission)


def test_a_server_that_stops_takes_no_compaction_any_more() -> None:
    """Ours: whoever waits for a status is told when to ask the next server."""
    admission = Admission()

    async def story(engine: NotingEngine, client: StrictClient) -> None:
        admission.stop()
        answer = await compact(client)
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert engine.asked == []

    run(story, admission=admission)


def test_the_document_tells_of_it_and_other_methods_are_refused() -> None:
    """Codex's configuration asks the document whether a server compacts."""

    async def story(_: NotingEngine, client: StrictClient) -> None:
        document = (await client.send("GET", "/openapi.json")).body
        operation = document["paths"][PATH]["post"]
        assert "x-antiphon" not in operation
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": "#/components/schemas/CompactRequest"}
        answered = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert answered == {"$ref": "#/components/schemas/CompactedResponse"}
        schemas = document["components"]["schemas"]
        assert schemas["CompactRequest"]["required"] == ["model"]
        assert set(schemas["CompactedResponse"]["required"]) >= {"id", "created_at", "usage"}
        answer = await client.send("PUT", PATH, BODY)
        assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, HEAD, POST")

    run(story)


# Before the real engine


TALK: dict[str, Any] = {"rules": [{"when": r"\?$", "act": "recall"}, {"act": "note"}]}
LONG: list[dict[str, Any]] = [
    {"role": role, "content": f"{role} {number}: " + "the parser reads each line of a file. " * 40}
    for number in range(30)
    for role in ("user", "assistant")
]


def play(folder: Path, story: Callable[[StrictClient], Awaitable[None]], **sections: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(2 * BOUND_S), serve(folder, TALK, **sections) as client:
            await story(client)

    asyncio.run(whole())


def test_a_compaction_is_no_response_and_changes_none(tmp_path: Path) -> None:
    """Responses-API section 'POST /responses/compact': stateless; its id is no parent and cannot be read."""

    async def story(client: StrictClient) -> None:
        first = await client.create(input="Remember the code word: harbour.")
        before = (await client.list_items(first["id"])).raw
        answer = await compact(client, input=None, previous_response_id=first["id"])
        assert answer.status == 200, answer.body
        assert [item["type"] for item in answer.body["output"]] == ["message", "compaction"]
        assert (await client.list_items(first["id"])).raw == before
        made = answer.body["id"]
        for answered in (await client.retrieve(made), await client.list_items(made)):
            assert answered.error["message"] == f"Response with id '{made}' not found."
        error = await client.refuse(input="Go on.", previous_response_id=made)
        assert error["code"] == "previous_response_not_found"
        message, sealed = answer.body["output"]
        assert (await client.send("GET", f"/v1/items/{message['id']}")).body == message
        assert (await client.send("GET", f"/v1/items/{sealed['id']}")).status == 404
        went_on = await client.create(input=[*answer.body["output"], say("What was the code word?")])
        assert read_text(went_on) == "The code word is harbour."

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"model": "nothing"}, "model_not_found", "model"),
        ({"image": {"context_compression": "auto"}}, "unsupported_parameter", "image"),
        ({"previous_response_id": "resp_1"}, "previous_response_not_found", "previous_response_id"),
        ({"antiphon": {"method": "magic"}}, "invalid_value", "antiphon.method"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "invalid_encrypted_content", None),
    ],
)
def test_what_cannot_be_carried_out_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], code: str, param: str | None
) -> None:
    """Responses-API section 'Errors', in the words of a create request."""

    async def story(client: StrictClient) -> None:
        answer = await compact(client, **fields)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)

    play(tmp_path, story)


def test_another_tenants_response_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    """Decided: what another tenant has and what nobody has give the same answer."""
    keys = {name: {"sha256": hash_key(name), "tenant": name} for name in ("ada", "bob")}

    async def story(client: StrictClient) -> None:
        ada, bob = client.with_key("ada"), client.with_key("bob")
        hers = await ada.create(input="Remember the code word: plum.")
        sealed = await compact(ada, previous_response_id=hers["id"])
        assert sealed.status == 200
        answer = await compact(bob, previous_response_id=hers["id"])
        unknown = await compact(bob, previous_response_id="resp_" + "0" * 36)
        assert answer.raw.decode().replace(hers["id"], "resp_" + "0" * 36) == unknown.raw.decode()
        answer = await compact(bob, input=sealed.body["output"])
        assert (answer.status, answer.error["code"]) == (400, "invalid_encrypted_content")
        reference = [{"type": "item_reference", "id": hers["output"][0]["id"]}]
        assert (await compact(ada, input=reference)).status == 200
        assert (await compact(bob, input=reference)).status == 404

    play(tmp_path, story, keys=keys)


def test_a_client_that_leaves_stops_the_model_that_writes_its_summary() -> None:
    """Ours: the model server's work ends with the client, and the place is free again."""

    async def story() -> None:
        backend = GatedBackend(SCRIPT, gate_at=0)
        admission = Admission(AdmissionLimits(max_responses=1, max_waiting=0))
        async with serve_doubles(backend, admission=admission) as client:
            asked = {"input": LONG, "antiphon": {"method": "summary"}}
            leaver = asyncio.create_task(compact(client, **asked))
            await backend.waiting.wait()
            assert (await compact(client)).status == 429
            leaver.cancel()
            await asyncio.wait({leaver})
            backend.gate_at = None
            for _ in range(1000):
                answer = await client.post({"input": "Hi."})
                if answer.status != 429:
                    break
            assert answer.status == 200
            assert len(backend.asks) == 2

    asyncio.run(asyncio.wait_for(story(), 2 * BOUND_S))
