"""The report of one run, and its three forms: a table for people, JSON, JUnit XML.

It knows no server. Invariant: a key given to the check stands in no form of the report, and no text of a
server reaches a terminal or an XML file unprinted characters included.
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import msgspec

from antiphon.checker.answers import tidy
from antiphon.checker.verdicts import Outcome, Verdict

#: Requirements that a note names.
MAX_NAMES = 4
#: An area of which more requirements than this were tried does not list those that are kept.
LISTED_REQUIREMENTS = 5
#: But for these, whose evidence is what people come for.
TOLD_AREAS = frozenset({"state", "stream", "isolation", "restart"})
_WIDTH = 100
_INDENT = " " * 9
_LABELS = {Verdict.PASS: "pass", Verdict.FAIL: "FAIL", Verdict.UNKNOWN: "unknown"}
#: A key shorter than this is no secret, and hiding it would spoil words.
_MIN_KEY_CHARS = 6


class Result(msgspec.Struct, frozen=True):
    """One requirement's outcome, with the time that its probe took."""

    id: str
    area: str
    source: str
    sentence: str
    verdict: Verdict
    explanation: str
    evidence: dict[str, str | int | bool | None]
    duration_s: float
    #: The option for lack of which it is undecided.
    needs: str | None = None


class Recall(msgspec.Struct, frozen=True):
    """How many random words a model brought back by id, and with no history as the control.

    `stopped` says why fewer words were tried than asked for.
    """

    words: int
    by_id: int
    no_history: int
    #: Words for which the prompt by id counted more than the one with no history.
    counted: int
    stopped: str | None = None


class Report(msgspec.Struct, frozen=True):
    """Everything that one run found out about one server and model."""

    server: str
    model: str
    seed: int
    results: list[Result]
    notes: list[str] = []
    #: Requests that the server answered: what the run cost.
    answers: int = 0
    recall: Recall | None = None
    #: Why nothing could be tried at all: no server, no model, or no access.
    unreachable: str | None = None

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many requirements got each verdict."""
        return {verdict: sum(item.verdict == verdict for item in self.results) for verdict in Verdict}

    @property
    def exit_status(self) -> int:
        """0 all kept, 1 one broken, 2 none broken and some undecided (or nothing decided at all).

        What is undecided for lack of an option counts for nothing.
        """
        counts = self.counts
        if counts[Verdict.FAIL]:
            return 1
        open_ones = any(item.verdict is Verdict.UNKNOWN and item.needs is None for item in self.results)
        return 2 if open_ones or not counts[Verdict.PASS] else 0


def clean_outcome(outcome: Outcome, *keys: str | None) -> Outcome:
    """The outcome with every text printable, short and without the keys."""
    evidence = {
        name: clean_text(value, *keys) if isinstance(value, str) else value
        for name, value in outcome.evidence.items()
    }
    return Outcome(outcome.verdict, clean_text(outcome.explanation, *keys), evidence, outcome.needs)


def clean_text(text: str, *keys: str | None) -> str:
    """The text printable, short and without the keys."""
    # A key may be part of another one.
    for key in sorted(filter(None, keys), key=len, reverse=True):
        if len(key) >= _MIN_KEY_CHARS:
            text = text.replace(key, "***")
            # A server's text may have been shortened inside the key.
            for size in range(len(key) - 1, _MIN_KEY_CHARS - 1, -1):
                text = text.replace(f"{key[:size]}...", "***...")
    return tidy(text, 600)


def render_result(result: Result) -> str:
    """One requirement in two or three lines."""
    explained = textwrap.fill(
        result.explanation, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False
    )
    return f"{_LABELS[result.verdict]:<8} {result.id:<34} {result.duration_s:6.1f} s\n{explained}"


def render_sums(area: str, verdicts: Mapping[Verdict, int]) -> str:
    """One line for the requirements of a wide area: how many are kept, and what became of the others."""
    told = {Verdict.FAIL: "failed", Verdict.UNKNOWN: "undecided"}
    rest = "".join(f", {verdicts[each]} {word}" for each, word in told.items() if verdicts.get(each))
    label = next(each for each in (Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN) if verdicts.get(each))
    passed = verdicts.get(Verdict.PASS, 0)
    return f"{_LABELS[label]:<8} {passed} of {sum(verdicts.values())} in {area}{rest}"


def find_wide_areas(areas: Iterable[str]) -> set[str]:
    """The areas with so many requirements that those kept are summed up; `areas` has one for each requirement."""
    counted = Counter(areas)
    return {area for area in counted if counted[area] > LISTED_REQUIREMENTS and area not in TOLD_AREAS}


def render_area(area: str) -> str:
    """The heading over the requirements of an area."""
    return f"-- {area} {'-' * (_WIDTH - len(area) - 4)}"


def render_summary(report: Report) -> str:
    """The last lines of the table: notes, recall and sums."""
    if report.unreachable is not None:
        return f"Nothing could be tried at {report.server}: {report.unreachable}"
    counts = report.counts
    lines = [f"note: {note}" for note in report.notes]
    lines += [
        f"note: {_tell_need(need)}, so these are undecided: {_shorten(names)}"
        for need, names in _list_needs(report).items()
    ]
    if report.recall is not None:
        lines.append(_render_recall(report.recall))
    lines.append(
        f"{counts[Verdict.PASS]} passed, {counts[Verdict.FAIL]} failed, {counts[Verdict.UNKNOWN]} undecided "
        f"({report.server}, model {report.model or 'not found'}, seed {report.seed})"
    )
    # What one probe costs is of no interest; what a whole run costs is.
    if len({result.area for result in report.results}) > 1:
        lines.append(f"{report.answers} requests were answered")
    return "\n".join(lines)


def _tell_need(need: str) -> str:
    """An option of ours can be given; anything else is the server's to have."""
    if need.startswith("-"):
        return f"{need} was not given or not enough"
    return f"some need {need}, and this server and model showed none"


