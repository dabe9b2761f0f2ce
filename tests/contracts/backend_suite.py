"""What every backend must keep, as checks to run on any implementation.

A test module makes a `Subject` whose server answers the texts below as told, and runs each of `CHECKS`
on it inside an event loop. The suite knows the interface alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import pytest

from antiphon.backends import (
    Ask,
    Backend,
    BackendEvent,
    Failed,
    Finished,
    ItemClosed,
    ItemEvent,
    ItemOpened,
    Opened,
    TextDelta,
)
from antiphon.context import Profile
from antiphon.protocol.errors import BackendError
from antiphon.protocol.items import Item, decode_items

#: Every wait of the suite ends here.
TIMEOUT_S = 20.0

#: The subject answers this with at least three text deltas, and counts tokens if it ever does.
HELLO = "Say hello, please."
#: The subject sends some text, then breaks off.
BREAK = "Break off now."
#: The subject refuses this before it sends anything.
REFUSE = "Refuse this now."

#: Rounds of a conversation, each a node of the tree: input, then output.
ROUNDS: tuple[list[dict[str, Any]], ...] = (
    [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"role": "user", "content": "What is the weather in Oslo?"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "A tool helps."}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I look it up.", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city": "Oslo"}',
            "status": "completed",
        },
    ],
    [
        {"type": "function_call_output", "call_id": "call_1", "output": "12 °C, rain"},
        {
            "type": "message",
            "id": "msg_2",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "It rains.", "annotations": [], "logprobs": []}],
        },
    ],
    [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": HELLO}]}],
)


class Subject(NamedTuple):
    """A backend under test; `wait_idle` returns once its server generates nothing any more."""

    backend: Backend
    model: str
    wait_idle: Callable[[], Awaitable[None]]
    profile: Profile = Profile()

    def ask(self, text: str) -> Ask:
        """An ask of one user message."""
        return self.ask_rounds([[{"role": "user", "content": text}]])

    def ask_rounds(self, rounds: Sequence[list[dict[str, Any]]]) -> Ask:
        """An ask that continues rounds, each transcribed by itself."""
        segments = [
            self.backend.transcribe(to_items(round_), self.profile, at_start=position == 0)
            for position, round_ in enumerate(rounds)
        ]
        return Ask(
            model=self.model,
            profile=self.profile,
            system=segments[0].lead,
            transcript=[segment.body for segment in segments if segment.body],
        )


Check: TypeAlias = Callable[[Subject], Awaitable[None]]


def to_items(items: list[dict[str, Any]]) -> list[Item]:
    """Items as they arrive in a request."""
    return decode_items(msgspec.json.encode(items))


async def collect(subject: Subject, ask: Ask) -> list[list[BackendEvent]]:
    """All batches of one answer."""
    return [batch async for batch in subject.backend.stream(ask)]


async def check_opened_comes_first_and_alone(subject: Subject) -> None:
    """Contract of `stream`: the first batch holds `Opened` alone, and no other batch holds one."""
    first, *rest = await collect(subject, subject.ask(HELLO))
    assert first == [Opened()]
    assert not [event for batch in rest for event in batch if isinstance(event, Opened)]


async def check_the_last_event_is_the_only_terminal_one(subject: Subject) -> None:
    """Contract of `stream`: exactly one `Finished` or `Failed`, at the end."""
    events = flatten(await collect(subject, subject.ask(HELLO)))
    assert find_terminals(events) == [len(events) - 1]
    assert isinstance(events[-1], Finished)


async def check_text_arrives_in_pieces(subject: Subject) -> None:
    """Ours: a stream is a stream; nothing is held back until the end."""
    batches = await collect(subject, subject.ask(HELLO))
    pieces = list_texts(flatten(batches))
    assert len(pieces) >= 3
    assert all(pieces)


async def check_items_are_handed_on_one_after_another(subject: Subject) -> None:
    """Contract of events: an item that is handed on begins, goes on and ends under one index, before the next."""
    open_index: int | None = None
    for event in flatten(await collect(subject, subject.ask(HELLO))):
        if isinstance(event, ItemOpened):
            assert open_index is None
            open_index = event.index
        elif isinstance(event, ItemEvent | ItemClosed):
            assert event.index == open_index
            open_index = None if isinstance(event, ItemClosed) else open_index
    assert open_index is None


async def check_no_batch_is_empty(subject: Subject) -> None:
    """Ours: a batch holds what has arrived, so it holds something."""
    assert all(await collect(subject, subject.ask(HELLO)))


async def check_a_refusal_is_raised_before_opened(subject: Subject) -> None:
    """Contract of `stream`: a refusal before `Opened` is raised as a `BackendError`."""
    with pytest.raises(BackendError):
        await anext(subject.backend.stream(subject.ask(REFUSE)))
    await subject.wait_idle()


async def check_a_break_after_opened_is_one_failed_event(subject: Subject) -> None:
    """Contract of `stream`: after `Opened`, failure is an event."""
    events = flatten(await collect(subject, subject.ask(BREAK)))
    assert events[0] == Opened()
    assert find_terminals(events) == [len(events) - 1]
    last = events[-1]
    assert isinstance(last, Failed)
    assert isinstance(last.error, BackendError)
    await subject.wait_idle()


async def check_closing_cancels_upstream(subject: Subject) -> None:
    """Contract of `stream`: closing the iterator cancels upstream."""
    stream = subject.backend.stream(subject.ask(HELLO))
    assert await anext(stream) == [Opened()]
    await anext(stream)
    await stream.aclose()
    await subject.wait_idle()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def check_closing_before_the_start_asks_nothing(subject: Subject) -> None:
    """Ours: an iterator that nobody started costs nothing."""
    stream = subject.backend.stream(subject.ask(HELLO))
    await stream.aclose()
    await subject.wait_idle()


async def check_cancelling_the_reader_cancels_upstream(subject: Subject) -> None:
    """Ours: cancellation is never swallowed, and reaches the server."""
    opened = asyncio.Event()

    async def read() -> None:
        stream = subject.backend.stream(subject.ask(HELLO))
        try:
            async for _ in stream:
                opened.set()
                # The reader stays here until it is cancelled.
                await asyncio.Event().wait()
        finally:
            await stream.aclose()

    task = asyncio.create_task(read())
    await opened.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await subject.wait_idle()


async def check_streams_do_not_disturb_one_another(subject: Subject) -> None:
    """Ours: one object serves many requests at once."""
    alone = flatten(await collect(subject, subject.ask(HELLO)))
    together = await asyncio.gather(*(collect(subject, subject.ask(HELLO)) for _ in range(4)))
    assert [join_text(flatten(batches)) for batches in together] == [join_text(alone)] * 4


async def check_transcribing_is_pure(subject: Subject) -> None:
    """Contract of `transcribe`: the same items give the same bytes, and stay as they were."""
    for at_start, round_ in zip((True, False, False), ROUNDS, strict=True):
        items = to_items(round_)
        first = subject.backend.transcribe(items, subject.profile, at_start=at_start)
        second = subject.backend.transcribe(items, subject.profile, at_start=at_start)
        assert first == second
        assert [item.raw for item in items] == [item.raw for item in to_items(round_)]


async def check_rounds_transcribed_apart_are_the_history_in_one(subject: Subject) -> None:
    """Ours: a continued window has the bytes of the same history sent in full, so prefixes stay stable."""
    apart = subject.ask_rounds(ROUNDS)
    whole = subject.ask_rounds([[item for round_ in ROUNDS for item in round_]])
    assert apart.system == whole.system
    assert b",".join(apart.transcript) == b",".join(whole.transcript)


async def check_leading_system_text_is_the_lead(subject: Subject) -> None:
    """Decided: the leading run of system and developer text is one system message, and only at the start.

    To a server that speaks Responses itself they stay items.
    """
    items = to_items(ROUNDS[0][:3])
    start = subject.backend.transcribe(items, subject.profile, at_start=True)
    if subject.backend.speaks_responses:
        assert start.lead == ""
        assert start.body == b",".join(item.raw for item in items)
        return
    assert "Be brief." in start.lead
    assert "Be kind." in start.lead
    assert b"Be brief." not in start.body
    later = subject.backend.transcribe(items, subject.profile, at_start=False)
    assert later.lead == ""
    assert b"Be brief." in later.body


async def check_nothing_transcribes_to_nothing(subject: Subject) -> None:
    """Contract of `Segment`: the body is empty when there is nothing."""
    assert subject.backend.transcribe([], subject.profile, at_start=False).body == b""


async def check_the_count_is_the_usage(subject: Subject) -> None:
    """Contract of `count_tokens`: exact, or None."""
    for ask in (subject.ask(HELLO), subject.ask_rounds(ROUNDS)):
        counted = await subject.backend.count_tokens(ask)
        last = flatten(await collect(subject, ask))[-1]
        assert isinstance(last, Finished)
        if counted is not None and last.usage is not None:
            assert counted == last.usage.input_tokens


async def check_more_history_counts_more(subject: Subject) -> None:
    """Ours: usage tells that the history was seen."""
    counts = []
    for rounds in (ROUNDS[-1:], ROUNDS):
        last = flatten(await collect(subject, subject.ask_rounds(rounds)))[-1]
        assert isinstance(last, Finished)
        if last.usage is None:
            return
        counts.append(last.usage.input_tokens)
    assert counts[0] < counts[1]


async def check_the_model_is_listed_and_known(subject: Subject) -> None:
    """Contract of `list_models` and `get_facts`."""
    assert subject.model in [facts.name for facts in await subject.backend.list_models()]
    assert (await subject.backend.get_facts(subject.model)).name == subject.model


async def check_facts_of_an_unknown_model_do_not_raise(subject: Subject) -> None:
    """Contract of `get_facts`: it never raises."""
    assert (await subject.backend.get_facts("no-such-model")).name == "no-such-model"


CHECKS: tuple[Check, ...] = (
    check_opened_comes_first_and_alone,
    check_the_last_event_is_the_only_terminal_one,
    check_text_arrives_in_pieces,
    check_items_are_handed_on_one_after_another,
    check_no_batch_is_empty,
    check_a_refusal_is_raised_before_opened,
    check_a_break_after_opened_is_one_failed_event,
    check_closing_cancels_upstream,
    check_closing_before_the_start_asks_nothing,
    check_cancelling_the_reader_cancels_upstream,
    check_streams_do_not_disturb_one_another,
    check_transcribing_is_pure,
    check_rounds_transcribed_apart_are_the_history_in_one,
    check_leading_system_text_is_the_lead,
    check_nothing_transcribes_to_nothing,
    check_the_count_is_the_usage,
    check_more_history_counts_more,
    check_the_model_is_listed_and_known,
    check_facts_of_an_unknown_model_do_not_raise,
)


def name_check(check: Check) -> str:
    """`check_x_y` -> `x_y`, for the list of tests."""
    return getattr(check, "__name__", "check").removeprefix("check_")


def flatten(batches: Sequence[list[BackendEvent]]) -> list[BackendEvent]:
    """All events, in order."""
    return [event for batch in batches for event in batch]


def find_terminals(events: Sequence[BackendEvent]) -> list[int]:
    """Where the terminal events stand."""
    return [index for index, event in enumerate(events) if isinstance(event, Finished | Failed)]


def join_text(events: Sequence[BackendEvent]) -> str:
    """The visible text."""
    return "".join(list_texts(events))


def list_texts(events: Sequence[BackendEvent]) -> list[str]:
    """The pieces of the visible text, whether they come by themselves or inside an item handed on."""
    pieces = []
    for event in events:
        if isinstance(event, TextDelta):
            pieces.append(event.text)
        elif isinstance(event, ItemEvent) and event.name == "response.output_text.delta":
            pieces.append(event.fields["delta"])
    return pieces
