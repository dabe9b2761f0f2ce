"""The last response of each server, so that `ask --continue` can go on from it.

One small JSON file in the user's state folder, readable by this user alone. It knows no server.
Invariant: the file is replaced whole, never half written.
"""

import os
import tempfile
from pathlib import Path

import msgspec

from antiphon.protocol.errors import AntiphonError

FILE_NAME = "continuations.json"


class Continuation(msgspec.Struct, frozen=True):
    """Where a conversation stands: the response to continue from, and the model that gave it."""

    response_id: str
    model: str


def load_continuations(folder: Path) -> dict[str, Continuation]:
    """The continuations by server URL; empty when nothing was asked yet."""
    path = folder / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Continuation])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise AntiphonError(f"{path} cannot be read ({error}). Remove it to start afresh.") from error
    except OSError as error:
        raise AntiphonError(f"{path} cannot be read: {error.strerror}.") from error


def record_continuation(folder: Path, url: str, continuation: Continuation) -> None:
    """Remember the newest response of a server; the file is readable by this user alone."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        continuations = {**load_continuations(folder), url: continuation}
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
