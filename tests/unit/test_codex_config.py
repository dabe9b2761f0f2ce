"""`antiphon codex-config` against servers that answer as they are told: what is printed, refused and written."""

import http.server
import json
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import pytest

from antiphon.cli import FAILED, MISUSED, run
from antiphon.cli.codex_config import (
    CATALOG_NAME,
    MODELS_DESCRIBED,
    CodexModel,
    describe_entry,
    write_files,
)
from tests.conformance.serving import find_closed_port

STOP_S = 20.0
#: What Codex 0.171 demands of an entry.
DEMANDED = {
    "slug",
    "display_name",
    "base_instructions",
    "supported_reasoning_levels",
    "shell_type",
    "visibility",
    "supported_in_api",
    "priority",
    "support_verbosity",
    "truncation_policy",
    "experimental_supported_tools",
}
TOLD = {"window_tokens": 65536, "sees_images": False, "efforts": ["low", "high", "max"]}
MODELS: dict[str, Any] = {
    "/v1/models": {"object": "list", "data": [{"id": "toy"}, {"id": "org/big"}]},
    "/v1/models/toy": {"id": "toy", "antiphon": TOLD},
    "/v1/models/org/big": {"id": "org/big"},
}


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the folders of the person who runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


@contextmanager
def serve(answers: dict[str, Any]) -> Iterator[str]:
    """A server with these answers by path, an error where one is a status; 404 for every other."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path, 404)
            status = answer if isinstance(answer, int) else 200
            body = json.dumps({"error": {"message": "Nothing here."}} if status != 200 else answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: tests print what fails."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join(STOP_S)


def test_the_configuration_is_toml_that_names_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: the first model that the server lists, and a catalog beside the file."""
    with serve(MODELS) as url:
        assert run(["codex-config", "--url", url]) == 0
    output = capsys.readouterr()
    assert tomllib.loads(output.out) == {
        "model": "toy",
        "model_provider": "antiphon",
        "model_catalog_json": CATALOG_NAME,
        "model_providers": {
            "antiphon": {
                "name": "Antiphon",
                "base_url": url,
                "wire_api": "responses",
                "supports_websockets": False,
            }
        },
    }
    assert "does not tell how many tokens org/big holds" in output.err


