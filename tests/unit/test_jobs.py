"""What is stored of a background response: readable again, without secrets."""

import msgspec
import pytest

from antiphon.engine.credentials import cut_secrets, refuse_secrets
from antiphon.engine.following import Follower
from antiphon.engine.jobs import (
    StoredJob,
    decode_events,
    encode_events,
    make_ended_record,
    read_job,
    show_waiting,
)
from antiphon.engine.settings import Settings, decode_outcome, decode_settings
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import decode_stored_item
from antiphon.protocol.requests import decode_create_request
from antiphon.store import Job

_SETTINGS = msgspec.Raw(msgspec.json.encode(Settings(model="scripted", background=True, stream=True)))


def make_job(request: bytes) -> Job:
    """A job with this request."""
    return Job(id="resp_1", tenant="a", created_at=1, request=request, snapshot=b'{"model":"scripted"}')


@pytest.mark.parametrize("tools", [b"null", b'[{"type":"function","name":"f"}]'])
def test_a_job_is_read_as_it_was_stored(tools: bytes) -> None:
    """Ours: with tools and without."""
    stored = StoredJob(
        body=msgspec.Raw(b'{"input":"x"}'),
        settings=_SETTINGS,
        input=msgspec.Raw(b"[]"),
        parent="resp_0",
        instructions="Be brief.",
        tools=msgspec.Raw(tools),
    )
    job = make_job(msgspec.json.encode(stored))
    read = read_job(job)
    assert msgspec.json.encode(read) == job.request
    record = make_ended_record(job, read, 5, status="cancelled")
    assert record.tools == (None if tools == b"null" else tools)
    assert (record.parent, record.completed_at, record.status) == ("resp_0", 5, "cancelled")
    shown = show_waiting(job, read)
    assert (shown.status, shown.instructions, shown.previous_response_id) == ("queued", "Be brief.", "resp_0")


def test_a_job_that_cannot_be_read_can_still_be_ended() -> None:
    """Ours: one of another version must not stay queued, nor keep the server from starting."""
    record = make_ended_record(
        make_job(b'{"unknown":1}'), read_job(make_job(b'{"unknown":1}')), 5, error=RequestError("No.")
    )
    assert decode_settings(record.settings).model == "scripted"
    assert decode_outcome(record.outcome).error == {"code": "server_error", "message": "No."}


def test_credentials_of_mcp_servers_are_cut_and_nothing_else() -> None:
    """As decided: MCP headers and authorization are cut before anything is stored."""
    body = (
        b'{"model":"m","input":"x","temperature":0.5,"tools":[{"type":"function","name":"f","parameters":{}},'
        b'{"type":"mcp","server_label":"w","server_url":"http://h/","authorization":"sesame",'
        b'"headers":{"k":"sesame"}}]}'
    )
    kept, needs_secrets = cut_secrets(body, decode_create_request(body))
    assert needs_secrets
    assert b"sesame" not in kept
    expected = msgspec.json.decode(body)
    for key in ("authorization", "headers"):
        del expected["tools"][1][key]
    again = msgspec.json.decode(kept)
    assert {**again, "tools": None} == {**expected, "tools": None}
    assert [tool["type"] for tool in again["tools"]] == ["function", "mcp"]
    plain = b'{"model":"m","input":"x"}'
    assert cut_secrets(plain, decode_create_request(plain)) == (plain, False)


def test_an_item_that_brings_credentials_is_named() -> None:
    """Ours: items are kept as they are, so nothing can be cut."""
    item = decode_stored_item(
        b'{"type":"additional_tools","tools":[{"type":"mcp","server_label":"w","headers":{"k":"v"}}]}'
    )
    with pytest.raises(RequestError, match="never stored") as caught:
        refuse_secrets([item], "input")
    assert caught.value.param == "input[0].tools[0].headers"


def test_padding_is_put_on_and_taken_off_deltas_alone() -> None:
    """Ours: what only looks like padding inside a text stays."""
    text = msgspec.json.encode(',"obfuscation":"x"')
    events = [
        ("response.output_text.delta", b'{"delta":%b,"obfuscation":"abc-_1"}' % text),
        ("response.output_text.done", b'{"text":%b}' % text),
    ]
    assert decode_events(encode_events(events)) == events

    async def unused(_: object) -> None:
        raise AssertionError

    def read(obfuscate: bool | None) -> list[tuple[str, bytes]]:
        follower = Follower(None, events, -1, obfuscate=obfuscate, stop=unused)
        batches = follower.events()
        try:
            batches.__anext__().send(None)
        except StopIteration as done:
            taken: list[tuple[str, bytes]] = done.value
            return taken
        raise AssertionError

    assert read(None) == read(True) == events
    assert read(False) == [(events[0][0], b'{"delta":%b}' % text), events[1]]
