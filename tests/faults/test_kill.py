"""kill -9 while streams run: what a client saw completed is there, and nothing is half there."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from antiphon.client import ConnectionFailedError
from tests.scenarios.client import StrictClient, read_text
from tests.scenarios.process import start_server

CHAINS = 8
TEXT = " ".join(f"word{number}" for number in range(12)) + "."
SCRIPT = {"window_tokens": 10**9, "rules": [{"text": TEXT, "pause_s": 0.001}]}


class Witness:
    """What the clients of one server saw."""

    def __init__(self, kill_after: int) -> None:
        self._kill_after = kill_after
        #: Ids that a stream began with.
        self.begun: set[str] = set()
        #: Responses whose terminal event, or whole answer, arrived.
        self.completed: list[dict[str, Any]] = []
        self.is_time = asyncio.Event()

    def see(self, response: dict[str, Any]) -> None:
        """A response is complete."""
        self.completed.append(response)
        if len(self.completed) >= self._kill_after:
            self.is_time.set()


async def run_chain(client: StrictClient, number: int, witness: Witness, parent: str | None) -> None:
    """Rounds without end: streamed, every fourth not; ends when the server is gone."""
    try:
        for round_number in range(10_000):
            body = {"input": f"{number}.{round_number}", "previous_response_id": parent}
            if round_number % 4 == 3:
                response = await client.create(**body)
            else:
                response = await run_stream(client, body, witness)
            witness.see(response)
            parent = response["id"]
    except ConnectionFailedError:
        return


async def run_stream(client: StrictClient, body: dict[str, Any], witness: Witness) -> dict[str, Any]:
    """One streamed round."""
    response: dict[str, Any] = {}
    async with client.open_stream(**body) as events:
        async for event in events:
            if "response" in event:
                response = event["response"]
                witness.begun.add(response["id"])
    return response


async def check(client: StrictClient, witness: Witness) -> int:
    """Everything that was seen is there whole and continues; returns how many were whole but unseen."""
    seen = {response["id"] for response in witness.completed}
    for response in witness.completed:
        assert (await client.retrieve(response["id"])).body == response
        assert (await client.list_items(response["id"])).status == 200
        follow = await client.create(input="Go on.", previous_response_id=response["id"], store=False)
        assert follow["usage"]["input_tokens"] > response["usage"]["input_tokens"]
    unseen = 0
    for response_id in witness.begun - seen:
        answer = await client.retrieve(response_id)
        if answer.status == 404:
            continue
        # Stored, but the news of it did not arrive: then it is there whole.
        unseen += 1
        assert answer.body["status"] == "completed"
        assert read_text(answer.body) == TEXT
        await client.create(input="Go on.", previous_response_id=response_id, store=False)
    return unseen


def run_kill(folder: Path, seed: int, parents: list[str | None]) -> list[str | None]:
    """Serve, kill in the middle, serve again and look; returns the newest id of each chain."""
    witness = Witness(kill_after=random.Random(seed).randint(1, 60))

    async def story() -> None:
        async with server.connect() as client:
            chains = [
                asyncio.create_task(run_chain(client, number, witness, parents[number]))
                for number in range(CHAINS)
            ]
            await asyncio.wait_for(witness.is_time.wait(), 30)
            server.kill()
            async with asyncio.timeout(30):
                await asyncio.gather(*chains)

    async def look() -> int:
        async with server.connect() as client:
            return await check(client, witness)

    with start_server(folder, SCRIPT) as server:
        asyncio.run(story())
    with start_server(folder, SCRIPT) as server:
        unseen = asyncio.run(look())
    cut = len(witness.begun) - len({response["id"] for response in witness.completed} & witness.begun)
    print(f"seed {seed}: {len(witness.completed)} seen, {cut} cut, {unseen} of them stored whole")
    newest = [response["id"] for response in witness.completed[-CHAINS:]]
    return [*newest, *[None] * (CHAINS - len(newest))]


def test_what_a_client_saw_completed_survives_a_kill_and_nothing_is_half_there(tmp_path: Path) -> None:
    """ours; as decided: a response is stored before its terminal event leaves."""
    parents: list[str | None] = [None] * CHAINS
    for seed in range(3):
        parents = run_kill(tmp_path, seed, parents)


def test_a_server_that_is_asked_to_stop_lets_its_streams_end(tmp_path: Path) -> None:
    """Ours: an ordinary stop loses nothing and leaves no log file behind."""
    seen: list[dict[str, Any]] = []

    async def story() -> None:
        async with server.connect() as client, client.open_stream(input="Hello.") as events:
            seen.append((await anext(events))["response"])
            server.ask_to_stop()
            async for event in events:
                seen.append(event.get("response", seen[-1]))

    async def look() -> None:
        async with server.connect() as client:
            assert (await client.retrieve(seen[-1]["id"])).body == seen[-1]

    with start_server(tmp_path, SCRIPT) as server:
        asyncio.run(story())
        assert server.wait() == 0
    assert seen[-1]["status"] == "completed"
    assert not (tmp_path / "data" / "antiphon.db-wal").exists()
    with start_server(tmp_path, SCRIPT) as server:
        asyncio.run(look())


@pytest.mark.faults_long
@pytest.mark.timeout(900)
def test_many_kills_on_one_data_folder_lose_nothing(tmp_path: Path) -> None:
    """ours, at length: 40 kills, chains going on from what was there before."""
    parents: list[str | None] = [None] * CHAINS
    for seed in range(100, 140):
        parents = run_kill(tmp_path, seed, parents)
