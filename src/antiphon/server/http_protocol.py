"""Uvicorn's HTTP protocol, made strict about what only a socket does: heads that never end, and upgrades.

It knows no requests. Invariant: a connection whose head does not come is closed, an upgrade that cannot be one is
answered, and no byte that follows the head of an upgrade is lost.
"""

import sys
from asyncio import TimerHandle, Transport
from http import HTTPStatus

from httptools import HttpParserUpgrade
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from antiphon.protocol.errors import RequestError
from antiphon.server.replies import ANSWER_HEADERS, make_request_id


class HttpProtocol(HttpToolsProtocol):
    """What `uvicorn.Config.http` is given."""

    _segment = b""
    _is_in_head = False
    _head_timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """A client connects; its first head is awaited as long as a later one."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_awaiting_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A segment, which may hold the end of a head and what follows it."""
        self._segment = data
        super().data_received(data)
        self._segment = b""
        # Most heads come in one segment, and need no timer.
        if self._is_in_head:
            self._await_head()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """A head is whole. An upgrade that cannot be one is answered before a body is waited for."""
        self._is_in_head = False
        self._stop_awaiting_head()
        super().on_headers_complete()
        if self.parser.should_upgrade() and self._should_upgrade():
            fault = self._find_fault()
            if fault is not None:
                self._refuse(fault)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over, with the frames that came in one segment with the head."""
        if self.transport.is_closing():
            return
        # Called while this is handled: it says where the head ends.
        fault = sys.exc_info()[1]
        rest = self._segment[fault.args[0] :] if isinstance(fault, HttpParserUpgrade) else b""
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if rest and isinstance(protocol, self.config.ws_protocol_class or ()):
            protocol.data_received(rest)

    def _find_fault(self) -> str | None:
        """Why an upgrade is refused, as RFC 6455, 4.2.1 and RFC 9112, 3.2 have it."""
        names = [name for name, _ in self.headers]
        if self.parser.get_http_version() != "1.1":
            return "A WebSocket needs HTTP/1.1."
        if names.count(b"host") != 1:
            return "A WebSocket needs one 'host' header."
        if b"transfer-encoding" in names or any(
            name == b"content-length" and value.strip() != b"0" for name, value in self.headers
        ):
            return "A request that upgrades to a WebSocket has no body. Send no 'content-length'."
        return None

    def _refuse(self, message: str) -> None:
        body = RequestError(message).to_body()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (b"x-request-id", make_request_id()),
            *ANSWER_HEADERS,
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        status = HTTPStatus.BAD_REQUEST
        self.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, status.phrase.encode(), lines, body))
        self.transport.close()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.timeout_keep_alive, self._give_up_head)

    def _stop_awaiting_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up_head(self) -> None:
        self._head_timer = None
        if self.cycle is not None and not self.cycle.response_complete:
            # The answer to an earlier request is still on its way.
            self._await_head()
            return
        self.transport.close()
