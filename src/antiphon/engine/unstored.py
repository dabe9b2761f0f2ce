"""The responses of one connection that are in no store: the latest of each lane can be continued there.

It knows the store below, whose rounds such a response may continue, and no transport. Invariant: what is held here
is in no file, is found on its own connection alone, and is gone with it.
"""

from collections import OrderedDict
from dataclasses import dataclass

from antiphon.engine.windows import Window, WindowCache, detach
from antiphon.sessions import CONTINUABLE, Node
from antiphon.store import Job, Record, Store

#: What a held round costs beside the bytes of its items.
ROUND_OVERHEAD_BYTES = 4_000


@dataclass(slots=True, eq=False)
class HeldRound:
    """One response that was not stored, with the round that it continues, if that was not stored either."""

    record: Record
    parent: "HeldRound | None"
    #: The bytes of the items of the whole chain of held rounds; its window comes on top.
    size: int
    window: Window | None = None
    since_deletion: int = 0


class UnstoredMemory:
    """What all connections hold together; over the limit the lanes that were used least recently lose theirs."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._sizes: OrderedDict[tuple[UnstoredRounds, str | None], int] = OrderedDict()
        self.size_bytes = 0

    def note(self, rounds: "UnstoredRounds", lane: str | None, size: int) -> None:
        """A lane holds so much now; 0: nothing."""
        key = (rounds, lane)
        self.size_bytes += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size
        while self.size_bytes > self._limit_bytes and self._sizes:
            owner, name = next(iter(self._sizes))
            owner.forget(name)


class UnstoredRounds:
    """The held rounds of one connection of one tenant."""

    def __init__(self, tenant: str, store: Store, cache: WindowCache, memory: UnstoredMemory) -> None:
        self.tenant = tenant
        self.store = store
        self.cache = cache
        self._memory = memory
        self._tips: dict[str | None, HeldRound] = {}

    def hold(self, lane: str | None, held: HeldRound) -> None:
        """A response is the latest of its lane."""
        self._tips[lane] = held
        self.note_size(lane, held)

    def note_size(self, lane: str | None, held: HeldRound) -> None:
        """What a lane holds has grown."""
        if self._tips.get(lane) is held:
            transcript = held.window.strand.size if held.window is not None else 0
            self._memory.note(self, lane, held.size + transcript)

    def forget(self, lane: str | None) -> None:
        """A lane's latest response cannot be continued any more."""
        if self._tips.pop(lane, None) is not None:
            self._memory.note(self, lane, 0)

    def close(self) -> None:
        """The connection is gone, and all of them with it."""
        for lane in list(self._tips):
            self.forget(lane)

    def find_tip(self, node_id: str | None, lane: str | None) -> HeldRound | None:
        """The response of that id, if it is the latest of a lane; of this one, where it is that of several."""
        for name in (lane, *self._tips):
            tip = self._tips.get(name)
            if tip is not None and tip.record.id == node_id:
                return tip
        return None

    def stands_in(self, node_id: str, lane: str | None) -> bool:
        """Whether a response is the latest of this lane."""
        tip = self._tips.get(lane)
        return tip is not None and tip.record.id == node_id

    def find(self, node_id: str) -> HeldRound | None:
        """A held round, wherever it stands on the paths of the latest ones."""
        for tip in self._tips.values():
            held: HeldRound | None = tip
            while held is not None:
                if held.record.id == node_id:
                    return held
                held = held.parent
        return None

    def list_held(self) -> list[HeldRound]:
        """Every held round, those of a path newest first."""
        found: dict[str, HeldRound] = {}
        for tip in self._tips.values():
            held: HeldRound | None = tip
            while held is not None and held.record.id not in found:
                found[held.record.id] = held
                held = held.parent
        return list(found.values())


class LaneRounds:
    """The rounds and windows that a response sees that is not stored: `RoundStore` and `Windows` for one lane."""

    def __init__(self, rounds: UnstoredRounds, lane: str | None, parent: HeldRound | None) -> None:
        self._rounds = rounds
        self._lane = lane
        #: Held on to: another lane may move on meanwhile.
        self._parent = parent
        self._made: HeldRound | None = None

    # RoundStore

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        """Hold a response that has ended well; the others are no parents, so nothing is kept of them."""
        if record.status not in CONTINUABLE:
            return
        above = self._parent.size if self._parent is not None else 0
        size = len(record.input) + len(record.output) + ROUND_OVERHEAD_BYTES
        self._made = HeldRound(record, self._parent, above + size)
        self._rounds.hold(self._lane, self._made)

    async def load(self, tenant: str, node_id: str) -> Record | None:
        """A round from here or from the store."""
        held = self._find(tenant, node_id)
        return held.record if held is not None else await self._rounds.store.load(tenant, node_id)

    async def load_path(self, tenant: str, node_id: str, *, skip_deleted: bool = False) -> list[Node] | None:
        """The stored path that the held rounds continue, then those."""
        held = self._find(tenant, node_id)
        if held is None:
            return await self._rounds.store.load_path(tenant, node_id, skip_deleted=skip_deleted)
        nodes: list[Node] = []
        base: str | None = None
        while held is not None:
            nodes.append(held.record)
            base, held = held.record.parent, held.parent
        nodes.reverse()
        if base is None:
            return nodes
        path = await self._rounds.store.load_path(tenant, base, skip_deleted=skip_deleted)
        return None if path is None else [*path, *nodes]

    async def load_job(self, tenant: str, job_id: str) -> Job | None:
        """A background response; those are always stored."""
        return await self._rounds.store.load_job(tenant, job_id)

    async def find_item(self, tenant: str, item_id: str) -> tuple[str, int] | None:
        """An item by its id, first in what is held."""
        if tenant == self._rounds.tenant:
            for held in self._rounds.list_held():
                for given, position in held.record.client_ids:
                    if given == item_id:
                        return held.record.id, position
        return await self._rounds.store.find_item(tenant, item_id)

    def _find(self, tenant: str, node_id: str) -> HeldRound | None:
        if tenant != self._rounds.tenant:
            return None
        if self._parent is not None and self._parent.record.id == node_id:
            return self._parent
        return self._rounds.find(node_id)

    # Windows

    @property
    def deletion_count(self) -> int:
        """As the cache counts."""
        return self._rounds.cache.deletion_count

    def get(self, tenant: str, node_id: str, key: str) -> Window | None:
        """The window at a round; a stored one's as a copy, so that the cache holds nothing that is not stored."""
        held = self._find(tenant, node_id)
        if held is None:
            window = self._rounds.cache.get(tenant, node_id, key)
            return detach(window) if window is not None else None
        if held.window is None or held.window.strand.key != key:
            return None
        return None if self._rounds.cache.is_stale(held.window, held.since_deletion) else held.window

    def put(self, tenant: str, node_id: str, window: Window, *, since_deletion: int) -> None:
        """Keep the window of a held round with it; those of stored ones were made for this response alone."""
        held = self._made if self._made is not None and self._made.record.id == node_id else None
        held = held or self._find(tenant, node_id)
        if held is not None:
            held.window, held.since_deletion = window, since_deletion
            self._rounds.note_size(self._lane, held)
