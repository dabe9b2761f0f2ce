"""Background responses: queued, run by a bounded number of workers, followed by whoever asks, cancelled.

It knows rounds by their events, and no transport. Invariant: no response stays queued or in progress once
nothing works on it any more, neither after a failure nor after the server that ran it is gone.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import msgspec

from antiphon.engine.conversations import Conversations, Hold
from antiphon.engine.following import Follower, make_not_streamable
from antiphon.engine.jobs import StoredJob, decode_events, encode_events, make_ended_record, read_job
from antiphon.engine.live import STOP_TIMEOUT_S, LiveResponse, Waiting
from antiphon.engine.round import Round
from antiphon.engine.settings import decode_settings
from antiphon.engine.sink import EncodedEvent
from antiphon.protocol.errors import (
    RETRY_AFTER_S,
    AntiphonError,
    OverloadedError,
    RequestError,
    ServerStoppingError,
    StoreError,
)
from antiphon.protocol.events import ResponseCompleted, ResponseFailed, ResponseIncomplete, encode_event
from antiphon.protocol.lifecycle import TERMINAL_EVENTS
from antiphon.protocol.responses import Response
from antiphon.sessions import Status
from antiphon.store import EventChunk, Job, Store, UnknownParentError

_log = logging.getLogger("antiphon.engine")

#: How often it is looked for events that were kept long enough.
SWEEP_PAUSE_S = 60.0
#: After this long it is tried again to store the end of a response, then after twice as long, up to the last.
FIRST_RETRY_S = 0.05
LAST_RETRY_S = 2.0
#: Events of this many responses are dropped at once: one emptying of the store's log serves them all.
SWEEP_BATCH = 256
#: Deltas that come closer to each other than this are stored together, up to a chunk.
GATHER_S = 0.02

_TERMINAL: dict[str, type[ResponseCompleted | ResponseIncomplete | ResponseFailed]] = {
    "completed": ResponseCompleted,
    "incomplete": ResponseIncomplete,
    "failed": ResponseFailed,
    "cancelled": ResponseFailed,
}
#: Makes the round of a stored request anew, under the id and time it had; the conversation is taken already.
Reopen: TypeAlias = Callable[[Job, StoredJob, Hold | None], Awaitable[Round]]
#: Reads a stored response back; raises `NotFoundError`.
Retrieve: TypeAlias = Callable[[str, str], Awaitable[Response]]


class BackgroundSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of background work.

    `workers`: responses that run at once; `queue_limit`: responses that wait for a worker; `events_s`: how long
    the events of an ended response can be streamed again; `keep_alive_s`: silence after which a stream says
    that it goes on.
    """

    workers: int = 8
    queue_limit: int = 1_000
    events_s: float = 300.0
    keep_alive_s: float = 15.0


