"""Probes of fields that servers accept and forget: each is honoured, or refused by name.

Pass means either; the explanation says which. A model that ends by itself before a field could show leaves the
verdict undecided.
"""

from typing import Any

from antiphon.checker.answers import Answer, Refusal, decode_json
from antiphon.checker.requirements.judging import judge_refusal, tell
from antiphon.checker.requirements.speaking import CUT_TOKENS, GREETING, LONG_TASK, TOOL, judge_cut
from antiphon.checker.subject import Subject, user
from antiphon.checker.verdicts import Outcome, failed, passed, undecided

#: Nothing in the task speaks of JSON, so a server that ignores the format shows it.
_FORMAT: dict[str, Any] = {
    "type": "json_schema",
    "name": "choice",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["red", "green", "blue"]},
            "sure": {"type": "boolean"},
        },
        "required": ["colour", "sure"],
        "additionalProperties": False,
    },
}


async def probe_truncation(subject: Subject) -> Outcome:
    """truncation "auto": the response says so, or the request is refused."""
    answer = await subject.create([user(GREETING)], truncation="auto")
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "truncation")
    echoed = answer.body.get("truncation")
    if echoed == "auto":
        return passed("the response says truncation 'auto'")
    return failed(f"truncation 'auto' was answered, and the response says {tell(echoed)}")


async def probe_store(subject: Subject) -> Outcome:
    """store false and store left out: the response says what was done."""
    choices: tuple[tuple[bool, dict[str, Any]], ...] = ((False, {"store": False}), (True, {}))
    for sent, fields in choices:
        answer = await subject.create([user(GREETING)], **fields)
        if isinstance(answer, Refusal):
            return judge_refusal(answer, "store")
        if answer.body.get("store") is not sent:
            asked = "store false" if fields else "the default, store true,"
            return failed(f"{asked} was answered, and the response says {tell(answer.body.get('store'))}")
    return passed("the response says store false where that was asked for, and true without")


async def probe_max_output_tokens(subject: Subject) -> Outcome:
    """A long task with the smallest budget."""
    answer, _ = await subject.send(
        model=subject.model, input=[user(LONG_TASK)], max_output_tokens=CUT_TOKENS, temperature=0
    )
    if "max_output_tokens" in subject.left_out:
        return passed(f"refused ({subject.left_out['max_output_tokens']})")
    return judge_refusal(answer, "max_output_tokens") if isinstance(answer, Refusal) else judge_cut(answer)


async def probe_metadata(subject: Subject) -> Outcome:
    """Metadata in the response, and in the stored one."""
    sent = {"checked": subject.make_word()}
    answer = await subject.create([user(GREETING)], metadata=sent)
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "metadata")
    if answer.body.get("metadata") != sent:
        return failed(f"the response does not have the metadata, but {tell(answer.body.get('metadata'))}")
    found = await subject.retrieve(answer.id)
    if isinstance(found, Answer) and found.body.get("metadata") != sent:
        told = tell(found.body.get("metadata"))
        return failed(f"the retrieved response does not have the metadata, but {told}")
    return passed("the response has the metadata, and so has the stored one")


async def probe_tool_choice_none(subject: Subject) -> Outcome:
    """A task for the tool, with tool_choice none: no call."""
    answer = await subject.create(
        [user("Open the vault named door with the tool.")], tools=[TOOL], tool_choice="none"
    )
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "tool")
    if answer.calls:
        return failed("the model called a tool, although tool_choice is none", calls=len(answer.calls))
    if answer.is_empty:
        return undecided("the answer was empty, so it does not tell whether the choice was kept")
    return passed("no call with tool_choice none")


async def probe_tool_choice_required(subject: Subject) -> Outcome:
    """A greeting, with tool_choice required: a call."""
    answer = await subject.create([user(GREETING)], tools=[TOOL], tool_choice="required")
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "tool")
    if answer.calls:
        return passed("a call with tool_choice required", calls=len(answer.calls))
    if answer.status == "incomplete":
        return undecided("the answer was cut before a call", text=answer.text)
    return failed("completed without a call, although tool_choice is required", text=answer.text)


async def probe_json_schema(subject: Subject) -> Outcome:
    """A question that nobody would answer in JSON, with a schema."""
    answer = await subject.create(
        [user("Which colour do you like best? Tell me in a sentence.")], text={"format": _FORMAT}
    )
    if isinstance(answer, Refusal):
        return judge_refusal(answer, "text.format", "json_schema", "text")
    value = decode_json(answer.text.encode())
    right = (
        isinstance(value, dict)
        and set(value) == {"colour", "sure"}
        and value["colour"] in ("red", "green", "blue")
        and isinstance(value["sure"], bool)
    )
    if right:
        return passed("the answer fits the schema", text=answer.text)
    if answer.status == "incomplete":
        return undecided("the answer was cut before it was whole", text=answer.text)
    return failed("a completed answer does not fit the schema of text.format", text=answer.text)
