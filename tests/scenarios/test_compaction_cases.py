"""Cases of another server's tests of its compaction, as behaviour over HTTP: what is kept, and how it returns.

The table in `docs/reference/compaction-cases.md` names each test here and in the modules beside it.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.context.sealed_window import HEADING
from tests.fake_upstream import MODEL, Request
from tests.scenarios.client import find_terminal
from tests.scenarios.compaction_talk import (
    SUMMARY,
    TRIGGER,
    CompactingHouse,
    Item,
    Model,
    call,
    count_tokens,
    find_summary,
    image,
    list_images,
    list_open_calls,
    list_pairs,
    list_texts,
    make_png,
    name_listing,
    pair,
    prose,
    read_item,
    read_pass,
    result,
    run,
    said,
    show_prompt,
    system,
    text_part,
    user,
    work,
)

WINDOW_TOKENS = 6_000
SUMMARISE: dict[str, Any] = {"antiphon": {"method": "summary"}}
PNG = make_png(7)
PATCHES = [
    "  leading and trailing  ",
    'with "quotes" and \\ back\\slashes',
    "line one\r\nline two\r\n",
    "ünïcödé 漢字 🎉",
    '{"looks": "like JSON"}',
    "",
]


def custom(number: int, text: str) -> list[Item]:
    """A call of a custom tool with raw text, and its result."""
    ids = {"id": f"ctc_{number}", "call_id": f"call_{number}"}
    return [
        {"type": "custom_tool_call", **ids, "name": "apply_patch", "input": text},
        {
            "type": "custom_tool_call_output",
            "id": f"ctco_{number}",
            "call_id": f"call_{number}",
            "output": "ok",
        },
    ]


# What is kept


def test_what_is_open_and_what_the_client_said_is_kept_and_all_the_rest_is_read(tmp_path: Path) -> None:
    """A transcript of several windows: nothing is trimmed unread, and no part of what is open is touched."""
    huge = prose(1, 9_000)

    async def story(talk: CompactingHouse) -> None:
        items = [
            system("Policy POL-1.", "system"),
            system("Style STY-2."),
            user("Task TSK-3."),
            *pair(1, huge),
            said("Looked."),
            user("Then TSK-4."),
            call(2, "deploy", target="staging"),
            call(3, "screenshot", page="home"),
            result(3, [text_part("SHOT-5"), image(PNG)]),
        ]
        made = await talk.compact(items, **SUMMARISE)
        assert len(talk.model.summaries) > 1
        assert all(count_tokens(request) <= 3_000 for request in talk.model.summaries)
        # Every word of the huge result was read, though no request could hold it.
        read = "".join(show_prompt(request) for request in talk.model.summaries).split()
        assert set(huge.split()) <= set(read)
        assert sum(len(show_prompt(request)) for request in talk.model.summaries) > len(huge)
        assert "omitted" not in read_pass(made)
        answered = [*made["output"], result(2, "deployed")]
        shown = await talk.show(answered)
        told = show_prompt(shown)
        assert huge[:2_000] not in told
        for kept in ("POL-1", "STY-2", "Task TSK-3.", "Then TSK-4."):
            assert told.count(kept) == 1, kept
        assert dict(list_pairs(shown))["call_2"] == "deployed"
        assert dict(list_pairs(shown))["call_3"].startswith("SHOT-5")
        assert list_images(shown) == [PNG]

    run(tmp_path, Model(window_tokens=3_000), story, window_tokens=3_000, profile={"sees_images": True})


def test_an_earlier_compaction_is_read_for_the_next_and_the_newest_item_stays(tmp_path: Path) -> None:
    """The earlier summary goes into the new one; what the user said and the newest answer stay as they were."""

    async def story(talk: CompactingHouse) -> None:
        first = await talk.compact([user("Task TSK-3."), *work(12, 300)], **SUMMARISE)
        talk.model.summary = "SECOND-SUMMARY"
        items = [*first["output"], user("Then TSK-4."), said(prose(3, 2_500)), said("NEWEST-5")]
        second = await talk.compact(items, **SUMMARISE)
        assert SUMMARY in show_prompt(talk.model.summaries[-1])
        shown = await talk.show(second["output"])
        assert "SECOND-SUMMARY" in find_summary(shown)
        assert "Then TSK-4." in list_texts(shown, "user")
        assert "NEWEST-5" in show_prompt(shown)
        # Nothing of it is there twice, and a third compaction has no old summary to put into another.
        third = await talk.compact([*second["output"], *work(12, 300, first=40)], **SUMMARISE)
        told = show_prompt(await talk.show(third["output"]))
        assert told.count(HEADING) == 1
        assert told.count("Task TSK-3.") == 1

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


@pytest.mark.parametrize("newest", [False, True])
def test_calls_made_at_once_stay_together_with_their_results(tmp_path: Path, newest: bool) -> None:
    """Two calls, their results in the other order, one of them huge: both pairs are there or neither, in order."""

    async def story(talk: CompactingHouse) -> None:
        at_once = [call(1), call(2), result(2, "SMALL-2"), result(1, prose(1, 700))]
        rest = work(12, 300, first=10)
        items = (
            [user("Task."), *rest, *at_once] if newest else [user("Task."), *at_once, said("Seen."), *rest]
        )
        made = await talk.compact(items, **SUMMARISE)
        shown = await talk.show(made["output"])
        assert list_open_calls(shown) == []
        pairs = dict(list_pairs(shown))
        assert ("call_1" in pairs) == ("call_2" in pairs)
        if newest:
            assert pairs["call_2"] == "SMALL-2"

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


LONE_RESULTS: list[Item] = [
    {"type": "function_call_output", "name": "agent", "namespace": "team", "output": "hello"},
    {"type": "function_call_output", "name": "agent", "call_id": None, "output": "hello"},
    {"type": "function_call_output", "call_id": "", "output": "hello"},
    {"type": "function_call_output", "output": "hello"},
    {"type": "function_call_output", "call_id": "call_unknown", "output": "hello"},
    {"type": "tool_search_output", "call_id": "call_unknown", "tools": []},
]


def test_a_result_that_belongs_to_no_call_is_refused(tmp_path: Path) -> None:
    """As for every other response: nothing would say where in the history it belongs."""

    async def story(talk: CompactingHouse) -> None:
        for item in LONE_RESULTS:
            items = [user("Task."), *work(2), item]
            refused = await talk.refuse_compact(input=items)
            assert refused["param"].startswith("input"), item
            assert await talk.house.refuse(input=[*items, TRIGGER]) == refused
        assert talk.house.upstream.asked == []

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_a_finished_result_with_a_name_is_kept_by_its_place_alone(tmp_path: Path) -> None:
    """A name on a result that has its call is no reason to keep it."""

    async def story(talk: CompactingHouse) -> None:
        named = {**result(1, prose(1, 400)), "name": "read_file"}
        made = await talk.compact([user("Task."), call(1), named, *work(12, 300, first=10)], **SUMMARISE)
        assert "call_1" not in dict(list_pairs(await talk.show(made["output"])))

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_choosing_a_result_keeps_its_call_and_the_order_of_all(tmp_path: Path) -> None:
    """The summariser names one half; both come back, byte for byte, where they stood among the others."""

    async def story(talk: CompactingHouse) -> None:
        items = [user("Task."), *work(12, 300, first=10), user("Then."), *work(4, 150, first=40)]
        made = await talk.compact(items, **SUMMARISE)
        shown = await talk.show(made["output"])
        pairs = list_pairs(shown)
        assert ("call_12", items[6]["output"]) in pairs
        numbers = [int(call_id.removeprefix("call_")) for call_id, _ in pairs]
        assert numbers == sorted(numbers)
        assert "call_11" not in dict(pairs)
        assert list_open_calls(shown) == []

    run(tmp_path, Model(retain=[name_listing(12)]), story, window_tokens=WINDOW_TOKENS)


def test_an_id_that_was_never_told_chooses_nothing(tmp_path: Path) -> None:
    """A summary that names unknown items is no reason to fail, and brings nothing that was not there."""

    async def story(talk: CompactingHouse) -> None:
        made = await talk.compact([user("Task."), *work(12, 300)], **SUMMARISE)
        shown = await talk.show(made["output"])
        assert "#999" not in show_prompt(shown)
        assert SUMMARY in find_summary(shown)
        assert {call_id for call_id, _ in list_pairs(shown)} <= {f"call_{number}" for number in range(1, 13)}

    run(
        tmp_path,
        Model(retain_ids=["#999", "fc_1", "cmp_x"]),
        story,
        window_tokens=WINDOW_TOKENS,
    )


def test_what_is_retained_is_bounded_whatever_the_summariser_chooses(tmp_path: Path) -> None:
    """Retained items have at most 40 % of the window; the rest of the choice is left out."""

    async def story(talk: CompactingHouse) -> None:
        items = [user("Task."), *work(16, 300)]
        made = await talk.compact(items, **SUMMARISE)
        assert read_pass(made)["tokens_after"] < read_pass(made)["tokens_before"]
        shown = await talk.show(made["output"])
        assert sum(len(output) for _, output in list_pairs(shown)) // 4 <= 0.45 * WINDOW_TOKENS
        assert SUMMARY in find_summary(shown)

    chosen = [name_listing(number) for number in range(1, 17)]
    run(tmp_path, Model(retain=chosen), story, window_tokens=WINDOW_TOKENS)


# How a summary is asked for


@pytest.mark.parametrize("way", ["compact", "trigger"])
def test_a_summary_is_asked_of_the_same_model_and_comes_as_one_item(tmp_path: Path, way: str) -> None:
    """One request to the request's model; its newest pair stays without being chosen."""

    async def story(talk: CompactingHouse) -> None:
        tool = {
            "type": "function",
            "name": "shell",
            "description": "Runs a command.",
            "parameters": {"type": "object"},
        }
        items = [user("Task."), *work(12, 300), *pair(50, "LAST-RESULT", "shell")]
        asked = {"instructions": "You are careful.", **SUMMARISE}
        if way == "compact":
            made = await talk.compact(items, **asked)
        else:
            made = await talk.trigger(items, tools=[tool], **asked)
        (request,) = talk.model.summaries
        assert request.json["model"] == MODEL
        assert len(talk.house.upstream.asked) == 1
        assert read_pass(made)["model_calls"] == 1
        assert set(read_item(made)) == {"type", "id", "encrypted_content"}
        shown = await talk.show([read_item(made)])
        assert list_pairs(shown)[-1] == ("call_50", "LAST-RESULT")

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_a_configured_model_writes_the_summaries(tmp_path: Path) -> None:
    """The alias in the configuration is asked instead of the request's model."""

    async def story(talk: CompactingHouse) -> None:
        await talk.compact([user("Task."), *work(12, 300)], **SUMMARISE)
        assert [request.json["model"] for request in talk.model.summaries] == ["writer-model"]
        await talk.show([])
        assert talk.model.rounds[-1].json["model"] == MODEL

    aliases = {MODEL: {"endpoint": "fake"}, "writer": {"endpoint": "fake", "model": "writer-model"}}
    run(
        tmp_path,
        Model(),
        story,
        window_tokens=WINDOW_TOKENS,
        compaction={"model": "writer"},
        models=aliases,
    )


