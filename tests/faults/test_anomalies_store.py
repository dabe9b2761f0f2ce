"""Each operation of the database fails once, then every one from it on; and at each the process dies once.

What was acknowledged is whole, nothing is there by half, everybody is answered, and the store goes on.
"""

import asyncio
import contextlib
import functools
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from antiphon.protocol.errors import StoreError
from antiphon.store import Record, StoreSettings
from antiphon.store.files import DATABASE_NAME
from antiphon.store.sqlite import SqliteStore
from tests.faults.anomaly import DIED, Fault, Manner, break_database, walk
from tests.scenarios.client import Answer, StrictClient, find_terminal, read_text
from tests.scenarios.serving import serve

#: Long enough for a loaded machine; reached only when something hangs.
BOUND_S = 30.0
_ROOT = Path(__file__).parents[2]
MANNERS = [manner for manner in get_args(Manner) if not manner.startswith("dies")]

#: What the round that will be deleted is full of; it may be in no file afterwards.
WORD = b"xylograph-77"
DOOMED = 3
#: Continues from nothing, and so is never stored.
ORPHAN = 5


def make_id(number: int) -> str:
    """An id of the usual shape."""
    return f"resp_{number:036x}"


def make_record(number: int, parent: int | None = None, **fields: Any) -> Record:
    """A small round."""
    record = Record(
        id=make_id(number),
        parent=None if parent is None else make_id(parent),
        tenant="a",
        created_at=number,
        output=b'["%d"]' % number,
    )
    return msgspec.structs.replace(record, **fields)


RECORDS = {
    record.created_at: record
    for record in (
        make_record(0),
        make_record(1, 0, instructions=b"Be brief.", tools=b"[]", client_ids=(("i", 0), ("j", 1))),
        make_record(2, tenant="b", instructions=b"Be brief."),
        make_record(
            DOOMED,
            1,
            input=b'["%b"]' % WORD,
            output=(WORD + b" ") * 2000,
            instructions=WORD,
            settings=b'{"x":"%b"}' % WORD,
            client_ids=(("k", 0),),
        ),
        make_record(4, 1, output=random.Random(4).randbytes(9000).hex().encode()),
        make_record(ORPHAN, 99, instructions=b"lost", client_ids=(("i", 0),)),
        make_record(6, 4, instructions=b"Be brief.", tools=b"[]"),
    )
}
#: Recorded together, one group after the other.
GROUPS = ((0,), (1, 2), (DOOMED, 4, ORPHAN), (6,))


class Ledger:
    """What the store acknowledged; written through to a file where a process is about to die."""

    def __init__(self, path: Path | None = None) -> None:
        self.recorded: set[int] = set()
        self.is_deleted = False
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @classmethod
    def read(cls, path: Path) -> "Ledger":
        """What a process had written before it died."""
        ledger = cls()
        for line in path.read_text().splitlines() if path.exists() else []:
            ledger.note(int(line))
        return ledger

    def note(self, number: int) -> None:
        """The round is stored; a negative number: the doomed one is deleted."""
        if self._file is not None:
            os.write(self._file, b"%d\n" % number)
        if number < 0:
            self.is_deleted = True
        else:
            self.recorded.add(number)


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


async def tell(store: SqliteStore, ledger: Ledger) -> None:
    """The scenario: write in groups, read everything, delete, write again, check."""

    async def record(number: int) -> None:
        if await call(store.record(RECORDS[number])) is None:
            assert number != ORPHAN
            ledger.note(number)

    for group in GROUPS:
        await asyncio.gather(*(record(number) for number in group))
        await look(store, ledger)
    if DOOMED in ledger.recorded and (await call(store.delete("a", make_id(DOOMED)))) is True:
        ledger.note(-1)
    await call(store.check())
    await look(store, ledger)


async def look(store: SqliteStore, ledger: Ledger) -> None:
    """Read everything: what is acknowledged is whole, anything else whole or not there."""
    for number, record in RECORDS.items():
        found = await call(store.load(record.tenant, record.id))
        if isinstance(found, StoreError):
            continue
        if found is not None:
            assert found == msgspec.structs.replace(record, client_ids=())
            assert number != ORPHAN
        elif number in ledger.recorded:
            assert number == DOOMED, f"round {number} was acknowledged and is missing"
        if number == DOOMED and ledger.is_deleted:
            assert found is None
        path = await call(store.load_path(record.tenant, record.id))
        if isinstance(path, list):
            assert [node.id for node in path] == [make_id(each) for each in trace(number)]
            assert path[-1].output == record.output
    found = await call(store.find_item("a", "j"))
    assert (
        isinstance(found, StoreError)
        or (found == (make_id(1), 1))
        or (found is None and 1 not in ledger.recorded)
    )


