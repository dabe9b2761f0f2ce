"""The ids of items that another server made: kept where a client can use them, else replaced by ours for good.

It knows ids and the members of one item, no stream and no store. Invariants: an id that is handed out names one item
of its path and can be sent back; one of the form of our own is always ours, so what bears the id of its node and
place was made here.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from antiphon.engine.ids import make_call_id, make_item_id
from antiphon.engine.names import is_legal_call_id
from antiphon.engine.references import parse_derived_id
from antiphon.protocol.item_forms import derive_item_id
from antiphon.protocol.items import CALL_OUTPUT_TYPES, ID_PREFIXES

#: It stands in paths of URLs, so it holds nothing that would be escaped or resolved there.
_LEGAL_ID: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.:-]{0,63}")
_decode = msgspec.json.Decoder().decode


class ForeignIds:
    """The ids of one response's items. `is_item_taken`, `is_call_taken`: whether an id stands on the path already."""

    def __init__(self, *, is_item_taken: Callable[[str], bool], is_call_taken: Callable[[str], bool]) -> None:
        self._is_item_taken = is_item_taken
        self._is_call_taken = is_call_taken
        self._items: set[str] = set()
        self._calls: set[str] = set()
        #: The call ids that were replaced: what answers such a call within the response bears the new one too.
        self._replaced: dict[str, str] = {}

    def name(self, item_type: str, fields: Mapping[str, msgspec.Raw]) -> dict[str, str]:
        """The ids that an item is handed out with: always `id`, and `call_id` where another stands in its place."""
        told = _read(fields, "id")
        item_id = told if isinstance(told, str) and self._is_usable(told, item_type) else None
        if item_id is None:
            item_id = make_item_id(derive_item_id(item_type, "", 0).partition("_")[0])
        self._items.add(item_id)
        call_id = self._fit_call_id(item_type, _read(fields, "call_id"))
        return {"id": item_id} if call_id is None else {"id": item_id, "call_id": call_id}

    def _is_usable(self, item_id: str, item_type: str) -> bool:
        return (
            _LEGAL_ID.fullmatch(item_id) is not None
            and item_id.startswith(ID_PREFIXES.get(item_type, ""))
            and parse_derived_id(item_id) is None
            and item_id not in self._items
            and not self._is_item_taken(item_id)
        )

    def _fit_call_id(self, item_type: str, told: object) -> str | None:
        """Another id for a call, or for what answers it; None where the told one will do."""
        if not isinstance(told, str):
            return None
        is_call = item_type in CALL_OUTPUT_TYPES
        if not is_call and told in self._replaced:
            return self._replaced[told]
        is_usable = is_legal_call_id(told)
        if is_call:
            is_usable = is_usable and told not in self._calls and not self._is_call_taken(told)
            if is_usable:
                self._calls.add(told)
                # What answered an earlier call of this id answers this one from here on.
                self._replaced.pop(told, None)
        if is_usable:
            return None
        self._replaced[told] = make_call_id()
        return self._replaced[told]


def _read(fields: Mapping[str, msgspec.Raw], name: str) -> object:
    return _decode(fields[name]) if name in fields else None
