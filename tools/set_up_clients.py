"""Puts the programs and packages of other people, which `tests/clients` drives, into `.clients`: `make clients`.

`requirements/clients` says which: those of npm are locked, those of Python are today's. It asks pip and npm as they
are configured here and needs no rights. Invariant: what is there and fresh is left alone; every command is bounded.
"""

import argparse
import enum
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WANTED = ROOT / "requirements" / "clients"
PLACE = ROOT / ".clients"
#: No installation takes longer.
INSTALL_S = 600.0
#: A registry that says nothing for so long does not answer.
ASK_S = 60.0
#: Python packages are those of today.
FRESH_S = 24 * 3600.0
_STAMP = ".installed"
_NPM_QUIET = ("--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")


class NotInstalledError(Exception):
    """An installation did not succeed; the message says what to do."""


class Asked(enum.Enum):
    """What became of a question to a registry."""

    ANSWERED = enum.auto()
    SILENT = enum.auto()
    #: There is nothing to ask with, so that nothing is known of the registry.
    NO_PROGRAM = enum.auto()


def set_up_node() -> None:
    """The locked npm packages, a Node.js of their own among them; nothing of theirs is run."""
    wanted = [WANTED / "package.json", WANTED / "package-lock.json"]
    folder = PLACE / "node"
    mark = hash_files(wanted)
    if read_mark(folder) == mark:
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalledError("there is no npm (on Debian: apt-get install nodejs npm)")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _STAMP).unlink(missing_ok=True)
    for path in wanted:
        shutil.copy(path, folder)
    run([npm, "ci", "--ignore-scripts", *_NPM_QUIET], folder)
    (folder / _STAMP).write_text(mark)


def set_up_python(*, newest: bool) -> None:
    """The newest Python packages; asked for again once a day, or now."""
    wanted = WANTED / "python.txt"
    folder = PLACE / "venv"
    stamp = folder / _STAMP
    mark = hash_files([wanted])
    there = read_mark(folder)
    if there == mark and not newest and time.time() - stamp.stat().st_mtime < FRESH_S:
        return
    stamp.unlink(missing_ok=True)
    python = folder / "bin" / "python"
    if there is None or not python.exists():
        # Without the mark it may be half made, without pip for instance.
        run([sys.executable, "-m", "venv", "--clear", str(folder)], ROOT)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
    run([*pip, "--upgrade", "--upgrade-strategy", "eager", "-r", str(wanted)], ROOT)
    stamp.write_text(mark)


def ask_npm() -> Asked:
    """Whether npm's registry answers now; an empty cache, as npm would answer from its own."""
    npm = shutil.which("npm")
    if npm is None:
        return Asked.NO_PROGRAM
    # npm may still write into it when the time is up.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        question = ["view", "openai", "version", "--prefer-online", "--fetch-retries=1"]
        return ask([npm, "--cache", cache], [*question, *_NPM_QUIET])


def ask_pip() -> Asked:
    """Whether pip's index answers now."""
    pip = [sys.executable, "-m", "pip", "--no-cache-dir", "--retries", "1", "--no-input"]
    return ask(pip, ["index", "versions", "openai"])


def ask(program: Sequence[str], question: Sequence[str]) -> Asked:
    """Put a question to a registry; a program that cannot even tell its version does not count as one."""
    if not succeeds([*program, "--version"]):
        return Asked.NO_PROGRAM
    return Asked.ANSWERED if succeeds([*program, *question]) else Asked.SILENT


def set_up(*, newest: bool) -> list[str]:
    """Both folders; what could not be installed, and why."""
    parts: dict[str, Callable[[], None]] = {
        "npm": set_up_node,
        "pip": lambda: set_up_python(newest=newest),
    }
    try:
        with hold_lock():
            told = {name: find_fault(install) for name, install in parts.items()}
    except OSError as error:
        told = dict.fromkeys(parts, explain(error))
    return [f"{name}: {fault}" for name, fault in told.items() if fault is not None]


def find_fault(install: Callable[[], None]) -> str | None:
    """Install; why that could not be done."""
    try:
        install()
    except NotInstalledError as error:
        return str(error)
    except OSError as error:
        return explain(error)
    return None


def explain(error: OSError) -> str:
    """What the operating system refused, and the remedy."""
    return f"{error.filename or PLACE}: {error.strerror}; make it writable, or remove what is in its place"


@contextmanager
def hold_lock() -> Iterator[None]:
    """One set-up of this checkout at a time."""
    PLACE.mkdir(exist_ok=True)
    with (PLACE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def hash_files(paths: Sequence[Path]) -> str:
    """What a folder is marked with, once these files are installed in it."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


def read_mark(folder: Path) -> str | None:
    """The mark of a folder whose installation succeeded."""
    try:
        return (folder / _STAMP).read_text()
    except FileNotFoundError:
        return None


def run(command: Sequence[str], folder: Path) -> None:
    """Run a command to its end; NotInstalledError with the end of what it said."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalledError(f"no end of {' '.join(command[:4])} after {INSTALL_S:.0f} s") from error
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-15:])
        raise NotInstalledError(f"{' '.join(command[:4])} failed; does the registry answer?\n{said}")


def succeeds(command: Sequence[str]) -> bool:
    """Whether a question to a registry is answered in time."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--newest", action="store_true", help="ask for newer Python packages now")
    faults = set_up(newest=parser.parse_args().newest)
    for fault in faults:
        print(f"clients: not installed from {fault}", file=sys.stderr)
    if not faults:
        print(f"clients: installed in {PLACE}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
