"""What was removed is in no file: items, events, background requests, metadata; and what stays is whole.

After a restart and in a database of an older schema too.
"""

import contextlib
import random
import re
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from antiphon.protocol.errors import StoreError
from antiphon.store import Conversation, EventChunk, Job, Store, StoreSettings
from antiphon.store.files import APPLICATION_ID, DATABASE_NAME, PAGE_BYTES
from antiphon.store.queries import load_migrations
from antiphon.store.sqlite import SqliteStore
from tests.faults.test_store_faults import make_id, make_record, read_files, run

WORD = b"xylograph-77"


def make_job(number: int, text: bytes = b"") -> Job:
    """A background response full of a text."""
    return Job(id=make_id(number), tenant="a", created_at=number, request=text * 300, snapshot=text * 9)


async def plant_items(store: Store) -> None:
    """A node with the word in one item of its input and one of its output, beside others."""
    items = b'[{"role":"user","content":"stays"},{"role":"user","content":"%s"}]'
    await store.record(make_record(1, input=items % WORD, output=items % (WORD * 3000)))


async def plant_events(store: Store) -> None:
    """An ended background response whose events have the word."""
    await store.open_job(make_job(1))
    await store.append_events("a", make_id(1), EventChunk(0, 5, WORD))
    await store.append_events("a", make_id(1), EventChunk(6, 9, WORD * 5000))
    await store.record(make_record(1))


async def plant_job(store: Store) -> None:
    """A background response that had the word in all that was kept while it ran, and in its round."""
    await store.open_job(make_job(1, WORD))
    await store.start_job("a", make_id(1))
    await store.append_events("a", make_id(1), EventChunk(0, 5, WORD * 200))
    await store.record(make_record(1, input=b'["%s"]' % WORD))


async def plant_metadata(store: Store) -> None:
    """A conversation with the word in its metadata, and in the name of nothing else."""
    metadata = b'{"topic":"%s"}' % (WORD * 40)
    await store.create_conversation(Conversation(id="c", tenant="a", created_at=1, metadata=metadata))
    await store.record(make_record(1), conversation="c")


#: What plants the word, what removes it, and what the second removal answers.
REMOVALS: dict[
    str,
    tuple[Callable[[Store], Awaitable[None]], Callable[[Store], Awaitable[object]], tuple[object, object]],
] = {
    "items": (plant_items, lambda store: store.blank_items("a", make_id(1), [1, 3]), (True, False)),
    "events": (plant_events, lambda store: store.drop_events("a", make_id(1)), (None, None)),
    "events of a deleted round": (
        plant_events,
        lambda store: store.delete("a", make_id(1)),
        (True, False),
    ),
    "events of a round with a blanked item": (
        plant_events,
        lambda store: store.blank_items("a", make_id(1), [0]),
        (True, False),
    ),
    "job": (plant_job, lambda store: store.delete("a", make_id(1)), (True, False)),
    "metadata": (
        plant_metadata,
        lambda store: store.update_conversation("a", "c", b'{"topic":"other"}'),
        (True, True),
    ),
    "conversation": (plant_metadata, lambda store: store.delete_conversation("a", "c"), (True, False)),
}


@pytest.mark.parametrize("what", sorted(REMOVALS))
def test_a_removed_word_is_in_no_file_and_its_neighbours_stay(tmp_path: Path, what: str) -> None:
    """Ours: deletion is real, log included, while the store stays open, and after it was opened again."""
    plant, remove, answers = REMOVALS[what]

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        await store.open_job(make_job(8, b"neighbour"))
        await store.append_events("a", make_id(8), EventChunk(0, 0, b"neighbour" * 900))
        await plant(store)
        await store.open_job(make_job(9, b"neighbour"))
        assert WORD in read_files(tmp_path)
        assert await remove(store) is answers[0]
        assert WORD not in read_files(tmp_path)
        assert await remove(store) is answers[1]
        await store.close()
        assert WORD not in read_files(tmp_path)
        again = SqliteStore.open(tmp_path)
        assert await again.list_jobs() == [make_job(8, b"neighbour"), make_job(9, b"neighbour")]
        assert await again.load_events("a", make_id(8)) == [EventChunk(0, 0, b"neighbour" * 900)]
        await again.close()
        check_database(tmp_path)

    run(scenario())


