"""From a file's base64 to its text, with the texts of PDF files remembered.

It knows forms, not items. Invariant: the same data and form always give the same text; what is remembered is
bounded in bytes.
"""

import asyncio
import binascii
import hashlib
import sys
from collections import OrderedDict

from antiphon.engine.files.data_urls import find_base64_fault
from antiphon.engine.files.forms import FileForm
from antiphon.engine.files.pdf import PdfExtractor
from antiphon.engine.files.texts import FileText, check_length, decode_text
from antiphon.engine.files.unreadable import UnreadableFileError

#: Texts of PDF files that are remembered, so that a path that is rebuilt does not extract them again.
CACHE_BYTES = 64 * 1024 * 1024
#: From this length on base64 is decoded on a thread, so that other clients need not wait for it.
THREAD_LENGTH = 512 * 1024
#: Characters of base64 that are decoded at once; a multiple of four.
_CHUNK_LENGTH = 256 * 1024
_WHITESPACE = str.maketrans("", "", " \t\r\n")


class FileReader:
    """Reads files; one for an engine, since it remembers texts and limits how many PDF files are read at once."""

    def __init__(self, extractor: PdfExtractor | None = None, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._extractor = extractor or PdfExtractor()
        self._cache_bytes = cache_bytes
        #: By the hash of a file: its text, or why it has none.
        self._texts: OrderedDict[bytes, FileText | str] = OrderedDict()
        self._held_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the texts that are remembered."""
        return self._held_bytes

    async def read(self, data: str, form: FileForm) -> FileText:
        """The text of a file of the form `text` or `pdf`.

        Raises `UnreadableFileError` for the file's own fault, `FilesBusyError` when it has to be sent again.
        """
        if form.kind == "text":
            check_length((len(data) - form.start) // 4 * 3)
        if len(data) < THREAD_LENGTH:
            opened = _open(data, form)
        else:
            opened = await asyncio.to_thread(_open, data, form)
        return opened if isinstance(opened, FileText) else await self._read_pdf(*opened)

    async def _read_pdf(self, content: bytes, key: bytes) -> FileText:
        known = self._texts.get(key)
        if known is None:
            try:
                known = await self._extractor.extract(content)
            except UnreadableFileError as error:
                if error.passing:
                    raise
                known = error.message
            self._remember(key, known)
        else:
            self._texts.move_to_end(key)
        if isinstance(known, str):
            raise UnreadableFileError(known)
        return known

    def _remember(self, key: bytes, text: FileText | str) -> None:
        if key in self._texts:
            return
        self._texts[key] = text
        self._held_bytes += _measure(text)
        while self._held_bytes > self._cache_bytes:
            _, dropped = self._texts.popitem(last=False)
            self._held_bytes -= _measure(dropped)


def decode_base64(data: str, start: int) -> bytes:
    """The bytes of base64 that begins at `start`, line breaks in it allowed; raises `UnreadableFileError`."""
    fault = find_base64_fault(data, start)
    if fault is not None:
        data, start = data[start:].translate(_WHITESPACE), 0
        fault = find_base64_fault(data)
    if fault is not None:
        raise UnreadableFileError(fault)
    pieces = [
        binascii.a2b_base64(data[at : at + _CHUNK_LENGTH]) for at in range(start, len(data), _CHUNK_LENGTH)
    ]
    return b"".join(pieces)


def _open(data: str, form: FileForm) -> FileText | tuple[bytes, bytes]:
    """A text, or the bytes of a PDF and their hash."""
    content = decode_base64(data, form.start)
    if not content:
        raise UnreadableFileError("the file is empty")
    if form.kind == "text":
        return FileText(decode_text(content, form.charset))
    return content, hashlib.sha256(content).digest()


def _measure(text: FileText | str) -> int:
    return sys.getsizeof(text if isinstance(text, str) else text.text) + 256
