"""`antiphon check` against our server with a real model behind it, as it is typed."""

import json

import pytest

from tests.real.llama_server import ALIAS
from tests.real.processes import AntiphonServer, run_command

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(240)]

CHECK_S = 150.0
#: Rounds that fit into the small window.
ROUNDS = "6"
#: This model can be made to call, but loops inside arguments until it is cut off, so these may stay undecided;
#: nothing else may.
NEED_TOOLS = {"state.tool-loop", "state.missing-output", "stream.tool-call"}
#: What this weak model can be held to, for it may answer nothing at all; the default model is tried on all areas.
AREAS = ("state", "stream")


def test_the_check_passes_by_counts(antiphon: AntiphonServer) -> None:
    """Ours: nothing broken, and undecided (exit status 2) only what needs tool calls."""
    done = run_command(
        "check",
        antiphon.url,
        "--model",
        ALIAS,
        "--rounds",
        ROUNDS,
        "--seed",
        "1",
        "--window-tokens",
        "2500",
        *(word for area in AREAS for word in ("--only", area)),
        "--json",
        timeout_s=CHECK_S,
    )
    report = json.loads(done.stdout)
    verdicts = {result["id"]: result["verdict"] for result in report["results"]}
    told = {result["id"]: result["explanation"] for result in report["results"]}
    assert {name for name, verdict in verdicts.items() if verdict == "fail"} == set(), told
    asked_for = {result["id"] for result in report["results"] if result["needs"] is None}
    undecided = {name for name, verdict in verdicts.items() if verdict == "unknown"} & asked_for
    assert undecided <= NEED_TOOLS, told
    assert done.returncode == report["exit_status"] == (2 if undecided else 0)
    for name in ("state.continues", "state.continues-streaming", "state.long-chain"):
        evidence = next(result["evidence"] for result in report["results"] if result["id"] == name)
        assert evidence["input_tokens_by_id"] == evidence["input_tokens_full_history"], name
        assert evidence["input_tokens_full_history"] > evidence["input_tokens_no_history"], name


def test_what_the_model_can_do_passes_with_status_0(antiphon: AntiphonServer) -> None:
    """Ours: the exit status of a check in which every requirement is kept."""
    done = run_command(
        "check",
        antiphon.url,
        "--model",
        ALIAS,
        "--only",
        "state.echo",
        "--only",
        "state.unknown-id",
        "--seed",
        "2",
        timeout_s=CHECK_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 0 failed, 0 undecided" in done.stdout
