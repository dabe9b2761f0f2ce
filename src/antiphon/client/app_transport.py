"""Requests and sockets straight into an ASGI application of this process, with true streaming.

It knows ASGI and no Responses API. Invariant: the application runs no further ahead of its reader than
`MAX_WAITING_CHUNKS`, and when `close` returns it has ended.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping

from antiphon.client.app_run import MAX_WAITING_CHUNKS, AppRun, AsgiApp, Message, Scope
from antiphon.client.app_socket import AppSocket
from antiphon.client.errors import ApplicationFailedError, ConnectionFailedError
from antiphon.client.transport import Reply, Socket, TransportLimits, read_all


class AppTransport:
    """Calls `app` as a server would. Its lifespan is the caller's business."""

    def __init__(self, app: AsgiApp, limits: TransportLimits | None = None) -> None:
        self._app = app
        self._limits = limits or TransportLimits()
        self._open: set[_AppReply | AppSocket] = set()

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """One request; the reply stands as soon as the application has sent its status."""
        reply = _AppReply(self._limits, body or b"", self._open.discard)
        self._open.add(reply)
        try:
            await reply.start(self._app, _to_scope(method, path, headers, body))
        except BaseException:
            await reply.close()
            raise
        return reply

    async def open_socket(self, path: str, headers: Mapping[str, str]) -> Socket:
        """One WebSocket connection; the socket stands as soon as the application has accepted it."""
        scope = _to_scope("GET", path, headers, None)
        del scope["method"]
        scope.update(
            type="websocket",
            scheme="ws",
            subprotocols=[],
            extensions={"websocket.http.response": {}},
        )
        socket = AppSocket(self._limits, self._open.discard)
        self._open.add(socket)
        try:
            await socket.start(self._app, scope)
        except BaseException:
            await socket.close()
            raise
        return socket

    async def close(self) -> None:
        """End every request and every socket that is still open."""
        for one in list(self._open):
            await one.close()


class _AppReply:
    """An answer that the application is writing: the two ends of one exchange."""

    def __init__(self, limits: TransportLimits, body: bytes, forget: Callable[["_AppReply"], None]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._limits = limits
        self._body: bytes | None = body
        self._forget = forget
        self._run = AppRun(limits)
        self._waiting: deque[bytes] = deque()
        self._room = asyncio.Event()
        self._gone = asyncio.Event()
        self._is_finished = False
        self._is_closed = False

    async def start(self, app: AsgiApp, scope: Scope) -> None:
        """Run the application until it has sent its status."""
        self._run.start(app, scope, self._receive, self._send)
        while not self.status:
            if self._run.has_ended:
                self._run.raise_failure()
                raise ApplicationFailedError("the application ended without an answer")
            await self._run.wait_for_news()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            if self._waiting:
                chunk = self._waiting.popleft()
                self._room.set()
                yield chunk
            elif self._is_finished:
                return
            elif self._run.has_ended or self._is_closed:
                self._run.raise_failure()
                raise ConnectionFailedError("the answer broke off: the application ended too early")
            else:
                await self._run.wait_for_news()

    async def read(self) -> bytes:
        return await read_all(self.chunks(), self._limits.max_body_bytes)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._forget(self)
        self._gone.set()
        self._room.set()
        await self._run.end()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._is_closed or self._is_finished:
            # As servers do: what nobody will read is dropped. The pause lets others run meanwhile.
            await asyncio.sleep(0)
            return
        if message["type"] == "http.response.start":
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in message.get("headers", ())
            }
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            if message.get("body"):
                self._waiting.append(bytes(message["body"]))
            if not message.get("more_body", False):
                self._is_finished = True
                self._gone.set()
        self._run.tell()
        while len(self._waiting) >= MAX_WAITING_CHUNKS and not self._is_closed:
            self._room.clear()
            await self._room.wait()


def _to_scope(method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Scope:
    from urllib.parse import unquote

    raw_path, _, query = path.partition("?")
    sent = {"host": "localhost", **{name.lower(): value for name, value in headers.items()}}
    if body is not None:
        sent["content-length"] = str(len(body))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
        "state": {},
    }
