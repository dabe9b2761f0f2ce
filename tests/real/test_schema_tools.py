"""Tools by schema with the default model: real calls, real results, a loop by id.

Which function fits is the model's judgement: what must hold is asserted, how well it judges is printed.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import jsonschema
import pytest
from tools.fetch_model import fetch_model

from antiphon.backends.local import DEFAULT_MODEL, ModelError
from antiphon.client import ResponsesClient
from tests.real.llama_server import ALIAS
from tests.real.processes import AntiphonServer, run_llama, run_serve
from tests.real.speaking import read_text

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

#: More than any call or reply here needs.
LIMIT_TOKENS = 160
STRING = {"type": "string"}
CONFIGURATION = """
[endpoints.llama]
url = "{url}"

[profiles.weak]
tools = "schema"
asks_for_progress = true

[models."{model}"]
endpoint = "llama"
profile = "weak"
"""


class Case(NamedTuple):
    """A request that one function fits, what it returns, and a word of that."""

    function: str
    question: str
    result: str
    word: str


def function(
    name: str, description: str, required: list[str] | None = None, **properties: Any
) -> dict[str, Any]:
    """A function tool as clients write it."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": sorted(properties) if required is None else required,
    }
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": False,
    }


TOOLS = [
    function("get_weather", "Get the current weather of a city.", city=STRING),
    function("send_email", "Send an email.", to=STRING, subject=STRING, body=STRING),
    function("add_numbers", "Add two numbers.", a={"type": "number"}, b={"type": "number"}),
    function(
        "search_files",
        "Search the files of the project for a text.",
        ["pattern"],
        pattern=STRING,
        max_results={"type": "integer"},
    ),
    function("set_timer", "Start a timer.", minutes={"type": "integer", "minimum": 1}, label=STRING),
]
CASES = [
    Case("get_weather", "What is the weather in Paris?", "cloudy, 14 degrees", "cloudy"),
    Case(
        "send_email",
        "Send an email to bob@example.com with the subject Lunch and ask him to meet at noon.",
        "Sent as message 4711.",
        "4711",
    ),
    Case("add_numbers", "What is 1234 plus 4321? Use the tool.", "5555", "5555"),
    Case(
        "search_files",
        "Find all places in the project where 'TODO' stands.",
        "main.py:12, app.py:3",
        "main.py",
    ),
    Case("set_timer", "Set a timer for 10 minutes for the pasta.", "Timer 7 started.", "7"),
]
NOTHING_FITS = [
    "Hello, how are you?",
    "Write a haiku about the sea.",
    "What is the capital of France?",
    "Thank you, that is all.",
    "Explain in one sentence what a list is in Python.",
    "Who wrote Romeo and Juliet?",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AntiphonServer]:
    """Our server before a real one that runs the default model, told that the model takes schemas."""
    try:
        model = fetch_model(DEFAULT_MODEL)
    except ModelError as error:
        pytest.fail(f"these tests need the default model: {error}", pytrace=False)
    folder = tmp_path_factory.mktemp("schema_tools")
    with run_llama(model, folder) as llama:
        path = folder / "antiphon.toml"
        path.write_text(CONFIGURATION.format(url=llama.url, model=ALIAS))
        with run_serve(["--config", str(path)], folder) as server:
            yield server


def play(server: AntiphonServer, story: Callable[[ResponsesClient], Awaitable[None]]) -> None:
    """A story with a client of its own."""

    async def main() -> None:
        client = server.open_client()
        try:
            await story(client)
        finally:
            await client.close()

    asyncio.run(main())


async def make(client: ResponsesClient, said: Any, **options: Any) -> dict[str, Any]:
    """A greedy answer with the five tools."""
    body = {
        "model": ALIAS,
        "input": said,
        "tools": TOOLS,
        "temperature": 0,
        "max_output_tokens": LIMIT_TOKENS,
        **options,
    }
    answer: dict[str, Any] = (await client.create(body)).body
    return answer


