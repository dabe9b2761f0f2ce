"""`antiphon check` as it is typed: exit status, table, JSON, JUnit, selection."""

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from antiphon.checker import MANIFEST, read_script, select_requirements
from antiphon.checker.doubles.faults import KEY
from antiphon.checker.report import TOLD_AREAS
from antiphon.cli import run
from tests.conformance.serving import find_closed_port, serve

Capture = pytest.CaptureFixture[str]


def test_an_honest_server_passes_with_status_0(capsys: Capture) -> None:
    """Ours: no model named, so the server's first is taken."""
    with serve("honest") as address:
        status = run(["check", address, "--seed", "1"])
    output = capsys.readouterr().out
    assert status == 0
    told = [item for item in MANIFEST if item.area in TOLD_AREAS]
    assert [item.id in output for item in told] == [True] * len(told)
    assert f"{len(MANIFEST) - 10} passed, 0 failed, 10 undecided" in output
    assert (
        "--second-key-env was not given or not enough, so these are undecided: websocket.other-key" in output
    )
    errors = len(select_requirements(["errors"]))
    assert f"pass     {errors} of {errors} in errors" in output
    assert output.rstrip().endswith(" requests were answered")
    areas = [line.split()[1] for line in output.splitlines() if line.startswith("-- ")]
    assert areas == list(dict.fromkeys(item.area for item in MANIFEST))
    assert "took toy" in output


def test_what_is_broken_in_a_wide_area_is_shown_and_what_is_kept_is_counted(capsys: Capture) -> None:
    """Ours: hundreds of kept requirements must not hide the one that is broken."""
    with serve("ignores-field-top_p") as address:
        status = run(["check", address, "--model", "toy", "--only", "fields"])
    output = capsys.readouterr().out
    fields = len(select_requirements(["fields"]))
    assert status == 1
    assert "FAIL     fields.top_p" in output
    assert f"pass     {fields - 1} of {fields} in fields" in output
    assert "fields.temperature" not in output


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
    assert len(suite.findall("testcase/failure")) == int(suite.attrib["failures"]) > 13
    assert len(suite.findall("testcase/skipped")) == int(suite.attrib["skipped"]) > 3


def test_a_server_that_is_not_there_is_told_in_one_line_with_status_2(capsys: Capture) -> None:
    """Ours: as JSON every requirement is undecided."""
    place = f"127.0.0.1:{find_closed_port()}"
    assert run(["check", place, "--model", "toy"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"antiphon: Nothing could be tried at http://{place}/v1/responses: ")
    assert len(shown.err.splitlines()) == 1
    assert run(["check", place, "--model", "toy", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["counts"] == {"pass": 0, "fail": 0, "unknown": len(MANIFEST)}


@pytest.mark.parametrize("model", [[], ["--model", "toy"]])
def test_a_server_that_wants_a_key_is_told_with_the_option_that_gives_one(
    capsys: Capture, model: list[str]
) -> None:
    """Ours."""
    with serve("needs-key") as address:
        assert run(["check", address, *model]) == 2
    shown = capsys.readouterr().err
    assert "401" in shown
    assert "--key-env" in shown
    assert len(shown.splitlines()) == 1


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
    assert "not finished in 0.2 s" in capsys.readouterr().err


def test_requirements_are_listed_with_their_sources(capsys: Capture) -> None:
    """Ours: by areas, or one area alone."""
    assert run(["check", "--list", "--only", "fields"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("-- ")] == ["fields"]
    assert [line for line in lines if line.startswith("stream.")] == []
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
        ["check", "127.0.0.1:1", "--second-key-env", "ANTIPHON_TEST_NO_SUCH_VARIABLE"],
        ["check", "127.0.0.1:1", "--rounds", "1"],
        ["check", "127.0.0.1:1", "--window-tokens", "0"],
        ["check", "127.0.0.1:1", "--recall", "-1"],
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


def test_a_second_key_is_taken_from_its_variable(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Ours."""
    monkeypatch.setenv("ANTIPHON_TEST_SECOND_KEY", "key-of-another-tenant")
    arguments = ["--second-key-env", "ANTIPHON_TEST_SECOND_KEY", "--only", "isolation", "--model", "toy"]
    with serve("honest") as address:
        assert run(["check", address, *arguments]) == 0
    with serve("shares-across-keys") as address:
        assert run(["check", address, *arguments]) == 1
    captured = capsys.readouterr()
    assert "read with another key is answered" in captured.out
    assert "key-of-another-tenant" not in captured.out + captured.err


@pytest.mark.parametrize(("name", "status"), [("honest", 0), ("forgets-at-restart", 1)])
def test_the_restart_command_is_run_between_two_requests(name: str, status: int, tmp_path: Path) -> None:
    """Ours: once, by a shell."""
    log = tmp_path / "restarts"
    script = (
        "import sys, urllib.request as u; u.urlopen(u.Request(sys.argv[1], data=b''), timeout=20).close()"
    )
    with serve(name) as address:
        command = f'echo restarted >> {log} && {sys.executable} -c "{script}" http://{address}/restart'
        arguments = ["--model", "toy", "--only", "restart.kept", "--restart-command", command]
        assert run(["check", address, *arguments]) == status
    assert log.read_text().splitlines() == ["restarted"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo no such unit >&2; exit 5", "failed with status 5: no such unit"),
        ("exec sleep 60", "not finished in 2 s"),
    ],
)
def test_a_restart_command_that_fails_or_hangs_is_undecided(command: str, told: str, capsys: Capture) -> None:
    """Ours: in bounded time, and with what the command said."""
    arguments = ["--model", "toy", "--only", "restart.kept", "--restart-command", command, "--timeout", "2"]
    with serve("honest") as address:
        assert run(["check", address, *arguments]) == 2
    assert told in " ".join(capsys.readouterr().out.split())


def test_recall_is_printed_and_decides_nothing(capsys: Capture) -> None:
    """Ours."""
    with serve("mute") as address:
        status = run(["check", address, "--model", "toy", "--only", "state.echo", "--recall", "2"])
    output = capsys.readouterr().out
    assert status == 0
    assert "recall: 0 of 2 words by id, 0 of 2 with no history; the history was counted for 2 of 2" in output
