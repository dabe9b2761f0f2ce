"""A stand-in for the child process of the embedded model: `python -m tests.faults.fake_model_child`.

It keeps to what the real one promises, and speaks just enough of llama.cpp. What it shall do wrong stands in
its model file: `never ready`, `no start` or `quick end`; and a prompt with `die` ends it after two deltas.
"""

import json
import os
import signal
import socket
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from antiphon.backends.local.child import READY, ChildSettings, end_with_parent

DELTAS = ("one ", "two ", "three")


class Handler(BaseHTTPRequestHandler):
    """The routes that a dialect asks."""

    protocol_version = "HTTP/1.1"
    key = ""
    alias = ""

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(200, {"status": "ok"})
        elif self.headers["authorization"] != f"Bearer {self.key}":
            self.answer(401, {"error": {"message": "Invalid API Key", "code": 401}})
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": self.alias, "owned_by": "llamacpp", "meta": {"n_ctx": 512}}]})
        else:
            self.answer(404, {"error": {"message": "File Not Found", "code": 404}})

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"])).decode()
        if "die at once" in asked:
            os.kill(os.getpid(), signal.SIGKILL)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number, text in enumerate(DELTAS):
            if number == 2 and "die" in asked:
                os.kill(os.getpid(), signal.SIGKILL)
            self.say({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
        self.say({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def say(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        self.wfile.flush()

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature is the library's
        """Says nothing."""


class Server(ThreadingHTTPServer):
    """Listens where the parent holds the port."""

    daemon_threads = True

    def server_bind(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


def main() -> int:
    """Serve until the parent ends."""
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildSettings)
    end_with_parent(settings.parent)
    wish = Path(settings.model).read_text("utf-8")
    print(f"the model is: {wish}", file=sys.stderr, flush=True)
    if "no start" in wish:
        return 7
    if "never ready" in wish:
        signal.pause()
    Handler.key, Handler.alias = settings.key, settings.alias
    server = Server(("127.0.0.1", settings.port), Handler)
    os.write(1, READY)
    if "quick end" in wish:
        # Answers `/health` once, as the parent asks, and is gone.
        server.handle_request()
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
