"""Background responses and a server that is killed or told to stop: none is stuck, and no stream has a gap."""

import asyncio
import contextlib
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from antiphon.client import ConnectionFailedError
from antiphon.protocol.lifecycle import StreamChecker
from tests.scenarios import strict
from tests.scenarios.client import StrictClient, read_frame, read_text
from tests.scenarios.following import ENDED, open_again, open_new, poll, queue, read_again
from tests.scenarios.process import ServerProcess, start_server

SHORT = "one two three"
LONG = " ".join(f"word{number}" for number in range(400))
SCRIPT = {
    "window_tokens": 10**9,
    "rules": [
        {"when": "^long", "text": LONG, "pause_s": 0.05},
        {"when": "^middle", "text": LONG, "pause_s": 0.001},
        {"text": SHORT},
    ],
}
#: Once the queue is to be run, answers are quick.
QUICK = {"window_tokens": 10**9, "rules": [{"text": SHORT}]}
SECRETIVE = {
    "type": "mcp",
    "server_label": "wiki",
    "server_url": "http://127.0.0.1:9/mcp",
    "authorization": "sesame-one",
    "headers": {"x-key": "sesame-two"},
}
STOPPED = "The server stopped while this response was running."


class Seen(NamedTuple):
    """What a client of a background response had when the server went."""

    id: str
    frames: list[bytes]


async def begin(client: StrictClient, text: str, count: int, **fields: Any) -> Seen:
    """A background stream that is read up to some event; leaving stops nothing."""
    async with open_new(client, text, **fields) as frames:
        seen = [await anext(frames) for _ in range(count)]
    return Seen(read_frame(seen[0])["response"]["id"], seen)


async def follow_until_gone(client: StrictClient, seen: Seen) -> None:
    """Read on until the server is gone or the response has ended."""
    try:
        async with open_again(client, seen.id, len(seen.frames) - 1) as frames:
            async for frame in frames:
                seen.frames.append(frame)
    except ConnectionFailedError:
        return


async def check_stream(client: StrictClient, seen: Seen) -> dict[str, Any]:
    """The rest of a stream makes it whole; the last event tells what is stored. Returns the response."""
    rest = await read_again(client, seen.id, len(seen.frames) - 1)
    whole = [*seen.frames, *rest]
    checker = StreamChecker()
    for number, frame in enumerate(whole):
        event = read_frame(frame)
        strict.check_event(event)
        assert event["sequence_number"] == number
        assert checker.feed(event) == []
    assert checker.end() == []
    response: dict[str, Any] = (await client.retrieve(seen.id)).body
    assert read_frame(whole[-1])["response"] == response
    assert await read_again(client, seen.id) == whole
    for number in range(0, len(whole), 7):
        assert await read_again(client, seen.id, number) == whole[number + 1 :]
    return response


def count_secrets(folder: Path) -> int:
    """How many files of the server hold a secret."""
    files = [*(folder / "data").rglob("*"), folder / "server.log"]
    return sum(b"sesame" in path.read_bytes() for path in files if path.is_file())


