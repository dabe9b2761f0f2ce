"""The part of the honest double that keeps conversations: their eight routes, and responses in them.

It knows no socket. Invariant: each method under "seams" is one thing that a server can get wrong.
"""

from typing import Any

import msgspec

from antiphon.checker.doubles.answering import AnsweringDouble, Record
from antiphon.checker.doubles.rules import Item, list_items
from antiphon.protocol.errors import NotFoundError, RequestError

#: Items that are added at once, at most.
MAX_NEW_ITEMS = 20
#: Items on a page, at most, and by default.
MAX_PAGE, PAGE = 100, 20


class Conversation(msgspec.Struct):
    """A conversation: its object, its items, and whether a response runs in it."""

    id: str
    metadata: dict[str, str]
    items: list[Item]
    is_locked: bool = False

    @property
    def object(self) -> dict[str, Any]:
        """As it is shown."""
        return {"id": self.id, "object": "conversation", "created_at": 0, "metadata": self.metadata}


class ConversingDouble(AnsweringDouble):
    """Keeps conversations for each key."""

    def __init__(self) -> None:
        super().__init__()
        self.shelves: dict[str, dict[str, Conversation]] = {}
        self.conversations: dict[str, Conversation] = self.shelves.setdefault("", {})

    # The seams.

    def find_conversation(self, conversation_id: str) -> Conversation:
        """The conversation of that id."""
        if conversation_id not in self.conversations:
            raise NotFoundError(f"Conversation with id '{conversation_id}' not found.")
        return self.conversations[conversation_id]

    def create_conversation(self, body: dict[str, Any]) -> Any:
        """A new conversation with its first items."""
        items = [self.name_item(self.link(item)) for item in list_items(body.get("items"))]
        made = Conversation(self.make_id("conv"), body.get("metadata") or {}, items)
        self.conversations[made.id] = made
        return made.object

    def read_conversation(self, conversation: Conversation) -> Any:
        """As it is."""
        return conversation.object

    def update_metadata(self, conversation: Conversation, metadata: dict[str, str]) -> None:
        """The new metadata takes the place of the old."""
        conversation.metadata = metadata

    def drop_conversation(self, conversation: Conversation) -> None:
        """Forgets it."""
        del self.conversations[conversation.id]

    def check_new_items(self, conversation: Conversation, items: Any) -> None:
        """Refuses no items, too many, and those that are there already."""
        if items is None:
            raise RequestError(
                "Missing required parameter: 'items'.", param="items", code="missing_required_parameter"
            )
        if not items:
            raise RequestError("Invalid 'items': empty array.", param="items", code="empty_array")
        if len(items) > MAX_NEW_ITEMS:
            raise RequestError(
                "Invalid 'items': array too long.", param="items", code="array_above_max_length"
            )
        self.check_not_there(conversation, items)

    def check_not_there(self, conversation: Conversation, items: list[Item]) -> None:
        """Refuses an item that stands in the conversation."""
        known = {item["id"] for item in conversation.items}
        if any(item.get("id") in known for item in items):
            raise RequestError(
                "Item already in conversation", param="items", code="item_already_in_conversation"
            )

    def add_items(self, conversation: Conversation, items: list[Item]) -> list[Item]:
        """Appends the items; gives them as they stand there."""
        added = [self.name_item(self.link(item)) for item in items]
        conversation.items.extend(added)
        return added

    def link(self, item: Item) -> Item:
        """The stored item of that id, whatever was sent along."""
        for conversation in self.conversations.values():
            for stored in conversation.items:
                if "id" in item and stored["id"] == item["id"]:
                    return stored
        return item

    def order_items(self, items: list[Item], order: str) -> list[Item]:
        """Newest first unless asked otherwise."""
        return items if order == "asc" else items[::-1]

    def find_item(self, conversation: Conversation, item_id: str) -> Item:
        """The item of that id."""
        for item in conversation.items:
            if item["id"] == item_id:
                return item
        raise NotFoundError(f"Item with id '{item_id}' not found.")

    def find_pair(self, conversation: Conversation, item: Item) -> list[Item]:
        """The item and what belongs to its call."""
        call_id = item.get("call_id")
        same = [other for other in conversation.items if call_id and other.get("call_id") == call_id]
        return same or [item]

    def check_lock(self, conversation: Conversation) -> None:
        """Refuses a second response while one runs."""
        if conversation.is_locked:
            raise RequestError(
                "Another process is currently operating on this conversation. Please retry in a few seconds.",
                param="conversation",
                code="conversation_locked",
            )

    def append_round(self, conversation: Conversation, record: Record, body: dict[str, Any]) -> None:
        """Adds input and output of a response that is stored."""
        if body.get("store", True) is not False:
            conversation.items.extend([*record.given, *record.response["output"]])

    # The machinery.

    def find_named(self, body: dict[str, Any]) -> Conversation | None:
        """The conversation that a request names."""
        named = body.get("conversation")
        if named is None:
            return None
        found = self.find_conversation(named.get("id", "") if isinstance(named, dict) else named)
        self.check_lock(found)
        return found

    def find_context(self, body: dict[str, Any], parent: Record | None) -> list[Item]:
        conversation = self.find_named(body)
        if conversation is not None:
            return [*conversation.items, *super().find_context(body, parent)]
        return super().find_context(body, parent)

    def echo_fields(self, body: dict[str, Any]) -> dict[str, Any]:
        conversation = self.find_named(body)
        told = {} if conversation is None else {"conversation": {"id": conversation.id}}
        return {**super().echo_fields(body), **told}

    def keep(self, record: Record, body: dict[str, Any]) -> None:
        super().keep(record, body)
        conversation = self.find_named(body)
        if conversation is not None:
            self.append_round(conversation, record, body)

    def make_page(self, items: list[Item], query: dict[str, str]) -> dict[str, Any]:
        """A page of items as the query asks for it."""
        limit, order = int(query.get("limit", PAGE)), query.get("order", "desc")
        if not 1 <= limit <= MAX_PAGE:
            raise RequestError("Invalid 'limit'.", param="limit", code="invalid_value")
        if order not in ("asc", "desc"):
            raise RequestError("Invalid 'order'.", param="order", code="invalid_value")
        ordered = self.order_items(items, order)
        after = query.get("after")
        if after is not None:
            ids = [item["id"] for item in ordered]
            if after not in ids:
                raise NotFoundError(f"No item found with id '{after}'.", param="after")
            ordered = ordered[ids.index(after) + 1 :]
        page = ordered[:limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(ordered) > limit,
        }

    def route_conversations(
        self, method: str, rest: list[str], body: dict[str, Any], query: dict[str, str]
    ) -> Any:
        """Answers a request under /conversations; None where there is no such route."""
        if not rest:
            return self.create_conversation(body) if method == "POST" else None
        conversation = self.find_conversation(rest[0])
        if len(rest) == 1:
            return self._route_one(method, conversation, body)
        if len(rest) == 2:
            if method == "GET":
                return self.make_page(conversation.items, query)
            self.check_new_items(conversation, body.get("items"))
            added = self.add_items(conversation, list_items(body["items"]))
            return {**self.make_page(added, {"order": "asc"}), "has_more": False}
        item = self.find_item(conversation, rest[2])
        if method == "GET":
            return item
        gone = self.find_pair(conversation, item)
        conversation.items = [other for other in conversation.items if other not in gone]
        return conversation.object

    def _route_one(self, method: str, conversation: Conversation, body: dict[str, Any]) -> Any:
        if method == "DELETE":
            self.drop_conversation(conversation)
            return {"id": conversation.id, "object": "conversation.deleted", "deleted": True}
        if method == "POST":
            self.update_metadata(conversation, body.get("metadata") or {})
        return self.read_conversation(conversation)
