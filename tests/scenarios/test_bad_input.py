"""Whatever is sent: a 4xx in the API's shape or a correct answer; never a 5xx, never a hang."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.protocol.requests import FIELDS
from tests.scenarios.client import Answer, StrictClient, read_text
from tests.scenarios.serving import WAIT_S, GatedBackend, serve, serve_doubles

SCRIPT = {"window_tokens": 10**9, "rules": [{"tool_forced": True, "act": "call_tools"}, {"text": "ok"}]}


@asynccontextmanager
async def open_server() -> AsyncIterator[StrictClient]:
    """A server in memory that answers anything with "ok"."""
    async with serve_doubles(GatedBackend(SCRIPT)) as client:
        yield client


async def send(client: StrictClient, body: bytes) -> Answer:
    """One request within bounded time; the answer is checked by the client."""
    async with asyncio.timeout(WAIT_S):
        answer = await client.post(body)
    assert answer.status < 500, answer.body
    return answer


def nest(depth: int, opening: str = "[", closing: str = "]") -> str:
    """Brackets in brackets."""
    return opening * depth + closing * depth


def in_input(member: str) -> bytes:
    """A body with one member in its input."""
    return f'{{"model":"scripted","input":[{member}]}}'.encode()


def with_field(text: str) -> bytes:
    """A body with one more field."""
    return f'{{"model":"scripted","input":"x",{text}}}'.encode()


#: Bodies -> the status that they must have, and the param of the refusal where one is named.
BODIES: dict[str, tuple[bytes, int, str | None]] = {
    "nothing": (b"", 400, None),
    "blank": (b"   ", 400, None),
    "half an object": (b'{"model":', 400, None),
    "two objects": (b'{"model":"scripted","input":"x"}{}', 400, None),
    "trailing comma": (b'{"model":"scripted","input":"x",}', 400, None),
    "a list": (b"[]", 400, None),
    "a string": (b'"x"', 400, None),
    "null": (b"null", 400, None),
    "a number": (b"1", 400, None),
    "single quotes": (b"{'model':'scripted'}", 400, None),
    "latin-1": ('{"model":"scripted","input":"é"}'.encode("latin-1"), 400, None),
    "cut utf-8": ('{"model":"scripted","input":"é'.encode()[:-1] + b'"}', 400, None),
    "overlong utf-8": (b'{"model":"scripted","input":"\xc0\xaf"}', 400, None),
    "utf-16": ('{"model":"scripted","input":"x"}'.encode("utf-16"), 400, None),
    "byte order mark": (b'\xef\xbb\xbf{"model":"scripted","input":"x"}', 400, None),
    "raw surrogate": (b'{"model":"scripted","input":"\xed\xa0\x80"}', 400, None),
    "escaped lone surrogate": (b'{"model":"scripted","input":"\\ud800"}', 400, None),
    "escaped low surrogate": (b'{"model":"scripted","input":"a\\udc00b"}', 400, None),
    "lone surrogate in an item": (in_input('{"role":"user","content":"\\ud800"}'), 400, None),
    "lone surrogate in a key": (with_field('"\\ud800":1'), 400, None),
    "surrogate pair": (b'{"model":"scripted","input":"\\ud83d\\ude00"}', 200, None),
    "raw control character": (b'{"model":"scripted","input":"a\x00b"}', 400, None),
    "escaped null byte": (b'{"model":"scripted","input":"a\\u0000b"}', 200, None),
    "null byte in metadata": (with_field('"metadata":{"a\\u0000":"\\u0000"}'), 200, None),
    "null byte in a parent": (
        with_field('"previous_response_id":"resp_\\u0000"'),
        400,
        "previous_response_id",
    ),
    "null byte in a model": (b'{"model":"scri\\u0000pted","input":"x"}', 400, "model"),
    "NaN": (with_field('"temperature":NaN'), 400, None),
    "Infinity": (with_field('"temperature":Infinity'), 400, None),
    "huge exponent": (with_field('"temperature":1e999'), 400, None),
    "huge integer": (with_field(f'"max_output_tokens":{"9" * 4000}'), 400, "max_output_tokens"),
    "huge integer in an item": (in_input(f'{{"role":"user","content":"x","n":{"9" * 5000}}}'), 400, None),
    "integer as a float": (with_field('"max_output_tokens":16.5'), 400, "max_output_tokens"),
    "whole float": (with_field('"max_output_tokens":20.0'), 400, "max_output_tokens"),
    "boolean as a number": (with_field('"temperature":true'), 400, "temperature"),
    "number as a string": (with_field('"temperature":"1"'), 400, "temperature"),
    "number beyond 64 bits": (
        with_field('"max_output_tokens":18446744073709551616'),
        400,
        "max_output_tokens",
    ),
    "number of 31 bits": (with_field('"max_output_tokens":2147483647'), 200, None),
    "nested input": (b'{"model":"scripted","input":' + nest(10_000).encode() + b"}", 400, None),
    "nested objects": (with_field('"client_metadata":' + '{"a":' * 10_000 + "1" + "}" * 10_000), 400, None),
    "nested item": (in_input('{"role":"user","content":"x","n":' + nest(10_000) + "}"), 400, None),
    "nested a little": (in_input('{"role":"user","content":"x","n":' + nest(90) + "}"), 200, None),
    "unclosed nesting": (b'{"model":"scripted","input":' + b"[" * 100_000, 400, None),
    "nested schema": (
        with_field(
            '"tools":[{"type":"function","name":"f","parameters":'
            + '{"a":' * 5_000
            + "1"
            + "}" * 5_000
            + "}]"
        ),
        400,
        None,
    ),
    "duplicate keys": (with_field('"input":"y"'), 200, None),
    "duplicate model": (b'{"model":"nobody","input":"x","model":"scripted"}', 200, None),
    "an unknown type": (in_input('{"type":"wibble"}'), 400, "input[0]"),
    "a type that is a number": (in_input('{"type":5}'), 400, None),
    "a type that is a list": (in_input('{"type":[]}'), 400, None),
    "an unknown role": (in_input('{"role":"robot","content":"x"}'), 400, "input[0]"),
    "a role that is a number": (in_input('{"role":5,"content":"x"}'), 400, None),
    "no role": (in_input('{"content":"x"}'), 400, None),
    "an empty item": (in_input("{}"), 400, None),
    "a null item": (in_input("null"), 400, "input[0]"),
    "a string item": (in_input('"x"'), 400, "input[0]"),
    "a list item": (in_input("[]"), 400, "input[0]"),
    "content null": (in_input('{"role":"user","content":null}'), 400, None),
    "content number": (in_input('{"role":"user","content":5}'), 400, None),
    "content missing": (in_input('{"role":"user"}'), 400, "input[0].content"),
    "content empty": (in_input('{"role":"user","content":[]}'), 200, None),
    "part null": (in_input('{"role":"user","content":[null]}'), 400, None),
    "part unknown": (in_input('{"role":"user","content":[{"type":"wibble"}]}'), 400, None),
    "part without text": (in_input('{"role":"user","content":[{"type":"input_text"}]}'), 400, None),
    "an id that is a number": (in_input('{"role":"user","content":"x","id":5}'), 400, "input[0].id"),
    "an empty id": (in_input('{"role":"user","content":"x","id":""}'), 400, "input[0].id"),
    "arguments no string": (
        in_input('{"type":"function_call","call_id":"c","name":"f","arguments":{}}'),
        400,
        "input[0].arguments",
    ),
    "arguments no json": (
        in_input(
            '{"type":"function_call","call_id":"c","name":"f","arguments":"{"},'
            '{"type":"function_call_output","call_id":"c","output":"x"}'
        ),
        200,
        None,
    ),
    "no call_id": (in_input('{"type":"function_call","name":"f","arguments":"{}"}'), 400, "input[0].call_id"),
    "empty call_id": (
        in_input('{"type":"function_call","call_id":"","name":"f","arguments":"{}"}'),
        400,
        "input[0].call_id",
    ),
    "output without call_id": (
        in_input('{"type":"function_call_output","output":"x"}'),
        400,
        "input[0].call_id",
    ),
    "reasoning without summary": (in_input('{"type":"reasoning","id":"rs_1"}'), 400, None),
    "tool twice": (
        with_field('"tools":[{"type":"function","name":"f"},{"type":"function","name":"f"}]'),
        400,
        None,
    ),
    "tool with an odd name": (with_field('"tools":[{"type":"function","name":"a b"}]'), 400, "tools[0].name"),
    "tool with a list as parameters": (
        with_field('"tools":[{"type":"function","name":"f","parameters":[]}]'),
        400,
        "tools[0].parameters",
    ),
    "choice of an unknown tool": (with_field('"tool_choice":{"type":"function","name":"f"}'), 400, None),
    "required without tools": (with_field('"tool_choice":"required"'), 400, None),
    "schema that is no object": (
        with_field('"text":{"format":{"type":"json_schema","name":"n","schema":[]}}'),
        400,
        "text.format.schema",
    ),
    "schema without a name": (
        with_field('"text":{"format":{"type":"json_schema","schema":{}}}'),
        400,
        "text.format.name",
    ),
    "an empty key": (with_field('"":1'), 400, None),
    "a long key": (with_field(f'"{"k" * 100_000}":1'), 400, None),
    "a long model": (f'{{"model":"{"m" * 100_000}","input":"x"}}'.encode(), 400, "model"),
    "a long parent": (with_field(f'"previous_response_id":"{"p" * 100_000}"'), 400, "previous_response_id"),
    "an empty parent": (with_field('"previous_response_id":""'), 400, "previous_response_id"),
    "an empty model": (b'{"model":"","input":"x"}', 400, "model"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_bad_body_is_refused_and_an_odd_one_answered(name: str) -> None:
    """Ours, bad input: a table of what people and programs send."""
    body, status, param = BODIES[name]

    async def story() -> None:
        async with open_server() as client:
            answer = await send(client, body)
            assert answer.status == status, str(answer.body)[:500]
            if param is not None:
                assert answer.error["param"] == param
            # And the server goes on.
            assert read_text(await client.create(input="Hello.")) == "ok"

    asyncio.run(story())


@pytest.mark.parametrize("name", [name for name, (_, status, _) in BODIES.items() if status == 200])
def test_an_odd_body_is_stored_and_can_be_continued(tmp_path: Path, name: str) -> None:
    """Ours, bad input: never a lost row; on the real store, window made anew from it."""
    body, _, _ = BODIES[name]

    async def story() -> None:
        async with serve(tmp_path, SCRIPT, limits={"window_cache_bytes": 0}) as client:
            answer = await send(client, body)
            assert answer.status == 200
            assert (await client.retrieve(answer.body["id"])).body == answer.body
            # What a client put into an item comes back with it.
            client.echoed_keys = frozenset({"n"})
            assert (await client.list_items(answer.body["id"])).status == 200
            follow = await client.create(input="Go on.", previous_response_id=answer.body["id"])
            assert read_text(follow) == "ok"

    asyncio.run(story())


def test_a_hundred_thousand_items_are_answered_and_one_more_is_refused(tmp_path: Path) -> None:
    """Ours, bad input: 10^5 items."""
    item = '{"role":"user","content":"x"}'

    async def story() -> None:
        async with serve(tmp_path, SCRIPT) as client:
            answer = await send(client, in_input(",".join([item] * 100_000)))
            assert answer.status == 200
            page = await client.list_items(answer.body["id"], order="asc", limit=2)
            assert page.body["has_more"]
            answer = await send(client, in_input(",".join([item] * 100_001)))
            assert answer.status == 400
            assert (answer.error["param"], answer.error["code"]) == ("input", "array_above_max_length")

    asyncio.run(story())


def test_a_huge_text_is_answered_and_a_larger_one_refused(tmp_path: Path) -> None:
    """Responses API 2: input up to 10,485,760 characters."""

    async def story() -> None:
        async with serve(tmp_path, SCRIPT) as client:
            text = "x" * 10_485_760
            for wrap in (f'"{text}"', f'[{{"role":"user","content":"{text}"}}]'):
                answer = await send(client, f'{{"model":"scripted","input":{wrap}}}'.encode())
                assert answer.status == 200, answer.body
            answer = await send(client, f'{{"model":"scripted","input":"{text}y"}}'.encode())
            assert answer.status == 400
            assert (answer.error["param"], answer.error["code"]) == ("input", "string_above_max_length")

    asyncio.run(story())


def test_many_bad_items_are_refused_at_once(tmp_path: Path) -> None:
    """Ours: the cost of a refusal is no more than linear; 10^5 items, the last one wrong."""
    item = '{"role":"user","content":"x"}'

    async def story() -> None:
        async with serve(tmp_path, SCRIPT) as client:
            answer = await send(client, in_input(",".join([item] * 99_999 + ['{"role":"robot"}'])))
            assert answer.status == 400
            assert answer.error["param"] == "input[99999]"
            answer = await send(client, with_field(",".join(f'"k{n}":1' for n in range(100_000))))
            assert answer.error["param"] == "k0"

    asyncio.run(story())


# Generated input


def json_values(leaves: int) -> st.SearchStrategy[Any]:
    """Any JSON, with the words of this API more often than others."""
    words = st.sampled_from(
        [
            *FIELDS,
            *("type", "role", "content", "text", "id", "call_id", "name", "arguments", "output", "summary"),
            *("user", "assistant", "system", "message", "function_call", "function_call_output"),
            *("reasoning", "input_text", "output_text", "function", "auto", "none", "json_schema", "msg_1"),
        ]
    )
    text = words | st.text(max_size=8)
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | text
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=leaves,
    )


ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "x"])
        | json_values(2),
        "role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]) | json_values(2),
        "content": json_values(6),
        "id": st.sampled_from(["msg_1", "fc_1", "rs_1"]) | json_values(1),
        "call_id": st.sampled_from(["call_1", "call_2"]) | json_values(1),
        "name": json_values(1),
        "arguments": json_values(2),
        "output": json_values(4),
        "summary": json_values(4),
        "status": json_values(1),
    },
)
BODY_VALUES = st.fixed_dictionaries(
    {"model": st.just("scripted"), "input": json_values(8) | st.lists(ITEMS, max_size=4)},
    optional={name: json_values(6) for name in FIELDS if name not in ("model", "input")},
)


def try_bodies(bodies: list[bytes]) -> None:
    """Each body, streaming as it may ask; the server must still answer afterwards."""

    async def story() -> None:
        async with open_server() as client:
            for body in bodies:
                await try_body(client, body)
            assert read_text(await client.create(input="Hello.")) == "ok"

    asyncio.run(story())


async def try_body(client: StrictClient, body: bytes) -> str | None:
    """One body, streaming if it says so; the id of the response that was made."""
    async with asyncio.timeout(WAIT_S):
        told = await client.exchange(body)
    if isinstance(told, list):
        return str(told[-1]["response"]["id"])
    assert told.status < 500, told.body
    return str(told.body["id"]) if told.status == 200 else None


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(BODY_VALUES, min_size=1, max_size=5))
def test_generated_bodies_never_fail_the_server(bodies: list[dict[str, Any]]) -> None:
    """Ours, bad input."""
    try_bodies([json.dumps(body).encode() for body in bodies])


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=10), st.data())
def test_mangled_bytes_never_fail_the_server(pieces: list[bytes], data: st.DataObject) -> None:
    """Ours, bad input: a valid body with bytes put in and taken out."""
    whole = (
        b'{"model":"scripted","input":[{"role":"user","content":[{"type":"input_text","text":"x"}]}],'
        b'"tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"metadata":{"a":"b"}}'
    )
    bodies = []
    for piece in pieces:
        start = data.draw(st.integers(0, len(whole)))
        end = data.draw(st.integers(start, min(len(whole), start + 8)))
        bodies.append(whole[:start] + piece + whole[end:])
    try_bodies(bodies)


CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "x"}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
GOOD_ITEMS: list[Any] = [
    {"role": "user", "content": "x"},
    {"role": "user", "content": [{"type": "input_text", "text": "x"}], "id": "msg_1"},
    {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
    {"role": "developer", "content": "x"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "status": None},
    CALL,
    OUTPUT,
]
#: Bodies that are right but for a few fields, which get anything at all. `parent` picks an earlier response.
NEARLY_GOOD = st.fixed_dictionaries(
    {
        "input": st.lists(st.sampled_from(GOOD_ITEMS) | ITEMS, max_size=5) | st.just("x"),
        "parent": st.none() | st.integers(0, 9),
        "stream": st.booleans(),
    },
    optional={
        "tools": st.sampled_from([[], [FUNCTION], [FUNCTION, {**FUNCTION, "name": "g"}]]),
        "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function", "name": "f"}]),
        "text": st.sampled_from([{"format": {"type": "json_object"}}, {"format": {"type": "text"}}]),
        "include": st.sampled_from([[], ["message.output_text.logprobs"]]),
        "store": st.booleans(),
        "max_output_tokens": st.integers(16, 20),
        "reasoning": st.sampled_from([{"effort": "low"}, {"summary": "auto"}]),
        "stream_options": st.sampled_from([{}, {"include_obfuscation": True}]),
        "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        "instructions": st.text(max_size=5),
        "anything": st.tuples(st.sampled_from(sorted(FIELDS)), json_values(4)),
    },
)


def try_chain(bodies: list[dict[str, Any]]) -> None:
    """Bodies one after another; each response that is made must read back and go on."""

    async def story() -> None:
        async with open_server() as client:
            made: list[str] = []
            for body in bodies:
                body = dict(body)
                parent = body.pop("parent")
                if made and parent is not None:
                    body["previous_response_id"] = made[parent % len(made)]
                name, value = body.pop("anything", ("store", body.get("store")))
                sent = {"model": "scripted", **body, name: value}
                response_id = await try_body(client, json.dumps(sent).encode())
                if response_id is None or sent.get("store") is False:
                    continue
                read = await client.retrieve(response_id)
                assert read.status == 200
                assert await client.count_items(response_id) >= 0
                if read.body["status"] in ("completed", "incomplete"):
                    made.append(response_id)

    asyncio.run(story())


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(NEARLY_GOOD, min_size=1, max_size=6))
def test_nearly_good_chains_never_fail_the_server(bodies: list[dict[str, Any]]) -> None:
    """Ours, bad input: faults that come deeper than the first check."""
    try_chain(bodies)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(NEARLY_GOOD, min_size=1, max_size=8))
def test_nearly_good_chains_never_fail_the_server_at_length(bodies: list[dict[str, Any]]) -> None:
    """Ours, bad input; the long run."""
    try_chain(bodies)


@pytest.mark.fuzz
@pytest.mark.timeout(900)
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(BODY_VALUES, min_size=1, max_size=8))
def test_generated_bodies_never_fail_the_server_at_length(bodies: list[dict[str, Any]]) -> None:
    """Ours, bad input; the long run."""
    try_bodies([json.dumps(body).encode() for body in bodies])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["GET", "POST", "DELETE", "PUT", "HEAD"]),
    st.text(max_size=30),
    st.text(max_size=30),
)
def test_generated_paths_never_fail_the_server(method: str, name: str, query: str) -> None:
    """Ours, bad input: ids with odd characters in paths."""
    from urllib.parse import quote

    async def story() -> None:
        async with open_server() as client:
            quoted = quote(name.encode("utf-8", "surrogatepass"), safe="/")
            for path in (
                f"/v1/responses/{quoted}",
                f"/v1/responses/{quoted}/input_items",
                f"/v1/models/{quoted}",
            ):
                rest = quote(query.encode("utf-8", "surrogatepass"), safe="=&")
                answer = await client.send(method, f"{path}?{rest}")
                assert answer.status < 500, answer.body

    asyncio.run(story())
