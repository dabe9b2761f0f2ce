"""The summary by rule: what it tells of a conversation, what it gives up telling first, and its budget."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.context.extract import EXTRACT_MARK, make_extract
from antiphon.context.rows import Row
from antiphon.protocol.items import decode_stored_item


def row(**fields: Any) -> Row:
    return Row(id="item", item=decode_stored_item(msgspec.json.encode(fields)))


def user(text: str) -> Row:
    return row(type="message", role="user", content=text)


def assistant(text: str) -> Row:
    return row(type="message", role="assistant", content=[{"type": "output_text", "text": text}])


def call(name: str, arguments: Any, call_id: str = "c") -> Row:
    encoded = msgspec.json.encode(arguments).decode()
    return row(type="function_call", call_id=call_id, name=name, arguments=encoded)


def result(output: Any, call_id: str = "c") -> Row:
    return row(type="function_call_output", call_id=call_id, output=output)


def size(text: str) -> int:
    """Tokens at most."""
    return math.ceil(len(text.encode()) / 3)


def tell_call(*rows: Row) -> str:
    """The line of the only call among the rows."""
    return make_extract(rows, 2_000).splitlines()[-1]


CODEX_OUTPUT = msgspec.json.encode(
    {
        "output": "collected 2 items\nE   AssertionError: 3 != 4\n1 failed, 1 passed",
        "metadata": {"exit_code": 1},
    }
).decode()


def test_an_extract_tells_the_course_of_the_work() -> None:
    """Ours: heads of messages, a line for each call, what is open and done, and that no model wrote it."""
    plan = [
        {"step": "Read the parser", "status": "completed"},
        {"step": "Accept tabs", "status": "in_progress"},
        {"step": "Run the tests", "status": "pending"},
    ]
    rows = [
        user("Make the parser accept tabs."),
        call("update_plan", {"plan": [{"step": "Read", "status": "pending"}]}, "p1"),
        result("ok", "p1"),
        call("exec", {"cmd": "cat src/parser.py"}, "c1"),
        result("def parse():\n    pass\n", "c1"),
        call("update_plan", {"plan": plan}, "p2"),
        result("Plan updated", "p2"),
        call("exec", {"cmd": "pytest -q"}, "c2"),
        result(CODEX_OUTPUT, "c2"),
        assistant("The test fails. I look at the lexer next."),
        call("exec", {"cmd": "sed -n 1,40p src/lexer.py"}, "c3"),
    ]
    assert make_extract(rows, 2_000, "The user likes tabs.") == (
        f"{EXTRACT_MARK}. Check the state of the work before you go on.]\n\n"
        "## Earlier summary\nThe user likes tabs.\n\n"
        "## Work open\n- Accept tabs (in_progress)\n- Run the tests (pending)\n"
        '- the call exec {"cmd":"sed -n 1,40p src/lexer.py"} has no result\n\n'
        "## The assistant's last word\nThe test fails. I look at the lexer next.\n\n"
        "## Work done\n- Read the parser\n\n"
        "## What happened, oldest first\n"
        "- user: Make the parser accept tabs.\n"
        '- update_plan {"plan":[{"step":"Read","status":"pending"}]} -> ok: ok\n'
        '- exec {"cmd":"cat src/parser.py"} -> ok: pass\n'
        '- update_plan {"plan":[{"step":"Read the parser","status":"completed"},{"step":"Accept tabs","status":'
        '"in_progress"},{"step":"Run the tests","status":"pending"}]} -> ok: Plan updated\n'
        '- exec {"cmd":"pytest -q"} -> failed: 1 failed, 1 passed\n'
        "- assistant: The test fails. I look at the lexer next.\n"
        '- exec {"cmd":"sed -n 1,40p src/lexer.py"} -> no result'
    )


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("", "ok"),
        ("3 passed", "ok: 3 passed"),
        ("Exit code: 0\nWall time: 1 s\nOutput:\n0 errors", "ok: 0 errors"),
        ("Exit code: 2\nOutput:\nmake: *** [all] Error 1\nbye", "failed: make: *** [all] Error 1"),
        ("Process exited with code 1\nfatal: not a git repository\n", "failed: fatal: not a git repository"),
        ("Traceback (most recent call last):\n  File \"a\"\nKeyError: 'x'\n", "failed: KeyError: 'x'"),
        ("command timed out after 10000 milliseconds", "failed: command timed out after 10000 milliseconds"),
        ("Error: no such file", "failed: Error: no such file"),
        ("The Error class lives in errors.py", "ok: The Error class lives in errors.py"),
        (
            [{"type": "input_text", "text": "seen"}, {"type": "input_image", "image_url": "data:,x"}],
            "ok: [image]",
        ),
    ],
)
def test_a_call_tells_how_it_ended(output: Any, outcome: str) -> None:
    """Ours: ok or failed, and the line that says why."""
    assert tell_call(call("exec", {}), result(output)) == f"- exec {{}} -> {outcome}"


def test_calls_of_every_kind_tell_how_they_ended() -> None:
    """Ours: typed outcomes count more than words."""
    operation = {"type": "delete_file", "path": "a.py"}
    patch = row(type="apply_patch_call", call_id="c", status="completed", operation=operation)
    patched = row(type="apply_patch_call_output", call_id="c", status="failed", output="no such file")
    assert tell_call(patch, patched).endswith("-> failed: no such file")
    shell = row(type="shell_call", call_id="c", action={"commands": ["false"]})
    ended = {"stdout": "", "stderr": "denied", "outcome": {"type": "exit", "exit_code": 1}}
    assert tell_call(shell, row(type="shell_call_output", call_id="c", output=[ended])).endswith(
        "-> failed: denied"
    )
    mcp = {"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "find", "arguments": "{}"}
    assert tell_call(row(**mcp, output="found")).endswith("- docs__find {} -> ok")
    assert tell_call(row(**mcp, error="gone")).endswith("-> failed: Error: gone")


def test_the_newest_is_told_best_and_users_before_calls() -> None:
    """Ours: where there is little room, old calls go first, users' words are shortened, and the missing are counted."""
    rows = []
    for at in range(60):
        rows += [
            user(f"Wish {at}: {'please ' * 60}"),
            call("exec", {"cmd": f"make part{at} {'x' * 200}"}, f"c{at}"),
            result("done", f"c{at}"),
        ]
    text = make_extract(rows, 1_500)
    assert size(text) <= 1_500
    assert "- user: Wish 0: please" in text
    assert "make part59" in text
    assert "make part3 " not in text
    wishes = [line for line in text.splitlines() if line.startswith("- user: Wish")]
    assert len(wishes) > 15
    assert len(wishes[-1]) > len(wishes[0])
    assert "of the 120 things that happened are not told" in text.splitlines()[0]


