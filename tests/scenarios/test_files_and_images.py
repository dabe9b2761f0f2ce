"""Files and images of a request: what the model server gets, what clients read back, what is refused."""

import asyncio
import base64
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fake_upstream import MODEL
from tests.scenarios.houses import House, check_prefixes, list_codes, open_house, play, run

STREAMS = pytest.mark.parametrize("stream", [False, True])


def make_png(width: int = 2, height: int = 2) -> bytes:
    """A whole PNG image, black."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    rows = zlib.compress(b"".join(b"\0" + b"\0" * width for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def make_pdf(text: str) -> bytes:
    """A PDF of one page with one line of text."""
    content = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R"
            b" /Resources << /Font << /F1 5 0 R >> >> >>"
        ),
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(content), content),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body = b"%PDF-1.4\n"
    places = []
    for number, each in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    start = len(body)
    rows = b"".join(b"%010d 00000 n \n" % place for place in places)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + rows
    return (
        body
        + table
        + b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    )


def to_data_url(media_type: str, content: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


PNG_URL = to_data_url("image/png", make_png())
TEXT_URL = to_data_url("text/plain", b"The word is marmalade.\n")
PDF_URL = to_data_url("application/pdf", make_pdf("The word is quince"))


def ask(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """One user message of these parts."""
    return [{"role": "user", "content": [*parts, {"type": "input_text", "text": "What is it?"}]}]


@STREAMS
@pytest.mark.parametrize(
    ("name", "url", "word"), [("a.txt", TEXT_URL, "marmalade"), ("a.pdf", PDF_URL, "The word is quince")]
)
def test_a_file_is_read_to_the_model_and_kept_as_it_came(
    tmp_path: Path, stream: bool, name: str, url: str, word: str
) -> None:
    """Ours: text and PDF files are told as text; every later prompt has the same bytes, after a restart too."""
    if name.endswith("pdf"):
        pytest.importorskip("pypdf")

    async def story() -> None:
        async with play(["a", "b", "c"]) as upstream:
            async with open_house(tmp_path, upstream) as house:
                part = {"type": "input_file", "filename": name, "file_data": url}
                first = await house.make(stream=stream, input=ask(part))
                content = json.dumps(house.messages)
                assert word in content
                assert f"[file {name}]" in content
                assert url not in content
                second = await house.make(stream=stream, input="And?", previous_response_id=first["id"])
            async with open_house(tmp_path, upstream) as house:
                third = await house.make(stream=stream, input="And?", previous_response_id=second["id"])
                check_prefixes(upstream)
                for shown in (first, third):
                    (message, *_) = await house.list_items(shown["id"])
                    kept = message["content"][0]
                    assert (kept["type"], kept["filename"], kept["file_data"]) == ("input_file", name, url)
                window = await house.get(f"/v1/responses/{third['id']}/window")
                assert window["messages"] == house.messages

    asyncio.run(story())


@STREAMS
def test_an_image_in_a_data_url_goes_on_as_it_is(tmp_path: Path, stream: bool) -> None:
    """Spec: input_image; in tool outputs too."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input=ask({"type": "input_image", "image_url": PNG_URL}))
        (message,) = house.messages
        assert message["content"][0]["type"] == "image_url"
        assert message["content"][0]["image_url"]["url"] == PNG_URL
        await house.make(stream=stream, input="And?", previous_response_id=first["id"])
        check_prefixes(house.upstream)

    run(tmp_path, ["a", "b"], story)


@asynccontextmanager
async def serve_images(asked: list[str]) -> AsyncIterator[str]:
    """A web server on loopback with one image, a text and a redirect."""

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/a.png":
            return web.Response(body=make_png(), content_type="image/png")
        if request.path == "/moved":
            raise web.HTTPFound("http://10.0.0.1/a.png")
        return web.Response(text="no image")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@STREAMS
