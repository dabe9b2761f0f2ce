"""One response may take several generations: hosted tools, async tools, calls that must be checked first."""

import asyncio
import json
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
    ItemClosed,
    ItemEvent,
    ItemOpened,
    Opened,
    ReasoningDelta,
    Segment,
    TextDelta,
)
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.scripted import ScriptedBackend
from antiphon.context import Profile
from antiphon.context.toolbox import OfferedTool, Toolbox
from antiphon.engine.assembler import Assembler
from antiphon.engine.grammars import GrammarChecker
from antiphon.engine.sink import EventSink
from antiphon.engine.steps import ASYNC_CONTINUATIONS, MAX_STEPS, stream_steps
from antiphon.protocol import events as api
from antiphon.protocol.errors import BackendError, BackendRateLimitError
from antiphon.protocol.items import decode_stored_item
from antiphon.protocol.lifecycle import StreamChecker
from antiphon.protocol.tools import FunctionTool, GrammarFormat

NODE = "resp_" + "0" * 36
RESPONSE = json.dumps({"id": NODE, "status": "in_progress", "output": []}).encode()
STOP = Finished("stop")
START = b'{"role":"user","content":"Begin."}'


class Player(ScriptedBackend):
    """Plays events, one list for each time that it is asked (the last one again and again)."""

    def __init__(self, *plays: list[Any]) -> None:
        super().__init__()
        self.plays = list(plays)
        self.asks: list[Ask] = []
        self.open_now = 0

    async def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        self.asks.append(ask)
        self.open_now += 1
        try:
            for event in self.plays[min(len(self.asks), len(self.plays)) - 1]:
                if isinstance(event, Exception):
                    raise event
                yield [event]
        finally:
            self.open_now -= 1


class Hosted:
    """Hosted tools that note what is asked of them."""

    def __init__(
        self, *names: str, lists: bool = False, limit: int | None = None, asks: bool = False
    ) -> None:
        self.warnings: list[tuple[str, str]] = []
        self.ran: list[tuple[str, str]] = []
        self.closed = 0
        self.open_now = 0
        self.must_stop = False
        self._names = names
        self._lists = lists
        self._limit = limit
        self._asks = asks

    @property
    def offered(self) -> tuple[OfferedTool, ...]:
        return () if self.exhausted else tuple(offer(name, "mcp") for name in self._names)

    @property
    def exhausted(self) -> bool:
        return self._limit is not None and len(self.ran) >= self._limit

    def owns(self, name: str) -> bool:
        return name in self._names

    async def open(self) -> AsyncGenerator[list[BackendEvent], None]:
        if self._lists:
            item = json.dumps({"type": "mcp_list_tools", "server_label": "s", "tools": []}).encode()
            yield [ItemOpened(0, item), ItemEvent(0, "response.mcp_list_tools.in_progress")]
            yield [ItemEvent(0, "response.mcp_list_tools.completed"), ItemClosed(0, item)]

    async def run(self, name: str, arguments: str) -> AsyncGenerator[list[BackendEvent], None]:
        self.ran.append((name, arguments))
        self.open_now += 1
        try:
            if self._asks:
                item = {
                    "type": "mcp_approval_request",
                    "server_label": "s",
                    "name": name,
                    "arguments": arguments,
                }
                yield [ItemOpened(0, json.dumps(item).encode()), ItemClosed(0, json.dumps(item).encode())]
                self.must_stop = True
                return
            call = {
                "type": "mcp_call",
                "server_label": "s",
                "name": name,
                "arguments": "",
                "status": "in_progress",
            }
            yield [ItemOpened(0, json.dumps(call).encode()), ItemEvent(0, "response.mcp_call.in_progress")]
            yield [ItemEvent(0, "response.mcp_call_arguments.done", {"arguments": arguments})]
            done = {**call, "arguments": arguments, "output": "out", "status": "completed"}
            yield [ItemEvent(0, "response.mcp_call.completed"), ItemClosed(0, json.dumps(done).encode())]
        finally:
            self.open_now -= 1

    async def close(self) -> None:
        self.closed += 1


