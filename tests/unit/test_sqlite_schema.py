"""The SQL that ships: schema, migrations, queries, and what happens to databases that are not ours."""

import asyncio
import contextlib
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

import antiphon.store
from antiphon.protocol.errors import StoreError
from antiphon.store import Record, StoreSettings
from antiphon.store.files import DATABASE_NAME, DataFolder, upgrade_schema
from antiphon.store.packing import (
    pack_id,
    pack_items,
    pack_outcome,
    unpack_id,
    unpack_items,
    unpack_outcome,
)
from antiphon.store.queries import Migration, load_migrations, load_queries, load_schema
from antiphon.store.sqlite import SqliteStore

Pack: TypeAlias = Callable[[bytes], bytes]


@contextlib.contextmanager
def connect(database: Path | str) -> Iterator[sqlite3.Connection]:
    """A connection that is closed again."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        yield connection


def read_schema(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    """Every table and index with its normalised definition."""
    rows = connection.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master").fetchall()
    return sorted((kind, name, table, " ".join(sql.split())) for kind, name, table, sql in rows)


def test_a_fresh_schema_equals_all_migrations_applied_one_by_one() -> None:
    """Ours: whoever upgrades gets the same database as whoever starts today."""
    with connect(":memory:") as fresh, connect(":memory:") as upgraded:
        fresh.executescript(load_schema())
        for migration in load_migrations():
            upgraded.executescript(migration.sql)
        assert read_schema(fresh) == read_schema(upgraded)


def test_migrations_are_numbered_without_a_gap() -> None:
    """Ours."""
    assert [migration.version for migration in load_migrations()] == [
        number + 1 for number in range(len(load_migrations()))
    ]


def test_an_older_database_is_brought_to_the_newest_schema(tmp_path: Path) -> None:
    """Ours: only the steps that a database has not taken yet are run."""
    shipped = load_migrations()
    newer = Migration(len(shipped) + 1, "CREATE TABLE more (x);")
    with connect(tmp_path / "x.db") as connection:
        upgrade_schema(connection, shipped)
        before = read_schema(connection)
        upgrade_schema(connection, [*shipped, newer])
        added = ("table", "more", "more", "CREATE TABLE more (x)")
        assert read_schema(connection) == sorted([*before, added])
        assert connection.execute("PRAGMA user_version").fetchone() == (newer.version,)


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    """Ours: a step and its number are written together or not at all."""
    shipped = load_migrations()
    broken = Migration(len(shipped) + 1, "CREATE TABLE more (x); INSERT INTO nowhere VALUES (1);")
    with connect(tmp_path / "x.db") as connection:
        upgrade_schema(connection, shipped)
        before = read_schema(connection)
        with pytest.raises(sqlite3.OperationalError, match="nowhere"):
            upgrade_schema(connection, [*shipped, broken])
        assert read_schema(connection) == before
        assert connection.execute("PRAGMA user_version").fetchone() == (len(shipped),)


def test_opening_twice_changes_nothing(tmp_path: Path) -> None:
    """Ours: an up-to-date database is left alone."""
    with connect(tmp_path / "x.db") as connection:
        upgrade_schema(connection, load_migrations())
        first = read_schema(connection)
        upgrade_schema(connection, load_migrations())
        assert read_schema(connection) == first
        assert connection.execute("PRAGMA user_version").fetchone() == (load_migrations()[-1].version,)


@pytest.mark.parametrize("name", sorted(load_queries()))
def test_every_query_fits_the_schema_and_is_used(name: str) -> None:
    """Ours: no query is broken and none is left over."""
    query = load_queries()[name]
    with connect(":memory:") as connection:
        connection.executescript(load_schema())
        connection.execute(f"EXPLAIN {query}", [None] * query.count("?"))
    folder = Path(antiphon.store.__file__).parent
    source = "".join(file.read_text("utf-8") for file in folder.glob("*.py"))
    kind = name.removeprefix("find_").removeprefix("insert_")
    assert f'"{name}"' in source or f'_intern("{kind}"' in source


#: Queries that list what is under way, of all tenants.
LISTS = {"list_open_jobs", "list_jobs", "list_events"}


@pytest.mark.parametrize(
    "name",
    sorted(set(load_queries()) - {"insert_tenant", "read_check", "load_path", *LISTS}),
)
def test_no_query_reads_a_whole_table(name: str) -> None:
    """Ours: every query goes by an index, so its cost does not grow with the store."""
    assert "SCAN" not in explain(name).replace("SCAN CONSTANT ROW", "")


def test_a_path_is_read_by_keys_without_sorting() -> None:
    """Ours: item bytes are neither copied nor sorted on the way."""
    steps = explain("load_path")
    assert "SEARCH nodes USING INTEGER PRIMARY KEY" in steps
    assert "ORDER BY" not in steps
    assert re.findall(r"SCAN (?!path)\w+", steps) == []


def explain(name: str) -> str:
    """The steps of a query's plan, one a line."""
    query = load_queries()[name]
    with connect(":memory:") as connection:
        connection.executescript(load_schema())
        rows = connection.execute(f"EXPLAIN QUERY PLAN {query}", [None] * query.count("?")).fetchall()
    return "\n".join(row[3] for row in rows)


