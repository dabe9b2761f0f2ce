"""What is said stays: chains, branches, restarts, and what is deliberately not remembered."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.store.memory import MemoryStore
from antiphon.store.sqlite import SqliteStore
from tests.scenarios.client import StrictClient, find_terminal, read_text
from tests.scenarios.serving import GatedBackend, serve, serve_doubles

PLANT = "Remember this word: marmalade."
ASK = "What was the word?"

#: Cache sizes: the default, one that holds next to nothing, none at all.
CACHES = pytest.mark.parametrize("cache_bytes", [268_435_456, 1_024, 0])


def user(text: str) -> dict[str, Any]:
    """A user message as clients write it."""
    return {"role": "user", "content": text}


@CACHES
def test_a_continued_response_knows_the_word_and_counts_as_much_as_the_full_history(
    tmp_path: Path, cache_bytes: int
) -> None:
    """Ours: input_tokens by id equals the full history's and exceeds the bare question's."""

    async def story() -> None:
        async with serve(tmp_path, limits={"window_cache_bytes": cache_bytes}) as client:
            planted = await client.create(input=PLANT)
            by_id = await client.create(input=ASK, previous_response_id=planted["id"])
            full = await client.create(input=[user(PLANT), *planted["output"], user(ASK)])
            bare = await client.create(input=ASK)
            assert "marmalade" in read_text(by_id)
            assert read_text(by_id) == read_text(full)
            assert "marmalade" not in read_text(bare)
            assert by_id["usage"] == full["usage"]
            assert by_id["usage"]["input_tokens"] > bare["usage"]["input_tokens"]
            assert by_id["previous_response_id"] == planted["id"]
            assert planted["previous_response_id"] is None

    asyncio.run(story())


@CACHES
def test_a_long_chain_keeps_its_first_word(tmp_path: Path, cache_bytes: int) -> None:
    """Decision: the window is the whole path. Ours: 40 rounds, streamed and not, by turns."""

    async def story() -> None:
        async with serve(tmp_path, limits={"window_cache_bytes": cache_bytes}) as client:
            tip = (await client.create(input=PLANT))["id"]
            counts = [0]
            for number in range(40):
                body = {"input": f"Round {number}.", "previous_response_id": tip}
                response = (
                    find_terminal(await client.stream(**body)) if number % 2 else await client.create(**body)
                )
                tip = response["id"]
                counts.append(response["usage"]["input_tokens"])
            assert counts == sorted(set(counts))
            answer = await client.create(input=ASK, previous_response_id=tip)
            assert "marmalade" in read_text(answer)

    asyncio.run(story())


@CACHES
def test_two_branches_of_one_response_do_not_see_each_other(tmp_path: Path, cache_bytes: int) -> None:
    """Responses API 2, state rules: parents may be reused."""

    async def story() -> None:
        async with serve(tmp_path, limits={"window_cache_bytes": cache_bytes}) as client:
            root = await client.create(input="My name is Ada.")
            left = await client.create(input="Remember this word: left.", previous_response_id=root["id"])
            right = await client.create(input="Remember this word: right.", previous_response_id=root["id"])
            for branch, word, other in ((left, "left", "right"), (right, "right", "left")):
                answer = await client.create(input=ASK, previous_response_id=branch["id"])
                assert word in read_text(answer)
                assert other not in read_text(answer)
            again = await client.create(input="What is my name?", previous_response_id=root["id"])
            assert "Ada" in read_text(again)

    asyncio.run(story())


def test_a_response_that_was_not_stored_is_nowhere(tmp_path: Path) -> None:
    """Responses API 2: `store: false` is not retrievable and cannot be a parent."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            kept = await client.create(input=PLANT)
            loose = await client.create(
                input="Remember this word: quince.", previous_response_id=kept["id"], store=False
            )
            assert loose["store"] is False
            assert kept["store"] is True
            missing = loose["id"]
            for answer in (
                await client.retrieve(missing),
                await client.delete(missing),
                await client.list_items(missing),
            ):
                assert answer.status == 404
                assert answer.error == {
                    "message": f"Response with id '{missing}' not found.",
                    "type": "invalid_request_error",
                    "param": None,
                    "code": None,
                }
            error = await client.refuse(input=ASK, previous_response_id=missing)
            assert error["code"] == "previous_response_not_found"
            later = await client.create(input=ASK, previous_response_id=kept["id"])
            assert "marmalade" in read_text(later)
            assert "quince" not in read_text(later)

    asyncio.run(story())