@pytest.mark.parametrize("name", ['a"b\\', "\U0001f600", "x\n[evil]\ny=1", "\x7f\x01\x85\u2028é"])
def test_any_name_of_a_model_is_a_string_of_the_configuration(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """TOML 1.0, strings: no surrogates, no control characters; what a server calls a model stays one value."""
    path = f"/v1/models/{quote(name)}"
    with serve({"/v1/models": {"data": [{"id": name}]}, path: {"id": name, "antiphon": TOLD}}) as url:
        assert run(["codex-config", "--url", url]) == 0
    assert tomllib.loads(capsys.readouterr().out)["model"] == name


def test_the_catalog_tells_what_the_server_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: window, images and efforts are the server's; what it does not tell is left open or given."""
    with serve(MODELS) as url:
        assert run(["codex-config", "--url", url, "--catalog", "--window", "9000"]) == 0
    output = capsys.readouterr()
    toy, big = json.loads(output.out)["models"]
    assert output.err == (
        "antiphon: --window is ignored for toy: the server tells that it holds 65536 tokens.\n"
    )
    assert set(toy) >= DEMANDED
    assert (toy["slug"], toy["context_window"], toy["input_modalities"]) == ("toy", 65536, ["text"])
    assert [level["effort"] for level in toy["supported_reasoning_levels"]] == ["low", "high"]
    assert toy["default_reasoning_level"] == "high"
    assert (big["slug"], big["context_window"], big["priority"]) == ("org/big", 9000, 2)
    assert big["input_modalities"] == ["text", "image"]


def test_a_small_window_is_not_filled_by_one_output() -> None:
    """Ours: what Codex keeps of a tool's output is a share of the window."""
    small = describe_entry(CodexModel("m", 4096, True, ()), "Work.", 1)
    large = describe_entry(CodexModel("m", 1_000_000, True, ()), "Work.", 1)
    unknown = describe_entry(CodexModel("m", None, True, ()), "Work.", 1)
    limits = [entry["truncation_policy"]["limit"] for entry in (small, large, unknown)]
    assert limits == [512, 10_000, 10_000]
    assert "context_window" not in unknown


def test_files_are_written_once(capsys: pytest.CaptureFixture[str], workplace: Path) -> None:
    """Ours: what is there is overwritten on demand alone."""
    with serve(MODELS) as url:
        assert run(["codex-config", "--url", url, "--model", "toy", "--out", "home"]) == 0
        written = (workplace / "home" / "config.toml").read_text(encoding="utf-8")
        assert (workplace / "home" / tomllib.loads(written)["model_catalog_json"]).is_file()
        assert (
            run(["codex-config", "--url", url, "--model", "toy", "--websocket", "--out", "home"]) == MISUSED
        )
        assert "There is already" in capsys.readouterr().err
        assert (workplace / "home" / "config.toml").read_text(encoding="utf-8") == written
        assert run(["codex-config", "--url", url, "--websocket", "--out", "home", "--force"]) == 0
    forced = tomllib.loads((workplace / "home" / "config.toml").read_text(encoding="utf-8"))
    assert forced["model_providers"]["antiphon"]["supports_websockets"] is True


def test_remote_compaction_needs_a_server_that_compacts(capsys: pytest.CaptureFixture[str]) -> None:
    """Client: Codex asks for compaction by the provider's name and has no other way once that fails."""
    with serve({**MODELS, "/openapi.json": {"paths": {"/v1/responses": {}}}}) as url:
        assert run(["codex-config", "--url", url, "--remote-compaction"]) == FAILED
        refused = capsys.readouterr()
        assert not refused.out
        assert "Leave --remote-compaction out" in refused.err
    with serve({**MODELS, "/openapi.json": {"paths": {"/v1/responses/compact": {}}}}) as url:
        assert run(["codex-config", "--url", url, "--remote-compaction", "--model", "toy"]) == 0
    provider = tomllib.loads(capsys.readouterr().out)["model_providers"]["antiphon"]
    assert provider["name"] == "Azure"


@pytest.mark.parametrize(
    ("told", "left_out"),
    [
        ({"window_tokens": "abc"}, 'window_tokens = "abc"'),
        ({"window_tokens": -5}, "window_tokens = -5"),
        ({"window_tokens": True}, "window_tokens = true"),
        ({"window_tokens": 1e300}, "window_tokens = 1e+300"),
        ({"window_tokens": 10**30}, "window_tokens = 1000"),
        ({"efforts": 5}, "efforts = 5"),
        ({"efforts": "high low"}, 'efforts = "high low"'),
        ({"efforts": ["low", {}]}, 'efforts = ["low", {}]'),
        ({"sees_images": "no"}, 'sees_images = "no"'),
        ([], "antiphon = []"),
        ("x" * 500, f'antiphon = "{"x" * 59}...'),
    ],
)
def test_what_makes_no_sense_is_left_out_and_told(
    capsys: pytest.CaptureFixture[str], told: object, left_out: str
) -> None:
    """Ours: any server may stand behind the address; what it tells amiss never reaches the catalog."""
    answers = {"/v1/models": {"data": [{"id": "m"}]}, "/v1/models/m": {"id": "m", "antiphon": told}}
    with serve(answers) as url:
        assert run(["codex-config", "--url", url, "--catalog"]) == 0
    output = capsys.readouterr()
    assert f"makes no sense and is left out: {left_out}" in output.err
    (entry,) = json.loads(output.out)["models"]
    assert "context_window" not in entry
    assert entry["truncation_policy"]["limit"] == 10_000
    assert entry["supported_reasoning_levels"] == []
    assert entry["input_modalities"] == ["text", "image"]


@pytest.mark.parametrize("name", ["config.toml", "antiphon-models.json"])
def test_a_link_that_leads_nowhere_is_a_file_that_is_there(
    capsys: pytest.CaptureFixture[str], workplace: Path, name: str
) -> None:
    """Ours: nothing is written through a link; with --force the link itself is replaced."""
    (workplace / "home").mkdir()
    (workplace / "home" / name).symlink_to(workplace / "elsewhere")
    with serve(MODELS) as url:
        assert run(["codex-config", "--url", url, "--out", "home"]) == MISUSED
        assert f"There is already home/{name}" in capsys.readouterr().err
        assert run(["codex-config", "--url", url, "--out", "home", "--force"]) == 0
    assert not (workplace / "elsewhere").exists()
    assert not (workplace / "home" / name).is_symlink()
    assert len(list((workplace / "home").iterdir())) == 2


def test_a_file_that_came_meanwhile_is_kept_and_nothing_half_written(workplace: Path) -> None:
    """Ours: another program may write there while the server is asked."""
    (workplace / "antiphon-models.json").write_text("another's")
    texts = {"config.toml": "new", "antiphon-models.json": "new"}
    with pytest.raises(click.UsageError, match="already"):
        write_files(workplace, texts, force=False)
    assert [path.read_text() for path in workplace.iterdir()] == ["another's"]
    write_files(workplace, texts, force=True)
    assert [path.read_text() for path in workplace.iterdir()] == ["new", "new"]


@pytest.mark.parametrize(
    ("folder", "options", "status", "said"),
    [
        ("file/below", [], FAILED, "Name another --out"),
        ("nowhere", [], FAILED, "Name another --out"),
        ("taken", [], MISUSED, "There is a folder taken/antiphon-models.json"),
        ("taken", ["--force"], MISUSED, "There is a folder taken/antiphon-models.json"),
    ],
)
def test_a_place_that_cannot_be_written_is_told(
    capsys: pytest.CaptureFixture[str],
    workplace: Path,
    folder: str,
    options: list[str],
    status: int,
    said: str,
) -> None:
    """Ours: below a file, behind a link to nowhere, or where a folder is: one message, and nothing written."""
    (workplace / "file").write_text("")
    (workplace / "nowhere").symlink_to("/dev/null/x")
    (workplace / "taken" / "antiphon-models.json").mkdir(parents=True)
    with serve(MODELS) as url:
        assert run(["codex-config", "--url", url, "--out", folder, *options]) == status
    output = capsys.readouterr()
    assert not output.out
    assert said in output.err
    assert "Traceback" not in output.err
    assert [path.name for path in (workplace / "taken").iterdir()] == ["antiphon-models.json"]


@pytest.mark.parametrize("listed", [{"data": 5}, {"data": None}, {"data": [{"id": 5}]}, []])
def test_a_list_of_models_that_is_none_lists_no_models(
    capsys: pytest.CaptureFixture[str], listed: object
) -> None:
    """Ours: any server may stand behind the address."""
    with serve({"/v1/models": listed}) as url:
        assert run(["codex-config", "--url", url]) == FAILED
    assert "lists no models" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answers", "options", "status", "said"),
    [
        (MODELS, ["--model", "toys"], FAILED, "It lists: toy, org/big."),
        (MODELS, ["--window", "abc"], MISUSED, "'abc' is not a whole number."),
        (MODELS, ["--window", "10"], MISUSED, "1000<=x<=1000000000"),
        ({"/v1/models": {"data": []}}, [], FAILED, "lists no models"),
        ({}, [], FAILED, "404"),
        (MODELS, ["--catalog", "--out", "home"], MISUSED, "leave --catalog out"),
        (MODELS, ["--force"], MISUSED, "goes with --out"),
        (MODELS, ["--key-env", "NO_SUCH_KEY"], MISUSED, "NO_SUCH_KEY"),
    ],
)
def test_what_cannot_be_done_is_told(
    capsys: pytest.CaptureFixture[str], answers: dict[str, Any], options: list[str], status: int, said: str
) -> None:
    """Ours: one message with the remedy, and nothing on standard output."""
    with serve(answers) as url:
        assert run(["codex-config", "--url", url, *options]) == status
    output = capsys.readouterr()
    assert not output.out
    assert said in output.err


