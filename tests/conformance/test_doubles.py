"""The checker against servers that misbehave in one known way each.

The tables say what each double must be found guilty of; that of the sockets was taken from runs. They are compared
whole, so a probe that turns green by itself, or red for another's fault, is found here.
"""

import asyncio
from collections.abc import Iterable

import msgspec
import pytest

from antiphon.checker import (
    MANIFEST,
    CheckOptions,
    Outcome,
    Requirement,
    Result,
    Verdict,
    render_json,
    render_junit,
    run_check,
    select_requirements,
)
from antiphon.checker.doubles import DOUBLES, FAMILIES, SINGLE_DOUBLES
from antiphon.checker.doubles.faults import KEY
from antiphon.checker.socket_line import FRAME_S, SOCKET_NEEDS
from antiphon.checker.subject import Subject
from antiphon.checker.verdicts import passed
from antiphon.client import AppTransport, TransportLimits
from tests.conformance import families
from tests.conformance.verdicts import FAILING, UNDECIDED, UNSTEERED

#: The doubles need none: where MCP is refused, nobody looks for the server.
MCP_URL = "http://mcp.example/mcp"


def check_double(
    name: str, requirements: Iterable[Requirement] = MANIFEST, seed: int = 1
) -> dict[str, Verdict]:
    """The verdict of each requirement on a fresh double."""
    timeout_s = 0.3 if name == "silent" else 30.0
    double = DOUBLES[name]()

    async def restart() -> None:
        double.restart()

    options = CheckOptions(
        requirements=tuple(requirements),
        seed=seed,
        timeout_s=timeout_s,
        second_key="key-of-another-tenant",
        restart=restart,
        mcp_url=MCP_URL,
        frame_s=0.05 if name == "answers-one-frame" else FRAME_S,
    )
    transport = AppTransport(double, TransportLimits(close_timeout_s=0.1))
    report = asyncio.run(run_check(transport, "toy", options))
    return {result.id: result.verdict for result in report.results}


def expect(name: str, requirement_id: str) -> Verdict:
    """The verdict that the tables demand."""
    if name in SINGLE_DOUBLES:
        failing, undecided = (
            requirement_id in FAILING.get(name, ()),
            requirement_id in UNDECIDED.get(name, ()),
        )
    else:
        family = next(prefix for prefix, members in FAMILIES.items() if name in members)
        failing = families.is_guilty(family, name.removeprefix(family), requirement_id)
        undecided = requirement_id in families.UNDECIDED.get(name, ())
    undecided = undecided or (requirement_id in UNSTEERED and name != "has-no-sockets")
    if name == "hides-field-temperature":
        # What the probes themselves send is refused, so nothing can be asked.
        undecided = True
    return Verdict.FAIL if failing else Verdict.UNKNOWN if undecided else Verdict.PASS


def find_wrong_verdicts(name: str, requirements: Iterable[Requirement]) -> dict[str, Verdict]:
    """The verdicts on a double that differ from the tables."""
    found = check_double(name, requirements)
    return {key: verdict for key, verdict in found.items() if verdict is not expect(name, key)}


async def pass_everything(subject: Subject) -> Outcome:
    """A probe that looks at nothing."""
    return passed("nothing was tried")


@pytest.mark.parametrize("name", SINGLE_DOUBLES)
def test_each_double_is_found_guilty_of_its_fault_and_of_nothing_else(name: str) -> None:
    """Ours: a table from double to failing and undecided requirements, compared whole."""
    assert find_wrong_verdicts(name, MANIFEST) == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_member_of_a_family_breaks_its_own_subject_alone(family: str) -> None:
    """Ours: within the family's areas, by a rule with its exceptions written down."""
    requirements = select_requirements(families.AREAS[family])
    wrong = {name: find_wrong_verdicts(name, requirements) for name in FAMILIES[family]}
    assert {name: verdicts for name, verdicts in wrong.items() if verdicts} == {}


def find_guilty(requirement_id: str) -> list[str]:
    """The doubles that break a requirement, by the tables."""
    single = [name for name in SINGLE_DOUBLES if requirement_id in FAILING.get(name, ())]
    members = [
        f"{family}{name}"
        for family, doubles in FAMILIES.items()
        for name in (double.removeprefix(family) for double in doubles)
        if requirement_id in {item.id for item in select_requirements(families.AREAS[family])}
        and families.is_guilty(family, name, requirement_id)
    ]
    return [*single, *members]


