"""How a summariser is asked: the one callable by which `context` reaches a model, and what its calls cost.

It knows asks and backends, and nothing of ladders. Invariants: a request behind the conversation begins with the very
bytes of its prompt; whatever the model calls is handed over as text and never run.
"""

import asyncio
from contextlib import aclosing
from typing import Final

import msgspec

from antiphon.backends import (
    Ask,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    ItemClosed,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.context.summary import SummaryAnswer, SummaryRequest
from antiphon.context.summary_texts import (
    CREATE_SUMMARY_DESCRIPTION,
    CREATE_SUMMARY_NAME,
    make_call_schema,
)
from antiphon.engine.catalog import Target
from antiphon.engine.counting import TokenCounter, list_prompt, make_target_key
from antiphon.engine.spending import Spending
from antiphon.protocol.errors import (
    BackendError,
    BackendTimeoutError,
    ContextOverflowError,
    RequestError,
)
from antiphon.protocol.items import FunctionCall, Item, Message, decode_stored_item, encode_item, message_text
from antiphon.protocol.requests import TextConfig, TextFormat
from antiphon.protocol.tools import FunctionTool

#: No summary is longer, its reasoning included; a model that does not stop is not read for ever.
ANSWER_MAX_CHARACTERS: Final = 1_000_000
#: One answer is waited for this long in all, however lively the server is.
ANSWER_TIMEOUT_S: Final = 1_800.0
_SCHEMA_NAME: Final = "conversation_summary"


class Summariser:
    """Asks one model for one pass. `ask`: the prompt of the window, where the model is the conversation's own."""

    def __init__(self, target: Target, ask: Ask | None, counter: TokenCounter, *, is_own: bool) -> None:
        self._target = target
        self._counter = counter
        self._is_own = is_own
        self._ask = ask
        self._spending = Spending()
        self.calls = 0
        #: The window that a refusal has told, where the model is the conversation's own.
        self.learned_window: int | None = None

    @property
    def usage(self) -> BackendUsage | None:
        """What all calls cost together; None where nothing was told."""
        return self._spending.total

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """What must be said of that sum."""
        return self._spending.warnings

    async def ask(self, request: SummaryRequest) -> SummaryAnswer:
        """One call; raises `BackendError`, or `ContextOverflowError` where the request is too long."""
        self.calls += 1
        reading = _Reading()
        ask = self._make_ask(request)
        try:
            async with (
                asyncio.timeout(ANSWER_TIMEOUT_S),
                aclosing(self._target.backend.stream(ask)) as stream,
            ):
                async for batch in stream:
                    for event in batch:
                        reading.take(event)
                    if reading.is_too_long:
                        break
        except RequestError as error:
            # The model server does not know the model, or will not be asked so: nothing that the client could mend.
            raise BackendError(error.message) from error
        except TimeoutError as error:
            raise BackendTimeoutError("The model server took too long to write a summary.") from error
        except ContextOverflowError as error:
            if self._is_own:
                self.learned_window = error.window_tokens or self.learned_window
            if error.prompt_tokens is not None and not error.at_least:
                self._note(ask, error.prompt_tokens)
            raise
        finally:
            usage = reading.finished.usage if reading.finished is not None else None
            self._spending.add(usage)
            if usage is not None:
                self._note(ask, usage.input_tokens)
        return reading.finish()

    def _note(self, ask: Ask, tokens: int) -> None:
        """The server has counted a prompt: what is estimated from here on goes by it."""
        key = make_target_key(self._target.backend, self._target.model)
        self._counter.note(key, list_prompt(ask), tokens)

    def _make_ask(self, request: SummaryRequest) -> Ask:
        message = encode_item(Message(role="user", content=list(request.parts)))
        target = self._target
        if request.in_place and self._ask is not None:
            body = target.backend.transcribe([message], target.profile, at_start=False).body
            ask = msgspec.structs.replace(self._ask, transcript=[*self._ask.transcript, body])
        else:
            segment = target.backend.transcribe([message], target.profile, at_start=True)
            ask = Ask(
                model=target.model, profile=target.profile, system=request.system, transcript=[segment.body]
            )
        return _constrain(ask, request)


def _constrain(ask: Ask, request: SummaryRequest) -> Ask:
    """How the answer shall look; tools stay told, for they are part of the prompt that the server has cached."""
    text_format = None
    if request.schema is not None:
        text_format = TextFormat(type="json_schema", name=_SCHEMA_NAME, schema=request.schema, strict=True)
    changed = msgspec.structs.replace(
        ask,
        max_output_tokens=request.max_output_tokens,
        text_format=text_format,
        tool_choice="auto" if ask.tools else "none",
        forced_tool=None,
        top_logprobs=None,
    )
    if request.forced_tool:
        tool = FunctionTool(
            name=CREATE_SUMMARY_NAME,
            description=CREATE_SUMMARY_DESCRIPTION,
            parameters=make_call_schema(retains=True),
        )
        changed.tools = [*ask.tools, tool]
        changed.tool_choice, changed.forced_tool = "required", CREATE_SUMMARY_NAME
    if ask.request is not None:
        changed.request = msgspec.structs.replace(
            ask.request,
            max_output_tokens=request.max_output_tokens,
            text=TextConfig(format=text_format) if text_format is not None else TextConfig(),
            # Such a server runs tools of its own, so it must be told to call none.
            tool_choice="none" if ask.request.tools else "auto",
            tool_choice_given=bool(ask.request.tools),
            max_tool_calls=None,
            top_logprobs=None,
            include=(),
        )
    return changed


class _Reading:
    """What has come of an answer."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._size = 0
        self._refuses = False
        self._calls: dict[int, tuple[list[str], list[str]]] = {}
        self.finished: Finished | None = None

    @property
    def is_too_long(self) -> bool:
        return self._size > ANSWER_MAX_CHARACTERS

    def take(self, event: object) -> None:
        # Of empty events too there may be no end.
        self._size += 1
        if isinstance(event, TextDelta):
            self._add(event.text)
        elif isinstance(event, ReasoningDelta):
            self._size += len(event.text)
        elif isinstance(event, RefusalDelta):
            self._refuses = True
            self._size += len(event.text)
        elif isinstance(event, CallDelta):
            names, arguments = self._calls.setdefault(event.index, ([], []))
            names.append(event.name)
            arguments.append(event.arguments)
            self._size += len(event.arguments)
        elif isinstance(event, ItemClosed):
            self._take_item(decode_stored_item(event.item))
        elif isinstance(event, Finished):
            self.finished = event
        elif isinstance(event, Failed):
            raise event.error

    def _take_item(self, item: Item) -> None:
        value = item.value
        if isinstance(value, Message):
            self._add(message_text(value))
        elif isinstance(value, FunctionCall):
            self._calls[len(self._calls)] = ([value.name], [value.arguments])

    def _add(self, text: str) -> None:
        self._texts.append(text)
        self._size += len(text)

    def finish(self) -> SummaryAnswer:
        """The whole answer; a call of another tool is one that cannot be used."""
        if self.finished is None and not self.is_too_long:
            raise BackendError("The model server's answer to the request for a summary had no end.")
        wanted = [
            "".join(arguments)
            for names, arguments in self._calls.values()
            if "".join(names) == CREATE_SUMMARY_NAME
        ]
        return SummaryAnswer(
            text="" if self._refuses else "".join(self._texts),
            call_arguments=wanted[0] if wanted else "" if self._calls else None,
            finish=self.finished.reason if self.finished is not None else "length",
        )