def trace(number: int) -> list[int]:
    """The numbers from the root to a round."""
    parent = RECORDS[number].parent
    return [number] if parent is None else [*trace(int(parent[-36:], 16)), number]


async def complete(store: SqliteStore, ledger: Ledger, fault: Fault) -> None:
    """The store has healed: whatever is missing can be written now, at the first try."""
    for number in sorted(set(RECORDS) - {ORPHAN} - ledger.recorded):
        record = RECORDS[number]
        outcome = await insist(functools.partial(store.record, record), fault)
        if outcome is not None:
            # It was kept although the news was bad; then it is whole.
            assert "stored already" in str(outcome)
            found = await insist(functools.partial(store.load, record.tenant, record.id), fault)
            assert found == msgspec.structs.replace(record, client_ids=())
        ledger.note(number)
    deleted = await insist(functools.partial(store.delete, "a", make_id(DOOMED)), fault)
    assert deleted is (not ledger.is_deleted)
    ledger.note(-1)
    assert await insist(store.check, fault) is None


async def reopen(folder: Path, fault: Fault, settings: StoreSettings) -> SqliteStore:
    """An open store; the fault may come in between."""
    try:
        return SqliteStore.open(folder, settings)
    except StoreError:
        assert fault.struck
        fault.heal()
    return SqliteStore.open(folder, settings)


def check_files(folder: Path, ledger: Ledger) -> None:
    """The database is sound, holds no remains, and no file holds a deleted word."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        remains = (
            "SELECT count(*) FROM settings WHERE key NOT IN (SELECT settings FROM nodes WHERE settings NOT NULL)",
            "SELECT count(*) FROM nodes WHERE (deleted = 0) IS NOT (settings NOT NULL)",
            "SELECT count(*) FROM client_ids JOIN nodes ON nodes.key = node WHERE deleted = 1",
        )
        for query in remains:
            assert connection.execute(query).fetchone() == (0,), query
    if ledger.is_deleted:
        assert_wiped(folder)


def assert_wiped(folder: Path) -> None:
    """The doomed round's word is in no file."""
    for path in folder.iterdir():
        assert WORD not in path.read_bytes(), path.name


def run_faulty(fault: Fault, manner: Manner, *, lasts: bool, durability: Any = "normal") -> str:
    """One run of the scenario; returns where the fault was met."""
    ledger = Ledger()
    settings = StoreSettings(durability=durability)

    async def scenario(folder: Path) -> str:
        try:
            store = SqliteStore.open(folder, settings)
        except StoreError:
            assert fault.struck
            fault.heal()
            store = SqliteStore.open(folder, settings)
        where = "open" if fault.struck else ""
        await tell(store, ledger)
        if ledger.is_deleted:
            assert_wiped(folder)
        where = where or ("work" if fault.struck else "")
        if lasts:
            fault.heal()
            await complete(store, ledger, fault)
        elif fault.struck:
            await complete(store, ledger, fault)
        await call(store.close())
        where = where or ("close" if fault.struck else "")
        again = await reopen(folder, fault, settings)
        await complete_or_look(again, ledger, fault)
        await call(again.close())
        return where or "again"

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with break_database(fault, manner):
            where = asyncio.run(asyncio.wait_for(scenario(folder), BOUND_S))
        check_files(folder, ledger)
        # Nothing of the fault is left: a new process would find this.
        asyncio.run(verify(folder, ledger))
    return where


async def complete_or_look(store: SqliteStore, ledger: Ledger, fault: Fault) -> None:
    """After opening again: all is there, and what was not can be added."""
    if len(ledger.recorded) < len(RECORDS) - 1 or not ledger.is_deleted:
        await complete(store, ledger, fault)
    await look(store, ledger)


async def verify(folder: Path, ledger: Ledger) -> None:
    """A healthy store over the same files has everything that was acknowledged."""
    store = SqliteStore.open(folder)
    for number in ledger.recorded:
        found = await store.load(RECORDS[number].tenant, make_id(number))
        expected = msgspec.structs.replace(RECORDS[number], client_ids=())
        assert found == expected or (number == DOOMED and found is None)
    if ledger.is_deleted:
        assert await store.load("a", make_id(DOOMED)) is None
        assert_wiped(folder)
    await look(store, ledger)
    await store.close()


def walk_store(manner: Manner, *, lasts: bool, step: int, durability: str = "normal") -> None:
    """The walk in one manner."""
    name = f"store, {durability}, fails {manner}{', lasting' if lasts else ''}"
    run = functools.partial(run_faulty, manner=manner, lasts=lasts, durability=durability)
    assert walk(name, run, step=step, lasts=lasts) > 100


