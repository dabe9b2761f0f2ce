"""What every store keeps to: durable tips, their metadata, and the order of what is added to them."""

import asyncio
from pathlib import Path

import pytest

from antiphon.protocol.errors import StoreError
from antiphon.store import MovedTipError, Store, UnknownParentError
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


def test_a_conversation_comes_back_with_its_metadata(run: Run) -> None:
    """Conversations API: an id, when it was created, metadata; empty at first."""

    async def scenario(store: Store) -> None:
        plain, named = make_conversation(1), make_conversation(2, metadata=b'{"topic":"\xc3\xa9"}')
        await store.create_conversation(plain)
        await store.create_conversation(named)
        assert await store.load_conversation("a", plain.id) == plain
        assert await store.load_conversation("a", named.id) == named
        assert await store.load_conversation("a", "conv_3") is None
        with pytest.raises(StoreError, match="stored already"):
            await store.create_conversation(make_conversation(2))
        with pytest.raises(StoreError, match="has no tip"):
            await store.create_conversation(make_conversation(4, tip=make_id(1)))
        assert await store.load_conversation("a", named.id) == named

    run(scenario)


def test_metadata_is_replaced_whole(run: Run) -> None:
    """Decided: a conversation's metadata update replaces."""
    shared = b'{"topic":"shared"}'

    async def scenario(store: Store) -> None:
        for number in (1, 2):
            await store.create_conversation(make_conversation(number, metadata=shared))
        await store.record(make_record(1), conversation="conv_1")
        for metadata in (b'{"topic":"own"}', b'{"topic":"own"}', b"{}", shared):
            assert await store.update_conversation("a", "conv_1", metadata) is True
            assert await store.load_conversation("a", "conv_1") == make_conversation(
                1, metadata=metadata, tip=make_id(1)
            )
            assert await store.load_conversation("a", "conv_2") == make_conversation(2, metadata=shared)
        assert await store.update_conversation("a", "conv_9", shared) is False

    run(scenario)


def test_a_conversation_deleted_is_gone_and_its_rounds_stay(run: Run) -> None:
    """Conversations API: deleting a conversation deletes no items."""

    async def scenario(store: Store) -> None:
        same = b'{"model":"m"}'
        await store.create_conversation(make_conversation(1, metadata=same))
        await store.record(make_record(1, settings=same), conversation="conv_1")
        assert await store.delete_conversation("a", "conv_1") is True
        assert await store.delete_conversation("a", "conv_1") is False
        assert await store.load_conversation("a", "conv_1") is None
        assert await store.update_conversation("a", "conv_1", b"{}") is False
        with pytest.raises(MovedTipError):
            await store.record(make_record(2, parent=1), conversation="conv_1")
        assert await store.load("a", make_id(1)) == make_record(1, settings=same)
        await store.record(make_record(2, parent=1))

    run(scenario)


def test_metadata_lives_on_where_a_deleted_round_used_the_same_bytes(run: Run) -> None:
    """Ours: metadata stands where settings do, and is gone with the last use of it, not the first."""

    async def scenario(store: Store) -> None:
        same = b'{"model":"m"}'
        await store.create_conversation(make_conversation(1, metadata=same))
        await store.record(make_record(1, settings=same))
        assert await store.delete("a", make_id(1))
        assert await store.load_conversation("a", "conv_1") == make_conversation(1, metadata=same)
        assert await store.delete_conversation("a", "conv_1")
        await store.record(make_record(2, settings=same))
        assert await store.load("a", make_id(2)) == make_record(2, settings=same)

    run(scenario)


def test_a_round_recorded_in_a_conversation_moves_its_tip(run: Run) -> None:
    """Ours: a conversation is a durable tip; the round and the move are one."""

    async def scenario(store: Store) -> None:
        await store.create_conversation(make_conversation(1))
        ids = ((("x", 0),), (), (("y", 1),))
        for number in (1, 2, 3):
            record = make_record(number, parent=number - 1 or None, client_ids=ids[number - 1])
            await store.record(record, conversation="conv_1")
            conversation = await store.load_conversation("a", "conv_1")
            assert conversation == make_conversation(1, tip=make_id(number))
        path = await store.load_path("a", make_id(3))
        assert path is not None
        assert [node.id for node in path] == [make_id(1), make_id(2), make_id(3)]
        assert await store.find_item("a", "y") == (make_id(3), 1)

    run(scenario)


