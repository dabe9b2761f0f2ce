"""The set-up and the run of the client tests: what is skipped, what that excuses, what is installed again."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools.run_client_tests import find_unexcused, read_reasons
from tools.set_up_clients import NotInstalledError, hash_files, read_mark, run, succeeds

SKIPPING = """
import pytest
def test_one(): pytest.skip("npm: the package openai is not there")
def test_two(): pytest.skip("pip: the environment is not there")
def test_three(): pass
@pytest.fixture
def away(): pytest.skip("npm: there is no Node.js")
def test_four(away): pass
"""
NPM, PIP, OTHER = "npm: a package", "pip: a package", "this machine has no curl"


def test_reasons_are_read_from_a_real_report(tmp_path: Path) -> None:
    """Ours: each skipped test is counted, in its body or before it."""
    (tmp_path / "test_it.py").write_text(SKIPPING)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout
    assert sorted(read_reasons(report)) == [
        "npm: the package openai is not there",
        "npm: there is no Node.js",
        "pip: the environment is not there",
    ]


@pytest.mark.parametrize(
    ("npm", "pip", "unexcused"),
    [
        (True, True, [NPM, PIP, OTHER]),
        (False, True, [PIP, OTHER]),
        (True, False, [NPM, OTHER]),
        (False, False, [OTHER]),
    ],
)
def test_only_a_silent_registry_excuses_what_needs_it(npm: bool, pip: bool, unexcused: list[str]) -> None:
    """Ours: a skipped test is no passed test while what it needs can be had."""
    registries = {"npm:": lambda: npm, "pip:": lambda: pip}
    assert find_unexcused([NPM, PIP, OTHER], registries) == unexcused


def test_a_registry_is_not_asked_without_need() -> None:
    """Ours: a run in which nothing was skipped needs no network."""

    def ask() -> bool:
        raise AssertionError("asked")

    assert find_unexcused([], {"npm:": ask}) == []
    assert find_unexcused([OTHER], {"npm:": ask}) == [OTHER]


def test_an_installation_that_fails_says_what_its_command_said(tmp_path: Path) -> None:
    """Ours: the end of the output and the command, for the reader who must act."""
    with pytest.raises(NotInstalledError, match=r"(?s)does the registry answer.*no route"):
        run([sys.executable, "-c", "print('no route'); raise SystemExit(1)"], tmp_path)
    run([sys.executable, "-c", ""], tmp_path)
    assert succeeds([sys.executable, "-c", ""])
    assert not succeeds([sys.executable, "-c", "raise SystemExit(1)"])


def test_a_folder_is_marked_by_what_was_wanted(tmp_path: Path) -> None:
    """Ours: a changed requirement is installed again, an unchanged one is left alone."""
    wanted = tmp_path / "package.json"
    wanted.write_text("{}")
    before = hash_files([wanted])
    assert read_mark(tmp_path) is None
    (tmp_path / ".installed").write_text(before)
    assert read_mark(tmp_path) == hash_files([wanted])
    wanted.write_text('{"private": true}')
    assert read_mark(tmp_path) != hash_files([wanted])
