"""WebSocket mode byte by byte over real sockets: hostile frames, heads that are refused, clients that do not read."""

import asyncio
import inspect
import json
import socket
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.server import ServerProtocol

from antiphon.protocol.lifecycle import TERMINAL_EVENTS
from antiphon.server.http_protocol import HttpProtocol
from antiphon.server.socket_protocol import MAX_FRAGMENTS, SocketProtocol
from tests.fake_upstream import MODEL, FakeUpstream, Reply, Request, make_chunk, make_head, make_stream
from tests.scenarios.process import BOUND_S, ServerProcess, start_server
from tests.scenarios.test_socket import UPGRADE, Line, head

SCRIPT: dict[str, Any] = {
    "window_tokens": 10**9,
    "rules": [{"when": "slow", "text": "word " * 100, "pause_s": 0.005}, {"text": "ok"}],
}
TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9
CONTINUATION = 0
FIN, COMPRESSED = 0x80, 0x40
#: Of a server that ends a connection while the client still writes.
BROKEN = (ConnectionResetError, BrokenPipeError)


def frame(opcode: int, data: bytes = b"", *, flags: int = FIN) -> bytes:
    """A client's frame, masked with zeros."""
    size = len(data)
    if size < 126:
        told = bytes([0x80 | size])
    elif size < 1 << 16:
        told = b"\xfe" + size.to_bytes(2, "big")
    else:
        told = b"\xff" + size.to_bytes(8, "big")
    return bytes([flags | opcode]) + told + bytes(4) + data


def ask(text: str, **more: Any) -> bytes:
    """A frame that asks for a response."""
    body = {"type": "response.create", "model": "scripted", "input": text, "store": False, **more}
    return frame(TEXT, json.dumps(body).encode())


class Wire(Line):
    """A connection that has been upgraded."""

    def __init__(self, server: ServerProcess, *lines: str, first: bytes = b"") -> None:
        super().__init__(server)
        self.write(head("GET", "/v1/responses", *UPGRADE, *lines) + first)
        status, self.headers = self.read_head()
        assert status == 101

    def flood(self, data: bytes) -> None:
        """Write the same again and again, without reading, until the server ends it."""
        while True:
            self.write(data)

    def read_frame(self) -> tuple[int, bytes]:
        """The next frame; (-1, b"") where the connection has ended."""
        start = self._file.read(2)
        if not start:
            return -1, b""
        size = start[1]
        if size >= 126:
            size = int.from_bytes(self._file.read(2 if size == 126 else 8), "big")
        return start[0] & 0xF, self._file.read(size)

    def read_event(self) -> dict[str, Any]:
        """The next event; pings and pongs are skipped."""
        while True:
            opcode, data = self.read_frame()
            if opcode == TEXT:
                event: dict[str, Any] = json.loads(data)
                return event
            assert opcode not in (CLOSE, -1), data

    def read_answer_end(self) -> dict[str, Any]:
        """The next terminal event or error frame."""
        while (event := self.read_event())["type"] not in (*TERMINAL_EVENTS, "error"):
            pass
        return event

    def read_close(self) -> int:
        """The code of the server's close; whatever comes before it is dropped."""
        while True:
            opcode, data = self.read_frame()
            if opcode == CLOSE:
                return int.from_bytes(data[:2], "big")
            assert opcode != -1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for most tests of this module."""
    with start_server(tmp_path_factory.mktemp("wire"), SCRIPT) as running:
        yield running


def read_memory(server: ServerProcess) -> int:
    """Bytes of memory that its process has."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * 4096


# What is leaned on


def test_the_installed_uvicorn_calls_what_its_protocols_are_overridden_in() -> None:
    """Ours: an override of something that is no longer called would protect nobody."""
    for ours, theirs in ((SocketProtocol, WebSocketsSansIOProtocol), (HttpProtocol, HttpToolsProtocol)):
        source = inspect.getsource(theirs)
        for name in vars(ours):
            if not name.startswith("_"):
                assert f"def {name}(" in source
    source = inspect.getsource(WebSocketsSansIOProtocol)
    callers = ("handle_cont(event)", "handle_ping()", "start_keepalive()", "handle_parser_exception()")
    assert all(f"self.{call}" in source for call in callers)
    fields = (
        "close_timeout",
        "close_timer",
        "close_sent",
        "disconnected",
        "writable",
        "frames",
        "queue",
        "conn",
    )
    assert all(f"self.{name}" in source for name in (*fields, "handshake_initiated", "handshake_complete"))
    assert "self.on_task_complete" in source
    assert "self.handle_websocket_upgrade()" in inspect.getsource(HttpToolsProtocol.data_received)
    assert {"accept", "reject", "receive_data"} <= {name for name, _ in inspect.getmembers(ServerProtocol)}