def offer(name: str, kind: Any = "function", **fields: Any) -> OfferedTool:
    return OfferedTool(name=name, kind=kind, function=FunctionTool(name=name), own_name=name, **fields)


class Run:
    """A whole response, fed and checked as a round does it."""

    def __init__(
        self, player: Player, *tools: OfferedTool, hosted: Hosted | None = None, **settings: Any
    ) -> None:
        self.player = player
        self.hosted = hosted
        self.warnings: list[tuple[str, str]] = []
        sink = EventSink(emit=True)
        sink.send_response(api.ResponseCreated, RESPONSE)
        sink.send_response(api.ResponseInProgress, RESPONSE)
        self.assembler = Assembler(
            sink,
            node_id=NODE,
            first_position=1,
            is_taken=lambda call_id: False,
            hidden_tools=settings.pop("hidden", frozenset()),
            hidden_prefixes=settings.pop("prefixes", ()),
            offered={tool.name: tool for tool in tools},
            single_call=settings.get("parallel_tool_calls") is False,
        )
        choice = settings.pop("choice", "auto")
        forced = settings.pop("forced", None)
        self._stop_after = settings.pop("stop_after", None)
        self._grammars = settings.pop("grammars", None)
        self._toolbox = Toolbox(
            offered=tools,
            hidden=self.assembler._hidden_tools,
            hidden_prefixes=self.assembler._hidden_prefixes,
            choice=choice,
            forced=forced,
        )
        self._ask = Ask(
            model="m",
            profile=Profile(),
            transcript=[START],
            tools=[tool.function for tool in tools],
            tool_choice=choice if tools else "none",
            forced_tool=forced if tools else None,
            **settings,
        )
        self.batches: list[list[BackendEvent]] = []
        asyncio.run(self._read())
        self.events = [json.loads(data) for _, data in sink.take()]
        checker = StreamChecker()
        assert [fault for event in self.events for fault in checker.feed(event)] == []
        self.output: list[dict[str, Any]] = [json.loads(raw) for raw in self.assembler.output]
        assert player.open_now == 0
        if hosted is not None:
            assert hosted.closed == 1
            assert hosted.open_now == 0

    async def _read(self) -> None:
        stream = stream_steps(
            self.player,
            self._ask,
            toolbox=self._toolbox,
            hosted=self.hosted,
            assembler=self.assembler,
            warnings=self.warnings,
            grammars=self._grammars,
        )
        try:
            async for batch in stream:
                self.batches.append(batch)
                self.assembler.feed(batch)
                if len(self.batches) == self._stop_after:
                    break
        finally:
            await stream.aclose()
            if self._grammars is not None:
                await self._grammars.close()

    @property
    def kinds(self) -> list[str]:
        return [item["type"] for item in self.output]

    @property
    def codes(self) -> list[str]:
        return [code for code, _ in [*self.warnings, *self.assembler.warnings]]

    @property
    def status(self) -> str:
        assert self.assembler.outcome is not None
        return self.assembler.outcome.status

    def show(self, number: int) -> list[dict[str, Any]]:
        """What the model was shown, without ids, when it was asked for this time (from 0)."""
        pieces = b",".join(self.player.asks[number].transcript)
        return [
            {key: value for key, value in item.items() if key != "id"}
            for item in json.loads(b"[" + pieces + b"]")
        ]

    def check_prompts(self) -> None:
        """Each prompt holds the bytes that a later round will have for the same items."""
        whole = [decode_stored_item(raw) for raw in self.assembler.output]
        later = self.player.transcribe(whole, Profile(), at_start=False).body
        for ask in self.player.asks[1:]:
            assert ask.transcript[0] == START
            assert later.startswith(b",".join(ask.transcript[1:]))


def call(name: str, arguments: str = "{}", index: int = 0, call_id: str = "") -> CallDelta:
    return CallDelta(index, call_id or f"call_{name}", name, arguments)


