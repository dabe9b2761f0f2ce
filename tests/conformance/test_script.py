"""`check-responses-state.sh`: the check that needs nothing but sh and Python, on real sockets."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from antiphon.checker import read_script
from antiphon.checker.doubles.faults import KEY
from antiphon.checker.verdicts import Reading, judge_memory
from antiphon.client import resolve_responses_url
from tests.conformance.serving import find_closed_port, serve
from tests.scenarios.process import start_server

SHELLS = [
    shell for shell in (["sh"], ["dash"], ["busybox", "sh"], ["bash", "--posix"]) if shutil.which(shell[0])
]
RUN_S = 50


def run_script(
    folder: Path, *arguments: str, shell: list[str] | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """The script run once from a file, as a user would."""
    script = folder / "check-responses-state.sh"
    script.write_text(read_script(), "utf-8")
    command = [*(shell or ["sh"]), str(script), *arguments]
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, env=env, check=False)


def read_counts(output: str) -> dict[str, str]:
    """The three counts as printed."""
    names = ("by id", "full history", "no history")
    lines = {name: line for line in output.splitlines() for name in names if line.startswith(f"{name} ")}
    return {name: line.removeprefix(name).split()[0] for name, line in lines.items()}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_it_passes_an_honest_server_under_every_shell(shell: list[str], tmp_path: Path) -> None:
    """Ours: by id counts as much as the full history."""
    with serve("honest") as address:
        done = run_script(tmp_path, address, "toy", shell=shell)
    counts = read_counts(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert counts["by id"] == counts["full history"] > counts["no history"]
    assert done.stdout.splitlines()[-1].startswith("pass: ")


@pytest.mark.parametrize("path", ["", "/v1", "/v1/", "/proxy/v1/responses"])
def test_it_fails_a_forgetful_server_with_both_counts_whatever_the_url(path: str, tmp_path: Path) -> None:
    """Public issue ollama/ollama#15954: previous_response_id accepted, answered 200, dropped."""
    with serve("forgetful") as address:
        done = run_script(tmp_path, f"http://{address}{path}", "toy")
    counts = read_counts(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert counts["by id"] == counts["no history"] < counts["full history"]
    assert done.stdout.splitlines()[-1].startswith("fail: ")


@pytest.mark.parametrize(
    ("name", "status", "verdict"),
    [
        ("counts-nothing", 0, "pass"),
        ("forgetful-counts-nothing", 1, "fail"),
        ("mute", 0, "pass"),
        ("mute-counts-nothing", 2, "unknown"),
        ("garbage", 2, "unknown"),
        ("wrong-shapes", 2, "unknown"),
        ("unavailable", 2, "unknown"),
        ("no-such-model", 2, "unknown"),
        ("rejects-own-items", 2, "unknown"),
    ],
)
def test_it_decides_by_counts_then_by_text_then_not_at_all(
    name: str, status: int, verdict: str, tmp_path: Path
) -> None:
    """Ours: the verdict rules of the state probe."""
    with serve(name) as address:
        done = run_script(tmp_path, address, "toy")
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.splitlines()[-1].startswith(f"{verdict}: ")


def test_a_server_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    """Ours."""
    done = run_script(tmp_path, f"127.0.0.1:{find_closed_port()}", "toy")
    assert (done.returncode, done.stderr) == (2, "")
    assert "unknown: no answer from" in done.stdout


def test_a_silent_server_is_unknown_in_bounded_time(tmp_path: Path) -> None:
    """Ours: the bound holds for the whole run."""
    with serve("silent") as address:
        done = run_script(tmp_path, address, "toy", CHECK_TIMEOUT_S="1")
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1].startswith("unknown: ")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("http://127.0.0.1:1",),
        ("--help",),
        ("ftp://127.0.0.1:1", "toy"),
        ("http://u:p@127.0.0.1:1", "toy"),
    ],
)
def test_wrong_use_is_no_verdict(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Ours: exit status 2, and one line that says why."""
    done = run_script(tmp_path, *arguments)
    assert done.returncode == 2
    assert len([line for line in (done.stdout + done.stderr).splitlines() if line]) in (1, 2)


def test_without_python_it_says_so(tmp_path: Path) -> None:
    """Ours: an empty PATH stands for a machine without Python."""
    shell = shutil.which("sh")
    assert shell is not None
    done = run_script(tmp_path, "127.0.0.1:1", "toy", shell=[shell], PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "unknown: this script needs python3\n")


@pytest.mark.parametrize("by_argument", [True, False])
def test_the_key_is_sent_and_never_printed(by_argument: bool, tmp_path: Path) -> None:
    """Ours: from the third argument or from CHECK_API_KEY."""
    with serve("needs-key") as address:
        if by_argument:
            done = run_script(tmp_path, address, "toy", KEY)
        else:
            done = run_script(tmp_path, address, "toy", CHECK_API_KEY=KEY)
    assert (done.returncode, done.stderr) == (0, "")
    assert KEY not in done.stdout


def load_functions() -> dict[str, Any]:
    """The functions of the script, not run."""
    code = read_script().split("<<'EOF'\n")[1].removesuffix("EOF\n")
    names: dict[str, Any] = {"__name__": "check_responses_state"}
    exec(compile(code, "check-responses-state.sh", "exec"), names)
    return names


def test_it_judges_as_the_checker_does() -> None:
    """Ours: the same verdict for every combination of counts and words."""
    judge = load_functions()["judge"]
    counts = (None, 0, 18, 19, 20, 21, 30, 37, 38, 39, 40, 41, 990, 1000, 1009, 1021)
    for tokens in itertools.product(counts, repeat=3):
        for words in itertools.product((True, False), repeat=3):
            readings = [Reading(count, "", word) for count, word in zip(tokens, words, strict=True)]
            assert judge(tokens, words)[0] == judge_memory(*readings).verdict, (tokens, words)


@pytest.mark.parametrize(
    "url",
    [
        "localhost",
        "localhost:11434",
        "127.0.0.1:8300/",
        "192.168.1.7",
        "box.local",
        "models.example",
        "models.example:8000",
        "models.example:443",
        "http://h/v1",
        "https://h/a/v1/responses/",
        "http://h/proxy",
    ],
)
def test_it_finds_the_same_address_as_the_checker(url: str) -> None:
    """Ours: host, base or whole URL."""
    assert load_functions()["resolve"](url) == "{}{}/responses".format(*resolve_responses_url(url))


def test_it_passes_our_own_server(tmp_path: Path) -> None:
    """Ours: what is shipped to judge others judges us too."""
    with start_server(tmp_path) as server:
        done = run_script(tmp_path, server.url, "scripted")
    counts = read_counts(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert counts["by id"] == counts["full history"] > counts["no history"]
