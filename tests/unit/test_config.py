"""Configuration: precedence, checks with remedies, secrets, and what readers are shown."""

import hashlib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.backends.profiles import PROFILES
from antiphon.bootstrap import check_backends
from antiphon.config import (
    SETTINGS,
    Config,
    ConfigError,
    EndpointSettings,
    KeySettings,
    Limits,
    ModelSettings,
    Secret,
    ServerSettings,
    StoreSettings,
    describe_config,
    load_config,
    normalise_url,
    render_settings_markdown,
)
from antiphon.config.settings import NAMED_SECTIONS, PROFILE_SENTENCES, SINGLE_SECTIONS, list_fields
from antiphon.context import Profile
from antiphon.protocol.errors import AntiphonError

DIGEST = hashlib.sha256(b"open sesame").hexdigest()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the folders of the person who runs it."""
    folder = tmp_path / "home"
    monkeypatch.setenv("HOME", str(folder))
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(folder / kind.lower()))
    return folder


def load(
    folder: Path,
    text: str = "",
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of a file in a folder of its own."""
    if text:
        (folder / "antiphon.toml").write_text(text)
    return load_config(flags or {}, environ or {}, folder)


def fail(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> str:
    """The message of a configuration that has one problem."""
    with pytest.raises(ConfigError) as raised:
        load(folder, text, environ)
    assert len(raised.value.problems) == 1, raised.value.message
    return raised.value.message


def test_without_anything_the_defaults_hold(tmp_path: Path, home: Path) -> None:
    """Decided: it works without a file, and data goes to the user's data folder."""
    config = load(tmp_path)
    assert config.server.host == "127.0.0.1"
    assert config.server.port == 8300
    assert Path(config.server.data).is_relative_to(home)
    assert config.store == StoreSettings()
    assert config.limits == Limits()
    assert config.file is None


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    """Decided: the sections of the file."""
    (tmp_path / "prompt.txt").write_text("Be brief.\n")
    (tmp_path / "play.toml").write_text("")
    config = load(
        tmp_path,
        f"""
        [server]
        port = 8400
        data = "data"
        [store]
        durability = "full"
        [limits]
        body_bytes = 2048
        keep_alive_s = 5
        [endpoints.local]
        url = "http://localhost:11434"
        key_env = "LOCAL_KEY"
        profile = "ollama"
        [endpoints.play]
        dialect = "scripted"
        script = "play.toml"
        [models.fast]
        endpoint = "local"
        model = "qwen3:4b"
        profile = "mine"
        system_prompt_file = "prompt.txt"
        [models.plain]
        endpoint = "play"
        [profiles.mine]
        window_tokens = 4096
        efforts = ["low", "high"]
        [keys.me]
        sha256 = "{DIGEST.upper()}"
        tenant = "home"
        [keys.you]
        sha256 = "{DIGEST[::-1]}"
        """,
        {"LOCAL_KEY": "s3cret"},
    )
    assert config.server == ServerSettings(port=8400, data=str(tmp_path / "data"))
    assert config.store == StoreSettings(durability="full")
    assert config.limits == Limits(body_bytes=2048, keep_alive_s=5.0)
    assert config.endpoints == {
        "local": EndpointSettings(
            name="local",
            url="http://localhost:11434/v1",
            key_env="LOCAL_KEY",
            profile="ollama",
            key=Secret("s3cret"),
        ),
        "play": EndpointSettings(name="play", dialect="scripted", script=str(tmp_path / "play.toml")),
    }
    assert config.models == {
        "fast": ModelSettings(
            alias="fast",
            endpoint="local",
            model="qwen3:4b",
            profile="mine",
            system_prompt_file=str(tmp_path / "prompt.txt"),
            system_prompt="Be brief.",
        ),
        "plain": ModelSettings(alias="plain", endpoint="play", model="plain"),
    }
    assert config.profiles == {"mine": Profile(name="mine", window_tokens=4096, efforts=("low", "high"))}
    assert config.keys == {
        "me": KeySettings(name="me", sha256=DIGEST, tenant="home"),
        "you": KeySettings(name="you", sha256=DIGEST[::-1], tenant="you"),
    }


def test_flags_beat_variables_beat_the_file_beats_defaults(tmp_path: Path) -> None:
    """Decided: the precedence; and each origin is told."""
    config = load(
        tmp_path,
        '[server]\nport = 1\nhost = "127.0.0.2"\ndata = "d"\n[limits]\nmax_input_items = 5',
        {"ANTIPHON_SERVER__PORT": "2", "ANTIPHON_SERVER__HOST": "127.0.0.3"},
        {"server": {"port": 3}},
    )
    assert (config.server.port, config.server.host) == (3, "127.0.0.3")
    assert config.limits.max_input_items == 5
    assert config.origins["server", "port"] == "flag --port"
    assert config.origins["server", "host"] == "ANTIPHON_SERVER__HOST"
    assert config.origins["server", "data"] == str(tmp_path / "antiphon.toml")


def test_a_named_file_beats_the_folder_s_beats_the_user_s(tmp_path: Path, home: Path) -> None:
    """Decided: one file counts; files are not merged."""
    own = home / "config" / "antiphon" / "antiphon.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[server]\nport = 1\n[limits]\nmax_input_items = 9")
    assert load(tmp_path).server.port == 1
    assert load(tmp_path, "[server]\nport = 2").server.port == 2
    (tmp_path / "other.toml").write_text("[server]\nport = 3")
    config = load_config({}, {}, tmp_path, file=Path("other.toml"))
    assert (config.server.port, config.limits.max_input_items) == (3, Limits().max_input_items)


