"""What is left out of a path that does not fit: groups, plans, and their properties."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.context.truncation import (
    Entry,
    count_leading,
    find_newest,
    group_items,
    make_entries,
    plan_truncation,
    reserve_tokens,
)
from antiphon.protocol.items import Item, decode_stored_item, get_call_id, is_call, is_call_output


def item(**fields: Any) -> Item:
    return decode_stored_item(msgspec.json.encode(fields))


def say(role: str, text: str = "x") -> Item:
    return item(type="message", role=role, content=text)


def call(call_id: str, **more: Any) -> Item:
    return item(type="function_call", call_id=call_id, name="f", arguments="{}", **more)


def output(call_id: str) -> Item:
    return item(type="function_call_output", call_id=call_id, output="ok")


THINK = item(type="reasoning", summary=[])
USER, ANSWER = say("user"), say("assistant")


# Groups


@pytest.mark.parametrize(
    ("items", "groups"),
    [
        ([USER, ANSWER, USER], [0, 1, 2]),
        ([USER, call("a"), output("a"), ANSWER], [0, 1, 1, 3]),
        ([THINK, ANSWER, THINK, call("a"), output("a")], [0, 0, 2, 2, 2]),
        ([THINK, call("a"), call("b"), output("b"), output("a"), USER], [0, 0, 0, 0, 0, 5]),
        ([ANSWER, call("a"), output("a")], [0, 0, 0]),
        ([call("a"), USER, output("a"), output("a"), USER], [0, 1, 0, 0, 4]),
        ([THINK, USER], [0, 1]),
        ([output("lost"), USER], [0, 1]),
    ],
)
def test_what_belongs_together_is_one_group(items: list[Item], groups: list[int]) -> None:
    """A call and its outputs; reasoning and what follows it; calls at once; a text and its call."""
    assert group_items(items) == groups


def test_an_approval_goes_with_what_it_approves() -> None:
    """MCP approvals are paired by the request's id."""
    asked = item(type="mcp_approval_request", id="mcpr_1", server_label="s", name="f", arguments="{}")
    approved = item(type="mcp_approval_response", approval_request_id="mcpr_1", approve=True)
    assert group_items([asked, USER, approved]) == [0, 1, 0]
    assert not make_entries([asked, USER, USER], [1, 1, 1], newest=2)[0].droppable


def list_droppable(items: list[Item], newest: int) -> list[bool]:
    return [entry.droppable for entry in make_entries(items, [1] * len(items), newest=newest)]


def test_leading_system_text_and_what_is_asked_now_stay() -> None:
    """Ours: later system and developer messages are history like any other."""
    items = [say("system"), say("developer"), USER, say("developer"), ANSWER, USER]
    assert count_leading(items) == 2
    assert list_droppable(items, newest=5) == [False, False, True, True, True, False]


def test_a_call_that_waits_for_its_output_stays_with_its_reasoning() -> None:
    """Ours: an unfinished group never goes; nor does one that the request finishes."""
    assert list_droppable([USER, THINK, call("a"), USER], newest=4) == [True, False, False, True]
    items = [USER, THINK, call("a"), call("b"), output("b"), output("a")]
    assert list_droppable(items, newest=5) == [True, False, False, False, False, False]


def test_an_item_that_stands_for_more_than_itself_stays() -> None:
    """Ours: a compaction item holds all that came before it."""
    sealed = item(type="compaction", encrypted_content="x")
    tools = item(type="additional_tools", tools=[])
    assert list_droppable([sealed, USER, tools, ANSWER, USER], newest=4) == [False, True, False, True, False]


def test_of_a_whole_history_in_one_request_only_its_end_is_asked_now() -> None:
    """Ours: a client that keeps its own history is helped too."""
    assert find_newest([USER, ANSWER, USER]) == 2
    assert find_newest([USER, call("a"), output("a")]) == 2
    assert find_newest([say("developer"), USER]) == 0
    assert find_newest([USER, ANSWER]) == 2


# The reserve


@pytest.mark.parametrize(
    ("limit", "exact", "holds", "reserve"),
    [
        (None, True, False, 1000),
        (None, False, False, 1000),
        (2000, True, False, 2000),
        (9000, True, False, 4000),
        (9000, True, True, 9000),
        (16, True, False, 16),
        (16, False, False, 500),
    ],
)
def test_room_is_kept_for_the_answer(limit: int | None, exact: bool, holds: bool, reserve: int) -> None:
    """Ours: a tenth of the window, or what the request asks for, within reason; more where the count may err."""
    assert reserve_tokens(10_000, limit, exact=exact, holds_output=holds) == reserve


