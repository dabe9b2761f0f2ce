"""Contents of items: files become text and fetched images stay, what cannot be shown is refused by name."""

import asyncio
import base64
from typing import Any

import msgspec
import pytest

from antiphon.engine import contents
from antiphon.engine.contents import ContentReader
from antiphon.engine.files import FileReader, FilesBusyError, PdfExtractor, PdfLimits
from antiphon.hosted import Fetched, FetchError
from antiphon.hosted.scripted import ScriptedFetcher
from antiphon.protocol.content import IMAGE_URL_MAX_LENGTH, InputImage, InputText
from antiphon.protocol.errors import RequestError
from antiphon.protocol.items import Item, decode_items, decode_stored_item, make_user_message
from tests.unit.test_files import build_pdf, encode, make_url, write_page

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01"
PNG_URL = make_url(PNG, "image/png")
TEXT = {"type": "input_text", "text": "Look."}
NOTES = {"type": "input_file", "filename": "notes.txt", "file_data": make_url(b"Buy milk.", "text/plain")}
NOTES_TOLD = "[file notes.txt]\nBuy milk.\n[end of file notes.txt]"


def say(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts), "mood": "kept"}


def show(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": url, **more}


def read(*items: Any) -> list[Item]:
    return decode_items(msgspec.json.encode(list(items)))


def resolve(
    items: list[Item],
    reader: ContentReader | None = None,
    *,
    new: bool = True,
    warnings: list[tuple[str, str]] | None = None,
) -> list[Item]:
    reader = reader or ContentReader()
    return asyncio.run(reader.resolve(items, where="input", new=new, warnings=warnings))


def refuse(*items: Any, reader: ContentReader | None = None) -> tuple[str | None, str | None, str]:
    """Param, code and message of the refusal."""
    with pytest.raises(RequestError) as refused:
        resolve(read(*items), reader)
    assert refused.value.status == 400
    return refused.value.param, refused.value.code, refused.value.message


def get_parts(item: Item) -> Any:
    value: Any = item.value
    return value.content if hasattr(value, "content") else value.output


# What needs nothing


def test_items_without_files_and_images_are_handed_back_as_the_same_list() -> None:
    """Ours: the common request costs one look at each part."""
    items = [
        make_user_message("Hello."),
        *read(
            say(TEXT),
            {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [TEXT]},
            {"type": "reasoning", "summary": []},
        ),
    ]
    assert resolve(items) is items


def test_a_good_image_stays_the_same_item() -> None:
    """Ours: images that came as data URLs are only looked at."""
    items = read(say(TEXT, show(PNG_URL, detail="low")))
    assert resolve(items)[0] is items[0]


# Files


def test_a_file_is_told_as_text_in_its_place_and_its_bytes_stay() -> None:
    """Ours: lists and replays show the file itself."""
    items = read(make_text("before"), say(TEXT, NOTES, TEXT), make_text("after"))
    resolved = resolve(items)
    assert get_parts(resolved[1]) == [InputText("Look."), InputText(NOTES_TOLD), InputText("Look.")]
    assert [item.raw for item in resolved] == [item.raw for item in items]
    assert (resolved[0], resolved[2]) == (items[0], items[2])
    assert get_parts(items[1])[1].filename == "notes.txt"


def make_text(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_files_in_tool_outputs_are_told_too(kind: str) -> None:
    """Responses API 3.2: outputs may hold text, images and files."""
    item = {"type": kind, "call_id": "c", "output": [NOTES, show(PNG_URL)]}
    parts = get_parts(resolve(read(item))[0])
    assert parts == [InputText(NOTES_TOLD), InputImage(PNG_URL)]
    assert refuse({**item, "output": [show("x")]})[0] == "input[0].output[0].image_url"


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_text_may_come_as_a_file_but_not_as_an_image(role: str) -> None:
    """Ours: models are shown no images there."""
    assert get_parts(resolve(read(say(NOTES, role=role)))[0]) == [InputText(NOTES_TOLD)]
    image = {"type": "input_file", "filename": "a.png", "file_data": encode(PNG)}
    for part in (show(PNG_URL), image):
        param, code, message = refuse(say(TEXT, part, role=role))
        assert (param, code) == ("input[0].content[1]", "unsupported_parameter")
        assert "send it in a user message" in message


def test_a_file_without_a_name_and_plain_base64_are_taken() -> None:
    """Responses API 3.3: `filename` may be left out."""
    part = {"type": "input_file", "file_data": encode(b"Hi.")}
    assert get_parts(resolve(read(say(part)))[0]) == [InputText("[file]\nHi.\n[end of file]")]


def test_an_image_that_comes_as_a_file_is_an_image() -> None:
    """Ours: models see it as one."""
    named = {"type": "input_file", "filename": "a.png", "file_data": encode(PNG), "detail": "high"}
    typed = {"type": "input_file", "file_data": PNG_URL}
    parts = get_parts(resolve(read(say(named, typed)))[0])
    assert parts == [InputImage(PNG_URL, detail="high"), InputImage(PNG_URL)]
    param, code, _ = refuse(say({**named, "file_data": encode(b"no image")}))
    assert (param, code) == ("input[0].content[0].file_data", "invalid_image_format")
    long = encode(PNG + bytes(IMAGE_URL_MAX_LENGTH))
    param, code, _ = refuse(say({**named, "file_data": long}))
    assert (param, code) == ("input[0].content[0].file_data", "image_file_too_large")


def test_pages_without_text_and_a_detail_are_warned_of() -> None:
    """Ours: what the model does not see is told."""
    pdf = build_pdf(write_page(b"One."), b"", b"", write_page(b"Four."), b"")
    part = {
        "type": "input_file",
        "filename": "scan.pdf",
        "file_data": make_url(pdf, "application/pdf"),
        "detail": "high",
    }
    warnings: list[tuple[str, str]] = []
    (resolved,) = resolve(read(say(part)), warnings=warnings)
    assert get_parts(resolved)[0].text.startswith("[file scan.pdf]\n[page 1]\nOne.\n[page 2: without text]\n")
    assert warnings == [
        (
            "file_pages_without_text",
            "In file scan.pdf these pages hold no text (they may be scans), so the model saw none: 2-3, 5.",
        ),
        (
            "file_detail_left_out",
            "The model is told the text of file scan.pdf; the detail 'high' has no effect on it.",
        ),
    ]


@pytest.mark.parametrize(
    ("part", "param", "code", "words"),
    [
        (
            {"file_id": "file_1"},
            ".file_id",
            "unsupported_parameter",
            "no Files API here; send the file itself",
        ),
        (
            {"file_url": "https://example.org/a"},
            ".file_url",
            "unsupported_parameter",
            "fetches no files; send",
        ),
        ({}, ".file_data", "missing_required_parameter", "Missing required parameter"),
        ({"file_data": "?"}, ".file_data", "invalid_value", "position 0 of the data is none of base64"),
        ({"file_data": ""}, ".file_data", "invalid_value", "the file is empty"),
        (
            {"file_data": make_url(b"x", "application/zip")},
            ".file_data",
            "invalid_value",
            "'application/zip'",
        ),
        ({"file_data": make_url(b"\xff", "text/csv")}, ".file_data", "invalid_value", "no text in UTF-8"),
        ({"file_data": make_url(b"x", "application/pdf")}, ".file_data", "invalid_value", "damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_place_and_a_remedy(
    part: dict[str, Any], param: str, code: str, words: str
) -> None:
    """Ours: nothing is accepted and forgotten."""
    told = refuse(make_text("x"), say(TEXT, {"type": "input_file", "filename": "a", **part}))
    assert told[:2] == (f"input[1].content[1]{param}", code)
    assert words in told[2]
    assert f"'input[1].content[1]{param}'" in told[2]


def test_the_text_of_all_files_of_a_request_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: refused, never cut."""
    monkeypatch.setattr(contents, "REQUEST_TEXT_CHARS", 2 * len("Buy milk."))
    assert len(resolve(read(say(NOTES, NOTES)))) == 1
    param, code, message = refuse(say(NOTES), say(NOTES, NOTES))
    assert (param, code) == ("input[1].content[1].file_data", "invalid_value")
    assert "more than 18 characters of text in all; send fewer of them" in message


def test_sound_and_film_are_refused() -> None:
    """Ours: no chat model here takes them."""
    audio = {"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}}
    param, code, message = refuse(say(TEXT, audio))
    assert (param, code) == ("input[0].content[1]", "unsupported_parameter")
    assert "reads no audio" in message
    param, _, message = refuse(say({"type": "input_video", "video_url": "https://example.org/v"}))
    assert param == "input[0].content[0]"
    assert "reads no video" in message


# Images


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:image/png;base64,", "empty_image_file"),
        ("data:image/png;base64,iVBORw0KGg", "invalid_base64_image"),
        ("data:image/png;base64,iVBORw0K\nGgo=", "invalid_base64_image"),
        ("data:image/png,iVBORw0KGgo=", "invalid_base64_image"),
        ("data:image/png;base64,AAAA", "invalid_image_format"),
        (make_url(PNG[:16], "image/png"), "invalid_image_format"),
        (make_url(b"\xff\xd8\xff\xd9", "image/jpeg"), "invalid_image_format"),
        (make_url(b"GIF89a" + bytes(4), "image/gif"), "invalid_image_format"),
        (make_url(PNG[:16] + b"\x00\x00\xea\x60" * 2, "image/png"), "image_too_large"),
        (make_url(PNG[:16] + b"\x00\x00\x00\x01\x00\x00\xea\x60", "image/png"), "image_too_large"),
        ("data:image/svg+xml;base64,AAAA", "unsupported_image_media_type"),
        ("data:image/tiff;base64,AAAA", "unsupported_image_media_type"),
        ("data:text/html;base64,AAAA", "invalid_image_url"),
        ("data:image/png;base64", "invalid_image_url"),
        ("file:///etc/passwd", "invalid_image_url"),
        ("", "invalid_image_url"),
        ("https://example.org/a.png", "invalid_image_url"),
        ("HTTP://example.org/a.png", "invalid_image_url"),
    ],
)
def test_what_is_no_image_is_refused_with_the_apis_code(url: str, code: str) -> None:
    """Responses API 2.1: the codes of images."""
    param, found, message = refuse(say(show(url)))
    assert (param, found) == ("input[0].content[0].image_url", code)
    if url.lower().startswith("http"):
        assert "this server fetches no images; send a data URL" in message
        assert "'fetch.images'" in message


#: Beginnings with a size, of a camera's photo with 200 KB of notes too.
HEADS = [
    PNG,
    b"\xff\xd8\xff\xc0\x00\x0b\x08\x00\x01\x00\x01",
    b"\xff\xd8"
    + b"\xff\xe1\xff\xff" * 1
    + bytes(0xFFFD)
    + (b"\xff\xe2\xff\xff" + bytes(0xFFFD)) * 2
    + b"\xff\xc0\x00\x0b\x08\x00\x01\x00\x01",
    b"GIF89a\x01\x00\x01\x00",
    b"RIFF\x00\x00\x00\x00WEBPVP8 " + bytes(10) + b"\x01\x00\x01\x00",
]


@pytest.mark.parametrize("head", HEADS, ids=["png", "jpeg", "long jpeg", "gif", "webp"])
@pytest.mark.parametrize("media_type", ["image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"])
def test_images_of_the_four_formats_pass_also_under_anothers_name(head: bytes, media_type: str) -> None:
    """Ours: model servers look at the bytes, and clients often name the wrong one."""
    items = read(say(show(make_url(head + bytes(100), media_type))))
    assert resolve(items)[0] is items[0]


def test_a_file_id_has_no_meaning_here_and_an_image_must_be_there() -> None:
    """Ours: there is no Files API."""
    param, code, message = refuse(say({"type": "input_image", "file_id": "file_1"}))
    assert (param, code) == ("input[0].content[0].file_id", "unsupported_parameter")
    assert "no Files API here; send a data URL" in message
    assert refuse(say({"type": "input_image"}))[:2] == (
        "input[0].content[0].image_url",
        "missing_required_parameter",
    )


# Images on the web

URL = "https://example.org/a.png"


def test_an_image_on_the_web_is_fetched_once_and_kept_as_what_it_was() -> None:
    """Ours: the web changes, what the model saw does not; unknown keys stay."""
    fetcher = ScriptedFetcher({URL: Fetched("text/plain", PNG)})
    items = read(say(TEXT, show(URL, detail="low", mark=1)), say(show(URL), NOTES))
    first, second = resolve(items, ContentReader(fetcher))
    assert fetcher.urls == [URL]
    assert get_parts(first) == [InputText("Look."), InputImage(PNG_URL, detail="low")]
    assert get_parts(second) == [InputImage(PNG_URL), InputText(NOTES_TOLD)]
    assert msgspec.json.decode(first.raw) == say(TEXT, show(PNG_URL, detail="low", mark=1))
    # The file stays a file in the bytes.
    assert msgspec.json.decode(second.raw) == say(show(PNG_URL), NOTES)
    again = resolve([decode_stored_item(first.raw), decode_stored_item(second.raw)], new=False)
    assert [item.value for item in again] == [first.value, second.value]


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (
            FetchError("The address is not allowed.", code="invalid_image_url"),
            "invalid_image_url",
            "allowed",
        ),
        (FetchError("No answer.", code="failed_to_download_image"), "failed_to_download_image", "No answer."),
        (Fetched("image/png", b""), "empty_image_file", "the image is empty"),
        (Fetched("image/png", b"<html>"), "invalid_image_format", "what stands there is no image"),
        (
            Fetched("image/png", PNG + bytes(IMAGE_URL_MAX_LENGTH)),
            "image_file_too_large",
            "more than 15728576",
        ),
    ],
)
def test_an_image_that_cannot_be_had_is_refused(found: Fetched | FetchError, code: str, words: str) -> None:
    """Responses API 2.1: the codes of images; a failure of the web is the request's."""
    told = refuse(say(TEXT, show(URL)), reader=ContentReader(ScriptedFetcher({URL: found})))
    assert told[:2] == ("input[0].content[1].image_url", code)
    assert words in told[2]


def test_nothing_is_fetched_for_a_request_that_is_refused_anyway() -> None:
    """Ours: a request that fails its checks has no effect on the world."""
    fetcher = ScriptedFetcher({})
    param, _, _ = refuse(say(show(URL), show("data:,")), reader=ContentReader(fetcher))
    assert param == "input[0].content[1].image_url"
    assert fetcher.urls == []


def test_images_to_fetch_are_limited_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: a request cannot make this server fetch without end."""
    table = {f"{URL}?{number}": Fetched("image/png", PNG) for number in range(51)}
    fetcher = ScriptedFetcher(table)
    param, code, message = refuse(say(*map(show, table)), reader=ContentReader(fetcher))
    assert (param, code) == ("input[0].content[50].image_url", "invalid_image_url")
    assert "at most 50 images" in message
    assert fetcher.urls == []
    assert len(resolve(read(say(*map(show, list(table)[:50]))), ContentReader(fetcher))) == 1
    monkeypatch.setattr(contents, "FETCHED_BYTES_AT_MOST", 2 * len(PNG))
    param, code, _ = refuse(say(*map(show, list(table)[:10])), reader=ContentReader(ScriptedFetcher(table)))
    assert code == "image_file_too_large"


def test_images_that_take_too_long_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: every wait is bounded, at most four are waited for at a time."""

    class Stuck(ScriptedFetcher):
        async def fetch(self, url: str) -> Fetched:
            self.urls.append(url)
            await asyncio.Event().wait()
            raise AssertionError

    monkeypatch.setattr(contents, "FETCHES_S", 0.01)
    fetcher = Stuck({})
    part = [show(f"{URL}?{number}") for number in range(6)]
    param, code, _ = refuse(say(*part), reader=ContentReader(fetcher))
    assert (param, code) == ("input[0].content[0].image_url", "failed_to_download_image")
    assert len(fetcher.urls) == 4


# Stored items


def restore(*items: Any) -> list[Item]:
    return [decode_stored_item(msgspec.json.encode(item)) for item in items]


def test_a_stored_file_gives_the_same_view_as_when_it_was_new() -> None:
    """Ours: an unchanged prefix stays byte-identical."""
    pdf = {"type": "input_file", "file_data": make_url(build_pdf(write_page(b"x"), b""), "application/pdf")}
    items = read(say(TEXT, NOTES, pdf, show(PNG_URL)))
    fresh = resolve(items)
    assert resolve(restore(say(TEXT, NOTES, pdf, show(PNG_URL))), new=False) == fresh


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (
            {"type": "input_file", "file_id": "f", "filename": "a.txt"},
            "[file a.txt: not shown, there is no Files API",
        ),
        ({"type": "input_file"}, "[file: not shown, it is not there]"),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": "eA=="},
            "[file a.pdf: not shown, the PDF is damaged or no PDF at all]",
        ),
        (show(URL), f"[image: not shown, it was never fetched from {URL}]"),
        (show("data:image/png;base64,AAAA"), "[image: not shown, the data is no image of the types "),
        (
            {"type": "input_audio", "input_audio": {"data": "", "format": "mp3"}},
            "[audio: not shown, this server reads no audio",
        ),
        ({"type": "input_video", "video_url": "x"}, "[video: not shown, this server reads no video"),
    ],
)
def test_of_stored_items_nothing_is_refused_and_what_is_missing_is_told(
    part: dict[str, Any], text: str
) -> None:
    """Ours: a path that another kind of model server answered may hold anything; nothing is lost silently."""
    fetcher = ScriptedFetcher({})
    (resolved,) = resolve(restore(say(TEXT, part)), ContentReader(fetcher), new=False)
    first, second = get_parts(resolved)
    assert first == InputText("Look.")
    assert second.text.startswith(text)
    assert "input[" not in second.text
    assert resolved.raw == msgspec.json.encode(say(TEXT, part))
    assert fetcher.urls == []


def test_a_stored_image_in_system_text_is_told_of() -> None:
    """Ours: chat models see none there."""
    (resolved,) = resolve(restore(say(show(PNG_URL), role="system")), new=False)
    assert get_parts(resolved)[0].text.startswith("[image: not shown, the model is shown no images in system")


def test_what_has_to_be_sent_again_is_no_gap_in_a_stored_path() -> None:
    """Ours: a busy moment must not change what the model is shown from then on."""

    async def story() -> None:
        reader = ContentReader(files=FileReader(PdfExtractor(PdfLimits(waiting=0))))
        pdf = {"type": "input_file", "file_data": make_url(build_pdf(write_page(b"x")), "application/pdf")}
        for new in (True, False):
            with pytest.raises(FilesBusyError):
                await reader.resolve(restore(say(pdf)), where="input", new=new)

    asyncio.run(story())


def test_base64_of_an_image_is_what_was_fetched() -> None:
    """Ours: not a byte is changed."""
    body = PNG + bytes(range(256)) * 3
    (resolved,) = resolve(read(say(show(URL))), ContentReader(ScriptedFetcher({URL: Fetched("", body)})))
    url = get_parts(resolved)[0].image_url
    assert base64.b64decode(url.partition(",")[2], validate=True) == body