def _shorten(names: list[str]) -> str:
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMES])} and {len(names) - MAX_NAMES} more"


def _list_needs(report: Report) -> dict[str, list[str]]:
    """Option -> the requirements that are undecided for lack of it."""
    found: dict[str, list[str]] = {}
    for result in report.results:
        if result.needs is not None:
            found.setdefault(result.needs, []).append(result.id)
    return found


def _render_recall(recall: Recall) -> str:
    stopped = f" (stopped: {recall.stopped})" if recall.stopped else ""
    return (
        f"recall: {recall.by_id} of {recall.words} words by id, {recall.no_history} of {recall.words} with no "
        f"history; the history was counted for {recall.counted} of {recall.words}{stopped}"
    )


def render_json(report: Report) -> str:
    """The whole report as JSON, with the sums and the exit status."""
    counts = {verdict.value: number for verdict, number in report.counts.items()}
    body: dict[str, Any] = {
        **msgspec.to_builtins(report),
        "counts": counts,
        "exit_status": report.exit_status,
    }
    return msgspec.json.format(msgspec.json.encode(body), indent=2).decode()


def render_junit(report: Report) -> str:
    """The report as JUnit XML: a broken requirement is a failure, an undecided one is skipped."""
    counts = report.counts
    seconds = sum(result.duration_s for result in report.results)
    head = (
        f'<testsuite name="antiphon check" tests="{len(report.results)}" failures="{counts[Verdict.FAIL]}" '
        f'errors="0" skipped="{counts[Verdict.UNKNOWN]}" time="{seconds:.3f}">'
    )
    properties = "".join(
        f"<property name={quoteattr(name)} value={quoteattr(tidy(value))}/>"
        for name, value in (("server", report.server), ("model", report.model), ("seed", report.seed))
    )
    cases = "\n".join(_render_case(result) for result in report.results)
    notes = escape("\n".join(report.notes))
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"{head}\n<properties>{properties}</properties>\n{cases}\n"
        f"<system-out>{notes}</system-out>\n</testsuite>\n"
    )


def _render_case(result: Result) -> str:
    told = escape("\n".join(f"{name}: {value}" for name, value in result.evidence.items()))
    message = quoteattr(result.explanation)
    inner = {
        Verdict.PASS: f"<system-out>{escape(result.explanation)}\n{told}</system-out>",
        Verdict.FAIL: f"<failure message={message}>{escape(result.sentence)}\n{told}</failure>",
        Verdict.UNKNOWN: f"<skipped message={message}/><system-out>{told}</system-out>",
    }[result.verdict]
    return (
        f"<testcase classname={quoteattr('antiphon.' + result.area)} name={quoteattr(result.id)} "
        f'time="{result.duration_s:.3f}">{inner}</testcase>'
    )
