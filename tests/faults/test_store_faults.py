"""The store on bad days: full disk, locked database, killed process, full queue, cancelled callers.

Every cause is real: a file-size limit, another connection's lock, SIGKILL.
"""

import asyncio
import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.protocol.errors import StoreError
from antiphon.store import Record, StoreSettings
from antiphon.store.batches import BatchWriter, Write
from antiphon.store.files import DATABASE_NAME, PAGE_BYTES
from antiphon.store.sqlite import SqliteStore

#: Long enough for a loaded machine; reached only when something hangs.
BOUND_S = 30.0


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run one scenario, bounded."""
    asyncio.run(asyncio.wait_for(scenario, BOUND_S))


def make_id(number: int) -> str:
    """An id of the usual shape."""
    return f"resp_{number:036x}"


def make_record(number: int, parent: int | None = None, **fields: object) -> Record:
    """A small round."""
    record = Record(
        id=make_id(number),
        parent=None if parent is None else make_id(parent),
        tenant="a",
        created_at=number,
        output=b'["%d"]' % number,
    )
    return msgspec.structs.replace(record, **fields)


@contextlib.contextmanager
def lock_database(folder: Path) -> Iterator[None]:
    """Another program holds the database for writing."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


async def start(*calls: Coroutine[Any, Any, Any]) -> list["asyncio.Task[Any]"]:
    """Tasks that have run up to their first wait."""
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)
    return tasks


def test_a_locked_database_is_an_error_and_heals(tmp_path: Path) -> None:
    """Ours: database locked is an error before success was claimed."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path, StoreSettings(busy_timeout_s=0.05))
        with lock_database(tmp_path):
            outcomes = await asyncio.gather(
                *(store.record(make_record(n)) for n in range(5)), store.check(), return_exceptions=True
            )
            assert [str(outcome) for outcome in outcomes] == [
                "The store cannot write: database is locked."
            ] * 6
            assert await store.load("a", make_id(0)) is None
        await store.check()
        for number in range(5):
            await store.record(make_record(number))
            assert await store.load("a", make_id(number)) == make_record(number)
        await store.close()

    run(scenario())


def test_a_check_does_not_wait_for_ever(tmp_path: Path) -> None:
    """Ours: a readiness probe is answered in time."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path, StoreSettings(busy_timeout_s=BOUND_S, check_timeout_s=0.05))
        with lock_database(tmp_path), pytest.raises(StoreError, match=r"did not write within 0\.05 s"):
            await store.check()
        await store.check()
        await store.close()

    run(scenario())


def test_a_cancelled_caller_breaks_no_batch(tmp_path: Path) -> None:
    """Ours: a client that leaves must not cost its neighbours their rounds."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        with lock_database(tmp_path):
            tasks = await start(*(store.record(make_record(n)) for n in range(6)))
            for task in tasks[::2]:
                task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, type(None)] * 3
        for number in range(6):
            assert await store.load("a", make_id(number)) == make_record(number)
        await store.close()

    run(scenario())


def test_a_bad_row_fails_alone_in_a_batch_of_many(tmp_path: Path) -> None:
    """Ours: what waits together is committed together, each row for itself."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        with lock_database(tmp_path):
            tasks = await start(
                store.record(make_record(1)),
                store.record(make_record(2, parent=1)),
                store.record(make_record(1)),
                store.record(make_record(3, parent=99, instructions=b"lost", client_ids=(("i", 0),))),
                store.record(make_record(4, created_at=1 << 70)),
                store.record(make_record(5, tenant="\ud800")),
                store.record(make_record(7, status="unheard of")),
                store.record(make_record(8, settings="text", client_ids=(("i", 0),))),
                store.record(make_record(6, parent=2, instructions=b"lost")),
            )
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(outcome, StoreError) for outcome in outcomes] == [
            False,
            False,
            *[True] * 6,
            False,
        ]
        path = await store.load_path("a", make_id(6))
        assert path is not None
        assert [node.id for node in path] == [make_id(1), make_id(2), make_id(6)]
        assert await store.load("a", make_id(6)) == make_record(6, parent=2, instructions=b"lost")
        assert await store.find_item("a", "i") is None
        await store.close()

    run(scenario())


def test_a_full_queue_is_an_error_after_a_bounded_wait(tmp_path: Path) -> None:
    """Ours: memory stays bounded when the disk is slower than the callers."""
    settings = StoreSettings(queue_limit=2, queue_wait_s=0.05, busy_timeout_s=BOUND_S)

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path, settings)
        with lock_database(tmp_path):
            waiting = await start(store.record(make_record(1)), store.record(make_record(2)))
            with pytest.raises(StoreError, match="2 rounds still waited"):
                await store.record(make_record(3))
        await asyncio.gather(*waiting)
        await store.record(make_record(3))
        await store.close()

    run(scenario())