def test_after_a_kill_nothing_is_stuck_and_streams_go_on_without_gap(tmp_path: Path) -> None:
    """As decided: what ran fails with a clear error, what waited is run."""
    running: list[Seen] = []
    waiting: list[Seen] = []
    polled: list[str] = []
    conversation: list[str] = []

    async def first(server: ServerProcess) -> None:
        async with server.connect() as client, AsyncExitStack() as stack:
            running.extend(await asyncio.gather(*(begin(client, f"long {n}", 8 + n) for n in range(20))))
            polled.append((await queue(client, "short"))["id"])
            waiting.extend([await begin(client, f"short {n}", 1 + n % 2) for n in range(4)])
            polled.append((await queue(client, "short", tools=[SECRETIVE]))["id"])
            answer = await client.send("POST", "/v1/conversations", {})
            conversation.append(answer.body["id"])
            polled.append((await queue(client, "short", conversation=conversation[0]))["id"])
            assert count_secrets(tmp_path) == 0
            readers = [
                asyncio.create_task(follow_until_gone(client, seen)) for seen in running[:10] + waiting[:2]
            ]
            stack.push_async_callback(asyncio.wait, readers)
            lengths = [len(seen.frames) for seen in running[:10]]
            while any(len(seen.frames) < n + 3 for seen, n in zip(running[:10], lengths, strict=True)):
                await asyncio.sleep(0.001)
            server.kill()

    async def second(server: ServerProcess) -> None:
        async with server.connect() as client:
            for seen in running:
                response = await check_stream(client, seen)
                assert response["status"] == "failed"
                assert response["error"] == {"code": "server_error", "message": STOPPED}
            for response_id in [*polled, *(seen.id for seen in waiting)]:
                await poll(client, response_id)
            for seen in waiting:
                assert read_text(await check_stream(client, seen)) == SHORT
            done, secretive, talked = [(await client.retrieve(each)).body for each in polled]
            assert read_text(done) == read_text(talked) == SHORT
            assert secretive["status"] == "failed"
            assert "secrets" in secretive["error"]["message"]
            assert talked["conversation"] == {"id": conversation[0]}
            items = await client.send("GET", f"/v1/conversations/{conversation[0]}/items")
            assert [item["role"] for item in items.body["data"]] == ["assistant", "user"]
            await client.create(input="Go on.", conversation=conversation[0])
            await client.create(input="Go on.", previous_response_id=done["id"])

    with start_server(tmp_path, SCRIPT, ANTIPHON_LIMITS__BACKGROUND_WORKERS="20") as server:
        asyncio.run(asyncio.wait_for(first(server), 30))
    with start_server(tmp_path, QUICK, ANTIPHON_LIMITS__BACKGROUND_WORKERS="2") as server:
        asyncio.run(asyncio.wait_for(second(server), 30))
    assert count_secrets(tmp_path) == 0


def test_a_server_that_is_told_to_stop_ends_what_runs_and_keeps_what_waits(tmp_path: Path) -> None:
    """Ours: each running stream is told, each waiting one breaks off and is run by the next server."""
    running: list[Seen] = []
    waiting: list[Seen] = []
    polled: list[str] = []

    async def first(server: ServerProcess) -> None:
        async with server.connect() as client:
            running.extend([await begin(client, "long", 6) for _ in range(2)])
            polled.append((await queue(client, "short"))["id"])
            waiting.extend([await begin(client, "short", 2) for _ in range(2)])
            readers = [
                asyncio.create_task(follow_until_gone(client, seen)) for seen in [*running[:1], *waiting]
            ]
            length = len(running[0].frames)
            while len(running[0].frames) < length + 3:
                await asyncio.sleep(0.001)
            server.ask_to_stop()
            await asyncio.gather(*readers)

    async def second(server: ServerProcess) -> None:
        async with server.connect() as client:
            for seen in running:
                response = await check_stream(client, seen)
                assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
            assert read_text(await poll(client, polled[0])) == SHORT
            for seen in waiting:
                assert read_text(await poll(client, seen.id)) == SHORT
                await check_stream(client, seen)

    limits = {"ANTIPHON_LIMITS__BACKGROUND_WORKERS": "2", "ANTIPHON_LIMITS__SHUTDOWN_S": "0.2"}
    with start_server(tmp_path, SCRIPT, **limits) as server:
        asyncio.run(asyncio.wait_for(first(server), 30))
        assert server.wait() == 0
    assert read_frame(running[0].frames[-1])["type"] == "response.failed"
    assert all(read_frame(seen.frames[-1])["type"] == "response.queued" for seen in waiting)
    assert not (tmp_path / "data" / "antiphon.db-wal").exists()
    with start_server(tmp_path, QUICK) as server:
        asyncio.run(asyncio.wait_for(second(server), 30))


