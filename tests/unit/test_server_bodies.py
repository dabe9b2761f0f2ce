"""Request bodies: pieces, limits, time, codings."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import zstandard

from antiphon.protocol.errors import BodyTooLargeError, MediaTypeError, RequestError
from antiphon.server.bodies import ClientGoneError, decompress, read_body
from antiphon.server.settings import ServerLimits

LIMITS = ServerLimits(body_bytes=100, body_decompressed_bytes=200, body_timeout_s=5)
HEADERS = {b"content-type": b"application/json"}


def deliver(*messages: dict[str, Any]) -> Callable[[], Awaitable[dict[str, Any]]]:
    """A `receive` that gives these messages, and then waits for ever."""
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    return receive


def piece(body: bytes, *, more: bool = True) -> dict[str, Any]:
    """A part of a body."""
    return {"type": "http.request", "body": body, "more_body": more}


def read(
    *messages: dict[str, Any], headers: dict[bytes, bytes] | None = None, limits: ServerLimits = LIMITS
) -> bytes:
    """The body that these messages make."""
    return asyncio.run(read_body({**HEADERS, **(headers or {})}, deliver(*messages), limits))


def test_a_body_in_pieces_is_one_body() -> None:
    """ASGI: `more_body`."""
    assert read(piece(b"ab"), piece(b""), piece(b"c"), piece(b"", more=False)) == b"abc"
    assert read(piece(b"abc", more=False)) == b"abc"
    assert read({"type": "http.request"}) == b""


def test_a_client_that_leaves_before_its_request_is_whole_gets_no_answer() -> None:
    """ASGI: `http.disconnect`."""
    for messages in ([piece(b"a")], []):
        with pytest.raises(ClientGoneError):
            read(*messages, {"type": "http.disconnect"})


@pytest.mark.parametrize(
    ("messages", "headers"),
    [
        ([piece(b"x" * 101, more=False)], {}),
        ([piece(b"x" * 60), piece(b"x" * 60)], {}),
        ([], {b"content-length": b"101"}),
        ([], {b"content-length": b"9" * 4000}),
    ],
)
def test_a_body_over_the_limit_is_refused_as_soon_as_it_is_known(
    messages: list[dict[str, Any]], headers: dict[bytes, bytes]
) -> None:
    """Ours: body limit; told by its header or by what came."""
    with pytest.raises(BodyTooLargeError):
        read(*messages, headers=headers)


def test_a_wrong_length_header_changes_nothing() -> None:
    """Ours: the server below checks it; a header that is no number is not believed."""
    for told in (b"", b"-1", b"abc", b"1e9", "²".encode("latin-1")):
        assert read(piece(b"{}", more=False), headers={b"content-length": told}) == b"{}"


def test_a_body_that_does_not_come_is_given_up() -> None:
    """Invariant: within limits of time."""
    limits = ServerLimits(body_timeout_s=0.01)
    with pytest.raises(RequestError, match="not whole after"):
        read(piece(b"a"), limits=limits)


def test_a_body_of_which_nothing_comes_is_given_up_too() -> None:
    """Invariant: within limits of time; the first piece counts as much as the rest."""
    limits = ServerLimits(body_timeout_s=0.01)

    async def story() -> None:
        async with asyncio.timeout(5):
            with pytest.raises(RequestError, match="not whole after"):
                await read_body(HEADERS, deliver(), limits)

    asyncio.run(story())


@pytest.mark.parametrize(("name", "pack"), [(b"gzip", gzip.compress), (b"zstd", zstandard.compress)])
def test_the_limit_after_decompression_is_exact(name: bytes, pack: Callable[[bytes], bytes]) -> None:
    """Ours: decompression limit."""
    assert decompress(pack(b"x" * 200), name, 200) == b"x" * 200
    with pytest.raises(BodyTooLargeError):
        decompress(pack(b"x" * 201), name, 200)


def test_a_zstd_frame_with_a_giant_window_is_refused() -> None:
    """Ours: never more is held than the limit allows, however small the compressed body was."""
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(b"x" * 10) + stream.flush()
    with pytest.raises(RequestError):
        decompress(packed, b"zstd", 200)


@pytest.mark.parametrize("coding", [b"br", b"deflate", b"compress", b"gzip, zstd", b"*"])
def test_other_codings_are_named_as_unreadable(coding: bytes) -> None:
    """RFC 9110, 415 with accept-encoding."""
    with pytest.raises(MediaTypeError) as caught:
        decompress(b"", coding, 10)
    assert caught.value.headers == {"accept-encoding": "gzip, zstd"}
