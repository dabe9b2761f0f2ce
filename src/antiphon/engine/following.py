"""Reading a background response's events: those that were, then those to come.

It knows no transport and starts nothing. Invariant: a reader gets every event behind the one that it names,
once, in order.
"""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from antiphon.engine.ids import make_obfuscation
from antiphon.engine.live import LiveResponse
from antiphon.engine.sink import EncodedEvent
from antiphon.protocol.errors import AntiphonError, RequestError, ServerStoppingError
from antiphon.protocol.lifecycle import TERMINAL_EVENTS

#: Padding as `EventSink` and `pad` write it; inside a JSON text its quotes would be escaped.
_PADDING = re.compile(rb',"obfuscation":"[A-Za-z0-9_-]*"')


class Follower:
    """One reader (an event source).

    `live` is None for a response that has ended. `obfuscate`: True pads the deltas, False takes padding away,
    None leaves them as they were first sent.
    """

    def __init__(
        self,
        live: LiveResponse | None,
        events: list[EncodedEvent],
        after: int,
        *,
        obfuscate: bool | None,
        stop: Callable[[LiveResponse], Awaitable[None]],
    ) -> None:
        self._live = live
        self._events = events
        self._next = after + 1
        self._obfuscate = obfuscate
        self._stop = stop

    async def events(self) -> AsyncGenerator[list[EncodedEvent], None]:
        """What there is behind the last one that the reader had, then what comes."""
        live = self._live
        if live is not None:
            live.readers += 1
        try:
            while True:
                ready = self._take()
                if ready:
                    yield ready
                    if ready[-1][0] in TERMINAL_EVENTS:
                        return
                elif live is None:
                    return
                elif not live.is_over:
                    await live.wait()
                elif live.has_told_its_end:
                    return
                else:
                    # The next server ends it: the stream breaks off, and can be taken up again there.
                    raise ServerStoppingError
        finally:
            if live is not None:
                live.readers -= 1

    def _take(self) -> list[EncodedEvent]:
        ready = self._events[self._next :]
        self._next = max(self._next, len(self._events))
        if self._obfuscate is None:
            return ready
        return [(_pad if self._obfuscate else _unpad)(event) for event in ready]

    def make_keep_alive(self) -> list[EncodedEvent]:
        """Nothing: the response's own signs of life are numbered and stored."""
        return []

    async def interrupt(self, error: AntiphonError) -> list[EncodedEvent]:
        """The server stops, and the response with it: its last events."""
        if self._live is not None:
            await self._stop(self._live)
        return self._take()

    async def abandon(self) -> None:
        """The reader left; the response goes on."""


def make_not_streamable() -> RequestError:
    """The answer to streaming a response again that was not created for that."""
    return RequestError(
        "Only a response that was created with 'background' and 'stream' can be streamed again; "
        "read it without 'stream'.",
        param="stream",
    )


def _pad(event: EncodedEvent) -> EncodedEvent:
    name, data = event
    if not name.endswith(".delta") or _PADDING.search(data):
        return event
    return name, data[:-1] + b',"obfuscation":' + msgspec.json.encode(make_obfuscation()) + b"}"


def _unpad(event: EncodedEvent) -> EncodedEvent:
    name, data = event
    return (name, _PADDING.sub(b"", data)) if name.endswith(".delta") else event
