"""The lines of a text that contain some words, each with the lines around it: pure.

Invariant: what is left out between two places is marked, and no line comes out longer than a reader can use.
"""

from collections.abc import Iterator
from typing import Final

#: Lines before and after one that was found.
LINES_AROUND: Final = 2
#: A longer line is shown around what was found in it; one beside it by its beginning.
LINE_CHARACTERS: Final = 600
#: How much of a long line stands before what was found.
_BEFORE_CHARACTERS: Final = 200
_GAP: Final = "[...]"


def find_lines(text: str, query: str) -> str:
    """The lines that contain the query, whatever the case; empty where none does."""
    wanted = query.casefold()
    lines = text.split("\n")
    found = {number for number, line in enumerate(lines) if wanted in line.casefold()}
    shown = sorted(
        {
            near
            for number in found
            for near in range(max(number - LINES_AROUND, 0), min(number + LINES_AROUND + 1, len(lines)))
        }
    )
    return "\n".join(_list_lines(lines, shown, found, wanted))


def _list_lines(lines: list[str], shown: list[int], found: set[int], wanted: str) -> Iterator[str]:
    before = -1
    for number in shown:
        if number != before + 1:
            yield _GAP
        yield _shorten(lines[number], wanted if number in found else "")
        before = number
    if shown and shown[-1] != len(lines) - 1:
        yield _GAP


def _shorten(line: str, wanted: str) -> str:
    if len(line) <= LINE_CHARACTERS:
        return line
    # Folding may change lengths, so that the place is only nearly right: the excerpt is wide enough.
    at = max(line.casefold().find(wanted), 0)
    start = max(at - _BEFORE_CHARACTERS, 0)
    end = start + LINE_CHARACTERS
    return f"{_GAP if start else ''}{line[start:end]}{_GAP if end < len(line) else ''}"
