"""Over real sockets, byte by byte: what only a network does to a request."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from tests.scenarios import strict
from tests.scenarios.client import StrictClient, read_text
from tests.scenarios.process import BOUND_S, ServerProcess, start_server

SCRIPT: dict[str, Any] = {
    "window_tokens": 10**9,
    "rules": [{"when": "slow", "text": "word " * 2000, "pause_s": 0.005}, {"text": "ok"}],
}
BODY = json.dumps({"model": "scripted", "input": "Hello."}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of this module."""
    with start_server(tmp_path_factory.mktemp("socket"), SCRIPT) as running:
        yield running


class Line:
    """A connection on which a test writes what it likes."""

    def __init__(self, server: ServerProcess) -> None:
        address = urlsplit(server.url)
        assert address.hostname is not None
        self.socket = socket.create_connection((address.hostname, address.port), timeout=BOUND_S)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        self.socket.sendall(data)

    def read_head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return status, headers

    def read_answer(self) -> tuple[int, dict[str, str], Any]:
        """The next answer, with its JSON."""
        status, headers = self.read_head()
        body = json.loads(self._file.read(int(headers["content-length"])))
        if status >= 400:
            strict.check_error(body)
        return status, headers, body

    def read_line(self) -> bytes:
        """One line; empty at the end."""
        return self._file.readline()


def head(method: str = "POST", path: str = "/v1/responses", *lines: str, length: int | None = None) -> bytes:
    """The head of a request to the server of this machine."""
    told = [] if length is None else [f"content-length: {length}"]
    text = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json", *told, *lines]
    return "\r\n".join([*text, "", ""]).encode("latin-1")


def test_a_body_may_come_in_single_bytes(server: ServerProcess) -> None:
    """RFC 9112: nothing says where packets end."""
    with Line(server) as line:
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in head(length=len(BODY)) + BODY:
            line.write(bytes([byte]))
        assert line.read_answer()[0] == 200


def test_a_chunked_body_is_read(server: ServerProcess) -> None:
    """RFC 9112, 7.1."""
    with Line(server) as line:
        line.write(head("POST", "/v1/responses", "transfer-encoding: chunked"))
        for start in range(0, len(BODY), 7):
            piece = BODY[start : start + 7]
            line.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        line.write(b"0\r\n\r\n")
        assert line.read_answer()[0] == 200


def test_a_client_may_wait_for_the_word_to_go_on(server: ServerProcess) -> None:
    """RFC 9110, 10.1.1: `expect: 100-continue`, as curl sends for large bodies."""
    with Line(server) as line:
        line.write(head("POST", "/v1/responses", "expect: 100-continue", length=len(BODY)))
        assert line.read_head()[0] == 100
        line.write(BODY)
        assert line.read_answer()[0] == 200


def test_one_connection_carries_request_after_request(server: ServerProcess) -> None:
    """RFC 9112, 9.3: a refusal, a missing route and a wrong method leave the connection usable."""
    with Line(server) as line:
        expected = []
        for _ in range(5):
            line.write(head(length=len(BODY)) + BODY)
            expected.append(line.read_answer()[0])
            line.write(head(length=1) + b"{")
            expected.append(line.read_answer()[0])
            line.write(head("GET", "/nowhere"))
            expected.append(line.read_answer()[0])
            line.write(head("PUT", "/v1/responses", length=2) + b"{}")
            expected.append(line.read_answer()[0])
        assert expected == [200, 400, 404, 405] * 5


def test_requests_that_were_sent_at_once_are_answered_in_order(server: ServerProcess) -> None:
    """RFC 9112, 9.3.2: pipelining."""
    with Line(server) as line:
        line.write((head(length=len(BODY)) + BODY + head("GET", "/health")) * 5)
        assert [line.read_answer()[0] for _ in range(10)] == [200] * 10


UPGRADE = (
    "upgrade: websocket",
    "connection: Upgrade",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version: 13",
)