def open_folder(folder: Path) -> DataFolder:
    """Open and give back at once what a refusal must not leave behind: the lock."""
    return DataFolder(folder, StoreSettings())


def test_a_newer_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """Ours: an older program must not write what it does not understand."""
    open_folder(tmp_path).unlock()
    with connect(tmp_path / DATABASE_NAME) as connection:
        connection.execute("PRAGMA user_version = 999")
    with pytest.raises(StoreError, match=r"newer Antiphon \(schema 999"):
        open_folder(tmp_path)
    with connect(tmp_path / DATABASE_NAME) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (999,)


def test_a_strangers_database_is_refused(tmp_path: Path) -> None:
    """Ours."""
    with connect(tmp_path / DATABASE_NAME) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreError, match="another program"):
        open_folder(tmp_path)


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\x01" * 4096])
def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    """Ours: the file may be somebody's; it is named, with the remedy."""
    (tmp_path / DATABASE_NAME).write_bytes(content)
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{DATABASE_NAME}.*move it away"):
            open_folder(tmp_path)
    assert (tmp_path / DATABASE_NAME).read_bytes() == content


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Ours."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"file/data.*choose another"):
        open_folder(tmp_path / "file" / "data")


def test_a_folder_is_open_in_one_place_at_a_time(tmp_path: Path) -> None:
    """Ours: two writers would not know of each other's caches."""
    first = open_folder(tmp_path)
    with pytest.raises(StoreError, match=r"in use by another Antiphon process.*--data DIR or server\.data"):
        open_folder(tmp_path)
    first.unlock()
    open_folder(tmp_path).unlock()


def test_folder_and_files_are_the_owners_alone(tmp_path: Path) -> None:
    """Ours: conversations are private."""
    folder = open_folder(tmp_path / "new" / "data")
    with contextlib.closing(folder.connect_writer()) as connection:
        connection.execute("INSERT INTO settings (request) VALUES (1)")
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.database.parent.iterdir()}
    folder.unlock()
    assert folder.database.parent.stat().st_mode & 0o777 == 0o700
    assert modes == dict.fromkeys(
        [DATABASE_NAME, DATABASE_NAME + "-wal", DATABASE_NAME + "-shm", "antiphon.lock"], 0o600
    )


@pytest.mark.parametrize(("durability", "level"), [("normal", 1), ("full", 2)])
def test_durability_sets_how_a_commit_is_flushed(tmp_path: Path, durability: str, level: int) -> None:
    """Ours: normal survives a killed process, full a power cut."""
    settings = StoreSettings(durability=durability)  # type: ignore[arg-type]
    folder = DataFolder(tmp_path, settings)
    with contextlib.closing(folder.connect_writer()) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA secure_delete").fetchone() == (1,)
    folder.unlock()


