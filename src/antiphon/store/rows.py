"""Rows in and out of SQLite: what one batch writes, and how a row becomes a record.

It knows no threads and no event loop; `RowWriter` is used by one thread. Invariant: a batch is committed
whole except for jobs that failed by their own fault, which leave nothing behind.
"""

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from antiphon.protocol.errors import StoreError
from antiphon.sessions import Node
from antiphon.sessions.tree import NodeKind, Status
from antiphon.store.batches import Job
from antiphon.store.interface import Record, UnknownParentError
from antiphon.store.packing import (
    hash_item_id,
    pack_id,
    pack_items,
    pack_outcome,
    unpack_id,
    unpack_items,
    unpack_outcome,
)
from antiphon.store.queries import load_queries

#: What `kind` and `status` are stored as: the position. Only ever appended to.
KINDS: tuple[NodeKind, ...] = ("response", "items")
STATUSES: tuple[Status, ...] = ("queued", "completed", "incomplete", "failed", "cancelled", "in_progress")

#: Combinations of settings whose keys are remembered; when full, the memory starts afresh.
KNOWN_LIMIT = 4096
#: How long the wiping of a deletion waits for another program that reads the database.
WIPE_PATIENCE_MS = 500

_KIND_CODES = {kind: code for code, kind in enumerate(KINDS)}
_STATUS_CODES = {status: code for code, status in enumerate(STATUSES)}

#: What SQLite, its binding and our packing raise when one row is at fault and the transaction lives on.
#: A record with a wrong type is our own bug, but must not stop the writer for everybody.
_ROW_ERRORS = (
    sqlite3.IntegrityError,
    sqlite3.DataError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    OverflowError,
    UnicodeEncodeError,
    KeyError,
    TypeError,
)


