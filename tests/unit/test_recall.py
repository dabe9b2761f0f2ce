"""The tool by which a model fetches what a compaction left out: what it finds, how much it tells, who is offered it."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from antiphon.backends import BackendEvent, ItemClosed, ItemEvent
from antiphon.backends.scripted import ScriptedBackend
from antiphon.context import Profile
from antiphon.context.rows import Row
from antiphon.context.sealed_window import SealedNode, SealedWindow
from antiphon.context.toolbox import OfferedTool, Toolbox
from antiphon.engine import Catalog, Services
from antiphon.engine.catalog import Target
from antiphon.engine.hosted_tools import HostedTools
from antiphon.engine.line_search import LINE_CHARACTERS, find_lines
from antiphon.engine.path_rows import PathRows
from antiphon.engine.recall import (
    ANSWER_CHARACTERS,
    ANSWER_MIN_CHARACTERS,
    RECALL_NAME,
    Recall,
    RecallError,
    limit_answer,
    list_recallable,
    offer_recall,
)
from antiphon.protocol.errors import StoreError
from antiphon.protocol.items import decode_stored_item
from antiphon.protocol.requests import CreateRequest
from antiphon.protocol.tools import FunctionTool, McpTool
from antiphon.store import Record
from antiphon.store.memory import MemoryStore
from tests.unit.test_hosted_tools import check_stream

SAID = {"type": "message", "role": "user", "content": "Mend src/parser.py, please."}
CALL = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path":"src/parser.py"}'}
SOURCE = "\n".join([*(f"line {number}" for number in range(40)), "def parse(text):", "    return Error404"])
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": SOURCE}
SEALED = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVk" * 40}
PICTURE = {
    "type": "message",
    "role": "user",
    "content": [{"type": "input_image", "image_url": "data:image/png;base64," + "A" * 400}],
}


def make_rows(*items: tuple[str, dict[str, Any]]) -> list[Row]:
    return [
        Row(id=item_id, item=decode_stored_item(msgspec.json.encode(item)), node="resp_a")
        for item_id, item in items
    ]


ROWS = make_rows(("m1", SAID), ("fc1", CALL), ("out1", OUTPUT), ("rs_1", SEALED), ("m2", PICTURE))


async def load_rows() -> Sequence[Row]:
    return ROWS


def ask(arguments: dict[str, Any] | str, recall: Recall | None = None) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return asyncio.run((recall or Recall(load_rows)).answer(text))


def fail(arguments: dict[str, Any] | str) -> str:
    with pytest.raises(RecallError) as raised:
        ask(arguments)
    return str(raised.value)


def test_an_item_comes_back_word_for_word_under_its_id() -> None:
    """Design: what can be brought back is brought back."""
    assert ask({"id": "out1"}) == f"[out1]\nresult: {SOURCE}"
    assert ask({"id": "m1", "to": None, "query": ""}) == "[m1]\nuser: Mend src/parser.py, please."


def test_a_range_comes_back_in_its_order() -> None:
    """Ours: a compaction names what it left out as ranges too."""
    assert ask({"id": "m1", "to": "out1"}) == (
        "[m1]\nuser: Mend src/parser.py, please.\n\n"
        '[fc1]\nassistant calls read: {"path":"src/parser.py"}\n\n'
        f"[out1]\nresult: {SOURCE}"
    )


def test_only_lines_that_are_looked_for_come_back_with_those_around_them() -> None:
    """Ours: a line of a long result costs no more than the line."""
    assert ask({"id": "m1", "to": "m2", "query": "error404"}) == (
        "[out1]\n[...]\nline 39\ndef parse(text):\n    return Error404"
    )
    assert ask({"id": "m1", "to": "m2", "query": "nowhere"}) == "Nothing there contains 'nowhere'."


def test_a_long_answer_is_cut_and_can_be_gone_on_with() -> None:
    """Ours: bounded, told, and whole in the end."""
    recall = Recall(load_rows, max_characters=100)
    whole, offset, parts = ask({"id": "m1", "to": "out1"}), 0, []
    while True:
        told = ask({"id": "m1", "to": "out1", "offset": offset}, recall)
        part, cut, notice = told.partition("\n[Cut here; go on with offset ")
        parts.append(part)
        if not cut:
            break
        assert len(part) == 100
        offset = int(notice.partition(",")[0])
    assert "".join(parts) == whole
    assert "has" in ask({"id": "m1", "offset": 5_000})


@pytest.mark.parametrize(
    ("window_tokens", "characters"),
    [(None, ANSWER_CHARACTERS), (1_000_000, ANSWER_CHARACTERS), (4_096, 1_843), (256, ANSWER_MIN_CHARACTERS)],
)
def test_an_answer_fits_the_window(window_tokens: int | None, characters: int) -> None:
    """Ours: what is fetched must not fill the window that was just emptied."""
    assert limit_answer(window_tokens) == characters


def test_sealed_reasoning_and_images_do_not_become_text() -> None:
    """Ours: no base64 in a prompt."""
    told = ask({"id": "rs_1", "to": "m2"})
    assert "c2VhbGVk" not in told
    assert "AAAA" not in told
    assert "[image]" in told


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"id": "resp_of_another"}, "no item 'resp_of_another' in this conversation"),
        ({"id": "m1", "to": "nowhere"}, "no item 'nowhere'"),
        ({"id": "out1", "to": "m1"}, "exchange `id` and `to`"),
        ({}, "`id`"),
        ({"id": ""}, "`id`"),
        ({"id": "a" * 1_000}, "`id`"),
        ({"id": ["m1"]}, "`id`"),
        ({"id": "m1", "offset": -1}, "`offset`"),
        ("not json", "JSON object"),
        ("[" * 100_000, "JSON object"),
    ],
)
def test_what_cannot_be_fetched_is_told_to_the_model(arguments: Any, part: str) -> None:
    """Ours: a wrong call is an answer that it can mend, never a failed response."""
    assert part in fail(arguments)


def test_of_several_items_with_one_id_the_newest_counts() -> None:
    """Decided: ids of clients are not unique, newest wins."""

    async def load() -> Sequence[Row]:
        return make_rows(("m1", SAID), ("m1", {**SAID, "content": "Newer."}))

    assert ask({"id": "m1"}, Recall(load)) == "[m1]\nuser: Newer."


def test_a_store_that_cannot_be_read_is_told_to_the_model() -> None:
    """Ours: what a failing tool has to say goes into its item."""

    async def load() -> Sequence[Row]:
        raise StoreError

    with pytest.raises(RecallError, match="cannot be read"):
        ask({"id": "m1"}, Recall(load))


def test_the_path_is_read_once_for_a_response() -> None:
    """Ours: many calls cost one read of the path."""
    reads = []

    async def load() -> Sequence[Row]:
        reads.append(1)
        return ROWS

    recall = Recall(load)

    async def run() -> None:
        await recall.answer('{"id":"m1"}')
        await recall.answer('{"id":"out1"}')

    asyncio.run(run())
    assert reads == [1]


# Lines


def test_long_lines_are_shown_around_what_was_found() -> None:
    """Ours: results are often one line of JSON."""
    line = "a" * 5_000 + "needle" + "b" * 5_000
    told = find_lines(line, "NEEDLE")
    assert "needle" in told
    assert len(told) <= LINE_CHARACTERS + 10
    assert told.startswith("[...]")
    assert told.endswith("[...]")


def test_gaps_between_lines_are_marked() -> None:
    """Ours: nobody takes two places for one."""
    text = "\n".join(["x", *["-"] * 9, "x", *["-"] * 9])
    assert find_lines(text, "x") == "x\n-\n-\n[...]\n-\n-\nx\n-\n-\n[...]"
    assert find_lines(text, "y") == ""


# Offering


def make_target(*, speaks_responses: bool = False, **traits: Any) -> Target:
    backend = ScriptedBackend("a")
    backend.speaks_responses = speaks_responses
    return Target(backend, "m", Profile(window_tokens=4_096, **traits))


def offer(
    toolbox: Toolbox, target: Target | None = None, **request: Any
) -> tuple[Recall | None, list[tuple[str, str]]]:
    warnings: list[tuple[str, str]] = []
    made = CreateRequest(model="m", **request)
    return offer_recall(made, toolbox, target or make_target(), load_rows, warnings), warnings


def make_tool(name: str, own_name: str | None = None) -> OfferedTool:
    return OfferedTool(
        name=name, kind="function", function=FunctionTool(name=name), own_name=own_name or name
    )


def test_it_is_offered_beside_other_tools_and_without_any() -> None:
    """Ours: the model may call it whenever it may call at all; no client is handed a call of it."""
    toolbox = Toolbox()
    recall, warnings = offer(toolbox)
    assert recall is not None
    assert (toolbox.choice, RECALL_NAME in toolbox.hidden, warnings) == ("auto", True, [])
    beside = Toolbox(offered=(make_tool("look"),), choice="auto")
    assert offer(beside)[0] is not None
    assert recall.offered.function.name == RECALL_NAME


@pytest.mark.parametrize(
    "toolbox",
    [
        Toolbox(offered=(make_tool("recall"),), choice="auto"),
        Toolbox(offered=(make_tool("notes__recall", "recall"),), choice="auto"),
        Toolbox(offered=(make_tool(RECALL_NAME),), choice="auto"),
        Toolbox(hidden=frozenset({"recall"}), choice="auto"),
        Toolbox(hosted=(McpTool(server_label="antiphon", server_url="http://a.test"),), choice="auto"),
    ],
)
def test_a_tool_of_the_client_s_own_goes_first(toolbox: Toolbox) -> None:
    """Ours: two tools of one name would be mixed up; the client is told."""
    hidden = toolbox.hidden
    recall, warnings = offer(toolbox)
    assert recall is None
    assert toolbox.hidden == hidden
    assert [code for code, _ in warnings] == ["tools_left_out"]
    made = CreateRequest(model="m")
    assert offer_recall(made, toolbox, make_target(), load_rows, warnings) is None
    assert len(warnings) == 1


def test_a_client_that_restricts_its_tools_gets_no_other() -> None:
    """Ours: `none`, `required` and a forced tool mean the client's own."""
    for choice in ("none", "required"):
        toolbox = Toolbox(choice="none")
        assert offer(toolbox, tool_choice=choice) == (None, [])
        assert (toolbox.choice, RECALL_NAME in toolbox.hidden) == ("none", True)
        assert offer(toolbox, tool_choice=choice) == (None, [])
    own = Toolbox(offered=(make_tool(RECALL_NAME),), choice="required")
    assert offer(own, tool_choice="required") == (None, [])
    assert not own.hidden


