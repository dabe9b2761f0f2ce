"""`antiphon codex-config`: a configuration and a model catalog for Codex that fit the running server.

It asks the server what it serves and starts nothing. Invariant: what it prints is true of that server now, what a
server tells that makes no sense is left out, and no file is overwritten that the person did not give up.
"""

import asyncio
import importlib.resources
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from antiphon.cli.ask import DEFAULT_URL, explain_unknown_key, explain_unreachable, read_key
from antiphon.protocol.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.client import NetworkTransport, ResponsesClient

CONFIG_NAME = "config.toml"
#: Codex looks for it beside the configuration that names it.
CATALOG_NAME = "antiphon-models.json"
#: In a smaller window not even what Codex sends with every request has room.
LEAST_WINDOW_TOKENS = 1_000
#: No window is larger; Codex could not read the number either, once it is beyond 64 bits.
MOST_WINDOW_TOKENS = 1_000_000_000
#: How many models are described where none is named; each costs a request.
MODELS_DESCRIBED = 20
#: Seconds within which a server must have taken a WebSocket.
SOCKET_TRIAL_S = 10.0
#: So much is shown of what makes no sense.
SHOWN_CHARACTERS = 60
#: The efforts that Codex has names for.
CODEX_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
#: Tokens of a tool's output that Codex keeps, and the share of a small window that they may take.
OUTPUT_TOKENS = 10_000
OUTPUT_SHARE = 8
#: The route that a server has that compacts.
COMPACTION_ROUTE = "/v1/responses/compact"
#: The provider's name. Codex leaves compaction to the server for "OpenAI" and "Azure" alone; with "OpenAI" it also
#: puts data of its own into every item.
PLAIN_NAME = "Antiphon"
COMPACTING_NAME = "Azure"


class WholeNumber(click.IntRange):
    """A range of integers that says of a text in plain words that it is none."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number in the text."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return super().convert(value, param, ctx)


class CodexModel(NamedTuple):
    """What Codex has to know of a model."""

    name: str
    window_tokens: int | None
    sees_images: bool
    efforts: tuple[str, ...]


class Wanted(NamedTuple):
    """What was asked for."""

    models: tuple[str, ...]
    window: int | None
    websocket: bool
    remote_compaction: bool
    key_env: str | None


class Found(NamedTuple):
    """What the server said: its address and its models, the first one the one to use."""

    url: str
    models: tuple[CodexModel, ...]
    notes: tuple[str, ...]


@click.command(
    name="codex-config",
    short_help="Print a configuration for Codex that fits the running server.",
    epilog="""\b
Examples:
  antiphon codex-config
  antiphon codex-config --out codex-home
  antiphon codex-config --url http://127.0.0.1:8300 --model scripted --websocket
  antiphon codex-config --catalog

