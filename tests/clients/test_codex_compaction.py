"""Real Codex leaves it to the server to compact, twice in one session, before a model server that knows Chat alone.

Each command that is to be run has a mark, and the model that answers runs the first one whose mark it does not see in
its window. So a compaction that loses something has a command run twice.
"""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from antiphon.context.sealed_window import HEADING
from antiphon.context.summary_texts import DEFAULT_TEXTS
from tests.clients.between import serve_upstream
from tests.clients.codex import Codex, make_codex
from tests.clients.codex_answers import call_steps, make_usage, read_messages, say
from tests.clients.codex_wire import Wire, tap
from tests.fake_upstream import Answer, FakeUpstream, Reply, Request, make_json
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

OVER_BOTH = pytest.mark.parametrize("websocket", [False, True], ids=["http", "websocket"])
FIRST = [f"mark-{tree}" for tree in ("ash", "birch", "cedar", "dogwood", "elm", "fir", "gum")]
SECOND = [f"mark-{tree}" for tree in ("hazel", "ilex", "juniper")]
#: Codex compacts once a response has told more tokens than this: after a few commands with long results.
LIMIT = 22_000
BYTES_PER_TOKEN = 4
PROMPT, AGAIN = "Plant the first trees, please.", "Now plant the rest of them."
FETCH_S = 10.0
#: The id of an item that was left out, as a window names it; what the client alone holds is told to be so.
NAMED = re.compile(r"\b((?:msg|fc|fco)_[0-9a-f-]{20,}+)(?![^\]]{0,30}not stored)")
SUMMARY = "Goal: plant trees."
SANDBOX = ("-s", "danger-full-access")
AT_LIMIT = ("-c", f"model_auto_compact_token_limit={LIMIT}")
AGAIN_OPTIONS = ("-c", 'sandbox_mode="danger-full-access"', *AT_LIMIT)


@pytest.fixture
def codex(tmp_path: Path) -> Iterator[Codex]:
    """Codex with a home of its own."""
    with make_codex(tmp_path / "project") as made:
        yield made


@pytest.fixture
def old_codex(tmp_path: Path) -> Iterator[Codex]:
    """Codex as it was when it compacted by a route of its own."""
    with make_codex(tmp_path / "project", is_old=True) as made:
        yield made


def is_summary(request: Request) -> bool:
    """Whether the model is asked to write a summary."""
    text = read_text(request)
    return json.dumps(DEFAULT_TEXTS.in_place)[1:-1] in text or json.dumps(DEFAULT_TEXTS.system)[1:-1] in text


def read_text(request: Request) -> str:
    """All that the model sees of the conversation."""
    return json.dumps(read_messages(request), ensure_ascii=False)


def find_marks(text: str) -> list[str]:
    """The marks in a text, each once, in the order of the work."""
    return [mark for mark in (*FIRST, *SECOND) if mark in text]


def plant(tool: str, *, wordy: bool) -> Answer:
    """A model that plants each tree once, and writes what is done into its summaries; it looks at nothing else.

    `wordy`: it says much beside its commands, so that removing their results does not suffice. Its last word before
    the second task tells more tokens than Codex allows, so that Codex compacts before that task.
    """

    def answer(request: Request) -> Reply:
        text = read_text(request)
        done = find_marks(text)
        if is_summary(request):
            return say(f"{SUMMARY} Planted: {', '.join(done)}.")
        left = [mark for mark in ([*FIRST, *SECOND] if AGAIN in text else FIRST) if mark not in done]
        tokens = len(request.body) // BYTES_PER_TOKEN
        if not left:
            return say("All planted.", usage=make_usage(tokens if AGAIN in text else tokens + LIMIT))
        command = f"echo {left[0]} >> trees.txt; seq -f '{left[0]} grows %g leaves' 1 400"
        more = {"cmd": command, "max_output_tokens": 8000}
        arguments = more if tool == "exec_command" else {"command": command}
        words = f"Here is what I think of {left[0]}. " + "It is a fine tree. " * (600 if wordy else 1)
        return Reply(call_steps(tool, arguments, f"call_{left[0]}", text=words, usage=make_usage(tokens)))

    return answer


def check_upstream(upstream: FakeUpstream, developer: str) -> None:
    """Whatever was compacted, the model server sees each thing once, and never loses a mark."""
    seen: list[str] = []
    for request in upstream.asked:
        text = read_text(request)
        marks = find_marks(text)
        assert marks[: len(seen)] == seen, "nothing that was done is lost"
        seen = marks
        assert text.count(json.dumps(HEADING)[1:-1]) <= 1, (
            "a later summary takes the place of the earlier one"
        )
        assert text.count(AGAIN) <= 1
        if is_summary(request):
            continue
        assert text.count(PROMPT) == 1, "what the user said first stands once in every window"
        assert text.count(developer) == 1, "no developer text stands twice"
        messages = read_messages(request)
        calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
        outputs = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
        assert calls == outputs, "calls and their results stay together"
        assert len(set(calls)) == len(calls)


