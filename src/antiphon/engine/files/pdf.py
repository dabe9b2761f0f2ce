"""The text of a PDF, by a child process that ends when it takes too much.

A PDF of some kilobytes can keep its reader busy for hours or fill any memory, and a thread cannot be stopped;
so this process hands the bytes to another one. Invariant: no child outlives the call that started it.
"""

import asyncio
import contextlib
import importlib.util
import json
import math
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from antiphon.engine.files.texts import FileText
from antiphon.engine.files.unreadable import FilesBusyError, UnreadableFileError

_CHILD = Path(__file__).with_name("pdf_child.py")


class PdfLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What reading one PDF may take. Measured: 500 pages of 50 lines take 1.1 s and 46 MiB, one page 0.07 s.

    `processes` children run at once; a further file waits up to `wait_s`, and at most `waiting` files do.
    """

    seconds: float = 20.0
    memory_bytes: int = 1024 * 1024 * 1024
    pages: int = 2000
    chars: int = 10_485_760
    processes: int = 2
    wait_s: float = 60.0
    waiting: int = 32


class PdfExtractor:
    """Reads PDF files with pypdf (the extra `pdf`)."""

    def __init__(self, limits: PdfLimits = PdfLimits(), *, library: str = "pypdf") -> None:  # noqa: B008
        self._limits = limits
        self._library = library
        self._slots = asyncio.Semaphore(limits.processes)
        self._waiting = 0

    async def extract(self, data: bytes) -> FileText:
        """The text, each page under its number; raises `UnreadableFileError` or `FilesBusyError`."""
        folder = self._find_library()
        async with self._take_slot():
            answer = await self._run(folder, data)
        head, _, body = answer.partition(b"\n")
        told: dict[str, Any] = json.loads(head)
        if "failure" in told:
            raise UnreadableFileError(self._explain(told))
        return _lay_out(body.decode().split("\f"))

    def _find_library(self) -> str:
        spec = importlib.util.find_spec(self._library)
        if spec is None or spec.origin is None:
            raise UnreadableFileError(
                "this server does not read PDF files; whoever runs it can add that: pip install 'pypdf>=7.1,<8'",
                passing=True,
            )
        return str(Path(spec.origin).parent.parent)

    @contextlib.asynccontextmanager
    async def _take_slot(self) -> AsyncIterator[None]:
        if self._waiting >= self._limits.waiting:
            raise FilesBusyError
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise FilesBusyError from None
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()

    async def _run(self, folder: str, data: bytes) -> bytes:
        """What a child answers; it has ended when this returns or raises."""
        limits = self._limits
        numbers = (limits.pages, limits.chars, math.ceil(limits.seconds), limits.memory_bytes)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Isolated and without site: no module, variable or hook of this machine runs in it.
            *("-I", "-S", str(_CHILD), folder, *map(str, numbers)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            # Keys stand in the environment, and a child that reads foreign files needs none.
            env={},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limits.seconds):
                answer, _ = await process.communicate(data)
        except TimeoutError:
            raise self._make_too_slow() from None
        finally:
            await _end(process)
        if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
            raise self._make_too_slow()
        if process.returncode != 0 or not answer:
            raise UnreadableFileError("the PDF is damaged or no PDF at all")
        return answer

    def _make_too_slow(self) -> UnreadableFileError:
        # A machine that is busy may have been the reason.
        return UnreadableFileError(
            f"reading the PDF took more than {self._limits.seconds:g} seconds; send its text, or fewer pages",
            passing=True,
        )

    def _explain(self, told: dict[str, Any]) -> str:
        reasons = {
            "encrypted": "the PDF is encrypted; send it without a password",
            "memory": "reading the PDF takes too much memory; send its text, or fewer pages",
            "pages": f"the PDF has {told.get('pages')} pages, and at most {self._limits.pages} are read",
            "chars": f"the PDF has more than {self._limits.chars} characters of text; send fewer pages",
        }
        return reasons[told["failure"]]


def _lay_out(texts: list[str]) -> FileText:
    """Each page under its number; a page without text is told, since it may be the picture of one."""
    blank = tuple(number for number, text in enumerate(texts, 1) if not text)
    if len(blank) == len(texts):
        raise UnreadableFileError("the PDF holds no text (it may be a scan); send its pages as images")
    if len(texts) == 1:
        return FileText(texts[0], 1)
    pages = [
        f"[page {number}]\n{text}" if text else f"[page {number}: without text]"
        for number, text in enumerate(texts, 1)
    ]
    return FileText("\n".join(pages), len(texts), blank)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    # It was killed, so this takes a moment; the child is not left behind when the request is cancelled.
    await asyncio.shield(process.wait())
