"""The table of models, the commands about them, and how a download is shown."""

import re
from pathlib import Path

import msgspec
import pytest

from antiphon.backends.local import (
    DEFAULT_MODEL,
    MODELS,
    SOURCE_KINDS,
    LocalModel,
    Progress,
    UnknownModelError,
    find_model,
    locate_licence,
    render_bytes,
)
from antiphon.backends.local.table import HubSource, read_models
from antiphon.cli import run
from antiphon.cli.progress import ProgressPrinter
from antiphon.config import ConfigError, load_config

HASH = re.compile(r"[0-9a-f]{64}")
SMALL = "smollm2-135m-instruct"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the folders of the person who runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANTIPHON_LOCAL__CACHE", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_every_model_is_whole(model: LocalModel) -> None:
    """Ours: hashes for all that is loaded, parts that add up, https alone, a licence that is shipped."""
    hashes = [
        model.file_sha256,
        *(hashed for part in model.parts for hashed in (part.sha256, part.wheel_sha256)),
    ]
    assert all(HASH.fullmatch(hashed) for hashed in hashes)
    assert len(set(hashes[1:])) == len(hashes[1:])
    assert sum(part.bytes for part in model.parts) in (0, model.file_bytes)
    assert all(source.url.startswith("https://") for source in model.sources if isinstance(source, HubSource))
    assert len({source.kind for source in model.sources}) == len(model.sources) > 0
    assert "Apache License" in locate_licence(model).read_text("utf-8")
    assert model.name in locate_licence(model).with_name("NOTICE.txt").read_text("utf-8")
    assert model.profile.tools == "schema"


def test_the_default_model_is_the_official_file() -> None:
    """The file of Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF at the hub, as the hub tells it."""
    model = MODELS[DEFAULT_MODEL]
    assert model.file_bytes == 491_400_064
    assert model.file_sha256 == "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
    assert tuple(source.kind for source in model.sources) == SOURCE_KINDS


def test_an_unknown_name_is_answered_with_what_was_meant() -> None:
    """Ours."""
    with pytest.raises(UnknownModelError, match=f'Did you mean "{DEFAULT_MODEL}"'):
        find_model("qwen2.5-coder-0.5b", MODELS)
    with pytest.raises(UnknownModelError, match="--model-file"):
        find_model("nothing alike", MODELS)


@pytest.mark.parametrize("text", ["models = 1", "[[models]]\nname = 'x'", "[other]"])
def test_a_table_that_is_none_is_refused(text: str) -> None:
    """Ours."""
    with pytest.raises(msgspec.ValidationError):
        read_models(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (491_400_064, "491 MB"), (1_117_320_768, "1.12 GB")],
)
def test_sizes_are_for_people(count: int, text: str) -> None:
    """Ours."""
    assert render_bytes(count) == text


def test_the_settings_say_where_and_from_whom(tmp_path: Path) -> None:
    """Ours: a folder is relative to where it was named; sources are checked."""
    assert load_config(environ={}, cwd=tmp_path).local.cache.endswith("antiphon/models")
    environ = {"ANTIPHON_LOCAL__CACHE": "here", "ANTIPHON_LOCAL__SOURCES": "registry, hub"}
    local = load_config(environ=environ, cwd=tmp_path).local
    assert (local.cache, local.sources) == (str(tmp_path / "here"), ("registry", "hub"))
    for wrong in ("", "torrent"):
        with pytest.raises(ConfigError, match=r"local\.sources"):
            load_config(environ={"ANTIPHON_LOCAL__SOURCES": wrong}, cwd=tmp_path)


def test_the_list_tells_what_is_here(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: no folder, then an unfinished file, then one of the right size that nobody checked."""
    assert run(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "LICENCE", "SIZE", "CONTEXT", "HERE", "PATH"]
    assert lines[1].split() == [DEFAULT_MODEL, "(default)", "Apache-2.0", "491", "MB", "32768", "no", "-"]
    assert not cache.exists()
    cache.mkdir()
    small, default = MODELS[SMALL], MODELS[DEFAULT_MODEL]
    for name, size in (
        (f"{small.file_name}.partial", small.file_bytes // 2),
        (default.file_name, default.file_bytes),
    ):
        with (cache / name).open("wb") as stream:
            stream.truncate(size)
    assert run(["models", "list"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"^{SMALL} .* 50 % +-$", out, re.MULTILINE)
    assert re.search(
        rf"^{DEFAULT_MODEL} .* unchecked +{re.escape(str(cache / default.file_name))}$", out, re.MULTILINE
    )


def test_what_is_not_here_can_be_neither_verified_nor_removed(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: exit status 1, and what to do."""
    assert run(["models", "verify", SMALL]) == 1
    assert f"antiphon models pull {SMALL}" in capsys.readouterr().err
    assert run(["models", "verify", "all"]) == 0
    assert f"no model is in {cache}" in capsys.readouterr().out
    assert run(["models", "rm", SMALL]) == 1
    assert f"{SMALL} is not in {cache}" in capsys.readouterr().err


def test_a_damaged_file_is_found_and_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours."""
    cache.mkdir()
    model = MODELS[SMALL]
    (cache / model.file_name).write_bytes(b"half a model")
    assert run(["models", "verify", "all"]) == 1
    assert "its size or SHA-256 is wrong" in capsys.readouterr().err
    assert run(["models", "rm", SMALL]) == 0
    assert "12 bytes freed" in capsys.readouterr().out
    assert not (cache / model.file_name).exists()


@pytest.mark.parametrize("command", [["pull", "qwen"], ["verify", "qwen"], ["rm", "all"], ["verify"], ["rm"]])
def test_wrong_names_are_wrong_use(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: exit status 2."""
    assert run(["models", *command]) == 2
    assert "Error:" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["list", "pull", "verify", "rm"])
def test_every_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Decided: help with examples."""
    assert run(["models", command, "--help"]) == 0
    assert f"antiphon models {command}" in capsys.readouterr().out.split("Example")[1]


def report(done: int, message: str = "") -> Progress:
    return Progress(stage="downloading", model="tiny", done_bytes=done, total_bytes=1000, message=message)


def test_without_a_terminal_a_line_is_printed_for_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: a log of a download stays short."""
    printer = ProgressPrinter(is_terminal=False)
    printer.show(report(0, "Downloading."))
    for done in range(0, 1001, 7):
        printer.show(report(done))
    printer.close()
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "antiphon: Downloading."
    assert [line.split()[1] for line in lines] == [f"{tenth}" for tenth in range(10, 100, 10)]


def test_on_a_terminal_a_bar_is_drawn_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: a sentence after it stands on a line of its own; a bar may go back."""
    printer = ProgressPrinter(is_terminal=True)
    for progress in (report(0, "Downloading."), report(500), report(900), report(100), report(1000, "Done.")):
        printer.show(progress)
    printer.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "antiphon: Downloading."
    assert lines[-1] == "antiphon: Done."
