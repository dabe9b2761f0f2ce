"""An ask as the body of a Responses request: everything that a server can honour, nothing of our state."""

from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask
from antiphon.backends.profiles import PROFILES
from antiphon.backends.responses.encode import encode_count, encode_request
from antiphon.backends.responses.quirks import QUIRKS
from antiphon.backends.responses.transcript import transcribe
from antiphon.context import Profile
from antiphon.protocol.errors import BackendRefusedError
from antiphon.protocol.items import Item, decode_items, decode_stored_item
from antiphon.protocol.requests import FIELDS, TextFormat, decode_create_request
from antiphon.protocol.tools import FunctionTool

Json = dict[str, Any]

FUNCTION = {
    "type": "function",
    "name": "look",
    "parameters": {"type": "object", "properties": {"b": {}, "a": {}}},
    "strict": True,
    "description": "Looks.",
}
OTHER = {"type": "function", "name": "touch", "parameters": None}
MCP = {
    "type": "mcp",
    "server_label": "s",
    "server_url": "https://mcp.example/",
    "authorization": "token-1",
    "headers": {"x-key": "secret"},
}
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}}}
INCLUDED = ["reasoning.encrypted_content"]

#: Field -> values that a client may send and what the server gets.
SENT: dict[str, list[tuple[Any, Any]]] = {
    "tools": [([FUNCTION], [FUNCTION]), ([MCP], [MCP])],
    "tool_choice": [
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "look"}, {"type": "function", "name": "look"}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
        ),
    ],
    "parallel_tool_calls": [(True, True), (False, False)],
    "max_output_tokens": [(16, 16), (99, 99)],
    "max_tool_calls": [(1, 1), (2, 2)],
    "temperature": [(0, 0), (1.5, 1.5)],
    "top_p": [(0.1, 0.1), (1, 1)],
    "top_logprobs": [(0, 0), (3, 3)],
    "presence_penalty": [(0.5, 0.5), (-1, -1)],
    "frequency_penalty": [(0.5, 0.5), (-1, -1)],
    "reasoning": [
        ({"effort": "low", "summary": "auto"}, {"effort": "low", "summary": "auto"}),
        ({"context": "current_turn", "mode": "pro"}, {"context": "current_turn", "mode": "pro"}),
    ],
    "text": [
        ({"verbosity": "low"}, {"verbosity": "low"}),
        ({"format": {"type": "json_object"}}, {"format": {"type": "json_object"}}),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
            {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
        ),
    ],
    "include": [
        (["message.output_text.logprobs"], ["message.output_text.logprobs", *INCLUDED]),
        (INCLUDED, INCLUDED),
    ],
    "service_tier": [("flex", "flex"), ("auto", "auto")],
    "prompt": [({"id": "pmpt_1", "variables": {"a": "b"}}, {"id": "pmpt_1", "variables": {"a": "b"}})],
    "prompt_cache_key": [("k", "k")],
    "prompt_cache_options": [({"mode": "explicit", "ttl": "30m"}, {"mode": "explicit", "ttl": "30m"})],
    "prompt_cache_retention": [("24h", "24h")],
    "safety_identifier": [("someone", "someone")],
    "user": [("someone", "someone")],
    "metadata": [({"a": "b"}, {"a": "b"})],
    "moderation": [
        (
            {"model": "m", "policy": {"input": {"mode": "block"}}},
            {"model": "m", "policy": {"input": {"mode": "block"}}},
        )
    ],
    "image": [({"context_compression": "enabled"}, {"context_compression": "enabled"})],
    "access_programs": [({"cyber": "standard"}, {"cyber": "standard"})],
    "client_metadata": [({"turn": {"n": 1}}, {"turn": {"n": 1}})],
}
#: Ours to carry out, or sent in another place.
NOT_SENT = {
    "model": "other",
    "input": "Hi",
    "instructions": "Be brief.",
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "store": True,
    "stream": False,
    "stream_options": {"include_obfuscation": True},
    "background": True,
    "truncation": "auto",
    "background_options": {"completion_window": "2h"},
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "antiphon": {"marks": {}},
}


def encode(fields: Json, *, profile: Profile = PROFILES["default"], **ask: Any) -> Json:
    body = {"model": "m", "input": "Hi", **fields}
    request = decode_create_request(msgspec.json.encode(body))
    made = Ask(model="server-model", profile=profile, request=request, **ask)
    encoded: Json = msgspec.json.decode(encode_request(made))
    return encoded


def test_a_plain_request_is_sent_without_anything_that_was_left_out() -> None:
    """Ours: a parameter that the client left out is the server's to choose; state is never asked for."""
    assert encode({}, system="Be kind.", transcript=[b'{"a":1}', b"", b'{"b":2}']) == {
        "model": "server-model",
        "instructions": "Be kind.",
        "store": False,
        "stream": True,
        "include": INCLUDED,
        "input": [{"a": 1}, {"b": 2}],
    }