def test_a_stream_that_was_not_stored_is_nowhere(tmp_path: Path) -> None:
    """Responses API 2: the same while streaming."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            loose = find_terminal(await client.stream(input=PLANT, store=False))
            assert loose["store"] is False
            assert (await client.retrieve(loose["id"])).status == 404

    asyncio.run(story())


def test_instructions_and_settings_are_never_inherited() -> None:
    """Responses API 2, state rules: every request stands alone apart from items."""
    backend = GatedBackend({"rules": [{"act": "describe"}]})

    async def story() -> None:
        async with serve_doubles(backend) as client:
            first = await client.create(
                input=[{"role": "developer", "content": "Be kind."}, user("Hello.")],
                instructions="Answer in verse.",
                temperature=0.5,
                metadata={"a": "1"},
                tools=[{"type": "function", "name": "look", "parameters": {"type": "object"}}],
                text={"format": {"type": "json_object"}},
            )
            second = await client.create(input="And now?", previous_response_id=first["id"])
            assert first["instructions"] == "Answer in verse."
            assert second["instructions"] is None
            assert (second["temperature"], second["metadata"], second["tools"]) == (1.0, {}, [])
            assert second["text"]["format"] == {"type": "text"}
            # Messages in the input are history, whatever their role; `instructions` is not.
            assert backend.asks[0].system == "Answer in verse.\n\nBe kind."
            assert backend.asks[1].system == "Be kind."
            assert backend.asks[1].temperature is None
            assert list(backend.asks[1].tools) == []

    asyncio.run(story())


def test_a_sampling_parameter_that_was_left_out_is_not_sent() -> None:
    """Ours: a sampling parameter that the client left out is not sent upstream."""
    backend = GatedBackend({"rules": [{"act": "describe"}]})

    async def story() -> None:
        async with serve_doubles(backend) as client:
            await client.create(input="Hello.")
            await client.create(
                input="Hello.",
                temperature=0,
                top_p=0.5,
                presence_penalty=0.25,
                frequency_penalty=-1,
                max_output_tokens=64,
            )
        bare, full = backend.asks
        names = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "max_output_tokens")
        assert [getattr(bare, name) for name in names] == [None] * 5
        assert [getattr(full, name) for name in names] == [0, 0.5, 0.25, -1, 64]

    asyncio.run(story())


def test_the_bytes_of_one_round_begin_those_of_the_next() -> None:
    """Ours: the bytes sent upstream for the next round begin with the bytes of this round's messages."""
    backend = GatedBackend({"rules": [{"act": "describe"}]})

    async def story() -> None:
        async with serve_doubles(backend) as client:
            parent = None
            for number in range(4):
                # Odd spacing and unknown keys of an item are kept as they came.
                told = "null" if parent is None else f'"{parent}"'
                item = f'{{"role" : "user",  "content":"Round {number}", "x_note": 1}}'
                body = f'{{"model":"scripted","previous_response_id":{told},"input":[ {item} ]}}'
                answer = await client.post(body.encode())
                assert answer.status == 200, answer.body
                parent = answer.body["id"]

    asyncio.run(story())
    sent = [b",".join(ask.transcript) for ask in backend.asks]
    for shorter, longer in itertools.pairwise(sent):
        assert longer.startswith(shorter)
    assert b'"role" : "user",  "content":"Round 0", "x_note": 1' in sent[-1]


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    """Ours: a stateful server that really remembers; a restart is an ordinary day."""

    async def before() -> list[dict[str, Any]]:
        async with serve(tmp_path) as client:
            planted = await client.create(input=PLANT, metadata={"k": "v"}, instructions="Be brief.")
            streamed = find_terminal(
                await client.stream(input="And a number: 7.", previous_response_id=planted["id"])
            )
            return [planted, streamed]

    async def after(told: list[dict[str, Any]]) -> None:
        async with serve(tmp_path) as client:
            for response in told:
                assert (await client.retrieve(response["id"])).body == response
            answer = await client.create(input=ASK, previous_response_id=told[-1]["id"])
            assert "marmalade" in read_text(answer)
            # The count is the same as if nothing had happened in between.
            full = [user(PLANT), *told[0]["output"], user("And a number: 7."), *told[1]["output"], user(ASK)]
            assert answer["usage"] == (await client.create(input=full))["usage"]

    asyncio.run(after(asyncio.run(before())))