def test_who_waits_for_room_gets_it(tmp_path: Path) -> None:
    """Ours: a burst beyond the queue is slowed down, not refused."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path, StoreSettings(queue_limit=1, queue_wait_s=BOUND_S))
        await asyncio.gather(*(store.record(make_record(n)) for n in range(100)))
        for number in range(100):
            assert await store.load("a", make_id(number)) == make_record(number)
        await store.close()

    run(scenario())


def test_closing_writes_what_is_queued(tmp_path: Path) -> None:
    """Ours: a server that stops loses nothing that it accepted."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        tasks = await start(*(store.record(make_record(n)) for n in range(200)))
        await store.close()
        await asyncio.gather(*tasks)
        again = SqliteStore.open(tmp_path)
        for number in range(200):
            assert await again.load("a", make_id(number)) == make_record(number)
        await again.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == [DATABASE_NAME, "antiphon.lock"]

    run(scenario())


def test_closing_is_bounded_and_can_be_tried_again(tmp_path: Path) -> None:
    """Ours: while the writer may still write, nobody else gets the folder."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path, StoreSettings(busy_timeout_s=BOUND_S, close_timeout_s=0.05))
        with lock_database(tmp_path):
            (task,) = await start(store.record(make_record(1)))
            with pytest.raises(StoreError, match=r"did not finish writing within 0\.05 s"):
                await store.close()
            with pytest.raises(StoreError, match="in use"):
                SqliteStore.open(tmp_path)
        await task
        while True:
            with contextlib.suppress(StoreError):
                await store.close()
                break
        again = SqliteStore.open(tmp_path)
        assert await again.load("a", make_id(1)) == make_record(1)
        await again.close()

    run(scenario())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_a_writer_that_died() -> None:
    """Ours: a bug on the writer thread must not become a hang."""

    def commit(_batch: list[Write]) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        writer = BatchWriter(commit, queue_limit=10, queue_wait_s=BOUND_S, batch_limit=10)
        for _ in range(2):
            with pytest.raises(StoreError):
                await writer.submit(lambda: None)
        await writer.close(BOUND_S)

    run(scenario())


def test_a_damaged_database_is_an_error(tmp_path: Path) -> None:
    """Ours: damage is told, not answered with something else."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        records = [make_record(number, output=b"x" * 5000) for number in range(100)]
        await asyncio.gather(*(store.record(record) for record in records))
        await store.close()
        database = tmp_path / DATABASE_NAME
        whole = database.read_bytes()
        # The first pages hold the schema and the roots; what comes after is rows.
        intact = 16 * PAGE_BYTES
        database.write_bytes(whole[:intact] + b"\xa5" * (len(whole) - intact))
        damaged = SqliteStore.open(tmp_path)
        with pytest.raises(StoreError, match="cannot read"):
            await damaged.load("a", records[-1].id)
        with pytest.raises(StoreError, match="cannot write"):
            await damaged.record(make_record(1000, parent=99))
        await damaged.close()

    run(scenario())


def read_files(folder: Path) -> bytes:
    """Every byte of every file of the store, the log and its index included."""
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_a_deleted_word_is_in_no_file(tmp_path: Path) -> None:
    """Ours: deletion is real, log included, while the store stays open."""
    word = "xylograph-77"

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        text = word.encode()
        planted = make_record(
            1,
            input=b'["%s"]' % text,
            output=(text + b" ") * 5000,
            settings=b'{"metadata":"%s"}' % text,
            instructions=text,
            tools=text * 1000,
            outcome=b"\x01\x02" + text,
            client_ids=((f"msg_{word}", 0),),
        )
        await store.record(make_record(0))
        await store.record(planted)
        await store.record(make_record(2, parent=1))
        assert text in read_files(tmp_path)
        assert await store.delete("a", planted.id)
        assert text not in read_files(tmp_path)
        await store.close()
        assert text not in read_files(tmp_path)

    run(scenario())


@pytest.mark.parametrize("seed", range(8))
def test_no_deleted_word_survives_much_writing_and_deleting(tmp_path: Path, seed: int) -> None:
    """Ours: rows that the database moves between its pages must leave no copies behind either."""
    choose = random.Random(seed)
    longest = choose.choice([300, 3000, 30000])

    def plant(number: int) -> Record:
        word = f"word{number}z{choose.getrandbits(48):012x}"

        def fill() -> bytes:
            return f"{word}{'.' * choose.randrange(choose.choice([1, 50, longest]))}{word}".encode()

        return make_record(
            number,
            # Ids out of order, as if several servers made them.
            id=f"resp_{choose.getrandbits(144):036x}",
            tenant=choose.choice("ab"),
            input=fill(),
            output=fill(),
            settings=fill() if choose.random() < 0.5 else b"{}",
            instructions=fill() if choose.random() < 0.5 else None,
            tools=fill() if choose.random() < 0.2 else None,
            client_ids=tuple((f"{choose.random()}{word}{n}", n) for n in range(choose.randrange(6))),
        )

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        living: list[Record] = []
        for step in range(12):
            planted = [plant(step * 100 + number) for number in range(choose.randrange(20, 60))]
            await asyncio.gather(*(store.record(record) for record in planted))
            living += planted
            choose.shuffle(living)
            cut = choose.randrange(len(living))
            dead, living = living[:cut], living[cut:]
            assert all(await asyncio.gather(*(store.delete(record.tenant, record.id) for record in dead)))
            files = read_files(tmp_path)
            words = set()
            for start_at in find_all(files, b"word"):
                words.add(files[start_at : files.find(b"z", start_at) + 13])
            assert words == {record.input[: record.input.find(b"z") + 13] for record in living}
            for record in living[:10]:
                assert await store.load(record.tenant, record.id) == msgspec.structs.replace(
                    record, client_ids=()
                )
        await store.close()

    run(scenario())


