"""The window report: every item of a path in order, shown or not, with tokens that add up."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.scripted import ScriptedBackend
from antiphon.context import Profile
from antiphon.context.rows import Row, Rung
from antiphon.context.window_report import WindowReport, WindowTokens, find_reason
from antiphon.engine.catalog import Target
from antiphon.engine.counting import TokenCounter
from antiphon.engine.settings import Settings, StoredOutcome, StoredUsage
from antiphon.engine.tokenizers import Tokenizer
from antiphon.engine.window_report import ITEMS_COUNTED, build_window_report
from antiphon.protocol.items import Item, decode_stored_item
from antiphon.protocol.tools import FunctionTool
from antiphon.sessions import Node
from antiphon.store import Record

RULES = "Answer in one word."


class MuteBackend(ScriptedBackend):
    """A server that cannot count; its transcript is that of a chat server."""

    transcribe = staticmethod(transcribe)

    async def count_tokens(self, ask: Ask) -> int | None:
        return None


def say(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm hm"}]}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}"}
CUT = {**CALL, "id": "fc_2", "call_id": "c2", "status": "incomplete"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "a red door"}
TOOLS = {"type": "additional_tools", "tools": []}


def encode(*items: dict[str, Any]) -> bytes:
    return msgspec.json.encode(list(items))


def make_path() -> list[Node]:
    return [
        Node(
            id="resp_aa",
            parent=None,
            input=encode(say("developer", "Be kind."), say("user", "What is there?")),
            output=encode(THOUGHT, CALL, CUT),
        ),
        Node(id="resp_bb", parent="resp_aa", input=encode(OUTPUT, say("user", "And then?"))),
    ]


def make_record(outcome: StoredOutcome, path: list[Node]) -> Record:
    tip = path[-1]
    return Record(
        id=tip.id,
        parent=tip.parent,
        input=tip.input,
        output=encode(say("assistant", "Never reported.")),
        tenant="t",
        created_at=1,
        settings=msgspec.json.encode(Settings(model="alias")),
        instructions=RULES.encode(),
        outcome=msgspec.json.encode(outcome),
    )


def make_system(lead: str) -> str:
    return "\n\n".join(text for text in ("House rules.", RULES, lead) if text)


def render(path: list[Node], target: Target, dropped: frozenset[str]) -> Ask:
    """What an engine would send: half a call is not shown, nor what was dropped."""
    raws = [
        raw
        for node in path
        for array in (node.input, b"[]" if node is path[-1] else node.output)
        for raw in msgspec.json.decode(array, type=list[msgspec.Raw])
    ]
    items = [decode_stored_item(raw) for raw in raws]
    shown = [
        item
        for item in items
        if getattr(item.value, "status", None) != "incomplete"
        and getattr(item.value, "id", None) not in dropped
    ]
    return render_items(shown, target)


def render_items(shown: list[Item], target: Target) -> Ask:
    segment = target.backend.transcribe(shown, target.profile, at_start=True)
    return Ask(
        model=target.model,
        profile=target.profile,
        system=make_system(segment.lead),
        transcript=[segment.body],
        tools=[FunctionTool(name="look", description="Look around.", parameters={})],
    )


def report(
    target: Target,
    outcome: StoredOutcome | None = None,
    path: list[Node] | None = None,
    *,
    output: bytes | None = None,
    **more: Any,
) -> WindowReport:
    outcome = outcome or StoredOutcome()
    path = path or make_path()
    counter = TokenCounter(lambda: Tokenizer("words", lambda text: len(text.split()), limit_chars=10_000))
    if "prompt" in more:
        ask = render_items([row.item for row in more["prompt"]], target)
    else:
        ask = render(path, target, frozenset(item_id for item_id, _, _ in outcome.dropped))
    if output is not None:
        path = [*path[:-1], msgspec.structs.replace(path[-1], output=output)]
    try:
        return asyncio.run(
            build_window_report(
                make_record(outcome, path),
                path,
                ask=ask,
                target=target,
                counter=counter,
                make_system=make_system,
                **more,
            )
        )
    finally:
        counter.close()


def make_target(backend: ScriptedBackend, **traits: Any) -> Target:
    return Target(backend, "qwen3", Profile(window_tokens=4_096, **traits), "House rules.")


def total(found: WindowReport) -> int:
    return sum(part.tokens for part in found.parts) + sum(item.tokens for item in found.items)


def test_every_item_is_listed_in_order_with_the_response_it_came_with() -> None:
    """Ours: what the model saw, item by item; the response's own output is no part of it."""
    found = report(make_target(MuteBackend(), reasoning_field="none"))
    assert [(row.id, row.type, row.node) for row in found.items] == [
        ("msg_aa0000", "message", "resp_aa"),
        ("msg_aa0001", "message", "resp_aa"),
        ("rs_1", "reasoning", "resp_aa"),
        ("fc_1", "function_call", "resp_aa"),
        ("fc_2", "function_call", "resp_aa"),
        ("fc_bb0000", "function_call_output", "resp_bb"),
        ("msg_bb0001", "message", "resp_bb"),
    ]
    assert [row.role for row in found.items if row.type == "message"] == ["developer", "user", "user"]
    assert [(row.shown, row.reason) for row in found.items if not row.shown] == [
        (False, "reasoning_not_sent"),
        (False, "unfinished_call"),
    ]
    assert all((row.tokens > 0) == row.shown for row in found.items)
    assert [part.kind for part in found.parts] == ["tools", "server_prompt", "instructions"]
    assert (found.response_id, found.model, found.window_tokens) == ("resp_bb", "alias", 4_096)