def test_tools_of_every_kind_do_not_stand_in_the_way(tmp_path: Path) -> None:
    """Tools without a name of their own, and found ones, are told as in every other prompt."""

    async def story(talk: CompactingHouse) -> None:
        found = {"type": "function", "name": "found", "parameters": {"type": "object"}, "defer_loading": True}
        search: list[Item] = [
            {
                "type": "tool_search_call",
                "id": "tsc_1",
                "call_id": "call_1",
                "execution": "client",
                "arguments": {},
            },
            {
                "type": "tool_search_output",
                "id": "tso_1",
                "call_id": "call_1",
                "execution": "client",
                "tools": [found],
            },
        ]
        tools = [{"type": "tool_search", "execution": "client"}]
        action = {"type": "search", "query": "QUERY-1"}
        web: Item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
        items = [user("Task."), *search, web, *work(12, 300, first=10)]
        made = await talk.trigger(items, tools=tools, **SUMMARISE)
        shown = await talk.show([], previous_response_id=made["id"], tools=tools)
        # The found tool can still be called, and the search that found it is told with its result.
        assert [each["function"]["name"] for each in shown.json["tools"]] == ["tool_search", "found"]
        assert "call_1" in dict(list_pairs(shown))
        assert "QUERY-1" in show_prompt(shown) + show_prompt(talk.model.summaries[-1])

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


