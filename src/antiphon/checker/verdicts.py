"""Verdicts: what three token counts and three texts prove about a server's memory.

Pure: it knows no server and no request, only readings. Its invariant: the counts decide where they can, the
text supports, and what neither decides is `unknown`, never a guess.
"""

from enum import StrEnum
from typing import Literal

import msgspec

#: Two prompt counts closer than this are called near: a template may add a few tokens to a replayed history.
NEAR_TOKENS = 2
#: The same as a part of the reference: one in fifty.
NEAR_PART = 50

Evidence = dict[str, str | int | bool | None]


class Verdict(StrEnum):
    """Kept, broken, or not decidable here."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    UNKNOWN = "unknown"


class Outcome(msgspec.Struct, frozen=True):
    """A verdict with the sentence that explains it and the evidence it stands on.

    `needs`: the option for lack of which it is undecided; that says nothing about the server.
    """

    verdict: Verdict
    explanation: str
    evidence: Evidence = msgspec.field(default_factory=dict)
    needs: str | None = None


def passed(explanation: str, **evidence: str | int | bool | None) -> Outcome:
    """The requirement is kept."""
    return Outcome(Verdict.PASS, explanation, evidence)


def failed(explanation: str, **evidence: str | int | bool | None) -> Outcome:
    """The requirement is broken."""
    return Outcome(Verdict.FAIL, explanation, evidence)


def undecided(explanation: str, **evidence: str | int | bool | None) -> Outcome:
    """The requirement could not be decided."""
    return Outcome(Verdict.UNKNOWN, explanation, evidence)


def unasked(option: str, explanation: str, **evidence: str | int | bool | None) -> Outcome:
    """Not tried, or not to its end, because nobody asked for it with this option."""
    return Outcome(Verdict.UNKNOWN, explanation, evidence, needs=option)


class Reading(msgspec.Struct, frozen=True):
    """One answer as evidence: its prompt count (None where untold), its text, whether the word is in it."""

    tokens: int | None
    text: str
    repeats: bool


#: What the counts say. `void`: they cannot be used at all.
CountsSay = Literal["same", "none", "near", "other", "void"]


def is_near(count: int, reference: int) -> bool:
    """Whether two prompt counts differ by no more than a template's rounding."""
    return abs(count - reference) <= max(NEAR_TOKENS, reference // NEAR_PART)


def compare_counts(by_id: int | None, full: int | None, none: int | None) -> CountsSay:
    """What the prompt counts by id, with the full history and with none of it say together.

    Precondition: the full history counts more than none, otherwise the server's counts are void.
    (50, 50, 20) -> same; (20, 50, 20) -> none; (51, 50, 20) -> near; (35, 50, 20) -> other; (0, 0, 0) -> void
    """
    if by_id is None or full is None or none is None or full <= none:
        return "void"
    if by_id == full:
        return "same"
    if by_id == none:
        return "none"
    clearly_above_none = by_id - none > (full - none) / 2 and not is_near(by_id, none)
    return "near" if is_near(by_id, full) and clearly_above_none else "other"


def judge_memory(by_id: Reading, full: Reading, none: Reading) -> Outcome:
    """The verdict on one continuation, from the reading by id and its two controls.

    Counts first: equal to the full history passes, equal to none fails. Where they do not decide, the text
    does, if its controls hold: the word comes with the full history and does not come with none.
    """
    say = compare_counts(by_id.tokens, full.tokens, none.tokens)
    evidence: Evidence = {
        "input_tokens_by_id": by_id.tokens,
        "input_tokens_full_history": full.tokens,
        "input_tokens_no_history": none.tokens,
        "word_by_id": by_id.repeats,
        "word_full_history": full.repeats,
        "word_no_history": none.repeats,
        "text_by_id": by_id.text,
        "text_full_history": full.text,
    }
    verdict, reason = _decide(say, by_id, full, none)
    return Outcome(verdict, f"{_tell_counts(by_id, full, none)}: {reason}", evidence)


def _decide(say: CountsSay, by_id: Reading, full: Reading, none: Reading) -> tuple[Verdict, str]:
    text_holds = full.repeats and not none.repeats
    if say == "same":
        return Verdict.PASS, "the whole history was counted; " + _tell_text(by_id, text_holds)
    if say == "none":
        return Verdict.FAIL, "the history was dropped; " + _tell_text(by_id, text_holds)
    told = {
        "void": "the counts prove nothing",
        "near": "nearly the whole history was counted",
        "other": "neither the whole history nor none of it was counted",
    }[say]
    if not text_holds:
        return Verdict.UNKNOWN, f"{told}; {_tell_text(by_id, text_holds)}"
    if not by_id.repeats:
        return Verdict.FAIL, f"{told}; the word was lost by id though the full history brings it"
    if say == "other":
        return Verdict.UNKNOWN, f"{told}, yet the word came back by id"
    return Verdict.PASS, f"{told}; the word came back by id"


def _tell_text(by_id: Reading, text_holds: bool) -> str:
    if not text_holds:
        return "the text is void (this model does not repeat a word from its own history)"
    return "the word came back by id" if by_id.repeats else "the word did not come back by id"


def _tell_counts(by_id: Reading, full: Reading, none: Reading) -> str:
    counts = (_tell(by_id.tokens), _tell(full.tokens), _tell(none.tokens))
    return "input_tokens {} by id, {} with full history, {} with none".format(*counts)


def _tell(tokens: int | None) -> str:
    return "untold" if tokens is None else str(tokens)
