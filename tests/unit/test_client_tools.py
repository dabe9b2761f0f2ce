"""The set-up and the run of the client tests: what is skipped, what that excuses, what is installed again."""

import http.server
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tools import set_up_clients
from tools.run_client_tests import find_unexcused, read_reasons
from tools.set_up_clients import (
    Asked,
    NotInstalledError,
    ask,
    ask_npm,
    find_fault,
    hash_files,
    read_mark,
    run,
    set_up,
    set_up_python,
    succeeds,
)

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
        (Asked.ANSWERED, Asked.ANSWERED, [NPM, PIP, OTHER]),
        (Asked.SILENT, Asked.ANSWERED, [PIP, OTHER]),
        (Asked.ANSWERED, Asked.SILENT, [NPM, OTHER]),
        (Asked.SILENT, Asked.SILENT, [OTHER]),
        (Asked.NO_PROGRAM, Asked.SILENT, [NPM, OTHER]),
    ],
)
def test_only_a_silent_registry_excuses_what_needs_it(npm: Asked, pip: Asked, unexcused: list[str]) -> None:
    """Ours: a skipped test is no passed test while what it needs can be had."""
    registries = {"npm:": lambda: npm, "pip:": lambda: pip}
    assert find_unexcused([NPM, PIP, OTHER], registries) == unexcused


def test_a_registry_is_not_asked_without_need() -> None:
    """Ours: a run in which nothing was skipped needs no network."""

    def never() -> Asked:
        raise AssertionError("asked")

    assert find_unexcused([], {"npm:": never}) == []
    assert find_unexcused([OTHER], {"npm:": never}) == [OTHER]


def test_a_program_that_is_not_there_is_no_silent_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: who has no npm, or one that does not run, knows nothing of its registry."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_npm() is Asked.NO_PROGRAM
    assert ask([str(tmp_path / "npm")], ["view"]) is Asked.NO_PROGRAM
    assert ask([sys.executable], ["-c", ""]) is Asked.ANSWERED
    assert ask([sys.executable], ["-c", "raise SystemExit(1)"]) is Asked.SILENT


@pytest.mark.skipif(shutil.which("npm") is None, reason="this machine has no npm")
def test_a_registry_that_is_gone_is_silent_though_npm_kept_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: npm answers from its cache, even with --prefer-online."""
    kept = {
        "name": "openai",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": {"name": "openai", "version": "1.0.0", "dist": {"tarball": "http://x/"}}},
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(kept).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("cache-control", "public, max-age=300")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: tests print what fails."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_address[1]}/")
        monkeypatch.setenv("npm_config_noproxy", "127.0.0.1")
        monkeypatch.setenv("npm_config_cache", str(tmp_path))
        monkeypatch.setenv("npm_config_fetch_retry_mintimeout", "10")
        answers = ask_npm()
        server.shutdown()
        thread.join(20.0)
    assert answers is Asked.ANSWERED
    assert ask_npm() is Asked.SILENT


def test_an_environment_whose_set_up_was_interrupted_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: without its mark it is not trusted; this one has an interpreter and no pip."""
    wanted = tmp_path / "wanted"
    wanted.mkdir()
    (wanted / "python.txt").write_text("")
    monkeypatch.setattr(set_up_clients, "PLACE", tmp_path)
    monkeypatch.setattr(set_up_clients, "WANTED", wanted)
    run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], tmp_path)
    set_up_python(newest=False)
    assert read_mark(tmp_path / "venv") == hash_files([wanted / "python.txt"])
    assert succeeds([str(tmp_path / "venv" / "bin" / "python"), "-m", "pip", "--version"])


def test_a_folder_that_cannot_be_used_is_the_fault_of_its_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: a file in the place of one folder does not keep the other from being tried."""
    monkeypatch.setattr(set_up_clients, "PLACE", tmp_path)
    for name in ("node", "venv"):
        (tmp_path / name).write_text("in the way")
    npm, pip = set_up(newest=True)
    assert npm.startswith(f"npm: {tmp_path / 'node'}")
    assert pip.startswith(f"pip: {tmp_path / 'venv'}")
    monkeypatch.setattr(set_up_clients, "PLACE", tmp_path / "node")
    assert [fault[:4] for fault in set_up(newest=True)] == ["npm:", "pip:"]
    assert find_fault(lambda: None) is None


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
