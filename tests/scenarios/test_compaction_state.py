"""What a compaction remembers: deletions, calls, settings, repeated words and names, wherever a window comes from.

All of it is ours: faults of their kinds were found by trying to break it, each kind is probed whole.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from antiphon.context.sealed_window import HEADING
from antiphon.engine.recall import RECALL_NAME
from tests.fake_upstream import END, MODEL, Reply, Request, make_chunk, make_head
from tests.scenarios.compaction_talk import (
    TRIGGER,
    CompactingHouse,
    Item,
    Model,
    call,
    find_summary,
    image,
    is_summary_request,
    list_images,
    list_open_calls,
    list_pairs,
    list_texts,
    make_png,
    prose,
    read_item,
    read_pass,
    read_passes,
    result,
    run,
    said,
    show_prompt,
    system,
    text_part,
    user,
    work,
)
from tests.scenarios.houses import WAIT_S, list_codes
from tests.scenarios.test_websocket import talk as open_socket

Story = Callable[[CompactingHouse], Awaitable[None]]

WINDOW_TOKENS = 6_000
WIDE_TOKENS = 20_000
SUMMARISE: dict[str, Any] = {"antiphon": {"method": "summary"}}
METHODS = ["auto", "elide", "summary", "extract"]
WORD = "PLUMWORD"
RECALLS: dict[str, Any] = {"recall": True}


def play(folder: Path, model: Model, *stories: Story, **settings: Any) -> None:
    """Stories one after another, the server started anew before each."""
    settings.setdefault("window_tokens", WINDOW_TOKENS)
    for story in stories:
        run(folder, model, story, **settings)


def due(threshold: int) -> dict[str, Any]:
    """A client that asks for a compaction at so many tokens."""
    return {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}


def strip_ids(items: Sequence[Item]) -> list[Item]:
    """The items as a client sends them that gives none of them an id."""
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def list_own(request: Request) -> list[str]:
    """What users said, without what was written of it."""
    return [text for text in list_texts(request, "user") if not text.startswith(HEADING)]


# What was deleted


def repeat_word(request: Request) -> str:
    """A summary that tells the word wherever its writer was told it."""
    return f"SUMMARY-TEXT of the work, {WORD if WORD in show_prompt(request) else 'nothing else'}."


async def tell_word(
    talk: CompactingHouse, way: str, word: str = WORD, first: int = 1
) -> tuple[str, Callable[[], Awaitable[None]]]:
    """A stored response behind that word, and how the word is deleted: its item, or the whole response."""
    items = [user(f"Task {word}.", id=f"msg_{word}"), *work(6, first=first)]
    if way == "response":
        made = await talk.house.make(input=items)
        path = f"/v1/responses/{made['id']}"
    else:
        begun = await talk.client.send("POST", "/v1/conversations", {"items": items})
        made = await talk.house.make(input=[user("Go on.")], conversation=begun.body["id"])
        path = f"/v1/conversations/{begun.body['id']}/items/msg_{word}"

    async def delete() -> None:
        assert (await talk.client.send("DELETE", path)).status == 200

    return made["id"], delete


async def check_seal_is_dead(talk: CompactingHouse, item: Item) -> None:
    """By every entrance, under both its names, the item is refused for what it covers."""
    refuse: list[Callable[..., Awaitable[dict[str, Any]]]] = [talk.house.refuse, talk.refuse_compact]
    for sent in (item, {**item, "type": "compaction_summary"}, {**item, "id": None}):
        for ask in refuse:
            error = await ask(input=[sent, user("Go on.")])
            assert error["code"] == "invalid_encrypted_content"
            assert "covers something that was deleted" in error["message"]
    error = await talk.house.refuse(input=[item, TRIGGER])
    assert error["code"] == "invalid_encrypted_content"


async def check_chain_is_clean(talk: CompactingHouse, response_id: str, item: Item, *left: str) -> None:
    """It goes on by its id, with a note, from what is left; nowhere is the word."""
    made = await talk.house.make(input=[user("Go on.")], previous_response_id=response_id)
    told = talk.model.rounds[-1].body.decode()
    assert WORD not in told
    assert all(each in told for each in left)
    notes = [each["message"] for each in made["antiphon"]["warnings"] if each["code"] == "transcript"]
    assert any(item["id"] in note and "covers something that was deleted" in note for note in notes)
    report = await talk.client.send("GET", f"/v1/responses/{response_id}/window")
    assert report.status == 200
    assert WORD not in report.raw.decode()


@pytest.mark.parametrize("way", ["item", "response"])
def test_deleted_words_never_come_back_from_a_chain_that_began_with_a_seal(tmp_path: Path, way: str) -> None:
    """One, two and three seals deep; the window in memory, and read anew after a restart."""
    seals: list[Item] = []
    chains: list[str] = []

    async def begin(talk: CompactingHouse) -> None:
        before, delete = await tell_word(talk, way)
        seals.append(read_item(await talk.compact(None, previous_response_id=before, **SUMMARISE)))
        for number in (1, 2):
            items = [seals[-1], user(f"Next-{number}."), *work(6, first=20 * number)]
            begun = await talk.house.make(input=items)
            assert WORD in show_prompt(talk.model.rounds[-1])
            chains.append(begun["id"])
            made = await talk.trigger([], previous_response_id=begun["id"], **SUMMARISE)
            seals.append(read_item(made))
        begun = await talk.house.make(input=[seals[-1], user("Next-3.")])
        assert WORD in show_prompt(talk.model.rounds[-1])
        chains.append(begun["id"])
        await delete()
        await check(talk)

    async def check(talk: CompactingHouse) -> None:
        # What is in memory comes first.
        for number, (response_id, item) in enumerate(zip(chains, seals, strict=True), 1):
            await check_chain_is_clean(talk, response_id, item, f"Next-{number}.")
        for item in seals:
            await check_seal_is_dead(talk, item)

    play(tmp_path, Model(summary=repeat_word), begin, check, window_tokens=WIDE_TOKENS)


def test_a_seal_over_two_conversations_dies_with_a_word_of_either(tmp_path: Path) -> None:
    """And the one of the other conversation alone stays as it was."""

    async def story(talk: CompactingHouse) -> None:
        for at in (0, 1):
            made = [await tell_word(talk, "item", f"{name}{at}", first=first) for name, first in TWO]
            seals = [
                read_item(await talk.compact(None, previous_response_id=before, **SUMMARISE))
                for before, _ in made
            ]
            both = await talk.compact([*seals, *work(6, first=60)], **SUMMARISE)
            again = await talk.compact([read_item(both), *work(6, first=80)], **SUMMARISE)
            shown = show_prompt(await talk.show([read_item(again)]))
            assert [shown.count(f"Task {name}{at}.") for name, _ in TWO] == [1, 1]
            await made[at][1]()
            for item in (seals[at], read_item(both), read_item(again)):
                await check_seal_is_dead(talk, item)
            await talk.show([seals[1 - at]])

    play(tmp_path, Model(), story, window_tokens=WIDE_TOKENS)


TWO = (("PLUM", 1), ("PEAR", 30))


@pytest.mark.parametrize("method", ["summary", "extract"])
def test_a_seal_dies_with_what_was_only_referred_to(tmp_path: Path, method: str) -> None:
    """The input of /compact named an item of another conversation by its id."""

    async def story(talk: CompactingHouse) -> None:
        _, delete = await tell_word(talk, "response")
        reference = {"type": "item_reference", "id": f"msg_{WORD}"}
        items = [reference, *work(8, first=40)]
        seals = [
            read_item(await talk.compact(items, antiphon={"method": method})),
            read_item(await talk.trigger(items, antiphon={"method": method})),
        ]
        for item in seals:
            assert WORD in show_prompt(await talk.show([item]))
        await delete()
        for item in seals:
            await check_seal_is_dead(talk, item)

    play(tmp_path, Model(), story)


def test_a_connections_seal_dies_with_what_its_first_stored_response_held(tmp_path: Path) -> None:
    """The rounds of a connection are stored nowhere, but they went on from one that was."""

    async def story(talk: CompactingHouse) -> None:
        before, delete = await tell_word(talk, "item")
        async with open_socket(talk.house.transport) as line:
            items = [user("Next."), *work(6, first=40)]
            gone_on = await line.make(store=False, input=items, previous_response_id=before)
            made = await line.make(
                store=False, input=[TRIGGER], previous_response_id=gone_on["id"], **SUMMARISE
            )
        item = read_item(made)
        assert WORD in show_prompt(await talk.show([item]))
        await delete()
        await check_seal_is_dead(talk, item)

    play(tmp_path, Model(), story)


class HeldModel(Model):
    """Writes each summary only once it is released."""

    def __init__(self, wanted: int) -> None:
        super().__init__(summary=repeat_word)
        self.wanted = wanted
        self.all_asked = asyncio.Event()
        self.released = asyncio.Event()

    def __call__(self, request: Request) -> Reply:
        reply = super().__call__(request)
        if not is_summary_request(request) or self.released.is_set():
            return reply
        if len(self.summaries) == self.wanted:
            self.all_asked.set()
        head, *rest = reply.steps
        return Reply([head, self.released, *rest], reply.end)


@pytest.mark.parametrize("way", ["item", "response"])
def test_what_is_deleted_while_its_summary_is_written_is_in_no_seal_that_opens(
    tmp_path: Path, way: str
) -> None:
    """The answer may come or be an error; what it gives is dead from the start, and so is what went on from it."""

    async def story(talk: CompactingHouse) -> None:
        assert isinstance(talk.model, HeldModel)
        before, delete = await tell_word(talk, way)
        body = {"model": MODEL, "previous_response_id": before, **SUMMARISE}
        post = talk.client.post
        asked = [
            asyncio.create_task(talk.client.send("POST", "/v1/responses/compact", body)),
            asyncio.create_task(post({**body, "input": [TRIGGER]})),
            asyncio.create_task(post({**body, "input": [TRIGGER], "store": False})),
            asyncio.create_task(post({**body, "input": [user("Go on.")], **due(1_000)})),
        ]
        await asyncio.wait_for(talk.model.all_asked.wait(), WAIT_S)
        await delete()
        talk.model.released.set()
        answers = await asyncio.gather(*asked)
        seals = [read_item(answer.body) for answer in answers if answer.status == 200]
        assert seals
        for item in seals:
            await check_seal_is_dead(talk, item)
        for answer in answers[1:]:
            if answer.status == 200 and answer.body["store"]:
                await talk.show([], previous_response_id=answer.body["id"])
                assert WORD not in talk.model.rounds[-1].body.decode()

    play(tmp_path, HeldModel(4), story)


# Calls inside of a window


async def answer_open_call(talk: CompactingHouse, way: str) -> str:
    """A window with an open call is compacted, its output comes behind the item; the response after one round more."""
    made = await talk.compact([user("First."), *work(8), call(99)], **SUMMARISE)
    output = result(99, "RESULT-99")
    if way in ("chain", "compacted again"):
        begun = await talk.house.make(input=[*made["output"], output])
        last = [TRIGGER] if way == "compacted again" else [user("Two.")]
        gone_on = await talk.house.make(input=last, previous_response_id=begun["id"], **SUMMARISE)
        return str(gone_on["id"])
    items = made["output"] if way == "added" else []
    conversation = (await talk.client.send("POST", "/v1/conversations", {"items": items})).body["id"]
    if way == "added":
        path = f"/v1/conversations/{conversation}/items"
        assert (await talk.client.send("POST", path, {"items": [output]})).status == 200
    else:
        await talk.house.make(input=[*made["output"], output], conversation=conversation)
    gone_on = await talk.house.make(input=[user("Two.")], conversation=conversation)
    return str(gone_on["id"])


@pytest.mark.parametrize("way", ["chain", "conversation", "added", "compacted again"])
def test_a_call_that_was_open_in_the_window_keeps_its_output_in_memory_and_after_a_restart(
    tmp_path: Path, way: str
) -> None:
    """The same bytes, whoever put the window together; and rounds behind it go on like any."""
    kept: dict[str, Any] = {}

    async def begin(talk: CompactingHouse) -> None:
        kept["parent"] = {"previous_response_id": await answer_open_call(talk, way)}
        shown = await talk.show([], **kept["parent"])
        kept["bytes"] = shown.body
        check(shown)

    async def go_on(talk: CompactingHouse) -> None:
        shown = await talk.show([], **kept["parent"])
        check(shown)
        assert shown.body == kept["bytes"]
        report = await talk.house.get(f"/v1/responses/{kept['parent']['previous_response_id']}/window")
        assert "RESULT-99" in json.dumps(report)

    def check(shown: Request) -> None:
        assert list_pairs(shown)[-1] == ("call_99", "RESULT-99")
        assert list_open_calls(shown) == []

    play(tmp_path, Model(), begin, go_on)


# Settings that are said again


async def say_in_turn(talk: CompactingHouse, items: Sequence[Item]) -> list[Request]:
    """What was asked for each of these items in one chain, and for one round more."""
    parent: dict[str, Any] = {}
    for item in (*items, None):
        made = await talk.house.make(input=[*([item] if item else []), user("Go on.")], **parent)
        parent = {"previous_response_id": made["id"]}
    return talk.model.rounds[-len(items) - 1 :]


def test_the_last_update_counts_though_the_same_was_said_before(tmp_path: Path) -> None:
    """No compaction anywhere: what is told twice is not the first of the two."""

    async def story(talk: CompactingHouse) -> None:
        updates = [
            {"type": "configuration_update", "reasoning": {"effort": effort}}
            for effort in ("low", "high", "low")
        ]
        asked = await say_in_turn(talk, updates)
        assert [request.json["reasoning_effort"] for request in asked] == ["low", "high", "low", "low"]

    play(tmp_path, Model(), story, profile={"efforts": ["low", "high"]})


def test_the_last_tools_count_though_the_same_were_given_before(tmp_path: Path) -> None:
    """The same with tools that come in the input."""

    async def story(talk: CompactingHouse) -> None:
        tools = [
            {
                "type": "additional_tools",
                "role": "developer",
                "tools": [
                    {
                        "type": "function",
                        "name": "look",
                        "description": told,
                        "parameters": {"type": "object"},
                    }
                ],
            }
            for told in ("v1", "v2", "v1")
        ]
        asked = await say_in_turn(talk, tools)
        told = [[tool["function"]["description"] for tool in request.json["tools"]] for request in asked]
        assert told == [["v1"], ["v2"], ["v1"], ["v1"]]

    play(tmp_path, Model(), story)


# System text


@pytest.mark.parametrize("ways", [("trigger", "compact"), ("compact",), ("compact", "compact")], ids="-".join)
def test_developer_text_from_the_middle_stays_beside_a_new_leading_one(
    tmp_path: Path, ways: tuple[str, ...]
) -> None:
    """A leading one that has changed stands alone; what was said in the middle is the conversation's."""

    async def story(talk: CompactingHouse) -> None:
        items = [system("LEAD-1."), user("First."), *work(6), system("MIDDLE-RULE."), user("Next."), *work(6)]
        made = await talk.house.make(input=number_calls(items))
        for way in ways:
            if way == "trigger":
                made = await talk.trigger([], previous_response_id=made["id"], **SUMMARISE)
            elif made.get("object") == "response":
                made = await talk.compact(None, previous_response_id=made["id"], **SUMMARISE)
            else:
                made = await talk.compact([*made["output"], *work(8, first=60)], **SUMMARISE)
        for lead, shown_lead in (([], 1), ([system("LEAD-1.")], 1), ([system("LEAD-2.")], 0)):
            for window in (made["output"], [read_item(made)]):
                told = show_prompt(await talk.show([*lead, *window]))
                assert told.count("MIDDLE-RULE.") == 1, lead
                assert told.count("LEAD-1.") == shown_lead, lead
                assert told.count("LEAD-2.") == 1 - shown_lead, lead

    play(tmp_path, Model(), story)


