"""A client that leaves stops a real generation: by the model server's own slots and counters.

After the client is gone the slot must become idle, having made far fewer tokens than it was asked for.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from antiphon.client import ClientError, EventStream, ResponsesClient
from antiphon.protocol.events import OutputTextDelta, ResponseCreated
from tests.real.llama_server import ALIAS, BATCH_TOKENS
from tests.real.processes import POLL_S, AntiphonServer, LlamaServer, wait_until
from tests.real.speaking import ENDLESS, make_filler, make_request, read_text, user

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(240)]

#: A batch of the prompt on a busy machine takes a second or two.
IDLE_S = 20.0
#: Until a cancelled response can be read.
STORED_S = 10.0
#: The generation has no end of its own; it may go on for no more than this once the client has left.
ASKED_TOKENS = 1500
MADE_TOKENS = 400
ENDLESS_FORM = {"format": ENDLESS}
ENDLESS_REQUEST = make_request("Write numbers.", max_output_tokens=ASKED_TOKENS, text=ENDLESS_FORM)
#: A prompt of some ten batches, unlike that of any other test, so that nothing of it is cached.
PREFILL = f"A list of keepers. {make_filler(64)}"


@asynccontextmanager
async def opened(server: AntiphonServer) -> AsyncIterator[ResponsesClient]:
    """A client that is closed at the end."""
    client = server.open_client()
    try:
        yield client
    finally:
        await client.close()


async def read_id(stream: EventStream) -> str:
    """The response's id, from its first event."""
    async for event in stream:
        assert isinstance(event, ResponseCreated)
        response_id: str = json.loads(bytes(event.response))["id"]
        return response_id
    pytest.fail("the stream was empty")


async def see_idle(llama: LlamaServer) -> float:
    """Wait for all slots to be idle; the seconds that it took."""
    return await wait_until(lambda: not llama.busy_slots(), "all slots idle", timeout_s=IDLE_S)


async def see_stored(client: ResponsesClient, response_id: str) -> dict[str, Any]:
    """The stored response, once it is there."""
    async with asyncio.timeout(STORED_S):
        while True:
            try:
                found: dict[str, Any] = (await client.retrieve(response_id)).body
            except ClientError as error:
                if error.status != 404:
                    raise
                await asyncio.sleep(POLL_S)
            else:
                return found


def test_leaving_in_mid_stream_stops_the_generation(llama: LlamaServer, antiphon: AntiphonServer) -> None:
    """Ours: idle soon, few tokens made, and the response is kept as cancelled with what there was."""

    async def leave() -> tuple[dict[str, Any], float]:
        async with opened(antiphon) as client:
            async with client.stream(ENDLESS_REQUEST) as stream:
                response_id = ""
                async for event in stream:
                    if isinstance(event, ResponseCreated):
                        response_id = json.loads(bytes(event.response))["id"]
                    elif isinstance(event, OutputTextDelta):
                        break
            idle_s = await see_idle(llama)
            return await see_stored(client, response_id), idle_s

    before = llama.read_counters()
    stored, idle_s = asyncio.run(leave())
    made = llama.read_counters()["tokens_predicted_total"] - before["tokens_predicted_total"]
    print(f"\nidle after {idle_s:.2f} s, {made:.0f} of {ASKED_TOKENS} tokens made")
    assert 0 < made < MADE_TOKENS
    assert stored["status"] == "cancelled"
    assert read_text(stored).startswith("[")


def test_leaving_during_the_prefill_stops_it(llama: LlamaServer, antiphon: AntiphonServer) -> None:
    """Ours: before the first token; the rest of the prompt is never evaluated, and nothing is generated."""

    async def leave() -> tuple[dict[str, Any], float]:
        async with opened(antiphon) as client:
            async with client.stream(make_request(PREFILL, max_output_tokens=ASKED_TOKENS)) as stream:
                response_id = await read_id(stream)
                await wait_until(lambda: bool(llama.busy_slots()), "a slot at work", timeout_s=IDLE_S)
            idle_s = await see_idle(llama)
            return await see_stored(client, response_id), idle_s

    prompt_tokens = llama.count([user(PREFILL)])
    assert prompt_tokens > 8 * BATCH_TOKENS
    before = llama.read_counters()
    stored, idle_s = asyncio.run(leave())
    after = llama.read_counters()
    evaluated = after["prompt_tokens_total"] - before["prompt_tokens_total"]
    print(f"\nidle after {idle_s:.2f} s, {evaluated:.0f} of {prompt_tokens} prompt tokens evaluated")
    assert 0 < evaluated <= prompt_tokens / 2
    assert after["tokens_predicted_total"] == before["tokens_predicted_total"]
    assert stored["status"] == "cancelled"
    assert stored["output"] == []


def test_leaving_an_answer_at_once_stops_the_generation(llama: LlamaServer, antiphon: AntiphonServer) -> None:
    """Ours: a client that waits for the whole answer and hangs up."""

    async def leave() -> float:
        async with opened(antiphon) as client:
            asking = asyncio.create_task(client.create(ENDLESS_REQUEST))
            await wait_until(lambda: bool(llama.busy_slots()), "a slot at work", timeout_s=IDLE_S)
            asking.cancel()
            await asyncio.wait({asking})
            assert asking.cancelled()
            return await see_idle(llama)

    before = llama.read_counters()
    idle_s = asyncio.run(leave())
    made = llama.read_counters()["tokens_predicted_total"] - before["tokens_predicted_total"]
    print(f"\nidle after {idle_s:.2f} s, {made:.0f} of {ASKED_TOKENS} tokens made")
    assert made < MADE_TOKENS


def test_the_official_client_stops_a_generation_by_closing_its_stream(
    llama: LlamaServer, antiphon: AntiphonServer
) -> None:
    """The `openai` package: leaving the stream's block closes its connection."""

    async def leave() -> float:
        async with (
            openai.AsyncOpenAI(base_url=antiphon.url, api_key="none", max_retries=0) as client,
            await client.responses.create(
                model=ALIAS,
                input="Write numbers.",
                max_output_tokens=ASKED_TOKENS,
                stream=True,
                extra_body={"text": ENDLESS_FORM},
            ) as stream,
        ):
            async for event in stream:
                if event.type == "response.output_text.delta":
                    break
        return await see_idle(llama)

    before = llama.read_counters()
    asyncio.run(leave())
    made = llama.read_counters()["tokens_predicted_total"] - before["tokens_predicted_total"]
    assert 0 < made < MADE_TOKENS