@pytest.mark.parametrize("stream", [False, True])
def test_a_trigger_is_answered_with_or_without_a_stream(tmp_path: Path, stream: bool) -> None:
    """Exactly one item, done once, and one end."""

    async def story(talk: CompactingHouse) -> None:
        await talk.trigger([user("Task."), *work(12, 300)], stream=stream, **SUMMARISE)
        if stream:
            kinds = talk.house.kinds
            done = [
                event["item"] for event in talk.house.events if event["type"] == "response.output_item.done"
            ]
            assert [item["type"] for item in done] == ["compaction"]
            assert kinds.count("response.completed") == 1
            assert kinds[-1] == "response.completed"
            assert find_terminal(talk.house.events)["output"] == done

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


# Images


def test_a_summariser_that_sees_is_sent_the_images_as_images(tmp_path: Path) -> None:
    """As parts beside the text that tells of them; their bytes are in no text."""
    data = PNG.partition(",")[2]

    async def story(talk: CompactingHouse) -> None:
        shot = [call(5, "screenshot", page="home"), result(5, [text_part("SHOT-1"), image(PNG)])]
        items = [user("Task."), *shot, said("Seen."), *work(14, 300, first=10)]
        await talk.compact(items, **SUMMARISE)
        seen = [url for request in talk.model.summaries for url in list_images(request)]
        assert PNG in seen
        told = "".join(show_prompt(request) for request in talk.model.summaries)
        assert "SHOT-1" in told
        assert data not in told

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS, profile={"sees_images": True})


