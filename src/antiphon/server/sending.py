"""Sending a source's events, whatever carries them: signs of life in silence, and an end to waiting for a reader.

It knows events by their names and no wire. Invariant: while the source is silent a sign is sent every
`keep_alive_s`, and a write that lasts longer than `write_timeout_s` ends the wait for its reader.
"""

import asyncio
from abc import ABC, abstractmethod

from antiphon.engine import EncodedEvent, EventSource
from antiphon.server.settings import ServerLimits


class Sender(ABC):
    """One source's events on their way to one client. Whoever writes sets `_writing` and `_last_s`."""

    def __init__(self, source: EventSource, limits: ServerLimits) -> None:
        self._source = source
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._last_s = self._loop.time()
        self._writing = False
        self._pulse: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @abstractmethod
    async def _write_events(self, events: list[EncodedEvent]) -> None:
        """Send events that are not the last ones."""

    @abstractmethod
    def _give_up(self) -> None:
        """The client reads nothing: treat it as gone."""

    def _start_timer(self) -> None:
        self._timer = self._loop.call_later(self._limits.keep_alive_s, self._tick)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pulse is not None:
            self._pulse.cancel()

    def _tick(self) -> None:
        """Every so often: speak in silence, give up on a client that does not read."""
        silence_s = self._loop.time() - self._last_s
        wait_s = self._limits.keep_alive_s
        if self._writing:
            if silence_s >= self._limits.write_timeout_s:
                self._give_up()
                return
        elif silence_s >= self._limits.keep_alive_s:
            sign = self._source.make_keep_alive()
            if sign and (self._pulse is None or self._pulse.done()):
                self._pulse = self._loop.create_task(self._write_events(sign))
        else:
            wait_s -= silence_s
        self._timer = self._loop.call_later(max(wait_s, 0.001), self._tick)