def test_models_that_call_nothing_and_servers_with_tools_of_their_own_are_not_offered_it() -> None:
    """Ours: offered only where a call of it would be run."""
    assert offer(Toolbox(), make_target(tools="none"))[0] is None
    assert offer(Toolbox(), make_target(speaks_responses=True))[0] is None
    schema = make_target(tools="schema")
    assert offer(Toolbox(), schema)[0] is not None
    assert offer(Toolbox(), schema, top_logprobs=2)[0] is None


# As one of the hosted tools


def run_hosted(*arguments: str, max_calls: int | None = None) -> tuple[HostedTools, list[BackendEvent]]:
    hosted = HostedTools(
        toolbox=Toolbox(),
        remembered=[],
        input_items=[],
        search=None,
        mcp=None,
        max_calls=max_calls,
        take_approval=lambda _: True,
        recall=Recall(load_rows),
    )
    events: list[BackendEvent] = []

    async def run() -> None:
        async with asyncio.timeout(20):
            async for batch in hosted.open():
                events.extend(batch)
            for each in arguments:
                async for batch in hosted.run(RECALL_NAME, each):
                    events.extend(batch)
            await hosted.close()

    asyncio.run(run())
    return hosted, events


def test_a_call_is_an_mcp_call_of_this_server() -> None:
    """Responses API, 4.3: the events of an mcp_call; a client's types know it."""
    hosted, events = run_hosted('{"id":"m1"}')
    check_stream(events)
    assert hosted.offer_known()
    assert [tool.name for tool in hosted.offered] == [RECALL_NAME]
    assert not hosted.has_acted
    closed = [json.loads(event.item) for event in events if isinstance(event, ItemClosed)]
    assert closed == [
        {
            "type": "mcp_call",
            "server_label": "antiphon",
            "name": "recall",
            "approval_request_id": None,
            "arguments": '{"id":"m1"}',
            "output": "[m1]\nuser: Mend src/parser.py, please.",
            "error": None,
            "status": "completed",
        }
    ]


