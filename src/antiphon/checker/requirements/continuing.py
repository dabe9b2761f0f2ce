"""Probes of memory: does the model see what came before, all of it, and nothing else?

Each compares a request by id with controls that carry their history themselves: the counts decide, the text
supports (see `verdicts`). A control replays the server's own output items as they came.
"""

from collections.abc import Awaitable, Callable

import msgspec

from antiphon.checker.answers import Answer, Item, Refusal
from antiphon.checker.requirements.speaking import (
    GREETING,
    QUESTION,
    call_tool,
    find_notice,
    judge_refused_continuation,
    make_output,
    make_reading,
    plant,
)
from antiphon.checker.subject import Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import (
    Outcome,
    Reading,
    Verdict,
    failed,
    is_near,
    judge_memory,
    passed,
    undecided,
)

#: Fresh words that are tried before a model's text is void.
WORDS = 3
#: Output budget of a round in the long chain: the smallest that the API allows.
CHAIN_OUTPUT_TOKENS = 16
#: A chain shorter than this proves nothing about growth.
MIN_CHAIN_ROUNDS = 3


async def probe_continues(subject: Subject) -> Outcome:
    """Word by id, with the full history, with none."""
    return await try_words(lambda: _recall(subject, stream=False))


async def probe_continues_streaming(subject: Subject) -> Outcome:
    """The same, every request streamed."""
    return await try_words(lambda: _recall(subject, stream=True))


async def probe_tool_loop(subject: Subject) -> Outcome:
    """A call, then its output alone by id: the second round must have the first one's question."""
    return await try_words(lambda: _recall_through_tool(subject))


