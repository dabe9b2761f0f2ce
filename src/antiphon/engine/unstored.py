"""The responses of one connection that are in no store: the latest of each lane can be continued there.

It knows the store below, whose rounds such a response may continue, and no transport. Invariants: what is held here
is in no file, is found on its own connection alone, and is gone with it; a round is counted and found exactly while
it stands on the path of a lane's latest response.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from antiphon.engine.settings import StoredOutcome, decode_outcome
from antiphon.engine.windows import Strand, Window, WindowCache, detach
from antiphon.sessions import CONTINUABLE, Node
from antiphon.store import Job, Record, Store

#: What a held round costs beside its bytes.
ROUND_OVERHEAD_BYTES = 4_000
#: What an id in the index of items costs beside its characters.
INDEX_OVERHEAD_BYTES = 300


@dataclass(slots=True, eq=False)
class HeldRound:
    """One response that was not stored, with the round that it continues, if that was not stored either.

    Only one that is the latest of a lane has a window and all of its record; of those above them, items and marks are
    kept.
    """

    record: Record
    parent: "HeldRound | None"
    window: Window | None = None
    since_deletion: int = 0
    #: The lanes whose latest response it is, and the held rounds that continue it.
    tips: int = 0
    children: int = 0
    #: What it is counted as, without the window; 0 while it is not held.
    size: int = 0
    #: What those above it are counted as, once only their items and marks are kept.
    above_size: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.above_size = self.parent.above_size + _measure(_keep_path(self.parent.record))


class UnstoredMemory:
    """What all connections hold together; over the limit the lanes that were used least recently lose theirs."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._lanes: OrderedDict[tuple[UnstoredRounds, str | None], None] = OrderedDict()
        self.size_bytes = 0

    def use(self, rounds: "UnstoredRounds", lane: str | None) -> None:
        """A lane has a latest response, and has just used it."""
        self._lanes[rounds, lane] = None
        self._lanes.move_to_end((rounds, lane))

    def drop(self, rounds: "UnstoredRounds", lane: str | None) -> None:
        """A lane has none any more."""
        self._lanes.pop((rounds, lane), None)

    def make_room(self) -> None:
        """Bring everything below the limit. Each turn takes one lane out, so it ends."""
        while self.size_bytes > self.limit_bytes and self._lanes:
            (rounds, lane), _ = self._lanes.popitem(last=False)
            rounds.let_go(lane)


class UnstoredRounds:
    """The held rounds of one connection of one tenant."""

    def __init__(self, tenant: str, store: Store, cache: WindowCache, memory: UnstoredMemory) -> None:
        self.tenant = tenant
        self.store = store
        self.cache = cache
        self._memory = memory
        self._tips: dict[str | None, HeldRound] = {}
        self._by_id: dict[str, HeldRound] = {}
        #: The ids that clients gave to items: where each stands, the newest round last.
        self._by_item: dict[str, dict[str, int]] = {}
        #: The windows of each strand, and what the strand was last counted as.
        self._strands: dict[Strand, tuple[int, int]] = {}

    def hold(self, lane: str | None, held: HeldRound) -> None:
        """A response is the latest of its lane; one that is larger than all memory is not held."""
        if held.above_size + _measure(held.record) > self._memory.limit_bytes:
            self.forget(lane)
            return
        held.tips += 1
        self._take_in(held)
        self.let_go(lane)
        self._tips[lane] = held
        self._memory.use(self, lane)
        self._memory.make_room()

    def keep_window(self, held: HeldRound, window: Window, since_deletion: int) -> None:
        """Keep the window of a lane's latest response with it, unless it alone is larger than all memory."""
        self._drop_window(held)
        if not held.tips or held.above_size + held.size + window.strand.size > self._memory.limit_bytes:
            return
        held.window, held.since_deletion = window, since_deletion
        uses, counted = self._strands.get(window.strand, (0, 0))
        self._strands[window.strand] = uses + 1, window.strand.size
        self._memory.size_bytes += window.strand.size - counted
        self._memory.make_room()

    def forget(self, lane: str | None) -> None:
        """A lane's latest response cannot be continued any more."""
        self._memory.drop(self, lane)
        self.let_go(lane)

    def let_go(self, lane: str | None) -> None:
        """The same, for a lane that is not in the memory's list, or stays there."""
        tip = self._tips.pop(lane, None)
        if tip is None:
            return
        tip.tips -= 1
        if not tip.tips:
            self._drop_window(tip)
            if tip.children:
                tip.record = _keep_path(tip.record)
                self._count(tip)
        self._release(tip)

    def close(self) -> None:
        """The connection is gone, and all of them with it."""
        for lane in list(self._tips):
            self.forget(lane)

    def find_tip(self, node_id: str | None) -> HeldRound | None:
        """The response of that id, if it is the latest of a lane."""
        held = self._by_id.get(node_id) if node_id is not None else None
        return held if held is not None and held.tips else None

    def stands_in(self, node_id: str, lane: str | None) -> bool:
        """Whether a response is the latest of this lane."""
        tip = self._tips.get(lane)
        return tip is not None and tip.record.id == node_id

    def find(self, node_id: str) -> HeldRound | None:
        """A held round, wherever it stands on the paths of the latest ones."""
        return self._by_id.get(node_id)

    def find_item(self, item_id: str) -> tuple[str, int] | None:
        """Where an item with a client-given id stands, in the newest round that has one."""
        places = self._by_item.get(item_id)
        return next(reversed(places.items())) if places else None

    def _take_in(self, held: HeldRound) -> None:
        """Count a round, and those above it that were let go while its answer was made."""
        taken: HeldRound | None = held
        while taken is not None and not taken.size:
            self._count(taken)
            self._by_id[taken.record.id] = taken
            for item_id, position in taken.record.client_ids:
                self._by_item.setdefault(item_id, {})[taken.record.id] = position
            taken = taken.parent
            if taken is not None:
                taken.children += 1
                if not taken.tips:
                    taken.record = _keep_path(taken.record)

    def _release(self, held: HeldRound | None) -> None:
        """Let go of a round that no path needs, then of those above it that none needs then."""
        while held is not None and held.size and not held.tips and not held.children:
            self._memory.size_bytes -= held.size
            held.size = 0
            del self._by_id[held.record.id]
            for item_id in {item_id for item_id, _ in held.record.client_ids}:
                places = self._by_item[item_id]
                del places[held.record.id]
                if not places:
                    del self._by_item[item_id]
            held = held.parent
            if held is not None:
                held.children -= 1

    def _count(self, held: HeldRound) -> None:
        size = _measure(held.record)
        self._memory.size_bytes += size - held.size
        held.size = size

    def _drop_window(self, held: HeldRound) -> None:
        if held.window is None:
            return
        strand, held.window = held.window.strand, None
        uses, counted = self._strands.pop(strand)
        if uses > 1:
            self._strands[strand] = uses - 1, counted
        else:
            self._memory.size_bytes -= counted


