"""What the real server offers and what its model cannot do: names, tools."""

import asyncio
import json
from typing import Any

import openai
import pytest

from antiphon.client import ClientError
from tests.real.llama_server import ALIAS
from tests.real.processes import AntiphonServer, LlamaServer
from tests.real.speaking import make_request, user

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(240)]

SAID = "Say hello."
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "look_up",
    "description": "Looks a word up.",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    },
    "strict": True,
}


async def ask(server: AntiphonServer, body: dict[str, Any]) -> Any:
    """The answer, or the error that was answered."""
    client = server.open_client()
    try:
        return (await client.create(body)).body
    except ClientError as error:
        return error
    finally:
        await client.close()


def test_the_models_of_the_server_are_listed(antiphon: AntiphonServer) -> None:
    """Models API: the list, and one of it, as the official client reads them."""
    with openai.OpenAI(base_url=antiphon.url, api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == [ALIAS]
        model = client.models.retrieve(ALIAS)
        assert (model.id, model.owned_by) == (ALIAS, "llamacpp")
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("no-such-model")


def test_an_unknown_model_is_refused_though_the_server_takes_any_name(
    llama: LlamaServer, antiphon: AntiphonServer
) -> None:
    """Responses API, errors; llama.cpp itself answers 200 for every name."""
    straight = llama.complete([user(SAID)], max_tokens=1, model="no-such-model")
    assert straight["usage"]["completion_tokens"] == 1
    refusal = asyncio.run(ask(antiphon, make_request(SAID, model="no-such-model")))
    assert isinstance(refusal, ClientError)
    assert (refusal.status, refusal.code, refusal.error["param"]) == (400, "model_not_found", "model")


def test_tools_are_told_by_schema_where_the_template_has_none(
    llama: LlamaServer, antiphon: AntiphonServer
) -> None:
    """Ours: llama.cpp drops such tools in silence; we describe them, and the prompt shows it."""
    response = asyncio.run(ask(antiphon, make_request(SAID, tools=[TOOL])))
    assert response["output"]
    assert "antiphon" not in response or "tools_left_out" not in str(response["antiphon"])
    assert response["usage"]["input_tokens"] > llama.count([user(SAID)])


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "look_up"}])
def test_a_forced_tool_is_called_where_the_template_has_none(
    antiphon: AntiphonServer, choice: object
) -> None:
    """Ours: constrained JSON makes a call of a model that was never taught one; greedy, it may be cut off."""
    response = asyncio.run(ask(antiphon, make_request(SAID, tools=[TOOL], tool_choice=choice)))
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert {call["name"] for call in calls} == {"look_up"}
    for call in calls:
        if call["status"] == "completed":
            assert isinstance(json.loads(call["arguments"]), dict)