def number_calls(items: Sequence[Item]) -> list[Item]:
    """The items, each call with a number of its own."""
    numbered: list[Item] = []
    for at, item in enumerate(items):
        number = at if item["type"] == "function_call" else at - 1
        ids = {"id": f"fc_{at}", "call_id": f"call_{number}"} if "call_id" in item else {}
        numbered.append({**item, **ids})
    return numbered


# What was said more than once


def test_a_message_that_was_said_several_times_stays_as_often_as_it_was_said(tmp_path: Path) -> None:
    """Over two compactions; the item by itself, with all of the history before it, with the first item before it."""
    again = "Continue please."

    async def story(talk: CompactingHouse) -> None:
        base = [user("First."), *work(4), user(again), said("One."), user(again), said("Two.")]
        first = await talk.compact(base, **SUMMARISE)
        more = [user(again), *work(6, first=50)]
        second = await talk.compact([read_item(first), *more], **SUMMARISE)
        one, two = read_item(first), read_item(second)
        windows: dict[str, list[Item]] = {
            "alone": [two],
            "as it was given": second["output"],
            "behind the history": [*base, *more, two],
            "behind the first item": [one, *more, two],
            "behind both": [*base, one, *more, two],
        }
        for name, window in windows.items():
            shown = await talk.show(window)
            assert list_own(shown) == ["First.", again, again, again, "Go on."], name
        shown = await talk.show([one])
        assert list_own(shown) == ["First.", again, again, "Go on."]

    play(tmp_path, Model(), story, window_tokens=WIDE_TOKENS)


