"""Counts of prompts: the offline tokenizer, its calibration, and prompts that are made to fit."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.backends import Ask, Backend
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.scripted import ScriptedBackend
from antiphon.backends.scripted.script import load_script
from antiphon.context import Profile
from antiphon.context.counts import CHARS_PER_TOKEN
from antiphon.context.truncation import report_dropped
from antiphon.engine import counting
from antiphon.engine.catalog import Target
from antiphon.engine.counting import (
    MODELS_KEPT,
    SAMPLE_EVERY,
    SAMPLE_MAX_BYTES,
    SAMPLES_KEPT,
    WAITING_LIMIT,
    Count,
    TargetKey,
    TokenCounter,
    count_input,
    list_prompt,
)
from antiphon.engine.fitting import (
    HISTORY_TRUNCATED,
    LEFT_OUT_TEXT,
    Fitted,
    History,
    after_overflow,
    find_overflow,
    fit,
    leave_out,
    refuse_overflow,
)
from antiphon.engine.tokenizers import Tokenizer, cut_runs, load_tokenizer
from antiphon.protocol.errors import BackendError, ContextOverflowError
from antiphon.protocol.items import Item, decode_stored_item
from antiphon.protocol.tools import FunctionTool

T = TypeVar("T")
KEY = TargetKey("lab", "qwen3")
PROSE = "The harbour lay quiet that morning, and only the ferry's bell told of the people who had stayed. "
CODE = 'def load(path: str) -> dict[str, int]:\n    """Read."""\n    return {k: len(v) for k, v in read(path)}\n\n'
CHINESE = "港口那天早晨很安静，只有渡船的钟声诉说着留下来的人们。天气很冷，海面上没有风。"
JSON = json.dumps({"id": 4711, "tags": ["a", "b"], "size": {"w": 640, "h": 480}, "name": "harbour"}) + "\n"
KINDS = {"prose": PROSE, "code": CODE, "chinese": CHINESE, "json": JSON}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The installed one; loading it takes a quarter of a second."""
    return load_tokenizer()


def run(work: Callable[[TokenCounter], Coroutine[Any, Any, T]], tokenizer: Tokenizer | None = None) -> T:
    """Run with a counter that counts words, or with a real tokenizer."""
    chosen = tokenizer or Tokenizer("words", lambda text: len(text.split()), limit_chars=100_000)
    counter = TokenCounter(lambda: chosen)
    try:
        return asyncio.run(work(counter))
    finally:
        counter.close()


def encode(*texts: str) -> list[bytes]:
    """A chat prompt of user messages."""
    return [msgspec.json.encode({"role": "user", "content": text}) for text in texts]


# The tokenizer


def test_the_tokenizer_is_exact_and_offline(tokenizer: Tokenizer) -> None:
    """Published counts of o200k_base."""
    assert tokenizer.count("hello world") == 2
    assert tokenizer.count("") == 0
    assert tokenizer.count("<|endoftext|>") > 1


@given(st.text(alphabet="ab \n/!é中\u0301", max_size=400))
def test_cutting_long_runs_loses_nothing(text: str) -> None:
    """Ours: a word of any length is counted in pieces."""
    parts = list(cut_runs(text))
    assert "".join(parts) == text
    assert list(cut_runs("a" * 200)) == ["a" * 64] * 3 + ["a" * 8]


@pytest.mark.parametrize("unit", ["a", " ", "!", "/\n", "中", "a\u0301", "aB"])
def test_a_text_of_one_word_takes_no_longer_than_others(tokenizer: Tokenizer, unit: str) -> None:
    """Ours: counting is linear, so this test ends; a run of 200,000 letters took minutes before it was cut."""
    assert tokenizer.count((unit * 200_000)[:200_000]) > 0


# Estimates


def report(tokenizer: Tokenizer, prompt: Sequence[bytes], factor: float) -> int:
    """What a model whose tokenizer differs by a factor would report: 5 tokens a message, 25 for the template."""
    texts = [msgspec.json.decode(piece)["content"] for piece in prompt]
    return 25 + sum(5 + round(tokenizer.count(text) * factor) for text in texts)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.35])
