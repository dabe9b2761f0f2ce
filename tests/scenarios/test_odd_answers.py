"""Answers that break the rules of a request's input: what a client was given it can go on from."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.fake_upstream import END, MODEL, FakeUpstream, Reply, make_chunk, make_head, make_stream
from tests.scenarios.serving import serve
from tests.scenarios.test_tools import WEATHER, give, list_calls, make

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


def call(name: str, call_id: str = "call_1", arguments: str = "{}") -> Reply:
    """An upstream answer of one call."""
    function = {"name": name, "arguments": arguments}
    delta = {"tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": function}]}
    return Reply([make_head(), make_chunk(delta), make_chunk({}, "tool_calls", usage=USAGE), END])


def tell(*texts: str) -> Reply:
    """An upstream answer of text."""
    return Reply(make_stream(*texts, usage=USAGE))


async def go_on(folder: Path, first: Reply, *, stream: bool, cache_bytes: int) -> tuple[Any, Any, Any]:
    """A round that is answered oddly, its calls answered, and one more round; with the last request's messages."""
    replies = [first, tell("Well."), tell("Well.")]
    async with FakeUpstream(lambda _: replies.pop(0)) as upstream:
        sections: dict[str, Any] = {
            "endpoints": {"fake": {"url": upstream.url}},
            "limits": {"window_cache_bytes": cache_bytes},
        }
        async with serve(folder, None, **sections) as client:
            shared: dict[str, Any] = {"model": MODEL, "tools": [LOOK, WEATHER]}
            odd = await make(client, stream, input="Go.", **shared)
            outputs = [give(each, "done") for each in list_calls(odd)] or "And?"
            second = await make(client, stream, input=outputs, previous_response_id=odd["id"], **shared)
            third = await make(client, stream, input="And now?", previous_response_id=second["id"], **shared)
            read = (await client.retrieve(odd["id"])).body
            assert read["output"] == odd["output"]
            assert third["status"] == "completed"
            # What was given can be sent back, as a stateless client does.
            return odd, second, upstream.asked[-1].json["messages"]


@pytest.mark.parametrize("cache_bytes", [1 << 28, 0])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "fitted"),
    [
        ("functions.look", "look"),
        ("default_api:look", "look"),
        ("look", "look"),
        ("find it", "find_it"),
        ("f/g", "f_g"),
        ("fé", "f_"),
        ("x" * 300, "x" * 128),
    ],
)
def test_a_called_name_is_fitted_and_the_conversation_goes_on(
    tmp_path: Path, name: str, fitted: str, stream: bool, cache_bytes: int
) -> None:
    """Ours: small models put a namespace before a name, or call what is no name at all."""
    odd, _, messages = asyncio.run(go_on(tmp_path, call(name), stream=stream, cache_bytes=cache_bytes))
    (made,) = list_calls(odd)
    assert made["name"] == fitted
    warned = [warning["code"] for warning in odd.get("antiphon", {}).get("warnings", [])]
    assert warned == ([] if name == fitted else ["call_renamed"])
    # Chat servers take 64 characters; what is longer is told by its beginning and a hash.
    told = messages[1]["tool_calls"][0]["function"]["name"]
    assert told == fitted if len(fitted) <= 64 else (len(told) == 64 and told.startswith(fitted[:50]))
    assert messages[2] == {"role": "tool", "tool_call_id": made["call_id"], "content": "done"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [64, 65, 5_000])
def test_a_call_id_that_a_client_could_not_send_back_is_replaced(
    tmp_path: Path, size: int, stream: bool
) -> None:
    """Ours: hosted servers make long ids; the API allows 64 characters."""
    odd, _, _ = asyncio.run(go_on(tmp_path, call("look", "c" * size), stream=stream, cache_bytes=0))
    (made,) = list_calls(odd)
    assert (made["call_id"] == "c" * size) == (size == 64)
    assert len(made["call_id"]) <= 64


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["text", "arguments", "reasoning"])
def test_an_answer_longer_than_any_input_may_be_is_kept_and_continued(
    tmp_path: Path, kind: str, stream: bool
) -> None:
    """Ours: limits on input say nothing of what a model may write."""
    big = "x" * 11_000_000
    if kind == "text":
        first = tell(big)
    elif kind == "arguments":
        first = call("look", arguments='{"x":"' + big + '"}')
    else:
        said = make_chunk({"content": "ok"}, "stop", usage=USAGE)
        first = Reply([make_head(), make_chunk({"reasoning_content": big}), said, END])
    odd, _, messages = asyncio.run(go_on(tmp_path, first, stream=stream, cache_bytes=0))
    assert odd["status"] == "completed"
    assert big in str(messages[1])
