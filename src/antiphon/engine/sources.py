"""Where a stream's events come from: a round under way, or a background response that is followed.

It knows no transport. Invariant: exactly one terminal event, last, unless the reader stops before.
"""

from collections.abc import AsyncGenerator
from typing import Protocol

from antiphon.engine.sink import EncodedEvent
from antiphon.protocol.errors import AntiphonError


class EventSource(Protocol):
    """What a transport needs of a stream."""

    def events(self) -> AsyncGenerator[list[EncodedEvent], None]:
        """The events in batches, to the terminal one."""
        ...

    def make_keep_alive(self) -> list[EncodedEvent]:
        """What to say in a long silence; nothing where the source breaks it itself."""
        ...

    async def interrupt(self, error: AntiphonError) -> list[EncodedEvent]:
        """The server must stop: the last events for the client."""
        ...

    async def abandon(self) -> None:
        """The client left."""
        ...
