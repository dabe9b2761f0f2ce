"""Refusals over HTTP: whole error objects, and which of two faults is told."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antiphon.protocol.requests import FIELDS
from tests.scenarios.client import StrictClient, find_terminal
from tests.scenarios.serving import serve

INVALID = "invalid_request_error"
FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def refusal(message: str, param: str | None, code: str | None) -> dict[str, Any]:
    """An error object of a 400."""
    return {"message": message, "type": INVALID, "param": param, "code": code}


def missing(param: str) -> dict[str, Any]:
    """A key that must be there is not."""
    return refusal(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def unknown(param: str, hint: str = "") -> dict[str, Any]:
    """A key that is not in the contract."""
    return refusal(f"Unknown parameter: '{param}'.{hint}", param, "unknown_parameter")


def wrong_type(param: str, expected: str, got: str) -> dict[str, Any]:
    """A value of another kind."""
    text = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return refusal(text, param, "invalid_type")


def moved(name: str, place: str) -> dict[str, Any]:
    """A parameter of the older API."""
    return refusal(
        f"Unsupported parameter: '{name}'. In the Responses API, this parameter has moved to '{place}'."
        " Try again with the new parameter.",
        name,
        "unsupported_parameter",
    )


def bound(param: str, kind: str, side: str, limit: str, got: str) -> dict[str, Any]:
    """A number beyond its limit."""
    words = "below minimum" if side == "min" else "above maximum"
    sign = ">=" if side == "min" else "<="
    place = "below" if side == "min" else "above"
    return refusal(
        f"Invalid '{param}': {kind} {words} value. Expected a value {sign} {limit}, but got {got} instead.",
        param,
        f"{kind}_{place}_{side}_value",
    )


#: A body (the model is added) -> the whole error object. Responses API 6.2 and 6.3.
TABLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no model": ({"model": None, "input": "x"}, missing("model")),
    "no input": ({}, missing("input")),
    "empty input": (
        {"input": []},
        refusal(
            "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be provided.",
            None,
            "missing_required_parameter",
        ),
    ),
    "empty text": (
        {"input": ""},
        refusal(
            "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation' must be provided.",
            None,
            "missing_required_parameter",
        ),
    ),
    "input object": ({"input": {}}, wrong_type("input", "a string", "an object")),
    "input null": ({"input": None}, wrong_type("input", "a string", "null")),
    "unknown key": ({"input": "x", "wibble": 1}, unknown("wibble")),
    "near key": ({"input": "x", "sotre": True}, unknown("sotre", " Did you mean 'store'?")),
    "nearest key": ({"input": "x", "inclde": []}, unknown("inclde", " Did you mean 'include'?")),
    "first of two near keys": ({"input": "x", "topp": 1}, unknown("topp", " Did you mean 'top_p'?")),
    "near key that was sent": ({"input": "x", "inputt": "y"}, unknown("inputt")),
    "near nested key": (
        {"input": "x", "reasoning": {"efort": "low"}},
        unknown("reasoning.efort", " Did you mean 'reasoning.effort'?"),
    ),
    "include_usage": (
        {"input": "x", "stream": True, "stream_options": {"include_usage": True}},
        unknown("stream_options.include_usage"),
    ),
    "messages": ({"messages": []}, moved("messages", "input")),
    "max_tokens": ({"input": "x", "max_tokens": 9}, moved("max_tokens", "max_output_tokens")),
    "response_format": ({"input": "x", "response_format": {}}, moved("response_format", "text.format")),
    "enum": (
        {"input": "x", "truncation": "bogus"},
        refusal(
            "Invalid value: 'bogus'. Supported values are: 'auto' and 'disabled'.",
            "truncation",
            "invalid_value",
        ),
    ),
    "content for the role": (
        {
            "input": [{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}],
        },
        refusal(
            "Invalid value: 'input_text'. Supported values are: 'output_text' and 'refusal'.",
            "input[0].content[0]",
            "invalid_value",
        ),
    ),
    "id prefix": (
        {
            "input": [
                {"role": "user", "content": "x"},
                {"type": "function_call", "id": "x1", "call_id": "c", "name": "f", "arguments": "{}"},
            ]
        },
        refusal(
            "Invalid 'input[1].id': 'x1'. Expected an ID that begins with 'fc'.",
            "input[1].id",
            "invalid_value",
        ),
    ),
    "few tokens": (
        {"input": "x", "max_output_tokens": 1},
        bound("max_output_tokens", "integer", "min", "16", "1"),
    ),
    "hot": ({"input": "x", "temperature": 2.5}, bound("temperature", "decimal", "max", "2", "2.5")),
    "cold": ({"input": "x", "temperature": -0.5}, bound("temperature", "decimal", "min", "0", "-0.5")),
    "top_p": ({"input": "x", "top_p": 1.5}, bound("top_p", "decimal", "max", "1", "1.5")),
    "logprobs": ({"input": "x", "top_logprobs": 21}, bound("top_logprobs", "integer", "max", "20", "21")),
    "metadata pairs": (
        {"input": "x", "metadata": {str(n): "" for n in range(17)}},
        refusal(
            "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, but got"
            " an object with 17 properties instead.",
            "metadata",
            "object_above_max_properties",
        ),
    ),
    "metadata value": (
        {"input": "x", "metadata": {"k": "v" * 513}},
        refusal(
            "Invalid 'metadata.k': string too long. Expected a string with maximum length 512, but got a"
            " string with length 513 instead.",
            "metadata.k",
            "string_above_max_length",
        ),
    ),
    "chat tool": (
        {"input": "x", "tools": [{"type": "function", "function": {"name": "f"}}]},
        missing("tools[0].name"),
    ),
    "unknown model": (
        {"model": "nobody", "input": "x"},
        refusal(
            "The requested model 'nobody' does not exist. This server has scripted.",
            "model",
            "model_not_found",
        ),
    ),
    "unknown parent": (
        {"input": "x", "previous_response_id": "resp_x"},
        refusal(
            "Previous response with id 'resp_x' not found.",
            "previous_response_id",
            "previous_response_not_found",
        ),
    ),
    "parent and conversation": (
        {"input": "x", "previous_response_id": "resp_x", "conversation": "conv_x"},
        refusal(
            "Mutually exclusive parameters: ''. Ensure you are only providing one of: 'previous_response_id'"
            " or 'conversation'.",
            None,
            "mutually_exclusive_parameters",
        ),
    ),
    "output without call": (
        {"input": [{"type": "function_call_output", "call_id": "call_X", "output": "x"}]},
        refusal("No tool call found for function call output with call_id call_X.", "input", None),
    ),
    "call without output": (
        {"input": [{"type": "function_call", "call_id": "call_X", "name": "f", "arguments": "{}"}]},
        refusal("No tool output found for function call call_X.", "input", None),
    ),
    "stream is no boolean": (
        {"input": "x", "stream": "true"},
        wrong_type("stream", "a boolean", "a string"),
    ),
    "options of no stream": (
        {"input": "x", "stream": False, "stream_options": {"include_obfuscation": True}},
        refusal(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options", None
        ),
    ),
    "store is no boolean": ({"input": "x", "store": 1}, wrong_type("store", "a boolean", "an integer")),
    "instructions": ({"input": "x", "instructions": 5}, wrong_type("instructions", "a string", "an integer")),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_refusal_has_its_whole_error_object_streaming_or_not(tmp_path: Path, name: str) -> None:
    """Responses API 6.2 and 6.3; 4.5: validation errors never start a stream."""
    body, expected = TABLE[name]

    async def story() -> None:
        async with serve(tmp_path) as client:
            for more in ({}, {} if "stream" in body else {"stream": True}):
                assert await client.refuse(**body, **more) == expected

    asyncio.run(story())


#: One fault in each step of the API's order of checks, and what its refusal is known by (param, code).
STEPS: list[tuple[dict[str, Any], tuple[str | None, str | None]]] = [
    ({"model": None}, ("model", "missing_required_parameter")),
    ({"wibble": 1}, ("wibble", "unknown_parameter")),
    ({"input": {}}, ("input", "invalid_type")),
    ({"previous_response_id": 5}, ("previous_response_id", "invalid_type")),
    ({"prompt": 5}, ("prompt", "invalid_type")),
    ({"moderation": 5}, ("moderation", "invalid_type")),
    ({"include": ["bogus"]}, ("include[0]", "invalid_value")),
    ({"tools": 5}, ("tools", "invalid_type")),
    ({"tool_choice": "bogus"}, ("tool_choice", "invalid_value")),
    ({"metadata": 5}, ("metadata", "invalid_type")),
    ({"text": {"verbosity": "bogus"}}, ("text.verbosity", "invalid_value")),
    ({"temperature": 5}, ("temperature", "decimal_above_max_value")),
    ({"top_p": 5}, ("top_p", "decimal_above_max_value")),
    ({"presence_penalty": "x"}, ("presence_penalty", "invalid_type")),
    ({"frequency_penalty": "x"}, ("frequency_penalty", "invalid_type")),
    ({"parallel_tool_calls": 5}, ("parallel_tool_calls", "invalid_type")),
    ({"stream": 5}, ("stream", "invalid_type")),
    ({"stream_options": 5}, ("stream_options", "invalid_type")),
    ({"background": 5}, ("background", "invalid_type")),
    ({"max_output_tokens": 5}, ("max_output_tokens", "integer_below_min_value")),
    ({"max_tool_calls": 0}, ("max_tool_calls", "integer_below_min_value")),
    ({"reasoning": {"effort": "bogus"}}, ("reasoning.effort", "invalid_value")),
    ({"user": 5}, ("user", "invalid_type")),
    ({"safety_identifier": 5}, ("safety_identifier", "invalid_type")),
    ({"prompt_cache_options": 5}, ("prompt_cache_options", "invalid_type")),
    ({"prompt_cache_key": 5}, ("prompt_cache_key", "invalid_type")),
    ({"prompt_cache_retention": "bogus"}, ("prompt_cache_retention", "invalid_value")),
    ({"truncation": "bogus"}, ("truncation", "invalid_value")),
    ({"instructions": 5}, ("instructions", "invalid_type")),
    ({"store": 5}, ("store", "invalid_type")),
    ({"service_tier": "bogus"}, ("service_tier", "invalid_value")),
    ({"top_logprobs": 99}, ("top_logprobs", "integer_above_max_value")),
    ({"context_management": 5}, ("context_management", "invalid_type")),
]


def test_the_first_failing_check_of_the_apis_order_is_told(tmp_path: Path) -> None:
    """Responses API 6.1: of any two faults, the one whose step comes first, however the keys are ordered."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            for at, (fault, (param, code)) in enumerate(STEPS):
                for later, _ in STEPS[at + 1 :]:
                    if set(later) & set(fault) or (at == 0 and "prompt" in later):
                        # A prompt template may name the model.
                        continue
                    bodies = [{"input": "x", **later, **fault}]
                    bodies.append(dict(reversed(bodies[0].items())))
                    for body in bodies:
                        error = await client.refuse(**body)
                        assert (error["param"], error["code"]) == (param, code), body

    asyncio.run(story())


