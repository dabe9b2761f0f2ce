"""The command line: argv in, one call out.

It knows the names of the commands and imports one only when it is run, so that help and completion stay
fast. Exit status: 0 done, 1 failed, 2 wrong use or configuration (`check`: undecided), 130 interrupted.
"""

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import click

from antiphon import __version__
from antiphon.protocol.errors import AntiphonError

FAILED = 1
MISUSED = 2
INTERRUPTED = 130
#: A closed pipe, a full disk, an output that was closed.
_OUTPUT_ERRORS = frozenset({errno.EPIPE, errno.ENOSPC, errno.EBADF})


class CommandPlace(NamedTuple):
    """Where a command stands, and its sentence in the list of commands."""

    module: str
    name: str
    sentence: str


COMMANDS = {
    "serve": CommandPlace(
        "antiphon.cli.serve", "serve", "Serve the Responses API in front of a model server."
    ),
    "ask": CommandPlace("antiphon.cli.ask", "ask", "Ask a question and stream the answer."),
    "check": CommandPlace("antiphon.cli.check", "check", "Check whether a server keeps the state it claims."),
    "codex-config": CommandPlace(
        "antiphon.cli.codex_config",
        "codex_config",
        "Print a configuration for Codex that fits the running server.",
    ),
    "models": CommandPlace(
        "antiphon.cli.models", "models", "List, download, verify or remove embedded models."
    ),
    "keys": CommandPlace(
        "antiphon.cli.keys", "keys", "List or rotate the keys that seal what clients carry."
    ),
    "config": CommandPlace("antiphon.cli.config", "config", "Show or check the configuration."),
    "completion": CommandPlace("antiphon.cli.completion", "completion", "Print the completion of a shell."),
}

EPILOG = """\b
Examples:
  antiphon serve --scripted
  antiphon serve --upstream http://localhost:11434
  antiphon ask "Remember the code word: marmalade."
  antiphon ask --continue "What was the code word?"
  antiphon check http://127.0.0.1:8300 --model scripted

\b
Exit status: 0 done; 1 failed; 2 wrong use or configuration (check: undecided);
130 interrupted."""


class LazyGroup(click.Group):
    """A group that lists its commands from a table and imports one only when it is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        command: click.Command = getattr(importlib.import_module(place.module), place.name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, with what the person may have meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Commands: {', '.join(COMMANDS)}."
            ctx.fail(f"There is no command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing what it names."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.sentence) for name, place in COMMANDS.items()])


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="antiphon")
def antiphon() -> None:
    """Antiphon keeps the conversation for any language model."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script: run, then exit with the status."""
    status = run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        status = explain_output_error(error)
    sys.exit(status)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; every failure is one message on standard error."""
    try:
        result = antiphon.main(
            args=None if arguments is None else list(arguments), prog_name="antiphon", standalone_mode=False
        )
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return MISUSED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except AntiphonError as error:
        for line in error.message.splitlines():
            click.echo(f"antiphon: {line}", err=True)
        return MISUSED if is_misuse(error) else FAILED
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS or error.filename is not None:
            return report_fault(error)
        return explain_output_error(error)
    except Exception as error:  # noqa: BLE001 - the command line is one of the places that catch everything
        return report_fault(error)
    return result if isinstance(result, int) else 0


def report_fault(error: Exception) -> int:
    """A fault of our own, with what is needed to find it."""
    traceback.print_exception(error)
    click.echo(f"antiphon: this should not have happened: {error!r}. Please report it.", err=True)
    return FAILED


def explain_output_error(error: OSError) -> int:
    """Whoever reads the output is gone, or it cannot be written; nothing more is."""
    if error.errno != errno.EPIPE:
        click.echo(f"antiphon: the output could not be written: {error.strerror}.", err=True)
    # What is left in the buffer must not fail once more at the end of the process.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return FAILED


def is_misuse(error: AntiphonError) -> bool:
    """Whether the configuration is to blame; asked without importing it."""
    config = sys.modules.get("antiphon.config")
    return config is not None and isinstance(error, config.ConfigError)
