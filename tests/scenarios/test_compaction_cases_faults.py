"""Faults that another server's compaction has by its construction, each probed here with the smallest request.

The table in `docs/reference/compaction-cases.md` names each test.
"""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.bootstrap import build_app
from antiphon.client.app_transport import AppTransport
from antiphon.client.transport import TransportLimits
from antiphon.config import load_config
from tests.fake_upstream import MODEL, FakeUpstream, Reply
from tests.scenarios.client import StrictClient
from tests.scenarios.compaction_talk import (
    SUMMARY,
    TRIGGER,
    CompactingHouse,
    Item,
    Model,
    call,
    count_tokens,
    find_summary,
    is_summary_request,
    list_pairs,
    list_texts,
    make_settings,
    name_path,
    prose,
    read_item,
    read_pass,
    result,
    run,
    said,
    show_prompt,
    user,
    work,
)
from tests.scenarios.virtual_time import run_virtually

WINDOW_TOKENS = 6_000
SUMMARISE: dict[str, Any] = {"antiphon": {"method": "summary"}}
GOAL = "Task GOAL-1."


@pytest.mark.parametrize("way", ["compact", "trigger"])
def test_prose_is_taken_as_the_summary(tmp_path: Path, way: str) -> None:
    """A model that calls nothing and follows no schema has still written a summary."""

    async def story(talk: CompactingHouse) -> None:
        make = talk.compact if way == "compact" else talk.trigger
        made = await make([user(GOAL), *work(12, 300)], **SUMMARISE)
        assert read_pass(made)["summary"] == "model"
        assert SUMMARY in find_summary(await talk.show(made["output"]))

    run(tmp_path, Model(forms=["prose"] * 9), story, window_tokens=WINDOW_TOKENS)


def test_a_server_that_cuts_silently_is_never_sent_more_than_fits(tmp_path: Path) -> None:
    """Ollama drops the oldest messages without a word: so the goal, in item 1, is read because nothing is too long."""

    async def story(talk: CompactingHouse) -> None:
        made = await talk.compact([user(GOAL), *work(24, 350)], **SUMMARISE)
        assert talk.model.refused == []
        assert len(talk.model.summaries) > 1
        told = [show_prompt(request) for request in talk.model.summaries]
        assert any(GOAL in each for each in told)
        assert all(any(name_path(number) in each for each in told) for number in range(1, 20))
        assert GOAL in list_texts(await talk.show(made["output"]), "user")
        assert "omitted" not in read_pass(made)

    profile = {"truncates_silently": True}
    run(tmp_path, Model(window_tokens=4_000), story, window_tokens=4_000, profile=profile)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("times", [2, 5])
