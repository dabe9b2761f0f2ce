"""What the tests say to the small model, and how they read its answers.

It knows no server. Even asked greedily the model may answer one prompt in two ways: its sums depend a
little on what comes from the cache. So tests compare counts, never two generations.
"""

from typing import Any

from tests.real.llama_server import ALIAS

#: Told so, the model has more to say than any limit that these tests set with it.
STORY = "Tell me a very long story about a lighthouse."
#: A form of answer that has no end within the window.
ENDLESS: dict[str, Any] = {
    "type": "json_schema",
    "name": "numbers",
    "strict": True,
    "schema": {"type": "array", "items": {"enum": [1000, 2000]}, "minItems": 2000, "maxItems": 2000},
}
#: What `make_request` lets the model say.
SHORT_TOKENS = 24


def make_request(said: str | list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """The body of a request for a short greedy answer."""
    return {"model": ALIAS, "input": said, "temperature": 0, "max_output_tokens": SHORT_TOKENS, **options}


def make_filler(sentences: int) -> str:
    """Text of about 22 tokens a sentence, no two sentences alike."""
    numbers = range(sentences)
    return " ".join(
        f"In the year {1000 + n} the keeper number {n * 7} painted room {n * 3}." for n in numbers
    )


def user(text: str) -> dict[str, Any]:
    """A user message: the same object is an input item and a chat message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    """An assistant message, likewise."""
    return {"role": "assistant", "content": text}


def read_text(response: dict[str, Any]) -> str:
    """All output text of a Response object."""
    parts = [part for item in response["output"] for part in item.get("content", [])]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
