"""Durable tips in SQLite: create, change, delete, move on.

It knows no items. Invariant: metadata stands in `contents` alone, and is blanked there with the last use of it.
"""

from collections.abc import Sequence
from typing import Any

from antiphon.protocol.errors import StoreError
from antiphon.store.contents import Contents
from antiphon.store.interface import Conversation, MovedTipError
from antiphon.store.packing import pack_id, unpack_id
from antiphon.store.statements import Statements

#: Stored as no content at all.
_EMPTY = b"{}"


class ConversationTable:
    """Writes conversations; used by one thread, inside a transaction."""

    def __init__(self, sql: Statements, contents: Contents) -> None:
        self._sql = sql
        self._contents = contents

    def create(self, conversation: Conversation) -> None:
        """A new conversation without a tip. Raises `StoreError` for an id twice, or with a tip."""
        if conversation.tip is not None:
            raise StoreError("A new conversation has no tip.")
        packed = pack_id(conversation.id)
        if self._sql.fetch("find_conversation", (packed, conversation.tenant)) is not None:
            raise StoreError("A conversation with this id is stored already.")
        with self._sql.savepoint():
            tenant = self._contents.intern_tenant(conversation.tenant)
            metadata = self._intern_metadata(tenant, conversation.metadata)
            self._sql.execute("insert_conversation", (tenant, packed, conversation.created_at, metadata))

    def update(self, tenant: str, conversation_id: str, metadata: bytes) -> bool:
        """Other metadata; False when the tenant has no such conversation."""
        packed = pack_id(conversation_id)
        row = self._sql.fetch("find_conversation", (packed, tenant))
        if row is None:
            return False
        key, old = row
        with self._sql.savepoint():
            self._sql.execute("replace_metadata", (self._intern_metadata(key, metadata), key, packed))
            if old is not None:
                self._contents.drop_content(old)
        return True

    def delete(self, tenant: str, conversation_id: str) -> bool:
        """Remove the tip and the metadata; False when there is nothing to remove."""
        packed = pack_id(conversation_id)
        row = self._sql.fetch("find_conversation", (packed, tenant))
        if row is None:
            return False
        key, metadata = row
        with self._sql.savepoint():
            self._sql.execute("drop_conversation", (key, packed))
            if metadata is not None:
                self._contents.drop_content(metadata)
        return True

    def find_tip(self, tenant: int, conversation_id: str, parent: str | None) -> int | None:
        """The key of the tip, which must be `parent`. Raises `MovedTipError`."""
        row = self._sql.fetch("find_tip", (tenant, pack_id(conversation_id)))
        if row is None:
            raise MovedTipError
        key, stored_id = row
        if stored_id != (None if parent is None else pack_id(parent)):
            raise MovedTipError
        return None if key is None else int(key)

    def move_tip(self, tenant: int, conversation_id: str, node: int | None) -> None:
        """The conversation's newest node is this one."""
        self._sql.execute("move_tip", (node, tenant, pack_id(conversation_id)))

    def _intern_metadata(self, tenant: int, metadata: bytes) -> int | None:
        return None if metadata == _EMPTY else self._contents.intern_content(tenant, metadata)


def to_conversation(tenant: str, conversation_id: str, row: Sequence[Any]) -> Conversation:
    """A conversation from a row of `load_conversation`."""
    created_at, metadata, tip = row
    return Conversation(
        id=conversation_id,
        tenant=tenant,
        created_at=created_at,
        metadata=_EMPTY if metadata is None else metadata,
        tip=None if tip is None else unpack_id(tip),
    )
