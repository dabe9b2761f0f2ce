"""A process that pulls one model, for tests that kill, limit or race it.

Arguments: cache folder, the model as JSON, sources separated by commas, the largest file that it may write
(0: any). It prints each report as a line, and the error that ends it.
"""

import resource
import sys
from pathlib import Path

import msgspec

from antiphon.backends.local.cache import ModelCache
from antiphon.backends.local.download import DownloadSettings, Progress
from antiphon.backends.local.errors import ModelError
from antiphon.backends.local.table import LocalModel


def main() -> int:
    """Pull, and tell."""
    folder, text, sources, limit = sys.argv[1:]
    model = msgspec.json.decode(text, type=LocalModel)
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
    settings = DownloadSettings(allow_loopback_http=True, hub_attempts=1)
    cache = ModelCache(Path(folder), models={model.name: model}, settings=settings)

    def report(progress: Progress) -> None:
        print(progress.stage, progress.done_bytes, progress.message, flush=True)

    try:
        cache.pull(model.name, sources=sources.split(","), report=report)
    except ModelError as error:
        print(f"error {error.message}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
