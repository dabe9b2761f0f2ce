"""Raw values from all layers, laid over one another, then read as the types of the settings.

It knows no meaning of a setting. Invariant: every problem is noted with its path, its origin and a
remedy, and gathering goes on, so that a person sees all of them at once.
"""

import math
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

#: Variables that begin with our prefix and may set nothing: names that a person gave to a secret (`--key-env`),
#: and what Kubernetes sets in every container beside a service whose name begins with antiphon.
SECRET_VARIABLES = re.compile(r"\w+_(KEY|TOKEN|SECRET|PASSWORD)")
SERVICE_VARIABLES = re.compile(
    r"\w+_SERVICE_(HOST|PORT(_\w+)?)|\w+_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.+")
#: Settings whose value is the name of a variable.
VARIABLE_FIELDS = frozenset({"key_env", "keys_env"})

#: The options of `antiphon serve` that set a value, for the origin of it.
FLAGS = {
    ("server", "host"): "--host",
    ("server", "port"): "--port",
    ("server", "data"): "--data",
    ("endpoints", "upstream", "url"): "--upstream",
    ("endpoints", "upstream", "key_env"): "--upstream-key-env",
    ("endpoints", "local", "dialect"): "--local",
    ("endpoints", "local", "model"): "--model",
    ("endpoints", "local", "model_file"): "--model-file",
    ("endpoints", "scripted", "dialect"): "--scripted",
    ("endpoints", "scripted", "script"): "--script",
}


