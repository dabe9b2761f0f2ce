"""The program of the child process: llama.cpp's own server, until the parent ends.

`python -m antiphon.backends.local.child`; settings come as one line of JSON on standard input, since they
hold a key. One line on standard output says that requests are answered. Invariant: when standard input
ends, or on Linux when the parent does, so does this process, however the parent ended.
"""

import ctypes
import os
import signal
import sys
import threading
from typing import Any

import msgspec

#: OpenMP's threads spin while they wait; unbounded, a busy machine is up to ten times slower.
SPIN_COUNT = "1000"
#: Between batches of this many prompt tokens the server sees that a client has left.
BATCH_TOKENS = 256
#: Warnings and errors alone; more talkative levels may quote what clients say.
LOG_LEVEL = 2
#: Memory for the caches of conversations that hold no slot just now; the server's own default is 8 GiB.
PROMPT_CACHE_MIB = 1024
READY = b"ready\n"
FAILED = 1
#: prctl's PR_SET_PDEATHSIG.
_SET_PARENT_DEATH_SIGNAL = 1


class ChildSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent tells the child."""

    parent: int
    port: int
    key: str
    model: str
    alias: str
    context_tokens: int
    parallel: int
    threads: int


def main() -> int:
    """Serve until the parent ends; returns only when the server could not start."""
    report = os.dup(1)
    # Whatever the runtime prints is a log; standard output says one thing alone.
    os.dup2(2, 1)
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=ChildSettings)
    end_with_parent(settings.parent)
    # Read by OpenMP when it is loaded, that is with the runtime.
    os.putenv("GOMP_SPINCOUNT", SPIN_COUNT)
    try:
        server = start_server(settings)
    except (ImportError, RuntimeError) as error:
        print(f"the model server did not start: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return FAILED
    os.write(report, READY)
    os.close(report)
    signal.pause()
    # Never reached; its threads run while it is referred to.
    del server
    return 0


def end_with_parent(parent: int) -> None:
    """End when standard input does; on Linux the kernel sees to it as well.

    The runtime holds the interpreter while it loads a model: until then the kernel alone can end it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        # It ended before this was arranged.
        os._exit(FAILED)
    threading.Thread(target=_end_with_input, daemon=True).start()


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    # The server's threads may be in the middle of a generation that nobody waits for any more.
    os._exit(0)


def start_server(settings: ChildSettings) -> Any:
    """The server, listening; its threads run while it is referred to."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings.model
    params.model_alias = [settings.alias]
    params.hostnames = ["127.0.0.1"]
    params.port = settings.port
    # The parent holds the port while no child does.
    params.reuse_port = True
    params.api_keys = [settings.key]
    params.n_parallel = settings.parallel
    # One pool, in which each slot has a whole window. From a pool of one window two long conversations at once
    # both get "exceeds the context size", though each of them fits.
    params.kv_unified = True
    params.n_ctx = settings.context_tokens * settings.parallel
    params.kv_unified_per_slot = settings.context_tokens
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.use_jinja = True
    params.verbosity = LOG_LEVEL
    params.ui = False
    params.endpoint_props = params.endpoint_slots = params.endpoint_metrics = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
    return xllamacpp.Server(params)


if __name__ == "__main__":
    sys.exit(main())
