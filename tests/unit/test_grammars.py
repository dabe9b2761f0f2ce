"""Grammars of custom tools: checked in a process of their own, never for longer than the limit."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engine.grammar_worker import check, require_pattern_width, require_width
from antiphon.engine.grammars import (
    DEFINITION_CHARACTERS,
    TEXT_CHARACTERS,
    WAITING_LIMIT,
    GrammarChecker,
    Verdict,
)
from antiphon.engine.turns import Turns
from antiphon.protocol.errors import OverloadedError, RequestError
from antiphon.protocol.tools import CustomTool, GrammarFormat, NamespaceTool, PlainFormat, Tool

T = TypeVar("T")

#: The patch format that coding agents give as a tool's grammar.
PATCH = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
GOOD = """*** Begin Patch
*** Add File: docs/a.md
+# Title
+
+Text
*** Update File: b.py
*** Move to: c.py
@@ def f():
 x = 1
-y = 2
+y = 3
@@
-z
*** End of File
*** Delete File: d.py
*** End Patch
"""
SLOW = GrammarFormat(syntax="regex", definition="(a|aa|a?)+")
WORD = GrammarFormat(syntax="regex", definition="[a-z]+")


def use(work: Callable[[GrammarChecker], Awaitable[T]], *, timeout_s: float = 20.0) -> T:
    """Do something with a checker, and close it."""

    async def run() -> T:
        checker = GrammarChecker(timeout_s=timeout_s)
        try:
            return await work(checker)
        finally:
            await checker.close()

    return asyncio.run(run())


def find(syntax: str, definition: str, text: str | None) -> dict[str, str]:
    """What the worker says, without the process."""
    return check({"syntax": syntax, "definition": definition, "text": text})


@pytest.mark.parametrize("text", [GOOD, GOOD[:-1], "*** Begin Patch\n*** Delete File: a b\n*** End Patch"])
def test_patches_follow_the_grammar_of_patches(text: str) -> None:
    """Codex's apply_patch tool: its grammar has expressions that may be empty, which Earley does not take."""
    assert find("lark", PATCH, text) == {}


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("*** Begin Patch\n", "", "line 1, column 1"),
        ("+Text", "Text", "line 5, column 1"),
        ("*** Move to: c.py", "*** Move to:", "line 7, column 1"),
        ("*** End Patch", "** End Patch", "line 16, column 1"),
        ("*** End Patch\n", "", "line 16, column 1"),
        ("*** Delete File: d.py\n", "*** Delete File: \n", "line 15, column 18"),
    ],
)
def test_a_broken_patch_is_told_with_its_place(old: str, new: str, place: str) -> None:
    """Ours: the model can only mend what it is told."""
    (fault,) = find("lark", PATCH, GOOD.replace(old, new)).items()
    assert fault[0] == "fault"
    assert place in fault[1]


@pytest.mark.parametrize(
    ("definition", "text", "told"),
    [
        ("[a-z]+-\\d{3}", "abc-123", ""),
        ("^[a-z]+$", "abc", ""),
        ("\\p{L}+", "é", ""),
        ("[a-z]+-\\d{3}", "abc-12x", 'line 1, column 7: "x" does not match'),
        ("(a\\n)+", "a\na\nb", 'line 3, column 1: "b"'),
        ("[a-z]+-\\d{3}", "abc-1", "ends too early"),
        ("abc", "abcd", 'column 4: "d"'),
    ],
)
def test_regular_expressions_match_the_whole_input(definition: str, text: str, told: str) -> None:
    """Responses API 2.2, grammar formats with syntax `regex`."""
    answer = find("regex", definition, text)
    assert told in answer.get("fault", "")
    assert bool(answer) == bool(told)