\b
Exit status: 0 done; 1 the server failed, cannot be reached or does not serve what was asked for;
2 wrong use, or a file is there already; 130 interrupted.""",
)
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Host or base of the server.")
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="Model to use; more than once: to choose from."
)
@click.option(
    "--window",
    type=WholeNumber(LEAST_WINDOW_TOKENS, MOST_WINDOW_TOKENS),
    metavar="TOKENS",
    help="Window of a model whose server does not tell it; ignored for others.",
)
@click.option("--websocket/--no-websocket", help="Whether Codex keeps a WebSocket open (no).")
@click.option("--remote-compaction", is_flag=True, help="Let the server compact long histories, not Codex.")
@click.option("--key-env", metavar="NAME", help="Environment variable that holds the server's API key.")
@click.option("--catalog", "shows_catalog", is_flag=True, help="Print the model catalog instead.")
@click.option(
    "--out",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write both files there.",
)
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def codex_config(url: str, shows_catalog: bool, folder: Path | None, force: bool, **options: Any) -> None:
    """Print a config.toml for Codex, made of what the server at --url says of its models.

    It names a model catalog, which --catalog prints and --out writes beside it.
    """
    if shows_catalog and folder is not None:
        raise click.UsageError("--out writes the catalog too; leave --catalog out.")
    if force and folder is None:
        raise click.UsageError("--force goes with --out DIR.")
    if folder is not None:
        refuse_folders(folder)
        if not force:
            refuse_overwriting(folder)
    wanted = Wanted(**options)
    found = asyncio.run(ask_server(url, wanted))
    for note in found.notes:
        click.echo(f"antiphon: {note}", err=True)
    config, catalog = render_config(found, wanted), render_catalog(found.models)
    if folder is None:
        click.echo(catalog if shows_catalog else config, nl=False)
        return
    texts = {CONFIG_NAME: config, CATALOG_NAME: catalog}
    write_files(folder, texts, force=force)
    for name in texts:
        click.echo(f"wrote {folder / name}")


def refuse_folders(folder: Path) -> None:
    """Raise `UsageError` if a folder is where a file would be written; `--force` gives up no folder."""
    there = [folder / name for name in (CONFIG_NAME, CATALOG_NAME)]
    found = [str(path) for path in there if path.is_dir() and not path.is_symlink()]
    if found:
        raise click.UsageError(f"There is a folder {' and '.join(found)}. Name another --out, or remove it.")


def refuse_overwriting(folder: Path) -> None:
    """Raise `UsageError` if a file is there that would be written."""
    there = [folder / name for name in (CONFIG_NAME, CATALOG_NAME) if os.path.lexists(folder / name)]
    if there:
        raise describe_overwriting(there)


def describe_overwriting(there: Sequence[Path]) -> click.UsageError:
    """What to say where files are that nobody gave up."""
    found = " and ".join(map(str, there))
    return click.UsageError(f"There is already {found}. Name another --out, or add --force.")


def write_files(folder: Path, texts: dict[str, str], *, force: bool) -> None:
    """Write all of the files or none; what comes to be there meanwhile is overwritten by `force` alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".antiphon-") as drafts:
            for name, text in texts.items():
                (Path(drafts) / name).write_text(text, encoding="utf-8")
            with claim([] if force else [folder / name for name in texts]):
                # The configuration last: it names the catalog.
                for name in reversed(texts):
                    (Path(drafts) / name).replace(folder / name)
    except OSError as error:
        raise AntiphonError(
            f"The files cannot be written into {folder}: {error.strerror}. Name another --out, a folder that you may "
            "write in, or leave it out: then the configuration is printed."
        ) from error


@contextmanager
def claim(paths: Sequence[Path]) -> Iterator[None]:
    """Files that were not there until now, nor links; gone again if what follows fails."""
    claimed: list[Path] = []
    try:
        for path in paths:
            try:
                path.open("xb").close()
            except FileExistsError as error:
                raise describe_overwriting([path]) from error
            claimed.append(path)
        yield
    except BaseException:
        for path in claimed:
            path.unlink(missing_ok=True)
        raise


