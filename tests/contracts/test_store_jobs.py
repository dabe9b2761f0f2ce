"""What every store keeps to: background responses that have not ended, and the events of their streams."""

from pathlib import Path

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
)


@pytest.fixture(params=sorted(STORES))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Runs one scenario on a fresh store of each implementation."""
    return make_run(request.param, tmp_path)


def test_a_job_is_kept_until_its_round_is_recorded(run: Run) -> None:
    """Ours: a background response survives a restart, and is a job or a round, never both or neither."""

    async def scenario(store: Store) -> None:
        jobs = [
            make_job(1),
            make_job(2, status="in_progress", needs_secrets=True, request=b"", snapshot=b"\x00"),
            make_job(3, request=b"r" * 50_000, snapshot=b"s" * 4_060),
            make_job(4, tenant="b", created_at=5, request=b"", snapshot=b""),
        ]
        for job in jobs:
            await store.open_job(job)
        assert await store.list_jobs() == [jobs[3], *jobs[:3]]
        assert [await store.load_job(job.tenant, job.id) for job in jobs] == jobs
        assert await store.load("a", make_id(1)) is None
        await store.start_job("a", make_id(1))
        await store.start_job("a", make_id(2))
        assert await store.load_job("a", make_id(1)) == make_job(1, status="in_progress")
        assert await store.load_job("a", make_id(2)) == jobs[1]
        await store.record(make_record(1, status="cancelled"))
        await store.record(make_record(3))
        assert await store.load_job("a", make_id(1)) is None
        assert await store.list_jobs() == [jobs[3], jobs[1]]
        await store.start_job("a", make_id(1))
        await store.start_job("a", make_id(99))
        assert await store.list_jobs() == [jobs[3], jobs[1]]

    run(scenario)


def test_a_job_takes_an_id_that_nothing_has(run: Run) -> None:
    """Ours: its round could not be recorded otherwise."""

    async def scenario(store: Store) -> None:
        await store.record(make_record(1))
        await store.record(make_record(2))
        await store.delete("a", make_id(2))
        await store.open_job(make_job(3))
        await store.open_job(make_job(1, tenant="b"))
        for number in (1, 2, 3):
            with pytest.raises(StoreError, match="stored already"):
                await store.open_job(make_job(number, request=b"other"))
        assert await store.list_jobs() == [make_job(1, tenant="b"), make_job(3)]

    run(scenario)


def test_a_job_that_has_not_ended_cannot_be_deleted(run: Run) -> None:
    """Ours: there is no round yet; the engine refuses it before."""

    async def scenario(store: Store) -> None:
        await store.open_job(make_job(1))
        await store.append_events("a", make_id(1), EventChunk(0, 0, b"e"))
        assert await store.delete("a", make_id(1)) is False
        assert await store.blank_items("a", make_id(1), [0]) is False
        assert await store.load_path("a", make_id(1)) is None
        assert await store.list_jobs() == [make_job(1)]
        assert await store.load_events("a", make_id(1)) == [EventChunk(0, 0, b"e")]

    run(scenario)


def test_a_failed_record_ends_no_job(run: Run) -> None:
    """Ours: the round and the end of its job are one."""

    async def scenario(store: Store) -> None:
        await store.record(make_record(9))
        for number in (1, 2):
            await store.open_job(make_job(number))
        with pytest.raises(UnknownParentError):
            await store.record(make_record(1, parent=77))
        assert await store.list_jobs() == [make_job(1), make_job(2)]
        await store.record(make_record(1, parent=9))
        assert await store.list_jobs() == [make_job(2)]

    run(scenario)


def test_events_come_back_in_order_from_any_place(run: Run) -> None:
    """Responses API: a background stream is resumed with `starting_after`."""
    chunks = [
        EventChunk(0, 3, b"a" * 10),
        EventChunk(4, 4, b""),
        EventChunk(5, 90, b"b" * 2_030 + b"c" * 2_030),
        EventChunk(95, 99, b"\x00\xff\x00"),
    ]

    async def scenario(store: Store) -> None:
        await store.open_job(make_job(1))
        for chunk in chunks[:2]:
            await store.append_events("a", make_id(1), chunk)
        for overlapping in (EventChunk(4, 9, b""), EventChunk(3, 9, b""), EventChunk(9, 8, b"")):
            with pytest.raises(StoreError, match="do not follow"):
                await store.append_events("a", make_id(1), overlapping)
        await store.append_events("a", make_id(1), chunks[2])
        await store.record(make_record(1))
        await store.append_events("a", make_id(1), chunks[3])
        for after, left in ((-1, 4), (0, 4), (3, 3), (4, 2), (5, 2), (89, 2), (90, 1), (98, 1), (99, 0)):
            assert await store.load_events("a", make_id(1), after=after) == chunks[4 - left :]
        assert await store.load_events("a", make_id(1)) == chunks
        assert await store.load_events("a", make_id(2)) == []

    run(scenario)


def test_events_are_kept_only_of_a_response_that_is_there(run: Run) -> None:
    """Ours: what belongs to nothing would never be deleted."""

    async def scenario(store: Store) -> None:
        await store.record(make_record(1))
        await store.delete("a", make_id(1))
        for number in (1, 2):
            with pytest.raises(StoreError, match="no background response"):
                await store.append_events("a", make_id(number), EventChunk(0, 0, b"e"))
        with pytest.raises(StoreError):
            await store.append_events("a", make_id(2), EventChunk(-1, 0, b"e"))
        assert await store.list_events() == []

    run(scenario)


def test_ended_responses_with_events_are_listed_until_these_are_dropped(run: Run) -> None:
    """Ours: events are kept for a while, the response itself stays."""

    async def scenario(store: Store) -> None:
        for number in (1, 2, 3, 4):
            await store.open_job(make_job(number))
        for number in (1, 2, 3):
            await store.append_events("a", make_id(number), EventChunk(0, 2, b"e%d" % number))
        await store.record(make_record(1, completed_at=1_790_000_500))
        await store.record(make_record(2))
        await store.record(make_record(4))
        ended = [("a", make_id(2), 1_790_000_002), ("a", make_id(1), 1_790_000_500)]
        assert await store.list_events() == ended
        await store.append_events("a", make_id(4), EventChunk(0, 2, b"e4"))
        assert await store.list_events() == [ended[0], ("a", make_id(4), 1_790_000_004), ended[1]]
        for number in (1, 1, 3, 4, 99):
            await store.drop_events("a", make_id(number))
        assert await store.list_events() == ended[:1]
        assert [await store.load_events("a", make_id(number)) for number in (1, 3, 4)] == [[], [], []]
        assert await store.load("a", make_id(1)) == make_record(1, completed_at=1_790_000_500)
        assert await store.list_jobs() == [make_job(3)]
        await store.append_events("a", make_id(3), EventChunk(3, 4, b"more"))
        assert await store.load_events("a", make_id(3)) == [EventChunk(3, 4, b"more")]
        assert await store.load_events("a", make_id(2)) == [EventChunk(0, 2, b"e2")]

    run(scenario)


@pytest.mark.parametrize("how", ["delete", "blank_items"])
def test_a_round_takes_its_events_with_it(run: Run, how: str) -> None:
    """Ours: the events of a stream tell the same words."""

    async def scenario(store: Store) -> None:
        for number in (1, 2):
            await store.open_job(make_job(number))
            await store.append_events("a", make_id(number), EventChunk(0, 2, b"e"))
            await store.record(make_record(number))
        if how == "delete":
            assert await store.delete("a", make_id(1))
        else:
            assert await store.blank_items("a", make_id(1), [1])
        assert await store.load_events("a", make_id(1)) == []
        assert await store.list_events() == [("a", make_id(2), 1_790_000_002)]
        assert await store.load_events("a", make_id(2)) == [EventChunk(0, 2, b"e")]

    run(scenario)


def test_another_tenant_neither_sees_nor_changes_conversations_and_jobs(run: Run) -> None:
    """Ours: each key belongs to a tenant and sees only its data, even under the same ids."""
    chunk = EventChunk(0, 0, b"mine")

    async def scenario(store: Store) -> None:
        mine = make_conversation(1, metadata=b'{"x":"mine"}')
        await store.create_conversation(mine)
        await store.record(make_record(1), conversation="conv_1")
        await store.record(make_record(9, tenant="b"))
        await store.open_job(make_job(2))
        await store.append_events("a", make_id(2), chunk)
        assert await store.load_conversation("b", "conv_1") is None
        assert await store.update_conversation("b", "conv_1", b"{}") is False
        assert await store.delete_conversation("b", "conv_1") is False
        assert await store.blank_items("b", make_id(1), [0]) is False
        with pytest.raises(MovedTipError):
            await store.record(make_record(3, tenant="b"), conversation="conv_1")
        with pytest.raises(MovedTipError):
            await store.record(make_record(3, parent=1, tenant="b"), conversation="conv_1")
        assert await store.load_job("b", make_id(2)) is None
        await store.start_job("b", make_id(2))
        with pytest.raises(StoreError):
            await store.append_events("b", make_id(2), EventChunk(1, 1, b"theirs"))
        assert await store.load_events("b", make_id(2)) == []
        await store.drop_events("b", make_id(2))
        await store.record(make_record(2, tenant="b"))
        await store.create_conversation(make_conversation(1, tenant="b", metadata=b'{"x":"theirs"}'))
        assert await store.delete_conversation("b", "conv_1")
        assert await store.load_conversation("a", "conv_1") == make_conversation(
            1, metadata=b'{"x":"mine"}', tip=make_id(1)
        )
        assert await store.load("a", make_id(1)) == make_record(1)
        assert await store.list_jobs() == [make_job(2)]
        assert await store.load_events("a", make_id(2)) == [chunk]

    run(scenario)