def text(said: str) -> list[Any]:
    return [Opened(), TextDelta(said), STOP]


# The plain path.


def test_a_plain_response_is_the_backends_own_stream() -> None:
    """Ours: what needs no steps pays for none."""
    player = Player(text("Hi"))
    stream = stream_steps(
        player,
        Ask(model="m", profile=Profile()),
        toolbox=Toolbox(offered=(offer("f"), offer("c", "custom"))),
        hosted=None,
        assembler=Run(Player(text("x"))).assembler,
        warnings=[],
    )
    assert stream.ag_code is Player.stream.__code__  # type: ignore[attr-defined]


# Hosted tools.


def test_a_hosted_call_is_run_and_the_model_goes_on() -> None:
    """Responses API 4.3: the call is an item of the same response, then comes the answer."""
    usage = BackendUsage(10, 5, cached_tokens=1), BackendUsage(30, 7, cached_tokens=2)
    player = Player(
        [Opened(), TextDelta("Look."), call("find", '{"q":1}'), Finished("stop", usage[0])],
        [Opened(), TextDelta("Found."), Finished("stop", usage[1])],
    )
    run = Run(player, offer("f"), hosted=Hosted("find"))
    assert run.kinds == ["message", "mcp_call", "message"]
    assert run.hosted is not None
    assert run.hosted.ran == [("find", '{"q":1}')]
    assert run.status == "completed"
    assert [tool.name for tool in player.asks[0].tools] == ["f", "find"]
    run.check_prompts()
    assert [item.get("output") for item in run.show(1)[1:]] == [None, "out"]
    outcome = run.assembler.outcome
    assert outcome is not None
    assert outcome.usage == BackendUsage(40, 12, cached_tokens=3)
    assert (outcome.first_prompt_tokens, outcome.last_prompt_tokens) == (10, 30)
    assert run.codes == []


def test_a_call_in_pieces_is_run_whole_and_never_handed_out() -> None:
    """Ours: the client never sees a call that it cannot answer."""
    player = Player(
        [
            Opened(),
            CallDelta(0, "a", "", ""),
            CallDelta(0, "", "find", '{"q"'),
            CallDelta(0, "", "", ":1}"),
            STOP,
        ],
        text("Found."),
    )
    run = Run(player, hosted=Hosted("find"))
    assert run.hosted is not None
    assert run.hosted.ran == [("find", '{"q":1}')]
    assert run.kinds == ["mcp_call", "message"]


def test_lists_of_tools_come_first_and_the_response_has_begun() -> None:
    """Responses API 4.3; the backend's contract: `Opened` comes first, and once."""
    run = Run(Player(text("Hi")), hosted=Hosted("find", lists=True))
    assert run.batches[0] == [Opened()]
    assert sum(Opened() in batch for batch in run.batches) == 1
    assert run.kinds == ["mcp_list_tools", "message"]
    assert run.player.asks[0].tool_choice == "auto"
    run.check_prompts()


def test_a_refusal_of_the_first_request_is_raised_unless_the_response_has_begun() -> None:
    """Contract of backends: before `Opened` it is raised, after it is an event."""
    refused = Hosted("find")
    with pytest.raises(BackendRateLimitError):
        Run(Player([BackendRateLimitError()]), hosted=refused)
    assert refused.closed == 0, "the same response may be asked for again"
    run = Run(Player([BackendRateLimitError("Wait.")]), hosted=Hosted("find", lists=True))
    assert run.status == "failed"
    assert isinstance(run.batches[-1][-1], Failed)


def test_a_refusal_of_a_later_request_is_an_event() -> None:
    """Contract of backends: after the first event, failure is an event; the items stay."""
    run = Run(Player([Opened(), call("find"), STOP], [BackendRateLimitError()]), hosted=Hosted("find"))
    assert (run.kinds, run.status) == (["mcp_call"], "failed")


