"""The end of the window on a real server: refused before, or cut off in, a generation."""

import asyncio
from typing import Any

import openai
import pytest

from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.interface import ModelFacts
from antiphon.client import ClientError
from tests.real.llama_server import ALIAS, WINDOW_TOKENS
from tests.real.processes import AntiphonServer, LlamaServer
from tests.real.speaking import ENDLESS, STORY, make_filler, make_request, user

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(240)]

#: Longer than the window, by the model's own count (the tests check it).
TOO_LONG = make_filler(120)
#: Nearly as long as the window.
LONG = f"{make_filler(84)} Write numbers."


async def refuse(server: AntiphonServer, body: dict[str, Any], *, stream: bool) -> ClientError:
    """The error that a request is answered with."""
    client = server.open_client()
    try:
        if stream:
            async with client.stream(body):
                pytest.fail("a stream began")
        await client.create(body)
    except ClientError as refusal:
        return refusal
    finally:
        await client.close()
    pytest.fail("the request was answered")


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_window_is_refused_with_both_numbers(
    llama: LlamaServer, antiphon: AntiphonServer, stream: bool
) -> None:
    """Responses API, errors: 400 context_length_exceeded, before a stream begins."""
    tokens = llama.count([user(TOO_LONG)])
    assert tokens > WINDOW_TOKENS
    refusal = asyncio.run(refuse(antiphon, make_request(TOO_LONG), stream=stream))
    assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
    assert refusal.error["type"] == "invalid_request_error"
    assert f"{tokens} tokens" in refusal.error["message"]
    assert f"the window holds {WINDOW_TOKENS}" in refusal.error["message"]


def test_the_official_client_sees_the_overflow(llama: LlamaServer, antiphon: AntiphonServer) -> None:
    """The `openai` package raises `BadRequestError` with the code that its users look for."""
    with (
        openai.OpenAI(base_url=antiphon.url, api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError) as refusal,
    ):
        client.responses.create(model=ALIAS, input=TOO_LONG, stream=True)
    assert (refusal.value.code, refusal.value.param) == ("context_length_exceeded", "input")


def test_the_window_ends_an_answer_and_then_a_chain(llama: LlamaServer, antiphon: AntiphonServer) -> None:
    """Ours: an answer that fills the window is incomplete; one more round by id does not fit and says so."""

    async def talk() -> tuple[dict[str, Any], ClientError]:
        client = antiphon.open_client()
        try:
            body = make_request(LONG, text={"format": ENDLESS})
            del body["max_output_tokens"]
            first = (await client.create(body)).body
        finally:
            await client.close()
        further = make_request("Go on.", previous_response_id=first["id"])
        return first, await refuse(antiphon, further, stream=True)

    first, refusal = asyncio.run(talk())
    assert (first["status"], first["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert first["usage"]["input_tokens"] == llama.count([user(LONG)])
    assert first["usage"]["total_tokens"] == WINDOW_TOKENS
    assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
    assert f"the window holds {WINDOW_TOKENS}" in refusal.error["message"]


def test_the_output_limit_of_the_client_ends_an_answer(antiphon: AntiphonServer) -> None:
    """Responses API, `max_output_tokens`: incomplete, with that many tokens."""

    async def ask() -> Any:
        client = antiphon.open_client()
        try:
            return (await client.create(make_request(STORY, max_output_tokens=16))).body
        finally:
            await client.close()

    response = asyncio.run(ask())
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 16


def test_the_window_and_the_abilities_are_read_from_the_server(llama: LlamaServer) -> None:
    """llama.cpp, `GET /v1/models` and `GET /props`: window, tools, images; nothing is configured."""

    async def look() -> tuple[ModelFacts, ModelFacts]:
        backend = ChatCompletionsBackend(Endpoint(name="llama", url=f"{llama.url}/v1"))
        try:
            (listed,) = await backend.list_models()
            return listed, await backend.get_facts(ALIAS)
        finally:
            await backend.close()

    listed, facts = asyncio.run(look())
    props = llama.ask("/props")
    assert (listed.name, listed.profile.window_tokens) == (ALIAS, WINDOW_TOKENS)
    assert facts.profile.name == "llama.cpp"
    assert facts.profile.window_tokens == props["default_generation_settings"]["n_ctx"] == WINDOW_TOKENS
    assert props["chat_template_caps"]["supports_tools"] is False
    assert (facts.profile.tools, facts.profile.sees_images) == ("schema", False)
