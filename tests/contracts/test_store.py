"""What every store keeps to: rounds, paths, single items, tenants."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.protocol.errors import StoreError
from antiphon.store import EventChunk, MovedTipError, Store, UnknownParentError
from tests.contracts.store_suite import (
    STORES,
    Run,
    make_conversation,
    make_id,
    make_job,
    make_record,
    make_run,
    to_node,
)


@pytest.fixture(params=sorted(STORES))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs one scenario on a fresh store of each implementation."""
    return make_run(request.param, tmp_path)


def test_a_round_comes_back_whole_and_byte_for_byte(run: Run) -> None:
    """Ours: raw bytes are kept, so that an unchanged prefix stays byte-identical."""
    odd = '[ {"b":1.50, "a":"\\u00e9é\x7f", "a":2}\n]'.encode() + b"\xff\x00"

    async def scenario(store: Store) -> None:
        root = make_record(1)
        whole = make_record(
            2,
            parent=1,
            kind="items",
            status="incomplete",
            completed_at=1_790_000_009,
            input=odd,
            output=odd * 3000,
            settings=b'{"model":"m"}',
            instructions=b"",
            tools=b"[ ]",
            outcome=b'{"usage":null, "x":"\xff"}',
        )
        await store.record(root)
        await store.record(whole)
        assert await store.load("a", root.id) == root
        assert await store.load("a", whole.id) == whole

    run(scenario)


@pytest.mark.parametrize(
    "status", ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
)
def test_every_status_comes_back_as_it_was(run: Run, status: str) -> None:
    """Ours: failed and cancelled rounds are stored and can be read."""

    async def scenario(store: Store) -> None:
        await store.record(make_record(1, status=status))
        loaded = await store.load("a", make_id(1))
        assert loaded is not None
        assert loaded.status == status

    run(scenario)


@pytest.mark.parametrize(
    "node_id",
    [
        "resp_1",
        "x",
        "",
        "conv_" + "0" * 36,
        "resp_" + "A" * 36,
        "resp_" + " " * 36,
        "é" * 41,
        "resp_" + "0g" * 18,
    ],
)
def test_ids_of_another_shape_work_too(run: Run, node_id: str) -> None:
    """Ours: only ids of the usual shape are packed."""

    async def scenario(store: Store) -> None:
        first = make_record(1, id=node_id)
        second = msgspec.structs.replace(make_record(2), parent=node_id)
        await store.record(first)
        await store.record(second)
        assert await store.load("a", node_id) == first
        assert await store.load_path("a", second.id) == [to_node(first), to_node(second)]
        assert await store.delete("a", node_id)
        assert await store.load("a", node_id) is None

    run(scenario)


def test_a_path_starts_at_the_root_and_ends_at_the_tip(run: Run) -> None:
    """Ours: a response id names a round; its context is the path from the root to it."""

    async def scenario(store: Store) -> None:
        chain = [make_record(1), *(make_record(n, parent=n - 1) for n in range(2, 41))]
        branch = [make_record(100, parent=20), make_record(101, parent=100)]
        for record in chain + branch:
            await store.record(record)
        assert await store.load_path("a", chain[-1].id) == [to_node(record) for record in chain]
        assert await store.load_path("a", branch[-1].id) == [
            to_node(record) for record in chain[:20] + branch
        ]
        assert await store.load_path("a", chain[0].id) == [to_node(chain[0])]
        assert await store.load_path("a", make_id(999)) is None

    run(scenario)


def test_rounds_recorded_at_once_are_all_there(run: Run) -> None:
    """Ours: many requests share one commit."""

    async def scenario(store: Store) -> None:
        records = [make_record(n) for n in range(300)]
        await asyncio.gather(*(store.record(record) for record in records))
        assert [await store.load("a", record.id) for record in records] == records

    run(scenario)


def test_a_round_with_a_fault_fails_alone(run: Run) -> None:
    """Ours: one bad row must not take its neighbours with it."""

    async def scenario(store: Store) -> None:
        await store.record(make_record(1))
        batch = [
            make_record(2),
            make_record(1, output=b"[]"),
            make_record(3, parent=77),
            make_record(4, parent=3),
            make_record(5, parent=2, settings=b"new", client_ids=(("i", 0),)),
            make_record(2, tenant="b", settings=b"other"),
            make_record(2, settings=b"third", client_ids=(("j", 0),)),
        ]
        outcomes = await asyncio.gather(*(store.record(record) for record in batch), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            StoreError,
            UnknownParentError,
            UnknownParentError,
            type(None),
            type(None),
            StoreError,
        ]
        assert await store.load("a", make_id(1)) == make_record(1)
        assert await store.load("a", make_id(3)) is None
        assert await store.load("a", make_id(5)) == make_record(5, parent=2, settings=b"new")
        assert await store.load("b", make_id(2)) == make_record(2, tenant="b", settings=b"other")
        assert await store.find_item("a", "j") is None
        await store.record(make_record(6, settings=b"third"))
        assert await store.load("a", make_id(6)) == make_record(6, settings=b"third")

    run(scenario)


