"""How the tally is printed. It measures nothing."""

from collections.abc import Sequence

from bench.memory.facts import KINDS
from bench.memory.scoring import WHERE
from bench.memory.tally import Cell, Fault, Tally

_HEADS = ("done", "facts", *WHERE, "before", "after", "calls")


def render_tally(tally: Tally) -> str:
    """The table of entrances and rungs, the table of kinds, the faults, and the verdict."""
    parts = [render_cells(tally.cells), render_kinds(tally.cells)]
    if tally.faults:
        parts.append(render_faults(tally.faults))
    return "\n\n".join([*parts, render_verdict(tally)])


def render_cells(cells: Sequence[Cell]) -> str:
    """A row for each entrance and rung; tokens and model calls are means of a conversation."""
    names = [(cell.entrance.name, cell.rung.name) for cell in cells]
    first, second = (max(len(name[at]) for name in names) for at in (0, 1))
    heads = [f"{head:>{_width(head)}}" for head in _HEADS]
    lines = ["  ".join([" " * first, " " * second, *heads])]
    lines += [
        "  ".join([f"{cell.entrance.name:{first}}", f"{cell.rung.name:{second}}", *_list_numbers(cell)])
        for cell in cells
    ]
    return "\n".join(lines)


def render_kinds(cells: Sequence[Cell]) -> str:
    """Of each kind of fact, the share that stands in the window, by rung."""
    rungs = list(dict.fromkeys(cell.rung.name for cell in cells))
    width = max(map(len, KINDS))
    lines = ["in the window, by kind", "  ".join([" " * width, *(f"{rung:>12}" for rung in rungs)])]
    for kind in KINDS:
        shares = []
        for rung in rungs:
            of_rung = [cell for cell in cells if cell.rung.name == rung]
            facts = sum(cell.kinds[kind] for cell in of_rung)
            verbatim = sum(cell.kinds_verbatim[kind] for cell in of_rung)
            shares.append(f"{verbatim / facts:>12.0%}" if facts else f"{'-':>12}")
        lines.append("  ".join([f"{kind:{width}}", *shares]))
    return "\n".join(lines)


def render_faults(faults: Sequence[Fault]) -> str:
    """The first fault of each row of the table, and how many it has."""
    by_row: dict[str, list[Fault]] = {}
    for fault in faults:
        by_row.setdefault(fault.row, []).append(fault)
    lines = ["faults, the first of each row:"]
    for row, found in by_row.items():
        count = f"{len(found)} fault{'' if len(found) == 1 else 's'}"
        first = found[0]
        place = "" if first.conversation is None else f", conversation {first.conversation}"
        lines.append(f"{row}: {count}{place}: {first.text}")
    return "\n".join(lines)


def render_verdict(tally: Tally) -> str:
    """The last line."""
    stored = [cell for cell in tally.cells if cell.entrance.stored]
    facts = sum(cell.facts for cell in stored)
    found = facts - tally.lost
    share = f"{found / facts:.2%}" if facts else "none"
    return (
        f"memory: {share} of {facts:,} facts in the window or behind a named id where everything is stored; "
        f"{tally.lost} lost, {len(tally.faults)} faults"
    )


def _list_numbers(cell: Cell) -> list[str]:
    runs = max(cell.runs, 1)
    numbers = [
        f"{cell.compacted}/{cell.runs}",
        f"{cell.facts:,}",
        *(f"{cell.places[where]:,}" for where in WHERE),
        f"{cell.tokens_before / runs:,.0f}",
        f"{cell.tokens_after / runs:,.0f}",
        f"{cell.model_calls / runs:.2f}",
    ]
    return [f"{number:>{_width(head)}}" for head, number in zip(_HEADS, numbers, strict=True)]


def _width(head: str) -> int:
    return max(len(head), 7)
