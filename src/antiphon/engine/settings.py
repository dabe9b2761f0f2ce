"""What a request set, in the form that is stored once by hash and echoed with every response.

Invariant: a response read back later says the same as the one that was sent.
"""

from typing import Any, Literal

import msgspec

from antiphon.backends import BackendUsage
from antiphon.context.rows import Mark
from antiphon.context.truncation import DroppedItem, report_dropped
from antiphon.protocol.requests import CreateRequest, TextConfig, echo_text
from antiphon.protocol.responses import (
    ConversationEcho,
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ReasoningEcho,
    Response,
    ResponseStatus,
    Usage,
)
from antiphon.protocol.tools import echo_tool

_encode = msgspec.json.Encoder().encode
_DEFAULT_TEXT: dict[str, Any] = {"format": {"type": "text"}, "verbosity": "medium"}


class Settings(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The echoed settings of one request; defaults are the API's."""

    model: str
    background: bool = False
    #: Whether it was created with `stream`: a background response of that kind can be streamed again.
    stream: bool = False
    truncation: Literal["auto", "disabled"] = "disabled"
    max_tool_calls: int | None = None
    service_tier: str = "default"
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    effort: str | None = None
    summary: str | None = None
    safety_identifier: str | None = None
    temperature: float = 1.0
    text: dict[str, Any] | None = None
    tool_choice: str | dict[str, Any] = "auto"
    top_logprobs: int = 0
    top_p: float = 1.0
    user: str | None = None


class StoredUsage(msgspec.Struct, array_like=True):
    """Token counts in five numbers; None where the backend did not tell."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class StoredOutcome(
    msgspec.Struct,
    omit_defaults=True,
    rename={
        "usage": "u",
        "error": "e",
        "reason": "r",
        "warnings": "w",
        "conversation": "c",
        "dropped": "d",
        "prompts": "p",
        "marks": "m",
        "passes": "k",
    },
):
    """The round's own part of a response, in few bytes."""

    usage: StoredUsage | None = None
    error: dict[str, Any] | None = None
    reason: str | None = None
    warnings: list[tuple[str, str]] = []
    #: The conversation that the round belongs to; its parent was that one's tip.
    conversation: str | None = None
    #: What of the path the model was not shown because it did not fit: (item id, type, tokens).
    dropped: list[tuple[str, str, int]] = []
    #: The counts of the first prompt and of the last, where usage is that of several generations.
    prompts: tuple[int | None, int | None] | None = None
    #: What the client said of results, by call id: a later compaction goes by it.
    marks: dict[str, Mark] = {}
    #: What the compactions of this response did, as they are told.
    passes: list[dict[str, Any]] = []

    @property
    def first_prompt_tokens(self) -> int | None:
        """The count of the prompt that the request made; None where it was not told."""
        if self.prompts is not None:
            return self.prompts[0]
        return self.usage.input_tokens if self.usage is not None else None

    @property
    def last_prompt_tokens(self) -> int | None:
        """The count of the prompt that the answer was made from; None where that says nothing of the history."""
        if self.dropped:
            return None
        if self.prompts is not None:
            return self.prompts[1]
        return self.usage.input_tokens if self.usage is not None else None


decode_settings = msgspec.json.Decoder(Settings).decode
decode_outcome = msgspec.json.Decoder(StoredOutcome).decode


def read_settings(request: CreateRequest, effort: str | None) -> Settings:
    """The settings of a request; `effort` is the one in force, after the profile."""
    reasoning = request.reasoning
    options = request.prompt_cache_options
    return Settings(
        model=request.model,
        background=request.background,
        stream=request.stream and request.background,
        truncation=request.truncation,  # type: ignore[arg-type]
        max_tool_calls=request.max_tool_calls,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        prompt_cache_key=request.prompt_cache_key,
        prompt_cache_retention=request.prompt_cache_retention,
        prompt_cache_options=(
            {"mode": options.mode or "implicit", "ttl": options.ttl or "30m"} if options is not None else None
        ),
        effort=effort,
        summary=(reasoning.summary or reasoning.generate_summary) if reasoning is not None else None,
        safety_identifier=request.safety_identifier,
        temperature=1.0 if request.temperature is None else request.temperature,
        text=_echo_text(request.text),
        tool_choice=msgspec.to_builtins(request.tool_choice),
        top_logprobs=request.top_logprobs or 0,
        top_p=1.0 if request.top_p is None else request.top_p,
        user=request.user,
    )


def encode_tools(request: CreateRequest) -> bytes | None:
    """The echo of the tools as JSON; None when there are none."""
    if not request.tools:
        return None
    return _encode([echo_tool(tool) for tool in request.tools])


def build_response(
    *,
    response_id: str,
    created_at: int,
    settings: Settings,
    status: ResponseStatus,
    instructions: str | None = None,
    tools: bytes | None = None,
    parent: str | None = None,
    store: bool = True,
    completed_at: int | None = None,
    output: list[msgspec.Raw] | None = None,
    outcome: StoredOutcome | None = None,
) -> Response:
    """The Response object from its parts."""
    outcome = outcome or StoredOutcome()
    extension = _build_extension(outcome)
    response = Response(
        id=response_id,
        created_at=created_at,
        completed_at=completed_at if status == "completed" else None,
        status=status,
        background=settings.background,
        error=outcome.error,
        incomplete_details=IncompleteDetails(outcome.reason) if outcome.reason else None,  # type: ignore[arg-type]
        instructions=instructions,
        max_output_tokens=settings.max_output_tokens,
        max_tool_calls=settings.max_tool_calls,
        metadata=settings.metadata,
        model=settings.model,
        output=output or [],
        parallel_tool_calls=settings.parallel_tool_calls,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
        # In a conversation the parent is its tip, which the API does not show.
        previous_response_id=parent if outcome.conversation is None else None,
        prompt_cache_key=settings.prompt_cache_key,
        prompt_cache_retention=settings.prompt_cache_retention,
        reasoning=ReasoningEcho(settings.effort, settings.summary),
        safety_identifier=settings.safety_identifier,
        service_tier=settings.service_tier,
        store=store,
        temperature=settings.temperature,
        text=settings.text or _DEFAULT_TEXT,
        tool_choice=settings.tool_choice,
        tools=msgspec.Raw(tools) if tools is not None else [],
        top_logprobs=settings.top_logprobs,
        top_p=settings.top_p,
        truncation=settings.truncation,
        usage=build_told_usage(outcome.usage) if outcome.usage is not None else None,
        user=settings.user,
    )
    if settings.prompt_cache_options is not None:
        response.prompt_cache_options = settings.prompt_cache_options
    if outcome.conversation is not None:
        response.conversation = ConversationEcho(outcome.conversation)
    if extension:
        response.antiphon = extension
    return response


def _echo_text(text: TextConfig) -> dict[str, Any] | None:
    """None where it is the default, which is not stored."""
    echo = echo_text(text)
    return None if echo == _DEFAULT_TEXT else echo


def list_untold(usage: StoredUsage | BackendUsage) -> list[str]:
    """The counts that stand as 0 because the backend did not tell them."""
    names = ("cached_tokens", "cache_write_tokens", "reasoning_tokens")
    return [name for name in names if getattr(usage, name) is None]


def build_told_usage(usage: StoredUsage | BackendUsage) -> Usage:
    """Usage as the API shows it."""
    return Usage(
        input_tokens=usage.input_tokens,
        input_tokens_details=InputTokensDetails(usage.cached_tokens or 0, usage.cache_write_tokens or 0),
        output_tokens=usage.output_tokens,
        output_tokens_details=OutputTokensDetails(usage.reasoning_tokens or 0),
        total_tokens=usage.input_tokens + usage.output_tokens,
    )


def _build_extension(outcome: StoredOutcome) -> dict[str, Any]:
    """Our own response key: warnings, and which counts stand as 0 because the backend did not tell them."""
    extension: dict[str, Any] = {}
    if outcome.warnings:
        extension["warnings"] = [{"code": code, "message": text} for code, text in outcome.warnings]
    if outcome.passes:
        extension["compaction"] = {"passes": outcome.passes}
    extension |= report_dropped([DroppedItem(*each) for each in outcome.dropped])
    usage = outcome.usage
    if usage is not None:
        untold = list_untold(usage)
        if untold:
            extension["usage_untold"] = untold
    return extension
