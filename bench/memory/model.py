"""The model server of the benchmark: it says what it is told to say, reads nothing, and keeps what it was shown.

It makes real chat prompts of what it is given, counts them by a rule, and has windows of any size. Invariants: an ask
that does not end with the newest question is a call for a summary, and counted as one; the same prompt counts the same.
"""

import re
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.interface import (
    NO_CALLS,
    Ask,
    BackendEvent,
    BackendUsage,
    CallDelta,
    Finished,
    ModelFacts,
    Opened,
    Relayed,
    Segment,
    TextDelta,
)
from antiphon.context import Profile
from antiphon.context.image_costs import DEFAULT_BILLING, bill_image
from antiphon.protocol.errors import BackendError, ContextOverflowError, RequestError
from antiphon.protocol.items import Item

_TOKEN = re.compile(r"\w+|[^\w\s]")
_MESSAGE_TOKENS = 4
#: A model's name tells its window, and whether it tells that itself: `open-32000-x`, `blind-9000-x`.
_MODEL = re.compile(r"(open|blind)-(\d+)-")


@dataclass(frozen=True)
class Saying:
    """What the model says next: text, and calls as (name, arguments, call id)."""

    text: str
    calls: Sequence[tuple[str, str, str]] = ()


@dataclass(frozen=True)
class Shown:
    """A prompt as the model reads it."""

    system: str
    messages: list[dict[str, Any]]
    tokens: int


class PlayedModel:
    """A backend with one conversation at a time."""

    name = "played"
    speaks_responses = False

    def __init__(self) -> None:
        #: What is written where a summary is asked for; None: that fails.
        self.summary: str | None = None
        self.shown: Shown | None = None
        self.summary_calls = 0
        self._question: str | None = None
        self._saying = Saying("")
        self._models: dict[str, ModelFacts] = {}

    def expect(self, question: str | None, saying: Saying) -> None:
        """What will be asked next (None: anything; empty: summaries alone), and what is said to it."""
        self._question, self._saying, self.shown = question, saying, None

    def add_model(self, window_tokens: int, label: str, *, tells_window: bool = True) -> str:
        """The name of a model with such a window; one that does not tell it still refuses longer prompts."""
        name = f"{'open' if tells_window else 'blind'}-{window_tokens}-{label}"
        profile = Profile(
            name="played",
            window_tokens=window_tokens if tells_window else None,
            tool_choice="named",
            sees_images=True,
        )
        self._models[name] = ModelFacts(name=name, profile=profile)
        return name

    def transcribe(
        self,
        items: Sequence[Item],
        profile: Profile,
        *,
        at_start: bool,
        open_calls: Mapping[str, str] = NO_CALLS,
        async_calls: Collection[str] = (),
    ) -> Segment:
        """Chat messages, as every Chat Completions server is sent them."""
        return transcribe(items, profile, at_start=at_start, open_calls=open_calls, async_calls=async_calls)

    async def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        """What it was told to say, or the summary."""
        shown = read_shown(ask)
        is_question = self._question in (None, read_message(shown.messages[-1]))
        self.summary_calls += not is_question
        window = _read_window(ask.model)
        if shown.tokens > window:
            raise ContextOverflowError(prompt_tokens=shown.tokens, window_tokens=window)
        saying = self._saying
        if is_question:
            self.shown = shown
        elif self.summary is None:
            raise BackendError("This model writes no summaries.")
        else:
            saying = Saying(self.summary)
        yield [Opened()]
        events: list[BackendEvent] = [TextDelta(saying.text)] if saying.text else []
        events += [
            CallDelta(index, call_id, name, arguments)
            for index, (name, arguments, call_id) in enumerate(saying.calls)
        ]
        yield events
        said = sum(count_text(arguments) for _, arguments, _ in saying.calls) + count_text(saying.text)
        yield [Finished("stop", BackendUsage(shown.tokens, said, cached_tokens=0))]

    async def list_models(self, *, fresh: bool = False) -> list[ModelFacts]:
        """Those that were added."""
        return list(self._models.values())

    async def get_facts(self, model: str) -> ModelFacts:
        """A model that calls tools and sees images; some do not tell how much they can read."""
        return self._models[model]

    async def count_tokens(self, ask: Ask) -> int | None:
        """Exact."""
        return count_ask(ask)

    async def relay(self, path: str, body: bytes) -> Relayed:
        """Refused: it is no server."""
        raise RequestError("This model answers responses alone.", param="model")

    async def close(self) -> None:
        """Nothing is held."""


def read_shown(ask: Ask) -> Shown:
    """The prompt of an ask."""
    body = b",".join(piece for piece in ask.transcript if len(piece))
    return Shown(ask.system, msgspec.json.decode(b"[" + body + b"]"), count_ask(ask))


def read_message(message: Mapping[str, Any]) -> str:
    """The text of a chat message."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")


def count_ask(ask: Ask) -> int:
    """Words and marks of all texts; four more for each message; images as most open models have them."""
    tools = sum(
        count_text(f"{tool.name} {tool.description} {msgspec.json.encode(tool.parameters).decode()}")
        for tool in ask.tools
    )
    pieces = sum(_count_piece(bytes(piece)) for piece in ask.transcript if len(piece))
    return tools + count_text(ask.system) + pieces


def count_text(text: str) -> int:
    """`a_b = c(1)` -> 6."""
    return len(_TOKEN.findall(text))


@lru_cache(maxsize=20_000)
def _count_piece(piece: bytes) -> int:
    return sum(map(_count_message, msgspec.json.decode(b"[" + piece + b"]")))


def _count_message(message: Mapping[str, Any]) -> int:
    content = message.get("content") or ""
    images = [part for part in content if part["type"] != "text"] if isinstance(content, list) else []
    calls = [call["function"] for call in message.get("tool_calls", ())]
    told = [read_message(message), *(f"{call['name']} {call['arguments']}" for call in calls)]
    shown = sum(bill_image(image["image_url"]["url"], None, DEFAULT_BILLING) for image in images)
    return _MESSAGE_TOKENS + sum(map(count_text, told)) + shown


def _read_window(model: str) -> int:
    matched = _MODEL.match(model)
    if matched is None:
        raise BackendError(f"There is no model {model!r}.")
    return int(matched[2])
