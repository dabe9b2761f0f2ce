"""A forced tool call is enforced, whatever the backend does with `tool_choice`."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from antiphon.backends import (
    Ask,
    BackendEvent,
    BackendUsage,
    CallDelta,
    Failed,
    Finished,
    Opened,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antiphon.backends.scripted import ScriptedBackend
from antiphon.context import Profile
from antiphon.engine.forced import WITHHELD_CHARACTERS, stream_forced
from antiphon.protocol.errors import BackendError, BackendRateLimitError


class Player(ScriptedBackend):
    """Plays batches, one list for each time that it is asked; an exception is raised."""

    def __init__(self, *plays: list[Any]) -> None:
        super().__init__()
        self.plays = list(plays)
        self.asks: list[Ask] = []
        self.closed = 0

    async def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        self.asks.append(ask)
        try:
            for event in self.plays[len(self.asks) - 1]:
                if isinstance(event, Exception):
                    raise event
                yield [event]
        finally:
            self.closed += 1


class Steps:
    """A response whose steps are counted."""

    def __init__(self) -> None:
        self.output: list[bytes] = []
        self.outcome: object = None
        self.ended: list[tuple[BackendUsage | None, bool, bool]] = []

    def note_cut(self) -> None:
        """Nothing is kept."""

    def begin_answer(self) -> None:
        """Nothing is kept."""

    def note_drop(self, warning: tuple[str, str]) -> None:
        """Nothing is kept."""

    def end_step(self, usage: BackendUsage | None, *, answered: bool, asks_again: bool = False) -> None:
        self.ended.append((usage, answered, asks_again))


def run(
    player: Player, forced_tool: str | None = None, steps: Steps | None = None
) -> tuple[list[BackendEvent], list[tuple[str, str]]]:
    """All events of a forced stream, and the warnings."""
    warnings: list[tuple[str, str]] = []
    progress = steps or Steps()

    async def read() -> list[BackendEvent]:
        ask = Ask(model="m", profile=Profile(), tool_choice="required", forced_tool=forced_tool)
        stream = stream_forced(player, ask, warnings, progress)
        return [event async for batch in stream for event in batch]

    events = asyncio.run(read())
    assert player.closed == len(player.asks)
    return events, warnings


CALL = CallDelta(0, "a", "f", "{}")
STOP = Finished("stop")


def test_an_obedient_stream_passes_as_it_is() -> None:
    """Decided."""
    events = [Opened(), ReasoningDelta("hm"), CALL, CallDelta(1, "b", "g", "{}"), TextDelta("after"), STOP]
    assert run(Player(events)) == (events, [])


def test_text_is_withheld_until_the_call_starts() -> None:
    """Decided: then it comes, before the call."""
    events = [Opened(), TextDelta("a"), TextDelta("b"), CALL, STOP]
    assert run(Player(events)) == (events, [])


def test_one_re_ask_with_one_opened() -> None:
    """Decided and the backend's contract: `Opened` comes once."""
    player = Player([Opened(), TextDelta("no"), STOP], [Opened(), CALL, STOP])
    events, warnings = run(player)
    assert events == [Opened(), CALL, STOP]
    assert [code for code, _ in warnings] == ["tool_call_asked_again"]
    first, second = player.asks
    assert list(second.transcript)[: len(first.transcript)] == list(first.transcript)
    assert len(second.transcript) == len(first.transcript) + 1


@pytest.mark.parametrize(
    "refusing",
    [[TextDelta("no")], [], [CallDelta(0, "a", "g", "{}")], [TextDelta("x" * WITHHELD_CHARACTERS + "y")]],
)
def test_two_disobedient_answers_fail(refusing: list[BackendEvent]) -> None:
    """Decided: exactly one terminal event."""
    play = [Opened(), *refusing, STOP]
    events, warnings = run(Player(play, play), forced_tool="f")
    assert events[0] == Opened()
    assert isinstance(events[-1], Failed)
    assert sum(isinstance(event, Failed | Finished) for event in events) == 1
    assert not any(isinstance(event, TextDelta | CallDelta) for event in events)
    assert len(warnings) == 2


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_cut_before_the_call_is_the_callers_limit(reason: Any) -> None:
    """Ours: what was withheld is then the answer."""
    events = [Opened(), TextDelta("a"), Finished(reason)]
    assert run(Player(events)) == (events, [])


