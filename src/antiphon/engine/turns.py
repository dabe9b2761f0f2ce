"""Turns: scarce work shared fairly among tenants, who take one turn each in a circle.

It knows no work. Invariant: a tenant has at most one turn at a time, so as long as there are more turns than tenants
that want one, nobody waits for another.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from antiphon.protocol.errors import OverloadedError


class Turns:
    """So many turns at once; of each tenant so many callers may wait."""

    def __init__(self, at_once: int, *, waiting_per_tenant: int) -> None:
        self._free = at_once
        self._limit = waiting_per_tenant
        self._running: set[str] = set()
        #: Callers that wait, by tenant; the tenant whose turn it is comes first.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def take(self, tenant: str, *, timeout_s: float) -> AsyncGenerator[None, None]:
        """A turn for one tenant; raises `OverloadedError` where too many of its callers wait, or `TimeoutError`."""
        await self._wait(tenant, timeout_s)
        try:
            yield
        finally:
            self._give_back(tenant)

    async def _wait(self, tenant: str, timeout_s: float) -> None:
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= self._limit:
            raise OverloadedError
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._hand_out()
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException:
            # It may have come in the very moment in which nobody waited for it any more.
            if turn.done() and not turn.cancelled():
                self._give_back(tenant)
            else:
                self._forget(tenant, turn)
            raise

    def _give_back(self, tenant: str) -> None:
        self._running.discard(tenant)
        self._free += 1
        self._hand_out()

    def _hand_out(self) -> None:
        for tenant in list(self._waiting):
            if self._free == 0:
                return
            if tenant not in self._running:
                turn = self._waiting[tenant][0]
                # Its next one waits for the turns of all others.
                self._waiting.move_to_end(tenant)
                self._forget(tenant, turn)
                self._running.add(tenant)
                self._free -= 1
                turn.set_result(None)

    def _forget(self, tenant: str, turn: "asyncio.Future[None]") -> None:
        queue = self._waiting[tenant]
        queue.remove(turn)
        if not queue:
            del self._waiting[tenant]
