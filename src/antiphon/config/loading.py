"""Loads the configuration: reads file and environment, then checks what one value alone cannot tell.

The only reader of the environment. Invariant: `load_config` returns a `Config` in which everything that
can be checked without the network holds, or raises one `ConfigError` with every problem.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from antiphon.backends.profiles import PROFILES
from antiphon.config.compaction import PROMPT_FILE_BYTES, CompactionSettings, find_share_problems
from antiphon.config.gathering import KEY_REMEDY, ConfigError, Loader, render_value, suggest
from antiphon.config.settings import (
    NAMED_SECTIONS,
    SINGLE_SECTIONS,
    Config,
    EndpointSettings,
    KeySettings,
    ModelSettings,
    SealSettings,
    SearchSettings,
    Secret,
)

FILE_NAME = "antiphon.toml"
#: The dialects that speak to a server.
_SERVER_DIALECTS = ("chat_completions", "responses")
#: The dialects that an endpoint's setting belongs to; the others belong to all.
_FIELD_DIALECTS = {
    "url": _SERVER_DIALECTS,
    "key_env": _SERVER_DIALECTS,
    "model": ("local",),
    "model_file": ("local",),
    "script": ("scripted",),
}


class UserFolders(NamedTuple):
    """This user's folders for Antiphon, as the platform has them."""

    config: Path
    data: Path
    state: Path
    cache: Path


def load_config(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    *,
    file: Path | None = None,
) -> Config:
    """Flags over environment over file over defaults; raises `ConfigError` with every problem.

    `flags` is nested like the file (`{"server": {"port": 8400}}`). `file` must exist when given; else
    ./antiphon.toml is read, or else the one in the user's configuration folder, or none. `environ` and
    `cwd` are this process's unless given.
    """
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else cwd
    folders = find_user_folders()
    loader = Loader()
    path = find_file(file, cwd, folders)
    if path is not None:
        _read_file(loader, path)
    loader.add_environment(environ, cwd)
    loader.add_table(flags or {}, cwd, None)
    loader.check_odd_variables()
    sections = {section: loader.build(section) for section in SINGLE_SECTIONS}
    named = {
        section: {name: loader.build(section, name) for name in loader.names[section]}
        for section in NAMED_SECTIONS
    }
    profiles = {**PROFILES, **named["profiles"]}
    endpoints = {
        name: _finish_endpoint(loader, entry, environ, profiles) for name, entry in named["endpoints"].items()
    }
    models = {
        name: _finish_model(loader, entry, named["endpoints"], profiles)
        for name, entry in named["models"].items()
    }
    keys = {name: _finish_key(loader, entry) for name, entry in named["keys"].items()}
    _check_distinct_keys(loader, keys)
    server = _finish_server(loader, sections["server"], folders, bool(loader.names["keys"]))
    local = _finish_local(loader, sections["local"], folders)
    seal = _finish_seal(loader, sections["seal"], environ)
    search = _finish_search(loader, sections["search"], environ)
    mcp, fetch = _finish_hosts(sections["mcp"]), _finish_hosts(sections["fetch"])
    compaction = _finish_compaction(loader, sections["compaction"], models)
    if loader.problems:
        raise ConfigError(loader.problems)
    return Config(
        server=server,
        store=sections["store"],
        limits=sections["limits"],
        local=local,
        seal=seal,
        search=search,
        mcp=mcp,
        fetch=fetch,
        compaction=compaction,
        endpoints=endpoints,
        models=models,
        profiles=named["profiles"],
        keys=keys,
        file=str(path) if path else None,
        origins={path: value.origin for path, value in loader.values.items()},
    )


def _read_file(loader: Loader, path: Path) -> None:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
        loader.fail((), str(path), f"It cannot be read: {reason}.", "Give --config a readable file.")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        loader.fail((), str(path), f"It is not TOML: {error}.", "Correct that place in the file.")
    else:
        loader.add_table(table, path.parent, str(path))


def find_user_folders() -> UserFolders:
    """The user's folders, by the platform's rules."""
    from platformdirs import PlatformDirs

    folders = PlatformDirs("antiphon", appauthor=False)
    return UserFolders(
        folders.user_config_path, folders.user_data_path, folders.user_state_path, folders.user_cache_path
    )


