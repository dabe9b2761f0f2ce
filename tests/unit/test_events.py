"""Events: their fields are the API's, and JSON brings them back unchanged."""

import inspect
import json
from typing import Any, get_args, get_type_hints

import msgspec
import openai.types.responses as sdk
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from antiphon.protocol.errors import ErrorObject
from antiphon.protocol.events import (
    EVENT_TYPES,
    UNTOLD,
    DeltaEncoder,
    ErrorEvent,
    Event,
    EventDecodeError,
    FunctionCallArgumentsDelta,
    OutputTextDelta,
    ResponseCompleted,
    Steer,
    UnknownEvent,
    decode_event,
    encode_event,
)

#: A value for every type of field.
SAMPLES: dict[Any, Any] = {
    int: 3,
    str: "é\n",
    Raw: Raw(b'{"a":[1]}'),
    ErrorObject: ErrorObject("m", "t", None, "c"),
}

TEXTS = st.text(st.characters(codec="utf-8"))

#: Delta events that a `DeltaEncoder` writes, and the indexes that they need.
DELTA_TYPES = {
    "response.output_text.delta": {"content_index": 1},
    "response.refusal.delta": {"content_index": 0},
    "response.reasoning_text.delta": {"content_index": 0},
    "response.reasoning_summary_text.delta": {"summary_index": 2},
    "response.function_call_arguments.delta": {},
    "response.custom_tool_call_input.delta": {},
    "response.mcp_call_arguments.delta": {},
    "response.code_interpreter_call_code.delta": {},
}


def build(struct: type[Event], *, with_optional: bool) -> Event:
    hints = get_type_hints(struct)
    optional = {field.name for field in msgspec.structs.fields(struct) if not field.required}
    fields = {}
    for name in struct.__struct_fields__:
        if name in optional and not with_optional:
            continue
        fields[name] = next(
            SAMPLES[kind] for kind in [hints[name], *get_args(hints[name])] if kind in SAMPLES
        )
    return struct(**fields)


def sdk_models() -> dict[str, type[pydantic.BaseModel]]:
    models = {}
    for name, model in inspect.getmembers(sdk, inspect.isclass):
        if name.endswith("Event") and issubclass(model, pydantic.BaseModel) and "type" in model.model_fields:
            models[get_args(model.model_fields["type"].annotation)[0]] = model
    return models


def test_the_events_are_those_of_the_sdk_field_by_field() -> None:
    """Responses API, events (openai 3.57): same types, same names, the same fields required."""
    ours, theirs = {}, {}
    for event_type, struct in EVENT_TYPES.items():
        ours[event_type] = {field.encode_name: field.required for field in msgspec.structs.fields(struct)}
        ours[event_type].pop("obfuscation", None)
    for event_type, model in sdk_models().items():
        fields = {name: field.is_required() for name, field in model.model_fields.items() if name != "type"}
        fields.pop("obfuscation", None)
        theirs[event_type] = fields
    # Always sent, but not everywhere: we read its absence as an empty list.
    theirs["response.output_text.delta"]["logprobs"] = False
    theirs["response.output_text.done"]["logprobs"] = False
    # The one departure: errors are nested.
    assert theirs.pop("error") == {"sequence_number": True, "code": False, "message": True, "param": False}
    assert ours.pop("error") == {"sequence_number": True, "error": True}
    # Sent by a client, without a number.
    assert ours["response.steer"].pop("sequence_number") is False
    assert ours == theirs


@pytest.mark.parametrize("with_optional", [False, True])
@pytest.mark.parametrize("event_type", sorted(EVENT_TYPES))
def test_every_event_comes_back_as_it_was(event_type: str, with_optional: bool) -> None:
    """Ours: encode and decode are inverse, and the type stands in the JSON."""
    event = build(EVENT_TYPES[event_type], with_optional=with_optional)
    data = encode_event(event)
    decoded = decode_event(data)
    assert json.loads(data)["type"] == event_type == event.type == decoded.type
    assert type(decoded) is type(event)
    assert encode_event(decoded) == data


def test_payloads_stay_the_bytes_that_they_are() -> None:
    """Ours: nothing is encoded twice."""
    raw = b'{ "id" : "resp_1", "x": 1.0 }'
    data = encode_event(ResponseCompleted(7, Raw(raw)))
    assert data == b'{"type":"response.completed","sequence_number":7,"response":' + raw + b"}"
    decoded = decode_event(data)
    assert isinstance(decoded, ResponseCompleted)
    assert bytes(decoded.response) == raw


def test_unknown_keys_are_ignored_and_unknown_types_kept() -> None:
    """Ours: servers are newer than clients."""
    data = b'{"type":"response.audio.done","sequence_number":1,"stream_id":"a"}'
    assert decode_event(data).sequence_number == 1
    unknown = decode_event(b'{"type":"response.new","sequence_number":5,"x":1}')
    assert unknown == UnknownEvent(
        type="response.new", raw=b'{"type":"response.new","sequence_number":5,"x":1}', sequence_number=5
    )
    assert encode_event(unknown) == b'{"type":"response.new","sequence_number":5,"x":1}'


