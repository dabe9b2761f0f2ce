"""`antiphon check` as it is typed: exit status, table, JSON, JUnit, selection."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from antiphon.checker import MANIFEST, read_script
from antiphon.checker.doubles.faults import KEY
from antiphon.cli import run
from tests.conformance.serving import find_closed_port, serve

Capture = pytest.CaptureFixture[str]


def test_an_honest_server_passes_with_status_0(capsys: Capture) -> None:
    """Ours: no model named, so the server's first is taken."""
    with serve("honest") as address:
        status = run(["check", address, "--seed", "1"])
    output = capsys.readouterr().out
    assert status == 0
    assert [item.id in output for item in MANIFEST] == [True] * len(MANIFEST)
    assert f"{len(MANIFEST)} passed, 0 failed, 0 undecided" in output
    assert "took toy" in output


def test_a_forgetful_server_fails_with_status_1_and_both_counts(capsys: Capture) -> None:
    """Public issue ollama/ollama#15954."""
    with serve("forgetful") as address:
        status = run(
            ["check", f"http://{address}/any/v1/responses", "--model", "toy", "--only", "state.continues"]
        )
    output = capsys.readouterr().out
    assert status == 1
    assert "FAIL     state.continues" in output
    assert "input_tokens 19 by id, 39 with full history, 19 with none" in output


def test_json_holds_everything_and_nothing_else_is_printed(capsys: Capture) -> None:
    """Ours."""
    with serve("forgetful") as address:
        status = run(
            ["check", address, "--model", "toy", "--only", "state.continues", "--json", "--seed", "7"]
        )
    report = json.loads(capsys.readouterr().out)
    assert (status, report["exit_status"], report["seed"]) == (1, 1, 7)
    assert report["counts"] == {"pass": 0, "fail": 1, "unknown": 0}
    evidence = report["results"][0]["evidence"]
    assert evidence["input_tokens_by_id"] == evidence["input_tokens_no_history"] == 19
    assert evidence["input_tokens_full_history"] == 39


def test_junit_counts_failures_and_undecided_ones(tmp_path: Path, capsys: Capture) -> None:
    """Ours: broken is a failure, undecided is skipped."""
    file = tmp_path / "state.xml"
    with serve("forgetful") as address:
        run(["check", address, "--model", "toy", "--junit", str(file)])
    suite = ElementTree.parse(file).getroot()
    assert suite.attrib["tests"] == str(len(MANIFEST))
    assert len(suite.findall("testcase/failure")) == int(suite.attrib["failures"]) == 13
    assert len(suite.findall("testcase/skipped")) == int(suite.attrib["skipped"]) == 1


def test_a_server_that_is_not_there_is_undecided_with_status_2(capsys: Capture) -> None:
    """Ours."""
    status = run(["check", f"127.0.0.1:{find_closed_port()}", "--model", "toy"])
    output = capsys.readouterr().out
    assert status == 2
    assert f"0 passed, 0 failed, {len(MANIFEST)} undecided" in output


def test_the_chain_is_as_long_as_asked(capsys: Capture) -> None:
    """Ours."""
    with serve("honest") as address:
        run(["check", address, "--model", "toy", "--only", "state.long-chain", "--rounds", "5", "--json"])
    result = json.loads(capsys.readouterr().out)["results"][0]
    assert result["explanation"].startswith("5 rounds; ")
    assert result["evidence"]["rounds_done"] == 4


def test_the_time_of_a_probe_is_bounded(capsys: Capture) -> None:
    """Ours."""
    with serve("silent") as address:
        status = run(["check", address, "--model", "toy", "--timeout", "0.2"])
    assert status == 2
    assert "not finished in 0.2 s" in " ".join(capsys.readouterr().out.split())


def test_requirements_are_listed_with_their_sources(capsys: Capture) -> None:
    """Ours."""
    assert run(["check", "--list"]) == 0
    output = capsys.readouterr().out
    assert [item.id in output and item.source in output for item in MANIFEST] == [True] * len(MANIFEST)


def test_the_script_is_printed_as_it_is_shipped(capsys: Capture) -> None:
    """Ours."""
    assert run(["check", "--print-script"]) == 0
    assert capsys.readouterr().out == read_script()


@pytest.mark.parametrize(
    "arguments",
    [
        ["check"],
        ["check", "ftp://127.0.0.1"],
        ["check", "127.0.0.1:1", "--only", "state.nothing"],
        ["check", "127.0.0.1:1", "--key-env", "ANTIPHON_TEST_NO_SUCH_VARIABLE"],
        ["check", "127.0.0.1:1", "--rounds", "1"],
        ["check", "127.0.0.1:1", "--timeout", "0"],
    ],
)
def test_wrong_use_has_status_2_and_a_message(arguments: list[str], capsys: Capture) -> None:
    """Ours."""
    assert run(arguments) == 2
    assert "Error: " in capsys.readouterr().err


def test_the_key_comes_from_the_variable_that_was_named(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Ours."""
    monkeypatch.setenv("ANTIPHON_TEST_KEY", KEY)
    with serve("needs-key") as address:
        status = run(["check", address, "--key-env", "ANTIPHON_TEST_KEY", "--only", "state.echo", "--json"])
    captured = capsys.readouterr()
    assert status == 0
    assert KEY not in captured.out + captured.err
