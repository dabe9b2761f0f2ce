"""What people report of agents whose history was compacted, one scenario each: here it does not happen.

A client plays the agent; what counts is what the model server is shown in the round after the compaction.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest

from antiphon.context.sealed_window import HEADING
from tests.fake_upstream import MODEL, Request
from tests.scenarios.compaction_talk import (
    FAILING,
    TRIGGER,
    CompactingHouse,
    Item,
    Model,
    call,
    find_summary,
    image,
    list_images,
    list_open_calls,
    list_pairs,
    list_texts,
    make_png,
    name_path,
    pair,
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
from tests.scenarios.houses import list_codes, read_array

WINDOW_TOKENS = 6_000
GOAL = "Task: port the importer in src/importer.py to the new reader, and do not touch the public API."
#: Ask for a summary even where eliding results would do.
SUMMARISE: dict[str, Any] = {"antiphon": {"method": "summary"}}


def due(threshold: int) -> dict[str, Any]:
    """The request field that lets the server compact over so many tokens."""
    return {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}


def test_a_compaction_in_the_middle_of_a_task_keeps_the_goal_and_the_work_in_hand(tmp_path: Path) -> None:
    """Public complaint: automatic compaction loses details, edits and the goal, and another problem gets solved."""

    async def story(talk: CompactingHouse) -> None:
        edit = pair(
            50, "Applied. 1 hunk.", "edit_file", path="src/importer.py", patch="-old_reader\n+new_reader"
        )
        items = [
            user(GOAL),
            *work(14, 300),
            *edit,
            *pair(51, "2 failed: test_quotes, test_empty", "run_tests"),
        ]
        made = await talk.house.make(input=items, **due(3_000), **SUMMARISE)
        assert [item["type"] for item in made["output"]] == ["compaction", "message"]
        shown = talk.model.rounds[-1]
        assert GOAL in list_texts(shown, "user")
        assert "parser done, writer open" in find_summary(shown)
        # The edit and the failure that is worked on are there, byte for byte, and last.
        told = show_prompt(shown)
        assert (
            told.index(HEADING) < told.index("+new_reader") < told.index("2 failed: test_quotes, test_empty")
        )
        assert list_pairs(shown)[-1][1] == "2 failed: test_quotes, test_empty"

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_finished_commands_are_not_shown_as_pending(tmp_path: Path) -> None:
    """Public complaint: commands that had run are run again, since history reads as if it were open."""

    async def story(talk: CompactingHouse) -> None:
        deploy = pair(70, f"deployed build 77\n{prose(7, 300)}", "shell", command="make deploy")
        items = [user(GOAL), *deploy, *work(14, 300), user("Now write the changelog.")]
        made = await talk.trigger(items, **SUMMARISE)
        shown = await talk.show([], previous_response_id=made["id"])
        assert list_open_calls(shown) == []
        # The old command is no call any more, and what stands for it says that it is done.
        assert [each for each in list_arguments(shown) if "make deploy" in each] == []
        assert "Work that is told as done is done" in find_summary(shown)
        # The summariser is asked to tell done and open work apart.
        asked = show_prompt(talk.model.summaries[-1]).lower()
        assert "done" in asked
        assert "open" in asked
        assert list_texts(shown, "user")[-2:] == ["Now write the changelog.", "Go on."]

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def list_arguments(request: Request) -> list[str]:
    """The arguments of every call in a prompt."""
    return [
        each["function"]["arguments"]
        for message in request.json["messages"]
        for each in message.get("tool_calls") or ()
    ]


def test_the_last_steps_stay_verbatim_and_touched_files_stay_named(tmp_path: Path) -> None:
    """Public wish: the last operational steps as they were, the touched files, rejected ways, the next step."""

    async def story(talk: CompactingHouse) -> None:
        last = [
            step for number in range(90, 95) for step in pair(number, f"step {number} ok", "shell", n=number)
        ]
        made = await talk.compact([user(GOAL), *work(14, 300), *last], **SUMMARISE)
        shown = await talk.show(made["output"])
        assert [step for step in list_pairs(shown) if step[1].startswith("step ")] == [
            (f"call_{number}", f"step {number} ok") for number in range(90, 95)
        ]
        told = show_prompt(shown)
        for number in range(1, 15):
            assert name_path(number) in told, number
        asked = show_prompt(talk.model.summaries[0]).lower()
        for wanted in ("reject", "next step", "files"):
            assert wanted in asked, wanted

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_the_users_own_words_and_corrections_stay_verbatim(tmp_path: Path) -> None:
    """Public complaint: the user's corrections are dropped, and old work is taken up again."""

    async def story(talk: CompactingHouse) -> None:
        words = [
            GOAL,
            "No - keep the *old* quoting rules; I said so.",
            "Stop working on the writer.",
            "Only Python 3.11, please.",
        ]
        items: list[Item] = []
        for number, text in enumerate(words):
            items += [user(text), *work(5, 250, first=1 + 10 * number), said(f"Understood, {number}.")]
        made = await talk.compact(items, **SUMMARISE)
        shown = await talk.show(made["output"])
        said_by_user = [text for text in list_texts(shown, "user") if not text.startswith(HEADING)]
        assert said_by_user == [*words, "Go on."]
        # Also after a second compaction, and whatever the first summary said.
        again = await talk.compact([*made["output"], *work(14, 300, first=60)], **SUMMARISE)
        shown = await talk.show(again["output"])
        assert [text for text in list_texts(shown, "user") if not text.startswith(HEADING)] == [
            *words,
            "Go on.",
        ]

    run(tmp_path, Model(), story, window_tokens=8_000)


