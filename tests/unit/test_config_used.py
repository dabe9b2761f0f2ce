"""No setting does nothing: each is read by the code that it is for, outside the configuration itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import antiphon
from antiphon.config.settings import NAMED_SECTIONS, SINGLE_SECTIONS, list_fields

SOURCE = Path(antiphon.__file__).parent
#: Settings that the configuration itself resolves, and the field in which the rest of the code finds the result.
RESOLVED = {
    ("compaction", "prompt_file"): "prompt",
    ("endpoints", "key_env"): "key",
    ("models", "system_prompt_file"): "system_prompt",
    ("seal", "keys_env"): "keys",
    ("search", "key_env"): "key",
}


def list_settings() -> list[tuple[str, str]]:
    """Section and key of every setting."""
    return [(section, key) for section in (*SINGLE_SECTIONS, *NAMED_SECTIONS) for key in list_fields(section)]


def iter_trees() -> Iterator[ast.Module]:
    """The modules outside the configuration."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] != "config":
            yield ast.parse(path.read_text(encoding="utf-8"))


def list_read_names() -> set[str]:
    """Every name that is read as an attribute of something."""
    return {
        node.attr
        for tree in iter_trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def find_unread(settings: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The settings whose value nothing reads."""
    read = list_read_names()
    return [setting for setting in settings if RESOLVED.get(setting, setting[1]) not in read]


def test_every_setting_is_read() -> None:
    """Style: no option that does nothing."""
    assert find_unread(list_settings()) == []


def test_a_setting_that_nothing_reads_is_found() -> None:
    """Ours: the test above can fail."""
    assert find_unread([("server", "colour_of_the_sky")]) == [("server", "colour_of_the_sky")]


def test_the_exceptions_are_settings() -> None:
    """Ours: an exception goes with its setting."""
    assert set(RESOLVED) <= set(list_settings())