@pytest.mark.parametrize("what", sorted(REMOVALS))
def test_a_removal_that_could_not_be_wiped_is_told_and_can_be_repeated(tmp_path: Path, what: str) -> None:
    """Ours: success is claimed only when the bytes are gone, and then once."""
    plant, remove, answers = REMOVALS[what]

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path, StoreSettings(busy_timeout_s=0.05))
        await plant(store)
        with contextlib.closing(sqlite3.connect(tmp_path / DATABASE_NAME, isolation_level=None)) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM nodes").fetchall()
            for _ in range(2):
                with pytest.raises(StoreError, match="another program is reading"):
                    await remove(store)
            other.execute("COMMIT")
        assert WORD in read_files(tmp_path)
        assert await remove(store) is answers[0]
        assert WORD not in read_files(tmp_path)
        assert await remove(store) is answers[1]
        await store.close()

    run(scenario())


def test_the_space_of_what_is_over_is_used_again(tmp_path: Path) -> None:
    """Ours: events are many times as long as the round, and are kept for a while only."""

    async def rounds(store: SqliteStore, start_at: int) -> None:
        for number in range(start_at, start_at + 20):
            await store.open_job(make_job(number, b"word"))
            for chunk in range(5):
                await store.append_events("a", make_id(number), EventChunk(chunk, chunk, b"e" * 9000))
            await store.record(make_record(number))
            await store.drop_events("a", make_id(number))

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        await rounds(store, 0)
        before = (tmp_path / DATABASE_NAME).stat().st_size
        await rounds(store, 100)
        await rounds(store, 200)
        # The rounds themselves take a few pages.
        assert (tmp_path / DATABASE_NAME).stat().st_size <= before + 3 * PAGE_BYTES
        await store.close()

    run(scenario())


class Churn:
    """Everything that a store holds, each part with a word of its own, changed at random."""

    def __init__(self, store: SqliteStore, seed: int) -> None:
        self.store = store
        self.choose = random.Random(seed)
        self.count = 0
        #: node number -> words of its items; of its events; of what has not ended; conversation -> of metadata.
        self.items: dict[int, list[bytes | None]] = {}
        self.events: dict[int, list[bytes]] = {}
        self.jobs: dict[int, bytes] = {}
        self.topics: dict[str, bytes] = {}

    def make_word(self) -> bytes:
        """A word that is nowhere else."""
        self.count += 1
        return b"word%dz%012x" % (self.count, self.choose.getrandbits(48))

    def fill(self, word: bytes) -> bytes:
        """The word at both ends of a text of some length."""
        dots = self.choose.randrange(self.choose.choice([1, 50, 3000, 30000]))
        return word + b"." * dots + word

    def list_words(self) -> set[bytes]:
        """What must be in the files, and nothing else."""
        words = {word for words in self.items.values() for word in words if word is not None}
        return words.union(*self.events.values(), self.jobs.values(), self.topics.values())

    async def open_job(self) -> None:
        """A new background response."""
        self.count += 1
        number, word = self.count, self.make_word()
        self.jobs[number] = word
        self.events[number] = []
        job = Job(
            id=make_id(number), tenant="a", created_at=1, request=self.fill(word), snapshot=self.fill(word)
        )
        await self.store.open_job(job)

    async def append(self) -> None:
        """Events of any response."""
        if self.events:
            number = self.choose.choice(sorted(self.events))
            word = self.make_word()
            self.events[number].append(word)
            self.count += 1
            await self.store.append_events(
                "a", make_id(number), EventChunk(self.count, self.count, self.fill(word))
            )

    async def end(self) -> None:
        """A response ends; its words are others than the job's."""
        if self.jobs:
            number = self.choose.choice(sorted(self.jobs))
            del self.jobs[number]
            await self._record(number)

    async def record(self) -> None:
        """An ordinary round."""
        self.count += 1
        self.events[self.count] = []
        await self._record(self.count)

    async def drop(self) -> None:
        """The events of a response are over."""
        if self.events:
            number = self.choose.choice(sorted(self.events))
            self.events[number] = []
            await self.store.drop_events("a", make_id(number))

    async def delete(self) -> None:
        """A round is deleted."""
        if self.items:
            number = self.choose.choice(sorted(self.items))
            del self.items[number], self.events[number]
            assert await self.store.delete("a", make_id(number))

    async def blank(self) -> None:
        """An item of a round is deleted."""
        left = sorted(number for number, words in self.items.items() if any(words))
        if left:
            number = self.choose.choice(left)
            words = self.items[number]
            position = self.choose.choice([at for at, word in enumerate(words) if word])
            words[position] = None
            self.events[number] = []
            assert await self.store.blank_items("a", make_id(number), [position])

    async def name(self) -> None:
        """A conversation gets its first or another topic."""
        conversation, word = f"conv_{self.choose.randrange(5)}", self.make_word()
        metadata = b'{"topic":"%s"}' % self.fill(word)
        if conversation in self.topics:
            assert await self.store.update_conversation("a", conversation, metadata)
        else:
            await self.store.create_conversation(
                Conversation(id=conversation, tenant="a", created_at=1, metadata=metadata)
            )
        self.topics[conversation] = word

    async def forget(self) -> None:
        """A conversation is deleted."""
        if self.topics:
            conversation = self.choose.choice(sorted(self.topics))
            del self.topics[conversation]
            assert await self.store.delete_conversation("a", conversation)

    async def _record(self, number: int) -> None:
        words = [self.make_word() for _ in range(self.choose.randrange(1, 5))]
        self.items[number] = list(words)
        items = [b'{"role":"user","content":"%s"}' % self.fill(word) for word in words]
        cut = self.choose.randrange(len(items) + 1)
        await self.store.record(
            make_record(
                number,
                input=b"[%s]" % b",".join(items[:cut]),
                output=b"[%s]" % b", ".join(items[cut:]),
                client_ids=(("x", 0),),
            )
        )