@pytest.mark.parametrize(
    ("field", "value", "expected"), [(name, *pair) for name, pairs in SENT.items() for pair in pairs]
)
def test_a_field_reaches_the_server(field: str, value: Any, expected: Any) -> None:
    """Decided: everything of the request that a Responses server can honour is its to honour; secrets too."""
    tools = {"tools": [FUNCTION, MCP]} if field == "tool_choice" else {}
    encoded = encode({**tools, field: value})
    assert encoded[field] == expected
    if field != "include":
        assert set(encoded) - set(encode(tools)) == {field} - set(tools)


@pytest.mark.parametrize("field", NOT_SENT)
def test_state_is_ours(field: str) -> None:
    """Decided: the server keeps nothing, so nothing of ours is named to it."""
    assert encode({field: NOT_SENT[field]}) == encode({})


def test_every_field_of_the_api_is_sent_or_ours() -> None:
    """Ours: a new field is decided on, not forgotten."""
    assert set(SENT) | set(NOT_SENT) == set(FIELDS)


def test_the_order_of_keys_in_a_schema_stays() -> None:
    """Ours: models write keys in the order of the schema."""
    request = decode_create_request(msgspec.json.encode({"model": "m", "input": "", "tools": [FUNCTION]}))
    body = encode_request(Ask(model="m", profile=Profile(), request=request))
    assert b'"properties":{"b":{},"a":{}}' in body


def test_an_ask_without_its_request_says_the_same() -> None:
    """Contract of `Ask`: the other fields suffice."""
    ask = Ask(
        model="m",
        profile=Profile(),
        tools=[FunctionTool(name="look"), FunctionTool(name="touch")],
        forced_tool="touch",
        parallel_tool_calls=False,
        max_output_tokens=20,
        temperature=0.0,
        top_logprobs=2,
        text_format=TextFormat("json_object"),
        verbosity="low",
        effort="high",
        hints={"user": "someone"},
    )
    assert msgspec.json.decode(encode_request(ask)) == {
        "model": "m",
        "store": False,
        "stream": True,
        "tools": [{"type": "function", "name": "look"}, {"type": "function", "name": "touch"}],
        "tool_choice": {"type": "function", "name": "touch"},
        "parallel_tool_calls": False,
        "max_output_tokens": 20,
        "temperature": 0.0,
        "top_logprobs": 2,
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "high"},
        "user": "someone",
        "include": ["message.output_text.logprobs", *INCLUDED],
        "input": [],
    }
    silent = Ask(model="m", profile=Profile(), tools=[FunctionTool(name="look")], tool_choice="none")
    assert "tools" not in msgspec.json.decode(encode_request(silent))


def test_a_count_is_asked_with_what_the_prompt_is_made_of() -> None:
    """Responses-API 7: `input_tokens` knows fewer fields than a request."""
    fields = {
        "tools": [FUNCTION],
        "temperature": 1,
        "user": "u",
        "reasoning": {"effort": "low"},
        "include": INCLUDED,
    }
    request = decode_create_request(msgspec.json.encode({"model": "m", "input": "Hi", **fields}))
    ask = Ask(model="m", profile=PROFILES["openai"], system="Be.", request=request, transcript=[b"{}"])
    assert msgspec.json.decode(encode_count(ask)) == {
        "model": "m",
        "instructions": "Be.",
        "tools": [FUNCTION],
        "reasoning": {"effort": "low"},
        "input": [{}],
    }


def test_openai_is_asked_not_to_pad_its_deltas() -> None:
    """OpenAI pads deltas unless told not to; the padding is ours to make."""
    assert encode({}, profile=PROFILES["openai"])["stream_options"] == {"include_obfuscation": False}


def test_llama_cpp_is_told_by_its_chat_route_what_its_own_interface_ignores() -> None:
    """llama.cpp b11549, tried: it enforces `response_format` here, and reads `tool_choice` as a word."""
    profile = PROFILES["llama.cpp"]
    encoded = encode(
        {
            "tools": [FUNCTION, OTHER],
            "tool_choice": {"type": "function", "name": "touch"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
            "reasoning": {"effort": "none"},
        },
        profile=profile,
    )
    assert [tool["name"] for tool in encoded["tools"]] == ["touch"]
    assert encoded["tool_choice"] == "required"
    assert encoded["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": SCHEMA},
    }
    assert encoded["chat_template_kwargs"] == {"enable_thinking": False}
    assert encoded["parallel_tool_calls"] is True
    assert encoded["return_progress"] is True
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}
    limited = encode({"tools": [FUNCTION, OTHER], "tool_choice": allowed}, profile=profile)
    assert [tool["name"] for tool in limited["tools"]] == ["look"]
    assert limited["tool_choice"] == "required"


