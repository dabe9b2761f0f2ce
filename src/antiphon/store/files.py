"""The store's files: the folder, its lock, the database and its schema version.

It knows no rows. Invariant: while a `DataFolder` is open no other process has the same folder open, and
a database that it hands out has exactly the newest schema.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from antiphon.protocol.errors import StoreError
from antiphon.store.interface import StoreSettings
from antiphon.store.queries import Migration, load_migrations, load_schema

DATABASE_NAME = "antiphon.db"
LOCK_NAME = "antiphon.lock"

#: Marks a database as ours ("Anti"), so that a stranger's file is never migrated.
APPLICATION_ID = 0x416E7469

#: Rounds of about 1 kB leave less unused space in a page of 8 KiB than of 4 KiB.
PAGE_BYTES = 8192

#: A log left larger than this by a burst is cut back at the next checkpoint.
LOG_LIMIT_BYTES = 16 * 1024 * 1024

#: Reads run on the caller's thread, so they wait for a lock only this long.
READ_BUSY_TIMEOUT_S = 0.25


class DataFolder:
    """An open data folder: locked for this process, its database at the newest schema."""

    #: What every connection to the database is made from; fault tests put one here whose n-th call fails.
    connection_class: ClassVar[type[sqlite3.Connection]] = sqlite3.Connection

    def __init__(self, folder: Path, settings: StoreSettings) -> None:
        """Create what is missing (folder 0700, files 0600), lock, migrate. Raises `StoreError`."""
        self.database = folder / DATABASE_NAME
        self._settings = settings
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock_folder(folder)
        except OSError as error:
            raise StoreError(
                f"The data folder {folder} cannot be used ({error.strerror or error}). "
                "Make it writable for this user or choose another one."
            ) from error
        try:
            self._prepare()
        except BaseException:
            self.unlock()
            raise

    def connect_writer(self) -> sqlite3.Connection:
        """The one connection that writes."""
        return self._connect(
            self._settings.busy_timeout_s,
            synchronous="FULL" if self._settings.durability == "full" else "NORMAL",
            secure_delete="ON",
            # The writer alone inserts, in statements that look every reference up; tests check the keys.
            foreign_keys="OFF",
            journal_size_limit=LOG_LIMIT_BYTES,
        )

    def connect_reader(self) -> sqlite3.Connection:
        """A connection that reads what is committed."""
        return self._connect(min(self._settings.busy_timeout_s, READ_BUSY_TIMEOUT_S), query_only="ON")

    def unlock(self) -> None:
        """Let another process have the folder."""
        os.close(self._lock)

    def _prepare(self) -> None:
        try:
            # SQLite gives its log and index files the mode of the database file.
            os.close(os.open(self.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self.database.chmod(0o600)
            with contextlib.closing(self._connect(self._settings.busy_timeout_s)) as connection:
                upgrade_schema(connection, load_migrations())
        except OSError as error:
            raise StoreError(f"{self.database} cannot be opened ({error.strerror or error}).") from error
        except sqlite3.DatabaseError as error:
            raise StoreError(_explain_unusable(self.database, error)) from error

    def _connect(self, timeout_s: float, **pragmas: str | int) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self.database,
                timeout=timeout_s,
                isolation_level=None,
                check_same_thread=False,
                factory=self.connection_class,
            )
        except sqlite3.Error as error:
            raise StoreError(_explain_unusable(self.database, error)) from error
        try:
            # Spilled statements must not leave content in files of the system's temporary folder.
            _set_pragmas(connection, temp_store="MEMORY", cache_size=-self._settings.cache_kib, **pragmas)
        except sqlite3.DatabaseError as error:
            connection.close()
            raise StoreError(_explain_unusable(self.database, error)) from error
        return connection


def upgrade_schema(connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    """Bring a database to the schema of the last of `migrations`; a fresh one gets it whole.

    Raises `StoreError` when the database is another program's or newer than this code.
    """
    newest = migrations[-1].version
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0 and version == 0:
        # Page size can only be chosen while the file is empty, and before the log mode.
        _set_pragmas(connection, page_size=PAGE_BYTES)
        _use_log(connection)
        _run_step(connection, load_schema(), newest)
        return
    if owner != APPLICATION_ID:
        raise StoreError(f"{DATABASE_NAME} is a database of another program. Choose another data folder.")
    if version > newest:
        raise StoreError(
            f"{DATABASE_NAME} was written by a newer Antiphon (schema {version}, this one knows {newest}). "
            "Upgrade Antiphon or choose another data folder."
        )
    _use_log(connection)
    _set_pragmas(connection, secure_delete="ON")
    for migration in migrations:
        if migration.version > version:
            _run_step(connection, migration.sql, migration.version)
    # A log left by a killed process may hold what a deletion was about to wipe.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()


def _use_log(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"{DATABASE_NAME} is on a file system without shared memory, a network share perhaps. "
            "Choose a data folder on a local disk."
        )


def _run_step(connection: sqlite3.Connection, sql: str, version: int) -> None:
    """One script and its version number, both or neither."""
    stamp = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version};"
    try:
        connection.executescript(f"BEGIN IMMEDIATE;\n{sql}\n{stamp}\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _set_pragmas(connection: sqlite3.Connection, **pragmas: str | int) -> None:
    for name, value in pragmas.items():
        connection.execute(f"PRAGMA {name} = {value}").fetchall()


def _lock_folder(folder: Path) -> int:
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise StoreError(
            f"The data folder {folder} is in use by another Antiphon process. "
            "Stop that process, or choose another folder with --data DIR or server.data."
        ) from error
    except OSError:
        os.close(lock)
        raise
    return lock


def _explain_unusable(database: Path, error: sqlite3.Error) -> str:
    if isinstance(error, sqlite3.OperationalError):
        return f"{database} cannot be opened ({error}). Close other programs that use it, or free the disk."
    return (
        f"{database} is damaged or is no database ({error}). "
        "Restore it from a copy, or move it away to start with an empty store."
    )
