"""`POST /v1/responses`: defaults, the API's order of checks and its words, and no other exception."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.protocol import requests
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import ITEM_TYPES, make_user_message
from antiphon.protocol.requests import CreateRequest, TextConfig, TextFormat
from antiphon.protocol.tools import FunctionChoice, FunctionTool

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
FULL: dict[str, Any] = {
    "model": "m",
    "input": "hi",
    "instructions": "be brief",
    "previous_response_id": "resp_1",
    "store": False,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "background": False,
    "background_options": {"completion_window": "soonest"},
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
    "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": True,
    "max_tool_calls": 3,
    "max_output_tokens": 16,
    "temperature": 1,
    "top_p": 0.5,
    "top_logprobs": 20,
    "presence_penalty": -0.5,
    "frequency_penalty": 0.5,
    "reasoning": {"effort": "low", "summary": "auto", "context": "auto", "mode": "standard"},
    "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}, "verbosity": "low"},
    "truncation": "auto",
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "metadata": {"k": "v"},
    "prompt": {"id": "pmpt_1", "version": "1", "variables": {"a": "b"}},
    "moderation": {"model": "mod", "policy": {"input": {"mode": "score"}}},
    "image": {"context_compression": "auto"},
    "access_programs": {"cyber": "standard"},
    "service_tier": "auto",
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit", "ttl": "30m", "prewarm": True},
    "prompt_cache_retention": "24h",
    "client_metadata": {"a": {"b": 1}},
    "antiphon": {"marks": {"call_1": "keep"}, "method": "summary"},
}


def decode(sent: Any) -> CreateRequest:
    return requests.decode_create_request(msgspec.json.encode(sent))


def refuse(body: bytes) -> dict[str, Any]:
    with pytest.raises(RequestError) as caught:
        requests.decode_create_request(body)
    assert caught.value.status == 400
    shown: dict[str, Any] = msgspec.to_builtins(caught.value.to_object())
    assert shown.pop("type") == "invalid_request_error"
    return shown


def test_a_small_request_has_every_default() -> None:
    """Spec: request fields and their defaults."""
    expected = CreateRequest(model="m", input=[make_user_message("hi")])
    assert decode({"model": "m", "input": "hi"}) == expected
    nulls = {name: None for name in FULL if name not in ("model", "input")}
    assert decode({"model": "m", "input": "hi", **nulls, "conversation": None}) == expected


def test_every_field_is_read() -> None:
    """Spec: request fields."""
    request = decode(FULL)
    assert {*FULL, "conversation"} == set(requests.FIELDS)
    assert request == CreateRequest(
        model="m",
        input=[make_user_message("hi")],
        instructions="be brief",
        previous_response_id="resp_1",
        store=False,
        stream=True,
        stream_options=requests.StreamOptions(include_obfuscation=False),
        background_options=requests.BackgroundOptions(completion_window="soonest"),
        include=("reasoning.encrypted_content", "message.output_text.logprobs"),
        tools=[FunctionTool(name="f", parameters=SCHEMA)],
        tool_choice=FunctionChoice(name="f"),
        tool_choice_given=True,
        store_given=True,
        parallel_tool_calls=True,
        max_tool_calls=3,
        max_output_tokens=16,
        temperature=1.0,
        top_p=0.5,
        top_logprobs=20,
        presence_penalty=-0.5,
        frequency_penalty=0.5,
        reasoning=requests.ReasoningConfig(effort="low", summary="auto", context="auto", mode="standard"),
        text=TextConfig(TextFormat("json_schema", "s", SCHEMA), "low"),
        truncation="auto",
        context_management=[{"type": "compaction", "compact_threshold": 1000}],
        metadata={"k": "v"},
        prompt=requests.PromptTemplate(id="pmpt_1", version="1", variables={"a": "b"}),
        moderation=requests.ModerationConfig(
            model="mod", policy=requests.ModerationPolicy(input=requests.ModerationRule(mode="score"))
        ),
        image=requests.ImageConfig(context_compression="auto"),
        access_programs=requests.AccessPrograms(cyber="standard"),
        service_tier="auto",
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        prompt_cache_options=requests.PromptCacheOptions(mode="implicit", ttl="30m", prewarm=True),
        prompt_cache_retention="24h",
        client_metadata={"a": {"b": 1}},
        antiphon={"marks": {"call_1": "keep"}, "method": "summary"},
    )


def test_a_request_may_go_on_from_context_without_input() -> None:
    """Spec: input is optional when a response, a prompt or a conversation stands for it."""
    for context in ({"previous_response_id": "resp_1"}, {"conversation": {"id": "conv_1"}}):
        request = decode({"model": "m", **context})
        assert request.input == []
        requests.check_not_empty(request)
    assert decode({"model": "m", "conversation": "conv_1"}).conversation == "conv_1"
    assert decode({"prompt": {"id": "pmpt_1"}}).model == ""


@pytest.mark.parametrize("empty", ["", []])
def test_empty_input_without_context_is_refused_after_the_lookups(empty: Any) -> None:
    """Spec: request-shape errors, row 2; it is step 6 of the order."""
    request = decode({"model": "m", "input": empty})
    with pytest.raises(RequestError) as caught:
        requests.check_not_empty(request)
    assert msgspec.to_builtins(caught.value.to_object()) == {
        "message": 'One of "input" or "previous_response_id" or '
        "'prompt' or 'conversation' must be provided.",
        "type": "invalid_request_error",
        "param": None,
        "code": "missing_required_parameter",
    }


@pytest.mark.parametrize(
    ("sent", "echo"),
    [
        ({}, {"format": {"type": "text"}, "verbosity": "medium"}),
        ({"format": None}, {"format": {"type": "text"}, "verbosity": "medium"}),
        ({"format": {"type": "json_object"}}, {"format": {"type": "json_object"}, "verbosity": "medium"}),
        (
            {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}, "verbosity": "high"},
            {
                "format": {
                    "type": "json_schema",
                    "name": "s",
                    "description": None,
                    "schema": SCHEMA,
                    "strict": False,
                },
                "verbosity": "high",
            },
        ),
    ],
)
def test_the_text_settings_are_echoed_with_their_defaults(sent: Any, echo: Any) -> None:
    """Spec: the Response object's `text`."""
    assert requests.echo_text(decode({"model": "m", "input": "hi", "text": sent}).text) == echo


