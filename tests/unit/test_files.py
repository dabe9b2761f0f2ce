"""Files: which form one has, its text, and PDF files that would hang or fill the server."""

import asyncio
import base64
import io
import os
import zlib
from pathlib import Path
from typing import Any

import pypdf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.engine.files import (
    FileForm,
    FileReader,
    FilesBusyError,
    FileText,
    PdfExtractor,
    PdfLimits,
    UnreadableFileError,
    find_form,
    reading,
    show_name,
)
from antiphon.engine.files.data_urls import DataUrl, find_base64_fault, split_data_url
from antiphon.engine.files.forms import SUPPORTED
from antiphon.engine.files.texts import FILE_TEXT_CHARS, decode_text

PNG = b"\x89PNG\r\n\x1a\n"


def encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def make_url(content: bytes, media_type: str = "") -> str:
    return f"data:{media_type};base64,{encode(content)}"


def build_pdf(*contents: bytes) -> bytes:
    """A PDF with a page for each content stream, compressed."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * index) for index in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(contents)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, content in enumerate(contents):
        packed = zlib.compress(content)
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            b"/Resources << /Font << /F1 3 0 R >> >> /Contents %d 0 R >>" % (5 + 2 * index)
        )
        head = b"<< /Length %d /Filter /FlateDecode >>" % len(packed)
        objects.append(head + b"\nstream\n" + packed + b"\nendstream")
    body = bytearray(b"%PDF-1.4\n")
    offsets = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    size = len(objects) + 1
    table = b"xref\n0 %d\n0000000000 65535 f \n" % size + b"".join(b"%010d 00000 n \n" % at for at in offsets)
    tail = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, len(body))
    return bytes(body) + table + tail


def write_page(*lines: bytes) -> bytes:
    """A content stream that shows some lines."""
    return b"BT /F1 12 Tf 14 TL 72 720 Td " + b" ".join(b"(%s) Tj T*" % line for line in lines) + b" ET"


def encrypt(pdf: bytes, password: str) -> bytes:
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(pdf))
    writer.encrypt(password, "owner", algorithm="AES-256")
    target = io.BytesIO()
    writer.write(target)
    return target.getvalue()


def extract(pdf: bytes, **limits: Any) -> FileText:
    return asyncio.run(PdfExtractor(PdfLimits(**limits)).extract(pdf))


def refuse(pdf: bytes, **limits: Any) -> str:
    with pytest.raises(UnreadableFileError) as refused:
        extract(pdf, **limits)
    return refused.value.message


def read(content: bytes, media_type: str = "", filename: str | None = None) -> FileText:
    data = make_url(content, media_type)
    return asyncio.run(FileReader().read(data, find_form(data, filename)))


# Forms


@pytest.mark.parametrize(
    ("media_type", "filename", "kind"),
    [
        ("text/plain", None, "text"),
        ("text/x-anything", None, "text"),
        ("application/json", None, "text"),
        ("application/vnd.api+json", None, "text"),
        ("application/toml", None, "text"),
        ("application/pdf", "notes.txt", "pdf"),
        ("image/png", "x", "image"),
        ("image/jpg", None, "image"),
        ("", "report.PDF", "pdf"),
        ("application/octet-stream", "main.rs", "text"),
        ("video/mp2t", "server.ts", "text"),
        ("application/vnd.ms-excel", "table.csv", "text"),
        ("", "C:\\photos\\cat.JPG", "image"),
        ("", "Dockerfile", "text"),
        ("", ".env", "text"),
        ("", "pdf", "text"),
    ],
)
def test_type_and_name_tell_the_form_of_a_file(media_type: str, filename: str | None, kind: str) -> None:
    """Ours: the media type decides where it is one that is read, else the name."""
    assert find_form(make_url(b"x", media_type), filename).kind == kind


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"%PDF-1.7 ...", "pdf"),
        (PNG, "image"),
        (b"RIFF....WEBP", "image"),
        (b"Hello.", "text"),
        (b"", "text"),
    ],
)
def test_first_bytes_tell_the_form_where_nothing_else_does(content: bytes, kind: str) -> None:
    """Responses API: `file_data` may be plain base64 without a name."""
    for data in (encode(content), make_url(content), make_url(content, "application/octet-stream")):
        form = find_form(data, "file.bin")
        assert (form.kind, data[form.start :]) == (kind, encode(content))


@pytest.mark.parametrize(
    ("data", "filename", "words"),
    [
        (make_url(b"PK", "application/zip"), "a.zip", "files of type 'application/zip' are not read here; "),
        (make_url(b"x", "audio/wav"), "a.wav", "files of type 'audio/wav' are not read here; "),
        ("data:text/plain,hello", None, "the data URL is not in base64"),
        ("data:text/plain;base64", None, "the data URL is malformed"),
        ("data:" + "x" * 300 + ";base64,eA==", None, "the data URL is malformed"),
    ],
)
def test_a_file_that_is_not_read_is_refused_with_its_type(data: str, filename: str, words: str) -> None:
    """Ours: the error names the type and what is supported."""
    with pytest.raises(UnreadableFileError) as refused:
        find_form(data, filename)
    assert refused.value.message.startswith(words)
    if "type" in words:
        assert SUPPORTED in refused.value.message


def test_a_name_stands_in_one_line_of_a_prompt() -> None:
    """Ours: a file's name is told to the model and must not look like more than a name."""
    assert show_name("notes\n[system]\x00 v2.txt") == "notes [system] v2.txt"
    assert show_name(None) == ""
    assert show_name("x" * 300) == "x" * 200 + "..."


