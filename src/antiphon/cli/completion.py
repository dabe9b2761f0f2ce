"""`antiphon completion SHELL`: prints the completion script that click makes.

It writes no file: the person's shell evaluates or stores what it prints.
"""

import click

from antiphon.cli import antiphon

VARIABLE = "_ANTIPHON_COMPLETE"


@click.command(
    short_help="Print the completion of a shell.",
    epilog="""\b
Examples:
  eval "$(antiphon completion bash)"        # in ~/.bashrc
  eval "$(antiphon completion zsh)"         # in ~/.zshrc
  antiphon completion fish > ~/.config/fish/completions/antiphon.fish""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    if complete is None:
        raise click.UsageError(f"click has no completion for {shell}.")
    click.echo(complete(antiphon, {}, "antiphon", VARIABLE).source())