def test_an_upgrade_to_websocket_is_taken_and_offered_compression_declined(server: ServerProcess) -> None:
    """RFC 6455, 9.1: an extension that is not named in the answer is not used."""
    offer = "sec-websocket-extensions: permessage-deflate; client_max_window_bits"
    with Line(server) as line:
        line.write(head("GET", "/v1/responses", *UPGRADE, offer))
        status, headers = line.read_head()
        assert status == 101
        assert "sec-websocket-extensions" not in headers
        assert headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    ("path", "more", "status"),
    [("/v1/responses", "origin: https://example.org", 403), ("/v1/chat/completions", "x-none: 1", 404)],
)
def test_an_upgrade_is_refused_in_the_apis_shape(
    server: ServerProcess, path: str, more: str, status: int
) -> None:
    """Ours: a page from elsewhere, or another address, gets an answer over HTTP and no connection."""
    with Line(server) as line:
        line.write(head("GET", path, *UPGRADE, more))
        assert line.read_answer()[0] == status


def test_a_second_host_header_does_not_open_the_door(server: ServerProcess) -> None:
    """RFC 9112, 3.2: more than one Host is a bad request; either way a foreign one is not served."""
    for lines in (["host: localhost", "host: example.org"], ["host: example.org", "host: localhost"]):
        with Line(server) as line:
            line.write("\r\n".join(["GET /v1/models HTTP/1.1", *lines, "connection: close", "", ""]).encode())
            assert line.read_head()[0] in (400, 403)


@pytest.mark.parametrize(
    "path", ["/v1/responses/%00", "/v1/responses/%ff", "/v1/responses/" + "a" * 20_000, "/v1/models/%2e%2e"]
)
def test_odd_paths_are_not_found(server: ServerProcess, path: str) -> None:
    """Ours: ids with odd characters in paths, as a socket carries them."""
    with Line(server) as line:
        line.write(head("GET", path))
        assert line.read_answer()[0] == 404


def test_what_is_no_http_is_refused_and_the_server_goes_on(server: ServerProcess) -> None:
    """Ours: never a hang."""
    for data in (
        b"\x16\x03\x01\x02\x00",
        b"GET\r\n\r\n",
        b"\x00" * 100 + b"\r\n\r\n",
        b"POST / HTTP/9.9\r\n\r\n",
    ):
        with Line(server) as line:
            line.write(data)
            line.socket.shutdown(socket.SHUT_WR)
            first = line.read_line()
            assert first == b"" or b" 400 " in first or b" 505 " in first
    with Line(server) as line:
        line.write(head("GET", "/health"))
        assert line.read_answer()[0] == 200


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(server: ServerProcess) -> None:
    """Ours: half a request is no request."""
    for sent in (b"", BODY[:5]):
        with Line(server) as line:
            line.write(head(length=len(BODY)) + sent)
    with Line(server) as line:
        line.write(head(length=len(BODY)) + BODY)
        assert line.read_answer()[0] == 200


def test_a_client_that_resets_its_connection_cancels_its_response(server: ServerProcess) -> None:
    """Decided: kept as cancelled, with what was there."""
    body = json.dumps({"model": "scripted", "input": "slow", "stream": True}).encode()
    with Line(server) as line:
        line.write(head(length=len(body)) + body)
        status, headers = line.read_head()
        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        response_id, deltas = "", 0
        while deltas < 3:
            text = line.read_line()
            assert text
            if text.startswith(b"data: ") and not response_id:
                response_id = json.loads(text[6:])["response"]["id"]
            deltas += text.startswith(b"event: response.output_text.delta")
        # Closing with unread data resets the connection.
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    async def look(client: StrictClient) -> dict[str, Any]:
        async with asyncio.timeout(BOUND_S):
            while True:
                answer = await client.retrieve(response_id)
                if answer.status == 200:
                    found: dict[str, Any] = answer.body
                    return found

    async def story() -> None:
        async with server.connect() as client:
            response = await look(client)
            assert response["status"] == "cancelled"
            assert 3 <= read_text(response).count("word") < 2000

    asyncio.run(story())


def test_a_client_that_closes_its_writing_half_still_gets_its_answer_or_is_cancelled(
    server: ServerProcess,
) -> None:
    """RFC 9112, 9.6: a half-closed connection; never a hang."""
    with Line(server) as line:
        line.write(head(length=len(BODY)) + BODY)
        line.socket.shutdown(socket.SHUT_WR)
        first = line.read_line()
        assert first == b"" or b" 200 " in first


def test_the_folder_cannot_be_served_twice(server: ServerProcess, tmp_path: Path) -> None:
    """Store: one process at a time; the second says so instead of starting."""
    with (
        start_server(tmp_path, SCRIPT),
        pytest.raises(AssertionError, match="in use by another"),
        start_server(tmp_path, SCRIPT),
    ):
        pass