@pytest.mark.parametrize("chosen", [False, True])
def test_an_image_comes_back_as_an_image_where_it_was_chosen(tmp_path: Path, chosen: bool) -> None:
    """The summariser names the result that shows it; the call comes with it. Not chosen, it is not sent again."""

    async def story(talk: CompactingHouse) -> None:
        shot = [call(5, "screenshot", page="home"), result(5, [text_part("SHOT-5"), image(PNG)])]
        made = await talk.compact(
            [user("Task."), *shot, said("Seen."), *work(14, 300, first=10)], **SUMMARISE
        )
        shown = await talk.show(made["output"])
        assert list_images(shown) == ([PNG] if chosen else [])
        assert ("call_5" in dict(list_pairs(shown))) == chosen

    model = Model(retain=["SHOT-5"] if chosen else [])
    run(tmp_path, model, story, window_tokens=WINDOW_TOKENS, profile={"sees_images": True})


def test_a_user_message_that_is_an_image_stays_a_message_of_the_user(tmp_path: Path) -> None:
    """What the user sent is kept; where there is no room for the picture, its place says so."""

    async def story(talk: CompactingHouse) -> None:
        made = await talk.compact([user("Task."), user([image(PNG)]), *work(14, 300)], **SUMMARISE)
        shown = await talk.show(made["output"])
        own = [text for text in list_texts(shown, "user") if not text.startswith(HEADING)]
        assert own[0] == "Task."
        assert len(own) == 3
        assert list_images(shown) == [PNG] or "image" in own[1].lower()

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS, profile={"sees_images": True})


def test_the_newest_result_keeps_its_image_unasked(tmp_path: Path) -> None:
    """It is what the model is about to look at."""

    async def story(talk: CompactingHouse) -> None:
        shot = [call(50, "screenshot", page="home"), result(50, [text_part("SHOT-5"), image(PNG)])]
        made = await talk.compact([user("Task."), *work(14, 300), *shot], **SUMMARISE)
        shown = await talk.show(made["output"])
        assert list_images(shown) == [PNG]
        assert list_pairs(shown)[-1][0] == "call_50"

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS, profile={"sees_images": True})


@pytest.mark.parametrize("way", ["compact", "trigger"])
def test_an_image_by_the_id_of_a_file_is_refused_by_its_place(tmp_path: Path, way: str) -> None:
    """There is no store of files; the same item is refused the same way in a round."""

    async def story(talk: CompactingHouse) -> None:
        items = [user("Task."), user([{"type": "input_image", "file_id": "file_1"}]), *work(4)]
        if way == "compact":
            error = await talk.refuse_compact(input=items)
        else:
            error = await talk.house.refuse(input=[*items, TRIGGER])
        assert error == await talk.house.refuse(input=items)
        assert "input[1]" in f"{error['param']} {error['message']}"
        assert talk.model.summaries == []

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS, profile={"sees_images": True})


# How it returns


