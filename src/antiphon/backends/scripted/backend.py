"""The backend that plays a script.

Transcript: the items' own bytes. It ignores what only a sampling model could follow (temperature, top_p,
penalties, effort, verbosity, hints) and honours the rest. Invariant: usage equals `count_tokens`.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from antiphon.backends.interface import (
    NO_CALLS,
    Ask,
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    FinishReason,
    ModelFacts,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    Relayed,
    Segment,
    TextDelta,
)
from antiphon.backends.scripted.acts import find_named_tools, perform
from antiphon.backends.scripted.script import Answer, Rule, Script, Trouble, load_script
from antiphon.backends.scripted.window import (
    MESSAGE_TOKENS,
    SILENT,
    TOKEN,
    Window,
    count_text,
    read_window,
)
from antiphon.context import Profile
from antiphon.protocol.content import InputText
from antiphon.protocol.errors import (
    BackendAuthError,
    BackendError,
    BackendRateLimitError,
    BackendRefusedError,
    BackendTimeoutError,
    ContextOverflowError,
    RequestError,
)
from antiphon.protocol.item_types import CustomToolCallOutput, FunctionCallOutput, Message
from antiphon.protocol.items import Item

#: Items whose parts may be files.
_WITH_PARTS = (Message, FunctionCallOutput, CustomToolCallOutput)
_WORDS = re.compile(r"\S+\s*|\s+")


class ScriptedBackend:
    """A model server without a server; see the package's docstring."""

    speaks_responses = False

    def __init__(self, name: str = "scripted", script: Script | None = None) -> None:
        self.name = name
        self.script = script or load_script()
        #: Streams that are open now; a closed one is gone from it.
        self.streams_open = 0

    def transcribe(
        self,
        items: Sequence[Item],
        profile: Profile,
        *,
        at_start: bool,
        open_calls: Mapping[str, str] = NO_CALLS,
        async_calls: Collection[str] = (),
    ) -> Segment:
        """The items' own bytes; leading system and developer texts become `lead` at the start."""
        leading: list[str] = []
        start = 0
        for item in items if at_start else ():
            text = _read_leading(item)
            if text is not None:
                leading.append(text)
            elif item.type not in SILENT:
                break
            start += 1
        return Segment("\n\n".join(leading), b",".join(map(_encode_item, items[start:])))

    async def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        """One answer, a delta at a time; raises before `Opened` what a server would refuse."""
        window = read_window(ask)
        answer = self._choose(window, ask)
        if answer.error is not None and answer.error.at == "before":
            raise _to_error(answer.error)
        room = self.script.window_tokens - window.tokens
        if room <= 0:
            raise ContextOverflowError(prompt_tokens=window.tokens, window_tokens=self.script.window_tokens)
        limit = room if ask.max_output_tokens is None else min(room, ask.max_output_tokens)
        generation = Generation(answer, window, ask, limit)
        self.streams_open += 1
        try:
            yield [Opened()]
            for event in generation.play():
                await asyncio.sleep(answer.pause_s)
                yield [event]
            await asyncio.sleep(0)
            if answer.error is not None:
                yield [Failed(_to_error(answer.error))]
            else:
                yield [Finished(generation.reason, generation.count_usage())]
        finally:
            self.streams_open -= 1

    async def list_models(self, *, fresh: bool = False) -> list[ModelFacts]:
        """The script's models, which never change."""
        return [await self.get_facts(name) for name in self.script.models]

    async def get_facts(self, model: str) -> ModelFacts:
        """The same for every name: the script decides what a model says."""
        profile = Profile(
            name="scripted",
            window_tokens=self.script.window_tokens,
            tool_choice="named",
            reasoning_field="none",
            think_tags=False,
        )
        return ModelFacts(name=model, profile=profile, owned_by="antiphon")

    async def count_tokens(self, ask: Ask) -> int | None:
        """Exact: what `usage` will say."""
        return read_window(ask).tokens

    async def relay(self, path: str, body: bytes) -> Relayed:
        """Refused: a script answers responses alone."""
        raise RequestError(
            f"The model is played by a script of endpoint '{self.name}', which has no {path}. "
            "Ask for it at /v1/responses, or name a model of a real server.",
            param="model",
        )

    async def close(self) -> None:
        """Nothing is held."""

    def _choose(self, window: Window, ask: Ask) -> Answer:
        for rule in self.script.rules:
            if _fits(rule, window, ask):
                return rule
        played = window.count_rounds()
        if played < len(self.script.answers):
            return self.script.answers[played]
        raise BackendError(
            f"The script of endpoint {self.name!r} has no answer for round {played + 1}: no rule fits,"
            f" and it has {len(self.script.answers)} answers."
        )


