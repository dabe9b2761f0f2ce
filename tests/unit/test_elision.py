"""Which results may go from a window, what takes their place, and how images and long texts are shortened."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.context.elision import (
    BYTES_PER_TOKEN,
    OLD_FAILURE_TOKENS,
    cut_row,
    cut_texts,
    drop_row_images,
    find_elisions,
    find_superseded,
    is_uneventful,
    make_placeholder,
)
from antiphon.context.rows import Mark, Row
from antiphon.protocol.items import Item, UnknownItem, decode_stored_item

PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg=="
)


def item(**fields: Any) -> Item:
    made = decode_stored_item(msgspec.json.encode(fields))
    assert not isinstance(made.value, UnknownItem)
    return made


def call(arguments: Any = None, name: str = "exec_command", call_id: str = "c1", **more: Any) -> Item:
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments or {}).decode()
    return item(type="function_call", call_id=call_id, name=name, arguments=text, **more)


def output(text: Any, call_id: str = "c1", **more: Any) -> Item:
    return item(type="function_call_output", call_id=call_id, output=text, **more)


def row(made: Item, tokens: int, row_id: str = "fco_1", node: str = "resp_1") -> Row:
    return Row(id=row_id, item=made, tokens=tokens, node=node)


def fields(made: Item) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(made.raw)
    return found


def frame(body: str, code: int | None = 0, session: int | None = None) -> str:
    """The lines that Codex puts over the output of a command."""
    ended = f"Process running with session ID {session}" if session else f"Process exited with code {code}"
    return f"Chunk ID: 5e1f2f\nWall time: 0.5530 seconds\n{ended}\nOriginal token count: 1\nOutput:\n{body}"


GREP = call({"cmd": "rg -n 'needle' src"})
MAKE = call({"cmd": "make test"})
POLL = call({"session_id": 9821, "chars": ""}, name="write_stdin")
WAIT = call({"targets": ["a1"]}, name="wait_agent")


# Results that tell nothing


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("", MAKE),
        ("  \n", None),
        (frame(""), MAKE),
        (frame("", code=1), GREP),
        (frame("", code=1), call({"command": ["bash", "-lc", "cd /repo && grep -rn x ."]}, name="shell")),
        (frame("", code=1), call({"cmd": "git grep foo"})),
        (frame("", code=1), call({"cmd": "ls src | grep -i zzz"})),
        (frame("No matches found\n"), GREP),
        ("Exit code: 0\nWall time: 0.1 seconds\nOutput:\n", MAKE),
        ("Exit code 1\n", GREP),
        ("[exit code: 1]", GREP),
        ("No matches found", None),
        ("No matches found.", None),
        ("no results", None),
        ("0 results", None),
        ("0 matches", None),
        ("Found 0 files", None),
        ("No files found", None),
        ("No files found matching '*.rs' in src", None),
        ("No results found for query: frobnicate", None),
        ("Search returned no results.", None),
        ("Nothing found", None),
        ("(no output)", None),
        ("[no output]", None),
        ("<system>Tool ran without output or errors</system>", None),
        ("Command completed successfully with no output", None),
        ("[]", None),
        ("{}", None),
        ('{"output":"","metadata":{"exit_code":0,"duration_seconds":0.1}}', MAKE),
        ('{"output":"","metadata":{"exit_code":1,"duration_seconds":0.1}}', GREP),
        ('{"exit_code":0,"stdout":"","stderr":""}', MAKE),
        ('{"matches":[],"count":0,"truncated":false}', None),
        ('{"success":true,"results":[],"total":0,"query":"x"}', None),
        ('{"status":{},"timed_out":true}', WAIT),
        ('{"found":false,"matches":null}', None),
        (frame("", session=9821), POLL),
        ("Process 9821 is still running", None),
        ("still running", None),
        ("No new output yet", None),
        ("timed out", WAIT),
        ("Timed out after 30 seconds", WAIT),
        ("wait timed out", WAIT),
        ([{"type": "input_text", "text": frame("")}], MAKE),
        ([], MAKE),
    ],
)
def test_a_result_that_tells_nothing_is_uneventful(text: Any, asked: Item | None) -> None:
    """Empty outputs, searches without a match, and waits that brought nothing, as tools and shells word them."""
    assert is_uneventful(output(text), asked)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("ok", None),
        (frame("hi\n"), MAKE),
        (frame("", code=1), MAKE),
        (frame("", code=1), call({"cmd": "rg x src && make"})),
        (frame("", code=2), GREP),
        (frame("rg: src: No such file or directory", code=2), GREP),
        (frame("", session=9821), MAKE),
        (frame("", session=77), POLL),
        (frame("compiling", session=9821), POLL),
        ("error: no matches found", None),
        ("No matches found\nerror: src/x: permission denied", None),
        ("no such file", None),
        ("Error", None),
        ("timed out", MAKE),
        ("Command timed out after 120 seconds", MAKE),
        ("timed out waiting for the database", None),
        ("Wall time: 4.0 seconds\naborted by user", MAKE),
        ("No errors found", None),
        ("No tests failed", None),
        ("0", None),
        ("[1]", None),
        ('{"output":"","metadata":{"exit_code":1}}', MAKE),
        ('{"output":"boom","metadata":{"exit_code":1}}', GREP),
        ('{"matches":[],"error":"index is broken"}', None),
        ('{"success":false}', None),
        ('{"exists":false}', None),
        ('{"balance":0}', None),
        ('{"ok":true,"id":"job_1","results":[]}', None),
        ('{"isError":true,"content":[]}', None),
        ([{"type": "input_image", "image_url": PNG}], None),
        ("no matches " + "x" * 1_000, None),
    ],
)
def test_a_result_that_tells_something_or_fails_is_not_uneventful(text: Any, asked: Item | None) -> None:
    """An error is never uneventful; where it is in doubt, a result tells something."""
    assert not is_uneventful(output(text), asked)


def test_results_of_hosted_and_typed_calls_are_read_too() -> None:
    """Shells by their outcome, MCP by its error, patches by their status."""

    def shell(stdout: str, **outcome: Any) -> Item:
        result = {"stdout": stdout, "stderr": "", "outcome": outcome}
        return item(type="shell_call_output", call_id="c1", output=[result])

    def mcp(**more: Any) -> Item:
        return item(
            type="mcp_call", id="mcp_1", server_label="s", name="search_notes", arguments="{}", **more
        )

    asked = item(type="shell_call", call_id="c1", action={"commands": ["rg needle"]}, status="completed")
    assert is_uneventful(shell("", type="exit", exit_code=0))
    assert is_uneventful(shell("", type="exit", exit_code=1), asked)
    assert not is_uneventful(shell("", type="exit", exit_code=1))
    assert not is_uneventful(shell("", type="timeout"), asked)
    assert is_uneventful(mcp(output="[]"))
    assert not is_uneventful(mcp(output="", error="down"))
    assert not is_uneventful(mcp())
    assert is_uneventful(item(type="local_shell_call_output", id="c1", output=""))
    assert not is_uneventful(item(type="apply_patch_call_output", call_id="c1", status="failed", output=""))
    assert not is_uneventful(item(type="message", role="user", content=""))


# Superseded results


def pair(number: int, name: str, arguments: Any, text: str = "some content of it\n" * 20) -> list[Row]:
    call_id = f"c{number}"
    return [
        row(call(arguments, name, call_id), 20, f"fc_{number}"),
        row(output(text, call_id), 400, f"fco_{number}"),
    ]


def ask(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "exec_command", {"cmd": command, **more}


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (("read_file", {"path": "a.py"}), ("read_file", {"path": "./a.py"})),
        (("read_file", {"path": "a.py", "offset": 1, "limit": 9}), ("read_file", {"path": "a.py"})),
        (("read_file", {"path": "a.py", "limit": 9}), ("read_file", {"limit": 9, "path": "a.py"})),
        (("mcp__fs__read_file", {"path": "/w/a.py"}), ("view", {"file_path": "/w/a.py"})),
        (("str_replace_based_edit_tool", {"command": "view", "path": "a"}), ("open", {"filename": "a"})),
        (ask("cat a.py"), ask("nl -ba a.py")),
        (ask("sed -n '1,50p' a.py"), ask("cat a.py")),
        (ask("sed -n '10,50p' a.py"), ask("sed -n 1,200p a.py")),
        (ask("nl -ba a.py | sed -n '10,50p'"), ask("head -n 100 a.py")),
        (ask("cat a.py", workdir="/w"), ask("cat /w/a.py")),
        (ask("cd /w && cat a.py"), ("read_file", {"path": "/w/a.py"})),
        (("shell", {"command": ["bash", "-lc", "cat 'my file'"]}), ("cat", {"path": "my file"})),
        (ask("make test"), ask("make test")),
        (("grep", {"pattern": "x", "path": "s"}), ("grep", {"path": "s", "pattern": "x"})),
    ],
)
def test_a_newer_read_or_run_supersedes_an_older_one(older: Any, newer: Any) -> None:
    """The same file by path, whatever tool reads it, and the very same call with its arguments in any order."""
    rows = [*pair(1, *older), *pair(2, *newer)]
    assert find_superseded(rows) == {1}


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (("read_file", {"path": "a.py"}), ("read_file", {"path": "b.py"})),
        (("read_file", {"path": "a.py"}), ("read_file", {"path": "a.py", "limit": 9})),
        (("read_file", {"path": "a.py", "offset": 9}), ("read_file", {"path": "a.py", "limit": 9})),
        (ask("cat a.py"), ask("sed -n '1,50p' a.py")),
        (ask("sed -n '1,60p' a.py"), ask("sed -n '10,50p' a.py")),
        (ask("cat a.py", workdir="/w"), ask("cat a.py", workdir="/v")),
        (ask("cat a.py"), ask("cat a.py b.py")),
        (ask("cat a.py"), ask("cat a.py > b.py")),
        (ask("cat $F"), ask("cat  $F")),
        (ask("make test"), ask("make lint")),
        (("grep", {"pattern": "x"}), ("glob", {"pattern": "x"})),
        (("write_stdin", {"session_id": 1, "chars": ""}), ("write_stdin", {"session_id": 1, "chars": ""})),
        (("wait", {"seconds": 5}), ("wait", {"seconds": 5})),
    ],
)
def test_what_a_newer_call_does_not_repeat_is_not_superseded(older: Any, newer: Any) -> None:
    """Part of a file repeats no more than that part; polls tell what is new each time."""
    assert find_superseded([*pair(1, *older), *pair(2, *newer)]) == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        frame("boom", code=1),
        "Error: no such file a.py",
        "Traceback (most recent call last)\n  x\nKeyError: 3",
        "a: timed out",
    ],
)
def test_a_failure_is_not_superseded_and_supersedes_nothing(text: str) -> None:
    """Decision 32 of the design: failures are never superseded; what they do not repeat stays."""
    read = ("read_file", {"path": "a.py"})
    assert find_superseded([*pair(1, *read, text), *pair(2, *read)]) == frozenset()
    assert find_superseded([*pair(1, *read), *pair(2, *read, text)]) == frozenset()
    assert find_superseded([*pair(1, *read), *pair(2, *read, text), *pair(3, *read)]) == {1}


def test_an_unanswered_running_or_shortened_call_supersedes_no_read() -> None:
    """Ours: what is not there cannot stand for what was."""
    part, whole = ask("sed -n '900,950p' a.py"), ask("cat a.py")
    older = pair(1, *part)
    assert find_superseded([*older, *pair(2, *whole)[:1]]) == frozenset()
    assert find_superseded([*older, *pair(2, *whole, frame("x", session=5))]) == frozenset()
    assert find_superseded([*older, *pair(2, *whole, "a\n…77238 tokens truncated…\nb")]) == frozenset()


# Elisions


def elide(
    rows: list[Row], marks: dict[str, Mark] | None = None, protected_from: int = 99
) -> list[tuple[int, str]]:
    return [(each.position, each.reason) for each in find_elisions(rows, marks or {}, protected_from)]


NOTHING = "No matches found for " + "x" * 290
READ = ("read_file", {"path": "a.py"})


def test_uneventful_results_come_first_then_superseded_then_old_ones() -> None:
    """The order of the ladder's first rung; each kind oldest first."""
    rows = [
        *pair(1, *ask("ls")),
        *pair(2, *READ),
        *pair(3, "grep", {}, NOTHING),
        *pair(4, *READ),
        *pair(5, *ask("pwd")),
    ]
    assert elide(rows) == [(5, "uneventful"), (3, "superseded"), (1, "old"), (7, "old"), (9, "old")]
    assert elide(rows, protected_from=5) == [(3, "superseded"), (1, "old")]


