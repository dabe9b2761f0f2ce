"""The pages themselves: links resolve, the README is short, nothing of a workplace stands in the project."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.docs.blocks import ROOT, list_headings, list_pages, make_anchor, strip_blocks

README_LINES = 150
_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
#: What belongs to the place where a file was written, not to the project. In pieces, so that this file passes.
WORKPLACE = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![\w.\-])/" + "work" + r"(?:/|\b(?!\w))",
        r"/tmp/" + "team",
        r"(?i)\bissue" + r" #?\d",
        r"(?i)\b" + "help" + r"ers? (?:person|people|session)",
        r"(?i)session" + r" of work",
        r"(?i)\b" + "our " + "workplace",
        r"(?<![\w.\-])/(?:" + "root" + "|" + "Users" + r")/\w",
        r"(?<![\w.\-])/home/(?!me/)\w",
    )
)
_BINARY = frozenset({".png", ".gz", ".zst", ".whl", ".db", ".ico"})
_FOREIGN = frozenset(
    {"build", "dist", "__pycache__", ".git", ".cache", ".clients", ".hypothesis", ".venv", ".venv-newest"}
)


def list_files() -> Iterator[Path]:
    """The files of the project: what git knows or would take, or without git all but environments and caches."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        paths = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not _FOREIGN & set(path.relative_to(ROOT).parts)]
    for path in paths:
        if path.is_file() and path.suffix not in _BINARY and not path.name.endswith(".lock"):
            yield path


def test_the_readme_is_short() -> None:
    """Ours: a page that is read whole."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_every_internal_link_resolves() -> None:
    """Ours: links to files and headings of the project lead somewhere."""
    faults = []
    for page in list_pages():
        for target in _LINK.findall(strip_blocks(page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            if not path.exists():
                faults.append(f"{page.relative_to(ROOT)}: {target}")
            elif anchor and anchor not in {make_anchor(heading) for heading in list_headings(path)}:
                faults.append(f"{page.relative_to(ROOT)}: {target} (no such heading)")
    assert faults == []


def test_files_that_pages_name_are_there() -> None:
    """Ours: a page that sends a reader to a file names one that exists, by its path or its end."""
    places = [ROOT, ROOT / "src" / "antiphon", ROOT / "src" / "antiphon" / "backends" / "chat_completions"]
    places.append(ROOT / "src" / "antiphon" / "checker" / "requirements")
    faults = []
    for page in (
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs" / "decisions").glob("*.md"),
    ):
        for name in re.findall(r"`([\w./-]+\.(?:py|sql|md|toml|sh))`", page.read_text(encoding="utf-8")):
            if not any((place / name).is_file() for place in places) and "NNNN" not in name:
                faults.append(f"{page.name}: {name}")
    assert faults == []


def test_every_page_of_docs_is_linked_from_another() -> None:
    """Ours: a page that nothing leads to is not read."""
    linked = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in list_pages()
        for target in _LINK.findall(page.read_text(encoding="utf-8"))
    }
    assert [page.name for page in (ROOT / "docs").rglob("*.md") if page.resolve() not in linked] == []


def test_decisions_are_numbered_without_gaps_and_have_their_three_parts() -> None:
    """Ours: context, decision, consequences."""
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        parts = [
            heading for heading in list_headings(record) if heading in ("Context", "Decision", "Consequences")
        ]
        assert parts == ["Context", "Decision", "Consequences"], record.name


def test_no_file_tells_of_the_place_where_it_was_written() -> None:
    """Ours: the project speaks of itself alone, and works on every machine."""
    faults = []
    for path in list_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for pattern in WORKPLACE:
            found = pattern.search(text)
            if found is not None:
                faults.append(f"{path.relative_to(ROOT)}: {found[0]!r}")
    assert faults == []