#: A body whose fields are all well-formed -> param and code, in the order of steps 5 to 7.
STATE_STEPS: list[tuple[dict[str, Any], tuple[str | None, str | None]]] = [
    (
        {"input": [], "previous_response_id": "resp_x", "model": "scripted"},
        ("previous_response_id", "previous_response_not_found"),
    ),
    ({"input": []}, (None, "missing_required_parameter")),
    (
        {
            "input": [{"type": "function_call_output", "call_id": "c", "output": "x"}],
            "previous_response_id": "resp_x",
        },
        ("previous_response_id", "previous_response_not_found"),
    ),
    ({"input": "x", "temperature": 9, "previous_response_id": "resp_x"}, ("temperature", None)),
]


def test_state_is_looked_up_after_the_request_was_read(tmp_path: Path) -> None:
    """Responses API 6.1, steps 5 and 6."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            for body, (param, code) in STATE_STEPS:
                error = await client.refuse(**body)
                assert error["param"] == param, body
                assert code is None or error["code"] == code, body

    asyncio.run(story())


#: What the API has and this server does not carry out yet: never silence.
UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"background_options": {"completion_window": "2h"}}, "background_options"),
    ({"image": {"context_compression": "auto"}}, "image"),
    ({"access_programs": {"cyber": "standard"}}, "access_programs"),
    ({"reasoning": {"context": "current_turn"}}, "reasoning.context"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"include": ["message.output_text.logprobs", "file_search_call.results"]}, "include[1]"),
    ({"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, "tools[0].type"),
    ({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}, "tools[0].type"),
    ({"tools": [{"type": "image_generation"}]}, "tools[0].type"),
    ({"tools": [{"type": "computer"}]}, "tools[0].type"),
    ({"tools": [{"type": "tool_search"}]}, "tools[0].execution"),
    ({"tools": [{**FUNCTION, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
        "input[0].content[0].file_id",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]},
        "input[0].content[0].file_id",
    ),
]


@pytest.mark.parametrize(("body", "param"), UNSUPPORTED)
def test_what_is_not_carried_out_is_refused_by_name(tmp_path: Path, body: dict[str, Any], param: str) -> None:
    """Ours: what is not carried out yet: 400 `unsupported_parameter`, never silence."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            error = await client.refuse(**{"input": "Hello.", **body})
            assert (error["code"], error["param"], error["type"]) == ("unsupported_parameter", param, INVALID)
            assert param in error["message"]

    asyncio.run(story())


