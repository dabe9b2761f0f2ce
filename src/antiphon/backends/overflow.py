"""How real servers say that a prompt does not fit: tables of codes and texts, and the reader that walks them.

Shared by every dialect; it knows texts and numbers, not requests. Each row names its source, and each
row's example is a test. A text counts only as the whole beginning of a message: servers quote the
conversation in other errors, and what a user wrote is no overflow.
"""

import re
from collections.abc import Collection
from typing import NamedTuple

from antiphon.protocol.errors import ContextOverflowError

#: `code` or `type` of an error that mean overflow by themselves.
OVERFLOW_CODES = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"}
)

_WITH_OUTPUT = (
    "Your input and the output you allow ('max_output_tokens') together exceed the context window of this model. "
    "Please adjust them and try again."
)


class OverflowText(NamedTuple):
    """One server's wording. Groups `prompt` and `window` are token counts, where the text tells them."""

    source: str
    pattern: re.Pattern[str]
    example: str
    #: The server stops counting once the limit is passed.
    at_least: bool = False
    #: The prompt itself may fit; with the output allowed it does not.
    with_output: bool = False


# Gateways put their own exception's name before the server's text.
_GATEWAY = r"(?:[\w.]*(?:Error|Exception)\s*[:-]\s*)*(?:<LM Studio error>\s*)?"


def _row(
    source: str, pattern: str, example: str, *, at_least: bool = False, with_output: bool = False
) -> OverflowText:
    compiled = re.compile(_GATEWAY + pattern, re.IGNORECASE | re.DOTALL)
    return OverflowText(source, compiled, example, at_least, with_output)


_PROMPT = r"(?P<prompt>\d[\d,]*)"
_WINDOW = r"(?P<window>\d[\d,]*)"
#: How our own error puts the numbers, so that they pass through one server of ours to another.
_OURS = (
    rf"(?: \((?:the prompt has (?:(?P<least>at least )?{_PROMPT}|about \d+) tokens)?[^()]*?"
    rf"(?:the window holds {_WINDOW})?\))?"
)
_OPENAI = rf"This model's maximum context length is {_WINDOW} tokens\. However, "