def test_a_clients_call_ends_the_response_after_the_hosted_ones() -> None:
    """Ours: the client has to act, and finds everything else done."""
    player = Player([Opened(), call("find"), call("f", index=1), call("find", index=2), STOP])
    run = Run(player, offer("f"), hosted=Hosted("find"))
    assert run.kinds == ["function_call", "mcp_call", "mcp_call"]
    assert (len(player.asks), run.status) == (1, "completed")


def test_a_hidden_tools_call_does_not_end_the_response() -> None:
    """Responses API 2.3: it is dropped, so nobody has to act."""
    player = Player([Opened(), call("f"), call("find", index=1), STOP], text("Done."))
    run = Run(player, hosted=Hosted("find"), hidden=frozenset({"f"}))
    assert run.kinds == ["mcp_call", "message"]
    assert run.codes == ["hidden_call_dropped"]


def test_an_approval_ends_the_response() -> None:
    """Responses API 4.3: an item for each call, then the end; decided: that is complete without a text."""
    player = Player([Opened(), call("find"), call("find", index=1), STOP])
    run = Run(player, hosted=Hosted("find", asks=True))
    assert (run.kinds, run.status, len(player.asks)) == (["mcp_approval_request"] * 2, "completed", 1)
    assert run.codes == []


def test_beyond_the_limit_the_model_must_answer_without_hosted_tools() -> None:
    """Responses API 2, `max_tool_calls`: further attempts are ignored."""
    player = Player([Opened(), call("find"), call("find", index=1), STOP], text("Enough."))
    run = Run(player, offer("f"), hosted=Hosted("find", limit=1))
    assert run.kinds == ["mcp_call", "message"]
    assert [tool.name for tool in player.asks[1].tools] == ["f"]
    assert run.codes == ["hosted_call_dropped"]


def test_a_model_that_calls_on_beyond_the_limit_is_not_asked_for_ever() -> None:
    """Responses API 2, `max_tool_calls`: what was done stays done; who only calls on has not answered."""
    player = Player([Opened(), call("find"), STOP])
    run = Run(player, hosted=Hosted("find", limit=2))
    assert (run.kinds, run.status, len(player.asks)) == (["mcp_call"] * 2, "incomplete", 3)
    assert run.codes == ["hosted_call_dropped"]
    assert player.asks[-1].tool_choice == "none"


def test_steps_are_bounded() -> None:
    """Every loop is limited."""
    player = Player([Opened(), call("find"), STOP])
    run = Run(player, hosted=Hosted("find"))
    assert len(player.asks) == MAX_STEPS + 1
    assert run.kinds == ["mcp_call"] * MAX_STEPS
    assert run.codes == ["max_steps", "hosted_call_dropped"]
    assert run.status == "incomplete"


def test_an_empty_answer_after_a_hosted_call_is_not_complete() -> None:
    """Decided: an empty generation is never completed."""
    run = Run(Player([Opened(), call("find"), STOP], [Opened(), STOP]), hosted=Hosted("find"))
    assert (run.kinds, run.status) == (["mcp_call"], "failed")
    thought = [Opened(), ReasoningDelta("Hm."), STOP]
    run = Run(Player([Opened(), call("find"), STOP], thought), hosted=Hosted("find"))
    assert run.status == "incomplete"


def test_parallel_calls_are_off_for_hosted_tools_too() -> None:
    """Responses API 2, `parallel_tool_calls: false`: at most one call at a time."""
    player = Player([Opened(), call("find"), call("find", index=1), STOP], text("Done."))
    run = Run(player, hosted=Hosted("find"), parallel_tool_calls=False)
    assert run.kinds == ["mcp_call", "message"]
    assert run.codes == ["hosted_call_dropped"]


def test_the_output_limit_covers_all_steps() -> None:
    """Responses API 2, `max_output_tokens`: a bound for the response, not for a generation."""
    player = Player([Opened(), call("find"), Finished("stop", BackendUsage(10, 30))], text("Done."))
    Run(player, hosted=Hosted("find"), max_output_tokens=100)
    assert [ask.max_output_tokens for ask in player.asks] == [100, 70]
    player = Player([Opened(), call("find"), Finished("stop", BackendUsage(10, 30))])
    run = Run(player, hosted=Hosted("find"), max_output_tokens=30)
    assert (run.kinds, run.status, len(player.asks)) == (["mcp_call"], "incomplete", 1)
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.incomplete_reason == "max_output_tokens"


