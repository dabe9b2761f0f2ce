"""Chat Completions chunks -> backend events: pure, one decoder per stream.

It knows the shapes that real servers send (Ollama, llama.cpp, vLLM, LM Studio, OpenAI) and no transport.
Invariant: after `close()` exactly one terminal event has been returned, whatever came in.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from antiphon.backends.chat_completions.text_readers import TextReader
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
from antiphon.backends.refusals import read_stream_error
from antiphon.backends.usage import make_usage
from antiphon.protocol.errors import AntiphonError, BackendError


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    #: A string by the specification; some servers send the object itself. Empty: not told.
    arguments: msgspec.Raw = msgspec.Raw()


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _TextPart(msgspec.Struct):
    text: str = ""
    #: Mistral's form of reasoning: `{"type":"thinking","thinking":[{"type":"text",...}]}`.
    thinking: list["_TextPart"] | None = None


class _Delta(msgspec.Struct):
    content: str | list[_TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    #: What calls were before there were tools; some servers still send it.
    function_call: msgspec.Raw = msgspec.Raw()


class _LogProb(msgspec.Struct):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list["_LogProb"] | None = None


class _LogProbs(msgspec.Struct):
    content: list[_LogProb] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
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
    #: Raw, since nothing that a server says of its counts may cost us its answer.
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    timings: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_usage = msgspec.json.Decoder(_Usage | None, strict=False).decode
_decode_timings = msgspec.json.Decoder(_Timings | None, strict=False).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_function = msgspec.json.Decoder(_Function).decode
_decode_string = msgspec.json.Decoder(str).decode

#: Everything not named here ends a generation normally.
_FINISH: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
}
#: What is read of one call's arguments to find out whether the next fragment is of another call.
_READ_CHARACTERS = 4_000_000
_BROKEN_FINISH = frozenset({"error", "abort", "cancelled", "network_error", "insufficient_system_resource"})


class _Call:
    """One call being received: what a server may leave out is remembered here."""

    __slots__ = ("id", "is_named", "last", "name", "pieces", "read", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.id = ""
        self.name = ""
        #: Whether the name is whole and has been told.
        self.is_named = False
        self.pieces: list[str] = []
        #: The last character of them that is no blank.
        self.last = ""
        #: How much was read to find out that the arguments are whole.
        self.read = 0

    def add(self, arguments: str) -> None:
        """More of its arguments."""
        self.pieces.append(arguments)
        self.last = arguments.rstrip()[-1:] or self.last

    def has_whole_arguments(self) -> bool:
        """Whether what came so far is one JSON object; of endless pieces that is not asked for ever."""
        if self.last != "}" or self.read > _READ_CHARACTERS:
            return False
        text = "".join(self.pieces)
        self.read += len(text)
        return is_json_object(text.encode())


class ChatDecoder:
    """Feed it the `data` of each server-sent event; it returns our events.

    `top_logprobs`: how many alternatives the caller wants; servers may send more. `texts`: what reads the
    visible text, where calls may stand in it. `names`: the functions that were offered, where they are known; a
    name that is none of them may still grow.
    """

    def __init__(
        self,
        *,
        think_tags: bool,
        window_tokens: int | None,
        top_logprobs: int = 20,
        texts: TextReader | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        self._names = names
        self._texts = texts
        self._splitter = ThinkSplitter() if think_tags else None
        self._window_tokens = window_tokens
        self._top_logprobs = top_logprobs
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._finish: str | None = None
        self._usage: BackendUsage | None = None
        self._timings: msgspec.Raw | None = None
        self._done = False
        self._over = False

    @property
    def ended(self) -> bool:
        """Whether a terminal event has been returned; nothing more will come."""
        return self._over

    @property
    def is_finished(self) -> bool:
        """Whether the finish reason has come."""
        return self._finish is not None

    def feed(self, data: bytes, *, complete: bool = True) -> list[BackendEvent]:
        """The events of one `data` payload; empty for what carries nothing.

        Not `complete`: the stream ended inside this payload, so it may be anything.
        """
        if self._over:
            return []
        if data.startswith(b"[DONE]"):
            self._done = True
            return self.close()
        try:
            return self._read_chunk(_decode_chunk(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not complete:
                return []
            return self.fail(BackendError(f"The model server sent a chunk that cannot be read: {error}."))

    def _read_chunk(self, chunk: _Chunk) -> list[BackendEvent]:
        if chunk.error is not msgspec.UNSET and (told := bytes(chunk.error)) != b"null":
            return self.fail_by(told)
        if chunk.usage is not msgspec.UNSET:
            self._usage = _read_usage(chunk.usage) or self._usage
        if chunk.timings is not msgspec.UNSET:
            self._timings = chunk.timings
        events: list[BackendEvent] = []
        for choice in chunk.choices or ():
            if choice.index:
                # One answer was asked for; a server that sends more of them is read as if it had not.
                continue
            if choice.delta is not None:
                self._read_delta(choice.delta, choice.logprobs, events)
            elif choice.message is not None:
                self._read_delta(choice.message, choice.logprobs, events)
                self._done = True
            if choice.finish_reason:
                self._finish = choice.finish_reason
        return events if self._texts is None else self._texts.read(events)

    def close(self) -> list[BackendEvent]:
        """The stream is over: flush what is held back, then the one terminal event."""
        if self._over:
            return []
        if self._finish is None and not self._done:
            return self.fail(BackendError("The model server closed the stream before the end of its answer."))
        if self._finish in _BROKEN_FINISH:
            return self.fail(BackendError(f"The model server ended with finish reason '{self._finish}'."))
        self._over = True
        events = self._flush()
        usage = self._usage or _read_timings(self._timings)
        reason = _FINISH.get(self._finish or "", "stop")
        if reason == "stop" and (self._filled_window(usage) or (self._texts is not None and self._texts.cut)):
            reason = "length"
        events.append(Finished(reason=reason, usage=usage))
        return events

    def break_off(self, error: BackendError) -> list[BackendEvent]:
        """The connection broke: the terminal event for that, unless the end had been seen."""
        if self._finish is not None or self._done:
            return self.close()
        return self.fail(error)

    def fail_by(self, error: bytes) -> list[BackendEvent]:
        """The server told an error, as JSON, in the middle of its answer."""
        return self.fail(read_stream_error(error))

    def fail(self, error: AntiphonError) -> list[BackendEvent]:
        """What is held back, then the terminal event for a failure."""
        if self._over:
            return []
        self._over = True
        return [*self._flush(), Failed(error=error)]

    def _flush(self) -> list[BackendEvent]:
        """What was held back."""
        events: list[BackendEvent] = self._splitter.close() if self._splitter else []
        for call in self._calls:
            if call.name and not call.is_named:
                call.is_named = True
                events.append(CallDelta(index=call.slot, id=call.id, name=call.name, arguments=""))
        return events if self._texts is None else self._texts.read(events) + self._texts.close()

    def _filled_window(self, usage: BackendUsage | None) -> bool:
        # A server whose window ended the output may still say "stop". Not "at least": a window that we know
        # wrongly must not cut answers off.
        return usage is not None and usage.input_tokens + usage.output_tokens == self._window_tokens

    def _read_delta(self, delta: _Delta, logprobs: _LogProbs | None, events: list[BackendEvent]) -> None:
        reasoning = delta.reasoning_content or delta.reasoning or delta.thinking
        if reasoning:
            events.append(ReasoningDelta(reasoning))
        content = delta.content
        if content:
            if not isinstance(content, str):
                content = _read_parts(content, events)
            entries = logprobs.content if logprobs is not None else None
            shaped = [self._shape_logprob(entry) for entry in entries] if entries else None
            if self._splitter is not None and not self._splitter.passing:
                events.extend(self._splitter.feed(content, shaped))
            elif content:
                events.append(TextDelta(content, shaped))
        if delta.refusal:
            events.append(RefusalDelta(delta.refusal))
        if delta.tool_calls:
            events += [self._read_call(fragment) for fragment in delta.tool_calls]
        elif bytes(delta.function_call).startswith(b"{"):
            events.append(self._read_call(_ToolCall(function=_decode_function(delta.function_call))))

    def _read_call(self, fragment: _ToolCall) -> CallDelta:
        name, arguments = "", ""
        if fragment.function is not None:
            name = fragment.function.name or ""
            arguments = _read_arguments(fragment.function.arguments)
        call = self._find_call(fragment, name, arguments)
        if fragment.id and not call.id:
            call.id = fragment.id
        if name and not call.is_named and not (call.name and call.name == name):
            call.name += name
        call.add(arguments)
        call.is_named = call.is_named or bool(call.name and (arguments or self._is_whole_name(call.name)))
        return CallDelta(
            index=call.slot, id=call.id, name=call.name if call.is_named else "", arguments=arguments
        )

    def _is_whole_name(self, name: str) -> bool:
        """Whether no more of a function's name can come: some servers send names in pieces."""
        if self._names is None:
            return True
        return name in self._names and not any(
            other.startswith(name) and other != name for other in self._names
        )

    def _find_call(self, fragment: _ToolCall, name: str, arguments: str) -> _Call:
        """Which call a fragment belongs to, where servers leave out or repeat the index."""
        known = self._by_index.get(fragment.index) if fragment.index is not None else None
        if fragment.index is None and self._calls:
            known = next(
                (call for call in self._calls if fragment.id and call.id == fragment.id), self._calls[-1]
            )
        if known is None or _starts_anew(known, fragment, name, arguments):
            known = _Call(len(self._calls))
            self._calls.append(known)
            if fragment.index is not None:
                self._by_index[fragment.index] = known
        return known

    def _shape_logprob(self, entry: _LogProb) -> dict[str, Any]:
        """A Chat Completions entry in the Responses shape: four keys, `bytes` always a list."""
        others = (entry.top_logprobs or [])[: self._top_logprobs]
        return {**_shape_token(entry), "top_logprobs": [_shape_token(other) for other in others]}