LONG = f"SAID-IT {prose(3, 9_000)} TO-ITS-END"
PICTURED = [text_part("SAID-IT with a picture."), image(make_png(1))]
LARGE = [text_part("SAID-IT with a picture."), image(make_png(1, 300))]
SIGHTLESS: dict[str, Any] = {"sees_images": False}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("content", [LONG, PICTURED, LARGE], ids=["cut", "small image", "large image"])
def test_a_message_that_was_cut_or_lost_its_image_stands_once(
    tmp_path: Path, method: str, content: str | list[dict[str, Any]]
) -> None:
    """However the window comes back: as it was given, the item alone, the history before it, compacted again."""
    order = {"antiphon": {"method": method}}

    async def story(talk: CompactingHouse) -> None:
        items = [user(content), *work(10), user("Continue.")]
        made = await talk.compact(items, **order)
        if method == "elide" and content is LONG:
            # Nothing that is free makes it shorter.
            assert "refused" in read_pass(made)
            return
        again = await talk.compact([*made["output"], *work(6, first=40), user("More.")], **order)
        for window in (made["output"], [read_item(made)], [*items, read_item(made)], again["output"]):
            shown = await talk.show(window)
            own = list_own(shown)
            assert [text.count("SAID-IT") for text in own if "SAID-IT" in text] == [1]
            assert len(set(own)) == len(own)
            assert list_images(shown) == []

    play(tmp_path, Model(), story, profile=SIGHTLESS)