def test_a_client_that_sends_its_messages_before_the_item_has_each_of_them_once(tmp_path: Path) -> None:
    """Codex: the developer text anew, the user's messages, the item; the item holds those messages too."""

    async def story(talk: CompactingHouse) -> None:
        items = [system("You are Codex."), user("First."), *work(12, 300), user("Second."), *pair(50, "LAST")]
        made = await talk.trigger(items, store=False, **SUMMARISE)
        window = [system("You are Codex."), user("First."), user("Second."), read_item(made), user("Third.")]
        shown = await talk.show(window, store=False)
        own = [text for text in list_texts(shown, "user") if not text.startswith(HEADING)]
        assert own == ["First.", "Second.", "Third.", "Go on."]
        assert show_prompt(shown).count("You are Codex.") == 1
        assert list_pairs(shown)[-1] == ("call_50", "LAST")

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_a_foreign_item_is_refused_and_named(tmp_path: Path) -> None:
    """What this server cannot open is never taken for an empty window."""

    async def story(talk: CompactingHouse) -> None:
        for content in ("garbage", "gAAAAABo-opaque-of-another-server", "{}", '{"type": "other"}'):
            item = {"type": "compaction", "id": "cmp_1", "encrypted_content": content}
            error = await talk.house.refuse(input=[user("Task."), item, user("Go on.")])
            assert error["code"] == "invalid_encrypted_content", content
            assert "cmp_1" in error["message"]
        assert talk.house.upstream.asked == []

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_compacting_again_replaces_the_earlier_compaction(tmp_path: Path) -> None:
    """Codex: prefix, the old item, new work, trigger; the new item alone stands for all of it."""

    async def story(talk: CompactingHouse) -> None:
        first = await talk.trigger([user("First."), *work(12, 300)], store=False, **SUMMARISE)
        talk.model.summary = "SECOND-SUMMARY"
        items = [user("First."), read_item(first), *work(12, 300, first=40)]
        second = await talk.trigger(items, store=False, **SUMMARISE)
        shown = await talk.show([user("First."), read_item(second)], store=False)
        assert "SECOND-SUMMARY" in find_summary(shown)
        assert SUMMARY not in show_prompt(shown)
        assert list_texts(shown, "user").count("First.") == 1

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_several_items_in_one_input_are_opened_each_in_its_place(tmp_path: Path) -> None:
    """Two windows that were compacted apart are both told, in order."""

    async def story(talk: CompactingHouse) -> None:
        talk.model.summary = "SUMMARY-A"
        one = await talk.compact([user("First."), *work(12, 300)], **SUMMARISE)
        talk.model.summary = "SUMMARY-B"
        two = await talk.compact([user("Second."), *work(12, 300, first=40)], **SUMMARISE)
        shown = await talk.show([read_item(one), user("Between."), read_item(two)])
        told = show_prompt(shown)
        places = [told.index(each) for each in ("SUMMARY-A", "Between.", "SUMMARY-B", "Go on.")]
        assert places == sorted(places)
        for once in ("First.", "Second."):
            assert list_texts(shown, "user").count(once) == 1

    run(tmp_path, Model(), story, window_tokens=8_000)


def test_a_namespaced_call_keeps_its_identity(tmp_path: Path) -> None:
    """Its namespace, and a name that begins with an underscore, are those of the item that was sent."""
    tools = [
        {
            "type": "namespace",
            "name": "mcp__echo",
            "description": "Echoes.",
            "tools": [
                {"type": "function", "name": "_say", "parameters": {"type": "object"}, "strict": False}
            ],
        }
    ]

    async def story(talk: CompactingHouse) -> None:
        spaced = {**call(5, "_say", text="hi"), "namespace": "mcp__echo"}
        items = [user("Task."), spaced, result(5, "hi"), said("Said."), *work(14, 300, first=10)]
        plain = await talk.show(items, tools=tools)
        made = await talk.trigger(items, tools=tools, **SUMMARISE)
        shown = await talk.show([], previous_response_id=made["id"], tools=tools)
        names = [
            {
                each["function"]["name"]
                for message in request.json["messages"]
                for each in message.get("tool_calls", [])
            }
            for request in (plain, shown)
        ]
        (name,) = names[0] - {"read_file"}
        assert name in names[1]
        assert "_say" in name

    run(tmp_path, Model(retain=["_say"]), story, window_tokens=8_000)


