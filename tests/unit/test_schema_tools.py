"""Tools for models that cannot call them: what is asked, how a history is told, and calls written as text."""

import itertools
import json
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import Ask, BackendEvent, CallDelta, ReasoningDelta, TextDelta
from antiphon.backends.chat_completions.call_texts import (
    FIRST_SLOT,
    HELD_CHARACTERS,
    SHORT_CHARACTERS,
    CallSalvager,
    NativeSalvager,
    may_begin_call,
)
from antiphon.backends.chat_completions.encode import encode_count, encode_request
from antiphon.backends.chat_completions.parameters import STRING_CHARACTERS, Budget, loosen_parameters
from antiphon.backends.chat_completions.schema_answers import SchemaReader
from antiphon.backends.chat_completions.schema_tools import ANSWER_TOKENS, PARALLEL_CALLS
from antiphon.backends.chat_completions.text_readers import make_text_reader
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.profiles import PROFILES
from antiphon.context import Profile
from antiphon.protocol.items import decode_items
from antiphon.protocol.requests import TextFormat
from antiphon.protocol.tools import FunctionTool
from tests.wire import merge

USER = b'{"role":"user","content":"Hi"}'
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "x"}},
    "required": ["city"],
}
WEATHER = FunctionTool(name="get_weather", description="Weather", parameters=PARAMETERS, strict=True)
CLOCK = FunctionTool(name="get_time")
BOTH = [WEATHER, CLOCK]
CITY_SENT = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": STRING_CHARACTERS}},
    "required": ["city"],
    "additionalProperties": False,
}
OWN = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
REPLY = {"type": "string", "minLength": 1}