@pytest.mark.parametrize("way", ["compact", "trigger"])
@pytest.mark.parametrize("size", [1, 8, 300])
def test_no_image_of_any_size_is_left_to_a_model_that_sees_none(tmp_path: Path, way: str, size: int) -> None:
    """Also where there would be room for it, and in a result: what is compacted goes on."""

    async def story(talk: CompactingHouse) -> None:
        picture = image(make_png(3, size))
        items = [
            user([text_part("See."), picture]),
            call(90),
            result(90, [text_part("Shot."), picture]),
            *work(10),
        ]
        made = await (talk.compact if way == "compact" else talk.trigger)(items)
        for window in (made["output"], [read_item(made)]):
            shown = await talk.show(window)
            assert list_images(shown) == []
            assert show_prompt(shown).count("See.") == 1

    play(tmp_path, Model(), story, profile=SIGHTLESS)


# A tool that a model remembers


def say_and_recall(text: str) -> Reply:
    """A generation of a text, and of a call of that tool behind it."""
    function = {"name": RECALL_NAME, "arguments": json.dumps({"id": "fc_1r"})}
    called = {"index": 0, "id": "up_0", "type": "function", "function": function}
    chunks = [
        make_chunk({"content": text}),
        make_chunk({"tool_calls": [called]}),
        make_chunk({}, "tool_calls"),
    ]
    return Reply([make_head(), *chunks, END])


