"""The probe of the window's end: a history that does not fit is refused, or its cut is told.

The history grows until its prompt count stops growing with it, the server refuses, or the size that the run may
reach is reached: by id, or sent whole to a server that does not continue. What a message costs is measured
first, so no tokenizer is needed.
"""

import itertools
import math
import time

import msgspec

from antiphon.checker.answers import Answer, Item, Refusal
from antiphon.checker.requirements.speaking import GREETING, find_notice
from antiphon.checker.subject import Subject, user
from antiphon.checker.verdicts import Evidence, Outcome, failed, passed, unasked, undecided

#: Each step makes the history so many times as long.
GROWTH = 4
#: A count that grows by less than this part of what was added has not grown with the history.
GROWN_PART = 0.75
#: The part of a probe's time that the next step may be expected to need. Long prompts cost more than in proportion.
TIME_PART = 0.2
#: Output budget of a step: the smallest that the API allows.
STEP_OUTPUT_TOKENS = 16
#: Sentences of about 30 tokens in one message.
_SENTENCES = 4


class _History(msgspec.Struct):
    """What was sent so far: its messages, its newest answer, the tokens that one message costs."""

    messages: int
    tip: Answer
    tokens: int
    message_tokens: float
    by_id: bool = True

    @property
    def size_tokens(self) -> int:
        """What all its messages must cost."""
        return round(self.messages * self.message_tokens)


async def probe_silent_truncation(subject: Subject) -> Outcome:
    """Four times as much in each step, each continuing the one before, or sent whole."""
    history = await _begin(subject)
    if history is None:
        return undecided("the server's prompt counts do not grow with the prompt, so no cut can be seen")
    started_s = last_s = time.monotonic()
    for step in itertools.count(1):
        if history.size_tokens >= subject.window_tokens:
            break
        outcome = await _grow(subject, history, step)
        if outcome is not None:
            return outcome
        now_s = time.monotonic()
        if takes_too_long(now_s - started_s, now_s - last_s, subject.timeout_s):
            told = f"a history of {history.size_tokens} tokens was counted whole; a longer one takes too long here"
            wanted_s = find_timeout(
                now_s - started_s, now_s - last_s, history.size_tokens / subject.window_tokens
            )
            told += f"; --timeout {wanted_s} should do for --window-tokens {subject.window_tokens}"
            return unasked("--timeout", told, **_tell(history))
        last_s = now_s
    told = f"a history of {history.size_tokens} tokens was counted whole; the window ends further on: "
    told += f"--window-tokens {GROWTH * subject.window_tokens} looks there"
    return unasked("--window-tokens", told, **_tell(history))


def takes_too_long(spent_s: float, last_s: float, timeout_s: float) -> bool:
    """Whether a step that is as much longer as its history may not end in time; the last one took `last_s`."""
    return spent_s + GROWTH * last_s > TIME_PART * timeout_s


def find_timeout(spent_s: float, last_s: float, part: float) -> int:
    """The time that the steps would have needed which lead to the whole history; the last one led to `part` of it."""
    wanted_s = 0.0
    while part < 1:
        wanted_s = (spent_s + GROWTH * last_s) / TIME_PART
        last_s *= GROWTH
        spent_s += last_s
        part *= GROWTH
    return math.ceil(wanted_s) + 1


async def _begin(subject: Subject) -> _History | None:
    """One message, and what it costs; None where the counts do not tell."""
    empty = await subject.ask([user(GREETING)], max_output_tokens=STEP_OUTPUT_TOKENS)
    first = await subject.ask([*_make_messages(0, 1), user(GREETING)], max_output_tokens=STEP_OUTPUT_TOKENS)
    if empty.tokens is None or first.tokens is None or first.tokens <= empty.tokens:
        return None
    return _History(1, first, first.tokens, first.tokens - empty.tokens)


async def _grow(subject: Subject, history: _History, step: int) -> Outcome | None:
    """One step; an outcome where it ends the probe."""
    wanted = min(
        history.messages * GROWTH,
        max(history.messages + 1, math.ceil(subject.window_tokens / history.message_tokens)),
    )
    answer = await _send(subject, history, wanted)
    size = round(wanted * history.message_tokens)
    if step == 1 and not (isinstance(answer, Answer) and _has_grown(history, answer, wanted)):
        # Not by id, then: that is another requirement's fault.
        history.by_id = False
        answer = await _send(subject, history, wanted)
    if isinstance(answer, Refusal):
        return _judge_refusal(answer, size, history)
    if answer.tokens is None:
        return undecided("the server tells no prompt count any more", **_tell(history))
    evidence: Evidence = {**_tell(history), "history_tokens": size, "input_tokens": answer.tokens}
    if not _has_grown(history, answer, wanted):
        if step == 1:
            return undecided("the prompt count does not grow with the history at all", **evidence)
        counts = (
            f"the history grew to {size} tokens, the prompt count from {history.tokens} to {answer.tokens}"
        )
        notice = find_notice(answer)
        if notice is None:
            return failed(f"{counts}: part of it was left out, and nothing says so", **evidence)
        return passed(f"{counts}, and the response says so ({notice})", **evidence)
    history.messages, history.tip, history.tokens = wanted, answer, answer.tokens
    return None


async def _send(subject: Subject, history: _History, wanted: int) -> Answer | Refusal:
    """So many messages in all: the new ones by id, or all of them."""
    first = history.messages if history.by_id else 0
    return await subject.create(
        [*_make_messages(first, wanted), user(GREETING)],
        previous=history.tip.id if history.by_id else None,
        max_output_tokens=STEP_OUTPUT_TOKENS,
    )


def _has_grown(history: _History, answer: Answer, wanted: int) -> bool:
    """Whether the count grew as the messages did."""
    expected = (wanted - history.messages) * history.message_tokens
    return answer.tokens is not None and answer.tokens - history.tokens >= GROWN_PART * expected


def _judge_refusal(refusal: Refusal, size: int, history: _History) -> Outcome:
    evidence: Evidence = {**_tell(history), "history_tokens": size, "code": refusal.code}
    if refusal.is_overflow:
        return passed(
            f"a history of {size} tokens is refused, and the refusal says why ({refusal})", **evidence
        )
    return undecided(f"a history of {size} tokens could not be tried ({refusal})", **evidence)


def _tell(history: _History) -> Evidence:
    return {"history_tokens_counted_whole": history.size_tokens, "input_tokens_counted_whole": history.tokens}


def _make_messages(first: int, end: int) -> list[Item]:
    """Messages of one length, no two alike."""
    return [
        user(
            " ".join(
                f"In the year {1000 + n} the keeper of tower {10000 + n} painted all of its rooms in a new "
                "colour and wrote a long letter about it to an old friend on the shore."
                for n in range(number * _SENTENCES, (number + 1) * _SENTENCES)
            )
        )
        for number in range(first, end)
    ]
