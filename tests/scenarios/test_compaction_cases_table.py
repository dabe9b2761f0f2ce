"""The page of cases names tests that exist, each of its rows has a verdict, and few of them differ.

It reads the page and the modules beside this one.
"""

import re
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "reference" / "compaction-cases.md"
VERDICTS = ("same", "better", "different")
DIFFERENT_MAX = 5


def list_tests() -> set[str]:
    """The names of all tests of the scenarios of compaction."""
    return {
        name
        for path in FOLDER.glob("test_compaction_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }


def test_every_case_has_a_verdict_and_a_test_that_exists() -> None:
    """Ours: a table that nobody holds to is an advertisement."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!case|fault|-)(.+?) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    assert len(rows) > 50
    assert [row for row in rows if not row[1].startswith(VERDICTS)] == []
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named - list_tests() == set()
    assert [row for row in rows if not re.search(r"`test_\w+`", row[2])] == []


def test_few_cases_differ_and_each_has_its_reason() -> None:
    """Ours: where behaviour differs from what people know, they are told why."""
    page = PAGE.read_text(encoding="utf-8")
    different = re.findall(r"\| different \(\[(\d)\]", page)
    assert len(different) <= DIFFERENT_MAX
    reasons = page.partition("## What differs")[2]
    assert set(different) == set(re.findall(r"^(\d)\. \*\*", reasons, re.MULTILINE))
