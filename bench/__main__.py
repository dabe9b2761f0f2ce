"""The command: starts everything, measures, prints the table."""

import argparse
import os
import platform
import sqlite3
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from antiphon import __version__
from bench.measure import FULL, QUICK, TINY, Bench, Sizes, measure_store
from bench.processes import BenchError, start_client, start_server, start_upstream
from bench.table import Row, render_table, render_verdict

LIBRARIES = ("aiohttp", "httptools", "msgspec", "uvicorn", "uvloop")


def main() -> int:
    """0; 1 for a miss with --strict, or when something did not work."""
    options = parse_options()
    sizes = TINY if options.tiny else QUICK if options.quick else FULL
    print(render_surroundings(sizes), flush=True)
    start = time.perf_counter()
    try:
        rows = measure_all(sizes)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(render_table(rows))
    print(f"\n{time.perf_counter() - start:.0f} s; load average now {render_load()}")
    print(render_verdict(rows))
    return int(options.strict and not all(row.is_within for row in rows))


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="What Antiphon costs, beside asking directly."
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="less of everything, about 15 seconds")
    size.add_argument(
        "--tiny", action="store_true", help="only to see that it runs; the numbers mean nothing"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a limit is missed")
    return parser.parse_args()


def measure_all(sizes: Sizes) -> list[Row]:
    """Every row. Chains get a server and a store of their own, so that their size and memory are theirs."""
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder,
        start_upstream() as upstream_port,
        start_client() as client,
    ):
        data, chains = Path(folder, "requests"), Path(folder, "chains")
        data.mkdir()
        chains.mkdir()
        with start_server(upstream_port, data) as server:
            bench = Bench(client, server, upstream_port, sizes)
            rows += bench.measure_requests()
            rows += bench.measure_streams("bench-200")
            rows += bench.measure_streams("bench-200-apart", alone=True)
            rows += bench.measure_socket()
            short = bench.measure_chain()
            rows.append(short)
        with start_server(upstream_port, chains) as server:
            long = Bench(client, server, upstream_port, sizes).measure_long_chain(short.value)
            rows += long.rows
        stored_rounds = sizes.long_chain + sizes.tail * (sizes.rounds - 1)
        rows.append(measure_store(chains, long.text_bytes, stored_rounds))
        with start_server(upstream_port, chains) as server:
            rows.append(Bench(client, server, upstream_port, sizes).measure_rebuild(long.tip))
    return rows


def render_surroundings(sizes: Sizes) -> str:
    """What the numbers depend on."""
    python, database = platform.python_version(), sqlite3.sqlite_version
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    return f"""\
antiphon {__version__}, Python {python}, SQLite {database}, {libraries}
{machine}, load average {render_load()}; client, server and fake model server are three processes on them
{sizes.rounds} rounds, ours and direct in turn, medians; CPU of the server's whole process tree; store on, defaults
"""


def render_load() -> str:
    """The load average of the last minutes."""
    return " ".join(f"{load:.2f}" for load in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
