"""The command line: what it prints, its exit status, and that it starts fast."""

import errno
import importlib
import os
import re
import resource
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import antiphon as antiphon_package
from antiphon import __version__
from antiphon.cli import COMMANDS, antiphon, run
from antiphon.cli.continuations import Continuation, load_continuations, record_continuation
from antiphon.cli.serve import build_flags, explain_listen_error, render_announcement
from antiphon.config import ServeFacts, find_user_folders, load_config
from antiphon.protocol.errors import AntiphonError
from tests.conformance.serving import find_closed_port, serve

#: Modules that help and completion must not load.
HEAVY = {"aiohttp", "asyncio", "starlette", "uvicorn", "sqlite3", "platformdirs", "antiphon.config"}
#: `antiphon --help` must cost less CPU than this.
HELP_CPU_S = 0.150

NO_OPTIONS: dict[str, Any] = dict.fromkeys(
    ("upstream", "upstream_key_env", "model", "model_file", "script", "host", "port", "data")
)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the folders of the person who runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "home" / kind.lower()))
    return tmp_path


def flags(**options: Any) -> dict[str, Any]:
    """The flags of `serve` options."""
    return build_flags(**{**NO_OPTIONS, "local": False, "scripted": False, **options})


def test_help_lists_every_command_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Decided: every command has help with examples; exit codes are documented."""
    assert run(["--help"]) == 0
    page = capsys.readouterr().out
    for name, place in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(place.sentence)}$", page, re.MULTILINE)
    assert "Exit status" in page
    assert "antiphon serve --scripted" in page


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples_and_the_sentence_of_the_table(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decided: the table of commands tells what the commands tell."""
    place = COMMANDS[name]
    command: click.Command = getattr(importlib.import_module(place.module), place.name)
    assert command.name == name
    assert command.get_short_help_str(limit=200) == place.sentence
    assert run([name, "--help"]) == 0
    assert "Examples:\n" in capsys.readouterr().out