@pytest.mark.parametrize(
    ("syntax", "definition", "told"),
    [
        ("regex", "(", "no regular expression"),
        ("lark", "start: missing", "missing"),
        ("lark", 'other: "a"', "start"),
        ("lark", "start: (", "no Lark grammar"),
        ("lark", "", "no Lark grammar"),
        ("lark", "start: /(/", "no Lark grammar"),
        ("lark", 'start: "a"\n  | | ? !', "no Lark grammar"),
        ("lark", "%declare A\nstart: A", "%declare"),
        ("lark", "%import .secrets.KEY\nstart: KEY", "can be imported"),
        ("lark", "%import secrets (KEY)\nstart: KEY", "can be imported"),
    ],
)
def test_what_is_no_grammar_is_refused_with_its_reason(syntax: Any, definition: str, told: str) -> None:
    """Responses API, errors: invalid_value, with the place."""
    tools: list[Tool] = [
        CustomTool(name="plain", format=PlainFormat()),
        NamespaceTool(
            name="n",
            description="",
            tools=[CustomTool(name="t", format=GrammarFormat(syntax=syntax, definition=definition))],
        ),
    ]
    with pytest.raises(RequestError) as caught:
        use(lambda checker: checker.check_tools(tools))
    error = caught.value
    assert (error.code, error.param) == ("invalid_value", "tools[1].tools[0].format.definition")
    assert told in error.message
    assert error.message.isprintable()


def test_grammars_that_are_right_are_accepted() -> None:
    """Ours, and once known they need no process."""
    tools: list[Tool] = [
        CustomTool(name="patch", format=GrammarFormat(syntax="lark", definition=PATCH)),
        CustomTool(name="word", format=WORD),
    ]

    async def run(checker: GrammarChecker) -> None:
        await checker.check_tools(tools)
        await checker.close()
        await checker.check_tools(tools)
        assert checker._shop._idle[-1]._process is None

    use(run)


def test_a_grammar_beyond_the_limit_is_refused() -> None:
    """Every limit is told."""
    long = GrammarFormat(syntax="regex", definition="a" * (DEFINITION_CHARACTERS + 1))
    with pytest.raises(RequestError, match=str(DEFINITION_CHARACTERS)):
        use(lambda checker: checker.check_grammar(long, "tools[0]"))


def test_a_text_beyond_the_limit_is_not_checked() -> None:
    """Every limit is told."""
    verdict = use(lambda checker: checker.check_text(WORD, "a" * (TEXT_CHARACTERS + 1)))
    assert str(TEXT_CHARACTERS) in verdict.unchecked


def test_a_grammar_that_takes_too_long_is_given_up_and_the_next_one_is_checked() -> None:
    """Ours: the process is ended, and another one takes its place."""

    async def run(checker: GrammarChecker) -> list[Verdict]:
        slow = await checker.check_text(SLOW, "a" * 60 + "b")
        assert checker._shop._idle[-1]._process is None
        return [slow, *await asyncio.gather(*(checker.check_text(WORD, text) for text in ("ab", "a1")))]

    slow, good, bad = use(run, timeout_s=1.0)
    assert "longer than 1 s" in slow.unchecked
    assert good == Verdict()
    assert "column 2" in bad.fault


