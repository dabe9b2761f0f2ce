"""Admission: who gets a place, who waits, and what a limited key is told."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from antiphon.protocol.errors import RateLimitError, ServerStoppingError
from antiphon.server import Admission, AdmissionLimits, KeyLimits
from antiphon.server.admission import Lease, format_duration
from antiphon.server.keys import Access

BOUND_S = 10.0
ANNA, BEN, CARLA = Access("anna"), Access("ben"), Access("carla")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def limit_key(**limits: int) -> Access:
    """What a request with a limited key may do."""
    return Access("anna", limits=KeyLimits(name="laptop", **limits))


def run(story: Callable[[], Awaitable[None]]) -> None:
    """A story that ends."""

    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await story()

    asyncio.run(bounded())


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_waiting_tenants_take_turns_whoever_came_first() -> None:
    """Ours: the flood of one tenant does not starve another."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=1))
        order: list[str] = []

        async def ask(name: str, access: Access) -> None:
            lease = await admission.enter(access)
            order.append(name)
            await asyncio.sleep(0)
            lease.leave()

        first = await admission.enter(ANNA)
        asks = [("a1", ANNA), ("a2", ANNA), ("a3", ANNA), ("b1", BEN), ("b2", BEN), ("c1", CARLA)]
        tasks = [asyncio.create_task(ask(*each)) for each in asks]
        await settle()
        assert (order, admission.waiting) == ([], 6)
        first.leave()
        await asyncio.gather(*tasks)
        assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
        assert admission.waiting == 0

    run(story)


def test_no_more_than_the_limit_are_in_at_once_whatever_leaves_and_when() -> None:
    """Invariant: a place that was given is given back exactly once."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=3, max_waiting=1_000))
        inside, most = 0, 0

        async def ask(number: int) -> None:
            nonlocal inside, most
            lease = await admission.enter(Access(f"tenant {number % 5}"))
            try:
                inside += 1
                most = max(most, inside)
                for _ in range(number % 4):
                    await asyncio.sleep(0)
            finally:
                inside -= 1
                lease.leave()
                lease.leave()

        tasks = [asyncio.create_task(ask(number)) for number in range(300)]
        for number, task in enumerate(tasks):
            if number % 7 == 0:
                await asyncio.sleep(0)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (inside, most, admission.waiting) == (0, 3, 0)
        leases = [await admission.enter(ANNA) for _ in range(3)]
        late = asyncio.create_task(admission.enter(ANNA))
        await settle()
        assert not late.done()
        leases[0].leave()
        assert isinstance(await late, Lease)

    run(story)


def test_a_place_that_comes_in_the_moment_of_leaving_goes_to_the_next() -> None:
    """Ours: given and cancelled before the waiting task ran."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=1))
        lease = await admission.enter(ANNA)
        leaver = asyncio.create_task(admission.enter(ANNA))
        next_one = asyncio.create_task(admission.enter(BEN))
        await settle()
        lease.leave()
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
        (await next_one).leave()

    run(story)


def test_a_place_passes_by_those_that_have_just_stopped_waiting() -> None:
    """Ours: whose wait ended in this very moment, its task not run yet, holds up nobody behind it."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=1))
        for _ in range(3):
            first = await admission.enter(ANNA)
            gone = [asyncio.create_task(admission.enter(who)) for who in (ANNA, ANNA, BEN)]
            await settle()
            heir = asyncio.create_task(admission.enter(ANNA))
            await settle()
            for task in gone:
                task.cancel()
            first.leave()
            await settle()
            assert heir.done()
            assert all(task.cancelled() for task in gone)
            (await heir).leave()
            assert admission.waiting == 0
            (await admission.enter(CARLA)).leave()

    run(story)


def test_who_leaves_while_waiting_frees_its_place_in_the_line_at_once() -> None:
    """Ours: the line holds those that still wait, and no others."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=1, max_waiting=1))
        lease = await admission.enter(ANNA)
        waiting = asyncio.create_task(admission.enter(ANNA))
        await settle()
        with pytest.raises(RateLimitError) as caught:
            await admission.enter(BEN)
        assert "limits.max_waiting = 1" in caught.value.message
        assert (caught.value.status, caught.value.headers) == (429, {"retry-after": "5"})
        waiting.cancel()
        await settle()
        other = asyncio.create_task(admission.enter(BEN))
        await settle()
        lease.leave()
        (await other).leave()

    run(story)


def test_a_wait_has_an_end_and_says_whose() -> None:
    """Ours: every wait is bounded; the text names the limit, its number and the remedy."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=1, queue_wait_s=0.01))
        lease = await admission.enter(ANNA)
        with pytest.raises(RateLimitError) as caught:
            await admission.enter(BEN)
        assert caught.value.message == (
            "The server writes as many responses as it may (limits.max_responses = 1), and none ended for this "
            "request within 0.01 s (limits.queue_wait_s). Please try again in 5s."
        )
        assert admission.waiting == 0
        lease.leave()
        (await admission.enter(BEN)).leave()

    run(story)


def test_without_a_limit_nobody_waits() -> None:
    """Setting `limits.max_responses`: 0 is any number."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=0, max_waiting=0))
        for lease in [await admission.enter(ANNA) for _ in range(5_000)]:
            lease.leave()

    run(story)


