"""Tools for a model that cannot call them, through the whole server: clients see ordinary calls."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.bootstrap import build_app
from antiphon.client.app_transport import AppTransport
from antiphon.config import load_config
from tests.fake_upstream import END, MODEL, FakeUpstream, Reply, Request, make_chunk, make_head, make_stream
from tests.scenarios.client import StrictClient, find_terminal, join_deltas, read_text

USAGE = {"prompt_tokens": 20, "completion_tokens": 9}
#: The pieces that an answer is streamed in are this long.
PIECE_CHARACTERS = 7


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A function tool as clients write it."""
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"type": "function", "name": name, "parameters": parameters, "strict": False}


WEATHER = function("get_weather", city={"type": "string"})
CLOCK = function("get_time")
TOOLS = [WEATHER, CLOCK]
FORCED = {"type": "function", "name": "get_time"}
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]}


def write_call(name: str, **arguments: Any) -> str:
    """A call as the model writes it."""
    return json.dumps({"name": name, "arguments": arguments})


def write_reply(reply: Any) -> str:
    """A reply, likewise."""
    return json.dumps({"reply": reply})


def give(call: dict[str, Any], output: str) -> dict[str, Any]:
    """The output of a call."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


class House:
    """Our server before a model server that says what a test tells it, one text a request."""

    def __init__(self, upstream: FakeUpstream, client: StrictClient) -> None:
        self.upstream = upstream
        self._client = client

    async def make(self, *, stream: bool = False, **body: Any) -> dict[str, Any]:
        """A response by either way."""
        filled = {"model": MODEL, "tools": TOOLS, **body}
        if not stream:
            return await self._client.create(**filled)
        events = await self._client.stream(**filled)
        response = find_terminal(events)
        assert join_deltas(events, "response.output_text.delta") == read_text(response)
        written = [item["arguments"] for item in response["output"] if item["type"] == "function_call"]
        assert join_deltas(events, "response.function_call_arguments.delta") == "".join(written)
        return response

    async def refuse(self, status: int, **body: Any) -> dict[str, Any]:
        """The error object of a request that must fail."""
        return await self._client.refuse(status, **{"model": MODEL, "tools": TOOLS, **body})

    @property
    def sent(self) -> Any:
        """The body of the last request to the model server."""
        return self.upstream.asked[-1].json

    def list_forms(self) -> list[str]:
        """What the last request let the model write: names of functions, `several`, `reply`."""
        schema = self.sent["response_format"]["json_schema"]["schema"]
        forms = []
        for form in schema.get("anyOf", [schema]):
            properties = form.get("properties", {})
            name = properties.get("name", {}).get("const")
            forms.append(name or ("reply" if "reply" in properties else "several"))
        return forms


@asynccontextmanager
async def open_house(
    folder: Path, texts: list[str], *, finish: str = "stop", **profile: Any
) -> AsyncIterator[House]:
    """The whole server in this process, its model's profile saying `tools = "schema"`."""
    waiting = iter(texts)

    def answer(_: Request) -> Reply:
        text = next(waiting)
        pieces = [text[at : at + PIECE_CHARACTERS] for at in range(0, len(text), PIECE_CHARACTERS)]
        if finish != "stop":
            chunks = [make_chunk({"content": piece}) for piece in pieces]
            return Reply([make_head(), *chunks, make_chunk({}, finish), END])
        return Reply(make_stream(*pieces, usage=USAGE))

    async with FakeUpstream(answer) as upstream:
        flags = {
            "server": {"data": str(folder / "data")},
            "endpoints": {"fake": {"url": upstream.url}},
            "profiles": {"weak": {"tools": "schema", **profile}},
            "models": {MODEL: {"endpoint": "fake", "profile": "weak"}},
        }
        async with build_app(load_config(flags, environ={}, cwd=folder)) as app:
            transport = AppTransport(app)
            try:
                yield House(upstream, StrictClient(transport))
            finally:
                await transport.close()


