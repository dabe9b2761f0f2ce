"""Where the keys of seals are kept, and the command that lists and rotates them."""

import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from antiphon.cli import run
from antiphon.config import (
    Config,
    ConfigError,
    SealKeyError,
    describe_config,
    list_seal_keys,
    load_config,
    load_seal_keys,
    locate_seal_keys,
    rotate_seal_keys,
)
from antiphon.config import seal_keys as keeping
from antiphon.context.seal import derive_key_id, open_seal, seal

FIRST, SECOND = "a1" * 32, "B2" * 32


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the folders of the person who runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "home" / kind.lower()))
    return tmp_path


def load(text: str = "", environ: Mapping[str, str] | None = None) -> Config:
    """A configuration whose data is in ./data."""
    Path("antiphon.toml").write_text(text)
    return load_config({"server": {"data": "data"}}, environ or {})


def read_mode(path: Path) -> int:
    """The permissions of a file or folder."""
    return stat.S_IMODE(path.stat().st_mode)


# The file.


def test_the_first_start_makes_a_file_for_its_owner_alone(workplace: Path) -> None:
    """Ours: keys are made at the first start, into a file of mode 0600."""
    config = load()
    path = workplace / "data" / "seal-keys.toml"
    assert locate_seal_keys(config) == path
    assert list_seal_keys(config) == []
    assert not path.exists()
    old_mask = os.umask(0)
    try:
        keys = load_seal_keys(config)
    finally:
        os.umask(old_mask)
    assert (read_mode(path), read_mode(path.parent)) == (0o600, 0o700)
    assert [entry.id for entry in list_seal_keys(config)] == [keys.current]
    assert list(path.parent.iterdir()) == [path]


def test_later_starts_open_what_earlier_ones_sealed() -> None:
    """Ours."""
    config = load()
    text = seal(b"x", kind="reasoning", tenant="t", keys=load_seal_keys(config), nonce=bytes(12))
    rotate_seal_keys(config)
    later = load_seal_keys(config)
    assert len(later.ids) == 2
    assert open_seal(text, kind="reasoning", tenant="t", keys=later) == b"x"


def test_many_starts_at_once_make_one_key() -> None:
    """Ours: two starts at once do not make two."""
    config = load()
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(load_seal_keys(config).current)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(found) == 8
    assert set(found) == {entry.id for entry in list_seal_keys(config)}
    assert len(set(found)) == 1


def test_rotations_at_once_lose_no_key() -> None:
    """Ours: each process sees the file that the one before it left."""
    config = load()
    load_seal_keys(config)
    code = "from antiphon.cli import run; raise SystemExit(run(['keys', 'rotate', '--data', 'data']))"
    children = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [child.wait(timeout=50) for child in children] == [0] * 4
    assert len({entry.id for entry in list_seal_keys(config)}) == 5


def test_rotation_puts_a_new_key_in_front_and_retires_only_what_is_named() -> None:
    """Ours."""
    config = load()
    first = load_seal_keys(config).current
    second = rotate_seal_keys(config).id
    assert [entry.id for entry in list_seal_keys(config)] == [second, first]
    third = rotate_seal_keys(config, retire=first).id
    assert [entry.id for entry in list_seal_keys(config)] == [third, second]
    with pytest.raises(SealKeyError, match=f"no key {first}.*There are: {third}, {second}"):
        rotate_seal_keys(config, retire=first)
    assert [entry.id for entry in list_seal_keys(config)] == [third, second]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_can_read_is_refused_with_the_remedy(mode: int) -> None:
    """Ours."""
    config = load()
    load_seal_keys(config)
    path = locate_seal_keys(config)
    path.chmod(mode)
    with pytest.raises(
        SealKeyError, match=rf"mode {mode:04o}.*chmod 600 {re.escape(str(path))}.*keys rotate"
    ):
        load_seal_keys(config)
    path.chmod(0o400)
    load_seal_keys(config)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "keys = []",
        "not toml",
        "\xff",
        'keys = "x"',
        f'[[keys]]\nid = "{derive_key_id(bytes.fromhex(FIRST))}"\n',
        f'[[keys]]\nid = "00000000"\nkey = "{FIRST}"\n',
        f'[[keys]]\nid = "{derive_key_id(bytes.fromhex(FIRST))}"\nkey = "{FIRST}"\nodd = 1\n',
        f'[[keys]]\nid = "{derive_key_id(bytes.fromhex(FIRST))}"\nkey = "{FIRST}"\n' * 2,
        f'[[keys]]\nid = "x"\nkey = "{FIRST[:-2]}zz"\n',
        f'"{FIRST}" = 1\n"{FIRST}" = 1\n',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_refused_kept_and_not_quoted(text: str) -> None:
    """Ours: it is never overwritten silently, and no key of it is shown."""
    config = load()
    path = locate_seal_keys(config)
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    for act in (load_seal_keys, list_seal_keys, rotate_seal_keys):
        with pytest.raises(
            SealKeyError, match=r"is damaged or is no file of seal keys\. Restore it"
        ) as caught:
            act(config)
        assert FIRST not in str(caught.value)
    assert path.read_text(encoding="latin-1") == text


