"""The checker's pure parts: verdicts, lenient reading, reports, the manifest, isolation of probes."""

import asyncio
import inspect
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.checker import (
    MANIFEST,
    CheckOptions,
    Outcome,
    Report,
    Requirement,
    Result,
    Verdict,
    render_json,
    render_junit,
    render_result,
    render_summary,
    render_sums,
    run_check,
    select_requirements,
)
from antiphon.checker.answers import Answer, Refusal, read_refusal, read_response, tidy
from antiphon.checker.doubles import DOUBLES
from antiphon.checker.report import clean_text
from antiphon.checker.requirements import (
    backgrounding,
    compacting,
    compaction,
    context_managing,
    continuing,
    conversing,
    errors,
    events,
    fields,
    filling,
    honouring,
    isolating,
    items,
    keeping,
    open_responses,
    refusing,
    rejecting,
    restarting,
    serving,
    sockets,
    streaming,
    tools,
)
from antiphon.checker.requirements.filling import find_timeout, takes_too_long
from antiphon.checker.subject import Subject
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Reading, compare_counts, judge_memory
from antiphon.client import AppTransport

#: Every module that holds probes.
PROBE_MODULES = (
    backgrounding,
    compacting,
    compaction,
    context_managing,
    continuing,
    conversing,
    errors,
    events,
    fields,
    filling,
    honouring,
    isolating,
    items,
    keeping,
    open_responses,
    refusing,
    rejecting,
    restarting,
    serving,
    sockets,
    streaming,
    tools,
)
PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN

# Verdicts.


@pytest.mark.parametrize(
    ("counts", "say"),
    [
        ((50, 50, 20), "same"),
        ((20, 50, 20), "none"),
        ((51, 50, 20), "near"),
        ((48, 50, 20), "near"),
        ((1000, 1019, 20), "near"),
        ((47, 50, 20), "other"),
        ((35, 50, 20), "other"),
        ((21, 50, 20), "other"),
        ((90, 50, 20), "other"),
        ((21, 22, 20), "other"),
        ((20, 20, 20), "void"),
        ((20, 20, 30), "void"),
        ((0, 0, 0), "void"),
        ((None, 50, 20), "void"),
        ((50, None, 20), "void"),
        ((50, 50, None), "void"),
    ],
)
def test_counts_say_what_they_can_and_no_more(
    counts: tuple[int | None, int | None, int | None], say: str
) -> None:
    """Ours: precondition full > none; equality decides; one in fifty is near."""
    assert compare_counts(*counts) == say


@pytest.mark.parametrize(
    ("counts", "words", "verdict"),
    [
        # Counts decide, whatever the text says.
        ((50, 50, 20), (True, True, False), PASS),
        ((50, 50, 20), (False, True, False), PASS),
        ((50, 50, 20), (False, False, False), PASS),
        ((20, 50, 20), (False, True, False), FAIL),
        ((20, 50, 20), (True, True, False), FAIL),
        ((20, 50, 20), (False, False, False), FAIL),
        # Counts do not decide: the text does, if its controls hold.
        ((51, 50, 20), (True, True, False), PASS),
        ((51, 50, 20), (False, True, False), FAIL),
        ((51, 50, 20), (True, True, True), UNKNOWN),
        ((51, 50, 20), (False, False, False), UNKNOWN),
        ((35, 50, 20), (True, True, False), UNKNOWN),
        ((35, 50, 20), (False, True, False), FAIL),
        ((None, None, None), (True, True, False), PASS),
        ((None, None, None), (False, True, False), FAIL),
        ((None, None, None), (True, False, False), UNKNOWN),
        ((0, 0, 0), (False, False, False), UNKNOWN),
    ],
)
def test_memory_is_judged_by_counts_first_and_by_text_second(
    counts: tuple[int | None, ...], words: tuple[bool, ...], verdict: Verdict
) -> None:
    """Ours: the verdict rules, and both counts stand in the explanation."""
    readings = [Reading(count, "", word) for count, word in zip(counts, words, strict=True)]
    outcome = judge_memory(*readings)
    assert outcome.verdict is verdict
    told = ["untold" if count is None else str(count) for count in counts]
    assert outcome.explanation.startswith(
        f"input_tokens {told[0]} by id, {told[1]} with full history, {told[2]} with none: "
    )


# Lenient reading.