@CACHES
def test_nothing_continues_through_a_deleted_ancestor(tmp_path: Path, cache_bytes: int) -> None:
    """Decided: a tombstone stays, and a continuation through it is previous_response_not_found."""

    async def story() -> None:
        async with serve(tmp_path, limits={"window_cache_bytes": cache_bytes}) as client:
            root = await client.create(input=PLANT)
            middle = await client.create(input="Go on.", previous_response_id=root["id"])
            tip = await client.create(input="And on.", previous_response_id=middle["id"])
            beside = await client.create(input="Elsewhere.", previous_response_id=root["id"])
            assert (await client.delete(middle["id"])).status == 200
            assert (await client.retrieve(middle["id"])).status == 404
            assert (await client.delete(middle["id"])).status == 404
            for parent in (middle["id"], tip["id"]):
                error = await client.refuse(input=ASK, previous_response_id=parent)
                assert error == {
                    "message": f"Previous response with id '{parent}' not found.",
                    "type": "invalid_request_error",
                    "param": "previous_response_id",
                    "code": "previous_response_not_found",
                }
            # The child keeps its own record, and the other branch goes on.
            assert (await client.retrieve(tip["id"])).body == tip
            answer = await client.create(input=ASK, previous_response_id=beside["id"])
            assert "marmalade" in read_text(answer)

    asyncio.run(story())


def test_a_deleted_word_is_in_no_file(tmp_path: Path) -> None:
    """Decided: deletion is real."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            planted = await client.create(input="Remember this word: xylophonist.")
            keep = await client.create(input="Remember this word: gooseberry.")
            assert (await client.delete(planted["id"])).status == 200
            assert keep["status"] == "completed"
            text = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
            assert b"xylophonist" not in text
            assert b"gooseberry" in text

    asyncio.run(story())


def test_a_word_that_was_not_stored_is_in_no_file(tmp_path: Path) -> None:
    """Decided: the planted word of a `store: false` request is in no file of the data folder."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            await client.create(input="Remember this word: xylophonist.", store=False)
            await client.stream(input="Remember this word: xylophonist.", store=False)
            await client.create(input="Remember this word: gooseberry.")
        text = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
        assert b"xylophonist" not in text

    asyncio.run(story())


def test_fifty_chains_at_once_do_not_mix(tmp_path: Path) -> None:
    """Ours: concurrency; every chain keeps its own word and its own count."""

    async def chain(client: StrictClient, number: int) -> int:
        word = f"word{number:03d}"
        first = await client.create(input=f"Remember this word: {word}.")
        second = find_terminal(await client.stream(input="Go on.", previous_response_id=first["id"]))
        third = await client.create(input=ASK, previous_response_id=second["id"])
        assert word in read_text(third)
        count: int = third["usage"]["input_tokens"]
        return count

    async def story() -> None:
        async with serve(tmp_path) as client:
            counts = await asyncio.gather(*(chain(client, number) for number in range(50)))
            assert len(set(counts)) == 1

    asyncio.run(story())


def test_two_branches_from_one_parent_at_the_same_time_do_not_mix() -> None:
    """Ours: both read the parent's window while neither has ended."""
    backend = GatedBackend({"rules": [{"when": "(?i)what", "act": "recall"}, {"act": "note"}]}, gate_at=1)

    async def story() -> None:
        async with serve_doubles(backend) as client:
            backend.gate.set()
            root = await client.create(input="My name is Ada.")
            backend.gate.clear()
            words = ["left", "right", "middle"]
            tasks = [
                asyncio.create_task(
                    client.create(input=f"Remember this word: {word}.", previous_response_id=root["id"])
                )
                for word in words
            ]
            while backend.streams_open < len(words):
                await asyncio.sleep(0)
            backend.gate.set()
            branches = [await task for task in tasks]
            for word, branch in zip(words, branches, strict=True):
                answer = await client.create(input=ASK, previous_response_id=branch["id"])
                assert read_text(answer).count(word) == 1
                for other in set(words) - {word}:
                    assert other not in read_text(answer)

    asyncio.run(story())