async def remember(talk: CompactingHouse) -> dict[str, str]:
    """A conversation that was compacted and in which the model has recalled something; its ids."""
    begun = await talk.client.send(
        "POST", "/v1/conversations", {"items": [user("Task.", id="msg_task"), *work(8)]}
    )
    conversation = begun.body["id"]
    await talk.house.make(input=[user("Next."), TRIGGER], conversation=conversation, **SUMMARISE)
    talk.model.answers = [[(RECALL_NAME, '{"id": "fc_1r"}')], "Done."]
    made = await talk.house.make(input=[user("Look.")], conversation=conversation)
    assert [item["type"] for item in made["output"]] == ["mcp_call", "message"]
    return {"conversation": conversation}


@pytest.mark.parametrize("stream", [False, True])
def test_a_remembered_tool_of_this_server_is_never_the_clients_to_call(tmp_path: Path, stream: bool) -> None:
    """It is switched off by now, or nothing is compacted any more: the client cannot run it."""
    kept: dict[str, str] = {}

    async def ask(talk: CompactingHouse) -> None:
        for tools in ([], [{"type": "function", "name": "read_file", "parameters": {"type": "object"}}]):
            talk.model.answers = [say_and_recall("Let me see.")]
            made = await talk.house.make(stream=stream, input=[user("Go on.")], tools=tools, **kept)
            assert [item["type"] for item in made["output"]] == ["message"]
            assert made["status"] == "completed"
            assert RECALL_NAME not in talk.house.told
            items = [event for event in talk.house.events if "item" in event or "delta" in event]
            assert RECALL_NAME not in json.dumps(items)

    async def begin(talk: CompactingHouse) -> None:
        kept.update(await remember(talk))

    async def lose(talk: CompactingHouse) -> None:
        path = f"/v1/conversations/{kept['conversation']}/items/msg_task"
        assert (await talk.client.send("DELETE", path)).status == 200
        await ask(talk)

    model = Model()
    play(tmp_path, model, begin, compaction=RECALLS)
    play(tmp_path, model, ask, compaction={"recall": False})
    play(tmp_path, model, lose, compaction=RECALLS)