def test_identifiers_and_failed_approaches_stay_as_facts(tmp_path: Path) -> None:
    """Public complaint: known failures are tried again and found identifiers are forgotten."""
    facts = [
        "3f2a9c1d-77b0-4e0b-9a55-0c1d2e3f4a5b",
        "E_PARSE_4417",
        "https://ci.example.test/builds/90211",
        "src/reader/quotes.py",
        "9e107d9d372bb6826bd81d3542a419d6",
    ]

    async def story(talk: CompactingHouse) -> None:
        planted: list[Item] = []
        for number, fact in enumerate(facts):
            planted += pair(80 + number, f"{prose(number, 150)}\nfound {fact} here\n{prose(9 - number, 150)}")
        items = [user(GOAL), *planted, *work(10, 300)]
        made = await talk.compact(items, **SUMMARISE)
        for first in (40, 60):
            summary = find_summary(await talk.show(made["output"]))
            assert [fact for fact in facts if fact not in summary] == []
            made = await talk.compact([*made["output"], *work(14, 300, first=first)], **SUMMARISE)

    run(tmp_path, Model(summary="Nothing of note."), story, window_tokens=8_000)


def test_a_history_that_cannot_shrink_is_not_compacted_for_ever(tmp_path: Path) -> None:
    """Public complaint: an endless loop of compactions, each of them billed."""

    async def story(talk: CompactingHouse) -> None:
        # What nothing may remove is over the threshold, so that no pass can be enough.
        items = [system(prose(1, 1_500)), user(GOAL), *work(6, 50), said("Seen.")]
        parent: str | None = None
        refused: list[str] = []
        for number in range(8):
            step = pair(100 + number, prose(number, 30), "shell", n=number)
            made = await talk.house.make(
                input=[*items, *step] if parent is None else step,
                previous_response_id=parent,
                **due(1_000),
            )
            parent = made["id"]
            refused += [each["refused"] for each in read_passes(made)]
            # Also where no pass is tried any more.
            assert "compaction_refused" in list_codes(made)
        # The first response, and then three in a row of the conversation that it became; each round was answered.
        assert 1 <= len(talk.model.summaries) == len(refused) <= 4
        assert len(talk.model.rounds) == 8

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_after_a_compaction_the_window_has_room_for_many_rounds(tmp_path: Path) -> None:
    """Public complaint: 74 compactions in six hours, each followed by reading the same files again."""

    async def story(talk: CompactingHouse) -> None:
        parent, passes = None, []
        for number in range(1, 31):
            step = pair(number, f"FILE-{number} {prose(number, 200)}")
            made = await talk.house.make(
                input=[user(GOAL), *step] if parent is None else step,
                previous_response_id=parent,
                **due(3_000),
            )
            parent = made["id"]
            passes += [(number, each) for each in read_passes(made)]
            told = show_prompt(talk.model.rounds[-1])
            # The newest files can still be read, whatever was done.
            assert f"FILE-{number} {prose(number, 200)}" in told
            if number > 1:
                assert f"FILE-{number - 1} {prose(number - 1, 200)}" in told
        # 30 steps of about 220 tokens are twice the threshold: a few passes, and rounds between them.
        assert 1 <= len(passes) <= 6
        gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(passes)]
        assert all(gap >= 2 for gap in gaps), gaps
        for _, each in passes:
            assert each["tokens_after"] <= 0.8 * 3_000

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