def one(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": "hi", **fields}


SUGGESTION = "Unknown parameter: 'stor'. Did you mean 'store'?"
MOVED = "In the Responses API, this parameter has moved to"
#: What is sent, then code, param and message of the refusal.
ERRORS: list[tuple[Any, str | None, str | None, str]] = [
    ({}, "missing_required_parameter", "model", "Missing required parameter: 'model'."),
    (
        {"model": None, "input": "hi"},
        "missing_required_parameter",
        "model",
        "Missing required parameter: 'model'.",
    ),
    ({"model": "m"}, "missing_required_parameter", "input", "Missing required parameter: 'input'."),
    (
        {"model": "m", "messages": []},
        "unsupported_parameter",
        "messages",
        f"Unsupported parameter: 'messages'. {MOVED} 'input'. Try again with the new parameter.",
    ),
    (
        one(max_tokens=5),
        "unsupported_parameter",
        "max_tokens",
        (
            f"Unsupported parameter: 'max_tokens'. {MOVED} 'max_output_tokens'. "
            "Try again with the new parameter."
        ),
    ),
    (
        {"model": 7, "input": "hi"},
        "invalid_type",
        "model",
        "Invalid type for 'model': expected a string, but got an integer instead.",
    ),
    (
        {"model": "m", "input": None},
        "invalid_type",
        "input",
        "Invalid type for 'input': expected a string, but got null instead.",
    ),
    (
        {"model": "m", "input": {}},
        "invalid_type",
        "input",
        "Invalid type for 'input': expected a string, but got an object instead.",
    ),
    (one(stor=True), "unknown_parameter", "stor", SUGGESTION),
    (one(stor=True, store=True), "unknown_parameter", "stor", "Unknown parameter: 'stor'."),
    (one(topp=1), "unknown_parameter", "topp", "Unknown parameter: 'topp'. Did you mean 'top_p'?"),
    (one(bogus=1), "unknown_parameter", "bogus", "Unknown parameter: 'bogus'."),
    (
        one(text={"format": {"type": "text", "name": "x"}}),
        "unknown_parameter",
        "text.format.name",
        "Unknown parameter: 'text.format.name'.",
    ),
    (
        one(reasoning={"efort": "low"}),
        "unknown_parameter",
        "reasoning.efort",
        "Unknown parameter: 'reasoning.efort'. Did you mean 'reasoning.effort'?",
    ),
    (
        one(stream_options={"include_usage": True}),
        "unknown_parameter",
        "stream_options.include_usage",
        "Unknown parameter: 'stream_options.include_usage'.",
    ),
    (
        one(truncation="bogus"),
        "invalid_value",
        "truncation",
        "Invalid value: 'bogus'. Supported values are: 'auto' and 'disabled'.",
    ),
    (
        one(include=["bogus"]),
        "invalid_value",
        "include[0]",
        (
            "Invalid value: 'bogus'. Supported values are: 'file_search_call.results', "
            "'web_search_call.results', 'web_search_call.action.sources', 'message.input_image.image_url', "
            "'computer_call_output.output.image_url', 'code_interpreter_call.outputs', "
            "'reasoning.encrypted_content', and 'message.output_text.logprobs'."
        ),
    ),
    (
        one(max_output_tokens=1),
        "integer_below_min_value",
        "max_output_tokens",
        (
            "Invalid 'max_output_tokens': integer below minimum value. "
            "Expected a value >= 16, but got 1 instead."
        ),
    ),
    (
        one(max_output_tokens=16.0),
        "invalid_type",
        "max_output_tokens",
        "Invalid type for 'max_output_tokens': expected an integer, but got a decimal number instead.",
    ),
    (
        one(max_output_tokens=True),
        "invalid_type",
        "max_output_tokens",
        "Invalid type for 'max_output_tokens': expected an integer, but got a boolean instead.",
    ),
    (
        one(top_logprobs=21),
        "integer_above_max_value",
        "top_logprobs",
        "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 21 instead.",
    ),
    (
        one(temperature=2.5),
        "decimal_above_max_value",
        "temperature",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5 instead.",
    ),
    (
        one(top_p=-1),
        "decimal_below_min_value",
        "top_p",
        "Invalid 'top_p': decimal below minimum value. Expected a value >= 0, but got -1 instead.",
    ),
    (
        one(temperature="1"),
        "invalid_type",
        "temperature",
        "Invalid type for 'temperature': expected a decimal number, but got a string instead.",
    ),
    (
        one(store="yes"),
        "invalid_type",
        "store",
        "Invalid type for 'store': expected a boolean, but got a string instead.",
    ),
    (
        one(metadata={str(n): "v" for n in range(17)}),
        "object_above_max_properties",
        "metadata",
        (
            "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, "
            "but got an object with 17 properties instead."
        ),
    ),
    (
        one(metadata={"k": "a" * 513}),
        "string_above_max_length",
        "metadata.k",
        (
            "Invalid 'metadata.k': string too long. Expected a string with maximum length 512, "
            "but got a string with length 513 instead."
        ),
    ),
    (
        one(metadata={"k" * 65: "v"}),
        "property_name_above_max_length",
        "metadata." + "k" * 65,
        (
            "Invalid 'metadata': property name too long. Expected a property name with maximum length 64, "
            "but got a property name with length 65 instead."
        ),
    ),
    (
        one(metadata={"k": 7}),
        "invalid_type",
        "metadata.k",
        "Invalid type for 'metadata.k': expected a string, but got an integer instead.",
    ),
    (
        one(tools={}),
        "invalid_type",
        "tools",
        "Invalid type for 'tools': expected an array of objects, but got an object instead.",
    ),
    (
        one(text={"format": {"type": "json_schema", "name": "s", "schema": []}}),
        "invalid_json_schema",
        "text.format.schema",
        "Invalid schema for response_format 's': a JSON Schema is an object, but got an array instead.",
    ),
    (
        one(text={"format": {"type": "json_schema", "name": "s"}}),
        "missing_required_parameter",
        "text.format.schema",
        "Missing required parameter: 'text.format.schema'.",
    ),
    (
        one(text={"format": {"type": "json_schema", "name": "a" * 65, "schema": {}}}),
        "string_above_max_length",
        "text.format.name",
        (
            "Invalid 'text.format.name': string too long. Expected a string with maximum length 64, "
            "but got a string with length 65 instead."
        ),
    ),
    (
        one(text={"format": {"type": "xml"}}),
        "invalid_value",
        "text.format.type",
        "Invalid value: 'xml'. Supported values are: 'text', 'json_object', and 'json_schema'.",
    ),
    (
        one(reasoning={"effort": "some"}),
        "invalid_value",
        "reasoning.effort",
        (
            "Invalid value: 'some'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', "
            "'xhigh', and 'max'."
        ),
    ),
    (
        one(conversation=7),
        "invalid_type",
        "conversation",
        "Invalid type for 'conversation': expected one of a string or object, but got an integer instead.",
    ),
    (
        one(previous_response_id="resp_1", conversation="conv_1"),
        "mutually_exclusive_parameters",
        None,
        (
            "Mutually exclusive parameters: ''. Ensure you are only providing one of: "
            "'previous_response_id' or 'conversation'."
        ),
    ),
    (
        one(tool_choice={"type": "function", "name": "f"}),
        "invalid_value",
        "tool_choice",
        "Tool choice function 'f' not found in 'tools' parameter.",
    ),
    (
        one(context_management=[{"type": "foo"}]),
        None,
        "context_management",
        "Unsupported context_management type: 'foo'.",
    ),
    (
        one(context_management=[{"type": "compaction", "compact_threshold": 0}]),
        "integer_below_min_value",
        "context_management[0].compact_threshold",
        (
            "Invalid 'context_management[0].compact_threshold': integer below minimum value. "
            "Expected a value >= 1000, but got 0 instead."
        ),
    ),
    (
        one(context_management=[]),
        "empty_array",
        "context_management",
        (
            "Invalid 'context_management': empty array. Expected an array with minimum length 1, "
            "but got an empty array instead."
        ),
    ),
    (
        one(context_management=[{"type": "compaction", "compact_threshold": 1000.0}]),
        "invalid_type",
        "context_management[0].compact_threshold",
        (
            "Invalid type for 'context_management[0].compact_threshold': expected an integer, "
            "but got a decimal number instead."
        ),
    ),
    (
        one(context_management=[{}]),
        "missing_required_parameter",
        "context_management[0].type",
        "Missing required parameter: 'context_management[0].type'.",
    ),
    (
        one(context_management=[{"type": "compaction", "x": 1}]),
        "unknown_parameter",
        "context_management[0].x",
        "Unknown parameter: 'context_management[0].x'.",
    ),
    (
        one(antiphon={"marks": {"call_1": "gone"}}),
        "invalid_value",
        "antiphon.marks.call_1",
        "Invalid value: 'gone'. Supported values are: 'uneventful', 'superseded', and 'keep'.",
    ),
]


@pytest.mark.parametrize(("sent", "code", "param", "message"), ERRORS, ids=lambda value: "")
def test_a_bad_request_is_refused_in_the_api_s_words(
    sent: Any, code: str | None, param: str | None, message: str
) -> None:
    """Spec: request-shape errors, measured live where the reference says so."""
    error = refuse(msgspec.json.encode(sent))
    if not message:
        error["message"] = ""
    assert error == {"message": message, "param": param, "code": code}


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"bogus": 1, "temperature": "x"}, "model"),
        ({"model": "m", "bogus": 1}, "input"),
        (one(bogus=1, temperature="x"), "bogus"),
        (one(temperature="x", text={"bogus": 1}), "text.bogus"),
        (one(input=7, tools=[{"type": "function", "name": "f", "bogus": 1}]), "tools[0].bogus"),
        (one(store=7, temperature="x", metadata={"k": 7}), "metadata.k"),
        (one(top_logprobs=77, input=[7]), "input[0]"),
        (one(service_tier="x", instructions=7), "instructions"),
        (one(tools=[{"type": "function", "function": {}}], temperature="x"), "tools[0].name"),
    ],
)
def test_the_first_failing_check_of_the_api_s_order_is_reported(sent: Any, param: str) -> None:
    """Spec: order of checks."""
    assert refuse(msgspec.json.encode(sent))["param"] == param


