"""What is measured, and by which limits. It starts no process; it is handed the ones to use.

Ours and direct alternate; a ratio is taken within each round and its median over the rounds is told, so
that a slow spell of the machine touches both sides of it.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from antiphon.config.settings import Limits
from bench.fake_upstream import SHAPES
from bench.processes import BenchError, LoadClient, Server
from bench.table import Row

OURS = "/v1/responses"
DIRECT = "/v1/chat/completions"
CONCURRENCY = 32
PROMPT = "What did we decide about the harbour, and who was against it? Answer in one sentence."
MIB = 1 << 20

#: The limits. Times are per request or delta; ratios are ours / direct.
CPU_MS_A_REQUEST = 0.7
ADDED_P50_MS = 0.8
REQUESTS_PER_S = 1_500.0
CPU_US_A_DELTA = 15.0
STREAM_RATIO = 2.0
CHAIN_RATIO = 2.5
#: The chain for which its limit was set: a shorter one spends more of its time on what every request costs.
LIMITED_CHAIN_ROUNDS = 500
STORE_RATIO = 2.0


@dataclass(frozen=True)
class Sizes:
    """How much of everything is measured."""

    rounds: int
    requests: int
    concurrent_requests: int
    streams: int
    chain: int
    long_chain: int
    tail: int


#: About a minute, about 15 seconds, and only enough to see that everything runs.
FULL = Sizes(
    rounds=3, requests=1_000, concurrent_requests=4_000, streams=200, chain=500, long_chain=5_000, tail=100
)
QUICK = Sizes(
    rounds=3, requests=300, concurrent_requests=1_500, streams=80, chain=250, long_chain=1_500, tail=50
)
TINY = Sizes(rounds=1, requests=10, concurrent_requests=64, streams=4, chain=6, long_chain=20, tail=5)


class Bench:
    """The measurements of one server beside the model server behind it."""

    def __init__(self, client: LoadClient, server: Server, upstream_port: int, sizes: Sizes) -> None:
        self._client = client
        self._server = server
        self._upstream_port = upstream_port
        self._sizes = sizes

    def measure_requests(self) -> list[Row]:
        """Not streaming: one at a time, then many at once."""
        sizes = self._sizes
        self._warm_up()
        cpu_ms, added_ms, direct_ms = [], [], []
        for _ in range(sizes.rounds):
            ours, cpu_s = self._timed(lambda: self._ask_ours(sizes.requests, 1))
            direct = self._ask_direct(sizes.requests, 1)
            cpu_ms.append(cpu_s / sizes.requests * 1e3)
            added_ms.append((median(ours["latencies_s"]) - median(direct["latencies_s"])) * 1e3)
            direct_ms.append(median(direct["latencies_s"]) * 1e3)
        rates, direct_rates = [], []
        for _ in range(sizes.rounds):
            ours = self._ask_ours(sizes.concurrent_requests, CONCURRENCY)
            direct = self._ask_direct(sizes.concurrent_requests, CONCURRENCY)
            rates.append(sizes.concurrent_requests / ours["elapsed_s"])
            direct_rates.append(sizes.concurrent_requests / direct["elapsed_s"])
        note = f"direct p50 {median(direct_ms):.3f} ms"
        direct_note = f"direct {median(direct_rates):,.0f}/s"
        return [
            Row("not streaming, 1 at a time: CPU a request", median(cpu_ms), "ms", CPU_MS_A_REQUEST),
            Row("not streaming, 1 at a time: added p50", median(added_ms), "ms", ADDED_P50_MS, note=note),
            Row(
                f"not streaming, {CONCURRENCY} at a time: requests",
                median(rates),
                "/s",
                REQUESTS_PER_S,
                at_least=True,
                note=direct_note,
            ),
        ]

    def measure_streams(self, model: str, *, alone: bool = False) -> list[Row]:
        """Streaming, one at a time."""
        streams = self._sizes.streams
        deltas = SHAPES[model].pieces
        title = f"stream of {deltas} deltas, {SHAPES[model].pace_s * 1e6:.0f} us apart"
        self._stream_ours(model, max(streams // 10, 1))
        self._stream_direct(model, max(streams // 10, 1))
        cpu_us, ratios, direct_ms, ours_reads, direct_reads = [], [], [], [], []
        for _ in range(self._sizes.rounds):
            ours, cpu_s = self._timed(lambda: self._stream_ours(model, streams))
            direct = self._stream_direct(model, streams)
            cpu_us.append(cpu_s / (streams * deltas) * 1e6)
            ratios.append(median(ours["latencies_s"]) / median(direct["latencies_s"]))
            direct_ms.append(median(direct["latencies_s"]) * 1e3)
            ours_reads.append(ours["reads"] / streams)
            direct_reads.append(direct["reads"] / streams)
        reads = f"came in {median(ours_reads):.0f} reads, directly in {median(direct_reads):.0f}"
        note = f"direct {median(direct_ms):.2f} ms"
        return [
            # Where each delta comes alone, most of its cost is the system's: three calls for each; no limit then.
            Row(f"{title}: CPU a delta", median(cpu_us), "us", None if alone else CPU_US_A_DELTA, note=reads),
            Row(f"{title}: total", median(ratios), "x", STREAM_RATIO, note=note),
        ]

    def measure_socket(self) -> list[Row]:
        """Over one WebSocket, nothing stored: rounds of a chain, and a stream, beside the same stream directly."""
        sizes, model = self._sizes, "bench-200"
        deltas = SHAPES[model].pieces
        self._ask_socket("bench", max(sizes.requests // 10, 1), chains=False)
        cpu_ms, cpu_us, ratios = [], [], []
        for _ in range(sizes.rounds):
            _, cpu_s = self._timed(lambda: self._ask_socket("bench", sizes.requests, chains=True))
            cpu_ms.append(cpu_s / sizes.requests * 1e3)
            ours, cpu_s = self._timed(lambda: self._ask_socket(model, sizes.streams, chains=False))
            direct = self._stream_direct(model, sizes.streams)
            cpu_us.append(cpu_s / (sizes.streams * deltas) * 1e6)
            ratios.append(median(ours["latencies_s"]) / median(direct["latencies_s"]))
        title = f"WebSocket, stream of {deltas} deltas, {SHAPES[model].pace_s * 1e6:.0f} us apart"
        return [
            Row("WebSocket, chain, nothing stored: CPU a request", median(cpu_ms), "ms", CPU_MS_A_REQUEST),
            Row(f"{title}: CPU a delta", median(cpu_us), "us", note="a message for each event"),
            Row(f"{title}: total", median(ratios), "x", note="beside a stream asked for directly"),
        ]

    def measure_chain(self) -> Row:
        """The whole of a chain from its first round."""
        rounds = self._sizes.chain
        ratios, direct_s, size = [], [], 0
        for _ in range(self._sizes.rounds):
            ours = self._chain_ours(0, rounds, None)
            direct = self._chain_direct(0, rounds)
            ratios.append(ours["elapsed_s"] / direct["elapsed_s"])
            direct_s.append(direct["elapsed_s"])
            size = direct["body_bytes"]
        note = f"direct {median(direct_s):.2f} s; {2 * rounds:,} messages, {size / 1e3:,.0f} kB at the end"
        limit = CHAIN_RATIO if rounds == LIMITED_CHAIN_ROUNDS else None
        return Row(f"chain of {rounds:,} rounds, whole", median(ratios), "x", limit, note=note)

    def measure_long_chain(self, short_ratio: float) -> "LongChain":
        """The last rounds of a long chain: each time a branch of their own from the same round."""
        sizes = self._sizes
        first = sizes.long_chain - sizes.tail
        before = self._server.read_resident_bytes()
        built = self._chain_ours(0, first, None)
        text_bytes = built["text_bytes"]
        ratios, direct_ms, tip = [], [], built["parent"]
        resident = 0
        for _ in range(sizes.rounds):
            ours = self._chain_ours(first, sizes.long_chain, built["parent"])
            # Before the branches: the memory of one chain is what is told.
            resident = resident or self._server.read_resident_bytes()
            direct = self._chain_direct(first, sizes.long_chain)
            ratios.append(ours["elapsed_s"] / direct["elapsed_s"])
            direct_ms.append(direct["elapsed_s"] / sizes.tail * 1e3)
            text_bytes += ours["text_bytes"]
            tip = ours["parent"]
        cache_bytes = Limits().window_cache_bytes
        note = (
            f"direct {median(direct_ms):.1f} ms a round; {direct['body_bytes'] / 1e6:.1f} MB at the end; "
            f"the rounds before took {built['elapsed_s']:.1f} s"
        )
        memory_note = (
            f"{before / MIB:.0f} MiB before, {resident / MIB:.0f} after; "
            f"limit: limits.window_cache_bytes, {cache_bytes / MIB:.0f} MiB"
        )
        rows = [
            Row(
                f"chain, rounds {first + 1:,}-{sizes.long_chain:,}",
                median(ratios),
                "x",
                short_ratio,
                note=note,
            ),
            Row(
                f"memory gained by {sizes.long_chain:,} rounds",
                (resident - before) / MIB,
                "MiB",
                cache_bytes / MIB,
                note=memory_note,
            ),
        ]
        return LongChain(rows=rows, text_bytes=text_bytes, tip=tip)

    def measure_rebuild(self, tip: str) -> Row:
        """The first round after a restart: the window is rebuilt from the store."""
        last = self._sizes.long_chain
        first = self._chain_ours(last, last + 1, tip)
        second = self._chain_ours(last, last + 1, tip)
        return Row(
            f"round {last + 1:,} after a restart",
            first["elapsed_s"] * 1e3,
            "ms",
            note=f"its window read from the store; {second['elapsed_s'] * 1e3:.1f} ms when cached",
        )

    def _warm_up(self) -> None:
        count = max(self._sizes.requests // 5, 1)
        self._ask_ours(count, 1)
        self._ask_direct(count, 1)
        self._ask_ours(count, CONCURRENCY)

    def _timed(self, run: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], float]:
        """The result, and the CPU seconds that the server spent meanwhile."""
        before = self._server.read_cpu_s()
        result = run()
        return result, self._server.read_cpu_s() - before

    def _ask_ours(self, count: int, concurrency: int) -> dict[str, Any]:
        body = {"model": "bench", "input": [{"role": "user", "content": PROMPT}]}
        return self._repeat(self._server.port, OURS, body, '"status":"completed"', 2, count, concurrency)

    def _ask_direct(self, count: int, concurrency: int) -> dict[str, Any]:
        body = {"model": "bench", "messages": [{"role": "user", "content": PROMPT}]}
        return self._repeat(self._upstream_port, DIRECT, body, '"finish_reason"', 1, count, concurrency)

    def _stream_ours(self, model: str, count: int) -> dict[str, Any]:
        body = {"model": model, "input": [{"role": "user", "content": PROMPT}], "stream": True}
        mark = '"type":"response.output_text.delta"'
        return self._repeat(self._server.port, OURS, body, mark, SHAPES[model].pieces, count, 1)

    def _stream_direct(self, model: str, count: int) -> dict[str, Any]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": PROMPT}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        # The first chunk carries the role, and empty content.
        marks = SHAPES[model].pieces + 1
        return self._repeat(self._upstream_port, DIRECT, body, '"content":"', marks, count, 1)

    def _ask_socket(self, model: str, count: int, *, chains: bool) -> dict[str, Any]:
        return self._client.run(
            kind="repeat_over_socket",
            port=self._server.port,
            path=OURS,
            body={"model": model, "store": False, "input": [{"role": "user", "content": PROMPT}]},
            mark='"type":"response.output_text.delta"',
            marks=SHAPES[model].pieces,
            count=count,
            chains=chains,
        )

    def _repeat(
        self, port: int, path: str, body: dict[str, Any], mark: str, marks: int, count: int, concurrency: int
    ) -> dict[str, Any]:
        return self._client.run(
            kind="repeat",
            port=port,
            path=path,
            body=body,
            mark=mark,
            marks=marks,
            count=count,
            concurrency=concurrency,
        )

    def _chain_ours(self, first: int, last: int, parent: str | None) -> dict[str, Any]:
        return self._client.run(
            kind="chain_by_id",
            port=self._server.port,
            path=OURS,
            model="bench",
            first=first,
            last=last,
            parent=parent,
        )

    def _chain_direct(self, first: int, last: int) -> dict[str, Any]:
        return self._client.run(
            kind="chain_with_history",
            port=self._upstream_port,
            path=DIRECT,
            model="bench",
            first=first,
            last=last,
        )


@dataclass(frozen=True)
class LongChain:
    """The rows of the long chain, and what later measurements need of it."""

    rows: list[Row]
    #: All text that the store was given in it, branches included.
    text_bytes: int
    tip: str


def measure_store(data: Path, text_bytes: int, rounds: int) -> Row:
    """The database after a checkpoint, as a multiple of the text in it. The server has been stopped."""
    databases = [path for path in data.rglob("*") if path.is_file() and _is_database(path)]
    if len(databases) != 1:
        raise BenchError(f"{len(databases)} databases in the data folder, not one")
    with closing(sqlite3.connect(databases[0])) as connection:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise BenchError("the database is still in use")
    size = databases[0].stat().st_size
    note = f"{size / 1e6:.1f} MB for {text_bytes / 1e6:.1f} MB of text in {rounds:,} rounds"
    return Row("store after a checkpoint / text", size / text_bytes, "x", STORE_RATIO, note=note)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) == b"SQLite format 3\0"
