"""Rounds in memory: the fake that ships with the seam, for tests and for trying things out.

It keeps the store's contract except that nothing outlives the process.
"""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import msgspec

from antiphon.protocol.errors import StoreError
from antiphon.sessions import Node
from antiphon.store.blanking import blank_positions
from antiphon.store.interface import (
    Conversation,
    EventChunk,
    Job,
    MovedTipError,
    Record,
    UnknownParentError,
)

#: A tenant and an id.
_Key: TypeAlias = tuple[str, str]


class MemoryStore:
    """A store without files."""

    def __init__(self) -> None:
        # A tombstone is a node without content, marked in `_deleted`: only its parent is known still.
        self._records: dict[_Key, Record] = {}
        self._deleted: set[_Key] = set()
        self._items: dict[_Key, list[tuple[str, int]]] = {}
        self._conversations: dict[_Key, Conversation] = {}
        self._jobs: dict[_Key, Job] = {}
        self._events: dict[_Key, list[EventChunk]] = {}
        self._closed = False

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        """Keep one round; see `Store.record`."""
        self._require_open()
        key = (record.tenant, record.id)
        if conversation is not None:
            tip = self._conversations.get((record.tenant, conversation))
            if tip is None or tip.tip != record.parent:
                raise MovedTipError
        elif record.parent is not None and self._find(record.tenant, record.parent) is None:
            raise UnknownParentError
        if key in self._records:
            raise StoreError("A round with this id is stored already.")
        ids = tuple(sorted(set(record.client_ids), key=lambda entry: (entry[1], entry[0])))
        self._records[key] = msgspec.structs.replace(record, client_ids=ids)
        for item_id, position in ids:
            self._items.setdefault((record.tenant, item_id), []).append((record.id, position))
        if conversation is not None:
            self._conversations[(record.tenant, conversation)].tip = record.id
        self._jobs.pop(key, None)

    async def load(self, tenant: str, node_id: str) -> Record | None:
        """One round, whole; see `Store.load`."""
        self._require_open()
        record = self._find(tenant, node_id)
        return None if record is None else msgspec.structs.replace(record, client_ids=())

    async def load_path(self, tenant: str, node_id: str, *, skip_deleted: bool = False) -> list[Node] | None:
        """The nodes from the root to `node_id`; see `Store.load_path`."""
        self._require_open()
        nodes: list[Node] = []
        at: str | None = node_id
        while at is not None:
            record = self._records.get((tenant, at))
            if record is None:
                return None
            if (tenant, at) not in self._deleted:
                nodes.append(_to_node(record))
            elif not skip_deleted:
                return None
            at = record.parent
        return nodes[::-1]

    async def find_item(self, tenant: str, item_id: str) -> tuple[str, int] | None:
        """Where a client-given item id stands; see `Store.find_item`."""
        self._require_open()
        places = self._items.get((tenant, item_id))
        return places[-1] if places else None

    async def load_outcomes(self, tenant: str, node_ids: Collection[str]) -> dict[str, bytes]:
        """The outcomes of several nodes; see `Store.load_outcomes`."""
        self._require_open()
        records = {node_id: self._find(tenant, node_id) for node_id in node_ids}
        return {node_id: record.outcome for node_id, record in records.items() if record is not None}

    async def find_deleted(self, tenant: str, node_ids: Collection[str]) -> set[str]:
        """Which of these nodes were deleted; see `Store.find_deleted`."""
        self._require_open()
        return {node_id for node_id in node_ids if (tenant, node_id) in self._deleted}

    async def delete(self, tenant: str, node_id: str) -> bool:
        """Forget a round's content and keep a tombstone; see `Store.delete`."""
        self._require_open()
        record = self._find(tenant, node_id)
        if record is None:
            return False
        self._drop_client_ids(record, {position for _, position in record.client_ids})
        tombstone = Record(id=record.id, parent=record.parent, tenant=tenant, created_at=0)
        self._records[(tenant, node_id)] = tombstone
        self._deleted.add((tenant, node_id))
        self._events.pop((tenant, node_id), None)
        return True

    async def blank_items(self, tenant: str, node_id: str, positions: Sequence[int]) -> bool:
        """Replace single items by null; see `Store.blank_items`."""
        self._require_open()
        record = self._find(tenant, node_id)
        if record is None:
            return False
        record.input, record.output, blanked = blank_positions(record.input, record.output, positions)
        if blanked:
            self._drop_client_ids(record, set(blanked))
            self._events.pop((tenant, node_id), None)
        return bool(blanked)

    async def create_conversation(self, conversation: Conversation) -> None:
        """Keep a new conversation; see `Store.create_conversation`."""
        self._require_open()
        key = (conversation.tenant, conversation.id)
        if conversation.tip is not None:
            raise StoreError("A new conversation has no tip.")
        if key in self._conversations:
            raise StoreError("A conversation with this id is stored already.")
        self._conversations[key] = msgspec.structs.replace(conversation)

    async def load_conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        """A conversation; see `Store.load_conversation`."""
        self._require_open()
        conversation = self._conversations.get((tenant, conversation_id))
        return None if conversation is None else msgspec.structs.replace(conversation)

    async def update_conversation(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        """Replace metadata; see `Store.update_conversation`."""
        self._require_open()
        conversation = self._conversations.get((tenant, conversation_id))
        if conversation is None:
            return False
        conversation.metadata = metadata
        return True

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Remove a tip and its metadata; see `Store.delete_conversation`."""
        self._require_open()
        return self._conversations.pop((tenant, conversation_id), None) is not None

    async def open_job(self, job: Job) -> None:
        """Keep a background response that is about to run; see `Store.open_job`."""
        self._require_open()
        key = (job.tenant, job.id)
        if key in self._jobs or key in self._records:
            raise StoreError("A response with this id is stored already.")
        self._jobs[key] = msgspec.structs.replace(job)

    async def start_job(self, tenant: str, job_id: str) -> None:
        """It runs; see `Store.start_job`."""
        self._require_open()
        job = self._jobs.get((tenant, job_id))
        if job is not None:
            job.status = "in_progress"

    async def load_job(self, tenant: str, job_id: str) -> Job | None:
        """A background response that has not ended; see `Store.load_job`."""
        self._require_open()
        job = self._jobs.get((tenant, job_id))
        return None if job is None else msgspec.structs.replace(job)

    async def list_jobs(self) -> list[Job]:
        """Every background response that has not ended; see `Store.list_jobs`."""
        self._require_open()
        jobs = sorted(self._jobs.values(), key=lambda job: (job.created_at, job.id))
        return [msgspec.structs.replace(job) for job in jobs]

    async def append_events(self, tenant: str, node_id: str, chunk: EventChunk) -> None:
        """Keep some events; see `Store.append_events`."""
        self._require_open()
        key = (tenant, node_id)
        if key not in self._jobs and self._find(tenant, node_id) is None:
            raise StoreError("There is no background response with this id to keep events of.")
        kept = self._events.get(key, [])
        if not (kept[-1].last if kept else -1) < chunk.first <= chunk.last:
            raise StoreError(f"Events {chunk.first} to {chunk.last} do not follow those that are kept.")
        self._events[key] = [*kept, msgspec.structs.replace(chunk)]

    async def load_events(self, tenant: str, node_id: str, *, after: int = -1) -> list[EventChunk]:
        """The chunks with events above `after`; see `Store.load_events`."""
        self._require_open()
        chunks = self._events.get((tenant, node_id), [])
        return [msgspec.structs.replace(chunk) for chunk in chunks if chunk.last > after]

    async def drop_events(self, tenant: str, node_id: str) -> None:
        """Forget the events of a response; see `Store.drop_events`."""
        self._require_open()
        self._events.pop((tenant, node_id), None)

    async def list_events(self) -> list[tuple[str, str, int]]:
        """Ended responses with events left; see `Store.list_events`."""
        self._require_open()
        found = []
        for tenant, node_id in self._events:
            record = self._find(tenant, node_id)
            if record is not None:
                at = record.created_at if record.completed_at is None else record.completed_at
                found.append((tenant, node_id, at))
        return sorted(found, key=lambda entry: (entry[2], entry[1]))

    async def check(self) -> None:
        """Nothing can be wrong with memory but its being closed; see `Store.check`."""
        self._require_open()

    async def close(self) -> None:
        """Take no more calls; a second call does nothing."""
        self._closed = True

    def _find(self, tenant: str, node_id: str) -> Record | None:
        """A record that was not deleted."""
        return None if (tenant, node_id) in self._deleted else self._records.get((tenant, node_id))

    def _drop_client_ids(self, record: Record, positions: set[int]) -> None:
        for item_id, position in record.client_ids:
            if position in positions:
                places = self._items[(record.tenant, item_id)]
                places.remove((record.id, position))
                if not places:
                    del self._items[(record.tenant, item_id)]
        record.client_ids = tuple(entry for entry in record.client_ids if entry[1] not in positions)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError("The store is closed.")


def _to_node(record: Record) -> Node:
    return Node(
        id=record.id,
        parent=record.parent,
        kind=record.kind,
        status=record.status,
        input=record.input,
        output=record.output,
    )