def make_body(**changes: Any) -> dict[str, Any]:
    """A small response object."""
    return {"id": "resp_1", "status": "completed", "output": [], "usage": {"input_tokens": 3}, **changes}


def test_a_response_is_read_with_its_text_calls_and_count() -> None:
    """Responses API, the response object."""
    message = {"type": "message", "content": [{"type": "output_text", "text": "a"}, {"text": "b"}, 7]}
    call = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
    answer = read_response(make_body(output=[message, call, "no item"]))
    assert isinstance(answer, Answer)
    assert (answer.text, answer.calls, answer.tokens, answer.is_empty) == ("a b", [call], 3, False)


@pytest.mark.parametrize(
    ("output", "is_empty"),
    [
        ([], True),
        ([{"type": "message", "content": []}], True),
        ([{"type": "message", "content": [{"type": "output_text", "text": ""}]}], True),
        ([{"type": "reasoning", "summary": []}], True),
        ([{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}], False),
        ([{"type": "message", "content": "text"}], False),
        ([{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": ""}], False),
    ],
)
def test_an_answer_without_text_call_or_refusal_is_empty(output: list[Any], is_empty: bool) -> None:
    """Public issue ollama/ollama#18419."""
    answer = read_response(make_body(output=output))
    assert isinstance(answer, Answer)
    assert answer.is_empty is is_empty


@pytest.mark.parametrize(
    "usage", [None, "x", {}, {"input_tokens": None}, {"input_tokens": "3"}, {"input_tokens": True}]
)
def test_a_count_that_is_none_is_untold(usage: Any) -> None:
    """Ours."""
    answer = read_response(make_body(usage=usage))
    assert isinstance(answer, Answer)
    assert answer.tokens is None


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "x",
        {},
        make_body(output="x"),
        make_body(status=[]),
        make_body(status="queued"),
        make_body(id=7),
    ],
)
def test_what_is_no_finished_response_is_none(body: Any) -> None:
    """Ours."""
    assert read_response(body) is None


def test_a_failed_response_is_a_refusal_with_status_200() -> None:
    """Responses API, errors in a response."""
    body = make_body(status="failed", error={"code": "context_length_exceeded", "message": "too long"})
    refusal = read_response(body)
    assert refusal == Refusal(200, "too long", code="context_length_exceeded")
    assert refusal.is_overflow


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"error":{"message":"m","code":"c","param":"p"}}', Refusal(400, "m", "c", "p")),
        (b'{"error":{"message":"m","code":404,"param":null}}', Refusal(400, "m")),
        (b'{"error":"m"}', Refusal(400, "m")),
        (b'{"detail":"m"}', Refusal(400, "m")),
        (b"plain text", Refusal(400, "plain text")),
        (b"\xff\x1b[2J", Refusal(400, "\ufffd [2J")),
        (b"", Refusal(400, "")),
    ],
)
def test_refusals_are_read_in_every_shape(raw: bytes, expected: Refusal) -> None:
    """Ours: OpenAI's envelope, a text, FastAPI's detail, no JSON at all."""
    assert read_refusal(400, raw) == expected


def test_deeply_nested_json_is_no_crash() -> None:
    """Ours."""
    assert read_refusal(500, b"[" * 100_000).status == 500


def test_a_servers_text_cannot_steer_the_terminal_and_is_short() -> None:
    """Ours."""
    assert tidy("a\x1b[31m\r\nb\u202e\u2028c\x00") == "a [31m b c"
    assert len(tidy("x" * 10_000)) <= 303


# Reports.


def make_report(*verdicts: Verdict, text: str = "because") -> Report:
    """A report with these verdicts."""
    results = [
        Result(f"state.r{n}", "state", "source", "sentence", verdict, text, {"input_tokens_by_id": n}, 0.5)
        for n, verdict in enumerate(verdicts)
    ]
    return Report("http://h/v1/responses", "m", 1, results, ["a note"])


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ((PASS, PASS), 0),
        ((PASS, FAIL, UNKNOWN), 1),
        ((PASS, UNKNOWN), 2),
        ((), 2),
    ],
)
def test_exit_status_is_0_kept_1_broken_2_undecided(verdicts: tuple[Verdict, ...], status: int) -> None:
    """Ours: a run that tried nothing proved nothing."""
    assert make_report(*verdicts).exit_status == status