@pytest.mark.parametrize("untold", ["", ',"item_id":null,"output_index":null'])
def test_numbers_and_ids_that_are_left_out_are_read_as_untold(untold: str) -> None:
    """llama.cpp sends no sequence numbers and no indexes; its text must still be read."""
    decoded = decode_event(f'{{"type":"response.output_text.delta","delta":"hi"{untold}}}'.encode())
    assert isinstance(decoded, OutputTextDelta)
    assert (decoded.sequence_number, decoded.output_index, decoded.content_index) == (UNTOLD,) * 3
    assert (decoded.item_id, decoded.delta, bytes(decoded.logprobs)) == ("", "hi", b"[]")


def test_an_event_whose_fields_do_not_fit_is_kept_with_the_reason() -> None:
    """Ours: one odd event must not end a stream."""
    decoded = decode_event(b'{"type":"response.output_text.delta","sequence_number":2,"delta":4}')
    assert isinstance(decoded, UnknownEvent)
    assert (decoded.type, decoded.sequence_number) == ("response.output_text.delta", 2)
    assert decoded.problem


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"3", b'"x"', b"{}", b'{"type":3}', b'{"type":"\xff"}', b"[DONE]"]
)
def test_what_is_no_event_is_refused(data: bytes) -> None:
    """Ours."""
    with pytest.raises(EventDecodeError):
        decode_event(data)


@pytest.mark.parametrize(
    ("data", "number", "expected"),
    [
        (
            b'{"type":"error","sequence_number":3,"error":{"type":"t","code":"c","message":"m","param":"p"}}',
            3,
            ErrorObject("m", "t", "p", "c"),
        ),
        (
            b'{"type":"error","sequence_number":3,"code":"c","message":"m","param":null}',
            3,
            ErrorObject("m", "server_error", None, "c"),
        ),
        (b'{"type":"error","message":"m"}', UNTOLD, ErrorObject("m", "server_error", None, None)),
        (b'{"type":"error","error":{"code":500}}', UNTOLD, ErrorObject("", "server_error", None, "500")),
        (b'{"error":{"message":"m","type":"t"}}', UNTOLD, ErrorObject("m", "t", None, None)),
        (b'{"error":"out of memory"}', UNTOLD, ErrorObject("out of memory", "server_error", None, None)),
    ],
)
def test_an_error_is_read_in_every_shape(data: bytes, number: int, expected: ErrorObject) -> None:
    """Responses API, ending badly: nested on the wire, flat in the SDK's class, without type elsewhere."""
    assert decode_event(data) == ErrorEvent(number, expected)


def test_an_error_is_written_nested() -> None:
    """Responses API, ending badly: `error` at the top makes the SDKs raise."""
    data = encode_event(ErrorEvent(2, ErrorObject("m", "server_error", None, "c")))
    assert json.loads(data) == {
        "type": "error",
        "sequence_number": 2,
        "error": {"type": "server_error", "code": "c", "message": "m", "param": None},
    }


def test_a_steer_has_no_sequence_number() -> None:
    """Responses API, WebSocket mode: it comes from the client."""
    data = encode_event(Steer(previous_response_id="resp_1", input=Raw(b'"stop"')))
    assert json.loads(data) == {"type": "response.steer", "previous_response_id": "resp_1", "input": "stop"}


@given(
    event_type=st.sampled_from(sorted(DELTA_TYPES)),
    item_id=TEXTS,
    output_index=st.integers(0, 10**6),
    number=st.integers(0, 2**53),
    delta=TEXTS,
    obfuscation=st.none() | TEXTS,
    logprobs=st.none() | st.just(b'[{"token":"a","logprob":-0.5}]'),
)
def test_the_fast_way_writes_the_same_json(
    event_type: str,
    item_id: str,
    output_index: int,
    number: int,
    delta: str,
    obfuscation: str | None,
    logprobs: bytes | None,
) -> None:
    """Ours: the encoder of the hot path is only an optimisation."""
    indexes = DELTA_TYPES[event_type]
    fields: dict[str, Any] = {"item_id": item_id, "output_index": output_index, "delta": delta, **indexes}
    fields["obfuscation"] = UNSET if obfuscation is None else obfuscation
    if event_type == "response.output_text.delta":
        fields["logprobs"] = Raw(logprobs or b"[]")
    else:
        logprobs = None
    slow = encode_event(EVENT_TYPES[event_type](sequence_number=number, **fields))
    encoder = DeltaEncoder(event_type, item_id, output_index, **indexes)
    assert json.loads(encoder.encode(number, delta, obfuscation, logprobs)) == json.loads(slow)


def test_the_fast_way_refuses_what_is_no_delta_of_that_kind() -> None:
    """Ours: a missing index would be an invalid event."""
    with pytest.raises(ValueError, match="content_index"):
        DeltaEncoder("response.output_text.delta", "msg_1", 0)
    with pytest.raises(ValueError, match="summary_index"):
        DeltaEncoder("response.function_call_arguments.delta", "fc_1", 0, summary_index=0)
    with pytest.raises(ValueError, match="delta"):
        DeltaEncoder("response.mcp_call.completed", "mcp_1", 0)
    encoder = DeltaEncoder("response.function_call_arguments.delta", "fc_1", 0)
    with pytest.raises(ValueError, match="log probabilities"):
        encoder.encode(0, "{", logprobs=b"[]")
    assert decode_event(encoder.encode(4, "{")) == FunctionCallArgumentsDelta(4, "fc_1", 0, "{")