@pytest.mark.parametrize("requirement", MANIFEST, ids=lambda requirement: requirement.id)
def test_a_probe_that_always_passes_is_found_out(requirement: Requirement) -> None:
    """Ours: with any probe's verdict replaced by "pass", the comparison with the tables must complain."""
    gutted = msgspec.structs.replace(requirement, probe=pass_everything)
    red = find_guilty(requirement.id)
    assert red, "no shipped double breaks this requirement"
    for name in red[:2]:
        assert find_wrong_verdicts(name, [gutted]) == {requirement.id: Verdict.PASS}
        assert check_double(name, [requirement]) == {requirement.id: Verdict.FAIL}


def test_the_tables_speak_of_every_double_and_of_real_requirements() -> None:
    """Ours."""
    known = {requirement.id for requirement in MANIFEST}
    assert set(FAILING) | set(UNDECIDED) <= set(SINGLE_DOUBLES)
    assert set().union(*FAILING.values(), *UNDECIDED.values()) <= known
    assert set(families.AREAS) == set(FAMILIES)
    assert {*families.FAILING, *families.UNDECIDED} <= set(DOUBLES)
    assert set().union(*families.FAILING.values(), *families.UNDECIDED.values()) <= known


def test_verdicts_do_not_hang_on_the_random_words() -> None:
    """Ours: other words and ids, the same verdicts."""
    for seed in range(2, 7):
        found = check_double("honest", seed=seed)
        assert {key for key, verdict in found.items() if verdict is not Verdict.PASS} == UNSTEERED


def test_a_probe_alone_sends_the_same_words_as_among_others() -> None:
    """Ours: `--only` with the seed of a report repeats what the report saw."""
    seen: list[str] = []

    async def note_word(subject: Subject) -> Outcome:
        seen.append(subject.make_word())
        return passed("noted")

    noting = [msgspec.structs.replace(item, probe=note_word) for item in MANIFEST[:3]]
    check_double("honest", noting)
    check_double("honest", noting[2:])
    assert len(set(seen[:3])) == 3
    assert seen[3] == seen[2]


def test_streams_of_the_honest_double_keep_the_protocols_order() -> None:
    """Responses API, streaming; a note would name each fault that the stream checker finds."""
    report = asyncio.run(run_check(AppTransport(DOUBLES["honest"]()), "toy", CheckOptions(seed=1)))
    assert report.notes == []


def test_a_stream_that_breaks_off_is_noted() -> None:
    """Responses API, streaming: exactly one terminal event; public issue ollama/ollama#17118."""
    report = asyncio.run(run_check(AppTransport(DOUBLES["breaks-streams"]()), "toy", CheckOptions(seed=1)))
    assert any("without a terminal event" in note for note in report.notes)


def test_refused_sampling_parameters_are_left_out_and_noted() -> None:
    """Responses API, errors: reasoning models refuse temperature."""
    report = asyncio.run(run_check(AppTransport(DOUBLES["refuses-sampling"]()), "toy", CheckOptions(seed=1)))
    assert [note.split(" ")[0] for note in report.notes] == ["temperature", "max_output_tokens"]
    assert {item.id for item in report.results if item.verdict is not Verdict.PASS} == {
        "stream.cut",
        "tools.mcp.approval",
        "choices.mcp",
        "events.response.incomplete",
        "isolation.other-key",
        "isolation.conversations",
        "websocket.other-key",
        "compaction.other-key",
        *UNSTEERED,
        "restart.kept",
    }


def test_a_key_is_sent_and_stands_in_no_report() -> None:
    """Ours: not even where the server quotes a wrong one."""
    right = CheckOptions(MANIFEST[:3], api_key=KEY)
    report = asyncio.run(run_check(AppTransport(DOUBLES["needs-key"]()), "toy", right))
    assert report.exit_status == 0
    wrong = CheckOptions(MANIFEST[:3], api_key="sk-wrong-key-123")
    report = asyncio.run(run_check(AppTransport(DOUBLES["needs-key"]()), "toy", wrong))
    shown = render_json(report) + render_junit(report)
    assert "Incorrect API key provided: '***'" in report.results[0].explanation
    assert "sk-wrong-key-123" not in shown
    assert report.exit_status == 2


def test_without_a_model_the_first_of_the_server_is_taken_and_said() -> None:
    """Ours."""
    report = asyncio.run(run_check(AppTransport(DOUBLES["honest"]()), None, CheckOptions(MANIFEST[:1])))
    assert report.model == "toy"
    assert "took toy" in report.notes[0]


