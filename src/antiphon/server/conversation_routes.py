"""The eight routes of the Conversations API."""

import msgspec

from antiphon.engine import Engine
from antiphon.engine.retention import refuse_conversation_write
from antiphon.protocol.conversation_requests import (
    SentConversation,
    SentItems,
    SentMetadata,
    decode_metadata_update,
    decode_new_conversation,
    decode_new_items,
)
from antiphon.protocol.responses import ConversationObject, DeletedConversation, ListPage
from antiphon.server.include import INCLUDE, read_include
from antiphon.server.route import AFTER, LIMIT, ORDER, Call, RouteSpec, read_limit, read_newest_first

_encode = msgspec.json.Encoder().encode
_ONE = "/v1/conversations/{conversation_id}"
_ITEMS = _ONE + "/items"
_ITEM = _ITEMS + "/{item_id}"


class ConversationRoutes:
    """Conversations over HTTP."""

    def __init__(self, engine: Engine) -> None:
        self._conversations = engine.conversations

    def list_specs(self) -> tuple[RouteSpec, ...]:
        """The routes."""
        return (*self._list_whole(), *self._list_item_specs())

    def _list_whole(self) -> tuple[RouteSpec, ...]:
        return (
            RouteSpec(
                method="POST",
                path="/v1/conversations",
                name="createConversation",
                summary="Create a conversation.",
                handler=self._create,
                answer=ConversationObject,
                body=SentConversation,
                body_optional=True,
                errors=("404",),
            ),
            RouteSpec(
                method="GET",
                path=_ONE,
                name="retrieveConversation",
                summary="Read a conversation.",
                handler=self._retrieve,
                answer=ConversationObject,
                errors=("404",),
            ),
            RouteSpec(
                method="POST",
                path=_ONE,
                name="updateConversation",
                summary="Replace a conversation's metadata.",
                handler=self._update,
                answer=ConversationObject,
                body=SentMetadata,
                errors=("404",),
            ),
            RouteSpec(
                method="DELETE",
                path=_ONE,
                name="deleteConversation",
                summary="Delete a conversation; its items stay where responses hold them.",
                handler=self._delete,
                answer=DeletedConversation,
                errors=("404",),
            ),
        )

    def _list_item_specs(self) -> tuple[RouteSpec, ...]:
        return (
            RouteSpec(
                method="POST",
                path=_ITEMS,
                name="createConversationItems",
                summary="Add items to a conversation.",
                handler=self._add_items,
                answer=ListPage,
                body=SentItems,
                query=(INCLUDE,),
                errors=("404",),
            ),
            RouteSpec(
                method="GET",
                path=_ITEMS,
                name="listConversationItems",
                summary="The items of a conversation, newest first unless asked otherwise.",
                handler=self._list_items,
                answer=ListPage,
                query=(LIMIT, ORDER, AFTER, INCLUDE),
                errors=("404",),
            ),
            RouteSpec(
                method="GET",
                path=_ITEM,
                name="retrieveConversationItem",
                summary="One item of a conversation.",
                handler=self._get_item,
                query=(INCLUDE,),
                errors=("404",),
            ),
            RouteSpec(
                method="DELETE",
                path=_ITEM,
                name="deleteConversationItem",
                summary="Delete an item for good, a call together with its output.",
                handler=self._delete_item,
                answer=ConversationObject,
                errors=("404",),
            ),
        )

    async def _create(self, call: Call) -> bytes:
        refuse_conversation_write(zero_retention=call.access.zero_retention)
        new = decode_new_conversation(call.body)
        return _encode(await self._conversations.create(call.tenant, new.items, new.metadata))

    async def _retrieve(self, call: Call) -> bytes:
        return _encode(await self._conversations.retrieve(call.tenant, call.get_path("conversation_id")))

    async def _update(self, call: Call) -> bytes:
        refuse_conversation_write(zero_retention=call.access.zero_retention)
        metadata = decode_metadata_update(call.body)
        return _encode(
            await self._conversations.update(call.tenant, call.get_path("conversation_id"), metadata)
        )

    async def _delete(self, call: Call) -> bytes:
        return _encode(await self._conversations.delete(call.tenant, call.get_path("conversation_id")))

    async def _add_items(self, call: Call) -> bytes:
        refuse_conversation_write(zero_retention=call.access.zero_retention)
        items = decode_new_items(call.body)
        page = await self._conversations.add_items(
            call.tenant, call.get_path("conversation_id"), items, read_include(call)
        )
        return _encode(page)

    async def _list_items(self, call: Call) -> bytes:
        page = await self._conversations.list_items(
            call.tenant,
            call.get_path("conversation_id"),
            limit=read_limit(call),
            after=call.get_query("after"),
            newest_first=read_newest_first(call),
            include=read_include(call),
        )
        return _encode(page)

    async def _get_item(self, call: Call) -> bytes:
        return await self._conversations.get_item(
            call.tenant, call.get_path("conversation_id"), call.get_path("item_id"), read_include(call)
        )

    async def _delete_item(self, call: Call) -> bytes:
        conversation = await self._conversations.delete_item(
            call.tenant, call.get_path("conversation_id"), call.get_path("item_id")
        )
        return _encode(conversation)
