"""The HTTP edge: who may ask, how bodies come, and every request that finds no route."""

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.scenarios.client import StrictClient, read_text
from tests.scenarios.serving import serve

BODY = {"model": "scripted", "input": "Remember this word: plum."}


def run(folder: Path, story: Any, **sections: Any) -> None:
    """A story over a server."""

    async def serve_it() -> None:
        async with serve(folder, **sections) as client:
            await story(client)

    asyncio.run(serve_it())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost"}, 200),
        ({"host": "localhost:8300"}, 200),
        ({"host": "LOCALHOST:8300"}, 200),
        ({"host": "127.0.0.1:8300"}, 200),
        ({"host": "127.0.0.2"}, 200),
        ({"host": "[::1]:8300"}, 200),
        ({"host": "example.org"}, 403),
        ({"host": "localhost.example.org"}, 403),
        ({"host": "127.0.0.1.example.org"}, 403),
        ({"host": "127.evil.org"}, 403),
        ({"host": "127.0.0.1@example.org"}, 403),
        ({"host": "[::1"}, 403),
        ({"host": ""}, 403),
        ({"host": "192.168.0.1"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
        ({"origin": "http://127.0.0.1"}, 200),
        ({"origin": "https://example.org"}, 403),
        ({"origin": "https://127.0.0.1.nip.io"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
    ],
)
def test_without_keys_only_this_machine_is_served(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    """Ours: with no keys the server is for loopback only; ours: no web page reaches it by rebinding."""

    async def story(client: StrictClient) -> None:
        for method, path in (("POST", "/v1/responses"), ("GET", "/v1/models"), ("GET", "/openapi.json")):
            body = BODY if method == "POST" else None
            answer = await client.send(method, path, body, headers)
            assert answer.status == status
            if status == 403:
                assert answer.error["type"] == "invalid_request_error"

    run(tmp_path, story)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "zstd", "GZIP", "Zstd", "identity", "IDENTITY"])
def test_compressed_bodies_are_read(tmp_path: Path, coding: str) -> None:
    """Ours: zstd and gzip request bodies."""
    plain = json.dumps(BODY).encode()
    packers: dict[str, Any] = {"g": gzip.compress, "x": gzip.compress, "z": zstandard.compress}
    packed = packers.get(coding[0].lower(), bytes)

    async def story(client: StrictClient) -> None:
        answer = await client.post(packed(plain), {"content-encoding": coding})
        assert answer.status == 200, answer.body
        assert "plum" in read_text(answer.body)

    run(tmp_path, story)


def test_several_frames_and_members_are_one_body(tmp_path: Path) -> None:
    """RFC 1952 and RFC 8878: both formats may be concatenated."""
    plain = json.dumps(BODY).encode()

    async def story(client: StrictClient) -> None:
        for name, pack in (("gzip", gzip.compress), ("zstd", zstandard.compress)):
            answer = await client.post(pack(plain[:20]) + pack(plain[20:]), {"content-encoding": name})
            assert answer.status == 200, answer.body

    run(tmp_path, story)


def test_broken_compression_is_refused(tmp_path: Path) -> None:
    """Ours: whatever a body claims to be; never a 5xx."""
    plain = json.dumps(BODY).encode()
    table = [
        (plain, "gzip", 400),
        (plain, "zstd", 400),
        (gzip.compress(plain), "zstd", 400),
        (gzip.compress(plain)[:-6], "gzip", 400),
        (gzip.compress(plain)[:20], "gzip", 400),
        (gzip.compress(plain)[:-5] + b"xxxxx", "gzip", 400),
        (b"", "gzip", 400),
        (b"", "zstd", 400),
        (zstandard.compress(plain)[:-3], "zstd", 400),
        (gzip.compress(plain) + b"rest", "gzip", 400),
        (plain, "br", 415),
        (plain, "deflate", 415),
        (gzip.compress(gzip.compress(plain)), "gzip, gzip", 415),
        (plain, "\xff", 415),
    ]

    async def story(client: StrictClient) -> None:
        for body, coding, status in table:
            answer = await client.post(body, {"content-encoding": coding})
            assert answer.status == status, (coding, answer.body)
            if status == 415:
                assert answer.headers["accept-encoding"] == "gzip, zstd"

    run(tmp_path, story)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, coding: str) -> None:
    """Ours: with a decompression limit. 64 MB of spaces in a few kB, against a limit of 1 MB."""
    pack: Any = gzip.compress if coding == "gzip" else zstandard.compress
    bomb = pack(b" " * (64 << 20))

    async def story(client: StrictClient) -> None:
        answer = await client.post(bomb, {"content-encoding": coding})
        assert answer.status == 413
        assert "1048576" in answer.error["message"]
        fits = json.dumps({**BODY, "input": "x" * 900_000}).encode()
        assert (await client.post(pack(fits), {"content-encoding": coding})).status == 200

    run(
        tmp_path,
        story,
        limits={"body_decompressed_bytes": 1 << 20},
        endpoints={"scripted": {"dialect": "scripted", "script": write_roomy_script(tmp_path)}},
    )