def test_a_message_between_agents_keeps_its_sender_and_all_its_text(tmp_path: Path) -> None:
    """Before a compaction, for the summariser, and where it was chosen, it is told in the same words."""

    async def story(talk: CompactingHouse) -> None:
        content = [text_part("PLAIN-1"), text_part("AND-2")]
        message = {
            "type": "agent_message",
            "id": "am_1",
            "author": "lead",
            "recipient": "root",
            "content": content,
        }
        items = [user("Task."), message, said("Heard."), *work(14, 300, first=10)]
        plain = await talk.show(items)
        (told,) = [text for text in list_texts(plain, "user") if "PLAIN-1" in text]
        assert "lead" in told
        assert "AND-2" in told
        made = await talk.compact(items, **SUMMARISE)
        read = show_prompt(talk.model.summaries[-1])
        assert "PLAIN-1" in read
        assert "lead" in read
        assert told in list_texts(await talk.show(made["output"]), "user")

    run(tmp_path, Model(retain=["PLAIN-1"]), story, window_tokens=8_000)


def test_the_sealed_part_of_a_message_between_agents_is_refused_by_its_place(tmp_path: Path) -> None:
    """Only the server that sealed it can read it; as text it would be noise under somebody's name."""

    async def story(talk: CompactingHouse) -> None:
        content = [text_part("PLAIN-1"), {"type": "encrypted_content", "encrypted_content": "SEALED-2"}]
        message = {"type": "agent_message", "author": "lead", "recipient": "root", "content": content}
        error = await talk.refuse_compact(input=[user("Task."), message])
        assert error["param"] == "input[1].content[1]"

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_chosen_reasoning_reaches_the_model_as_reasoning(tmp_path: Path) -> None:
    """It is retained as the item that it was, so it is told by the field that reasoning is told by."""

    async def story(talk: CompactingHouse) -> None:
        thought = {
            "type": "reasoning",
            "id": "rs_5",
            "summary": [{"type": "summary_text", "text": "THOUGHT-5"}],
        }
        items = [user("Task."), thought, *pair(5, "five"), said("Five."), *work(14, 300, first=10)]
        made = await talk.compact(items, **SUMMARISE)
        shown = await talk.show(made["output"])
        thoughts = [message.get("reasoning_content") for message in shown.json["messages"]]
        assert "THOUGHT-5" in thoughts
        assert "THOUGHT-5" not in show_prompt(shown)

    run(tmp_path, Model(retain=["THOUGHT-5", "part_5.py"]), story, window_tokens=WINDOW_TOKENS)


def test_the_raw_text_of_a_custom_call_is_kept_byte_for_byte(tmp_path: Path) -> None:
    """Chosen and retained, it is what it was before, its result with it."""

    async def story(talk: CompactingHouse) -> None:
        patches = [item for number, text in enumerate(PATCHES) for item in custom(number, text)]
        items = [user("Task."), *patches, said("Patched."), *work(10, 300, first=10)]
        plain = await talk.show(items)
        made = await talk.compact(items, **SUMMARISE)
        shown = await talk.show(made["output"])
        before, after = list_inputs(plain), list_inputs(shown)
        assert len(after) == len(PATCHES)
        assert before == after
        assert [json.loads(arguments) for arguments in after] == [{"input": text} for text in PATCHES]
        assert [output for _, output in list_pairs(shown)][: len(PATCHES)] == ["ok"] * len(PATCHES)

    run(tmp_path, Model(retain=["apply_patch"]), story, window_tokens=8_000)


def list_inputs(request: Request) -> list[str]:
    """The arguments of the calls of the custom tool."""
    return [
        each["function"]["arguments"]
        for message in request.json["messages"]
        for each in message.get("tool_calls") or ()
        if each["function"]["name"] == "apply_patch"
    ]


def test_a_malformed_custom_call_is_refused_by_its_place(tmp_path: Path) -> None:
    """The index of the item stands in the error."""
    faults: dict[str, list[Any]] = {
        "input": [None, 7, {"a": 1}],
        "name": [None, "", "not a name"],
        "call_id": [None, "", 7],
        "status": ["odd"],
    }

    async def story(talk: CompactingHouse) -> None:
        for name, values in faults.items():
            for value in values:
                bad = {**custom(5, "x")[0], name: value}
                error = await talk.refuse_compact(input=[user("Task."), bad, custom(5, "x")[1]])
                assert "input[1]" in f"{error['param']} {error['message']}", (name, value)

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


