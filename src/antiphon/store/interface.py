"""What a store does: record a round, load one, load a path, delete, close.

It knows nothing of requests or models: a round is item bytes, settings bytes and a parent.
Invariant: what `record` returned for is durable (to a killed process) and whole, or it raised.
"""

from typing import Annotated, Literal, Protocol, TypeAlias

import msgspec

from antiphon.protocol.errors import StoreError
from antiphon.sessions import Node

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]


class UnknownParentError(StoreError):
    """The round that this one continues from is not there, or is there no longer."""


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


class Store(Protocol):
    """The seam to durable storage. Every method raises `StoreError` when the storage fails."""

    async def record(self, record: Record) -> None:
        """Keep one round; returns only after it is committed.

        Raises `UnknownParentError` when the tenant has no such parent or it was deleted, `StoreError`
        when the tenant already has the id. A cancelled call may or may not have kept the round.
        """
        ...

    async def load(self, tenant: str, node_id: str) -> Record | None:
        """One round, whole but for `client_ids`; None when the tenant has no such round or it was deleted."""
        ...

    async def load_path(self, tenant: str, node_id: str) -> list[Node] | None:
        """The nodes from the root to `node_id`, root first, in one query.

        None when the node or any node above it is unknown to the tenant or deleted.
        """
        ...

    async def find_item(self, tenant: str, item_id: str) -> tuple[str, int] | None:
        """Where an item with a client-given id stands: (node id, position), the newest node first.

        None when no round of the tenant that still exists has recorded it in `client_ids`.
        """
        ...

    async def delete(self, tenant: str, node_id: str) -> bool:
        """Blank a round for good and leave a tombstone; False when there was nothing to delete.

        When it returns, the round's bytes are in no file of the store. Rounds below it stay, but no path
        leads through it any more.
        """
        ...

    async def check(self) -> None:
        """Raise `StoreError` unless the store can be read and written (for `/ready`)."""
        ...

    async def close(self) -> None:
        """Finish what is queued, then let go of the files."""
        ...