def test_extracts_do_not_nest() -> None:
    """Ours: one first line, however often no model could be asked."""
    once = make_extract([user("First.")], 500)
    twice = make_extract([user("Second.")], 500, once)
    assert twice.count(EXTRACT_MARK) == 1
    assert "First." in twice
    assert "Second." in twice


@pytest.mark.parametrize(
    "arguments",
    [
        {"todos": [{"content": "Write it", "status": "pending"}, {"content": "Read it", "status": "done"}]},
        [{"task": "Write it", "done": False}, {"task": "Read it", "done": True}],
        {
            "merge": True,
            "items": ["x"],
            "list": [{"title": "Write it"}, {"title": "Read it", "state": "Completed"}],
        },
    ],
)
def test_lists_of_tasks_of_other_clients_are_read(arguments: Any) -> None:
    """Ours: a plan by any other name."""
    text = make_extract([call("todo_write", arguments)], 500)
    assert "## Work open\n- Write it (" in text
    assert "## Work done\n- Read it\n" in text


def test_a_long_line_and_a_broken_argument_are_no_trouble() -> None:
    """Ours: a result of one line of any length is looked at in bounded time."""
    broken = row(type="function_call", call_id="c", name="plan", arguments="{" * 5_000)
    text = make_extract([broken, result("a" * 500_000), user("x" * 100_000)], 300)
    assert size(text) <= 300


TEXTS = st.text(max_size=200)
ROWS = st.lists(
    st.one_of(
        TEXTS.map(user),
        TEXTS.map(assistant),
        st.tuples(TEXTS, st.sampled_from("abc")).map(lambda each: call("exec", {"cmd": each[0]}, each[1])),
        st.tuples(TEXTS, st.sampled_from("abc")).map(lambda each: result(*each)),
    ),
    max_size=30,
)


@given(rows=ROWS, budget=st.integers(min_value=0, max_value=1_500), previous=TEXTS)
@settings(max_examples=150, deadline=None)
def test_an_extract_keeps_its_budget_and_is_always_the_same(
    rows: list[Row], budget: int, previous: str
) -> None:
    """Ours, as a property: the budget is bytes / 3, which no tokenizer exceeds for text."""
    text = make_extract(rows, budget, previous)
    assert size(text) <= budget
    assert make_extract(rows, budget, previous) == text
