"""What the server can do with responses: make one, read one, list its items, delete it, tell the models.

It knows stores and backends through their interfaces and no transport. Invariant: every call names a
tenant, and sees that tenant's data alone.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from antiphon.backends import ModelFacts
from antiphon.context.window_report import WindowReport
from antiphon.engine.background import Background, BackgroundSettings
from antiphon.engine.compact_window import compact_window
from antiphon.engine.compaction_orders import order_compaction
from antiphon.engine.connection import Connection
from antiphon.engine.continuing import Origin
from antiphon.engine.conversations import Conversations, Hold
from antiphon.engine.counting import count_input, make_target_key
from antiphon.engine.credentials import cut_secrets, refuse_secrets
from antiphon.engine.gather import gather
from antiphon.engine.ids import make_node_id
from antiphon.engine.jobs import StoredJob
from antiphon.engine.listing import list_input_items
from antiphon.engine.live import LiveResponse
from antiphon.engine.paths import list_living
from antiphon.engine.reports import report_window
from antiphon.engine.retention import apply_zero_retention
from antiphon.engine.round import Round
from antiphon.engine.services import Services
from antiphon.engine.settings import build_response, decode_outcome, decode_settings
from antiphon.engine.unstored import LaneRounds, UnstoredMemory, UnstoredRounds
from antiphon.protocol.errors import NotFoundError, RequestError, StoreError, shorten_quoted
from antiphon.protocol.items import decode_stored_item
from antiphon.protocol.requests import CreateRequest, decode_create_request
from antiphon.protocol.responses import (
    CompactedResponse,
    DeletedResponse,
    InputTokens,
    ListPage,
    ModelTold,
    Response,
)
from antiphon.protocol.showing import show_item
from antiphon.store import Job, Record

#: Memory for responses that only their connection can continue, where nothing else is configured.
UNSTORED_BYTES = 256 << 20


class Engine:
    """The one object behind every route."""

    def __init__(
        self,
        services: Services,
        *,
        background: BackgroundSettings | None = None,
        unstored_bytes: int = UNSTORED_BYTES,
    ) -> None:
        """`unstored_bytes`: memory for what connections can continue although it is not stored."""
        self.services = services
        self._store = services.store
        self._unstored = UnstoredMemory(unstored_bytes)
        self.conversations = Conversations(services.store, self._forget)
        self.background = Background(
            services.store,
            background or BackgroundSettings(),
            conversations=self.conversations,
            reopen=self._reopen,
            retrieve=self._retrieve_stored,
        )

    async def start(self) -> None:
        """See to what an earlier server left unfinished; call it once, before the first request."""
        await self.background.start()

    async def open_round(
        self,
        request: CreateRequest,
        tenant: str,
        *,
        zero_retention: bool = False,
        node_id: str | None = None,
        created_at: int | None = None,
        hold: Hold | None = None,
        lane: LaneRounds | None = None,
        tells_errors: bool = True,
    ) -> Round:
        """Check a request and lay out its round; raises `RequestError` for anything that cannot be done.

        `hold`: its conversation, where that is taken already. `lane`: where a response that is not stored is kept
        to be continued. `tells_errors`: whether an `error` event comes before `response.failed`.
        """
        if zero_retention:
            apply_zero_retention(request)
        if request.background and not request.store:
            raise RequestError(
                "Invalid 'background': a background response has to be stored. Send 'store': true, or leave it out.",
                param="background",
                code="invalid_value",
            )
        try:
            if request.store:
                refuse_secrets(request.input, "input")
            origin = Origin(node=request.previous_response_id)
            if request.conversation is not None:
                # Looked up first: a conversation that is not there is not locked.
                await self.conversations.load(tenant, request.conversation)
                hold = hold or await self.conversations.take(tenant, request.conversation)
                conversation = await self.conversations.load(tenant, request.conversation)
                origin = Origin(node=conversation.tip, conversation=conversation.id)
            services = self.services if lane is None else replace(self.services, lane=lane)
            plan = await gather(request, tenant, origin, services, node_id=node_id)
            return Round(plan, services, hold=hold, created_at=created_at, tells_errors=tells_errors)
        except BaseException:
            if hold is not None:
                hold.release()
            raise

    def connect(self, tenant: str, *, zero_retention: bool = False) -> Connection:
        """A connection that may continue its own responses whether or not they are stored."""
        rounds = UnstoredRounds(tenant, self._store, self.services.cache, self._unstored)
        return Connection(self.open_round, rounds, tenant, zero_retention=zero_retention)

    async def submit(
        self, request: CreateRequest, body: bytes, tenant: str, *, zero_retention: bool
    ) -> LiveResponse:
        """Queue a background response; `body` is the request as it came, to run it again after a crash."""
        round_ = await self.open_round(request, tenant, zero_retention=zero_retention)
        kept, needs_secrets = cut_secrets(body, request)
        plan = round_.plan
        job = StoredJob(
            body=msgspec.Raw(kept),
            settings=msgspec.Raw(msgspec.json.encode(plan.settings)),
            input=msgspec.Raw(b"[" + b",".join([item.raw for item in plan.given]) + b"]"),
            stream=request.stream,
            parent=plan.origin.node,
            conversation=plan.origin.conversation,
            instructions=request.instructions,
            tools=msgspec.Raw(plan.tools or b"null"),
        )
        try:
            return await self.background.submit(round_, job, needs_secrets=needs_secrets)
        except BaseException:
            await round_.close()
            raise

    async def _reopen(self, job: Job, stored: StoredJob, hold: Hold | None) -> Round:
        request = decode_create_request(bytes(stored.body))
        return await self.open_round(
            request, job.tenant, node_id=job.id, created_at=job.created_at, hold=hold
        )

    async def retrieve(self, tenant: str, response_id: str, include: Sequence[str] = ()) -> Response:
        """A stored response as it was sent, or a background one as it stands."""
        live = self.background.find(tenant, response_id)
        if live is not None:
            return live.show()
        return await self._retrieve_stored(tenant, response_id, include)

    async def _retrieve_stored(self, tenant: str, response_id: str, include: Sequence[str] = ()) -> Response:
        record = await self._load(tenant, response_id)
        return build_response(
            response_id=record.id,
            created_at=record.created_at,
            settings=decode_settings(record.settings),
            status=record.status,
            instructions=record.instructions.decode() if record.instructions is not None else None,
            tools=record.tools,
            parent=record.parent,
            completed_at=record.completed_at,
            output=[_show(raw, include) for raw in list_living(record.output)],
            outcome=decode_outcome(record.outcome),
        )

    async def delete(self, tenant: str, response_id: str) -> DeletedResponse:
        """Delete a response for good; what continues from it cannot be continued any more."""
        is_running = self.background.find(tenant, response_id) is not None
        if is_running or not await self.background.settle(tenant, response_id):
            raise RequestError(
                f"Response with id '{shorten_quoted(response_id)}' has not ended, so it cannot be deleted; "
                "cancel it first."
            )
        if not response_id.startswith("resp_"):
            # What was added to a conversation is a node of the tree too, and no response.
            raise _not_found(response_id)
        try:
            deleted = await self._store.delete(tenant, response_id)
        except StoreError:
            # The content may be gone although its wiping failed; it must not be read from memory either.
            self._forget(response_id)
            raise
        if not deleted:
            raise _not_found(response_id)
        self._forget(response_id)
        return DeletedResponse(id=response_id)

    async def list_input_items(
        self,
        tenant: str,
        response_id: str,
        *,
        limit: int,
        after: str | None,
        newest_first: bool,
        include: Sequence[str] = (),
    ) -> ListPage:
        """A page of the items that the response answered."""
        live = self.background.find(tenant, response_id)
        if live is not None:
            path = await live.load_path()
            return list_input_items(
                path, limit=limit, after=after, newest_first=newest_first, include=include
            )
        record = await self._load(tenant, response_id)
        in_conversation = decode_outcome(record.outcome).conversation is not None
        # The response itself may be there although something above it was deleted.
        path = await self._store.load_path(tenant, response_id, skip_deleted=in_conversation) or [record]
        return list_input_items(path, limit=limit, after=after, newest_first=newest_first, include=include)

    async def count_input(self, request: CreateRequest, tenant: str) -> InputTokens:
        """How many tokens the input of a request has, as the model would see it now."""
        origin = Origin(node=request.previous_response_id)
        if request.conversation is not None:
            conversation = await self.conversations.load(tenant, request.conversation)
            origin = Origin(node=conversation.tip, conversation=conversation.id)
        plan = await gather(request, tenant, origin, self.services, counts_only=True)
        count = await count_input(
            plan.ask,
            plan.target.backend,
            self.services.counter.of_tenant(tenant),
            make_target_key(plan.target.backend, plan.target.model),
        )
        answer = InputTokens(input_tokens=count.tokens)
        if not (count.exact and plan.counts_all):
            answer.antiphon = {"estimated": True}
        return answer

    async def get_window(self, tenant: str, response_id: str) -> WindowReport:
        """What the model saw when it made a stored response, item by item."""
        if self.background.find(tenant, response_id) is not None:
            raise RequestError(
                f"Response with id '{shorten_quoted(response_id)}' has not ended, so its window cannot be told "
                "yet; wait for its end."
            )
        return await report_window(await self._load(tenant, response_id), tenant, self.services)

    async def compact(
        self, request: CreateRequest, tenant: str, *, zero_retention: bool = False
    ) -> CompactedResponse:
        """Compact a window: its user messages that are kept, then one compaction item. Nothing of it is stored.

        Raises `RequestError`, or `CompactionFailedError` where what must stay does not fit.
        """
        if zero_retention:
            apply_zero_retention(request)
        node_id = f"resp_{make_node_id()}"
        order = order_compaction(request)
        origin = Origin(node=request.previous_response_id)
        plan = await gather(request, tenant, origin, self.services, node_id=node_id, order=order)
        return await compact_window(plan, order, self.services)

    def _forget(self, node_id: str) -> None:
        """Something of a node was deleted: nothing in memory that was made of it is used again."""
        self.services.opened.forget()
        self.services.passes.forget()
        self.services.cache.forget_node(node_id)
        self.services.counter.forget()

    async def list_models(self) -> list[ModelFacts]:
        """Every model name that a request may use."""
        return await self.services.catalog.list_models()

    async def tell_model(self, name: str) -> ModelTold:
        """What is known of one model; raises as a request that names it would."""
        target = await self.services.catalog.find(name)
        profile = target.profile
        return ModelTold(
            window_tokens=target.window_tokens, sees_images=profile.sees_images, efforts=profile.efforts
        )

    async def check(self) -> None:
        """Raise unless a request could be stored now."""
        await self._store.check()

    async def close(self) -> None:
        """Stop background work, close what was opened outside, then the store."""
        await self.background.close()
        await self.services.catalog.close()
        await self.services.close()
        await self._store.close()

    async def _load(self, tenant: str, response_id: str) -> Record:
        record = await self._store.load(tenant, response_id)
        if record is None or record.kind != "response":
            raise _not_found(response_id)
        return record


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(f"Response with id '{shorten_quoted(response_id)}' not found.")


#: What stands in the items of which a client may see less than is stored.
_MARKS = (b'"web_search_call"', b'"mcp_list_tools"', b'"mcp_approval_request"', b'"encrypted_content"')


def _show(raw: msgspec.Raw, include: Sequence[str]) -> msgspec.Raw:
    """A stored item as a client sees it; the few types of which it sees less are told by their name alone."""
    stored = bytes(raw)
    if not any(mark in stored for mark in _MARKS):
        return raw
    return msgspec.Raw(show_item(stored, decode_stored_item(stored).type, include))
