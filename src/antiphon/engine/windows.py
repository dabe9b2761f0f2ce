"""Windows in memory: the transcript bytes of paths, shared along each chain and bounded.

A strand is one path's pieces in order, one or two a node; a window is a strand up to some node. The next
round of a chain appends to its strand; a branch starts a new strand with the same pieces. It reads no items
and knows no stores. Invariant: a strand through a deleted node is never used again.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: What an entry costs beside its bytes: objects, dictionary slots, ids.
ENTRY_OVERHEAD_BYTES = 1_000
#: A window made before this many deletions is not kept, for nobody remembers whether they touch its path.
DELETIONS_REMEMBERED = 10_000


@dataclass(slots=True, eq=False)
class Strand:
    """The growing part of a path. Positions are node counts, so that a window sees its own part alone."""

    key: str
    pieces: list[bytes] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    #: Nodes of other paths that something in it was made from: the parts of their ids behind the prefix.
    sources: frozenset[str] = frozenset()
    calls: dict[str, int] = field(default_factory=dict)
    item_ids: dict[str, int] = field(default_factory=dict)
    #: The first node with an image in it; None while there is none.
    first_image: int | None = None
    #: What of the history the model is not shown as it was, in words, with the node that it concerns.
    notes: dict[str, int] = field(default_factory=dict)
    #: Items that later rounds need as such (tools that were brought, approvals), with their node's position.
    remembered: list[tuple[int, Any]] = field(default_factory=list)
    #: The calls that may be answered late, or twice.
    async_calls: dict[str, int] = field(default_factory=dict)
    entries: list[tuple[str, str]] = field(default_factory=list)
    size: int = 0
    dead: bool = False


@dataclass(slots=True, frozen=True)
class Window:
    """What the model saw and said up to one node."""

    strand: Strand
    depth: int = 0
    piece_count: int = 0
    lead: str = ""
    #: The calls that wait for their output, id -> function name, in their order.
    open_calls: Mapping[str, str] = field(default_factory=dict)
    #: The item types of those that are no function calls.
    call_types: Mapping[str, str] = field(default_factory=dict)
    #: The requests whose approvals were added without a response, which therefore nothing came of yet.
    waiting_approvals: tuple[str, ...] = ()
    #: Items at the start that no model was asked with yet: they are transcribed with the items that follow,
    #: as if all had come in one request.
    unasked: tuple[Any, ...] = ()
    #: The backend's count of the last prompt, and what it was made with, to notice a truncation upstream.
    prompt_tokens: int | None = None
    prompt_made_with: bytes = b""
    #: Whether it began anew at a compaction.
    is_compacted: bool = False

    @property
    def is_at_start(self) -> bool:
        """Whether nothing of the path was transcribed yet."""
        return self.piece_count == 0 and not self.lead

    @property
    def pieces(self) -> list[bytes]:
        """The transcript so far, as a list of its own: the strand's grows when another round continues here."""
        return self.strand.pieces[: self.piece_count]

    def has_call(self, call_id: str) -> bool:
        """Whether the path up to here holds the call."""
        return self.strand.calls.get(call_id, self.depth) < self.depth

    @property
    def has_images(self) -> bool:
        """Whether the path up to here holds an image."""
        first = self.strand.first_image
        return first is not None and first < self.depth

    @property
    def notes(self) -> list[str]:
        """What of the path up to here is not shown to the model as it was."""
        return [note for note, at in self.strand.notes.items() if at < self.depth]

    @property
    def remembered(self) -> list[Any]:
        """The items of the path up to here that later rounds need as items, oldest first."""
        return [item for at, item in self.strand.remembered if at < self.depth]

    @property
    def async_calls(self) -> frozenset[str]:
        """The calls of the path up to here that may be answered late, or twice."""
        return frozenset(call for call, at in self.strand.async_calls.items() if at < self.depth)

    def has_item(self, item_id: str) -> bool:
        """Whether the path up to here holds the item: by the client's id, or by the node in our own ids."""
        if self.strand.item_ids.get(item_id, self.depth) < self.depth:
            return True
        _, _, rest = item_id.partition("_")
        return self.strand.nodes.get(rest[:-4], self.depth) < self.depth


