"""Fenced blocks of Markdown pages, with what the comment before each says about it.

It runs nothing. A block of a language in `RUN` is an example and is run; `<!-- output -->` before a text block
makes it the expected output of the example before it. Invariant: every fenced block of a page is found.
"""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: Languages of examples; a block of any other language is an illustration.
RUN = frozenset({"sh", "console", "python", "toml", "json"})

_FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```\s*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->\s*\Z", re.DOTALL)


class Block(NamedTuple):
    """One fenced block: its language, its text, its line, and the comment before it."""

    language: str
    text: str
    line: int
    comment: str


def list_pages() -> list[Path]:
    """Every page of the documentation."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def read_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    end = 0
    for match in _FENCE.finditer(text):
        before = text[end : match.start()].rstrip()
        end = match.end()
        comment = _COMMENT.search(before)
        indent = match[1]
        body = "".join(line.removeprefix(indent) for line in match[3].splitlines(keepends=True))
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(match[2], body, line, comment[1] if comment else ""))
    return blocks


def strip_blocks(text: str) -> str:
    """The text of a page without its fenced blocks."""
    return _FENCE.sub("", text)


def make_anchor(heading: str) -> str:
    """The anchor of a heading, as code hosts make it: "Not `yet`" -> "not-yet"."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def list_headings(page: Path) -> list[str]:
    """The headings of a page, without their marks."""
    found = re.findall(r"^#{1,6} +(.+?)\s*$", strip_blocks(page.read_text(encoding="utf-8")), re.MULTILINE)
    return [heading.replace("`", "") for heading in found]
