"""What stands before and behind the server while a foreign program drives it, and records what it sees.

A model server that is told what to answer, in a thread of its own; and a relay between a program and the server.
It knows neither. Invariant: both end with their block.
"""

import asyncio
import http.client
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.fake_upstream import Answer, FakeUpstream

_BOUND_S = 60.0


@contextmanager
def serve_upstream(answer: Answer) -> Iterator[FakeUpstream]:
    """A recording model server that answers so."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    upstream = FakeUpstream(answer)
    try:
        asyncio.run_coroutine_threadsafe(upstream.__aenter__(), loop).result(_BOUND_S)
        try:
            yield upstream
        finally:
            asyncio.run_coroutine_threadsafe(upstream.__aexit__(), loop).result(_BOUND_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_BOUND_S)
        loop.close()


@dataclass
class Relay:
    """Where a program is to be sent, and the JSON bodies that it sent there."""

    url: str
    sent: list[Any] = field(default_factory=list)


@contextmanager
def relay_to(url: str) -> Iterator[Relay]:
    """A relay to the server with this base address; answers are passed on piece by piece."""
    target = urlsplit(url)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            relay.sent.append(msgspec.json.decode(body))
            connection = http.client.HTTPConnection(target.netloc, timeout=_BOUND_S)
            try:
                connection.request("POST", self.path, body, {"content-type": self.headers["content-type"]})
                answer = connection.getresponse()
                self.send_response(answer.status)
                self.send_header("content-type", answer.headers["content-type"])
                self.send_header("connection", "close")
                self.end_headers()
                while piece := answer.read1():
                    self.wfile.write(piece)
            finally:
                connection.close()

        def log_message(self, *_: Any) -> None:
            """Nothing: tests print what fails."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        relay = Relay(f"http://127.0.0.1:{server.server_address[1]}{target.path}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield relay
        finally:
            server.shutdown()
            thread.join(_BOUND_S)