# The upgrade


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (["x-long: " + "a" * 9_000], 431),
        ([f"x-{number}: a" for number in range(200)], 431),
        (["content-length: 5"], 400),
        (["transfer-encoding: chunked"], 400),
        (["host: example.org"], 400),
    ],
    ids=["long", "many", "length", "chunked", "hosts"],
)
def test_a_head_that_is_refused_is_answered_and_the_connection_ends(
    server: ServerProcess, lines: list[str], status: int
) -> None:
    """RFC 9110, 15.5; RFC 6585, 5; RFC 9112, 3.2: an answer in the API's shape, never a silent connection."""
    with Line(server) as line:
        line.write(head("GET", "/v1/responses", *UPGRADE, *lines))
        assert line.read_answer()[0] == status
        assert line.read_line() == b""


@pytest.mark.parametrize(
    ("version", "lines"), [("1.0", ["host: localhost"]), ("1.1", [])], ids=["http-1.0", "no-host"]
)
def test_an_upgrade_needs_http_1_1_and_a_host(server: ServerProcess, version: str, lines: list[str]) -> None:
    """RFC 6455, 4.2.1: GET, HTTP/1.1 or higher, and a Host."""
    with Line(server) as line:
        line.write("\r\n".join([f"GET /v1/responses HTTP/{version}", *lines, *UPGRADE, "", ""]).encode())
        assert line.read_answer()[0] == 400


@pytest.mark.parametrize("wrong", ["sec-websocket-version: 8", "sec-websocket-key: short"])
def test_a_handshake_that_is_refused_tells_so_in_the_apis_shape(server: ServerProcess, wrong: str) -> None:
    """RFC 6455, 4.2.2."""
    lines = [line for line in UPGRADE if line.split(":")[0] != wrong.split(":")[0]]
    with Line(server) as line:
        line.write(head("GET", "/v1/responses", *lines, wrong))
        assert line.read_answer()[0] in (400, 426)


def test_frames_in_one_segment_with_the_upgrade_are_answered(server: ServerProcess) -> None:
    """Ours: a client need not wait; nothing is lost silently."""
    with Wire(server, first=ask("early")) as wire:
        assert wire.read_answer_end()["type"] == "response.completed"
        wire.write(ask("late"))
        assert wire.read_answer_end()["type"] == "response.completed"


def test_a_connection_whose_head_never_comes_is_closed() -> None:
    """Ours: as long as uvicorn waits between two requests; here one second."""

    async def story() -> None:
        settings = uvicorn.Config(
            _answer_nothing, http=HttpProtocol, timeout_keep_alive=1, lifespan="off", log_config=None
        )
        running = uvicorn.Server(settings)
        listener = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(running.serve(sockets=[listener]))
        async with asyncio.timeout(BOUND_S):
            for sent in (b"", b"GET / HTTP/1.1\r\nhost: x\r\n"):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(sent)
                assert await reader.read() == b""
                writer.close()
            running.should_exit = True
            await serving

    asyncio.run(story())


async def _answer_nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError(scope)


# Frames


def test_pings_that_nobody_reads_the_answers_of_take_no_memory(server: ServerProcess) -> None:
    """RFC 6455, 5.5.3: only the latest ping need be answered."""
    with Wire(server) as wire:
        before = read_memory(server)
        pings = frame(PING, b"p" * 125) * 2_000
        for _ in range(120):
            wire.write(pings)
        wire.write(ask("after"))
        # Read from here on: the answer shows that all of them were taken.
        assert wire.read_answer_end()["type"] == "response.completed"
        assert read_memory(server) - before < 12_000_000


def test_a_message_may_come_in_many_pieces_and_not_in_any_number(server: ServerProcess) -> None:
    """RFC 6455, 5.4; ours: empty pieces count too."""
    body = json.dumps({"type": "response.create", "model": "scripted", "input": "pieces", "store": False})
    pieces = [byte.encode() for byte in body]
    with Wire(server) as wire:
        wire.write(frame(TEXT, pieces[0], flags=0))
        wire.write(b"".join(frame(CONTINUATION, piece, flags=0) for piece in pieces[1:]))
        wire.write(frame(CONTINUATION, b""))
        assert wire.read_answer_end()["type"] == "response.completed"
        wire.write(frame(TEXT, b"{", flags=0) + frame(CONTINUATION, b"", flags=0) * MAX_FRAGMENTS)
        assert wire.read_close() == 1008


LARGE = 3_000_000


