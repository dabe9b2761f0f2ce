"""Tools: loops by id, calls side by side, choices that are enforced whatever the model does."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.client import StrictClient, find_terminal, read_text
from tests.scenarios.serving import GatedBackend, serve, serve_doubles

REMEDY = "Remove duplicate items from your input and try again."
CACHES = pytest.mark.parametrize("cache_bytes", [268_435_456, 0])


def function(name: str, **properties: Any) -> dict[str, Any]:
    """A function tool as clients write it."""
    return {
        "type": "function",
        "name": name,
        "parameters": {"type": "object", "properties": properties, "required": sorted(properties)},
        "strict": False,
    }


WEATHER = function("get_weather", city={"type": "string"})
CLOCK = function("get_time")


def list_calls(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls in an output."""
    return [item for item in response["output"] if item["type"] == "function_call"]


def give(call: dict[str, Any], output: str) -> dict[str, Any]:
    """The output of a call."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": output}


async def make(client: StrictClient, stream: bool, **body: Any) -> dict[str, Any]:
    """A response by either way."""
    return find_terminal(await client.stream(**body)) if stream else await client.create(**body)


@CACHES
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_loop_by_id_needs_only_the_output(tmp_path: Path, stream: bool, cache_bytes: int) -> None:
    """Ours: round 2 sends only the output, and the model sees the whole history."""

    async def story() -> None:
        async with serve(tmp_path, limits={"window_cache_bytes": cache_bytes}) as client:
            question = "My name is Ada. Use get_weather for Paris."
            first = await make(client, stream, input=question, tools=[WEATHER])
            (call,) = list_calls(first)
            assert first["status"] == "completed"
            assert json.loads(call["arguments"]) == {"city": "Paris"}
            body: dict[str, Any] = {"input": [give(call, "18 degrees")], "tools": [WEATHER]}
            second = await make(client, stream, previous_response_id=first["id"], **body)
            assert "18 degrees" in read_text(second)
            history = [{"role": "user", "content": question}, *first["output"], give(call, "18 degrees")]
            full = await make(client, stream, input=history, tools=[WEATHER])
            assert second["usage"] == full["usage"]
            third = await make(client, stream, input="What is my name?", previous_response_id=second["id"])
            assert "Ada" in read_text(third)

    asyncio.run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_parallel_calls_are_items_of_their_own_and_all_want_their_output(
    tmp_path: Path, stream: bool
) -> None:
    """Responses API 4.7 and 6.3, pairing."""

    async def story() -> None:
        script = {
            "answers": [
                {
                    "text": "I look at both.",
                    "calls": [
                        {"name": "get_weather", "arguments": {"city": "Paris"}},
                        {"name": "get_weather", "arguments": {"city": "Rome"}},
                        {"name": "get_time"},
                    ],
                },
                {"act": "repeat_outputs"},
            ]
        }
        async with serve(tmp_path, script) as client:
            tools = [WEATHER, CLOCK]
            first = await make(client, stream, input="Both, please.", tools=tools)
            calls = list_calls(first)
            assert [item["type"] for item in first["output"]] == ["message", *["function_call"] * 3]
            assert [call["name"] for call in calls] == ["get_weather", "get_weather", "get_time"]
            assert [json.loads(call["arguments"]) for call in calls] == [
                {"city": "Paris"},
                {"city": "Rome"},
                {},
            ]
            assert len({call["call_id"] for call in calls}) == 3
            assert len({item["id"] for item in first["output"]}) == 4
            error = await client.refuse(
                input=[give(calls[0], "1"), give(calls[2], "3")], previous_response_id=first["id"]
            )
            assert error == {
                "message": f"No tool output found for function call {calls[1]['call_id']}.",
                "type": "invalid_request_error",
                "param": "input",
                "code": None,
            }
            # In any order.
            second = await make(
                client,
                stream,
                input=[give(calls[2], "noon"), give(calls[0], "sun"), give(calls[1], "rain")],
                previous_response_id=first["id"],
                tools=tools,
            )
            for word in ("noon", "sun", "rain"):
                assert word in read_text(second)

    asyncio.run(story())


def test_one_call_is_left_when_parallel_calls_are_off(tmp_path: Path) -> None:
    """Responses API 2: `parallel_tool_calls: false` holds even where the backend ignores it; never silently."""

    async def story() -> None:
        script = {"rules": [{"calls": [{"name": "get_time"}, {"name": "get_weather"}, {"name": "get_time"}]}]}
        async with serve(tmp_path, script) as client:
            for stream in (False, True):
                response = await make(
                    client, stream, input="Go.", tools=[WEATHER, CLOCK], parallel_tool_calls=False
                )
                assert [call["name"] for call in list_calls(response)] == ["get_time"]
                assert response["parallel_tool_calls"] is False
                codes = [warning["code"] for warning in response["antiphon"]["warnings"]]
                assert codes == ["parallel_call_dropped"] * 2

    asyncio.run(story())


def test_pairing_is_checked_before_the_model_is_asked() -> None:
    """Responses API 6.3: output without call, call without output, duplicate ids; by id and in one request."""
    backend = GatedBackend({"answers": [{"calls": [{"name": "get_time", "id": "call_1"}]}, {"text": "ok"}]})

    async def story() -> None:
        async with serve_doubles(backend) as client:
            first = await client.create(input="Go.", tools=[CLOCK])
            (call,) = list_calls(first)
            assert call["call_id"] == "call_1"
            asked = len(backend.asks)
            user = {"role": "user", "content": "Hello."}
            sent = {"type": "function_call", "call_id": "call_2", "name": "get_time", "arguments": "{}"}
            parent = {"previous_response_id": first["id"]}
            wrong: list[tuple[dict[str, Any], str]] = [
                (
                    {"input": [give({"call_id": "call_9"}, "x")]},
                    "No tool call found for function call output with call_id call_9.",
                ),
                ({"input": [user, sent]}, "No tool output found for function call call_2."),
                ({"input": "Hello.", **parent}, "No tool output found for function call call_1."),
                ({"input": [], **parent}, "No tool output found for function call call_1."),
                (
                    {"input": [give({"call_id": "call_9"}, "x")], **parent},
                    "No tool call found for function call output with call_id call_9.",
                ),
                (
                    {"input": [{**user, "id": "msg_1"}, {**user, "id": "msg_1"}]},
                    f"Duplicate item found with id msg_1. {REMEDY}",
                ),
                (
                    {"input": [call, give(call, "noon")], **parent},
                    f"Duplicate item found with id {call['id']}. {REMEDY}",
                ),
            ]
            for body, message in wrong:
                error = await client.refuse(**body)
                assert error == {
                    "message": message,
                    "type": "invalid_request_error",
                    "param": "input",
                    "code": None,
                }
            assert len(backend.asks) == asked
            # An output may come anywhere after its call, text between is fine.
            await client.create(input=[user, give(call, "noon"), user], **parent)

    asyncio.run(story())


def test_an_answered_call_cannot_be_answered_again(tmp_path: Path) -> None:
    """Responses API 6.3, ours: a second output for a call of the path is refused."""

    async def story() -> None:
        script = {"answers": [{"calls": [{"name": "get_time", "id": "call_1"}]}, {"text": "ok"}]}
        async with serve(tmp_path, script) as client:
            first = await client.create(input="Go.", tools=[CLOCK])
            (call,) = list_calls(first)
            second = await client.create(input=[give(call, "noon")], previous_response_id=first["id"])
            error = await client.refuse(input=[give(call, "noon")], previous_response_id=second["id"])
            assert error["param"] == "input"
            assert "call_1" in error["message"]

    asyncio.run(story())


def test_call_ids_that_a_server_repeats_are_made_distinct(tmp_path: Path) -> None:
    """Ours: some servers count calls from zero in every answer; on a path an id names one call."""

    async def story() -> None:
        call = {"name": "get_time", "id": "call_0"}
        script = {"answers": [{"calls": [call, call]}, {"calls": [call]}, {"act": "repeat_outputs"}]}
        async with serve(tmp_path, script) as client:
            first = await client.create(input="Go.", tools=[CLOCK])
            calls = list_calls(first)
            second = await client.create(
                input=[give(each, "noon") for each in calls], previous_response_id=first["id"], tools=[CLOCK]
            )
            calls += list_calls(second)
            assert len({each["call_id"] for each in calls}) == 3
            third = await client.create(
                input=[give(calls[-1], "midnight")], previous_response_id=second["id"], tools=[CLOCK]
            )
            assert "midnight" in read_text(third)

    asyncio.run(story())


def test_half_a_call_is_kept_but_not_shown_to_the_model() -> None:
    """Decided: an unfinished call is not replayed; nothing is owed for it."""
    backend = GatedBackend(
        {
            "answers": [
                {
                    "text": "I look.",
                    "calls": [{"name": "get_time", "arguments": '{"a": '}],
                    "finish": "length",
                },
                {"text": "ok"},
            ]
        }
    )

    async def story() -> None:
        async with serve_doubles(backend) as client:
            first = find_terminal(await client.stream(input="Go.", tools=[CLOCK]))
            assert first["status"] == "incomplete"
            assert [call["status"] for call in list_calls(first)] == ["incomplete"]
            await client.create(input="Go on.", previous_response_id=first["id"])
            transcript = b",".join(backend.asks[-1].transcript)
            assert b"function_call" not in transcript
            assert b"I look." in transcript

    asyncio.run(story())


def test_tool_choice_decides_what_the_backend_is_told() -> None:
    """Responses API 2.3: none hides the tools, allowed_tools is a hard limit, a named function is forced."""
    backend = GatedBackend({"rules": [{"tool_forced": True, "act": "call_tools"}, {"text": "ok"}]})
    allowed = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_time"}],
    }
    named = {"type": "function", "name": "get_time"}
    #: Choice -> (tools, tool_choice, forced tool) of the ask.
    table: list[tuple[Any, tuple[list[str], str, str | None]]] = [
        ("auto", (["get_weather", "get_time"], "auto", None)),
        ("none", ([], "none", None)),
        ("required", (["get_weather", "get_time"], "required", None)),
        (named, (["get_weather", "get_time"], "required", "get_time")),
        (allowed, (["get_time"], "required", None)),
        ({**allowed, "mode": "auto"}, (["get_time"], "auto", None)),
    ]

    async def story() -> None:
        async with serve_doubles(backend) as client:
            for choice, expected in table:
                for stream in (False, True):
                    response = await make(
                        client, stream, input="Hello.", tools=[WEATHER, CLOCK], tool_choice=choice
                    )
                    ask = backend.asks[-1]
                    told = ([tool.name for tool in ask.tools], ask.tool_choice, ask.forced_tool)
                    assert told == expected, choice
                    assert response["tool_choice"] == choice
                    assert [tool["name"] for tool in response["tools"]] == ["get_weather", "get_time"]
                    assert bool(list_calls(response)) == (expected[1] == "required")

    asyncio.run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_text_before_a_forced_call_is_withheld_until_the_call_starts(tmp_path: Path, stream: bool) -> None:
    """Decided: text is withheld until the call starts; then all of it is there."""

    async def story() -> None:
        script = {"rules": [{"text": "I look now.", "calls": [{"name": "get_time"}]}]}
        async with serve(tmp_path, script) as client:
            response = await make(client, stream, input="Go.", tools=[CLOCK], tool_choice="required")
            assert read_text(response) == "I look now."
            assert [call["name"] for call in list_calls(response)] == ["get_time"]
            assert "antiphon" not in response

    asyncio.run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_will_not_call_is_asked_once_more(tmp_path: Path, stream: bool) -> None:
    """Decided: one re-ask; the withheld text is not in the answer, and a warning tells of it."""

    async def story() -> None:
        script = {
            "rules": [{"when": "^Answer with a call", "calls": [{"name": "get_time"}]}, {"text": "No."}]
        }
        async with serve(tmp_path, script) as client:
            response = await make(client, stream, input="Go.", tools=[CLOCK], tool_choice="required")
            assert read_text(response) == ""
            (call,) = list_calls(response)
            codes = [warning["code"] for warning in response["antiphon"]["warnings"]]
            assert codes == ["tool_call_asked_again"]
            # Our own words to the model are no part of the history.
            page = await client.list_items(response["id"])
            assert len(page.body["data"]) == 1
            follow = await client.create(
                input=[give(call, "noon")], previous_response_id=response["id"], tools=[CLOCK]
            )
            assert read_text(follow) == "No."

    asyncio.run(story())


def test_a_model_that_refuses_twice_fails_the_response() -> None:
    """Decided: one re-ask, then `response.failed`; without streaming the status says so."""
    backend = GatedBackend({"rules": [{"text": "No."}]})

    async def story() -> None:
        async with serve_doubles(backend) as client:
            events = await client.stream(input="Go.", tools=[CLOCK], tool_choice="required")
            kinds = [event["type"] for event in events]
            assert kinds == ["response.created", "response.in_progress", "error", "response.failed"]
            response = find_terminal(events)
            assert response["error"]["code"] == "server_error"
            assert response["output"] == []
            assert len(backend.asks) == 2
            error = await client.refuse(502, input="Go.", tools=[CLOCK], tool_choice="required")
            assert error["code"] == "server_error"

    asyncio.run(story())


def test_a_call_of_another_tool_is_no_obedience(tmp_path: Path) -> None:
    """Decided for a named function."""

    async def story() -> None:
        script = {
            "rules": [
                {"when": "^Answer with a call of the function get_time", "calls": [{"name": "get_time"}]},
                {"calls": [{"name": "get_weather"}]},
            ]
        }
        async with serve(tmp_path, script) as client:
            for stream in (False, True):
                response = await make(
                    client,
                    stream,
                    input="Go.",
                    tools=[WEATHER, CLOCK],
                    tool_choice={"type": "function", "name": "get_time"},
                )
                assert [call["name"] for call in list_calls(response)] == ["get_time"]

    asyncio.run(story())


def test_a_tool_that_was_not_allowed_is_never_called(tmp_path: Path) -> None:
    """Responses API 2.3: allowed_tools is a hard restriction, and `none` allows no call at all."""

    async def story() -> None:
        async with serve(tmp_path, {"rules": [{"text": "ok", "calls": [{"name": "get_weather"}]}]}) as client:
            allowed = {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "get_time"}],
            }
            for choice in (allowed, "none"):
                for stream in (False, True):
                    response = await make(
                        client, stream, input="Go.", tools=[WEATHER, CLOCK], tool_choice=choice
                    )
                    assert list_calls(response) == [], choice

    asyncio.run(story())


def test_a_function_tool_is_echoed_with_its_defaults(tmp_path: Path) -> None:
    """Responses API 2.1: the echo of a function tool."""

    async def story() -> None:
        async with serve(tmp_path, {"rules": [{"text": "ok"}]}) as client:
            sent = {
                "type": "function",
                "name": "look",
                "description": "Looks.",
                "parameters": {
                    "type": "object",
                    "properties": {"n": {"type": "integer"}},
                    "required": ["n"],
                    "additionalProperties": False,
                },
                "strict": True,
            }
            response = await client.create(input="Go.", tools=[sent])
            (echo,) = response["tools"]
            assert {**echo, **sent} == echo
            assert (await client.retrieve(response["id"])).body == response

    asyncio.run(story())


def test_outputs_of_tools_may_hold_parts(tmp_path: Path) -> None:
    """Responses API 3.2: output is a string or parts; both come back in the list of items."""

    async def story() -> None:
        script = {"answers": [{"calls": [{"name": "get_time"}]}, {"act": "repeat_outputs"}]}
        async with serve(tmp_path, script) as client:
            first = await client.create(input="Go.", tools=[CLOCK])
            (call,) = list_calls(first)
            parts = [{"type": "input_text", "text": "noon"}, {"type": "input_text", "text": "sharp"}]
            second = await client.create(
                input=[{**give(call, ""), "output": parts}], previous_response_id=first["id"]
            )
            assert "noon" in read_text(second)
            page = await client.list_items(second["id"], limit=1)
            assert page.body["data"][0]["output"] == parts

    asyncio.run(story())