def test_the_messages_are_the_bytes_that_were_sent() -> None:
    """Ours: the dialect's own form, nothing rewritten."""
    target = make_target(MuteBackend())
    found = report(target)
    ask = render(make_path(), target, frozenset())
    assert bytes(found.messages) == b"[" + ask.transcript[0] + b"]"
    assert found.system == "House rules.\n\nAnswer in one word.\n\nBe kind."
    msgspec.json.decode(msgspec.json.encode(found))


def test_the_backends_tokenizer_counts_each_item_where_it_can() -> None:
    """The scripted model: a message costs 4 tokens and its words, a call its name too; reasoning costs nothing."""
    found = report(make_target(ScriptedBackend()))
    assert found.counted_by == "backend"
    assert found.input_tokens == WindowTokens(reported=None, counted=total(found), exact=True)
    costs = {row.id: row.tokens for row in found.items}
    # The opening's three tokens are spread over all of them.
    assert costs["msg_aa0001"] == pytest.approx(8, abs=1)
    assert costs["fc_1"] == pytest.approx(7, abs=1)
    assert costs["fc_bb0000"] == pytest.approx(7, abs=1)
    assert costs["rs_1"] == 0


def test_else_estimates_are_scaled_to_what_was_reported() -> None:
    """Ours: the rows add up to the number that the client was told."""
    outcome = StoredOutcome(usage=StoredUsage(90, 5))
    found = report(make_target(MuteBackend()), outcome)
    assert found.counted_by == "estimate"
    assert found.input_tokens.reported == total(found) == 90
    assert not found.input_tokens.exact


def test_a_reported_count_that_is_of_something_else_is_not_believed() -> None:
    """Ours: a server that cut the prompt, or a response of several generations, counted another prompt."""
    found = report(make_target(MuteBackend()), StoredOutcome(usage=StoredUsage(90_000, 5)))
    assert found.input_tokens.reported == 90_000
    assert total(found) == found.input_tokens.counted < 200


def test_what_was_dropped_is_told_with_its_warning() -> None:
    """Ours: truncation is never silent."""
    outcome = StoredOutcome(
        dropped=[("rs_1", "reasoning", 5), ("fc_1", "function_call", 9)],
        warnings=[("history_truncated", "Some.")],
    )
    found = report(make_target(MuteBackend()), outcome)
    assert [row.id for row in found.items if row.reason == "dropped"] == ["rs_1", "fc_1"]
    assert [(item.id, item.tokens) for item in found.dropped] == [("rs_1", 5), ("fc_1", 9)]
    assert found.warnings[0].code == "history_truncated"


def test_reasons_and_contents_can_come_from_outside() -> None:
    """Ours: a path that was mended, and files that are sent as text."""

    async def resolve(items: list[Item]) -> list[Item]:
        return items

    found = report(make_target(MuteBackend()), reasons={"msg_aa0001": "pair_deleted"}, resolve=resolve)
    assert [row.id for row in found.items if row.reason == "pair_deleted"] == ["msg_aa0001"]


def test_a_long_path_is_estimated_even_where_the_backend_counts() -> None:
    """Ours: a report costs the model server a bounded number of counts; the total is still its own."""
    path = [
        Node(id="resp_aa", parent=None, input=encode(*[say("user", "one two")] * (ITEMS_COUNTED + 1))),
    ]
    found = report(make_target(ScriptedBackend()), path=path)
    assert (found.counted_by, found.input_tokens.exact) == ("estimate", True)
    assert total(found) == found.input_tokens.counted


# What a compaction did

SEALED = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2VhbA"}
SUMMARY = say("user", "They looked at a door.")
LONG_OUTPUT = {**OUTPUT, "id": "fco_1", "output": "a red door " * 30}
ELIDED = {**LONG_OUTPUT, "output": "[left out: fco_1]"}


