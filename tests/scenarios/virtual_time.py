"""An event loop whose clock jumps to the next timer when nothing is ready: an hour takes no time.

It knows asyncio and nothing of Antiphon. Invariant: the clock stands still while anything can run, while a job in
the loop's threads is under way, and while bytes are on their way between two sockets of this machine.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

#: How long sockets are listened to before the clock jumps: what was sent on this machine has come by then.
_GRACE_S = 0.002
#: Nothing is ready, no timer is set, and no thread or socket says anything for this long: the test hangs.
_HANG_S = 20.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` starts at 0 and is the time of whatever runs in it."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._jobs = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> "asyncio.Future[T]":
        """A job on another thread, during which the clock stands still."""
        job = super().run_in_executor(executor, func, *args)
        self._jobs += 1
        job.add_done_callback(self._end_job)
        return job

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds

    def count_timers(self) -> int:
        """How many timers are set."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return sum(not timer.cancelled() for timer in scheduled)

    @property
    def is_working(self) -> bool:
        """Whether a thread has something to do."""
        return self._jobs > 0

    def _end_job(self, _: "asyncio.Future[Any]") -> None:
        self._jobs -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would sleep, time passes at once instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        if timeout is None or self._loop.is_working:
            ready = super().select(_HANG_S)
            if not ready:
                raise RuntimeError("nothing is left that could happen: every task waits for another")
            return ready
        ready = super().select(_GRACE_S)
        if not ready:
            self._loop.jump(timeout)
        return ready


def run_virtually(story: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)
