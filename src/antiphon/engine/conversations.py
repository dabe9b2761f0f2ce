"""Conversations: durable tips on the one tree, and the items along the path to them.

It knows the store, and no model. Invariant: one response at a time runs in a conversation, and nothing is
added to it or deleted from it meanwhile; changes that need no model wait for each other.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias
from weakref import WeakValueDictionary

import msgspec

from antiphon.engine.credentials import refuse_secrets
from antiphon.engine.ids import make_node_id
from antiphon.engine.listing import find_halves, find_places, list_items
from antiphon.engine.paths import Place, read_places
from antiphon.engine.references import find_stored_item
from antiphon.protocol.errors import NotFoundError, RequestError, shorten_quoted
from antiphon.protocol.item_forms import normalise_item
from antiphon.protocol.items import Item, get_call_id, get_item_id, is_call, is_call_output
from antiphon.protocol.responses import ConversationObject, DeletedConversation, ListPage
from antiphon.protocol.showing import show_item
from antiphon.sessions import Node
from antiphon.sessions.pairing import check_order
from antiphon.store import Conversation, MovedTipError, Record, Store

#: Told which node's windows must not be used again.
Forget: TypeAlias = Callable[[str], None]
#: Tenant and conversation.
_Key: TypeAlias = tuple[str, str]

_encode = msgspec.json.Encoder().encode
_decode_metadata = msgspec.json.Decoder(dict[str, str]).decode


class Conversations:
    """Every conversation of every tenant; `forget` is told of nodes whose windows must not be used again."""

    def __init__(self, store: Store, forget: Forget) -> None:
        self._store = store
        self._forget = forget
        self._locked: set[_Key] = set()
        #: One for each conversation that is being changed.
        self._changes: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()

    async def create(
        self, tenant: str, items: Sequence[Item], metadata: dict[str, str]
    ) -> ConversationObject:
        """A new conversation, with items at once if there are any."""
        conversation = Conversation(
            id=f"conv_{make_node_id()}",
            tenant=tenant,
            created_at=int(time.time()),
            metadata=_encode(metadata),
        )
        new = await self._prepare(conversation, items)
        await self._store.create_conversation(conversation)
        if new:
            await self._append(conversation, new)
        return _to_object(conversation)

    async def retrieve(self, tenant: str, conversation_id: str) -> ConversationObject:
        """What is known of a conversation beside its items."""
        return _to_object(await self.load(tenant, conversation_id))

    async def update(self, tenant: str, conversation_id: str, metadata: dict[str, str]) -> ConversationObject:
        """Replace the metadata."""
        if not await self._store.update_conversation(tenant, conversation_id, _encode(metadata)):
            raise make_unknown_conversation(conversation_id)
        return await self.retrieve(tenant, conversation_id)

    async def delete(self, tenant: str, conversation_id: str) -> DeletedConversation:
        """Delete the conversation; its items stay where responses hold them."""
        async with self._change(tenant, conversation_id):
            if not await self._store.delete_conversation(tenant, conversation_id):
                raise make_unknown_conversation(conversation_id)
        return DeletedConversation(id=conversation_id)

    async def add_items(
        self, tenant: str, conversation_id: str, items: Sequence[Item], include: Sequence[str] = ()
    ) -> ListPage:
        """Append items; the page holds them alone, in the order of the request."""
        async with self._change(tenant, conversation_id):
            conversation = await self.load(tenant, conversation_id)
            new = await self._prepare(conversation, items)
            node = await self._append(conversation, new)
        rows = [(place.id, place.item) for place in read_places(node)]
        data = [msgspec.Raw(show_item(normalise_item(item, id_), item.type, include)) for id_, item in rows]
        return ListPage(data=data, first_id=rows[0][0], last_id=rows[-1][0])

    async def list_items(
        self,
        tenant: str,
        conversation_id: str,
        *,
        limit: int,
        after: str | None,
        newest_first: bool,
        include: Sequence[str] = (),
    ) -> ListPage:
        """A page of the conversation's items."""
        path = await self._read(await self.load(tenant, conversation_id))
        return list_items(path, limit=limit, after=after, newest_first=newest_first, include=include)

    async def get_item(
        self, tenant: str, conversation_id: str, item_id: str, include: Sequence[str] = ()
    ) -> bytes:
        """One item in its normal form."""
        path = await self._read(await self.load(tenant, conversation_id))
        found = find_places(path, item_id)
        if not found:
            raise _make_unknown_item(item_id, conversation_id)
        place = found[-1][1]
        return show_item(normalise_item(place.item, place.id), place.item.type, include)

    async def delete_item(self, tenant: str, conversation_id: str, item_id: str) -> ConversationObject:
        """Blank an item and its other half (a call's output, an output's call) for good."""
        async with self._change(tenant, conversation_id):
            conversation = await self.load(tenant, conversation_id)
            path = await self._read(conversation)
            found = find_places(path, item_id)
            if not found:
                raise _make_unknown_item(item_id, conversation_id)
            for node_id, positions in _add_halves(path, found).items():
                try:
                    await self._store.blank_items(tenant, node_id, sorted(positions))
                finally:
                    # Where wiping failed the content may be gone all the same.
                    self._forget(node_id)
        return _to_object(conversation)

    async def load(self, tenant: str, conversation_id: str) -> Conversation:
        """The conversation itself; raises `NotFoundError`."""
        conversation = await self._store.load_conversation(tenant, conversation_id)
        if conversation is None:
            raise make_unknown_conversation(conversation_id)
        return conversation

    async def take(self, tenant: str, conversation_id: str) -> "Hold":
        """Take the conversation for one response; raises `conversation_locked` while another has it."""
        key = (tenant, conversation_id)
        async with self._get_lock(key):
            self._refuse_locked(key)
            return Hold(self._locked, key)

    @asynccontextmanager
    async def _change(self, tenant: str, conversation_id: str) -> AsyncGenerator[None, None]:
        """A change that takes no model's time: it waits for others, and is refused while a response runs."""
        key = (tenant, conversation_id)
        async with self._get_lock(key):
            self._refuse_locked(key)
            yield

    def _get_lock(self, key: "_Key") -> asyncio.Lock:
        return self._changes.setdefault(key, asyncio.Lock())

    def _refuse_locked(self, key: "_Key") -> None:
        if key in self._locked:
            raise RequestError(
                "Another process is currently operating on this conversation. Please retry in a few seconds.",
                param="conversation",
                code="conversation_locked",
            )

    async def _read(self, conversation: Conversation) -> list[Node]:
        if conversation.tip is None:
            return []
        path = await self._store.load_path(conversation.tenant, conversation.tip, skip_deleted=True)
        return path or []

    async def _prepare(self, conversation: Conversation, items: Sequence[Item]) -> list[Item]:
        """The items as they are kept: one with an id that exists already is the stored item, whatever was sent."""
        refuse_secrets(items, "items")
        new: list[Item] = []
        linked: list[str] = []
        ids: set[str] = set()
        for position, item in enumerate(items):
            item_id = get_item_id(item)
            stored = None
            if item_id is not None:
                if item_id in ids:
                    raise _make_twice()
                ids.add(item_id)
                stored = await find_stored_item(conversation.tenant, item_id, self._store)
                if stored is not None:
                    linked.append(item_id)
            if item.type == "item_reference" and stored is None:
                raise NotFoundError(
                    f"Item with id '{shorten_quoted(item_id or '')}' not found.", param="items"
                )
            kept = stored or item
            _refuse_unkept(kept, position)
            new.append(kept)
        if linked or any(map(_is_half, new)):
            # Else nothing of the path, which may be long, can matter: an id that is not stored is not there.
            path = await self._read(conversation)
            if any(find_places(path, item_id) for item_id in linked):
                raise _make_twice()
            call_ids = [call_id for item in new if _is_half(item) and (call_id := get_call_id(item))]
            check_order(find_halves(path, call_ids), new)
        return new

    async def _append(self, conversation: Conversation, items: Sequence[Item]) -> Record:
        record = Record(
            id=f"items_{make_node_id()}",
            parent=conversation.tip,
            kind="items",
            tenant=conversation.tenant,
            created_at=int(time.time()),
            input=b"[" + b",".join([item.raw for item in items]) + b"]",
            client_ids=tuple(
                (item_id, at) for at, item in enumerate(items) if (item_id := get_item_id(item)) is not None
            ),
        )
        try:
            await self._store.record(record, conversation=conversation.id)
        except MovedTipError as error:
            raise make_unknown_conversation(conversation.id) from error
        return record


