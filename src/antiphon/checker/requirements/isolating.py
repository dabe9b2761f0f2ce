"""The probe of tenants: what one key stored is not there for another.

It compares every way to a response of the first key with the same way to an id that nobody gave out.
"""

from collections.abc import Awaitable
from typing import Any

from antiphon.checker.answers import Answer, Refusal
from antiphon.checker.requirements.conversing import list_items, make_conversation
from antiphon.checker.requirements.judging import holds
from antiphon.checker.requirements.speaking import GREETING, QUESTION, plant
from antiphon.checker.subject import Fetched, Subject, UnableError, user
from antiphon.checker.verdicts import Outcome, failed, passed, unasked, undecided


async def probe_other_key(subject: Subject) -> Outcome:
    """Read, list, continue and delete with the second key; then read with the first."""
    other = subject.other
    if other is None:
        return unasked("--second-key-env", "needs a key of another tenant")
    await other.ask([user(GREETING)])
    word = subject.make_word()
    first = await subject.ask([plant(word)])
    unknown_id = subject.make_id("resp")
    foreign = await _try_all(other, first.id)
    unknown = await _try_all(other, unknown_id)
    kept = await subject.retrieve(first.id)
    for what, answer in foreign.items():
        if isinstance(answer, Answer) and word.lower() in answer.text.lower():
            return failed(f"{what} with another key brought back the word", text=answer.text)
        # A server that answers for an unknown id as well has shown nothing of another's.
        if not isinstance(answer, Refusal) and isinstance(unknown[what], Refusal):
            return failed(f"{what} with another key is answered")
    if isinstance(kept, Refusal):
        return undecided(f"the response cannot be retrieved with its own key ({kept})")
    differing = [what for what in foreign if _mask(foreign[what]) != _mask(unknown[what])]
    if differing:
        what = differing[0]
        told = f"{what}: {foreign[what]}; for an unknown id: {unknown[what]}"
        return failed(f"the answer to another key tells that the id exists: {told}")
    return passed(f"another key gets what it gets for an unknown id ({foreign['read']})")


async def probe_conversations(subject: Subject) -> Outcome:
    """Every route of a conversation with the second key, and with an id that nobody gave out."""
    other = subject.other
    if other is None:
        return unasked("--second-key-env", "needs a key of another tenant")
    word = subject.make_word()
    conversation = await make_conversation(subject, {"items": [plant(word)]})
    items = await list_items(subject, conversation)
    if not items:
        return undecided("the conversation lists no items")
    unknown_id = subject.make_id("conv")
    foreign = await _try_conversation(other, conversation, items[0].get("id"))
    unknown = await _try_conversation(other, unknown_id, items[0].get("id"))
    if any(word.encode() in answer.raw for answer in foreign.values()):
        return failed("with another key a conversation brought back the word")
    for what, answer in foreign.items():
        same = answer.raw.replace(conversation.encode(), b"") == unknown[what].raw.replace(
            unknown_id.encode(), b""
        )
        if answer.status != unknown[what].status or not same:
            return failed(
                f"{what}: another key is answered otherwise than for an unknown id ({answer.refusal})"
            )
    if not holds(await list_items(subject, conversation), [plant(word)]):
        return failed("another key changed the conversation")
    return passed("another key gets what it gets for an unknown id")


async def _try_conversation(other: Subject, conversation: str, item_id: Any) -> dict[str, Fetched]:
    """What each route of a conversation is answered with, deletion last."""
    path = f"/conversations/{conversation}"
    body = other.make_body(input=[user(QUESTION)], conversation=conversation)
    return {
        "read": await other.fetch("GET", path),
        "change": await other.fetch("POST", path, {"metadata": {"k": "v"}}),
        "list the items": await other.fetch("GET", f"{path}/items"),
        "read an item": await other.fetch("GET", f"{path}/items/{item_id}"),
        "add an item": await other.fetch("POST", f"{path}/items", {"items": [user("Hi.")]}),
        "respond": await other.fetch("POST", "/responses", body),
        "delete an item": await other.fetch("DELETE", f"{path}/items/{item_id}"),
        "delete": await other.fetch("DELETE", path),
    }


async def _try_all(other: Subject, response_id: str) -> dict[str, Any]:
    """What each way to this id is answered with, deletion last."""
    question = [user(QUESTION)]
    answers = {
        "read": await _try(other.retrieve(response_id)),
        "list the input items": await _try(other.list_input_items(response_id)),
        "continue": await _try(other.create(question, previous=response_id)),
        "continue in a stream": await _try(other.create(question, previous=response_id, stream=True)),
        "delete": await _try(other.delete(response_id)),
    }
    return {what: _hide(answer, response_id) for what, answer in answers.items()}


async def _try(asked: Awaitable[Any]) -> Any:
    """The answer; that a key may not is one, too."""
    try:
        return await asked
    except UnableError as reason:
        if reason.refusal.status in (401, 403):
            return reason.refusal
        raise


def _hide(answer: Any, response_id: str) -> Any:
    """A refusal without the id that it names."""
    if not isinstance(answer, Refusal):
        return answer
    return Refusal(answer.status, answer.message.replace(response_id, "ID"), answer.code, answer.param)


def _mask(answer: Any) -> Any:
    return answer if isinstance(answer, Refusal) else "answered"
