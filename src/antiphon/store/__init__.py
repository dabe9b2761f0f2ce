"""Where rounds are kept. The interface stands here; bootstrap alone names an implementation."""

from antiphon.store.interface import Record, Store, StoreSettings, UnknownParentError

__all__ = ["Record", "Store", "StoreSettings", "UnknownParentError"]
