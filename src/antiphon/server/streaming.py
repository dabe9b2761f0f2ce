"""A round on the wire: frames out, keep-alives in silence, cancellation when the client leaves.

It knows rounds by their events. Invariant: every write holds whole frames, and the terminal frame and
`[DONE]` go together, last.
"""

import asyncio
from contextlib import aclosing
from typing import Any

from antiphon.engine import EncodedEvent, EventSource, Relayed
from antiphon.protocol.errors import AntiphonError
from antiphon.protocol.events import EVENT_TYPES
from antiphon.protocol.lifecycle import TERMINAL_EVENTS
from antiphon.protocol.sse import DONE
from antiphon.server.replies import start_answer, start_stream
from antiphon.server.sending import Sender
from antiphon.server.settings import ServerLimits

_HEADS = {name: b"event: %b\ndata: " % name.encode() for name in EVENT_TYPES}


def frame(events: list[EncodedEvent]) -> bytes:
    """Events as server-sent event frames."""
    if len(events) == 1:
        name, data = events[0]
        return b"%b%b\n\n" % (_HEADS.get(name) or _make_head(name), data)
    return b"".join([b"%b%b\n\n" % (_HEADS.get(name) or _make_head(name), data) for name, data in events])


def _make_head(name: str) -> bytes:
    """For an event that we do not know: another server's, inside an item that it made."""
    return b"event: %b\ndata: " % name.encode()


class DisconnectWatch:
    """Cancels the current task when the client leaves; `left` tells that from other cancellations."""

    def __init__(self, receive: Any) -> None:
        self.left = False
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a watch needs a task to cancel")
        self._main = task
        self._task: asyncio.Task[None] | None = asyncio.create_task(self._watch(receive))

    def take_back_cancellation(self) -> None:
        """The watch cancelled its task for its client's sake alone; the task goes on to clean up."""
        self._main.uncancel()

    def give_up(self) -> None:
        """Treat the client as gone."""
        self.left = True
        self._main.cancel()

    def close(self) -> None:
        """Stop watching."""
        # Let go of the task: its traceback names this object, and the two would keep one another alive.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _watch(self, receive: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.give_up()
                return


class StreamSender(Sender):
    """Sends one source's events as server-sent events."""

    def __init__(self, source: EventSource, send: Any, watch: DisconnectWatch, limits: ServerLimits) -> None:
        super().__init__(source, limits)
        self._send = send
        self._watch = watch
        self._ended = False

    async def run(self, request_id: bytes) -> None:
        """The whole stream. A round has been started before."""
        async with asyncio.timeout(self._limits.write_timeout_s):
            await start_stream(self._send, request_id)
        self._start_timer()
        try:
            async with aclosing(self._source.events()) as batches:
                async for events in batches:
                    if self._pulse is not None:
                        await self._pulse
                        self._pulse = None
                    if events[-1][0] in TERMINAL_EVENTS:
                        await self._write_last(frame(events) + DONE)
                        self._ended = True
                        continue
                    # Not through `_write_events`: a call less for each delta.
                    self._writing = True
                    await self._send({"type": "http.response.body", "body": frame(events), "more_body": True})
                    self._writing = False
                    self._last_s = self._loop.time()
            if not self._ended:
                # Nothing was left to say: a stream that is read again from its end.
                await self._write_last(DONE)
        finally:
            self._stop_timer()

    async def _write_last(self, body: bytes) -> None:
        # Once the answer is whole, servers report a disconnect: nobody has left.
        if self._timer is not None:
            self._timer.cancel()
        self._watch.close()
        self._writing = True
        try:
            async with asyncio.timeout(self._limits.write_timeout_s):
                await self._send({"type": "http.response.body", "body": body})
        except TimeoutError:
            # It reads nothing: the response is stored, and the connection is given up.
            return
        self._writing = False

    async def interrupt(self, error: AntiphonError) -> None:
        """The server must stop: the terminal event, unless the client is in the middle of an unfinished write."""
        events = await self._source.interrupt(error)
        if events and not self._writing:
            await self._write_last(frame(events) + DONE)

    async def _write_events(self, events: list[EncodedEvent]) -> None:
        self._writing = True
        await self._send({"type": "http.response.body", "body": frame(events), "more_body": True})
        self._writing = False
        self._last_s = self._loop.time()

    def _give_up(self) -> None:
        self._watch.give_up()


#: Headers of another server's answer that are ours to set, or concern its connection alone.
_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "server",
        "set-cookie",
        "transfer-encoding",
        "upgrade",
        "x-request-id",
    }
)
#: Beginnings of headers that tell of our account at that server, of its limits and of its time: what they say is not
#: about the client's key, and would stand beside what we say of that.
_ACCOUNT_PREFIXES = ("anthropic-", "cf-", "openai-", "ratelimit", "x-ratelimit-")


async def send_relayed(
    answer: Relayed, receive: Any, send: Any, request_id: bytes, limits: ServerLimits
) -> None:
    """Another server's answer, byte for byte; a client that leaves ends it there too."""
    watch = DisconnectWatch(receive)
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in answer.headers.items()
        if name.lower() not in _OWN_HEADERS and not name.lower().startswith(_ACCOUNT_PREFIXES)
    ]
    try:
        await start_answer(send, request_id, answer.status, headers)
        async with aclosing(answer.chunks) as chunks:
            async for chunk in chunks:
                async with asyncio.timeout(limits.write_timeout_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
        watch.close()
        await send({"type": "http.response.body", "body": b""})
    except (OSError, TimeoutError):
        return
    except asyncio.CancelledError:
        if not watch.left:
            raise
        watch.take_back_cancellation()
    finally:
        watch.close()
        await answer.chunks.aclose()
