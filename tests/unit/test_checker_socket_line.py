"""One WebSocket as the probes see it: silence, closing, and what an error frame tells."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.checker.answers import Refusal
from antiphon.checker.socket_line import (
    LEAST_FRAME_S,
    LineClosedError,
    Patience,
    SocketLine,
    Turn,
    read_error_frame,
)
from antiphon.checker.undecided import UndecidedError
from antiphon.client import SocketClosedError

CREATED = {"type": "response.created"}
COMPLETED = {"type": "response.completed", "response": {}}


class Played:
    """A socket that says what it was given, then closes or is silent."""

    def __init__(self, *frames: Any, is_closed: bool = True) -> None:
        self._frames = [
            frame if isinstance(frame, str) else msgspec.json.encode(frame).decode() for frame in frames
        ]
        self._is_closed = is_closed
        self.sent: list[Any] = []

    async def send_text(self, text: str) -> None:
        self.sent.append(msgspec.json.decode(text))

    async def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    async def receive(self) -> str:
        if self._frames:
            return self._frames.pop(0)
        if self._is_closed:
            raise SocketClosedError(1011, "broken")
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self, code: int = 1000) -> None:
        return


def open_line(socket: Played, patience: Patience | None = None) -> SocketLine:
    """A line over it that adds nothing to a body."""
    return SocketLine(socket, lambda body: body, lambda: None, patience)


def ask(*frames: Any, lane: str | None = None) -> Turn:
    """One request that is answered so."""
    return asyncio.run(open_line(Played(*frames)).create("Hi.", lane=lane))


def test_a_request_is_one_frame_and_its_turn_ends_with_the_terminal_event() -> None:
    """Ours."""
    socket = Played(CREATED, COMPLETED, CREATED)
    turn = asyncio.run(open_line(socket).create("Hi.", lane="a", previous="resp_1"))
    assert turn.events == [CREATED, COMPLETED]
    (sent,) = socket.sent
    assert sent == {
        "type": "response.create",
        "input": "Hi.",
        "previous_response_id": "resp_1",
        "stream_id": "a",
    }


def test_an_error_frame_is_a_refusal_with_its_code_and_param() -> None:
    """OpenAI guide, WebSocket mode: status beside the error object."""
    frame = {"type": "error", "status": 400, "error": {"message": "No.", "code": "c", "param": "p"}}
    turn = ask(frame)
    assert turn.error == frame
    assert turn.outcome == Refusal(400, "No.", code="c", param="p")
    assert read_error_frame({"type": "error"}).status == 0


def test_a_closed_connection_tells_its_code() -> None:
    """RFC 6455, 7.4."""
    with pytest.raises(LineClosedError) as closed:
        ask(CREATED)
    assert closed.value.close_code == 1011


@pytest.mark.parametrize("frame", ["no JSON", "[]", {"type": "response.created", "stream_id": "b"}])
def test_what_cannot_be_read_or_is_of_another_lane_decides_nothing(frame: Any) -> None:
    """Ours."""
    with pytest.raises(UndecidedError):
        ask(frame, lane="a")


def test_each_silence_shortens_the_next_one_down_to_the_least() -> None:
    """Ours: a server that never answers is found out in bounded time."""
    patience = Patience(0.02)
    with pytest.raises(UndecidedError, match=r"no frame came for 0\.02 s"):
        asyncio.run(open_line(Played(is_closed=False), patience).create("Hi."))
    assert patience.frame_s == 0.02
    long = Patience(60)
    waits = []
    for _ in range(40):
        waits.append(long.frame_s)
        long.note_silence()
    assert waits[:2] == [60, 30]
    assert waits[-1] == LEAST_FRAME_S
    assert sum(waits) < 240
