"""The SQL that ships with the package: named queries, the schema, the numbered migrations.

It knows the layout of the `sql` folder and no database. Read once per process.
"""

import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION = re.compile(r"^(\d{4})_\w+\.sql$")


class Migration(msgspec.Struct, frozen=True):
    """One step of the schema; after it the database's `user_version` is `version`."""

    version: int
    sql: str


@cache
def load_queries() -> dict[str, str]:
    """Every named query: name -> statement, comments and the closing semicolon removed."""
    parts = _NAME.split(_read("queries.sql"))
    return {name: _strip_comments(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def widen_list(name: str, length: int) -> str:
    """A named query whose list `IN (?)` takes so many values; nulls fill a list up, for they equal nothing."""
    return load_queries()[name].replace("IN (?)", f"IN ({', '.join('?' * length)})")


@cache
def load_schema() -> str:
    """The whole schema of the newest version, as one script."""
    return _read("schema.sql")


@cache
def load_migrations() -> tuple[Migration, ...]:
    """All migrations, oldest first, numbered 1, 2, 3, ... without a gap."""
    found = []
    for file in (_folder() / "migrations").iterdir():
        match = _MIGRATION.match(file.name)
        if match:
            found.append(Migration(int(match[1]), file.read_text("utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.version))


def _folder() -> Traversable:
    return resources.files("antiphon.store") / "sql"


def _read(name: str) -> str:
    return (_folder() / name).read_text("utf-8")


def _strip_comments(body: str) -> str:
    lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
    return "\n".join(lines).rstrip(";")