class Background:
    """The background responses of one server."""

    def __init__(
        self,
        store: Store,
        settings: BackgroundSettings,
        *,
        conversations: Conversations,
        reopen: Reopen,
        retrieve: Retrieve,
    ) -> None:
        self._store = store
        self._settings = settings
        self._conversations = conversations
        self._reopen = reopen
        self._retrieve = retrieve
        self._slots = asyncio.Semaphore(settings.workers)
        self._live: dict[tuple[str, str], LiveResponse] = {}
        self._sweeper: asyncio.Task[None] | None = None
        self._stopping = False

    # Running

    async def submit(self, round_: Round, job: StoredJob, *, needs_secrets: bool) -> LiveResponse:
        """Queue a response; it is stored when this returns. Raises `OverloadedError` when too many wait."""
        if self._stopping:
            raise ServerStoppingError
        if len(self._live) >= self._settings.workers + self._settings.queue_limit:
            raise OverloadedError(
                f"As many background responses wait as may (limits.background_queue = {self._settings.queue_limit}). "
                f"Please try again in {RETRY_AFTER_S}s."
            )
        live = LiveResponse(self._store, round_.tenant, round_.id, streamed=job.stream)
        live.round = round_
        # Taken before the first wait, so that the limit holds.
        self._live[live.tenant, live.id] = live
        try:
            await self._store.open_job(
                Job(
                    id=live.id,
                    tenant=live.tenant,
                    created_at=round_.created_at,
                    request=msgspec.json.encode(job),
                    snapshot=msgspec.json.encode(live.show()),
                    needs_secrets=needs_secrets,
                )
            )
        except BaseException:
            # Where the client left at this moment the job may be stored; the next server sees to it.
            del self._live[live.tenant, live.id]
            raise
        self._run_in_task(live)
        return live

    def _run_in_task(self, live: LiveResponse) -> None:
        live.run(asyncio.create_task(self._run(live)))

    async def _run(self, live: LiveResponse) -> None:
        live.note_begun()
        try:
            if live.round is not None:
                await live.keep(live.round.begin())
            async with self._work(live):
                if self._stopping:
                    # The next server runs it.
                    live.ending = live.ending or "stopped"
                    return
                round_ = await self._open(live)
                await self._store.start_job(live.tenant, live.id)
                live.status = "in_progress"
                await self._pump(live, round_)
        except asyncio.CancelledError:
            await self._say_last_words(live, ServerStoppingError())
        except AntiphonError as error:
            await self._say_last_words(live, error)
        except Exception:  # noqa: BLE001 - a background round is a request: one of the three places
            _log.exception("background response %s failed by a fault of our own", live.id)
            await self._say_last_words(live, AntiphonError())
        finally:
            await self._finish(live)

    @asynccontextmanager
    async def _work(self, live: LiveResponse) -> AsyncGenerator[None, None]:
        """A worker's time; who reads while it is waited for gets signs of life."""
        taking = asyncio.ensure_future(self._slots.acquire())
        try:
            while not (await asyncio.wait({taking}, timeout=self._settings.keep_alive_s))[0]:
                if live.streamed:
                    await live.keep(live.make_keep_alive())
        except BaseException:
            taking.cancel()
            await asyncio.wait({taking})
            if not taking.cancelled():
                self._slots.release()
            raise
        try:
            yield
        finally:
            self._slots.release()

    async def _open(self, live: LiveResponse) -> Round:
        """The round; laid out now where an earlier server queued the response."""
        if live.round is not None:
            return live.round
        waiting = live.get_waiting()
        try:
            live.round = await self._reopen(waiting.job, waiting.stored, waiting.hold)
        except AntiphonError as error:
            raise AntiphonError(
                f"The server was restarted, and the response cannot be run any more: {error.message}",
                code=error.code,
            ) from error
        if live.streamed:
            await self._renumber(live, live.round)
        return live.round

    async def _renumber(self, live: LiveResponse, round_: Round) -> None:
        """The first events are stored already; made again, they take the numbers that they had."""
        begun = round_.begin()
        if len(live.events) < len(begun):
            await live.keep(begun[len(live.events) :])
        for _ in range(len(live.events) - len(begun)):
            round_.make_keep_alive()

    async def _pump(self, live: LiveResponse, round_: Round) -> None:
        """Every event: stored, then handed out; a sign of life in every long silence."""
        source = round_.events()
        step: asyncio.Task[list[EncodedEvent] | None] | None = None
        try:
            while True:
                step = step or asyncio.create_task(_take_next(source))
                silence_s = GATHER_S if live.is_holding_back else self._settings.keep_alive_s
                done, _ = await asyncio.wait({step}, timeout=silence_s)
                if not done:
                    await live.keep([] if live.is_holding_back else live.make_keep_alive())
                    continue
                events = step.result()
                step = None
                if events is None:
                    return
                live.hold_back(events)
                if live.is_ripe:
                    await live.keep([])
        finally:
            if step is not None:
                step.cancel()
                await asyncio.wait({step}, timeout=STOP_TIMEOUT_S)
                if step.done() and not step.cancelled() and step.exception() is None:
                    # It came as we were stopped: its numbers are given, so it must not be missing.
                    live.hold_back(step.result() or [])
            try:
                await live.keep([])
            finally:
                await source.aclose()

    async def _say_last_words(self, live: LiveResponse, error: AntiphonError) -> None:
        """End the round of a response that did not end by itself; without a round it is only recorded."""
        live.failure = error
        if live.round is None or live.is_left_to_next:
            return
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                if live.ending == "cancelled":
                    await live.keep(await live.round.cancel())
                else:
                    await live.keep(await live.round.interrupt(error))
        except (AntiphonError, TimeoutError) as failure:
            _log.error("the last events of %s could not be kept: %s", live.id, type(failure).__name__)

    async def _finish(self, live: LiveResponse) -> None:
        live.is_ending = True
        await live.close()
        pause_s = FIRST_RETRY_S
        while not live.is_left_to_next:
            try:
                await self._record_end(live)
                break
            except StoreError as error:
                # Until it is stored it can be read as it stands, and its readers wait.
                _log.error(
                    "the end of background response %s could not be stored: %s", live.id, error.message
                )
            if self._stopping:
                # The next server sees to it.
                break
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_RETRY_S)
        self._live.pop((live.tenant, live.id), None)
        live.end()

    async def _record_end(self, live: LiveResponse) -> None:
        """See to it that the response has an end, in the store and in its stream; raises `StoreError`."""
        round_ = live.round
        if round_ is None or not round_.is_recorded:
            job = await self._store.load_job(live.tenant, live.id)
            if job is not None:
                failure = (round_.failure if round_ is not None else None) or live.failure or AntiphonError()
                if live.ending == "cancelled":
                    await self._record_job(job, "cancelled", None)
                else:
                    await self._record_job(job, "failed", failure)
        live.is_recorded = True
        await live.keep([])
        if live.streamed and not live.has_told_its_end:
            response = await self._retrieve(live.tenant, live.id)
            await live.keep([_make_terminal(len(live.events), response)])

    async def _record_job(self, job: Job, status: Status, error: AntiphonError | None) -> None:
        record = make_ended_record(job, read_job(job), int(time.time()), status=status, error=error)
        try:
            await self._store.record(record)
        except UnknownParentError:
            # Deleted meanwhile: the response stands by itself.
            await self._store.record(msgspec.structs.replace(record, parent=None))

    # Asking

    def find(self, tenant: str, response_id: str) -> LiveResponse | None:
        """A response that is queued or in progress: its end is not stored yet."""
        live = self._live.get((tenant, response_id))
        is_recorded = live is None or live.is_recorded or (live.round is not None and live.round.is_recorded)
        return None if is_recorded else live

    async def settle(self, tenant: str, response_id: str) -> bool:
        """Wait until nothing more of an ended response is written; False when that lasts too long."""
        live = self._live.get((tenant, response_id))
        if live is not None:
            await live.settle()
        return (tenant, response_id) not in self._live

    async def cancel(self, tenant: str, response_id: str) -> Response:
        """Stop a background response; raises `RequestError` for one that was none, or that has ended."""
        live = self._live.get((tenant, response_id))
        if live is not None:
            await live.end_early("cancelled")
            if not live.is_over:
                raise StoreError(
                    "The response could not be ended, for its end cannot be stored; try again later."
                )
        response = await self._retrieve(tenant, response_id)
        if not response.background:
            raise RequestError("Cannot cancel a synchronous response.")
        if response.status == "cancelled":
            return response
        told = "an" if response.status[0] in "aeiou" else "a"
        raise RequestError(f"Cannot cancel {told} {response.status} response.")

    async def follow(
        self, tenant: str, response_id: str, *, after: int = -1, obfuscate: bool | None = None
    ) -> Follower:
        """The events behind number `after`: those that were, then those to come."""
        live = self._live.get((tenant, response_id))
        if live is not None:
            if not live.streamed:
                raise make_not_streamable()
            return Follower(live, live.events, after, obfuscate=obfuscate, stop=self._stop)
        response = await self._retrieve(tenant, response_id)
        record = await self._store.load(tenant, response_id)
        settings = decode_settings(record.settings) if record is not None else None
        if record is None or settings is None or not (settings.background and settings.stream):
            raise make_not_streamable()
        events = await self._load_events(tenant, response_id)
        ended_at = record.completed_at or record.created_at
        if not events or time.time() - ended_at > self._settings.events_s:
            raise RequestError(
                "This response can no longer be streamed because it is more than "
                f"{self._settings.events_s / 60:g} minutes old."
            )
        if events[-1][0] not in TERMINAL_EVENTS:
            # The server was killed between the record and its last event.
            events.append(_make_terminal(len(events), response))
        return Follower(None, events, after, obfuscate=obfuscate, stop=self._stop)

    async def _load_events(self, tenant: str, response_id: str, after: int = -1) -> list[EncodedEvent]:
        chunks = await self._store.load_events(tenant, response_id, after=after)
        return [event for chunk in chunks for event in decode_events(chunk.body)]

    # Starting and stopping

    async def start(self) -> None:
        """See to what an earlier server left: queue what was waiting, end what was under way."""
        waiting: list[Job] = []
        for job in await self._store.list_jobs():
            if job.status == "queued" and not job.needs_secrets:
                waiting.append(job)
            elif job.status == "queued":
                why = "The server stopped before this response was run, and does not keep the secrets that it needs."
                await self._give_up(job, AntiphonError(why))
            else:
                await self._give_up(job, AntiphonError("The server stopped while this response was running."))
        for job in waiting:
            try:
                await self._requeue(job)
            except AntiphonError as error:
                await self._give_up(job, error)
        self._sweeper = asyncio.create_task(self._sweep())

    async def _requeue(self, job: Job) -> None:
        stored = read_job(job)
        hold = None
        if stored.conversation is not None:
            hold = await self._conversations.take(job.tenant, stored.conversation)
        live = LiveResponse(self._store, job.tenant, job.id, streamed=stored.stream)
        live.waiting = Waiting(job=job, stored=stored, hold=hold)
        live.events = await self._load_events(job.tenant, job.id)
        self._live[job.tenant, job.id] = live
        self._run_in_task(live)

    async def _give_up(self, job: Job, error: AntiphonError) -> None:
        """Record a response that nothing works on any more, and end its stream."""
        # Not why: it may quote the request.
        _log.warning("background response %s could not be carried on after a restart", job.id)
        await self._record_job(job, "failed", error)
        if read_job(job).stream:
            chunks = await self._store.load_events(job.tenant, job.id)
            number = chunks[-1].last + 1 if chunks else 0
            last = _make_terminal(number, await self._retrieve(job.tenant, job.id))
            await self._store.append_events(
                job.tenant, job.id, EventChunk(number, number, encode_events([last]))
            )

    async def _sweep(self) -> None:
        while True:
            try:
                await self._drop_old_events()
            except StoreError as error:
                _log.warning("old events could not be dropped: %s", error.message)
            await asyncio.sleep(min(SWEEP_PAUSE_S, max(self._settings.events_s / 4, 0.05)))

    async def _drop_old_events(self) -> None:
        now = time.time()
        old = [
            (tenant, node_id)
            for tenant, node_id, ended_at in await self._store.list_events()
            if now - ended_at > self._settings.events_s
        ]
        for start in range(0, len(old), SWEEP_BATCH):
            batch = old[start : start + SWEEP_BATCH]
            await asyncio.gather(*(self._store.drop_events(tenant, node_id) for tenant, node_id in batch))

    async def _stop(self, live: LiveResponse) -> None:
        """End a response because the server stops: from now on no worker takes up another one."""
        self._stopping = True
        await live.end_early("stopped")

    async def drain(self, wait_s: float) -> None:
        """Let what runs end, for a time; nothing that waits is begun any more, and nothing new is taken."""
        self._stopping = True
        running = [live for live in self._live.values() if live.status == "in_progress"]
        await asyncio.gather(*(live.settle(wait_s) for live in running))

    async def close(self) -> None:
        """Stop: what runs fails, what waits is run by the next server."""
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait({self._sweeper})
        await asyncio.gather(*(self._stop(live) for live in list(self._live.values())))


async def _take_next(source: AsyncGenerator[list[EncodedEvent], None]) -> list[EncodedEvent] | None:
    """The next batch; None at the end (a task cannot raise `StopAsyncIteration`)."""
    return await anext(source, None)


def _make_terminal(number: int, response: Response) -> EncodedEvent:
    last = _TERMINAL[response.status](number, msgspec.Raw(msgspec.json.encode(response)))
    return last.type, encode_event(last)