def test_variables_reach_every_kind_of_setting(tmp_path: Path) -> None:
    """Decided: ANTIPHON_SECTION__KEY; an existing name is met whatever its spelling."""
    config = load(
        tmp_path,
        '[endpoints.My-Box]\nurl = "http://a"\n[models."gpt-x.1"]\nendpoint = "My-Box"\nmodel = "m"',
        {
            "ANTIPHON_ENDPOINTS__MY_BOX__URL": "http://b:1",
            "ANTIPHON_MODELS__GPT_X_1__MODEL": "n",
            "ANTIPHON_ENDPOINTS__NEW__URL": "http://c/api",
            "ANTIPHON_PROFILES__SMALL__EFFORTS": "low, high",
            "ANTIPHON_PROFILES__SMALL__WINDOW_TOKENS": "4096",
            "ANTIPHON_PROFILES__SMALL__THINK_TAGS": "false",
            "ANTIPHON_LIMITS__STATUS_WAIT_S": "0.5",
            "PATH": "/bin",
        },
    )
    assert {name: endpoint.url for name, endpoint in config.endpoints.items()} == {
        "My-Box": "http://b:1/v1",
        "new": "http://c/api",
    }
    assert config.models["gpt-x.1"].model == "n"
    small = Profile(name="small", efforts=("low", "high"), window_tokens=4096, think_tags=False)
    assert config.profiles == {"small": small}
    assert config.limits.status_wait_s == 0.5


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[servr]\n", ["servr", "no such section", '"server"']),
        ("[upstream]\nurl = 'http://a'", ["upstream", "no such section", "[endpoints.NAME]"]),
        ("[limits]\nidle_timeout = 1", ["limits.idle_timeout", '"idle_timeout_s"']),
        ("[server]\nprot = 1", ["server.prot", "no such setting", '"port"']),
        ("[server]\nport = 70000", ["server.port", "65535", "70000", "8300"]),
        ("[server]\nport = '80'", ["server.port", 'an integer from 0 to 65535, not "80" in quotes']),
        ("[server]\nport = 'x'", ["server.port", 'an integer from 0 to 65535, not "x".']),
        ("[server]\nhost = ''", ["server.host", "a string that is not empty"]),
        ("server = 4", ["server", "table", "[server]"]),
        ("[endpoints]\nurl = 'http://a'", ["endpoints.url", "[endpoints.NAME]"]),
        ("[store]\nkind = 'oracle'", ["store.kind", 'must be "sqlite", not "oracle"']),
        ("[store]\ndurability = 'fully'", ["store.durability", 'one of "normal", "full", not "fully".']),
        ("[limits]\nbody_bytes = 1", ["limits.body_bytes", "1024"]),
        ("[limits]\nidle_timeout_s = 0.0", ["limits.idle_timeout_s"]),
        ("[limits]\nidle_timeout_s = nan", ["limits.idle_timeout_s", "not nan"]),
        (
            "[limits]\nwrite_timeout_s = '5'",
            ["limits.write_timeout_s", 'a number above 0, not "5" in quotes'],
        ),
        ("[limits]\nidle_timeout_s = inf", ["limits.idle_timeout_s"]),
        ("[endpoints.a]\n", ["endpoints.a.url", "required", "http://localhost"]),
        ("[endpoints.a]\nurl = 'ftp://x'", ["endpoints.a.url", "http"]),
        ("[endpoints.a]\nurl = 'http://me:pw@x'", ["endpoints.a.url", "key_env"]),
        ("[endpoints.a]\nurl = 'http://x'\ndialect = 'soap'", ["endpoints.a.dialect", '"scripted"', "soap"]),
        (
            "[endpoints.a]\ndialect = 'ollama'",
            ["Ollama, llama.cpp, vLLM and LM Studio all", "`chat_completions`"],
        ),
        ("[endpoints.a]\nurl = 'http://x'\nkey_env = 'A_KEY'", ["endpoints.a.key_env", "A_KEY", "export"]),
        ("[endpoints.a]\nurl = 'http://x'\nprofile = 'olama'", ["endpoints.a.profile", '"ollama"']),
        ("[endpoints.a]\nurl = 'http://x'\nscript = 'x.toml'", ["endpoints.a.script", "scripted"]),
        ("[endpoints.a]\ndialect = 'scripted'\nurl = 'http://x'", ["endpoints.a.url", "no server"]),
        ("[endpoints.a]\ndialect = 'scripted'\nscript = 'x.toml'", ["endpoints.a.script", "x.toml"]),
        ("[models.m]\nmodel = 'x'", ["models.m.endpoint", "required"]),
        ("[models.m]\nendpoint = 'a'", ["models.m.endpoint", "[endpoints.a]"]),
        ("[profiles.p]\nname = 'q'", ["profiles.p.name", "no such setting"]),
        ("[profiles.p]\ntools = 'maybe'", ["profiles.p.tools", "maybe"]),
        ("[profiles.p]\nwindow_tokens = 0", ["profiles.p.window_tokens", "of at least 1, not 0"]),
        ("[profiles.p]\nwindow_tokens = -4096", ["profiles.p.window_tokens", "of at least 1, not -4096"]),
        ("[profiles.p]\nefforts = 'low'", ["profiles.p.efforts", "a list of", 'not "low"']),
        ("[local]\nsources = ['mirror']", ["local.sources", '"hub"', '"registry"', 'not ["mirror"]']),
        ("[profiles.p]\nthink_tags = 1", ["profiles.p.think_tags", "true or false, not 1"]),
        ("[keys.k]\nsha256 = 'abc'", ["keys.k.sha256", "64 hexadecimal", "sha256sum"]),
        ("[keys.k]\n", ["keys.k.sha256", "required", "Only its SHA-256 is configured", "sha256sum"]),
        (
            f"[keys.k]\nsha256 = '{DIGEST}'\nrequests_per_minute = -1",
            ["keys.k.requests_per_minute", "an integer of at least 0, not -1"],
        ),
        (f"[keys.k]\nsha256 = '{DIGEST}'\nzero_retention = 1", ["keys.k.zero_retention", "true or false"]),
        ("[seal]\nkeys_env = 'A_KEYS'", ["seal.keys_env", "A_KEYS is not set", "openssl rand -hex 32"]),
        ("[seal]\nkeys_env = 'a'", ["seal.keys_env", "not the name of a variable"]),
        (f"[keys.a]\nsha256 = '{DIGEST}'\n[keys.b]\nsha256 = '{DIGEST}'", ["keys.b.sha256", "[keys.a]"]),
        ("[server]\nhost = '0.0.0.0'", ["server.host", "no keys", "[keys.NAME]", "127.0.0.1"]),
        ("[server]\nhost = 'box.example'", ["server.host", "no keys"]),
        ("[server\n", ["not TOML", "line 1"]),
    ],
)
def test_every_problem_names_its_place_and_its_remedy(tmp_path: Path, text: str, parts: list[str]) -> None:
    """Decided: key path, file, problem, remedy."""
    message = fail(tmp_path, text)
    for part in [*parts, str(tmp_path / "antiphon.toml")]:
        assert part in message