def test_the_marks_of_the_client_decide() -> None:
    """Request key `antiphon.marks`: over what we read from a result; `keep` protects it."""
    rows = [
        *pair(1, *READ),
        *pair(2, "grep", {}, NOTHING),
        *pair(3, *READ),
        *pair(4, *ask("x"), frame("e" * 900, code=1)),
    ]
    marks: dict[str, Mark] = {"c1": "keep", "c2": "superseded", "c3": "uneventful", "c4": "uneventful"}
    assert elide(rows, marks) == [(5, "uneventful"), (7, "uneventful"), (3, "superseded")]


def test_a_result_marked_as_going_supersedes_nothing() -> None:
    """Ours: else both readings of a file would be gone."""
    assert elide([*pair(1, *READ), *pair(2, *READ)], {"c2": "uneventful"}) == [(3, "uneventful"), (1, "old")]


def test_an_old_failure_keeps_its_head_and_tail() -> None:
    """Decision 32 of the design: it shrinks, and is no bare placeholder."""
    text = frame("first words\n" + "noise\n" * 2_000 + "last words", code=2)
    [found] = find_elisions([pair(1, *ask("make"))[0], row(output(text), 3_000)], {}, 99)
    shown = fields(found.item)["output"]
    assert found.reason == "old"
    assert "first words" in shown
    assert shown.endswith("last words")
    assert "[middle left out: item fco_1, 3000 tokens]" in shown
    assert found.tokens <= OLD_FAILURE_TOKENS