def test_what_runs_without_a_reader_has_time_to_end_too(tmp_path: Path) -> None:
    """Ours: `limits.shutdown_s` is for background responses as well; what waits is not begun any more."""
    ids: list[str] = []

    async def first(server: ServerProcess) -> None:
        async with server.connect() as client:
            ids.append((await queue(client, "middle"))["id"])
            await poll(client, ids[0], "in_progress")
            ids.append((await queue(client, "short"))["id"])
            server.ask_to_stop()

    async def second(server: ServerProcess) -> None:
        async with server.connect() as client:
            done = (await client.retrieve(ids[0])).body
            assert (done["status"], read_text(done)) == ("completed", LONG)
            assert read_text(await poll(client, ids[1])) == "another"

    with start_server(tmp_path, SCRIPT, ANTIPHON_LIMITS__BACKGROUND_WORKERS="1") as server:
        asyncio.run(asyncio.wait_for(first(server), 30))
        assert server.wait() == 0
    with start_server(tmp_path, {"rules": [{"text": "another"}]}) as server:
        asyncio.run(asyncio.wait_for(second(server), 30))


def test_a_second_signal_ends_what_runs_at_once(tmp_path: Path) -> None:
    """Ours: it fails, and is told so."""
    ids: list[str] = []

    async def first(server: ServerProcess) -> None:
        async with server.connect() as client:
            ids.append((await queue(client, "long"))["id"])
            await poll(client, ids[0], "in_progress")
            server.ask_to_stop()
            while (await client.post({"input": "x", "background": True})).status == 200:
                await asyncio.sleep(0)

    async def begin_stop(server: ServerProcess) -> None:
        with contextlib.suppress(ConnectionFailedError):
            await first(server)

    async def second(server: ServerProcess) -> None:
        async with server.connect() as client:
            failed = (await client.retrieve(ids[0])).body
            assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")

    with start_server(tmp_path, SCRIPT, ANTIPHON_LIMITS__SHUTDOWN_S="600") as server:
        asyncio.run(asyncio.wait_for(begin_stop(server), 30))
        server.ask_to_stop()
        assert server.wait() == 0
    with start_server(tmp_path, QUICK) as server:
        asyncio.run(asyncio.wait_for(second(server), 30))


def run_kill(folder: Path, seed: int) -> dict[str, int]:
    """Kill at any moment among responses that begin, run, wait and end; count how they ended."""
    chance = random.Random(seed)
    everything: list[Seen] = []
    enough = chance.randint(1, 6000)

    async def one(client: StrictClient, number: int) -> None:
        try:
            async with open_new(client, "middle" if number % 3 else "short") as frames:
                seen = Seen(read_frame(frame := await anext(frames))["response"]["id"], [frame])
                everything.append(seen)
                async for frame in frames:
                    seen.frames.append(frame)
        except ConnectionFailedError:
            return

    async def first(server: ServerProcess) -> None:
        async with server.connect() as client:
            clients = [asyncio.create_task(one(client, number)) for number in range(30)]
            while sum(len(seen.frames) for seen in everything) < enough:
                await asyncio.sleep(0)
            server.kill()
            await asyncio.wait(clients)

    async def second(server: ServerProcess) -> dict[str, int]:
        counts: dict[str, int] = {}
        async with server.connect() as client:
            for seen in everything:
                await poll(client, seen.id)
                response = await check_stream(client, seen)
                assert response["status"] in ENDED
                counts[response["status"]] = counts.get(response["status"], 0) + 1
        return counts

    with start_server(folder, SCRIPT) as server:
        asyncio.run(asyncio.wait_for(first(server), 60))
    with start_server(folder, QUICK) as server:
        return asyncio.run(asyncio.wait_for(second(server), 60))


def test_a_kill_at_any_moment_leaves_whole_streams(tmp_path: Path) -> None:
    """Ours, briefly: one moment; the long walk has many."""
    counts = run_kill(tmp_path, 7)
    assert counts


@pytest.mark.faults_long
@pytest.mark.timeout(900)
def test_many_kills_leave_whole_streams(tmp_path: Path) -> None:
    """Ours, at length: 25 kills on one data folder."""
    for seed in range(25):
        print(f"seed {seed}: {run_kill(tmp_path, seed)}")
