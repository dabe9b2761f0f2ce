"""Runs Python programs against a server, with today's packages in an environment of their own.

It knows no program. Invariant: a program ends in time, and runs in a folder of its own with no other's settings.
"""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.clients.guides import ADDRESS, MARK, Example, check_outputs, read_examples
from tests.clients.installed import find_python
from tests.docs.blocks import ROOT, read_blocks

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM_S = 60.0


def run_command(command: Sequence[str], folder: Path, **variables: str) -> str:
    """What a command of that environment prints; it must succeed."""
    programs = find_python().parent
    program = programs / command[0]
    environ = {
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": str(folder),
        "NO_COLOR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        **variables,
    }
    done = subprocess.run(
        [str(program) if program.exists() else command[0], *command[1:]],
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


def run_python_tests(name: str, folder: Path, *chosen: str, **variables: str) -> None:
    """A program of `unittest`: every test of it, or of the chosen classes, ran, and none failed."""
    program = PROGRAMS / name
    said = run_command(["python", str(program), *chosen], folder, **variables)
    found = re.search(r"^Ran (\d+) tests? in .*\n\nOK$", said, re.MULTILINE)
    assert found is not None, said
    wanted = count_tests(program.read_text(encoding="utf-8"), chosen)
    assert int(found[1]) == wanted > 0, said


def count_tests(text: str, chosen: Sequence[str]) -> int:
    """How many tests a program has, in all or in the chosen classes."""
    classes = re.split(r"^class (\w+)", text, flags=re.MULTILINE)[1:]
    tests = {
        name: len(re.findall(r"^    (?:async )?def test_", body, re.MULTILINE))
        for name, body in zip(classes[::2], classes[1::2], strict=True)
    }
    return sum(tests[name] for name in chosen or tests)


def run_guide(name: str, url: str, folder: Path) -> None:
    """The examples of a guide are one program that prints what the guide says."""
    examples = read_program(name)
    program = f'\nprint("{MARK}")\n'.join(example.block.text for example in examples)
    (folder / "guide.py").write_text(program.replace(ADDRESS, url), encoding="utf-8")
    outputs = run_command(["python", "guide.py"], folder).split(f"{MARK}\n")
    check_outputs(name, examples, outputs)


def read_program(name: str) -> list[Example]:
    """The Python of `docs/guides/NAME`, also where `tests/docs` runs it with the packages of this project."""
    examples = read_examples(name, "py")
    blocks = read_blocks(ROOT / "docs" / "guides" / name)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language == "python":
            shown = after.text if after is not None and after.comment == "output" else None
            examples.append(Example(block, shown))
    return examples
