"""Answers on the ASGI wire: JSON, errors, and the headers that every answer carries."""

import os
from typing import Any

from antiphon import __version__
from antiphon.protocol.errors import AntiphonError

_VERSION = (b"antiphon-version", __version__.encode())
_JSON = (b"content-type", b"application/json")
#: An internal error says no more than this; the log has the rest under the request's id.
INTERNAL_ERROR = (
    "The server had an error while processing your request. The log names it under the request id."
)
#: Every answer carries these.
ANSWER_HEADERS = (_VERSION,)
_SSE = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def make_request_id() -> bytes:
    """What `x-request-id` carries: SDKs show it, the log names it."""
    return b"req_" + os.urandom(16).hex().encode()


async def send_json(send: Any, request_id: bytes, body: bytes, *, status: int = 200, extra: Any = ()) -> None:
    """One whole JSON answer."""
    headers = [
        _JSON,
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id),
        _VERSION,
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Any, request_id: bytes, error: AntiphonError) -> None:
    """An error in the API's shape."""
    extra = [(name.lower().encode(), value.encode("latin-1")) for name, value in error.headers.items()]
    await send_json(send, request_id, error.to_body(), status=error.status, extra=extra)


async def start_stream(send: Any, request_id: bytes) -> None:
    """The head of a server-sent event stream."""
    headers = [*_SSE, (b"x-request-id", request_id), _VERSION]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def start_answer(send: Any, request_id: bytes, status: int, headers: Any) -> None:
    """The head of an answer whose body comes in pieces."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*headers, (b"x-request-id", request_id), _VERSION],
        }
    )