def make_row(item: dict[str, Any], item_id: str, node: str = "resp_aa", replaced: Rung | None = None) -> Row:
    raw = msgspec.json.encode(item)
    return Row(id=item_id, item=decode_stored_item(raw), node=node, replaced=replaced)


def make_compacted_path() -> list[Node]:
    """A question, a call with its long result, a compaction of that, and one question more."""
    return [
        Node(
            id="resp_aa",
            parent=None,
            input=encode(say("developer", "Be kind."), say("user", "What is there?")),
            output=encode(CALL),
        ),
        Node(id="resp_bb", parent="resp_aa", input=encode(LONG_OUTPUT), output=encode(SEALED)),
        Node(id="resp_cc", parent="resp_bb", input=encode(say("user", "And then?"))),
    ]


def make_summary_prompt() -> list[Row]:
    """The first question is kept as it was; what stands for the rest is one message."""
    return [
        make_row(say("developer", "Be kind."), "msg_aa0000"),
        make_row(say("user", "What is there?"), "msg_aa0001"),
        make_row(SUMMARY, "cmp_1", "resp_bb", "summary"),
        make_row(say("user", "And then?"), "msg_cc0000", "resp_cc"),
    ]


SUMMARISED: dict[str, Rung] = dict.fromkeys(("msg_aa0001", "fc_1", "fco_1"), "summary")


@pytest.mark.parametrize("backend", [ScriptedBackend, MuteBackend])
def test_what_a_summary_stands_for_is_told_with_what_that_freed(backend: type[ScriptedBackend]) -> None:
    """Design, the window: what a plan removes is listed; what it kept as it was is shown, and no removal."""
    found = report(
        make_target(backend()),
        path=make_compacted_path(),
        superseded=SUMMARISED,
        prompt=make_summary_prompt(),
    )
    assert [(row.id, row.shown, row.reason, row.rung) for row in found.items] == [
        ("msg_aa0000", True, msgspec.UNSET, msgspec.UNSET),
        ("msg_aa0001", True, msgspec.UNSET, msgspec.UNSET),
        ("fc_1", False, "compacted", "summary"),
        ("fco_1", False, "compacted", "summary"),
        ("cmp_1", True, msgspec.UNSET, "summary"),
        ("msg_cc0000", True, msgspec.UNSET, msgspec.UNSET),
    ]
    rows = {row.id: row for row in found.items}
    assert (rows["cmp_1"].type, rows["cmp_1"].role) == ("compaction", msgspec.UNSET)
    assert all((row.tokens > 0) == row.shown for row in found.items)
    freed = rows["fco_1"].removed_tokens
    assert isinstance(freed, int)
    assert freed >= 90
    assert [row.id for row in found.items if row.removed_tokens is not msgspec.UNSET] == ["fc_1", "fco_1"]
    assert total(found) == found.input_tokens.counted


def test_what_is_shown_shortened_names_the_rung_and_has_the_tokens_of_what_is_shown() -> None:
    """Ours: a compaction without a summary is shown by the items that it holds."""
    prompt = [
        make_row(say("developer", "Be kind."), "msg_aa0000"),
        make_row(say("user", "What is there?"), "msg_aa0001"),
        make_row(CALL, "fc_1"),
        make_row(ELIDED, "fco_1", "resp_bb", "elide"),
        make_row(say("user", "And then?"), "msg_cc0000", "resp_cc"),
    ]
    found = report(
        make_target(ScriptedBackend()),
        path=make_compacted_path(),
        superseded=SUMMARISED,
        replaced={"fco_1": "elide"},
        prompt=prompt,
    )
    rows = {row.id: row for row in found.items}
    assert (rows["fco_1"].shown, rows["fco_1"].rung, rows["fco_1"].reason) == (True, "elide", msgspec.UNSET)
    assert 0 < rows["fco_1"].tokens < 15
    freed = rows["fco_1"].removed_tokens
    assert isinstance(freed, int)
    assert freed >= 80
    assert (rows["cmp_1"].shown, rows["cmp_1"].reason, rows["cmp_1"].tokens) == (False, "opened", 0)
    assert (rows["fc_1"].shown, rows["fc_1"].rung) == (True, msgspec.UNSET)
    assert total(found) == found.input_tokens.counted


