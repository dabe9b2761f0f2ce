"""What the probes say to a model: words to remember, questions, a tool; and how they take refusals."""

from typing import Any

from antiphon.checker.answers import Answer, Item, Refusal
from antiphon.checker.subject import Subject, user
from antiphon.checker.undecided import UndecidedError
from antiphon.checker.verdicts import Evidence, Outcome, Reading, failed, passed, undecided

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "open_vault",
    "description": "Returns the number that is kept in a vault.",
    "parameters": {
        "type": "object",
        "properties": {"name": {"type": "string", "description": "The name of the vault."}},
        "required": ["name"],
        "additionalProperties": False,
    },
    "strict": True,
}
GREETING = "Hello. Answer only: noted."
QUESTION = "What is the secret word that I told you? Answer with that word alone."

#: Nobody ends this within the smallest output budget that the API allows.
LONG_TASK = "Write a very long story about a lighthouse and its keeper."
CUT_TOKENS = 16


def plant(word: str) -> Item:
    """A message that tells the word."""
    return user(f"Please remember this: the secret word is {word}. Answer only: noted.")


def make_output(call_id: str, number: str) -> Item:
    """The output of a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": f"The vault holds {number}."}


def make_steer(subject: Subject) -> dict[str, Any]:
    """The frame that steers a response that there is not."""
    return {
        "type": "response.steer",
        "previous_response_id": subject.make_id("resp"),
        "input": [user("Stop.")],
    }


def make_reading(answer: Answer, word: str) -> Reading:
    """The answer as evidence about this word."""
    return Reading(answer.tokens, answer.text, word.lower() in answer.text.lower())


async def call_tool(subject: Subject, items: list[Item], previous: str | None = None) -> Answer:
    """A round in which the model is forced to call the tool; undecided where it does not."""
    forced: list[Any] = [{"type": "function", "name": TOOL["name"]}, "required"]
    answer: Answer | Refusal | None = None
    for choice in forced:
        answer = await subject.create(items, previous=previous, tools=[TOOL], tool_choice=choice)
        if isinstance(answer, Answer):
            break
    if isinstance(answer, Refusal):
        raise UndecidedError(f"no tool call could be had from the server ({answer})")
    if answer is None or not answer.calls:
        raise UndecidedError("the model did not call the tool, although tool_choice forced it")
    if answer.status == "incomplete":
        # Nobody can answer half a call; small models loop inside an argument until they are cut off.
        raise UndecidedError("the model's call was cut off before its arguments were whole")
    return answer


def judge_refused_continuation(refusal: Refusal) -> Outcome:
    """The verdict where a continuation of a response that the server gave out itself was refused."""
    if refusal.is_overflow or not refusal.is_clients_fault:
        return undecided(f"the continuation could not be carried out ({refusal})")
    return failed(f"the server does not continue from an id that it gave out ({refusal})")


def judge_cut(answer: Answer) -> Outcome:
    """The verdict on an answer to the long task with the smallest budget."""
    usage, details = answer.body.get("usage"), answer.body.get("incomplete_details")
    spent = usage.get("output_tokens") if isinstance(usage, dict) else None
    spent = spent if type(spent) is int else None
    reason = details.get("reason") if isinstance(details, dict) else None
    evidence: Evidence = {"output_tokens": spent, "status": answer.status, "text": answer.text[:200]}
    told = f"{'untold' if spent is None else spent} output tokens with a budget of {CUT_TOKENS}"
    # Even one token a word makes this more than the budget.
    if (spent if spent is not None else len(answer.text.split())) > CUT_TOKENS:
        return failed(f"{told}: the budget was not kept", **evidence)
    if answer.status == "incomplete":
        if reason == "max_output_tokens":
            return passed(f"{told}, incomplete for max_output_tokens", **evidence)
        return failed(f"{told}, incomplete without the reason max_output_tokens", **evidence)
    if spent is not None and spent < CUT_TOKENS:
        return undecided(f"{told}: the model ended by itself", **evidence)
    if spent is None:
        return undecided(f"{told}: nothing tells whether the answer was cut", **evidence)
    return failed(f"{told}: the answer was cut and is completed all the same", **evidence)


def find_notice(answer: Answer) -> str | None:
    """What in the response tells that the prompt was shortened."""
    if answer.body.get("truncation") == "auto":
        return "truncation 'auto'"
    if any(item.get("type") == "compaction" for item in answer.output):
        return "a compaction item"
    ours = answer.body.get("antiphon")
    if not isinstance(ours, dict):
        return None
    warnings: Any = ours.get("warnings")
    codes = (
        [item.get("code") for item in warnings if isinstance(item, dict)]
        if isinstance(warnings, list)
        else []
    )
    if "upstream_truncated" in codes:
        return "antiphon.warnings upstream_truncated"
    return next((f"antiphon.{name}" for name in ("compaction", "window") if ours.get(name)), None)
