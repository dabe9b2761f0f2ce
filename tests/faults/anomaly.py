"""The anomaly loop: the n-th operation of a scenario fails, for n = 1, 2, ... until a run meets no fault.

After SQLite's anomaly testing. It knows what an operation of the database is, and no scenario. Invariant:
a walk ends with a run in which nothing failed, so every operation of the scenario has failed once before.
"""

import contextlib
import itertools
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

from antiphon.store.files import DataFolder

#: A walk that is longer does not end by itself.
MAX_RUNS = 5000

#: How an operation of the database fails: nothing was done; all was done and the news of it is bad; the whole
#: transaction is rolled back, as SQLite does by itself for some errors; the process ends before or after it.
Manner: TypeAlias = Literal["before", "after", "rolled back", "dies before", "dies after"]

#: Exit status of a process that a fault has ended.
DIED = 9


class Fault:
    """Strikes the n-th operation, or, when it lasts, every one from the n-th on until it is healed."""

    def __init__(self, n: int, *, lasts: bool = False) -> None:
        self.n = n
        #: Operations so far.
        self.count = 0
        #: How many of them failed.
        self.struck = 0
        self._lasts = lasts
        self._healed = False
        # The store writes on a thread of its own.
        self._lock = threading.Lock()

    def strikes(self) -> bool:
        """Whether the operation that begins now fails."""
        with self._lock:
            if self._healed:
                return False
            self.count += 1
            hit = self.count == self.n or (self._lasts and self.count > self.n)
            self.struck += hit
            return hit

    def heal(self) -> None:
        """Nothing fails or is counted any more."""
        with self._lock:
            self._healed = True


def walk(name: str, run: Callable[[Fault], str], *, step: int = 1, lasts: bool = False) -> int:
    """Run with n = 1, 1 + step, ... until no fault struck; returns that n.

    `run` asserts what must hold and returns its outcome in a word; the outcomes are counted and printed.
    """
    outcomes: Counter[str] = Counter()
    for n in itertools.islice(itertools.count(1, step), MAX_RUNS):
        fault = Fault(n, lasts=lasts)
        try:
            outcome = run(fault)
        except BaseException as error:
            error.add_note(f"{name}: n = {n}")
            raise
        if not fault.struck:
            print(
                f"{name}: n = 1, {1 + step}, ... clean at {n} ({sum(outcomes.values())} faults): {dict(outcomes)}"
            )
            return n
        outcomes[outcome] += 1
    raise AssertionError(f"{name}: no clean run in {MAX_RUNS}")


def make_io_error() -> sqlite3.OperationalError:
    """What the binding raises when the disk does not do as it is told."""
    return sqlite3.OperationalError("disk I/O error")


@contextlib.contextmanager
def break_database(fault: Fault, manner: Manner = "before") -> Iterator[None]:
    """Stores opened inside have their n-th operation fail: connect, execute, fetch, or the log emptied at close."""
    made: list[sqlite3.Connection] = []
    usual = DataFolder.connection_class
    DataFolder.connection_class = _make_connection_class(fault, manner, made)
    try:
        yield
    finally:
        DataFolder.connection_class = usual
        for connection in made:
            # Whatever a failure has left open.
            sqlite3.Connection.close(connection)


def _make_connection_class(
    fault: Fault, manner: Manner, made: list[sqlite3.Connection]
) -> type[sqlite3.Connection]:
    def meet(connection: sqlite3.Connection | None, act: Callable[[], Any]) -> Any:
        if not fault.strikes():
            return act()
        if manner == "dies before":
            os._exit(DIED)
        try:
            if manner in ("after", "dies after"):
                act()
        finally:
            if manner == "dies after":
                os._exit(DIED)
        if manner == "rolled back" and connection is not None and connection.in_transaction:
            sqlite3.Connection.execute(connection, "ROLLBACK")
        raise make_io_error()

    class FaultyCursor(sqlite3.Cursor):
        def fetchone(self) -> Any:
            return meet(self.connection, super().fetchone)

        def fetchall(self) -> list[Any]:
            rows: list[Any] = meet(self.connection, super().fetchall)
            return rows

    class FaultyConnection(sqlite3.Connection):
        def __init__(self, database: Any, **options: Any) -> None:
            self.database = database

            def connect() -> None:
                super(FaultyConnection, self).__init__(database, **options)
                made.append(self)

            meet(None, connect)

        def cursor(self, factory: Any = FaultyCursor) -> Any:
            return super().cursor(factory)

        def execute(self, *args: Any) -> sqlite3.Cursor:
            cursor: sqlite3.Cursor = meet(self, lambda: super(FaultyConnection, self).execute(*args))
            return cursor

        def executemany(self, *args: Any) -> sqlite3.Cursor:
            cursor: sqlite3.Cursor = meet(self, lambda: super(FaultyConnection, self).executemany(*args))
            return cursor

        def executescript(self, script: str) -> sqlite3.Cursor:
            cursor: sqlite3.Cursor = meet(self, lambda: super(FaultyConnection, self).executescript(script))
            return cursor

        def close(self) -> None:
            struck = fault.strikes()
            if struck:
                if manner == "dies before":
                    os._exit(DIED)
                # SQLite swallows a failure to empty the log at the end: it just stays. So it does when somebody
                # else has the database open.
                other = sqlite3.connect(self.database, check_same_thread=False)
                made.append(other)
                other.execute("SELECT count(*) FROM sqlite_master").fetchall()
            super().close()
            if struck and manner == "dies after":
                os._exit(DIED)

    return FaultyConnection