def list_calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls in an output."""
    return [item for item in response["output"] if item["type"] == "function_call"]


def is_valid(call: dict[str, Any]) -> bool:
    """Whether the arguments are what the function's schema asks for."""
    schema = next(tool["parameters"] for tool in TOOLS if tool["name"] == call["name"])
    return jsonschema.Draft202012Validator(schema).is_valid(json.loads(call["arguments"]))


def give(call: dict[str, Any], output: str) -> dict[str, Any]:
    """The output of a call."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


def test_five_tools_are_called_and_their_results_used_by_id(server: AntiphonServer) -> None:
    """Ours: five valid calls of five; measured: five fitting ones, and five results in the answers."""

    async def story(client: ResponsesClient) -> None:
        fitting = used = cached = 0
        for case in CASES:
            first = await make(client, case.question)
            (call,) = list_calls(first)
            assert first["status"] == "completed"
            assert is_valid(call), call
            fitting += call["name"] == case.function
            second = await make(client, [give(call, case.result)], previous_response_id=first["id"])
            assert second["status"] == "completed"
            assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
            cached += second["usage"]["input_tokens_details"]["cached_tokens"] > 0
            used += case.word in read_text(second)
        print(
            f"\ncalls: 5 of 5 valid, {fitting} of 5 fitting; results used: {used} of 5; cached: {cached} of 5"
        )
        assert (fitting, cached) == (5, 5)
        assert used >= 4

    play(server, story)


def test_every_choice_is_kept(server: AntiphonServer) -> None:
    """`tool_choice` in all its forms, against what the model would rather do."""

    async def story(client: ResponsesClient) -> None:
        hello = "Hello, how are you?"
        for tool in TOOLS:
            forced = await make(client, hello, tool_choice={"type": "function", "name": tool["name"]})
            assert [call["name"] for call in list_calls(forced)] == [tool["name"]]
            assert is_valid(list_calls(forced)[0])
        required = await make(client, hello, tool_choice="required")
        assert list_calls(required)
        assert all(map(is_valid, list_calls(required)))
        allowed = {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "set_timer"}],
        }
        limited = await make(client, CASES[0].question, tool_choice=allowed)
        assert {call["name"] for call in list_calls(limited)} == {"set_timer"}
        nothing = await make(client, CASES[0].question, tool_choice="none")
        assert not list_calls(nothing)
        assert read_text(nothing)

    play(server, story)


def test_a_loop_over_five_rounds_keeps_the_prompt_cache(server: AntiphonServer) -> None:
    """Ours: each round's prompt begins with the one before, so the server reads only what is new."""

    async def story(client: ResponsesClient) -> None:
        response = await make(client, "What is the weather in Paris?", tool_choice="required")
        for number in range(5):
            before = response["usage"]["input_tokens"]
            outputs = [give(call, f"{number} degrees") for call in list_calls(response)]
            said = [*outputs, {"role": "user", "content": f"And in city number {number}?"}]
            response = await make(client, said, previous_response_id=response["id"], tool_choice="required")
            # The generation prompt behind the last message is not part of what follows.
            assert response["usage"]["input_tokens_details"]["cached_tokens"] >= before - 8

    play(server, story)


def test_a_reply_has_the_clients_own_form(server: AntiphonServer) -> None:
    """`text.format` json_schema beside tools."""
    schema = {
        "type": "object",
        "properties": {"mood": {"enum": ["good", "bad"]}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "mood", "schema": schema, "strict": True}}

    async def story(client: ResponsesClient) -> None:
        response = await make(client, "Hello, how are you?", tools=TOOLS[:1], text=text)
        if not list_calls(response):
            jsonschema.validate(json.loads(read_text(response)), schema)

    play(server, story)


def test_how_often_nothing_is_called_where_nothing_fits(server: AntiphonServer) -> None:
    """Measured, not promised: small models call too often."""

    async def story(client: ResponsesClient) -> None:
        replies = 0
        for said in NOTHING_FITS:
            response = await make(client, said)
            assert response["status"] in ("completed", "incomplete")
            assert all(map(is_valid, list_calls(response)[:-1]))
            replies += not list_calls(response)
        print(f"\nnothing fits: {replies} of {len(NOTHING_FITS)} answered in words")
        assert replies >= 1

    play(server, story)