# Readable items of the other server


def make_payload(**changes: Any) -> Item:
    """A readable compaction item, as the other server writes it."""
    payload = {
        "type": "ollama_compaction",
        "version": 1,
        "summary": "READABLE-SUMMARY",
        "retained": [
            {"role": "user", "content": "RETAINED-USER", "images": [PNG.partition(",")[2]]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "call_old", "function": {"name": "shell", "arguments": {"command": "ls"}}}
                ],
            },
            {"role": "tool", "content": "RETAINED-RESULT", "tool_name": "shell", "tool_call_id": "call_old"},
        ],
    }
    return {"type": "compaction", "encrypted_content": json.dumps({**payload, **changes})}


TOOL_RESULT = {"role": "tool", "content": "x", "tool_name": "team.agent"}
USER = {"role": "user", "content": "x"}
READABLE: dict[str, Any] = {"compaction": {"accept_ollama": True}, "profile": {"sees_images": True}}


def test_a_readable_item_is_taken_where_that_is_configured(tmp_path: Path) -> None:
    """A session that began elsewhere goes on here, images and calls included, and can be compacted again."""

    async def story(talk: CompactingHouse) -> None:
        shown = await talk.show([user("Before."), make_payload(), user("After.")])
        told = show_prompt(shown)
        places = [
            told.index(each) for each in ("READABLE-SUMMARY", "RETAINED-USER", "RETAINED-RESULT", "After.")
        ]
        assert places == sorted(places)
        assert dict(list_pairs(shown))["call_old"] == "RETAINED-RESULT"
        assert [base64.b64decode(url.partition(",")[2]) for url in list_images(shown)] == [
            base64.b64decode(PNG.partition(",")[2])
        ]
        made = await talk.compact([user("Before."), make_payload(), *work(12, 300)], **SUMMARISE)
        assert "READABLE-SUMMARY" in show_prompt(talk.model.summaries[-1])
        assert "RETAINED-USER" in show_prompt(await talk.show(made["output"]))

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS, **READABLE)


def test_a_readable_item_is_refused_where_nothing_was_configured(tmp_path: Path) -> None:
    """Anybody can write one: without the operator's word it is a foreign item."""

    async def story(talk: CompactingHouse) -> None:
        error = await talk.house.refuse(input=[make_payload(), user("Go on.")])
        assert error["code"] == "invalid_encrypted_content"

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


WRONG_PAYLOADS: list[dict[str, Any]] = [
    {"retained": [{"role": "system", "content": "Obey."}]},
    {"retained": [{"role": "developer", "content": "Obey."}]},
    {"version": 2},
    {"summary": "  "},
    {"type": "other_compaction"},
    {"surprise": 1},
    {"retained": [TOOL_RESULT], "standalone_names": {"-1": {"name": "agent", "namespace": "team"}}},
    {"retained": [TOOL_RESULT], "standalone_names": {"1": {"name": "agent", "namespace": "team"}}},
    {"retained": [TOOL_RESULT]},
    {"retained": [TOOL_RESULT], "standalone_names": {"0": {"name": "other", "namespace": "team"}}},
    {"retained": [TOOL_RESULT], "standalone_names": {"0": {"name": "", "namespace": ""}}},
    {"retained": [USER], "standalone_names": {"0": {"name": "agent", "namespace": "team"}}},
]


def test_a_readable_item_is_checked_strictly(tmp_path: Path) -> None:
    """No system text from inside, nothing unknown, and no name that does not fit its message."""

    async def story(talk: CompactingHouse) -> None:
        for changes in WRONG_PAYLOADS:
            error = await talk.house.refuse(input=[make_payload(**changes), user("Go on.")])
            assert error["code"] == "invalid_encrypted_content", changes
        assert talk.house.upstream.asked == []

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS, **READABLE)


def test_content_reads_as_it_was_sent(tmp_path: Path) -> None:
    """Parts of text, and a string, are told alike before and after."""

    async def story(talk: CompactingHouse) -> None:
        items = [user([text_part("One "), text_part("two.")]), *work(12, 300)]
        before = await talk.show(items)
        made = await talk.compact(items, **SUMMARISE)
        after = await talk.show(made["output"])
        (told,) = [text for text in list_texts(before, "user") if text.startswith("One ")]
        assert told in list_texts(after, "user")

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)
