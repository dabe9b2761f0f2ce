"""The report of one run, and its three forms: a table for people, JSON, JUnit XML.

It knows no server. Invariant: a key given to the check stands in no form of the report, and no text of a
server reaches a terminal or an XML file unprinted characters included.
"""

import textwrap
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import msgspec

from antiphon.checker.answers import tidy
from antiphon.checker.verdicts import Outcome, Verdict

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


class Report(msgspec.Struct, frozen=True):
    """Everything that one run found out about one server and model."""

    server: str
    model: str
    seed: int
    results: list[Result]
    notes: list[str] = []

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many requirements got each verdict."""
        return {verdict: sum(item.verdict == verdict for item in self.results) for verdict in Verdict}

    @property
    def exit_status(self) -> int:
        """0 all kept, 1 one broken, 2 none broken and some undecided (or nothing probed)."""
        counts = self.counts
        if counts[Verdict.FAIL]:
            return 1
        return 2 if counts[Verdict.UNKNOWN] or not self.results else 0


def clean_outcome(outcome: Outcome, key: str | None) -> Outcome:
    """The outcome with every text printable, short and without the key."""
    evidence = {
        name: clean_text(value, key) if isinstance(value, str) else value
        for name, value in outcome.evidence.items()
    }
    return Outcome(outcome.verdict, clean_text(outcome.explanation, key), evidence)


def clean_text(text: str, key: str | None) -> str:
    """The text printable, short and without the key."""
    if key and len(key) >= _MIN_KEY_CHARS:
        text = text.replace(key, "***")
    return tidy(text, 600)


def render_result(result: Result) -> str:
    """One requirement in two or three lines."""
    explained = textwrap.fill(
        result.explanation, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_long_words=False
    )
    return f"{_LABELS[result.verdict]:<8} {result.id:<34} {result.duration_s:6.1f} s\n{explained}"


def render_summary(report: Report) -> str:
    """The last lines of the table: notes and sums."""
    counts = report.counts
    lines = [f"note: {note}" for note in report.notes]
    lines.append(
        f"{counts[Verdict.PASS]} passed, {counts[Verdict.FAIL]} failed, {counts[Verdict.UNKNOWN]} undecided "
        f"({report.server}, model {report.model or 'not found'}, seed {report.seed})"
    )
    return "\n".join(lines)


def render_table(report: Report) -> str:
    """The whole report for people."""
    return "\n".join([*(render_result(result) for result in report.results), render_summary(report)])


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
