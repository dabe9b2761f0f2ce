"""Where the programs and packages of other people are, once `make clients` has installed them.

It installs nothing. Invariant: what is not there skips the test, with a reason that begins with its registry;
`tools/run_client_tests.py` counts these and lets none pass while that registry answers.
"""

import functools
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[2] / ".clients"
_PACKAGES = PLACE / "node" / "node_modules"
_REMEDY = "`make clients` installs it"
#: What the npm packages ask for.
_NODE = (22, 19)
_VERSION_S = 30.0


def find_python() -> Path:
    """The interpreter of the environment with today's Python packages."""
    python = PLACE / "venv" / "bin" / "python"
    if not (PLACE / "venv" / ".installed").exists() or not python.exists():
        pytest.skip(f"pip: the environment of the client packages is not there; {_REMEDY}")
    return python


def find_node_package(name: str) -> Path:
    """The folder of an npm package."""
    folder = _PACKAGES / name
    if not (PLACE / "node" / ".installed").exists() or not folder.is_dir():
        pytest.skip(f"npm: the package {name} is not there; {_REMEDY}")
    return folder


def find_codex() -> Path:
    """Codex itself, without the launcher that npm puts before it."""
    return _find_program("@openai/codex", "@openai/codex-*/vendor/*/bin/codex")


def find_old_codex() -> Path:
    """The Codex that compacts by a route of its own; its package holds the programs for every machine."""
    machine = "aarch64" if platform.machine() in ("aarch64", "arm64") else "x86_64"
    return _find_program("codex-0.92", f"codex-0.92/vendor/{machine}-unknown-linux-musl/codex/codex")


def _find_program(package: str, pattern: str) -> Path:
    find_node_package(package)
    found = sorted(_PACKAGES.glob(pattern))
    if not found:
        pytest.skip(f"npm: the package {package} has no program for this machine")
    return found[0]


@functools.cache
def find_node() -> Path:
    """A Node.js that is new enough: the installed one, else the machine's."""
    for found in (str(_PACKAGES / ".bin" / "node"), shutil.which("node")):
        if found is not None and Path(found).exists() and _read_version(found) >= _NODE:
            return Path(found)
    wanted = ".".join(map(str, _NODE))
    pytest.skip(f"npm: there is no Node.js {wanted} or newer; {_REMEDY}")


def make_path() -> str:
    """A PATH on which `node` is that one, before everything that is on it already."""
    return f"{find_node().parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def _read_version(node: str) -> tuple[int, int]:
    done = subprocess.run(
        [node, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
    )
    found = re.match(r"v(\d+)\.(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)
