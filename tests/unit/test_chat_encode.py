"""An ask -> the body of a Chat Completions request: whole bodies, one per decision."""

from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask
from antiphon.backends.chat_completions.encode import encode_count, encode_request
from antiphon.backends.profiles import PROFILES
from antiphon.context import Profile
from antiphon.protocol.requests import TextFormat
from antiphon.protocol.tools import FunctionTool

USER = b'{"role":"user","content":"Hi"}'
PLAIN = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
}
#: llama.cpp notices that a client left only when it writes (measured), so it is asked to tell its progress.
ALWAYS = {"llama.cpp": {**PLAIN, "return_progress": True}}
WEATHER = FunctionTool(name="get_weather", description="Weather", parameters={"type": "object"}, strict=True)
CLOCK = FunctionTool(name="get_time")
WEATHER_SENT = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather",
        "parameters": {"type": "object"},
        "strict": True,
    },
}
CLOCK_SENT = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
}
BOTH = [WEATHER_SENT, CLOCK_SENT]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def make_ask(profile: str = "default", **fields: Any) -> Ask:
    """An ask of one user message."""
    return Ask(model="m", profile=PROFILES[profile], transcript=[USER], **fields)


def encode(profile: str = "default", **fields: Any) -> Any:
    """The decoded body."""
    return msgspec.json.decode(encode_request(make_ask(profile, **fields)))


