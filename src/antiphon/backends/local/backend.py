"""The embedded model as a backend: the ordinary dialect, waiting for the child process behind it.

It knows when the model server runs, not what it is asked. Invariant: what a dying server gave no answer to
is asked of the next one, once; an answer that had begun fails.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import TypeVar

import aiohttp

from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.interface import NO_CALLS, Ask, BackendEvent, ModelFacts, Opened, Relayed, Segment
from antiphon.backends.local.runtime import LocalRuntime
from antiphon.context import Profile
from antiphon.protocol.errors import BackendError
from antiphon.protocol.items import Item

T = TypeVar("T")


class LocalBackend:
    """A model that this process runs itself, in a child."""

    speaks_responses = False

    def __init__(self, runtime: LocalRuntime, inner: ChatCompletionsBackend) -> None:
        self.name = inner.name
        self._runtime = runtime
        self._inner = inner

    async def start(self) -> None:
        """Load the model now rather than with the first request; raises `BackendError`."""
        await self._runtime.start()

    def transcribe(
        self,
        items: Sequence[Item],
        profile: Profile,
        *,
        at_start: bool,
        open_calls: Mapping[str, str] = NO_CALLS,
        async_calls: Collection[str] = (),
    ) -> Segment:
        """See the dialect's."""
        return self._inner.transcribe(
            items, profile, at_start=at_start, open_calls=open_calls, async_calls=async_calls
        )

    async def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        """One answer; see the interface's contract."""
        batches = await self._retry(lambda: self._open(ask))
        async with aclosing(batches):
            yield [Opened()]
            async for batch in batches:
                yield batch

    async def _open(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        """The dialect's answer behind its first batch, which holds `Opened` alone."""
        batches = self._inner.stream(ask)
        try:
            await anext(batches)
        except BaseException:
            await batches.aclose()
            raise
        return batches

    async def _retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the running server, and the next one if this one ends before it answers."""
        life = await self._runtime.wait_ready()
        try:
            return await ask()
        except BackendError as error:
            is_lost = isinstance(error.__cause__, aiohttp.ClientConnectionError)
            if not is_lost or not await self._runtime.wait_ended(life):
                raise
        # Only once: it may have ended because of what it was asked.
        await self._runtime.wait_ready()
        return await ask()

    async def list_models(self, *, fresh: bool = False) -> list[ModelFacts]:
        """The one model."""
        return await self._retry(lambda: self._inner.list_models(fresh=fresh))

    async def get_facts(self, model: str) -> ModelFacts:
        """What the table says of it, completed by what the server tells; never raises."""
        # Where it does not run, the dialect says what it knows.
        with suppress(BackendError):
            await self._runtime.wait_ready()
        return await self._inner.get_facts(model)

    async def count_tokens(self, ask: Ask) -> int | None:
        """The exact number of prompt tokens."""
        return await self._retry(lambda: self._inner.count_tokens(ask))

    async def relay(self, path: str, body: bytes) -> Relayed:
        """Hand a request on to the running server."""
        return await self._retry(lambda: self._inner.relay(path, body))

    async def close(self) -> None:
        """Let go of connections and end the child."""
        await self._inner.close()
        await self._runtime.close()