# What is named in its place

_RANGE = re.compile(r"^- (\S+) to (\S+): ([\d,]+) items", re.MULTILINE)
_ONE = re.compile(r"^- ([a-z]+_\S+) .*tokens?$", re.MULTILINE)


async def fetch_named(talk: CompactingHouse, told: str) -> set[str]:
    """The ids of all items that a summary names as left out; fails unless each name resolves."""
    found: set[str] = set()
    for first, last, number in _RANGE.findall(told):
        listed: list[str] = []
        after = ""
        while True:
            page = await talk.house.get(f"/v1/items?from={first}&to={last}&order=asc&limit=20{after}")
            listed += [item["id"] for item in page["data"]]
            if not page["has_more"]:
                break
            after = f"&after={page['last_id']}"
        assert (listed[0], listed[-1]) == (first, last)
        assert len(listed) >= int(number.replace(",", ""))
        found.update(listed)
    for item_id in _ONE.findall(_RANGE.sub("", told)):
        assert (await talk.house.get(f"/v1/items/{item_id}"))["id"] == item_id
        found.add(item_id)
    return found


@pytest.mark.parametrize("last", ["trigger", "due"])
@pytest.mark.parametrize("has_ids", [True, False])
def test_what_three_compactions_left_out_over_three_chains_is_found_by_its_names(
    tmp_path: Path, last: str, has_ids: bool
) -> None:
    """Each chain begins with what /compact gave for the one before it, and what that left out is named along it."""

    async def story(talk: CompactingHouse) -> None:
        gone: set[str] = set()
        window: list[Item] = []
        for level in range(3):
            items = work(12, first=1 + 20 * level)
            items = items if has_ids else strip_ids(items)
            made = await talk.house.make(input=[*window, user(f"Chain {level}."), *items])
            if level < 2:
                compacted = await talk.compact(None, previous_response_id=made["id"], **SUMMARISE)
                window = compacted["output"]
                shown = await talk.show(window)
            elif last == "trigger":
                compacted = await talk.trigger([], previous_response_id=made["id"], **SUMMARISE)
                shown = await talk.show([], previous_response_id=compacted["id"])
            else:
                compacted = await talk.house.make(
                    input="Go on.", previous_response_id=made["id"], **due(2_000), **SUMMARISE
                )
                shown = talk.model.rounds[-1]
            gone |= {each["id"] for each in read_pass(compacted)["removed"]}
            assert gone <= await fetch_named(talk, find_summary(shown)), level

    play(tmp_path, Model(), story)


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("way", ["trigger", "due"])
def test_a_connection_that_stores_nothing_says_nowhere_that_something_is_stored(
    tmp_path: Path, way: str, has_ids: bool
) -> None:
    """Not after a first compaction and not after a second: no id is named as if it could be fetched."""

    async def story(talk: CompactingHouse) -> None:
        async with open_socket(talk.house.transport) as line:
            parent: dict[str, Any] = {}
            for number in range(2):
                items = work(12, first=1 + 20 * number)
                items = [user(f"Step {number}."), *(items if has_ids else strip_ids(items))]
                order = {**SUMMARISE, **(due(1_500) if way == "due" else {})}
                ask = items if way == "due" else [*items, TRIGGER]
                made = await line.make(store=False, input=ask, **parent, **order)
                done = read_pass(made)
                assert done["kept_by_client"] is True
                gone_on = await line.make(
                    store=False, input=[user("Go on.")], previous_response_id=made["id"]
                )
                parent = {"previous_response_id": gone_on["id"]}
                told = find_summary(talk.model.rounds[-1])
                assert "not stored by this server" in told
                assert _RANGE.findall(told) == []
                assert _ONE.findall(told) == []
                assert "GET /v1/items" not in told

    play(tmp_path, Model(), story)