#: What people call a section that has another name here.
SECTIONS_MEANT = {"upstream": "endpoints", "backend": "endpoints", "provider": "endpoints"}
#: What to do where a key itself was given, or nothing.
KEY_REMEDY = 'Only its SHA-256 is configured: sha256 = "64 DIGITS", made with: printf %s "$KEY" | sha256sum'
#: What people call a key in [keys.NAME].
KEY_WORDS = frozenset({"key", "api_key", "secret", "token", "password", "value"})
#: How many names there may be to be listed all, and how many of more are.
LISTED_WHOLE, LISTED_NEAREST = 16, 5
#: How alike a word must be to what it is taken for.
LIKENESS = 0.6


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
        self._odd_variables: dict[str, str] = {}

    def fail(self, path: tuple[str, ...], origin: str, problem: str, remedy: str) -> None:
        """Note one problem and go on."""
        self.problems.append(Problem(".".join(path), origin, problem, remedy))

    def add_table(self, table: Mapping[str, Any], folder: Path, origin: str | None) -> None:
        """Lay a nested table over what is there; without `origin` each value comes from its flag."""
        for section, content in table.items():
            where = origin or "flag"
            if section not in SINGLE_SECTIONS and section not in NAMED_SECTIONS:
                self.fail((section,), where, "There is no such section.", suggest_section(section))
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
        """Lay the `ANTIPHON_SECTION__KEY` variables over what is there; one that sets nothing is a problem."""
        for variable in sorted(environ):
            if not variable.startswith(PREFIX):
                continue
            if "__" not in variable:
                self._odd_variables[variable] = environ[variable]
                continue
            section, *middle, key = variable.removeprefix(PREFIX).lower().split("__")
            value = Value(environ[variable], variable, folder, textual=True)
            if section in SINGLE_SECTIONS and not middle and key:
                self.values[section, key] = value
            elif section in NAMED_SECTIONS and any(middle) and key:
                name = self._match_name(section, "__".join(middle))
                self.names[section].setdefault(name, variable)
                self.values[section, name, key] = value
            else:
                self._fail_variable(variable)

    def check_odd_variables(self) -> None:
        """Note every variable that looks like ours, sets nothing, and has no other use; after all layers."""
        for variable, text in self._odd_variables.items():
            if not self._is_another_s(variable, text):
                self._fail_variable(variable)

    def _is_another_s(self, variable: str, text: str) -> bool:
        """Whether a variable without `__` has a use of its own."""
        if any(path[-1] in VARIABLE_FIELDS and value.raw == variable for path, value in self.values.items()):
            return True
        if variable.endswith("_PORT") and SERVICE_ADDRESS.fullmatch(text):
            return True
        return any(pattern.fullmatch(variable) for pattern in (SECRET_VARIABLES, SERVICE_VARIABLES))

    def _match_name(self, section: str, spelled: str) -> str:
        """The existing name that a variable means: case and punctuation cannot be spelled in one."""
        for name in self.names[section]:
            if re.sub(r"\W", "_", name.lower()) == spelled:
                return name
        return spelled

    def _fail_variable(self, variable: str) -> None:
        self.fail((), variable, "This variable names no setting.", self._explain_spelling(variable))

    def _explain_spelling(self, variable: str) -> str:
        import difflib

        rest = variable.removeprefix(PREFIX)
        section = rest.lower().partition("__" if "__" in rest else "_")[0]
        if "__" in rest and find_section_meant(section) is not None:
            return suggest_section(section)
        known = list(self._list_variables())
        alike = [one for one in known if one.replace("__", "_") == variable or one.endswith(f"__{rest}")]
        if not alike and section in NAMED_SECTIONS:
            return f"Write {PREFIX}{section.upper()}__NAME__KEY."
        if not alike and section in SINGLE_SECTIONS and "__" in rest:
            return f"Write {PREFIX}{section.upper()}__KEY."
        alike += difflib.get_close_matches(variable, known, n=1, cutoff=0.8)
        if alike:
            return f"Did you mean {alike[0]}?"
        if "__" in rest:
            return suggest_section(section)
        return f"Settings are spelled {PREFIX}SECTION__KEY. Unset it, or rename it if it is not Antiphon's."

    def _list_variables(self) -> Iterator[str]:
        """The variables of all settings, with every name that is known so far."""
        for section in SINGLE_SECTIONS:
            yield from (f"{PREFIX}{section}__{key}".upper() for key in list_fields(section))
        for section, names in self.names.items():
            for name in names:
                spelled = re.sub(r"\W", "_", name)
                yield from (f"{PREFIX}{section}__{spelled}__{key}".upper() for key in list_fields(section))

    def build(self, section: str, name: str | None = None) -> Any:
        """The section's struct. What is wrong is noted, and has its default (or nothing) in the struct, so
        that the rest of it can be checked too."""
        struct = SINGLE_SECTIONS.get(section) or NAMED_SECTIONS[section]
        prefix = (section,) if name is None else (section, name)
        fields = list_fields(section)
        given: dict[str, Any] = {} if name is None else {NAME_FIELDS[section]: name}
        for path, value in self.values.items():
            if path[:-1] != prefix:
                continue
            if path[-1] not in fields:
                is_key = section == "keys" and path[-1] in KEY_WORDS
                remedy = KEY_REMEDY if is_key else suggest(path[-1], list(fields))
                self.fail(path, value.origin, "There is no such setting.", remedy)
            else:
                given[path[-1]] = self._convert(path, value, fields[path[-1]])
        for field in fields.values():
            if field.default is msgspec.NODEFAULT and field.name not in given:
                origin = self.names[section][name] if name is not None else "nowhere"
                needed = KEY_REMEDY if section == "keys" else field.sentence
                remedy = self._suggest_name(section, name) + needed
                self.fail((*prefix, field.name), origin, "This setting is required.", remedy)
                given[field.name] = ""
        return struct(**given)

    def _suggest_name(self, section: str, name: str | None) -> str:
        """What a person may have meant who named something anew in a variable, and left it unfinished."""
        import difflib

        if name is None or not self.names[section][name].startswith(PREFIX):
            return ""
        others = [other for other in self.names[section] if other != name]
        close = difflib.get_close_matches(name, others, n=1)
        return f"Did you mean [{section}.{close[0]}]? " if close else ""

    def _convert(self, path: tuple[str, ...], value: Value, field: Field) -> Any:
        """The value as the field's type; when it is none, that is noted and the default takes its place."""
        raw = value.raw
        if value.textual and typing.get_origin(strip_annotation(field.type)) is tuple:
            raw = [part.strip() for part in raw.split(",") if part.strip()]
        try:
            return msgspec.convert(raw, field.type, strict=not value.textual)
        except msgspec.ValidationError:
            remedy = "Correct it, or remove it"
            if field.default is not msgspec.NODEFAULT:
                remedy += f" for the default {render_value(field.default)}"
            # A text in [keys], or what stands for one, may be a key itself.
            is_text = isinstance(raw, str) or strip_annotation(field.type) is str
            shown = "" if path[0] == "keys" and is_text else f", not {render_value(value.raw)}"
            quoted = " in quotes" if shown and _is_quoted(value, field) else ""
            problem = f"This must be {describe_values(field.type)}{shown}{quoted}."
            self.fail(path, value.origin, problem, f"{remedy}. {field.sentence}")
            return "" if field.default is msgspec.NODEFAULT else field.default

    def has_failed(self, path: tuple[str, ...]) -> bool:
        """Whether a problem of this very setting was noted already."""
        return any(problem.path == ".".join(path) for problem in self.problems)

    def origin(self, *path: str) -> str:
        """Where the value at this path came from."""
        value = self.values.get(path)
        return value.origin if value else "default"


