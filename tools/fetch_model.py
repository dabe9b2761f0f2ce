"""Puts a model of the table into the checkout's cache folder, and prints where it is.

For tests and continuous integration: `ANTIPHON_LOCAL__CACHE` names another folder, and the settings of the
person who runs it count for nothing else. Invariant: what cannot be had is an error, never left out.
"""

import argparse
import os
import sys
from pathlib import Path

from antiphon.backends.local import MODELS, SOURCE_KINDS, ModelCache, ModelError, Progress

ROOT = Path(__file__).resolve().parent.parent
SMALL_MODEL = "smollm2-135m-instruct"


def find_cache() -> Path:
    """The folder of models that tests share."""
    return ROOT / (os.environ.get("ANTIPHON_LOCAL__CACHE") or Path(".cache") / "models")


def fetch_model(name: str = SMALL_MODEL) -> Path:
    """The model's file, downloaded unless it is there; raises `ModelError` with what to do."""
    return ModelCache(find_cache()).pull(name, sources=SOURCE_KINDS, report=_tell)


def _tell(progress: Progress) -> None:
    if progress.message:
        print(progress.message, file=sys.stderr)


def main() -> int:
    """Fetch, and print the paths. Exit status: 0 all are there, 1 one cannot be had."""
    parser = argparse.ArgumentParser(description="Fetch models of the table for the tests.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(MODELS)} ({SMALL_MODEL})")
    try:
        for name in parser.parse_args().names or [SMALL_MODEL]:
            print(fetch_model(name))
    except ModelError as error:
        print(f"fetch_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
