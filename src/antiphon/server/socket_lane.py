"""One response over a WebSocket: its events as frames of a lane.

It knows rounds by their events and no connection. Invariant: every message is one whole event, and whatever the
client's lane remembers is settled before the last one leaves.
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeAlias

from antiphon.engine import EncodedEvent, EventSource
from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.lifecycle import TERMINAL_EVENTS
from antiphon.protocol.socket_frames import mark_lane
from antiphon.server.sending import Sender
from antiphon.server.settings import ServerLimits

#: Sends one text message.
SendText: TypeAlias = Callable[[bytes], Awaitable[None]]


class LaneSender(Sender):
    """Sends one source's events. `settle` is called before the terminal event, `give_up` when nobody reads."""

    def __init__(
        self,
        source: EventSource,
        send: SendText,
        lane: str | None,
        limits: ServerLimits,
        *,
        settle: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        super().__init__(source, limits)
        self._send = send
        self._lane = lane
        self._settle = settle
        self._give_up_client = give_up

    async def run(self) -> None:
        """The whole stream. A round has been started before."""
        self._start_timer()
        try:
            async with aclosing(self._source.events()) as batches:
                async for events in batches:
                    if self._pulse is not None:
                        await self._pulse
                        self._pulse = None
                    if events[-1][0] in TERMINAL_EVENTS:
                        self._settle()
                    await self._write_events(events)
        finally:
            self._stop_timer()

    async def interrupt(self, error: AntiphonError) -> None:
        """The server must stop: the terminal event, unless the client is in the middle of an unfinished write."""
        events = await self._source.interrupt(error)
        self._settle()
        if events and not self._writing:
            await self._write_events(events)

    async def _write_events(self, events: list[EncodedEvent]) -> None:
        self._writing = True
        for _, data in events:
            await self._send(mark_lane(data, self._lane))
        self._writing = False
        self._last_s = self._loop.time()

    def _give_up(self) -> None:
        self._give_up_client()
