"""Probes of the store: what was sent is there, what was to be forgotten is not, and answers are answers."""

from typing import Any

import msgspec

from antiphon.checker.answers import Answer, Item, Refusal
from antiphon.checker.requirements.speaking import (
    GREETING,
    QUESTION,
    call_tool,
    make_output,
    plant,
)
from antiphon.checker.subject import Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Outcome, failed, passed, undecided

#: The smallest output budget of the API: a model that reasons spends it before it says anything.
SMALL_OUTPUT_TOKENS = 16
#: What makes an item the same item; servers fill in other fields when they store it.
_IDENTITY = ("type", "id", "role", "call_id", "name", "arguments")


async def probe_store_false(subject: Subject) -> Outcome:
    """A response that must not be stored: GET and continuation."""
    first = await subject.ask([plant(subject.make_word())], store=False)
    return await _judge_gone(subject, first.id, "store:false")


async def probe_delete(subject: Subject) -> Outcome:
    """A response that is deleted: GET and continuation."""
    first = await subject.ask([plant(subject.make_word())])
    refusal = await subject.delete(first.id)
    if refusal is not None:
        return failed(f"the response could not be deleted ({refusal})", http_status=refusal.status)
    return await _judge_gone(subject, first.id, "DELETE")


async def _judge_gone(subject: Subject, response_id: str, after: str) -> Outcome:
    found = await subject.retrieve(response_id)
    if isinstance(found, Answer):
        return failed(f"after {after} the response can still be retrieved", text=found.text)
    answer = await subject.create([user(QUESTION)], previous=response_id)
    evidence: dict[str, Any] = {"retrieve": str(found), "continue": str(answer)[:200]}
    if isinstance(answer, Answer):
        evidence |= {"continue": f"answered, status {answer.status}", "text": answer.text}
        return failed(f"after {after} the response is gone, and continuing from it is answered", **evidence)
    if not answer.is_clients_fault:
        return undecided(f"after {after}: continuing failed without being refused ({answer})", **evidence)
    return passed(f"after {after} neither retrieved ({found}) nor continued ({answer})", **evidence)


async def probe_echo(subject: Subject) -> Outcome:
    """previous_response_id in a first response and in the one after it."""
    first = await subject.ask([user(GREETING)])
    second = await subject.ask([user(GREETING)], previous=first.id)
    evidence = {
        "first_id": first.id,
        "first_previous_response_id": _tell(first.previous_response_id),
        "second_previous_response_id": _tell(second.previous_response_id),
    }
    if first.previous_response_id is not None:
        return failed("a first response names a previous one", **evidence)
    if second.previous_response_id != first.id:
        return failed("the continuation does not name the response that it was asked to continue", **evidence)
    return passed("a first response names none, its continuation names it", **evidence)


def _tell(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else repr(value)


async def probe_replays_own_items(subject: Subject) -> Outcome:
    """The output items of a text answer and, where the model calls, of a tool round, as they came."""
    hello = user(GREETING)
    first = await subject.ask([hello])
    if not first.output:
        return undecided("the answer had no output, so there is nothing to send back")
    histories: dict[str, list[Item]] = {"a text answer": [hello, *first.output, user("Go on.")]}
    asked = user("Open the vault named door with the tool.")
    try:
        called = await call_tool(subject, [asked])
    except UndecidedError:
        pass
    else:
        outputs = [make_output(call["call_id"], "4711") for call in called.calls]
        histories["a tool call"] = [asked, *called.output, *outputs]
    for what, history in histories.items():
        answer = await subject.create(history)
        if isinstance(answer, Refusal):
            if not answer.is_clients_fault or answer.is_overflow:
                return undecided(f"the items of {what} could not be tried ({answer})")
            return failed(f"the server refuses its own items of {what} ({answer})", http_status=answer.status)
    return passed(f"the server takes back its own items of {' and of '.join(histories)}")


async def probe_never_empty(subject: Subject) -> Outcome:
    """A plain answer, a continuation, one with the smallest budget, and the answer after a tool call."""
    first = await subject.ask([user(GREETING)])
    answers: dict[str, Answer | Refusal] = {
        "a plain answer": first,
        "a continuation": await subject.create([user("Say hello.")], previous=first.id),
    }
    small = await subject.create([user("Say hello.")], max_output_tokens=SMALL_OUTPUT_TOKENS)
    if "max_output_tokens" not in subject.left_out:
        answers["an answer with the smallest budget"] = small
    try:
        called = await call_tool(subject, [user("Open the vault named door with the tool.")])
    except UndecidedError:
        pass
    else:
        outputs = [make_output(call["call_id"], "4711") for call in called.calls]
        answers["the answer after a tool call"] = await subject.create(outputs, previous=called.id)
    for what, answer in answers.items():
        if isinstance(answer, Answer) and answer.status == "completed" and answer.is_empty:
            told = f"{what} is completed and has no text, call or refusal"
            return failed(told, input_tokens=answer.tokens, output_items=len(answer.output))
    tried = [what for what, answer in answers.items() if isinstance(answer, Answer)]
    return passed(f"not empty: {', '.join(tried)}")


async def probe_retrieve(subject: Subject) -> Outcome:
    """GET a response that was just sent."""
    first = await subject.ask([user(GREETING)])
    if not first.output:
        return undecided("the answer had no output, so there is nothing to compare")
    found = await subject.retrieve(first.id)
    if isinstance(found, Refusal):
        return failed(f"a stored response cannot be retrieved ({found})", http_status=found.status)
    if found.id != first.id or found.status != first.status:
        told = f"GET shows id {found.id}, status {found.status}; sent were {first.id}, {first.status}"
        return failed(told)
    if [_identify(item) for item in found.output] != [_identify(item) for item in first.output]:
        told = "GET shows another output than was sent"
        return failed(told, sent=first.text, retrieved=found.text)
    return passed("GET shows the output that was sent", output_items=len(found.output))


def _identify(item: Item) -> list[Any]:
    parts = item.get("content")
    texts = [
        [part.get("type"), part.get("text"), part.get("refusal")]
        for part in (parts if isinstance(parts, list) else [])
        if isinstance(part, dict)
    ]
    return [*(item.get(name) for name in _IDENTITY), texts]


async def probe_input_items(subject: Subject) -> Outcome:
    """List the input of a response; the word that was sent must be in it."""
    word = subject.make_word()
    first = await subject.ask([plant(word)])
    items = await subject.list_input_items(first.id)
    if isinstance(items, Refusal):
        return failed(f"the input items cannot be listed ({items})", http_status=items.status)
    if word not in msgspec.json.encode(items).decode():
        return failed(f"{len(items)} input items are listed, and what was sent is not in them")
    return passed(f"{len(items)} input items are listed, with what was sent")
