"""A model server for tests (Chat Completions, Responses): raw HTTP on loopback, doing exactly what it is told.

It knows nothing of Antiphon. Each request is recorded and answered by a `Reply`: bytes, and events to
wait for between them, then how the connection ends. It sees when its client leaves.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import msgspec

#: Every wait of this server for something a test should do ends here.
TIMEOUT_S = 20.0
MODEL = "fake-model"
#: The routes that answer by a model.
ANSWERED = ("/chat/completions", "/responses")

Step: TypeAlias = bytes | asyncio.Event


@dataclass
class Request:
    """One request as it came; `left` once its client has gone before the end of the reply."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)


@dataclass
class Reply:
    """What to write, in order; an event in between is waited for. Then `end`.

    keep: the connection stays for the next request; close, reset: it ends so; hold: silence until the
    client leaves.
    """

    steps: Sequence[Step]
    end: Literal["keep", "close", "reset", "hold"] = "keep"


Answer: TypeAlias = Callable[[Request], Reply]


class FakeUpstream:
    """`async with FakeUpstream(answer) as upstream`: serves until the block ends."""

    def __init__(self, answer: Answer, *, owned_by: str = "fake", models: Sequence[str] = (MODEL,)) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.connections = 0
        self.url = ""
        self._models = [{"id": name, "object": "model", "owned_by": owned_by} for name in models]
        self._server: asyncio.Server | None = None
        self._handlers: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._handlers):
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    @property
    def asked(self) -> list[Request]:
        """The requests for answers alone."""
        return [request for request in self.requests if request.path.endswith(ANSWERED)]

    async def wait_idle(self) -> None:
        """Until no reply is being written."""
        await asyncio.wait_for(self._idle.wait(), TIMEOUT_S)

    async def wait_requested(self) -> None:
        """Until anything was requested."""
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(lambda: bool(self.requests)), TIMEOUT_S)

    async def wait_asked(self, count: int = 1) -> Request:
        """Until that many completions were asked for; the last of them."""
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(lambda: len(self.asked) >= count), TIMEOUT_S)
        return self.asked[count - 1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        number = self.connections
        self.connections += 1
        try:
            ahead = b""
            while (request := await _read_request(reader, number, ahead)) is not None:
                self._busy += 1
                self._idle.clear()
                try:
                    self.requests.append(request)
                    async with self._news:
                        self._news.notify_all()
                    stays, ahead = await _write_reply(self.reply(request), request, reader, writer)
                    if not stays:
                        return
                finally:
                    self._busy -= 1
                    if not self._busy:
                        self._idle.set()
        except (OSError, asyncio.CancelledError):
            return
        finally:
            self._handlers.discard(task)
            writer.close()

    def reply(self, request: Request) -> Reply:
        """What is done with a request; tests of other routes override it."""
        if request.method == "GET" and request.path.endswith("/models"):
            return Reply([make_json({"object": "list", "data": self._models})])
        if request.path.endswith(ANSWERED):
            return self.answer(request)
        return Reply([make_json({"detail": "Not Found"}, status=404)])


async def _read_request(reader: asyncio.StreamReader, number: int, ahead: bytes) -> Request | None:
    try:
        head = ahead + await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body, number)


async def _write_reply(
    reply: Reply, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> tuple[bool, bytes]:
    """Whether the connection can be used again, and what came of the next request meanwhile."""
    gone = asyncio.create_task(_watch(reader, request))
    try:
        for step in reply.steps:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif not await _wait(step, gone):
                return False, b""
            # Others run between two pieces, so that each is written by itself.
            await asyncio.sleep(0)
        if reply.end == "hold":
            await asyncio.wait_for(request.left.wait(), TIMEOUT_S)
    finally:
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
    if reply.end == "reset":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
    ahead = gone.result() if gone.done() and not gone.cancelled() else b""
    return reply.end == "keep" and not request.left.is_set(), ahead


async def _watch(reader: asyncio.StreamReader, request: Request) -> bytes:
    """The beginning of the next request, or nothing when the client left."""
    try:
        ahead = await reader.read(1)
    except OSError:
        ahead = b""
    if not ahead:
        request.left.set()
    return ahead


async def _wait(event: asyncio.Event, gone: "asyncio.Task[bytes]") -> bool:
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT_S)
        return event.is_set() and not gone.done()
    finally:
        waiting.cancel()


def make_head(
    status: int = 200, *, content_type: str = "text/event-stream", length: int | None = None, extra: str = ""
) -> bytes:
    """Status line and headers; chunked where there is no length."""
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return f"HTTP/1.1 {status} Whatever\r\ncontent-type: {content_type}\r\n{framing}\r\n{extra}\r\n".encode()


def make_body(body: bytes, *, status: int = 200, content_type: str = "text/plain", extra: str = "") -> bytes:
    """A whole answer."""
    return make_head(status, content_type=content_type, length=len(body), extra=extra) + body


def make_json(value: Any, *, status: int = 200, extra: str = "") -> bytes:
    """A whole JSON answer."""
    return make_body(msgspec.json.encode(value), status=status, content_type="application/json", extra=extra)


def make_chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **fields: Any) -> bytes:
    """One streamed completion chunk, framed for HTTP."""
    value = {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **fields}
    return frame(b"data: " + msgspec.json.encode(value) + b"\n\n")


def frame(data: bytes) -> bytes:
    """An HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


#: The end of a stream.
END = frame(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def make_stream(*texts: str, usage: dict[str, Any] | None = None) -> list[Step]:
    """A whole streamed answer, a step for each piece."""
    steps: list[Step] = [make_head()]
    steps += [make_chunk({"content": text}) for text in texts]
    steps.append(make_chunk({}, "stop"))
    if usage is not None:
        steps.append(frame(b"data: " + msgspec.json.encode({"choices": [], "usage": usage}) + b"\n\n"))
    return [*steps, END]


def make_event(name: str, **fields: Any) -> bytes:
    """One event of a Responses stream, framed for HTTP."""
    data = msgspec.json.encode({"type": name, **fields})
    return frame(b"event: %b\ndata: %b\n\n" % (name.encode(), data))


#: The end of a chunked body.
LAST_FRAME = b"0\r\n\r\n"


def make_response_stream(*events: bytes) -> list[Step]:
    """A whole streamed response, a step for each event."""
    return [make_head(), *events, LAST_FRAME]
