"""What was left out of a window is named: every item once, as finely as there is room for."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.context.left_out import (
    BYTES_PER_TOKEN,
    LABEL_CHARACTERS,
    LeftOut,
    list_left_out,
    render_left_out,
)
from antiphon.context.rows import Row
from antiphon.protocol.items import Item, decode_stored_item, make_user_message

ROOM = 100_000
NODE = "resp_1"


def make_item(**fields: Any) -> Item:
    return decode_stored_item(msgspec.json.encode(fields))


def make_row(number: int, *, stored: bool = True, tokens: int = 10) -> Row:
    """A user message under an id of its own."""
    return Row(
        id=f"msg_{number:04}",
        item=make_user_message(f"Message {number}"),
        tokens=tokens,
        node=NODE if stored else "",
    )


def label(*items: Item) -> list[str]:
    """What is told of items that are left out together."""
    rows = [Row(id=f"id_{number}", item=item, node=NODE) for number, item in enumerate(items)]
    return [entry.label for entry in list_left_out([], rows, ROOM)]


def measure(entries: tuple[LeftOut, ...]) -> float:
    """What the lines cost, as the budget counts."""
    return len(render_left_out(entries).encode()) / BYTES_PER_TOKEN


def call(name: str, arguments: str, call_id: str = "call_1") -> Item:
    return make_item(type="function_call", call_id=call_id, name=name, arguments=arguments)


def result(output: str, call_id: str = "call_1", **more: Any) -> Item:
    return make_item(type="function_call_output", call_id=call_id, output=output, **more)


# Lines


def test_each_item_has_a_line_that_says_what_it_is_and_how_to_fetch_it() -> None:
    """Ours: the model sees what there was, and by which request it comes back."""
    rows = [
        Row(id="msg_1", item=make_user_message("Please mend\nthe parser"), tokens=12, node=NODE),
        Row(id="fc_1", item=call("read_file", '{"limit":5,"path":"src/a.py"}'), tokens=1, node=NODE),
        Row(id="fco_1", item=result("x" * 900), tokens=2310, node=NODE),
    ]
    assert render_left_out(list_left_out([], rows, ROOM)) == (
        "[Left out here, and stored. One: `GET /v1/items/{id}`; a range: `GET /v1/items?from={first}&to={last}`.]\n"
        "- msg_1 user message: Please mend the parser: 12 tokens\n"
        "- fc_1 function_call read_file src/a.py: 1 token\n"
        "- fco_1 function_call_output of read_file src/a.py: 2,310 tokens"
    )


def test_a_range_names_its_ends() -> None:
    """Ours: `GET /v1/items?from=..&to=..` gives what stands between them."""
    assert render_left_out([LeftOut("msg_1", "fco_9", 57, 31_000)]).endswith(
        "\n- msg_1 to fco_9: 57 items, 31,000 tokens"
    )


def test_what_is_stored_nowhere_is_told_to_be_with_the_client() -> None:
    """Architecture: with `store:false` the removed items stay with the client, and the report says so."""
    rows = [make_row(number, stored=False) for number in range(3)]
    assert list_left_out([], rows, ROOM) == (LeftOut("", "", 3, 30),)
    assert render_left_out(list_left_out([], rows, ROOM)) == (
        "- 3 items, 30 tokens: not stored by this server; the client that sent them holds them"
    )
    assert render_left_out(list_left_out([], rows[:1], ROOM)).startswith("- 1 item, 10 tokens: not stored")


def test_nothing_left_out_is_nothing_told() -> None:
    """Ours."""
    assert list_left_out([], [], ROOM) == ()
    assert render_left_out(()) == ""


def test_the_summary_of_an_earlier_compaction_is_no_item() -> None:
    """Ours: what it stood for is told by the earlier entries."""
    summary = Row(id="cmp_1", item=make_user_message("Summary"), node=NODE, replaced="summary")
    earlier = [LeftOut("msg_1", "msg_5", 5, 50)]
    assert list_left_out(earlier, [summary, make_row(7)], ROOM) == (
        *earlier,
        LeftOut("msg_0007", "msg_0007", 1, 10, "user message: Message 7"),
    )


# Labels


@pytest.mark.parametrize(
    ("item", "told"),
    [
        (call("exec", '{"cmd":"ls -la","timeout":5}'), "function_call exec ls -la"),
        (call("exec", '{"command":["bash","-lc","ls"]}'), "function_call exec bash -lc ls"),
        (call("other", '{"zeta":"first text","alpha":1}'), "function_call other first text"),
        (call("none", "{}"), "function_call none"),
        (call("broken", '{"path":'), "function_call broken"),
        (call("list", '["a","b"]'), "function_call list a b"),
        (call("deep", "[" * 5000), "function_call deep"),
        (
            make_item(type="custom_tool_call", call_id="c", name="patch", input="*** Begin\n*** Update"),
            "custom_tool_call patch *** Begin *** Update",
        ),
        (
            make_item(type="local_shell_call", call_id="c", action={"type": "exec", "command": ["ls", "-l"]}),
            "local_shell_call ls -l",
        ),
        (
            make_item(type="shell_call", call_id="c", action={"commands": ["ls", "pwd"]}),
            "shell_call ls pwd",
        ),
        (
            make_item(
                type="apply_patch_call",
                call_id="c",
                status="completed",
                operation={"type": "delete_file", "path": "src/old.py"},
            ),
            "apply_patch_call src/old.py",
        ),
        (result("x", name="told_name"), "function_call_output of told_name"),
        (result("x"), "function_call_output"),
        (make_item(type="reasoning", summary=[]), "reasoning"),
        (make_item(type="message", role="assistant", content=[]), "assistant message"),
        (make_item(type="something_new", x=1), "something_new"),
    ],
)
def test_a_label_says_what_an_item_was_about(item: Item, told: str) -> None:
    """Ours: the argument that says most, of whatever tool."""
    assert label(item) == [told]


@pytest.mark.parametrize("text", ["x" * 10_000, "word " * 5000, "\x00\x1b[31m\u202e\n" * 100, "漢字" * 500])
def test_a_label_is_one_short_line(text: str) -> None:
    """Ours: it reminds, and it cannot look like a line of ours."""
    for told in label(make_user_message(text), call("f", msgspec.json.encode({"path": text}).decode())):
        assert len(told) <= LABEL_CHARACTERS
        assert told.isprintable()


def test_a_huge_argument_is_not_read() -> None:
    """Ours: a label is not worth the time."""
    assert label(call("write", '{"path":"' + "x" * 100_000 + '"}')) == ["function_call write"]


# Room


def test_the_oldest_become_a_range_when_there_is_no_room() -> None:
    """Ours: what happened last is told most finely."""
    rows = [make_row(number) for number in range(100)]
    entries = list_left_out([], rows, 400)
    assert measure(entries) <= 400
    first, *rest = entries
    assert (first.first, first.last, first.items) == ("msg_0000", f"msg_{first.items - 1:04}", first.items)
    assert [entry.first for entry in rest] == [row.id for row in rows[first.items :]]
    assert all(entry.items == 1 for entry in rest)
    # One item less in the range, and it would not have fitted.
    assert measure((*list_left_out([], rows[: first.items - 1], 60)[:1], *entries)) > 400


def test_neighbours_become_one_range_only_where_both_are_stored() -> None:
    """Ours: a range is what a request gives."""
    rows = [make_row(number, stored=number % 4 != 3) for number in range(12)]
    entries = list_left_out([], rows, 165)
    assert [(entry.first, entry.last, entry.items) for entry in entries] == [
        ("msg_0000", "msg_0002", 3),
        ("", "", 1),
        ("msg_0004", "msg_0006", 3),
        ("", "", 1),
        ("msg_0008", "msg_0010", 3),
        ("", "", 1),
    ]


def test_in_the_end_one_range_and_one_count_are_told_whatever_the_room() -> None:
    """Ours: nothing is lost silently, not even in a tiny window."""
    rows = [make_row(number, stored=number % 2 == 0) for number in range(50)]
    assert list_left_out([], rows, 0) == (LeftOut("msg_0000", "msg_0048", 25, 250), LeftOut("", "", 25, 250))


@st.composite
def make_rows(draw: st.DrawFn, start: int) -> list[Row]:
    kinds = draw(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=40))
    return [
        make_row(start + number, stored=stored, tokens=tokens)
        for number, (stored, tokens) in enumerate(kinds)
    ]


def span(entry: LeftOut) -> tuple[int, int]:
    return int(entry.first.removeprefix("msg_")), int(entry.last.removeprefix("msg_"))


@given(make_rows(0), make_rows(100), st.integers(0, 1500))
@settings(max_examples=300, deadline=None)
def test_every_row_is_in_exactly_one_entry(old: list[Row], new: list[Row], budget: int) -> None:
    """Ours: over two compactions, whatever the room; the same rows give the same entries, and once more the same."""
    earlier = list_left_out([], old, budget)
    entries = list_left_out(earlier, new, budget)
    rows = [*old, *new]
    assert sum(entry.items for entry in entries) == len(rows)
    assert sum(entry.tokens for entry in entries) == sum(row.tokens for row in rows)
    stored = [entry for entry in entries if entry.is_fetchable]
    assert sum(entry.items for entry in stored) == sum(row.is_fetchable for row in rows)
    spans = [span(entry) for entry in stored]
    assert spans == sorted(spans)
    assert all(end < start for (_, end), (start, _) in pairwise(spans))
    for entry, (first, last) in zip(stored, spans, strict=True):
        inside = [row for row in rows if row.is_fetchable and first <= int(row.id[4:]) <= last]
        assert (len(inside), sum(row.tokens for row in inside)) == (entry.items, entry.tokens)
    assert list_left_out(entries, [], budget) == entries
    assert measure(entries) <= budget or len(entries) <= 2


def test_thousands_of_entries_are_merged_in_linear_time() -> None:
    """Ours: the test's own time-out is the bound."""
    rows = [make_row(number, stored=number % 2 == 0) for number in range(20_000)]
    assert len(list_left_out([], rows, 300)) > 1