def write_roomy_script(folder: Path) -> str:
    """A script whose window holds anything."""
    path = folder / "roomy.json"
    path.write_text(json.dumps({"window_tokens": 10**9, "rules": [{"text": "ok"}]}))
    return str(path)


def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    """Ours: body limit."""

    async def story(client: StrictClient) -> None:
        fits = json.dumps({**BODY, "input": ""}).encode()
        fits = fits.replace(b'""', b'"' + b"x" * (2048 - len(fits)) + b'"')
        assert len(fits) == 2048
        assert (await client.post(fits)).status == 200
        answer = await client.post(fits + b" ")
        assert answer.status == 413
        assert answer.error["type"] == "invalid_request_error"

    run(tmp_path, story, limits={"body_bytes": 2048})


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.api+json", 200),
        ("text/plain", 415),
        ("text/plain;charset=UTF-8", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
        ("\xff", 415),
    ],
)
def test_only_json_is_read(tmp_path: Path, content_type: str, status: int) -> None:
    """Ours: forms and plain text are what a foreign page can send unasked."""

    async def story(client: StrictClient) -> None:
        answer = await client.post(dict(BODY), {"content-type": content_type})
        assert answer.status == status, answer.body

    run(tmp_path, story)


#: Method, path, headers -> status, the `allow` header, code.
WRONG_ROUTES: list[tuple[str, str, dict[str, str], int, str | None, str | None]] = [
    ("GET", "/", {}, 404, None, "unknown_url"),
    ("GET", "/v1", {}, 404, None, "unknown_url"),
    ("GET", "/v2/responses", {}, 404, None, "unknown_url"),
    ("POST", "/responses", {}, 404, None, "unknown_url"),
    ("POST", "/v1/responses/", {}, 404, None, "unknown_url"),
    ("POST", "/chat/completions", {}, 404, None, "unknown_url"),
    ("POST", "/v1/conversations/", {}, 404, None, "unknown_url"),
    ("POST", "/v1/responses/resp_1/cancel/x", {}, 404, None, "unknown_url"),
    ("GET", "/v1/conversations/conv_1/items/msg_1/x", {}, 404, None, "unknown_url"),
    ("GET", "/v1/responses/resp_1/input_items/x", {}, 404, None, "unknown_url"),
    ("GET", "/v1/responses//input_items", {}, 404, None, "unknown_url"),
    ("GET", "/v1/responses", {}, 405, "POST", None),
    ("PUT", "/v1/responses", {}, 405, "POST", None),
    ("POST", "/v1/responses/resp_1", {}, 405, "DELETE, GET, HEAD", None),
    ("PATCH", "/v1/responses/resp_1", {}, 405, "DELETE, GET, HEAD", None),
    ("POST", "/v1/responses/resp_1/input_items", {}, 405, "GET, HEAD", None),
    ("POST", "/v1/models/scripted", {}, 405, "DELETE, GET, HEAD", None),
    ("GET", "/v1/conversations", {}, 405, "POST", None),
    ("GET", "/v1/chat/completions", {}, 405, "POST", None),
    ("GET", "/v1/responses/resp_1/cancel", {}, 405, "POST", None),
    ("POST", "/v1/responses/resp_1/window", {}, 405, "GET, HEAD", None),
    ("PUT", "/v1/conversations/conv_1", {}, 405, "DELETE, GET, HEAD, POST", None),
    ("POST", "/v1/conversations/conv_1/items/msg_1", {}, 405, "DELETE, GET, HEAD", None),
    ("POST", "/health", {}, 405, "GET, HEAD", None),
    ("GET", "/v1/responses", {"upgrade": "websocket", "connection": "Upgrade"}, 426, None, None),
]


