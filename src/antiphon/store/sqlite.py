"""Rounds in SQLite: one writer thread with group commit, reads on the caller's thread.

A point read takes a few microseconds, less than handing it to a thread would. It knows nothing of what
the items mean. Invariant: what `record` returned for survives a killed process, and what `delete`
and its like returned for is in no file of the folder.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.protocol.errors import StoreError
from antiphon.sessions import Node
from antiphon.store.batches import BatchWriter
from antiphon.store.conversations import to_conversation
from antiphon.store.files import DataFolder
from antiphon.store.interface import Conversation, EventChunk, Job, Record, StoreSettings
from antiphon.store.jobs import to_chunks, to_jobs
from antiphon.store.packing import hash_item_id, pack_id, unpack_id, unpack_outcome
from antiphon.store.queries import load_queries, widen_list
from antiphon.store.rows import RowWriter, to_path, to_record

#: Ids that one query looks for; more take several queries.
IDS_AT_ONCE = 64


class SqliteStore:
    """The store that a server uses: `antiphon.db` in a data folder, for one process at a time."""

    def __init__(
        self,
        folder: DataFolder,
        reader: sqlite3.Connection,
        writer: sqlite3.Connection,
        settings: StoreSettings,
    ) -> None:
        """Takes over the open folder and both connections; use `open`."""
        self._folder = folder
        self._settings = settings
        self._queries = load_queries()
        self._reader = reader
        # Keeps a query and its rows together when event loops on several threads share the store.
        self._reading = threading.Lock()
        self._closed = False
        self._released = False
        self._rows = RowWriter(writer)
        self._writer = BatchWriter(
            self._rows.commit,
            queue_limit=settings.queue_limit,
            queue_wait_s=settings.queue_wait_s,
            batch_limit=settings.batch_limit,
        )

    @classmethod
    def open(cls, folder: Path, settings: StoreSettings | None = None) -> "SqliteStore":
        """Open or create the store in `folder`.

        Raises `StoreError` when the folder is in use, cannot be written, or holds something else.
        """
        settings = settings or StoreSettings()
        with contextlib.ExitStack() as undo:
            data_folder = DataFolder(folder, settings)
            undo.callback(data_folder.unlock)
            reader = undo.enter_context(contextlib.closing(data_folder.connect_reader()))
            writer = undo.enter_context(contextlib.closing(data_folder.connect_writer()))
            store = cls(data_folder, reader, writer, settings)
            undo.pop_all()
        return store

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        """Keep one round; see `Store.record`."""
        await self._writer.submit(partial(self._rows.insert, record, conversation))

    async def load(self, tenant: str, node_id: str) -> Record | None:
        """One round, whole; see `Store.load`."""
        rows = self._read("load_node", (pack_id(node_id), tenant))
        return to_record(tenant, node_id, rows[0]) if rows else None

    async def load_path(self, tenant: str, node_id: str, *, skip_deleted: bool = False) -> list[Node] | None:
        """The nodes from the root to `node_id`; see `Store.load_path`."""
        return to_path(self._read("load_path", (pack_id(node_id), tenant)), skip_deleted=skip_deleted)

    async def find_item(self, tenant: str, item_id: str) -> tuple[str, int] | None:
        """Where a client-given item id stands; see `Store.find_item`."""
        rows = self._read("find_item", (tenant, hash_item_id(item_id)))
        return (unpack_id(rows[0][0]), rows[0][1]) if rows else None

    async def load_outcomes(self, tenant: str, node_ids: Collection[str]) -> dict[str, bytes]:
        """The outcomes of several nodes; see `Store.load_outcomes`."""
        rows = self._read_many("load_outcomes", tenant, node_ids)
        return {unpack_id(stored_id): unpack_outcome(outcome) for stored_id, outcome in rows}

    async def find_deleted(self, tenant: str, node_ids: Collection[str]) -> set[str]:
        """Which of these nodes were deleted; see `Store.find_deleted`."""
        return {unpack_id(stored_id) for (stored_id,) in self._read_many("find_deleted", tenant, node_ids)}

    async def delete(self, tenant: str, node_id: str) -> bool:
        """Blank a round and wipe its bytes from the files; see `Store.delete`."""
        return bool(await self._writer.submit(partial(self._rows.delete, tenant, node_id), wipes=True))

    async def blank_items(self, tenant: str, node_id: str, positions: Sequence[int]) -> bool:
        """Blank single items and wipe their bytes from the files; see `Store.blank_items`."""
        work = partial(self._rows.blank_items, tenant, node_id, tuple(positions))
        return bool(await self._writer.submit(work, wipes=True))

    async def create_conversation(self, conversation: Conversation) -> None:
        """Keep a new conversation; see `Store.create_conversation`."""
        await self._writer.submit(partial(self._rows.conversations.create, conversation))

    async def load_conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        """A conversation; see `Store.load_conversation`."""
        rows = self._read("load_conversation", (pack_id(conversation_id), tenant))
        return to_conversation(tenant, conversation_id, rows[0]) if rows else None

    async def update_conversation(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        """Replace metadata and wipe what it was from the files; see `Store.update_conversation`."""
        work = partial(self._rows.update_conversation, tenant, conversation_id, metadata)
        return bool(await self._writer.submit(work, wipes=True))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Remove a tip, and wipe its metadata from the files; see `Store.delete_conversation`."""
        work = partial(self._rows.delete_conversation, tenant, conversation_id)
        return bool(await self._writer.submit(work, wipes=True))

    async def open_job(self, job: Job) -> None:
        """Keep a background response that is about to run; see `Store.open_job`."""
        await self._writer.submit(partial(self._rows.jobs.open, job))

    async def start_job(self, tenant: str, job_id: str) -> None:
        """It runs; see `Store.start_job`."""
        await self._writer.submit(partial(self._rows.jobs.start, tenant, job_id))

    async def load_job(self, tenant: str, job_id: str) -> Job | None:
        """A background response that has not ended; see `Store.load_job`."""
        jobs = to_jobs(self._read("load_job", (tenant, pack_id(job_id), tenant)))
        return jobs[0] if jobs else None

    async def list_jobs(self) -> list[Job]:
        """Every background response that has not ended; see `Store.list_jobs`."""
        return to_jobs(self._read("list_jobs", ()))

    async def append_events(self, tenant: str, node_id: str, chunk: EventChunk) -> None:
        """Keep some events; see `Store.append_events`."""
        await self._writer.submit(partial(self._rows.jobs.append_events, tenant, node_id, chunk))

    async def load_events(self, tenant: str, node_id: str, *, after: int = -1) -> list[EventChunk]:
        """The chunks with events above `after`; see `Store.load_events`."""
        return to_chunks(self._read("load_events", (pack_id(node_id), tenant, after)))

    async def drop_events(self, tenant: str, node_id: str) -> None:
        """Forget the events of a response and wipe them from the files; see `Store.drop_events`."""
        await self._writer.submit(partial(self._rows.drop_events, tenant, node_id), wipes=True)

    async def list_events(self) -> list[tuple[str, str, int]]:
        """Ended responses with events left; see `Store.list_events`."""
        rows = self._read("list_events", ())
        return [(tenant, unpack_id(stored_id), at) for tenant, stored_id, at in rows]

    async def check(self) -> None:
        """A harmless write and read within `check_timeout_s`; see `Store.check`."""
        timeout_s = self._settings.check_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.submit(self._rows.write_check)
        except TimeoutError as error:
            raise StoreError(f"The store did not write within {timeout_s:g} s.") from error
        self._read("read_check", ())

    async def close(self) -> None:
        """Write what is queued, empty the log, let go of the folder; a second call does nothing.

        Raises `StoreError` when the queue is not empty after `close_timeout_s`; the folder stays locked then,
        and another call tries again.
        """
        self._closed = True
        await self._writer.close(self._settings.close_timeout_s)
        if self._released:
            return
        self._released = True
        try:
            with self._reading:
                self._reader.close()
            self._rows.close()
        except sqlite3.Error as error:
            raise StoreError(f"The store did not close cleanly: {error}.") from error
        finally:
            self._folder.unlock()

    def _read_many(self, name: str, tenant: str, node_ids: Collection[str]) -> list[Any]:
        """The rows of a query over a list of ids, which is asked in lists of one length."""
        # One id that is no valid text, and so was never stored, would spoil the list that it stands in.
        wanted = [pack_id(node_id) for node_id in dict.fromkeys(node_ids) if _is_text(node_id)]
        query = widen_list(name, IDS_AT_ONCE)
        rows = []
        for start in range(0, len(wanted), IDS_AT_ONCE):
            ids = wanted[start : start + IDS_AT_ONCE]
            rows += self._fetch(query, (*ids, *[None] * (IDS_AT_ONCE - len(ids)), tenant))
        return rows

    def _read(self, name: str, parameters: Sequence[Any]) -> list[Any]:
        return self._fetch(self._queries[name], parameters)

    def _fetch(self, query: str, parameters: Sequence[Any]) -> list[Any]:
        if self._closed:
            raise StoreError("The store is closed.")
        try:
            with self._reading:
                return self._reader.execute(query, parameters).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"The store cannot read: {error}.") from error
        except UnicodeEncodeError:
            # A name that is no valid text was never stored.
            return []


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
