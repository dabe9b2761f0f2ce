"""`antiphon keys list|rotate`: the keys that seal what clients carry for the server.

It shows ids and times; how the keys are kept is the configuration's business. Invariant: no key is ever printed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from antiphon.cli.config import FILE_HELP

if TYPE_CHECKING:
    from antiphon.config import Config, SealKeyEntry

DATA_HELP = "Folder of the database, where the file of the keys is (the user's data folder)."


@click.group(
    short_help="List or rotate the keys that seal what clients carry.",
    epilog="""\b
Examples:
  antiphon keys list
  antiphon keys rotate
  antiphon keys rotate --retire 0f3a91c2

\b
API keys of clients are no such keys: they stand in the configuration.

\b
Exit status: 0 done; 1 failed; 2 wrong use or configuration; 130 interrupted.""",
)
def keys() -> None:
    """List or rotate the keys that seal what clients carry for the server, such as encrypted reasoning."""


@keys.command(name="list", epilog="\b\nExample:\n  antiphon keys list --data data")
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
@click.option("--data", type=click.Path(), metavar="DIR", help=DATA_HELP)
def list_keys(file: Path | None, data: str | None) -> None:
    """Print every key's id, when it was made, and which one seals; never a key."""
    from antiphon.config import list_seal_keys

    config = load(file, data)
    entries = list_seal_keys(config)
    if not entries:
        click.echo(f"no keys yet; antiphon serve makes one in {locate(config)}")
        return
    for line in render_keys(entries):
        click.echo(line)
    click.echo(f"kept in {locate(config)}")


@keys.command(epilog="\b\nExamples:\n  antiphon keys rotate\n  antiphon keys rotate --retire 0f3a91c2 --yes")
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
@click.option("--data", type=click.Path(), metavar="DIR", help=DATA_HELP)
@click.option(
    "--retire", metavar="ID", help="Also remove this key; what it sealed can never be opened again."
)
@click.option("--yes", is_flag=True, help="Do not ask before a key is removed.")
def rotate(file: Path | None, data: str | None, retire: str | None, yes: bool) -> None:
    """Make a new key that seals from now on; the old ones still open what they sealed.

    A running server goes on with the keys that it started with, until it is started again.
    """
    from antiphon.config import list_seal_keys, rotate_seal_keys
    from antiphon.config.seal_keys import FIXED_KEYS

    config = load(file, data)
    if config.seal.keys:
        raise click.UsageError(FIXED_KEYS.format(config.seal.keys_env))
    if retire is not None:
        check_known(retire, list_seal_keys(config))
        click.echo(
            f"antiphon: what {retire} sealed can never be opened again: clients that still carry it are refused "
            "with invalid_encrypted_content. Copies of the file still hold the key.",
            err=True,
        )
        if not yes:
            click.confirm(f"Remove {retire}?", abort=True, err=True)
    entry = rotate_seal_keys(config, retire=retire)
    click.echo(f"{entry.id}: made, and current, in {locate(config)}")
    if retire is not None:
        click.echo(f"{retire}: removed")
    click.echo("A running server uses this from its next start on; start every server that shares the file.")


def load(file: Path | None, data: str | None) -> "Config":
    """The configuration, with `--data` over it as for `antiphon serve`."""
    from antiphon.config import load_config

    return load_config({"server": {"data": data}} if data is not None else {}, file=file)


def locate(config: "Config") -> str:
    """Where the keys are, in words."""
    from antiphon.config import locate_seal_keys

    return f"the variable {config.seal.keys_env}" if config.seal.keys else str(locate_seal_keys(config))


def check_known(key_id: str, entries: Sequence["SealKeyEntry"]) -> None:
    """Raise `UsageError` for an id that no key has, before anyone is asked anything."""
    known = [entry.id for entry in entries]
    if key_id not in known:
        raise click.UsageError(f"There is no key {key_id}. There are: {', '.join(known) or 'none'}.")


def render_keys(entries: Sequence["SealKeyEntry"]) -> list[str]:
    """The table of keys as lines, the current one first."""
    cells = [("ID", "CREATED", "CURRENT")]
    for position, entry in enumerate(entries):
        created = entry.created.strftime("%Y-%m-%d %H:%M:%S %Z").rstrip() if entry.created else "-"
        cells.append((entry.id, created, "no" if position else "yes"))
    widths = [max(len(line[column]) for line in cells) for column in range(2)]
    return ["  ".join([*map(str.ljust, line, widths), line[-1]]) for line in cells]