def closed(**properties: Any) -> dict[str, Any]:
    """An object of exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


CALL_WEATHER = closed(name={"const": "get_weather"}, arguments=CITY_SENT)
CALL_CLOCK = closed(
    name={"const": "get_time"},
    arguments={"type": "object", "properties": {}, "additionalProperties": False},
)
SEVERAL = {
    "type": "array",
    "items": {"anyOf": [CALL_WEATHER, CALL_CLOCK]},
    "minItems": 2,
    "maxItems": PARALLEL_CALLS,
}


def make_ask(profile: str = "llama.cpp", **fields: Any) -> Ask:
    """An ask of one user message to a model that calls by schema."""
    own = msgspec.structs.replace(PROFILES[profile], tools="schema")
    return Ask(**{"model": "m", "profile": own, "transcript": [USER], "tools": BOTH, **fields})


def encode(profile: str = "llama.cpp", **fields: Any) -> Any:
    """The decoded body."""
    return msgspec.json.decode(encode_request(make_ask(profile, **fields)))


def read_schema(body: Any) -> Any:
    """What the answer is constrained to."""
    assert body["response_format"]["type"] == "json_schema"
    schema = body["response_format"]["json_schema"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({}, {"anyOf": [CALL_WEATHER, CALL_CLOCK, SEVERAL, closed(reply=REPLY)]}),
        ({"parallel_tool_calls": False}, {"anyOf": [CALL_WEATHER, CALL_CLOCK, closed(reply=REPLY)]}),
        ({"tool_choice": "required"}, {"anyOf": [CALL_WEATHER, CALL_CLOCK, SEVERAL]}),
        ({"tool_choice": "required", "forced_tool": "get_time"}, CALL_CLOCK),
        (
            {"tools": [CLOCK], "tool_choice": "required"},
            {"anyOf": [CALL_CLOCK, {**SEVERAL, "items": CALL_CLOCK}]},
        ),
        (
            {
                "parallel_tool_calls": False,
                "tools": [CLOCK],
                "text_format": TextFormat(type="json_schema", name="n", schema=OWN),
            },
            {"anyOf": [CALL_CLOCK, closed(reply=OWN)]},
        ),
        (
            {"parallel_tool_calls": False, "tools": [CLOCK], "text_format": TextFormat(type="json_object")},
            {"anyOf": [CALL_CLOCK, closed(reply={"type": "object"})]},
        ),
        (
            {"parallel_tool_calls": False, "tools": [CLOCK], "text_format": TextFormat()},
            {"anyOf": [CALL_CLOCK, closed(reply=REPLY)]},
        ),
    ],
)
def test_the_schema_lets_the_model_do_what_the_choice_allows(fields: Any, schema: Any) -> None:
    """Ours: a call, several, or a reply; a forced tool is the only thing that can be written."""
    assert read_schema(encode(**fields)) == schema


def test_no_choice_is_plain_text() -> None:
    """`tool_choice: none`: nothing of the tools is sent, and the text is read as it is."""
    ask = make_ask(tool_choice="none")
    body = msgspec.json.decode(encode_request(ask))
    assert "response_format" not in body
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert make_text_reader(ask) is None


def test_references_of_the_clients_own_schema_still_lead_somewhere() -> None:
    """JSON Schema 8.2.3: they start at its root, which is inside of what is sent."""
    own = {
        "$defs": {"n": {"type": "integer"}},
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/n"}, "me": {"$ref": "#"}},
    }
    schema = read_schema(
        encode(tool_choice="auto", text_format=TextFormat(type="json_schema", name="n", schema=own))
    )
    assert schema["anyOf"][-1] == closed(reply={"$ref": "#/$defs/reply"})
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"reply": {"n": 1, "me": {"n": 2}}})
    assert not validator.is_valid({"reply": {"n": 1, "me": {"n": "2"}}})


@pytest.mark.parametrize(
    ("profile", "fields", "sent"),
    [
        ("llama.cpp", {}, {"max_tokens": ANSWER_TOKENS}),
        ("llama.cpp", {"max_output_tokens": 7}, {"max_tokens": 7}),
        ("openai", {}, {"max_completion_tokens": ANSWER_TOKENS}),
        ("vllm", {}, {}),
        ("vllm", {"max_output_tokens": 7}, {"max_tokens": 7}),
        ("llama.cpp", {"tool_choice": "none"}, {}),
    ],
)
def test_an_answer_without_a_limit_of_the_clients_gets_one(profile: str, fields: Any, sent: Any) -> None:
    """Measured: small models loop inside JSON; vLLM refuses a limit beyond its window."""
    body = encode(profile, **fields)
    assert {key: value for key, value in body.items() if key.startswith("max_")} == sent


def test_no_field_about_tools_is_sent() -> None:
    """Ours: a server without tools must not be told of any."""
    body = encode(tool_choice="required", forced_tool="get_time", parallel_tool_calls=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(body)


def test_the_tools_are_told_before_the_instructions_and_as_the_client_wrote_them() -> None:
    """Order of the prompt: tools, instructions, input."""
    system, user = encode(system="Be brief.")["messages"]
    assert user == {"role": "user", "content": "Hi"}
    lines = system["content"].split("\n")
    told = [msgspec.json.decode(line) for line in lines if line.startswith('{"name":"')]
    assert told == [
        {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS},
        {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
    ]
    assert lines[-2:] == ["", "Be brief."]


@pytest.mark.parametrize("choice", [{"tool_choice": "required"}, {"forced_tool": "get_time"}])
def test_the_prompt_does_not_depend_on_the_choice(choice: Any) -> None:
    """Ours: a round that forces a tool continues the same prompt, and the server's cache holds."""
    assert encode_count(make_ask(**choice)) == encode_count(make_ask())
    assert encode(**choice)["messages"] == encode()["messages"]


def test_the_clients_own_form_of_a_reply_is_told() -> None:
    """Ours: a constraint that the model does not know of makes it write nonsense."""
    text_format = TextFormat(type="json_schema", name="n", schema=OWN)
    system = encode(text_format=text_format)["messages"][0]["content"]
    assert msgspec.json.encode(OWN).decode() in system


