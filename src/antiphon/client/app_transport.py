"""Requests straight into an ASGI application of this process, with true streaming.

It knows ASGI and no Responses API. Invariant: the application runs no further ahead of its reader than
`MAX_WAITING_CHUNKS`, and when `close` returns it has ended.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from antiphon.client.errors import ApplicationFailedError, ConnectionFailedError
from antiphon.client.transport import Reply, TransportLimits, read_all

#: Chunks that may wait to be read before the application has to.
MAX_WAITING_CHUNKS = 16

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class AppTransport:
    """Calls `app` as a server would. Its lifespan is the caller's business."""

    def __init__(self, app: AsgiApp, limits: TransportLimits | None = None) -> None:
        self._app = app
        self._limits = limits or TransportLimits()
        self._replies: set[_AppReply] = set()

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """One request; the reply stands as soon as the application has sent its status."""
        reply = _AppReply(self._limits, body or b"", self._replies.discard)
        self._replies.add(reply)
        try:
            await reply.start(self._app, _to_scope(method, path, headers, body))
        except BaseException:
            await reply.close()
            raise
        return reply

    async def close(self) -> None:
        """End every request that is still running."""
        for reply in list(self._replies):
            await reply.close()


class _AppReply:
    """An answer that the application is writing: the two ends of one exchange."""

    def __init__(self, limits: TransportLimits, body: bytes, forget: Callable[["_AppReply"], None]) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._limits = limits
        self._body: bytes | None = body
        self._forget = forget
        self._task: asyncio.Future[None] | None = None
        self._waiting: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._gone = asyncio.Event()
        self._is_finished = False
        self._is_closed = False
        self._is_failure_told = False

    async def start(self, app: AsgiApp, scope: MutableMapping[str, Any]) -> None:
        """Run the application until it has sent its status."""
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))
        self._task.add_done_callback(lambda _: self._news.set())
        while not self.status:
            if self._has_ended():
                self._raise_failure()
                raise ApplicationFailedError("the application ended without an answer")
            await self._wait_for_news()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while True:
            if self._waiting:
                chunk = self._waiting.popleft()
                self._room.set()
                yield chunk
            elif self._is_finished:
                return
            elif self._has_ended() or self._is_closed:
                self._raise_failure()
                raise ConnectionFailedError("the answer broke off: the application ended too early")
            else:
                await self._wait_for_news()

    async def read(self) -> bytes:
        return await read_all(self.chunks(), self._limits.max_body_bytes)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._forget(self)
        self._gone.set()
        self._room.set()
        task = self._task
        if task is None:
            return
        try:
            await asyncio.wait({task}, timeout=self._limits.close_timeout_s)
            if not task.done():
                raise ApplicationFailedError(
                    f"the application did not end within {self._limits.close_timeout_s:g} s of a disconnect"
                )
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=self._limits.close_timeout_s)
        self._raise_failure()

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
        self._news.set()
        while len(self._waiting) >= MAX_WAITING_CHUNKS and not self._is_closed:
            self._room.clear()
            await self._room.wait()

    def _has_ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def _wait_for_news(self) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(self._limits.idle_timeout_s):
                await self._news.wait()
        except TimeoutError as silence:
            raise ConnectionFailedError(
                f"the application sent nothing for {self._limits.idle_timeout_s:g} s"
            ) from silence

    def _raise_failure(self) -> None:
        """Tell once of an exception that the application raised."""
        task = self._task
        if task is None or not task.done() or self._is_failure_told:
            return
        self._is_failure_told = True
        if task.cancelled():
            raise ApplicationFailedError("the application was cancelled")
        failure = task.exception()
        if failure is not None:
            raise ApplicationFailedError(
                f"the application failed: {type(failure).__name__}: {failure}"
            ) from failure


def _to_scope(
    method: str, path: str, headers: Mapping[str, str], body: bytes | None
) -> MutableMapping[str, Any]:
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