@pytest.mark.parametrize(
    ("profile", "fields", "added"),
    [
        ("default", {}, {}),
        (
            "default",
            {"temperature": 0.0, "top_p": 0.5, "presence_penalty": 0.0, "frequency_penalty": 1.0},
            {"temperature": 0.0, "top_p": 0.5, "presence_penalty": 0.0, "frequency_penalty": 1.0},
        ),
        ("default", {"max_output_tokens": 7}, {"max_tokens": 7}),
        ("openai", {"max_output_tokens": 7}, {"max_completion_tokens": 7}),
        ("default", {"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ("default", {"top_logprobs": 0}, {"logprobs": True, "top_logprobs": 1}),
        ("openai", {"verbosity": "low"}, {"verbosity": "low"}),
        ("openai", {"effort": "minimal"}, {"reasoning_effort": "minimal"}),
        (
            "llama.cpp",
            {"effort": "low"},
            {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "low"}},
        ),
        ("llama.cpp", {"effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("openai", {"hints": {"user": "u"}}, {"user": "u"}),
    ],
)
def test_a_setting_is_told_in_the_servers_own_words(profile: str, fields: Any, added: Any) -> None:
    """Ours: nothing that the client left out is sent, and nothing that it said is dropped."""
    assert encode(profile, **fields) == {**ALWAYS.get(profile, PLAIN), **added}


@pytest.mark.parametrize(
    ("profile", "fields", "added"),
    [
        ("default", {}, {"tools": BOTH}),
        ("default", {"tool_choice": "none"}, {}),
        ("default", {"tool_choice": "required"}, {"tools": BOTH, "tool_choice": "required"}),
        ("default", {"parallel_tool_calls": False}, {"tools": BOTH, "parallel_tool_calls": False}),
        # llama.cpp ignores the object form (measured): the tool is sent alone.
        (
            "llama.cpp",
            {"tool_choice": "required", "forced_tool": "get_time"},
            {"tools": [CLOCK_SENT], "tool_choice": "required", "parallel_tool_calls": True},
        ),
        # llama.cpp calls one tool at a time unless told otherwise; in the API parallel calls are the default.
        ("llama.cpp", {}, {"tools": BOTH, "parallel_tool_calls": True}),
        ("llama.cpp", {"parallel_tool_calls": False}, {"tools": BOTH, "parallel_tool_calls": False}),
        # Ollama knows no tool_choice: the tool alone is offered, the engine holds the answer to it.
        (
            "ollama",
            {"tool_choice": "required", "forced_tool": "get_time"},
            {"tools": [CLOCK_SENT], "tool_choice": "required"},
        ),
        # vLLM and OpenAI enforce the object form (measured with vLLM).
        *(
            (
                profile,
                {"tool_choice": "required", "forced_tool": "get_time"},
                {"tools": BOTH, "tool_choice": {"type": "function", "function": {"name": "get_time"}}},
            )
            for profile in ("vllm", "openai")
        ),
    ],
)
def test_tools_and_the_choice_among_them(profile: str, fields: Any, added: Any) -> None:
    """Ours; measured facts of each server in the rows."""
    assert encode(profile, tools=[WEATHER, CLOCK], **fields) == {**ALWAYS.get(profile, PLAIN), **added}


ANY_OBJECT = {"type": "json_schema", "json_schema": {"name": "object", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("profile", "text_format", "sent"),
    [
        ("default", TextFormat(type="json_object"), {"type": "json_object"}),
        ("ollama", TextFormat(type="json_object"), {"type": "json_object"}),
        ("vllm", TextFormat(type="json_object"), {"type": "json_object"}),
        # Accepted and not enforced by llama.cpp b11549 (measured); refused by LM Studio (documentation).
        ("llama.cpp", TextFormat(type="json_object"), ANY_OBJECT),
        ("lm-studio", TextFormat(type="json_object"), ANY_OBJECT),
        (
            "default",
            TextFormat(type="json_schema", name="n", schema=SCHEMA, description="d", strict=True),
            {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": SCHEMA, "description": "d", "strict": True},
            },
        ),
        (
            "llama.cpp",
            TextFormat(type="json_schema", name="n", schema=SCHEMA),
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        ),
    ],
)
def test_a_text_format_is_told_in_the_servers_own_way(profile: str, text_format: Any, sent: Any) -> None:
    """Measured and documented facts of each server in the rows."""
    expected = {**ALWAYS.get(profile, PLAIN), "response_format": sent}
    assert encode(profile, text_format=text_format) == expected


def test_plain_text_is_no_format() -> None:
    """Ours: the default is not sent."""
    assert encode(text_format=TextFormat()) == PLAIN


def test_a_server_that_takes_no_stream_options_gets_none() -> None:
    """Profile.stream_usage."""
    ask = Ask(model="m", profile=Profile(stream_usage=False), transcript=[USER])
    assert encode_request(ask) == b'{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}'


def test_the_prompt_is_tools_then_system_then_transcript() -> None:
    """Ours: this order, so that the prompt only grows at its end."""
    ask = make_ask(tools=[CLOCK], system="Be brief.")
    body = encode_request(msgspec.structs.replace(ask, transcript=[USER, b'{"role":"x"},{"role":"y"}']))
    assert body.startswith(b'{"model":"m","tools":[{"type":"function"')
    assert (
        b'"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"},{"role":"x"},'
        b'{"role":"y"}],"stream":true,'
    ) in body


def test_the_messages_of_the_next_round_begin_with_those_of_this_one() -> None:
    """Ours: an unchanged prefix keeps the server's prompt cache."""
    first = encode_request(make_ask(system="S", tools=[CLOCK]))
    ask = make_ask(system="S", tools=[CLOCK])
    second = encode_request(msgspec.structs.replace(ask, transcript=[USER, b'{"role":"assistant"}']))
    end = first.index(b'],"stream"')
    assert second[:end] == first[:end]


@pytest.mark.parametrize(
    ("profile", "fields", "expected"),
    [
        ("vllm", {"temperature": 1.0}, {"model": "m", "messages": PLAIN["messages"]}),
        ("vllm", {"effort": "low"}, {"model": "m", "messages": PLAIN["messages"]}),
        (
            "llama.cpp",
            {"tools": [CLOCK], "effort": "none"},
            {
                "model": "m",
                "tools": [CLOCK_SENT],
                "messages": PLAIN["messages"],
                "chat_template_kwargs": {"enable_thinking": False},
            },
        ),
    ],
)
def test_a_count_is_asked_for_what_the_prompt_is_made_of(profile: str, fields: Any, expected: Any) -> None:
    """llama.cpp's input_tokens and vLLM's tokenize routes."""
    assert msgspec.json.decode(encode_count(make_ask(profile, **fields))) == expected
