"""Each operation of the database fails while a background response lives and a conversation goes on.

A job becomes a round or stays a job, a tip moves with its round or not at all, and what was removed is in no file.
"""

import asyncio
import contextlib
import functools
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from antiphon.protocol.errors import StoreError
from antiphon.store import Conversation, EventChunk, Job, MovedTipError, Record, StoreSettings
from antiphon.store.files import DATABASE_NAME
from antiphon.store.sqlite import SqliteStore
from tests.faults.anomaly import DIED, Fault, Manner, break_database, walk

#: Long enough for a loaded machine; reached only when something hangs.
BOUND_S = 30.0
_ROOT = Path(__file__).parents[2]
MANNERS = [manner for manner in get_args(Manner) if not manner.startswith("dies")]

FIRST, SECOND = "resp_" + "1" * 36, "resp_" + "2" * 36
JOB = Job(id=FIRST, tenant="a", created_at=1, request=b"job-word " * 400, snapshot=b"{}")
EVENTS = EventChunk(0, 7, b"event-word " * 400)
CONVERSATION = Conversation(id="c", tenant="a", created_at=1, metadata=b'{"topic":"topic-word"}')
ROUND = Record(id=FIRST, parent=None, tenant="a", created_at=1, output=b'["round-word"]')
NEXT = Record(id=SECOND, parent=FIRST, tenant="a", created_at=1, input=b'["kept","item-word"]')

Step = Callable[[SqliteStore], Awaitable[Any]]
#: The scenario: what is done, and the word that is in no file once that was acknowledged.
STEPS: tuple[tuple[str, Step, bytes], ...] = (
    ("create", lambda store: store.create_conversation(CONVERSATION), b""),
    ("open", lambda store: store.open_job(JOB), b""),
    ("append", lambda store: store.append_events("a", FIRST, EVENTS), b""),
    ("start", lambda store: store.start_job("a", FIRST), b""),
    ("end", lambda store: store.record(ROUND, conversation="c"), b""),
    ("next", lambda store: store.record(NEXT, conversation="c"), b""),
    ("drop", lambda store: store.drop_events("a", FIRST), b"event-word"),
    ("blank", lambda store: store.blank_items("a", SECOND, [1]), b"item-word"),
    ("rename", lambda store: store.update_conversation("a", "c", b"{}"), b"topic-word"),
    ("delete", lambda store: store.delete("a", FIRST), b"round-word"),
    ("forget", lambda store: store.delete_conversation("a", "c"), b""),
)


async def call(work: Awaitable[Any]) -> Any:
    """The result, or the `StoreError`: a call has no third outcome, and always one."""
    try:
        return await asyncio.wait_for(work, BOUND_S)
    except StoreError as error:
        return error


async def insist(work: Callable[[], Awaitable[Any]], fault: Fault) -> Any:
    """The result; the one fault may come in between, and then the very next call succeeds."""
    struck = fault.struck
    result = await call(work())
    if isinstance(result, StoreError) and fault.struck > struck:
        result = await call(work())
    return result


async def tell(store: SqliteStore, folder: Path, note: Callable[[str], None]) -> None:
    """Every step once; what was acknowledged is noted, and what it removed is gone."""
    for name, step, word in STEPS:
        outcome = await call(step(store))
        if outcome is None or outcome is True:
            note(name)
            if word:
                assert_wiped(folder, word)
        await look(store)


async def look(store: SqliteStore) -> None:
    """What can be read is of one piece."""
    job, first, second = [
        await call(work)
        for work in (store.load_job("a", FIRST), store.load("a", FIRST), store.load("a", SECOND))
    ]
    events = await call(store.load_events("a", FIRST))
    conversation = await call(store.load_conversation("a", "c"))
    if any(isinstance(found, StoreError) for found in (job, first, second, events, conversation)):
        return
    assert job is None or first is None
    assert job is None or (job.request, job.snapshot) == (JOB.request, JOB.snapshot)
    assert first is None or first == ROUND
    assert second is None or second.input.replace(b" ", b"") in (NEXT.input, b'["kept",null]')
    assert events in ([], [EVENTS])
    if conversation is not None:
        assert conversation.metadata in (CONVERSATION.metadata, b"{}")
        if second is not None:
            assert conversation.tip == SECOND
        elif first is not None:
            assert conversation.tip in (None, FIRST)
        else:
            assert conversation.tip in (None, FIRST)


