"""Proves, by counting tokens, whether a Responses server really keeps the state that it claims to keep.

It talks to servers over the wire alone, through `client`. `run_check` tries the requirements of the manifest
and returns a `Report`; the `doubles` are servers that break them.
"""

from antiphon.checker.report import (
    Recall,
    Report,
    Result,
    find_wide_areas,
    render_area,
    render_json,
    render_junit,
    render_result,
    render_summary,
    render_sums,
)
from antiphon.checker.requirements import MANIFEST, Requirement, select_requirements
from antiphon.checker.restart_command import run_restart_command
from antiphon.checker.runner import PROBE_TIMEOUT_S, CheckOptions, run_check
from antiphon.checker.script import read_script
from antiphon.checker.subject import CHAIN_ROUNDS, WINDOW_TOKENS
from antiphon.checker.surface import KINDS, OURS, SURFACE, group_subjects
from antiphon.checker.verdicts import Outcome, Verdict

__all__ = [
    "CHAIN_ROUNDS",
    "KINDS",
    "MANIFEST",
    "OURS",
    "PROBE_TIMEOUT_S",
    "SURFACE",
    "WINDOW_TOKENS",
    "CheckOptions",
    "Outcome",
    "Recall",
    "Report",
    "Requirement",
    "Result",
    "Verdict",
    "find_wide_areas",
    "group_subjects",
    "read_script",
    "render_area",
    "render_json",
    "render_junit",
    "render_result",
    "render_summary",
    "render_sums",
    "run_check",
    "run_restart_command",
    "select_requirements",
]