def test_a_round_that_does_not_follow_the_tip_is_refused_whole(run: Run) -> None:
    """Ours: two requests on one conversation must not both believe that they are next."""

    async def scenario(store: Store) -> None:
        await store.create_conversation(make_conversation(1))
        await store.record(make_record(1), conversation="conv_1")
        await store.record(make_record(2, parent=1), conversation="conv_1")
        await store.record(make_record(3))
        await store.open_job(make_job(4))
        wrong = [
            (make_record(4, settings=b"lost", client_ids=(("i", 0),)), "conv_1"),
            (make_record(4, parent=1, settings=b"lost"), "conv_1"),
            (make_record(4, parent=3), "conv_1"),
            (make_record(4, parent=99), "conv_1"),
            (make_record(4, parent=2), "conv_2"),
            (make_record(4), "conv_2"),
        ]
        for record, conversation in wrong:
            with pytest.raises(MovedTipError):
                await store.record(record, conversation=conversation)
        with pytest.raises(StoreError, match="stored already"):
            await store.record(make_record(3, parent=2), conversation="conv_1")
        assert await store.load("a", make_id(4)) is None
        assert await store.find_item("a", "i") is None
        assert await store.load_job("a", make_id(4)) == make_job(4)
        assert await store.load_conversation("a", "conv_1") == make_conversation(1, tip=make_id(2))
        await store.record(make_record(4, parent=2, settings=b"lost"), conversation="conv_1")
        assert await store.load("a", make_id(4)) == make_record(4, parent=2, settings=b"lost")
        assert await store.load_job("a", make_id(4)) is None

    run(scenario)


def test_of_rounds_recorded_at_once_on_one_tip_exactly_one_wins(run: Run) -> None:
    """Ours: the tip is compared and moved in one transaction."""

    async def scenario(store: Store) -> None:
        await store.create_conversation(make_conversation(1))
        parent = None
        for turn in range(1, 6):
            numbers = range(10 * turn, 10 * turn + 8)
            outcomes = await asyncio.gather(
                *(store.record(make_record(n, parent=parent), conversation="conv_1") for n in numbers),
                return_exceptions=True,
            )
            won = [n for n, outcome in zip(numbers, outcomes, strict=True) if outcome is None]
            assert len(won) == 1
            assert sum(isinstance(outcome, MovedTipError) for outcome in outcomes) == len(numbers) - 1
            (parent,) = won
            for number in numbers:
                assert (await store.load("a", make_id(number)) is not None) is (number == parent)
            conversation = await store.load_conversation("a", "conv_1")
            assert conversation == make_conversation(1, tip=make_id(parent))

    run(scenario)


def test_a_conversation_goes_on_behind_a_deleted_tip(run: Run) -> None:
    """Ours: the tombstone holds the place; what is left of the path can be read without it."""

    async def scenario(store: Store) -> None:
        await store.create_conversation(make_conversation(1))
        for number in (1, 2):
            await store.record(make_record(number, parent=number - 1 or None), conversation="conv_1")
        assert await store.delete("a", make_id(2))
        assert await store.load_conversation("a", "conv_1") == make_conversation(1, tip=make_id(2))
        with pytest.raises(UnknownParentError):
            await store.record(make_record(3, parent=2))
        await store.record(make_record(3, parent=2), conversation="conv_1")
        assert await store.load("a", make_id(3)) == make_record(3, parent=2)
        assert await store.load_path("a", make_id(3)) is None
        assert await store.load_path("a", make_id(3), skip_deleted=True) == [
            to_node(make_record(1)),
            to_node(make_record(3, parent=2)),
        ]

    run(scenario)


def test_a_path_can_leave_out_what_was_deleted(run: Run) -> None:
    """Ours: a conversation whose responses were deleted one by one goes on with what is left."""

    async def scenario(store: Store) -> None:
        for number in range(1, 5):
            await store.record(make_record(number, parent=number - 1 or None))
        whole = [to_node(make_record(number, parent=number - 1 or None)) for number in range(1, 5)]
        assert await store.load_path("a", make_id(4), skip_deleted=True) == whole
        left = {1, 2, 3, 4}
        for number in (2, 4, 1, 3):
            assert await store.delete("a", make_id(number))
            left.remove(number)
            assert await store.load_path("a", make_id(4), skip_deleted=True) == [
                whole[each - 1] for each in sorted(left)
            ]
        assert await store.load_path("a", make_id(4)) is None
        assert await store.load_path("a", make_id(77), skip_deleted=True) is None
        assert await store.load_path("b", make_id(4), skip_deleted=True) is None

    run(scenario)