def test_a_hosted_call_that_was_cut_off_is_not_run() -> None:
    """Ours: half of its arguments say nothing."""
    run = Run(
        Player([Opened(), TextDelta("x"), call("find", '{"q'), Finished("length")]), hosted=Hosted("find")
    )
    assert run.hosted is not None
    assert (run.hosted.ran, run.codes, run.status) == ([], ["hosted_call_dropped"], "incomplete")


def test_a_forced_hosted_tool_is_forced_once() -> None:
    """Responses API 2.3 with hosted tools: after the forced call the model may answer."""
    player = Player(text("no"), [Opened(), call("find"), STOP], text("Found."))
    run = Run(player, hosted=Hosted("find"), choice="required", forced="find")
    assert [ask.forced_tool for ask in player.asks] == ["find", "find", None]
    assert [ask.tool_choice for ask in player.asks] == ["required", "required", "auto"]
    assert (run.kinds, run.codes) == (["mcp_call", "message"], ["tool_call_asked_again"])


def test_usage_that_was_not_told_is_not_made_up() -> None:
    """Decided: what a sum leaves out is said; a detail that one server call does not tell is untold."""
    usage = BackendUsage(10, 5, reasoning_tokens=2)
    player = Player([Opened(), call("find"), Finished("stop", usage)], text("Done."))
    run = Run(player, hosted=Hosted("find"))
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.usage == usage
    assert run.assembler.outcome.last_prompt_tokens is None
    assert run.codes == ["usage_partial"]
    player = Player(
        [Opened(), call("find"), Finished("stop", usage)],
        [Opened(), TextDelta("x"), Finished("stop", BackendUsage(1, 1))],
    )
    run = Run(player, hosted=Hosted("find"))
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.usage == BackendUsage(11, 6)


@pytest.mark.parametrize("stop_after", range(1, 9))
def test_closing_ends_whatever_runs(stop_after: int) -> None:
    """Contract of backends: closing the iterator cancels upstream, a running hosted call too."""
    player = Player(
        [Opened(), TextDelta("x"), call("find"), STOP], [Opened(), TextDelta("y"), TextDelta("z"), STOP]
    )
    run = Run(player, hosted=Hosted("find", lists=True), stop_after=stop_after)
    assert len(run.batches) == stop_after


def test_a_response_that_failed_is_not_asked_on() -> None:
    """Ours: nothing is spent on a response that is over."""
    late = [Opened(), call("find"), Failed(BackendError("x")), STOP]
    run = Run(Player(late), hosted=Hosted("find"))
    assert run.hosted is not None
    assert (run.hosted.ran, len(run.player.asks), run.status) == ([], 1, "failed")


def test_what_hosted_tools_have_to_say_is_said() -> None:
    """Promise 1."""
    hosted = Hosted("find")
    hosted.warnings.append(("tools_left_out", "x"))
    assert Run(Player(text("Hi")), hosted=hosted).codes == ["tools_left_out"]


@pytest.mark.parametrize("tools", ["native", "schema"])
def test_the_prompt_of_each_step_is_the_beginning_of_what_a_later_round_is_shown(tools: Any) -> None:
    """Ours: the model server's prompt cache stays warm from step to step and from round to round."""

    class ChatPlayer(Player):
        def transcribe(self, items: Any, profile: Profile, **told: Any) -> Segment:
            return transcribe(items, Profile(tools=tools), **told)

    player = ChatPlayer(
        [Opened(), ReasoningDelta("Hm."), TextDelta("Look."), call("find", '{"q":1}'), STOP],
        [Opened(), call("find", '{"q":2}'), call("find", '{"q":3}', index=1), STOP],
        [Opened(), TextDelta("And wait."), call("slow"), STOP],
        text("Found."),
    )
    run = Run(player, offer("slow", is_async=True), hosted=Hosted("find"))
    assert len(player.asks) == 4
    run.check_prompts()


