"""Admission: how many requests ask models at once, who waits, and what one key may ask.

It knows tenants and keys, and no wire. Invariant: a place that was given is given back exactly once, and as long as
one tenant's requests wait no other tenant waits longer than one round of the circle.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from antiphon.protocol.errors import RETRY_AFTER_S, AntiphonError, RateLimitError, ServerStoppingError
from antiphon.server.keys import Access, KeyLimits

_MINUTE_S = 60.0

Header: TypeAlias = tuple[bytes, bytes]


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests of all tenants ask models at once."""

    #: Requests that ask at once; 0: any number.
    max_responses: int = 1_000
    #: Requests that wait for others to end.
    max_waiting: int = 1_000
    #: The longest wait.
    queue_wait_s: float = 30.0


class Lease:
    """A place, until `leave`; `headers` tell a limited key how much it has left."""

    __slots__ = ("_give_back", "_key", "headers")

    def __init__(
        self,
        give_back: "Callable[[_KeyUse | None], None] | None",
        key: "_KeyUse | None",
        headers: tuple[Header, ...],
    ) -> None:
        self._give_back = give_back
        self._key = key
        self.headers: Final = headers

    def leave(self) -> None:
        """Give the place back; more calls do nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self._key)


class Admission:
    """The door that every request to a model goes through."""

    def __init__(
        self, limits: AdmissionLimits | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits or AdmissionLimits()
        self._clock = clock
        self._free: float = self._limits.max_responses or math.inf
        self._waiting = 0
        #: Requests that wait, by tenant; the tenant whose turn it is comes first.
        self._lines: OrderedDict[str, dict[asyncio.Future[None], None]] = OrderedDict()
        self._keys: dict[str, _KeyUse] = {}
        self._is_stopping = False

    async def enter(self, access: Access) -> Lease:
        """A place for one request; waits for one while there is none.

        Raises `RateLimitError` where the key or the server has too much to do already, and `ServerStoppingError`.
        """
        if self._is_stopping:
            raise ServerStoppingError
        if access.limits is None:
            await self._take_place(access.tenant)
            return Lease(self._give_back, None, ())
        key = self._find_key(access.limits)
        try:
            return await self._enter_limited(access.tenant, key)
        except RateLimitError as error:
            error.headers.update(key.describe(self._clock()))
            raise

    async def _enter_limited(self, tenant: str, key: "_KeyUse") -> Lease:
        key.check_room()
        if not self._has_room:
            self._check_line()
        headers = key.charge(self._clock())
        key.open += 1
        try:
            await self._take_place(tenant)
        except BaseException as reason:
            key.open -= 1
            if isinstance(reason, AntiphonError):
                # It was the server that refused.
                key.uncharge()
            raise
        return Lease(self._give_back, key, headers)

    @property
    def _has_room(self) -> bool:
        # Whoever waits was here before.
        return self._free > 0 and not self._waiting

    async def _take_place(self, tenant: str) -> None:
        if self._has_room:
            self._free -= 1
            return
        self._check_line()
        await self._wait(tenant)

    def charge(self, access: Access) -> tuple[Header, ...]:
        """Count a request that waits elsewhere, and takes no place here; the headers for its answer.

        Raises `RateLimitError` where the key has no request left, and `ServerStoppingError`.
        """
        if self._is_stopping:
            raise ServerStoppingError
        if access.limits is None:
            return ()
        return self._find_key(access.limits).charge(self._clock())

    def uncharge(self, access: Access) -> tuple[Header, ...]:
        """Count a request no longer that the server refused for reasons of its own; the headers for its answer."""
        if access.limits is None:
            return ()
        key = self._find_key(access.limits)
        key.uncharge()
        return _encode_headers(key.describe(self._clock()))

    def stop(self) -> None:
        """The server stops: who waits is told so, and nobody gets a place any more."""
        self._is_stopping = True
        for line in self._lines.values():
            for place in line:
                if not place.done():
                    place.set_exception(ServerStoppingError())

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return self._waiting

    def _find_key(self, limits: KeyLimits) -> "_KeyUse":
        use = self._keys.get(limits.name)
        if use is None:
            use = self._keys[limits.name] = _KeyUse(limits, self._clock())
        return use

    def _check_line(self) -> None:
        limits = self._limits
        if self._waiting >= limits.max_waiting:
            raise RateLimitError(
                f"The server writes as many responses as it may (limits.max_responses = {limits.max_responses}), "
                f"and as many requests wait as may (limits.max_waiting = {limits.max_waiting}). "
                f"Please try again in {RETRY_AFTER_S}s."
            )

    async def _wait(self, tenant: str) -> None:
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._lines.setdefault(tenant, {})[place] = None
        self._waiting += 1
        timer = loop.call_later(self._limits.queue_wait_s, self._expire, place)
        try:
            await place
        except BaseException:
            # It may have been given in the very moment in which nobody waited for it any more.
            if place.done() and not place.cancelled() and place.exception() is None:
                self._give_back(None)
            raise
        finally:
            timer.cancel()
            self._forget(tenant, place)

    def _expire(self, place: "asyncio.Future[None]") -> None:
        if not place.done():
            limits = self._limits
            place.set_exception(
                RateLimitError(
                    f"The server writes as many responses as it may (limits.max_responses = {limits.max_responses}), "
                    f"and none ended for this request within {limits.queue_wait_s:g} s (limits.queue_wait_s). "
                    f"Please try again in {RETRY_AFTER_S}s."
                )
            )

    def _give_back(self, key: "_KeyUse | None") -> None:
        if key is not None:
            key.open -= 1
        self._free += 1
        if self._waiting:
            self._hand_on()

    def _hand_on(self) -> None:
        """Give the free place to the first of the tenant whose turn it is.

        Whoever stopped waiting, and whose task has not run since, has no turn: the next one of the same tenant has.
        """
        while self._lines:
            tenant, line = next(iter(self._lines.items()))
            place = next(iter(line))
            self._forget(tenant, place)
            if place.done():
                continue
            if tenant in self._lines:
                self._lines.move_to_end(tenant)
            self._free -= 1
            place.set_result(None)
            return

    def _forget(self, tenant: str, place: "asyncio.Future[None]") -> None:
        line = self._lines.get(tenant)
        if line is None or place not in line:
            return
        del line[place]
        self._waiting -= 1
        if not line:
            del self._lines[tenant]


class _KeyUse:
    """What one key has open, and how many requests it has left: a bucket that fills within a minute."""

    __slots__ = ("_at_s", "_left", "_limits", "open")

    def __init__(self, limits: KeyLimits, now_s: float) -> None:
        self._limits = limits
        self._left = float(limits.requests_per_minute)
        self._at_s = now_s
        self.open = 0

    def check_room(self) -> None:
        """Raise where the key has as many requests open as it may."""
        most = self._limits.max_responses
        if most and self.open >= most:
            raise RateLimitError(
                f"This API key has {most} responses at once, as many as it may (keys.{self._limits.name}."
                f"max_responses = {most}). Wait for one to end. Please try again in {RETRY_AFTER_S}s."
            )

    def charge(self, now_s: float) -> tuple[Header, ...]:
        """Take one request from the bucket; raises where there is none. What is left, as headers."""
        most = self._limits.requests_per_minute
        if not most:
            return ()
        self._refill(now_s)
        rate = most / _MINUTE_S
        # Sums of small refills fall short of a whole by less than this.
        if self._left < 1 - 1e-9:
            wait_s = max(1, math.ceil((1 - self._left) / rate - 1e-6))
            requests = "request" if most == 1 else "requests"
            raise RateLimitError(
                f"This API key may send {most} {requests} per minute (keys.{self._limits.name}.requests_per_minute = "
                f"{most}), and has sent them. Please try again in {wait_s}s.",
                headers={**self.describe(now_s), "retry-after": str(wait_s)},
            )
        self._left = max(0.0, self._left - 1)
        return _encode_headers(self.describe(now_s))

    def uncharge(self) -> None:
        """Put one request back into the bucket."""
        self._left = min(float(self._limits.requests_per_minute), self._left + 1)

    def describe(self, now_s: float) -> dict[str, str]:
        """What is left, as headers; none for a key that may send any number."""
        most = self._limits.requests_per_minute
        if not most:
            return {}
        self._refill(now_s)
        return {
            "x-ratelimit-limit-requests": str(most),
            "x-ratelimit-remaining-requests": str(int(self._left + 1e-9)),
            "x-ratelimit-reset-requests": format_duration((most - self._left) * _MINUTE_S / most),
        }

    def _refill(self, now_s: float) -> None:
        most = self._limits.requests_per_minute
        self._left = min(float(most), self._left + max(0.0, now_s - self._at_s) * most / _MINUTE_S)
        self._at_s = now_s


def _encode_headers(headers: dict[str, str]) -> tuple[Header, ...]:
    return tuple((name.encode(), value.encode()) for name, value in headers.items())


def format_duration(seconds: float) -> str:
    """As OpenAI's API writes it, rounded up: 0.12 -> "120ms", 1.5 -> "1.5s", 363.4 -> "6m3.4s", 7200 -> "2h0m0s"."""
    milliseconds = math.ceil(seconds * 1000 - 1e-6)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