def run(folder: Path, texts: list[str], story: Callable[[House], Awaitable[None]], **options: Any) -> None:
    """Play a story; every text must have been asked for."""

    async def main() -> None:
        async with open_house(folder, texts, **options) as house:
            await story(house)
            assert len(house.upstream.asked) == len(texts)

    asyncio.run(main())


def list_calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls in an output."""
    return [item for item in response["output"] if item["type"] == "function_call"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_by_id(tmp_path: Path, stream: bool) -> None:
    """Ours: ordinary items and events, and the result reaches the model under its function's name."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Paris?", instructions="Be brief.")
        (call,) = first["output"]
        assert first["status"] == "completed"
        assert (call["name"], call["arguments"]) == ("get_weather", '{"city":"Paris"}')
        assert first["usage"]["output_tokens"] == 9
        second = await house.make(
            stream=stream,
            previous_response_id=first["id"],
            instructions="Be brief.",
            input=[give(call, "18 degrees")],
        )
        assert read_text(second) == "It has 18 degrees."
        system, *turns = house.sent["messages"]
        assert system["content"].endswith("\n\nBe brief.")
        assert turns == [
            {"role": "user", "content": "Paris?"},
            {"role": "assistant", "content": 'I called get_weather with {"city":"Paris"}.'},
            {"role": "user", "content": "Result of get_weather: 18 degrees"},
        ]

    run(tmp_path, [write_call("get_weather", city="Paris"), write_reply("It has 18 degrees.")], story)


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_and_their_results_in_the_order_of_the_calls(tmp_path: Path, stream: bool) -> None:
    """Ours: the client may give results in any order."""
    both = f"[{write_call('get_weather', city='Paris')}, {write_call('get_time')}]"

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Paris and the time?")
        weather, clock = list_calls(first)
        assert weather["call_id"] != clock["call_id"]
        await house.make(
            stream=stream,
            previous_response_id=first["id"],
            input=[give(clock, "12:00"), give(weather, "rain")],
        )
        assert (
            house.sent["messages"][-1]["content"]
            == "Result of get_weather: rain\n\nResult of get_time: 12:00"
        )

    run(tmp_path, [both, write_reply("Rain at noon.")], story)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "text", "forms"),
    [
        ("auto", write_reply("Hello."), ["get_weather", "get_time", "several", "reply"]),
        ("auto", write_call("get_time"), ["get_weather", "get_time", "several", "reply"]),
        ("required", write_call("get_time"), ["get_weather", "get_time", "several"]),
        (FORCED, write_call("get_time"), ["get_time"]),
        (ALLOWED, write_call("get_time"), ["get_time", "several", "reply"]),
        ({**ALLOWED, "mode": "required"}, write_call("get_time"), ["get_time", "several"]),
    ],
)
def test_every_choice_is_a_schema(tmp_path: Path, stream: bool, choice: Any, text: str, forms: Any) -> None:
    """`tool_choice` in all its forms."""

    async def story(house: House) -> None:
        response = await house.make(stream=stream, input="Hi", tool_choice=choice)
        assert response["status"] == "completed"
        assert house.list_forms() == forms
        if "reply" in text:
            assert read_text(response) == "Hello."
        else:
            assert [call["name"] for call in list_calls(response)] == ["get_time"]

    run(tmp_path, [text], story)


def test_no_choice_is_plain_text(tmp_path: Path) -> None:
    """`tool_choice: none`: JSON in a text is a text."""

    async def story(house: House) -> None:
        response = await house.make(input="Hi", tool_choice="none")
        assert read_text(response) == write_call("get_time")
        assert "response_format" not in house.sent

    run(tmp_path, [write_call("get_time")], story)


