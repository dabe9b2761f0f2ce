"""Rounds in memory: the fake that ships with the seam, for tests and for trying things out.

It keeps the store's contract except that nothing outlives the process.
"""

import msgspec

from antiphon.protocol.errors import StoreError
from antiphon.sessions import Node
from antiphon.store.interface import Record, UnknownParentError


class MemoryStore:
    """A store without files."""

    def __init__(self) -> None:
        # A tombstone is a None: the node was there, and nothing of it is left.
        self._records: dict[tuple[str, str], Record | None] = {}
        self._items: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self._closed = False

    async def record(self, record: Record) -> None:
        """Keep one round; see `Store.record`."""
        self._require_open()
        key = (record.tenant, record.id)
        if record.parent is not None and self._records.get((record.tenant, record.parent)) is None:
            raise UnknownParentError
        if key in self._records:
            raise StoreError("A round with this id is stored already.")
        ids = tuple(sorted(set(record.client_ids), key=lambda entry: (entry[1], entry[0])))
        self._records[key] = msgspec.structs.replace(record, client_ids=ids)
        for item_id, position in ids:
            self._items.setdefault((record.tenant, item_id), []).append((record.id, position))

    async def load(self, tenant: str, node_id: str) -> Record | None:
        """One round, whole; see `Store.load`."""
        self._require_open()
        record = self._records.get((tenant, node_id))
        return None if record is None else msgspec.structs.replace(record, client_ids=())

    async def load_path(self, tenant: str, node_id: str) -> list[Node] | None:
        """The nodes from the root to `node_id`; see `Store.load_path`."""
        self._require_open()
        nodes: list[Node] = []
        at: str | None = node_id
        while at is not None:
            record = self._records.get((tenant, at))
            if record is None:
                return None
            nodes.append(_to_node(record))
            at = record.parent
        return nodes[::-1]

    async def find_item(self, tenant: str, item_id: str) -> tuple[str, int] | None:
        """Where a client-given item id stands; see `Store.find_item`."""
        self._require_open()
        places = self._items.get((tenant, item_id))
        return places[-1] if places else None

    async def delete(self, tenant: str, node_id: str) -> bool:
        """Forget a round's content and keep a tombstone; see `Store.delete`."""
        self._require_open()
        record = self._records.get((tenant, node_id))
        if record is None:
            return False
        self._records[(tenant, node_id)] = None
        for item_id, position in record.client_ids:
            places = self._items[(tenant, item_id)]
            places.remove((node_id, position))
            if not places:
                del self._items[(tenant, item_id)]
        return True

    async def check(self) -> None:
        """Nothing can be wrong with memory but its being closed; see `Store.check`."""
        self._require_open()

    async def close(self) -> None:
        """Take no more calls; a second call does nothing."""
        self._closed = True

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
