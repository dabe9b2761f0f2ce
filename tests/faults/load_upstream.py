"""A model server in a process of its own, for many streams at once: `python -m tests.faults.load_upstream`.

It knows nothing of Antiphon. A prompt `KIND NUMBER` says what to stream. It prints its address, and then a line
`left NUMBER SECONDS` on the machine's monotonic clock for each client that goes before the end.
"""

import asyncio
import time

from tests.fake_upstream import FakeUpstream, Reply, Request, Step, make_chunk, make_head, make_stream

#: Pieces of an answer that is read as it comes, and of one that is not.
PIECES = 20
LONG_PIECES = 256
LONG_PIECE = "x" * 1024


def write_pieces(kind: str, number: str) -> list[str]:
    """The texts of an answer, each different from those of others."""
    if kind == "slow":
        return [f"{number}.{place} {LONG_PIECE}" for place in range(LONG_PIECES)]
    return [f"{number}.{place} " for place in range(PIECES)]


async def _tell_leaver(request: Request, number: str) -> None:
    await request.left.wait()
    print(f"left {number} {time.monotonic()}", flush=True)


async def _serve() -> None:
    watchers: set[asyncio.Task[None]] = set()

    def answer(request: Request) -> Reply:
        kind, number = request.json["messages"][-1]["content"].split()
        if kind == "leave":
            watchers.add(asyncio.create_task(_tell_leaver(request, number)))
            begun: list[Step] = [make_head(), *(make_chunk({"content": "word "}) for _ in range(5))]
            return Reply(begun, "hold")
        return Reply(make_stream(*write_pieces(kind, number)))

    async with FakeUpstream(answer) as upstream:
        print(upstream.url, flush=True)
        # Until the test ends the process.
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve())