def test_a_stop_tells_those_that_wait_and_those_that_come() -> None:
    """Ours: a waiting client is told that the server stops; who is inside may end."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=1))
        lease = await admission.enter(ANNA)
        waiting = [asyncio.create_task(admission.enter(access)) for access in (ANNA, BEN)]
        await settle()
        admission.stop()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(error, ServerStoppingError)
            assert error.headers["retry-after"] == "5"
        with pytest.raises(ServerStoppingError):
            await admission.enter(ANNA)
        with pytest.raises(ServerStoppingError):
            admission.charge(ANNA)
        lease.leave()

    run(story)


def test_a_key_has_so_many_requests_open_and_those_that_wait_count() -> None:
    """Setting `keys.NAME.max_responses`."""

    async def story() -> None:
        admission = Admission(AdmissionLimits(max_responses=1))
        key = limit_key(max_responses=2)
        first = await admission.enter(key)
        assert first.headers == ()
        second = asyncio.create_task(admission.enter(key))
        await settle()
        with pytest.raises(RateLimitError) as caught:
            await admission.enter(key)
        assert "keys.laptop.max_responses = 2" in caught.value.message
        assert caught.value.headers == {"retry-after": "5"}
        second.cancel()
        await settle()
        third = asyncio.create_task(admission.enter(key))
        await settle()
        first.leave()
        (await third).leave()
        (await admission.enter(key)).leave()

    run(story)


def test_requests_per_minute_come_in_bursts_and_fill_up_evenly() -> None:
    """Setting `keys.NAME.requests_per_minute`; headers as OpenAI's API sends them."""

    async def story() -> None:
        clock = Clock()
        admission = Admission(clock=clock)
        key = limit_key(requests_per_minute=6)
        told = []
        for _ in range(6):
            lease = await admission.enter(key)
            told.append(dict(lease.headers))
            lease.leave()
        assert told[0] == {
            b"x-ratelimit-limit-requests": b"6",
            b"x-ratelimit-remaining-requests": b"5",
            b"x-ratelimit-reset-requests": b"10s",
        }
        assert told[-1][b"x-ratelimit-remaining-requests"] == b"0"
        assert told[-1][b"x-ratelimit-reset-requests"] == b"1m0s"
        clock.now_s += 3.5
        with pytest.raises(RateLimitError) as caught:
            await admission.enter(key)
        # 10 s for one request, 3.5 of them are over.
        assert caught.value.headers == {
            "x-ratelimit-limit-requests": "6",
            "x-ratelimit-remaining-requests": "0",
            "x-ratelimit-reset-requests": "56.5s",
            "retry-after": "7",
        }
        assert caught.value.message.endswith("Please try again in 7s.")
        clock.now_s += 7
        admission.charge(key)
        with pytest.raises(RateLimitError):
            admission.charge(key)
        clock.now_s += 3_600
        for _ in range(6):
            admission.charge(key)
        with pytest.raises(RateLimitError):
            admission.charge(key)

    run(story)


@pytest.mark.parametrize("most", [1, 3, 7, 59, 61, 600])
def test_whoever_comes_back_when_told_is_served(most: int) -> None:
    """Ours: `retry-after` is true, whatever the number rounds to."""
    clock = Clock()
    admission = Admission(clock=clock)
    key = limit_key(requests_per_minute=most)
    for _ in range(most):
        admission.charge(key)
    for _ in range(200):
        try:
            admission.charge(key)
        except RateLimitError as error:
            clock.now_s += int(error.headers["retry-after"])
            admission.charge(key)


@pytest.mark.parametrize(("most", "told"), [(1, "1 request per minute"), (2, "2 requests per minute")])
def test_a_key_is_told_in_good_words_what_it_may_send(most: int, told: str) -> None:
    """Ours."""
    admission = Admission(clock=Clock())
    key = limit_key(requests_per_minute=most)
    for _ in range(most):
        admission.charge(key)
    with pytest.raises(RateLimitError, match=told):
        admission.charge(key)


def test_what_one_key_has_used_is_no_business_of_another() -> None:
    """Ours: limits are counted for each key, two keys of one tenant too."""
    admission = Admission(clock=Clock())
    admission.charge(limit_key(requests_per_minute=1))
    other = Access("anna", limits=KeyLimits(name="phone", requests_per_minute=1))
    assert dict(admission.charge(other))[b"x-ratelimit-remaining-requests"] == b"0"
    assert admission.charge(ANNA) == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.12, "120ms"),
        (1, "1s"),
        (1.5, "1.5s"),
        (60, "1m0s"),
        (363.4, "6m3.4s"),
        (7200, "2h0m0s"),
    ],
)
def test_a_time_is_written_as_openai_writes_it(seconds: float, text: str) -> None:
    """OpenAI's guide on rate limits: `1s`, `6m0s`."""
    assert format_duration(seconds) == text
