"""The last response of each server and key, so that `ask --continue` can go on from it.

One small JSON file in the user's state folder, readable by this user alone. It knows no server.
Invariant: the file is replaced whole, never half written, and holds no key.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from antiphon.protocol.errors import AntiphonError

FILE_NAME = "continuations.json"

_LOOPBACK = ("localhost", "::1")
_PORTS = {"http": 80, "https": 443}


class Continuation(msgspec.Struct, frozen=True):
    """Where a conversation stands: the response to continue from, the model that gave it, and what it called."""

    response_id: str
    model: str
    #: Calls whose outputs must come next.
    calls: tuple[str, ...] = ()


def name_place(url: str, key: str | None) -> str:
    """What a conversation is remembered under: the server, and which key was sent, told by a hash of it.

    `http://localhost:8300/v1` -> `http://127.0.0.1:8300/v1`: one server, however it was spelled.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = "127.0.0.1" if host in _LOOPBACK else f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _PORTS.get(parts.scheme)) else f":{parts.port}"
    place = f"{parts.scheme}://{host}{port}{parts.path}"
    return place if key is None else f"{place} {hashlib.sha256(key.encode()).hexdigest()[:16]}"


def load_continuations(folder: Path) -> dict[str, Continuation]:
    """The continuations by `name_place`; empty when nothing was asked yet."""
    path = folder / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Continuation])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise AntiphonError(f"{path} cannot be read ({error}). Remove it to start afresh.") from error
    except OSError as error:
        raise AntiphonError(f"{path} cannot be read: {error.strerror}.") from error


def forget_continuation(folder: Path, place: str) -> None:
    """Nothing is continued at a place any more."""
    continuations = load_continuations(folder)
    if continuations.pop(place, None) is not None:
        _write(folder, continuations)


def record_continuation(folder: Path, place: str, continuation: Continuation) -> None:
    """Remember the newest response of a place."""
    _write(folder, {**load_continuations(folder), place: continuation})


def _write(folder: Path, continuations: dict[str, Continuation]) -> None:
    """The file is readable by this user alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A temporary file is made with mode 0600.
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=FILE_NAME)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(continuations))
            Path(name).replace(folder / FILE_NAME)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise AntiphonError(f"The answer cannot be remembered in {folder}: {error.strerror}.") from error
