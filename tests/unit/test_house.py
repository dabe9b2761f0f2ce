"""The house keeps its own rules: what no import contract can say, read from the source itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "antiphon"
PURE = ("protocol", "sessions", "context")
#: Calls and attributes that a pure package may not use: files, clocks, randomness, the environment.
IMPURE_NAMES = {"open", "input", "print", "breakpoint"}
IMPURE_ATTRIBUTES = {
    ("datetime", "now"),
    ("datetime", "today"),
    ("datetime", "utcnow"),
    ("date", "today"),
    ("os", "environ"),
    ("os", "getenv"),
    ("os", "urandom"),
}
EMPTY_NAMES = {"utils", "util", "helpers", "common", "misc", "manager", "core", "base"}


def iter_modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders or ("",):
        for path in sorted((SOURCE / folder).rglob("*.py")):
            yield str(path.relative_to(SOURCE)), ast.parse(path.read_text(encoding="utf-8"))


def iter_attributes(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr, node.lineno


def test_pure_packages_open_no_file_and_read_no_clock_or_randomness() -> None:
    """Ours: protocol, sessions and context take times, nonces and texts as arguments."""
    faults = []
    for name, tree in iter_modules(*PURE):
        faults += [
            f"{name}:{node.lineno} calls {node.func.id}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_NAMES
        ]
        faults += [
            f"{name}:{line} uses {owner}.{attribute}"
            for owner, attribute, line in iter_attributes(tree)
            if (owner, attribute) in IMPURE_ATTRIBUTES
        ]
    assert faults == []


def test_only_the_configuration_reads_the_environment() -> None:
    """Ours: one reader, so that every setting has one place that says where it came from."""
    readers = {
        name
        for name, tree in iter_modules()
        for owner, attribute, _ in iter_attributes(tree)
        if owner == "os" and attribute in {"environ", "getenv", "getenvb", "environb"}
    }
    assert {name for name in readers if not name.startswith("config/")} == set()


def test_every_module_says_what_it_is() -> None:
    """Style: a module's docstring is its first statement; a package's `__init__` holds names alone."""
    silent = [name for name, tree in iter_modules() if not ast.get_docstring(tree)]
    assert silent == []
    busy = [
        name
        for name, tree in iter_modules()
        if name.endswith("__init__.py")
        and name != "cli/__init__.py"
        and any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
    ]
    assert busy == []


def test_no_name_says_nothing() -> None:
    """Style: no utils, helpers, common, misc, manager, core or base."""
    paths = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py")]
    assert [str(path) for path in paths if EMPTY_NAMES & {*path.parent.parts, path.stem}] == []


@pytest.mark.parametrize("folder", PURE)
def test_pure_packages_are_there(folder: str) -> None:
    """Guards the tests above against looking at nothing."""
    assert list((SOURCE / folder).glob("*.py"))