def check_named(url: str, upstream: FakeUpstream) -> None:
    """What was left out, and is not told to be with the client alone, can be fetched by its id."""
    named = {found for request in upstream.asked for found in NAMED.findall(read_text(request))}
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=FETCH_S)
    try:
        missing = {}
        for each in sorted(named):
            connection.request("GET", f"{address.path}/items/{each}")
            reply = connection.getresponse()
            body = reply.read()
            if reply.status != 200:
                missing[each] = body
        assert missing == {}
    finally:
        connection.close()


def find_compacted(upstream: FakeUpstream) -> list[Request]:
    """The requests whose window begins with a summary."""
    heading = json.dumps(HEADING)[1:-1]
    return [
        request for request in upstream.asked if heading in read_text(request) and not is_summary(request)
    ]


def list_requests(wire: Wire, *, websocket: bool) -> list[dict[str, Any]]:
    """What Codex asked for, in order; warm-ups are left out."""
    bodies = [json.loads(body) for body in (wire.frames if websocket else wire.bodies)]
    return [body for body in bodies if body.get("generate") is not False]


def is_trigger(body: dict[str, Any]) -> bool:
    """Whether a request asks for a compaction."""
    return [item["type"] for item in body["input"][-1:]] == ["compaction_trigger"]


def check_wire(wire: Wire, *, websocket: bool) -> None:
    """Codex asked for compactions; each is followed by a request that has the item, and no id to go on from."""
    bodies = list_requests(wire, websocket=websocket)
    triggers = [place for place, body in enumerate(bodies) if is_trigger(body)]
    assert len(triggers) >= 2
    for place in triggers:
        after = bodies[place + 1]
        assert [item["type"] for item in after["input"]].count("compaction") == 1
        assert after.get("previous_response_id") is None
    if websocket:
        assert not wire.bodies
        assert bodies[triggers[0]]["previous_response_id"], (
            "the first trigger goes on from what the connection holds"
        )


