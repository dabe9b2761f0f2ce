"""A round on the wire: whole frames, keep-alives in silence, the end in one write."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antiphon.engine import EncodedEvent
from antiphon.server.settings import ServerLimits
from antiphon.server.streaming import DisconnectWatch, StreamSender, frame

CREATED: EncodedEvent = ("response.created", b'{"n":0}')
DELTA: EncodedEvent = ("response.output_text.delta", b'{"n":1}')
ALIVE: EncodedEvent = ("response.in_progress", b'{"k":1}')
COMPLETED: EncodedEvent = ("response.completed", b'{"n":2}')
BOUND_S = 10.0


class PlayedRound:
    """A round whose batches the test decides; `hold` is awaited before the batch of that number."""

    def __init__(self, batches: list[list[EncodedEvent]], hold_at: int | None = None) -> None:
        self._batches = batches
        self._hold_at = hold_at
        self.hold = asyncio.Event()

    async def events(self) -> AsyncGenerator[list[EncodedEvent], None]:
        for number, batch in enumerate(self._batches):
            if number == self._hold_at:
                await self.hold.wait()
            yield batch

    def make_keep_alive(self) -> list[EncodedEvent]:
        return [ALIVE]


class Wire:
    """What was sent; a write waits while `blocked` is set at it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.is_open = True
        self.room = asyncio.Event()
        self.room.set()
        self.news = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        await self.room.wait()
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self.is_open = message.get("more_body", False)
            self.news.set()

    async def receive(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def wait_for(self, count: int) -> None:
        """Until that many bodies were sent."""
        async with asyncio.timeout(BOUND_S):
            while len(self.bodies) < count:
                self.news.clear()
                await self.news.wait()


async def run(round_: Any, wire: Wire, **limits: float) -> None:
    """One stream, bounded."""
    async with asyncio.timeout(BOUND_S):
        watch = DisconnectWatch(wire.receive)
        try:
            await StreamSender(round_, wire.send, watch, ServerLimits(**limits)).run(b"req_1")  # type: ignore[arg-type]
        finally:
            watch.close()


def test_events_of_one_batch_are_one_write_and_the_end_is_the_last() -> None:
    """Responses API 4.1: whole frames; ours: one or several per write, never half of one; [DONE]."""

    async def story() -> None:
        wire = Wire()
        await run(PlayedRound([[CREATED], [DELTA, DELTA], [COMPLETED]]), wire)
        assert wire.bodies == [
            b'event: response.created\ndata: {"n":0}\n\n',
            b'event: response.output_text.delta\ndata: {"n":1}\n\n' * 2,
            b'event: response.completed\ndata: {"n":2}\n\ndata: [DONE]\n\n',
        ]
        assert not wire.is_open

    asyncio.run(story())


def test_silence_is_filled_until_something_comes() -> None:
    """Decided."""

    async def story() -> None:
        wire = Wire()
        round_ = PlayedRound([[CREATED], [COMPLETED]], hold_at=1)
        task = asyncio.create_task(run(round_, wire, keep_alive_s=0.01))
        await wire.wait_for(4)
        round_.hold.set()
        await task
        assert wire.bodies[1:4] == [frame([ALIVE])] * 3
        assert wire.bodies[-1].endswith(b"data: [DONE]\n\n")

    asyncio.run(story())


def test_a_client_that_does_not_read_is_given_up() -> None:
    """Limit write_timeout_s: it is treated as gone."""

    async def story() -> None:
        wire = Wire()
        round_ = PlayedRound([[CREATED], [DELTA], [COMPLETED]], hold_at=1)
        task = asyncio.create_task(run(round_, wire, keep_alive_s=0.01, write_timeout_s=0.05))
        await wire.wait_for(1)
        wire.room.clear()
        round_.hold.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())


def test_a_keep_alive_that_cannot_be_written_does_not_overtake_or_double() -> None:
    """Ours: events wait for the keep-alive that is being written."""

    async def story() -> None:
        wire = Wire()
        round_ = PlayedRound([[CREATED], [DELTA], [COMPLETED]], hold_at=1)
        task = asyncio.create_task(run(round_, wire, keep_alive_s=0.01))
        await wire.wait_for(2)
        wire.room.clear()
        round_.hold.set()
        for _ in range(20):
            await asyncio.sleep(0)
        wire.room.set()
        await task
        text = b"".join(wire.bodies)
        assert text.count(b"response.created") == 1
        assert text.index(b"response.output_text.delta") > text.rindex(b'{"k":1}')
        assert text.endswith(b"data: [DONE]\n\n")

    asyncio.run(story())


def test_a_client_that_leaves_cancels_the_request_and_says_so() -> None:
    """Decided."""

    told: list[bool] = []

    async def story() -> None:
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            await gone.wait()
            return {"type": "http.disconnect"}

        watch = DisconnectWatch(receive)
        told.append(watch.left)
        gone.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.Event().wait(), BOUND_S)
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        told.append(watch.left)

    asyncio.run(story())
    assert told == [False, True]
