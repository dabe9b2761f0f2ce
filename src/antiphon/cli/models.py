"""`antiphon models list|pull|verify|rm`: the embedded models in this machine's cache folder.

It shows what the cache tells; which folder and which sources is the configuration's business.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from antiphon.cli.config import FILE_HELP

if TYPE_CHECKING:
    from antiphon.backends.local import ModelCache, ModelRow

ALL = "all"


class ModelName(click.ParamType):  # type: ignore[type-arg]  # generic in the newest click alone
    """The name of a model in the table, and `all` where that makes sense."""

    name = "name"

    def __init__(self, *, takes_all: bool = False) -> None:
        self._takes_all = takes_all

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name, or a usage error with what was perhaps meant."""
        from antiphon.backends.local import MODELS, UnknownModelError, find_model

        if self._takes_all and value == ALL:
            return value
        try:
            return find_model(value, MODELS).name
        except UnknownModelError as error:
            self.fail(error.message, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The names that begin so."""
        from antiphon.backends.local import MODELS

        names = [*MODELS, ALL] if self._takes_all else list(MODELS)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group(
    short_help="List, download, verify or remove embedded models.",
    epilog="""\b
Examples:
  antiphon models list
  antiphon models pull
  antiphon models pull qwen2.5-coder-1.5b-instruct
  antiphon models verify all
  antiphon models rm smollm2-135m-instruct

\b
Exit status: 0 done; 1 failed; 2 wrong use or configuration; 130 interrupted.""",
)
def models() -> None:
    """List, download, verify or remove the models that antiphon serve can run by itself."""


@models.command(name="list", epilog="\b\nExample:\n  antiphon models list")
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
def list_models(file: Path | None) -> None:
    """Print every model: licence, size, window in tokens, whether it is here, and where."""
    for line in render_rows(open_cache(file).list_rows()):
        click.echo(line)


@models.command(epilog="\b\nExamples:\n  antiphon models pull\n  antiphon models pull smollm2-135m-instruct")
@click.argument("name", required=False, type=ModelName())
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
def pull(name: str | None, file: Path | None) -> None:
    """Download a model (the default one unless NAME is given) and print its path.

    A download that was broken off goes on where it stopped. The file's SHA-256 is checked before it counts.
    """
    from antiphon.backends.local import DEFAULT_MODEL, MODELS, locate_licence
    from antiphon.cli.progress import show_progress
    from antiphon.config import load_config

    chosen = name or DEFAULT_MODEL
    sources = load_config(file=file).local.sources
    with show_progress() as report:
        path = open_cache(file).pull(chosen, sources=sources, report=report)
    model = MODELS[chosen]
    click.echo(f"antiphon: {model.licence}, by {model.author}: {locate_licence(model)}", err=True)
    click.echo(path)


@models.command(
    epilog="\b\nExamples:\n  antiphon models verify all\n  antiphon models verify smollm2-135m-instruct"
)
@click.argument("name", type=ModelName(takes_all=True))
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
def verify(name: str, file: Path | None) -> int:
    """Compute the SHA-256 of a model's file anew; `all` means every one that is here."""
    from antiphon.backends.local import ModelError

    cache = open_cache(file)
    names = [name]
    if name == ALL:
        names = [row.model.name for row in cache.list_rows() if row.path.is_file()]
        if not names:
            click.echo(f"no model is in {cache.folder}")
    failed = 0
    for one in names:
        try:
            click.echo(f"{one}: ok, {cache.verify(one)}")
        except ModelError as error:
            failed += 1
            click.echo(f"antiphon: {error.message}", err=True)
    return 1 if failed else 0


@models.command(epilog="\b\nExample:\n  antiphon models rm smollm2-135m-instruct")
@click.argument("name", type=ModelName())
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
def rm(name: str, file: Path | None) -> int:
    """Delete a model's file, and what a broken download left of it."""
    from antiphon.backends.local import render_bytes

    cache = open_cache(file)
    freed = cache.remove(name)
    if not freed:
        click.echo(f"antiphon: {name} is not in {cache.folder}.", err=True)
        return 1
    click.echo(f"{name}: removed, {render_bytes(freed)} freed")
    return 0


def open_cache(file: Path | None) -> "ModelCache":
    """The cache that the configuration names."""
    from antiphon.backends.local import ModelCache
    from antiphon.config import load_config

    return ModelCache(Path(load_config(file=file).local.cache))


def render_rows(rows: Sequence["ModelRow"]) -> list[str]:
    """The table of models as lines."""
    from antiphon.backends.local import DEFAULT_MODEL, render_bytes

    cells = [("NAME", "LICENCE", "SIZE", "CONTEXT", "HERE", "PATH")]
    for row in rows:
        model = row.model
        here = {"present": "yes", "unchecked": "unchecked", "absent": "no"}.get(row.state)
        cells.append(
            (
                model.name + (" (default)" if model.name == DEFAULT_MODEL else ""),
                model.licence,
                render_bytes(model.file_bytes),
                f"{model.context_tokens}",
                here or f"{row.partial_bytes * 100 // model.file_bytes} %",
                str(row.path) if row.state in ("present", "unchecked") else "-",
            )
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]) - 1)]
    return ["  ".join([*map(str.ljust, line, widths), line[-1]]) for line in cells]
