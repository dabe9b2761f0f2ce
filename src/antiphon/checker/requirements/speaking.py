"""What the probes say to a model: words to remember, questions, a tool; and how they take refusals."""

from typing import Any

from antiphon.checker.answers import Answer, Item, Refusal
from antiphon.checker.subject import Subject, UndecidedError, user
from antiphon.checker.verdicts import Outcome, Reading, failed, undecided

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


def plant(word: str) -> Item:
    """A message that tells the word."""
    return user(f"Please remember this: the secret word is {word}. Answer only: noted.")


def make_output(call_id: str, number: str) -> Item:
    """The output of a call."""
    return {"type": "function_call_output", "call_id": call_id, "output": f"The vault holds {number}."}


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
    return answer


def judge_refused_continuation(refusal: Refusal) -> Outcome:
    """The verdict where a continuation of a response that the server gave out itself was refused."""
    if refusal.is_overflow or not refusal.is_clients_fault:
        return undecided(f"the continuation could not be carried out ({refusal})")
    return failed(f"the server does not continue from an id that it gave out ({refusal})")
