"""The command: makes conversations up, compacts them in every way, prints where each fact is."""

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from pathlib import Path

from antiphon import __version__
from antiphon.backends.local import ModelError
from antiphon.client import ClientError, ConnectionFailedError
from bench.memory.conversations import make_conversations
from bench.memory.real import measure_real, render_real
from bench.memory.server import open_talk
from bench.memory.table import render_tally
from bench.memory.tally import Tally, run_all
from bench.processes import BenchError

#: How many conversations there are without `--conversations`.
CONVERSATIONS = 50
_SEEDS = 1_000_000


def main() -> int:
    """0; 1 when a fact was lost that is stored, or when something did not work."""
    options = parse_options()
    seed = options.seed if options.seed is not None else secrets.randbelow(_SEEDS)
    print(f"antiphon {__version__}, seed {seed} (--seed {seed} repeats it)", flush=True)
    start = time.perf_counter()
    tally = asyncio.run(run(seed, options.conversations, tell=sys.stderr.isatty()))
    print(render_tally(tally))
    print(f"{tally.conversations} conversations, {time.perf_counter() - start:.0f} s", flush=True)
    failed = not tally.is_good
    if options.real:
        try:
            rows = asyncio.run(measure_real(seed))
        except (BenchError, ModelError, ClientError, ConnectionFailedError) as error:
            print(f"memory: the embedded model: {error}", file=sys.stderr)
            return 1
        print(f"\n{render_real(rows)}\n{time.perf_counter() - start:.0f} s")
    return int(failed)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.memory", description="What is left of a conversation after it was compacted."
    )
    parser.add_argument("--seed", type=int, help="repeat the run that printed it (default: a fresh one)")
    parser.add_argument(
        "--conversations", type=int, default=CONVERSATIONS, help=f"how many (default: {CONVERSATIONS})"
    )
    parser.add_argument(
        "--real", action="store_true", help="measure the prompt cache at the embedded model too"
    )
    return parser.parse_args()


async def run(seed: int, count: int, *, tell: bool) -> Tally:
    """The whole table."""

    def progress(done: int) -> None:
        if tell:
            print(f"\r{done} of {count}", end="\n" if done == count else "", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="antiphon-memory-") as folder:
        async with open_talk(Path(folder)) as talk:
            return await run_all(talk, make_conversations(seed, count), progress)


if __name__ == "__main__":
    sys.exit(main())