#: Walked in order; the first match wins.
OVERFLOW_TEXTS: tuple[OverflowText, ...] = (
    _row(
        "llama.cpp",
        rf"(?:the )?request \({_PROMPT} tokens\) exceeds the available context size \({_WINDOW} tokens\)",
        "request (12030 tokens) exceeds the available context size (4096 tokens), try increasing it",
    ),
    _row(
        "llama.cpp, older",
        r"(?:the )?request exceeds the available context size",
        "the request exceeds the available context size. try increasing the context size",
    ),
    _row("llama.cpp, while generating", r"Context size has been exceeded", "Context size has been exceeded."),
    _row(
        "vLLM",
        _OPENAI + rf"your prompt contains at least {_PROMPT} input tokens",
        "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input "
        "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=4097)",
        at_least=True,
    ),
    _row(
        "vLLM, with output",
        _OPENAI
        + rf"you requested \d+ output tokens and your prompt contains at least {_PROMPT} input tokens",
        "This model's maximum context length is 4096 tokens. However, you requested 500 output tokens and your "
        "prompt contains at least 3597 input tokens, for a total of at least 4097 tokens.",
        at_least=True,
        with_output=True,
    ),
    _row(
        "vLLM, output too large",
        r"'max_tokens' or 'max_completion_tokens' is too large: \d+\. This model's maximum context length is "
        rf"{_WINDOW} tokens and your request has {_PROMPT} input tokens",
        "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is 4096 "
        "tokens and your request has 4000 input tokens (500 > 4096 - 4000).",
        with_output=True,
    ),
    _row(
        "OpenAI, with output",
        _OPENAI + rf"(?:you|your messages) requested (?:about )?\d+ tokens \({_PROMPT} ",
        "This model's maximum context length is 8192 tokens. However, you requested 9001 tokens (8001 in the "
        "messages, 1000 in the completion). Please reduce the length of the messages or completion.",
        with_output=True,
    ),
    _row(
        "OpenAI",
        _OPENAI + rf"your (?:messages|prompt|input) (?:resulted in|has|contains) {_PROMPT} (?:input )?tokens",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. Please "
        "reduce the length of the messages.",
    ),
    _row(
        "OpenRouter",
        rf"This endpoint's maximum context length is {_WINDOW} tokens\. However, you requested about \d+ tokens "
        rf"\({_PROMPT} of text input",
        "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens (39000 of "
        "text input, 1000 in the output). Please reduce the length of either one.",
        with_output=True,
    ),
    _row(
        "OpenAI, OpenRouter and others, short",
        rf"This (?:model|endpoint)'s maximum context length is {_WINDOW}",
        "This endpoint's maximum context length is 32768 tokens.",
    ),
    _row(
        "Antiphon, with output",
        r"Your input and the output you allow \('max_output_tokens'\) together exceed the context window of this "
        r"model\. Please adjust them and try again\." + _OURS,
        "Your input and the output you allow ('max_output_tokens') together exceed the context window of this model. "
        "Please adjust them and try again. (the prompt has 4000 tokens, the window holds 4096)",
        with_output=True,
    ),
    _row(
        "Antiphon, OpenAI's Responses",
        r"Your input exceeds the context window of this model\. Please adjust your input and try again\."
        + _OURS,
        "Your input exceeds the context window of this model. Please adjust your input and try again. (the prompt has "
        "235 tokens, the window holds 200)",
    ),
    _row(
        "OpenAI, Responses",
        r"Your input exceeds the context window",
        "Your input exceeds the context window of the model.",
    ),
    _row(
        "Ollama cloud",
        rf"prompt is too long: {_PROMPT}, model maximum context length: {_WINDOW}(?: \(ref: [\w-]+\))?\s*\Z",
        "prompt is too long: 300000, model maximum context length: 262144 (ref: 4f1c)",
    ),
    _row(
        "Ollama",
        r"(?:the )?input length exceeds the (?:maximum )?context length",
        "the input length exceeds the context length",
    ),
    _row(
        "Ollama, prompt",
        r"prompt too long; exceeded (?:max )?context length",
        "prompt too long; exceeded max context length by 4 tokens",
    ),
    _row("Ollama, filled", r"prompt filled the context window", "prompt filled the context window"),
    _row(
        "Anthropic",
        rf"prompt is too long: {_PROMPT} tokens > {_WINDOW} maximum",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ),
    _row("Anthropic, short", r"prompt is too long\.?\s*\Z", "prompt is too long"),
    _row("Bedrock", r"Input is too long for requested model", "Input is too long for requested model."),
    _row(
        "Gemini",
        r"(?:The )?input token count \("
        + _PROMPT
        + rf"\) exceeds the maximum number of tokens allowed \({_WINDOW}\)",
        "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    _row(
        "Gemini, short",
        r"(?:The )?input token count exceeds the maximum",
        "The input token count exceeds the maximum number of tokens allowed.",
    ),
    _row(
        "xAI",
        rf"This model's maximum prompt length is {_WINDOW} but the request contains {_PROMPT} tokens",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    ),
    _row(
        "Groq",
        r"Please reduce the length of the messages or completion",
        "Please reduce the length of the messages or completion.",
    ),
    _row(
        "Mistral",
        rf"Prompt contains {_PROMPT} tokens.*?too large for model with {_WINDOW} maximum context length",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    ),
    _row(
        "LM Studio",
        r"The number of tokens to keep from the initial prompt is greater than the context length "
        rf"\(n_keep: {_PROMPT} >= n_ctx: {_WINDOW}\)",
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 10247 >= "
        "n_ctx: 4096). Try to load the model with a larger context length, or provide a shorter prompt.",
    ),
    _row(
        "LM Studio, short",
        r"The number of tokens to keep from the initial prompt is greater than the context length",
        "The number of tokens to keep from the initial prompt is greater than the context length",
    ),
    _row(
        "LM Studio, older",
        rf"Trying to keep the first {_PROMPT} tokens when context the overflows\. However, the model is loaded with "
        rf"context length of only {_WINDOW} tokens",
        "Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with context "
        "length of only 4096 tokens, which is not enough.",
    ),
    _row(
        "LM Studio, while generating",
        rf"Reached context length of {_WINDOW} tokens",
        "Reached context length of 4096 tokens with model (arch: qwen3vlmoe) that does not currently support "
        "mid-generation context overflow.",
    ),
    _row(
        "MiniMax",
        r"(?:invalid params, )?context window exceeds limit",
        "invalid params, context window exceeds limit",
    ),
    _row(
        "Kimi",
        rf"(?:Invalid request: )?Your request exceeded model token limit: {_WINDOW}(?: \(requested: {_PROMPT}\))?",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 291351)",
    ),
    _row(
        "many",
        rf"too many tokens: {_PROMPT} tokens in prompt",
        "too many tokens: 5000 tokens in prompt",
    ),
)


def read_overflow(
    message: str,
    *,
    codes: Collection[str] = (),
    prompt_tokens: int | None = None,
    window_tokens: int | None = None,
) -> ContextOverflowError | None:
    """The overflow error that a server's message means, or None when it means something else.

    `codes` are its `code` and `type`. Numbers that the server told beside its message (llama.cpp's
    `n_prompt_tokens`, `n_ctx`) come first.
    """
    for row in OVERFLOW_TEXTS:
        found = row.pattern.match(message)
        if found is None:
            continue
        groups = found.groupdict()
        return ContextOverflowError(
            _WITH_OUTPUT if row.with_output else None,
            prompt_tokens=prompt_tokens if prompt_tokens is not None else _number(groups.get("prompt")),
            window_tokens=window_tokens if window_tokens is not None else _number(groups.get("window")),
            at_least=row.at_least or groups.get("least") is not None,
        )
    if OVERFLOW_CODES.isdisjoint(codes):
        return None
    return ContextOverflowError(prompt_tokens=prompt_tokens, window_tokens=window_tokens)


def _number(text: str | None) -> int | None:
    return int(text.replace(",", "")) if text else None
