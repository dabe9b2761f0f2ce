"""What a client says over a WebSocket: frames, read and checked as the body of a request is.

It knows no connection and keeps nothing. Invariant: for any text, reading it gives a frame or raises
`RequestError`, and never decodes more than its top level before it is known what it is.
"""

import re
from typing import Any, Final

import msgspec

from antiphon.protocol import checks
from antiphon.protocol.errors import AntiphonError, RequestError
from antiphon.protocol.requests import CreateRequest, read_create_request

CREATE: Final = "response.create"
STEER: Final = "response.steer"
#: What a client may send.
CLIENT_FRAMES: Final = (CREATE, STEER)
#: A longer frame is not repeated in the answer to it.
ECHOED_BYTES: Final = 1 << 16
_LANE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NULL: Final = b"null"
#: Of a request over HTTP alone: on a connection every answer is a stream of events.
_IGNORED: Final = ("stream", "stream_options")
_encode = msgspec.json.Encoder().encode


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame: its type, its lane (None: the default one), and its other values, not looked into."""

    type: str
    lane: str | None
    values: dict[str, msgspec.Raw]


class FrameError(Exception):
    """A frame that cannot be read; `lane`: where it belongs, as far as that is known."""

    def __init__(self, error: RequestError, lane: str | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.lane = lane


def read_frame(data: bytes) -> ClientFrame:
    """The type and the lane of a frame; raises `FrameError`."""
    lane: str | None = None
    try:
        values = checks.decode_body(data)
        lane = _read_lane(values.pop("stream_id", None))
        return ClientFrame(type=_read_type(values.pop("type", None)), lane=lane, values=values)
    except RequestError as error:
        raise FrameError(error, lane) from error


def read_socket_request(frame: ClientFrame) -> CreateRequest:
    """The request in a frame of type `response.create`; raises `RequestError` as a body does."""
    values = {name: raw for name, raw in frame.values.items() if name not in _IGNORED}
    generate = _read_flag("generate", values.pop("generate", None), default=True)
    if not generate:
        # There need be nothing to answer.
        values.setdefault("input", msgspec.Raw(b"[]"))
    request = read_create_request(values)
    if request.background:
        raise RequestError(
            "Unsupported parameter: 'background' is not supported over WebSocket; send the request over HTTP.",
            param="background",
            code="unsupported_parameter",
        )
    request.generate = generate
    request.stream = True
    return request


def encode_error_frame(error: AntiphonError, lane: str | None) -> bytes:
    """The frame that refuses a request, or tells of the connection; it always has a code (Open Responses)."""
    told = error.to_object()
    told.code = told.code or told.type
    frame: dict[str, Any] = {"type": "error", "status": error.status, "error": told}
    if error.headers:
        # The SDKs' types have them in the error, Codex reads them beside it.
        headers = {name.lower(): value for name, value in error.headers.items()}
        frame["error"] = {**msgspec.to_builtins(told), "headers": headers}
        frame["headers"] = headers
    if lane is not None:
        frame["stream_id"] = lane
    return _encode(frame)


def encode_steer_refusal(frame: ClientFrame) -> bytes:
    """The answer to steering, which is not done here: what was sent, unless it was long, and why it fails."""
    error = RequestError(
        "A response that is being made cannot be steered here. Wait for its end, or leave the connection, and send a "
        "new response.create.",
        code="steering_not_supported",
    )
    size = sum(len(bytes(raw)) for raw in frame.values.values())
    told: dict[str, Any] = {
        "type": "response.steer.failed",
        "steer": {"type": STEER, **(frame.values if size <= ECHOED_BYTES else {})},
        "error": error.to_object(),
    }
    if frame.lane is not None:
        told["stream_id"] = frame.lane
    return _encode(told)


def read_parent(frame: ClientFrame) -> str | None:
    """The response that a frame names as the one to continue; None where it names none in a readable way."""
    try:
        parent = msgspec.json.decode(frame.values.get("previous_response_id", _NULL))
    except (msgspec.MsgspecError, RecursionError):
        return None
    return parent if isinstance(parent, str) else None


def mark_lane(event: bytes, lane: str | None) -> bytes:
    """An encoded event as the frame of a lane."""
    return event if lane is None else b'%b,"stream_id":"%b"}' % (event[:-1], lane.encode())


def _read_type(raw: msgspec.Raw | None) -> str:
    if raw is None or bytes(raw) == _NULL:
        raise checks.missing_parameter("type")
    kind: str = _decode(raw, "type", str, "a string")
    if kind not in CLIENT_FRAMES:
        shown = " and ".join(f"'{each}'" for each in CLIENT_FRAMES)
        raise RequestError(
            f"Invalid value: '{kind[:64]}'. Supported values are: {shown}.",
            param="type",
            code="invalid_value",
        )
    return kind


def _read_lane(raw: msgspec.Raw | None) -> str | None:
    if raw is None or bytes(raw) == _NULL:
        return None
    try:
        lane = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        lane = None
    if not isinstance(lane, str) or not _LANE.fullmatch(lane):
        raise RequestError(
            "Invalid 'stream_id': expected 1 to 64 letters, digits and '_', '-', '.', ':'.",
            param="stream_id",
            code="invalid_stream_id",
        )
    return lane


def _read_flag(name: str, raw: msgspec.Raw | None, *, default: bool) -> bool:
    if raw is None or bytes(raw) == _NULL:
        return default
    return bool(_decode(raw, name, bool, "a boolean"))


def _decode(raw: msgspec.Raw, name: str, kind: Any, told: str) -> Any:
    checks.check_value(raw, name)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise checks.invalid_type(name, told, msgspec.json.decode(raw)) from error