# Async tools.


def test_the_model_goes_on_behind_async_calls() -> None:
    """Responses API 2.4: the item carries `async`, and the model goes on in the same response."""
    player = Player([Opened(), call("slow"), STOP], text("It is running."))
    run = Run(player, offer("slow", is_async=True))
    assert run.kinds == ["function_call", "message"]
    assert run.output[0]["async"] is True
    assert run.status == "completed"
    run.check_prompts()


def test_a_call_that_is_not_async_ends_the_response() -> None:
    """Responses API 2.4: for sync calls the client's output is needed first."""
    player = Player([Opened(), call("slow"), call("f", index=1), STOP])
    run = Run(player, offer("slow", is_async=True), offer("f"))
    assert (run.kinds, len(player.asks)) == (["function_call"] * 2, 1)


def test_async_continuations_are_bounded() -> None:
    """Every loop is limited."""
    player = Player([Opened(), call("slow"), STOP])
    run = Run(player, offer("slow", is_async=True))
    assert len(player.asks) == ASYNC_CONTINUATIONS + 1
    assert run.status == "completed"
    ids = [item["call_id"] for item in run.output]
    assert len(set(ids)) == len(ids)


def test_nothing_more_to_say_behind_an_async_call_is_complete() -> None:
    """Ours: the call is an answer."""
    run = Run(Player([Opened(), call("slow"), STOP], [Opened(), STOP]), offer("slow", is_async=True))
    assert (run.kinds, run.status) == (["function_call"], "completed")


# Calls that are checked first.

SHELL = offer("shell", "shell")
WORD = offer("word", "custom", grammar=GrammarFormat(syntax="regex", definition="[a-z]+"))


def test_a_call_that_does_not_fit_is_asked_for_once_more() -> None:
    """Ours: the model is told what is wrong; the client never sees the call that was."""
    player = Player(
        [Opened(), call("shell", '{"commands": "ls"}'), STOP],
        [Opened(), call("shell", '{"commands": ["ls"]}'), STOP],
    )
    run = Run(player, SHELL)
    assert run.kinds == ["shell_call"]
    assert run.codes == ["tool_call_asked_again"]
    assert run.status == "completed"
    said = run.show(1)[-1]["content"]
    assert '{"commands": "ls"}' in said
    assert "array" in said
    assert run.assembler.outcome is not None
    assert run.assembler.outcome.last_prompt_tokens is None


def test_a_call_that_does_not_fit_twice_is_dropped() -> None:
    """Decided: then the response ends as one without an answer does."""
    player = Player([Opened(), call("shell", "{}"), STOP])
    run = Run(player, SHELL)
    assert (run.output, run.status, len(player.asks)) == ([], "failed", 2)
    assert run.codes == ["tool_call_asked_again", "invalid_tool_call"]


def test_beside_other_things_a_call_that_does_not_fit_is_just_dropped() -> None:
    """Ours: what was handed out already is not asked for again."""
    player = Player([Opened(), TextDelta("Look."), call("shell", "{}"), STOP])
    run = Run(player, SHELL)
    assert (run.kinds, run.status, len(player.asks)) == (["message"], "completed", 1)
    assert run.codes == ["invalid_tool_call"]


def test_an_input_that_follows_its_grammar_is_handed_out() -> None:
    """Responses API 2.2, grammar formats."""
    player = Player([Opened(), CallDelta(0, "a", "word", '{"inp'), CallDelta(0, "", "", 'ut": "abc"}'), STOP])
    run = Run(player, WORD, grammars=GrammarChecker())
    assert [item["input"] for item in run.output] == ["abc"]
    assert run.codes == []