def test_after_a_few_responses_an_estimate_is_within_a_few_percent(
    tokenizer: Tokenizer, factor: float
) -> None:
    """Decision: calibrated by reported usage, for texts of several kinds."""

    async def work(counter: TokenCounter) -> None:
        for texts in (["hi"], [PROSE * 20], [CODE * 10, PROSE * 10], [CHINESE * 10, JSON * 10]):
            prompt = encode(*texts)
            counter.note(KEY, prompt, report(tokenizer, prompt, factor))
        for name, text in KINDS.items():
            prompt = encode("hi", text * 40)
            true = report(tokenizer, prompt, factor)
            assert await counter.estimate(KEY, prompt) == pytest.approx(true, rel=0.04), name
        whole = await counter.estimate_many(KEY, encode(PROSE * 40, CODE * 40))
        assert whole[0] == pytest.approx(report(tokenizer, encode(PROSE * 40), factor), rel=0.04)

    run(work, tokenizer)


def test_a_long_text_is_estimated_from_a_part_of_it(tokenizer: Tokenizer) -> None:
    """Ours: counting is bounded in time."""
    small = Tokenizer("part", tokenizer.count, limit_chars=100_000)
    text = (PROSE * 50 + CODE * 50 + CHINESE * 100) * 30
    true = tokenizer.count(text)
    assert len(text) > 4 * small.limit_chars
    assert run(lambda counter: counter.estimate(KEY, encode(text)), small) == pytest.approx(true, rel=0.05)


def test_taking_a_sample_reads_nothing() -> None:
    """Ours: the path of a response must not pay for counts that nobody asks for."""
    counter = TokenCounter(lambda: pytest.fail("no tokenizer is needed to take a sample"))
    for _ in range(100):
        counter.note(KEY, [b"x" * 1000], 300)
        counter.note(KEY, [b"x" * (SAMPLE_MAX_BYTES + 1)], 300)
    counter.close()


def test_samples_are_taken_now_and_then() -> None:
    """Ours: the first ones, then one in many, and any that is far longer."""
    counter = TokenCounter()
    taken = []
    for number in range(1, 60):
        if counter.wants_sample(KEY, 100):
            counter.note(KEY, [b"x"], 100)
            taken.append(number)
    assert taken[:SAMPLES_KEPT] == list(range(1, SAMPLES_KEPT + 1))
    assert len(taken) <= SAMPLES_KEPT + 1 + 60 // SAMPLE_EVERY
    assert counter.wants_sample(KEY, 201)
    counter.close()


def test_a_prompt_with_images_does_not_calibrate() -> None:
    """Ours: what an image costs is a guess of its own."""
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}

    async def work(counter: TokenCounter) -> int:
        piece = msgspec.json.encode(
            {"role": "user", "content": [image, {"type": "text", "text": "w " * 400}]}
        )
        counter.note(KEY, [piece], 5_000)
        return await counter.estimate(KEY, encode("w " * 400))

    assert run(work) == 404


