"""Installs the clients, runs the tests that drive them, and says how many were skipped.

It knows tests by their marker alone. Invariant: a test that is skipped because of a registry passes only while
that registry was asked and does not answer; one that is skipped for another reason does not pass.
"""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tools.set_up_clients import ROOT, Asked, ask_npm, ask_pip, set_up

#: A single test may take so long, and all together.
TEST_S = 300
ALL_S = 1200.0
#: How reasons of skipped tests begin, and what asks that registry.
REGISTRIES: Mapping[str, Callable[[], Asked]] = {"npm:": ask_npm, "pip:": ask_pip}


def run_tests(report: Path) -> int:
    """The exit status of the marked tests; what became of each is written to the report."""
    command = [sys.executable, "-m", "pytest", "-o", "addopts=-q --strict-markers --strict-config"]
    command += ["-m", "clients", "--timeout", str(TEST_S), "--durations=10", f"--junitxml={report}", "tests"]
    return subprocess.run(command, cwd=ROOT, timeout=ALL_S, check=False).returncode


def read_reasons(report: Path) -> list[str]:
    """Why tests were skipped, one by one."""
    found = ET.parse(report).getroot().iter("skipped")
    return [skipped.get("message") or "no reason" for skipped in found]


def find_unexcused(reasons: Sequence[str], registries: Mapping[str, Callable[[], Asked]]) -> list[str]:
    """The reasons that are no excuse now; a registry is asked only if a test was skipped because of it."""
    named = {name for name in registries if any(reason.startswith(name) for reason in reasons)}
    silent = tuple(name for name in sorted(named) if registries[name]() is Asked.SILENT)
    return [reason for reason in reasons if not reason.startswith(silent)]


def main() -> int:
    """The command."""
    for fault in set_up(newest=True):
        print(f"clients: not installed from {fault}")
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        status = run_tests(report)
        reasons = read_reasons(report) if report.exists() else []
    for reason in sorted(set(reasons)):
        print(f"skipped {reasons.count(reason)}: {reason}")
    print(f"client tests skipped: {len(reasons)}")
    unexcused = find_unexcused(reasons, REGISTRIES)
    if unexcused:
        print(f"clients: {len(unexcused)} of them count as failures: no silent registry excuses them")
    return status or (1 if unexcused else 0)


if __name__ == "__main__":
    sys.exit(main())
