"""Measured rows, and how they are printed. It measures nothing."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One number beside its limit; a row without a limit is told for comparison."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None
    #: Whether more is better.
    at_least: bool = False
    note: str = ""

    @property
    def is_within(self) -> bool:
        """Whether the limit is held; true without one."""
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def render_table(rows: Sequence[Row]) -> str:
    """One line a row: name, number, limit, verdict, note."""
    width = max(len(row.name) for row in rows)
    lines = [f"{'':{width}}  {'measured':>13}  {'limit':>13}"]
    lines.extend(_render_row(row, width) for row in rows)
    return "\n".join(lines)


def render_verdict(rows: Sequence[Row]) -> str:
    """The last line."""
    limited = [row for row in rows if row.limit is not None]
    return f"bench: {sum(row.is_within for row in limited)} of {len(limited)} within limits"


def _render_row(row: Row, width: int) -> str:
    limit, verdict = "", ""
    if row.limit is not None:
        limit = f"{'>=' if row.at_least else '<='} {_format(row.limit)} {row.unit}".rstrip()
        verdict = "ok" if row.is_within else "MISS"
    value = f"{_format(row.value)} {row.unit}".rstrip()
    return f"{row.name:{width}}  {value:>13}  {limit:>13}  {verdict:4}  {row.note}".rstrip()


def _format(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 20 else f"{value:.2f}"
