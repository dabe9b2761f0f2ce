"""Shows settings: the dump of one configuration, and the reference of all of them.

Invariant: a secret is never shown.
"""

import re
import typing
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from antiphon.config.gathering import PREFIX, describe_bounds, render_value
from antiphon.config.settings import (
    NAMED_SECTIONS,
    SINGLE_SECTIONS,
    Config,
    list_fields,
    strip_annotation,
)


class Setting(NamedTuple):
    """One setting as readers see it; without a default it must be given."""

    name: str
    type: str
    default: str
    sentence: str


def _list_settings() -> Iterator[Setting]:
    for section in (*SINGLE_SECTIONS, *NAMED_SECTIONS):
        middle = "" if section in SINGLE_SECTIONS else ".NAME"
        for field in list_fields(section).values():
            default = "" if field.default is msgspec.NODEFAULT else render_value(field.default)
            yield Setting(f"{section}{middle}.{field.name}", render_type(field.type), default, field.sentence)


def describe_config(config: Config) -> str:
    """Every setting in effect as TOML, with its origin in a comment; secrets are hidden."""
    lines = [f"# file: {config.file or 'none'}"]
    for section in SINGLE_SECTIONS:
        lines += ["", f"[{section}]", *_describe(config, (section,), getattr(config, section))]
    for section in NAMED_SECTIONS:
        for name, entry in getattr(config, section).items():
            shown = name if re.fullmatch(r"[\w-]+", name, re.ASCII) else render_value(name)
            lines += ["", f"[{section}.{shown}]", *_describe(config, (section, name), entry)]
    return "\n".join(lines) + "\n"


def _describe(config: Config, prefix: tuple[str, ...], entry: Any) -> Iterator[str]:
    for name in list_fields(prefix[0]):
        value = getattr(entry, name)
        origin = config.origins.get((*prefix, name), "default")
        if prefix[0] == "keys" and name == "sha256":
            value = "(hidden)"
        unset = "# " if value is None else ""
        yield f"{unset}{name} = {render_value(value)}  # {origin}"


def render_settings_markdown() -> str:
    """The reference of all settings: one heading for each, as documentation."""
    lines: list[str] = []
    section = ""
    for setting in SETTINGS:
        head, _, _ = setting.name.rpartition(".")
        if head != section:
            section = head
            lines += [f"## [{section}]", ""]
        lines += [f"### {setting.name}", "", setting.sentence, ""]
        default = f"Default: `{setting.default}`." if setting.default else "Required: there is no default."
        lines += [f"Type: {setting.type}. {default}", ""]
        if head in SINGLE_SECTIONS:
            lines += [f"Variable: `{PREFIX}{setting.name.replace('.', '__').upper()}`.", ""]
        else:
            key = setting.name.rpartition(".")[2].upper()
            variable = f"{PREFIX}{head.removesuffix('.NAME').upper()}__NAME__{key}"
            lines += [f"Variable: `{variable}`, NAME in capitals.", ""]
    return "\n".join(lines)


def render_type(hint: Any) -> str:
    """A type in words, with its range: `int | None` -> `integer, or unset`."""
    bounds = describe_bounds(hint)
    hint = strip_annotation(hint)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    if typing.get_origin(hint) is tuple:
        bounds = bounds and ", not empty"
        if typing.get_origin(arguments[0]) is Literal:
            return f"list of {render_type(arguments[0]).removeprefix('one of ')}{bounds}"
        return f"list of {render_type(arguments[0])}s{bounds}"
    if type(None) in arguments:
        return f"{render_type(next(part for part in arguments if part is not type(None)))}, or unset"
    return {int: "integer", float: "number", bool: "true or false", str: "string"}[hint] + bounds


#: Every setting, in the order of the sections.
SETTINGS: tuple[Setting, ...] = tuple(_list_settings())
