"""The probe of durability: what was stored before a restart is there after it."""

from antiphon.checker.answers import Answer, Refusal
from antiphon.checker.requirements.speaking import (
    QUESTION,
    judge_refused_continuation,
    make_reading,
    plant,
)
from antiphon.checker.subject import Subject, user
from antiphon.checker.verdicts import Outcome, Verdict, failed, is_near, judge_memory, unasked


async def probe_kept(subject: Subject) -> Outcome:
    """A word, the question by id, a restart, the question by id again, and its controls."""
    if not subject.can_restart:
        return unasked("--restart-command", "needs a command that restarts the server")
    word = subject.make_word()
    told, question = plant(word), user(QUESTION)
    first = await subject.ask([told])
    before = await subject.create([question], previous=first.id)
    await subject.restart()
    found = await subject.retrieve(first.id)
    if isinstance(found, Refusal):
        return failed(f"after the restart the response cannot be retrieved ({found})")
    by_id = await subject.create([question], previous=first.id)
    if isinstance(by_id, Refusal):
        return judge_refused_continuation(by_id)
    full = await subject.ask([told, *first.output, question])
    none = await subject.ask([question])
    outcome = judge_memory(*(make_reading(answer, word) for answer in (by_id, full, none)))
    tokens = before.tokens if isinstance(before, Answer) else None
    evidence = {**outcome.evidence, "input_tokens_before_restart": tokens}
    shrunk = tokens is not None and by_id.tokens is not None and by_id.tokens < tokens
    if outcome.verdict is Verdict.PASS and shrunk and not is_near(by_id.tokens or 0, tokens or 0):
        explanation = f"input_tokens {tokens} before the restart, {by_id.tokens} after it"
        return Outcome(Verdict.FAIL, explanation, evidence)
    return Outcome(outcome.verdict, f"after a restart: {outcome.explanation}", evidence)