def test_a_transcript_of_several_windows_is_compacted(tmp_path: Path, times: int, known: bool) -> None:
    """Also where the window is learnt from the server's refusal alone, in llama.cpp's words."""

    async def story(talk: CompactingHouse) -> None:
        rounds = times * 3_000 // 330
        made = await talk.compact([user(GOAL), *work(rounds, 300)], **SUMMARISE)
        done = read_pass(made)
        assert done["summary"] == "model"
        # The whole transcript over what a window leaves to it, and two more.
        assert done["model_calls"] <= -(-times * 3_000 * 1.4 // (3_000 * 0.6)) + 2
        shown = await talk.show(made["output"])
        assert count_tokens(shown) <= 3_000
        assert GOAL in list_texts(shown, "user")

    run(tmp_path, Model(window_tokens=3_000), story, window_tokens=3_000 if known else None)


def test_two_compaction_items_are_no_error(tmp_path: Path) -> None:
    """Each is opened in its place; a third compaction takes both in."""

    async def story(talk: CompactingHouse) -> None:
        one = await talk.compact([user("First."), *work(12, 300)], **SUMMARISE)
        two = await talk.compact([user("Second."), *work(12, 300, first=40)], **SUMMARISE)
        items = [read_item(one), user("Between."), read_item(two), user("Behind.")]
        made = await talk.trigger(items, **SUMMARISE)
        shown = await talk.show([], previous_response_id=made["id"])
        own = list_texts(shown, "user")
        assert [text for text in own if text in ("First.", "Between.", "Second.", "Behind.")] == [
            "First.",
            "Between.",
            "Second.",
            "Behind.",
        ]

    run(tmp_path, Model(), story, window_tokens=8_000)


def test_arguments_that_are_no_json_do_not_block_compaction(tmp_path: Path) -> None:
    """A model wrote them, so they are history; the session is compacted and goes on."""

    async def story(talk: CompactingHouse) -> None:
        calls: list[Item] = []
        for number, arguments in enumerate(["{bad", "", "[1]", '"x"', '{"input":"a"}]']):
            calls += [{**call(number), "arguments": arguments}, result(number, "The arguments are no JSON.")]
        items = [user(GOAL), *calls, said("Again."), *work(12, 300, first=10)]
        made = await talk.trigger(items, **SUMMARISE)
        assert SUMMARY in find_summary(await talk.show([], previous_response_id=made["id"]))

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_no_item_can_be_forged_or_changed(tmp_path: Path) -> None:
    """The item is sealed: flipped, cut and swapped bytes, and readable text, are refused and open nothing."""

    async def story(talk: CompactingHouse) -> None:
        made = await talk.compact([user(GOAL), *work(12, 300)], **SUMMARISE)
        item = read_item(made)
        content = item["encrypted_content"]
        assert GOAL not in content
        middle = len(content) // 2
        forged = [
            content[:middle] + ("A" if content[middle] != "A" else "B") + content[middle + 1 :],
            content[:-8],
            content[8:],
            content + "AAAA",
            content[::-1],
            json.dumps({"type": "ollama_compaction", "version": 1, "summary": "x", "retained": []}),
        ]
        before = len(talk.house.upstream.asked)
        for each in forged:
            error = await talk.house.refuse(input=[{**item, "encrypted_content": each}, user("Go on.")])
            assert error["code"] == "invalid_encrypted_content"
            assert GOAL not in json.dumps(error)
        assert len(talk.house.upstream.asked) == before

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


@pytest.mark.parametrize("way", ["compact", "trigger"])
def test_usage_is_the_sum_of_all_requests_for_the_summary(tmp_path: Path, way: str) -> None:
    """A repair is paid for too, so it is counted."""

    async def story(talk: CompactingHouse) -> None:
        make = talk.compact if way == "compact" else talk.trigger
        made = await make([user(GOAL), *work(12, 300)], **SUMMARISE)
        assert len(talk.model.summaries) == 2
        assert read_pass(made)["repairs"] == 1
        tokens = [count_tokens(request) for request in talk.model.summaries]
        assert made["usage"]["input_tokens"] == sum(tokens)
        assert made["usage"]["output_tokens"] == 10
        assert made["usage"]["total_tokens"] == sum(tokens) + 10

    run(tmp_path, Model(forms=["empty"]), story, window_tokens=WINDOW_TOKENS)


def test_a_stream_shows_signs_of_life_while_a_summary_is_written(tmp_path: Path) -> None:
    """A minute of silence of the model server, in virtual time."""

    class Slow(Model):
        """Waits a minute before its summary."""

        def __call__(self, request: Any) -> Reply:
            reply = super().__call__(request)
            if not is_summary_request(request):
                return reply
            ready = asyncio.Event()
            asyncio.get_running_loop().call_later(60, ready.set)
            return Reply([ready, *reply.steps])

    async def story() -> list[str]:
        async with FakeUpstream(Slow()) as upstream:
            flags = {
                "server": {"data": str(tmp_path / "data")},
                **make_settings(upstream, window_tokens=WINDOW_TOKENS),
                "limits": {"keep_alive_s": 15.0, "idle_timeout_s": 300.0},
            }
            async with build_app(load_config(flags, environ={}, cwd=tmp_path)) as app:
                transport = AppTransport(app, TransportLimits())
                try:
                    items = [user(GOAL), *work(12, 300), TRIGGER]
                    events = await StrictClient(transport).stream(model=MODEL, input=items, **SUMMARISE)
                finally:
                    await transport.close()
        return [event["type"] for event in events]

    kinds = run_virtually(story())
    signs = {"response.in_progress", "response.compaction.compacting"}
    assert sum(kind in signs for kind in kinds) >= 4
    assert kinds[-1] == "response.completed"


def test_the_compacted_window_has_the_users_messages_beside_the_item(tmp_path: Path) -> None:
    """API: the output is the next window; each of the user's messages, then one compaction item, with an id."""

    async def story(talk: CompactingHouse) -> None:
        items = [
            user("First X."),
            *work(6, 300),
            said("Halfway."),
            user("Second Y."),
            *work(6, 300, first=20),
        ]
        made = await talk.compact(items, **SUMMARISE)
        assert made["object"] == "response.compaction"
        assert made["id"].startswith("resp_")
        *messages, item = made["output"]
        assert [message["content"][0]["text"] for message in messages] == ["First X.", "Second Y."]
        assert all(message["role"] == "user" and message["id"].startswith("msg_") for message in messages)
        assert item["type"] == "compaction"
        assert item["id"].startswith("cmp_")
        shown = await talk.show(made["output"])
        own = list_texts(shown, "user")
        assert [text for text in own if text in ("First X.", "Second Y.")] == ["First X.", "Second Y."]
        # Without the messages beside it, the item alone is the same window.
        assert list_texts(await talk.show([item]), "user") == own

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_a_request_without_input_says_what_is_missing(tmp_path: Path) -> None:
    """A round that continues another needs none, and neither does a compaction; without both there is nothing."""

    async def story(talk: CompactingHouse) -> None:
        first = await talk.house.make(input=[user(GOAL), *work(12, 300)])
        again = await talk.house.make(previous_response_id=first["id"])
        made = await talk.compact(None, previous_response_id=again["id"], **SUMMARISE)
        assert SUMMARY in find_summary(await talk.show(made["output"]))
        for error in (await talk.refuse_compact(), await talk.house.refuse(instructions="Say hello.")):
            assert "input" in error["message"]

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_what_a_request_asks_for_is_honoured_or_refused_here_too(tmp_path: Path) -> None:
    """`store`, `metadata` and `include` of a compaction: echoed and done; unknown fields are named."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(12, 300)]
        kept = await talk.trigger(items, metadata={"a": "b"}, **SUMMARISE)
        assert kept["store"] is True
        assert kept["metadata"] == {"a": "b"}
        assert (await talk.client.retrieve(kept["id"])).body["output"] == kept["output"]
        free = await talk.trigger(items, store=False, **SUMMARISE)
        assert free["store"] is False
        assert (await talk.client.retrieve(free["id"])).status == 404
        error = await talk.house.refuse(input=[*items, TRIGGER], surprise=1)
        assert error["code"] == "unknown_parameter"

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


# Further things that nobody else's tests look at


def test_a_summary_that_was_cut_off_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    """Finish `length`: repaired, or told; never silently half."""
    from tests.fake_upstream import END, make_chunk, make_head

    half = Reply(
        [make_head(), make_chunk({"content": '{"summary": "HALF-OF'}), make_chunk({}, "length"), END]
    )

    async def story(talk: CompactingHouse) -> None:
        made = await talk.compact([user(GOAL), *work(12, 300)], **SUMMARISE)
        done = read_pass(made)
        assert done["repairs"] == 1
        assert SUMMARY in find_summary(await talk.show(made["output"]))

    run(tmp_path, Model(spoilers=[half]), story, window_tokens=WINDOW_TOKENS)


def test_compactions_at_once_do_not_touch_each_other(tmp_path: Path) -> None:
    """Two branches of one response are compacted at the same time; each has its own window."""

    async def story(talk: CompactingHouse) -> None:
        root = await talk.house.make(input=[user(GOAL), *work(8, 300)])

        async def branch(name: str, first: int) -> dict[str, Any]:
            items = [user(f"Branch {name}."), *work(5, 300, first=first)]
            return await talk.trigger(items, previous_response_id=root["id"], stream=False, **SUMMARISE)

        made = await asyncio.gather(branch("A", 40), branch("B", 60))
        for name, other, each in (("A", "B", made[0]), ("B", "A", made[1])):
            shown = await talk.show([], previous_response_id=each["id"])
            assert f"Branch {name}." in list_texts(shown, "user")
            assert f"Branch {other}." not in show_prompt(shown)

    run(tmp_path, Model(), story, window_tokens=8_000)


@pytest.mark.parametrize("way", ["compact", "trigger"])
def test_the_history_that_a_store_false_compaction_removed_is_said_to_be_the_clients(
    tmp_path: Path, way: str
) -> None:
    """Nothing is stored, so nothing can be fetched; the report says so, and the item alone goes on."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(12, 300)]
        made = await (
            talk.compact(items, **SUMMARISE)
            if way == "compact"
            else talk.trigger(items, store=False, **SUMMARISE)
        )
        assert read_pass(made)["kept_by_client"] is True
        shown = await talk.show([read_item(made)], store=False)
        assert GOAL in list_texts(shown, "user")

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_every_item_that_left_the_window_is_fetched_by_the_id_that_the_window_names(tmp_path: Path) -> None:
    """Stored history is never lost: what the summary left out is told by id, and read back byte for byte."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(12, 300)]
        made = await talk.trigger(items, **SUMMARISE)
        shown = await talk.show([], previous_response_id=made["id"])
        done = read_pass(made)
        assert done["removed_count"] == len(done["removed"]) > 8
        told = show_prompt(shown)
        sent = {item["id"]: item for item in items if "id" in item}
        for removal in done["removed"]:
            item: Item = await talk.house.get(f"/v1/items/{removal['id']}")
            if removal["type"] == "function_call_output":
                original = sent[removal["id"]]
                assert item["output"] == original["output"]
            assert removal["tokens"] > 0
        assert done["removed"][0]["id"] in told
        kept = {call_id for call_id, _ in list_pairs(shown)}
        gone = {sent[removal["id"]]["call_id"] for removal in done["removed"] if removal["id"] in sent}
        assert kept.isdisjoint(gone)
        digest = hashlib.sha256(items[2]["output"].encode()).hexdigest()
        fetched = await talk.house.get("/v1/items/fc_1r")
        assert hashlib.sha256(fetched["output"].encode()).hexdigest() == digest

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_a_long_prompt_of_results_is_elided_before_anything_is_summarised(tmp_path: Path) -> None:
    """Free rungs first: where blanking old results is enough, no model is asked, and usage says so."""

    async def story(talk: CompactingHouse) -> None:
        made = await talk.compact([user(GOAL), *work(14, 300), user("Then."), said(prose(2, 20))])
        assert talk.house.upstream.asked == []
        done = read_pass(made)
        assert done["rungs"] == ["elide"]
        assert done["model_calls"] == 0
        assert done["summary"] is None
        assert made["usage"]["total_tokens"] == 0
        shown = await talk.show(made["output"])
        # Every call is still there, with its result or with the place where that can be found.
        assert len(list_pairs(shown)) == 14

    run(tmp_path, Model(), story, window_tokens=8_000)