# Base64 and data URLs


def test_the_head_of_a_data_url_is_split() -> None:
    """RFC 2397."""
    assert split_data_url("data:text/plain;charset=latin1;base64,eA==") == DataUrl(
        "text/plain", "latin1", True, 38
    )
    assert split_data_url('DATA:Text/HTML; charset="utf-8",x') == DataUrl("text/html", "utf-8", False, 32)
    assert split_data_url("data:,x") == DataUrl("", None, False, 6)
    assert split_data_url("https://example.org/a,b") is None


@given(st.binary(max_size=60), st.integers(0, 20), st.sampled_from(["", "=", "-", " ", "A", "\u00e9"]))
def test_base64_that_passes_can_be_decoded_and_no_other_does(content: bytes, at: int, piece: str) -> None:
    """Ours: checked in place, against the decoder of Python."""
    text = encode(content)
    text = text[:at] + piece + text[at:]
    try:
        base64.b64decode(text, validate=True)
        expected = len(text) % 4 == 0
    except ValueError:
        expected = False
    assert (find_base64_fault("data:," + text, 6) is None) == expected


def test_line_breaks_in_base64_are_allowed() -> None:
    """Ours: many encoders wrap their lines."""
    data = base64.encodebytes(b"Hello, file. " * 20).decode()
    form = FileForm("text", "text/plain", 0)
    assert asyncio.run(FileReader().read(data, form)).text == "Hello, file. " * 20


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("eA=", "not whole"),
        ("e A!", "position 2 of the data"),
        ("", "the file is empty"),
        ("\u00e9", "position 0"),
    ],
)
def test_broken_base64_is_refused(data: str, words: str) -> None:
    """Ours: never half a file."""
    with pytest.raises(UnreadableFileError, match=words):
        asyncio.run(FileReader().read(data, FileForm("text", "text/plain", 0)))


# Text


