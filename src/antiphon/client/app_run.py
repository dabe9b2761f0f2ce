"""One run of an ASGI application of this process, as a client's end of an exchange sees it.

It knows ASGI's callables and no message of theirs. Invariant: a failure of the application is told once, and every
wait for it has an end.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from antiphon.client.errors import ApplicationFailedError, ConnectionFailedError
from antiphon.client.transport import TransportLimits

#: Messages that may wait to be read before the writer has to.
MAX_WAITING_CHUNKS = 16

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class AppRun:
    """The task of an application, and the news of it."""

    def __init__(self, limits: TransportLimits) -> None:
        self._limits = limits
        self._news = asyncio.Event()
        self._task: asyncio.Future[None] | None = None
        self._is_failure_told = False

    def start(self, app: AsgiApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application run."""
        self._task = asyncio.ensure_future(app(scope, receive, send))
        self._task.add_done_callback(lambda _: self.tell())

    @property
    def has_ended(self) -> bool:
        """Whether the application has returned or raised."""
        return self._task is not None and self._task.done()

    def tell(self) -> None:
        """Something has changed: whoever waits for news looks again."""
        self._news.set()

    async def wait_for_news(self) -> None:
        """Until something changes; raises `ConnectionFailedError` when nothing does."""
        self._news.clear()
        try:
            async with asyncio.timeout(self._limits.idle_timeout_s):
                await self._news.wait()
        except TimeoutError as silence:
            raise ConnectionFailedError(
                f"the application sent nothing for {self._limits.idle_timeout_s:g} s"
            ) from silence

    async def end(self) -> None:
        """Until the application, which was told of the disconnect, has ended; it is cancelled if it does not."""
        task = self._task
        if task is None:
            return
        try:
            await asyncio.wait({task}, timeout=self._limits.close_timeout_s)
            if not task.done():
                raise ApplicationFailedError(
                    f"the application did not end within {self._limits.close_timeout_s:g} s of a disconnect"
                )
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=self._limits.close_timeout_s)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Tell once of an exception that the application raised."""
        task = self._task
        if task is None or not task.done() or self._is_failure_told:
            return
        self._is_failure_told = True
        if task.cancelled():
            raise ApplicationFailedError("the application was cancelled")
        failure = task.exception()
        if failure is not None:
            raise ApplicationFailedError(
                f"the application failed: {type(failure).__name__}: {failure}"
            ) from failure
