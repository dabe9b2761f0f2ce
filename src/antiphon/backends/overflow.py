"""How real servers say that a prompt does not fit: a table of messages, and the reader that walks it.

Shared by every dialect; it knows texts and numbers, not requests. Each row names its source, and each
row's example is a test.
"""

import re
from typing import NamedTuple

from antiphon.protocol.errors import ContextOverflowError


class OverflowText(NamedTuple):
    """One server's wording. Groups `prompt` and `window` are token counts, where the text tells them."""

    source: str
    pattern: re.Pattern[str]
    example: str
    #: The server stops counting once the limit is passed.
    at_least: bool = False


def _row(source: str, pattern: str, example: str, *, at_least: bool = False) -> OverflowText:
    return OverflowText(source, re.compile(pattern, re.IGNORECASE | re.DOTALL), example, at_least)


_N = r"(?P<{}>\d[\d,]*)"
_PROMPT = _N.format("prompt")
_WINDOW = _N.format("window")

#: Walked in order; the first match wins.
OVERFLOW_TEXTS: tuple[OverflowText, ...] = (
    _row(
        "llama.cpp",
        rf"request \({_PROMPT} tokens\) exceeds the available context size \({_WINDOW} tokens\)",
        "request (12030 tokens) exceeds the available context size (4096 tokens), try increasing it",
    ),
    _row(
        "llama.cpp, older",
        r"exceeds the available context size",
        "the request exceeds the available context size. try increasing the context size",
    ),
    _row(
        "vLLM",
        rf"maximum context length is {_WINDOW} tokens.*?contains at least {_PROMPT} input tokens",
        "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input "
        "tokens, which exceeds this limit even without any output tokens.",
        at_least=True,
    ),
    _row(
        "OpenAI, vLLM older, OpenRouter",
        rf"maximum context length is {_WINDOW} tokens.*?(?:requested|resulted in|you requested about) {_PROMPT} tokens",
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
    ),
    _row(
        "vLLM, input and output together",
        rf"maximum context length is {_WINDOW}.*?has {_PROMPT} input tokens",
        "'max_tokens' or 'max_completion_tokens' is too large: 500. This model's maximum context length is 4096 "
        "tokens and your request has 4000 input tokens",
    ),
    _row(
        "OpenRouter, Mistral and others",
        rf"maximum context length is {_WINDOW}",
        "This endpoint's maximum context length is 32768 tokens.",
    ),
    _row(
        "OpenAI",
        r"exceeds the context window",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
    ),
    _row("OpenAI code", r"context_length_exceeded", "context_length_exceeded"),
    _row(
        "Ollama cloud",
        rf"prompt is too long: {_PROMPT}, model maximum context length: {_WINDOW}",
        "prompt is too long: 300000, model maximum context length: 262144",
    ),
    _row(
        "Anthropic",
        rf"prompt is too long: {_PROMPT} tokens > {_WINDOW} maximum",
        "prompt is too long: 210000 tokens > 200000 maximum",
    ),
    _row("Anthropic, short", r"prompt is too long", "prompt is too long"),
    _row("Bedrock", r"input is too long", "Input is too long for requested model."),
    _row(
        "Gemini",
        rf"input token count \({_PROMPT}\) exceeds the maximum number of tokens allowed \({_WINDOW}\)",
        "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    _row(
        "Gemini, short",
        r"input token count.*?exceeds the maximum",
        "The input token count exceeds the maximum number of tokens allowed.",
    ),
    _row(
        "xAI",
        rf"maximum prompt length is {_WINDOW} but the request contains {_PROMPT} tokens",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    ),
    _row(
        "xAI, short", rf"maximum prompt length is {_WINDOW}", "This model's maximum prompt length is 131072"
    ),
    _row(
        "Groq",
        r"reduce the length of the messages",
        "Please reduce the length of the messages or completion.",
    ),
    _row(
        "LM Studio",
        rf"tokens to keep from the initial prompt.*?{_PROMPT}.*?greater than the context length.*?{_WINDOW}",
        "The number of tokens to keep from the initial prompt is 9000, which is greater than the context length 4096",
    ),
    _row(
        "LM Studio, short",
        r"greater than the context length",
        "Trying to keep the first 9000 tokens when the number is greater than the context length of the model.",
    ),
    _row(
        "Ollama",
        r"input length exceeds the (?:maximum )?context length",
        "the input length exceeds the context length",
    ),
    _row(
        "Ollama, filled",
        r"prompt filled the context window",
        "prompt filled the context window",
    ),
    _row("z.ai", r"model_context_window_exceeded", "model_context_window_exceeded"),
    _row("MiniMax", r"context window exceeds limit", "invalid params, context window exceeds limit"),
    _row(
        "Kimi",
        rf"exceeded model token limit: {_WINDOW}(?: \(requested: {_PROMPT}\))?",
        "Invalid request: Your request exceeded model token limit: 262144 (requested: 270000)",
    ),
    _row("many", r"too many tokens", "too many tokens: 5000 tokens in prompt"),
)


def read_overflow(
    message: str, *, prompt_tokens: int | None = None, window_tokens: int | None = None
) -> ContextOverflowError | None:
    """The overflow error that a server's message means, or None when it means something else.

    Numbers that the server told beside its message (llama.cpp's `n_prompt_tokens`, `n_ctx`) come first.
    """
    for row in OVERFLOW_TEXTS:
        found = row.pattern.search(message)
        if found is None:
            continue
        groups = found.groupdict()
        return ContextOverflowError(
            prompt_tokens=prompt_tokens if prompt_tokens is not None else _number(groups.get("prompt")),
            window_tokens=window_tokens if window_tokens is not None else _number(groups.get("window")),
            at_least=row.at_least,
        )
    return None


def _number(text: str | None) -> int | None:
    return int(text.replace(",", "")) if text else None