async def complete(store: SqliteStore, fault: Fault) -> None:
    """The store has healed: what is missing can be done now, what was done is told to be done."""
    done = (StoreError, MovedTipError, bool, type(None))
    for _, step, _ in STEPS:
        outcome = await insist(functools.partial(step, store), fault)
        assert isinstance(outcome, done)
        if isinstance(outcome, StoreError):
            assert isinstance(outcome, MovedTipError) or any(
                words in str(outcome)
                for words in ("stored already", "do not follow", "no background response")
            ), outcome
    assert await insist(store.list_jobs, fault) == []
    assert await insist(store.list_events, fault) == []
    assert await insist(functools.partial(store.load_conversation, "a", "c"), fault) is None
    assert await insist(functools.partial(store.load, "a", FIRST), fault) is None


def assert_wiped(folder: Path, *words: bytes) -> None:
    """These words are in no file."""
    for path in folder.iterdir():
        content = path.read_bytes()
        for word in words:
            assert word not in content, (path.name, word)


REMAINS = (
    "SELECT count(*) FROM jobs WHERE (tenant, id) NOT IN (SELECT tenant, job FROM pieces)",
    "SELECT count(*) FROM pieces WHERE tenant > 0 AND (tenant, job) NOT IN (SELECT tenant, id FROM jobs)",
    "SELECT count(*) FROM slots WHERE key NOT IN (SELECT slot FROM pieces) OR length(body) <> 2030",
    "SELECT count(*) FROM slots JOIN pieces ON slot = key WHERE pieces.tenant = 0 AND body > zeroblob(2030)",
    """
    SELECT count(*) FROM contents
    WHERE body NOT NULL AND key NOT IN (SELECT request FROM settings)
        AND key NOT IN (SELECT metadata FROM conversations WHERE metadata NOT NULL)
    """,
)


def check_files(folder: Path) -> None:
    """The database is sound and holds no remains."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        for query in REMAINS:
            assert connection.execute(query).fetchone() == (0,), query


def run_faulty(fault: Fault, manner: Manner, *, lasts: bool) -> str:
    """One run of the scenario; returns where the fault was met."""

    async def scenario(folder: Path) -> str:
        try:
            store = SqliteStore.open(folder, StoreSettings())
        except StoreError:
            assert fault.struck
            fault.heal()
            store = SqliteStore.open(folder)
        where = "open" if fault.struck else ""
        await tell(store, folder, lambda _: None)
        where = where or ("work" if fault.struck else "")
        if lasts:
            fault.heal()
        if where:
            # The job's own words went with the deletion of its round.
            await complete(store, fault)
            assert_wiped(folder, b"job-word", b"event-word", b"topic-word", b"round-word", b"item-word")
        await call(store.close())
        return where or "close"

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with break_database(fault, manner):
            where = asyncio.run(asyncio.wait_for(scenario(folder), BOUND_S))
        check_files(folder)
        asyncio.run(asyncio.wait_for(resume(folder), BOUND_S))
    return where


async def resume(folder: Path) -> None:
    """What a process left behind is whole, and can be gone on with to the end."""
    store = SqliteStore.open(folder)
    await look(store)
    await complete(store, Fault(0))
    assert_wiped(folder, b"job-word", b"event-word", b"topic-word", b"round-word", b"item-word")
    await store.close()
    check_files(folder)


def walk_store(manner: Manner, *, lasts: bool, step: int) -> None:
    """The walk in one manner."""
    name = f"jobs and conversations, fails {manner}{', lasting' if lasts else ''}"
    assert walk(name, functools.partial(run_faulty, manner=manner, lasts=lasts), step=step, lasts=lasts) > 100


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("manner", MANNERS)
def test_some_operations_fail_around_a_background_response(manner: Manner, lasts: bool) -> None:
    """Ours: a sample of the walk below."""
    walk_store(manner, lasts=lasts, step=7)


@pytest.mark.faults_long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("manner", MANNERS)
def test_every_operation_fails_around_a_background_response(manner: Manner, lasts: bool) -> None:
    """SQLite's anomaly testing, for jobs, events, tips, metadata and single items."""
    walk_store(manner, lasts=lasts, step=1)


