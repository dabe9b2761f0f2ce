"""The ladder's plans: what they keep, in which order they take, and their properties over generated histories."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.context.budget import Budget, CompactionLimits, make_budget
from antiphon.context.ladder import LadderPlan, list_selectable, plan_free, plan_summary
from antiphon.context.rows import Mark, Row, add_tokens
from antiphon.protocol.items import Item, Message, decode_stored_item, get_call_id, is_call, is_call_output

IMAGE = {"type": "input_image", "image_url": "https://a.b/c.png"}
IMAGE_TOKENS = 1_400


def item(**fields: Any) -> Item:
    return decode_stored_item(msgspec.json.encode(fields))


def make_row(made: Item, number: int, *, node: str = "resp_1") -> Row:
    """A row that costs about what models count: a token for four bytes, and an image its price."""
    tokens = len(made.raw) // 4 + made.raw.count(b'"input_image"') * IMAGE_TOKENS
    return Row(id=f"it_{number}", item=made, tokens=tokens, node=node)


def make_rows(*items: Item) -> list[Row]:
    return [make_row(made, number) for number, made in enumerate(items)]


def say(role: str, text: str = "go on") -> Item:
    return item(type="message", role=role, content=text)


def call(call_id: str, command: str = "ls", name: str = "exec_command") -> Item:
    arguments = msgspec.json.encode({"cmd": command}).decode()
    return item(type="function_call", call_id=call_id, name=name, arguments=arguments)


def output(call_id: str, text: Any = "ok") -> Item:
    return item(type="function_call_output", call_id=call_id, output=text)


def run(call_id: str, text: Any = "ok", command: str | None = None) -> list[Item]:
    return [call(call_id, command or f"run {call_id}"), output(call_id, text)]


def make(limit: int = 10_000, target: int | None = None, **parts: int) -> Budget:
    shares = {
        "frame_tokens": 0,
        "user_tokens": 2_000,
        "retained_tokens": 3_000,
        "tail_tokens": 1_000,
        "step_tokens": 500,
        "summary_tokens": 300,
        "facts_tokens": 100,
        "index_tokens": 100,
    }
    return Budget(
        limit_tokens=limit, target_tokens=limit if target is None else target, **{**shares, **parts}
    )


def positions(plan: LadderPlan) -> list[int]:
    """Which rows of the history stay, by the numbers in their ids."""
    return [int(row.id.removeprefix("it_")) for row in plan.rows]


def replaced(plan: LadderPlan) -> dict[int, str | None]:
    return {at: row.replaced for at, row in zip(positions(plan), plan.rows, strict=True) if row.replaced}


def text(length: int, mark: str = "x") -> str:
    return (mark + " line of it\n") * (length // 12)


SYSTEM, USER, ANSWER = say("system"), say("user"), say("assistant", "done so far")
THINK = item(type="reasoning", summary=[{"type": "summary_text", "text": "hm"}])
FAILED = "Process exited with code 1\nOutput:\n"


# The free rungs


def test_a_prompt_at_its_target_is_left_alone() -> None:
    """The rows are the very same."""
    rows = make_rows(USER, *run("a", text(4_000)), ANSWER)
    plan = plan_free(rows, make(), {})
    assert plan == LadderPlan(tuple(rows), (), (), add_tokens(rows), True)


def test_what_tells_nothing_goes_first_then_what_is_repeated_then_the_oldest() -> None:
    """Each rung only as far as it is needed."""
    nothing = "No matches found for " + "x" * 280
    rows = make_rows(
        USER,
        *run("a", text(8_000)),
        *run("b", text(8_000), "cat a.py"),
        *run("c", nothing),
        *run("d", text(8_000), "cat a.py"),
        ANSWER,
        USER,
    )
    before = add_tokens(rows)

    def taken(target: int) -> list[tuple[str, str, str]]:
        plan = plan_free(rows, make(target, tail_tokens=100), {})
        assert plan.fits
        return [(removal.id, removal.rung, removal.reason) for removal in plan.removals]

    empty, repeated, old = (
        ("it_6", "elide", "uneventful"),
        ("it_4", "elide", "superseded"),
        ("it_2", "elide", "old"),
    )
    assert taken(before - 20) == [empty]
    assert taken(before - 1_500) == [empty, repeated]
    assert taken(before - 3_500) == [empty, repeated, old]
    assert taken(before - 5_500) == [empty, repeated, old, ("it_8", "elide", "old")]


def test_images_go_after_results_and_the_text_around_them_stays() -> None:
    """The second rung; what a user shows now is not dropped."""
    shown = item(type="message", role="user", content=[{"type": "input_text", "text": "look"}, IMAGE])
    rows = make_rows(shown, *run("a", text(4_000)), ANSWER, shown)
    plan = plan_free(rows, make(2_000, tail_tokens=100), {})
    assert [(removal.id, removal.rung, removal.reason) for removal in plan.removals] == [
        ("it_2", "elide", "old"),
        ("it_0", "drop_images", "image"),
    ]
    assert b"look" in plan.rows[0].item.raw
    assert b"input_image" not in plan.rows[0].item.raw
    assert plan.rows[4] is rows[4]


def test_the_newest_rows_and_what_no_model_has_read_stay_as_they_are() -> None:
    """A result that has just come is for the model to read, however large it is."""
    rows = make_rows(USER, *run("a", text(8_000)), ANSWER, *run("b", text(40_000)))
    plan = plan_free(rows, make(100, tail_tokens=10), {})
    assert replaced(plan) == {2: "elide"}
    assert not plan.fits
    answered = make_rows(USER, *run("a", text(8_000)), *run("b", text(8_000)), ANSWER)
    assert replaced(plan_free(answered, make(100, tail_tokens=3_000), {})) == {2: "elide"}


def test_a_result_that_the_client_keeps_is_not_touched_by_the_free_rungs() -> None:
    """Request key `antiphon.marks`."""
    parts = [{"type": "input_text", "text": text(4_000)}, IMAGE]
    rows = make_rows(USER, *run("a", parts), *run("b", parts), ANSWER, USER)
    assert replaced(plan_free(rows, make(100, tail_tokens=10), {"a": "keep"})) == {4: "elide"}


def test_old_results_go_up_to_a_line_that_stays_for_a_while() -> None:
    """Lines stand every step, counted from the root: the start of what is shown whole moves seldom."""
    items = [USER]
    budget = make(6_000, step_tokens=1_500, tail_tokens=1_000)
    seen: list[list[int]] = []
    for number in range(60):
        items += [*run(f"c{number}", text(1_200)), ANSWER]
        plan = plan_free(make_rows(*items), budget, {})
        assert plan.fits
        seen.append(list(replaced(plan)))
    changes = sum(1 for before, after in pairwise(seen) if before != after)
    total = 60 * 330
    assert changes <= total // 1_500 + 1
    assert all(after[: len(before)] == before for before, after in pairwise(seen))


# With a summary


def test_a_summary_leaves_system_text_user_messages_and_the_newest_groups() -> None:
    """Decision 31 of the design; the rest is told by the summary alone, and listed."""
    rows = make_rows(
        SYSTEM,
        USER,
        *run("a", text(4_000)),
        ANSWER,
        say("developer", "be brief"),
        USER,
        *run("b", text(4_000)),
        ANSWER,
        USER,
        *run("c", text(2_000)),
        ANSWER,
    )
    plan = plan_summary(rows, make(8_000), {})
    assert positions(plan) == [0, 1, 5, 6, 9, 10, 11, 12, 13]
    assert [row.id for row in plan.summarised] == ["it_2", "it_3", "it_4", "it_7", "it_8"]
    assert [(each.id, each.rung, each.reason) for each in plan.removals] == [
        (row.id, "summary", "summarised") for row in plan.summarised
    ]
    assert plan.tokens == add_tokens(plan.rows) + 500
    assert plan.fits


def test_user_messages_beyond_their_budget_go_but_never_the_first_and_the_newest() -> None:
    """The newest of the others stay, as many as have room."""
    said = [say("user", text(2_000, str(number))) for number in range(6)]
    rows = make_rows(*[each for message in said for each in (message, ANSWER)])
    plan = plan_summary(rows, make(user_tokens=1_800, tail_tokens=0), {})
    assert positions(plan) == [0, 8, 10]


def test_a_user_message_goes_where_only_its_budget_has_room_for_it() -> None:
    """Nothing that must stay is cut for it."""
    rows = make_rows(say("system", text(9_000)), USER, ANSWER, say("user", text(4_000)), ANSWER, USER)
    plan = plan_summary(rows, make(4_000, tail_tokens=0), {})
    assert positions(plan) == [0, 1, 5]
    assert plan.fits


def test_tools_settings_and_unfinished_groups_stay() -> None:
    """What is asked now, and what the window is made with, is not for a summary."""
    tools = item(type="additional_tools", tools=[])
    settings = item(type="configuration_update", reasoning={"effort": "low"})
    found = [
        item(type="tool_search_call", call_id="t", arguments={}, execution="client"),
        item(type="tool_search_output", call_id="t", tools=[], execution="client"),
    ]
    rows = make_rows(USER, tools, *found, ANSWER, settings, THINK, call("a"), call("b"), output("a"))
    plan = plan_summary(rows, make(tail_tokens=0), {})
    assert positions(plan) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_what_the_summariser_chose_is_kept_whole_and_within_its_budget() -> None:
    """Byte for byte, each with its group; the newest first where not all have room."""
    rows = make_rows(
        USER, THINK, *run("a", text(4_000)), *run("b", text(4_000)), *run("c", text(4_000)), ANSWER
    )
    budget = make(tail_tokens=0, retained_tokens=2_600)
    assert positions(plan_summary(rows, budget, {}, retain=["it_3"])) == [0, 1, 2, 3]
    assert positions(plan_summary(rows, budget, {}, retain={"it_3", "it_5", "it_6"})) == [0, 4, 5, 6, 7]
    assert positions(plan_summary(rows, budget, {"a": "keep"}, retain=())) == [0, 1, 2, 3]
    assert all(row.replaced is None for row in plan_summary(rows, budget, {}, retain=["it_3"]).rows)


def test_a_summariser_may_choose_what_would_go_and_has_room() -> None:
    """What stays anyway is not offered, nor what is too large to stay."""
    rows = make_rows(SYSTEM, USER, *run("a", text(400)), ANSWER, USER, *run("b", text(40_000)), ANSWER, USER)
    assert list_selectable(rows, make(tail_tokens=0, user_tokens=0)) == [
        "it_2",
        "it_3",
        "it_4",
        "it_5",
        "it_8",
    ]


@pytest.mark.parametrize(
    "items",
    [
        [USER, ANSWER, call("a"), call("b"), output("a", text(90_000))],
        [say("user", text(90_000)), ANSWER],
        [USER, ANSWER, say("user", text(90_000))],
        [USER, ANSWER, call("a"), call("b"), output("a", text(60_000)), output("b", text(60_000))],
    ],
)
def test_what_alone_does_not_fit_is_cut(items: list[Item]) -> None:
    """A huge result in an unfinished group, a huge first or newest message."""
    rows = make_rows(*items)
    plan = plan_summary(rows, make(4_000, tail_tokens=0), {})
    assert 3_900 < plan.tokens <= 4_000
    cut = [removal for removal in plan.removals if removal.rung == "cut"]
    assert {removal.reason for removal in cut} == {"too_long"}
    assert {int(removal.id.removeprefix("it_")) for removal in cut} == set(replaced(plan))
    assert all(f"item {removal.id}" in str([row.item.raw for row in plan.rows]) for removal in cut)


def test_what_cannot_be_made_to_fit_is_said() -> None:
    """System text is never cut."""
    rows = make_rows(say("system", text(90_000)), USER, ANSWER)
    plan = plan_summary(rows, make(4_000), {})
    assert not plan.fits
    assert plan.tokens > 4_000


def test_an_earlier_summary_is_folded_and_is_no_user_message() -> None:
    """The first user message is what a user said first."""
    old = Row(id="cmp_1", item=say("user", text(400)), tokens=100, node="resp_1", replaced="summary")
    rows = [old, *make_rows(USER, *run("a", text(4_000)), ANSWER, USER)]
    plan = plan_summary(rows, make(tail_tokens=0), {})
    assert positions(plan) == [0, 4]
    assert plan.summarised[0] is old
    assert "cmp_1" not in [removal.id for removal in plan.removals]
    assert "cmp_1" not in list_selectable(rows, make(tail_tokens=0))


# Properties


sizes = st.sampled_from([0, 5, 40, 400, 3_000, 12_000])
paths = st.sampled_from(["cat a.py", "sed -n '1,9p' a.py", "rg needle", "make test", "make lint"])


@st.composite
def outputs(draw: st.DrawFn) -> Any:
    body = text(draw(sizes), draw(st.sampled_from(["x", "7 7", "é", "漢"])))
    form = draw(st.sampled_from(["plain", "failed", "parts", "none"]))
    if form == "none":
        return "No matches found for " + body[:200].replace("\n", " ")
    if form == "parts":
        return [{"type": "input_text", "text": body}, IMAGE]
    return FAILED + body if form == "failed" else body


@st.composite
def steps(draw: st.DrawFn, number: int) -> list[Item]:
    """One thing that happens in a conversation: someone speaks, or calls are made at once and answered."""
    kind = draw(
        st.sampled_from(["user", "image", "assistant", "system", "mcp", "calls", "calls", "calls", "shell"])
    )
    if kind == "image":
        spoken = {"type": "input_text", "text": text(draw(sizes))}
        return [item(type="message", role="user", content=[spoken, IMAGE, IMAGE][: draw(st.integers(2, 3))])]
    if kind in ("user", "assistant", "system"):
        return [say(kind, text(draw(sizes)) or "hm")]
    if kind == "mcp":
        return [
            item(
                type="mcp_call",
                id=f"mcp_{number}",
                server_label="s",
                name="f",
                arguments="{}",
                output=text(draw(sizes)),
            )
        ]
    if kind == "shell":
        result = {"stdout": text(draw(sizes)), "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
        action = {"commands": ["ls"]}
        return [
            item(type="shell_call", call_id=f"s{number}", action=action, status="completed"),
            item(type="shell_call_output", call_id=f"s{number}", output=[result]),
        ]
    ids = [f"c{number}_{at}" for at in range(draw(st.integers(1, 3)))]
    calls = [call(call_id, draw(paths)) for call_id in ids]
    answers = [output(call_id, draw(outputs())) for call_id in draw(st.permutations(ids))]
    return [*([THINK] if draw(st.booleans()) else []), *calls, *answers]


@st.composite
def histories(draw: st.DrawFn, most: int = 12) -> list[Row]:
    items = [each for number in range(draw(st.integers(1, most))) for each in draw(steps(number))]
    if draw(st.booleans()):
        items += [call("open_1"), call("open_2"), output("open_1", draw(outputs()))]
    stored = draw(st.booleans())
    return [make_row(made, at, node="resp_1" if stored else "") for at, made in enumerate(items)]


@st.composite
def budgets(draw: st.DrawFn, rows: Sequence[Row]) -> Budget:
    total = add_tokens(rows)
    frame = draw(st.sampled_from([0, 50, 400]))
    return make_budget(
        CompactionLimits(),
        window_tokens=draw(st.sampled_from([None, 2_000, 6_000, 20_000])),
        threshold_tokens=draw(st.sampled_from([None, 1_500, 4_000, 12_000])),
        prompt_tokens=total + frame,
        frame_tokens=frame,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Row], Budget, dict[str, Mark]]:
    rows = draw(histories())
    ids = [call_id for row in rows if (call_id := get_call_id(row.item)) and is_call(row.item)]
    kinds: list[Mark] = ["uneventful", "superseded", "keep"]
    marks = {call_id: draw(st.sampled_from(kinds)) for call_id in ids if draw(st.integers(0, 4)) == 0}
    return rows, draw(budgets(rows)), marks


Case = tuple[list[Row], Budget, Mapping[str, Mark]]


def list_pairs(rows: Sequence[Row]) -> set[str]:
    """The call ids of which only one half is there."""
    calls = {get_call_id(row.item) for row in rows if is_call(row.item)}
    answers = {get_call_id(row.item) for row in rows if is_call_output(row.item)}
    return {str(call_id) for call_id in calls ^ answers}


def check_rows(before: Sequence[Row], after: Sequence[Row]) -> None:
    """Order, ids, types and calls are those of the history; what was replaced is told so, and is not larger."""
    whole = {row.id: row for row in before}
    at = [row.id for row in before]
    assert [row.id for row in after] == sorted((row.id for row in after), key=at.index)
    for row in after:
        own = whole[row.id]
        assert row.item.type == own.item.type
        assert row.node == own.node
        assert get_call_id(row.item) == get_call_id(own.item)
        assert row.item == decode_stored_item(row.item.raw)
        if row.replaced is None:
            assert row is own
        else:
            assert row.tokens < own.tokens
            assert f"item {row.id}" in row.item.raw.decode()


@settings(deadline=None)
@given(cases())
def test_a_free_plan_keeps_every_row_and_its_count(case: Case) -> None:
    """Budget, pairing and order; what was freed is what is reported."""
    rows, budget, marks = case
    plan = plan_free(rows, budget, marks)
    check_rows(rows, plan.rows)
    assert len(plan.rows) == len(rows)
    assert plan.summarised == ()
    assert plan.tokens == budget.frame_tokens + add_tokens(plan.rows)
    assert plan.fits == (plan.tokens <= budget.limit_tokens)
    assert sum(removal.tokens for removal in plan.removals) == add_tokens(rows) - add_tokens(plan.rows)
    changed = {row.id for row in plan.rows if row.replaced}
    assert changed == {removal.id for removal in plan.removals}
    kept = {row.id for row in rows if marks.get(get_call_id(row.item) or "") == "keep"}
    assert not changed & kept


@settings(deadline=None)
@given(cases())
def test_a_free_plan_is_the_same_each_time_and_of_its_own_rows_nothing(case: Case) -> None:
    """Determinism and idempotence, in bytes."""
    rows, budget, marks = case
    plan = plan_free(rows, budget, marks)
    assert plan_free(list(rows), budget, dict(sorted(marks.items()))) == plan
    again = plan_free(plan.rows, budget, marks)
    assert again == LadderPlan(plan.rows, (), (), plan.tokens, plan.fits)


@settings(deadline=None)
@given(cases(), st.data())
def test_a_plan_with_a_summary_keeps_within_its_budget(case: Case, data: st.DataObject) -> None:
    """Never over the limit where it says that it fits; groups whole; order kept; each row stays or is summarised."""
    rows, budget, marks = case
    retain = data.draw(st.sets(st.sampled_from([row.id for row in rows])))
    plan = plan_summary(rows, budget, marks, retain=retain)
    check_rows(rows, plan.rows)
    assert sorted([row.id for row in [*plan.rows, *plan.summarised]]) == sorted(row.id for row in rows)
    assert list_pairs(plan.rows) == list_pairs(rows)
    reserve = budget.summary_tokens + budget.facts_tokens + budget.index_tokens
    assert plan.tokens == budget.frame_tokens + add_tokens(plan.rows) + (reserve if plan.summarised else 0)
    assert plan.fits == (plan.tokens <= budget.limit_tokens)
    kept = {row.id for row in plan.rows}
    users = [row.id for row in rows if isinstance(row.item.value, Message) and row.item.value.role == "user"]
    assert kept >= {*users[:1], *users[-1:]}
    assert kept >= {
        row.id for row in rows if isinstance(row.item.value, Message) and row.item.value.role == "system"
    }
    assert kept >= {row.id for row in rows if (get_call_id(row.item) or "").startswith("open_")}
    assert {row.id for row in plan.rows if row.replaced} == {
        each.id for each in plan.removals if each.rung == "cut"
    }
    least = msgspec.structs.replace(budget, user_tokens=0, tail_tokens=0, retained_tokens=0)
    must = plan_summary(rows, least, {})
    assert plan.fits or not must.fits
    if any(row.replaced for row in plan.rows):
        # Nothing is cut to make room for what may go.
        assert kept == {row.id for row in must.rows}


@settings(deadline=None)
@given(cases(), st.data())
def test_a_plan_with_a_summary_is_the_same_each_time_and_of_its_own_rows_nothing(
    case: Case, data: st.DataObject
) -> None:
    """Determinism, whatever the order of the choice; idempotence, with the same choice."""
    rows, budget, marks = case
    retain = data.draw(st.lists(st.sampled_from([row.id for row in rows]), unique=True))
    plan = plan_summary(rows, budget, marks, retain=retain)
    assert plan_summary(list(rows), budget, marks, retain=set(retain)) == plan
    again = plan_summary(plan.rows, budget, marks, retain=retain)
    assert again.rows == plan.rows
    assert again.summarised == ()
    assert again.removals == ()


@settings(deadline=None)
@given(cases())
def test_what_may_be_chosen_has_room_when_it_is_chosen(case: Case) -> None:
    """Each of the ids alone: it stays, and the plan fits as before."""
    rows, budget, _ = case
    plain = plan_summary(rows, budget, {})
    for row_id in list_selectable(rows, budget):
        assert row_id not in {row.id for row in plain.rows}
        chosen = plan_summary(rows, budget, {}, retain=[row_id])
        assert row_id in {row.id for row in chosen.rows}
        assert chosen.fits == plain.fits or chosen.fits


@settings(deadline=None)
@given(st.data())
def test_over_a_growing_history_the_prefix_changes_only_in_declared_passes(data: st.DataObject) -> None:
    """Between passes every byte stays; a pass names each row that it changed, and the next is not due at once."""
    window = data.draw(st.sampled_from([3_000, 8_000, 20_000]))
    threshold = int(window * 0.9)
    rows: list[Row] = []
    grown = threshold
    for number in range(data.draw(st.integers(5, 25))):
        new = [make_row(made, len(rows) + at) for at, made in enumerate(data.draw(steps(number)))]
        grown += add_tokens(new)
        rows += new
        if add_tokens(rows) <= threshold:
            continue
        budget = make_budget(
            CompactionLimits(),
            window_tokens=window,
            threshold_tokens=threshold,
            prompt_tokens=add_tokens(rows),
            frame_tokens=0,
        )
        plan = plan_free(rows, budget, {})
        changed = {before.id for before, after in zip(rows, plan.rows, strict=True) if before != after}
        assert changed == {removal.id for removal in plan.removals}
        if plan.fits and changed:
            assert grown > threshold - budget.limit_tokens
            grown = 0
        rows = list(plan.rows)
