"""How servers say that a prompt does not fit: every row by its own example, and what is no overflow."""

import msgspec
import pytest

from antiphon.backends.overflow import OVERFLOW_CODES, OVERFLOW_TEXTS, OverflowText, read_overflow
from antiphon.backends.refusals import read_refusal
from antiphon.protocol.errors import ContextOverflowError

#: Numbers that the examples tell: source -> prompt, window.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "llama.cpp": (12030, 4096),
    "vLLM": (4097, 4096),
    "vLLM, with output": (3597, 4096),
    "vLLM, output too large": (4000, 4096),
    "OpenAI, with output": (8001, 8192),
    "OpenAI": (9001, 8192),
    "OpenRouter": (39000, 32768),
    "OpenAI, OpenRouter and others, short": (None, 32768),
    "Antiphon, with output": (4000, 4096),
    "Antiphon, OpenAI's Responses": (235, 200),
    "Ollama cloud": (300000, 262144),
    "Anthropic": (210000, 200000),
    "Gemini": (1100000, 1048576),
    "xAI": (140000, 131072),
    "Mistral": (40000, 32768),
    "LM Studio": (10247, 4096),
    "LM Studio, older": (15857, 4096),
    "LM Studio, while generating": (None, 4096),
    "Kimi": (291351, 262144),
    "many": (5000, None),
}


def name_row(row: OverflowText) -> str:
    """For the list of tests."""
    return row.source


@pytest.mark.parametrize("row", OVERFLOW_TEXTS, ids=name_row)
def test_a_rows_example_is_read_by_that_row_and_gives_its_numbers(row: OverflowText) -> None:
    """Provenance: the row's source."""
    assert next(each for each in OVERFLOW_TEXTS if each.pattern.match(row.example)) is row
    error = read_overflow(row.example)
    assert error is not None
    assert (error.prompt_tokens, error.window_tokens) == NUMBERS.get(row.source, (None, None))
    assert error.at_least is row.at_least
    for number in NUMBERS.get(row.source, ()):
        assert number is None or str(number) in error.message


def test_the_table_of_numbers_names_rows_alone() -> None:
    """Ours."""
    assert set(NUMBERS) <= {row.source for row in OVERFLOW_TEXTS}
    assert len({row.source for row in OVERFLOW_TEXTS}) == len(OVERFLOW_TEXTS)


@pytest.mark.parametrize(
    "message",
    [
        (
            "litellm.ContextWindowExceededError: litellm.BadRequestError: AnthropicException - "
            "prompt is too long: 210000 tokens > 200000 maximum"
        ),
        (
            "<LM Studio error> Trying to keep the first 15857 tokens when context the overflows. However, the model is "
            "loaded with context length of only 4096 tokens, which is not enough."
        ),
        "The Request (12,030 tokens) exceeds the available context size (4,096 tokens)",
    ],
)
def test_a_gateways_prefix_does_not_hide_an_overflow(message: str) -> None:
    """Public issues of gateways."""
    error = read_overflow(message)
    assert error is not None
    assert error.prompt_tokens in (210000, 15857, 12030)


@pytest.mark.parametrize(
    "message",
    [
        "",
        "the backend said: prompt is too long: 300000, model maximum context length: 262144",
        'invalid tool output: "prompt is too long: 3 tokens > 2 maximum"',
        "1 validation error: input_value='context_length_exceeded'",
        "1 validation error: input_value='This model's maximum context length is 4 tokens'",
        "prompt is too long: many, model maximum context length: more",
        "prompt is too long: 300000, model maximum context length: 262144 but I go on",
        "Too many tokens, please wait before trying again.",
        "Rate limit reached: too many tokens per minute",
        "max_tokens must be at least 1",
        "Request body too large",
    ],
)
def test_other_texts_are_no_overflow(message: str) -> None:
    """A phrase that another message quotes, numbers that are none, limits of another kind."""
    assert read_overflow(message) is None


@pytest.mark.parametrize("at_least", [False, True])
@pytest.mark.parametrize("window", [4096, None])
@pytest.mark.parametrize("prompt", [12030, None])
def test_our_own_error_keeps_its_numbers(prompt: int | None, window: int | None, at_least: bool) -> None:
    """Ours: one server of ours may stand behind another."""
    told = ContextOverflowError(prompt_tokens=prompt, window_tokens=window, at_least=at_least)
    error = read_overflow(told.message)
    assert error is not None
    assert (error.prompt_tokens, error.window_tokens) == (prompt, window)
    assert error.at_least is (at_least and prompt is not None)
    assert error.message == told.message


@pytest.mark.parametrize("code", sorted(OVERFLOW_CODES))
def test_a_code_is_enough_and_numbers_beside_it_are_taken(code: str) -> None:
    """OpenAI's code, llama.cpp's type with `n_prompt_tokens` and `n_ctx`, z.ai's code."""
    error = read_overflow("whatever", codes={code}, prompt_tokens=12030, window_tokens=4096)
    assert error is not None
    assert (error.prompt_tokens, error.window_tokens) == (12030, 4096)


@pytest.mark.parametrize(
    ("status", "overflow"),
    [(400, True), (413, True), (422, True), (500, True), (429, False), (503, False), (403, False)],
)
def test_only_some_statuses_can_mean_overflow(status: int, overflow: bool) -> None:
    """A rate limit that speaks of tokens is a rate limit."""
    body = msgspec.json.encode({"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}})
    assert isinstance(read_refusal(status, body, model="m"), ContextOverflowError) is overflow


@pytest.mark.parametrize("body", [b"", b"prompt", b"<html>prompt is too long</html>", b"null", b"[]", b"7"])
def test_a_bare_400_or_413_is_not_taken_for_an_overflow(body: bytes) -> None:
    """Ours: without a word about it nothing is claimed."""
    for status in (400, 413):
        assert not isinstance(read_refusal(status, body, model="m"), ContextOverflowError)


def test_no_pattern_takes_long_for_a_long_text() -> None:
    """Ours: an error text is a thousand characters at most, and no row looks further than it must."""
    for row in OVERFLOW_TEXTS:
        for text in (row.example.split(" ")[0] * 200, "Error" * 200, "Error: " * 140, "x.Error-" * 120):
            row.pattern.match(text[:1000])