def test_what_is_undecided_for_lack_of_an_option_leaves_the_status_at_0() -> None:
    """Ours: it says nothing about the server; but where nothing else was kept, nothing was shown."""
    report = make_report(PASS, UNKNOWN)
    assert report.exit_status == 2
    unasked = msgspec.structs.replace(report.results[1], needs="--second-key-env")
    assert msgspec.structs.replace(report, results=[report.results[0], unasked]).exit_status == 0
    assert msgspec.structs.replace(report, results=[unasked]).exit_status == 2
    summary = render_summary(msgspec.structs.replace(report, results=[unasked]))
    assert "note: --second-key-env was not given or not enough" in summary
    unseen = msgspec.structs.replace(unasked, needs="a model that reasons")
    summary = render_summary(msgspec.structs.replace(report, results=[unseen]))
    assert "some need a model that reasons, and this server and model showed none" in summary
    assert "not given" not in summary


def test_the_sums_of_an_area_count_what_is_undecided_as_such() -> None:
    """Ours: undecided is not passed."""
    assert render_sums("fields", {PASS: 53, UNKNOWN: 10}) == "pass     53 of 63 in fields, 10 undecided"
    assert render_sums("fields", {PASS: 1, FAIL: 2}) == "pass     1 of 3 in fields, 2 failed"
    assert render_sums("fields", {UNKNOWN: 2}) == "unknown  0 of 2 in fields, 2 undecided"


def test_the_time_that_a_long_history_would_take_is_told() -> None:
    """Ours: a step takes as much longer as its history; with that time no step is left out."""
    spent_s, last_s = 30.0, 20.0
    timeout_s = find_timeout(spent_s, last_s, 1 / 16)
    assert takes_too_long(spent_s, last_s, 300.0)
    for _ in range(2):
        assert not takes_too_long(spent_s, last_s, timeout_s)
        last_s *= 4
        spent_s += last_s
    assert takes_too_long(30.0 + 80.0, 80.0, timeout_s * 0.9)


def test_the_table_has_verdict_id_explanation_and_sums() -> None:
    """Ours."""
    report = make_report(PASS, FAIL, UNKNOWN)
    shown = "\n".join(render_result(result) for result in report.results)
    assert [line.split()[:2] for line in shown.splitlines()[::2]] == [
        ["pass", "state.r0"],
        ["FAIL", "state.r1"],
        ["unknown", "state.r2"],
    ]
    summary = render_summary(report)
    assert "note: a note" in summary
    assert "1 passed, 1 failed, 1 undecided" in summary


def test_json_reads_back_with_counts_and_exit_status() -> None:
    """Ours."""
    body = json.loads(render_json(make_report(PASS, FAIL)))
    assert body["counts"] == {"pass": 1, "fail": 1, "unknown": 0}
    assert body["exit_status"] == 1
    assert body["results"][1]["evidence"] == {"input_tokens_by_id": 1}


