"""What a connection holds of responses that are not stored: its limit, its index, what the older ones keep."""

import asyncio

import msgspec

from antiphon.engine.unstored import HeldRound, LaneRounds, UnstoredMemory, UnstoredRounds
from antiphon.engine.windows import Step, Window, WindowCache, extend, start_window
from antiphon.store import Record
from antiphon.store.memory import MemoryStore

TENANT = "t"
MEGABYTE = 1_000_000


def open_rounds(memory: UnstoredMemory) -> UnstoredRounds:
    return UnstoredRounds(TENANT, MemoryStore(), WindowCache(MEGABYTE), memory)


def make_record(name: str, parent: str | None = None, *, input_bytes: int = 2, more: int = 0) -> Record:
    return Record(
        id=name,
        parent=parent,
        tenant=TENANT,
        created_at=1,
        input=b'["' + b"x" * input_bytes + b'"]',
        instructions=b"i" * more,
        tools=b"t" * more,
        settings=b"s" * more,
        outcome=msgspec.json.encode(
            {"u": [1, 2], "w": [["code", "o" * more]], "m": {f"call_{name}": "keep"}}
        ),
        client_ids=((f"own_{name}", 0), ("shared", 0)),
    )


def say(
    rounds: UnstoredRounds, lane: str | None, name: str, parent: str | None = None, **sizes: int
) -> LaneRounds:
    """A response of a lane, as a round records it."""
    held = rounds.find_tip(parent)
    line = LaneRounds(rounds, lane, held)
    asyncio.run(line.record(make_record(name, parent, **sizes)))
    return line


def make_window(name: str, size: int, after: Window | None = None) -> Window:
    return extend(after or start_window("key"), Step(node_id=name, pieces=(b"x" * size,)))


def test_one_large_response_takes_the_place_of_a_thousand_small_lanes() -> None:
    """Ours: room is made in a loop; it was a recursion that broke with many lanes."""
    memory = UnstoredMemory(8 * MEGABYTE)
    others = [open_rounds(memory) for _ in range(50)]
    for rounds in others:
        for lane in range(32):
            say(rounds, str(lane), f"resp_{lane}")
    large = open_rounds(memory)
    say(large, None, "resp_large", input_bytes=7 * MEGABYTE)
    assert large.find_tip("resp_large") is not None
    assert memory.size_bytes <= memory.limit_bytes
    assert others[0].find("resp_0") is None


def test_a_response_larger_than_all_memory_is_not_held_and_takes_nothing_from_others() -> None:
    """Ours: it ends well, but cannot be continued."""
    memory = UnstoredMemory(MEGABYTE)
    other, large = open_rounds(memory), open_rounds(memory)
    say(other, None, "resp_small")
    before = memory.size_bytes
    say(large, None, "resp_large", input_bytes=2 * MEGABYTE)
    assert (large.find("resp_large"), memory.size_bytes) == (None, before)
    assert other.find_tip("resp_small") is not None


def test_everything_held_is_counted_and_older_responses_keep_their_items_alone() -> None:
    """Ours: instructions, tools, settings and the outcome count while they are held."""
    memory = UnstoredMemory(100 * MEGABYTE)
    rounds = open_rounds(memory)
    say(rounds, None, "resp_0", more=MEGABYTE)
    one = memory.size_bytes
    assert one > 4 * MEGABYTE
    for number in range(1, 100):
        say(rounds, None, f"resp_{number}", f"resp_{number - 1}", more=MEGABYTE)
    assert one < memory.size_bytes < one + MEGABYTE
    oldest = rounds.find("resp_0")
    assert oldest is not None
    assert (oldest.record.instructions, oldest.record.tools) == (None, None)
    rounds.close()
    assert memory.size_bytes == 0


def test_only_latest_responses_keep_windows_and_shared_bytes_count_once() -> None:
    """Ours: models that alternate made a whole window at every ancestor; a fork still needs its parent's."""
    memory = UnstoredMemory(100 * MEGABYTE)
    rounds = open_rounds(memory)
    line = say(rounds, "a", "resp_0")
    first = make_window("0", MEGABYTE)
    line.put(TENANT, "resp_0", first, since_deletion=0)
    fork = say(rounds, "b", "resp_1", "resp_0")
    fork.put(TENANT, "resp_1", make_window("1", 10, first), since_deletion=0)
    parent = rounds.find("resp_0")
    assert parent is not None
    assert parent.window is first
    assert MEGABYTE < memory.size_bytes < MEGABYTE + 50_000
    again = say(rounds, "a", "resp_2", "resp_0")
    again.put(TENANT, "resp_2", make_window("2", MEGABYTE), since_deletion=0)
    again.put(TENANT, "resp_0", first, since_deletion=0)
    assert again.get(TENANT, "resp_0", "key") is first
    assert 2 * MEGABYTE < memory.size_bytes < 2 * MEGABYTE + 50_000
    assert LaneRounds(rounds, "c", None).get(TENANT, "resp_0", "key") is None
    rounds.close()
    assert memory.size_bytes == 0


