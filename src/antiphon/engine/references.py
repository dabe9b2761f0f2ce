"""References to stored items: `item_reference`, and reasoning that is an id alone, become the items they name.

It knows the store and ids, not requests. Invariant: an item is found under exactly the id that lists show it
by, by its own tenant alone; what is blanked or deleted is not found.
"""

import re
from collections.abc import Iterable

import msgspec

from antiphon.engine.round_store import RoundStore
from antiphon.protocol.errors import NotFoundError, RequestError, shorten_quoted
from antiphon.protocol.items import (
    Item,
    ItemReference,
    Reasoning,
    UnknownItem,
    decode_stored_item,
    derive_item_id,
    get_item_id,
)
from antiphon.store import Record

#: Reads of the store that the references of one request may cost: one for each round, one for each other id.
LOOKUPS_AT_MOST = 1000
#: Bytes of items that are read for the references of one request.
READ_BYTES_AT_MOST = 256 * 1024 * 1024
#: Kinds of nodes that hold items, by the prefix of their ids, the commoner one first.
NODE_PREFIXES = ("resp_", "items_")
#: Prefix, the node's 36 hex digits, the position in at least four.
_DERIVED = re.compile(r"[a-z]+_([0-9a-f]{36})([0-9a-f]{4,8})")
_STORE_HINT = (
    " Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this "
    "item from your input."
)

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_id = msgspec.json.Decoder(str | None).decode


async def resolve_references(
    items: list[Item], *, tenant: str, store: RoundStore, nodes: set[str] | None = None
) -> list[Item]:
    """The items, each reference replaced by the stored item; the same list when there is none.

    `nodes` is given the nodes that were read for them. A resolved item bears the id that it was referred to by, in its
    bytes too. Raises `NotFoundError` (responses-API section 'State errors') for the first that is not there.
    """
    wanted = {position: item_id for position, item in enumerate(items) if (item_id := _read_reference(item))}
    if not wanted:
        return items
    search = _Search(tenant, store)
    found = await search.find(wanted.values())
    if nodes is not None:
        nodes |= search.nodes
    for item_id in wanted.values():
        if item_id not in found:
            raise _make_unknown(item_id)
    return [found[wanted[position]] if position in wanted else item for position, item in enumerate(items)]


async def find_stored_item(tenant: str, item_id: str, store: RoundStore) -> Item | None:
    """A stored item of the tenant, bearing that id in its bytes; None when there is none."""
    return (await _Search(tenant, store).find([item_id])).get(item_id)


def parse_derived_id(item_id: str) -> tuple[str, int] | None:
    """The node's hex digits and the position in an id of ours: `"msg_" + 36 digits + "0003"` -> `(digits, 3)`."""
    match = _DERIVED.fullmatch(item_id)
    return None if match is None else (match[1], int(match[2], 16))


def _read_reference(item: Item) -> str | None:
    """The id that has to be looked up, where the item is no more than that."""
    value = item.value
    if type(value) is ItemReference:
        return value.id
    if type(value) is not Reasoning or value.id is None or not value.id.startswith("rs_"):
        return None
    if value.encrypted_content or any(part.text for part in (*value.summary, *(value.content or ()))):
        return None
    return value.id


def _make_unknown(item_id: str) -> NotFoundError:
    """Foreign, deleted and never stored look alike: the text depends on the form of the id alone."""
    hint = _STORE_HINT if parse_derived_id(item_id) is not None else ""
    return NotFoundError(f"Item with id '{shorten_quoted(item_id)}' not found.{hint}", param="input")


class _Search:
    """Looks ids up, each round once, within the limits of one request."""

    def __init__(self, tenant: str, store: RoundStore) -> None:
        self._tenant = tenant
        self._store = store
        self._lookups = 0
        self._read_bytes = 0
        self._found: dict[str, Item] = {}
        self.nodes: set[str] = set()

    async def find(self, item_ids: Iterable[str]) -> dict[str, Item]:
        """The items that are there, by id: our own ids by their place, then any others by the store's index."""
        ids = dict.fromkeys(item_ids)
        places: dict[str, list[tuple[str, int]]] = {}
        for item_id in ids:
            derived = parse_derived_id(item_id)
            if derived is not None:
                places.setdefault(derived[0], []).append((item_id, derived[1]))
        for digits, wanted in places.items():
            self._take(await self._load_derived(digits), wanted)
        # A client may have brought an id of ours along from a response that was never stored.
        await self._find_indexed([item_id for item_id in ids if item_id not in self._found])
        return self._found

    async def _load_derived(self, digits: str) -> Record | None:
        for prefix in NODE_PREFIXES:
            record = await self._load(prefix + digits)
            if record is not None:
                return record
        return None

    async def _find_indexed(self, ids: list[str]) -> None:
        places: dict[str, list[tuple[str, int]]] = {}
        for item_id in ids:
            self._count_lookup()
            place = await self._store.find_item(self._tenant, item_id)
            if place is not None:
                places.setdefault(place[0], []).append((item_id, place[1]))
        for node_id, wanted in places.items():
            self._take(await self._load(node_id), wanted)

    async def _load(self, node_id: str) -> Record | None:
        self._count_lookup()
        record = await self._store.load(self._tenant, node_id)
        if record is not None:
            self._read_bytes += len(record.input) + len(record.output)
            if self._read_bytes > READ_BYTES_AT_MOST:
                raise _make_too_much(f"the rounds that they stand in hold over {READ_BYTES_AT_MOST} bytes")
        return record

    def _count_lookup(self) -> None:
        # An id of ours may be tried as a response and as added items: twice the reads at most.
        self._lookups += 1
        if self._lookups > len(NODE_PREFIXES) * LOOKUPS_AT_MOST:
            raise _make_too_much(f"they stand in over {LOOKUPS_AT_MOST} rounds")

    def _take(self, record: Record | None, wanted: list[tuple[str, int]]) -> None:
        if record is None:
            return
        raws = [*_decode_raws(record.input), *_decode_raws(record.output)]
        for item_id, position in wanted:
            if position < len(raws):
                item = _read_item(raws[position], record.id, position, item_id)
                if item is not None:
                    self._found[item_id] = item
                    self.nodes.add(record.id)


def _make_too_much(reason: str) -> RequestError:
    return RequestError(
        f"Too many items are referred to: {reason}. Continue with 'previous_response_id', or send the items "
        "themselves.",
        param="input",
    )


def _read_item(raw: msgspec.Raw, node_id: str, position: int, item_id: str) -> Item | None:
    """The item at a place, if it is listed by that id and was not blanked."""
    if bytes(raw) == b"null":
        return None
    item = decode_stored_item(raw)
    own_id = _read_own_id(item)
    if own_id is not None:
        return item if own_id == item_id else None
    if derive_item_id(item.type, node_id, position) != item_id:
        return None
    fields = _decode_fields(item.raw)
    fields.pop("id", None)
    return decode_stored_item(msgspec.json.encode({"id": item_id, **fields}))


def _read_own_id(item: Item) -> str | None:
    if not isinstance(item.value, UnknownItem):
        return get_item_id(item)
    try:
        return _decode_id(_decode_fields(item.raw).get("id", b"null"))
    except msgspec.ValidationError:
        return None