def find_section_meant(word: str) -> str | None:
    """The section that has another name elsewhere."""
    return SECTIONS_MEANT.get(word.removesuffix("s"))


def suggest_section(word: str) -> str:
    """The section that a person may have meant."""
    meant = find_section_meant(word)
    if meant is not None:
        return (
            f"Write [{meant}.NAME] with a name of your own; in variables {PREFIX}{meant.upper()}__NAME__KEY."
        )
    return suggest(word, [*SINGLE_SECTIONS, *NAMED_SECTIONS])


def suggest(word: str, known: list[str]) -> str:
    """`Did you mean "x"?`, or what there is; of much the nearest alone."""
    nearest = sorted(known, key=lambda name: (-_measure_likeness(word, name), name))
    close = next((name for name in nearest if _is_alike(word, name)), None)
    if close is not None:
        return f"Did you mean {render_value(close)}?"
    if len(known) > LISTED_WHOLE:
        return f"The nearest of {len(known)} are: {', '.join(sorted(nearest[:LISTED_NEAREST]))}."
    return f"There are: {', '.join(sorted(known))}."


def _is_alike(word: str, name: str) -> bool:
    """Whether one may be meant by the other: as a whole, and in the words that they do not share.

    Long shared words would make `websocket_max` look like `websocket_s`.
    """
    if _measure_likeness(word, name) < LIKENESS:
        return False
    left, right = word.split("_"), name.split("_")
    while left and right and left[0] == right[0]:
        del left[0], right[0]
    while left and right and left[-1] == right[-1]:
        del left[-1], right[-1]
    return not (left and right) or _measure_likeness("_".join(left), "_".join(right)) >= LIKENESS


def _measure_likeness(word: str, name: str) -> float:
    import difflib

    return difflib.SequenceMatcher(None, word, name).ratio()


def render_value(value: Any) -> str:
    """A value as TOML would have it; None is `unset`."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return "unset" if value is None else msgspec.json.encode(value).decode()


def describe_values(hint: Any) -> str:
    """What a setting takes, in words: `an integer from 0 to 65535`, `one of "normal", "full"`."""
    bounds = describe_bounds(hint)
    hint = strip_annotation(hint)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        kind = "" if len(arguments) == 1 else "one of "
        return kind + ", ".join(render_value(value) for value in arguments)
    if typing.get_origin(hint) is tuple:
        known = ", ".join(render_value(value) for value in typing.get_args(arguments[0]))
        return f"a list of {known}, not empty" if known else "a list of strings"
    if type(None) in arguments:
        return describe_values(next(part for part in arguments if part is not type(None)))
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}[hint]
    return words + bounds


def describe_bounds(hint: Any) -> str:
    """What narrows a type, to stand behind its name: ` from 0 to 65535`, or nothing."""
    metadata = getattr(hint, "__metadata__", ())
    return "".join(_describe_bound(meta) for meta in metadata if isinstance(meta, msgspec.Meta))


def _describe_bound(meta: msgspec.Meta) -> str:
    if meta.min_length:
        return " that is not empty" if meta.min_length == 1 else f" of at least {meta.min_length} characters"
    if meta.ge is not None and meta.le is not None:
        return f" from {meta.ge} to {meta.le}"
    low = "" if meta.gt is None else f" above {meta.gt}"
    low = low if meta.ge is None else f" of at least {meta.ge}"
    high = f" up to {meta.le}" if meta.le is not None else ""
    high = high if meta.lt is None else f" below {meta.lt}"
    return low + (f" and{high}" if low and high else high)


def _is_quoted(value: Value, field: Field) -> bool:
    """Whether a number or truth value was written as a string, and would be right without the quotes."""
    if value.textual or not isinstance(value.raw, str):
        return False
    try:
        msgspec.convert(value.raw, field.type, strict=False)
    except msgspec.ValidationError:
        return False
    return True
