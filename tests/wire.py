"""The recorded answers of model servers in `tests/fixtures/wire`: where they are and how they are read.

It knows files and framing, not what the answers mean.
"""

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from antiphon.backends import BackendEvent, CallDelta, ReasoningDelta, RefusalDelta, TextDelta
from antiphon.backends.answer import AnswerReader
from antiphon.backends.chat_completions.decode import ChatDecoder
from antiphon.backends.profiles import PROFILES

FOLDER = Path(__file__).parent / "fixtures" / "wire"
MANIFEST: dict[str, dict[str, str]] = tomllib.loads((FOLDER / "fixtures.toml").read_text("utf-8"))

#: Files that hold an answer that was begun, streamed or not.
ANSWERS = tuple(
    name
    for name in MANIFEST
    if not name.endswith(".json") and not name.endswith(("overflow.http", "model.http"))
)


class Wire(NamedTuple):
    """One answer as the server sent it: status, headers with lower-case names, body without framing."""

    status: int
    headers: dict[str, str]
    body: bytes


def read_wire(name: str) -> Wire:
    """An answer by its name in the manifest."""
    raw = (FOLDER / name).read_bytes()
    if not name.endswith(".http"):
        return Wire(200, {"content-type": "text/event-stream"}, raw)
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _join_chunks(body)
    return Wire(int(status.split()[1]), headers, body)


def read_http(name: str) -> bytes:
    """The whole answer as bytes on a connection, in chunks of its events where it was kept without a head."""
    if name.endswith(".http"):
        return (FOLDER / name).read_bytes()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    pieces = (FOLDER / name).read_bytes().splitlines(keepends=True)
    return head + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def play(
    name: str,
    pieces: Iterable[bytes] | None = None,
    *,
    window_tokens: int | None = None,
    top_logprobs: int = 20,
) -> list[BackendEvent]:
    """The events of an answer, its body given whole or in the given pieces."""
    wire = read_wire(name)
    profile = PROFILES[MANIFEST[name]["profile"]]
    decoder = ChatDecoder(
        think_tags=profile.think_tags, window_tokens=window_tokens, top_logprobs=top_logprobs
    )
    reader = AnswerReader(decoder, streamed="json" not in wire.headers["content-type"])
    events: list[BackendEvent] = []
    for piece in [wire.body] if pieces is None else pieces:
        events += reader.feed(piece)
    return events + reader.close()


def merge(events: Sequence[BackendEvent]) -> list[Any]:
    """Events with neighbouring pieces of one text or one call joined."""
    merged: list[Any] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, CallDelta) and isinstance(last, CallDelta) and last.index == event.index:
            merged[-1] = CallDelta(
                event.index, event.id or last.id, event.name or last.name, last.arguments + event.arguments
            )
        elif isinstance(event, TextDelta) and isinstance(last, TextDelta):
            logprobs = [*(last.logprobs or ()), *(event.logprobs or ())]
            merged[-1] = TextDelta(last.text + event.text, logprobs or None)
        elif isinstance(event, ReasoningDelta | RefusalDelta) and type(last) is type(event):
            merged[-1] = type(event)(last.text + event.text)
        else:
            merged.append(msgspec.structs.replace(event))
    return merged


def _join_chunks(body: bytes) -> bytes:
    pieces: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        pieces.append(body[:length])
        body = body[length + 2 :]
    return b"".join(pieces)