def test_nothing_is_elided_that_saves_nothing() -> None:
    """No result goes that is not longer than its placeholder, nor one that costs no more."""
    assert elide([*pair(1, *ask("ls"), "README.md")]) == []
    assert elide([row(output("x" * 400), 20)]) == []
    assert elide([row(output(""), 40)]) == []
    assert elide([row(output("x" * 400), 300)]) == [(0, "old")]


def test_a_result_that_its_own_line_would_not_shorten_goes_as_an_old_one() -> None:
    """The line for an old result is the shortest; so what is left has nothing more to give."""
    short = "x" * 100
    rows = [*pair(1, *READ), *pair(2, *READ)]
    rows[1] = row(output(short), 26)
    assert elide(rows) == [(1, "old"), (3, "old")]


def test_rows_that_were_replaced_are_left_alone() -> None:
    """So a second pass finds nothing to do."""
    before = row(output("x" * 4_000), 1_000)
    assert elide([msgspec.structs.replace(before, replaced="elide")]) == []


RESULTS = [
    output("x" * 3_000, call_id="c1", id="fco_1", status="completed", future={"a": [1, 2.50]}),
    output([{"type": "input_text", "text": "x" * 3_000}, {"type": "input_image", "image_url": PNG}]),
    item(type="custom_tool_call_output", call_id="c1", output="x" * 3_000),
    item(type="local_shell_call_output", id="lsho_1", output="x" * 3_000),
    item(
        type="shell_call_output",
        call_id="c1",
        max_output_length=9,
        output=[
            {"stdout": "x" * 3_000, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}, "extra": 1},
            {"stdout": "", "stderr": "y" * 99, "outcome": {"type": "exit", "exit_code": 0}},
        ],
    ),
    item(type="apply_patch_call_output", call_id="c1", status="completed", output="x" * 3_000),
    item(type="mcp_call", id="mcp_1", server_label="s", name="f", arguments='{"a":1}', output="x" * 3_000),
    item(type="program_output", call_id="c1", status="completed", result="x" * 3_000),
    item(
        type="web_search_call",
        id="ws_1",
        status="completed",
        action={"type": "search", "query": "q"},
        results=[{"url": "https://a.b", "title": "t", "snippet": "x" * 3_000}],
    ),
    item(
        type="file_search_call", id="fs_1", queries=["q"], status="completed", results=[{"text": "x" * 3_000}]
    ),
    item(
        type="code_interpreter_call",
        id="ci_1",
        container_id="k",
        code="print()",
        status="completed",
        outputs=[{"type": "logs", "logs": "x" * 3_000}],
    ),
]
#: Where each type holds its result.
HELD = ("output", "outputs", "result", "results")


