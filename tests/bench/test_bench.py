"""The benchmark itself: that it runs, that its table is whole, that its status says what its last line says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from bench.processes import read_clock
from bench.table import Row, render_table, render_verdict

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 55


@pytest.mark.bench
def test_a_tiny_run_prints_every_row_and_counts_them() -> None:
    """Ours: the documented table; at this size the numbers mean nothing, so none is judged."""
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--tiny"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    table, _, verdict = run.stdout.rstrip().rpartition("\n")
    rows = re.findall(r"^(\S.+?)  +(-?[\d.,]+) \S+ +[<>]= .+?  (ok|MISS)\b", table, re.MULTILINE)
    assert [name for name, _, _ in rows] == [
        "not streaming, 1 at a time: CPU a request",
        "not streaming, 1 at a time: added p50",
        "not streaming, 32 at a time: requests",
        "stream of 200 deltas, 10 us apart: CPU a delta",
        "stream of 200 deltas, 10 us apart: total",
        "stream of 200 deltas, 50 us apart: total",
        "WebSocket, chain, nothing stored: CPU a request",
        "chain, rounds 16-20",
        "memory gained by 20 rounds",
        "store after a checkpoint / text",
    ]
    # Told without a limit: a chain shorter than 500 rounds, and the system's own share of a lone delta.
    for name in (
        "chain of 6 rounds, whole",
        "stream of 200 deltas, 50 us apart: CPU a delta",
        "WebSocket, stream of 200 deltas, 10 us apart: CPU a delta",
        "WebSocket, stream of 200 deltas, 10 us apart: total",
    ):
        assert re.search(rf"^{name} +[\d.,]+ \w+  ", table, re.MULTILINE)
    held = sum(word == "ok" for _, _, word in rows)
    assert verdict == f"bench: {held} of {len(rows)} within limits"


def test_a_row_is_judged_by_its_limit() -> None:
    """Ours: a limit is a ceiling or a floor; a row without one is told and not counted."""
    rows = [
        Row("a ratio", 2.6, "x", 2.5),
        Row("a rate", 1_979, "/s", 1_500, at_least=True, note="direct 40,000/s"),
        Row("a time", 156.2, "ms"),
    ]
    assert render_table(rows).splitlines() == [
        "              measured          limit",
        "a ratio         2.60 x      <= 2.50 x  MISS",
        "a rate        1,979 /s    >= 1,500 /s  ok    direct 40,000/s",
        "a time          156 ms",
    ]
    assert render_verdict(rows) == "bench: 1 of 2 within limits"


@pytest.mark.parametrize(
    ("clock", "seconds"),
    [("0:00.25", 0.25), ("12:03.5", 723.5), ("01:00:01", 3601), ("2-01:00:00", 176_400)],
)
def test_the_clock_of_ps_is_read_in_all_its_forms(clock: str, seconds: float) -> None:
    """POSIX `ps`: `[[dd-]hh:]mm:ss`; macOS adds hundredths."""
    assert read_clock(clock) == seconds
