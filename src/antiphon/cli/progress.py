"""Shows a download on standard error: a bar on a terminal, plain lines elsewhere. It knows no source.

Invariant: a sentence is shown once, on a line of its own.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from antiphon.backends.local import Progress

#: Without a terminal a line is printed for each of these steps.
PLAIN_STEP_PERCENT = 10


@contextmanager
def show_progress() -> Iterator[Callable[["Progress"], None]]:
    """What `ModelCache.pull` reports to; the last bar is closed behind it."""
    printer = ProgressPrinter(is_terminal=sys.stderr.isatty())
    try:
        yield printer.show
    finally:
        printer.close()


class ProgressPrinter:
    """Draws the reports of one pull."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal
        self._bar: Any = None
        self._shown_bytes = 0
        self._percent = 0

    def show(self, progress: "Progress") -> None:
        """Show one report."""
        if progress.message:
            self.close()
            self._percent = percent(progress)
            click.echo(f"antiphon: {progress.message}", err=True)
        elif progress.stage in ("downloading", "waiting"):
            (self._draw_bar if self._is_terminal else self._print_line)(progress)

    def close(self) -> None:
        """End the bar's line."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None

    def _draw_bar(self, progress: "Progress") -> None:
        if self._bar is None:
            self._bar = click.progressbar(
                length=progress.total_bytes, file=sys.stderr, show_pos=False, label=f"  {progress.model}"
            )
            self._bar.render_progress()
            self._shown_bytes = 0
        self._bar.update(progress.done_bytes - self._shown_bytes)
        self._shown_bytes = progress.done_bytes

    def _print_line(self, progress: "Progress") -> None:
        from antiphon.backends.local import render_bytes

        reached = percent(progress)
        if reached // PLAIN_STEP_PERCENT > self._percent // PLAIN_STEP_PERCENT:
            done, total = render_bytes(progress.done_bytes), render_bytes(progress.total_bytes)
            click.echo(f"antiphon:   {reached} % ({done} of {total})", err=True)
        self._percent = max(self._percent, reached)


def percent(progress: "Progress") -> int:
    """How much is there, rounded down."""
    return progress.done_bytes * 100 // progress.total_bytes