def read_secret(variable: str, environ: Mapping[str, str] | None = None) -> Secret | None:
    """The secret in an environment variable; None when it is unset or empty."""
    # Files and shells leave a line end behind a key, which no header may hold.
    value = (os.environ if environ is None else environ).get(variable, "").strip()
    return Secret(value) if value else None


def find_file(file: Path | None, cwd: Path, folders: UserFolders) -> Path | None:
    """The configuration file that counts; a named one counts even where it is missing."""
    if file is not None:
        return cwd / file
    for path in (cwd / FILE_NAME, folders.config / FILE_NAME):
        if path.is_file():
            return path
    return None


# What one value alone cannot tell: references, files, secrets, and the rule about open doors.


def _finish_server(loader: Loader, server: Any, folders: UserFolders, has_keys: bool) -> Any:
    if not is_loopback(server.host) and not has_keys:
        loader.fail(
            ("server", "host"),
            loader.origin("server", "host"),
            f"{server.host} can be reached from other machines, and no keys are configured.",
            "Add [keys.NAME] with the sha256 of a key, or keep host = 127.0.0.1.",
        )
    if not server.data:
        return msgspec.structs.replace(server, data=str(folders.data))
    folder = loader.values["server", "data"].folder
    return msgspec.structs.replace(server, data=str(folder / Path(server.data).expanduser()))


def _finish_local(loader: Loader, local: Any, folders: UserFolders) -> Any:
    if not local.cache:
        return msgspec.structs.replace(local, cache=str(folders.cache / "models"))
    folder = loader.values["local", "cache"].folder
    return msgspec.structs.replace(local, cache=str(folder / Path(local.cache).expanduser()))


def _finish_seal(loader: Loader, seal: SealSettings, environ: Mapping[str, str]) -> SealSettings:
    file = seal.file
    if file:
        file = str(loader.values["seal", "file"].folder / Path(file).expanduser())
    name, place = seal.keys_env, ("seal", "keys_env")
    if not name:
        return msgspec.structs.replace(seal, file=file)
    if file:
        _fail_field(
            loader, place, "The keys come from a variable or a file, not both.", "Remove one of them."
        )
    held = read_secret(name, environ)
    texts = re.split(r"[\s,]+", held.reveal().lower().strip(", ")) if held is not None else []
    make_one = "Make a key with: openssl rand -hex 32"
    if held is None:
        # What stands here may be a key itself, so only what can be nothing but a name is repeated.
        what = f"The variable {name} is not set." if re.fullmatch(r"[A-Z][A-Z0-9_]*", name) else ""
        problem = what or "It is not the name of a variable that is set."
        _fail_field(loader, place, problem, f"Put the keys into a variable, and its name here. {make_one}")
    elif not all(re.fullmatch(r"[0-9a-f]{64}", text) for text in texts):
        problem = "The variable holds something that is not 64 hexadecimal digits."
        _fail_field(loader, place, problem, f"Separate keys by commas. {make_one}")
    elif len(set(texts)) < len(texts):
        _fail_field(loader, place, "The variable holds the same key twice.", "Remove one of them.")
    return msgspec.structs.replace(seal, file=file, keys=tuple(Secret(text) for text in texts))


def _finish_search(loader: Loader, search: SearchSettings, environ: Mapping[str, str]) -> SearchSettings:
    key = _read_key(loader, ("search", "key_env"), search.key_env, environ)
    if search.url and not _is_plain_url(search.url):
        problem = "This must be an http(s) URL without name, password, query or fragment."
        _fail_field(loader, ("search", "url"), problem, "Give an address like http://localhost:8888.")
    return msgspec.structs.replace(search, url=search.url.rstrip("/"), key=key)


def _is_plain_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return usable and parts.username is None and not parts.query and not parts.fragment


def _finish_hosts(section: Any) -> Any:
    """Host names know no case."""
    return msgspec.structs.replace(section, hosts=tuple(host.strip().lower() for host in section.hosts))