class Generation:
    """One answer being played: cut to the limit, split into deltas, counted."""

    def __init__(self, answer: Answer, window: Window, ask: Ask, limit: int) -> None:
        self._answer = answer
        self._window = window
        self._ask = ask
        self._left = limit
        self._output_tokens = 0
        self._reasoning_tokens = 0
        self.reason: FinishReason = answer.finish

    def play(self) -> Iterator[BackendEvent]:
        """The deltas: reasoning, text, refusal, calls."""
        answer = self._answer
        calls, text = answer.calls, answer.text or "".join(answer.texts)
        if answer.act is not None:
            content = perform(answer.act, self._window, self._ask)
            calls, text = (*content.calls, *calls), content.text
        for piece in _split(self._cut(answer.reasoning), answer.chunk):
            yield ReasoningDelta(piece)
        self._reasoning_tokens = self._output_tokens
        text = self._cut(text)
        pieces = _trim(answer.texts, len(text)) if answer.texts else _split(text, answer.chunk)
        for piece in pieces:
            yield TextDelta(piece, self._render_logprobs(piece))
        for piece in _split(self._cut(answer.refusal), answer.chunk):
            yield RefusalDelta(piece)
        for index, call in enumerate(calls):
            if not self._spend(MESSAGE_TOKENS + count_text(call.name)):
                return
            yield CallDelta(index, call.id, call.name, "")
            for piece in _split(self._cut(call.encode_arguments()), answer.chunk):
                yield CallDelta(index, "", "", piece)

    def count_usage(self) -> BackendUsage | None:
        """What is reported once everything was played."""
        told = self._answer.usage
        if told is False:
            return None
        if not isinstance(told, bool):
            return BackendUsage(**msgspec.structs.asdict(told))
        return BackendUsage(
            input_tokens=self._window.tokens,
            output_tokens=self._output_tokens,
            cached_tokens=0,
            cache_write_tokens=0,
            reasoning_tokens=self._reasoning_tokens,
        )

    def _spend(self, tokens: int) -> bool:
        """Take all of the tokens from what is left, or end the generation."""
        if tokens > self._left:
            self._left = 0
            self.reason = "length"
            return False
        self._left -= tokens
        self._output_tokens += tokens
        return True

    def _cut(self, text: str) -> str:
        """As much of the text as the limit leaves."""
        ends = [match.end() for match in islice(TOKEN.finditer(text), self._left + 1)]
        if self._spend(len(ends)):
            return text
        kept = ends[:-1]
        self._output_tokens += len(kept)
        return text[: kept[-1]] if kept else ""

    def _render_logprobs(self, text: str) -> list[dict[str, Any]] | None:
        """The script is certain of its words: log probability 0, and no alternative but itself."""
        if self._ask.top_logprobs is None:
            return None
        entry: dict[str, Any] = {"token": text, "logprob": 0.0, "bytes": list(text.encode())}
        return [{**entry, "top_logprobs": [entry] if self._ask.top_logprobs else []}]


def _fits(rule: Rule, window: Window, ask: Ask) -> bool:
    if rule.model not in (None, ask.model):
        return False
    if rule.after_output not in (None, bool(window.list_new_outputs())):
        return False
    forced = bool(ask.tools) and (ask.forced_tool is not None or ask.tool_choice == "required")
    if rule.tool_forced not in (None, forced):
        return False
    if rule.names_tool not in (None, bool(find_named_tools(window, ask))):
        return False
    wants_json = ask.text_format is not None and ask.text_format.type != "text"
    if rule.wants_json not in (None, wants_json):
        return False
    return rule.when is None or re.search(rule.when, window.last_user_text()) is not None


def _encode_item(item: Item) -> bytes:
    """The item's own bytes; where it holds a file, its view, in which the file has become text."""
    if b'"input_file"' in item.raw and isinstance(item.value, _WITH_PARTS):
        return msgspec.json.encode(item.value)
    return item.raw


def _read_leading(item: Item) -> str | None:
    """The text of a system or developer message that holds nothing but text; else None."""
    value = item.value
    if not isinstance(value, Message) or value.role not in ("system", "developer"):
        return None
    if isinstance(value.content, str):
        return value.content
    texts = [part.text for part in value.content if isinstance(part, InputText)]
    return "\n".join(texts) if len(texts) == len(value.content) else None


def _split(text: str, chunk: int) -> Iterator[str]:
    """Deltas of `chunk` words each; joined, they are the text."""
    words = _WORDS.findall(text)
    for start in range(0, len(words), chunk):
        yield "".join(words[start : start + chunk])


def _trim(texts: Sequence[str], length: int) -> Iterator[str]:
    """The texts, up to a length in characters."""
    for text in texts:
        if length <= 0:
            return
        yield text[:length]
        length -= len(text)


def _to_error(trouble: Trouble) -> BackendError:
    """The error that a dialect would make of such an answer."""
    if trouble.code == ContextOverflowError.code:
        return ContextOverflowError(trouble.message)
    if trouble.status in (401, 403):
        return BackendAuthError(trouble.message, code=trouble.code)
    if trouble.status == 429:
        return BackendRateLimitError(trouble.message, code=trouble.code)
    if trouble.status in (408, 504):
        return BackendTimeoutError(trouble.message, code=trouble.code)
    if trouble.status < 500:
        return BackendRefusedError(trouble.message, code=trouble.code)
    return BackendError(trouble.message, code=trouble.code)
