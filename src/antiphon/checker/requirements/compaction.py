"""Probes of compaction on demand: the trigger, the item that it brings, and what that item is worth afterwards.

A server need not compact: then each of these is undecided, and says so. It knows no way to make a summary. Invariant:
a window counts as kept only where a word that a user told in it comes back, or the counts show it.
"""

from typing import Any, Final

from antiphon.checker.answers import Answer, Item, Refusal
from antiphon.checker.recordings import Recording, read_type
from antiphon.checker.requirements.continuing import try_words
from antiphon.checker.requirements.judging import expect_refusal, is_named, read_list
from antiphon.checker.requirements.requirement import Probe, Requirement
from antiphon.checker.requirements.speaking import GREETING, QUESTION, plant
from antiphon.checker.socket_line import LineClosedError
from antiphon.checker.subject import Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Evidence, Outcome, failed, is_near, passed, unasked, undecided

_API = "OpenAI API reference, Responses: compaction"
_GUIDE = "OpenAI guide, Compaction"
TRIGGER: Final[Item] = {"type": "compaction_trigger"}
#: What a server that does not compact lacks; said once for all requirements that need it.
COMPACTION_NEEDS = "a server that compacts on a trigger"
#: The API refuses a smaller budget together with a trigger.
COMPACTION_TOKENS = 20_000
#: Results of tools in a history, and lines in each: well over the smallest threshold of the API together.
RESULTS, LINES = 6, 24
#: Names of sealed content that cannot be opened.
_BROKEN_SEAL = "invalid_encrypted_content"


def make_history(word: str, first: int = 0) -> list[Item]:
    """A word that the user tells, then results of a tool that are long and of no use; `first` numbers its calls."""
    items = [plant(word), _say("Noted.")]
    for number in range(first, first + RESULTS):
        call_id = f"call_vault{number}"
        arguments = f'{{"name": "vault-{number}"}}'
        items += [
            {"type": "function_call", "call_id": call_id, "name": "open_vault", "arguments": arguments},
            {"type": "function_call_output", "call_id": call_id, "output": _make_result(number)},
        ]
    return [*items, _say("All the vaults are read.")]