def test_a_call_that_finds_nothing_has_failed_and_says_why() -> None:
    """Ours: the model reads the reason, the response goes on."""
    _, events = run_hosted('{"id":"elsewhere"}')
    check_stream(events)
    assert [event.name for event in events if isinstance(event, ItemEvent)][-1] == "response.mcp_call.failed"
    (closed,) = [json.loads(event.item) for event in events if isinstance(event, ItemClosed)]
    assert (closed["status"], closed["output"]) == ("failed", None)
    assert "no item 'elsewhere'" in closed["error"]["message"]


def test_calls_count_among_those_that_the_client_allows() -> None:
    """Responses API, max_tool_calls: every call that the server runs."""
    hosted, events = run_hosted('{"id":"m1"}', '{"id":"m1"}', max_calls=1)
    assert len([event for event in events if isinstance(event, ItemClosed)]) == 1
    assert hosted.exhausted
    assert hosted.offered == ()
    assert [code for code, _ in hosted.warnings] == ["hosted_call_dropped"]


# What can be fetched


def make_record(node_id: str, text: str, tenant: str = "t") -> Record:
    return Record(
        id=node_id,
        parent=None,
        input=msgspec.json.encode([{**SAID, "content": text}]),
        output=b"[]",
        tenant=tenant,
        created_at=1,
        settings=b"{}",
        outcome=b"{}",
    )


def list_ids(path: PathRows, tenant: str) -> list[str]:
    async def run() -> list[str]:
        store = MemoryStore()
        for record in (make_record("resp_aa", "Older."), make_record("resp_bb", "Newer.")):
            await store.record(record)
        await store.record(make_record("resp_cc", "Elsewhere."))
        services = Services(catalog=Catalog({}, {}), store=store)
        try:
            return [row.id for row in await list_recallable(path, tenant, services)]
        finally:
            await services.close()

    return asyncio.run(run())


def test_what_a_seal_was_made_from_belongs_to_the_conversation() -> None:
    """Ours: a client that holds its history itself sends the compaction alone; other chains stay out."""
    window = SealedWindow(
        id="cmp_1", model="m", nodes=(SealedNode("resp_aa"), SealedNode("resp_gone"), SealedNode("resp_bb"))
    )
    path = PathRows(
        raw=ROWS, rows=[], items=[], new_count=0, superseded=[], windows={"cmp_1": window}, nodes=[]
    )
    own = [row.id for row in ROWS]
    assert list_ids(path, "t") == ["msg_aa0000", "msg_bb0000", *own]
    assert list_ids(path, "another") == own