async def try_words(recall: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Fresh words until one decides."""
    outcome = await recall()
    for _ in range(WORDS - 1):
        if outcome.verdict is not Verdict.UNKNOWN:
            break
        outcome = await recall()
    return outcome


async def _recall(subject: Subject, stream: bool) -> Outcome:
    word = subject.make_word()
    told, question = plant(word), user(QUESTION)
    first = await subject.ask([told], stream=stream)
    by_id = await subject.create([question], previous=first.id, stream=stream)
    if isinstance(by_id, Refusal):
        return judge_refused_continuation(by_id)
    full = await subject.ask([told, *first.output, question], stream=stream)
    none = await subject.ask([question], stream=stream)
    return judge_memory(*(make_reading(answer, word) for answer in (by_id, full, none)))


async def _recall_through_tool(subject: Subject) -> Outcome:
    word = subject.make_word()
    asked = user(
        f"The secret word is {word}. Open the vault named door with the tool. When you have its number, "
        "answer with the secret word and the number."
    )
    first = await call_tool(subject, [asked])
    outputs = [make_output(call["call_id"], "4711") for call in first.calls]
    by_id = await subject.create(outputs, previous=first.id)
    if isinstance(by_id, Refusal):
        return judge_refused_continuation(by_id)
    full = await subject.ask([asked, *first.output, *outputs])
    # A server that checks pairing refuses the bare output; then any short request shows that it counts.
    none = await subject.create(outputs)
    if isinstance(none, Refusal):
        none = await subject.ask([user("Hello.")])
    return judge_memory(*(make_reading(answer, word) for answer in (by_id, full, none)))


async def probe_branches(subject: Subject) -> Outcome:
    """Two children of one root, then a question to each: neither may know the other's word."""
    root_word, word_a, word_b = (subject.make_word() for _ in range(3))
    root = plant(root_word)
    first = await subject.ask([root])
    path = [root, *first.output]
    child_a, path_a = await _branch(subject, first, path, word_a)
    child_b, path_b = await _branch(subject, first, path, word_b)
    found_b = await _ask_branch(subject, child_b, path_b, word_b, word_a)
    found_a = await _ask_branch(subject, child_a, path_a, word_a, word_b)
    evidence = {f"first_{key}": value for key, value in found_a.evidence.items()}
    evidence |= {f"second_{key}": value for key, value in found_b.evidence.items()}
    # The worse of the two stands for both: a branch that sees the other one proves the fault.
    rank = (Verdict.FAIL, Verdict.UNKNOWN, Verdict.PASS).index
    worse = min(found_b, found_a, key=lambda outcome: rank(outcome.verdict))
    return Outcome(worse.verdict, worse.explanation, evidence)


async def _branch(subject: Subject, root: Answer, path: list[Item], word: str) -> tuple[Answer, list[Item]]:
    told = user(f"Another secret word is {word}. Answer only: noted.")
    child = await subject.create([told], previous=root.id)
    if isinstance(child, Refusal):
        raise UndecidedError(f"the server does not continue ({child})")
    return child, [*path, told, *child.output]


async def _ask_branch(subject: Subject, tip: Answer, path: list[Item], own: str, foreign: str) -> Outcome:
    question = user("Which secret words did I tell you? Answer with all of them.")
    by_id = await subject.create([question], previous=tip.id)
    if isinstance(by_id, Refusal):
        raise UndecidedError(f"the server does not continue ({by_id})")
    alone = await subject.ask([*path, question])
    evidence = {
        "input_tokens_by_id": by_id.tokens,
        "input_tokens_own_path": alone.tokens,
        "text_by_id": by_id.text,
        "text_own_path": alone.text,
    }
    outcome = _judge_branch(by_id, alone, own.lower(), foreign.lower())
    return Outcome(outcome.verdict, outcome.explanation, evidence)


def _judge_branch(by_id: Answer, alone: Answer, own: str, foreign: str) -> Outcome:
    text, control = by_id.text.lower(), alone.text.lower()
    counts = f"input_tokens {by_id.tokens} by id, {alone.tokens} for its own path"
    if foreign in text and foreign not in control:
        return failed(f"one branch knows the word of the other ({counts})")
    if by_id.tokens is None or alone.tokens is None:
        if own in text:
            return passed("no counts; each branch knows its own word and not the other's")
        return undecided("no counts, and the text does not decide")
    if by_id.tokens == alone.tokens:
        return passed(f"{counts}: each branch carries its own path alone")
    if is_near(by_id.tokens, alone.tokens):
        if own in text:
            return passed(f"{counts}, nearly the same, and the text knows its own word alone")
        return undecided(f"{counts}, nearly the same, and the text does not decide")
    if by_id.tokens > alone.tokens:
        return failed(f"{counts}: a branch carries more than its own path")
    return undecided(f"{counts}: the path is not carried whole, so nothing can be said about branches")


async def probe_instructions_not_inherited(subject: Subject) -> Outcome:
    """Long instructions in one round, none in the next: they must be neither counted nor known there."""
    word = subject.make_word()
    rules = (
        f"The secret word is {word}. Keep it to yourself until somebody asks you for the secret word, then "
        "answer with it at once. Never explain these rules, never change them, and be brief in everything "
        "that you say, whatever the question may be."
    )
    hello, question = user(GREETING), user("What is the secret word? Answer with that word alone.")
    first = await subject.ask([hello], instructions=rules)
    by_id = await subject.create([question], previous=first.id)
    if isinstance(by_id, Refusal):
        raise UndecidedError(f"the server does not continue ({by_id})")
    history = [hello, *first.output, question]
    without = make_reading(await subject.ask(history), word)
    with_rules = make_reading(await subject.ask(history, instructions=rules), word)
    told = word.lower() in first.text.lower()
    return _judge_inheritance(make_reading(by_id, word), without, with_rules, told)


def _judge_inheritance(by_id: Reading, without: Reading, with_rules: Reading, told: bool) -> Outcome:
    """`told`: the first answer gave the word away, so that the text proves nothing."""
    evidence = {
        "input_tokens_by_id": by_id.tokens,
        "input_tokens_without_instructions": without.tokens,
        "input_tokens_with_instructions": with_rules.tokens,
        "text_by_id": by_id.text,
    }
    counts = (
        f"input_tokens {by_id.tokens} by id, {without.tokens} without the instructions, "
        f"{with_rules.tokens} with them"
    )
    if without.tokens is not None and with_rules.tokens is not None and with_rules.tokens > without.tokens:
        if by_id.tokens == without.tokens:
            return passed(f"{counts}: they were not carried over", **evidence)
        if by_id.tokens == with_rules.tokens:
            return failed(f"{counts}: they were carried over", **evidence)
    if not told and by_id.repeats and not without.repeats:
        return failed(f"{counts}; the word of the instructions came back without them", **evidence)
    if not told and with_rules.repeats and not by_id.repeats:
        return passed(f"{counts}; the word of the instructions did not come back without them", **evidence)
    return undecided(f"{counts}; neither the counts nor the text decide", **evidence)


class _Chain(msgspec.Struct):
    """A growing chain: its tip, its items, the counts so far, and whether they can be relied on."""

    tip: Answer
    items: list[Item]
    counts: list[int | None]
    reliable: bool = True


async def probe_long_chain(subject: Subject) -> Outcome:
    """A word in the first round, many rounds by id, then the question; the counts must grow all the way."""
    if subject.rounds < MIN_CHAIN_ROUNDS:
        return undecided(f"a chain of {subject.rounds} rounds is too short to tell")
    word = subject.make_word()
    told = plant(word)
    first = await subject.ask([told], max_output_tokens=CHAIN_OUTPUT_TOKENS)
    chain = _Chain(first, [told, *first.output], [first.tokens])
    for number in range(2, subject.rounds):
        stop = await _add_round(subject, chain, number)
        if stop is not None:
            return stop
    question = user(QUESTION)
    by_id = await subject.create([question], previous=chain.tip.id)
    if isinstance(by_id, Refusal):
        return _judge_stopped_chain(by_id, subject.rounds, chain)
    full = await subject.create([*chain.items, question])
    if isinstance(full, Refusal):
        return undecided(f"the chain went through, its full-history control did not ({full})")
    none = await subject.ask([question])
    outcome = judge_memory(*(make_reading(answer, word) for answer in (by_id, full, none)))
    explanation = f"{subject.rounds} rounds; {outcome.explanation}"
    return Outcome(outcome.verdict, explanation, {**_tell_chain(chain), **outcome.evidence})


async def _add_round(subject: Subject, chain: _Chain, number: int) -> Outcome | None:
    """One round more; an outcome where the chain ends here."""
    message = user(f"This is round {number}. Answer only: noted.")
    answer = await subject.create([message], previous=chain.tip.id, max_output_tokens=CHAIN_OUTPUT_TOKENS)
    if isinstance(answer, Refusal):
        return _judge_stopped_chain(answer, number, chain)
    last = chain.counts[-1]
    if chain.reliable and answer.tokens is not None and last is not None and answer.tokens <= last:
        stop = await _judge_stalled_chain(subject, chain, message, answer)
        if stop is not None:
            return stop
    chain.tip = answer
    chain.items += [message, *answer.output]
    chain.counts.append(answer.tokens)
    return None


async def _judge_stalled_chain(
    subject: Subject, chain: _Chain, message: Item, answer: Answer
) -> Outcome | None:
    """The count did not grow: a fault, or a server that leaves cached tokens out of its counts.

    The latter shows in the second round already, where the full history counts no more either.
    """
    number = len(chain.counts) + 1
    told = f"round {number} counts {answer.tokens} input_tokens, the round before it {chain.counts[-1]}"
    full = await subject.create([*chain.items, message], max_output_tokens=CHAIN_OUTPUT_TOKENS)
    full_tokens = full.tokens if isinstance(full, Answer) else None
    evidence = {**_tell_chain(chain), "input_tokens_full_history": full_tokens}
    grows = full_tokens is not None and answer.tokens is not None and full_tokens > answer.tokens
    if (number > 2 or grows) and (notice := find_notice(answer)) is not None:
        return undecided(f"{told}, and the response says that it was shortened ({notice})", **evidence)
    if number > 2 or grows:
        explanation = f"{told}: earlier rounds were dropped without a word"
        return failed(explanation, **evidence, input_tokens_stalled=answer.tokens)
    chain.reliable = False
    return None


def _judge_stopped_chain(refusal: Refusal, number: int, chain: _Chain) -> Outcome:
    if refusal.is_overflow:
        told = f"the server's window was full in round {number}, and it said so ({refusal})"
        return undecided(told, **_tell_chain(chain))
    if not refusal.is_clients_fault:
        return undecided(f"round {number} could not be carried out ({refusal})", **_tell_chain(chain))
    return failed(f"the chain broke in round {number} ({refusal})", **_tell_chain(chain))


def _tell_chain(chain: _Chain) -> dict[str, str | int | bool | None]:
    return {
        "rounds_done": len(chain.counts),
        "input_tokens_first_round": chain.counts[0],
        "input_tokens_last_round": chain.counts[-1],
    }
