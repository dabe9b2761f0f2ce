"""What the server can do with responses: make one, read one, list its items, delete it, tell the models.

It knows stores and backends through their interfaces and no transport. Invariant: every call names a
tenant, and sees that tenant's data alone.
"""

import msgspec

from antiphon.backends import ModelFacts
from antiphon.engine.catalog import Catalog
from antiphon.engine.gather import gather
from antiphon.engine.listing import list_input_items
from antiphon.engine.round import Round
from antiphon.engine.settings import Settings, StoredOutcome, build_response
from antiphon.engine.windows import WindowCache
from antiphon.protocol.errors import NotFoundError, StoreError
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.responses import DeletedResponse, ListPage, Response
from antiphon.store import Record, Store

_decode_settings = msgspec.json.Decoder(Settings).decode
_decode_outcome = msgspec.json.Decoder(StoredOutcome).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the engine."""

    window_cache_bytes: int = 256 << 20


class Engine:
    """The one object behind every route."""

    def __init__(self, *, catalog: Catalog, store: Store, settings: EngineSettings | None = None) -> None:
        self._catalog = catalog
        self._store = store
        self._cache = WindowCache((settings or EngineSettings()).window_cache_bytes)

    async def open_round(self, request: CreateRequest, tenant: str) -> Round:
        """Check a request and lay out its round; raises `RequestError` for anything that cannot be done."""
        plan = await gather(request, tenant, catalog=self._catalog, store=self._store, cache=self._cache)
        return Round(plan, store=self._store, cache=self._cache)

    async def retrieve(self, tenant: str, response_id: str) -> Response:
        """A stored response as it was sent."""
        record = await self._load(tenant, response_id)
        return build_response(
            response_id=record.id,
            created_at=record.created_at,
            settings=_decode_settings(record.settings),
            status=record.status,
            instructions=record.instructions.decode() if record.instructions is not None else None,
            tools=record.tools,
            parent=record.parent,
            completed_at=record.completed_at,
            output=_decode_raws(record.output),
            outcome=_decode_outcome(record.outcome),
        )

    async def delete(self, tenant: str, response_id: str) -> DeletedResponse:
        """Delete a response for good; what continues from it cannot be continued any more."""
        try:
            deleted = await self._store.delete(tenant, response_id)
        except StoreError:
            # The content may be gone although its wiping failed; it must not be read from memory either.
            self._cache.forget_node(response_id)
            raise
        if not deleted:
            raise _not_found(response_id)
        self._cache.forget_node(response_id)
        return DeletedResponse(id=response_id)

    async def list_input_items(
        self, tenant: str, response_id: str, *, limit: int, after: str | None, newest_first: bool
    ) -> ListPage:
        """A page of the items that the response answered."""
        path = await self._store.load_path(tenant, response_id)
        if path is None:
            # The response itself may be there although something above it was deleted.
            path = [await self._load(tenant, response_id)]
        return list_input_items(path, limit=limit, after=after, newest_first=newest_first)

    async def list_models(self) -> list[ModelFacts]:
        """Every model name that a request may use."""
        return await self._catalog.list_models()

    async def check(self) -> None:
        """Raise unless a request could be stored now."""
        await self._store.check()

    async def close(self) -> None:
        """Close backends, then the store."""
        await self._catalog.close()
        await self._store.close()

    async def _load(self, tenant: str, response_id: str) -> Record:
        record = await self._store.load(tenant, response_id)
        if record is None or record.kind != "response":
            raise _not_found(response_id)
        return record


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(f"Response with id '{response_id}' not found.")
