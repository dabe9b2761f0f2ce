"""The servers that all of these tests share: one real llama.cpp server, one `antiphon serve` before it.

A model or a runtime that cannot be had is a failure with instructions, never a skip.
"""

from collections.abc import Iterator

import pytest
from tools.fetch_model import fetch_model

from antiphon.backends.local import ModelError
from tests.real.processes import AntiphonServer, LlamaServer, run_antiphon, run_llama


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """The real model server."""
    try:
        model = fetch_model()
    except ModelError as error:
        pytest.fail(f"these tests need the small model: {error}", pytrace=False)
    with run_llama(model, tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture(scope="session")
def antiphon(llama: LlamaServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AntiphonServer]:
    """Our server before it, as a user starts it."""
    folder = tmp_path_factory.mktemp("antiphon")
    with run_antiphon(llama.url, folder) as server:
        yield server
    log = (folder / "antiphon.log").read_text("utf-8")
    assert "Traceback" not in log, log
