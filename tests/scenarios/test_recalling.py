"""The tool `recall` in whole conversations: offered once something was left out, run here, and told as it was."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from antiphon.engine.recall import RECALL_NAME
from tests.fake_upstream import Request
from tests.scenarios.compaction_talk import (
    TRIGGER,
    CompactingHouse,
    Model,
    name_path,
    read_pass,
    run,
    user,
    work,
)
from tests.scenarios.houses import Generation, list_codes

RECALLS: dict[str, Any] = {"recall": True}
SUMMARISE: dict[str, Any] = {"antiphon": {"method": "summary"}}
READ_FILE = {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {}}}


def ask_for(item_id: str, **more: str) -> Generation:
    return [(RECALL_NAME, json.dumps({"id": item_id, **more}))]


def list_tools(request: Request) -> list[str]:
    return [tool["function"]["name"] for tool in request.json.get("tools", [])]


async def begin(talk: CompactingHouse, tools: Sequence[dict[str, Any]] = ()) -> str:
    """A stored conversation whose results were left out; the id of its compaction's response."""
    told: dict[str, Any] = {"tools": list(tools)} if tools else {}
    first = await talk.house.make(input=[user("Look at all parts."), *work(6), user("Go on.")], **told)
    compacted = await talk.house.make(input=[TRIGGER], previous_response_id=first["id"], **told, **SUMMARISE)
    assert "fc_1r" in [each["id"] for each in read_pass(compacted)["removed"]]
    made: str = compacted["id"]
    return made


def test_a_model_fetches_what_was_left_out_and_goes_on(tmp_path: Path) -> None:
    """Design: what can be brought back is brought back; here by the model itself."""
    model = Model()

    async def story(talk: CompactingHouse) -> None:
        before = await begin(talk, [READ_FILE])
        assert RECALL_NAME not in list_tools(model.rounds[-1])
        for stream in (False, True):
            model.answers = [ask_for("fc_1r", query="limit is in"), "It is in module 1.", "Yes."]
            made = await talk.house.make(
                stream=stream, input="Where is the limit?", previous_response_id=before, tools=[READ_FILE]
            )
            assert [item["type"] for item in made["output"]] == ["mcp_call", "message"]
            recalled = made["output"][0]
            assert (recalled["server_label"], recalled["name"]) == ("antiphon", "recall")
            assert (recalled["status"], recalled["error"]) == ("completed", None)
            assert name_path(1) in recalled["output"]
            assert list_codes(made) == []
            first, second = model.rounds[-2:]
            assert list_tools(first) == list_tools(second) == ["read_file", RECALL_NAME]
            assert second.json["messages"][: len(first.json["messages"])] == first.json["messages"]
            # The next round tells of the call as this one did.
            await talk.house.make(input="Sure?", previous_response_id=made["id"], tools=[READ_FILE])
            after = model.rounds[-1].json["messages"]
            assert after[: len(second.json["messages"])] == second.json["messages"]

    run(tmp_path, model, story, compaction=RECALLS)


def test_it_is_offered_in_the_very_response_that_was_compacted(tmp_path: Path) -> None:
    """Ours: the prompt begins anew there, and later rounds begin with the same tools."""
    model = Model()

    async def story(talk: CompactingHouse) -> None:
        first = await talk.house.make(input=[user("Look at all parts."), *work(6), user("Go on.")])
        model.answers = [ask_for("fc_2r", query="limit is in"), "Done.", "Yes."]
        made = await talk.house.make(
            input="Where is the limit?",
            previous_response_id=first["id"],
            context_management=[{"type": "compaction", "compact_threshold": 1_000}],
            **SUMMARISE,
        )
        assert [item["type"] for item in made["output"]] == ["compaction", "mcp_call", "message"]
        assert name_path(2) in made["output"][1]["output"]
        await talk.house.make(input="Sure?", previous_response_id=made["id"])
        assert [list_tools(request) for request in model.rounds[-3:]] == [[RECALL_NAME]] * 3

    run(tmp_path, model, story, compaction=RECALLS)


def test_a_client_that_holds_its_history_may_have_its_own_items_recalled_and_no_others(
    tmp_path: Path,
) -> None:
    """Ours: the seal says what the conversation was; another one of the same tenant stays out."""
    model = Model()

    async def story(talk: CompactingHouse) -> None:
        other = await talk.house.make(input=[user("Something else.", id="msg_other")])
        before = await begin(talk)
        item = (await talk.house.get(f"/v1/responses/{before}"))["output"][0]
        for item_id, status in (
            ("fc_1r", "completed"),
            ("msg_other", "failed"),
            (other["output"][0]["id"], "failed"),
        ):
            model.answers = [ask_for(item_id), "Ok."]
            made = await talk.house.make(input=[item, user("Where is the limit?")])
            assert (made["output"][0]["type"], made["output"][0]["status"]) == ("mcp_call", status)
        assert "no item" in made["output"][0]["error"]["message"]

    run(tmp_path, model, story, compaction=RECALLS)


def test_without_the_setting_or_a_compaction_nothing_is_offered(tmp_path: Path) -> None:
    """Ours: with no compaction the model server is sent the same bytes."""
    model = Model()

    async def story(talk: CompactingHouse) -> None:
        before = await begin(talk)
        await talk.house.make(input="And?", previous_response_id=before)
        assert [list_tools(request) for request in model.rounds] == [[], []]

    run(tmp_path, model, story)


def test_a_client_s_own_tool_of_that_name_stays_the_only_one(tmp_path: Path) -> None:
    """Ours: its calls go to the client, and a warning says so."""
    model = Model()
    own = {"type": "function", "name": "recall", "parameters": {"type": "object", "properties": {}}}

    async def story(talk: CompactingHouse) -> None:
        before = await begin(talk)
        model.answers = [[("recall", "{}")]]
        made = await talk.house.make(input="And?", previous_response_id=before, tools=[own])
        assert [item["type"] for item in made["output"]] == ["function_call"]
        assert list_codes(made) == ["tools_left_out"]
        assert list_tools(model.rounds[-1]) == ["recall"]

    run(tmp_path, model, story, compaction=RECALLS)


def test_the_window_report_tells_of_the_tool_and_of_what_each_item_became(tmp_path: Path) -> None:
    """Ours: the prompt that the report tells is the one that was sent."""
    model = Model()

    async def story(talk: CompactingHouse) -> None:
        before = await begin(talk)
        made = await talk.house.make(input="And?", previous_response_id=before)
        report = await talk.house.get(f"/v1/responses/{made['id']}/window")
        assert report["messages"] == model.rounds[-1].json["messages"]
        assert [part["kind"] for part in report["parts"]] == ["tools"]
        rows = {row["id"]: row for row in report["items"]}
        assert (rows["fc_1r"]["shown"], rows["fc_1r"]["reason"], rows["fc_1r"]["rung"]) == (
            False,
            "compacted",
            "summary",
        )
        assert rows["fc_1r"]["removed_tokens"] > 100
        (compaction,) = [row for row in report["items"] if row["type"] == "compaction"]
        assert (compaction["shown"], compaction["rung"]) == (True, "summary")
        shown = sum(row["tokens"] for row in report["items"]) + sum(
            part["tokens"] for part in report["parts"]
        )
        assert shown == report["input_tokens"]["reported"] or not report["input_tokens"]["exact"]

    run(tmp_path, model, story, compaction=RECALLS)
