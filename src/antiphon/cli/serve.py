"""`antiphon serve`: turns options into settings, runs the server, says where it is.

It knows no server: bootstrap runs it and reports the facts that are printed here.
"""

import errno
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from antiphon.cli.config import FILE_HELP

if TYPE_CHECKING:
    from antiphon.config import Config, ServeFacts

#: Models named in the announcement; the rest is counted.
SHOWN_MODELS = 8


@click.command(
    short_help="Serve the Responses API in front of a model server.",
    epilog="""\b
Examples:
  antiphon serve
  antiphon serve --local --model-file model.gguf
  antiphon serve --upstream http://localhost:11434
  antiphon serve --upstream https://models.example/v1 --upstream-key-env MODELS_KEY
  antiphon serve --scripted
  antiphon serve --config antiphon.toml --port 8400

\b
With nothing configured the default embedded model is served; it is
downloaded once. The others: antiphon models list.

\b
Exit status: 0 stopped; 1 failed, or the port is taken; 2 wrong use or
configuration; 130 interrupted.""",
)
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
@click.option(
    "--upstream", metavar="URL", help="Model server: a host, a base or a full chat/completions URL."
)
@click.option("--upstream-key-env", metavar="NAME", help="Variable that holds the model server's API key.")
@click.option("--local", is_flag=True, help="Serve the embedded model; it is downloaded if it is not here.")
@click.option(
    "--model",
    metavar="NAME",
    help="Model of --local; or of --upstream or --scripted, that clients may ask for.",
)
@click.option(
    "--model-file", type=click.Path(), metavar="FILE", help="GGUF file for --local, instead of --model."
)
@click.option(
    "--scripted", is_flag=True, help="Serve the scripted model: deterministic, needs no model server."
)
@click.option("--script", type=click.Path(), metavar="FILE", help="Answers for --scripted, as TOML or JSON.")
@click.option("--host", help="Address to listen on (127.0.0.1).")
@click.option("--port", type=int, help="Port to listen on (8300); 0 takes a free one.")
@click.option(
    "--data", type=click.Path(), metavar="DIR", help="Folder of the database (the user's data folder)."
)
def serve(file: Path | None, **options: Any) -> int:
    """Serve the complete, stateful Responses API in front of a model server, or of the embedded model."""
    from antiphon.config import load_config

    flags = build_flags(**options)
    config = load_config(flags, file=file)
    if not config.endpoints:
        config = load_config({**flags, "endpoints": {"local": {"dialect": "local"}}}, file=file)
    from antiphon.bootstrap import serve as serve_config
    from antiphon.cli.progress import show_progress

    try:
        with show_progress() as report:
            serve_config(config, lambda facts: click.echo(render_announcement(facts)), report)
    except OSError as error:
        message = explain_listen_error(error, config)
        if message is None:
            raise
        click.echo(f"antiphon: {message}", err=True)
        return 1
    return 0


def build_flags(
    *,
    upstream: str | None,
    upstream_key_env: str | None,
    model: str | None,
    local: bool,
    model_file: str | None,
    scripted: bool,
    script: str | None,
    host: str | None,
    port: int | None,
    data: str | None,
) -> dict[str, Any]:
    """The options as a nested table like the file's; raises `UsageError` for options that need another."""
    if (upstream is not None) + local + scripted > 1:
        raise click.UsageError("--upstream, --local and --scripted exclude each other.")
    if upstream_key_env is not None and upstream is None:
        raise click.UsageError("--upstream-key-env needs --upstream.")
    if script is not None and not scripted:
        raise click.UsageError("--script needs --scripted.")
    if model_file is not None and (upstream is not None or scripted):
        raise click.UsageError("--model-file is for the embedded model; leave out --upstream and --scripted.")
    # A model that nobody else serves is the embedded one's.
    local = local or ((model is not None or model_file is not None) and upstream is None and not scripted)
    if model_file is not None and model is not None:
        raise click.UsageError("--model and --model-file exclude each other.")
    flags: dict[str, Any] = {"server": drop_unset(host=host, port=port, data=data)}
    if upstream is not None:
        endpoint = drop_unset(dialect="chat_completions", url=upstream, key_env=upstream_key_env)
        flags["endpoints"] = {"upstream": endpoint}
    elif local:
        flags["endpoints"] = {"local": drop_unset(dialect="local", model=model, model_file=model_file)}
    elif scripted:
        flags["endpoints"] = {"scripted": drop_unset(dialect="scripted", script=script)}
    if model is not None and not local:
        flags["models"] = {model: {"endpoint": "scripted" if scripted else "upstream", "model": model}}
    return flags


def drop_unset(**values: Any) -> dict[str, Any]:
    """The values that were given."""
    return {name: value for name, value in values.items() if value is not None}


def render_announcement(facts: "ServeFacts") -> str:
    """What is printed once the server is ready, ending with a curl line that works."""
    shown = ", ".join(facts.models[:SHOWN_MODELS]) or "none listed yet"
    more = len(facts.models) - SHOWN_MODELS
    keys = f"{facts.keys} known" if facts.keys else "none, so this machine alone is served"
    lines = [
        f"antiphon: serving on {facts.url}",
        f"  models  {shown}{f' and {more} more' if more > 0 else ''}",
        f"  store   {facts.store}",
        f"  keys    {keys}",
        *(f"  note    {note}" for note in facts.notes),
        "",
        render_curl(facts),
        "",
    ]
    return "\n".join(lines)


def render_curl(facts: "ServeFacts") -> str:
    """A request to paste into a shell."""
    import msgspec

    body = {"model": facts.models[0] if facts.models else "MODEL", "input": "Hello!"}
    header = ' -H "authorization: Bearer $KEY"' if facts.keys else ""
    text = shlex.quote(msgspec.json.encode(body).decode())
    return f"  curl {facts.url}/responses -H 'content-type: application/json'{header} -d {text}"


def explain_listen_error(error: OSError, config: "Config") -> str | None:
    """A sentence for what keeps a server from listening; None for any other failure."""
    place = f"{config.server.host}:{config.server.port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"{place} is in use. Stop what listens there, or pass --port N (0 takes a free one); beside another "
            f"Antiphon with the data folder {config.server.data} pass --data DIR too."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{config.server.host} is not an address of this machine. Pass --host 127.0.0.1."
    if error.errno == errno.EACCES and error.filename is None:
        return f"This user may not listen on {place}. Pass --port with a number above 1023."
    return None