def find_all(text: bytes, part: bytes) -> Iterator[int]:
    """Every place where `part` begins in `text`."""
    at = text.find(part)
    while at >= 0:
        yield at
        at = text.find(part, at + 1)


def test_a_deletion_that_could_not_be_wiped_is_told_and_can_be_repeated(tmp_path: Path) -> None:
    """Ours: success is claimed only when the bytes are gone."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path, StoreSettings(busy_timeout_s=0.05))
        await store.record(make_record(1, output=b"planted word"))
        with contextlib.closing(sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM nodes").fetchall()
            with pytest.raises(StoreError, match="another program is reading"):
                await store.delete("a", make_id(1))
            other.execute("COMMIT")
        assert await store.load("a", make_id(1)) is None
        assert await store.delete("a", make_id(1)) is True
        assert b"planted word" not in read_files(tmp_path)
        assert await store.delete("a", make_id(1)) is False
        await store.close()

    run(scenario())


CHILD_PREAMBLE = textwrap.dedent(
    """
    import asyncio, resource, sys
    from pathlib import Path
    from antiphon.protocol.errors import StoreError
    from antiphon.store import Record, StoreSettings
    from antiphon.store.sqlite import SqliteStore

    def make_record(chain, number):
        return Record(
            id=f"resp_{chain:018x}{number:018x}",
            parent=f"resp_{chain:018x}{number - 1:018x}" if number else None,
            tenant="a", created_at=number, output=b"%d " % number * 300,
        )
    """
)

KILLED_CHILD = """
async def write(store, chain):
    for number in range(1_000_000):
        record = make_record(chain, number)
        await store.record(record)
        print(record.id, flush=True)

async def main():
    store = SqliteStore.open(Path(sys.argv[1]))
    await asyncio.gather(*(write(store, chain) for chain in range(4)))

asyncio.run(main())
"""

FULL_DISK_CHILD = """
async def main():
    folder = Path(sys.argv[1])
    store = SqliteStore.open(folder)
    for number in range(20):
        await store.record(make_record(0, number))
    largest = max(path.stat().st_size for path in folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + 100_000, resource.RLIM_INFINITY))
    number = 20
    try:
        while number < 100_000:
            await store.record(make_record(0, number))
            number += 1
    except StoreError as error:
        print(error, flush=True)
    failures = await asyncio.gather(
        *(store.record(make_record(chain, 0)) for chain in range(1, 9)), return_exceptions=True
    )
    assert all(isinstance(failure, StoreError) for failure in failures), failures
    assert await store.load("a", make_record(0, number).id) is None
    assert len(await store.load_path("a", make_record(0, number - 1).id)) == number
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.check()
    await store.record(make_record(0, number))
    assert len(await store.load_path("a", make_record(0, number).id)) == number + 1
    await store.close()
    print("healed", flush=True)

asyncio.run(main())
"""


def test_what_was_acknowledged_survives_a_killed_process(tmp_path: Path) -> None:
    """Ours: kill -9, then restart; every round that a client saw completed is there and can be continued."""

    async def verify(acknowledged: list[str]) -> None:
        store = SqliteStore.open(tmp_path)
        for node_id in acknowledged:
            loaded = await store.load("a", node_id)
            number = int(node_id[-18:], 16)
            assert loaded is not None
            assert loaded.output == b"%d " % number * 300
        for chain in range(4):
            tip = max(node_id for node_id in acknowledged if node_id.startswith(f"resp_{chain:018x}"))
            path = await store.load_path("a", tip)
            assert path is not None
            assert [node.id for node in path] == [
                f"resp_{chain:018x}{number:018x}" for number in range(int(tip[-18:], 16) + 1)
            ]
            await store.record(make_record(1000 + chain, parent=None, id=f"after_{chain}"))
        await store.close()

    child = subprocess.Popen(
        [sys.executable, "-c", CHILD_PREAMBLE + KILLED_CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    with child:
        acknowledged = [child.stdout.readline().strip() for _ in range(2000)]
        child.send_signal(signal.SIGKILL)
        # What stands in the pipe was acknowledged too; the last line may be cut off.
        rest = child.stdout.read().split("\n")
    acknowledged += rest[:-1]
    assert child.returncode == -signal.SIGKILL
    run(verify(acknowledged))
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_full_disk_is_an_error_and_heals(tmp_path: Path) -> None:
    """Ours: disk full is an error before success was claimed; nothing is half written."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD_PREAMBLE + FULL_DISK_CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert child.stderr == ""
    assert child.returncode == 0
    assert child.stdout.splitlines()[0].startswith("The store cannot write: ")
    assert child.stdout.splitlines()[1] == "healed"