def test_what_is_no_file_is_refused_and_waited_for_by_nobody() -> None:
    """Ours: a pipe would make the start wait for ever."""
    config = load()
    path = locate_seal_keys(config)
    path.parent.mkdir()
    os.mkfifo(path, 0o600)
    with pytest.raises(SealKeyError, match="is no file"):
        load_seal_keys(config)
    path.unlink()
    path.mkdir(0o700)
    with pytest.raises(SealKeyError):
        load_seal_keys(config)


def test_a_folder_that_cannot_be_used_is_named() -> None:
    """Ours."""
    config = load()
    Path("data").write_text("")
    with pytest.raises(SealKeyError, match=r"data/seal-keys\.toml cannot be (read|written)"):
        load_seal_keys(config)


def test_a_change_that_another_process_holds_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: every wait is bounded."""
    config = load()
    load_seal_keys(config)
    monkeypatch.setattr(keeping, "LOCK_WAIT_S", 0.0)
    with (
        keeping._change_file(locate_seal_keys(config)),
        pytest.raises(SealKeyError, match="Another process is changing"),
    ):
        rotate_seal_keys(config)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: the file is there whole or not at all."""
    config = load()
    first = load_seal_keys(config).current

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(SealKeyError, match="cannot be written: No space left on device"):
            rotate_seal_keys(config)
    assert [entry.id for entry in list_seal_keys(config)] == [first]
    assert list(Path("data").iterdir()) == [Path("data/seal-keys.toml")]


# Where the keys come from.


def test_a_file_of_one_s_own_is_relative_to_the_configuration_and_may_be_a_link(workplace: Path) -> None:
    """Ours: secrets are often mounted as links."""
    (workplace / "etc").mkdir()
    config = load("[seal]\nfile = 'etc/link.toml'")
    Path("etc/link.toml").symlink_to("real.toml")
    first = load_seal_keys(config).current
    second = rotate_seal_keys(config).id
    assert Path("etc/link.toml").is_symlink()
    assert [entry.id for entry in list_seal_keys(config)] == [second, first]
    assert not Path("data").exists()


@pytest.mark.parametrize("separator", [",", ", ", "\n", ",\n "])
def test_keys_of_a_variable_need_no_file(separator: str) -> None:
    """Ours: given by environment; the first seals, and ids are the same as in a file."""
    text = f"{FIRST}{separator}{SECOND}\n"
    config = load("[seal]\nkeys_env = 'ANTIPHON_SEAL_KEYS'", {"ANTIPHON_SEAL_KEYS": text})
    keys = load_seal_keys(config)
    assert keys.ids == tuple(derive_key_id(bytes.fromhex(key)) for key in (FIRST, SECOND))
    assert keys.current == keys.ids[0]
    assert not Path("data").exists()
    with pytest.raises(SealKeyError, match=r"variable ANTIPHON_SEAL_KEYS.*openssl rand -hex 32"):
        rotate_seal_keys(config)


