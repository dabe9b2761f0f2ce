"""Request bodies: read within limits of size and time, undo gzip and zstd. It knows no JSON.

Invariant: never more is held than the limit allows, however small the compressed body was.
"""

import asyncio
import gzip
import io
import zlib
from typing import Any

import zstandard

from antiphon.protocol.errors import BodyTooLargeError, MediaTypeError, RequestError
from antiphon.protocol.requests import CreateRequest
from antiphon.server.settings import ServerLimits

#: A body of this size is decoded on another thread: it takes so long that other clients would notice.
LARGE_BODY_BYTES = 1 << 20
_ZSTD_WINDOW_BYTES = 128 << 20


class ClientGoneError(Exception):
    """The client left before its request was whole."""


async def read_body(headers: dict[bytes, bytes], receive: Any, limits: ServerLimits) -> bytes:
    """The whole body, decompressed; raises `RequestError` kinds or `ClientGoneError`."""
    check_media_type(headers)
    told = headers.get(b"content-length", b"")
    if told.isdigit() and int(told) > limits.body_bytes:
        raise _too_large(limits.body_bytes)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            body = await _read_pieces(receive, limits.body_bytes)
    except TimeoutError:
        raise RequestError(
            f"The request body was not whole after {limits.body_timeout_s:g} s; send it again."
        ) from None
    if not body and b"upgrade" in headers:
        raise RequestError(
            "The request body was lost with an upgrade to HTTP/2, which is not served here. "
            "Send the request with HTTP/1.1 and without an 'upgrade' header (curl --http1.1)."
        )
    coding = headers.get(b"content-encoding", b"").strip().lower()
    if coding in (b"", b"identity"):
        return body
    return decompress(body, coding, limits.body_decompressed_bytes)


def check_input_length(request: CreateRequest, limits: ServerLimits) -> None:
    """Raise `RequestError` for more items than one request may carry."""
    if len(request.input) > limits.max_input_items:
        raise RequestError(
            f"Invalid 'input': array too long. Expected an array with maximum length "
            f"{limits.max_input_items}, but got an array with length {len(request.input)} instead.",
            param="input",
            code="array_above_max_length",
        )


def check_media_type(headers: dict[bytes, bytes]) -> None:
    """Only JSON: a form or plain text is what a foreign web page can send without being asked."""
    content_type = headers.get(b"content-type")
    if content_type is None:
        return
    media = content_type.partition(b";")[0].strip().lower()
    if media != b"application/json" and not media.endswith(b"+json"):
        raise MediaTypeError(
            f"Unsupported content type '{media.decode('latin-1')}'. Send the header "
            "'content-type: application/json'."
        )


async def _read_pieces(receive: Any, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            return bytes(piece) if len(pieces) == 1 else b"".join(pieces)


def decompress(body: bytes, coding: bytes, limit: int) -> bytes:
    """Undo one content coding; raises beyond `limit` bytes."""
    try:
        if coding in (b"gzip", b"x-gzip"):
            stream: Any = gzip.GzipFile(fileobj=io.BytesIO(body))
        elif coding == b"zstd":
            stream = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).stream_reader(
                io.BytesIO(body), read_across_frames=True
            )
        else:
            raise MediaTypeError(
                f"Unsupported content encoding '{coding.decode('latin-1')}'. Send gzip, zstd or none.",
                headers={"accept-encoding": "gzip, zstd"},
            )
        plain: bytes = stream.read(limit + 1)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise RequestError(
            f"The request body is not valid {coding.decode('latin-1')} ({error}); check its content encoding."
        ) from error
    if len(plain) > limit:
        raise _too_large(limit)
    return plain


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"The request body is larger than {limit} bytes. Send less, or raise the limit.")
