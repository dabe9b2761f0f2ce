"""Uvicorn's WebSocket protocol, bounded in what a client can make it hold, and leaving its end to the application.

It knows no responses. Invariant: a connection whose upgrade was answered is closed by the application, or broken off
when the time to stop is over; once the application has ended it, it is gone within `ABORT_S`; and nothing that a
client sends grows without limit, whether it reads or not.
"""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.exceptions import PayloadTooBig
from websockets.extensions import Extension
from websockets.frames import Frame
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from antiphon.protocol.errors import RequestError
from antiphon.server.replies import ANSWER_HEADERS, make_request_id

#: A sign for proxies, and for the kernel: what is not acknowledged in time ends the connection. A client need not
#: answer it at once, for one that runs a tool may not read meanwhile.
PING_INTERVAL_S = 30.0
#: What the application has closed, and its peer does not read or answer, is broken off after this long.
ABORT_S = 10.0
#: The same for the peer's answer to our close, when the server stops.
STOP_CLOSE_S = 1.0
#: One message may come in this many pieces: 8 kB each, where the message is as large as may be.
MAX_FRAGMENTS = 1 << 14
#: The pieces of JSON that one segment brings may be this much larger than they came; bombs are a thousand times.
INFLATION = 64
#: And all together this much larger than that.
INFLATED_BYTES = 16 << 20

POLICY_VIOLATION = 1008


class SocketProtocol(WebSocketsSansIOProtocol):
    """What `uvicorn.Config.ws` is given."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn: _Wire = _Wire(
            extensions=self.conn.available_extensions, max_size=config.ws_max_size, logger=self.conn.logger
        )
        self._early = bytearray()
        self._fragments = 0
        self._abort_timer: asyncio.TimerHandle | None = None

    # The upgrade

    def data_received(self, data: bytes) -> None:
        """Frames that come before the upgrade is answered wait for that; a head that is refused is answered."""
        if self.handshake_initiated and not self.handshake_complete:
            self._early += data
            self.transport.pause_reading()
            return
        super().data_received(data)
        if not self.handshake_initiated and self.conn.handshake_exc is not None:
            self._refuse_head(self.conn.handshake_exc)

    def start_keepalive(self) -> None:
        """The upgrade has been answered."""
        super().start_keepalive()
        if self._early:
            data = bytes(self._early)
            self._early.clear()
            self.transport.resume_reading()
            self.data_received(data)

    def _refuse_head(self, error: Exception) -> None:
        answer = b"".join(self.conn.data_to_send())
        if not answer:
            answer = self.conn.reject(400, f"{error}: {error.__cause__}").serialize()
        self.handshake_complete = self.close_sent = True
        self.transport.write(answer)
        self.transport.close()

    # Frames

    def handle_text(self, event: Frame) -> None:
        """The first piece of a message, or all of it."""
        self._fragments = 0
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """The same for a binary message."""
        self._fragments = 0
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        """A further piece, joined to those before: many small ones cost no more than their bytes."""
        if self.close_sent:
            return
        self._fragments += 1
        if self._fragments >= MAX_FRAGMENTS:
            self.frames = []
            self.conn.fail(POLICY_VIOLATION, f"a message may come in {MAX_FRAGMENTS} pieces")
            self.handle_parser_exception()
            return
        joined: bytes | bytearray = self.frames[0]
        if not isinstance(joined, bytearray):
            joined = bytearray(joined)
        joined += event.data
        self.frames = [joined]  # type: ignore[list-item]
        if event.fin:
            self.send_receive_event_to_app()

    def handle_ping(self) -> None:
        """A client that does not read gets no pong: they would wait in memory."""
        if self.writable.is_set() and not self.transport.is_closing():
            super().handle_ping()
        else:
            self.conn.data_to_send()

    # Ends

    def eof_received(self) -> None:
        """The client has left; it may never read what is still to be sent to it."""
        self.queue.put_nowait({"type": "websocket.disconnect", "code": 1006})

    def shutdown(self) -> None:
        """The server stops: running responses may end first, and the application says when they have."""
        self.close_timeout = STOP_CLOSE_S
        if self.close_timer is not None:
            self.close_timer.cancel()
            self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)
        elif not self.handshake_complete:
            super().shutdown()

    def on_task_complete(self, task: "asyncio.Task[None]") -> None:
        """The application is done with the connection."""
        super().on_task_complete(task)
        if not self.disconnected:
            self._abort_timer = self.loop.call_later(ABORT_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)


class _Wire(ServerProtocol):
    """The package `websockets`, telling of refusals as the API does, and inflating within limits."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._budget = _Budget()

    def receive_data(self, data: bytes | bytearray) -> None:
        """A segment: all its frames are read at once."""
        self._budget.left = INFLATED_BYTES
        super().receive_data(data)

    def accept(self, request: Request) -> Response:
        """The answer to an upgrade."""
        response = super().accept(request)
        self.extensions = [_BoundedExtension(each, self._budget) for each in self.extensions]
        return response

    def reject(self, status: Any, text: str) -> Response:
        """An error in the API's shape."""
        response = super().reject(status, text)
        body = RequestError(text.strip() or response.reason_phrase).to_body()
        response.body = body
        for name, value in (("Content-Length", str(len(body))), ("Content-Type", "application/json")):
            del response.headers[name]
            response.headers[name] = value
        for header, told in ((b"x-request-id", make_request_id()), *ANSWER_HEADERS):
            response.headers[header.decode()] = told.decode()
        return response


class _Budget:
    """How much more one segment may inflate to than its size allows."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = INFLATED_BYTES


class _BoundedExtension(Extension):
    """A compression whose output is bounded by what came in."""

    def __init__(self, inner: Extension, budget: _Budget) -> None:
        self.name = inner.name
        self._inner = inner
        self._budget = budget

    def decode(self, frame: Frame, *, max_size: int | None = None) -> Frame:
        """One frame; raises `PayloadTooBig`, which closes the connection with 1009."""
        usual = INFLATION * len(frame.data)
        most = usual + self._budget.left
        plain = self._inner.decode(frame, max_size=most if max_size is None else min(most, max_size))
        self._budget.left -= max(0, len(plain.data) - usual)
        if self._budget.left < 0:
            raise PayloadTooBig(len(plain.data), most)
        return plain

    def encode(self, frame: Frame) -> Frame:
        """As it is."""
        return self._inner.encode(frame)
