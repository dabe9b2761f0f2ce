"""One response being made: stream, record, answer. It knows no transport.

Invariant: a response is recorded before its terminal event is handed out, and exactly one terminal event
is handed out once the stream has begun, whatever happens.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from antiphon.backends import Ask, BackendEvent, Opened
from antiphon.context import SealError
from antiphon.engine.assembler import Assembler, Outcome
from antiphon.engine.compaction_stream import raise_overflow, stream_compacting
from antiphon.engine.continuing import make_step, make_unknown_parent
from antiphon.engine.conversations import Hold, make_unknown_conversation
from antiphon.engine.counting import make_target_key
from antiphon.engine.fitting import HISTORY_TRUNCATED, OVERFLOW_ATTEMPTS, Fitted, after_overflow
from antiphon.engine.foreign_ids import ForeignIds
from antiphon.engine.gather import LoadHistory, Plan
from antiphon.engine.sealed_windows import is_compaction
from antiphon.engine.sealing import seal_reasoning
from antiphon.engine.services import Services
from antiphon.engine.settings import StoredOutcome, StoredUsage, build_response
from antiphon.engine.sink import EncodedEvent, EventSink
from antiphon.engine.steps import stream_steps
from antiphon.engine.windows import extend
from antiphon.protocol import events
from antiphon.protocol.errors import (
    AntiphonError,
    BackendError,
    ContextOverflowError,
    ProtocolError,
    shorten_quoted,
)
from antiphon.protocol.items import Item, decode_stored_item, get_call_id, get_item_id
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.responses import Response, ResponseStatus
from antiphon.protocol.showing import ENCRYPTED, show_item
from antiphon.sessions import CONTINUABLE, Node
from antiphon.store import MovedTipError, Record, UnknownParentError

_log = logging.getLogger("antiphon.engine")
_encode = msgspec.json.Encoder().encode

#: Events of one batch that are worked off without giving others a turn.
EVENTS_AT_ONCE = 500
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

    def __init__(
        self,
        plan: Plan,
        services: Services,
        *,
        hold: Hold | None = None,
        created_at: int | None = None,
        tells_errors: bool = True,
    ) -> None:
        """`hold`: the conversation that is taken for this round; it is let go when the round is over.

        `tells_errors`: whether an `error` event comes before `response.failed`.
        """
        self._plan = plan
        self._services = services
        self._store = services.rounds
        self._cache = services.windows
        self._is_kept = plan.request.store or services.lane is not None
        self._tells_errors = tells_errors
        self._hold = hold
        self.created_at = created_at if created_at is not None else int(time.time())
        self._begun = False
        self._closed = False
        request = plan.request
        obfuscate = request.stream_options is not None and bool(request.stream_options.include_obfuscation)
        self._sink = EventSink(emit=request.stream, obfuscate=obfuscate)
        self._assembler = Assembler(
            self._sink,
            node_id=plan.node_id,
            first_position=len(plan.given),
            is_taken=_make_is_taken(plan),
            single_call=request.parallel_tool_calls is False,
            hidden_tools=plan.toolbox.hidden,
            hidden_prefixes=plan.toolbox.hidden_prefixes,
            offered={tool.name: tool for tool in plan.toolbox.offered},
            show=_make_show(request),
            seal=_make_seal(plan, services),
            cite=plan.hosted.citations.find if plan.hosted is not None else None,
            foreign_ids=_make_foreign_ids(plan) if plan.target.backend.speaks_responses else None,
        )
        self._batches = self._open_stream()
        self._first: asyncio.Task[list[BackendEvent]] | None = None
        self._rest: asyncio.Task[None] | None = None
        self._recorded = False
        self._runs = False
        #: What kept it from being recorded as what it had become.
        self.failure: AntiphonError | None = None

    @property
    def id(self) -> str:
        """The response's id."""
        return self._plan.node_id

    @property
    def tenant(self) -> str:
        """Whose response it is."""
        return self._plan.tenant

    @property
    def plan(self) -> Plan:
        """What was laid out for it."""
        return self._plan

    @property
    def has_ended(self) -> bool:
        """Whether its outcome is known; it may still be on its way into the store."""
        return self._assembler.outcome is not None

    @property
    def has_failed(self) -> bool:
        """Whether it ended in a way that nothing can continue from."""
        outcome = self._assembler.outcome
        return self.failure is not None or outcome is None or outcome.status not in CONTINUABLE

    @property
    def is_recorded(self) -> bool:
        """Whether it is in the store with its end."""
        return self._recorded

    async def collect(self) -> Response:
        """The whole response at once; raises what made it fail.

        Where a tool was called that may have changed something, a failure is a response too: whoever is answered
        with an error asks again, and the tool would be called again.
        """
        try:
            await self._read_all()
            outcome = self._get_outcome()
            if outcome.error is not None and not self._has_acted():
                raise outcome.error
            return await self._record_whole(outcome)
        finally:
            await self.close()

    async def stop(self, error: AntiphonError) -> Response | None:
        """The server must stop while a response is collected: what the client is answered for the same reason.

        None where no tool was called: then the round is abandoned, and the client may well ask again.
        """
        if not self._has_acted():
            await self.abandon()
            return None
        try:
            await self._stop_upstream()
            self._assembler.fail(error)
            return await self._record_whole(self._get_outcome())
        finally:
            await self.close()

    async def _record_whole(self, outcome: Outcome) -> Response:
        try:
            return await self._record(outcome)
        except AntiphonError as error:
            if not self._has_acted():
                raise
            failed = Outcome(status="failed", error=error)
            return self._build("failed", self._store_outcome(failed))

    async def _read_all(self) -> None:
        try:
            async for batch in self._batches:
                if len(batch) <= EVENTS_AT_ONCE:
                    self._assembler.feed(batch)
                    continue
                async for portion in _in_portions(batch):
                    self._assembler.feed(portion)
            await self._batches.aclose()
        except AntiphonError as error:
            if not self._has_acted():
                raise
            self._assembler.fail(error)
        except Exception:
            if not self._has_acted():
                raise
            _log.exception("response %s failed by a fault of our own", self.id)
            self._assembler.fail(ProtocolError())

    def _has_acted(self) -> bool:
        """Whether an MCP tool was called for this response, here or by a server that speaks Responses."""
        hosted = self._plan.hosted
        if hosted is not None:
            return hosted.has_acted
        return any(decode_stored_item(raw).type == "mcp_call" for raw in self._assembler.output)

    async def close(self) -> None:
        """Let go of everything that the round held; a second call does nothing."""
        if self._closed:
            return
        self.release_conversation()
        await self._stop_upstream()
        if self._plan.hosted is not None:
            await self._plan.hosted.close()
        self._closed = True

    def release_conversation(self) -> None:
        """Nothing more of this round will be stored: its conversation is free."""
        if self._hold is not None:
            self._hold.release()

    async def start(self, wait_s: float) -> None:
        """Wait for the server's word, at most `wait_s`; raises its refusal if that comes in time."""
        self._first = asyncio.create_task(self._read_first())
        done, _ = await asyncio.wait({self._first}, timeout=wait_s)
        if done and self._first.exception() is not None:
            await self.close()
            self._first.result()

    def begin(self) -> list[EncodedEvent]:
        """The first events: the response exists, and waits if it is a background one."""
        if self._begun:
            return []
        self._begun = True
        status: ResponseStatus = "queued" if self._plan.request.background else "in_progress"
        response = _encode(self.build_snapshot(status))
        self._sink.send_response(events.ResponseCreated, response)
        if status == "queued":
            self._sink.send_response(events.ResponseQueued, response)
        return self._sink.take()

    async def events(self) -> AsyncGenerator[list[EncodedEvent], None]:
        """The events in batches, to the terminal one."""
        begun = self.begin()
        self._runs = True
        self._sink.send_response(events.ResponseInProgress, _encode(self.build_snapshot("in_progress")))
        yield [*begun, *self._sink.take()]
        try:
            if self._first is not None:
                await self._first
            async for batch in self._batches:
                if len(batch) > EVENTS_AT_ONCE:
                    async for portion in _in_portions(batch):
                        self._assembler.feed(portion)
                        if self._assembler.outcome is None and (ready := self._sink.take()):
                            yield ready
                else:
                    self._assembler.feed(batch)
                    if self._assembler.outcome is None and (ready := self._sink.take()):
                        yield ready
                if self._assembler.outcome is not None:
                    break
        except AntiphonError as error:
            self._assembler.fail(error)
        except Exception:  # noqa: BLE001 - the request is one of the three places that catch broadly
            _log.exception("response %s failed by a fault of our own", self.id)
            self._assembler.fail(ProtocolError())
        closing = self._sink.take() if self._plan.request.background else []
        if closing:
            # Stored before the end is: a server that is killed in between leaves no gap in the events.
            yield closing
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
            await self.close()

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
        try:
            return await self._end()
        finally:
            await self.close()

    async def cancel(self) -> list[EncodedEvent]:
        """Its client cancels a background response: nothing of the output is kept; hands out the terminal event."""
        if self._assembler.outcome is not None:
            return []
        await self._stop_upstream()
        self._assembler.cancel()
        self._assembler.output.clear()
        self._assembler.shown.clear()
        return await self._end()

    def build_snapshot(self, status: ResponseStatus) -> Response:
        """The response as it is before its end; in progress, with the items that are done."""
        return self._build(status, StoredOutcome(conversation=self._plan.origin.conversation))

    async def load_path(self) -> list[Node]:
        """The path with this round as its last node, before it is stored."""
        plan = self._plan
        path: list[Node] = []
        if plan.origin.node is not None:
            skip = plan.origin.conversation is not None
            path = await self._store.load_path(plan.tenant, plan.origin.node, skip_deleted=skip) or []
        items = b"[" + b",".join([item.raw for item in plan.given]) + b"]"
        return [*path, Node(id=plan.node_id, parent=plan.origin.node, input=items)]

    def show_progress(self) -> Response:
        """The response with what it has so far."""
        snapshot = self.build_snapshot("in_progress")
        snapshot.output = [msgspec.Raw(item) for item in self._assembler.shown]
        return snapshot

    def make_keep_alive(self) -> list[EncodedEvent]:
        """A repeated status event: clients' idle timers count real events alone."""
        if self._runs or not self._plan.request.background:
            self._sink.send_response(events.ResponseInProgress, _encode(self.build_snapshot("in_progress")))
        else:
            self._sink.send_response(events.ResponseQueued, _encode(self.build_snapshot("queued")))
        return self._sink.take()

    async def abandon(self) -> None:
        """The client left: stop the server's work and keep what there is as cancelled."""
        await self._stop_upstream()
        self._assembler.cancel()
        try:
            await self._keep_abandoned(self._get_outcome())
        finally:
            # Last: until it is stored, nothing else may be added to its conversation.
            await self.close()

    async def _keep_abandoned(self, outcome: Outcome) -> None:
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
        if not self._plan.request.generate:
            return self._warm_up()
        if self._plan.order is not None:
            return stream_compacting(self._plan, self._services, self._assembler, self._open_answer)
        return self._open_answer()

    def _open_answer(self) -> AsyncGenerator[list[BackendEvent], None]:
        if self._plan.load_history is not None:
            return self._stream_fitting(self._plan.load_history)
        return self._stream(self._plan.ask)

    async def _warm_up(self) -> AsyncGenerator[list[BackendEvent], None]:
        """Nothing is asked: the round is there to be continued."""
        yield [Opened()]
        self._assembler.end_unasked()

    def _stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        plan = self._plan
        return stream_steps(
            plan.target.backend,
            ask,
            toolbox=plan.toolbox,
            hosted=plan.hosted,
            assembler=self._assembler,
            warnings=plan.warnings,
            grammars=self._services.grammars.of_tenant(plan.tenant),
        )

    async def _stream_fitting(self, load: LoadHistory) -> AsyncGenerator[list[BackendEvent], None]:
        """With `truncation: auto`, a prompt that the server refuses for its length is sent again, shorter."""
        for attempt in range(OVERFLOW_ATTEMPTS):
            shown = False
            try:
                async with aclosing(self._stream(self._plan.ask)) as batches:
                    async for batch in batches:
                        if not shown:
                            raise_overflow(batch)
                        shown = shown or any(type(event) is not Opened for event in batch)
                        yield batch
                return
            except ContextOverflowError as error:
                if shown or not await self._shorten(error, load, attempt):
                    raise

    async def _shorten(self, error: ContextOverflowError, load: LoadHistory, attempt: int) -> bool:
        """Leave more out of the plan after a refusal; whether there was anything."""
        plan, services = self._plan, self._services
        if error.window_tokens is not None:
            services.catalog.learn_window(plan.target, error.window_tokens)
        if attempt == OVERFLOW_ATTEMPTS - 1:
            return False
        shorter = await after_overflow(
            error,
            Fitted(ask=plan.ask, dropped=plan.dropped),
            await load(),
            target=plan.target,
            counter=services.counter.of_tenant(plan.tenant),
            attempt=attempt,
        )
        if shorter is None:
            return False
        plan.ask, plan.dropped = shorter.ask, shorter.dropped
        plan.warnings[:] = [each for each in plan.warnings if each[0] != HISTORY_TRUNCATED]
        if shorter.warning is not None:
            plan.warnings.append(shorter.warning)
        if error.window_tokens is None:
            # What was refused may have been the output that was allowed with it.
            allowed = plan.ask.max_output_tokens or plan.request.max_output_tokens or 0
            services.catalog.learn_limit(plan.target, shorter.refused_tokens + allowed)
        return True

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
            self.failure = error
            return self._send_failure(error)
        finally:
            # Before the client hears of the end: it may go on in the conversation at once. The events of a
            # background stream have to be stored before that.
            if not (self._plan.request.background and self._plan.request.stream):
                self.release_conversation()
        if outcome.error is not None and self._tells_errors:
            self._sink.send_error(outcome.error)
        self._sink.send_response(_TERMINAL[outcome.status], _encode(response))
        return self._sink.take()

    def _send_failure(self, error: AntiphonError) -> list[EncodedEvent]:
        """The end of a response that is not kept as what it was."""
        outcome = Outcome(status="failed", error=error)
        if self._tells_errors:
            self._sink.send_error(error)
        self._sink.send_response(
            events.ResponseFailed, _encode(self._build("failed", self._store_outcome(outcome)))
        )
        return self._sink.take()

    async def _record(self, outcome: Outcome) -> Response:
        self._notice_truncation(outcome)
        stored = self._store_outcome(outcome)
        record = self._make_record(outcome, stored)
        if self._is_kept:
            try:
                await self._store.record(record, conversation=self._get_conversation(outcome))
            except UnknownParentError as error:
                # The parent was deleted while the model answered.
                parent = self._plan.origin.node or ""
                raise make_unknown_parent(
                    f"Previous response with id '{shorten_quoted(parent)}' not found."
                ) from error
            except MovedTipError as error:
                raise make_unknown_conversation(self._plan.origin.conversation or "") from error
            self._recorded = True
            if outcome.status in CONTINUABLE:
                self._try_keep_window(outcome)
        if outcome.first_prompt_tokens is not None:
            self._services.catalog.note_prompt(self._plan.target, outcome.first_prompt_tokens)
        if outcome.first_prompt_tokens is not None and self._plan.counts_all:
            plan = self._plan
            key = make_target_key(plan.target.backend, plan.target.model)
            self._services.counter.of_tenant(plan.tenant).note_ask(key, plan.ask, outcome.first_prompt_tokens)
        return self._build(outcome.status, stored, completed_at=record.completed_at)

    def _get_conversation(self, outcome: Outcome) -> str | None:
        """The conversation that the round is added to: a failed or cancelled one is not."""
        return self._plan.origin.conversation if outcome.status in CONTINUABLE else None

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
            conversation=self._plan.origin.conversation,
            dropped=[(item.id, item.type, item.tokens) for item in self._plan.dropped],
            prompts=_list_prompts(outcome),
            marks=(self._plan.request.antiphon or {}).get("marks") or {},
            passes=self._plan.passes,
        )

    def _warnings(self) -> list[tuple[str, str]]:
        return [*self._plan.warnings, *self._assembler.warnings]

    def _make_record(self, outcome: Outcome, stored: StoredOutcome) -> Record:
        plan = self._plan
        request = plan.request
        return Record(
            id=plan.node_id,
            parent=plan.origin.node,
            tenant=plan.tenant,
            status=outcome.status,
            created_at=self.created_at,
            # Of a background response the end is kept, whatever it was: its events expire by it.
            completed_at=int(time.time()) if outcome.status == "completed" or request.background else None,
            input=b"[" + b",".join([item.raw for item in plan.given]) + b"]",
            output=b"[" + b",".join(self._assembler.output) + b"]",
            settings=_encode(plan.settings),
            instructions=request.instructions.encode() if request.instructions is not None else None,
            tools=plan.tools,
            outcome=_encode(stored),
            client_ids=self._list_given_ids(),
        )

    def _list_given_ids(self) -> tuple[tuple[str, int], ...]:
        """The item ids that are not ours: the client's, and those of a server that names its items itself."""
        given = [
            (item_id, position)
            for position, item in enumerate(self._plan.given)
            if (item_id := get_item_id(item)) is not None
        ]
        if self._plan.target.backend.speaks_responses:
            first = len(self._plan.given)
            own = self._plan.node_id.partition("_")[2]
            given += [
                (item_id, first + offset)
                for offset, raw in enumerate(self._assembler.output)
                if (item_id := get_item_id(decode_stored_item(raw))) is not None and own not in item_id
            ]
        return tuple(given)

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
            self._list_answer(),
            prompt_tokens=outcome.last_prompt_tokens if not plan.dropped else None,
            made_with=plan.made_with,
        )
        window = extend(plan.window, step)
        self._cache.put(plan.tenant, plan.node_id, window, since_deletion=plan.since_deletion)

    def _list_answer(self) -> list[Item]:
        """The output, but for what the window that it was made from already holds."""
        output = [decode_stored_item(raw) for raw in self._assembler.output]
        if not self._plan.was_compacted:
            return output
        return output[max(at + 1 for at, item in enumerate(output) if is_compaction(item)) :]

    def _notice_truncation(self, outcome: Outcome) -> None:
        """The window only grew; if the server's count did not, the server cut the prompt and said nothing."""
        window = self._plan.window
        counted = outcome.first_prompt_tokens
        if counted is None or window.prompt_tokens is None or self._plan.dropped:
            return
        if window.prompt_made_with == self._plan.made_with and counted <= window.prompt_tokens:
            self._assembler.warnings.append(
                (
                    "upstream_truncated",
                    (
                        f"The history grew, but the model server counted {counted} prompt tokens "
                        f"after {window.prompt_tokens} before: it left out part of the history."
                    ),
                )
            )

    def _build(
        self, status: ResponseStatus, outcome: StoredOutcome, *, completed_at: int | None = None
    ) -> Response:
        plan = self._plan
        return build_response(
            response_id=plan.node_id,
            created_at=self.created_at,
            settings=plan.settings,
            status=status,
            instructions=plan.request.instructions,
            tools=plan.tools,
            parent=plan.origin.node,
            store=plan.request.store,
            completed_at=completed_at,
            output=(
                [msgspec.Raw(item) for item in self._assembler.shown]
                if status not in ("queued", "in_progress")
                else []
            ),
            outcome=outcome,
        )


