"""Rows in and out of SQLite: what one batch writes, and how a row becomes a record.

It knows no threads and no event loop; `RowWriter` is used by one thread. Invariant: a batch is committed
whole except for writes that failed by their own fault, which leave nothing behind.
"""

import contextlib
import sqlite3
from collections.abc import Collection, Sequence
from typing import Any

from antiphon.protocol.errors import StoreError
from antiphon.sessions import Node
from antiphon.sessions.tree import NodeKind, Status
from antiphon.store.batches import Write
from antiphon.store.blanking import blank_positions
from antiphon.store.contents import Contents, hash_contents
from antiphon.store.conversations import ConversationTable
from antiphon.store.interface import Record, UnknownParentError
from antiphon.store.jobs import JobTable
from antiphon.store.packing import (
    hash_item_id,
    pack_id,
    pack_in_place,
    pack_items,
    pack_outcome,
    unpack_id,
    unpack_items,
    unpack_outcome,
)
from antiphon.store.statements import Statements

#: What `kind` and `status` are stored as: the position. Only ever appended to.
KINDS: tuple[NodeKind, ...] = ("response", "items")
STATUSES: tuple[Status, ...] = ("queued", "completed", "incomplete", "failed", "cancelled", "in_progress")

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
    KeyError,
    TypeError,
    ValueError,
)


