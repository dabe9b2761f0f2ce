"""A WebSocket straight into an ASGI application of this process.

It knows ASGI and no Responses API. Invariant: neither side runs further ahead of the other than
`MAX_WAITING_CHUNKS`, and when `close` returns the application has ended.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from antiphon.client.app_run import MAX_WAITING_CHUNKS, AppRun, AsgiApp, Message, Scope
from antiphon.client.errors import (
    ApplicationFailedError,
    ConnectionFailedError,
    SocketClosedError,
    UpgradeRefusedError,
)
from antiphon.client.transport import TransportLimits

#: What servers answer when an application closes before it accepts.
_REFUSED = 403
#: The code of a connection that ended without being closed (RFC 6455, 7.1.5).
_BROKEN_OFF = 1006


class AppSocket:
    """The client's end; `start` is called once, before anything else."""

    def __init__(self, limits: TransportLimits, forget: Callable[["AppSocket"], None]) -> None:
        self._limits = limits
        self._forget = forget
        self._run = AppRun(limits)
        self._sent: deque[Message] = deque([{"type": "websocket.connect"}])
        self._received: deque[str | bytes] = deque()
        self._to_app = asyncio.Event()
        self._room = asyncio.Event()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = b""
        self._is_accepted = False
        self._is_answered = False
        self._closed: SocketClosedError | None = None
        self._has_left = False

    async def start(self, app: AsgiApp, scope: Scope) -> None:
        """Run the application until it has accepted or refused."""
        self._run.start(app, scope, self._receive_for_app, self._send_from_app)
        while not self._is_accepted:
            if self._is_answered:
                raise UpgradeRefusedError(self._status, self._body, headers=self._headers)
            if self._run.has_ended:
                self._run.raise_failure()
                raise ApplicationFailedError("the application ended without an answer")
            await self._run.wait_for_news()

    async def send_text(self, text: str) -> None:
        await self._send({"type": "websocket.receive", "text": text})

    async def send_bytes(self, data: bytes) -> None:
        await self._send({"type": "websocket.receive", "bytes": data})

    async def receive(self) -> str:
        while True:
            if self._has_left:
                raise self._make_closed()
            if self._received:
                message = self._received.popleft()
                self._room.set()
                if isinstance(message, bytes):
                    raise ConnectionFailedError(
                        "the server sent a binary message where only text is expected"
                    )
                if len(message.encode()) > self._limits.max_message_bytes:
                    raise ConnectionFailedError(
                        f"a message has more than {self._limits.max_message_bytes} bytes"
                    )
                return message
            if self._closed is not None or self._run.has_ended:
                self._run.raise_failure()
                raise self._make_closed()
            await self._run.wait_for_news()

    async def close(self, code: int = 1000) -> None:
        if self._has_left:
            return
        self._has_left = True
        self._forget(self)
        self._closed = self._closed or SocketClosedError(code)
        self._to_app.set()
        self._room.set()
        self._run.tell()
        await self._run.end()

    async def _send(self, message: Message) -> None:
        """Waits while the application has not read what was sent before."""
        try:
            async with asyncio.timeout(self._limits.idle_timeout_s):
                while len(self._sent) >= MAX_WAITING_CHUNKS and not self._is_over:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError as silence:
            raise ConnectionFailedError(
                f"the application read nothing for {self._limits.idle_timeout_s:g} s"
            ) from silence
        if self._is_over:
            raise self._make_closed()
        self._sent.append(message)
        self._to_app.set()

    @property
    def _is_over(self) -> bool:
        return self._closed is not None or self._run.has_ended

    def _make_closed(self) -> SocketClosedError:
        closed = self._closed
        return (
            SocketClosedError(closed.close_code, closed.reason) if closed else SocketClosedError(_BROKEN_OFF)
        )

    # The application's end.

    async def _receive_for_app(self) -> Message:
        while True:
            closed = self._closed
            # As servers do: what a client sent before it left is read before its leaving is told.
            if self._sent:
                message = self._sent.popleft()
                self._room.set()
                return message
            if closed is not None or self._is_answered:
                code, reason = (closed.close_code, closed.reason) if closed else (_BROKEN_OFF, "")
                return {"type": "websocket.disconnect", "code": code, "reason": reason}
            self._to_app.clear()
            await self._to_app.wait()

    async def _send_from_app(self, message: Message) -> None:
        if self._closed is not None or self._is_answered:
            # As servers do. The pause lets others run meanwhile.
            await asyncio.sleep(0)
            raise OSError("the client has left")
        match message["type"]:
            case "websocket.accept":
                self._is_accepted = True
            case "websocket.send":
                await self._take_from_app(message)
            case "websocket.close":
                self._close_from_app(message)
            case "websocket.http.response.start":
                self._status = message["status"]
                self._headers = _read_headers(message)
            case "websocket.http.response.body":
                self._body += message.get("body", b"")
                self._is_answered = not message.get("more_body", False)
            case kind:
                raise RuntimeError(f"no such message: {kind}")
        self._to_app.set()
        self._room.set()
        self._run.tell()

    async def _take_from_app(self, message: Message) -> None:
        text = message.get("text")
        self._received.append(text if text is not None else bytes(message["bytes"]))
        self._run.tell()
        while len(self._received) >= MAX_WAITING_CHUNKS and not self._has_left:
            self._room.clear()
            await self._room.wait()

    def _close_from_app(self, message: Message) -> None:
        if not self._is_accepted:
            self._status, self._is_answered = _REFUSED, True
            return
        code: Any = message.get("code")
        self._closed = SocketClosedError(1000 if code is None else code, message.get("reason") or "")


def _read_headers(message: Message) -> dict[str, str]:
    return {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message.get("headers", ())
    }