class RowWriter:
    """Writes batches on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._queries = load_queries()
        self._tenants: dict[str, int] = {}
        self._known: dict[tuple[int, bytes, bytes | None, bytes | None], int] = {}
        self._unwiped: set[tuple[str, str]] = set()

    def commit(self, batch: list[Job]) -> None:
        """Carry out the jobs in one transaction; each gets its value or its error.

        A storage failure (disk full, locked, I/O) is everybody's error, and nothing is kept.
        """
        try:
            if self._connection.in_transaction:
                # The last failure was so deep that its rollback failed too.
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            for job in batch:
                self._attempt(job)
            self._connection.execute("COMMIT")
        except (sqlite3.Error, MemoryError) as error:
            self._roll_back()
            for job in batch:
                job.error = _to_store_error(error)
            return
        if self._unwiped and any(job.wipes for job in batch):
            self._wipe([job for job in batch if job.wipes])

    def insert(self, record: Record) -> None:
        """One node with what it refers to. Raises `UnknownParentError`, or `StoreError` for an id twice."""
        tenant = self._tenants.get(record.tenant)
        digests = (
            sha256(record.settings).digest(),
            None if record.instructions is None else sha256(record.instructions).digest(),
            None if record.tools is None else sha256(record.tools).digest(),
        )
        settings = None if tenant is None else self._known.get((tenant, *digests))
        if tenant is not None and settings is not None and not record.client_ids:
            # The usual round is one statement, which needs no savepoint.
            self._insert_node(record, tenant, settings)
            return
        with self._savepoint():
            tenant = self._intern_tenant(record.tenant)
            settings = self._intern_settings(tenant, record, digests)
            node = self._insert_node(record, tenant, settings)
            rows = [(tenant, hash_item_id(item), node, position) for item, position in record.client_ids]
            self._connection.executemany(self._queries["insert_client_id"], rows)

    def delete(self, tenant: str, node_id: str) -> bool:
        """Blank one node and drop what only it referred to; False if the tenant has no such node."""
        try:
            row = self._fetch("find_deletable", (pack_id(node_id), tenant))
        except UnicodeEncodeError:
            # A name that is no valid text was never stored.
            return False
        if row is None:
            # True for a deletion that was committed but not yet wiped from the files.
            return (tenant, node_id) in self._unwiped
        node, settings, *contents = row
        with self._savepoint():
            self._execute("blank_node", (node,))
            self._execute("drop_client_ids", (node,))
            if self._execute("drop_settings", (settings,)).rowcount:
                self._known.clear()
                for content in contents:
                    self._execute("drop_content", (content,))
        self._unwiped.add((tenant, node_id))
        return True

    def write_check(self) -> None:
        """See that a write gets through."""
        self._execute("write_check", ())
        self._execute("undo_check", ())

    def close(self) -> None:
        """Close; the last connection to a database moves the log into it and removes the log."""
        self._connection.close()

    def _attempt(self, job: Job) -> None:
        try:
            job.value = job.work()
        except _ROW_ERRORS as error:
            job.error = _to_row_error(error)
            # What a failed job had looked up or added may be rolled back with it.
            self._forget()

    def _insert_node(self, record: Record, tenant: int, settings: int) -> int | None:
        row = (
            tenant,
            _KIND_CODES[record.kind],
            _STATUS_CODES[record.status],
            settings,
            record.created_at,
            record.completed_at,
            pack_id(record.id),
            pack_items(record.input),
            pack_items(record.output),
            pack_outcome(record.outcome),
        )
        if record.parent is None:
            return self._execute("insert_root", row).lastrowid
        return self._execute("insert_child", (*row, pack_id(record.parent), tenant)).lastrowid

    def _intern_tenant(self, name: str) -> int:
        if name not in self._tenants:
            if len(self._tenants) >= KNOWN_LIMIT:
                self._forget()
            self._tenants[name] = self._intern("tenant", (name,), (name,))
        return self._tenants[name]

    def _intern_settings(
        self, tenant: int, record: Record, digests: tuple[bytes, bytes | None, bytes | None]
    ) -> int:
        known = self._known.get((tenant, *digests))
        if known is not None:
            return known
        bodies = (record.settings, record.instructions, record.tools)
        contents = tuple(
            None if digest is None else self._intern("content", (tenant, digest), (tenant, digest, body))
            for digest, body in zip(digests, bodies, strict=True)
        )
        key = self._intern("settings", contents, contents)
        if len(self._known) >= KNOWN_LIMIT:
            self._known.clear()
        self._known[(tenant, *digests)] = key
        return key

    def _intern(self, what: str, identity: Sequence[Any], row: Sequence[Any]) -> int:
        """The key of the row with this identity, inserted if it is new."""
        found = self._fetch(f"find_{what}", identity)
        if found is not None:
            return int(found[0])
        # Fetching all rows is what completes an INSERT ... RETURNING.
        return int(self._execute(f"insert_{what}", row).fetchall()[0][0])

    def _wipe(self, jobs: list[Job]) -> None:
        """Empty the log: until then it still holds the pages as they were before the deletion."""
        try:
            self._checkpoint()
        except (sqlite3.Error, StoreError) as error:
            for job in jobs:
                job.error = _to_store_error(error)
            return
        self._unwiped.clear()

    def _checkpoint(self) -> None:
        # A reader such as a backup may hold the log for long, and other clients' rounds wait behind this.
        (patience_ms,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        self._connection.execute(f"PRAGMA busy_timeout = {min(patience_ms, WIPE_PATIENCE_MS)}")
        try:
            (busy, _, _) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {patience_ms}")
        if busy:
            raise StoreError("The store's log could not be emptied: another program is reading the database.")

    @contextlib.contextmanager
    def _savepoint(self) -> Iterator[None]:
        self._connection.execute("SAVEPOINT job")
        try:
            yield
        except BaseException:
            # A full disk may have ended the whole transaction already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK TO job")
                self._connection.execute("RELEASE job")
            raise
        self._connection.execute("RELEASE job")

    def _roll_back(self) -> None:
        self._forget()
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _forget(self) -> None:
        self._tenants.clear()
        self._known.clear()

    def _execute(self, name: str, parameters: Sequence[Any]) -> sqlite3.Cursor:
        return self._connection.execute(self._queries[name], parameters)

    def _fetch(self, name: str, parameters: Sequence[Any]) -> Any:
        return self._execute(name, parameters).fetchone()


def to_record(tenant: str, node_id: str, row: Sequence[Any]) -> Record:
    """A record from a row of `load_node`."""
    parent, kind, status, created_at, completed_at, items_in, items_out, outcome, *contents = row
    settings, instructions, tools = contents
    return Record(
        id=node_id,
        parent=None if parent is None else unpack_id(parent),
        kind=KINDS[kind],
        status=STATUSES[status],
        input=unpack_items(items_in),
        output=unpack_items(items_out),
        tenant=tenant,
        created_at=created_at,
        completed_at=completed_at,
        settings=settings,
        instructions=instructions,
        tools=tools,
        outcome=unpack_outcome(outcome),
    )


def to_path(rows: Sequence[Sequence[Any]]) -> list[Node] | None:
    """The nodes of `load_path`, root first; None if there are none or one of them was deleted."""
    nodes: list[Node] = []
    parent: str | None = None
    for stored_id, kind, status, items_in, items_out, deleted in rows:
        if deleted:
            return None
        node_id = unpack_id(stored_id)
        nodes.append(
            Node(
                id=node_id,
                parent=parent,
                kind=KINDS[kind],
                status=STATUSES[status],
                input=unpack_items(items_in),
                output=unpack_items(items_out),
            )
        )
        parent = node_id
    return nodes or None


def _to_row_error(error: Exception) -> StoreError:
    name = getattr(error, "sqlite_errorname", "")
    failure: StoreError
    if name == "SQLITE_CONSTRAINT_CHECK":
        failure = UnknownParentError()
    elif name == "SQLITE_CONSTRAINT_UNIQUE":
        failure = StoreError("A round with this id is stored already.")
    else:
        failure = StoreError(f"The round cannot be stored: {error}.")
    failure.__cause__ = error
    return failure


def _to_store_error(error: Exception) -> StoreError:
    failure = StoreError(f"The store cannot write: {error}.")
    failure.__cause__ = error
    return failure