def _finish_compaction(
    loader: Loader, compaction: CompactionSettings, models: Mapping[str, ModelSettings]
) -> CompactionSettings:
    place = ("compaction", "model")
    if compaction.model and compaction.model not in models:
        remedy = suggest(compaction.model, list(models)) + " Or add" if models else "Add"
        problem = f"There is no model {render_value(compaction.model)} under [models]."
        _fail_field(loader, place, problem, f"{remedy} [models.{compaction.model}].")
    for found in find_share_problems(compaction):
        _fail_field(loader, ("compaction", found.key), found.problem, found.remedy)
    if "policy" not in {path[-1] for path in loader.values if path[0] == "compaction"}:
        for name, model in models.items():
            if model.compact_threshold is not None and model.compaction is None:
                problem = (
                    "Nothing goes by it: responses of this model are compacted only where they ask for it."
                )
                remedy = f'Set models.{name}.compaction = "auto", or remove it.'
                _fail_field(loader, ("models", name, "compact_threshold"), problem, remedy)
    path = ("compaction", "prompt_file")
    file = _find_path(loader, path, compaction.prompt_file)
    prompt = _read_text(loader, path, file, PROMPT_FILE_BYTES) if file is not None else ""
    return msgspec.structs.replace(compaction, prompt=prompt, prompt_file=str(file) if file else "")


def _finish_endpoint(
    loader: Loader, endpoint: EndpointSettings, environ: Mapping[str, str], profiles: Mapping[str, Any]
) -> EndpointSettings:
    place = ("endpoints", endpoint.name)
    key = _read_key(loader, (*place, "key_env"), endpoint.key_env, environ)
    _check_reference(loader, (*place, "profile"), endpoint.profile, profiles)
    url = endpoint.url
    if loader.has_failed((*place, "dialect")):
        # What it needs is not known.
        return endpoint
    _check_foreign_fields(loader, place, endpoint)
    if endpoint.dialect not in _SERVER_DIALECTS:
        pass
    elif not url:
        remedy = "Set it to the model server, for example http://localhost:11434."
        _fail_field(loader, (*place, "url"), "This setting is required.", remedy)
    else:
        try:
            url = normalise_url(url)
        except ValueError as error:
            _fail_field(loader, (*place, "url"), str(error), "Give an address like http://localhost:11434.")
    is_played, is_run = endpoint.dialect == "scripted", endpoint.dialect == "local"
    script = _find_path(loader, (*place, "script"), endpoint.script) if is_played else None
    model_file = _find_path(loader, (*place, "model_file"), endpoint.model_file) if is_run else None
    return msgspec.structs.replace(
        endpoint,
        url=url,
        key=key,
        script=str(script) if script else "",
        model_file=str(model_file) if model_file else "",
    )


def _check_foreign_fields(loader: Loader, place: tuple[str, ...], endpoint: EndpointSettings) -> None:
    """What only an endpoint of another dialect can have."""
    for field, dialects in _FIELD_DIALECTS.items():
        if not getattr(endpoint, field) or endpoint.dialect in dialects:
            continue
        if dialects is _SERVER_DIALECTS:
            problem = f"A {endpoint.dialect} endpoint has no server."
        else:
            problem = f"Only a {dialects[0]} endpoint has this."
        remedy = f"Remove it, or set dialect = {render_value(dialects[0])}."
        if field == "model":
            remedy += " The name of a model at a server stands in [models.ALIAS]."
        _fail_field(loader, (*place, field), problem, remedy)
    if endpoint.dialect == "local" and endpoint.model and endpoint.model_file:
        problem = "An endpoint runs a model of the list or a file, not both."
        _fail_field(loader, (*place, "model_file"), problem, "Remove this, or model.")


def _read_key(loader: Loader, path: tuple[str, ...], name: str, environ: Mapping[str, str]) -> Secret | None:
    """The secret in the variable that a setting names."""
    if not name:
        return None
    key = read_secret(name, environ)
    if key is None and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
        _fail_field(
            loader, path, f"The variable {name} is not set.", f"Run: export {name}=KEY, or remove it."
        )
    elif key is None:
        # What stands here may be the key itself, so it is not repeated.
        problem = "It is not the name of a variable that is set."
        _fail_field(loader, path, problem, "Put the key into a variable, and the variable's name here.")
    return key