def test_a_fork_under_way_brings_back_the_path_that_its_lane_let_go() -> None:
    """Ours: a response that continues what was evicted meanwhile is counted and found with its whole path."""
    memory = UnstoredMemory(MEGABYTE)
    rounds = open_rounds(memory)
    say(rounds, "a", "resp_0")
    say(rounds, "a", "resp_1", "resp_0")
    fork = LaneRounds(rounds, "b", rounds.find_tip("resp_1"))
    rounds.forget("a")
    assert (rounds.find("resp_0"), memory.size_bytes) == (None, 0)
    asyncio.run(fork.record(make_record("resp_2", "resp_1")))
    path = asyncio.run(fork.load_path(TENANT, "resp_2"))
    assert path is not None
    assert [node.id for node in path] == ["resp_0", "resp_1", "resp_2"]
    assert rounds.find("resp_0") is not None
    rounds.forget("b")
    assert (rounds.find("resp_0"), memory.size_bytes) == (None, 0)


def test_ids_of_items_are_found_until_the_last_path_with_them_is_let_go() -> None:
    """Ours: the newest round counts where several have an id; forks share what is above them."""
    memory = UnstoredMemory(MEGABYTE)
    rounds = open_rounds(memory)
    say(rounds, "a", "resp_0")
    say(rounds, "b", "resp_1", "resp_0")
    say(rounds, "a", "resp_2", "resp_0")
    assert rounds.find_item("shared") == ("resp_2", 0)
    rounds.forget("a")
    assert rounds.find_item("shared") == ("resp_1", 0)
    assert (rounds.find_item("own_resp_0"), rounds.find_item("own_resp_2")) == (("resp_0", 0), None)
    rounds.forget("b")
    assert (rounds.find_item("shared"), rounds.find_item("own_resp_0")) == (None, None)


def test_a_long_chain_is_let_go_at_once() -> None:
    """Ours: neither the count nor the release of a chain is recursive."""
    memory = UnstoredMemory(1_000 * MEGABYTE)
    rounds = open_rounds(memory)
    held: HeldRound | None = None
    for number in range(20_000):
        held = HeldRound(make_record(f"resp_{number}", held.record.id if held else None), held)
        rounds.hold(None, held)
    assert rounds.find("resp_0") is not None
    rounds.close()
    assert (memory.size_bytes, rounds.find("resp_0")) == (0, None)


def test_outcomes_come_from_what_is_held_and_from_the_store_below() -> None:
    """Ours: a path may begin in the store; of a held round that was continued, the marks are left."""
    memory = UnstoredMemory(MEGABYTE)
    rounds = open_rounds(memory)
    stored = msgspec.structs.replace(make_record("resp_stored"), outcome=b'{"u":[1,2]}')
    shadowed = msgspec.structs.replace(make_record("resp_0"), outcome=b'{"r":"another"}')
    for record in (stored, shadowed):
        asyncio.run(rounds.store.record(record))
    say(rounds, "a", "resp_0", "resp_stored")
    say(rounds, "a", "resp_1", "resp_0")
    line = LaneRounds(rounds, "b", rounds.find_tip("resp_1"))
    ids = ["resp_stored", "resp_0", "resp_1", "resp_2"]
    assert asyncio.run(line.load_outcomes(TENANT, ids)) == {
        "resp_stored": b'{"u":[1,2]}',
        "resp_0": b'{"m":{"call_resp_0":"keep"}}',
        "resp_1": make_record("resp_1").outcome,
    }
    assert asyncio.run(line.load_outcomes("other", ids)) == {}
    rounds.forget("a")
    assert rounds.find("resp_0") is None
    told = asyncio.run(line.load_outcomes(TENANT, {"resp_0", "resp_1"}))
    assert told == {"resp_0": b'{"m":{"call_resp_0":"keep"}}', "resp_1": make_record("resp_1").outcome}


def test_what_is_held_was_never_deleted() -> None:
    """Ours: only the store has tombstones."""
    rounds = open_rounds(UnstoredMemory(MEGABYTE))
    for name in ("resp_stored", "resp_gone"):
        asyncio.run(rounds.store.record(make_record(name)))
    assert asyncio.run(rounds.store.delete(TENANT, "resp_gone"))
    line = say(rounds, None, "resp_0", "resp_stored")
    ids = ["resp_stored", "resp_gone", "resp_0", "resp_unknown"]
    assert asyncio.run(line.find_deleted(TENANT, ids)) == {"resp_gone"}
    assert asyncio.run(line.find_deleted("other", ids)) == set()
