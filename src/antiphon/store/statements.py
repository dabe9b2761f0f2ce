"""The named queries on one connection, and savepoints around several of them.

It knows no table. Invariant: what is done inside a savepoint that fails is undone.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from antiphon.store.queries import load_queries


class Statements:
    """Runs queries by name; used by one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._queries = load_queries()

    def execute(self, name: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        """One query."""
        return self.connection.execute(self._queries[name], parameters)

    def execute_many(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        """One query for each row of parameters."""
        self.connection.executemany(self._queries[name], rows)

    def fetch(self, name: str, parameters: Sequence[Any]) -> Any:
        """The first row, None when there is none."""
        try:
            return self.execute(name, parameters).fetchone()
        except UnicodeEncodeError:
            # A name that is no valid text was never stored.
            return None

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """What the block does is done whole or not at all."""
        self.connection.execute("SAVEPOINT job")
        try:
            yield
        except BaseException:
            # A full disk may have ended the whole transaction already.
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK TO job")
                self.connection.execute("RELEASE job")
            raise
        self.connection.execute("RELEASE job")