@pytest.mark.parametrize("made", RESULTS, ids=lambda made: made.type)
def test_only_the_result_of_an_item_is_replaced(made: Item) -> None:
    """Call ids, own ids, outcomes and unknown fields stay; the bytes and the typed view tell the same."""
    [found] = find_elisions([row(made, 1_000, "it_1")], {}, 99)
    before, after = fields(made), fields(found.item)
    assert {key: value for key, value in before.items() if key not in HELD} == {
        key: value for key, value in after.items() if key not in HELD
    }
    assert list(before) == list(after)
    assert "[old result left out: item it_1, 1000 tokens]" in found.item.raw.decode()
    assert b"xxx" not in found.item.raw
    assert found.item == decode_stored_item(found.item.raw)
    assert type(found.item.value) is type(made.value)
    assert found.tokens < 80


def test_each_command_of_a_shell_keeps_its_outcome() -> None:
    """A result for each command, as the wire has it; only what they printed goes."""
    [found] = find_elisions([row(RESULTS[4], 1_000)], {}, 99)
    first, second = fields(found.item)["output"]
    assert first == {
        "stdout": "[old result left out: item fco_1, 1000 tokens]",
        "stderr": "",
        "outcome": {"type": "exit", "exit_code": 0},
        "extra": 1,
    }
    assert second == {"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}


def test_a_placeholder_names_the_item_its_size_and_whether_it_is_stored() -> None:
    """What the model reads instead: it can be fetched by that id only where this server has it."""
    stored, elsewhere = row(output("x"), 812), row(output("x"), 812, node="")
    assert make_placeholder(stored, "old") == "[old result left out: item fco_1, 812 tokens]"
    assert (
        make_placeholder(stored, "uneventful") == "[result left out, it told nothing: item fco_1, 812 tokens]"
    )
    assert make_placeholder(stored, "superseded") == (
        "[result left out, a newer one follows: item fco_1, 812 tokens]"
    )
    assert make_placeholder(elsewhere, "image") == "[image left out: item fco_1, 812 tokens, not stored here]"


# Images


def message(*parts: Any, role: str = "user", **more: Any) -> Item:
    return item(type="message", role=role, content=list(parts), **more)


TEXT = {"type": "input_text", "text": "look at this"}
IMAGE = {"type": "input_image", "image_url": PNG, "detail": "high"}


@pytest.mark.parametrize("made", [message(TEXT, IMAGE, TEXT, id="msg_1"), output([TEXT, IMAGE, TEXT])])
def test_an_image_becomes_a_line_and_the_text_around_it_stays(made: Item) -> None:
    """The second rung: in messages and in outputs."""
    shortened = drop_row_images(row(made, 1_500, "it_1"))
    assert shortened is not None
    dropped = shortened.item
    name = "content" if made.type == "message" else "output"
    line = {"type": "input_text", "text": "[image left out: item it_1, 1500 tokens]"}
    assert fields(dropped) == {**fields(made), name: [TEXT, line, TEXT]}
    assert dropped == decode_stored_item(dropped.raw)


def test_each_of_several_images_has_its_line() -> None:
    """So the text tells which one it speaks of; a hint to the prompt cache stays where it was."""
    hint = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    dropped = drop_row_images(row(message(IMAGE, TEXT, {**IMAGE, **hint}), 3_000, "it_1"))
    assert dropped is not None
    assert dropped.replaced == "drop_images"
    assert dropped.tokens < 90
    assert fields(dropped.item)["content"] == [
        {"type": "input_text", "text": "[image left out: item it_1, image 1 of 2, 3000 tokens]"},
        TEXT,
        {"type": "input_text", "text": "[image left out: item it_1, image 2 of 2, 3000 tokens]", **hint},
    ]


def test_a_long_text_beside_an_image_keeps_its_cost() -> None:
    """Of the row's tokens only the image's are freed."""
    long = {"type": "input_text", "text": "word " * 6_000}
    dropped = drop_row_images(
        row(message(long, {"type": "input_image", "image_url": "https://a.b/c.png"}), 7_400)
    )
    assert dropped is not None
    assert 6_000 < dropped.tokens < 7_400


@pytest.mark.parametrize(
    "made",
    [
        item(type="message", role="user", content="no parts"),
        message(TEXT),
        message({"type": "output_text", "text": "x"}, role="assistant"),
        output("text"),
        item(type="reasoning", summary=[]),
    ],
)
def test_what_has_no_image_is_left_alone(made: Item) -> None:
    """Ours."""
    assert drop_row_images(row(made, 1_000)) is None


def test_an_image_that_costs_less_than_its_line_stays() -> None:
    """Nothing is replaced that saves nothing."""
    assert drop_row_images(row(message(IMAGE), 20)) is None


# Head and tail


def test_a_long_text_is_cut_to_its_head_and_tail() -> None:
    """The third thing that a plan may do to a row: the line between them names the whole."""
    made = output("a" * 9_000 + "z" * 9_000, future=1)
    cut = cut_row(row(made, 6_000), 200).item
    shown = fields(cut)["output"]
    assert fields(cut) == {**fields(made), "output": shown}
    head, notice, tail = shown.split("\n")
    assert notice == "[middle left out: item fco_1, 6000 tokens]"
    assert set(head) == {"a"}
    assert set(tail) == {"z"}
    assert len(shown.encode()) <= 200 * BYTES_PER_TOKEN
    assert len(shown) > 400


@pytest.mark.parametrize("made", RESULTS, ids=lambda made: made.type)
def test_every_kind_of_result_can_be_cut(made: Item) -> None:
    """The row's cost comes down to what was asked."""
    cut = cut_row(row(made, 1_100, "it_1"), 300)
    assert cut.tokens <= 300
    assert cut.replaced == "cut"
    assert (
        "[middle left out: item it_1, 1100 tokens]" in cut.item.raw.decode()
        or made.type == "function_call_output"
    )
    assert cut.item == decode_stored_item(cut.item.raw)
    assert cut_row(cut, 300) is cut


def test_a_users_message_is_cut_with_its_parts() -> None:
    """Images and files become lines; what stands in the middle goes."""
    parts = [
        {"type": "input_text", "text": "first " * 900},
        IMAGE,
        {"type": "input_text", "text": "middle"},
        {"type": "input_file", "file_data": "QQ==", "filename": "a.txt"},
        {"type": "input_text", "text": " last" * 900, "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]
    cut = cut_row(row(message(*parts), 5_000, "it_1"), 400)
    first, last = fields(cut.item)["content"]
    assert first["text"].startswith("first first")
    assert first["text"].endswith("\n[middle left out: item it_1, 5000 tokens]\n")
    assert last["text"].endswith(" last last")
    assert last["prompt_cache_breakpoint"] == {"mode": "explicit"}
    assert cut.tokens <= 400


def test_a_dense_text_is_cut_by_its_own_measure() -> None:
    """A model that takes each digit alone has a token for every byte; so has it for what is kept."""
    cut = cut_row(row(output("1" * 6_000), 6_000), 600)
    assert fields(cut.item)["output"].count("1") <= 600
    assert cut.tokens <= 600


@pytest.mark.parametrize(
    "made",
    [
        item(type="message", role="assistant", content="x" * 9_000),
        item(type="message", role="system", content="x" * 9_000),
        item(type="reasoning", summary=[{"type": "summary_text", "text": "x" * 9_000}]),
        call("x" * 9_000),
    ],
)
def test_only_results_and_what_users_say_is_cut(made: Item) -> None:
    """Calls, reasoning, answers and system text stay as they are, or go whole."""
    before = row(made, 3_000)
    assert cut_row(before, 100) is before
    assert cut_row(before, 100).item is made


def test_what_would_cost_no_less_when_cut_is_not_cut() -> None:
    """Every command of a shell keeps its outcome, and each has its marks."""
    result = {"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    before = row(item(type="shell_call_output", call_id="c1", output=[result] * 100), 700)
    assert cut_row(before, 100) is before


def test_what_is_small_enough_is_not_cut() -> None:
    """Byte for byte the same."""
    before = row(output("x" * 300), 100)
    assert cut_row(before, 100) is before


@pytest.mark.parametrize(
    ("texts", "room", "cut"),
    [
        (["abcdef", "gh"], 4, ["ab..", "gh"]),
        (["abcdef"], 4, ["ab..ef"]),
        (["ab", "cd", "ef"], 4, ["ab", "..", "ef"]),
        (["ab", "cd", "ef", "gh"], 4, ["ab", "..", "", "gh"]),
        (["abc"], 0, [".."]),
        (["", "abcd"], 2, ["", "a..d"]),
        (["äöü"], 3, ["..ü"]),
        (["ab"], 2, ["ab"]),
        ([], 0, []),
    ],
)
def test_texts_are_cut_from_the_middle(texts: list[str], room: int, cut: list[str]) -> None:
    """Bytes are counted, and no character is cut in two."""
    assert cut_texts(texts, room, "..") == cut


# What nobody sends


plain = (
    st.none()
    | st.booleans()
    | st.integers(-9, 999)
    | st.sampled_from(["", "x" * 900, "error: x", "é" * 500, "{}", "[1"])
)
keys = st.sampled_from(
    ["type", "text", "stdout", "outcome", "message", "image_url", "exit_code", "output", "error", "url"]
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=8
)
types = st.sampled_from(
    [*sorted({made.type for made in RESULTS}), "message", "agent_message", "computer_call_output"]
)


@settings(deadline=None)
@given(types, values, values, st.sampled_from(["x", 5, None]))
def test_an_item_of_any_form_is_read_or_left_alone(kind: str, held: Any, error: Any, call_id: Any) -> None:
    """Stored items may break every rule of the input: what is made of them is an item again, or nothing is."""
    content = dict.fromkeys((*HELD, "content"), held)
    made = decode_stored_item(
        msgspec.json.encode({"type": kind, "role": "user", "call_id": call_id, "error": error, **content})
    )
    before = row(made, 5_000)
    assert find_superseded([before]) == frozenset()
    assert is_uneventful(made) in (True, False)
    for after in (cut_row(before, 120), drop_row_images(before) or before):
        assert after is before or (after.tokens < 5_000 and after.item.type == kind)
    for found in find_elisions([before], {}, 1):
        assert found.item.type == kind
        assert found.tokens < 5_000
        assert b"item fco_1" in found.item.raw


@settings(deadline=None)
@given(st.text(max_size=40), st.text(max_size=40))
def test_calls_of_any_words_are_read(name: str, arguments: str) -> None:
    """A model writes what it likes."""
    rows = [row(call(arguments, name=name or "f"), 9), row(output("x" * 999), 300)]
    assert len(find_elisions(rows, {}, 9)) == 1