#: What names something that is not there, or asks for tools that cannot be had: status, param, code.
NOT_THERE: list[tuple[dict[str, Any], tuple[int, str | None, str | None]]] = [
    ({"conversation": "conv_1"}, (404, None, None)),
    ({"conversation": {"id": "conv_1"}}, (404, None, None)),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, (404, "input", None)),
    (
        {"input": [{"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"}]},
        (400, "input", None),
    ),
    ({"tools": [{**FUNCTION, "defer_loading": True}]}, (400, "tools[0].defer_loading", "invalid_value")),
    (
        {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
        (400, "tool_choice.type", "invalid_value"),
    ),
    (
        {"tools": [FUNCTION, {"type": "web_search"}], "tool_choice": {"type": "shell"}},
        (400, "tool_choice", "invalid_value"),
    ),
    (
        {"tools": [{"type": "mcp", "server_label": "m"}]},
        (400, "tools[0].server_url", "missing_required_parameter"),
    ),
]


@pytest.mark.parametrize(("body", "told"), NOT_THERE)
def test_what_cannot_be_found_or_called_is_refused(
    tmp_path: Path, body: dict[str, Any], told: tuple[int, str | None, str | None]
) -> None:
    """Responses API 2 and 6.2: unknown conversations and items, calls without output, tools out of reach."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            for more in ({}, {"stream": True}):
                answer = await client.post({"input": "Hello.", **body, **more})
                assert answer.status == told[0], answer.body
                assert (answer.error["param"], answer.error["code"]) == told[1:]
                assert answer.error["type"] == INVALID

    asyncio.run(story())


NAMESPACE = {"type": "namespace", "name": "n", "description": "d", "tools": [FUNCTION]}
#: Forms of the API that a chat model is told of in its own: what the response says of each beside its answer.
SERVED: list[tuple[dict[str, Any], list[str]]] = [
    ({"background": True}, []),
    ({"max_tool_calls": 1}, []),
    ({"truncation": "auto"}, []),
    ({"include": ["reasoning.encrypted_content"]}, []),
    ({"tools": [{"type": "web_search"}]}, ["tools_left_out"]),
    ({"tools": [{"type": "web_search_preview"}]}, ["tools_left_out"]),
    (
        {"tools": [{"type": "mcp", "server_label": "m", "server_url": "http://127.0.0.1:9"}]},
        ["mcp_listing_failed"],
    ),
    ({"tools": [{"type": "custom", "name": "c"}]}, []),
    ({"tools": [NAMESPACE]}, []),
    ({"tools": [{"type": "local_shell"}]}, []),
    ({"tools": [{"type": "shell"}]}, []),
    ({"tools": [{"type": "apply_patch"}]}, []),
    ({"tools": [{"type": "tool_search", "execution": "client"}, {**FUNCTION, "defer_loading": True}]}, []),
    ({"tools": [FUNCTION, {**FUNCTION, "name": "b", "async": True}]}, []),
    ({"tools": [{**FUNCTION, "output_schema": {"type": "object"}}]}, []),
    (
        {
            "input": [
                {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}", "namespace": "s"},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ]
        },
        [],
    ),
]


@pytest.mark.parametrize(("body", "warned"), SERVED)
def test_what_is_carried_out_is_answered_and_says_what_it_could_not_offer(
    tmp_path: Path, body: dict[str, Any], warned: list[str]
) -> None:
    """Responses API 2 and 5; ours: a merely offered tool that is out of reach is left out, with a warning."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            answer = await client.post({"input": "Hello.", **body})
            assert answer.status == 200, answer.body
            for name in set(body) & {"background", "max_tool_calls", "truncation"}:
                assert answer.body[name] == body[name]
            ended = find_terminal(await client.stream(**{"input": "Hello.", **body}))
            assert ended["status"] == "completed"
            for response in (ended,) if body.get("background") else (answer.body, ended):
                found = response.get("antiphon", {}).get("warnings", [])
                assert [warning["code"] for warning in found] == warned, found

    asyncio.run(story())


