"""The models routes, and Chat Completions handed on as it came."""

import contextlib
from typing import Any

import msgspec

from antiphon.engine import Engine, Relayed
from antiphon.engine.relay import open_relay
from antiphon.protocol.errors import BackendError, ForbiddenError, NotFoundError, RequestError, shorten_quoted
from antiphon.protocol.responses import ModelList, ModelObject
from antiphon.server.route import Call, RouteSpec

_encode = msgspec.json.Encoder().encode


class SentChat(msgspec.Struct):
    """A Chat Completions request: only the model is read, the rest goes on as it came."""

    model: str
    messages: list[Any]


class ModelRoutes:
    """What there is to ask, and asking it in another API."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list_specs(self) -> tuple[RouteSpec, ...]:
        """The routes."""
        return (
            RouteSpec(
                method="GET",
                path="/v1/models",
                name="listModels",
                summary="The models that requests may name.",
                handler=self._list,
                answer=ModelList,
                errors=("502",),
            ),
            RouteSpec(
                method="GET",
                path="/v1/models/{model:path}",
                name="retrieveModel",
                summary="One model.",
                handler=self._get,
                answer=ModelObject,
                errors=("404",),
            ),
            RouteSpec(
                method="DELETE",
                path="/v1/models/{model:path}",
                name="deleteModel",
                summary="Refused: models belong to their servers.",
                handler=self._delete,
                errors=("404",),
            ),
            RouteSpec(
                method="POST",
                path="/v1/chat/completions",
                name="createChatCompletion",
                summary="A Chat Completions request, handed on to the model's server unchanged.",
                handler=self._relay,
                body=SentChat,
                errors=("404", "429", "502", "503", "504"),
                streams=True,
                asks_model=True,
            ),
        )

    async def _list(self, call: Call) -> bytes:
        return _encode(ModelList(data=await self._list_objects()))

    async def _get(self, call: Call) -> bytes:
        model = await self._find(call.get_path("model"))
        # The model is listed whether or not its server can be asked now.
        with contextlib.suppress(BackendError, RequestError):
            model.antiphon = await self._engine.tell_model(model.id)
        return _encode(model)

    async def _delete(self, call: Call) -> bytes:
        model = await self._find(call.get_path("model"))
        raise ForbiddenError(
            f"The model '{model.id}' belongs to its server, so it cannot be deleted here; delete it there.",
            param="model",
        )

    async def _relay(self, call: Call) -> Relayed:
        return await open_relay(self._engine.services.catalog, call.body)

    async def _list_objects(self) -> list[ModelObject]:
        rows = await self._engine.list_models()
        return [ModelObject(row.name, "model", row.created, row.owned_by) for row in rows]

    async def _find(self, name: str) -> ModelObject:
        for model in await self._list_objects():
            if model.id == name:
                return model
        raise NotFoundError(
            f"The model '{shorten_quoted(name)}' does not exist.", param="model", code="model_not_found"
        )
