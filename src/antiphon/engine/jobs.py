"""What is stored of a background response beside its record, in bytes: its request, its events.

Invariant: nothing secret is in it.
"""

import msgspec

from antiphon.engine.settings import Settings, StoredOutcome, build_response, decode_settings
from antiphon.engine.sink import EncodedEvent
from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.responses import Response
from antiphon.sessions import Status
from antiphon.store import Job, Record

_encode = msgspec.json.Encoder().encode
_decode_events = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]]).decode
_decode_raws = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = msgspec.Raw(b"null")


class StoredJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A request that can be run again, and what its record is made of should it not be run."""

    body: msgspec.Raw
    settings: msgspec.Raw
    input: msgspec.Raw
    stream: bool = False
    parent: str | None = None
    conversation: str | None = None
    instructions: str | None = None
    tools: msgspec.Raw = _NULL


_decode_job = msgspec.json.Decoder(StoredJob).decode


def read_job(job: Job) -> StoredJob:
    """What a job is made of; one that this version cannot read has no body, and cannot be run."""
    try:
        return _decode_job(job.request)
    except msgspec.MsgspecError:
        told = _decode_raws(job.snapshot)
        settings = Settings(model=msgspec.json.decode(told["model"]), background=True)
        return StoredJob(body=_NULL, settings=msgspec.Raw(_encode(settings)), input=msgspec.Raw(b"[]"))


def encode_events(events: list[EncodedEvent]) -> bytes:
    """Events as one JSON array: `[["response.created",{...}],...]`."""
    return b"[" + b",".join([b'["%b",%b]' % (name.encode(), data) for name, data in events]) + b"]"


def decode_events(body: bytes) -> list[EncodedEvent]:
    """The events that `encode_events` was given."""
    return [(name, bytes(data)) for name, data in _decode_events(body)]


def show_waiting(job: Job, stored: StoredJob) -> Response:
    """The response of a job that was not run yet."""
    return build_response(
        response_id=job.id,
        created_at=job.created_at,
        settings=decode_settings(bytes(stored.settings)),
        status="queued",
        instructions=stored.instructions,
        tools=bytes(stored.tools) if bytes(stored.tools) != b"null" else None,
        parent=stored.parent,
        outcome=StoredOutcome(conversation=stored.conversation),
    )


def make_ended_record(
    job: Job,
    stored: StoredJob,
    ended_at: int,
    *,
    status: Status = "failed",
    error: AntiphonError | None = None,
) -> Record:
    """The record of a response that never came to its end: it failed, or was cancelled while it waited."""
    told = error.to_response_error() if error is not None else None
    return Record(
        id=job.id,
        parent=stored.parent,
        tenant=job.tenant,
        status=status,
        created_at=job.created_at,
        completed_at=ended_at,
        input=bytes(stored.input),
        settings=bytes(stored.settings),
        instructions=stored.instructions.encode() if stored.instructions is not None else None,
        tools=bytes(stored.tools) if bytes(stored.tools) != b"null" else None,
        outcome=_encode(StoredOutcome(error=told, conversation=stored.conversation)),
    )