def test_what_a_compaction_brought_along_stands_before_it() -> None:
    """Ours: a client that holds its history sends items that no path of this server has."""
    path = [Node(id="resp_cc", parent=None, input=encode(SEALED, say("user", "And then?")))]
    prompt = [
        make_row(say("user", "What is there?"), "msg_elsewhere", ""),
        make_row(SUMMARY, "cmp_1", "resp_cc", "summary"),
        make_row(ELIDED, "fco_1", "resp_bb", "elide"),
        make_row(say("user", "And then?"), "msg_cc0001", "resp_cc"),
    ]
    found = report(make_target(ScriptedBackend()), path=path, prompt=prompt)
    assert [(row.id, row.node, row.shown, row.rung) for row in found.items] == [
        ("msg_elsewhere", "", True, msgspec.UNSET),
        ("fco_1", "resp_bb", True, "elide"),
        ("cmp_1", "resp_cc", True, "summary"),
        ("msg_cc0001", "resp_cc", True, msgspec.UNSET),
    ]
    assert total(found) == found.input_tokens.counted


def test_a_compaction_of_the_response_s_own_stands_at_the_end() -> None:
    """Ours: a response that was compacted before it was answered was asked with its own compaction."""
    path = [
        *make_compacted_path()[:2],
        Node(id="resp_cc", parent="resp_bb", input=encode(say("user", "So?"))),
    ]
    own = {**SEALED, "id": "cmp_2"}
    prompt = [
        make_row(say("developer", "Be kind."), "msg_aa0000"),
        make_row(SUMMARY, "cmp_2", "resp_cc", "summary"),
        make_row(say("user", "So?"), "msg_cc0000", "resp_cc"),
    ]
    superseded = {**SUMMARISED, "cmp_1": "summary", "msg_cc0000": "summary"}
    found = report(
        make_target(ScriptedBackend()),
        path=path,
        output=encode(own, say("assistant", "Well.")),
        superseded=superseded,
        prompt=prompt,
    )
    assert [(row.id, row.shown) for row in found.items] == [
        ("msg_aa0000", True),
        ("msg_aa0001", False),
        ("fc_1", False),
        ("fco_1", False),
        ("cmp_1", False),
        ("msg_cc0000", True),
        ("cmp_2", True),
    ]


def test_a_half_pair_that_the_prompt_does_not_hold_was_left_out() -> None:
    """Ours: a path that things were deleted from is mended; the report says so."""
    prompt = [
        make_row(say("developer", "Be kind."), "msg_aa0000"),
        make_row(say("user", "What is there?"), "msg_aa0001"),
        make_row(say("user", "And then?"), "msg_bb0001", "resp_bb"),
    ]
    found = report(make_target(ScriptedBackend(), reasoning_field="none"), prompt=prompt)
    assert {row.id: row.reason for row in found.items if not row.shown} == {
        "rs_1": "reasoning_not_sent",
        "fc_1": "pair_deleted",
        "fc_2": "unfinished_call",
        "fc_bb0000": "pair_deleted",
    }


def test_without_the_prompt_s_rows_the_rungs_are_told_all_the_same() -> None:
    """Ours: what stands for an item, and what stands in its place, can be told by ids alone."""
    path = make_path()
    shown = [*path[:-1], Node(id="resp_bb", parent="resp_aa", input=encode(say("user", "And then?")))]
    ask = render(shown, make_target(MuteBackend()), frozenset())
    counter = TokenCounter(lambda: Tokenizer("words", lambda text: len(text.split()), limit_chars=10_000))
    try:
        found = asyncio.run(
            build_window_report(
                make_record(StoredOutcome(), path),
                path,
                ask=ask,
                target=make_target(MuteBackend()),
                counter=counter,
                make_system=make_system,
                superseded={"fc_bb0000": "summary", "msg_bb0001": "summary"},
                replaced={"msg_bb0001": "cut"},
            )
        )
    finally:
        counter.close()
    told = {row.id: (row.shown, row.reason, row.rung) for row in found.items if row.rung is not msgspec.UNSET}
    assert told == {
        "fc_bb0000": (False, "compacted", "summary"),
        "msg_bb0001": (True, msgspec.UNSET, "cut"),
    }


@pytest.mark.parametrize(
    ("item", "dropped", "transcribed", "reason"),
    [
        (say("user", "a"), False, True, None),
        (say("user", "a"), True, True, "dropped"),
        (CUT, False, True, "unfinished_call"),
        (THOUGHT, False, False, "reasoning_not_sent"),
        (TOOLS, False, False, "told_as_tools"),
        ({"type": "configuration_update"}, False, False, "told_as_setting"),
        (say("user", ""), False, False, "not_transcribed"),
    ],
)
def test_what_is_not_shown_says_why(
    item: dict[str, Any], dropped: bool, transcribed: bool, reason: str | None
) -> None:
    """Ours: each way in which an item can be missing has its own word."""
    found = find_reason(
        decode_stored_item(msgspec.json.encode(item)), dropped=dropped, transcribed=transcribed
    )
    assert found == reason