@pytest.mark.parametrize("seed", range(8))
def test_no_removed_word_survives_whatever_is_written_between(tmp_path: Path, seed: int) -> None:
    """Ours: jobs, events, single items and metadata leave nothing behind, and take nothing with them."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        churn = Churn(store, seed)
        grow = [churn.open_job, churn.append, churn.append, churn.append, churn.record, churn.name]
        shrink = [churn.end, churn.end, churn.drop, churn.delete, churn.blank, churn.forget]
        for _ in range(25):
            for _ in range(churn.choose.randrange(20)):
                await churn.choose.choice(grow * churn.choose.choice([1, 2]) + shrink)()
            # What an ended job leaves in the log goes with the next removal.
            await churn.name()
            await churn.forget()
            found = set(re.findall(rb"word\d+z[0-9a-f]{12}", read_files(tmp_path)))
            assert found == churn.list_words()
            for number, words in churn.items.items():
                loaded = await store.load("a", make_id(number))
                assert loaded is not None
                items = msgspec.json.decode(loaded.input) + msgspec.json.decode(loaded.output)
                for item, word in zip(items, words, strict=True):
                    assert item is None if word is None else item["content"].startswith(word.decode())
            for number, told in churn.events.items():
                chunks = await store.load_events("a", make_id(number))
                assert [chunk.body[: len(word)] for chunk, word in zip(chunks, told, strict=True)] == told
        await store.close()
        check_database(tmp_path)

    run(scenario())


def check_database(folder: Path) -> None:
    """The database is sound: no damage, no reference into nothing, each slot of one length and in one place."""
    with contextlib.closing(sqlite3.connect(folder / DATABASE_NAME)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        slots = connection.execute("SELECT key FROM slots ORDER BY key").fetchall()
        assert connection.execute("SELECT slot FROM pieces ORDER BY slot").fetchall() == slots
        assert len(connection.execute("SELECT DISTINCT length(body) FROM slots").fetchall()) <= 1
        used = "SELECT count(*) FROM slots WHERE body <> zeroblob(length(body)) AND key IN (%s)"
        free = "SELECT slot FROM pieces WHERE tenant = 0"
        assert connection.execute(used % free).fetchone() == (0,)


def test_jobs_events_and_tips_are_there_after_a_restart(tmp_path: Path) -> None:
    """Ours: what is under way in the background outlives the process."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        for number in (1, 2, 3):
            await store.open_job(make_job(number, b"job%d" % number))
            await store.append_events("a", make_id(number), EventChunk(0, 4, b"e%d" % number))
        await store.start_job("a", make_id(2))
        await store.create_conversation(Conversation(id="c", tenant="a", created_at=1, metadata=b'{"x":1}'))
        await store.record(make_record(3), conversation="c")
        await store.close()
        again = SqliteStore.open(tmp_path)
        running = msgspec.structs.replace(make_job(2, b"job2"), status="in_progress")
        assert await again.list_jobs() == [make_job(1, b"job1"), running]
        # An ordinary round of the new process ends its job too.
        await again.record(make_record(2))
        assert await again.list_jobs() == [make_job(1, b"job1")]
        assert await again.load_events("a", make_id(2)) == [EventChunk(0, 4, b"e2")]
        assert await again.list_events() == [("a", make_id(2), 2), ("a", make_id(3), 3)]
        assert await again.load_conversation("a", "c") == Conversation(
            id="c", tenant="a", created_at=1, metadata=b'{"x":1}', tip=make_id(3)
        )
        await again.record(make_record(4, parent=3), conversation="c")
        await again.close()
        check_database(tmp_path)

    run(scenario())


