"""Serves a double on a loopback port of its own, for programs that need a socket."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from antiphon.checker.doubles import DOUBLES

#: Until a server thread has ended.
STOP_S = 20.0


@contextmanager
def serve(name: str) -> Iterator[str]:
    """Serves the double; yields host:port. Requests wait in the socket's queue until the server is up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            DOUBLES[name](),
            log_level="error",
            lifespan="off",
            ws="websockets-sansio",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(STOP_S)
            assert not thread.is_alive()


def find_closed_port() -> int:
    """A port of the loopback interface on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
