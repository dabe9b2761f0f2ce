"""How well a model brings back what stands in its history: one random name, planted and asked for by id.

It knows no verdict: recall supports the counts, it decides nothing. Small models repeat a name that they were
told where they refuse to tell a "secret word".
"""

from antiphon.checker.report import Recall
from antiphon.checker.subject import Subject, user

#: A name and some words around it.
RECALL_OUTPUT_TOKENS = 32


async def measure_recall(subject: Subject) -> Recall:
    """One name: told, asked for by id, asked for with no history as the control."""
    name = subject.make_word().capitalize()
    question = user("What is my name? Answer with the name only.")
    first = await subject.ask([user(f"My name is {name}.")], max_output_tokens=RECALL_OUTPUT_TOKENS)
    by_id = await subject.ask([question], previous=first.id, max_output_tokens=RECALL_OUTPUT_TOKENS)
    none = await subject.ask([question], max_output_tokens=RECALL_OUTPUT_TOKENS)
    counted = by_id.tokens is not None and none.tokens is not None and by_id.tokens > none.tokens
    return Recall(1, _has(by_id.text, name), _has(none.text, name), int(counted))


def _has(text: str, name: str) -> int:
    return int(name.lower() in text.lower())
