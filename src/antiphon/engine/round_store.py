"""Where a round's path is read and its end is kept: the store, or what one connection holds in memory.

It knows neither. Invariant: what `Store` and `WindowCache` promise of these methods holds for every one of them.
"""

from collections.abc import Collection
from typing import Protocol

from antiphon.engine.windows import Window
from antiphon.sessions import Node
from antiphon.store import Job, Record


class RoundStore(Protocol):
    """The part of a store that a single round needs; see `Store`."""

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        """Keep a round that has ended."""
        ...

    async def load(self, tenant: str, node_id: str) -> Record | None:
        """One round."""
        ...

    async def load_path(self, tenant: str, node_id: str, *, skip_deleted: bool = False) -> list[Node] | None:
        """The nodes from the root to one of them."""
        ...

    async def load_outcomes(self, tenant: str, node_ids: Collection[str]) -> dict[str, bytes]:
        """The outcomes of several nodes by id."""
        ...

    async def find_deleted(self, tenant: str, node_ids: Collection[str]) -> set[str]:
        """Which of these nodes were deleted."""
        ...

    async def load_job(self, tenant: str, job_id: str) -> Job | None:
        """A background response that has not ended."""
        ...

    async def find_item(self, tenant: str, item_id: str) -> tuple[str, int] | None:
        """Where an item with a client-given id stands."""
        ...


class Windows(Protocol):
    """The windows of rounds that can be continued; see `WindowCache`."""

    @property
    def deletion_count(self) -> int:
        """Grows with every deletion."""
        ...

    def get(self, tenant: str, node_id: str, key: str) -> Window | None:
        """The window at a node, if its bytes were made the way that `key` names."""
        ...

    def put(self, tenant: str, node_id: str, window: Window, *, since_deletion: int) -> None:
        """Keep a window."""
        ...
