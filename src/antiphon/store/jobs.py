"""Background responses in SQLite: what they need to run, and the events of their streams.

It knows neither requests nor events: both are bytes. Invariant: a row of `jobs` stands for a response that has
not ended, or for one that has ended and has events left.
"""

from collections.abc import Sequence
from typing import Any, Literal

from antiphon.protocol.errors import StoreError
from antiphon.store.contents import Contents
from antiphon.store.interface import EventChunk, Job
from antiphon.store.packing import pack_id, unpack_id
from antiphon.store.slots import NO_LIMIT, OWN_TEXT, Owner, SlotTable, join_texts
from antiphon.store.statements import Statements

#: What a job's status is stored as: the position; the queries know the first that has ended.
JOB_STATUSES: tuple[Literal["queued", "in_progress"], ...] = ("queued", "in_progress")
ENDED = len(JOB_STATUSES)


class JobTable:
    """Writes jobs and events; used by one thread, inside a transaction."""

    def __init__(self, sql: Statements, contents: Contents) -> None:
        self._sql = sql
        self._contents = contents
        self._slots = SlotTable(sql)
        #: What has not ended, so that an ordinary round need not ask; None until it is read.
        self._open: set[Owner] | None = None

    def open(self, job: Job) -> None:
        """A new job. Raises `StoreError` when there is a job or a node of that id."""
        packed = pack_id(job.id)
        status = JOB_STATUSES.index(job.status)
        with self._sql.savepoint():
            owner = (self._contents.intern_tenant(job.tenant), packed)
            if self._find_status(owner) is not None or self._sql.fetch("find_node", owner[::-1]) is not None:
                raise StoreError("A response with this id is stored already.")
            row = (*owner, job.created_at, status, job.needs_secrets, len(job.request))
            self._sql.execute("insert_job", row)
            self._slots.write(owner, OWN_TEXT, OWN_TEXT, job.request + job.snapshot)
        self._load_open().add(owner)

    def start(self, tenant: str, job_id: str) -> None:
        """The job runs; does nothing when there is none, or it has ended."""
        try:
            self._sql.execute("change_job", (JOB_STATUSES.index("in_progress"), pack_id(job_id), tenant))
        except UnicodeEncodeError:
            # A name that is no valid text was never stored.
            return

    def is_open(self, owner: Owner) -> bool:
        """Whether this job has not ended."""
        return owner in (self._load_open() if self._open is None else self._open)

    def end(self, owner: Owner) -> None:
        """The job has ended, if there was one: what it needed is blanked, its events stay."""
        if not self.is_open(owner):
            return
        self._slots.free(owner, OWN_TEXT, OWN_TEXT)
        if self._slots.find_last(owner) is None:
            self._sql.execute("drop_job", owner)
        else:
            self._sql.execute("end_job", owner)
        self._load_open().discard(owner)

    def append_events(self, tenant: str, job_id: str, chunk: EventChunk) -> None:
        """Keep a chunk. Raises `StoreError` for events out of order, or of a response that is not there."""
        key = self._contents.find_tenant(tenant)
        owner = (-1 if key is None else key, pack_id(job_id))
        with self._sql.savepoint():
            if self._find_status(owner) is None:
                self._reopen_ended(owner)
            newest = self._slots.find_last(owner)
            if not (OWN_TEXT if newest is None else newest) < chunk.first <= chunk.last:
                raise StoreError(f"Events {chunk.first} to {chunk.last} do not follow those that are kept.")
            self._slots.write(owner, chunk.first, chunk.last, chunk.body)

    def drop_events(self, tenant: str, job_id: str) -> bool:
        """Blank the events of a response; False when there are none."""
        key = self._contents.find_tenant(tenant)
        return key is not None and self.drop_events_of((key, pack_id(job_id)))

    def drop_events_of(self, owner: Owner) -> bool:
        """Blank the events of a response; False when there are none."""
        status = self._find_status(owner)
        if status is None:
            return False
        with self._sql.savepoint():
            dropped = self._slots.free(owner, 0, NO_LIMIT)
            if status == ENDED:
                self._sql.execute("drop_job", owner)
        return dropped

    def forget(self) -> None:
        """Remember nothing: what was added or ended may have been rolled back."""
        self._open = None

    def _reopen_ended(self, owner: Owner) -> None:
        """A row for the events of a response that ended before its first event was kept."""
        node = self._sql.fetch("find_node", owner[::-1])
        if node is None or node[0]:
            raise StoreError("There is no background response with this id to keep events of.")
        self._sql.execute("insert_job", (*owner, 0, ENDED, 0, 0))

    def _find_status(self, owner: Owner) -> int | None:
        row = self._sql.fetch("find_job", owner)
        return None if row is None else int(row[0])

    def _load_open(self) -> set[Owner]:
        if self._open is None:
            self._open = set(self._sql.execute("list_open_jobs", ()).fetchall())
        return self._open


def to_jobs(rows: Sequence[Sequence[Any]]) -> list[Job]:
    """The jobs of rows of `list_jobs`, one row for each piece of their texts."""
    return [
        Job(
            id=unpack_id(stored_id),
            tenant=tenant,
            created_at=created_at,
            status=JOB_STATUSES[status],
            request=text[:request_bytes],
            snapshot=text[request_bytes:],
            needs_secrets=bool(needs_secrets),
        )
        for (tenant, stored_id, created_at, status, needs_secrets, request_bytes), text in join_texts(rows, 6)
    ]


def to_chunks(rows: Sequence[Sequence[Any]]) -> list[EventChunk]:
    """The chunks of rows of `load_events`, one row for each piece of them."""
    return [EventChunk(first, last, text) for (first, last), text in join_texts(rows, 2)]