#: Pure hints, and values that mean what happens anyway: accepted, with what must be echoed.
ACCEPTED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"prompt_cache_key": "k"}, {"prompt_cache_key": "k"}),
    ({"prompt_cache_retention": "in_memory"}, {"prompt_cache_retention": "in_memory"}),
    (
        {"prompt_cache_options": {"mode": "implicit"}},
        {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
    ),
    ({"safety_identifier": "s"}, {"safety_identifier": "s"}),
    ({"user": "u"}, {"user": "u"}),
    ({"service_tier": "flex"}, {"service_tier": "default"}),
    ({"client_metadata": {"any": ["thing"]}}, {}),
    ({"background": False}, {"background": False}),
    ({"truncation": "disabled"}, {"truncation": "disabled"}),
    ({"reasoning": {"context": "auto", "mode": "standard"}}, {}),
    ({"reasoning": None}, {}),
    ({"include": []}, {}),
    ({"include": None}, {}),
    ({"tools": []}, {"tools": []}),
    ({"conversation": None, "prompt": None, "metadata": None, "text": None}, {"metadata": {}}),
    ({"store": None, "temperature": None, "max_output_tokens": None}, {"store": True, "temperature": 1.0}),
    ({"antiphon": {}}, {}),
    ({"antiphon": {"method": "summary", "marks": {"call_1": "keep"}}}, {}),
    ({"context_management": [{"type": "compaction", "compact_threshold": 2000}]}, {}),
]


