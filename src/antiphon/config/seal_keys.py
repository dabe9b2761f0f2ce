"""Where the keys of seals are kept: a file of mode 0600, or a variable that the configuration names.

It knows nothing of what is sealed. Invariant: the file is there whole or not at all, no two starts make two of them,
and a file that others can read is not used.
"""

import contextlib
import datetime
import fcntl
import os
import secrets
import stat
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from antiphon.config.settings import Config
from antiphon.context.seal import KEY_BYTES, SealKeys, derive_key_id
from antiphon.protocol.errors import AntiphonError

FILE_NAME: Final = "seal-keys.toml"
#: A file that is larger holds something else.
FILE_MAX_BYTES: Final = 1 << 20
#: Making or changing the file waits this long for another process that does.
LOCK_WAIT_S: Final = 5.0
_LOCK_PAUSE_S: Final = 0.02

#: What is told to whoever would change keys that a variable holds.
FIXED_KEYS: Final = (
    "The keys stand in the variable {}. Put a new one (openssl rand -hex 32) in front there, or remove one there, "
    "and start the server again."
)

_OPENING = """\
# The keys of this server's seals. Whoever reads this file can open what the server sealed for its clients; without it
# nobody can. The first key seals, all of them open. `antiphon keys rotate` changes it.
"""


class SealKeyError(AntiphonError):
    """The seal keys cannot be used."""


class SealKeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One key as it is kept; `created` is None for a key of a variable. It never shows the key."""

    id: str
    created: datetime.datetime | None = None
    key: str

    def reveal(self) -> bytes:
        """The key itself, for the one place that seals with it."""
        return bytes.fromhex(self.key)

    def __repr__(self) -> str:
        return f"SealKeyEntry({self.id}, hidden)"


class _KeyFile(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[SealKeyEntry]

    def __repr__(self) -> str:
        return f"_KeyFile({len(self.keys)} keys)"


def load_seal_keys(config: Config) -> SealKeys:
    """The keys of a server that starts; the file is made where there is none. Raises `SealKeyError`."""
    entries = list_seal_keys(config)
    if not entries:
        path = locate_seal_keys(config)
        with _change_file(path):
            # Another start may have made it since.
            entries = _read_file(path)
            if not entries:
                entries = [_make_entry()]
                _write_file(path, entries)
    return SealKeys({entry.id: entry.reveal() for entry in entries}, entries[0].id)


def list_seal_keys(config: Config) -> list[SealKeyEntry]:
    """The keys, the current one first; none before the first start. Raises `SealKeyError`."""
    if config.seal.keys:
        texts = [secret.reveal() for secret in config.seal.keys]
        return [SealKeyEntry(id=derive_key_id(bytes.fromhex(text)), key=text) for text in texts]
    return _read_file(locate_seal_keys(config))


def rotate_seal_keys(config: Config, *, retire: str | None = None) -> SealKeyEntry:
    """Put a new current key before the others, and with `retire` remove one of them; returns the new key.

    Raises `SealKeyError`, also for keys that stand in a variable and for a key that is not there.
    """
    if config.seal.keys:
        raise SealKeyError(FIXED_KEYS.format(config.seal.keys_env))
    path = locate_seal_keys(config)
    with _change_file(path):
        entries = _read_file(path)
        if retire is not None and retire not in (entry.id for entry in entries):
            known = ", ".join(entry.id for entry in entries) or "none"
            raise SealKeyError(f"There is no key {retire} in {path}. There are: {known}.")
        entry = _make_entry()
        _write_file(path, [entry, *(one for one in entries if one.id != retire)])
    return entry


def locate_seal_keys(config: Config) -> Path:
    """The file of the keys, whether or not it is there."""
    return Path(config.seal.file) if config.seal.file else Path(config.server.data) / FILE_NAME


def _make_entry() -> SealKeyEntry:
    key = secrets.token_bytes(KEY_BYTES)
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return SealKeyEntry(id=derive_key_id(key), created=now, key=key.hex())


def _read_file(path: Path) -> list[SealKeyEntry]:
    """The keys in a file; none where there is no file."""
    try:
        text = _read_private(path)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _explain(path, "read", error) from error
    remedy = "Restore it from a copy, or move it away to start with a new key; what was sealed is then lost."
    try:
        entries = msgspec.convert(tomllib.loads(text.decode("utf-8")), _KeyFile).keys
        whole = bool(entries) and all(_is_whole(entry) for entry in entries)
    except (ValueError, RecursionError):
        # What the parsers say may quote a key.
        whole = False
    if not whole or len({entry.id for entry in entries}) < len(entries):
        raise SealKeyError(f"{path} is damaged or is no file of seal keys. {remedy}")
    return entries


def _read_private(path: Path) -> bytes:
    """The bytes of a file that its owner alone can read."""
    # A pipe must not make the start wait.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise SealKeyError(f"{path} is no file. Move it away, or set seal.file.")
        if found.st_mode & 0o077:
            raise SealKeyError(
                f"{path} can be read or changed by others (mode {stat.S_IMODE(found.st_mode):04o}). "
                f"Run: chmod 600 {path}. If others may have read it, then also: antiphon keys rotate"
            )
        return file.read(FILE_MAX_BYTES)


def _is_whole(entry: SealKeyEntry) -> bool:
    key = entry.reveal()
    return len(key) == KEY_BYTES and entry.id == derive_key_id(key)


def _write_file(path: Path, entries: list[SealKeyEntry]) -> None:
    """Put a whole file in place of the old one, by steps that each survive a crash."""
    parts = [_OPENING, *(_render_entry(entry) for entry in entries)]
    # Where the path is a link, the file that it means is replaced, and the link stays.
    target = path.resolve()
    draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}.new")
    try:
        opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(opened, "wb") as file:
            file.write("\n".join(parts).encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        raise _explain(path, "written", error) from error
    finally:
        draft.unlink(missing_ok=True)


def _render_entry(entry: SealKeyEntry) -> str:
    created = "" if entry.created is None else f"created = {entry.created.isoformat()}\n"
    return f'[[keys]]\nid = "{entry.id}"\n{created}key = "{entry.key}"\n'


@contextlib.contextmanager
def _change_file(path: Path) -> Iterator[None]:
    """The folder's lock, under which the file is made or changed by one process at a time."""
    try:
        parent = path.resolve().parent
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _explain(path, "written", error) from error
    try:
        _lock(folder, path)
        yield
        with contextlib.suppress(OSError):
            # Some file systems cannot flush a folder; the file itself is on the disk.
            os.fsync(folder)
    finally:
        os.close(folder)


def _lock(folder: int, path: Path) -> None:
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise SealKeyError(
                    f"Another process is changing {path}. Try again when it is done."
                ) from None
            time.sleep(_LOCK_PAUSE_S)
        except OSError as error:
            raise _explain(path, "locked", error) from error
        else:
            return


def _explain(path: Path, verb: str, error: OSError) -> SealKeyError:
    return SealKeyError(
        f"{path} cannot be {verb}: {error.strerror or error}. Make it usable for this user alone, choose another data "
        "folder, or set seal.file."
    )
