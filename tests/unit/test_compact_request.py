"""`POST /v1/responses/compact` as data: what it takes, and in which words it refuses the rest."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.protocol.compact_request import (
    COMPACT_FIELDS,
    decode_compact_request,
    describe_compact_request,
)
from antiphon.protocol.errors import RequestError
from antiphon.protocol.requests import FIELDS, CreateRequest
from antiphon.protocol.responses import CompactedResponse, Usage

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
IMAGE = {"context_compression": "auto"}


def decode(**fields: Any) -> CreateRequest:
    return decode_compact_request(msgspec.json.encode({"model": "m", "input": "hi", **fields}))


def refuse(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode_compact_request(msgspec.json.encode(fields))
    return caught.value


def test_every_field_of_the_api_is_read() -> None:
    """Responses-API section 'POST /responses/compact'."""
    request = decode(
        previous_response_id="resp_1",
        instructions="Be brief.",
        prompt_cache_key="k" * 64,
        prompt_cache_retention="24h",
        prompt_cache_options={"mode": "explicit", "ttl": "12h"},
        service_tier="flex",
        image=IMAGE,
    )
    assert (request.model, request.previous_response_id, request.instructions) == ("m", "resp_1", "Be brief.")
    assert (request.prompt_cache_key, request.prompt_cache_retention) == ("k" * 64, "24h")
    assert request.prompt_cache_options is not None
    assert (request.prompt_cache_options.mode, request.service_tier) == ("explicit", "flex")
    # Refused where it is refused on every route, by what carries requests out.
    assert request.image is not None


def test_what_codex_sends_along_is_read() -> None:
    """Codex 0.142 with its older compaction: the prompt that is summarised has the tools of every other."""
    request = decode(
        instructions="You are Codex.",
        tools=[TOOL],
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
        prompt_cache_key="conversation",
        text={"verbosity": "low"},
        antiphon={"method": "extract", "marks": {"call_1": "keep"}},
    )
    assert len(request.tools) == 1
    assert request.parallel_tool_calls is False
    assert request.reasoning is not None
    assert (request.reasoning.effort, request.text.verbosity) == ("low", "low")
    assert request.antiphon == {"method": "extract", "marks": {"call_1": "keep"}}


def test_nothing_of_it_is_stored_streamed_or_queued() -> None:
    """Responses-API section 'POST /responses/compact': stateless."""
    request = decode()
    assert (request.store, request.store_given, request.stream, request.background) == (False, False) * 2
    assert (request.conversation, request.generate) == (None, True)


@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": ""}])
def test_a_model_must_be_named(fields: dict[str, Any]) -> None:
    """Open Responses 'compact-missing-model'; measured live: null too."""
    error = refuse(input="hi", **fields)
    assert (error.status, error.code, error.param) == (400, "missing_required_parameter", "model")
    assert error.message == "Missing required parameter: 'model'."


@pytest.mark.parametrize("fields", [{}, {"input": None}, {"input": None, "previous_response_id": None}])
def test_there_must_be_something_to_compact(fields: dict[str, Any]) -> None:
    """Responses-API section 'POST /responses/compact': input or previous_response_id."""
    error = refuse(model="m", **fields)
    assert (error.code, error.param) == ("missing_required_parameter", "input")


@pytest.mark.parametrize("empty", ["", []])
def test_an_empty_input_is_enough_only_behind_a_response(empty: Any) -> None:
    """Responses-API section 'Request-shape errors', with the two fields that this route has."""
    error = refuse(model="m", input=empty)
    assert (error.code, error.param) == ("missing_required_parameter", None)
    assert error.message == 'One of "input" or "previous_response_id" must be provided.'
    assert decode(input=empty, previous_response_id="resp_1").input == []


def test_a_null_input_is_no_input() -> None:
    """The openai package types `input` of this route as nullable."""
    assert decode(input=None, previous_response_id="resp_1").input == []


@pytest.mark.parametrize(
    "name",
    [
        "include",
        "store",
        "stream",
        "conversation",
        "tool_choice",
        "max_output_tokens",
        "truncation",
        "metadata",
        "context_management",
        "background",
        "prompt",
    ],
)
def test_other_fields_are_unknown_even_as_null(name: str) -> None:
    """Measured live: rejected as unknown parameters."""
    error = refuse(model="m", input="hi", **{name: None})
    assert (error.code, error.param) == ("unknown_parameter", name)


@pytest.mark.parametrize("position", [0, 1])
def test_a_trigger_is_named_with_what_to_do(position: int) -> None:
    """Ours: this route compacts without being asked to, and a trigger belongs to the other one."""
    items: list[Any] = [{"role": "user", "content": "hi"}, {"role": "user", "content": "ho"}]
    items.insert(position, {"type": "compaction_trigger"})
    error = refuse(model="m", input=items)
    assert (error.status, error.code, error.param) == (400, "invalid_value", f"input[{position}]")
    assert "compaction_trigger" in error.message
    assert "leave the item out" in error.message
    assert "POST /v1/responses" in error.message


def test_other_checks_are_those_of_a_create_request() -> None:
    """Responses-API section 'Errors'."""
    error = refuse(model="m", input="hi", prompt_cache_key="k" * 65)
    assert (error.code, error.param) == ("string_above_max_length", "prompt_cache_key")
    assert refuse(model="m", input=[{"role": "nobody", "content": "x"}]).code == "invalid_value"
    assert refuse(model="m", input={"a": 1}).code == "invalid_type"
    assert refuse(model=7, input="hi").code == "invalid_type"
    assert refuse(model="m", messages=[]).code == "unsupported_parameter"
    assert refuse(model="m", input="hi", max_tokens=5).code == "unknown_parameter"
    error = refuse(model="m", input="hi", reasoning={"effort": "low", "x": 1})
    assert (error.code, error.param) == ("unknown_parameter", "reasoning.x")
    error = refuse(model="m", input="hi", instruction="x")
    assert error.message == "Unknown parameter: 'instruction'. Did you mean 'instructions'?"


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_bytes_are_a_request_or_refused(body: bytes) -> None:
    """Ours: nothing but `RequestError` comes of bytes."""
    for each in (body, b'{"model":"m","input":' + body + b"}"):
        try:
            assert isinstance(decode_compact_request(each), CreateRequest)
        except RequestError as error:
            assert error.status == 400  # noqa: PT017 - either outcome is right


def test_the_schema_has_every_field() -> None:
    """Ours: the description and the check are one list."""
    body, components = describe_compact_request("#/components/schemas/{name}")
    assert list(body["properties"]) == list(COMPACT_FIELDS)
    assert set(COMPACT_FIELDS) <= set(FIELDS)
    assert (body["required"], body["additionalProperties"]) == (["model"], False)
    assert components


def test_the_answer_has_the_keys_of_the_api() -> None:
    """Responses-API section 'POST /responses/compact': no status, no model; usage is always there."""
    answer = CompactedResponse(
        id="resp_1", created_at=1, usage=Usage(input_tokens=0, output_tokens=0, total_tokens=0)
    )
    told = msgspec.to_builtins(answer)
    assert list(told) == ["id", "object", "created_at", "output", "usage"]
    assert (told["object"], told["output"]) == ("response.compaction", [])
    answer.antiphon = {"compaction": {"passes": []}}
    assert msgspec.to_builtins(answer)["antiphon"] == {"compaction": {"passes": []}}
