"""Raw values from all layers, laid over one another, then read as the types of the settings.

It knows no meaning of a setting. Invariant: every problem is noted with its path, its origin and a
remedy, and gathering goes on, so that a person sees all of them at once.
"""

import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from antiphon.config.settings import (
    NAME_FIELDS,
    NAMED_SECTIONS,
    SINGLE_SECTIONS,
    Field,
    list_fields,
    strip_annotation,
)
from antiphon.protocol.errors import AntiphonError

PREFIX = "ANTIPHON_"

#: The options of `antiphon serve` that set a value, for the origin of it.
FLAGS = {
    ("server", "host"): "--host",
    ("server", "port"): "--port",
    ("server", "data"): "--data",
    ("endpoints", "upstream", "url"): "--upstream",
    ("endpoints", "upstream", "key_env"): "--upstream-key-env",
    ("endpoints", "scripted", "dialect"): "--scripted",
    ("endpoints", "scripted", "script"): "--script",
}


class Problem(NamedTuple):
    """One thing that is wrong, where it stands, and what to do."""

    path: str
    origin: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path or 'configuration'} ({self.origin}): {self.problem} {self.remedy}".rstrip()


class ConfigError(AntiphonError):
    """The configuration cannot be used."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in problems))


class Value(NamedTuple):
    """One raw value: `textual` when it came as text that is still to be read as its type."""

    raw: Any
    origin: str
    folder: Path
    textual: bool = False


class Loader:
    """Gathers raw values layer over layer, and every problem on the way."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], Value] = {}
        self.names: dict[str, dict[str, str]] = {section: {} for section in NAMED_SECTIONS}
        self.problems: list[Problem] = []

    def fail(self, path: tuple[str, ...], origin: str, problem: str, remedy: str) -> None:
        """Note one problem and go on."""
        self.problems.append(Problem(".".join(path), origin, problem, remedy))

    def add_table(self, table: Mapping[str, Any], folder: Path, origin: str | None) -> None:
        """Lay a nested table over what is there; without `origin` each value comes from its flag."""
        for section, content in table.items():
            where = origin or "flag"
            if section not in SINGLE_SECTIONS and section not in NAMED_SECTIONS:
                sections = [*SINGLE_SECTIONS, *NAMED_SECTIONS]
                self.fail((section,), where, "There is no such section.", suggest(section, sections))
            elif not isinstance(content, Mapping):
                self.fail((section,), where, "This must be a table.", f"Write it as [{section}].")
            elif section in SINGLE_SECTIONS:
                self._add_values((section,), content, folder, origin)
            else:
                self._add_named(section, content, folder, origin)

    def _add_named(self, section: str, content: Mapping[str, Any], folder: Path, origin: str | None) -> None:
        for name, entry in content.items():
            if not isinstance(entry, Mapping):
                remedy = f"Write [{section}.NAME] with a name of your own, and its settings below."
                self.fail((section, name), origin or "flag", "This must be a table.", remedy)
                continue
            self.names[section].setdefault(name, origin or "flag")
            self._add_values((section, name), entry, folder, origin)

    def _add_values(
        self, prefix: tuple[str, ...], content: Mapping[str, Any], folder: Path, origin: str | None
    ) -> None:
        for key, raw in content.items():
            path = (*prefix, key)
            self.values[path] = Value(raw, origin or f"flag {FLAGS.get(path, '--model')}", folder)

    def add_environment(self, environ: Mapping[str, str], folder: Path) -> None:
        """Lay the `ANTIPHON_SECTION__KEY` variables over what is there; others are none of ours."""
        for variable in sorted(environ):
            if not variable.startswith(PREFIX) or "__" not in variable:
                continue
            section, *middle, key = variable.removeprefix(PREFIX).lower().split("__")
            value = Value(environ[variable], variable, folder, textual=True)
            if section in SINGLE_SECTIONS and not middle:
                self.values[section, key] = value
            elif section in NAMED_SECTIONS and middle:
                name = self._match_name(section, "__".join(middle))
                self.names[section].setdefault(name, variable)
                self.values[section, name, key] = value
            else:
                self._fail_variable(variable, section)

    def _match_name(self, section: str, spelled: str) -> str:
        """The existing name that a variable means: case and punctuation cannot be spelled in one."""
        for name in self.names[section]:
            if re.sub(r"\W", "_", name.lower()) == spelled:
                return name
        return spelled

    def _fail_variable(self, variable: str, section: str) -> None:
        if section in NAMED_SECTIONS:
            remedy = f"Write {PREFIX}{section.upper()}__NAME__KEY."
        elif section in SINGLE_SECTIONS:
            remedy = f"Write {PREFIX}{section.upper()}__KEY."
        else:
            remedy = suggest(section, [*SINGLE_SECTIONS, *NAMED_SECTIONS])
        self.fail((), variable, "This variable names no setting.", remedy)

    def build(self, section: str, name: str | None = None) -> Any:
        """The section's struct, or None when a problem was noted."""
        struct = SINGLE_SECTIONS.get(section) or NAMED_SECTIONS[section]
        prefix = (section,) if name is None else (section, name)
        fields = list_fields(section)
        before = len(self.problems)
        given: dict[str, Any] = {} if name is None else {NAME_FIELDS[section]: name}
        for path, value in self.values.items():
            if path[:-1] != prefix:
                continue
            if path[-1] not in fields:
                self.fail(path, value.origin, "There is no such setting.", suggest(path[-1], list(fields)))
            else:
                given[path[-1]] = self._convert(path, value, fields[path[-1]])
        for field in fields.values():
            if field.default is msgspec.NODEFAULT and field.name not in given:
                origin = self.names[section][name] if name is not None else "nowhere"
                self.fail((*prefix, field.name), origin, "This setting is required.", field.sentence)
        return struct(**given) if len(self.problems) == before else None

    def _convert(self, path: tuple[str, ...], value: Value, field: Field) -> Any:
        raw = value.raw
        if value.textual and typing.get_origin(strip_annotation(field.type)) is tuple:
            raw = [part.strip() for part in raw.split(",") if part.strip()]
        try:
            return msgspec.convert(raw, field.type, strict=not value.textual)
        except msgspec.ValidationError as error:
            # A wrong value in [keys] may be a key itself.
            shown = "" if path[0] == "keys" else f", and {render_value(value.raw)} is not."
            problem = f"{error}".split(" - at ")[0].replace("Expected", "This must be")
            remedy = "Correct it, or remove it"
            if field.default is not msgspec.NODEFAULT:
                remedy += f" for the default {render_value(field.default)}"
            self.fail(path, value.origin, problem + (shown or "."), f"{remedy}. {field.sentence}")
            return None

    def origin(self, *path: str) -> str:
        """Where the value at this path came from."""
        value = self.values.get(path)
        return value.origin if value else "default"


def suggest(word: str, known: list[str]) -> str:
    """`Did you mean "x"?`, or the list of what there is."""
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"Did you mean {render_value(close[0])}?"
    return f"There are: {', '.join(sorted(known))}."


def render_value(value: Any) -> str:
    """A value as TOML would have it; None is `unset`."""
    return "unset" if value is None else msgspec.json.encode(value).decode()