@dataclass(slots=True, frozen=True)
class Step:
    """What one node adds to a window. `node_id` is the part behind the prefix."""

    node_id: str
    pieces: tuple[bytes, ...]
    lead: str = ""
    calls: tuple[str, ...] = ()
    item_ids: tuple[str, ...] = ()
    open_calls: Mapping[str, str] = field(default_factory=dict)
    call_types: Mapping[str, str] = field(default_factory=dict)
    has_images: bool = False
    notes: tuple[str, ...] = ()
    remembered: tuple[Any, ...] = ()
    waiting_approvals: tuple[str, ...] = ()
    async_calls: tuple[str, ...] = ()
    unasked: tuple[Any, ...] = ()
    prompt_tokens: int | None = None
    prompt_made_with: bytes = b""


def start_window(key: str) -> Window:
    """The empty window of a new path; `key` names how its bytes are made (backend and profile)."""
    return Window(strand=Strand(key=key))


def extend(window: Window, step: Step) -> Window:
    """The window one node further: appended in place at the strand's end, else on a strand of its own."""
    strand = window.strand
    if strand.dead or len(strand.nodes) != window.depth or len(strand.pieces) != window.piece_count:
        strand = _branch(window)
    position = window.depth
    strand.pieces.extend(step.pieces)
    strand.nodes[step.node_id] = position
    for call_id in step.calls:
        strand.calls[call_id] = position
    for item_id in step.item_ids:
        strand.item_ids[item_id] = position
    for note in step.notes:
        strand.notes.setdefault(note, position)
    for item in step.remembered:
        if window.is_compacted and window.is_at_start and _has_item(strand, item):
            # A path that begins anew says again what it holds.
            continue
        strand.remembered.append((position, item))
        strand.size += len(item.raw)
    for call_id in step.async_calls:
        strand.async_calls[call_id] = position
    if step.has_images and strand.first_image is None:
        strand.first_image = position
    strand.size += ENTRY_OVERHEAD_BYTES + sum(len(piece) for piece in step.pieces)
    # Those that waited already are counted.
    strand.size += sum(len(item.raw) for item in step.unasked[len(window.unasked) :])
    return replace(
        window,
        strand=strand,
        depth=position + 1,
        piece_count=len(strand.pieces),
        lead=step.lead if window.is_at_start else window.lead,
        unasked=step.unasked,
        open_calls=step.open_calls,
        call_types=step.call_types,
        waiting_approvals=step.waiting_approvals,
        prompt_tokens=step.prompt_tokens,
        prompt_made_with=step.prompt_made_with,
    )


def _has_item(strand: Strand, item: Any) -> bool:
    return any(known.raw == item.raw for _, known in strand.remembered)


def restart(window: Window, sources: Iterable[str] = ()) -> Window:
    """The same path on a strand without a word of it: what is shown of it from here on comes with the next step.

    `sources`: the ids of the nodes that this was made from, on whatever path: with one of them it is gone.

    Its nodes, ids and calls are still known, and so are the tools that it brought; a step that says them again must
    leave them out (`Window.remembered`).
    """
    strand = _branch(window)
    strand.sources |= {node_id.partition("_")[2] for node_id in sources}
    strand.size -= sum(map(len, strand.pieces))
    strand.pieces = []
    strand.notes = {}
    strand.first_image = None
    # Settings that a path has changed do not outlive it; tools and approvals do.
    dropped = [item for _, item in strand.remembered if item.type == "configuration_update"]
    strand.remembered = [each for each in strand.remembered if each[1].type != "configuration_update"]
    strand.size -= sum(len(item.raw) for item in dropped)
    return Window(
        strand=strand, depth=window.depth, waiting_approvals=window.waiting_approvals, is_compacted=True
    )


