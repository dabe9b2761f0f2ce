"""The contract of the client's sockets, held by both transports: over a network, and into an application."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvicorn

from antiphon.client import (
    ApplicationFailedError,
    AppTransport,
    ClientError,
    ConnectionFailedError,
    NetworkTransport,
    Socket,
    SocketClosedError,
    Transport,
    TransportLimits,
    UnreachableError,
    UpgradeRefusedError,
)
from antiphon.client.app_run import MAX_WAITING_CHUNKS, Receive, Scope, Send

#: Every wait of these tests ends.
WAIT_S = 20.0
LARGE = "é" * 3_000_000


class SmallServer:
    """A raw ASGI application whose path says what it does."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self.leaving: dict[str, Any] = {}
        self.sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "websocket"
        assert (await receive())["type"] == "websocket.connect"
        await getattr(self, f"do_{scope['path'].strip('/')}")(scope, receive, send)

    async def do_echo(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            await send(
                {"type": "websocket.send", "text": text if text is not None else f"{message['bytes']!r}"}
            )
        self.leaving = dict(message)
        self.left.set()

    async def do_tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        told = [
            scope["path"],
            scope["query_string"].decode(),
            headers.get("authorization"),
            headers["x-more"],
        ]
        await send({"type": "websocket.send", "text": json.dumps(told)})
        await receive()

    async def do_refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.dumps({"error": {"message": "no sockets", "code": "upgrade_required"}}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "websocket.http.response.start", "status": 426, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body[:9], "more_body": True})
        await send({"type": "websocket.http.response.body", "body": body[9:]})

    async def do_deny(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.close"})

    async def do_close(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "last words"})
        await send({"type": "websocket.close", "code": 1012, "reason": "restarting"})

    async def do_binary(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": b"\x00"})
        await receive()

    async def do_flood(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        try:
            for _ in range(100_000):
                await send({"type": "websocket.send", "text": "x" * 10_000})
                self.sent += 1
        except OSError:
            self.left.set()

    async def do_end(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})

    async def do_large(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": LARGE})
        await receive()


class Stage:
    """One server and the way to it."""

    def __init__(self, server: SmallServer, connect: Callable[[TransportLimits], Transport]) -> None:
        self.server = server
        self._connect = connect

    def play(
        self,
        path: str,
        story: Callable[[Socket], Awaitable[None]],
        *,
        limits: TransportLimits | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        async def run() -> None:
            transport = self._connect(limits or TransportLimits(idle_timeout_s=WAIT_S))
            try:
                async with asyncio.timeout(WAIT_S):
                    opened = await transport.open_socket(path, headers or {})
                    await story(opened)
                    await opened.close()
            finally:
                await transport.close()

        asyncio.run(run())


@pytest.fixture(params=["network", "app"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    server = SmallServer()
    if request.param == "app":
        yield Stage(server, lambda limits: AppTransport(server, limits))
        return
    config = uvicorn.Config(
        server, lifespan="off", ws="websockets-sansio", log_level="critical", loop="asyncio"
    )
    running = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield Stage(server, lambda limits: NetworkTransport(address, limits))
        finally:
            running.should_exit = True
            thread.join(WAIT_S)
    assert not thread.is_alive()


async def do_nothing(opened: Socket) -> None:
    """The socket alone."""


def test_messages_go_both_ways_in_order(stage: Stage) -> None:
    """RFC 6455: text as it was sent, whatever its letters; bytes as bytes."""

    async def story(opened: Socket) -> None:
        for text in ("first", "é\u2028", ""):
            await opened.send_text(text)
        assert [await opened.receive() for _ in range(3)] == ["first", "é\u2028", ""]
        await opened.send_bytes(b"\x00\xff")
        assert await opened.receive() == repr(b"\x00\xff")

    stage.play("/echo", story)


def test_the_upgrade_carries_path_query_and_headers(stage: Stage) -> None:
    """Ours: a key and whatever else a caller gives."""

    async def story(opened: Socket) -> None:
        told = json.loads(await opened.receive())
        assert told == ["/tell", "a=1", "Bearer sk-1", "yes"]

    stage.play("/tell?a=1", story, headers={"authorization": "Bearer sk-1", "x-more": "yes"})


def test_a_refused_upgrade_tells_status_and_body(stage: Stage) -> None:
    """Ours: what the server said over HTTP is not lost."""
    with pytest.raises(UpgradeRefusedError) as refused:
        stage.play("/refuse", do_nothing)
    assert refused.value.status == 426
    assert json.loads(refused.value.body)["error"]["code"] == "upgrade_required"
    assert refused.value.error["message"] == "no sockets"
    assert refused.value.headers["content-type"] == "application/json"
    assert isinstance(refused.value, ClientError)


def test_an_application_that_closes_before_it_accepts_has_refused(stage: Stage) -> None:
    """ASGI, WebSocket: 403."""
    with pytest.raises(UpgradeRefusedError) as refused:
        stage.play("/deny", do_nothing)
    assert refused.value.status == 403


def test_the_servers_close_is_told_after_its_last_words(stage: Stage) -> None:
    """RFC 6455, 7.1.5 and 7.1.6: its code and its reason; and again, whenever one asks."""

    async def story(opened: Socket) -> None:
        assert await opened.receive() == "last words"
        for _ in range(2):
            with pytest.raises(SocketClosedError) as closed:
                await opened.receive()
            assert (closed.value.close_code, closed.value.reason) == (1012, "restarting")
        with pytest.raises(SocketClosedError):
            await opened.send_text("anybody there?")

    stage.play("/close", story)


def test_a_connection_that_breaks_off_is_no_close(stage: Stage) -> None:
    """RFC 6455, 7.1.5: no close frame came."""

    async def story(opened: Socket) -> None:
        with pytest.raises(SocketClosedError) as closed:
            await opened.receive()
        assert closed.value.close_code in (1000, 1006)

    stage.play("/end", story)


def test_closing_tells_the_server_the_code(stage: Stage) -> None:
    """ASGI, WebSocket: `websocket.disconnect`."""

    async def story(opened: Socket) -> None:
        await opened.send_text("hello")
        assert await opened.receive() == "hello"
        await opened.close(1001)
        await opened.close()
        assert await asyncio.to_thread(stage.server.left.wait, WAIT_S)
        assert stage.server.leaving["code"] == 1001
        with pytest.raises(SocketClosedError):
            await opened.receive()

    stage.play("/echo", story)


def test_closing_ends_a_receive_that_waits(stage: Stage) -> None:
    """Ours: one task reads while another one leaves."""

    async def story(opened: Socket) -> None:
        reading = asyncio.ensure_future(opened.receive())
        await opened.send_text("hello")
        assert await reading == "hello"
        reading = asyncio.ensure_future(opened.receive())
        await asyncio.sleep(0)
        await opened.close()
        with pytest.raises(SocketClosedError):
            await reading

    stage.play("/echo", story)


def test_closing_the_transport_closes_its_sockets(stage: Stage) -> None:
    """Ours: nothing stays open behind it."""

    async def run() -> None:
        transport = stage._connect(TransportLimits(idle_timeout_s=WAIT_S))
        await transport.open_socket("/echo", {})
        await transport.close()
        assert await asyncio.to_thread(stage.server.left.wait, WAIT_S)

    asyncio.run(run())


def test_silence_has_an_end(stage: Stage) -> None:
    """Ours: every wait has one, and the text says how long it was; the socket can be used after it."""

    async def story(opened: Socket) -> None:
        with pytest.raises(ConnectionFailedError, match=r"0\.05 s") as silence:
            await opened.receive()
        assert not isinstance(silence.value, SocketClosedError)
        await opened.send_text("now")
        assert await opened.receive() == "now"

    stage.play("/echo", story, limits=TransportLimits(idle_timeout_s=0.05, close_timeout_s=WAIT_S))


def test_a_binary_message_is_told_as_what_it_is(stage: Stage) -> None:
    """Responses API, WebSocket: frames are text."""

    async def story(opened: Socket) -> None:
        with pytest.raises(ConnectionFailedError, match="binary"):
            await opened.receive()

    stage.play("/binary", story)


def test_a_reader_that_does_not_read_stops_the_writer(stage: Stage) -> None:
    """Ours: no queue without a limit; leaving ends the writer by an `OSError`."""

    async def story(opened: Socket) -> None:
        assert len(await opened.receive()) == 10_000
        await opened.close()
        assert await asyncio.to_thread(stage.server.left.wait, WAIT_S)
        assert stage.server.sent < 100_000

    stage.play("/flood", story)


def test_large_messages_arrive_whole_and_too_large_ones_do_not(stage: Stage) -> None:
    """Ours: the limit is the caller's."""

    async def take(opened: Socket) -> None:
        assert await opened.receive() == LARGE

    async def refuse(opened: Socket) -> None:
        with pytest.raises(ConnectionFailedError):
            await opened.receive()

    stage.play("/large", take)
    stage.play("/large", refuse, limits=TransportLimits(idle_timeout_s=WAIT_S, max_message_bytes=1000))


def test_an_application_in_this_process_runs_no_further_ahead_than_its_queue() -> None:
    """Ours: the same measure as for streams."""
    server = SmallServer()

    async def run() -> None:
        opened = await AppTransport(server).open_socket("/flood", {})
        for _ in range(100):
            await asyncio.sleep(0)
        assert server.sent < MAX_WAITING_CHUNKS
        await opened.close()

    asyncio.run(run())


@pytest.mark.parametrize("accepts", [True, False])
def test_an_application_that_fails_is_told_with_its_exception(accepts: bool) -> None:
    """Ours: a test sees the cause and not only the end."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if accepts:
            await send({"type": "websocket.accept"})
        raise RuntimeError("broken on purpose")

    async def run() -> None:
        opened = await AppTransport(app).open_socket("/", {})
        await opened.receive()

    with pytest.raises(ApplicationFailedError, match="broken on purpose"):
        asyncio.run(run())


def test_an_application_that_ends_without_an_answer_is_told() -> None:
    """Ours."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()

    with pytest.raises(ApplicationFailedError, match="without an answer"):
        asyncio.run(AppTransport(app).open_socket("/", {}))


def test_where_nothing_listens_is_told() -> None:
    """Ours: in words, as for a request."""

    async def run() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            transport = NetworkTransport(f"http://127.0.0.1:{unused.getsockname()[1]}")
            try:
                await transport.open_socket("/", {})
            finally:
                await transport.close()

    with pytest.raises(UnreachableError, match="nothing listens there"):
        asyncio.run(run())


def test_sockets_load_the_http_library_only_when_one_is_opened() -> None:
    """Ours: a command that needs no network starts fast."""
    code = "import sys, antiphon.client; print('aiohttp' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stdout.split() == ["False"]
