"""Events are numbered, checked and encoded in one place."""

import json

import pytest

from antiphon.engine.sink import EventSink
from antiphon.protocol import events as api
from antiphon.protocol.errors import BackendError, LifecycleError
from antiphon.protocol.events import DeltaEncoder

RESPONSE = b'{"id":"resp_1"}'
ITEM = b'{"id":"msg_1","type":"message"}'


def test_numbers_go_up_from_zero_and_events_are_taken_once() -> None:
    """Responses API 4.1: sequence_number starts at 0, +1 per event."""
    sink = EventSink(emit=True)
    sink.send_response(api.ResponseCreated, RESPONSE)
    first = sink.take()
    sink.send_response(api.ResponseInProgress, RESPONSE)
    sink.send_item(api.OutputItemAdded, 0, "message", ITEM)
    second = sink.take()
    assert [json.loads(data)["sequence_number"] for _, data in first + second] == [0, 1, 2]
    assert [name for name, _ in second] == ["response.in_progress", "response.output_item.added"]
    assert sink.take() == []


def test_an_event_out_of_order_is_our_own_fault() -> None:
    """Idea 1: the engine asserts what it sends by the lifecycle table."""
    sink = EventSink(emit=True)
    with pytest.raises(LifecycleError):
        sink.send_item(api.OutputItemAdded, 0, "message", ITEM)
    assert sink.take() == []


def test_nothing_is_made_when_nobody_streams() -> None:
    """Ours: a collected response pays for no events."""
    sink = EventSink(emit=False)
    sink.send_response(api.ResponseCreated, RESPONSE)
    sink.send_error(BackendError())
    assert sink.take() == []


@pytest.mark.parametrize("obfuscate", [True, False])
def test_deltas_are_padded_only_when_asked(obfuscate: bool) -> None:
    """Decided."""
    sink = EventSink(emit=True, obfuscate=obfuscate)
    sink.send_response(api.ResponseCreated, RESPONSE)
    sink.send_response(api.ResponseInProgress, RESPONSE)
    sink.send_item(api.OutputItemAdded, 0, "function_call", b'{"id":"fc_1","type":"function_call"}')
    encoder = DeltaEncoder("response.function_call_arguments.delta", "fc_1", 0)
    for _ in range(50):
        sink.send_delta("response.function_call_arguments.delta", encoder, 0, "{")
    deltas = [json.loads(data) for name, data in sink.take() if name.endswith(".delta")]
    assert all(("obfuscation" in delta) is obfuscate for delta in deltas)
    if obfuscate:
        assert len({len(delta["obfuscation"]) for delta in deltas}) > 1, "padding of one length hides nothing"


def test_a_failure_is_an_error_event_and_then_the_response() -> None:
    """Responses API 4.5: the nested error event."""
    sink = EventSink(emit=True)
    sink.send_response(api.ResponseCreated, RESPONSE)
    sink.send_error(BackendError("Boom.", code="x"))
    sink.send_response(api.ResponseFailed, RESPONSE)
    _, error, _ = [json.loads(data) for _, data in sink.take()]
    assert error == {
        "type": "error",
        "sequence_number": 1,
        "error": {"type": "server_error", "code": "x", "message": "Boom.", "param": None},
    }