async def ask_server(url: str, wanted: Wanted) -> Found:
    """What the server says; raises what is wrong with it."""
    from antiphon.client import NetworkTransport, UnreachableError, resolve_responses_url

    try:
        base, prefix = resolve_responses_url(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    transport = NetworkTransport(base)
    try:
        return await ask_transport(transport, base, prefix, wanted)
    except UnreachableError as error:
        raise explain_unreachable(error, base) from error
    finally:
        await transport.close()


async def ask_transport(transport: "NetworkTransport", base: str, prefix: str, wanted: Wanted) -> Found:
    """What the server behind the transport says; its API stands at `prefix`."""
    from antiphon.client import ResponsesClient

    key = read_key(wanted.key_env)
    revealed = key.reveal() if key is not None else None
    client = ResponsesClient(transport, revealed, prefix=prefix)
    # The server's description of itself stands beside the API's `/v1`.
    outside = ResponsesClient(transport, revealed, prefix=prefix.removesuffix("/v1"))
    if wanted.remote_compaction and not await serves_compaction(outside):
        raise AntiphonError(
            f"The server at {base} does not compact (it serves no POST {COMPACTION_ROUTE}), so a turn would fail "
            "once its history fills the window. Leave --remote-compaction out: Codex then summarises by itself."
        )
    names, notes = await choose_models(client, wanted)
    models = []
    for name in names:
        model, left_out = await describe_model(client, name, wanted.window)
        models.append(model)
        notes += left_out
    if wanted.websocket:
        notes += await try_socket(transport, prefix, revealed)
    notes += [
        f"The server does not tell how many tokens {model.name} holds, so Codex cannot shorten its history in time. "
        "Give --window TOKENS."
        for model in models
        if model.window_tokens is None
    ]
    return Found(base + prefix, tuple(models), tuple(notes))


async def serves_compaction(client: "ResponsesClient") -> bool:
    """Whether the server's own description has the route."""
    from antiphon.client import ClientError

    try:
        described = (await client.request("GET", "/openapi.json")).body
    except ClientError:
        return False
    paths = described.get("paths") if isinstance(described, dict) else None
    return isinstance(paths, dict) and COMPACTION_ROUTE in paths


async def try_socket(transport: "NetworkTransport", prefix: str, key: str | None) -> list[str]:
    """What the person should know where the server takes no WebSocket; nothing is sent over one that it takes."""
    from antiphon.client import ConnectionFailedError, UpgradeRefusedError

    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    remedy = "Codex would try one and then go on without. Leave --websocket out, or"
    try:
        async with asyncio.timeout(SOCKET_TRIAL_S):
            socket = await transport.open_socket(f"{prefix}/responses", headers)
            await socket.close()
    except UpgradeRefusedError as error:
        if error.status == 426:
            return [f"This server takes no WebSockets. {remedy} set server.websocket = true there."]
        return [f"This server takes no WebSocket (status {error.status}). {remedy} use a server that does."]
    except (ConnectionFailedError, TimeoutError) as error:
        said = str(error) or f"no answer within {SOCKET_TRIAL_S:g} seconds"
        return [f"No WebSocket could be opened: {said.rstrip('.')}. {remedy} try again."]
    return []


async def choose_models(client: "ResponsesClient", wanted: Wanted) -> tuple[list[str], list[str]]:
    """The names to describe, the one to use first, and what the person should know about the choice."""
    from antiphon.client import ClientError

    try:
        body = (await client.list_models()).body
    except ClientError as error:
        if error.status == 401:
            raise explain_unknown_key(error, wanted.key_env) from error
        raise
    rows = body.get("data") if isinstance(body, dict) else None
    listed = [
        row["id"]
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and isinstance(row.get("id"), str)
    ]
    missing = [name for name in wanted.models if name not in listed]
    if missing:
        shown = ", ".join(listed[:MODELS_DESCRIBED]) or "none"
        raise AntiphonError(f"The server does not list {', '.join(missing)}. It lists: {shown}.")
    if not listed:
        raise AntiphonError("The server lists no models; start it with one.")
    if wanted.models:
        return list(dict.fromkeys(wanted.models)), []
    left_out = len(listed) - MODELS_DESCRIBED
    notes = [f"{left_out} more models are left out; name those to use with --model."] if left_out > 0 else []
    return listed[:MODELS_DESCRIBED], notes


async def describe_model(
    client: "ResponsesClient", name: str, window: int | None
) -> tuple[CodexModel, list[str]]:
    """One model as its server tells it, `window` where it does not tell that; and what was left out of it."""
    from urllib.parse import quote

    body = (await client.request("GET", f"/models/{quote(name)}")).body
    told, wrong = read_told(body)
    model = CodexModel(
        name,
        told.get("window_tokens") or window,
        # Where it is not known, images are sent and the server decides.
        told.get("sees_images") is not False,
        tuple(effort for effort in CODEX_EFFORTS if effort in told.get("efforts", ())),
    )
    notes = [f"What the server tells of {name} makes no sense and is left out: {text}." for text in wrong]
    if window is not None and "window_tokens" in told:
        notes.append(
            f"--window is ignored for {name}: the server tells that it holds {told['window_tokens']} tokens."
        )
    return model, notes


def read_told(body: object) -> tuple[dict[str, Any], list[str]]:
    """What a server tells of a model beyond its name, and what of it makes no sense; null is not told."""
    if not isinstance(body, dict):
        return {}, [show("the model", body)]
    told = body.get("antiphon")
    if told is None:
        return {}, []
    if not isinstance(told, dict):
        return {}, [show("antiphon", told)]
    fits = {"window_tokens": is_window, "sees_images": is_flag, "efforts": is_list_of_texts}
    given = {field: told[field] for field in fits if told.get(field) is not None}
    wrong = [field for field, value in given.items() if not fits[field](value)]
    return (
        {field: value for field, value in given.items() if field not in wrong},
        [show(field, given[field]) for field in wrong],
    )


def show(field: str, value: object) -> str:
    """A field and what it holds, cut."""
    text = json.dumps(value)
    return f"{field} = {text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + '...'}"


def is_window(value: object) -> bool:
    """Whether a model can hold so many tokens."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_WINDOW_TOKENS


def is_flag(value: object) -> bool:
    """Whether it says yes or no."""
    return isinstance(value, bool)


def is_list_of_texts(value: object) -> bool:
    """Whether it is a list of nothing but texts."""
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def render_config(found: Found, wanted: Wanted) -> str:
    """The `config.toml`."""
    model = found.models[0]
    lines = [
        f"# For Codex, in front of the Antiphon server at {found.url}",
        f"model = {quote_toml(model.name)}",
        'model_provider = "antiphon"',
        "# Beside this file; `antiphon codex-config --catalog` prints it, `--out DIR` writes both.",
        f"model_catalog_json = {json.dumps(CATALOG_NAME)}",
        "",
        "[model_providers.antiphon]",
    ]
    if wanted.remote_compaction:
        lines += [
            "# By this name Codex leaves it to the server to compact a long history.",
            f"name = {json.dumps(COMPACTING_NAME)}",
        ]
    else:
        lines.append(f"name = {json.dumps(PLAIN_NAME)}")
    lines += [
        f"base_url = {quote_toml(found.url)}",
        'wire_api = "responses"',
        f"supports_websockets = {json.dumps(wanted.websocket)}",
    ]
    if wanted.key_env is not None:
        lines.append(f"env_key = {quote_toml(wanted.key_env)}")
    return "\n".join(lines) + "\n"


def quote_toml(text: str) -> str:
    """A TOML string: as JSON's, without pairs of surrogates and with DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def render_catalog(models: Sequence[CodexModel]) -> str:
    """The model catalog, in the order in which Codex is to list the models."""
    prompt = importlib.resources.files("antiphon.cli").joinpath("codex_instructions.md").read_text("utf-8")
    entries = [describe_entry(model, prompt, place) for place, model in enumerate(models, 1)]
    return json.dumps({"models": entries}, indent=2, ensure_ascii=False) + "\n"


def describe_entry(model: CodexModel, prompt: str, place: int) -> dict[str, Any]:
    """What Codex reads of one model; every key that it demands is there."""
    kept = OUTPUT_TOKENS
    if model.window_tokens is not None:
        kept = max(1, min(kept, model.window_tokens // OUTPUT_SHARE))
    entry: dict[str, Any] = {
        "slug": model.name,
        "display_name": model.name,
        "base_instructions": prompt,
        "supported_reasoning_levels": [
            {"effort": effort, "description": f"Reasoning effort: {effort}"} for effort in model.efforts
        ],
        "supports_reasoning_summaries": bool(model.efforts),
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
        "support_verbosity": False,
        "truncation_policy": {"mode": "tokens", "limit": kept},
        "experimental_supported_tools": [],
        "supports_parallel_tool_calls": True,
        "apply_patch_tool_type": "freeform",
        "input_modalities": ["text", "image"] if model.sees_images else ["text"],
    }
    if model.efforts:
        usual = "medium" if "medium" in model.efforts else model.efforts[-1]
        entry["default_reasoning_level"] = usual
    if model.window_tokens is not None:
        entry["context_window"] = entry["max_context_window"] = model.window_tokens
    return entry