@pytest.mark.parametrize(
    ("variable", "parts"),
    [
        ("ANTIPHON_SERVR__PORT", ["names no setting", "Did you mean ANTIPHON_SERVER__PORT?"]),
        ("ANTIPHON_UPSTREAM__URL", ["names no setting", "ANTIPHON_ENDPOINTS__NAME__KEY"]),
        ("ANTIPHON_XYZ__FOO", ["names no setting", "There are: compaction, endpoints"]),
        ("ANTIPHON_SERVER__PROT", ["server.prot", '"port"']),
        ("ANTIPHON_SERVER__PORT", ["server.port", '"x"']),
        ("ANTIPHON_ENDPOINTS__URL", ["ANTIPHON_ENDPOINTS__NAME__KEY"]),
        ("ANTIPHON_SERVER__A__B", ["ANTIPHON_SERVER__KEY"]),
        ("ANTIPHON_SERVER__", ["names no setting", "ANTIPHON_SERVER__KEY"]),
        ("ANTIPHON_ENDPOINTS____URL", ["names no setting", "ANTIPHON_ENDPOINTS__NAME__KEY"]),
        ("ANTIPHON_FOO", ["names no setting", "ANTIPHON_SECTION__KEY"]),
        ("ANTIPHON_SERVER_PORT", ["names no setting", "Did you mean ANTIPHON_SERVER__PORT?"]),
        ("ANTIPHON_PORT", ["names no setting", "Did you mean ANTIPHON_SERVER__PORT?"]),
        ("ANTIPHON_ENDPOINTS_BOX_URL", ["names no setting", "ANTIPHON_ENDPOINTS__NAME__KEY"]),
        ("ANTIPHON_KEYS_BEN_LAPTOP_TENANT", ["Did you mean ANTIPHON_KEYS__BEN_LAPTOP__TENANT?"]),
        ("ANTIPHON_KEYS__BEN_LAPTO__TENANT", ["keys.ben_lapto.sha256", "Did you mean [keys.ben-laptop]?"]),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, variable: str, parts: list[str]) -> None:
    """Ours: a misspelt variable is an error, never ignored; it names what it may have meant."""
    message = fail(tmp_path, f"[keys.ben-laptop]\nsha256 = '{DIGEST}'", {variable: "x"})
    for part in [*parts, variable]:
        assert part in message


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("ANTIPHON_API_KEY", "s3cret"),
        ("ANTIPHON_KEY", "s3cret"),
        ("ANTIPHON_MODELS_TOKEN", "s3cret"),
        ("ANTIPHON_UPSTREAM", "s3cret"),
        ("ANTIPHON_SERVICE_HOST", "10.0.0.1"),
        ("ANTIPHON_SERVICE_PORT_HTTP", "8300"),
        ("ANTIPHON_SERVER_PORT", "tcp://10.0.0.1:8300"),
        ("ANTIPHON_PORT_8300_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_a_variable_with_a_use_of_its_own_is_none_of_ours(tmp_path: Path, variable: str, text: str) -> None:
    """Ours: secrets that `key_env` or `--key-env` name, and what Kubernetes sets beside a service."""
    flags = {"endpoints": {"a": {"url": "http://x", "key_env": "ANTIPHON_UPSTREAM"}}}
    config = load(tmp_path, "", {"ANTIPHON_UPSTREAM": "s3cret", variable: text}, flags)
    assert list(config.endpoints) == ["a"]


def test_nothing_far_fetched_is_proposed(tmp_path: Path) -> None:
    """Ours: long words in common do not make `websocket_max` a slip of `websocket_s`; a few names are listed."""
    message = fail(tmp_path, "[limits]\nwebsocket_max = 1")
    assert "Did you mean" not in message
    listed = message.partition(" are: ")[2].rstrip(".").split(", ")
    assert "websocket_s" in listed
    assert len(listed) == 5


@pytest.mark.parametrize(
    "text", ["key = 's3cret'", "secret = 's3cret'", "sha256 = 's3cret'", "requests_per_minute = 's3cret'"]
)
def test_a_key_that_stands_in_the_file_is_never_repeated(tmp_path: Path, text: str) -> None:
    """Ours: people put the key itself where its digest belongs; the message says how to make that."""
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, f"[keys.ada]\n{text}")
    assert "s3cret" not in raised.value.message
    assert 'printf %s "$KEY" | sha256sum' in raised.value.message


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """Ours: nobody wants to correct a file one error at a time."""
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, "[server]\nport = -1\nhots = 1\n[models.m]\nendpoint = 'x'\n[nope]\n")
    assert [problem.path for problem in raised.value.problems] == [
        "nope",
        "server.port",
        "server.hots",
        "models.m.endpoint",
    ]


