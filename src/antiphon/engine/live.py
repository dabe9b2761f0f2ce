"""A background response that has not ended: what is known of it, and every event so far.

It knows the store and the round, not who runs it. Invariant: what a reader was given is stored already, so
that a resumed stream has no gap.
"""

import asyncio
from typing import Literal

import msgspec

from antiphon.engine.conversations import Hold
from antiphon.engine.jobs import StoredJob, encode_events, show_waiting
from antiphon.engine.round import Round
from antiphon.engine.sink import EncodedEvent
from antiphon.protocol.errors import AntiphonError, StoreError
from antiphon.protocol.events import ResponseQueued, encode_event
from antiphon.protocol.lifecycle import TERMINAL_EVENTS
from antiphon.protocol.responses import Response
from antiphon.sessions import Node
from antiphon.store import EventChunk, Job, Store

#: When a response is stopped, each step of that is given this long.
STOP_TIMEOUT_S = 5.0
#: Deltas are stored in chunks of about this size.
CHUNK_BYTES = 1800


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier server queued, until a worker lays out its round."""

    job: Job
    stored: StoredJob
    hold: Hold | None = None


class LiveResponse:
    """Made by `Background`; `round` is None while it is `waiting`."""

    def __init__(self, store: Store, tenant: str, response_id: str, *, streamed: bool) -> None:
        self.tenant = tenant
        self.id = response_id
        self.streamed = streamed
        self.round: Round | None = None
        self.waiting: Waiting | None = None
        self.status: Literal["queued", "in_progress"] = "queued"
        #: Why it is being ended early; the first reason counts.
        self.ending: Literal["cancelled", "stopped"] | None = None
        #: What kept it from ending by itself.
        self.failure: AntiphonError | None = None
        #: Whether nothing but storing its end is left to do, and whether that is done.
        self.is_ending = False
        self.is_recorded = False
        self.is_over = False
        self.readers = 0
        self.events: list[EncodedEvent] = []
        self._store = store
        self._unsaved: list[EncodedEvent] = []
        self._unsaved_bytes = 0
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    def run(self, task: "asyncio.Task[None]") -> None:
        """The task that runs it, which calls `note_begun` first of all."""
        self._task = task

    def note_begun(self) -> None:
        """The task runs; from now on cancelling it is noticed."""
        self._begun.set()

    async def end_early(self, why: Literal["cancelled", "stopped"]) -> None:
        """Stop it unless it ends by itself already, and wait until it is over."""
        if self._task is None:
            return
        # A task that is cancelled before its first step never gets to its last words.
        await self._begun.wait()
        # Once only: a second cancellation would interrupt the last words.
        if self.ending is None and not self.is_ending and (self.round is None or not self.round.has_ended):
            self.ending = why
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=2 * STOP_TIMEOUT_S)

    @property
    def is_left_to_next(self) -> bool:
        """Whether the server stops before it was run: it stays queued in the store."""
        return self.ending == "stopped" and self.status == "queued"

    def get_waiting(self) -> Waiting:
        """What an earlier server queued, of a response without a round."""
        if self.waiting is None:
            raise RuntimeError("a live response has a round, or waits for one")
        return self.waiting

    async def settle(self, wait_s: float = 2 * STOP_TIMEOUT_S) -> None:
        """Wait, for a time, until its end is stored and told."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=wait_s)

    def show(self) -> Response:
        """The response as it stands."""
        if self.round is None:
            waiting = self.get_waiting()
            return show_waiting(waiting.job, waiting.stored)
        return self.round.build_snapshot("queued") if self.status == "queued" else self.round.show_progress()

    async def load_path(self) -> list[Node]:
        """Its path, itself last, before it is stored."""
        if self.round is not None:
            return await self.round.load_path()
        stored = self.get_waiting().stored
        path: list[Node] = []
        if stored.parent is not None:
            skip = stored.conversation is not None
            path = await self._store.load_path(self.tenant, stored.parent, skip_deleted=skip) or []
        return [*path, Node(id=self.id, parent=stored.parent, input=bytes(stored.input))]

    @property
    def has_told_its_end(self) -> bool:
        """Whether the terminal event is among the events, stored or not."""
        newest = self._unsaved or self.events
        return bool(newest) and newest[-1][0] in TERMINAL_EVENTS

    def make_keep_alive(self) -> list[EncodedEvent]:
        """A numbered sign of life; nothing while nobody reads."""
        if not self.readers:
            return []
        if self.round is not None:
            return self.round.make_keep_alive()
        event = ResponseQueued(len(self.events), msgspec.Raw(msgspec.json.encode(self.show())))
        return [(event.type, encode_event(event))]

    def hold_back(self, events: list[EncodedEvent]) -> None:
        """Take events that are stored with the next ones: deltas are short, and each write costs the same."""
        self._unsaved += events
        self._unsaved_bytes += sum([len(data) for _, data in events])

    @property
    def is_holding_back(self) -> bool:
        """Whether there are events that are not stored yet."""
        return bool(self._unsaved)

    @property
    def is_ripe(self) -> bool:
        """Whether what is held back is to be stored now: a chunk is full, or more than deltas came."""
        return bool(self._unsaved) and (
            self._unsaved_bytes >= CHUNK_BYTES or not self._unsaved[-1][0].endswith(".delta")
        )

    async def keep(self, events: list[EncodedEvent]) -> None:
        """Store events, then let readers have them; what could not be stored is tried again with the next ones."""
        self.hold_back(events)
        if not self._unsaved:
            return
        first = len(self.events)
        chunk = EventChunk(first, first + len(self._unsaved) - 1, encode_events(self._unsaved))
        writing = asyncio.ensure_future(self._store.append_events(self.tenant, self.id, chunk))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # Whether it was written must be known: the next events are numbered behind it.
            await asyncio.wait({writing}, timeout=STOP_TIMEOUT_S)
            if writing.done() and writing.exception() is None:
                self._publish(len(self._unsaved))
            raise
        except StoreError:
            saved = await self._count_saved(first)
            if not saved:
                raise
            # A write that was given up has arrived all the same.
            self._publish(saved)
            await self.keep([])
            return
        self._publish(len(self._unsaved))

    async def _count_saved(self, first: int) -> int:
        chunks = await self._store.load_events(self.tenant, self.id, after=first - 1)
        return min(chunks[-1].last + 1 - first, len(self._unsaved)) if chunks else 0

    def _publish(self, count: int) -> None:
        """Let readers have what is stored; with the end of it the conversation is free."""
        self.events += self._unsaved[:count]
        del self._unsaved[:count]
        self._unsaved_bytes = sum([len(data) for _, data in self._unsaved])
        if self.round is not None and self.events[-1][0] in TERMINAL_EVENTS:
            self.round.release_conversation()
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self.is_over = True
        self._wake()

    async def wait(self) -> None:
        """Until there is news."""
        await self._news.wait()

    async def close(self) -> None:
        """Let go of what it held; its conversation is free."""
        if self.round is not None:
            await self.round.close()
        if self.waiting is not None and self.waiting.hold is not None:
            self.waiting.hold.release()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