def test_help_costs_little_and_loads_nothing_heavy() -> None:
    """Decided: heavy imports are lazy. CPU time of a child, the best of three, not wall time."""
    code = (
        "import sys; from antiphon.cli import run; assert run(['--help']) == 0;"
        " print(*sys.modules, file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(antiphon_package.__file__).parents[1])}
    costs = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, timeout=60, env=environment
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert not HEAVY & set(done.stderr.decode().split())
    assert min(costs) < HELP_CPU_S


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours."""
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"antiphon, version {__version__}\n"


def test_an_unknown_command_is_wrong_use_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours."""
    assert run(["serv"]) == 2
    assert "Did you mean 'serve'?" in capsys.readouterr().err
    assert run(["--sriptd"]) == 2


@pytest.mark.parametrize(
    ("failure", "status", "told"),
    [
        (AntiphonError("It broke."), 1, "antiphon: It broke.\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.UsageError("Not like that."), 2, "Not like that."),
        (ValueError("odd"), 1, "antiphon: this should not have happened: ValueError('odd')"),
    ],
)
def test_every_failure_has_a_message_and_a_status(
    failure: BaseException,
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Decided: 1 for what failed, 2 for wrong use, 130 for an interrupt."""

    @click.command()
    def fails() -> None:
        raise failure

    monkeypatch.setitem(COMMANDS, "fails", COMMANDS["serve"])
    monkeypatch.setattr(antiphon, "get_command", lambda ctx, name: fails)
    assert run(["fails"]) == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_that_asks_us(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Decided: completion for three shells."""
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_ANTIPHON_COMPLETE" in script
    assert "antiphon" in script


def test_completion_completes_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: what the printed script asks for is answered."""
    monkeypatch.setenv("_ANTIPHON_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "antiphon se")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    assert capsys.readouterr().out == "plain,serve\n"


# config.


def test_config_check_says_ok_or_every_problem(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Decided: exit status 2 for a configuration that cannot be used."""
    assert run(["config", "check"]) == 0
    assert capsys.readouterr().out == "ok: no file, environment and defaults alone\n"
    file = workplace / "antiphon.toml"
    file.write_text("[server]\nport = -1\nhots = 2\n")
    assert run(["config", "check"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[:2] for line in lines] == [
        ["antiphon:", "server.port"],
        ["antiphon:", "server.hots"],
    ]
    assert all(str(file) in line for line in lines)


@pytest.mark.parametrize(
    ("text", "is_warned"),
    [
        ("", False),
        ("endpoint_connections = 10", True),
        ("endpoint_connections = 10\nmax_responses = 10", False),
        ("max_responses = 0", True),
    ],
)
def test_config_check_warns_of_responses_without_connections(
    workplace: Path, capsys: pytest.CaptureFixture[str], text: str, is_warned: bool
) -> None:
    """Ours: what waits for a connection to an endpoint is beyond the limits on waiting."""
    (workplace / "antiphon.toml").write_text(f"[limits]\n{text}\n")
    assert run(["config", "check"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("ok: ")
    assert ("limits.endpoint_connections" in shown.err) is is_warned


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not = [toml", "cannot be played"),
        ("[[answers]]\ntext = 'a'\nsing = true\n", "sing"),
        ("", "needs `rules` or `answers`"),
    ],
)
def test_config_check_reads_the_scripts_too(
    workplace: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    """Ours: what `config check` finds in order, `serve` does not refuse for its configuration."""
    (workplace / "play.toml").write_text(text)
    (workplace / "antiphon.toml").write_text('[endpoints.a]\ndialect = "scripted"\nscript = "play.toml"\n')
    assert run(["config", "check"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("antiphon: ")
    assert "play.toml" in shown.err
    assert told in shown.err


def test_config_show_prints_values_and_origins(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Decided: the origin of each value."""
    (workplace / "mine.toml").write_text("[server]\nport = 1\n")
    monkeypatch.setenv("ANTIPHON_STORE__DURABILITY", "full")
    assert run(["config", "show", "--config", "mine.toml"]) == 0
    shown = capsys.readouterr().out
    assert f"port = 1  # {workplace / 'mine.toml'}" in shown
    assert 'durability = "full"  # ANTIPHON_STORE__DURABILITY' in shown


# serve.


def test_upstream_makes_an_endpoint_and_model_an_alias(workplace: Path) -> None:
    """Decided: it works without a file."""
    given = flags(upstream="localhost:11434", model="qwen3:4b", port=0, data="here", upstream_key_env="K")
    config = load_config(given, {"K": "s3cret"}, workplace)
    endpoint = config.endpoints["upstream"]
    assert (endpoint.url, endpoint.dialect) == ("http://localhost:11434/v1", "chat_completions")
    assert endpoint.key is not None
    assert (config.models["qwen3:4b"].endpoint, config.models["qwen3:4b"].model) == ("upstream", "qwen3:4b")
    assert (config.server.port, config.server.data) == (0, str(workplace / "here"))
    assert config.origins["endpoints", "upstream", "url"] == "flag --upstream"
    assert config.origins["models", "qwen3:4b", "endpoint"] == "flag --model"


def test_scripted_makes_an_endpoint_without_a_server(workplace: Path) -> None:
    """Decided: `--scripted`, and a script of one's own."""
    (workplace / "play.toml").write_text("answers = [{text = 'x'}]")
    config = load_config(flags(scripted=True, script="play.toml", model="m"), {}, workplace)
    assert config.endpoints["scripted"].script == str(workplace / "play.toml")
    assert config.models["m"].endpoint == "scripted"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--upstream", "http://x", "--scripted"], "exclude each other"),
        (["--local", "--scripted"], "exclude each other"),
        (["--upstream", "http://x", "--model-file", "x.gguf"], "leave out --upstream"),
        (["--model-file", "none.gguf"], "There is no file"),
        (["--local", "--model", "m", "--model-file", "x.gguf"], "exclude each other"),
        (["--local", "--model-file", "none.gguf"], "There is no file"),
        (["--upstream-key-env", "K"], "needs --upstream"),
        (["--script", "x"], "needs --scripted"),
        (["--scripted", "--script", "none.toml"], "There is no file"),
        (["--upstream", "ftp://x"], "flag --upstream"),
        (["--scripted", "--host", "0.0.0.0"], "no keys are configured"),
        (["--scripted", "--port", "99999"], "flag --port"),
        (["--scripted", "--config", "none.toml"], "cannot be read"),
    ],
)
def test_serve_says_what_to_pass(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Decided: clear errors; status 2."""
    assert run(["serve", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_the_announcement_ends_with_a_line_for_the_shell() -> None:
    """Decided: the address, models, store, keys, and a curl line."""
    facts = ServeFacts(url="http://127.0.0.1:8300/v1", models=("it's",), store="sqlite at /d")
    lines = render_announcement(facts).splitlines()
    assert lines[:4] == [
        "antiphon: serving on http://127.0.0.1:8300/v1",
        "  models  it's",
        "  store   sqlite at /d",
        "  keys    none, so this machine alone is served",
    ]
    words = shlex.split(lines[-1])
    assert words[:2] == ["curl", "http://127.0.0.1:8300/v1/responses"]
    assert msgspec.json.decode(words[words.index("-d") + 1]) == {"model": "it's", "input": "Hello!"}


def test_the_announcement_counts_many_models_and_tells_notes_and_keys() -> None:
    """Ours."""
    models = tuple(f"m{number}" for number in range(11))
    facts = ServeFacts(url="http://h/v1", models=models, store="s", keys=2, notes=("upstream is down",))
    shown = render_announcement(facts)
    assert "m0, m1, m2, m3, m4, m5, m6, m7 and 3 more" in shown
    assert "  keys    2 known" in shown
    assert "  note    upstream is down" in shown
    assert '-H "authorization: Bearer $KEY"' in shown


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EADDRINUSE, "127.0.0.1:8300 is in use"),
        (errno.EADDRINUSE, "pass --data DIR too"),
        (errno.EADDRNOTAVAIL, "not an address of this machine"),
        (errno.EACCES, "may not listen"),
        (errno.EIO, None),
    ],
)
def test_why_a_server_cannot_listen_is_explained(workplace: Path, number: int, told: str | None) -> None:
    """Decided: port in use is a clear error."""
    message = explain_listen_error(OSError(number, "x"), load_config({}, {}, workplace))
    assert message is None if told is None else told in (message or "")


# ask.


def test_ask_streams_and_continues(capsys: pytest.CaptureFixture[str]) -> None:
    """Decided: `ask`, then `ask --continue` reaches the same conversation."""
    with serve("honest") as address:
        assert run(["ask", "--url", address, "Remember: the word is marmalade."]) == 0
        capsys.readouterr()
        assert run(["ask", "--url", address, "--continue", "--usage", "Which word?"]) == 0
        told = capsys.readouterr()
        assert "marmalade" in told.out
        assert re.search(r"^tokens: \d+ in \(\d+ cached\), \d+ out$", told.err, re.MULTILINE)
        assert run(["ask", "--url", address, "Which word?"]) == 0
        assert "marmalade" not in capsys.readouterr().out
    (url,) = load_continuations(find_user_folders().state)
    assert url == f"http://{address}/v1"


def test_ask_reads_the_question_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: `-` for pipes."""
    read: Callable[[], str] = lambda: "The word is plum. Which word?"  # noqa: E731
    monkeypatch.setattr(sys.stdin, "read", read, raising=False)
    with serve("honest") as address:
        assert run(["ask", "--url", address, "-"]) == 0
    assert "plum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--continue", "Hi"], "nothing to continue"),
        ([" "], "question is empty"),
        (["--url", "ftp://x", "Hi"], "ftp"),
        (["--key-env", "NO_SUCH_KEY", "Hi"], "NO_SUCH_KEY, which is no environment variable"),
        ([], "QUESTION"),
    ],
)
def test_ask_says_what_is_wrong(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: wrong use is status 2."""
    assert run(["ask", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_ask_says_when_no_server_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Decided: a clear error when the server is down."""
    assert run(["ask", "--url", f"127.0.0.1:{find_closed_port()}", "Hi"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("antiphon: ")
    assert "antiphon serve" in told.err
    assert told.out == ""


def test_ask_tells_the_server_s_own_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: an unknown response id is the server's to explain."""
    with serve("honest") as address:
        url = f"http://{address}/v1"
        record_continuation(find_user_folders().state, url, Continuation("resp_gone", "toy"))
        assert run(["ask", "--url", address, "--continue", "Hi"]) == 1
    assert "resp_gone" in capsys.readouterr().err


def test_continuations_are_kept_by_server_and_private(workplace: Path) -> None:
    """Decided: readable by this user alone."""
    folder = workplace / "state" / "antiphon"
    record_continuation(folder, "http://a/v1", Continuation("resp_1", "m"))
    record_continuation(folder, "http://b/v1", Continuation("resp_2", "m"))
    record_continuation(folder, "http://a/v1", Continuation("resp_3", "n"))
    assert load_continuations(folder) == {
        "http://a/v1": Continuation("resp_3", "n"),
        "http://b/v1": Continuation("resp_2", "m"),
    }
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_spoilt_file_of_continuations_is_named(workplace: Path) -> None:
    """Ours: never overwritten silently."""
    (workplace / "continuations.json").write_text("{")
    with pytest.raises(AntiphonError, match=r"continuations\.json.*Remove it"):
        load_continuations(workplace)