def test_one_call_alone_where_the_client_wants_no_more(tmp_path: Path) -> None:
    """`parallel_tool_calls: false`: the schema has no list; a server without enforcement is corrected."""

    async def story(house: House) -> None:
        response = await house.make(input="Hi", parallel_tool_calls=False)
        assert house.list_forms() == ["get_weather", "get_time", "reply"]
        assert len(list_calls(response)) == 1
        assert response["antiphon"]["warnings"][0]["code"] == "parallel_call_dropped"

    run(tmp_path, [f"[{write_call('get_time')}, {write_call('get_time')}]"], story)


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_that_does_not_come_is_asked_for_again(tmp_path: Path, stream: bool) -> None:
    """Decision on forced calls: text is withheld, one more try, also where a server ignores the schema."""

    async def story(house: House) -> None:
        response = await house.make(stream=stream, input="Hi", tool_choice=FORCED)
        assert read_text(response) == "Well:\n"
        assert [item["type"] for item in response["output"]] == ["message", "function_call"]

    run(tmp_path, ["I would rather talk.", f"Well:\n```json\n{write_call('get_time')}\n```"], story)


def test_a_forced_call_that_never_comes_fails(tmp_path: Path) -> None:
    """The same, to its end."""

    async def story(house: House) -> None:
        error = await house.refuse(502, input="Hi", tool_choice=FORCED)
        assert "get_time" in error["message"]

    run(tmp_path, ["No.", write_reply("No!")], story)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_has_the_clients_own_form(tmp_path: Path, stream: bool) -> None:
    """`text.format` json_schema beside tools: the text is the JSON that it asked for."""
    own = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    text = {"format": {"type": "json_schema", "name": "n", "schema": own, "strict": False}}

    async def story(house: House) -> None:
        response = await house.make(stream=stream, input="Hi", text=text)
        assert json.loads(read_text(response)) == {"n": 3}

    run(tmp_path, [write_reply({"n": 3})], story)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish", ["length", "stop"])
@pytest.mark.parametrize(
    ("text", "item_type"),
    [('{"reply": "Once upon a', "message"), ('{"name": "get_weather", "arguments": {"ci', "function_call")],
)
def test_an_answer_that_is_cut_off_is_incomplete(
    tmp_path: Path, stream: bool, finish: str, text: str, item_type: str
) -> None:
    """Ours: what is there is delivered, and half a call is never a whole one."""

    async def story(house: House) -> None:
        response = await house.make(stream=stream, input="Hi", max_output_tokens=16)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        (item,) = response["output"]
        assert (item["type"], item["status"]) == (item_type, "incomplete")

    run(tmp_path, [text], story, finish=finish)


def test_log_probabilities_are_left_out_aloud(tmp_path: Path) -> None:
    """Ours: those of the JSON are not those of the answer."""

    async def story(house: House) -> None:
        response = await house.make(input="Hi", include=["message.output_text.logprobs"])
        assert [each["code"] for each in response["antiphon"]["warnings"]] == ["logprobs_left_out"]
        assert "logprobs" not in house.sent

    run(tmp_path, [write_reply("Hello.")], story)


@pytest.mark.parametrize("rounds", [5])
def test_each_prompt_of_a_tool_loop_begins_with_the_one_before(tmp_path: Path, rounds: int) -> None:
    """Ours: byte for byte, or the server's prompt cache is lost; the choice may change between rounds."""

    async def story(house: House) -> None:
        response = await house.make(input="Paris?", instructions="Be brief.")
        for number in range(1, rounds):
            (call,) = list_calls(response)
            response = await house.make(
                previous_response_id=response["id"],
                instructions="Be brief.",
                input=[give(call, f"{number} degrees")],
                tool_choice="required" if number % 2 else "auto",
            )
        prompts = [request.body.partition(b'],"stream":')[0] for request in house.upstream.asked]
        for before, after in itertools.pairwise(prompts):
            assert after.startswith(before)
            assert len(after) > len(before)

    run(tmp_path, [write_call("get_weather", city="Paris")] * rounds, story)