# Passes that come to nothing


def test_three_passes_that_came_to_nothing_end_only_until_the_prompt_has_grown(tmp_path: Path) -> None:
    """With a warning, and for this conversation alone: others with the same beginning have another cache key."""
    head = [system("You are Codex."), user("Rules."), user("Environment."), user("Hello.")]
    stuck = [*head, system(prose(1, 3_000))]

    async def ask(talk: CompactingHouse, items: Sequence[Item], key: str) -> dict[str, Any]:
        return await talk.house.make(input=items, store=False, prompt_cache_key=key, **due(1_000))

    async def story(talk: CompactingHouse) -> None:
        for _ in range(3):
            assert "refused" in read_pass(await ask(talk, stuck, "one"))
        tried_no_more = await ask(talk, stuck, "one")
        assert read_passes(tried_no_more) == []
        assert "compaction_refused" in list_codes(tried_no_more)
        grown_little = await ask(talk, [*stuck, said(prose(2, 100))], "one")
        assert read_passes(grown_little) == []
        assert "compaction_refused" in list_codes(grown_little)
        assert len(read_passes(await ask(talk, stuck, "two"))) == 1
        assert len(read_passes(await ask(talk, [*stuck, said(prose(2, 450))], "one"))) == 1
        # One that helps forgets the others.
        helped = await ask(talk, [*head, *work(30), user("Go on.")], "one")
        assert "refused" not in read_pass(helped)
        assert "refused" in read_pass(await ask(talk, stuck, "one"))

    play(tmp_path, Model(), story, window_tokens=WIDE_TOKENS)


# A window that is taken up again


HISTORY = [user("Task."), *work(14)]


@pytest.mark.parametrize("store", [False, True])
def test_a_window_is_taken_up_only_for_the_same_order_and_tells_what_it_removed(
    tmp_path: Path, store: bool
) -> None:
    """Another method, or other marks, is a pass of its own; the same order pays for no second summary."""

    async def ask(talk: CompactingHouse, more: int, order: dict[str, Any]) -> dict[str, Any]:
        items = [*HISTORY, *[user(f"Next {number}.") for number in range(more)]]
        return read_pass(await talk.house.make(input=items, store=store, antiphon=order, **due(1_700)))

    async def story(talk: CompactingHouse) -> None:
        first = await ask(talk, 1, {"method": "summary"})
        again = await ask(talk, 2, {"method": "summary"})
        assert "reused" not in first
        assert again["reused"] is True
        assert again["model_calls"] == 0
        assert again["summary"] == first["summary"] == "model"
        told = [[each["type"] for each in done["removed"]] for done in (first, again)]
        assert told[0] == told[1] != []
        assert again["removed_count"] == first["removed_count"]
        assert again["removed_tokens"] == first["removed_tokens"]
        for other in (
            {"method": "extract"},
            {"method": "summary", "marks": {"call_3": "keep"}},
            {"method": "summary", "marks": {"call_3": "uneventful"}},
            {"method": "elide"},
        ):
            assert "reused" not in await ask(talk, 2, other), other

    play(tmp_path, Model(), story)