def test_the_reader_follows_the_ask() -> None:
    """Ours: schema answers are read, texts of native models are looked through, others pass."""
    native = msgspec.structs.replace(make_ask(), profile=PROFILES["llama.cpp"])
    own = TextFormat(type="json_schema", name="n", schema=OWN)
    assert isinstance(make_text_reader(make_ask()), SchemaReader)
    assert isinstance(make_text_reader(native), NativeSalvager)
    for changes in ({"tools": ()}, {"tool_choice": "none"}, {"text_format": own}):
        assert make_text_reader(msgspec.structs.replace(native, **changes)) is None


# How a history is told


def call(call_id: str, arguments: str = '{"a":1}', name: str = "f") -> dict[str, Any]:
    """A function call item."""
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str, value: Any = "r") -> dict[str, Any]:
    """A function call output item."""
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def said(role: str, content: Any) -> dict[str, Any]:
    """A message, as an item and as a chat message."""
    return {"role": role, "content": content}


def tell(*items: dict[str, Any], at_start: bool = False, **open_calls: str) -> list[dict[str, Any]]:
    """The chat messages of items."""
    segment = transcribe(
        decode_items(msgspec.json.encode(items)),
        Profile(tools="schema"),
        at_start=at_start,
        open_calls=open_calls,
    )
    messages: list[dict[str, Any]] = msgspec.json.decode(b"[" + segment.body + b"]")
    return messages


IMAGE = "data:image/png;base64,iVBORw0KGgo="


@pytest.mark.parametrize(
    ("items", "open_calls", "messages"),
    [
        ([call("1")], {}, [said("assistant", 'I called f with {"a":1}.')]),
        ([call("1", " ")], {}, [said("assistant", "I called f with {}.")]),
        ([call("1", "{broken")], {}, [said("assistant", "I called f with {broken.")]),
        (
            [said("assistant", "One moment."), call("1"), call("2", "{}", "g")],
            {},
            [said("assistant", 'One moment.\n\nI called f with {"a":1}.\n\nI called g with {}.')],
        ),
        ([output("1", "18")], {"1": "f"}, [said("user", "Result of f: 18")]),
        ([output("1", "")], {"1": "f"}, [said("user", "Result of f: (empty)")]),
        ([output("1", "18")], {}, [said("user", "Result of 1: 18")]),
        (
            [output("2", "two"), output("1", "one"), said("user", "And?")],
            {"1": "f", "2": "g"},
            [said("user", "Result of f: one\n\nResult of g: two"), said("user", "And?")],
        ),
        (
            [said("user", "Hi"), call("1"), said("user", "Wait"), output("1"), said("assistant", "Done.")],
            {},
            [
                said("user", "Hi"),
                said("assistant", 'I called f with {"a":1}.'),
                said("user", "Result of f: r"),
                said("user", "Wait"),
                said("assistant", "Done."),
            ],
        ),
        (
            [
                output(
                    "1", [{"type": "input_text", "text": "See:"}, {"type": "input_image", "image_url": IMAGE}]
                )
            ],
            {"1": "f"},
            [
                said(
                    "user",
                    [
                        {"type": "text", "text": "Result of f: See:\n[image: see below]"},
                        {"type": "image_url", "image_url": {"url": IMAGE}},
                    ],
                )
            ],
        ),
    ],
)
def test_calls_and_results_are_plain_turns(items: Any, open_calls: Any, messages: Any) -> None:
    """Measured: the default model uses a result that is told so, and repeats the call otherwise."""
    assert tell(*items, **open_calls) == messages


def test_a_model_without_tools_is_told_of_old_calls_too() -> None:
    """Ours: a template without tools leaves tool messages out and says nothing."""
    items = decode_items(msgspec.json.encode([call("1"), output("1")]))
    plain = transcribe(items, Profile(tools="none"), at_start=False)
    assert plain == transcribe(items, Profile(tools="schema"), at_start=False)


# Calls that models with tools of their own write as text

CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'