def make_first_database(folder: Path) -> None:
    """A database of the first schema, with rows in the packed form of that time."""
    nodes = [
        (1, None, 0, 1, 0, 1, 1, 5, 6, bytes(18), b'\x01qx"},{"a":null}]', b"[]", b"{}"),
        (2, 1, 0, 1, 0, 1, 1, 7, None, "r", b'\x00[{},"xyz"]', b'["xyz"]', b"{}"),
    ]
    with contextlib.closing(sqlite3.connect(folder / DATABASE_NAME, isolation_level=None)) as old:
        old.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        old.executescript(load_migrations()[0].sql)
        old.execute("INSERT INTO tenants VALUES ('a', 1)")
        old.execute("INSERT INTO contents VALUES (1, 1, zeroblob(32), ?)", (b"{}",))
        old.execute("INSERT INTO settings VALUES (1, 1, NULL, NULL)")
        old.executemany(f"INSERT INTO nodes VALUES ({', '.join('?' * len(nodes[0]))})", nodes)
        old.execute("INSERT INTO client_ids VALUES (1, zeroblob(16), 2, 1)")
        old.executescript(f"PRAGMA user_version = 1; PRAGMA application_id = {APPLICATION_ID};")


def test_a_database_of_the_first_schema_goes_on_with_all_it_has(tmp_path: Path) -> None:
    """Ours: a newer version brings an older database forward; what it holds can be read, blanked, deleted."""
    root = make_record(
        0,
        created_at=5,
        completed_at=6,
        input=b'[{"role":"user","content":"qx"},{"a":null}]',
        output=b"[]",
    )
    child = make_record(1, parent=0, id="r", created_at=7, input=b'[{},"xyz"]', output=b'["xyz"]')
    make_first_database(tmp_path)

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        assert await store.load("a", root.id) == root
        assert await store.load("a", "r") == child
        await store.create_conversation(Conversation(id="c", tenant="a", created_at=1, metadata=b'{"x":1}'))
        await store.open_job(make_job(8, b"job"))
        assert await store.blank_items("a", "r", [1, 2])
        assert b"xyz" not in read_files(tmp_path)
        loaded = await store.load("a", "r")
        assert loaded is not None
        assert loaded.input == b"[{},null ]"
        assert loaded.output == b"[null    ]"
        assert await store.blank_items("a", root.id, [1])
        loaded = await store.load("a", root.id)
        assert loaded is not None
        assert loaded.input.replace(b" ", b"") == b'[{"role":"user","content":"qx"},null]'
        assert await store.delete("a", root.id)
        assert b"qx" not in read_files(tmp_path)
        await store.record(make_record(9, parent=None, input=b"[1]"))
        await store.close()
        check_database(tmp_path)

    run(scenario())


def test_an_item_too_short_to_be_blanked_in_place_is_told_and_stays(tmp_path: Path) -> None:
    """Ours: a longer row would move, and leave a copy of its neighbours."""

    async def scenario() -> None:
        store = SqliteStore.open(tmp_path)
        long_text = b'[1,"%s"]' % (b"x" * 20_000)
        await store.record(make_record(1, input=long_text))
        with pytest.raises(StoreError, match="too short to be blanked"):
            await store.blank_items("a", make_id(1), [0])
        loaded = await store.load("a", make_id(1))
        assert loaded is not None
        assert loaded.input == long_text
        await store.record(make_record(2, input=b"[1,2]"))
        assert await store.blank_items("a", make_id(2), [0])
        await store.close()

    run(scenario())