def test_one_problem_hides_no_other_of_the_same_section(tmp_path: Path) -> None:
    """Ours: what else is wrong with an entry is told too, and each setting is told of once."""
    with pytest.raises(ConfigError) as raised:
        load(
            tmp_path,
            "[server]\nport = -1\nhost = '0.0.0.0'\n"
            "[endpoints.a]\ndialect = 'ollama'\nkey_env = 'NO_SUCH'\nprofile = 'nope'\n"
            "[models.m]\nsystem_prompt_file = 'none.txt'\n",
        )
    assert [problem.path for problem in raised.value.problems] == [
        "server.port",
        "endpoints.a.dialect",
        "models.m.endpoint",
        "endpoints.a.key_env",
        "endpoints.a.profile",
        "models.m.system_prompt_file",
        "server.host",
    ]
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, "[keys.k]\nzero_retention = true\n[keys.l]\nsha256 = 1\ntenant = 2")
    assert [problem.path for problem in raised.value.problems] == [
        "keys.k.sha256",
        "keys.l.sha256",
        "keys.l.tenant",
    ]


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    """Ours."""
    with pytest.raises(ConfigError, match=r"none\.toml.*cannot be read"):
        load_config({}, {}, tmp_path, file=Path("none.toml"))


def test_an_open_door_needs_a_key(tmp_path: Path) -> None:
    """Decided: with no keys the server binds to loopback only."""
    config = load(tmp_path, f"[server]\nhost = '0.0.0.0'\n[keys.me]\nsha256 = '{DIGEST}'")
    assert config.server.host == "0.0.0.0"
    for host in ("localhost", "127.0.0.9", "::1"):
        assert load(tmp_path, f"[server]\nhost = '{host}'").server.host == host


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    """Ours: not in reprs, errors or dumps; not even a key that was put into the wrong place."""
    config = load(
        tmp_path,
        f"[endpoints.a]\nurl = 'http://x'\nkey_env = 'A_KEY'\n[keys.k]\nsha256 = '{DIGEST}'",
        {"A_KEY": "s3cret"},
    )
    key = config.endpoints["a"].key
    assert key is not None
    assert key.reveal() == "s3cret"
    assert "s3cret" not in repr(config) + str(key) + describe_config(config)
    assert DIGEST not in describe_config(config)
    assert "s3cret" not in fail(tmp_path, "[keys.k]\nsha256 = 's3cret'")
    assert "s3cret" not in fail(tmp_path, "[keys.k]\nsha256 = ['s3cret']")
    assert "s3cret" not in fail(tmp_path, "[endpoints.a]\nurl = 'http://x'\nkey_env = 'sk-s3cret'")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:11434", "http://localhost:11434/v1"),
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("http://localhost:11434/", "http://localhost:11434/v1"),
        ("http://h/v1/", "http://h/v1"),
        ("https://h/a/v1/chat/completions", "https://h/a/v1"),
        ("https://h/openai", "https://h/openai"),
        ("http://[::1]:8080", "http://[::1]:8080/v1"),
    ],
)
def test_a_host_a_base_and_a_full_url_mean_one_base(text: str, url: str) -> None:
    """Decided: `--upstream` accepts all three."""
    assert normalise_url(text) == url
    assert normalise_url(url) == url


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "http://h?a=1", "http://h#a", "http://h:x"])
def test_what_is_no_base_url_is_refused(text: str) -> None:
    """Ours."""
    with pytest.raises(ValueError):
        normalise_url(text)