@pytest.mark.parametrize("trouble", ["fails", "too_long", "empty"])
def test_a_compaction_near_the_limit_never_kills_the_session(tmp_path: Path, trouble: str) -> None:
    """Public complaint: remote compaction fails near the limit, and the session is dead."""
    model = {
        "fails": Model(spoilers=[FAILING] * 99),
        "too_long": Model(window_tokens=4_000),
        "empty": Model(forms=["empty"] * 99),
    }[trouble]

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(10, 450), user("Now the writer.")]
        made = await talk.trigger(items, store=False, **SUMMARISE)
        done = read_pass(made)
        assert done["summary"] == ("model" if trouble == "too_long" else "extract")
        assert done["tokens_after"] < done["tokens_before"]
        assert ("compaction_extract" in list_codes(made)) == (trouble != "too_long")
        shown = await talk.show([read_item(made)], store=False)
        assert list_texts(shown, "user")[-2:] == ["Now the writer.", "Go on."]
        assert GOAL in list_texts(shown, "user")
        told = show_prompt(shown)
        assert all(name_path(number) in told for number in range(1, 11))

    run(tmp_path, model, story, window_tokens=WINDOW_TOKENS)


def test_a_summary_is_asked_for_behind_the_prompt_that_the_server_has_cached(tmp_path: Path) -> None:
    """Public complaint: the compaction request has another shape or no tools, so the prompt cache is of no use."""
    tools = [
        {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}},
        {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}},
    ]

    async def story(talk: CompactingHouse) -> None:
        asked: dict[str, Any] = {"tools": tools, "instructions": "You are a careful engineer."}
        first = await talk.house.make(input=[user(GOAL), *work(10, 250)], **asked)
        await talk.trigger([], previous_response_id=first["id"], **asked, **SUMMARISE)
        before, after = talk.model.rounds[-1], talk.model.summaries[-1]
        assert read_array(after).startswith(read_array(before)[:-1] + b",")
        assert read_array(after, "tools") == read_array(before, "tools")

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_a_summary_that_is_larger_than_what_it_replaces_is_refused(tmp_path: Path) -> None:
    """Public complaint: compacting increases the usage."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(5, 50), *work(7, 220, first=20), user("Now the writer.")]
        before = await talk.show(items, store=False)
        made = await talk.trigger(items, store=False, **SUMMARISE)
        done = read_pass(made)
        assert done["model_calls"] == 1
        assert "not be shorter" in done["refused"]
        assert done["tokens_after"] == done["tokens_before"]
        assert done["removed"] == []
        # A client that asked for an item has one, and it holds the window as it was.
        after = await talk.show([read_item(made)], store=False)
        assert read_array(after) == read_array(before)
        # Its call was paid for, and is counted.
        assert made["usage"]["input_tokens"] > 0

    run(tmp_path, Model(summary=prose(5, 760)), story, window_tokens=8_000)


def test_a_summary_that_is_longer_than_allowed_is_not_taken(tmp_path: Path) -> None:
    """The same complaint: what was asked to be short and is not is asked for again, then put together by rule."""

    async def story(talk: CompactingHouse) -> None:
        items = [user(GOAL), *work(14, 300), user("Now the writer.")]
        made = await talk.trigger(items, store=False, **SUMMARISE)
        done = read_pass(made)
        assert (done["repairs"], done["summary"]) == (1, "extract")
        assert done["tokens_after"] < done["tokens_before"] / 2
        assert prose(5, 3_000)[:400] not in show_prompt(await talk.show([read_item(made)], store=False))

    run(tmp_path, Model(summary=prose(5, 3_000)), story, window_tokens=WINDOW_TOKENS)


def test_compaction_is_due_over_the_threshold_and_at_no_half_of_it(tmp_path: Path) -> None:
    """Public complaints: it never fires, or at 50 to 60 %, since cached tokens were counted twice."""

    async def story(talk: CompactingHouse) -> None:
        threshold, parent, number = 3_000, None, 0
        while True:
            number += 1
            step = pair(number, prose(number, 150), "shell")
            made = await talk.house.make(
                input=[user(GOAL), *step] if parent is None else step,
                previous_response_id=parent,
                **due(threshold),
            )
            parent = made["id"]
            if read_passes(made):
                break
            # What was told before is under the threshold, by the server's own count.
            assert made["usage"]["input_tokens"] <= threshold
            assert number < 40
        done = read_pass(made)
        assert done["reason"] == "threshold"
        assert threshold < done["tokens_before"] <= 1.15 * threshold
        assert done["tokens_after"] <= 0.8 * threshold
        # The next prompt is what the pass said, within the error of an estimate.
        assert made["usage"]["input_tokens"] <= 0.9 * threshold

    run(tmp_path, Model(), story, window_tokens=None)


def test_compaction_happens_whole_or_not_at_all_also_with_images_before_a_model_that_sees_none(
    tmp_path: Path,
) -> None:
    """Public complaints: "failed" is said and a stale summary applied; images break it for models that see none."""
    pictures = [make_png(number) for number in range(4)]

    async def story(talk: CompactingHouse) -> None:
        old = await talk.compact([user(GOAL), *work(14, 300)], **SUMMARISE)
        stale = find_summary(await talk.show(old["output"]))
        talk.model.spoilers = [FAILING] * 99
        seen: list[Item] = []
        for number, picture in enumerate(pictures):
            seen += [call(60 + number), result(60 + number, [text_part(f"page {number}"), image(picture)])]
        made = await talk.compact([*old["output"], *seen, *work(14, 300, first=30)], **SUMMARISE)
        done = read_pass(made)
        assert done["summary"] == "extract"
        shown = await talk.show(made["output"])
        summary = find_summary(shown)
        # The earlier summary is carried on, and what came after it is told too: not the stale one alone.
        assert summary != stale
        assert name_path(31) in show_prompt(shown)
        # A model that sees no images is never sent one, neither for the summary nor later.
        assert [list_images(request) for request in [*talk.model.summaries, *talk.model.rounds]] == [
            [] for _ in [*talk.model.summaries, *talk.model.rounds]
        ]

    run(tmp_path, Model(), story, window_tokens=8_000, profile={"sees_images": False})


def test_a_compaction_that_fails_altogether_leaves_the_history_as_it_was(tmp_path: Path) -> None:
    """The same complaint, where nothing at all fits: an error, and the next round sees what it saw before."""

    async def story(talk: CompactingHouse) -> None:
        first = await talk.house.make(input=[user(GOAL), *work(3, 300)])
        before = read_array(talk.model.rounds[-1])
        talk.model.window_tokens = 60
        error = await talk.client.refuse(
            500, model=MODEL, previous_response_id=first["id"], input=[TRIGGER], **SUMMARISE
        )
        assert error["code"] == "compaction_failed"
        talk.model.window_tokens = None
        shown = await talk.show([], previous_response_id=first["id"])
        assert read_array(shown).startswith(before[:-1] + b",")
        assert list_texts(shown, "user") == [GOAL, "Go on."]

    run(tmp_path, Model(), story)
