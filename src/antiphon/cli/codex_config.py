"""`antiphon codex-config`: a configuration and a model catalog for Codex that fit the running server.

It asks the server what it serves and starts nothing. Invariant: what it prints is true of that server now, and no
file is overwritten that the person did not give up.
"""

import asyncio
import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from antiphon.cli.ask import DEFAULT_URL, read_key
from antiphon.protocol.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.client import ResponsesClient

CONFIG_NAME = "config.toml"
#: Codex looks for it beside the configuration that names it.
CATALOG_NAME = "antiphon-models.json"
#: How many models are described where none is named; each costs a request.
MODELS_DESCRIBED = 20
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
    type=click.IntRange(min=1),
    metavar="TOKENS",
    help="Window of a model whose server does not tell it.",
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
    if folder is not None and not force:
        refuse_overwriting(folder)
    wanted = Wanted(**options)
    found = asyncio.run(ask_server(url, wanted))
    for note in found.notes:
        click.echo(f"antiphon: {note}", err=True)
    config, catalog = render_config(found, wanted), render_catalog(found.models)
    if folder is None:
        click.echo(catalog if shows_catalog else config, nl=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((CONFIG_NAME, config), (CATALOG_NAME, catalog)):
        (folder / name).write_text(text, encoding="utf-8")
        click.echo(f"wrote {folder / name}")


def refuse_overwriting(folder: Path) -> None:
    """Raise `UsageError` if a file is there that would be written."""
    there = [str(folder / name) for name in (CONFIG_NAME, CATALOG_NAME) if (folder / name).exists()]
    if there:
        raise click.UsageError(f"There is already {' and '.join(there)}. Name another --out, or add --force.")


async def ask_server(url: str, wanted: Wanted) -> Found:
    """What the server says; raises what is wrong with it."""
    from antiphon.client import NetworkTransport, ResponsesClient, resolve_responses_url

    try:
        base, prefix = resolve_responses_url(url)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    key = read_key(wanted.key_env)
    revealed = key.reveal() if key is not None else None
    transport = NetworkTransport(base)
    client = ResponsesClient(transport, revealed, prefix=prefix)
    # The server's description of itself stands beside the API's `/v1`.
    outside = ResponsesClient(transport, revealed, prefix=prefix.removesuffix("/v1"))
    try:
        if wanted.remote_compaction and not await serves_compaction(outside):
            raise AntiphonError(
                f"The server at {base} does not compact (it serves no POST {COMPACTION_ROUTE}), so a turn would fail "
                "once its history fills the window. Leave --remote-compaction out: Codex then summarises by itself."
            )
        names, notes = await choose_models(client, wanted.models)
        models = [await describe_model(client, name, wanted.window) for name in names]
    finally:
        await transport.close()
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
    return isinstance(described, dict) and COMPACTION_ROUTE in described.get("paths", {})


async def choose_models(client: "ResponsesClient", named: Sequence[str]) -> tuple[list[str], list[str]]:
    """The names to describe, the one to use first, and what the person should know about the choice."""
    from antiphon.client import ClientError

    try:
        body = (await client.list_models()).body
    except ClientError as error:
        if error.status == 401:
            hint = "Name the variable that holds the server's API key with --key-env."
            raise AntiphonError(f"{error.message} {hint}") from error
        raise
    rows = body.get("data", []) if isinstance(body, dict) else []
    listed = [row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]
    missing = [name for name in named if name not in listed]
    if missing:
        shown = ", ".join(listed[:MODELS_DESCRIBED]) or "none"
        raise click.UsageError(f"The server does not list {', '.join(missing)}. It lists: {shown}.")
    if not listed:
        raise AntiphonError("The server lists no models; start it with one.")
    if named:
        return list(dict.fromkeys(named)), []
    left_out = len(listed) - MODELS_DESCRIBED
    notes = [f"{left_out} more models are left out; name those to use with --model."] if left_out > 0 else []
    return listed[:MODELS_DESCRIBED], notes


async def describe_model(client: "ResponsesClient", name: str, window: int | None) -> CodexModel:
    """One model as its server tells it; `window` where it does not tell that."""
    from urllib.parse import quote

    body = (await client.request("GET", f"/models/{quote(name)}")).body
    told = body.get("antiphon", {}) if isinstance(body, dict) else {}
    efforts = tuple(effort for effort in CODEX_EFFORTS if effort in told.get("efforts", ()))
    return CodexModel(
        name,
        told.get("window_tokens") or window,
        # Where it is not known, images are sent and the server decides.
        told.get("sees_images") is not False,
        efforts,
    )


def render_config(found: Found, wanted: Wanted) -> str:
    """The `config.toml`."""
    model = found.models[0]
    lines = [
        f"# For Codex, in front of the Antiphon server at {found.url}",
        f"model = {json.dumps(model.name)}",
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
        f"base_url = {json.dumps(found.url)}",
        'wire_api = "responses"',
        f"supports_websockets = {json.dumps(wanted.websocket)}",
    ]
    if wanted.key_env is not None:
        lines.append(f"env_key = {json.dumps(wanted.key_env)}")
    return "\n".join(lines) + "\n"


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