#: A program whose process dies at each operation in turn: FOLDER MANNER STEP; prints n and the exit status.
DYING = textwrap.dedent(
    """
    import asyncio, itertools, os, sys, traceback
    from pathlib import Path
    from antiphon.store.sqlite import SqliteStore
    from tests.faults.anomaly import DIED, Fault, break_database
    from tests.faults.test_anomalies_jobs import tell

    async def live(folder):
        log = os.open(folder.with_suffix(".acknowledged"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        store = SqliteStore.open(folder)
        await tell(store, folder, lambda name: os.write(log, name.encode() + b"\\n"))
        await store.close()

    for n in itertools.count(1, int(sys.argv[3])):
        child = os.fork()
        if not child:
            status = 1
            try:
                with break_database(Fault(n), sys.argv[2]):
                    asyncio.run(live(Path(sys.argv[1]) / str(n)))
                status = 0
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(n, status, flush=True)
        if status != DIED:
            break
    """
)


def walk_deaths(folder: Path, manner: Manner, step: int) -> None:
    """A process dies at each n-th operation; afterwards the store is opened and the story told to its end."""
    child = subprocess.run(
        [sys.executable, "-c", DYING, str(folder), manner, str(step)],
        capture_output=True,
        text=True,
        timeout=20 * BOUND_S,
        check=False,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (child.returncode, child.stderr) == (0, "")
    *died, last = [[int(word) for word in line.split()] for line in child.stdout.splitlines()]
    assert last[1] == 0
    assert {status for _, status in died} == {DIED}
    assert last[0] > 100
    for n, _ in (*died, last):
        log = folder / f"{n}.acknowledged"
        acknowledged = log.read_text().split() if log.exists() else []
        asyncio.run(asyncio.wait_for(verify(folder / str(n), acknowledged), BOUND_S))
        asyncio.run(asyncio.wait_for(resume(folder / str(n)), BOUND_S))


async def verify(folder: Path, acknowledged: list[str]) -> None:
    """What was acknowledged before the death is there after it, and what was removed is not."""
    store = SqliteStore.open(folder)
    done = set(acknowledged)
    job, first = await store.load_job("a", FIRST), await store.load("a", FIRST)
    path = await store.load_path("a", FIRST, skip_deleted=True)
    if "open" in done:
        assert (job is None) is (path is not None)
    if "start" in done and job is not None:
        assert job.status == "in_progress"
    if "append" in done and "next" not in done:
        assert await store.load_events("a", FIRST) == [EVENTS]
    if "end" in done:
        assert path is not None
        assert first == ROUND or "rename" in done
    if "next" in done and "delete" not in done:
        conversation = await store.load_conversation("a", "c")
        assert conversation is not None
        assert conversation.tip == SECOND
    for name, _, word in STEPS:
        if word and name in done:
            assert_wiped(folder, word)
    await store.close()


@pytest.mark.parametrize("manner", ["dies before", "dies after"])
def test_a_process_dies_around_a_background_response(tmp_path: Path, manner: Manner) -> None:
    """Ours: a sample of the walk below."""
    walk_deaths(tmp_path, manner, 11)


@pytest.mark.faults_long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("manner", ["dies before", "dies after"])
def test_a_process_dies_anywhere_around_a_background_response(tmp_path: Path, manner: Manner) -> None:
    """Decided: what was acknowledged survives a killed process, whatever statement it was at."""
    walk_deaths(tmp_path, manner, 1)