@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("manner", MANNERS)
def test_some_operations_of_the_database_fail_and_nothing_is_lost(manner: Manner, lasts: bool) -> None:
    """Ours: a sample of the walk below."""
    walk_store(manner, lasts=lasts, step=10)


@pytest.mark.faults_long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["normal", "full"])
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("manner", MANNERS)
def test_every_operation_of_the_database_fails_and_nothing_is_lost(
    manner: Manner, lasts: bool, durability: str
) -> None:
    """SQLite's anomaly testing, for our use of it: connect, migrate, write, read, checkpoint, close."""
    walk_store(manner, lasts=lasts, step=1, durability=durability)


def walk_deaths(folder: Path, manner: Manner, step: int) -> None:
    """A process dies at each n-th operation; afterwards the store is opened and completed."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run(
        [sys.executable, "-m", "tests.faults.dying", str(folder), manner, str(step)],
        capture_output=True,
        text=True,
        timeout=20 * BOUND_S,
        check=False,
        cwd=_ROOT,
        env=environ,
    )
    assert (child.returncode, child.stderr) == (0, "")
    *died, last = [[int(word) for word in line.split()] for line in child.stdout.splitlines()]
    assert last[1] == 0
    assert {status for _, status in died} == {DIED}
    acknowledged = 0
    for n, _ in (*died, last):
        ledger = Ledger.read(folder / f"{n}.acknowledged")
        acknowledged += len(ledger.recorded)
        try:
            asyncio.run(asyncio.wait_for(resume(folder / str(n), ledger), BOUND_S))
        except BaseException as error:
            error.add_note(f"{manner}: n = {n}")
            raise
    print(
        f"store, process {manner}: n = 1, {1 + step}, ... clean at {last[0]} ({len(died)} deaths); "
        f"{acknowledged} acknowledged rounds whole"
    )
    assert last[0] > 100


async def resume(folder: Path, ledger: Ledger) -> None:
    """What a process left behind is whole, sound, and can be gone on with."""
    store = SqliteStore.open(folder)
    await look(store, ledger)
    if await store.load("a", make_id(DOOMED)) is None:
        # Never written, or deleted, acknowledged or not: then no byte of it is left.
        assert_wiped(folder)
    check_files(folder, ledger)
    for number in sorted(set(RECORDS) - {ORPHAN} - ledger.recorded):
        outcome = await call(store.record(RECORDS[number]))
        assert outcome is None or "stored already" in str(outcome)
        ledger.note(number)
    # A deletion that was committed but not acknowledged is done, and nothing is left of it to delete.
    is_there = await store.load("a", make_id(DOOMED)) is not None
    assert await store.delete("a", make_id(DOOMED)) is is_there
    ledger.note(-1)
    await look(store, ledger)
    await store.close()
    check_files(folder, ledger)


@pytest.mark.parametrize("manner", ["dies before", "dies after"])
def test_a_process_dies_at_some_operations_and_nothing_is_lost(tmp_path: Path, manner: Manner) -> None:
    """Ours: a sample of the walk below."""
    walk_deaths(tmp_path, manner, 19)


@pytest.mark.faults_long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("manner", ["dies before", "dies after"])
def test_a_process_dies_at_every_operation_and_nothing_is_lost(tmp_path: Path, manner: Manner) -> None:
    """Decided: what was acknowledged survives a killed process, whatever statement it was at."""
    walk_deaths(tmp_path, manner, 1)


def run_full_disk(fault: Fault, unit: int) -> str:
    """No file grows beyond n units: a real full disk, at every place where a file grows."""
    ledger = Ledger()
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def scenario(folder: Path) -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.n * unit, usual[1]))
        where = ""
        try:
            store = SqliteStore.open(folder)
        except StoreError:
            where = "open"
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
            store = SqliteStore.open(folder)
        await tell(store, ledger)
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        if len(ledger.recorded) < len(RECORDS) - 1 or not ledger.is_deleted:
            where = where or "work"
        fault.struck = int(bool(where))
        if where:
            await complete(store, ledger, fault)
        await store.close()
        return where

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            where = asyncio.run(asyncio.wait_for(scenario(folder), BOUND_S))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        check_files(folder, ledger)
        asyncio.run(verify(folder, ledger))
    return where


@pytest.mark.parametrize("unit", [8192, pytest.param(1000, marks=pytest.mark.faults_long)])
def test_a_disk_that_is_full_after_any_page_loses_nothing(unit: int) -> None:
    """Ours: the cause is real, a limit on the size of files; whole pages, and parts of them."""
    assert (
        walk(f"store, no file larger than n x {unit} bytes", functools.partial(run_full_disk, unit=unit)) > 8
    )


SCRIPT = {"window_tokens": 10**9, "rules": [{"text": "One two three."}]}
#: Every path is read from the store.
LIMITS = {"window_cache_bytes": 0}


class Memory:
    """What a client of the whole server was told."""

    def __init__(self, client: StrictClient) -> None:
        self._client = client
        self.completed: dict[str, dict[str, Any]] = {}
        self.refused = 0
        self.newest: str | None = None

    async def ask(self, *, stream: bool, parent: str | None, **fields: Any) -> str | None:
        """One round; its id when it was told to be completed. The client checks that there is one proper end."""
        body = {"input": "Hello.", "previous_response_id": parent, "stream": stream, **fields}
        got = await self._client.exchange(msgspec.json.encode({"model": "scripted", **body}))
        response = got.body if isinstance(got, Answer) else find_terminal(got)
        if isinstance(got, Answer) and got.status != 200:
            assert (got.status, got.error["type"]) == (500, "server_error"), got.body
            self.refused += 1
            return None
        if response["status"] == "failed":
            assert response["error"]["code"] == "server_error"
            self.refused += 1
            return None
        assert read_text(response) == "One two three."
        self.completed[response["id"]] = response
        self.newest = response["id"]
        return self.newest

    async def read_back(self) -> None:
        """All that was completed is there, or the storage says that it cannot be read."""
        for response_id, response in self.completed.items():
            for answer in (
                await self._client.retrieve(response_id),
                await self._client.list_items(response_id),
            ):
                assert answer.status in (200, 500), answer.body
                self.refused += answer.status == 500
            answer = await self._client.retrieve(response_id)
            assert answer.status == 500 or answer.body == response
            self.refused += answer.status == 500

    async def forget(self, response_id: str) -> None:
        """Delete; a failure is told, and the second try succeeds or finds nothing more to delete."""
        answer = await self._client.delete(response_id)
        if answer.status != 200:
            assert answer.status == 500, answer.body
            self.refused += 1
            assert (await self._client.delete(response_id)).status == 200
        del self.completed[response_id]
        assert (await self._client.retrieve(response_id)).status in (404, 500)


def run_server(fault: Fault, manner: Manner, *, stream: bool) -> str:
    """The whole server over a store whose n-th operation fails."""

    async def story(folder: Path) -> str:
        async with serve(folder, SCRIPT, limits=LIMITS) as client:
            memory = Memory(client)
            root = await memory.ask(stream=stream, parent=None, instructions="Be brief.")
            root = root or await memory.ask(stream=stream, parent=None)
            assert root is not None
            await memory.ask(stream=stream, parent=root)
            await memory.ask(stream=not stream, parent=memory.newest)
            await memory.read_back()
            branch = await memory.ask(stream=stream, parent=root)
            if branch is not None:
                await memory.forget(branch)
                memory.newest = next(reversed(memory.completed))
            ready = await client.send("GET", "/ready")
            assert ready.status in (200, 500)
            memory.refused += ready.status == 500
            tip = await memory.ask(stream=stream, parent=memory.newest)
            struck_here = bool(fault.struck)
            fault.heal()
            assert (await client.send("GET", "/ready")).status == 200
            tip = await memory.ask(stream=stream, parent=tip or memory.newest)
            assert tip is not None
            await memory.read_back()
            kept = dict(memory.completed)
        async with serve(folder, SCRIPT, limits=LIMITS) as client:
            for response_id, response in kept.items():
                assert (await client.retrieve(response_id)).body == response
            await client.create(input="Go on.", previous_response_id=tip)
        return ("told" if memory.refused else "unnoticed") if struck_here else ""

    async def try_story() -> str:
        with tempfile.TemporaryDirectory() as name:
            try:
                return await asyncio.wait_for(story(Path(name)), BOUND_S)
            except StoreError:
                assert fault.struck
            fault.heal()
            # It did not start; the next start does.
            async with serve(Path(name), SCRIPT, limits=LIMITS) as client:
                await client.create(input="Hello.")
            return "not started"

    with break_database(fault, manner):
        return asyncio.run(try_story())


def walk_server(manner: Manner, *, stream: bool, step: int) -> None:
    """The walk through the whole server."""
    name = f"server over a store that fails {manner}, {'streaming' if stream else 'not streaming'} first"
    assert walk(name, functools.partial(run_server, manner=manner, stream=stream), step=step) > 50


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
def test_a_server_whose_storage_fails_somewhere_claims_nothing(stream: bool) -> None:
    """Ours: a sample of the walk below."""
    walk_server("before", stream=stream, step=17)


@pytest.mark.faults_long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize("manner", MANNERS)
def test_a_server_whose_storage_fails_anywhere_claims_nothing(manner: Manner, stream: bool) -> None:
    """Decided: never completed without a durable record; one end each; the conversation can go on."""
    walk_server(manner, stream=stream, step=1)