def test_another_tenant_sees_and_changes_nothing(run: Run) -> None:
    """Ours: each key belongs to a tenant and sees only its data."""

    async def scenario(store: Store) -> None:
        mine = make_record(1, client_ids=(("item", 0),))
        await store.record(mine)
        await store.record(make_record(9, tenant="b"))
        assert await store.load("b", mine.id) is None
        assert await store.load_path("b", mine.id) is None
        assert await store.find_item("b", "item") is None
        assert await store.delete("b", mine.id) is False
        with pytest.raises(UnknownParentError):
            await store.record(make_record(2, parent=1, tenant="b"))
        assert await store.load("b", make_id(2)) is None
        assert await store.load("a", mine.id) == make_record(1)

    run(scenario)


def test_a_deleted_round_is_gone_and_nothing_continues_from_it(run: Run) -> None:
    """Ours: deletion is real; a continuation through the tombstone finds no path."""

    async def scenario(store: Store) -> None:
        for number in range(1, 5):
            await store.record(make_record(number, parent=number - 1 or None))
        assert await store.delete("a", make_id(2)) is True
        assert await store.delete("a", make_id(2)) is False
        assert await store.delete("a", make_id(77)) is False
        assert await store.load("a", make_id(2)) is None
        assert [await store.load_path("a", make_id(n)) for n in (2, 3, 4)] == [None, None, None]
        assert await store.load_path("a", make_id(1)) == [to_node(make_record(1))]
        assert await store.load("a", make_id(3)) == make_record(3, parent=2)
        with pytest.raises(UnknownParentError):
            await store.record(make_record(5, parent=2))
        with pytest.raises(StoreError):
            await store.record(make_record(2))
        await store.record(make_record(6, parent=4))
        assert await store.load_path("a", make_id(6)) is None

    run(scenario)


def test_deleting_a_round_leaves_what_others_share_with_it(run: Run) -> None:
    """Ours: instructions, tools and settings are stored once, and live as long as a round needs them."""
    shared: dict[str, Any] = {"instructions": b"same", "tools": b"same", "settings": b"{}"}

    async def scenario(store: Store) -> None:
        await store.record(make_record(1, **shared))
        await store.record(make_record(2, **{**shared, "settings": b"own"}))
        await store.record(make_record(3, tenant="b", **shared))
        assert await store.delete("a", make_id(1))
        assert await store.load("a", make_id(2)) == make_record(2, **{**shared, "settings": b"own"})
        assert await store.delete("a", make_id(2))
        assert await store.load("b", make_id(3)) == make_record(3, tenant="b", **shared)
        await store.record(make_record(4, **shared))
        assert await store.load("a", make_id(4)) == make_record(4, **shared)

    run(scenario)


def test_a_client_given_item_id_finds_its_newest_place(run: Run) -> None:
    """Ours: client-given ids are not unique; the newest wins inside the tenant."""

    async def scenario(store: Store) -> None:
        await store.record(make_record(1, client_ids=(("x", 0), ("y", 1))))
        await store.record(make_record(2, client_ids=(("x", 3), ("x", 2), ("x", 2))))
        await store.record(make_record(3, tenant="b", client_ids=(("x", 7),)))
        assert await store.find_item("a", "x") == (make_id(2), 3)
        assert await store.find_item("a", "y") == (make_id(1), 1)
        assert await store.find_item("b", "x") == (make_id(3), 7)
        assert await store.find_item("a", "z") is None
        assert await store.find_item("a", "\ud800") is None
        assert await store.delete("a", make_id(2))
        assert await store.find_item("a", "x") == (make_id(1), 0)
        assert await store.delete("a", make_id(1))
        assert await store.find_item("a", "x") is None

    run(scenario)