def test_an_image_on_the_web_is_fetched_once_where_that_is_allowed(tmp_path: Path, stream: bool) -> None:
    """Ours: `[fetch]`; what was fetched is what the model is shown ever after."""

    async def story() -> None:
        asked: list[str] = []
        async with serve_images(asked) as url, play(["a", "b"]) as upstream:
            settings = {"fetch": {"images": True, "hosts": [url.removeprefix("http://")]}}
            async with open_house(tmp_path, upstream, settings=settings) as house:
                image = {"type": "input_image", "image_url": f"{url}/a.png"}
                first = await house.make(stream=stream, input=ask(image))
                assert house.messages[0]["content"][0]["image_url"]["url"] == PNG_URL
            async with open_house(tmp_path, upstream) as house:
                await house.make(stream=stream, input="And?", previous_response_id=first["id"])
                check_prefixes(upstream)
                (message, *_) = await house.list_items(first["id"])
                assert message["content"][0]["image_url"] == PNG_URL
            assert asked == ["/a.png"]

    asyncio.run(story())


def test_addresses_that_are_not_allowed_are_not_fetched(tmp_path: Path) -> None:
    """Ours: no fetching unless configured, no private addresses, redirects checked, images alone."""

    async def story() -> None:
        asked: list[str] = []
        async with serve_images(asked) as url, play([]) as upstream:
            host = url.removeprefix("http://")
            for settings, path, code, reached in (
                ({}, "/a.png", "invalid_image_url", False),
                ({"fetch": {"images": True}}, "/a.png", "invalid_image_url", False),
                ({"fetch": {"images": True, "hosts": [host]}}, "/moved", "invalid_image_url", True),
                ({"fetch": {"images": True, "hosts": [host]}}, "/text", None, True),
            ):
                asked.clear()
                async with open_house(tmp_path, upstream, settings=settings) as house:
                    image = {"type": "input_image", "image_url": f"{url}{path}"}
                    error = await house.refuse(input=ask(image))
                    assert error["param"] == "input[0].content[0].image_url"
                    assert error["code"] == (code or error["code"])
                    assert bool(asked) is reached
            assert upstream.asked == []

    asyncio.run(story())


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_file", "file_id": "file_1"}, "file_id"),
        ({"type": "input_file", "file_url": "https://a.example/a.pdf"}, "file_url"),
        ({"type": "input_image", "file_id": "file_1"}, "file_id"),
        ({"type": "input_file", "filename": "a.bin", "file_data": "AAECAwQ="}, "file_data"),
        ({"type": "input_image", "image_url": "data:image/png;base64,AAAA"}, "image_url"),
    ],
)
def test_what_cannot_be_shown_is_refused_by_its_place(tmp_path: Path, part: Any, param: str) -> None:
    """Ours: there is no Files API here; nothing is asked of the model server."""

    async def story(house: House) -> None:
        error = await house.refuse(input=ask(part))
        assert error["param"] == f"input[0].content[0].{param}"

    run(tmp_path, [], story)


def test_audio_is_refused(tmp_path: Path) -> None:
    """Ours: with a remedy."""

    async def story(house: House) -> None:
        audio = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
        error = await house.refuse(input=ask(audio))
        assert error["param"] == "input[0].content[0]"
        assert "as text" in error["message"]

    run(tmp_path, [], story)


@STREAMS
def test_files_in_a_conversation_are_told_too(tmp_path: Path, stream: bool) -> None:
    """Ours: what was added without a model is read when a model answers."""

    async def story(house: House) -> None:
        part = {"type": "input_file", "filename": "a.txt", "file_data": TEXT_URL}
        made = await house.client.send("POST", "/v1/conversations", {"items": ask(part)})
        assert made.status == 200, made.body
        body = {"model": MODEL, "input": "And?", "conversation": made.body["id"]}
        response = await house.make(stream=stream, **body)
        assert "marmalade" in json.dumps(house.messages)
        assert list_codes(response) == []

    run(tmp_path, ["a"], story)
