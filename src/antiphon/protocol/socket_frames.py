"""What a client says over a WebSocket: frames, read and checked as the body of a request is.

It knows no connection and keeps nothing. Invariant: for any text, reading it gives a frame or raises
`RequestError`, and never decodes more than its top level before it is known what it is.
"""

import re
from typing import Any, Final, NoReturn

import msgspec

from antiphon.protocol import checks
from antiphon.protocol.errors import AntiphonError, RequestError
from antiphon.protocol.requests import FIELDS, CreateRequest, read_create_request

CREATE: Final = "response.create"
STEER: Final = "response.steer"
#: What a client may send.
CLIENT_FRAMES: Final = (CREATE, STEER)
#: A longer frame is not repeated in the answer to it.
ECHOED_BYTES: Final = 1 << 16
#: A longer frame is looked over before its values are told apart: each takes memory of its own.
LARGE_BYTES: Final = 1 << 20
#: What of a large frame stands outside the values of known fields.
STRAY_BYTES: Final = 1 << 16
#: A frame may hold this many values.
MAX_FIELDS: Final = 1_000
#: A longer value is no type, lane or id.
NAME_BYTES: Final = 1_024
_LANE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NULL: Final = b"null"
#: Of a request over HTTP alone: on a connection every answer is a stream of events.
_IGNORED: Final = ("stream", "stream_options")
_encode = msgspec.json.Encoder().encode
_read_text = msgspec.json.Decoder(str).decode
#: What the first byte of a value says about it, where the value itself is too long to be read for that.
_KINDS: Final[dict[bytes, Any]] = {b"{": {}, b"[": [], b'"': "", b"t": True, b"f": False, b"n": None}
#: Every field that a frame may have, with a value that is not looked into; others are skipped without a trace.
_Outline: Final = msgspec.defstruct(
    "_Outline", [(name, msgspec.Raw, msgspec.Raw()) for name in (*FIELDS, "type", "stream_id", "generate")]
)
_read_outline = msgspec.json.Decoder(_Outline).decode


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One frame: its type, its lane (None: the default one), and its other values, not looked into."""

    type: str
    lane: str | None
    values: dict[str, msgspec.Raw]


class FrameError(Exception):
    """A frame that cannot be read; `lane`: where it belongs, if `has_lane` says that this is known."""

    def __init__(self, error: RequestError, lane: str | None = None, *, has_lane: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.lane = lane
        self.has_lane = has_lane


def read_frame(data: bytes) -> ClientFrame:
    """The type and the lane of a frame; raises `FrameError`."""
    lane: str | None = None
    has_lane = False
    try:
        _check_outline(data)
        values = checks.decode_body(data)
        if len(values) > MAX_FIELDS:
            raise RequestError(
                f"The frame holds more than {MAX_FIELDS} fields. Send only those of a request.",
                code="invalid_value",
            )
        lane = _read_lane(values.pop("stream_id", None))
        has_lane = True
        return ClientFrame(type=_read_type(values.pop("type", None)), lane=lane, values=values)
    except RequestError as error:
        raise FrameError(error, lane, has_lane=has_lane) from error


def read_socket_request(frame: ClientFrame) -> CreateRequest:
    """The request in a frame of type `response.create`; raises `RequestError` as a body does."""
    values = {name: raw for name, raw in frame.values.items() if name not in _IGNORED}
    generate = _read_flag("generate", values.pop("generate", None), default=True)
    _check_parent(values.get("previous_response_id"))
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
    size = sum(map(_measure, frame.values.values()))
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
    raw = frame.values.get("previous_response_id")
    return None if raw is None else _read_name(raw)


def mark_lane(event: bytes, lane: str | None) -> bytes:
    """An encoded event as the frame of a lane."""
    return event if lane is None else b'%b,"stream_id":"%b"}' % (event[:-1], lane.encode())


def _check_outline(data: bytes) -> None:
    """Refuse a large frame whose size is not that of the fields that a request has."""
    if len(data) < LARGE_BYTES:
        return
    try:
        outline = _read_outline(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        # Not left to those who tell more exactly what is wrong: they keep what comes before it.
        raise RequestError(f"We could not parse the JSON body of your request: {error}.") from error
    known = sum(_measure(getattr(outline, name)) for name in outline.__struct_fields__)
    if len(data) - known > STRAY_BYTES:
        raise RequestError(
            f"The frame holds more than {STRAY_BYTES} bytes beside the fields of a request. Send only those.",
            code="invalid_value",
        )


def _measure(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes


def _read_name(raw: msgspec.Raw) -> str | None:
    """A short text; None for anything else."""
    if _measure(raw) > NAME_BYTES:
        return None
    try:
        return _read_text(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_given(raw: msgspec.Raw | None) -> bool:
    return raw is not None and bytes(memoryview(raw)[:5]) != _NULL


def _refuse_kind(name: str, raw: msgspec.Raw, told: str) -> NoReturn:
    """A value of another kind, told by its first byte: it may be of any size."""
    first = bytes(memoryview(raw)[:1])
    if first == b'"' and told == "a string":
        raise RequestError(
            f"Invalid '{name}': it is longer than {NAME_BYTES} bytes, or no valid text.",
            param=name,
            code="invalid_value",
        )
    value = _KINDS[first] if first in _KINDS else (1.5 if b"." in memoryview(raw)[:64].tobytes() else 1)
    raise checks.invalid_type(name, told, value)


def _read_type(raw: msgspec.Raw | None) -> str:
    if raw is None or not _is_given(raw):
        raise checks.missing_parameter("type")
    kind = _read_name(raw)
    if kind is None:
        _refuse_kind("type", raw, "a string")
    if kind not in CLIENT_FRAMES:
        shown = " and ".join(f"'{each}'" for each in CLIENT_FRAMES)
        raise RequestError(
            f"Invalid value: '{kind[:64]}'. Supported values are: {shown}.",
            param="type",
            code="invalid_value",
        )
    return kind


def _read_lane(raw: msgspec.Raw | None) -> str | None:
    if raw is None or not _is_given(raw):
        return None
    lane = _read_name(raw)
    if lane is None or not _LANE.fullmatch(lane):
        raise RequestError(
            "Invalid 'stream_id': expected 1 to 64 letters, digits and '_', '-', '.', ':'.",
            param="stream_id",
            code="invalid_stream_id",
        )
    return lane


def _read_flag(name: str, raw: msgspec.Raw | None, *, default: bool) -> bool:
    if raw is None or not _is_given(raw):
        return default
    sent = bytes(memoryview(raw)[:6])
    if sent not in (b"true", b"false"):
        _refuse_kind(name, raw, "a boolean")
    return sent == b"true"


def _check_parent(raw: msgspec.Raw | None) -> None:
    """An id that is too long to be one is not decoded to find that out."""
    if raw is not None and _is_given(raw) and _measure(raw) > NAME_BYTES:
        _refuse_kind("previous_response_id", raw, "a string")