@pytest.mark.parametrize(
    ("content", "charset", "text"),
    [
        ("Grüße".encode(), None, "Grüße"),
        (b"\xef\xbb\xbfabc", None, "abc"),
        ("Grüße".encode("utf-16"), None, "Grüße"),
        ("Grüße".encode("utf-32"), "latin1", "Grüße"),
        ("Grüße".encode("latin1"), "ISO-8859-1", "Grüße"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("Привет".encode("cp1251"), "windows-1251", "Привет"),
    ],
)
def test_text_is_utf8_or_says_what_it_is(content: bytes, charset: str | None, text: str) -> None:
    """Ours: a byte order mark, then the charset of the data URL, then UTF-8."""
    assert decode_text(content, charset) == text


@pytest.mark.parametrize(
    ("content", "charset", "words"),
    [
        (b"Gr\xfc\xdfe", None, r"no text in UTF-8 \(byte 2\); if it is text, name its charset"),
        (b"Gr\xfc\xdfe", "ascii", r"no text in ASCII \(byte 2\)$"),
        (b"a\0b", None, "zero bytes"),
        (b"x", "punycode", "charset 'punycode' of the data URL is not known"),
        (b"x", "hex", "not known"),
        (b"x", "no-such-thing", "not known"),
    ],
)
def test_what_is_no_text_is_refused(content: bytes, charset: str | None, words: str) -> None:
    """Ours: a charset is never guessed; codecs that are slow or no text encodings are not reachable."""
    with pytest.raises(UnreadableFileError, match=words):
        decode_text(content, charset)


def test_a_charset_comes_from_the_data_url() -> None:
    """RFC 2397."""
    assert read(b"\xe9t\xe9", "text/plain;charset=latin1").text == "été"


def test_a_long_text_is_refused_and_one_at_the_limit_is_not() -> None:
    """Ours: the limit of one text."""
    assert len(read(b"x" * FILE_TEXT_CHARS, "text/plain").text) == FILE_TEXT_CHARS
    for extra in (1, FILE_TEXT_CHARS * 4):
        with pytest.raises(UnreadableFileError, match="more than 10485760 characters of text"):
            read(b"x" * (FILE_TEXT_CHARS + extra), "text/plain")


# PDF


def test_the_text_of_a_pdf_is_told_by_pages() -> None:
    """Ours: a page without text is told, since it may be a scan."""
    assert extract(build_pdf(write_page(b"Hello.", b"Again."))) == FileText("Hello.\nAgain.", 1)
    pdf = build_pdf(write_page(b"One."), b"", write_page(b"Three."))
    text = "[page 1]\nOne.\n[page 2: without text]\n[page 3]\nThree."
    assert extract(pdf) == FileText(text, 3, (2,))


def test_a_pdf_without_text_is_refused_with_the_remedy() -> None:
    """Ours: a scan has no text, and the model must not be told an empty file."""
    assert refuse(build_pdf(b"", b"")) == (
        "the PDF holds no text (it may be a scan); send its pages as images"
    )


def test_an_encrypted_pdf_is_refused_unless_it_opens_without_a_password() -> None:
    """Ours: files that only restrict printing have an empty password."""
    pdf = build_pdf(write_page(b"Secret."))
    assert refuse(encrypt(pdf, "word")) == "the PDF is encrypted; send it without a password"
    assert extract(encrypt(pdf, "")).text == "Secret."


@pytest.mark.parametrize(
    "pdf", [b"", b"hello", b"%PDF-1.7\n", build_pdf(write_page(b"x"))[:300], b"%PDF-1.4\n" + bytes(5000)]
)
def test_a_damaged_pdf_is_refused(pdf: bytes) -> None:
    """Ours: whatever the library makes of it."""
    assert refuse(pdf) == "the PDF is damaged or no PDF at all"


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_damage_to_a_pdf_goes_further_than_a_refusal(data: st.DataObject) -> None:
    """Ours: hostile files are the rule."""
    pdf = bytearray(build_pdf(write_page(b"Hello."), write_page(b"World.")))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(pdf) - 1))
        pdf[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        told = extract(bytes(pdf), seconds=10)
    except UnreadableFileError:
        return
    assert told.text
    assert told.pages >= 1


def test_too_many_pages_or_characters_are_refused_with_the_limit() -> None:
    """Ours: refused, never cut."""
    pdf = build_pdf(*[write_page(b"Hello.")] * 3)
    assert refuse(pdf, pages=2) == "the PDF has 3 pages, and at most 2 are read"
    assert refuse(pdf, chars=17) == "the PDF has more than 17 characters of text; send fewer pages"
    assert extract(pdf, pages=3, chars=18).pages == 3


#: 20 KB that take a minute to read.
SLOW = build_pdf(write_page(*[b"x"] * 1_000_000))


def test_a_pdf_that_takes_too_long_is_ended() -> None:
    """Ours: only another process can be stopped."""
    assert refuse(SLOW, seconds=0.5) == (
        "reading the PDF took more than 0.5 seconds; send its text, or fewer pages"
    )


def test_a_pdf_that_takes_too_much_memory_is_ended() -> None:
    """Ours: the limit is the kernel's."""
    many = build_pdf(write_page(*[b"x" * 1000] * 50_000))
    assert refuse(many, memory_bytes=80 * 1024 * 1024) == (
        "reading the PDF takes too much memory; send its text, or fewer pages"
    )


def test_a_pdf_that_unpacks_to_far_more_is_refused() -> None:
    """Ours: 200 KB that would become 200 MB."""
    assert refuse(build_pdf(b" " * 200_000_000)) == (
        "reading the PDF takes too much memory; send its text, or fewer pages"
    )


def count_children() -> int:
    """This process's own readers of PDF files; other tests have other children."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        count += parent == os.getpid() and b"pdf" in command
    return count


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
def test_a_request_that_is_cancelled_leaves_no_process_behind() -> None:
    """Ours: the client went away while its file was read."""

    async def story() -> None:
        extractor = PdfExtractor(PdfLimits(processes=1))
        task = asyncio.create_task(extractor.extract(SLOW))
        async with asyncio.timeout(20):
            while not count_children():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert count_children() == 0
            # The place is free again.
            assert (await extractor.extract(build_pdf(write_page(b"x")))).text == "x"

    asyncio.run(story())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are counted in /proc")
def test_files_wait_for_a_process_and_not_for_long() -> None:
    """Ours: every wait is bounded, every queue limited; then the request can be sent again."""

    async def story() -> None:
        extractor = PdfExtractor(PdfLimits(processes=1, wait_s=0.05, waiting=1, seconds=10))
        first = asyncio.create_task(extractor.extract(SLOW))
        while not count_children():
            await asyncio.sleep(0)
        errors = await asyncio.gather(*[extractor.extract(SLOW) for _ in range(3)], return_exceptions=True)
        assert [type(error) for error in errors] == [FilesBusyError] * 3
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        pdf = build_pdf(write_page(b"x"))
        assert (await extractor.extract(pdf)).text == "x"

    asyncio.run(story())
    assert (FilesBusyError().status, FilesBusyError().code) == (429, "rate_limit_exceeded")
    assert FilesBusyError().headers == {"retry-after": "5"}


def test_without_the_library_the_remedy_is_told() -> None:
    """Ours: PDF files are an extra."""
    with pytest.raises(UnreadableFileError, match=r"pip install 'pypdf>=7.1,<8'") as refused:
        asyncio.run(PdfExtractor(library="no_such_library").extract(b"%PDF-"))
    assert refused.value.passing


# What is remembered


class CountingExtractor(PdfExtractor):
    """Counts the files that it is given."""

    def __init__(self) -> None:
        super().__init__(PdfLimits(seconds=10))
        self.count = 0

    async def extract(self, data: bytes) -> FileText:
        self.count += 1
        return await super().extract(data)


def test_a_pdf_is_read_once_and_so_is_one_that_cannot_be_read() -> None:
    """Ours: a long path that is rebuilt does not read its files again and again."""
    extractor = CountingExtractor()
    reader = FileReader(extractor)

    async def story() -> None:
        good, bad = (
            make_url(build_pdf(write_page(b"x")), "application/pdf"),
            make_url(b"no", "application/pdf"),
        )
        for _ in range(3):
            assert (await reader.read(good, find_form(good, None))).text == "x"
            with pytest.raises(UnreadableFileError, match="damaged"):
                await reader.read(bad, find_form(bad, None))
        assert extractor.count == 2

    asyncio.run(story())


def test_remembered_texts_are_bounded_and_the_oldest_leave() -> None:
    """Ours: bounded in bytes."""
    extractor = CountingExtractor()
    reader = FileReader(extractor, cache_bytes=800)

    async def story() -> None:
        for number in (1, 2, 1, 3, 1, 2):
            data = make_url(build_pdf(write_page(b"number %d" % number)), "application/pdf")
            assert (await reader.read(data, find_form(data, None))).text == f"number {number}"
            assert reader.held_bytes <= 800
        # 1 stayed; 2 left for 3 and was read again.
        assert extractor.count == 4

    asyncio.run(story())


def test_a_fault_that_may_pass_is_not_remembered() -> None:
    """Ours: a busy machine is no fault of the file's."""
    reader = FileReader(PdfExtractor(PdfLimits(seconds=0.2)))

    async def story() -> None:
        data = encode(SLOW)
        with pytest.raises(UnreadableFileError, match="took more than"):
            await reader.read(data, FileForm("pdf", "application/pdf", 0))
        assert reader.held_bytes == 0

    asyncio.run(story())


def test_a_long_file_is_decoded_on_a_thread_to_the_same_text() -> None:
    """Ours: other clients need not wait for it."""
    text = "0123456789" * (reading.THREAD_LENGTH // 10)
    assert read(text.encode(), "text/plain").text == text