def detach(window: Window) -> Window:
    """The same window on a strand of its own: what is added to it stays out of the cache."""
    return replace(window, strand=_branch(window))


def _branch(window: Window) -> Strand:
    old = window.strand
    pieces = old.pieces[: window.piece_count]
    return Strand(
        key=old.key,
        pieces=pieces,
        nodes={node: at for node, at in old.nodes.items() if at < window.depth},
        sources=old.sources,
        calls={call: at for call, at in old.calls.items() if at < window.depth},
        item_ids={item: at for item, at in old.item_ids.items() if at < window.depth},
        notes={note: at for note, at in old.notes.items() if at < window.depth},
        first_image=old.first_image if window.has_images else None,
        remembered=[(at, item) for at, item in old.remembered if at < window.depth],
        async_calls={call: at for call, at in old.async_calls.items() if at < window.depth},
        size=ENTRY_OVERHEAD_BYTES * window.depth
        + sum(map(len, pieces))
        + sum(len(item.raw) for at, item in old.remembered if at < window.depth),
        # A window whose path was deleted while its answer was made must not come back to life.
        dead=old.dead,
    )


class WindowCache:
    """Windows by tenant, node and key; whole strands leave, the least recently used first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._windows: dict[tuple[str, str], Window] = {}
        self._strands: OrderedDict[int, Strand] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self.size_bytes = 0
        #: Grows with every deletion; note it when a window is taken, and give it back with `put`.
        self.deletion_count = 0
        self._deletions: deque[str] = deque(maxlen=DELETIONS_REMEMBERED)

    def get(self, tenant: str, node_id: str, key: str) -> Window | None:
        """The window at a node, if its bytes were made the way that `key` names."""
        window = self._windows.get((tenant, node_id))
        if window is None or window.strand.key != key:
            return None
        self._strands.move_to_end(id(window.strand))
        return window

    def put(self, tenant: str, node_id: str, window: Window, *, since_deletion: int) -> None:
        """Keep a window, unless a node of its path was deleted since `deletion_count` was noted."""
        strand = window.strand
        if self.is_stale(window, since_deletion):
            return
        entry = (tenant, node_id)
        self._windows[entry] = window
        strand.entries.append(entry)
        name = id(strand)
        self.size_bytes += strand.size - self._sizes.get(name, 0)
        self._sizes[name] = strand.size
        self._strands[name] = strand
        self._strands.move_to_end(name)
        while self.size_bytes > self._limit_bytes and self._strands:
            self._drop(next(iter(self._strands.values())))

    def forget_node(self, node_id: str) -> None:
        """A node was deleted: no window through it is used again."""
        _, _, rest = node_id.partition("_")
        for strand in [each for each in self._strands.values() if rest in each.nodes or rest in each.sources]:
            self._drop(strand)
            strand.dead = True
        self._deletions.append(rest)
        self.deletion_count += 1

    def is_stale(self, window: Window, since_deletion: int) -> bool:
        """Whether a node of a window's path was deleted since `deletion_count` was noted."""
        return window.strand.dead or self._was_deleted(window.strand, since_deletion)

    def _was_deleted(self, strand: Strand, since: int) -> bool:
        missed = self.deletion_count - since
        if missed > len(self._deletions):
            return True
        gone = (self._deletions[-1 - back] for back in range(missed))
        return any(node in strand.nodes or node in strand.sources for node in gone)

    def _drop(self, strand: Strand) -> None:
        name = id(strand)
        self._strands.pop(name, None)
        self.size_bytes -= self._sizes.pop(name, 0)
        for entry in strand.entries:
            window = self._windows.get(entry)
            if window is not None and window.strand is strand:
                del self._windows[entry]
        strand.entries.clear()
