"""`truncation: auto` before a model server that tells its window only by refusing, or not at all."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon.engine.fitting import OVERFLOW_ATTEMPTS
from antiphon.protocol.errors import ContextOverflowError
from tests.fake_upstream import FakeUpstream, Reply, Request, make_event, make_json, make_response_stream
from tests.scenarios.client import read_text
from tests.scenarios.houses import House, list_codes, open_house
from tests.scenarios.test_responses_upstream import answer, make_settings, say

WINDOW = 4_000
TURN = "word " * 500


def count(request: Request) -> int:
    """A tokenizer: a word is a token."""
    return len(request.body.split())


def refuse(message: str) -> Reply:
    """Before the answer begins."""
    told = {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}
    return Reply([make_json({"error": {**told, "param": "input"}}, status=400)])


def fail(message: str) -> Reply:
    """In the stream, before anything of the answer, as a server does that has begun already."""
    error = {"message": message, "code": "context_length_exceeded"}
    begun = make_event("response.created", response={"id": "resp_up", "status": "in_progress"})
    failed = make_event("response.failed", response={"id": "resp_up", "status": "failed", "error": error})
    return Reply(make_response_stream(begun, failed))


#: How a server says that a prompt of so many tokens does not fit.
REFUSALS: dict[str, Callable[[int], Reply]] = {
    "both": lambda tokens: refuse(ContextOverflowError(prompt_tokens=tokens, window_tokens=WINDOW).message),
    "window": lambda tokens: refuse(ContextOverflowError(window_tokens=WINDOW).message),
    "at_least": lambda tokens: refuse(
        ContextOverflowError(prompt_tokens=WINDOW, window_tokens=WINDOW, at_least=True).message
    ),
    "none": lambda tokens: refuse("Too much."),
    "in_stream": lambda tokens: fail(ContextOverflowError().message),
}


def run(folder: Path, refusal: Callable[[int], Reply], story: Callable[[House], Any]) -> None:
    """Our server before one whose window is not known."""

    def reply(request: Request) -> Reply:
        tokens = count(request)
        if tokens > WINDOW:
            return refusal(tokens)
        usage = {"input_tokens": tokens, "output_tokens": 5, "total_tokens": tokens + 5}
        return answer(say("Yes."), usage=usage)

    async def main() -> None:
        async with (
            asyncio.timeout(40),
            FakeUpstream(reply) as upstream,
            open_house(folder, upstream, settings=make_settings(upstream)) as house,
        ):
            await story(house)

    asyncio.run(main())


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_chain_grows_over_a_window_that_nobody_knows(tmp_path: Path, refusal: str) -> None:
    """Ours: every round is answered, and what a refusal has taught is used before the next one."""

    async def story(house: House) -> None:
        parent: str | None = None
        refusals: list[int] = []
        for number in range(24):
            asked = len(house.upstream.asked)
            made = await house.make(input=f"{number} {TURN}", previous_response_id=parent, truncation="auto")
            assert read_text(made) == "Yes."
            parent = made["id"]
            refusals.append(len(house.upstream.asked) - asked - 1)
        assert list_codes(made) == ["history_truncated"]
        # By numbers one is enough; without them it is found out once.
        assert sum(refusals) <= (1 if refusal == "both" else 4)
        # What is kept is not the least that would do.
        assert count(house.upstream.asked[-1]) > WINDOW / 3

    run(tmp_path, REFUSALS[refusal], story)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_history_of_many_windows_ends_within_the_retries(tmp_path: Path, refusal: str) -> None:
    """Ours: whatever the refusal tells, the last retry leaves out all that can go."""
    history = [{"role": role, "content": TURN} for _ in range(40) for role in ("user", "assistant")]

    async def story(house: House) -> None:
        made = await house.make(input=[*history, {"role": "user", "content": "Now?"}], truncation="auto")
        assert read_text(made) == "Yes."
        assert len(house.upstream.asked) <= OVERFLOW_ATTEMPTS
        error = await house.refuse(input="word " * 5_000, truncation="auto")
        assert error["code"] == "context_length_exceeded"

    run(tmp_path, REFUSALS[refusal], story)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_one_huge_item_teaches_nothing_that_harms_others(tmp_path: Path, refusal: str) -> None:
    """Ours: what fits after it was left out says nothing of how much would have fitted."""

    async def story(house: House) -> None:
        huge = [{"role": "user", "content": "word " * 9_000}, {"role": "assistant", "content": "x"}]
        made = await house.make(input=[*huge, {"role": "user", "content": "Now?"}], truncation="auto")
        assert list_codes(made) == ["history_truncated"]
        past = [{"role": "user", "content": TURN}, {"role": "assistant", "content": "x"}]
        asked = [*past, *past, {"role": "user", "content": "And now?"}]
        assert list_codes(await house.make(input=asked, truncation="auto")) == []

    run(tmp_path, REFUSALS[refusal], story)


def test_a_longer_prompt_that_is_taken_makes_the_window_unknown_again(tmp_path: Path) -> None:
    """Ours: a model server may be started again with a larger window."""
    window = [WINDOW]

    def reply(request: Request) -> Reply:
        tokens = count(request)
        if tokens > window[0]:
            return refuse(ContextOverflowError(prompt_tokens=tokens, window_tokens=window[0]).message)
        return answer(say("Yes."), usage={"input_tokens": tokens, "output_tokens": 5})

    past = [{"role": "user", "content": TURN} for _ in range(12)]
    body: dict[str, Any] = {
        "input": [*past, {"role": "assistant", "content": "x"}, *past[:1]],
        "truncation": "auto",
    }

    async def main() -> None:
        async with (
            asyncio.timeout(40),
            FakeUpstream(reply) as upstream,
            open_house(tmp_path, upstream, settings=make_settings(upstream)) as house,
        ):
            assert list_codes(await house.make(**body)) == ["history_truncated"]
            window[0] = 10 * WINDOW
            assert list_codes(await house.make(**body)) == ["history_truncated"]
            await house.make(input=past)
            assert list_codes(await house.make(**body)) == []

    asyncio.run(main())
