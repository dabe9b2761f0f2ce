"""Everything a reader may meet has its place in the reference, and nothing else stands there."""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from tools.write_docs import find_stale, list_operations

from antiphon.backends.profiles import PROFILES
from antiphon.checker import MANIFEST
from antiphon.cli import antiphon
from antiphon.config import SETTINGS
from antiphon.engine.refusals import INCLUDABLE, UNSUPPORTED
from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.requests import FIELDS, MOVED
from tests.docs.blocks import ROOT, list_headings

REFERENCE = ROOT / "docs" / "reference"
SOURCE = ROOT / "src" / "antiphon"
#: The checker and the client read other servers' codes; what this server answers comes from elsewhere.
ELSEWHERE = ("checker", "client", "cli", "config")


def read(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def list_rows(name: str, section: str = "") -> dict[str, str]:
    """The first cell of each table row, without its marks, and the rest of the row."""
    text = read(name)
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|(.*)\|$", text, re.MULTILINE)
    return {first.replace("\\|", "|"): rest for first, rest in rows}


def iter_trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] not in ELSEWHERE:
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def iter_strings(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
            yield part.value


def iter_values(node: ast.AST | None) -> Iterator[str]:
    """The strings that an expression can be: "a" if x else "b" -> a, b; an f-string is left to its caller."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from iter_values(node.body)
        yield from iter_values(node.orelse)


def iter_codes(node: ast.AST) -> Iterator[str]:
    """Every `code="..."` of a call and every `code = "..."` in an error class or function."""
    if isinstance(node, ast.keyword) and node.arg == "code":
        if isinstance(node.value, ast.JoinedStr):
            # Number errors: the kind of number, then the side on which it is too far.
            ends = "".join(iter_strings(node.value))
            yield from (f"{kind}{ends}" for kind in ("integer", "decimal"))
        yield from iter_values(node.value)
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code":
        yield from iter_values(node.value)


def find_error_codes() -> set[str]:
    """Every error code in the source."""
    return {code for _, tree in iter_trees() for node in ast.walk(tree) for code in iter_codes(node)}


def find_warning_codes() -> set[str]:
    """The first string of every pair that is put among warnings, or that a function of such pairs gives."""
    codes: set[str] = set()
    for _, tree in iter_trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("warnings.append", "note_drop")
            ):
                codes |= set(_first_strings(node))
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("warnings"):
                codes |= set(_first_strings(node.value))
            if isinstance(node, ast.FunctionDef) and _gives_pairs(node):
                codes |= set(_first_strings(node))
    return codes


def _gives_pairs(node: ast.FunctionDef) -> bool:
    return node.returns is not None and ast.unparse(node.returns) == "list[tuple[str, str]]"


def _first_strings(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Tuple) and len(part.elts) == 2:
            first = part.elts[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def list_errors(kind: type[AntiphonError]) -> Iterator[type[AntiphonError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from list_errors(child)


def test_generated_pages_are_fresh() -> None:
    """Ours: `make docs` would change nothing."""
    assert find_stale(ROOT) == []


def test_a_stale_page_is_named(tmp_path: Path) -> None:
    """Ours: what `make docs` would change is found, whether a whole page or a part of one."""
    copy = tmp_path / "docs" / "reference"
    shutil.copytree(REFERENCE, copy)
    assert find_stale(tmp_path) == []
    (copy / "settings.md").write_text("# Settings\n", encoding="utf-8")
    endpoints = (copy / "endpoints.md").read_text(encoding="utf-8")
    (copy / "endpoints.md").write_text(
        endpoints.replace("| Read a stored", "| Burn a stored"), encoding="utf-8"
    )
    (copy / "profiles.md").unlink()
    assert [path.name for path in find_stale(tmp_path)] == ["settings.md", "profiles.md", "endpoints.md"]


def test_every_setting_has_a_heading() -> None:
    """Ours: documentation is tested."""
    headings = list_headings(REFERENCE / "settings.md")
    assert [setting.name for setting in SETTINGS if setting.name not in headings] == []
    assert [setting.name for setting in SETTINGS if not setting.sentence] == []


def test_every_command_has_a_heading_and_every_option_a_row() -> None:
    """Ours: documentation is tested."""
    text, headings = read("commands.md"), list_headings(REFERENCE / "commands.md")

    def visit(command: click.Command, path: str) -> None:
        assert path in headings
        section = text.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        context = click.Context(command, info_name=path)
        for option in command.params:
            if isinstance(option, click.Option) and "--help" not in option.opts:
                names = ", ".join([*option.opts, *option.secondary_opts])
                assert f"| `{names}" in section, f"{path} {names}"
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                visit(child, f"{path} {name}")

    visit(antiphon, "antiphon")


def test_every_endpoint_has_a_heading_and_no_other() -> None:
    """Ours: the pages and the OpenAPI document tell of the same routes."""
    told = {
        heading
        for heading in list_headings(REFERENCE / "endpoints.md")
        if re.match(r"(GET|POST|PUT|PATCH|DELETE) /", heading)
    }
    served = {f"{method} {path}" for method, path, _ in list_operations()}
    # The document does not list itself.
    assert told == served | {"GET /openapi.json"}


def test_every_error_code_has_a_heading_and_no_other() -> None:
    """Ours: a reader who meets a code finds what to do about it."""
    headings = set(list_headings(REFERENCE / "errors.md"))
    codes = find_error_codes()
    assert {"previous_response_not_found", "integer_below_min_value", "rate_limit_exceeded"} <= codes
    assert codes - headings == set()
    told = {heading for heading in headings if re.fullmatch(r"[a-z]+(_[a-z]+)+", heading)}
    assert told - codes == set()


def test_every_error_status_has_a_row() -> None:
    """Ours: documentation is tested."""
    statuses = {
        str(error.status) for error in list_errors(AntiphonError) if "antiphon.protocol" in error.__module__
    }
    rows = set(list_rows("errors.md", "Statuses"))
    assert rows == statuses


def test_every_warning_code_has_a_row_and_no_other() -> None:
    """Ours: what a response warns of can be looked up."""
    codes = find_warning_codes()
    assert {"transcript", "upstream_truncated", "tool_call_asked_again"} <= codes
    assert set(list_rows("extensions.md", "Warnings")) == codes


def test_every_request_field_has_a_row_and_no_other() -> None:
    """Ours: a field is honoured, a hint, or refused, and the page says which."""
    rows = list_rows("fields.md", "Fields")
    assert list(rows) == list(FIELDS)


def test_fields_that_are_refused_are_told_as_refused_and_no_other() -> None:
    """Ours: the page and the table of refusals agree."""
    rows = list_rows("fields.md", "Fields")
    whole = {name for name in UNSUPPORTED if "." not in name and name != "truncation"}
    assert {name for name, rest in rows.items() if rest.strip().startswith("refused")} == whole
    text = read("fields.md")
    for name in [*UNSUPPORTED, *INCLUDABLE, *MOVED]:
        assert f"`{name}`" in text, name


def test_every_requirement_and_profile_has_a_heading() -> None:
    """Ours: documentation is tested."""
    assert {item.id for item in MANIFEST} <= set(list_headings(REFERENCE / "requirements.md"))
    assert set(PROFILES) <= set(list_headings(REFERENCE / "profiles.md"))


def test_the_scripts_page_names_every_key() -> None:
    """Ours: documentation is tested."""
    import msgspec

    from antiphon.backends.scripted import script

    text = read("scripts.md")
    kinds: list[Any] = [script.Script, script.Rule, script.Call, script.Usage, script.Trouble]
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name}"
