"""One WebSocket of the server under check, as the probes see it: frames sent, and what comes back lane by lane.

It knows no requirement. Invariant: what breaks reaches a probe as `UndecidedError`, or as `LineClosedError` where the
server closed the connection; a frame that came is never dropped.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from antiphon.checker.answers import Answer, Item, Refusal, decode_json, read_response, tidy
from antiphon.checker.recordings import END_MARK, Event, Recording, read_type
from antiphon.checker.undecided import UndecidedError
from antiphon.client import ConnectionFailedError, Socket, SocketClosedError
from antiphon.protocol.lifecycle import TERMINAL_EVENTS

#: What a server without WebSocket lacks; said once for all requirements of the area.
SOCKET_NEEDS = "a server that offers WebSocket mode"
#: Until the next frame must have come; each silence halves it for all that follow, down to the least.
FRAME_S = 60.0
LEAST_FRAME_S = 2.0
#: Frames of one answer that are read, at most.
MAX_FRAMES = 50_000


class Patience:
    """How long the frames of one server are waited for: its silences together take no longer than some minutes."""

    def __init__(self, frame_s: float = FRAME_S) -> None:
        self.frame_s = frame_s

    def note_silence(self) -> None:
        """A frame did not come."""
        self.frame_s = max(self.frame_s / 2, min(self.frame_s, LEAST_FRAME_S))


class LineClosedError(UndecidedError):
    """The server closed the connection."""

    def __init__(self, close_code: int, reason: str) -> None:
        super().__init__(f"the server closed the WebSocket (code {close_code}) {tidy(reason, 100)}".strip())
        self.close_code = close_code


class Turn(msgspec.Struct):
    """What one request on a lane was answered with: its events, or the error frame that refused it."""

    events: list[Event] = msgspec.field(default_factory=list)
    error: Event | None = None

    @property
    def recording(self) -> Recording:
        """The events as those of a stream."""
        return Recording(self.events)

    @property
    def outcome(self) -> Answer | Refusal:
        """The answer, or how it was refused or failed."""
        if self.error is not None:
            return read_error_frame(self.error)
        found = read_response(self.recording.response)
        if found is None:
            raise UndecidedError("the terminal event carries no response object")
        return found


def read_error_frame(frame: Event) -> Refusal:
    """The refusal in an error frame, read leniently."""
    told = frame.get("error")
    error: dict[str, Any] = told if isinstance(told, dict) else frame
    status, code, param = frame.get("status"), error.get("code"), error.get("param")
    return Refusal(
        status if type(status) is int else 0,
        tidy(error.get("message") or frame),
        code=tidy(code, 80) if isinstance(code, str) else None,
        param=tidy(param, 80) if isinstance(param, str) else None,
    )


class SocketLine:
    """An open connection."""

    def __init__(
        self,
        socket: Socket,
        make_body: Callable[[dict[str, Any]], dict[str, Any]],
        note_answer: Callable[[], None],
        patience: Patience | None = None,
    ) -> None:
        self._socket = socket
        self._make_body = make_body
        self._note_answer = note_answer
        self._patience = patience or Patience()
        self._has_ended_well = False

    async def create(
        self,
        items: list[Item] | str | None,
        *,
        previous: str | None = None,
        lane: str | None = None,
        **fields: Any,
    ) -> Turn:
        """One request, and everything up to its end."""
        await self.begin(items, previous=previous, lane=lane, **fields)
        return await self.finish(lane)

    async def ask(self, items: list[Item] | str | None, **fields: Any) -> Answer:
        """A request that must be answered for the probe to go on."""
        found = (await self.create(items, **fields)).outcome
        if isinstance(found, Refusal):
            raise UndecidedError(f"the server refused a request that the probe needs ({found})")
        return found

    async def begin(
        self,
        items: list[Item] | str | None,
        *,
        previous: str | None = None,
        lane: str | None = None,
        **fields: Any,
    ) -> None:
        """Sends one `response.create`. Without `items` the input is left out."""
        body: dict[str, Any] = dict(fields)
        if items is not None:
            body["input"] = items
        if previous is not None:
            body["previous_response_id"] = previous
        if lane is not None:
            body["stream_id"] = lane
        await self.send({"type": "response.create", **self._make_body(body)})

    async def finish(self, lane: str | None = None) -> Turn:
        """Everything up to the next end; `lane` alone is looked at where it is named and frames tell theirs."""
        turn = Turn()
        for _ in range(MAX_FRAMES):
            event = await self.read()
            told = event.get("stream_id")
            if lane is not None and told is not None and told != lane:
                raise UndecidedError(f"a frame of the lane {tidy(told, 70)!r} came, which nobody asked for")
            kind = read_type(event)
            if kind == "error" and not turn.events:
                turn.error = event
                return turn
            turn.events.append(event)
            if kind in TERMINAL_EVENTS:
                self._note_answer()
                return turn
        raise UndecidedError(f"more than {MAX_FRAMES} frames came without an end")

    async def probe_frame(self, frame: Any) -> tuple[list[Event], Turn]:
        """Sends a frame that asks for no response, then a small request: what came before its events, and those."""
        await self.send(frame)
        await self.begin("Say hello.", max_output_tokens=16)
        before: list[Event] = []
        while True:
            event = await self.read()
            if read_type(event) == "response.created":
                break
            before.append(event)
            if len(before) > 2:
                raise UndecidedError("the request after the frame is refused as well")
        turn = await self.finish()
        turn.events.insert(0, event)
        return before, turn

    async def send(self, frame: Any) -> None:
        """One frame: an object as JSON, a text as it is, bytes as a binary message."""
        try:
            if isinstance(frame, bytes):
                await self._socket.send_bytes(frame)
            else:
                await self._socket.send_text(
                    frame if isinstance(frame, str) else msgspec.json.encode(frame).decode()
                )
        except SocketClosedError as closed:
            raise LineClosedError(closed.close_code, closed.reason) from closed
        except ConnectionFailedError as failure:
            raise UndecidedError(f"WebSocket: {tidy(failure)}") from failure

    async def read(self) -> Event:
        """The next frame that is an event; the end mark is passed over where a response has just ended."""
        while True:
            text = await self._read_text()
            if text.encode() == END_MARK and self._has_ended_well:
                continue
            event = decode_json(text.encode())
            if not isinstance(event, dict):
                raise UndecidedError(f"a frame is no JSON object: {tidy(text)}")
            self._has_ended_well = read_type(event) in TERMINAL_EVENTS
            return event

    async def _read_text(self) -> str:
        frame_s = self._patience.frame_s
        try:
            async with asyncio.timeout(frame_s):
                return await self._socket.receive()
        except TimeoutError:
            self._patience.note_silence()
            raise UndecidedError(f"no frame came for {frame_s:g} s") from None
        except SocketClosedError as closed:
            raise LineClosedError(closed.close_code, closed.reason) from closed
        except ConnectionFailedError as failure:
            raise UndecidedError(f"WebSocket: {tidy(failure)}") from failure