def _finish_model(
    loader: Loader, model: ModelSettings, endpoints: Mapping[str, Any], profiles: Mapping[str, Any]
) -> ModelSettings:
    place = ("models", model.alias)
    _check_reference(loader, (*place, "endpoint"), model.endpoint, endpoints)
    _check_reference(loader, (*place, "profile"), model.profile, profiles)
    path = (*place, "system_prompt_file")
    file = _find_path(loader, path, model.system_prompt_file)
    prompt = _read_text(loader, path, file) if file is not None else ""
    return msgspec.structs.replace(
        model,
        model=model.model or model.alias,
        system_prompt=prompt,
        system_prompt_file=str(file) if file else "",
    )


def _finish_key(loader: Loader, key: KeySettings) -> KeySettings:
    place = ("keys", key.name)
    if not re.fullmatch(r"[0-9a-fA-F]{64}", key.sha256):
        _fail_field(loader, (*place, "sha256"), "This must be 64 hexadecimal digits.", KEY_REMEDY)
    return msgspec.structs.replace(key, sha256=key.sha256.lower(), tenant=key.tenant or key.name)


def _check_distinct_keys(loader: Loader, keys: Mapping[str, KeySettings]) -> None:
    seen: dict[str, str] = {}
    for key in keys.values():
        first = seen.setdefault(key.sha256, key.name)
        if first != key.name:
            problem = f"This is the same key as [keys.{first}]."
            _fail_field(loader, ("keys", key.name, "sha256"), problem, "Give each tenant a key of its own.")


def _check_reference(loader: Loader, path: tuple[str, ...], name: str, known: Mapping[str, Any]) -> None:
    if not name or name in known:
        return
    kind = path[-1]
    remedy = f"{suggest(name, list(known))} Or add [{kind}s.{name}]." if known else f"Add [{kind}s.{name}]."
    _fail_field(loader, path, f"There is no {kind} {render_value(name)}.", remedy)


def _find_path(loader: Loader, path: tuple[str, ...], name: str) -> Path | None:
    """A file that a setting names, relative to the file or folder in which it was named."""
    if not name:
        return None
    found = loader.values[path].folder / Path(name).expanduser()
    if not found.is_file():
        _fail_field(loader, path, f"There is no file {found}.", "Give the path of a file that exists.")
        return None
    return found


def _read_text(loader: Loader, path: tuple[str, ...], file: Path, max_bytes: int | None = None) -> str:
    """A text file that a setting names, without the space around it; "" where it cannot be used."""
    try:
        with file.open("rb") as opened:
            raw = opened.read() if max_bytes is None else opened.read(max_bytes + 1)
        if max_bytes is not None and len(raw) > max_bytes:
            _fail_field(loader, path, f"{file} is larger than {max_bytes} bytes.", "Shorten it.")
            return ""
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        _fail_field(loader, path, f"{file} is not UTF-8 text.", "Save it as UTF-8.")
        return ""
    except OSError as error:
        _fail_field(loader, path, f"{file} cannot be read: {error.strerror}.", "Give a readable file.")
        return ""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def _fail_field(loader: Loader, path: tuple[str, ...], problem: str, remedy: str) -> None:
    if loader.has_failed(path):
        return
    origin = loader.origin(*path)
    if origin == "default" and len(path) == 3:
        origin = loader.names[path[0]][path[1]]
    loader.fail(path, origin, problem, remedy)


def normalise_url(text: str) -> str:
    """The base URL of an endpoint: `http://h:1` -> `http://h:1/v1`; a base or a full URL -> its base.

    Raises `ValueError` with a sentence when it is no http(s) URL, or carries what a base cannot.
    """
    text = text.strip()
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("This must be an http:// or https:// URL.")
    if parts.username is not None:
        raise ValueError("A URL must not carry a name or password; use key_env.")
    if parts.query or parts.fragment:
        raise ValueError("A URL must not carry a query or fragment here.")
    parts.port  # noqa: B018 - raises ValueError for a port that is no number
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/responses").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    import ipaddress

    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