def test_a_response_that_took_up_the_window_of_another_is_whole_without_it(tmp_path: Path) -> None:
    """Each was sent all of its items: deleting the one leaves the other, which goes on from its own, with a note."""
    kept: dict[str, Any] = {}

    async def begin(talk: CompactingHouse) -> None:
        items = [user("Task."), *strip_ids(work(14))]
        order = {**due(1_700), **SUMMARISE}
        first = await talk.house.make(input=[*items, user("One.")], **order)
        second = await talk.house.make(input=[*items, user("One."), user("Two.")], **order)
        done = read_pass(second)
        assert done["reused"] is True
        assert done["removed_count"] > 0
        named = await fetch_named(talk, find_summary(talk.model.rounds[-1]))
        assert {each["id"] for each in done["removed"]} <= named
        kept.update(id=second["id"], item=read_item(second))
        assert (await talk.client.delete(first["id"])).status == 200
        await check(talk)

    async def check(talk: CompactingHouse) -> None:
        made = await talk.house.make(input=[user("Go on.")], previous_response_id=kept["id"])
        shown = talk.model.rounds[-1]
        assert list_own(shown) == ["Task.", "One.", "Two.", "Go on."]
        assert len(list_pairs(shown)) == 14
        told = [each["message"] for each in made["antiphon"]["warnings"]]
        assert any(kept["item"]["id"] in text for text in told)

    play(tmp_path, Model(), begin, check, window_tokens=WIDE_TOKENS)


# What a client gets wrong


@pytest.mark.parametrize("way", ["round", "trigger", "compact"])
def test_marks_that_name_no_call_are_told(tmp_path: Path, way: str) -> None:
    """An item's id in the place of a call id is the likely slip; marks of calls that are there need no word."""

    async def story(talk: CompactingHouse) -> None:
        before = await talk.house.make(input=[user("Task."), *work(6)])

        async def ask(marks: dict[str, str]) -> dict[str, Any]:
            order = {"antiphon": {"marks": marks}, "previous_response_id": before["id"]}
            if way == "compact":
                return await talk.compact(work(1, first=20), **order)
            last = [TRIGGER] if way == "trigger" else []
            return await talk.house.make(input=[*work(1, first=20), *last], **order)

        wrong = await ask({"fc_1": "uneventful", "call_2": "keep", "call_404": "superseded"})
        (told,) = [
            each["message"] for each in wrong["antiphon"]["warnings"] if each["code"] == "mark_unknown"
        ]
        assert "fc_1" in told
        assert "call_404" in told
        assert "call_2" not in told
        right = await ask({"call_2": "keep", "call_20": "uneventful"})
        assert "mark_unknown" not in list_codes(right)

    play(tmp_path, Model(), story)


def test_a_history_behind_the_item_that_stands_for_it_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """Before it the same items are left out; behind it they are said a second time."""

    async def story(talk: CompactingHouse) -> None:
        items = [user("First.", id="msg_a"), *work(8), user("Middle.", id="msg_b")]
        made = await talk.compact(items, **SUMMARISE)
        *kept, item = made["output"]
        for behind in ([item, *items], [item, *kept], [*kept[:1], item, *kept[1:]], [item, *items[-3:]]):
            for ask in (talk.house.refuse, talk.refuse_compact):
                error = await ask(input=[*behind, user("Go on.")])
                assert "Duplicate item found" in error["message"]
                assert "what it stands for goes before it" in error["message"]
        shown = await talk.show([*items, item])
        assert list_own(shown) == ["First.", "Middle.", "Go on."]
        assert list_own(await talk.show(made["output"])) == ["First.", "Middle.", "Go on."]

    play(tmp_path, Model(), story)