def _starts_anew(known: _Call, fragment: _ToolCall, name: str, arguments: str) -> bool:
    """Whether a fragment under a known call's index is another call: some servers number every call 0."""
    if not name or not known.name:
        # A call has a name: older vLLM sends a new id with every fragment, and a name with the first alone.
        return False
    if fragment.id and known.id and fragment.id != known.id:
        return True
    if not known.is_named:
        # More of its name.
        return False
    if fragment.id and known.id:
        return False
    if name != known.name:
        return True
    return bool(arguments) and known.has_whole_arguments()


def is_json_object(text: bytes) -> bool:
    """Whether the text is one whole JSON object."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _read_parts(parts: list[_TextPart], events: list[BackendEvent]) -> str:
    """The text of a content list; reasoning inside it goes out first."""
    reasoning = "".join([inner.text for part in parts for inner in part.thinking or ()])
    if reasoning:
        events.append(ReasoningDelta(reasoning))
    return "".join([part.text for part in parts])


def _read_arguments(raw: msgspec.Raw) -> str:
    data = bytes(raw)
    if data.startswith(b'"'):
        return _decode_string(data)
    return "" if data == b"null" else data.decode()


def _read_usage(raw: msgspec.Raw) -> BackendUsage | None:
    try:
        usage = _decode_usage(raw)
    except msgspec.DecodeError:
        return None
    if usage is None:
        return None
    prompt = usage.prompt_tokens_details or _PromptDetails()
    written = (
        prompt.cache_write_tokens if prompt.cache_write_tokens is not None else prompt.created_cache_tokens
    )
    details = usage.completion_tokens_details
    return make_usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        cached_tokens=prompt.cached_tokens,
        cache_write_tokens=written,
        reasoning_tokens=details.reasoning_tokens if details else None,
    )


def _read_timings(raw: msgspec.Raw | None) -> BackendUsage | None:
    try:
        timings = _decode_timings(raw) if raw is not None else None
    except msgspec.DecodeError:
        return None
    if timings is None or timings.prompt_n is None or timings.predicted_n is None:
        return None
    return BackendUsage(
        input_tokens=timings.cache_n + timings.prompt_n,
        output_tokens=timings.predicted_n,
        cached_tokens=timings.cache_n,
    )


def _shape_token(entry: _LogProb) -> dict[str, Any]:
    return {
        "token": entry.token,
        "bytes": entry.bytes if entry.bytes is not None else list(entry.token.encode()),
        "logprob": entry.logprob or 0.0,
    }