def test_an_input_that_does_not_follow_its_grammar_is_asked_for_once_more() -> None:
    """Ours: with the place and the reason."""
    player = Player(
        [Opened(), TextDelta("So:"), call("word", '{"input": "ab1"}'), STOP],
        [Opened(), call("word", '{"input": "abc"}'), STOP],
    )
    run = Run(player, WORD, grammars=GrammarChecker())
    assert run.kinds == ["message", "custom_tool_call"]
    assert run.output[1]["input"] == "abc"
    assert run.codes == ["tool_call_asked_again"]
    assert "line 1, column 3" in run.show(1)[-1]["content"]


def test_a_mismatch_is_reported_and_the_call_is_handed_out() -> None:
    """Ours: the client decides what it does with it."""
    player = Player([Opened(), call("word", '{"input": "ab1"}'), STOP])
    run = Run(player, WORD, grammars=GrammarChecker())
    assert [item["input"] for item in run.output] == ["ab1"]
    assert run.codes == ["tool_call_asked_again", "grammar_mismatch"]
    assert "word" in run.warnings[1][1]
    assert "line 1, column 3" in run.warnings[1][1]
    assert len(player.asks) == 2


def test_beside_other_calls_a_mismatch_is_only_reported() -> None:
    """Ours: those calls are the client's to answer now."""
    player = Player([Opened(), call("f"), call("word", '{"input": "1"}', index=1), STOP])
    run = Run(player, WORD, offer("f"), grammars=GrammarChecker())
    assert (run.kinds, len(player.asks)) == (["function_call", "custom_tool_call"], 1)
    assert run.codes == ["grammar_mismatch"]


@pytest.mark.parametrize(
    ("tool", "grammars"),
    [
        (WORD, None),
        (offer("word", "custom", grammar=GrammarFormat(syntax="regex", definition="(a|aa|a?)+")), 0.3),
    ],
)
def test_an_input_that_could_not_be_checked_is_handed_out(tool: OfferedTool, grammars: float | None) -> None:
    """Ours: a grammar never holds up a response; what was not checked is said."""
    player = Player([Opened(), call("word", json.dumps({"input": "a" * 50 + "b"})), STOP])
    checker = GrammarChecker(timeout_s=grammars) if grammars else None
    run = Run(player, tool, grammars=checker)
    assert run.kinds == ["custom_tool_call"]
    assert run.codes == ["grammar_unchecked"]


def test_an_input_that_was_cut_off_is_not_checked() -> None:
    """Responses API 4.5: it is incomplete, and so is the response."""
    run = Run(Player([Opened(), call("word", '{"input": "ab1'), Finished("length")]), WORD)
    assert run.output[0]["status"] == "incomplete"
    assert (run.status, run.codes) == ("incomplete", [])


@pytest.mark.parametrize("name", ["s__gone", "s.gone", "web_search", "functions.web_search"])
def test_a_hosted_call_that_cannot_be_run_is_never_handed_out(name: str) -> None:
    """Ours: no client has a tool that it did not declare as its own, so it could not answer."""
    settings: dict[str, Any] = {"hidden": frozenset({"web_search"}), "prefixes": ("s__",)}
    run = Run(Player([Opened(), call(name), STOP]), hosted=Hosted("s__find", lists=True), **settings)
    assert (run.kinds, run.status, run.codes) == (["mcp_list_tools"], "failed", ["hidden_call_dropped"])
    outcome = run.assembler.outcome
    assert outcome is not None
    assert outcome.error is not None
    assert "cannot be called in this response" in outcome.error.message
    # What is only like it is handed out as ever.
    run = Run(Player([Opened(), call("other__gone"), STOP]), **settings)
    assert (run.kinds, run.codes) == (["function_call"], [])


def test_a_call_that_makes_none_beside_a_hosted_one_is_no_dead_end() -> None:
    """Ours: the client has nothing to answer, so the model goes on with what was found."""
    player = Player([Opened(), call("find"), call("shell", "no", index=1), STOP], text("Done."))
    run = Run(player, offer("shell", "shell"), hosted=Hosted("find"))
    assert (run.kinds, run.status) == (["mcp_call", "message"], "completed")
    assert run.codes == ["invalid_tool_call"]