def test_the_outcomes_of_many_rounds_come_at_once(run: Run) -> None:
    """Ours: what a path's rounds noted is read without their items; more ids than one query takes are no matter."""
    odd = b'{"usage":null, "x":"\xff\x01"}'

    async def scenario(store: Store) -> None:
        for number in range(1, 201):
            await store.record(make_record(number, parent=number - 1 or None, outcome=b'{"n":%d}' % number))
        await store.record(make_record(300, kind="items", id="items_300"))
        await store.record(make_record(301, status="failed", outcome=odd))
        await store.record(make_record(5, tenant="b", outcome=b'{"other":true}'))
        assert await store.delete("a", make_id(3))
        numbers = [7, 7, *range(1, 201), 999]
        ids = [*map(make_id, numbers), "items_300", make_id(301), "\ud800", "", "x" * 5000]
        assert await store.load_outcomes("a", ids) == {
            **{make_id(n): b'{"n":%d}' % n for n in range(1, 201) if n != 3},
            "items_300": b"{}",
            make_id(301): odd,
        }
        assert await store.load_outcomes("b", ids) == {make_id(5): b'{"other":true}'}
        assert await store.load_outcomes("c", ids) == {}
        assert await store.load_outcomes("\ud800", ids) == {}
        assert await store.load_outcomes("a", []) == {}

    run(scenario)


def test_tombstones_are_told_from_what_never_was(run: Run) -> None:
    """Ours: a seal that covers something deleted dies with it; one made elsewhere names what was never here."""

    async def scenario(store: Store) -> None:
        for number in range(1, 201):
            await store.record(make_record(number))
        await store.record(make_record(300, id="items_300"))
        await store.record(make_record(1, tenant="b"))
        await store.record(make_record(2, tenant="b"))
        gone = {make_id(1), make_id(64), make_id(65), make_id(200), "items_300"}
        for node_id in gone:
            assert await store.delete("a", node_id)
        ids = [
            *map(make_id, range(400)),
            *map(make_id, range(400)),
            "items_300",
            "\ud800",
            "",
            "resp_1",
        ]
        assert await store.find_deleted("a", ids) == gone
        assert await store.find_deleted("b", ids) == set()
        assert await store.find_deleted("c", ids) == set()
        assert await store.find_deleted("\ud800", ids) == set()
        assert await store.find_deleted("a", []) == set()
        assert await store.delete("b", make_id(2))
        assert await store.find_deleted("b", {make_id(1), make_id(2)}) == {make_id(2)}

    run(scenario)


def test_an_item_that_was_blanked_leaves_no_tombstone(run: Run) -> None:
    """Ours: the round that it stood in is there still."""

    async def scenario(store: Store) -> None:
        await store.record(make_record(1, outcome=b'{"kept":1}'))
        assert await store.blank_items("a", make_id(1), [0, 1])
        assert await store.find_deleted("a", [make_id(1)]) == set()
        assert await store.load_outcomes("a", [make_id(1)]) == {make_id(1): b'{"kept":1}'}

    run(scenario)


def test_names_that_are_no_valid_text_are_unknown(run: Run) -> None:
    """Ours: a lone surrogate cannot have been stored, and asking for it is no failure."""

    async def scenario(store: Store) -> None:
        assert await store.load("a", "\ud800") is None
        assert await store.load_path("a", "\ud800") is None
        assert await store.load("\ud800", make_id(1)) is None
        assert await store.delete("a", "\ud800") is False
        assert await store.blank_items("a", "\ud800", [0]) is False
        assert await store.load_conversation("a", "\ud800") is None
        assert await store.update_conversation("a", "\ud800", b"{}") is False
        assert await store.delete_conversation("\ud800", "conv_1") is False
        await store.start_job("a", "\ud800")
        assert await store.load_job("\ud800", make_id(1)) is None
        assert await store.load_events("a", "\ud800") == []
        await store.drop_events("\ud800", make_id(1))
        with pytest.raises(StoreError, match="no background response"):
            await store.append_events("a", "\ud800", EventChunk(0, 0, b"e"))
        with pytest.raises(MovedTipError):
            await store.record(make_record(1), conversation="\ud800")

    run(scenario)


def test_what_was_loaded_is_the_callers_own(run: Run) -> None:
    """Ours: changing a record after `record` or `load` changes nothing that is stored."""

    async def scenario(store: Store) -> None:
        given = make_record(1)
        await store.record(given)
        given.output = b"changed"
        loaded = await store.load("a", make_id(1))
        assert loaded is not None
        loaded.output = b"changed"
        assert await store.load("a", make_id(1)) == make_record(1)
        conversation, job, chunk = make_conversation(1), make_job(2), EventChunk(0, 1, b"e")
        await store.create_conversation(conversation)
        await store.open_job(job)
        await store.append_events("a", job.id, chunk)
        for each in (
            conversation,
            await store.load_conversation("a", "conv_1"),
        ):
            assert each is not None
            each.metadata = b"changed"
        for waiting in (job, await store.load_job("a", job.id), *await store.list_jobs()):
            assert waiting is not None
            waiting.snapshot = b"changed"
        for kept in (chunk, *await store.load_events("a", job.id)):
            kept.body = b"changed"
        assert await store.load_conversation("a", "conv_1") == make_conversation(1)
        assert await store.list_jobs() == [make_job(2)]
        assert await store.load_events("a", job.id) == [EventChunk(0, 1, b"e")]

    run(scenario)