DEEP = 5_000
BAD_BODIES: list[bytes] = [
    b"",
    b" ",
    b"nonsense",
    b"\xff\xfe",
    b"[]",
    b'"x"',
    b"null",
    b'{"model":"m","input":"hi",}',
    b'{"model":"m","input":"hi"} {}',
    b'{"model":"m","input":"\xff"}',
    b'{"model":"m","input":"\xed\xa0\x80"}',
    b'{"model":"m","input":"\\ud800"}',
    b'{"model":"m","input":NaN}',
    b'{"model":"m","temperature":Infinity}',
    b'{"model":"m","input":"hi","temperature":1e999}',
    b'{"model":"m","input":[{"role":"user","content":"hi","x":1e999}]}',
    b'{"model":"m","input":[{"role":"user","content":"hi","x":"\xff"}]}',
    b"[" * DEEP,
    b'{"a":' * DEEP,
    b'{"model":"m","input":' + b"[" * DEEP + b"]" * DEEP + b"}",
    b'{"model":"m","input":"hi","client_metadata":' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}",
    b'{"model":"m","input":[{"role":"user","content":"hi","x":' + b"[" * 150 + b"]" * 150 + b"}]}",
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:24]))
def test_an_unreadable_body_is_refused_with_the_reason(body: bytes) -> None:
    """Ours: whatever is no bounded JSON object in UTF-8 is told so, and nothing else is raised."""
    error = refuse(body)
    assert (error["param"], error["code"]) == (None, None)
    assert error["message"].startswith("We could not parse the JSON body of your request: ")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "it is empty. Send a JSON object"),
        (b" \n", "it is empty. Send a JSON object"),
        (b'{"model":"m","input":"\\ud800"}', "it holds \\ud800 alone, which is half of a character"),
        (b'{"model":"m","input":"\\uDC00 and more"}', "it holds \\uDC00 alone, which is half of a character"),
        (b'{"model":"m","input":"' + b"x" * 9999 + b'\\ud800\\u0041"}', "it holds \\ud800 alone"),
        (b'{"\\ud83d":1}', "it holds \\ud83d alone"),
        (b'{"model":"m","input":"\\ud83d\\ude00 \\\\ud800"', "it ends before its JSON does"),
        (b'{"model":"m","input":"hi"', "it ends before its JSON does"),
    ],
)
def test_what_makes_a_body_unreadable_is_said_as_it_is(body: bytes, told: str) -> None:
    """Ours: the parser calls all of these truncated or malformed."""
    assert told in refuse(body)["message"]