@pytest.mark.parametrize(
    ("name", "text"), [("unavailable", "The model is loading."), ("no-such-model", "model 'toy' not found")]
)
def test_a_server_that_is_not_ready_is_undecided_with_its_own_text(name: str, text: str) -> None:
    """Ours: 503 and 404 before the first answer say nothing about state."""
    report = asyncio.run(run_check(AppTransport(DOUBLES[name]()), "toy", CheckOptions(MANIFEST[:2])))
    assert [text in result.explanation for result in report.results] == [True, True]
    assert report.exit_status == 2


def find_result(name: str, requirement_id: str, options: CheckOptions) -> Result:
    """One requirement's result on a fresh double."""
    chosen = msgspec.structs.replace(options, requirements=select_requirements([requirement_id]))
    return asyncio.run(run_check(AppTransport(DOUBLES[name]()), "toy", chosen)).results[0]


@pytest.mark.parametrize(
    ("requirement_id", "needs"),
    [
        ("isolation.other-key", "--second-key-env"),
        ("restart.kept", "--restart-command"),
        ("state.silent-truncation", "--window-tokens"),
    ],
)
def test_what_was_not_asked_for_is_undecided_and_names_its_option(requirement_id: str, needs: str) -> None:
    """Ours: and such a verdict does not change the exit status of a run that kept everything else."""
    options = CheckOptions(seed=1, window_tokens=1000)
    result = find_result("honest", requirement_id, options)
    assert (result.verdict, result.needs) == (Verdict.UNKNOWN, needs)
    report = asyncio.run(run_check(AppTransport(DOUBLES["honest"]()), "toy", options))
    assert report.exit_status == 0
    alone = msgspec.structs.replace(options, requirements=select_requirements([requirement_id]))
    assert asyncio.run(run_check(AppTransport(DOUBLES["honest"]()), "toy", alone)).exit_status == 2


def test_the_size_that_was_counted_whole_is_told() -> None:
    """Ours: "not found" is worth only as much as the size that was tried."""
    result = find_result("honest", "state.silent-truncation", CheckOptions(seed=1, window_tokens=3000))
    assert result.evidence["history_tokens_counted_whole"] >= 3000  # type: ignore[operator]
    assert f"{result.evidence['history_tokens_counted_whole']} tokens" in result.explanation


@pytest.mark.parametrize(
    ("name", "verdict", "told"),
    [
        ("truncates-silently", Verdict.FAIL, "left out, and nothing says so"),
        ("truncates-openly", Verdict.PASS, "the response says so (truncation 'auto')"),
        ("overflows", Verdict.PASS, "code context_length_exceeded"),
    ],
)
def test_a_full_window_is_found_with_what_the_server_says_of_it(
    name: str, verdict: Verdict, told: str
) -> None:
    """Ours: refused or told is kept, cut in silence is broken."""
    result = find_result(name, "state.silent-truncation", CheckOptions(seed=1))
    assert result.verdict is verdict
    assert told in result.explanation


def test_a_second_key_that_is_refused_decides_nothing() -> None:
    """Ours: and neither key stands in the explanation."""
    options = CheckOptions(seed=1, api_key=KEY, second_key="a-wrong-second-key")
    result = find_result("needs-key", "isolation.other-key", options)
    assert result.verdict is Verdict.UNKNOWN
    assert "401" in result.explanation
    assert "a-wrong-second-key" not in result.explanation


@pytest.mark.parametrize(
    ("name", "hits"), [("honest", (5, 0, 5)), ("forgetful", (0, 0, 0)), ("mute", (0, 0, 5))]
)
def test_recall_counts_hits_by_id_and_without_history(name: str, hits: tuple[int, int, int]) -> None:
    """Ours: the counts beside them tell a forgetful server from a model that repeats nothing."""
    options = CheckOptions((), seed=1, recall_words=5)
    recall = asyncio.run(run_check(AppTransport(DOUBLES[name]()), "toy", options)).recall
    assert recall is not None
    assert (recall.words, recall.stopped) == (5, None)
    assert (recall.by_id, recall.no_history, recall.counted) == hits


def test_a_server_without_websocket_mode_is_said_to_offer_none() -> None:
    """Ours: 426 is an honest answer, so that nothing is broken and the report says what is missing."""
    result = find_result("has-no-sockets", "websocket.response", CheckOptions(seed=1))
    assert (result.verdict, result.needs) == (Verdict.UNKNOWN, SOCKET_NEEDS)
    assert "not offered" in result.explanation
    assert "426" in result.explanation
