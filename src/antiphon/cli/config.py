"""`antiphon config check|show`: the configuration as `serve` would load it. It starts nothing.

Invariant: what `check` finds in order, `serve` does not refuse for its configuration.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from antiphon.cli import MISUSED
from antiphon.protocol.errors import AntiphonError

if TYPE_CHECKING:
    from antiphon.config import Limits

FILE_HELP = "Configuration file; else ./antiphon.toml, then the user's."


@click.group(
    short_help="Show or check the configuration.",
    epilog="""\b
Examples:
  antiphon config show
  antiphon config check --config /etc/antiphon.toml""",
)
def config() -> None:
    """Show or check the configuration (file, environment and defaults)."""


@config.command(epilog="\b\nExample:\n  antiphon config show --config antiphon.toml")
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
def show(file: Path | None) -> None:
    """Print every setting in effect, and where it comes from."""
    from antiphon.config import describe_config, load_config

    click.echo(describe_config(load_config(file=file)), nl=False)


@config.command(epilog="\b\nExample:\n  antiphon config check && antiphon serve")
@click.option("--config", "file", type=click.Path(path_type=Path), help=FILE_HELP)
def check(file: Path | None) -> int:
    """Print ok, with a warning of limits that do not go together, or every problem with its remedy (exit status 2)."""
    from antiphon.config import load_config

    loaded = load_config(file=file)
    # Heavy, and needed only for a configuration that can be loaded.
    from antiphon.bootstrap import check_backends

    try:
        check_backends(loaded)
    except AntiphonError as error:
        for line in error.message.splitlines():
            click.echo(f"antiphon: {line}", err=True)
        return MISUSED
    for warning in warn_of_limits(loaded.limits):
        click.echo(f"antiphon: warning: {warning}", err=True)
    click.echo(f"ok: {loaded.file or 'no file, environment and defaults alone'}")
    return 0


def warn_of_limits(limits: "Limits") -> list[str]:
    """Limits that can be used, but hardly together."""
    most, connections = limits.max_responses, limits.endpoint_connections
    if most and most <= connections:
        return []
    shown = str(most) if most else "0, any number"
    warning = (
        f"limits.endpoint_connections = {connections} is below limits.max_responses ({shown}): responses beyond it "
        "wait for a connection to their endpoint, and neither max_waiting nor queue_wait_s limits that. Raise "
        f"endpoint_connections, or set max_responses to {connections} or less."
    )
    return [warning]