REFUSED: list[tuple[str, Json, str]] = [
    ("llama.cpp", {"max_tool_calls": 2}, "max_tool_calls"),
    ("llama.cpp", {"prompt": {"id": "p"}}, "prompt"),
    ("llama.cpp", {"moderation": {"model": "m"}}, "moderation"),
    ("llama.cpp", {"image": {"context_compression": "auto"}}, "image"),
    ("llama.cpp", {"access_programs": {"cyber": "standard"}}, "access_programs"),
    ("llama.cpp", {"top_logprobs": 2}, "top_logprobs"),
    ("llama.cpp", {"include": ["message.output_text.logprobs"]}, "include"),
    ("llama.cpp", {"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ("llama.cpp", {"reasoning": {"context": "current_turn"}}, "reasoning.context"),
    ("llama.cpp", {"tools": [FUNCTION, {"type": "web_search"}]}, "tools[1].type"),
    ("ollama", {"tools": [FUNCTION], "tool_choice": "required"}, "tool_choice"),
    ("ollama", {"tools": [FUNCTION], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ("ollama", {"text": {"format": {"type": "json_object"}}}, "text.format"),
    ("ollama", {"presence_penalty": 1}, "presence_penalty"),
    ("ollama", {"frequency_penalty": 1}, "frequency_penalty"),
    ("ollama", {"tools": [MCP]}, "tools[0].type"),
]


@pytest.mark.parametrize(("server", "fields", "param"), REFUSED)
def test_what_a_server_ignores_is_refused(server: str, fields: Json, param: str) -> None:
    """Ours: a field is honoured or refused; the servers' own code tells which they ignore."""
    with pytest.raises(BackendRefusedError, match="chat_completions") as raised:
        encode(fields, profile=PROFILES[server])
    assert (raised.value.param, raised.value.code) == (param, "unsupported_parameter")


def test_every_ignored_parameter_has_its_test() -> None:
    """Guards the table above."""
    named = {name for quirks in QUIRKS.values() for name in quirks.ignored}
    assert named == {param for _, _, param in REFUSED if not param.startswith("tools[")}


def test_tools_of_a_model_without_tools_are_refused() -> None:
    """llama.cpp drops them without a word where the template has none."""
    profile = msgspec.structs.replace(PROFILES["llama.cpp"], tools="schema")
    with pytest.raises(BackendRefusedError, match="template"):
        encode({"tools": [FUNCTION]}, profile=profile)
    assert encode({"tools": [FUNCTION], "tool_choice": "none"}, profile=profile)["tool_choice"] == "none"


def test_a_server_that_reads_no_choice_sees_no_tools_when_there_is_none() -> None:
    """Ollama: `tool_choice` never reaches the model."""
    encoded = encode({"tools": [FUNCTION], "tool_choice": "none"}, profile=PROFILES["ollama"])
    assert "tools" not in encoded


def to_items(*items: Json) -> list[Item]:
    return decode_items(msgspec.json.encode(list(items)))


def test_items_are_their_own_bytes() -> None:
    """Ours: unknown types and fields, odd spacing, system messages: all as they came."""
    raws = [
        b'{ "role":"system", "content":"Be." }',
        b'{"type":"slug:own","x":1.0}',
        b'{"type":"message","role":"user","content":[{"type":"input_text","text":"a","new":{}}],"new":null}',
        b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"sealed"}',
    ]
    segment = transcribe([decode_stored_item(raw) for raw in raws], Profile())
    assert segment.lead == ""
    assert segment.body == b",".join(raws)


def test_llama_cpp_gets_items_in_the_forms_that_it_takes() -> None:
    """llama.cpp b11549, tried: typed assistant messages, no refusals, reasoning with raw text."""
    items = to_items(
        {"role": "user", "content": "Hi", "x": 1},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "A"}], "x": 2},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "sealed"},
        {"role": "assistant", "content": "Yo", "x": 3},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    )
    segment = transcribe(items, PROFILES["llama.cpp"])
    assert msgspec.json.decode(b"[%b]" % segment.body) == [
        {"role": "user", "content": "Hi", "x": 1},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "A"}],
            "x": 2,
            "content": [{"type": "reasoning_text", "text": "A"}],
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "Yo"}], "x": 3, "type": "message"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "No."}]},
    ]
    [warning] = segment.warnings
    assert "sealed reasoning" in warning


def test_an_item_that_a_server_is_known_to_refuse_is_left_out_and_named() -> None:
    """llama.cpp says no more than "Cannot determine type of 'item'"; what to do about a new one is the caller's."""
    items = to_items({"type": "compaction", "encrypted_content": "x"})
    segment = transcribe(items, PROFILES["llama.cpp"])
    assert (segment.body, len(segment.warnings)) == (b"", 1)
    assert "'compaction'" in segment.refusal
    assert "llama.cpp" in segment.refusal
    assert transcribe(items, PROFILES["vllm"]).body == items[0].raw
