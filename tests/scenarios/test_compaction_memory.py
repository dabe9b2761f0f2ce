"""A client that sends its whole history with each request and never sends the compaction item back.

It is compacted by policy alone; the window of an earlier pass is remembered, so that it neither pays for the same
summary twice nor loses the model server's prompt cache in each round.
"""

from pathlib import Path
from typing import Any

from tests.scenarios.compaction_talk import (
    CompactingHouse,
    Item,
    Model,
    find_summary,
    read_passes,
    run,
    said,
    user,
    work,
)

WINDOW_TOKENS = 6_000
POLICY = {"policy": "auto", "at_share": 0.5}
ROUNDS = 29


def count_common(earlier: list[Any], later: list[Any]) -> int:
    """How many messages two prompts begin with in common."""
    pairs = zip(earlier, later, strict=False)
    return next((at for at, (one, two) in enumerate(pairs) if one != two), min(len(earlier), len(later)))


def test_a_client_that_drops_the_item_pays_for_a_summary_once(tmp_path: Path) -> None:
    """Between two steps each prompt begins with all of the one before, and no model is asked for a summary."""

    async def story(talk: CompactingHouse) -> None:
        items: list[Item] = [user("Task.")]
        steps = reused = 0
        before: list[Any] = []
        for number in range(1, ROUNDS + 1):
            items += [*work(1, 300, first=number), user(f"Next {number}.")]
            made = await talk.house.make(input=items, store=False)
            items.append(said("I will go on."))
            messages = talk.model.rounds[-1].json["messages"]
            passes = read_passes(made)
            reused += any(each.get("reused") for each in passes)
            if any(each["rungs"] for each in passes):
                steps += 1
            else:
                assert count_common(before, messages) == len(before), number
            before = messages
        assert talk.model.refused == []
        assert len(talk.model.summaries) == 1
        assert steps < ROUNDS / 4
        assert reused > ROUNDS / 2
        assert find_summary(talk.model.rounds[-1])

    run(tmp_path, Model(window_tokens=WINDOW_TOKENS), story, window_tokens=WINDOW_TOKENS, compaction=POLICY)


def test_a_window_that_is_taken_up_again_is_told_by_the_ids_of_the_response_that_takes_it(
    tmp_path: Path,
) -> None:
    """Whatever becomes of the response that it was made in, all that was removed can be fetched."""

    async def story(talk: CompactingHouse) -> None:
        items = [user("Task."), *({**item, "id": None} for item in work(14))]
        asked: dict[str, Any] = {
            "context_management": [{"type": "compaction", "compact_threshold": 1_700}],
            "antiphon": {"method": "summary"},
        }
        one = await talk.house.make(input=[*items, user("One.")], **asked)
        two = await talk.house.make(input=[*items, user("One."), user("Two.")], **asked)
        (taken,) = read_passes(two)
        assert taken["reused"]
        assert "kept_by_client" not in taken
        assert taken["summary"] == "model"
        assert taken["removed_count"] == read_passes(one)[0]["removed_count"]
        await talk.client.delete(one["id"])
        for removal in taken["removed"]:
            assert two["id"].partition("_")[2] in removal["id"]
            await talk.house.get(f"/v1/items/{removal['id']}")

    run(tmp_path, Model(), story, window_tokens=WINDOW_TOKENS)


def test_a_changed_history_is_read_anew(tmp_path: Path) -> None:
    """An edited message is not what the remembered window was made from, so nothing of that window is shown."""

    async def story(talk: CompactingHouse) -> None:
        items = [user("Task with BLUE."), *work(12, 300)]
        await talk.house.make(input=[*items, user("Go on.")], store=False)
        items[0] = user("Task with GREEN.")
        made = await talk.house.make(input=[*items, user("Go on.")], store=False)
        assert not any(each.get("reused") for each in read_passes(made))
        told = talk.model.rounds[-1].body.decode()
        assert "GREEN" in told
        assert "BLUE" not in told

    run(tmp_path, Model(window_tokens=WINDOW_TOKENS), story, window_tokens=WINDOW_TOKENS, compaction=POLICY)
