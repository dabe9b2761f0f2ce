"""What a store does: record a round, load one, load a path, delete; conversations; jobs and their events.

It knows nothing of requests or models: a round is item bytes, settings bytes and a parent.
Invariant: what `record` returned for is durable (to a killed process) and whole, or it raised.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec

from antiphon.protocol.errors import StoreError
from antiphon.sessions import Node

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]


class UnknownParentError(StoreError):
    """The round that this one continues from is not there, or is there no longer."""


class MovedTipError(StoreError):
    """The conversation is not where it was: it was deleted, or something else was added to it."""


class StoreSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How a store on disk behaves.

    `durability`: "normal" survives a killed process, "full" also a power cut (one disk flush per batch).
    `queue_limit`: rounds waiting to be written; one more waits up to `queue_wait_s`, then fails.
    `batch_limit`: rounds in one transaction.
    `busy_timeout_s`: how long a write waits for another program that holds the database.
    `check_timeout_s`, `close_timeout_s`: how long `check` and `close` wait before they fail.
    `cache_kib`: page cache of each of the two connections.
    """

    durability: Literal["normal", "full"] = "normal"
    queue_limit: Count = 1024
    queue_wait_s: Seconds = 5.0
    batch_limit: Count = 256
    busy_timeout_s: Seconds = 5.0
    check_timeout_s: Seconds = 2.0
    close_timeout_s: Seconds = 10.0
    cache_kib: Count = 8192


class Record(Node, kw_only=True):
    """A whole round as it is stored.

    `instructions`, `tools` and `settings` are stored once per distinct content and tenant; `outcome` is
    the round's own (usage, error, details). `client_ids` are the item ids that the client gave, with
    their positions in the node (input first, then output); only those are indexed, for `find_item`, and
    `load` does not give them back (they stand in the items).
    """

    tenant: str
    created_at: int
    completed_at: int | None = None
    settings: bytes = b"{}"
    instructions: bytes | None = None
    tools: bytes | None = None
    outcome: bytes = b"{}"
    client_ids: tuple[tuple[str, int], ...] = ()


class Conversation(msgspec.Struct, kw_only=True):
    """A durable tip: `tip` is the newest node of the conversation, None while it is empty.

    `metadata` is a JSON object; it is stored like other contents, once by hash.
    """

    id: str
    tenant: str
    created_at: int
    metadata: bytes = b"{}"
    tip: str | None = None


class Job(msgspec.Struct, kw_only=True):
    """A background response that has not ended.

    `request` is what is needed to run it (JSON, secrets cut); `needs_secrets` says that something was cut, so
    that it cannot be run again; `snapshot` is the Response as it was when it was queued (JSON).
    """

    id: str
    tenant: str
    created_at: int
    status: Literal["queued", "in_progress"] = "queued"
    request: bytes
    snapshot: bytes
    needs_secrets: bool = False


class EventChunk(msgspec.Struct):
    """Some events of a stream, in order: those numbered `first` to `last`, in bytes that the store does not read."""

    first: int
    last: int
    body: bytes


class Store(Protocol):
    """The seam to durable storage. Every method raises `StoreError` when the storage fails."""

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        """Keep one round; returns only after it is committed.

        Raises `UnknownParentError` when the tenant has no such parent or it was deleted, `StoreError`
        when the tenant already has the id. A cancelled call may or may not have kept the round.
        A job with the round's id ends with it, in the same transaction; its events stay.
        With `conversation`, its tip moves to the round in the same transaction; raises `MovedTipError` unless
        the conversation is there and its tip is the round's parent (a deleted tip counts: its tombstone holds
        the place, so `record` accepts a deleted parent here).
        """
        ...

    async def load(self, tenant: str, node_id: str) -> Record | None:
        """One round, whole but for `client_ids`; None when the tenant has no such round or it was deleted."""
        ...

    async def load_path(self, tenant: str, node_id: str, *, skip_deleted: bool = False) -> list[Node] | None:
        """The nodes from the root to `node_id`, root first, in one query.

        None when the node or any node above it is unknown to the tenant or deleted; with `skip_deleted`, what
        was deleted is left out instead (an empty list when nothing is left), and only an unknown node is None.
        A blanked item stands as `null` in `input` or `output`, so that positions stay.
        """
        ...

    async def find_item(self, tenant: str, item_id: str) -> tuple[str, int] | None:
        """Where an item with a client-given id stands: (node id, position), the newest node first.

        None when no round of the tenant that still exists has recorded it in `client_ids`.
        """
        ...

    async def load_outcomes(self, tenant: str, node_ids: Collection[str]) -> dict[str, bytes]:
        """The outcomes of several nodes by id; those that are unknown to the tenant or deleted are left out."""
        ...

    async def find_deleted(self, tenant: str, node_ids: Collection[str]) -> set[str]:
        """Which of these nodes the tenant has deleted; an id that it never stored is not among them."""
        ...

    async def delete(self, tenant: str, node_id: str) -> bool:
        """Blank a round for good and leave a tombstone; False when there was nothing to delete.

        When it returns, the round's bytes are in no file of the store, those of its events neither. Rounds
        below it stay, but no path leads through it any more. A job that has not ended is no round: False.
        """
        ...

    async def blank_items(self, tenant: str, node_id: str, positions: Sequence[int]) -> bool:
        """Replace items of a node by `null` for good (positions: input first, then output); wipes like `delete`.

        False when the tenant has no such node or none of the positions holds an item. The node's events
        are dropped with them, for they tell the same words.
        """
        ...

    async def create_conversation(self, conversation: Conversation) -> None:
        """Keep a new conversation; its `tip` is None. Raises `StoreError` when the tenant already has the id."""
        ...

    async def load_conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        """A conversation; None when the tenant has none of that id or it was deleted."""
        ...

    async def update_conversation(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        """Replace the metadata; the old one is gone from the files unless something else uses it. False: no such."""
        ...

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete the tip and the metadata for good; the nodes stay. False when there was nothing to delete."""
        ...

    async def open_job(self, job: Job) -> None:
        """Keep a background response that is about to run.

        Raises `StoreError` when the tenant already has a job or a round (deleted or not) of that id.
        """
        ...

    async def start_job(self, tenant: str, job_id: str) -> None:
        """It runs: its status becomes `in_progress`; nothing happens when it has ended meanwhile."""
        ...

    async def load_job(self, tenant: str, job_id: str) -> Job | None:
        """A background response that has not ended; None when there is none of that id."""
        ...

    async def list_jobs(self) -> list[Job]:
        """Every background response that has not ended, of all tenants, oldest first (for the start of a server)."""
        ...

    async def append_events(self, tenant: str, node_id: str, chunk: EventChunk) -> None:
        """Keep some events of a background response, behind those that are kept already.

        Raises `StoreError` when the tenant has neither a job nor a round of that id, and when the chunk does
        not begin above the last event that is kept.
        """
        ...

    async def load_events(self, tenant: str, node_id: str, *, after: int = -1) -> list[EventChunk]:
        """The chunks that hold events numbered above `after`, in order; empty when there are none."""
        ...

    async def drop_events(self, tenant: str, node_id: str) -> None:
        """Forget the events of one background response; the response itself stays. Wipes like `delete`."""
        ...

    async def list_events(self) -> list[tuple[str, str, int]]:
        """(tenant, node id, when it was completed or created) of every ended response with events left."""
        ...

    async def check(self) -> None:
        """Raise `StoreError` unless the store can be read and written (for `/ready`)."""
        ...

    async def close(self) -> None:
        """Finish what is queued, then let go of the files."""
        ...
