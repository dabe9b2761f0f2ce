"""A model's file while it grows: what of it is right, what is still missing, and the reports on it.

It knows no source: hub and registry append to the same file, so one goes on where the other stopped.
Invariant: bytes are only ever appended, never past the file's size, and what is kept of an earlier attempt
was checked part by part.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from antiphon.backends.local.errors import SourceError, StorageError
from antiphon.backends.local.table import LocalModel, Part

BLOCK_BYTES = 1 << 20
Stage = Literal["waiting", "downloading", "checking", "failed", "done"]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a pull is; `message` is a sentence when something changed, and empty for a mere number."""

    stage: Stage
    model: str
    done_bytes: int
    total_bytes: int
    message: str = ""


Report = Callable[[Progress], None]


class DownloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a download."""

    #: The longest wait for a connection.
    connect_timeout_s: float = 15.0
    #: A source that brings less than `stall_bytes` in this time counts as gone.
    stall_timeout_s: float = 120.0
    stall_bytes: int = 64 * 1024
    #: How often a hub that breaks off is asked for the rest, and the pause before each time.
    hub_attempts: int = 5
    retry_wait_s: float = 1.0
    #: The longest wait for another process that downloads.
    lock_timeout_s: float = 3 * 3600.0
    #: Disk space that a download leaves free.
    reserve_bytes: int = 64 * 1024 * 1024
    #: Whether plain http is taken from this very machine (for tests and mirrors on loopback).
    allow_loopback_http: bool = False


class GrowingFile:
    """The file of one model, not yet whole."""

    def __init__(self, stream: io.FileIO, path: Path, model: LocalModel) -> None:
        self._stream = stream
        self.path = path
        self.model = model
        self.size = stream.seek(0, os.SEEK_END)

    @property
    def is_full(self) -> bool:
        """Whether nothing is missing; whether it is right is another question."""
        return self.size == self.model.file_bytes

    def append(self, block: bytes) -> None:
        """Write at the end; raises `SourceError` for more than the file holds, `StorageError` for a full disk."""
        if self.size + len(block) > self.model.file_bytes:
            raise SourceError(f"it sends more than the {self.model.file_bytes:,} bytes of the model.")
        rest = memoryview(block)
        with renaming_errors(self.path.parent):
            while rest:
                written = self._stream.write(rest)
                self.size += written
                rest = rest[written:]

    def cut(self, size: int) -> None:
        """Forget what stands after `size` bytes."""
        if size < self.size:
            with renaming_errors(self.path.parent):
                self._stream.truncate(size)
                self.size = self._stream.seek(size)

    def find_boundary(self) -> int:
        """Where the last whole part ends."""
        end = 0
        for part in self.model.parts:
            if end + part.bytes > self.size:
                break
            end += part.bytes
        return end

    def cut_wrong(self) -> None:
        """Cut at the first part whose hash is wrong.

        A rest that is shorter than its part stays: it is checked once the part is whole. A model without
        parts is checked as a whole at the end.
        """
        start = 0
        for part in self.model.parts:
            if start + part.bytes > self.size:
                return
            if not self.is_right(start, part):
                self.cut(start)
                return
            start += part.bytes

    def is_right(self, start: int, part: Part) -> bool:
        """Whether what stands at `start` is this part."""
        with renaming_errors(self.path.parent):
            found = self._hash(start, part.bytes)
            self._stream.seek(self.size)
        return found == part.sha256

    def hash_whole(self, tick: Callable[[], None]) -> str:
        """The SHA-256 of what is on disk; written through first, so that a power cut cannot undo it."""
        with renaming_errors(self.path.parent):
            os.fsync(self._stream.fileno())
            found = self._hash(0, self.size, tick)
            self._stream.seek(self.size)
            return found

    def _hash(self, start: int, length: int, tick: Callable[[], None] = lambda: None) -> str:
        digest = hashlib.sha256()
        self._stream.seek(start)
        while length and (block := self._stream.read(min(BLOCK_BYTES, length))):
            digest.update(block)
            length -= len(block)
            tick()
        return digest.hexdigest()


@contextmanager
def open_growing(path: Path, model: LocalModel) -> Iterator[GrowingFile]:
    """The growing file at `path`, with what an earlier attempt left and is right."""
    with renaming_errors(path.parent):
        # Unbuffered, so that a write that fails does so here and not when the file is closed.
        stream = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+")
    with stream:
        file = GrowingFile(stream, path, model)
        file.cut(model.file_bytes)
        file.cut_wrong()
        yield file


@contextmanager
def renaming_errors(folder: Path) -> Iterator[None]:
    """An `OSError` inside becomes a `StorageError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"The model cache {folder} cannot be used: {error.strerror or error}. Free space there, or name "
            "another folder: ANTIPHON_LOCAL__CACHE=FOLDER. What was downloaded is kept where it could be."
        ) from error


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def render_bytes(count: int) -> str:
    """A size for people, in decimal units as registries and hubs show it: 491400064 -> `491 MB`."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}" if unit == 10**9 else f"{count // unit} {name}"
    return f"{count} bytes"
