"""Puts the programs and packages of other people, which `tests/clients` drives, into `.clients`: `make clients`.

`requirements/clients` says which: those of npm are locked, those of Python are today's. It asks pip and npm as they
are configured here and needs no rights. Invariant: what is there and fresh is left alone; every command is bounded.
"""

import argparse
import fcntl
import hashlib
import shutil
import subprocess
import sys
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


def set_up_node() -> None:
    """The locked npm packages, a Node.js of their own among them; nothing of theirs is run."""
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalledError("there is no npm (on Debian: apt-get install nodejs npm)")
    wanted = [WANTED / "package.json", WANTED / "package-lock.json"]
    folder = PLACE / "node"
    mark = hash_files(wanted)
    if read_mark(folder) == mark:
        return
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
    if read_mark(folder) == mark and not newest and time.time() - stamp.stat().st_mtime < FRESH_S:
        return
    stamp.unlink(missing_ok=True)
    python = folder / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", str(folder)], ROOT)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
    run([*pip, "--upgrade", "--upgrade-strategy", "eager", "-r", str(wanted)], ROOT)
    stamp.write_text(mark)


def ask_npm() -> bool:
    """Whether npm's registry answers now."""
    npm = shutil.which("npm")
    return npm is not None and succeeds(
        [npm, "view", "openai", "version", "--prefer-online", "--fetch-retries=1", *_NPM_QUIET]
    )


def ask_pip() -> bool:
    """Whether pip's index answers now."""
    pip = [sys.executable, "-m", "pip", "--no-cache-dir", "--retries", "1", "--no-input"]
    return succeeds([*pip, "index", "versions", "openai"])


def set_up(*, newest: bool) -> list[str]:
    """Both folders; what could not be installed, and why."""
    parts: dict[str, Callable[[], None]] = {
        "npm": set_up_node,
        "pip": lambda: set_up_python(newest=newest),
    }
    faults = []
    with hold_lock():
        for name, install in parts.items():
            try:
                install()
            except NotInstalledError as error:
                faults.append(f"{name}: {error}")
    return faults


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
    except subprocess.TimeoutExpired:
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