# Plans


def chat(*costs: int) -> list[Entry]:
    return [Entry(cost, group, droppable=True) for group, cost in enumerate(costs)]


def test_the_oldest_go_in_steps() -> None:
    """Ours: three of four go where two would do, since the line stands behind the third."""
    plan = plan_truncation(chat(*[10] * 20), 175, 30)
    assert (plan.dropped, plan.kept, plan.tokens) == ((0, 1, 2), tuple(range(3, 20)), 170)
    assert plan_truncation(chat(*[10] * 20), 200, 30).dropped == ()


def test_the_rounds_between_two_steps_begin_alike() -> None:
    """Ours: each change of the start costs the model server's prompt cache."""
    starts = [plan_truncation(chat(*[10] * length), 1000, 120).kept[0] for length in range(100, 200)]
    assert starts == sorted(starts)
    changes = sum(now != before for before, now in pairwise(starts))
    assert changes <= 100 * 10 / 120 + 1


ROUND = st.sampled_from(["chat", "tool", "parallel", "late", "open", "system"])


def build_path(rounds: list[str]) -> list[Item]:
    """A path of rounds of several shapes; late outputs come at the end."""
    items: list[Item] = []
    late: list[Item] = []
    for at, shape in enumerate(rounds):
        items.append(USER)
        if shape == "tool":
            items += [THINK, call(f"t{at}"), output(f"t{at}")]
        elif shape == "parallel":
            items += [call(f"p{at}"), call(f"q{at}"), output(f"q{at}"), output(f"p{at}")]
        elif shape == "late":
            items.append(call(f"l{at}"))
            late.append(output(f"l{at}"))
        elif shape == "open":
            items.append(call(f"o{at}"))
        elif shape == "system":
            items.append(say("system"))
        items.append(ANSWER)
    return [*items, *late]


@st.composite
def paths(draw: st.DrawFn) -> tuple[list[Item], list[int], int]:
    leading = draw(st.integers(0, 2))
    items = [say("system")] * leading + build_path(draw(st.lists(ROUND, max_size=14)))
    costs = draw(st.lists(st.integers(0, 90), min_size=len(items), max_size=len(items)))
    newest = draw(st.integers(0, len(items)))
    return items, costs, newest


@given(paths(), st.integers(-50, 1500), st.integers(1, 400))
def test_a_plan_keeps_its_promises(path: tuple[list[Item], list[int], int], room: int, step: int) -> None:
    """Ours: never over unless nothing more can go, order kept, pairs kept, idempotent, the same every time."""
    items, costs, newest = path
    entries = make_entries(items, costs, newest=newest)
    plan = plan_truncation(entries, room, step)
    assert plan == plan_truncation(entries, room, step)
    assert sorted((*plan.kept, *plan.dropped)) == list(range(len(items)))
    assert list(plan.kept) == sorted(plan.kept)
    assert plan.tokens == sum(costs[at] for at in plan.kept)
    assert plan.tokens <= room or not any(entries[at].droppable for at in plan.kept)
    assert all(entries[at].droppable for at in plan.dropped)
    if sum(costs) <= room:
        assert plan.dropped == ()
    kept = {get_call_id(items[at]) for at in plan.kept if is_call(items[at])}
    gone = {get_call_id(items[at]) for at in plan.dropped if is_call(items[at])}
    assert {get_call_id(items[at]) for at in plan.kept if is_call_output(items[at])} <= kept
    assert {get_call_id(items[at]) for at in plan.dropped if is_call_output(items[at])} <= gone
    again = plan_truncation([entries[at] for at in plan.kept], room, step)
    assert again.dropped == ()


@given(paths(), st.integers(0, 1500), st.integers(1, 400))
def test_of_the_groups_the_oldest_go(path: tuple[list[Item], list[int], int], room: int, step: int) -> None:
    """Ours: no group is dropped while an older one that may go is kept."""
    items, costs, newest = path
    entries = make_entries(items, costs, newest=newest)
    plan = plan_truncation(entries, room, step)
    gone = {entries[at].group for at in plan.dropped}
    left = {entries[at].group for at in plan.kept if entries[at].droppable}
    assert not gone or not left or max(gone) < min(left)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=80), st.integers(60, 600), st.integers(1, 200))
def test_a_longer_path_never_brings_dropped_history_back(costs: list[int], room: int, step: int) -> None:
    """Ours: the start only moves on, and only to a line."""
    dropped = 0
    for length in range(1, len(costs) + 1):
        plan = plan_truncation(chat(*costs[:length]), room, step)
        assert len(plan.dropped) >= dropped
        dropped = len(plan.dropped)
