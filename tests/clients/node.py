"""Runs a JavaScript program against a server, with the installed npm packages and the Node.js that they need.

It knows no program. Invariant: a program ends in time, and runs in a folder of its own with no other's settings.
"""

import os
import re
import subprocess
from pathlib import Path

from tests.clients.installed import find_node, find_node_package

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM_S = 60.0


def run_node(text: str, folder: Path, **variables: str) -> str:
    """What a module prints; it can import every installed package, and must succeed."""
    packages = find_node_package("openai").parent
    node = find_node()
    link = folder / "node_modules"
    if not link.exists():
        link.symlink_to(packages)
    program = folder / "program.mjs"
    program.write_text(text, encoding="utf-8")
    environ = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "NO_COLOR": "1", **variables}
    done = subprocess.run(
        [str(node), program.name],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def run_node_tests(name: str, folder: Path, **variables: str) -> None:
    """A program of `node:test`: every test of it ran, and none failed."""
    text = (PROGRAMS / name).read_text(encoding="utf-8")
    said = run_node(text, folder, **variables)
    found = re.search(r"^(?:#|ℹ) pass (\d+)$", said, re.MULTILINE)
    assert found is not None, said
    assert int(found[1]) >= len(re.findall(r"^ *test\(", text, re.MULTILINE)) > 0, said