@pytest.mark.parametrize(
    ("text", "value", "told"),
    [
        ("keys_env = 'K'", FIRST[:-1], "not 64 hexadecimal digits"),
        ("keys_env = 'K'", f"{FIRST},x", "not 64 hexadecimal digits"),
        ("keys_env = 'K'", ",", "not 64 hexadecimal digits"),
        ("keys_env = 'K'", f"{FIRST},{FIRST.upper()}", "same key twice"),
        ("keys_env = 'K'\nfile = 'f'", FIRST, "not both"),
        (f"keys_env = '{FIRST}'", FIRST, "not the name of a variable"),
    ],
)
def test_keys_that_cannot_be_used_are_a_problem_that_quotes_none(text: str, value: str, told: str) -> None:
    """Ours: every problem is told at once with a remedy; what may be a key is not repeated."""
    with pytest.raises(ConfigError) as caught:
        load(f"[seal]\n{text}", {"K": value})
    assert [problem.path for problem in caught.value.problems] == ["seal.keys_env"]
    assert told in caught.value.message
    assert FIRST not in caught.value.message.lower()
    assert FIRST[:-1] not in caught.value.message


def test_keys_are_never_shown() -> None:
    """Ours: not in reprs or dumps."""
    config = load("[seal]\nkeys_env = 'K'", {"K": FIRST})
    shown = f"{config!r} {describe_config(config)} {list_seal_keys(config)!r} {load_seal_keys(config)!r}"
    assert FIRST not in shown
    assert repr(bytes.fromhex(FIRST)) not in shown
    assert 'keys_env = "K"' in describe_config(config)


# The command.


def test_keys_list_shows_ids_times_and_the_current_one(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: never a key."""
    path = workplace / "data" / "seal-keys.toml"
    assert run(["keys", "list", "--data", "data"]) == 0
    assert capsys.readouterr().out == f"no keys yet; antiphon serve makes one in {path}\n"
    config = load()
    first = load_seal_keys(config).current
    second = rotate_seal_keys(config).id
    assert run(["keys", "list", "--data", "data"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["ID", "CREATED", "CURRENT"]
    assert [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "(time)", row).split() for row in rows] == [
        [second, "(time)", "UTC", "yes"],
        [first, "(time)", "UTC", "no"],
    ]
    assert last == f"kept in {path}"


def test_keys_rotate_makes_the_new_current_key(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: what a running server does is told."""
    config = load()
    assert run(["keys", "rotate", "--data", "data"]) == 0
    shown = capsys.readouterr()
    (entry,) = list_seal_keys(config)
    assert shown.out.startswith(f"{entry.id}: made, and current, in ")
    assert "from its next start on" in shown.out
    assert entry.key not in shown.out + shown.err


def test_retiring_a_key_says_what_it_means_and_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: what a retired key sealed is lost, so nobody retires one unasked."""
    config = load()
    first = load_seal_keys(config).current
    command = ["keys", "rotate", "--data", "data", "--retire", first]
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda _: "n")
    assert run(command) == 130
    assert "can never be opened again" in capsys.readouterr().err
    assert [entry.id for entry in list_seal_keys(config)] == [first]
    assert run([*command, "--yes"]) == 0
    assert f"{first}: removed" in capsys.readouterr().out
    assert first not in [entry.id for entry in list_seal_keys(config)]


def test_wrong_use_of_rotate_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: exit status 2 for wrong use, 1 for a file that cannot be used."""
    config = load()
    first = load_seal_keys(config).current
    assert run(["keys", "rotate", "--data", "data", "--retire", "nope"]) == 2
    assert f"There is no key nope. There are: {first}." in capsys.readouterr().err
    locate_seal_keys(config).chmod(0o644)
    assert run(["keys", "rotate", "--data", "data"]) == 1
    assert "chmod 600" in capsys.readouterr().err
    monkeypatch.setenv("ANTIPHON_SEAL__KEYS_ENV", "MY_KEYS")
    monkeypatch.setenv("MY_KEYS", FIRST)
    assert run(["keys", "rotate", "--data", "data"]) == 2
    assert "the variable MY_KEYS" in capsys.readouterr().err
    assert run(["keys", "list", "--data", "data"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^[0-9a-f]{8}  -        yes$", shown, re.MULTILINE)
    assert shown.endswith("kept in the variable MY_KEYS\n")
