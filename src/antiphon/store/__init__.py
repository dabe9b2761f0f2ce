"""Where rounds are kept. The interface stands here; bootstrap alone names an implementation."""

from antiphon.store.interface import (
    Conversation,
    EventChunk,
    Job,
    MovedTipError,
    Record,
    Store,
    StoreSettings,
    UnknownParentError,
)

__all__ = [
    "Conversation",
    "EventChunk",
    "Job",
    "MovedTipError",
    "Record",
    "Store",
    "StoreSettings",
    "UnknownParentError",
]