@pytest.mark.parametrize(("method", "path", "headers", "status", "allow", "code"), WRONG_ROUTES)
def test_a_request_without_a_route_is_told_so(
    tmp_path: Path,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
    allow: str | None,
    code: str | None,
) -> None:
    """Responses API 6: the same envelope everywhere."""

    async def story(client: StrictClient) -> None:
        answer = await client.send(method, path, None, headers)
        assert answer.status == status, answer.body
        assert answer.headers.get("allow") == allow
        assert answer.error["code"] == code
        assert answer.error["type"] == "invalid_request_error"

    run(tmp_path, story)


def test_a_response_may_bear_the_name_of_an_endpoint(tmp_path: Path) -> None:
    """Ours: reading and deleting take any id; only POST is the endpoint's."""

    async def story(client: StrictClient) -> None:
        for method in ("GET", "DELETE"):
            for name in ("compact", "input_tokens"):
                answer = await client.send(method, f"/v1/responses/{name}")
                assert (answer.status, answer.error["code"]) == (404, None), answer.body
                assert name in answer.error["message"]

    run(tmp_path, story)


@pytest.mark.parametrize(
    ("method", "path", "told"),
    [
        ("POST", "/responses", "The API is under /v1. Did you mean /v1/responses?"),
        ("POST", "/responses/", "The API is under /v1. Did you mean /v1/responses?"),
        ("GET", "/models", "The API is under /v1. Did you mean /v1/models?"),
        ("POST", "/chat/completions", "The API is under /v1. Did you mean /v1/chat/completions?"),
        ("POST", "/v1/v1/responses", "Did you mean /v1/responses?"),
        ("POST", "/v1/responses/", "Did you mean /v1/responses?"),
        ("GET", "/v1/health", "Did you mean /health?"),
        ("GET", "/api/tags", "The API is under /v1. Please check the URL for typos."),
        ("GET", "/v1/engines", "Please check the URL for typos."),
        ("POST", "/v1/embeddings", "The API of /v1/embeddings is not served here."),
        ("GET", "/v1/files/file_1", "The API of /v1/files is not served here."),
        ("POST", "/v1/completions", "The API of /v1/completions is not served here."),
        ("DELETE", "/v1/vector_stores/vs_1/files/f", "The API of /v1/vector_stores is not served here."),
    ],
)
def test_a_path_that_is_put_together_wrongly_is_put_right(
    tmp_path: Path, method: str, path: str, told: str
) -> None:
    """Ours: the usual mistakes with a base URL."""

    async def story(client: StrictClient) -> None:
        answer = await client.send(method, path)
        assert answer.error["message"] == f"Unknown request URL: {method} {path}. {told}"

    run(tmp_path, story)


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "a b",
        "a%2Fb",
        "%00",
        "%ff%fe",
        "%F0%9F%98%80",
        "'; DROP TABLE nodes; --",
        "resp_" + "a" * 5000,
        "resp_%0a",
        "%22%3E%3Cscript%3E",
        "resp_zz",
        "RESP_00",
        "conv_00",
        "%25",
        "+",
    ],
)
def test_odd_ids_in_paths_are_not_found(tmp_path: Path, name: str) -> None:
    """Ours: an id is opaque; whatever stands there is a 404 in the API's shape."""

    async def story(client: StrictClient) -> None:
        path = "/v1/responses/" + name.replace(" ", "%20").replace("'", "%27").replace(";", "%3B")
        for method, whole in (("GET", path), ("DELETE", path), ("GET", f"{path}/input_items")):
            answer = await client.send(method, whole)
            assert answer.status == 404, (method, answer.body)

    run(tmp_path, story)


def test_every_answer_has_a_request_id_of_its_own(tmp_path: Path) -> None:
    """Responses API 1: every reply carries x-request-id."""

    async def story(client: StrictClient) -> None:
        answers = [await client.post(dict(BODY)) for _ in range(3)]
        answers += [await client.send("GET", "/nowhere"), await client.post(b"{")]
        assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)

    run(tmp_path, story)
