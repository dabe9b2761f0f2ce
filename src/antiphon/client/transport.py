"""The seam between the client and whatever carries its requests: `send` for HTTP, `open_socket` for WebSocket.

It knows no Responses API. Invariant: every wait has an end, given by `TransportLimits`.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Protocol

import msgspec

from antiphon.client.errors import ConnectionFailedError


class TransportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait, and how much to read."""

    #: Until a connection stands.
    connect_timeout_s: float = 10.0
    #: Between two pieces of an answer, the first included: a model may think for long.
    idle_timeout_s: float = 600.0
    #: Until an application that was told of a disconnect has ended.
    close_timeout_s: float = 30.0
    #: The largest answer that `read` takes.
    max_body_bytes: int = 256 * 1024 * 1024
    #: The largest message of a WebSocket that is taken.
    max_message_bytes: int = 256 * 1024 * 1024
    #: Between two pings over the network, each of which must be answered within half of it; None sends no pings.
    ping_interval_s: float | None = None


class Reply(Protocol):
    """One answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives; raises `ConnectionFailedError` when it breaks off or falls silent."""
        ...

    async def read(self) -> bytes:
        """The whole body, at most `max_body_bytes`."""
        ...

    async def close(self) -> None:
        """Let go of it; an answer that is not finished is cancelled."""
        ...


class Socket(Protocol):
    """One WebSocket connection. One task at a time may receive, another one send."""

    async def send_text(self, text: str) -> None:
        """One text message. Raises `SocketClosedError`."""
        ...

    async def send_bytes(self, data: bytes) -> None:
        """One binary message. Raises `SocketClosedError`."""
        ...

    async def receive(self) -> str:
        """The next text message.

        Raises `SocketClosedError` at the end, `ConnectionFailedError` for silence and for a binary message.
        """
        ...

    async def close(self, code: int = 1000) -> None:
        """Let go of it; whatever runs on it is cancelled by the server."""
        ...


class Transport(Protocol):
    """Carries requests to one server."""

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """One request; `path` may end with a query. Raises `ConnectionFailedError`."""
        ...

    async def open_socket(self, path: str, headers: Mapping[str, str]) -> Socket:
        """One WebSocket connection. Raises `UpgradeRefusedError` and `ConnectionFailedError`."""
        ...

    async def close(self) -> None:
        """Let go of all connections."""
        ...


async def read_all(chunks: AsyncGenerator[bytes, None], max_bytes: int) -> bytes:
    """All chunks as one body; raises `ConnectionFailedError` when there are more than `max_bytes`."""
    pieces: list[bytes] = []
    size = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            size += len(chunk)
            if size > max_bytes:
                raise ConnectionFailedError(f"the answer has more than {max_bytes} bytes")
            pieces.append(chunk)
    return b"".join(pieces)
