"""A real llama.cpp server as a child process: `python -m tests.real.llama_server MODEL`.

Prints its address as one line when it listens. It ends when its standard input does, hence with its
parent, however that one ends. It knows nothing of Antiphon.
"""

import argparse
import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Any

ALIAS = "smollm2"
#: Small, so that a window can be filled in a few seconds.
WINDOW_TOKENS = 2048
SLOTS = 2
#: The server looks for cancelled requests between batches of this many prompt tokens.
BATCH_TOKENS = 128


def main() -> int:
    """Serve until standard input ends. Exit status 3: this machine cannot run the server."""
    parser = argparse.ArgumentParser(description="Serve a model by llama.cpp's own server.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--window-tokens", type=int, default=WINDOW_TOKENS)
    options = parser.parse_args()
    missing = find_missing()
    if missing:
        print(f"llama_server: {missing}", file=sys.stderr)
        return 3
    server = start(options.model, options.window_tokens)
    print(server.listening_address, flush=True)
    sys.stdin.buffer.read()
    # The server's threads may be in the middle of a generation that nobody waits for any more.
    os._exit(0)


def find_missing() -> str | None:
    """What this machine lacks; without the check the runtime ends by a signal or an obscure ImportError."""
    cpu = Path("/proc/cpuinfo")
    if platform.machine() == "x86_64" and cpu.exists() and " avx2 " not in cpu.read_text("utf-8"):
        return "this CPU has no AVX2, which the llama.cpp runtime needs; run these tests on another machine"
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libgomp.so.1")
        except OSError:
            return "libgomp.so.1 is missing; install it (Debian, Ubuntu: apt-get install libgomp1)"
    return None


def start(model: Path, window_tokens: int) -> Any:
    """The server, listening on a free port; its threads run while it is referred to."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = [ALIAS]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = window_tokens
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.n_parallel = SLOTS
    # Each slot sees the whole window.
    params.kv_unified = True
    params.use_jinja = True
    params.endpoint_props = params.endpoint_slots = params.endpoint_metrics = True
    threads = os.cpu_count() or 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(params)


if __name__ == "__main__":
    sys.exit(main())