def salvage(*pieces: str) -> list[Any]:
    """The events of an answer in pieces, neighbours joined."""
    salvager = NativeSalvager({"get_weather"})
    events: list[BackendEvent] = []
    for piece in pieces:
        events += salvager.read([TextDelta(piece)])
    return merge(events + salvager.close())


PARIS = ("get_weather", '{"city":"Paris"}')


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (CALL, [PARIS]),
        (f"```json\n{CALL}\n```", [PARIS]),
        (f"\n```\n{CALL}\n```\n", [PARIS]),
        (f"<tool_call>\n{CALL}\n</tool_call>", [PARIS]),
        (f"```json\n[{CALL}, {CALL}]\n```", [PARIS, PARIS]),
        (f"{CALL}\n{CALL}", [PARIS, PARIS]),
        (f"```json\n{CALL}\n{CALL}\n```", [PARIS, PARIS]),
    ],
)
def test_an_answer_that_is_nothing_but_a_call_is_one(text: str, calls: Any) -> None:
    """Measured: Qwen2.5-Coder writes its calls so, five of five."""
    for pieces in ([text], list(text)):
        found = salvage(*pieces)
        assert [(event.name, event.arguments) for event in found] == calls


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        " ",
        f"I would call:\n{CALL}",
        f"{CALL}\nThat is the call.",
        '{"name": "delete_all", "arguments": {}}',
        '{"name": "get_weather"}',
        '{"name": "get_weather", "arguments": []}',
        '{"name": "get_weather", "arguments": "Paris"}',
        '{"name": "get_weather", "arguments": {}, "price": 3}',
        '{"name": "get_weather", "arguments": {"city": "Pa',
        "```json\n[1, 2]\n```",
        "```python\nprint()\n```",
        '{"name": "Ada", "age": 36}',
        '{"name": "' + "x" * (HELD_CHARACTERS + 1),
    ],
)
def test_any_other_text_stays_as_it_came(text: str) -> None:
    """Ours: data that looks like a call, an example of one, half of one."""
    assert salvage(text) == [TextDelta(text)]
    if len(text) < 100:
        assert salvage(*text) == [TextDelta(text)]


def test_a_text_that_can_be_no_call_is_not_held_back() -> None:
    """Ours: streaming must not wait for what will not come."""
    salvager = NativeSalvager({"get_weather"})
    assert salvager.read([ReasoningDelta("Hm.")]) == [ReasoningDelta("Hm.")]
    assert salvager.read([TextDelta("``")]) == []
    assert salvager.read([TextDelta("`python")]) == [TextDelta("``"), TextDelta("`python")]
    assert salvager.read([TextDelta(CALL)]) == [TextDelta(CALL)]


def test_a_call_that_the_server_tells_ends_the_search() -> None:
    """Ours: the text before it is text, and nothing changes its place."""
    salvager = NativeSalvager({"get_weather"})
    native = CallDelta(0, "c", "get_weather", "{}")
    assert salvager.read([TextDelta('{"name"')]) == []
    assert salvager.read([native]) == [TextDelta('{"name"'), native]
    assert salvager.close() == []


@given(
    st.sampled_from([CALL, f"```json\n{CALL}\n```", f"<tool_call>{CALL}</tool_call>", f"[{CALL}]"]), st.data()
)
def test_every_beginning_of_a_call_may_begin_one(text: str, data: st.DataObject) -> None:
    """Ours: otherwise a cut at the wrong place would lose the call."""
    assert may_begin_call(text[: data.draw(st.integers(0, len(text)))])


def measure(schema: dict[str, Any]) -> int:
    return len(msgspec.json.encode(loosen_parameters(schema)))