def test_a_closed_store_refuses_everything(run: Run) -> None:
    """Ours: closing twice is allowed, using a closed store is not."""

    async def scenario(store: Store) -> None:
        await store.check()
        await store.record(make_record(1))
        await store.close()
        await store.close()
        refused = [
            store.check(),
            store.record(make_record(2)),
            store.load("a", make_id(1)),
            store.load_path("a", make_id(1)),
            store.find_item("a", "x"),
            store.load_outcomes("a", [make_id(1)]),
            store.find_deleted("a", [make_id(1)]),
            store.delete("a", make_id(1)),
            store.blank_items("a", make_id(1), [0]),
            store.create_conversation(make_conversation(1)),
            store.load_conversation("a", "conv_1"),
            store.update_conversation("a", "conv_1", b"{}"),
            store.delete_conversation("a", "conv_1"),
            store.open_job(make_job(2)),
            store.start_job("a", make_id(2)),
            store.load_job("a", make_id(2)),
            store.list_jobs(),
            store.append_events("a", make_id(2), EventChunk(0, 0, b"e")),
            store.load_events("a", make_id(2)),
            store.drop_events("a", make_id(2)),
            store.list_events(),
        ]
        outcomes = await asyncio.gather(*refused, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreError] * len(refused)

    run(scenario)


@pytest.mark.parametrize(
    ("positions", "given", "made"),
    [
        ([0], b'[null,{"b":[1, {"c":null}]}]', b'[{"type":"message","content":"a"}]'),
        ([1, 1, 7, -1], b'[{"role":"user","content":"q"},null]', b'[{"type":"message","content":"a"}]'),
        ([2], b'[ {"role":"user","content":"q"},\n{"b":[1, {"c":null}]}\t]', b"[null]"),
        ([2, 0, 1], b"[null,null]", b"[null]"),
    ],
)
def test_blanked_items_leave_their_places(run: Run, positions: list[int], given: bytes, made: bytes) -> None:
    """Conversations API: deleting an item; ours: positions stay, other items keep their bytes."""
    record = make_record(
        2,
        parent=1,
        input=b'[ {"role":"user","content":"q"},\n{"b":[1, {"c":null}]}\t]',
        output=b'[{"type":"message","content":"a"}]',
        client_ids=(("zero", 0), ("one", 1), ("two", 2)),
    )

    async def scenario(store: Store) -> None:
        await store.record(make_record(1))
        await store.record(record)
        assert await store.blank_items("a", record.id, positions) is True
        assert await store.blank_items("a", record.id, positions) is False
        loaded = await store.load("a", record.id)
        path = await store.load_path("a", record.id)
        assert loaded is not None
        assert path is not None
        assert (squeeze(loaded.input), squeeze(loaded.output)) == (squeeze(given), squeeze(made))
        expected = msgspec.structs.replace(record, input=loaded.input, output=loaded.output, client_ids=())
        assert loaded == expected
        assert path == [to_node(make_record(1)), to_node(loaded)]
        for position, item_id in enumerate(("zero", "one", "two")):
            found = await store.find_item("a", item_id)
            assert found == (None if position in positions else (record.id, position))
        assert await store.blank_items("a", record.id, [0, 1, 2]) is (len(set(positions) & {0, 1, 2}) < 3)
        loaded = await store.load("a", record.id)
        assert loaded is not None
        assert (squeeze(loaded.input), squeeze(loaded.output)) == (b"[null,null]", b"[null]")

    run(scenario)


def squeeze(array: bytes) -> bytes:
    """An array without the spaces between its items, each item as it is."""
    return b"[" + b",".join(msgspec.json.decode(array, type=list[msgspec.Raw])) + b"]"


def test_only_items_that_are_there_can_be_blanked(run: Run) -> None:
    """Ours: False tells that there was nothing to blank."""

    async def scenario(store: Store) -> None:
        await store.record(make_record(1))
        await store.record(make_record(2))
        assert await store.delete("a", make_id(2))
        for node_id in (make_id(1), make_id(2), make_id(77)):
            assert await store.blank_items("a", node_id, [2, 1 << 70]) is False
            assert await store.blank_items("a", node_id, []) is False
        assert await store.blank_items("a", make_id(2), [0]) is False
        assert await store.load("a", make_id(1)) == make_record(1)
        await store.record(make_record(3, input=b"not an array"))
        with pytest.raises(StoreError, match="no JSON array"):
            await store.blank_items("a", make_id(3), [0])
        assert await store.load("a", make_id(3)) == make_record(3, input=b"not an array")

    run(scenario)
