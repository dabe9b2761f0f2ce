"""The benchmark of compaction: its conversations, its scores, its table, and a small run of all of it."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.memory.conversations import Call, Conversation, make_conversation, make_conversations
from bench.memory.entrances import ENTRANCES, RUNGS
from bench.memory.facts import KINDS, Fact, Place
from bench.memory.scoring import Score, Window, read_window, score
from bench.memory.server import Talk, open_talk
from bench.memory.table import render_cells, render_faults, render_kinds, render_verdict
from bench.memory.tally import Cell, Fault, Tally, run_all

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 55

PATH = Fact("path", "src/search/client_heron123.py", "result")
HASH = Fact("hash", "312c8b64af0d", "result")
SAID = Fact("sentence", "Never touch the teal otter parser 7948.", "user")
FIRST, LAST = "fco_" + "a" * 36 + "0001", "fco_" + "a" * 36 + "0009"


def list_results(conversation: Conversation) -> list[tuple[Call, str]]:
    """Every call of a conversation with the text of its result."""
    return [
        (call, call.result if isinstance(call.result, str) else call.result[0]["text"])
        for each in conversation.rounds
        for call in each.calls
    ]


def list_places(conversation: Conversation) -> dict[Place, str]:
    """All words of a conversation by their place."""
    rounds = conversation.rounds
    calls = [call for each in rounds for call in each.calls]
    return {
        "user": "\n".join(text for each in rounds for text in (each.said, *each.images)),
        "assistant": "\n".join(each.answer for each in rounds),
        "call": "\n".join(text for call in calls for text in call.arguments.values()),
        "result": "\n".join(str(call.result) for call in calls),
    }


def test_a_seed_repeats_its_conversations() -> None:
    """Ours: a printed seed is worth something; another seed or number is another conversation."""
    assert list(make_conversations(7, 2)) == list(make_conversations(7, 2))
    first, second = make_conversations(7, 2)
    assert first.facts != second.facts
    assert make_conversation(8, 0).facts != first.facts


@pytest.mark.parametrize("seed", range(5))
def test_every_fact_stands_where_it_says(seed: int) -> None:
    """Ours: all kinds are planted, each in the user's, the model's, a call's or a result's words alone."""
    conversation = make_conversation(seed, 0)
    places = list_places(conversation)
    assert {fact.kind for fact in conversation.facts} == set(KINDS)
    assert len({fact.value for fact in conversation.facts}) == len(conversation.facts)
    for fact in conversation.facts:
        assert [place for place, text in places.items() if fact.value in text] == [fact.place]


def test_conversations_are_as_agents_have_them() -> None:
    """Ours: 20-60 rounds; results from nothing to thousands of tokens; repeated, failed and parallel calls; images."""
    conversations = list(make_conversations(3, 10))
    assert all(20 <= len(each.rounds) <= 60 for each in conversations)
    assert all(each.rounds[0].said and not each.rounds[-1].calls for each in conversations)
    assert any(len(each.calls) >= 3 for conversation in conversations for each in conversation.rounds)
    for conversation in conversations:
        results = list_results(conversation)
        sizes = [len(text) for _, text in results]
        assert min(sizes) < 30 < 5_000 < max(sizes)
        assert {"0 matches", "Timed out after 30 s; no new output.", ""} & {text for _, text in results}
        assert any("Exit code 1." in text for _, text in results)
        reads = [call.arguments["path"] for call, _ in results if call.name == "read_file"]
        assert len(set(reads)) < len(reads)
        shown = [fact.value for fact in conversation.facts if fact.kind == "image"]
        assert all(url.startswith("data:image/png;base64,iVBOR") for url in shown)


def look(
    facts: Sequence[Fact], texts: Sequence[str], stored: dict[tuple[str, str], str], held: str = ""
) -> Score:
    """The score of a window, with what is behind its ids."""

    async def fetch(first: str, last: str) -> list[dict[str, Any]]:
        return [{"output": stored[first, last]}] if (first, last) in stored else []

    return asyncio.run(score(facts, Window(tuple(texts)), fetch, [held] if held else []))


def test_a_fact_is_verbatim_fetchable_held_or_lost() -> None:
    """Ours: the four places, the best one counts."""
    texts = [f"Elided: {FIRST} (90 tokens).", f"see {PATH.value} for that"]
    found = look([PATH, HASH, SAID], texts, {(FIRST, FIRST): f"at {HASH.value} {PATH.value}"})
    assert list(found.places.values()) == ["verbatim", "fetchable", "lost"]
    assert found.list_lost() == [SAID]
    assert look([SAID], texts, {}, held=f"x {SAID.value}").places == {SAID: "held by the client"}


@pytest.mark.parametrize("between", ["..", " .. ", " to ", "-", " - ", "…"])
def test_a_fact_inside_a_named_range_is_fetchable(between: str) -> None:
    """Ours: two ids with only a sign between them are the ends of a range, and no single items."""
    texts = [f"- {FIRST}{between}{LAST}: 9 items, 4,000 tokens"]
    assert Window(tuple(texts)).list_named() == [(FIRST, LAST)]
    assert look([HASH], texts, {(FIRST, LAST): HASH.value}).places == {HASH: "fetchable"}


def test_an_id_that_gives_something_else_saves_nothing() -> None:
    """Ours: the fetched bytes must hold the fact; an id with nothing behind it is told."""
    texts = [f"Elided: {FIRST}, and {LAST}."]
    found = look([HASH], texts, {(FIRST, FIRST): "312c8b64af0"})
    assert (found.places, found.dead) == ({HASH: "lost"}, (LAST,))


def test_no_other_words_are_taken_for_ids() -> None:
    """Ours: words of a program, call ids, pictures and pieces of longer words name nothing."""
    texts = [
        "my_value call_12 snake_case_name_of_a_long_function_in_the_code",
        f"9{FIRST} {FIRST}_and",
        f"data:image/png;base64,{FIRST}",
    ]
    assert Window(tuple(texts)).list_named() == []


def test_a_window_is_all_that_a_chat_model_reads() -> None:
    """Chat Completions: system text, contents and their parts, names and arguments of calls, images."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, picture]},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": '{"a":"b"}'}}],
        },
        {"role": "tool", "tool_call_id": FIRST, "content": "done"},
    ]
    window = read_window("Be careful.", messages)
    for told in ("Be careful.", "Look.", "data:image/png;base64,AA", '{"a":"b"}', "done"):
        assert window.holds(told)
    assert window.list_named() == []