def test_a_local_endpoint_runs_a_model_or_a_file(tmp_path: Path) -> None:
    """Ours: a model of the list by name, or a file that is there; never a server's address too."""
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    endpoints = load(
        tmp_path,
        "[endpoints.a]\ndialect = 'local'\nmodel = 'm'\n[endpoints.b]\ndialect = 'local'\nmodel_file = 'm.gguf'",
    ).endpoints
    assert (endpoints["a"].model, endpoints["a"].model_file) == ("m", "")
    assert (endpoints["b"].model, endpoints["b"].model_file) == ("", str(tmp_path / "m.gguf"))
    both = fail(tmp_path, "[endpoints.a]\ndialect = 'local'\nmodel = 'm'\nmodel_file = 'm.gguf'")
    assert "not both" in both
    assert "no server" in fail(tmp_path, "[endpoints.a]\ndialect = 'local'\nurl = 'http://x'")
    assert "[models.ALIAS]" in fail(tmp_path, "[endpoints.a]\nurl = 'http://x'\nmodel = 'm'")


def test_the_dump_is_the_configuration_with_its_origins(tmp_path: Path) -> None:
    """Ours: TOML that can be loaded again; each value with where it came from."""
    text = (
        "[server]\nport = 1\n[endpoints.a]\nurl = 'http://x'\n[models.'m:1']\nendpoint = 'a'\n[profiles.p]\n"
    )
    config = load(tmp_path, text, {"ANTIPHON_STORE__DURABILITY": "full"})
    dump = describe_config(config)
    assert f"port = 1  # {tmp_path / 'antiphon.toml'}" in dump
    assert 'durability = "full"  # ANTIPHON_STORE__DURABILITY' in dump
    assert 'host = "127.0.0.1"  # default' in dump
    tables = tomllib.loads(dump)
    assert tables["endpoints"]["a"]["url"] == "http://x/v1"
    again = load_config(tables, {}, tmp_path)
    blank: dict[str, Any] = {"origins": {}, "file": None}
    assert msgspec.structs.replace(again, **blank) == msgspec.structs.replace(config, **blank)