def test_a_small_schema_never_becomes_a_large_one() -> None:
    """Ours: a reference is cheap to write and may stand for much; all tools of a request share one budget."""
    values = {"E": {"enum": [f"value number {number:06d}" for number in range(4000)]}}
    properties = {f"p{number}": {"$ref": "#/$defs/E"} for number in range(1500)}
    assert measure({"$defs": values, "type": "object", "properties": properties}) < 3_000_000
    budget = Budget()
    schema = {"$defs": values, "type": "object", "properties": dict(list(properties.items())[:9])}
    sizes = [len(msgspec.json.encode(loosen_parameters(schema, budget))) for _ in range(50)]
    assert sum(sizes) < 3_000_000


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"required": [f"r{number}"]} for number in range(20_000)]},
        {
            "type": "object",
            "properties": {f"p{n}": {} for n in range(30_000)},
            "required": [f"p{n}" for n in range(30_000)],
        },
        {"anyOf": [{"type": "object", "properties": {f"p{n}": {}}} for n in range(30_000)]},
    ],
)
def test_a_long_schema_is_left_open(schema: dict[str, Any]) -> None:
    """Ours: what goes over the budget allows more, and is found without walking it again and again."""
    assert loosen_parameters(schema) == {"type": "object"}


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"A": {"properties": {"a": {"type": "integer"}}}, "B": {"properties": {"b": {"type": "integer"}}}},
         "allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "required": ["a", "b"]},
        {"$defs": {"A": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
         "$ref": "#/$defs/A", "properties": {"b": {"type": "integer"}}, "required": ["b"]},
        {"$defs": {"A": {"properties": {"a": {"type": "integer"}}}},
         "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "integer"}}}], "required": ["a", "b"]},
    ],
)  # fmt: skip
def test_what_several_schemas_ask_for_together_stays_possible(schema: dict[str, Any]) -> None:
    """JSON Schema, `allOf` and keywords beside `$ref`: all of them hold, so all their properties are there."""
    loosened = loosen_parameters({"type": "object", **schema})
    assert loosened["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}} or loosened[
        "properties"
    ] == {
        "b": {"type": "integer"},
        "a": {"type": "integer"},
    }
    assert set(loosened["required"]) == {"a", "b"}


def test_an_object_that_may_have_more_properties_by_other_keywords_is_open() -> None:
    """Ours: more is allowed, never less."""
    schema = {
        "type": "object",
        "properties": {"q": {"type": "string"}},
        "anyOf": [{"properties": {"z": {"type": "string"}}, "required": ["z"]}],
    }
    assert loosen_parameters(schema)["additionalProperties"] is True


@pytest.mark.parametrize(
    "schema",
    [{"anyOf": [{"type": "string"}, {"type": "null"}]}, {"description": "x"}, {"$ref": "#"}, {"enum": ["a"]}],
)
def test_arguments_are_an_object_whatever_the_schema_says(schema: dict[str, Any]) -> None:
    """The API: arguments are an object."""
    assert loosen_parameters(schema)["type"] == "object"


@pytest.mark.parametrize("padding", [0, SHORT_CHARACTERS, HELD_CHARACTERS - 200])
def test_a_long_call_is_found_however_it_is_cut(padding: int) -> None:
    """Ours: what is held back is not looked through with each piece, and is found all the same."""
    arguments = json.dumps({"a": "}" * padding}, separators=(",", ":"))
    text = f'<tool_call>{{"name":"f","arguments":{arguments}}}</tool_call>'
    assert len(text) <= HELD_CHARACTERS
    for pieces in ([text], list(text)):
        salvager = CallSalvager({"f"}, itertools.count(FIRST_SLOT))
        events = [event for piece in pieces for event in salvager.feed(piece)] + salvager.close()
        assert events == [CallDelta(FIRST_SLOT, "", "f", arguments)]


@given(
    st.lists(st.sampled_from(["\n", " ", "[", "{", '"name"', "```", "x", "<tool_call>", "}"]), max_size=30)
)
def test_a_text_is_the_same_however_it_is_cut(pieces: list[str]) -> None:
    """Invariant: nothing is lost and nothing made up."""
    for cut in (pieces, ["".join(pieces)]):
        salvager = CallSalvager({"f"}, itertools.count(FIRST_SLOT))
        events = [event for piece in cut for event in salvager.feed(piece)] + salvager.close()
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "".join(pieces)