@pytest.mark.parametrize("stream", [False, True])
def test_a_parent_that_is_deleted_while_its_child_is_made_is_no_ancestor_afterwards(stream: bool) -> None:
    """Decided: the child is not claimed to be complete, and nothing continues through the deleted one."""
    backend = GatedBackend({"rules": [{"when": "(?i)what", "act": "recall"}, {"act": "note"}]}, gate_at=1)

    async def story() -> None:
        async with serve_doubles(backend) as client:
            backend.gate.set()
            root = await client.create(input=PLANT)
            backend.gate.clear()
            backend.waiting.clear()
            body = {
                "model": "scripted",
                "input": "Go on.",
                "previous_response_id": root["id"],
                "stream": stream,
            }
            child = asyncio.create_task(client.exchange(json.dumps(body).encode()))
            await backend.waiting.wait()
            assert (await client.delete(root["id"])).status == 200
            backend.gate.set()
            told = await child
            if isinstance(told, list):
                assert find_terminal(told)["status"] == "failed"
                tip = find_terminal(told)["id"]
            else:
                # A permanent fault must not be a 5xx, which clients try again.
                assert (told.status, told.error["code"]) == (400, "previous_response_not_found")
                tip = root["id"]
            error = await client.refuse(input=ASK, previous_response_id=tip)
            assert error["code"] == "previous_response_not_found"

    asyncio.run(story())


#: (what, which, how): make a response below an earlier one, streamed or not; or delete one.
TREES = st.lists(
    st.tuples(st.sampled_from(["make", "make", "make", "delete"]), st.integers(0, 20), st.booleans()),
    max_size=25,
)


async def grow_tree(
    client: StrictClient, backend: GatedBackend, actions: list[tuple[str, int, bool]]
) -> list[Any]:
    """What the model was shown, or how the request was refused, for each action."""
    told: list[Any] = []
    ids: list[str] = []
    for number, (what, which, streamed) in enumerate(actions):
        chosen = ids[which % len(ids)] if ids and which else None
        if what == "delete":
            if chosen is not None:
                told.append((await client.delete(chosen)).status)
            continue
        body: dict[str, Any] = {
            "input": [user(f"Round {number}."), {"role": "developer", "content": "Be kind."}][number % 2 :],
            "previous_response_id": chosen,
            "instructions": "Briefly." if number % 3 == 0 else None,
        }
        answer = await client.post(body)
        if answer.status != 200:
            told.append((answer.status, answer.error["code"]))
            continue
        if streamed:
            # The same again as a sibling, so that its window is a branch.
            ids.append(find_terminal(await client.stream(**body))["id"])
        ids.append(answer.body["id"])
        ask = backend.asks[-1]
        told.append((ask.system, b",".join(ask.transcript).replace(chosen.encode() if chosen else b"-", b"")))
    return [_without_ids(each) for each in told]


def _without_ids(told: Any) -> Any:
    """Transcripts hold the ids of items, which differ from run to run."""
    import re

    if isinstance(told, tuple) and isinstance(told[1], bytes):
        return told[0], re.sub(rb'"id":"[a-z]+_[0-9a-f]+"', b"", told[1])
    return told


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(TREES)
def test_any_tree_is_read_the_same_with_any_cache(actions: list[tuple[str, int, bool]]) -> None:
    """Decision, the window: computed from the path, cached or not; deletions included."""

    async def story(cache_bytes: int) -> list[Any]:
        backend = GatedBackend({"window_tokens": 10**9, "rules": [{"text": "ok"}]})
        async with serve_doubles(backend, MemoryStore(), cache_bytes=cache_bytes) as client:
            return await grow_tree(client, backend, actions)

    expected = asyncio.run(story(0))
    for cache_bytes in (1 << 28, 6_000):
        assert asyncio.run(story(cache_bytes)) == expected


def test_a_long_random_tree_is_read_the_same_from_disk(tmp_path: Path) -> None:
    """The same on the real store, one tree of 300 actions."""
    import random

    choice = random.Random(7)
    kinds = ["make"] * 9 + ["delete"]
    actions = [(choice.choice(kinds), choice.randrange(1, 1000), choice.random() < 0.3) for _ in range(300)]

    async def story(store: Any, cache_bytes: int) -> list[Any]:
        backend = GatedBackend({"window_tokens": 10**9, "rules": [{"text": "ok"}]})
        async with serve_doubles(backend, store, cache_bytes=cache_bytes) as client:
            return await grow_tree(client, backend, actions)

    expected = asyncio.run(story(MemoryStore(), 0))
    assert any(isinstance(each, tuple) and each[0] == 400 for each in expected)
    for cache_bytes in (1 << 28, 20_000, 0):
        store = SqliteStore.open(tmp_path / str(cache_bytes))
        assert asyncio.run(story(store, cache_bytes)) == expected
