"""Uvicorn's WebSocket protocol, leaving the end of a connection to the application when the server stops.

It knows no responses. Invariant: a connection whose upgrade was answered is closed by the application, or broken off
by uvicorn when the time to stop is over.
"""

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

#: A sign for proxies, and for the kernel: what is not acknowledged in time ends the connection. A client need not
#: answer it at once, for one that runs a tool may not read meanwhile.
PING_INTERVAL_S = 30.0


class SocketProtocol(WebSocketsSansIOProtocol):
    """What `uvicorn.Config.ws` is given."""

    def shutdown(self) -> None:
        """The server stops: running responses may end first, and the application says when they have."""
        if not self.handshake_complete:
            super().shutdown()
