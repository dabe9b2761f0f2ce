"""A writer thread with a bounded queue that carries out writes in batches (group commit).

It knows no SQL: `commit` is given a list of writes, and gives each a value or an error. Many waiting
tasks share one commit and one wake-up of their event loop.
Invariant: every write that entered the queue is settled exactly once, whatever happens to the thread.
"""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from antiphon.protocol.errors import StoreError


class Write:
    """One thing to write; `work` runs on the writer thread, inside the batch's transaction."""

    __slots__ = ("error", "future", "loop", "value", "wipes", "work")

    def __init__(self, work: Callable[[], Any], loop: asyncio.AbstractEventLoop, *, wipes: bool) -> None:
        self.work = work
        self.loop = loop
        self.wipes = wipes
        self.future: asyncio.Future[Any] = loop.create_future()
        self.value: Any = None
        self.error: StoreError | None = None


class BatchWriter:
    """Runs `commit(batch)` on its own thread; `submit` waits for the batch that holds the write."""

    def __init__(
        self,
        commit: Callable[[list[Write]], None],
        *,
        queue_limit: int,
        queue_wait_s: float,
        batch_limit: int,
    ) -> None:
        self._commit = commit
        self._queue_limit = queue_limit
        self._queue_wait_s = queue_wait_s
        self._batch_limit = batch_limit
        self._queue: SimpleQueue[Write | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._no_room: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="antiphon-store", daemon=True)
        self._thread.start()

    async def submit(self, work: Callable[[], Any], *, wipes: bool = False) -> Any:
        """The value of `work`, after its batch was committed. `wipes` marks a write that removes content.

        Raises `StoreError` when the queue stays full, the writer is closed, or the batch fails.
        Cancelling the wait leaves the write in its batch.
        """
        write = Write(work, asyncio.get_running_loop(), wipes=wipes)
        room = self._enqueue(write)
        if room is not None:
            await self._wait_for_room(write, room)
        return await write.future

    async def close(self, timeout_s: float) -> None:
        """Take no more writes and finish those waiting; `StoreError` if that takes longer than `timeout_s`."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        await asyncio.to_thread(self._thread.join, timeout_s)
        if self._thread.is_alive():
            raise StoreError(f"The store did not finish writing within {timeout_s:g} s.")

    def _enqueue(self, write: Write) -> asyncio.Future[None] | None:
        """Put the write in the queue, or return a future that is done when there may be room."""
        with self._lock:
            if self._closed:
                raise StoreError("The store is closed.")
            if self._waiting < self._queue_limit:
                self._waiting += 1
                self._queue.put(write)
                return None
            room: asyncio.Future[None] = write.loop.create_future()
            self._no_room.append((write.loop, room))
            return room

    async def _wait_for_room(self, write: Write, room: asyncio.Future[None] | None) -> None:
        try:
            async with asyncio.timeout(self._queue_wait_s):
                while room is not None:
                    await room
                    room = self._enqueue(write)
        except TimeoutError as error:
            raise StoreError(
                f"The store is too slow: {self._queue_limit} rounds still waited to be written "
                f"after {self._queue_wait_s:g} s."
            ) from error

    def _run(self) -> None:
        batch: list[Write] = []
        try:
            going_on = True
            while going_on:
                batch, going_on = self._take()
                if batch:
                    self._commit(batch)
                    self._settle(batch)
                    batch = []
        finally:
            # Normally nothing is left; after a bug in `commit` nobody may wait for ever.
            self._abandon(batch)

    def _take(self) -> tuple[list[Write], bool]:
        """The next batch, waiting for its first write; False with the last one."""
        batch: list[Write] = []
        write = self._queue.get()
        while write is not None:
            batch.append(write)
            if len(batch) == self._batch_limit or self._queue.empty():
                return batch, True
            write = self._queue.get()
        return batch, False

    def _abandon(self, batch: list[Write]) -> None:
        with self._lock:
            self._closed = True
        while not self._queue.empty():
            write = self._queue.get()
            if write is not None:
                batch.append(write)
        for write in batch:
            write.error = StoreError("The store's writer has stopped; restart the server.")
        self._settle(batch)

    def _settle(self, batch: list[Write]) -> None:
        """Wake every waiter of the batch, and who waits for room, with one call per event loop."""
        with self._lock:
            self._waiting -= len(batch)
            no_room, self._no_room = self._no_room, []
        by_loop: dict[asyncio.AbstractEventLoop, tuple[list[Write], list[asyncio.Future[None]]]] = {}
        for write in batch:
            by_loop.setdefault(write.loop, ([], []))[0].append(write)
        for loop, room in no_room:
            by_loop.setdefault(loop, ([], []))[1].append(room)
        for loop, (writes, rooms) in by_loop.items():
            try:
                loop.call_soon_threadsafe(_wake, writes, rooms)
            except RuntimeError:
                # The loop was closed while its tasks waited: nobody is left to tell.
                continue


def _wake(writes: list[Write], rooms: list[asyncio.Future[None]]) -> None:
    for write in writes:
        if write.future.done():
            continue
        if write.error is not None:
            write.future.set_exception(write.error)
        else:
            write.future.set_result(write.value)
    for room in rooms:
        if not room.done():
            room.set_result(None)
