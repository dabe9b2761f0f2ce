"""A program whose process dies at each operation of the database in turn: `FOLDER MANNER STEP`.

Run n uses `FOLDER/n`; what the store acknowledged stands in `FOLDER/n.acknowledged`. It prints n and the exit
status of each run. Invariant: the last run is the one that nothing struck.
"""

import asyncio
import itertools
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from antiphon.protocol.errors import StoreError
from antiphon.store.sqlite import SqliteStore
from tests.faults.anomaly import DIED, MAX_RUNS, Fault, break_database
from tests.faults.test_anomalies_store import Ledger, tell


async def live(folder: Path) -> None:
    """Open, the scenario, close."""
    store = SqliteStore.open(folder)
    await tell(store, Ledger(folder.with_suffix(".acknowledged")))
    await store.close()


def live_and_die(folder: Path, n: int, manner: Any) -> int:
    """The exit status of a process of its own; a fork costs a tenth of a fresh interpreter."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        with break_database(Fault(n), manner):
            asyncio.run(live(folder))
        status = 0
    except (AssertionError, StoreError, OSError):
        traceback.print_exc()
    finally:
        os._exit(status)


def main(folder: str, manner: str, step: str) -> None:
    """Die at n = 1, 1 + step, ... until a process lives."""
    for n in itertools.islice(itertools.count(1, int(step)), MAX_RUNS):
        status = live_and_die(Path(folder) / str(n), n, manner)
        print(n, status, flush=True)
        if status != DIED:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