def test_a_count_of_a_prompt_that_may_have_been_cut_does_not_calibrate() -> None:
    """Ollama reports what is left of a prompt."""
    profile = Profile(window_tokens=1_000, truncates_silently=True)

    async def work(counter: TokenCounter) -> list[int]:
        estimates = []
        for words in (900, 700):
            ask = Ask(model="qwen3", profile=profile, transcript=encode("w " * words))
            counter.note_ask(KEY, ask, words // 2)
            estimates.append(await counter.estimate(KEY, encode("w " * 1000)))
        return estimates

    first, second = run(work)
    assert first == 1004
    assert second < 600


def test_prompts_that_wait_to_be_worked_out_can_be_let_go() -> None:
    """Ours: what was deleted is not kept for statistics."""

    async def work(counter: TokenCounter) -> int:
        counter.note(KEY, encode("w " * 1000), 2_000)
        counter.forget()
        return await counter.estimate(KEY, encode("w " * 1000))

    assert run(work) == 1004


def test_models_do_not_share_a_calibration() -> None:
    """Ours: each model behind each endpoint has its own tokenizer."""

    async def work(counter: TokenCounter) -> list[int]:
        counter.note(KEY, encode("w " * 2000), 3_006)
        keys = (KEY, TargetKey("lab", "other"), TargetKey("elsewhere", "qwen3"))
        return [await counter.estimate(key, encode("w " * 2000)) for key in keys]

    assert run(work) == pytest.approx([3006, 2004, 2004], rel=0.01)


def test_tenants_do_not_share_a_calibration() -> None:
    """Ours: a tenant infers and changes nothing of another one's counts, whatever it sends, and however much."""
    prompt = encode("w " * 2000)

    async def work(counter: TokenCounter) -> list[int]:
        estimates = []
        for number in range(MODELS_KEPT + 2):
            counter.of_tenant("ada").note(TargetKey("lab", str(number)), prompt, 6_000)
        counter.of_tenant("ben").note(KEY, prompt, 3_006)
        for _ in range(20):
            counter.of_tenant("ada").note(KEY, prompt, 7_900)
        for tenant in ("ben", "ada", "cyd"):
            estimates.append(await counter.of_tenant(tenant).estimate(KEY, prompt))
        return estimates

    ben, ada, cyd = run(work)
    assert (ben, cyd) == pytest.approx((3006, 2004), rel=0.01)
    assert ada > 7000


def test_the_prompts_that_wait_for_a_tenant_are_bounded_and_the_newest_one_counts() -> None:
    """Ours: samples hold on to prompts, so they are limited over all models of a tenant."""
    prompt = encode("w " * (SAMPLE_MAX_BYTES // 3))

    async def work(counter: TokenCounter) -> list[int]:
        keys = [TargetKey("lab", str(number)) for number in range(8)]
        for key in keys:
            counter.note(key, prompt, 3 * len(prompt[0]) // 4)
        return [await counter.estimate(key, encode("w " * 2000)) for key in keys]

    first, *_, last = run(work)
    assert first == pytest.approx(2004, rel=0.01)
    assert last == pytest.approx(3004, rel=0.02)


def test_a_piece_is_counted_once() -> None:
    """Ours: the pieces of a path come again with each of its rounds."""
    seen: list[str] = []

    def count(text: str) -> int:
        seen.append(text)
        return 1

    async def work(counter: TokenCounter) -> None:
        for _ in range(5):
            await counter.measure(KEY, encode("one", "two"))

    run(work, Tokenizer("noting", count, limit_chars=1000))
    assert seen == ["one", "two"]


def test_the_event_loop_runs_on_while_a_text_is_counted() -> None:
    """Ours: tokenizing is done beside the loop, and what waits too long for it is guessed."""
    gate = threading.Event()

    def count(text: str) -> int:
        gate.wait(20)
        return 7

    async def work(counter: TokenCounter) -> tuple[list[int], int]:
        waiting = [asyncio.create_task(counter.estimate(KEY, [b"abc"])) for _ in range(WAITING_LIMIT)]
        await asyncio.sleep(0)
        guessed = await counter.estimate(KEY, [b"x" * 400])
        gate.set()
        return await asyncio.gather(*waiting), guessed

    counted, guessed = run(work, Tokenizer("slow", count, limit_chars=1000))
    assert counted == [7] * WAITING_LIMIT
    assert guessed == 400 // CHARS_PER_TOKEN


# The input's count


class MuteBackend(ScriptedBackend):
    """A server that cannot count; its transcript is that of a chat server."""

    transcribe = staticmethod(transcribe)

    async def count_tokens(self, ask: Ask) -> int | None:
        return None


class BrokenBackend(ScriptedBackend):
    """A server that is down when it is asked to count."""

    async def count_tokens(self, ask: Ask) -> int | None:
        raise BackendError("down")


def make_ask(target: Target, *texts: str) -> Ask:
    return Ask(model=target.model, profile=target.profile, transcript=encode(*texts))


def make_target(backend: Backend, window: int | None = 1_000, **traits: Any) -> Target:
    return Target(backend, "qwen3", Profile(window_tokens=window, **traits))


def test_the_backends_own_count_comes_first() -> None:
    """Decision: exact where the backend counts, else estimated, and said which."""
    exact, mute, broken = (make_target(kind()) for kind in (ScriptedBackend, MuteBackend, BrokenBackend))

    async def work(counter: TokenCounter) -> list[Count]:
        return [
            await count_input(make_ask(target, "a b c"), target.backend, counter, KEY)
            for target in (exact, mute, broken)
        ]

    assert run(work) == [Count(10, exact=True), Count(7, exact=False), Count(7, exact=False)]


def test_tools_and_system_text_are_part_of_the_prompt() -> None:
    """Ours: a backend counts them, so an estimate does."""
    target = make_target(MuteBackend())
    ask = make_ask(target, "hi")
    ask.system = "Be brief."
    ask.tools = [FunctionTool(name="f", parameters={"type": "object"})]
    assert len(list_prompt(ask)) == 3
    ask.tool_choice = "none"
    assert len(list_prompt(ask)) == 2


# Refusing what does not fit


def refuse(target: Target, *texts: str, known: bool = False) -> ContextOverflowError | None:
    async def work(counter: TokenCounter) -> ContextOverflowError | None:
        if known:
            ask = make_ask(target, "w " * 500)
            counter.note_ask(counting.make_target_key(target.backend, target.model), ask, 504)
        try:
            await refuse_overflow(make_ask(target, *texts), target=target, counter=counter)
        except ContextOverflowError as error:
            return error
        return None

    return run(work)


def test_a_prompt_that_a_server_would_cut_silently_is_refused_before_it_is_sent() -> None:
    """Ollama drops the oldest messages of a prompt that is too long and tells nobody."""
    error = refuse(make_target(MuteBackend()), "w " * 1400)
    assert error is not None
    assert (error.code, error.prompt_tokens, error.window_tokens) == ("context_length_exceeded", 1404, 1000)
    assert "about 1404 tokens, by estimate, the window holds 1000" in error.message
    exact = refuse(make_target(ScriptedBackend()), "w " * 1200)
    assert exact is not None
    assert "(the prompt has 1207 tokens, the window holds 1000)" in exact.message


def test_an_estimate_refuses_only_what_is_clearly_over() -> None:
    """Ours: by a few percent, before the first report by more; and an unknown window refuses nothing."""
    target = make_target(MuteBackend())
    assert refuse(target, "w " * 1020, known=True) is None
    assert refuse(target, "w " * 1100, known=True) is not None
    assert refuse(target, "w " * 1250) is None
    assert refuse(make_target(ScriptedBackend()), "w " * 1020) is not None
    assert refuse(make_target(MuteBackend(), None), "w " * 9000) is None


def test_a_short_prompt_is_not_even_counted() -> None:
    """Ours: its bytes say that it fits."""
    target = make_target(BrokenBackend())
    counter = TokenCounter(lambda: pytest.fail("a short prompt needs no tokenizer"))
    asyncio.run(refuse_overflow(make_ask(target, "w " * 300), target=target, counter=counter))
    counter.close()


# Making it fit


def item(**fields: Any) -> Item:
    return decode_stored_item(msgspec.json.encode(fields))


def say(role: str, words: int, word: str = "w") -> Item:
    return item(type="message", role=role, content=" ".join([word] * words))


def build(path: list[Item], new: list[Item], target: Target) -> tuple[Ask, History]:
    """The ask of a path as a gatherer would lay it out, and its history."""
    segment = target.backend.transcribe([*path, *new], target.profile, at_start=True)
    ask = Ask(
        model=target.model, profile=target.profile, system=f"Rules. {segment.lead}", transcript=[segment.body]
    )
    history = History(
        items=[(f"i{at}", each) for at, each in enumerate(path)],
        new_items=[(f"n{at}", each) for at, each in enumerate(new)],
        make_system=lambda lead: f"Rules. {lead}",
    )
    return ask, history


def make_chat(rounds: int) -> list[Item]:
    """Rounds of 54 tokens each, after leading system text."""
    items = [say("developer", 10, "rule")]
    for at in range(rounds):
        items += [say("user", 30, f"u{at}"), say("assistant", 16, f"a{at}")]
    return items


def fit_chat(target: Target, path: list[Item], new: list[Item]) -> Fitted:
    ask, history = build(path, new, target)
    return run(lambda counter: fit(ask, history, target=target, counter=counter))


@pytest.mark.parametrize("kind", [ScriptedBackend, MuteBackend])
def test_a_prompt_that_fits_is_left_alone(kind: type[ScriptedBackend]) -> None:
    """Ours: nothing is dropped without need."""
    target = make_target(kind())
    ask, history = build(make_chat(10), [say("user", 5)], target)
    fitted = run(lambda counter: fit(ask, history, target=target, counter=counter))
    assert fitted.ask is ask
    assert (fitted.dropped, fitted.warning) == ((), None)
    assert report_dropped(fitted.dropped) == {}


@pytest.mark.parametrize("kind", [ScriptedBackend, MuteBackend])
def test_the_oldest_rounds_are_dropped_and_listed(kind: type[ScriptedBackend]) -> None:
    """Truncation auto: oldest whole groups first, always reported; system text and the new message stay."""
    target = make_target(kind())
    fitted = fit_chat(target, make_chat(40), [say("user", 5, "now")])
    tokens = run(lambda counter: count_input(fitted.ask, target.backend, counter, KEY)).tokens
    assert 600 < tokens <= 900
    text = b"".join(fitted.ask.transcript).decode()
    assert "now" in text
    assert "u39" in text
    assert "u0 " not in text
    assert "rule" in fitted.ask.system
    assert [each.id for each in fitted.dropped] == [f"i{at}" for at in range(1, 1 + len(fitted.dropped))]
    assert {each.type for each in fitted.dropped} == {"message"}
    assert fitted.warning is not None
    assert fitted.warning[0] == HISTORY_TRUNCATED
    told = report_dropped(fitted.dropped)
    assert told["dropped_count"] == len(fitted.dropped)
    assert told["dropped"][0] == {"id": "i1", "type": "message", "tokens": fitted.dropped[0].tokens}
    assert fitted.dropped[0].tokens == pytest.approx(34, rel=0.1)


def test_the_next_rounds_begin_with_the_same_bytes() -> None:
    """Ours: the model server's prompt cache stays warm between two steps."""
    target = make_target(MuteBackend())
    starts = []
    for rounds in range(20, 60):
        fitted = fit_chat(target, make_chat(rounds), [say("user", 5, "now")])
        starts.append(b"".join(fitted.ask.transcript)[:2_000])
    changes = sum(now != before for before, now in pairwise(starts))
    assert changes <= 40 * 54 / 120 + 2


def test_what_is_left_begins_with_a_user_message() -> None:
    """Many templates refuse a history that begins with an answer; a developer text is not hoisted either."""
    target = make_target(MuteBackend())
    for odd in (say("assistant", 50, "odd"), say("developer", 50, "odd")):
        path = [say("developer", 10, "rule"), say("user", 900), odd, say("user", 50, "later")]
        fitted = fit_chat(target, path, [say("user", 5, "now")])
        assert [each.id for each in fitted.dropped] == ["i1"]
        first, second = msgspec.json.decode(b"[" + fitted.ask.transcript[0] + b"]")[:2]
        assert first == {"role": "user", "content": LEFT_OUT_TEXT}
        assert "odd" in second["content"]
        assert "odd" not in fitted.ask.system


def test_where_nothing_can_go_the_prompt_stays_as_it_is() -> None:
    """Ours: the backend's own refusal is told then."""
    target = make_target(MuteBackend())
    ask, history = build([], [say("user", 3000)], target)
    fitted = run(lambda counter: fit(ask, history, target=target, counter=counter))
    assert fitted.ask is ask


def test_a_prompt_can_be_made_again_without_what_was_dropped() -> None:
    """Ours: the window report shows the bytes that were sent."""
    target = make_target(MuteBackend())
    ask, history = build(make_chat(40), [say("user", 5, "now")], target)
    fitted = run(lambda counter: fit(ask, history, target=target, counter=counter))
    ids = {each.id for each in fitted.dropped}
    assert leave_out(ask, history, ids, target=target) == fitted.ask


def test_a_call_that_is_answered_now_stays() -> None:
    """Ours: an output without its call would be refused."""
    target = make_target(MuteBackend())
    call = item(type="function_call", call_id="c", name="look", arguments="{}")
    output = item(type="function_call_output", call_id="c", output="found")
    fitted = fit_chat(target, [*make_chat(40), call], [output])
    assert fitted.dropped
    text = b"".join(fitted.ask.transcript)
    assert b"look" in text
    assert b"found" in text


def test_an_unknown_window_says_nothing() -> None:
    """Ours: then only the backend's own refusal shortens a prompt."""
    target = make_target(MuteBackend(), None)
    ask, history = build(make_chat(100), [say("user", 5)], target)

    async def work(counter: TokenCounter) -> tuple[Count | None, Fitted]:
        return (
            await find_overflow(ask, target=target, counter=counter),
            await fit(ask, history, target=target, counter=counter),
        )

    assert run(work) == (None, Fitted(ask=ask))


# After the backend refused


class TwiceBackend(MuteBackend):
    """A server whose tokenizer makes twice as many tokens as ours and which only says so when it refuses."""


def count_twice(ask: Ask) -> int:
    text = b" ".join([ask.system.encode(), *ask.transcript])
    return 2 * len(text.split())


@pytest.mark.parametrize("numbers", ["both", "window", "none", "at_least"])
@pytest.mark.parametrize("window", [1_000, None])
def test_an_overflow_is_answered_with_a_shorter_prompt(numbers: str, window: int | None) -> None:
    """Ours: the numbers of the refusal are believed; without numbers one more step goes each time."""
    target = make_target(TwiceBackend(), window)
    ask, history = build(make_chat(14), [say("user", 5, "now")], target)

    async def work(counter: TokenCounter) -> list[int]:
        fitted = await fit(ask, history, target=target, counter=counter)
        sizes = [count_twice(fitted.ask)]
        for _ in range(20):
            told = sizes[-1]
            if told <= 1_000:
                return sizes
            error = {
                "both": ContextOverflowError(prompt_tokens=told, window_tokens=1_000),
                "window": ContextOverflowError(window_tokens=1_000),
                "none": ContextOverflowError(),
                "at_least": ContextOverflowError(prompt_tokens=1_001, window_tokens=1_000, at_least=True),
            }[numbers]
            further = await after_overflow(error, fitted, history, target=target, counter=counter)
            assert further is not None
            assert len(further.dropped) > len(fitted.dropped)
            fitted = further
            sizes.append(count_twice(fitted.ask))
        return sizes

    sizes = run(work)
    assert sizes[-1] <= 1_000
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) <= (2 if numbers == "both" else 12)


def test_when_nothing_more_can_go_the_refusal_stands() -> None:
    """Ours: a retry that sends the same prompt tells nothing new."""
    target = make_target(MuteBackend())
    ask, history = build([], [say("user", 3000)], target)

    async def work(counter: TokenCounter) -> Fitted | None:
        error = ContextOverflowError(prompt_tokens=3_000, window_tokens=1_000)
        return await after_overflow(error, Fitted(ask=ask), history, target=target, counter=counter)

    assert run(work) is None


def test_a_refusal_calibrates() -> None:
    """Ours: the number of a refusal is a reported count like any other."""
    target = make_target(TwiceBackend())
    ask, history = build(make_chat(14), [say("user", 5, "now")], target)

    async def work(counter: TokenCounter) -> tuple[int, int]:
        key = counting.make_target_key(target.backend, target.model)
        before = await counter.estimate(key, list_prompt(ask))
        error = ContextOverflowError(prompt_tokens=2 * before, window_tokens=1_000)
        await after_overflow(error, Fitted(ask=ask), history, target=target, counter=counter)
        return before, await counter.estimate(key, list_prompt(ask))

    before, after = run(work)
    assert after == pytest.approx(2 * before, rel=0.05)


def test_a_backend_that_counts_is_asked_only_where_the_estimate_is_close() -> None:
    """Ours: a count of a whole prompt costs the model server time."""
    asked: list[int] = []

    class Noting(ScriptedBackend):
        async def count_tokens(self, ask: Ask) -> int | None:
            asked.append(1)
            return await super().count_tokens(ask)

    target = make_target(Noting("noting", load_script()), 10_000)
    for words, times in ((3_000, 0), (8_000, 1)):
        ask, history = build([say("user", words), say("assistant", 5)], [say("user", 5)], target)
        fitted = run(lambda counter, a=ask, h=history: fit(a, h, target=target, counter=counter))  # type: ignore[misc]
        assert fitted.dropped == ()
        assert len(asked) == times
