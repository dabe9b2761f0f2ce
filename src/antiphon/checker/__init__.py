"""Proves, by counting tokens, whether a Responses server really keeps the state that it claims to keep.

It talks to servers over the wire alone, through `client`. `run_check` tries the requirements of the manifest
and returns a `Report`; the `doubles` are servers that break them.
"""

from antiphon.checker.report import Report, Result, render_json, render_junit, render_result, render_summary
from antiphon.checker.requirements import MANIFEST, Requirement, select_requirements
from antiphon.checker.runner import PROBE_TIMEOUT_S, CheckOptions, run_check
from antiphon.checker.script import read_script
from antiphon.checker.subject import CHAIN_ROUNDS
from antiphon.checker.verdicts import Outcome, Verdict

__all__ = [
    "CHAIN_ROUNDS",
    "MANIFEST",
    "PROBE_TIMEOUT_S",
    "CheckOptions",
    "Outcome",
    "Report",
    "Requirement",
    "Result",
    "Verdict",
    "read_script",
    "render_json",
    "render_junit",
    "render_result",
    "render_summary",
    "run_check",
    "select_requirements",
]
