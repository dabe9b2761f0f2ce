"""Real Codex when something breaks: what it tries again, what it gives up on at once, and that no tool runs twice.

A fault of the model server happens once and is remembered by the test; everything else is told by the request.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import serve_upstream
from tests.clients.codex import Codex, Run, make_codex
from tests.clients.codex_answers import USAGE, call_steps, list_outputs, run_in_turn, say
from tests.clients.codex_wire import Connection, check_prefixes, tap
from tests.fake_upstream import Answer, Reply, Request, make_chunk, make_head, make_json, make_stream
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

OVER_BOTH = pytest.mark.parametrize("websocket", [False, True], ids=["http", "websocket"])
TASK = run_in_turn("echo one >> lines.txt", "wc -l lines.txt")
#: What llama.cpp says of a prompt that does not fit.
OVERFLOW = {
    "error": {
        "code": 400,
        "message": "the request exceeds the available context size, try increasing it",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 5000,
        "n_ctx": 4096,
    }
}
#: Longer than any pause between two signs of life, shorter than the silence of the model server.
IDLE_MS = 2500
SIGNS = 12
SIGN_S = 0.3


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Codex]:
    """Codex with a home of its own."""
    with make_codex(tmp_path / "project") as made:
        yield made


class Once:
    """A fault at the first request that it fits; afterwards everything is as it should be."""

    def __init__(
        self, fault: Reply, answer: Answer, *, fits: Callable[[Request], bool] = lambda _: True
    ) -> None:
        self.happened = 0
        self._fault = fault
        self._answer = answer
        self._fits = fits

    def __call__(self, request: Request) -> Reply:
        if not self.happened and self._fits(request):
            self.happened += 1
            return self._fault
        return self._answer(request)


def expect_recovered(run: Run) -> None:
    """The turn was completed, whatever was shown on the way."""
    assert run.status == 0, (run.events, run.complaints)
    assert run.find("turn.completed")
    assert not run.failure


@OVER_BOTH
@pytest.mark.parametrize("place", ["words", "call"])
def test_a_model_server_that_breaks_off_is_asked_again(
    codex: Codex, tmp_path: Path, websocket: bool, place: str
) -> None:
    """Client: `response.failed` in mid-stream is tried again; the tool that ran before does not run twice."""
    steps = call_steps("exec_command", {"cmd": "wc -l lines.txt"}, "call_2", text="Half a")
    broken = Reply(steps[:2] if place == "words" else steps[:3], end="reset")
    answer = Once(broken, TASK, fits=lambda request: len(list_outputs(request)) == 1)
    with (
        serve_upstream(answer) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, websocket=websocket)
        expect_recovered(codex.run("Do it."))
    assert answer.happened == 1
    assert codex.read_lines("lines.txt") == ["one"]
    if not websocket:
        # Once more than without the fault, unless the call had arrived: then its output is sent at once.
        assert len(wire.bodies) in ((4,) if place == "words" else (3, 4))


@OVER_BOTH
def test_half_a_call_runs_nothing(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: Codex runs what is done, whatever its status; half a command is no JSON, and the model is told so."""
    call = call_steps("exec_command", {"cmd": "echo one >> lines.txt"}, "call_half", text="Half a call.")
    half: dict[str, Any] = {"index": 0, "id": "call_half", "type": "function"}
    half["function"] = {"name": "exec_command", "arguments": '{"cmd": "echo one >> li'}
    broken = Reply([*call[:2], make_chunk({"tool_calls": [half]})], end="close")

    def answer(request: Request) -> Reply:
        ran = any("Process exited" in output for output in list_outputs(request))
        return say("All done.") if ran else Reply(call)

    with (
        serve_upstream(Once(broken, answer)) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        codex.configure(server.url, websocket=websocket)
        expect_recovered(codex.run("Do it."))
    assert codex.read_lines("lines.txt") == ["one"]
    assert not codex.read_lines("li")


@OVER_BOTH
def test_half_a_program_runs_nothing(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: the first line of a program is one itself; it must not run when the rest did not arrive."""
    program = "await tools.exec_command({cmd: 'echo one >> lines.txt'});\ntext('done');"
    call = call_steps("functions__exec", {"input": program}, "call_whole", text="Half a program.")
    half: dict[str, Any] = {"index": 0, "id": "call_half", "type": "function"}
    half["function"] = {"name": "functions__exec", "arguments": json.dumps({"input": program})[:-18]}
    broken = Reply([*call[:2], make_chunk({"tool_calls": [half]})], end="close")

    def answer(request: Request) -> Reply:
        return say("All done.") if list_outputs(request) else Reply(call)

    with (
        serve_upstream(Once(broken, answer)) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        entry = {"use_responses_lite": True, "tool_mode": "code_mode_only"}
        codex.configure(server.url, websocket=websocket, entry=entry)
        expect_recovered(codex.run("Do it."))
    assert codex.read_lines("lines.txt") == ["one"]


@OVER_BOTH
def test_a_connection_that_is_cut_behind_a_call_runs_no_tool_twice(
    codex: Codex, tmp_path: Path, websocket: bool
) -> None:
    """Client: the call has arrived and runs, the stream ends before `response.completed`; its output is sent next."""
    cut: list[Connection] = []

    def cut_once(connection: Connection) -> bool:
        """After the first call is whole."""
        pieces = connection.received.split(b'{"type":"response.output_item.done"')[1:]
        if not cut and any(b'"function_call"' in piece for piece in pieces):
            cut.append(connection)
            return True
        return False

    with (
        serve_upstream(TASK) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        wire.cut = cut_once
        codex.configure(wire.url, websocket=websocket)
        expect_recovered(codex.run("Do it."))
    assert len(cut) == 1
    assert codex.read_lines("lines.txt") == ["one"]
    if not websocket:
        check_prefixes(wire.bodies, "input")


@OVER_BOTH
def test_a_prompt_that_does_not_fit_ends_the_turn_at_once(
    codex: Codex, tmp_path: Path, websocket: bool
) -> None:
    """Client: `context_length_exceeded`, with status 400; Codex says so in its own words."""
    with (
        serve_upstream(lambda _: Reply([make_json(OVERFLOW, status=400)])) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, websocket=websocket)
        run = codex.run("Do it.")
    assert run.status == 1
    assert "ran out of room in the model's context window" in run.failure
    assert len(upstream.asked) == 1
    asked = [json.loads(body) for body in wire.frames or wire.bodies]
    assert len([body for body in asked if body.get("generate") is not False]) == 1


@OVER_BOTH
def test_a_model_that_there_is_not_ends_the_turn_at_once(
    codex: Codex, tmp_path: Path, websocket: bool
) -> None:
    """Client: `model_not_found` is not tried again, and the message names the models that there are."""
    with (
        serve_upstream(say_nothing) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, model="nobody", websocket=websocket)
        run = codex.run("Do it.")
    assert run.status == 1
    assert "fake-model" in run.failure
    assert not upstream.asked
    assert len(wire.bodies) <= 1


def say_nothing(_: Request) -> Reply:
    """An answer that nobody should ask for."""
    return say("Nothing.")


@OVER_BOTH
def test_a_model_server_that_is_down_for_a_moment_is_waited_for(
    codex: Codex, tmp_path: Path, websocket: bool
) -> None:
    """Client: 502 is tried again until the model server is back."""
    answer = Once(Reply([], end="reset"), TASK)
    with (
        serve_upstream(answer) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        codex.configure(server.url, websocket=websocket)
        expect_recovered(codex.run("Do it."))
    assert answer.happened == 1
    assert codex.read_lines("lines.txt") == ["one"]


@OVER_BOTH
@pytest.mark.parametrize("status", [429, 503])
def test_a_model_server_that_is_busy_is_waited_for(
    codex: Codex, tmp_path: Path, websocket: bool, status: int
) -> None:
    """Client: `retry-after` is passed on, and Codex waits that long; without it a 429 would end the turn."""
    refusal = {"error": {"message": "Too many requests.", "type": "rate_limit_error"}}
    answer = Once(Reply([make_json(refusal, status=status, extra="retry-after: 1\r\n")]), TASK)
    with (
        serve_upstream(answer) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        codex.configure(server.url, websocket=websocket)
        expect_recovered(codex.run("Do it."))
    assert answer.happened == 1
    assert codex.read_lines("lines.txt") == ["one"]


@OVER_BOTH
def test_an_answer_that_was_cut_short_is_told(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: `response.incomplete` with its reason; what there is of the answer is shown."""
    steps = [make_head(), make_chunk({"content": "Half an"}), make_chunk({}, "length")]
    cut = Reply([*steps, *make_stream(usage=USAGE)[2:]])
    with (
        serve_upstream(lambda _: cut) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        codex.configure(server.url, websocket=websocket)
        run = codex.run("Do it.")
    assert run.status == 1
    assert "max_output_tokens" in run.failure
    assert run.said == ["Half an"]
    assert len(upstream.asked) == 1


@OVER_BOTH
def test_a_model_without_counts_ends_its_turn(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: `usage` is null, never half: Codex would take a finished turn for one that broke off."""
    with (
        serve_upstream(lambda _: Reply(make_stream("Done."))) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        codex.configure(server.url, websocket=websocket)
        run = codex.run("Do it.").expect_done()
    assert run.said == ["Done."]
    assert len(upstream.asked) == 1


@OVER_BOTH
def test_signs_of_life_keep_a_slow_answer_alive(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: Codex counts events alone; a model that thinks longer than its patience is not asked twice."""
    go_on = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    slow = make_stream("Done.", usage=USAGE)

    def answer(_: Request) -> Reply:
        loops.append(asyncio.get_running_loop())
        return Reply([slow[0], go_on, *slow[1:]])

    def watch(connection: Connection) -> bool:
        """Let the model speak once there were so many signs of life."""
        if connection.received.count(b'"type":"response.in_progress"') > SIGNS:
            loops[0].call_soon_threadsafe(go_on.set)
        return False

    with (
        serve_upstream(answer) as upstream,
        start_server(tmp_path, upstream=upstream.url, ANTIPHON_LIMITS__KEEP_ALIVE_S=str(SIGN_S)) as server,
        tap(server.url) as wire,
    ):
        wire.cut = watch
        patience = f"stream_idle_timeout_ms = {IDLE_MS}\nstream_max_retries = 2"
        codex.configure(wire.url, websocket=websocket, provider=patience)
        run = codex.run("Do it.").expect_done()
    assert run.said == ["Done."]
    assert len(upstream.asked) == 1