def test_a_key_that_the_server_does_not_know_is_told_by_its_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: whoever named a key is not told to name one; the key itself is never shown."""
    monkeypatch.setenv("MY_KEY", "s3cret")
    with serve({"/v1/models": 401}) as url:
        assert run(["codex-config", "--url", url]) == FAILED
        assert "with --key-env" in capsys.readouterr().err
        assert run(["codex-config", "--url", url, "--key-env", "MY_KEY"]) == FAILED
    shown = capsys.readouterr().err
    assert "The key in MY_KEY is not known to this server." in shown
    assert "s3cret" not in shown


def test_starting_a_server_is_proposed_where_none_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: the same words as `antiphon ask` has."""
    assert run(["codex-config", "--url", f"http://127.0.0.1:{find_closed_port()}"]) == FAILED
    assert "Start one with: antiphon serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "said"), [(426, "set server.websocket = true there"), (403, "no WebSocket (status 403)")]
)
def test_a_server_that_takes_no_websocket_is_told(
    capsys: pytest.CaptureFixture[str], status: int, said: str
) -> None:
    """RFC 6455, 4.1: any other status than 101 refuses; the configuration is printed as it was asked for."""
    with serve({**MODELS, "/v1/responses": status}) as url:
        assert run(["codex-config", "--url", url, "--model", "toy", "--websocket"]) == 0
        output = capsys.readouterr()
        assert said in output.err
        assert "supports_websockets = true" in output.out
        assert run(["codex-config", "--url", url, "--model", "toy"]) == 0
    assert not capsys.readouterr().err


def test_a_long_list_of_models_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: each model costs a request, so some are described, and the person is told to choose."""
    names = [f"m{number}" for number in range(MODELS_DESCRIBED + 3)]
    answers = {f"/v1/models/{name}": {"id": name, "antiphon": TOLD} for name in names}
    with serve({**answers, "/v1/models": {"data": [{"id": name} for name in names]}}) as url:
        assert run(["codex-config", "--url", url, "--catalog"]) == 0
    output = capsys.readouterr()
    assert len(json.loads(output.out)["models"]) == MODELS_DESCRIBED
    assert "3 more models are left out" in output.err
