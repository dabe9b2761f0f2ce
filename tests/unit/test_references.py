"""References to stored items: found under exactly the id that lists show, by their own tenant alone."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.engine import references
from antiphon.engine.listing import list_input_items
from antiphon.engine.references import find_stored_item, parse_derived_id, resolve_references
from antiphon.protocol.errors import NotFoundError, RequestError
from antiphon.protocol.items import Item, decode_items, derive_item_id
from antiphon.store import Record
from antiphon.store.memory import MemoryStore

DIGITS = "0123456789ab" + "c" * 24
NODE = f"resp_{DIGITS}"
TENANT = "ada"
HINT = (
    " Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this "
    "item from your input."
)
USER = {"role": "user", "content": "Hello.", "mood": "kept"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
REASONING = {
    "type": "reasoning",
    "id": derive_item_id("reasoning", NODE, 1),
    "summary": [{"type": "summary_text", "text": "Hm."}],
}


def pack(*items: Any) -> bytes:
    return msgspec.json.encode(list(items))


def read(*items: Any) -> list[Item]:
    return decode_items(pack(*items))


def refer(item_id: str) -> dict[str, str]:
    return {"type": "item_reference", "id": item_id}


def make_record(node_id: str, *items: Any, output: bytes = b"[]", **more: Any) -> Record:
    ids = tuple((item["id"], position) for position, item in enumerate(items) if item and "id" in item)
    return Record(
        id=node_id,
        parent=None,
        tenant=more.pop("tenant", TENANT),
        created_at=0,
        input=pack(*items),
        output=output,
        client_ids=ids,
        **more,
    )


def resolve(items: list[Item], *records: Record, tenant: str = TENANT) -> list[Item]:
    async def story() -> list[Item]:
        store = MemoryStore()
        for record in records:
            await store.record(record)
        return await resolve_references(items, tenant=tenant, store=store)

    return asyncio.run(story())


def decode(item: Item) -> Any:
    return msgspec.json.decode(item.raw)


def test_items_without_references_are_handed_back_as_the_same_list() -> None:
    """Ours: the common request costs one look at each item."""
    items = read(USER, CALL, {**REASONING, "id": "rs_x"})
    assert resolve(items) is items


def test_an_id_of_ours_is_found_by_node_and_position_in_input_and_output() -> None:
    """Decided: positions count the input first, then the output; the item then bears the id."""
    record = make_record(NODE, USER, output=pack(REASONING, CALL))
    asked = [derive_item_id("function_call", NODE, 2), derive_item_id("message", NODE, 0)]
    found = resolve(read(*map(refer, asked), {"role": "user", "content": "Go on."}), record)
    assert [decode(item) for item in found] == [
        {"id": asked[0], **CALL},
        {"id": asked[1], **USER},
        {"role": "user", "content": "Go on."},
    ]
    assert [getattr(item.value, "id", None) for item in found] == [*asked, None]


def test_an_id_that_was_sent_as_null_becomes_the_derived_one() -> None:
    """Decided: null on an optional field equals absent."""
    item_id = derive_item_id("message", NODE, 0)
    record = Record(
        id=NODE, parent=None, tenant=TENANT, created_at=0, input=pack({**USER, "id": None}), client_ids=()
    )
    assert [decode(item) for item in resolve(read(refer(item_id)), record)] == [{"id": item_id, **USER}]


def test_a_reference_without_type_is_one() -> None:
    """Responses API 3.2: the type of an item reference may be left out or null."""
    record = make_record(NODE, USER)
    item_id = derive_item_id("message", NODE, 0)
    for reference in ({"id": item_id}, {"type": None, "id": item_id}):
        assert [decode(item) for item in resolve(read(reference), record)] == [{"id": item_id, **USER}]


def test_what_a_list_shows_can_be_referred_to() -> None:
    """Ours: an item has one id everywhere."""
    record = make_record(NODE, USER, CALL, {**USER, "id": "msg_mine"})
    page = list_input_items([record], limit=10, after=None, newest_first=False)
    listed = [msgspec.json.decode(row)["id"] for row in page.data]
    found = resolve(read(*map(refer, listed)), record)
    assert [decode(item)["id"] for item in found] == listed


def test_reasoning_that_is_an_id_alone_is_looked_up() -> None:
    """Responses API 3.4: `rs_` items without the data needed to rebuild them are looked up."""
    record = make_record(NODE, USER, output=pack(REASONING))
    bare = {"type": "reasoning", "id": REASONING["id"], "summary": [], "encrypted_content": None}
    assert [decode(item) for item in resolve(read(bare), record)] == [REASONING]
    empty = {**bare, "summary": [{"type": "summary_text", "text": ""}]}
    assert [decode(item) for item in resolve(read(empty), record)] == [REASONING]


@pytest.mark.parametrize(
    "item",
    [
        {**REASONING, "id": "rs_1"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "blob"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "x"}],
        },
        {"type": "reasoning", "summary": []},
        {"type": "message", "id": "msg_1", "role": "user", "content": "x"},
    ],
)
def test_items_that_are_whole_are_taken_as_sent(item: dict[str, Any]) -> None:
    """Responses API 3.4: full items are used as sent, whatever id they bear."""
    items = read(item)
    assert resolve(items) is items


def test_of_items_with_a_clients_id_the_newest_is_found() -> None:
    """Decided: client-given ids are not unique; inside the tenant the newest wins."""
    old = make_record(f"resp_{'a' * 36}", {**USER, "id": "msg_mine"})
    new = make_record(f"resp_{'b' * 36}", CALL, {"role": "user", "content": "Newer.", "id": "msg_mine"})
    found = resolve(read(refer("msg_mine")), old, new)
    assert [decode(item) for item in found] == [{"role": "user", "content": "Newer.", "id": "msg_mine"}]


def test_an_id_of_ours_that_a_client_brought_along_is_found_where_it_was_stored() -> None:
    """Ours: the response that made the item was not stored, the next one that repeated it was."""
    brought = {"type": "message", "role": "user", "content": "x", "id": derive_item_id("message", NODE, 1)}
    other = make_record(f"resp_{'d' * 36}", brought)
    assert [decode(item) for item in resolve(read(refer(brought["id"])), other)] == [brought]


def test_items_of_a_conversation_are_found() -> None:
    """Decided: items that were added without a response stand in a node `items_...`."""
    record = make_record(f"items_{DIGITS}", USER, kind="items")
    item_id = derive_item_id("message", f"items_{DIGITS}", 0)
    assert [decode(item) for item in resolve(read(refer(item_id)), record)] == [{"id": item_id, **USER}]


def test_nobody_finds_the_items_of_another_tenant_and_cannot_tell_that_they_are_there() -> None:
    """Ours: a foreign item and an unknown one give the same answer but for the id."""
    records = [
        make_record(NODE, {"id": "msg_hers", **USER}, USER, tenant="eve"),
        make_record(f"items_{DIGITS}", USER, kind="items", tenant="eve"),
    ]
    foreign = [derive_item_id("message", NODE, 1), derive_item_id("message", NODE, 0), "msg_hers"]
    unknown = [
        derive_item_id("message", f"resp_{'e' * 36}", 1),
        derive_item_id("message", NODE, 9),
        "msg_none",
    ]
    for one, other in zip(foreign, unknown, strict=True):
        texts = []
        for item_id in (one, other):
            with pytest.raises(NotFoundError) as refused:
                resolve(read(refer(item_id)), *records)
            texts.append(refused.value.message.replace(item_id, "ID"))
        assert texts[0] == texts[1]


def test_an_unknown_item_is_404_in_the_apis_words() -> None:
    """Responses API 6.3; the addition stands where the id is one that this server gives."""
    ours = derive_item_id("reasoning", NODE, 0)
    for item_id, text in (("rs_1", ""), (ours, HINT)):
        with pytest.raises(NotFoundError) as refused:
            resolve(read(USER, {"type": "reasoning", "id": item_id, "summary": []}))
        error = refused.value
        assert (error.status, error.param, error.code) == (404, "input", None)
        assert error.message == f"Item with id '{item_id}' not found.{text}"


@pytest.mark.parametrize(
    "item_id",
    [
        derive_item_id("function_call", NODE, 0),
        derive_item_id("message", NODE, 1),
        derive_item_id("message", NODE, 7),
        f"msg_{DIGITS}00000",
        f"msg_{DIGITS}000",
        f"MSG_{DIGITS}0000",
        NODE,
    ],
)
def test_only_the_exact_id_finds_an_item(item_id: str) -> None:
    """Ours: another type, another position, another way to write it are other ids."""
    record = make_record(NODE, USER, {**USER, "id": "msg_own"})
    with pytest.raises(NotFoundError):
        resolve(read(refer(item_id)), record)


def test_what_is_blanked_or_deleted_is_not_found() -> None:
    """Decided: deletion is real."""

    async def story() -> None:
        store = MemoryStore()
        await store.record(make_record(NODE, USER, {**USER, "id": "msg_mine"}, USER))
        kept, gone = (derive_item_id("message", NODE, position) for position in (0, 2))
        assert await store.blank_items(TENANT, NODE, [1, 2])
        assert await find_stored_item(TENANT, kept, store) is not None
        assert await find_stored_item(TENANT, gone, store) is None
        assert await find_stored_item(TENANT, "msg_mine", store) is None
        assert await store.delete(TENANT, NODE)
        assert await find_stored_item(TENANT, kept, store) is None

    asyncio.run(story())


def test_a_stored_item_is_found_with_its_id() -> None:
    """Ours: what the routes of conversations ask."""

    async def story() -> None:
        store = MemoryStore()
        await store.record(make_record(NODE, USER))
        item_id = derive_item_id("message", NODE, 0)
        found = await find_stored_item(TENANT, item_id, store)
        assert found is not None
        assert decode(found) == {"id": item_id, **USER}
        assert await find_stored_item("eve", item_id, store) is None

    asyncio.run(story())


def test_an_item_of_a_type_that_is_not_known_keeps_its_id() -> None:
    """Decided: the codec keeps unknown types."""
    item_id = derive_item_id("future_item", NODE, 0)
    for stored, listed in (
        ({"type": "future_item"}, item_id),
        ({"type": "future_item", "id": "fut_1"}, "fut_1"),
    ):
        record = make_record(NODE, stored)
        assert decode(resolve(read(refer(listed)), record)[0]) == {"id": listed, "type": "future_item"}
    with pytest.raises(NotFoundError):
        resolve(read(refer(item_id)), make_record(NODE, {"type": "future_item", "id": "fut_1"}))


class CountingStore(MemoryStore):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def load(self, tenant: str, node_id: str) -> Record | None:
        self.asked.append(node_id)
        return await super().load(tenant, node_id)


def test_a_round_is_read_once_for_all_its_items() -> None:
    """Ours: references to one round cost one read."""

    async def story() -> None:
        store = CountingStore()
        await store.record(make_record(NODE, *[USER] * 50))
        asked = [derive_item_id("message", NODE, position) for position in range(50)]
        found = await resolve_references(read(*map(refer, asked)), tenant=TENANT, store=store)
        assert [decode(item)["id"] for item in found] == asked
        assert store.asked == [NODE]

    asyncio.run(story())


def test_a_request_that_refers_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: every limit has a clear error."""
    asked = [derive_item_id("message", f"resp_{number:036x}", 0) for number in range(1001)]
    with pytest.raises(RequestError, match="Too many items are referred to: they stand in over 1000 rounds"):
        resolve(read(*map(refer, asked)))
    with pytest.raises(RequestError, match="over 1000 rounds"):
        resolve(read(*[refer(f"msg_{number}") for number in range(2001)]))
    monkeypatch.setattr(references, "READ_BYTES_AT_MOST", 20)
    with pytest.raises(
        RequestError, match=r"hold over 20 bytes\. Continue with 'previous_response_id'"
    ) as refused:
        resolve(read(refer(derive_item_id("message", NODE, 0))), make_record(NODE, USER))
    assert (refused.value.status, refused.value.param) == (400, "input")


def test_an_id_of_ours_is_taken_apart() -> None:
    """Decided: prefix, the node's part, the position in hexadecimal."""
    assert parse_derived_id(f"msg_{DIGITS}001f") == (DIGITS, 31)
    # A request may carry 100,000 items.
    assert parse_derived_id(derive_item_id("message", NODE, 99_999)) == (DIGITS, 99_999)
    assert parse_derived_id("msg_1") is None
    assert parse_derived_id(NODE) is None