def test_a_failure_passes() -> None:
    """Contract: after the first event, failure is an event."""
    failed = Failed(BackendError("x"))
    assert run(Player([Opened(), TextDelta("a"), failed]))[0][-1] is failed


def test_a_refusal_by_the_server_is_raised_before_anything() -> None:
    """Contract: a refusal before `Opened` is raised."""
    with pytest.raises(BackendRateLimitError):
        run(Player([BackendRateLimitError()]))


def test_a_refusal_of_the_re_ask_fails_with_its_reason() -> None:
    """Decided with 14: the second request may be refused although the first was taken."""
    player = Player([Opened(), TextDelta("no"), STOP], [BackendRateLimitError("Wait.")])
    with pytest.raises(BackendRateLimitError, match=r"Wait\."):
        run(player)


def test_a_model_that_refuses_in_words_of_refusal_is_not_a_call() -> None:
    """Decided: a refusal part is no call either; it is not lost and not doubled."""
    play = [Opened(), RefusalDelta("no"), STOP]
    events, _ = run(Player(play, [Opened(), CALL, STOP]))
    refusals = [event for event in events if isinstance(event, RefusalDelta)]
    calls = [event for event in events if isinstance(event, CallDelta)]
    assert bool(refusals) != bool(calls), "either the refusal stands, or the call that came instead of it"


def test_reasoning_before_a_re_ask_is_not_thrown_together_with_its_answer() -> None:
    """Ours: reasoning streams at once, so both generations' reasoning may be shown, in order."""
    player = Player(
        [Opened(), ReasoningDelta("a"), TextDelta("no"), STOP], [Opened(), ReasoningDelta("b"), CALL, STOP]
    )
    events, _ = run(player)
    assert [event.text for event in events if isinstance(event, ReasoningDelta)] == ["a", "b"]


def test_arguments_whose_name_comes_late_are_withheld_with_the_text() -> None:
    """Ours: calls whose name comes late; nothing of the arguments is lost."""
    events = [Opened(), CallDelta(0, "a", "", '{"x"'), CallDelta(0, "", "f", ":1}"), STOP]
    assert run(Player(events), forced_tool="f") == (events, [])


def test_a_second_call_of_another_tool_does_not_pass_a_named_choice() -> None:
    """Responses API 2.3: a named function is the one that is called."""
    events = [Opened(), CALL, CallDelta(1, "b", "g", "{}"), STOP]
    passed, _ = run(Player(events), forced_tool="f")
    assert passed[:2] == [Opened(), CALL]


def test_what_the_withheld_answer_cost_is_counted() -> None:
    """Decided: `usage` counts the model calls that the request caused; the re-ask's prompt is not the window's."""
    usage = BackendUsage(7, 3)
    player = Player([Opened(), TextDelta("no"), Finished("stop", usage)], [Opened(), CALL, STOP])
    steps = Steps()
    _, warnings = run(player, steps=steps)
    assert steps.ended == [(usage, False, True)]
    assert "7 tokens in, 3 out" in warnings[0][1]


def test_a_response_that_has_ended_is_not_asked_for_again() -> None:
    """Ours: what failed meanwhile costs nothing more."""
    steps = Steps()
    steps.outcome = "failed"
    player = Player([Opened(), TextDelta("no"), STOP])
    assert run(player, steps=steps) == ([Opened()], [])


def test_a_call_that_would_be_dropped_is_no_call_at_all() -> None:
    """`allowed_tools` with mode required: a tool beside the list is asked again like text."""
    player = Player(
        [Opened(), CallDelta(0, "a", "hidden", "{}"), Finished("stop")],
        [Opened(), CallDelta(0, "b", "unknown", "{}"), Finished("stop")],
    )

    async def read() -> list[BackendEvent]:
        ask = Ask(model="m", profile=Profile(), tool_choice="required")
        stream = stream_forced(player, ask, [], Steps(), is_hidden=lambda name: name == "hidden")
        return [event async for batch in stream for event in batch]

    events = asyncio.run(read())
    assert [event.name for event in events if isinstance(event, CallDelta)] == ["unknown"]
    assert len(player.asks) == 2
