"""`antiphon config check|show`: the configuration as `serve` would load it. It starts nothing."""

from pathlib import Path

import click

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
def check(file: Path | None) -> None:
    """Print ok, or every problem with its remedy (exit status 2)."""
    from antiphon.config import load_config

    loaded = load_config(file=file)
    click.echo(f"ok: {loaded.file or 'no file, environment and defaults alone'}")
