"""The window report: every item of a path in order, shown or not, with tokens that add up."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.scripted import ScriptedBackend
from antiphon.context import Profile
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
    **more: Any,
) -> WindowReport:
    outcome = outcome or StoredOutcome()
    path = path or make_path()
    counter = TokenCounter(lambda: Tokenizer("words", lambda text: len(text.split()), limit_chars=10_000))
    ask = render(path, target, frozenset(item_id for item_id, _, _ in outcome.dropped))
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