def _keep_path(record: Record) -> Record:
    """What a round needs that is not continued itself any more: its items, and the marks on those of its path."""
    kept = StoredOutcome(marks=decode_outcome(record.outcome).marks)
    return msgspec.structs.replace(
        record, instructions=None, tools=None, settings=b"{}", outcome=msgspec.json.encode(kept)
    )


def _measure(record: Record) -> int:
    contents = (record.input, record.output, record.settings, record.outcome)
    shared = len(record.instructions or b"") + len(record.tools or b"")
    index = sum(INDEX_OVERHEAD_BYTES + len(item_id) for item_id, _ in record.client_ids)
    return ROUND_OVERHEAD_BYTES + sum(map(len, contents)) + shared + index


class LaneRounds:
    """The rounds and windows that a response sees that is not stored: `RoundStore` and `Windows` for one lane."""

    def __init__(self, rounds: UnstoredRounds, lane: str | None, parent: HeldRound | None) -> None:
        self._rounds = rounds
        self._lane = lane
        #: Held on to, whole: another lane may move on meanwhile.
        self._parent = parent
        self._parent_record = parent.record if parent is not None else None
        self._parent_window = (parent.window, parent.since_deletion) if parent is not None else (None, 0)
        self._made: HeldRound | None = None

    # RoundStore

    async def record(self, record: Record, *, conversation: str | None = None) -> None:
        """Hold a response that has ended well; the others are no parents, so nothing is kept of them."""
        if record.status not in CONTINUABLE:
            return
        self._made = HeldRound(record, self._parent)
        self._rounds.hold(self._lane, self._made)

    async def load(self, tenant: str, node_id: str) -> Record | None:
        """A round from here or from the store; of one that was continued already, the items."""
        return self._find_record(tenant, node_id) or await self._rounds.store.load(tenant, node_id)

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

    async def load_outcomes(self, tenant: str, node_ids: Collection[str]) -> dict[str, bytes]:
        """The outcomes of several rounds, of what is held first; of one that was continued, its marks alone."""
        found: dict[str, bytes] = {}
        for node_id in node_ids:
            record = self._find_record(tenant, node_id)
            if record is not None:
                found[node_id] = record.outcome
        if len(found) < len(node_ids) and tenant == self._rounds.tenant:
            found |= self._list_let_go({*node_ids} - found.keys())
        missing = [node_id for node_id in node_ids if node_id not in found]
        return found | (await self._rounds.store.load_outcomes(tenant, missing) if missing else {})

    async def find_deleted(self, tenant: str, node_ids: Collection[str]) -> set[str]:
        """Which of these were deleted from the store; what is held here cannot be."""
        return await self._rounds.store.find_deleted(tenant, node_ids)

    async def load_job(self, tenant: str, job_id: str) -> Job | None:
        """A background response; those are always stored."""
        return await self._rounds.store.load_job(tenant, job_id)

    async def find_item(self, tenant: str, item_id: str) -> tuple[str, int] | None:
        """An item by its id, first in what is held."""
        place = self._rounds.find_item(item_id) if tenant == self._rounds.tenant else None
        return place or await self._rounds.store.find_item(tenant, item_id)

    def _list_let_go(self, node_ids: Collection[str]) -> dict[str, bytes]:
        """The outcomes of those on the path to the parent, which others may have let go of meanwhile."""
        found: dict[str, bytes] = {}
        held = self._parent
        while held is not None:
            if held.record.id in node_ids:
                found[held.record.id] = held.record.outcome
            held = held.parent
        return found

    def _find_record(self, tenant: str, node_id: str) -> Record | None:
        held = self._find(tenant, node_id)
        if held is None:
            return None
        return self._parent_record if held is self._parent else held.record

    def holds(self, node_id: str) -> bool:
        """Whether a round of a path is held here, and not stored."""
        return self._find(self._rounds.tenant, node_id) is not None

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
        window, since = (held.window, held.since_deletion)
        if window is None and held is self._parent:
            window, since = self._parent_window
        if window is None or window.strand.key != key or self._rounds.cache.is_stale(window, since):
            return None
        return window

    def put(self, tenant: str, node_id: str, window: Window, *, since_deletion: int) -> None:
        """Keep the window of a held round with it; those of stored ones were made for this response alone."""
        held = self._made if self._made is not None and self._made.record.id == node_id else None
        held = held or self._find(tenant, node_id)
        if held is not None:
            self._rounds.keep_window(held, window, since_deletion)