@pytest.mark.parametrize("wordy", [False, True], ids=["elided", "summarised"])
@OVER_BOTH
def test_codex_compacts_twice_and_the_work_goes_on(
    codex: Codex, tmp_path: Path, websocket: bool, wordy: bool
) -> None:
    """Client: between two commands, then before the next thing that the user says; no command runs twice."""
    with (
        serve_upstream(plant("exec_command", wordy=wordy)) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        way = "--websocket" if websocket else "--no-websocket"
        codex.write_config(wire.url, "--window", "200000", "--remote-compaction", way)
        run = codex.run(PROMPT, *SANDBOX, *AT_LIMIT).expect_done()
        assert run.said[-1] == "All planted."
        assert codex.read_lines("trees.txt") == FIRST
        again = codex.run(AGAIN, *AGAIN_OPTIONS, resume=run.thread).expect_done()
        assert again.said[-1] == "All planted."
        check_named(server.url, upstream)
    assert codex.read_lines("trees.txt") == [*FIRST, *SECOND]
    check_wire(wire, websocket=websocket)
    check_upstream(upstream, "You are a coding agent.")
    summaries = [request for request in upstream.asked if is_summary(request)]
    if wordy:
        assert len(summaries) >= 2
        after = find_compacted(upstream)
        assert SUMMARY in read_text(after[0])
        assert len(read_text(after[0])) < len(read_text(summaries[0]))
    else:
        assert not summaries, "results of tools are removed without asking a model"


@OVER_BOTH
def test_both_compactions_can_fall_into_one_turn(codex: Codex, tmp_path: Path, websocket: bool) -> None:
    """Client: a long turn is compacted between its commands, and again when it has grown as large once more."""
    with (
        serve_upstream(plant("exec_command", wordy=True)) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        way = "--websocket" if websocket else "--no-websocket"
        codex.write_config(wire.url, "--window", "200000", "--remote-compaction", way)
        run = codex.run(f"{PROMPT} {AGAIN}", *SANDBOX, *AT_LIMIT).expect_done()
    assert run.said[-1] == "All planted."
    assert codex.read_lines("trees.txt") == [*FIRST, *SECOND]
    check_wire(wire, websocket=websocket)
    check_upstream(upstream, "You are a coding agent.")


def test_codex_compacts_at_nine_tenths_of_the_window_that_the_server_tells(
    codex: Codex, tmp_path: Path
) -> None:
    """Client: with what `codex-config` wrote and nothing else; the model server refuses what does not fit."""
    window = 26_000
    answer = plant("exec_command", wordy=True)
    names = {
        "ANTIPHON_MODELS__SMALL__ENDPOINT": "upstream",
        "ANTIPHON_MODELS__SMALL__MODEL": "fake-model",
        "ANTIPHON_MODELS__SMALL__PROFILE": "small",
        "ANTIPHON_PROFILES__SMALL__WINDOW_TOKENS": str(window),
    }

    def refuse_long(request: Request) -> Reply:
        if len(request.body) // BYTES_PER_TOKEN <= window:
            return answer(request)
        told = {
            "message": "This model's maximum context length is 26000 tokens.",
            "code": "context_length_exceeded",
        }
        return Reply([make_json({"error": told}, status=400)])

    with (
        serve_upstream(refuse_long) as upstream,
        start_server(tmp_path, None, upstream=upstream.url, **names) as server,
        tap(server.url) as wire,
    ):
        codex.write_config(wire.url, "--model", "small", "--remote-compaction")
        run = codex.run(f"{PROMPT} {AGAIN}", *SANDBOX).expect_done()
    assert run.said[-1] == "All planted."
    assert codex.read_lines("trees.txt") == [*FIRST, *SECOND]
    check_wire(wire, websocket=False)
    check_upstream(upstream, "You are a coding agent.")
    assert all(len(request.body) // BYTES_PER_TOKEN <= window for request in upstream.asked)


def test_a_compaction_survives_a_restart_and_another_model(codex: Codex, tmp_path: Path) -> None:
    """Ours: the sealed item is all that Codex keeps, and it is opened by a new process, under another name."""
    names = {
        "ANTIPHON_MODELS__OTHER__ENDPOINT": "upstream",
        "ANTIPHON_MODELS__OTHER__MODEL": "fake-model",
    }
    with serve_upstream(plant("exec_command", wordy=True)) as upstream:
        with start_server(tmp_path, upstream=upstream.url) as server:
            codex.write_config(server.url, "--window", "200000", "--remote-compaction")
            run = codex.run(PROMPT, *SANDBOX, *AT_LIMIT).expect_done()
        with start_server(tmp_path, None, upstream=upstream.url, **names) as server:
            codex.write_config(
                server.url, "--force", "--model", "other", "--window", "200000", "--remote-compaction"
            )
            again = codex.run(AGAIN, *AGAIN_OPTIONS, resume=run.thread)
    assert again.status == 0, (again.events, again.complaints)
    assert not again.failure
    assert codex.read_lines("trees.txt") == [*FIRST, *SECOND]
    # Where the model changes Codex itself repeats the first of its texts.
    check_upstream(upstream, "<skills_instructions>")


def test_a_model_that_writes_no_summary_does_not_stop_the_work(codex: Codex, tmp_path: Path) -> None:
    """Ours: the model server breaks off whenever it is asked for a summary; an extract by rule takes its place."""
    answer = plant("exec_command", wordy=True)

    def refuse_summaries(request: Request) -> Reply:
        return Reply([], end="close") if is_summary(request) else answer(request)

    with (
        serve_upstream(refuse_summaries) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.write_config(wire.url, "--window", "200000", "--remote-compaction")
        run = codex.run(PROMPT, *SANDBOX, *AT_LIMIT).expect_done()
    assert run.said[-1] == "All planted."
    assert codex.read_lines("trees.txt") == FIRST
    check_upstream(upstream, "You are a coding agent.")


def test_old_codex_compacts_by_the_route(old_codex: Codex, tmp_path: Path) -> None:
    """Client: Codex 0.92, with OpenAI as its provider's name, goes on with what /responses/compact answers."""
    codex = old_codex
    with (
        serve_upstream(plant("shell_command", wordy=True)) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        tap(server.url) as wire,
    ):
        codex.configure(wire.url, name="OpenAI", top=f"model_auto_compact_token_limit = {LIMIT}")
        run = codex.run(PROMPT).expect_done()
        again = codex.run(AGAIN, resume=run.thread).expect_done()
    assert again.said[-1] == "All planted."
    assert codex.read_lines("trees.txt") == [*FIRST, *SECOND]
    posted = [
        connection
        for connection in wire.connections
        if re.match(r"post \S*/responses/compact ", connection.head)
    ]
    assert len(posted) >= 2
    bodies = [json.loads(body) for body in wire.bodies]
    compactions = [body for body in bodies if "stream" not in body]
    assert [sorted(body) for body in compactions] == [["input", "instructions", "model"]] * len(posted)
    after = bodies[bodies.index(compactions[0]) + 1]
    assert [item["type"] for item in after["input"]].count("compaction") == 1
    for request in upstream.asked:
        text = read_text(request)
        assert text.count(PROMPT) == 1
        assert text.count(json.dumps(HEADING)[1:-1]) <= 1