def make_cell(entrance: str = "trigger") -> Cell:
    """A row with numbers."""
    (walked,) = (each for each in ENTRANCES if each.name == entrance)
    (rung,) = (each for each in RUNGS if each.name == "extract")
    cell = Cell(walked, rung, runs=2, compacted=2, tokens_before=4_000, tokens_after=1_001)
    cell.add(Score({PATH: "verbatim", HASH: "fetchable", SAID: "lost"}))
    cell.model_calls = 3
    return cell


def test_the_table_tells_sums_and_means() -> None:
    """Ours: facts are summed, tokens and model calls are means of a conversation."""
    heads, row = render_cells([make_cell()]).splitlines()
    assert re.split(r"  +", heads.strip()) == [
        *("done", "facts", "verbatim", "fetchable", "held by the client", "lost"),
        *("before", "after", "calls"),
    ]
    assert re.split(r"  +", row) == [
        "trigger",
        "extract",
        "2/2",
        "3",
        "1",
        "1",
        "0",
        "1",
        "2,000",
        "500",
        "1.50",
    ]
    kinds = render_kinds([make_cell()])
    assert re.search(r"^path +100%$", kinds, re.MULTILINE)
    assert re.search(r"^hash +0%$", kinds, re.MULTILINE)
    assert re.search(r"^image +-$", kinds, re.MULTILINE)


def test_what_is_lost_counts_where_all_was_stored() -> None:
    """Ours: with `store: false` the client holds what it sent, so nothing is counted as lost for good."""
    assert not Tally([make_cell()]).is_good
    assert Tally([make_cell("trigger, store:false")]).is_good
    assert not Tally(
        [make_cell("trigger, store:false")], [Fault("trigger / extract", 3, "it failed")]
    ).is_good
    assert render_verdict(Tally([make_cell()])) == (
        "memory: 66.67% of 3 facts in the window or behind a named id where everything is stored; 1 lost, 0 faults"
    )


def test_faults_are_told_by_row() -> None:
    """Ours: one cause often shows in every conversation; it is told once for a row."""
    faults = [Fault("a / b", 3, "x"), Fault("c / d", None, "y"), Fault("a / b", 4, "z")]
    assert render_faults(faults).splitlines()[1:] == [
        "a / b: 2 faults, conversation 3: x",
        "c / d: 1 fault: y",
    ]


def run_small(folder: Path, conversations: int, kind: type[Talk] = Talk) -> Tally:
    """The benchmark over small conversations."""

    async def main() -> Tally:
        async with open_talk(folder, kind) as talk:
            return await run_all(talk, make_conversations(11, conversations, "small"), lambda _: None)

    return asyncio.run(main())


def test_without_a_model_nothing_is_lost(tmp_path: Path) -> None:
    """Ours: three conversations by every entrance and rung; everything stored is in the window or behind an id."""
    tally = run_small(tmp_path, 3)
    assert tally.faults == []
    assert tally.lost == 0
    assert {cell.entrance for cell in tally.cells} == set(ENTRANCES)
    assert {cell.rung for cell in tally.cells} == set(RUNGS)
    for cell in tally.cells:
        assert cell.compacted == cell.runs == 3
        assert cell.tokens_after < cell.tokens_before
        assert cell.model_calls == 0 or cell.rung.asks_model
        assert cell.model_calls > 0 or cell.rung.method != "summary"


class DeafTalk(Talk):
    """A client that is given nothing by any id."""

    async def fetch(self, first: str, last: str) -> list[dict[str, Any]]:
        """Nothing."""
        return []


def test_a_server_that_gives_nothing_back_is_found_out(tmp_path: Path) -> None:
    """Ours: a benchmark that cannot fail would show nothing."""
    tally = run_small(tmp_path, 1, DeafTalk)
    assert tally.lost > 0
    assert not tally.is_good


@pytest.mark.bench
def test_the_command_prints_its_seed_and_tables() -> None:
    """Ours: the documented output, and a status that says what the last line of the table says."""
    run = subprocess.run(
        [sys.executable, "-m", "bench.memory", "--conversations", "1", "--seed", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "seed 5 (--seed 5 repeats it)" in run.stdout
    assert re.search(r"^memory: 100\.00% of [\d,]+ facts .*; 0 lost, 0 faults$", run.stdout, re.MULTILINE)
