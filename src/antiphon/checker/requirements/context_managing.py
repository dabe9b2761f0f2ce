"""Probes of context_management: what is refused in it, and the compaction that a server makes by itself.

A server without it leaves these undecided. Invariant: a history is over the API's smallest threshold by its length
alone, so that a server that takes the field has cause to compact.
"""

from functools import partial
from typing import Any, Final

from antiphon.checker.answers import Answer, Refusal
from antiphon.checker.recordings import Recording, read_type
from antiphon.checker.requirements.compaction import find_blob, judge_word, list_types, make, make_history
from antiphon.checker.requirements.continuing import try_words
from antiphon.checker.requirements.judging import dig, expect_refusal, judge_refusal, read_objects
from antiphon.checker.requirements.requirement import Probe, Requirement
from antiphon.checker.requirements.speaking import GREETING, QUESTION
from antiphon.checker.subject import Subject, user
from antiphon.checker.surface import SURFACE
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Evidence, Outcome, failed, passed, undecided

_API = "OpenAI API reference, Responses: context_management"
_GUIDE = "OpenAI guide, Compaction"
_FIELD = "context_management"
#: What a server that does not take the field lacks.
MANAGEMENT_NEEDS = "a server that takes context_management"
#: The smallest that the API allows, and one that nothing here reaches.
LEAST, FAR = 1_000, 100_000
_COVERS = ("field:context_management",)
_THRESHOLD = "field:context_management.compact_threshold"
#: Our own request key and what a refusal of it may speak of.
_OURS: Final = ("antiphon.{}", "antiphon")


def limit(threshold: int) -> list[dict[str, Any]]:
    """The field with a threshold."""
    return [{"type": "compaction", "compact_threshold": threshold}]


async def record_managed(subject: Subject) -> Recording:
    """A stream far under its threshold; asked for once in a run. Undecided where the field is not taken."""
    recording = await subject.try_record(
        "context management", input=[user(GREETING)], context_management=limit(FAR)
    )
    if isinstance(recording, Refusal):
        raise UndecidedError(f"the server does not take {_FIELD} ({recording})", MANAGEMENT_NEEDS)
    return recording


async def _probe_wrong(subject: Subject, cases: list[tuple[Any, str, str, str | None]]) -> Outcome:
    """Each value is refused: what it is, the value, the param, the code."""
    await record_managed(subject)
    outcome = passed("nothing was tried")
    for value, what, param, code in cases:
        fetched = await subject.fetch(
            "POST", "/responses", subject.make_body(input=GREETING, context_management=value)
        )
        outcome = expect_refusal(fetched, what, code=code)
        refusal = fetched.refusal
        if outcome.verdict != "pass":
            return outcome
        if refusal is not None and refusal.param != param:
            return failed(
                f"{what} is refused with param {refusal.param!r}, not {param!r}", param=refusal.param
            )
    return outcome


async def probe_type(subject: Subject) -> Outcome:
    """A type that there is not."""
    value = [{"type": "forgetting", "compact_threshold": FAR}]
    return await _probe_wrong(subject, [(value, "an unknown type", _FIELD, None)])


async def probe_threshold(subject: Subject) -> Outcome:
    """Too small, a fraction, a text."""
    place = f"{_FIELD}[0].compact_threshold"
    cases: list[tuple[Any, str, str, str | None]] = [
        (limit(LEAST - 1), "a threshold of 999", place, "integer_below_min_value")
    ]
    for value in (1500.5, "1500"):
        wrong = [{"type": "compaction", "compact_threshold": value}]
        cases.append((wrong, f"the threshold {value!r}", place, "invalid_type"))
    return await _probe_wrong(subject, cases)


async def probe_shape(subject: Subject) -> Outcome:
    """An empty list, an entry without its type, one with a key that there is not."""
    entry = {"compact_threshold": FAR}
    return await _probe_wrong(
        subject,
        [
            ([], "an empty list", _FIELD, "empty_array"),
            ([entry], "an entry without a type", f"{_FIELD}[0].type", "missing_required_parameter"),
            (
                [{**entry, "type": "compaction", "colour": "red"}],
                "an entry with an unknown key",
                f"{_FIELD}[0].colour",
                "unknown_parameter",
            ),
        ],
    )


