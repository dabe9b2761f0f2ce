"""One response being made: stream, record, answer. It knows no transport.

Invariant: a response is recorded before its terminal event is handed out, and exactly one terminal event
is handed out once the stream has begun, whatever happens.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable

import msgspec

from antiphon.backends import BackendEvent
from antiphon.engine.assembler import Assembler, Outcome
from antiphon.engine.forced import stream_forced
from antiphon.engine.gather import Plan, make_step, make_unknown_parent
from antiphon.engine.settings import StoredOutcome, StoredUsage, build_response
from antiphon.engine.sink import EncodedEvent, EventSink
from antiphon.engine.windows import WindowCache, extend
from antiphon.protocol import events
from antiphon.protocol.errors import AntiphonError, BackendError, ProtocolError
from antiphon.protocol.items import decode_stored_item, get_call_id, get_item_id
from antiphon.protocol.responses import Response
from antiphon.sessions import CONTINUABLE
from antiphon.store import Record, Store, UnknownParentError

_log = logging.getLogger("antiphon.engine")
_encode = msgspec.json.Encoder().encode

#: A request to the model server that is being opened is given this long to be given up.
STOP_TIMEOUT_S = 5

_TERMINAL: dict[str, type[events.ResponseEvent]] = {
    "completed": events.ResponseCompleted,
    "incomplete": events.ResponseIncomplete,
    "failed": events.ResponseFailed,
    "cancelled": events.ResponseFailed,
}


class Round:
    """Made by the engine; either `collect` it, or `start` it and read its `events`."""

    def __init__(self, plan: Plan, *, store: Store, cache: WindowCache) -> None:
        self._plan = plan
        self._store = store
        self._cache = cache
        self._created_at = int(time.time())
        request = plan.request
        obfuscate = request.stream_options is not None and bool(request.stream_options.include_obfuscation)
        self._sink = EventSink(emit=request.stream, obfuscate=obfuscate)
        self._assembler = Assembler(
            self._sink,
            node_id=plan.node_id,
            first_position=len(request.input),
            is_taken=_make_is_taken(plan),
            single_call=request.parallel_tool_calls is False,
            hidden_tools=plan.hidden_tools,
            offered_tools=frozenset(tool.name for tool in plan.ask.tools),
        )
        self._batches = self._open_stream()
        self._first: asyncio.Task[list[BackendEvent]] | None = None
        self._rest: asyncio.Task[None] | None = None
        self._recorded = False

    @property
    def id(self) -> str:
        """The response's id."""
        return self._plan.node_id

    async def collect(self) -> Response:
        """The whole response at once; raises what made it fail."""
        try:
            async for batch in self._batches:
                self._assembler.feed(batch)
        finally:
            await self._batches.aclose()
        outcome = self._get_outcome()
        if outcome.error is not None:
            raise outcome.error
        return await self._record(outcome)

    async def start(self, wait_s: float) -> None:
        """Wait for the server's word, at most `wait_s`; raises its refusal if that comes in time."""
        self._first = asyncio.create_task(self._read_first())
        done, _ = await asyncio.wait({self._first}, timeout=wait_s)
        if done:
            self._first.result()

    async def events(self) -> AsyncGenerator[list[EncodedEvent], None]:
        """The events in batches, to the terminal one."""
        response = _encode(self._build("in_progress", StoredOutcome()))
        self._sink.send_response(events.ResponseCreated, response)
        self._sink.send_response(events.ResponseInProgress, response)
        yield self._sink.take()
        try:
            if self._first is not None:
                await self._first
            async for batch in self._batches:
                self._assembler.feed(batch)
                if self._assembler.outcome is not None:
                    break
                ready = self._sink.take()
                if ready:
                    yield ready
        except AntiphonError as error:
            self._assembler.fail(error)
        except Exception:  # noqa: BLE001 - the request is one of the three places that catch broadly
            _log.exception("response %s failed by a fault of our own", self.id)
            self._assembler.fail(ProtocolError())
        try:
            last = await self._end()
        except Exception:  # noqa: BLE001 - as above: a stream that has begun gets its terminal event
            _log.exception("response %s could not be ended", self.id)
            last = self._send_failure(ProtocolError())
        # Read to its end, so that the connection to the server is kept; whether or not the client reads.
        self._rest = asyncio.create_task(self._read_rest())
        try:
            yield last
        finally:
            await self._rest

    async def _read_rest(self) -> None:
        async for _ in self._batches:
            pass

    async def interrupt(self, error: AntiphonError) -> list[EncodedEvent]:
        """The server must stop: end upstream, record, and hand out the terminal event.

        Nothing is handed out for a response that had ended already; it can be read.
        """
        ended = self._assembler.outcome is not None
        await self._stop_upstream()
        if ended:
            return []
        self._assembler.fail(error)
        return await self._end()

    def make_keep_alive(self) -> list[EncodedEvent]:
        """A repeated `response.in_progress`: clients' idle timers count real events alone."""
        response = _encode(self._build("in_progress", StoredOutcome()))
        self._sink.send_response(events.ResponseInProgress, response)
        return self._sink.take()

    async def abandon(self) -> None:
        """The client left: stop the server's work and keep what there is as cancelled."""
        await self._stop_upstream()
        self._assembler.cancel()
        outcome = self._get_outcome()
        if self._recorded or not self._plan.request.store:
            return
        try:
            # Where the client left while a whole answer was being stored, it may be there: then this fails.
            await self._record(outcome)
        except AntiphonError as error:
            if outcome.status == "cancelled":
                _log.error("cancelled response %s could not be stored: %s", self.id, error.message)

    async def _stop_upstream(self) -> None:
        readers = [task for task in (self._first, self._rest) if task is not None and not task.done()]
        for task in readers:
            task.cancel()
        if readers:
            await asyncio.wait(readers, timeout=STOP_TIMEOUT_S)
        await self._batches.aclose()

    def _open_stream(self) -> AsyncGenerator[list[BackendEvent], None]:
        plan = self._plan
        if plan.ask.tool_choice == "required":
            return stream_forced(plan.target.backend, plan.ask, plan.warnings)
        return plan.target.backend.stream(plan.ask)

    async def _read_first(self) -> list[BackendEvent]:
        try:
            return await anext(self._batches)
        except StopAsyncIteration:
            raise ProtocolError("The backend's stream was empty.") from None

    def _get_outcome(self) -> Outcome:
        outcome = self._assembler.outcome
        if outcome is None:
            self._assembler.fail(BackendError("The model server's answer had no end."))
            outcome = self._assembler.outcome
        if outcome is None:
            raise ProtocolError
        return outcome

    async def _end(self) -> list[EncodedEvent]:
        """Record, then the terminal event."""
        outcome = self._get_outcome()
        try:
            response = await self._record(outcome)
        except AntiphonError as error:
            return self._send_failure(error)
        if outcome.error is not None:
            self._sink.send_error(outcome.error)
        self._sink.send_response(_TERMINAL[outcome.status], _encode(response))
        return self._sink.take()

    def _send_failure(self, error: AntiphonError) -> list[EncodedEvent]:
        """The end of a response that is not kept as what it was."""
        outcome = Outcome(status="failed", error=error)
        self._sink.send_error(error)
        self._sink.send_response(
            events.ResponseFailed, _encode(self._build("failed", self._store_outcome(outcome)))
        )
        return self._sink.take()

    async def _record(self, outcome: Outcome) -> Response:
        self._notice_truncation(outcome)
        stored = self._store_outcome(outcome)
        record = self._make_record(outcome, stored)
        if self._plan.request.store:
            try:
                await self._store.record(record)
            except UnknownParentError as error:
                # The parent was deleted while the model answered.
                parent = self._plan.request.previous_response_id or ""
                raise make_unknown_parent(f"Previous response with id '{parent}' not found.") from error
            self._recorded = True
            if outcome.status in CONTINUABLE:
                self._try_keep_window(outcome)
        return self._build(outcome.status, stored, completed_at=record.completed_at)

    def _store_outcome(self, outcome: Outcome) -> StoredOutcome:
        usage = outcome.usage
        return StoredOutcome(
            usage=None
            if usage is None or outcome.status == "failed"
            else StoredUsage(
                usage.input_tokens,
                usage.output_tokens,
                usage.cached_tokens,
                usage.cache_write_tokens,
                usage.reasoning_tokens,
            ),
            error=outcome.error.to_response_error() if outcome.error is not None else None,
            reason=outcome.incomplete_reason,
            warnings=self._warnings(),
        )

    def _warnings(self) -> list[tuple[str, str]]:
        return [*self._plan.warnings, *self._assembler.warnings]

    def _make_record(self, outcome: Outcome, stored: StoredOutcome) -> Record:
        plan = self._plan
        request = plan.request
        return Record(
            id=plan.node_id,
            parent=request.previous_response_id,
            tenant=plan.tenant,
            status=outcome.status,
            created_at=self._created_at,
            completed_at=int(time.time()) if outcome.status == "completed" else None,
            input=b"[" + b",".join([item.raw for item in request.input]) + b"]",
            output=b"[" + b",".join(self._assembler.output) + b"]",
            settings=_encode(plan.settings),
            instructions=request.instructions.encode() if request.instructions is not None else None,
            tools=plan.tools,
            outcome=_encode(stored),
            client_ids=tuple(
                (item_id, position)
                for position, item in enumerate(request.input)
                if (item_id := get_item_id(item)) is not None
            ),
        )

    def _try_keep_window(self, outcome: Outcome) -> None:
        try:
            self._keep_window(outcome)
        except Exception:  # noqa: BLE001 - what is recorded is complete; the window can be made again
            _log.exception("the window of response %s could not be kept", self.id)

    def _keep_window(self, outcome: Outcome) -> None:
        plan = self._plan
        step = make_step(
            plan.node_id,
            plan.target,
            plan.window,
            plan.segment,
            plan.request.input,
            [decode_stored_item(raw) for raw in self._assembler.output],
            prompt_tokens=outcome.usage.input_tokens if outcome.usage is not None else None,
            made_with=plan.made_with,
        )
        window = extend(plan.window, step)
        self._cache.put(plan.tenant, plan.node_id, window, since_deletion=plan.since_deletion)

    def _notice_truncation(self, outcome: Outcome) -> None:
        """The window only grew; if the server's count did not, the server cut the prompt and said nothing."""
        window = self._plan.window
        if outcome.usage is None or window.prompt_tokens is None:
            return
        if (
            window.prompt_made_with == self._plan.made_with
            and outcome.usage.input_tokens <= window.prompt_tokens
        ):
            self._assembler.warnings.append(
                (
                    "upstream_truncated",
                    (
                        f"The history grew, but the model server counted {outcome.usage.input_tokens} prompt tokens "
                        f"after {window.prompt_tokens} before: it left out part of the history."
                    ),
                )
            )

    def _build(self, status: str, outcome: StoredOutcome, *, completed_at: int | None = None) -> Response:
        plan = self._plan
        return build_response(
            response_id=plan.node_id,
            created_at=self._created_at,
            settings=plan.settings,
            status=status,  # type: ignore[arg-type]
            instructions=plan.request.instructions,
            tools=plan.tools,
            parent=plan.request.previous_response_id,
            store=plan.request.store,
            completed_at=completed_at,
            output=[msgspec.Raw(item) for item in self._assembler.output] if status != "in_progress" else [],
            outcome=outcome,
        )


def _make_is_taken(plan: Plan) -> Callable[[str], bool]:
    """Whether a call id stands on the path already. No method: the round and its assembler are no cycle."""
    calls = {call_id for item in plan.request.input if (call_id := get_call_id(item))}
    window = plan.window
    return lambda call_id: call_id in calls or window.has_call(call_id)