def test_a_check_that_is_cancelled_leaves_no_answer_behind() -> None:
    """Ours: the next question gets its own answer."""

    async def run(checker: GrammarChecker) -> Verdict:
        await checker.check_text(WORD, "ab")
        asking = asyncio.create_task(checker.check_text(SLOW, "a" * 60 + "b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        return await checker.check_text(WORD, "ab")

    assert use(run) == Verdict()


def test_a_process_that_ended_is_replaced() -> None:
    """Ours: it may have been killed for its memory."""

    async def run(checker: GrammarChecker) -> list[Verdict]:
        await checker.check_text(WORD, "ab")
        process = checker._shop._idle[-1]._process
        assert process is not None
        process.kill()
        first = await checker.check_text(WORD, "ab")
        return [first, await checker.check_text(WORD, "ab")]

    first, second = use(run)
    assert first == Verdict() or first.unchecked
    assert second == Verdict()


def test_one_tenants_slow_grammars_hold_up_no_other_tenant() -> None:
    """Ours: tenants take turns, and whoever lets too many checks wait is told so."""

    async def run(checker: GrammarChecker) -> tuple[Verdict, int, set[str]]:
        ada, ben = checker.of_tenant("ada"), checker.of_tenant("ben")
        asking = [asyncio.create_task(ada.check_text(SLOW, "a" * 60 + "b")) for _ in range(WAITING_LIMIT + 4)]
        await asyncio.sleep(0)
        answer = await ben.check_text(WORD, "ab")
        with pytest.raises(OverloadedError, match="try again in 5s"):
            await ada.check_grammar(GrammarFormat(syntax="regex", definition="new"), "tools[0]")
        done = [task for task in asking if task.done()]
        told = {(await task).unchecked for task in done}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        return answer, len(done), told

    answer, done, told = use(run)
    assert answer == Verdict()
    # The ones over the limit; none of the others had its answer before ben had his.
    assert (done, told) == (3, {"too many checks were waiting already"})


def test_turns_go_round_among_tenants_and_are_never_lost() -> None:
    """Ours: one turn each in a circle, also where callers leave or wait too long."""
    order: list[str] = []

    async def use_turn(turns: Turns, tenant: str) -> None:
        async with turns.take(tenant, timeout_s=20):
            order.append(tenant)
            await asyncio.sleep(0)

    async def run() -> None:
        turns = Turns(1, waiting_per_tenant=8)
        async with turns.take("ada", timeout_s=20):
            callers = [asyncio.create_task(use_turn(turns, tenant)) for tenant in "aaaabbc"]
            await asyncio.sleep(0)
            callers[0].cancel()
            with pytest.raises(TimeoutError):
                async with turns.take("c", timeout_s=0):
                    pass
        callers[3].cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert order == ["a", "b", "c", "a", "b"]
        async with turns.take("a", timeout_s=20):
            pass

    asyncio.run(run())


def test_a_grammar_that_the_checker_cannot_use_is_accepted_and_said_to_be_unchecked() -> None:
    """Ours: it may be right, and refusing it would be wrong."""
    empty = GrammarFormat(syntax="lark", definition='start: X "a"\nX: /(b|c)?d?/')

    async def run(checker: GrammarChecker) -> Verdict:
        await checker.check_grammar(empty, "tools[0]")
        return await checker.check_text(empty, "a")

    assert "empty" in use(run).unchecked


def test_nothing_nested_ever_so_deep_stops_the_worker() -> None:
    """Ours: whatever comes, an answer goes out."""
    assert set(find("lark", 'start: "(" start ")" | "x"', "(" * 3000 + "x" + ")" * 3000)) <= {"unchecked"}
    assert find("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "a")


@pytest.mark.parametrize(
    ("pattern", "wider"),
    [
        (".*", ".+"),
        ("(.*)", "(.+)"),
        ("((?:ab)*?)", "((?:ab)+?)"),
        ("[^\\n]*", "[^\\n]+"),
        ("(ab)?", "(ab)"),
        ("a*b*", None),
        ("(a*)*", None),
        ("a\\*", None),
        (".+", None),
    ],
)
def test_a_repetition_that_may_be_empty_gets_a_width(pattern: str, wider: str | None) -> None:
    """Lark: Earley works with terminals that have a width alone."""
    assert require_pattern_width(pattern) == wider


@given(st.text(alphabet="ab\n+*/", max_size=12))
def test_the_widened_grammar_is_the_same_language(text: str) -> None:
    """Ours: widening changes nothing but the form."""
    definition = 'start: "a" /b*/ tail\ntail: /[+]*/ | "*" /(a*)/\n'
    assert require_width(definition) != definition
    expected = find("regex", "ab*([+]*|\\*a*)", text)
    assert bool(find("lark", definition, text)) == bool(expected)