def test_many_items_are_read() -> None:
    """Ours: 10^5 items are a correct request."""
    items = [{"role": "user", "content": "hi"}] * 100_000
    assert len(decode({"model": "m", "input": items}).input) == 100_000


def test_nesting_up_to_the_limit_is_read() -> None:
    """Ours: JSON schemas and metadata nest far less than the limit."""
    value: Any = 1
    for _ in range(90):
        value = {"a": value}
    assert decode(one(client_metadata=value)).client_metadata == value


# Generated input: a request or a RequestError, never anything else

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "id", "name", "x"]), children, max_size=4
        )
    ),
    max_leaves=12,
)
FIELD_NAMES = ("id", "role", "content", "call_id", "output", "arguments", "name", "summary", "action")
ITEM = st.fixed_dictionaries(
    {"type": st.sampled_from(ITEM_TYPES) | JSON}, optional=dict.fromkeys(FIELD_NAMES, JSON)
)
CHANGES = st.dictionaries(
    st.sampled_from([*requests.FIELDS, "stor", "messages"]) | st.text(max_size=8), JSON, max_size=4
)


def decode_or_refuse(body: bytes) -> None:
    outcome: CreateRequest | RequestError
    try:
        outcome = requests.decode_create_request(body)
    except RequestError as error:
        outcome = error
    if isinstance(outcome, RequestError):
        assert outcome.status == 400
        # A rule that our own words do not cover would show the decoder's.
        assert not outcome.message.startswith("Invalid value for ")


@settings(max_examples=300, deadline=None)
@given(CHANGES)
def test_a_changed_request_is_read_or_refused(changes: dict[str, Any]) -> None:
    """Ours: every field with any JSON value."""
    decode_or_refuse(msgspec.json.encode({**FULL, **changes}))


@settings(max_examples=300, deadline=None)
@given(st.lists(ITEM | JSON, max_size=3), JSON, JSON)
def test_any_items_tools_and_choices_are_read_or_refused(items: Any, tools: Any, choice: Any) -> None:
    """Ours: every array with any JSON values."""
    decode_or_refuse(
        msgspec.json.encode({"model": "m", "input": items, "tools": tools, "tool_choice": choice})
    )


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_body_is_read_or_refused(data: st.DataObject) -> None:
    """Ours: one stretch of a valid body replaced by any bytes."""
    body = msgspec.json.encode(FULL)
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, min(len(body), start + 20)))
    decode_or_refuse(body[:start] + data.draw(st.binary(max_size=8)) + body[end:])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=64))
def test_any_bytes_are_refused(body: bytes) -> None:
    """Ours: random bytes."""
    decode_or_refuse(body)