def test_junit_is_well_formed_whatever_a_server_says() -> None:
    """Ours: texts pass through `clean_text` before they stand in a report."""
    text = clean_text("<&\"'>\x00\x1b ]]> \ud800 ok", None)
    suite = ElementTree.fromstring(render_junit(make_report(PASS, FAIL, UNKNOWN, text=text)).encode())
    assert (suite.attrib["tests"], suite.attrib["failures"], suite.attrib["skipped"]) == ("3", "1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert failure.attrib["message"] == text


def test_the_key_is_cut_from_texts() -> None:
    """Ours: and so is a second one, of which the first is a part."""
    assert clean_text("Incorrect API key: sk-123456.", "sk-123456") == "Incorrect API key: ***."
    assert clean_text("sk-123456-b, sk-123456", "sk-123456", None, "sk-123456-b") == "***, ***"


# The manifest.


def get_function(probe: Any) -> Any:
    """The function of a probe; a family's probe is given its case, and one on a line is given to what opens it."""
    if not isinstance(probe, partial):
        return probe
    return probe.args[0] if probe.func is sockets.probe_on_line else probe.func


def test_every_requirement_has_one_probe_and_every_probe_one_requirement() -> None:
    """Ours: both ways."""
    written = {
        function
        for module in PROBE_MODULES
        for name, function in inspect.getmembers(module, inspect.iscoroutinefunction)
        if name.startswith("probe_") and function.__module__ == module.__name__
    } - {sockets.probe_on_line}
    named = [requirement.probe for requirement in MANIFEST]
    assert len(set(map(repr, named))) == len(named)
    assert {get_function(probe) for probe in named} == written
    folder = Path(continuing.__file__).parent
    others = {"__init__", "judging", "manifest", "requirement", "speaking"}
    modules = {module.__name__.rpartition(".")[2] for module in PROBE_MODULES}
    assert {file.stem for file in folder.glob("*.py")} - others == modules


def test_every_requirement_has_an_id_of_its_area_a_source_and_one_sentence() -> None:
    """Ours."""
    assert len({requirement.id for requirement in MANIFEST}) == len(MANIFEST)
    for requirement in MANIFEST:
        assert requirement.id.startswith(f"{requirement.area}.")
        assert requirement.source
        assert requirement.sentence.endswith(".")
        assert get_function(requirement.probe).__doc__


def test_requirements_are_chosen_by_id_or_area() -> None:
    """Ours."""
    assert select_requirements() == list(MANIFEST)
    areas = list(dict.fromkeys(item.area for item in MANIFEST))
    assert areas == [
        *("state", "stream", "errors", "fields", "open-responses", "tools", "choices", "includes", "items"),
        *(
            "parts",
            "endpoints",
            "conversations",
            "background",
            "events",
            "websocket",
            "compaction",
            "isolation",
        ),
        "restart",
    ]
    assert [item for area in areas for item in select_requirements([area])] == list(MANIFEST)
    assert [item.id for item in select_requirements(["state.echo", "state.continues"])] == [
        "state.continues",
        "state.echo",
    ]
    with pytest.raises(KeyError, match="nothing"):
        select_requirements(["nothing"])


# The run.


def try_probe(probe: Callable[[Subject], Awaitable[Outcome]], timeout_s: float = 10.0) -> list[Result]:
    """The results of this probe and of an honest one after it."""
    tried = Requirement("state.tried", "state", "ours", "Tried.", probe)
    options = CheckOptions((tried, MANIFEST[0]), seed=1, timeout_s=timeout_s)
    return asyncio.run(run_check(AppTransport(DOUBLES["honest"]()), "toy", options)).results


def test_a_probe_that_breaks_is_undecided_and_the_next_one_runs() -> None:
    """Ours."""

    async def break_down(subject: Subject) -> Outcome:
        raise ZeroDivisionError("oh")

    broken, after = try_probe(break_down)
    assert (broken.verdict, broken.explanation) == (UNKNOWN, "the probe broke: ZeroDivisionError: oh")
    assert after.verdict is PASS


def test_a_probe_that_cannot_decide_says_why() -> None:
    """Ours."""

    async def give_up(subject: Subject) -> Outcome:
        raise UndecidedError("no idea")

    assert (try_probe(give_up)[0].verdict, try_probe(give_up)[0].explanation) == (UNKNOWN, "no idea")


def test_a_probe_that_hangs_is_undecided_in_bounded_time() -> None:
    """Ours."""

    async def hang(subject: Subject) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    hung, after = try_probe(hang, timeout_s=0.2)
    assert (hung.verdict, hung.explanation) == (UNKNOWN, "not finished in 0.2 s")
    assert after.verdict is PASS


def test_results_are_told_as_they_come() -> None:
    """Ours."""
    told: list[str] = []
    options = CheckOptions(MANIFEST[:4], seed=1)
    transport = AppTransport(DOUBLES["honest"]())
    report = asyncio.run(run_check(transport, "toy", options, lambda result: told.append(result.id)))
    assert told == [result.id for result in report.results] == [item.id for item in MANIFEST[:4]]


def test_the_same_seed_makes_the_same_words_and_another_seed_others() -> None:
    """Ours."""
    transport = AppTransport(DOUBLES["honest"]())
    words = []
    for seed in (1, 1, 2):
        subject = Subject(transport, "toy", seed=seed)
        subject.start_probe("state.continues")
        words.append([subject.make_word() for _ in range(3)])
    assert words[0] == words[1] != words[2]
    assert len(set(words[0])) == 3


def test_reports_are_plain_data() -> None:
    """Ours: a report decodes back into an equal one."""
    report = make_report(PASS, FAIL)
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_a_key_that_a_shortened_text_ends_in_is_hidden_too() -> None:
    """Ours: a key stands in no form of the report, not even its beginning."""
    key = "SECRETKEY-0123456"
    assert clean_text(f"the server said {key[:10]}... and {key}", key) == "the server said ***... and ***"