@pytest.mark.parametrize(
    ("data", "code", "param"),
    [
        (b'{"type":"%b"}' % (b"x" * LARGE), "invalid_value", "type"),
        (b'{"type":[%b1]}' % (b"[]," * LARGE), "invalid_type", "type"),
        (b'{"stream_id":[%b1]}' % (b"[]," * LARGE), "invalid_stream_id", "stream_id"),
        (b'{"type":"response.create","generate":[%b1]}' % (b"[]," * LARGE), "invalid_type", "generate"),
        (
            b'{"type":"response.create","previous_response_id":[%b1]}' % (b"[]," * LARGE),
            "invalid_type",
            "previous_response_id",
        ),
        (b'{"type":%b"response.create"}' % (b" " * LARGE), "invalid_value", None),
        (
            b'{%b"type":"x"}' % b"".join(b'"%d":1,' % number for number in range(LARGE // 8)),
            "invalid_value",
            None,
        ),
        (b'{%b"type":"x"}' % b"".join(b'"%d":1,' % number for number in range(2_000)), "invalid_value", None),
        (b'{"a":"%b' % (b"x" * LARGE), "invalid_request_error", None),
    ],
    ids=["type", "types", "lanes", "flags", "parents", "spaces", "keys", "some-keys", "cut"],
)
def test_a_large_frame_that_is_wrong_is_refused_for_little_memory(
    server: ServerProcess, data: bytes, code: str, param: str | None
) -> None:
    """Ours: nothing is decoded before it is known what it is."""
    with Wire(server) as wire:
        before = read_memory(server)
        wire.write(frame(TEXT, data))
        error = wire.read_event()
        assert (error["type"], error["error"]["code"], error["error"]["param"]) == ("error", code, param)
        assert read_memory(server) - before < 8 * len(data) + 16_000_000
        wire.write(ask("after"))
        assert wire.read_answer_end()["type"] == "response.completed"


def test_the_nth_answer_of_a_lane_is_that_to_its_nth_frame(server: ServerProcess) -> None:
    """Ours: a refusal waits for its turn, another lane does not wait for it; a large frame keeps its place."""
    large = "x" * 2_000_000
    with Wire(server) as wire:
        wire.write(ask("slow", stream_id="a") + frame(TEXT, b'{"type":"other","stream_id":"a"}'))
        wire.write(ask(large, stream_id="a") + ask("small", stream_id="a", model="unknown"))
        wire.write(frame(TEXT, b'{"stream_id":"a"}') + frame(TEXT, b'{"type":"other"}') + frame(TEXT, b"{"))
        ends: dict[Any, list[str]] = {"a": [], None: []}
        while len(ends["a"]) < 5 or len(ends[None]) < 2:
            end = wire.read_answer_end()
            ends[end.get("stream_id")].append(end["error"]["code"] if end["type"] == "error" else end["type"])
    assert ends["a"] == [
        "response.completed",
        "invalid_value",
        "response.completed",
        "model_not_found",
        "missing_required_parameter",
    ]
    assert ends[None] == ["invalid_value", "invalid_request_error"]


def test_a_client_that_piles_up_refusals_in_a_lane_is_let_go(tmp_path: Path) -> None:
    """Ours: every queue is limited."""
    script = {"rules": [{"text": "word " * 100_000, "pause_s": 0.01}]}
    with start_server(tmp_path, script) as server, Wire(server) as wire:
        wire.write(ask("slow"))
        for _ in range(1_025):
            wire.write(frame(TEXT, b'{"type":"other"}'))
        assert wire.read_close() == 1008


def test_a_compression_bomb_ends_its_connection_and_an_ordinary_message_is_read(tmp_path: Path) -> None:
    """RFC 7692, 7.2.2; ours: what is inflated is bounded by what came."""
    encoder = zlib.compressobj(9, zlib.DEFLATED, -12)
    decoder = zlib.decompressobj(-15)
    offer = "sec-websocket-extensions: permessage-deflate; client_max_window_bits=12"

    def squeeze(data: bytes) -> bytes:
        packed = encoder.compress(data) + encoder.flush(zlib.Z_SYNC_FLUSH)
        return frame(TEXT, packed[:-4], flags=FIN | COMPRESSED)

    def read(wire: Wire) -> str:
        opcode, data = wire.read_frame()
        assert opcode == TEXT
        kind: str = json.loads(decoder.decompress(data + b"\x00\x00\xff\xff"))["type"]
        return kind

    body = {"type": "response.create", "model": "scripted", "input": "a b c " * 50_000, "store": False}
    compressing = start_server(tmp_path, SCRIPT, ANTIPHON_SERVER__WEBSOCKET_COMPRESSION="true")
    with compressing as server, Wire(server, offer) as wire:
        assert wire.headers["sec-websocket-extensions"].startswith("permessage-deflate")
        wire.write(squeeze(json.dumps(body).encode()))
        while (kind := read(wire)) not in TERMINAL_EVENTS:
            assert kind != "error"
        before = read_memory(server)
        wire.write(squeeze(b"y" * 60_000_000))
        assert wire.read_close() == 1009
        assert read_memory(server) - before < 50_000_000


# Ends


def test_a_client_that_reads_nothing_of_its_refusals_is_let_go(tmp_path: Path) -> None:
    """Ours: `limits.write_timeout_s` holds for every message."""
    impatient = start_server(tmp_path, SCRIPT, ANTIPHON_LIMITS__WRITE_TIMEOUT_S="1")
    with impatient as server, Wire(server) as wire, pytest.raises(BROKEN):
        wire.flood(frame(TEXT, b"{") * 1_000)


def test_a_client_that_reads_nothing_past_the_age_limit_is_let_go(tmp_path: Path) -> None:
    """Ours: the goodbye is not waited for longer than any message."""
    limits = {"ANTIPHON_LIMITS__WEBSOCKET_S": "1", "ANTIPHON_LIMITS__WRITE_TIMEOUT_S": "1"}
    with start_server(tmp_path, SCRIPT, **limits) as server, Wire(server) as wire, pytest.raises(BROKEN):
        wire.flood(frame(TEXT, b"{") * 100)
    assert "fault" not in (tmp_path / "server.log").read_text()


@pytest.mark.parametrize("ending", ["age", "stop"])
def test_frames_that_cross_the_close_are_no_fault(tmp_path: Path, ending: str) -> None:
    """RFC 6455, 5.5.1: what comes after our close is dropped, and nothing is logged about it."""
    limits = {"ANTIPHON_LIMITS__WEBSOCKET_S": "1"} if ending == "age" else {}
    with start_server(tmp_path, SCRIPT, **limits) as server, Wire(server) as wire:
        wire.socket.setblocking(False)
        bad, good = frame(TEXT, b'{"type":"x"}') * 50, ask("x", generate=False) * 50
        try:
            for number in range(1_000_000):
                for data in (bad, good):
                    try:
                        wire.socket.sendall(data)
                    except BlockingIOError:
                        break
                if number == 50 and ending == "stop":
                    server.ask_to_stop()
                try:
                    while wire.socket.recv(1 << 20):
                        pass
                    break
                except BlockingIOError:
                    pass
        except BROKEN:
            pass
        if ending == "stop":
            assert server.wait() == 0
    log = (tmp_path / "server.log").read_text()
    assert "Traceback" not in log
    assert "fault" not in log


def test_a_server_that_stops_does_not_wait_long_for_an_idle_client(tmp_path: Path) -> None:
    """Ours: a peer that does not answer the close has a second."""
    with start_server(tmp_path, SCRIPT) as server, Wire(server) as wire:
        wire.socket.settimeout(5)
        server.ask_to_stop()
        assert wire.read_close() == 1012
        assert wire.read_frame() == (-1, b"")
        assert server.wait() == 0


def test_a_client_that_leaves_ends_what_runs_and_frees_its_conversation(tmp_path: Path) -> None:
    """Ours: however it leaves and whether it read or not; it is no error of ours."""

    def answer(request: Request) -> Reply:
        if "flood" in request.json["messages"][-1]["content"]:
            flood = [make_chunk({"content": "x" * 5_000})] * 2_000
            return Reply([make_head(), *flood], end="hold")
        return Reply(make_stream("ok"))

    def leave(wire: Wire, how: str) -> None:
        if how == "half":
            wire.socket.shutdown(socket.SHUT_WR)
        elif how == "close":
            wire.write(frame(CLOSE, b"\x03\xe8"))
        else:
            wire.__exit__()

    async def story() -> None:
        async with asyncio.timeout(3 * BOUND_S), FakeUpstream(answer) as upstream:
            with ExitStack() as stack:
                # In a thread: it asks the model server for its models.
                starting = start_server(tmp_path, upstream=upstream.url)
                server = await asyncio.to_thread(stack.enter_context, starting)
                async with server.connect() as client:
                    for number, how in enumerate(("half", "close", "gone")):
                        made = (await client.send("POST", "/v1/conversations", {})).body["id"]
                        wire = stack.enter_context(await asyncio.to_thread(Wire, server))
                        wire.write(ask("flood", model=MODEL, conversation=made, store=True))
                        await upstream.wait_asked(2 * number + 1)
                        leave(wire, how)
                        await upstream.wait_idle()
                        body = {"model": MODEL, "input": "fine", "conversation": made}
                        # What there was of the answer is stored first.
                        while (answered := await client.send("POST", "/v1/responses", body)).status != 200:
                            assert answered.error["code"] == "conversation_locked"

    asyncio.run(story())
    assert "could not be stored" not in (tmp_path / "server.log").read_text()