def test_every_setting_has_a_sentence_and_a_heading() -> None:
    """Style card: every setting has a heading; the reference is made from the structs."""
    page = render_settings_markdown()
    for setting in SETTINGS:
        assert f"### {setting.name}\n\n{setting.sentence}\n" in page
        assert setting.sentence.endswith(".")
    assert {setting.name.split(".")[0] for setting in SETTINGS} == {*SINGLE_SECTIONS, *NAMED_SECTIONS}
    assert "Type: integer from 0 to 65535. Default: `8300`." in page
    assert "Type: list of `hub`, `registry`, not empty. " in page
    assert "`ANTIPHON_SERVER__PORT`" in page
    assert "`ANTIPHON_ENDPOINTS__NAME__URL`" in page


def test_every_setting_that_may_be_0_says_what_0_does() -> None:
    """Ours: none, at once, or any number; nobody can guess which."""
    open_to_0 = [
        setting for setting in SETTINGS if setting.type.endswith(("of at least 0", "from 0 to 86400"))
    ]
    assert len(open_to_0) > 5
    assert not [setting.name for setting in open_to_0 if not re.search(r"\b0\b", setting.sentence)]


def test_every_field_of_a_profile_can_be_configured() -> None:
    """Ours: a new fact about models needs a sentence for readers."""
    assert set(PROFILE_SENTENCES) == set(Profile.__struct_fields__) - {"name"}
    assert set(list_fields("profiles")) == set(PROFILE_SENTENCES)


def test_known_profiles_can_be_named_without_being_configured(tmp_path: Path) -> None:
    """Decided: the table of profiles lives with the backends."""
    for name in PROFILES:
        config = load(tmp_path, f"[endpoints.a]\nurl = 'http://x'\nprofile = '{name}'")
        assert config.endpoints["a"].profile == name


def test_an_alias_of_another_model_than_its_local_endpoint_serves_is_refused(tmp_path: Path) -> None:
    """Ours: no name answers with another model than it says."""
    text = "[endpoints.two]\ndialect = 'local'\n[models.third]\nendpoint = 'two'\nmodel = 'smollm2-135m-instruct'\n"
    path = tmp_path / "antiphon.toml"
    path.write_text(text)
    config = load_config({}, {}, tmp_path)
    with pytest.raises(
        AntiphonError, match=r"models\.third\.model is smollm2-135m-instruct, but endpoint 'two'"
    ):
        check_backends(config)
    path.write_text(text.replace("model = ", "# model = "))
    check_backends(load_config({}, {}, tmp_path))