class Hold:
    """A conversation taken; `release` it."""

    __slots__ = ("_key", "_locked")

    def __init__(self, locked: "set[_Key]", key: "_Key") -> None:
        locked.add(key)
        self._locked: set[_Key] | None = locked
        self._key = key

    def release(self) -> None:
        """Let go; a second call does nothing, for the conversation may be another one's by then."""
        if self._locked is not None:
            self._locked.discard(self._key)
            self._locked = None


def make_unknown_conversation(conversation_id: str) -> NotFoundError:
    """The answer to a conversation that is not there, or not the tenant's."""
    return NotFoundError(f"Conversation with id '{shorten_quoted(conversation_id)}' not found.")


def _make_twice() -> RequestError:
    return RequestError("Item already in conversation", param="items", code="item_already_in_conversation")


def _to_object(conversation: Conversation) -> ConversationObject:
    return ConversationObject(
        id=conversation.id,
        created_at=conversation.created_at,
        metadata=_decode_metadata(conversation.metadata),
    )


def _refuse_unkept(item: Item, position: int) -> None:
    """A control signal is no item to keep, empty reasoning tells nothing, and an output must name its call."""
    value = item.value
    if is_call_output(item) and not get_call_id(item):
        where = f"items[{position}].call_id"
        text = f"Missing required parameter: '{where}'."
        raise RequestError(text, param=where, code="missing_required_parameter")
    if item.type == "compaction_trigger":
        raise RequestError(
            f"Invalid value: 'compaction_trigger' at 'items[{position}]' is a signal, not an item that is kept.",
            param=f"items[{position}]",
            code="invalid_value",
        )
    if (
        item.type == "reasoning"
        and get_item_id(item) is None
        and getattr(value, "encrypted_content", None) is None
    ):
        raise RequestError(
            f"Missing required parameter: 'items[{position}].encrypted_content'. A reasoning item needs an id or "
            "its encrypted content.",
            param=f"items[{position}].encrypted_content",
            code="missing_required_parameter",
        )


def _make_unknown_item(item_id: str, conversation_id: str) -> NotFoundError:
    return NotFoundError(
        f"Item with id '{shorten_quoted(item_id)}' not found in conversation '{shorten_quoted(conversation_id)}'."
    )


def _add_halves(path: Sequence[Node], found: Sequence[tuple[Node, Place]]) -> dict[str, set[int]]:
    """What is deleted with some places, by node: they, and every call and output with the call id of one."""
    positions: dict[str, set[int]] = {}
    for node, place in found:
        positions.setdefault(node.id, set()).add(place.position)
    call_ids = {get_call_id(place.item) for _, place in found if _is_half(place.item)} - {None}
    if call_ids:
        for node in path:
            for place in read_places(node):
                if _is_half(place.item) and get_call_id(place.item) in call_ids:
                    positions.setdefault(node.id, set()).add(place.position)
    return positions


def _is_half(item: Item) -> bool:
    return is_call(item) or is_call_output(item)