class RowWriter:
    """Writes batches on one connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sql = Statements(connection)
        self._contents = Contents(self._sql)
        self.conversations = ConversationTable(self._sql, self._contents)
        self.jobs = JobTable(self._sql, self._contents)
        #: What was removed since the log was emptied: (what, tenant, id).
        self._unwiped: set[tuple[str, str, str]] = set()

    def commit(self, batch: list[Write]) -> None:
        """Carry out the writes in one transaction; each gets its value or its error.

        A storage failure (disk full, locked, I/O) is everybody's error, and nothing is kept.
        """
        try:
            if self._connection.in_transaction:
                # The last failure was so deep that its rollback failed too.
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN IMMEDIATE")
            for write in batch:
                self._attempt(write)
            self._connection.execute("COMMIT")
        except (sqlite3.Error, MemoryError) as error:
            self._roll_back()
            for write in batch:
                write.error = _to_store_error(error)
            return
        if self._unwiped and any(write.wipes for write in batch):
            self._wipe([write for write in batch if write.wipes])

    def insert(self, record: Record, conversation: str | None = None) -> None:
        """One node with what it refers to; see `Store.record`.

        Raises `UnknownParentError`, `MovedTipError`, or `StoreError` for an id twice.
        """
        node_id = pack_id(record.id)
        digests = hash_contents(record)
        tenant = self._contents.find_known_tenant(record.tenant)
        settings = self._contents.find_known(tenant, digests)
        is_usual = conversation is None and not record.client_ids
        if (
            is_usual
            and tenant is not None
            and settings is not None
            and not self.jobs.is_open((tenant, node_id))
        ):
            # The usual round is one statement, which needs no savepoint.
            self._insert_node(record, node_id, tenant, settings)
            return
        with self._sql.savepoint():
            tenant = self._contents.intern_tenant(record.tenant)
            settings = self._contents.intern_settings(tenant, record, digests)
            if conversation is None:
                node = self._insert_node(record, node_id, tenant, settings)
            else:
                tip = self.conversations.find_tip(tenant, conversation, record.parent)
                row = (*_to_row(record, node_id, tenant, settings), tip)
                node = self._sql.execute("insert_next", row).lastrowid
                self.conversations.move_tip(tenant, conversation, node)
            rows = [(tenant, hash_item_id(item), node, position) for item, position in record.client_ids]
            self._sql.execute_many("insert_client_id", rows)
            self.jobs.end((tenant, node_id))

    def delete(self, tenant: str, node_id: str) -> bool:
        """Blank one node and drop what only it referred to; False if the tenant has no such node."""
        packed = pack_id(node_id)
        row = self._sql.fetch("find_deletable", (packed, tenant))
        if row is not None:
            node, owner, settings, *contents = row
            with self._sql.savepoint():
                self._sql.execute("blank_node", (node,))
                self._sql.execute("drop_client_ids", (node,))
                self._contents.drop_settings(settings, contents)
                self.jobs.drop_events_of((owner, packed))
        return self._note(row is not None, "node", tenant, node_id)

    def blank_items(self, tenant: str, node_id: str, positions: Collection[int]) -> bool:
        """Blank single items of a node, and its events, which tell them too; False if there are none."""
        row = self._sql.fetch("find_items", (pack_id(node_id), tenant))
        if row is None:
            return self._note(False, "items", tenant, node_id)
        node, owner, old_given, old_made = row
        given, made, blanked = blank_positions(unpack_items(old_given), unpack_items(old_made), positions)
        if blanked:
            packed = (pack_in_place(given, old_given), pack_in_place(made, old_made))
            with self._sql.savepoint():
                self._sql.execute("replace_items", (*packed, node))
                self._sql.execute_many("drop_client_id", [(node, position) for position in blanked])
                self.jobs.drop_events_of((owner, pack_id(node_id)))
        return self._note(bool(blanked), "items", tenant, node_id)

    def update_conversation(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        """Other metadata; False if the tenant has no such conversation."""
        updated = self.conversations.update(tenant, conversation_id, metadata)
        if updated:
            self._unwiped.add(("metadata", tenant, conversation_id))
        return updated

    def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Remove a tip and its metadata; False if the tenant has no such conversation."""
        deleted = self.conversations.delete(tenant, conversation_id)
        return self._note(deleted, "conversation", tenant, conversation_id)

    def drop_events(self, tenant: str, node_id: str) -> None:
        """Blank the events of a response."""
        self._note(self.jobs.drop_events(tenant, node_id), "events", tenant, node_id)

    def write_check(self) -> None:
        """See that a write gets through."""
        self._sql.execute("write_check", ())
        self._sql.execute("undo_check", ())

    def close(self) -> None:
        """Close; the last connection to a database moves the log into it and removes the log."""
        self._connection.close()

    def _attempt(self, write: Write) -> None:
        try:
            write.value = write.work()
        except StoreError as error:
            write.error = error
        except _ROW_ERRORS as error:
            write.error = _to_row_error(error)
        else:
            return
        # What a failed write had looked up or added may be rolled back with it.
        self._forget()

    def _insert_node(self, record: Record, node_id: bytes | str, tenant: int, settings: int) -> int | None:
        row = _to_row(record, node_id, tenant, settings)
        if record.parent is None:
            return self._sql.execute("insert_root", row).lastrowid
        return self._sql.execute("insert_child", (*row, pack_id(record.parent), tenant)).lastrowid

    def _note(self, removed: bool, what: str, tenant: str, name: str) -> bool:
        """Whether this was removed, now or before by a write whose traces could not be wiped from the files."""
        if removed:
            self._unwiped.add((what, tenant, name))
        return removed or (what, tenant, name) in self._unwiped

    def _wipe(self, writes: list[Write]) -> None:
        """Empty the log: until then it still holds the pages as they were before the deletion."""
        try:
            self._checkpoint()
        except (sqlite3.Error, StoreError) as error:
            for write in writes:
                write.error = _to_store_error(error)
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

    def _roll_back(self) -> None:
        self._forget()
        with contextlib.suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _forget(self) -> None:
        self._contents.forget()
        self.jobs.forget()


def _to_row(record: Record, node_id: bytes | str, tenant: int, settings: int) -> tuple[Any, ...]:
    return (
        tenant,
        _KIND_CODES[record.kind],
        _STATUS_CODES[record.status],
        settings,
        record.created_at,
        record.completed_at,
        node_id,
        pack_items(record.input),
        pack_items(record.output),
        pack_outcome(record.outcome),
    )


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


def to_path(rows: Sequence[Sequence[Any]], *, skip_deleted: bool) -> list[Node] | None:
    """The nodes of `load_path`, root first; None if there are none or, unless skipped, one was deleted."""
    nodes: list[Node] = []
    parent: str | None = None
    for stored_id, kind, status, items_in, items_out, deleted in rows:
        node_id = unpack_id(stored_id)
        if not deleted:
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
        elif not skip_deleted:
            return None
        parent = node_id
    return nodes if rows else None


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