def _say(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _make_result(number: int) -> str:
    rows = (f"Shelf {number * LINES + row} of the vault holds nothing of interest." for row in range(LINES))
    return "\n".join(rows)


async def record_trigger(subject: Subject) -> Recording:
    """The stream of a trigger; asked for once in a run. Raises `UndecidedError` where the server does not compact."""
    recording = await subject.try_record(
        "compaction trigger",
        input=[user("The vault is called door."), user(GREETING), TRIGGER],
        max_output_tokens=COMPACTION_TOKENS,
    )
    if isinstance(recording, Refusal):
        raise UndecidedError(f"the server does not compact on a trigger ({recording})", COMPACTION_NEEDS)
    return recording


async def require_compaction(subject: Subject) -> None:
    """Raises `UndecidedError` where a trigger does not bring a compaction item."""
    recording = await record_trigger(subject)
    if not any(find_blob(item) for item in recording.outputs):
        raise UndecidedError("a trigger is answered without a compaction item")


def find_blob(item: Any) -> str | None:
    """The sealed text of a compaction item; None where it is none."""
    if not isinstance(item, dict) or item.get("type") != "compaction":
        return None
    blob = item.get("encrypted_content")
    return blob if isinstance(blob, str) and blob and isinstance(item.get("id"), str) else None


async def compact(subject: Subject, items: list[Item], **fields: Any) -> tuple[Answer, Item]:
    """The response to these items and a trigger, and its compaction item."""
    await require_compaction(subject)
    answer = await subject.ask([*items, TRIGGER], max_output_tokens=COMPACTION_TOKENS, **fields)
    found = next((item for item in answer.output if find_blob(item)), None)
    if found is None:
        raise UndecidedError("a trigger is answered without a compaction item")
    return answer, found


def judge_word(
    word: str, answer: Answer | Refusal, full: Answer, what: str, *, may_grow: bool = False
) -> Outcome:
    """Whether a word came through; `full` is the answer with the whole history.

    `may_grow`: there was next to nothing to compact, so that the words around it may be more than what they save.
    """
    if isinstance(answer, Refusal):
        return failed(f"{what} cannot be gone on with ({answer})", http_status=answer.status)
    evidence: Evidence = {
        "input_tokens": answer.tokens,
        "input_tokens_full_history": full.tokens,
        "text": answer.text[:200],
    }
    if answer.tokens is not None and full.tokens is not None and not may_grow:
        larger = answer.tokens > full.tokens and not is_near(answer.tokens, full.tokens)
        if larger:
            told = f"input_tokens {answer.tokens}, {full.tokens} with the whole history"
            return failed(f"{what} counts more than what it was made from ({told})", **evidence)
    if word.lower() in answer.text.lower():
        return passed(f"{what} brings back the word that the user told", **evidence)
    if word.lower() not in full.text.lower():
        return undecided("this model does not repeat a word from its own history", **evidence)
    return failed(f"{what} lost the word that the user told", **evidence)


# What a trigger must be.


async def _probe_wrong_trigger(
    subject: Subject, items: list[Item], what: str, param: str, **fields: Any
) -> Outcome:
    await require_compaction(subject)
    body = {"model": subject.model, "input": items, **fields}
    fetched = await subject.fetch("POST", "/responses", body)
    outcome = expect_refusal(fetched, what, names=("compaction_trigger",))
    refusal = fetched.refusal
    if outcome.verdict == "pass" and refusal is not None and refusal.param != param:
        return failed(f"{what} is refused with param {refusal.param!r}, not {param!r}", param=refusal.param)
    return outcome


async def probe_trigger_once(subject: Subject) -> Outcome:
    """Two triggers."""
    return await _probe_wrong_trigger(
        subject, [user(GREETING), TRIGGER, TRIGGER], "a second trigger", "input"
    )


async def probe_trigger_last(subject: Subject) -> Outcome:
    """A trigger before a message."""
    return await _probe_wrong_trigger(
        subject, [user(GREETING), TRIGGER, user(GREETING)], "a trigger that is not last", "input"
    )


async def probe_trigger_budget(subject: Subject) -> Outcome:
    """A trigger with a thousand tokens."""
    return await _probe_wrong_trigger(
        subject,
        [user(GREETING), TRIGGER],
        "a trigger with max_output_tokens 1000",
        "max_output_tokens",
        max_output_tokens=1000,
    )


# What it brings.


async def probe_trigger(subject: Subject) -> Outcome:
    """Not streamed: one item, sealed."""
    await record_trigger(subject)
    answer = await subject.ask([user(GREETING), TRIGGER], max_output_tokens=COMPACTION_TOKENS)
    types = [str(item.get("type")) for item in answer.output]
    if answer.status != "completed":
        return failed(f"the response to a trigger is {answer.status}")
    if types != ["compaction"]:
        return failed(f"answered by {', '.join(types) or 'nothing'}, not by one compaction item alone")
    if find_blob(answer.output[0]) is None:
        return failed("the compaction item has no text as its id or as its encrypted_content")
    return passed("answered by one compaction item with an id and encrypted_content")


async def probe_trigger_stream(subject: Subject) -> Outcome:
    """The events of the item: added, perhaps that it is being made, done; the same ids all the way."""
    recording = await record_trigger(subject)
    own = [event for event in recording.events if "output_index" in event]
    kinds = [read_type(event).removeprefix("response.") for event in own]
    middle = set(kinds[1:-1]) - {"compaction.compacting"}
    if kinds[:1] != ["output_item.added"] or kinds[-1:] != ["output_item.done"] or middle:
        return failed(f"the compaction came as {', '.join(kinds[:6]) or 'nothing'}")
    items = [own[0].get("item"), own[-1].get("item"), *recording.outputs]
    ids = [item.get("id") if isinstance(item, dict) else None for item in items]
    if len(items) != 3 or ids[1:] != ids[:-1] or find_blob(items[1]) is None:
        return failed("the items that were added, done and completed are not one compaction item")
    if items[1] != items[2]:
        return failed("the compaction item in the completed response is not the one that was done")
    return passed(f"{', '.join(kinds)}", events=len(recording.events))


async def probe_trigger_by_id(subject: Subject) -> Outcome:
    """A response, then the trigger alone, then a question: each by the id of the one before."""

    async def recall() -> Outcome:
        await require_compaction(subject)
        word = subject.make_word()
        told = plant(word)
        first = await subject.ask([told])
        made = await subject.create([TRIGGER], previous=first.id, max_output_tokens=COMPACTION_TOKENS)
        if isinstance(made, Refusal):
            return failed(f"a trigger alone behind previous_response_id is refused ({made})")
        by_id = await subject.create([user(QUESTION)], previous=made.id)
        full = await subject.ask([told, *first.output, user(QUESTION)])
        return judge_word(word, by_id, full, "the response to a trigger", may_grow=True)

    return await try_words(recall)


async def probe_trigger_unlisted(subject: Subject) -> Outcome:
    """The input items of the response to a trigger."""
    answer, _ = await compact(subject, [user(GREETING)])
    items = await subject.list_input_items(answer.id)
    if isinstance(items, Refusal):
        return undecided(f"the input items cannot be listed ({items})")
    types = [item.get("type") for item in items if isinstance(item, dict)]
    if TRIGGER["type"] in types:
        return failed("the trigger is listed among the input items, as if it were one to keep")
    return passed(f"{len(types)} input items are listed, and no trigger", listed=len(types))


async def probe_trigger_socket(subject: Subject) -> Outcome:
    """On one connection, nothing stored: a word, the trigger by id, and a question by the trigger's id."""
    await require_compaction(subject)

    async def recall() -> Outcome:
        word = subject.make_word()
        told, question = plant(word), user(QUESTION)
        async with subject.open_socket() as line:
            try:
                first = await line.ask([told], store=False)
                turn = await line.create(
                    [TRIGGER], previous=first.id, store=False, max_output_tokens=COMPACTION_TOKENS
                )
                made = turn.outcome
                if isinstance(made, Refusal):
                    return failed(f"a trigger over WebSocket is refused ({made})")
                if [item.get("type") for item in made.output] != ["compaction"]:
                    return failed("a trigger over WebSocket is not answered by one compaction item")
                by_id = (await line.create([question], previous=made.id, store=False)).outcome
                full = await line.ask([told, *first.output, question], store=False)
            except LineClosedError as closed:
                return failed(str(closed), close_code=closed.close_code)
        return judge_word(word, by_id, full, "a compaction over WebSocket", may_grow=True)

    return await try_words(recall)


# What the item is worth.


async def probe_continues(subject: Subject) -> Outcome:
    """A question by the id of the response to a trigger, beside the same with the whole history."""

    async def recall() -> Outcome:
        word = subject.make_word()
        history, question = make_history(word), user(QUESTION)
        answer, _ = await compact(subject, history)
        by_id = await subject.create([question], previous=answer.id)
        full = await subject.ask([*history, question])
        return judge_word(word, by_id, full, "a compacted window")

    return await try_words(recall)


async def probe_unstored(subject: Subject) -> Outcome:
    """The item alone, from a response that is not stored, before a question."""

    async def recall() -> Outcome:
        word = subject.make_word()
        history, question = make_history(word), user(QUESTION)
        _, item = await compact(subject, history, store=False)
        alone = await subject.create([item, question], store=False)
        full = await subject.ask([*history, question])
        return judge_word(word, alone, full, "a compaction item from a response that is not stored")

    return await try_words(recall)


async def probe_supersedes(subject: Subject) -> Outcome:
    """The item alone, then with everything before it that it was made from: the same window."""
    history, question = make_history(subject.make_word()), user(QUESTION)
    _, item = await compact(subject, history)
    alone = await subject.ask([item, question])
    after = await subject.create([*history, item, question])
    return _judge_same(alone, after, "what a compaction item was made from, sent before it")


async def probe_alias(subject: Subject) -> Outcome:
    """The item under its other name."""
    _, item = await compact(subject, make_history(subject.make_word()))
    question = user(QUESTION)
    plain = await subject.ask([item, question])
    renamed = await subject.create([{**item, "type": "compaction_summary"}, question])
    return _judge_same(plain, renamed, "an item of type compaction_summary")


def _judge_same(one: Answer, other: Answer | Refusal, what: str) -> Outcome:
    if isinstance(other, Refusal):
        return failed(f"{what} is refused ({other})", http_status=other.status)
    evidence: Evidence = {"input_tokens_alone": one.tokens, "input_tokens": other.tokens}
    if one.tokens is None or other.tokens is None:
        return undecided("the server counts nothing", **evidence)
    told = f"input_tokens {other.tokens}, {one.tokens} with the compaction item alone"
    if is_near(other.tokens, one.tokens):
        return passed(f"{what} changes nothing ({told})", **evidence)
    return failed(f"{what} changes the window ({told})", **evidence)


async def probe_again(subject: Subject) -> Outcome:
    """Compacted, gone on with, compacted again: one item, and the word of the first part is in it."""

    async def recall() -> Outcome:
        word = subject.make_word()
        history, question = make_history(word), user(QUESTION)
        _, first = await compact(subject, history)
        more = [first, user("Go on."), *make_history("of no use", first=RESULTS)[2:]]
        answer, second = await compact(subject, more)
        if len(answer.output) != 1:
            return failed(f"a second compaction has {len(answer.output)} output items")
        alone = await subject.create([second, question])
        full = await subject.ask([*history, *more[1:], question])
        return judge_word(word, alone, full, "a window that was compacted twice")

    return await try_words(recall)


async def probe_other_model(subject: Subject) -> Outcome:
    """The item of one model before another one."""
    others = [name for name in await subject.list_models() if name != subject.model]
    if not others:
        return unasked("a second model", "the server lists no other model to go on with")

    async def recall() -> Outcome:
        word = subject.make_word()
        history, question = make_history(word), user(QUESTION)
        _, item = await compact(subject, history)
        answer = await subject.create([item, question], model=others[0])
        if isinstance(answer, Refusal) and answer.code != _BROKEN_SEAL:
            return undecided(f"the model {others[0]} does not answer ({answer})")
        full = await subject.ask([*history, question], model=others[0])
        return judge_word(word, answer, full, f"a compaction item before {others[0]}")

    return await try_words(recall)


async def probe_broken_seal(subject: Subject) -> Outcome:
    """Items whose seal was changed in its middle, cut, and made up."""
    _, item = await compact(subject, [user(GREETING)])
    blob = item["encrypted_content"]
    half = len(blob) // 2
    other = "A" if blob[half] != "A" else "B"
    broken = {
        "a changed seal": blob[:half] + other + blob[half + 1 :],
        "a cut seal": blob[:half],
        "no seal at all": "sealed-by-nobody",
    }
    outcome = passed("nothing was tried")
    for what, text in broken.items():
        items = [{**item, "encrypted_content": text}, user(GREETING)]
        fetched = await subject.fetch("POST", "/responses", subject.make_body(input=items))
        outcome = expect_refusal(fetched, what, code=_BROKEN_SEAL)
        refusal = fetched.refusal
        if outcome.verdict == "pass" and refusal is not None and not is_named(refusal, item["id"]):
            return failed(f"{what} is refused without the id of its item ({refusal})")
        if outcome.verdict != "pass":
            return outcome
    return outcome


async def probe_other_key(subject: Subject) -> Outcome:
    """The item of one key, sent with another."""
    other = subject.other
    if other is None:
        return unasked("--second-key-env", "needs a key of another tenant")
    await other.ask([user(GREETING)])
    word = subject.make_word()
    _, item = await compact(subject, [plant(word)])
    answer = await other.create([item, user(QUESTION)])
    if isinstance(answer, Answer):
        return failed("a compaction item is opened for another key", text=answer.text[:200])
    if answer.code != _BROKEN_SEAL:
        return failed(f"with another key it is refused, but not by {_BROKEN_SEAL} ({answer})")
    return passed(f"with another key it is a seal that cannot be opened ({answer})", code=answer.code)


def list_types(output: Any) -> list[str]:
    """The types of output items."""
    return [str(item.get("type")) if isinstance(item, dict) else "?" for item in read_list(output)]


def make(name: str, source: str, told: str, probe: Probe, *covers: str) -> Requirement:
    """A requirement of this area."""
    return Requirement(f"compaction.{name}", "compaction", source, told, probe, covers)


_TRIGGERED = ("item:compaction_trigger",)
_SEALED = ("item:compaction", "output:compaction")
REQUIREMENTS: tuple[Requirement, ...] = (
    make(
        "trigger",
        _API,
        "A trigger is answered by one compaction item alone, with an id and encrypted_content.",
        probe_trigger,
        *_TRIGGERED,
        "output:compaction",
    ),
    make(
        "trigger-stream",
        f"{_API}; streaming events",
        "In a stream the compaction item is added and done, and the completed response holds the same item.",
        probe_trigger_stream,
        *_TRIGGERED,
        "event:response.compaction.compacting",
    ),
    make(
        "trigger-once",
        _API,
        "A second trigger is refused with param input.",
        probe_trigger_once,
        *_TRIGGERED,
    ),
    make(
        "trigger-last",
        _API,
        "A trigger that is not the last item is refused with param input.",
        probe_trigger_last,
        *_TRIGGERED,
    ),
    make(
        "trigger-budget",
        _API,
        "A trigger with max_output_tokens under 20000 is refused with param max_output_tokens.",
        probe_trigger_budget,
        *_TRIGGERED,
        "field:max_output_tokens",
    ),
    make(
        "trigger-by-id",
        _API,
        "A trigger alone compacts what previous_response_id names, and its response can be gone on with.",
        probe_trigger_by_id,
        *_TRIGGERED,
        "field:previous_response_id",
    ),
    make(
        "trigger-unlisted",
        _API,
        "A trigger is a signal: it is not listed among the input items.",
        probe_trigger_unlisted,
        *_TRIGGERED,
        "endpoint:GET /responses/{id}/input_items",
    ),
    make(
        "trigger-websocket",
        f"{_API}; OpenAI guide, WebSocket mode; Codex",
        "Over WebSocket a trigger compacts what is not stored, and its response can be gone on with.",
        probe_trigger_socket,
        *_TRIGGERED,
        "endpoint:WebSocket /responses",
    ),
    make(
        "continues",
        _GUIDE,
        "A compacted window counts no more than what it was made from, and what the user said is in it.",
        probe_continues,
        *_SEALED,
    ),
    make(
        "store-false",
        _GUIDE,
        "A compaction item carries its window: it works alone, and without anything stored.",
        probe_unstored,
        *_SEALED,
        "field:store",
    ),
    make(
        "supersedes",
        _GUIDE,
        "A compaction item stands for everything that it was made from, whether that is sent again or not.",
        probe_supersedes,
        *_SEALED,
    ),
    make(
        "alias",
        "Codex",
        "An item of type compaction_summary is taken as a compaction item.",
        probe_alias,
        "item:compaction_summary",
    ),
    make(
        "again",
        _GUIDE,
        "A window that begins with a compaction item is compacted again into one item, without losing its beginning.",
        probe_again,
        *_SEALED,
    ),
    make(
        "other-model",
        "ours: a session goes on under another model",
        "A compaction item made under one model is opened for another one.",
        probe_other_model,
        *_SEALED,
        "field:model",
    ),
    make(
        "broken-seal",
        f"{_API}: errors",
        "A seal that was changed, cut or made up is refused with invalid_encrypted_content and the item's id.",
        probe_broken_seal,
        *_SEALED,
        "error:invalid_encrypted_content",
    ),
    make(
        "other-key",
        "ours: tenants",
        "With another key a compaction item cannot be opened.",
        probe_other_key,
        *_SEALED,
        "error:invalid_encrypted_content",
    ),
)