async def probe_under(subject: Subject) -> Outcome:
    """A short history under a high threshold."""
    response = (await record_managed(subject)).response
    if "compaction" in list_types(response.get("output")):
        return failed("a window far under the threshold is compacted")
    if _FIELD in response:
        return failed(f"the response repeats {_FIELD}, which the API does not")
    return passed("nothing is compacted under the threshold, and the response does not repeat the field")


async def probe_first(subject: Subject) -> Outcome:
    """A long history over the smallest threshold, in a stream."""
    await record_managed(subject)

    async def recall() -> Outcome:
        word = subject.make_word()
        history, question = make_history(word), user(QUESTION)
        recording = await subject.try_record(
            f"managed {word}", input=[*history, question], context_management=limit(LEAST)
        )
        if isinstance(recording, Refusal):
            return undecided(f"a history over its threshold is refused ({recording})")
        types = list_types(recording.outputs)
        if types[:1] != ["compaction"] or types.count("compaction") != 1 or len(types) < 2:
            return failed(
                f"over the threshold the output is {', '.join(types) or 'empty'}, not a compaction item first"
            )
        if find_blob(recording.outputs[0]) is None:
            return failed("the compaction item has no text as its id or as its encrypted_content")
        own = [read_type(event) for event in recording.events if event.get("output_index") == 0]
        if own[:1] != ["response.output_item.added"] or own[-1:] != ["response.output_item.done"]:
            return failed(f"the compaction came as {', '.join(own[:4])}")
        return await _judge_answer(subject, word, recording)

    return await try_words(recall)


async def _judge_answer(subject: Subject, word: str, recording: Recording) -> Outcome:
    full = await subject.ask([*make_history(word), user(QUESTION)])
    said = " ".join(
        str(dig(part, "text"))
        for item in read_objects(recording.outputs)
        for part in read_objects(item.get("content"))
    )
    if word.lower() in said.lower():
        return passed(
            "a compaction item first, then an answer that knows what the user said", text=said[:200]
        )
    if word.lower() not in full.text.lower():
        return undecided("this model does not repeat a word from its own history", text=said[:200])
    return failed("the answer after a compaction lost the word that the user told", text=said[:200])


async def probe_drops(subject: Subject) -> Outcome:
    """A response that compacts, then a question by its id, beside the same with the whole history."""
    await record_managed(subject)

    async def recall() -> Outcome:
        word = subject.make_word()
        history, question = make_history(word), user(QUESTION)
        first = await subject.ask([*history, user(GREETING)], context_management=limit(LEAST))
        if not any(find_blob(item) for item in first.output):
            return failed("a history over the threshold is not compacted")
        by_id = await subject.create([question], previous=first.id)
        said = [item for item in first.output if not find_blob(item)]
        full = await subject.ask([*history, user(GREETING), *said, question])
        outcome = judge_word(word, by_id, full, "what goes on after a compaction")
        if outcome.verdict != "pass" or isinstance(by_id, Refusal):
            return outcome
        return _judge_drop(by_id, full, outcome.evidence)

    return await try_words(recall)


def _judge_drop(by_id: Answer, full: Answer, evidence: Evidence) -> Outcome:
    if by_id.tokens is None or full.tokens is None:
        return undecided("the server counts nothing", **evidence)
    told = f"input_tokens {by_id.tokens}, {full.tokens} with the whole history"
    if by_id.tokens >= full.tokens * 3 // 4:
        return failed(f"the next round does not begin at the compaction ({told})", **evidence)
    return passed(f"the next round begins at the compaction ({told})", **evidence)


