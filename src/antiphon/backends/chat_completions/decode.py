"""Chat Completions chunks -> backend events: pure, one decoder per stream.

It knows the shapes that real servers send (Ollama, llama.cpp, vLLM, LM Studio, OpenAI) and no transport.
Invariant: after `close()` exactly one terminal event has been returned, whatever came in.
"""

from typing import Any

import msgspec

from antiphon.backends.chat_completions.refusals import read_stream_error
from antiphon.backends.chat_completions.thinking import ThinkSplitter
from antiphon.backends.interface import (
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.protocol.errors import BackendError


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    #: A string by the specification; some servers send the object itself.
    arguments: msgspec.Raw | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _TextPart(msgspec.Struct, gc=False):
    text: str = ""


class _Delta(msgspec.Struct):
    content: str | list[_TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _LogProbs(msgspec.Struct):
    content: list[dict[str, Any]] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    #: A server that ignores `stream: true` answers with a whole message.
    message: _Delta | None = None
    finish_reason: str | None = None
    logprobs: _LogProbs | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None
    cache_write_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Timings(msgspec.Struct, gc=False):
    """llama.cpp's own counts; they stand in the last chunk even where no usage was asked for."""

    cache_n: int = 0
    prompt_n: int | None = None
    predicted_n: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: msgspec.Raw | None = None


_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_string = msgspec.json.Decoder(str).decode

#: Everything not named here ends a generation normally.
_FINISH: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
_BROKEN_FINISH = frozenset({"error", "abort", "cancelled"})


class _Call:
    """One call being received: what a server may leave out is remembered here."""

    __slots__ = ("arguments", "id", "name", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.id = ""
        self.name = ""
        self.arguments = ""


class ChatDecoder:
    """Feed it the `data` of each server-sent event; it returns our events."""

    def __init__(self, *, think_tags: bool, window_tokens: int | None) -> None:
        self._splitter = ThinkSplitter() if think_tags else None
        self._window_tokens = window_tokens
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._finish: str | None = None
        self._usage: BackendUsage | None = None
        self._timings: _Timings | None = None
        self._done = False
        self._over = False

    @property
    def ended(self) -> bool:
        """Whether a terminal event has been returned; nothing more will come."""
        return self._over

    def feed(self, data: bytes) -> list[BackendEvent]:
        """The events of one `data` payload; empty for what carries nothing."""
        if self._over:
            return []
        if data.startswith(b"[DONE]"):
            self._done = True
            return self.close()
        try:
            chunk = _decode_chunk(data)
        except msgspec.DecodeError as error:
            return self._fail(BackendError(f"The model server sent a chunk that cannot be read: {error}."))
        if chunk.error is not None:
            return self._fail(read_stream_error(bytes(chunk.error)))
        if chunk.usage is not None:
            self._usage = _read_usage(chunk.usage) or self._usage
        if chunk.timings is not None:
            self._timings = chunk.timings
        events: list[BackendEvent] = []
        for choice in chunk.choices or ():
            delta = choice.delta or choice.message
            if delta is not None:
                self._read_delta(delta, choice.logprobs, events)
            if choice.finish_reason:
                self._finish = choice.finish_reason
        return events

    def close(self) -> list[BackendEvent]:
        """The stream is over: flush what is held back, then the one terminal event."""
        if self._over:
            return []
        if self._finish is None and not self._done:
            return self._fail(
                BackendError("The model server closed the stream before the end of its answer.")
            )
        if self._finish in _BROKEN_FINISH:
            return self._fail(BackendError(f"The model server ended with finish reason '{self._finish}'."))
        self._over = True
        events: list[BackendEvent] = self._splitter.close() if self._splitter else []
        usage = self._usage or _read_timings(self._timings)
        reason = _FINISH.get(self._finish or "", "stop")
        if reason == "stop" and self._filled_window(usage):
            reason = "length"
        events.append(Finished(reason=reason, usage=usage))
        return events

    def fail(self, error: BackendError) -> list[BackendEvent]:
        """The connection broke: the terminal event for that, unless the end had been seen."""
        if self._over:
            return []
        if self._finish is not None:
            return self.close()
        return self._fail(error)

    def _fail(self, error: BackendError) -> list[BackendEvent]:
        self._over = True
        events: list[BackendEvent] = self._splitter.close() if self._splitter else []
        events.append(Failed(error=error))
        return events

    def _filled_window(self, usage: BackendUsage | None) -> bool:
        # A server whose window ended the output may still say "stop".
        if usage is None or self._window_tokens is None:
            return False
        return usage.input_tokens + usage.output_tokens >= self._window_tokens

    def _read_delta(self, delta: _Delta, logprobs: _LogProbs | None, events: list[BackendEvent]) -> None:
        reasoning = delta.reasoning_content or delta.reasoning or delta.thinking
        if reasoning:
            events.append(ReasoningDelta(reasoning))
        content = delta.content
        if content:
            if not isinstance(content, str):
                content = "".join(part.text for part in content)
            entries = logprobs.content if logprobs is not None else None
            shaped = [_shape_logprob(entry) for entry in entries] if entries else None
            if self._splitter is not None and not self._splitter.passing:
                events.extend(self._splitter.feed(content, shaped))
            else:
                events.append(TextDelta(content, shaped))
        if delta.refusal:
            events.append(RefusalDelta(delta.refusal))
        for fragment in delta.tool_calls or ():
            events.append(self._read_call(fragment))

    def _read_call(self, fragment: _ToolCall) -> CallDelta:
        name = (fragment.function.name if fragment.function else None) or ""
        arguments = _read_arguments(fragment.function.arguments if fragment.function else None)
        call = self._find_call(fragment, name)
        if fragment.id and not call.id:
            call.id = fragment.id
        if name and not call.name:
            call.name = name
        call.arguments += arguments
        return CallDelta(index=call.slot, id=call.id, name=call.name, arguments=arguments)

    def _find_call(self, fragment: _ToolCall, name: str) -> _Call:
        """Which call a fragment belongs to, where servers leave out or repeat the index."""
        known = self._by_index.get(fragment.index) if fragment.index is not None else None
        if fragment.index is None and self._calls:
            known = self._calls[-1]
        if known is None or self._starts_anew(known, fragment, name):
            known = _Call(len(self._calls))
            self._calls.append(known)
            if fragment.index is not None:
                self._by_index[fragment.index] = known
        return known

    @staticmethod
    def _starts_anew(known: _Call, fragment: _ToolCall, name: str) -> bool:
        if fragment.id and known.id and fragment.id != known.id:
            return True
        # The same index with a name again: a second call, if the first one's arguments are whole.
        return bool(name and known.name and known.arguments and is_json_object(known.arguments.encode()))


def is_json_object(text: bytes) -> bool:
    """Whether the text is one whole JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _read_arguments(raw: msgspec.Raw | None) -> str:
    if raw is None:
        return ""
    data = bytes(raw)
    if data.startswith(b'"'):
        return _decode_string(data)
    return "" if data == b"null" else data.decode()


def _read_usage(usage: _Usage) -> BackendUsage | None:
    if usage.prompt_tokens is None:
        return None
    prompt = usage.prompt_tokens_details or _PromptDetails()
    written = (
        prompt.cache_write_tokens if prompt.cache_write_tokens is not None else prompt.created_cache_tokens
    )
    details = usage.completion_tokens_details
    return BackendUsage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens or 0,
        cached_tokens=prompt.cached_tokens,
        cache_write_tokens=written,
        reasoning_tokens=details.reasoning_tokens if details else None,
    )


def _read_timings(timings: _Timings | None) -> BackendUsage | None:
    if timings is None or timings.prompt_n is None or timings.predicted_n is None:
        return None
    return BackendUsage(
        input_tokens=timings.cache_n + timings.prompt_n,
        output_tokens=timings.predicted_n,
        cached_tokens=timings.cache_n,
    )


def _shape_logprob(entry: dict[str, Any]) -> dict[str, Any]:
    """A Chat Completions entry in the Responses shape: four keys, `bytes` always a list."""
    shaped = _shape_token(entry)
    shaped["top_logprobs"] = [_shape_token(other) for other in entry.get("top_logprobs") or ()]
    return shaped


def _shape_token(entry: dict[str, Any]) -> dict[str, Any]:
    token = str(entry.get("token", ""))
    known = entry.get("bytes")
    return {
        "token": token,
        "bytes": known if isinstance(known, list) else list(token.encode()),
        "logprob": float(entry.get("logprob") or 0.0),
    }