async def _in_portions(batch: list[BackendEvent]) -> AsyncGenerator[list[BackendEvent], None]:
    """A very long batch bit by bit, so that other clients need not wait for all of it."""
    for start in range(0, len(batch), EVENTS_AT_ONCE):
        yield batch[start : start + EVENTS_AT_ONCE]
        await asyncio.sleep(0)


def _list_prompts(outcome: Outcome) -> tuple[int | None, int | None] | None:
    """The counts of the first prompt and of the last; None where usage is that of one prompt."""
    counts = (outcome.first_prompt_tokens, outcome.last_prompt_tokens)
    total = outcome.usage.input_tokens if outcome.usage is not None else None
    return None if counts == (total, total) else counts


def _make_is_taken(plan: Plan) -> Callable[[str], bool]:
    """Whether a call id stands on the path already. No method: the round and its assembler are no cycle."""
    calls = {call_id for item in plan.request.input if (call_id := get_call_id(item))}
    window = plan.window
    return lambda call_id: call_id in calls or window.has_call(call_id)


def _make_foreign_ids(plan: Plan) -> ForeignIds:
    """How the items of another server are named on this path."""
    ids = {item_id for item in plan.request.input if (item_id := get_item_id(item))}
    window = plan.window
    return ForeignIds(
        is_item_taken=lambda item_id: item_id in ids or window.has_item(item_id),
        is_call_taken=_make_is_taken(plan),
    )


def _make_show(request: CreateRequest) -> Callable[[bytes, str], bytes]:
    """What the client is shown of an item: all of it but what only `include` brings."""
    include = _list_included(request)
    return lambda item, item_type: show_item(item, item_type, include)


def _list_included(request: CreateRequest) -> tuple[str, ...]:
    """What the request includes; whoever keeps the conversation itself is given what it must send back."""
    return request.include if request.store else (*request.include, ENCRYPTED)


def _make_seal(plan: Plan, services: Services) -> Callable[[str], str] | None:
    """How reasoning is sealed for the client, where it asked for that."""
    if ENCRYPTED not in _list_included(plan.request):
        return None
    tenant, keys = plan.tenant, services.seal_keys

    def seal(text: str) -> str:
        try:
            return seal_reasoning(text, tenant, keys)
        except SealError:
            # Too long to be sealed: it stands in the summary alone.
            return ""

    return seal