async def probe_taken(part: str, subject: Subject) -> Outcome:
    """The field with a long history: a compaction item, or a refusal that names it or this part of it."""
    answer = await subject.create(
        [*make_history(subject.make_word()), user(GREETING)], context_management=limit(LEAST)
    )
    if isinstance(answer, Refusal):
        return _judge_refused(answer, _FIELD, part)
    if any(find_blob(item) for item in answer.output):
        return passed("honoured: the response begins with a compaction item")
    return failed("answered, and a history over the threshold is not compacted")


def _judge_refused(refusal: Refusal, *names: str) -> Outcome:
    if refusal.is_overflow:
        return undecided(f"the model's window is too small for the history ({refusal})")
    return judge_refusal(refusal, *names)


# Our own ways to say what is to be done.


async def probe_method(subject: Subject) -> Outcome:
    """A compaction without any model: the response says that none was called."""
    return await _probe_ours(subject, "method", {"method": "extract"}, _find_calls)


def _find_calls(passes: list[dict[str, Any]]) -> str | None:
    calls = [one.get("model_calls") for one in passes]
    return None if calls and not any(calls) else f"the passes tell of {calls} calls of a model"


async def probe_marks(subject: Subject) -> Outcome:
    """The first result marked as uneventful: the response says that it was removed for that."""
    return await _probe_ours(subject, "marks", {"marks": {"call_vault0": "uneventful"}}, _find_marked)


def _find_marked(passes: list[dict[str, Any]]) -> str | None:
    reasons = [removed.get("reason") for one in passes for removed in read_objects(one.get("removed"))]
    return None if "uneventful" in reasons else f"no item is removed as uneventful, but {len(reasons)} others"


async def _probe_ours(subject: Subject, name: str, value: dict[str, Any], find_fault: Any) -> Outcome:
    answer = await subject.create(
        [*make_history(subject.make_word()), user(GREETING)], context_management=limit(LEAST), antiphon=value
    )
    if isinstance(answer, Refusal):
        return _judge_refused(answer, *(text.format(name) for text in _OURS), _FIELD)
    passes = dig(answer.body, "antiphon.compaction.passes")
    fault = find_fault(read_objects(passes))
    if fault is not None:
        return failed(f"answered, and {fault}")
    return passed(f"honoured: antiphon.compaction tells of {len(passes)} pass", passes=len(passes))


def _field(name: str, source: str, probe: Probe) -> Requirement:
    promise = f"`{name}` is honoured where a history is long enough, or refused by its name."
    covers = {f"field:{name}", f"field:{name.partition('.')[0]}"} & set(SURFACE)
    return Requirement(f"fields.{name}", "fields", source, promise, probe, tuple(sorted(covers)))


REQUIREMENTS: tuple[Requirement, ...] = (
    make(
        "context-type",
        _API,
        "An unknown type of context_management is refused with param context_management.",
        probe_type,
        *_COVERS,
        "field:context_management.type",
    ),
    make(
        "context-threshold",
        _API,
        "A compact_threshold that is no integer, or under 1000, is refused by its place.",
        probe_threshold,
        _THRESHOLD,
        "error:integer_below_min_value",
    ),
    make(
        "context-shape",
        _API,
        "An empty context_management, an entry without a type and one with an unknown key are refused by their place.",
        probe_shape,
        *_COVERS,
        "error:empty_array",
    ),
    make(
        "context-under",
        _GUIDE,
        "Under the threshold nothing is compacted, and the response does not repeat the field.",
        probe_under,
        _THRESHOLD,
    ),
    make(
        "context-first",
        _GUIDE,
        "Over the threshold the output begins with one compaction item, and the answer knows what the user said.",
        probe_first,
        _THRESHOLD,
        "output:compaction",
    ),
    make(
        "context-drops",
        _GUIDE,
        "After a compaction by threshold the next round counts much less, and knows what the user said.",
        probe_drops,
        _THRESHOLD,
        "field:previous_response_id",
    ),
    _field("context_management.type", _API, partial(probe_taken, "type")),
    _field("context_management.compact_threshold", _API, partial(probe_taken, "compact_threshold")),
    _field("antiphon.marks", "ours", probe_marks),
    _field("antiphon.method", "ours", probe_method),
)