@pytest.mark.parametrize(("body", "echo"), ACCEPTED)
def test_hints_are_accepted_and_echoed(tmp_path: Path, body: dict[str, Any], echo: dict[str, Any]) -> None:
    """Ours: pure hints are accepted, echoed where the API echoes them; null equals absent."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            response = await client.create(input="Hello.", **body)
            assert {key: response[key] for key in echo} == echo

    asyncio.run(story())


def test_every_field_of_the_api_is_known(tmp_path: Path) -> None:
    """Responses API 2: no field of the API is an unknown parameter; null everywhere is a plain request."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            await client.create(**{**dict.fromkeys(FIELDS), "model": "scripted", "input": "Hello."})
            for name in FIELDS:
                answer = await client.post({"input": "Hello.", name: {"a": {"b": 1}}})
                assert answer.status in (200, 400)
                assert (
                    answer.status == 200
                    or answer.error["param"] != name
                    or (answer.error["code"] != "unknown_parameter")
                ), name

    asyncio.run(story())


async def _refuse_image(client: StrictClient, url: str) -> dict[str, Any]:
    part = {"type": "input_image", "image_url": url}
    return await client.refuse(input=[{"role": "user", "content": [part]}])


def test_images_come_as_data_urls_only(tmp_path: Path) -> None:
    """Ours: images as data URLs; the server fetches nothing."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            for url in ("https://example.org/x.png", "file:///etc/passwd", "data:text/html,x"):
                error = await _refuse_image(client, url)
                assert error["param"] == "input[0].content[0].image_url"
            part = {
                "type": "input_image",
                "image_url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB",
            }
            response = await client.create(input=[{"role": "user", "content": [part]}])
            page = await client.list_items(response["id"])
            assert page.body["data"][0]["content"][0]["image_url"] == part["image_url"]

    asyncio.run(story())


def test_a_model_is_not_given_what_its_profile_cannot_do(tmp_path: Path) -> None:
    """Responses API 6.1, step 7; ours: what the profile supports; never silence."""
    profiles = {"blind": {"sees_images": False, "tools": "none", "efforts": ["low", "high"]}}
    models = {"blind": {"endpoint": "scripted", "model": "scripted", "profile": "blind"}}
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"}

    async def story() -> None:
        async with serve(tmp_path, profiles=profiles, models=models) as client:
            error = await client.refuse(model="blind", input=[{"role": "user", "content": [image]}])
            assert (error["param"], error["code"]) == ("input[0]", "invalid_value")
            forced: dict[str, Any] = {"tools": [FUNCTION], "tool_choice": "required"}
            error = await client.refuse(model="blind", input="x", **forced)
            assert (error["param"], error["code"]) == ("tool_choice", "unsupported_value")
            response = await client.create(model="blind", input="look", tools=[FUNCTION])
            assert [warning["code"] for warning in response["antiphon"]["warnings"]] == ["tools_left_out"]
            for asked, used, codes in (
                ("low", "low", []),
                ("minimal", "low", ["effort_changed"]),
                ("xhigh", "high", ["effort_changed"]),
            ):
                response = await client.create(model="blind", input="x", reasoning={"effort": asked})
                warnings = response.get("antiphon", {}).get("warnings", [])
                assert response["reasoning"]["effort"] == used
                assert [warning["code"] for warning in warnings] == codes
            response = await client.create(input="x", reasoning={"effort": "low"})
            assert response["reasoning"]["effort"] is None
            assert [each["code"] for each in response["antiphon"]["warnings"]] == ["effort_left_out"]

    asyncio.run(story())


def test_a_server_side_system_prompt_comes_before_everything(tmp_path: Path) -> None:
    """Decided: system prompt of the model, tools, instructions, input."""
    (tmp_path / "prompt.txt").write_text("Remember this word: plum.")
    models = {"kind": {"endpoint": "scripted", "model": "scripted", "system_prompt_file": "prompt.txt"}}

    async def story() -> None:
        async with serve(tmp_path, models=models) as client:
            response = await client.create(model="kind", input="What was the word?")
            assert "plum" in response["output"][0]["content"][0]["text"]
            assert response["instructions"] is None
            plain = await client.create(input="What was the word?")
            assert "plum" not in plain["output"][0]["content"][0]["text"]

    asyncio.run(story())