@given(st.one_of(st.text(), st.from_regex(r"resp_[0-9a-fA-F ]{36}", fullmatch=True)))
def test_packed_ids_come_back_as_they_were(node_id: str) -> None:
    """Ours: any id may be stored."""
    assert unpack_id(pack_id(node_id)) == node_id


def test_the_usual_id_takes_18_bytes() -> None:
    """Ours: it stands in every row twice."""
    assert pack_id("resp_" + "0af9" * 9) == bytes.fromhex("0af9" * 9)


PACKERS = [(pack_items, unpack_items), (pack_outcome, unpack_outcome)]

PIECES = st.sampled_from(
    [
        b'"type":"message"',
        b'"text":"',
        b'"usage":{',
        b'"role":',
        b"\x00",
        b"\x01",
        b"\x1f",
        b"\t\n\r",
        b"\xff",
        b"{}",
        b"null",
    ]
)


@pytest.mark.parametrize(("pack", "unpack"), PACKERS)
@given(pieces=st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=20))
def test_packed_texts_come_back_byte_for_byte(pack: Pack, unpack: Pack, pieces: list[bytes]) -> None:
    """Ours: raw bytes are kept, whatever they are."""
    text = b"".join(pieces)
    assert unpack(pack(text)) == text


@pytest.mark.parametrize(("pack", "unpack"), PACKERS)
def test_long_texts_are_stored_as_they_are(pack: Pack, unpack: Pack) -> None:
    """Ours: a big tool result is not searched for phrases."""
    text = b'"type":"message"' * 5000
    assert pack(text) == b"\x00" + text
    assert unpack(pack(text)) == text


def test_the_usual_items_lose_what_every_round_repeats() -> None:
    """Ours: the store may take at most twice the text; the text itself stays readable."""
    items = (
        b'[{"id":"msg_1","type":"message","status":"completed","role":"assistant","content":'
        b'[{"type":"output_text","text":"hello","annotations":[],"logprobs":[]}]}]'
    )
    assert len(pack_items(items)) < 50
    assert b"hello" in pack_items(items)


def test_the_usual_outcome_packs_to_a_few_bytes() -> None:
    """Ours: the store may take at most twice the text."""
    outcome = (
        b'{"usage":{"input_tokens":51234,"input_tokens_details":{"cached_tokens":49152,"cache_write_tokens":0},'
        b'"output_tokens":731,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":51965}}'
    )
    assert len(pack_outcome(outcome)) < 40


def test_the_file_takes_less_than_twice_the_text(tmp_path: Path) -> None:
    """Ours: a round stores its own new items and a parent pointer, no copy of history.

    500 rounds of 700 bytes of text; "the file" is the database after a checkpoint.
    """

    async def fill() -> None:
        store = SqliteStore.open(tmp_path)
        await asyncio.gather(*(store.record(make_usual_round(number)) for number in range(500)))
        await store.close()

    asyncio.run(asyncio.wait_for(fill(), 30))
    assert (tmp_path / DATABASE_NAME).stat().st_size < 1.8 * 500 * 700


def make_usual_round(number: int) -> Record:
    """A round of a chat: 350 bytes asked, 350 answered, and what stands around them."""
    return Record(
        id=f"resp_{number:036x}",
        parent=f"resp_{number - 1:036x}" if number else None,
        tenant="a",
        created_at=1_790_000_000,
        completed_at=1_790_000_002,
        input=b'[{"role":"user","content":"%s"}]' % (b"q" * 350),
        output=b'[{"id":"msg_%036x","type":"message","status":"completed","role":"assistant","content":'
        b'[{"type":"output_text","text":"%s","annotations":[],"logprobs":[]}]}]' % (number, b"a" * 350),
        settings=b'{"model":"m","temperature":1.0,"top_p":1.0}',
        instructions=b"Answer briefly." * 20,
        tools=b'[{"type":"function","name":"f"}]' * 20,
        outcome=b'{"usage":{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens"'
        b':0},"output_tokens":99,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}}'
        % (number * 200, number * 190, number * 200 + 99),
    )
