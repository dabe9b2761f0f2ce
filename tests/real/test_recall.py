"""Recall from history with the default model: what is planted in one round comes back by id in the next.

The counts prove that the history was sent; this shows that a real model makes use of it.
"""

import json
from collections.abc import Iterator

import pytest
from tools.fetch_model import fetch_model

from antiphon.backends.local import DEFAULT_MODEL, ModelError
from tests.real.llama_server import ALIAS
from tests.real.processes import AntiphonServer, run_antiphon, run_command, run_llama

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(400)]

CHECK_S = 200.0
WORDS, HITS = 10, 7


@pytest.fixture(scope="module")
def default_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AntiphonServer]:
    """Our server before a real one that runs the default model."""
    try:
        model = fetch_model(DEFAULT_MODEL)
    except ModelError as error:
        pytest.fail(f"this test needs the default model: {error}", pytrace=False)
    folder = tmp_path_factory.mktemp("recall")
    with run_llama(model, folder) as llama, run_antiphon(llama.url, folder) as server:
        yield server


def test_random_names_come_back_by_id_and_never_without_history(default_model: AntiphonServer) -> None:
    """Ours: temperature 0 and a fixed seed; measured 10 of 10, and 0 of 10 with no history."""
    arguments = [
        "--model",
        ALIAS,
        "--only",
        "state.continues",
        "--recall",
        str(WORDS),
        "--seed",
        "1",
        "--json",
    ]
    done = run_command("check", default_model.url, *arguments, timeout_s=CHECK_S)
    report = json.loads(done.stdout)
    recall = report["recall"]
    print(f"\nrecall: {recall['by_id']} of {WORDS} by id, {recall['no_history']} of {WORDS} with no history")
    assert (recall["words"], recall["stopped"]) == (WORDS, None)
    assert recall["by_id"] >= HITS
    assert recall["no_history"] == 0
    assert recall["counted"] == WORDS
    assert report["counts"]["fail"] == 0
