"""`antiphon ask` against a server that answers as it is told: calls, broken answers, what is remembered."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from antiphon.cli import run
from antiphon.cli.ask import render_call
from antiphon.cli.continuations import FILE_NAME, Continuation, load_continuations, name_place
from antiphon.config import find_user_folders
from tests.conformance.serving import find_closed_port

#: Until a server thread has ended.
STOP_S = 20.0
#: Words of the HTTP library and of Python that mean nothing to a person at a terminal.
INTERNALS = ("Error", "aiohttp", "Errno", "ssl:", "TransferEncoding", "payload", "Traceback")


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches the folders of the person who runs it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for kind in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "home" / kind.lower()))
    return tmp_path


class CannedServer(ThreadingHTTPServer):
    """Answers each POST with the next of its answers, and remembers the bodies."""

    daemon_threads = True

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        super().__init__(("127.0.0.1", 0), CannedHandler)
        self.answers = list(answers)
        self.bodies: list[Any] = []


class CannedHandler(BaseHTTPRequestHandler):
    """One exchange; the answer ends with the connection."""

    server: CannedServer

    def do_GET(self) -> None:
        """The list of models."""
        self._send(200, "application/json", '{"data": [{"id": "toy"}]}')

    def do_POST(self) -> None:
        """The next answer."""
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self._send(*self.server.answers.pop(0))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Silence."""

    def _send(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("x-request-id", "req_7")
        # A length of more than there is, when the text says that the connection breaks.
        text, broken, _ = text.partition("<broken>")
        self.send_header("content-length", str(len(text.encode()) + (100 if broken else 0)))
        self.end_headers()
        self.wfile.write(text.encode())
        self.close_connection = True


@contextmanager
def serve(*answers: tuple[int, str, str]) -> Iterator[CannedServer]:
    """The server, on a loopback port of its own."""
    with CannedServer(*answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(STOP_S)
            assert not thread.is_alive()


def stream(*events: dict[str, Any], end: str = "data: [DONE]\n\n") -> tuple[int, str, str]:
    """The answer that streams these events."""
    frames = "".join(
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events)
    )
    return 200, "text/event-stream", frames + end


def delta(text: str) -> dict[str, Any]:
    """A piece of text."""
    return {
        "type": "response.output_text.delta",
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": text,
        "logprobs": [],
    }


def item(**members: Any) -> dict[str, Any]:
    """The end of an item."""
    return {"type": "response.output_item.done", "output_index": 0, "item": members}


def end(status: str = "completed", **members: Any) -> dict[str, Any]:
    """The end of a response."""
    return {"type": f"response.{status}", "response": {"id": "resp_1", "status": status, **members}}


CALL = item(
    type="function_call",
    id="fc_1",
    call_id="c",
    name="look_up",
    arguments='{"town":"Oslo"}',
    status="completed",
)


def ask(server: CannedServer, *arguments: str, host: str = "127.0.0.1") -> int:
    """`antiphon ask` at the server."""
    return run(["ask", "--url", f"http://{host}:{server.server_port}", *arguments])


def test_a_function_call_is_shown_with_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: an answer without text is no empty line."""
    with serve(stream(CALL, end())) as server:
        assert ask(server, "Where?") == 0
    assert capsys.readouterr().out == 'look_up({"town":"Oslo"})\n'


def test_a_call_after_text_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours."""
    with serve(stream(delta("Let me see."), CALL, end())) as server:
        assert ask(server, "Where?") == 0
    assert capsys.readouterr().out == 'Let me see.\nlook_up({"town":"Oslo"})\n'


@pytest.mark.parametrize(
    ("members", "shown"),
    [
        ({"type": "message", "content": []}, None),
        ({"type": "web_search_call", "status": "completed"}, None),
        ({"type": "custom_tool_call", "name": "run", "input": "ls"}, "run(ls)"),
        ({"type": "local_shell_call", "action": {"command": ["ls"]}}, 'local_shell_call({"command":["ls"]})'),
        ({"type": "mcp_approval_request", "name": "rm", "arguments": "{}"}, "rm({})"),
    ],
)
def test_what_waits_for_an_output_is_shown_and_nothing_else(
    members: dict[str, Any], shown: str | None
) -> None:
    """The item types of the API that a client answers with an item of its own."""
    assert render_call(members) == shown


def test_going_on_after_a_call_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: the server would only say that a call has no output."""
    with serve(stream(CALL, end())) as server:
        assert ask(server, "Where?") == 0
        assert ask(server, "-c", "And now?") == 2
        told = capsys.readouterr().err
        assert len(server.bodies) == 1
    for part in ("look_up", "waits for the output", "function_call_output", "resp_1", "without --continue"):
        assert part in told


def test_going_on_after_a_call_that_was_cut_off_is_possible() -> None:
    """An unfinished call is not shown to the model again, so it needs no output."""
    cut = {**CALL, "item": {**CALL["item"], "status": "incomplete"}}
    ending = end("incomplete", incomplete_details={"reason": "max_output_tokens"})
    with serve(stream(cut, ending), stream(delta("Yes."), end())) as server:
        assert ask(server, "Where?") == 0
        assert ask(server, "-c", "And now?") == 0
        assert server.bodies[1] == {
            "model": "toy",
            "input": "And now?",
            "previous_response_id": "resp_1",
            "stream": True,
        }


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            (500, "application/json", '{"error": {"message": "It broke."}}'),
            "500: It broke. (request id req_7)",
        ),
        (stream(end("failed", error={"message": "It broke."})), "antiphon: It broke. (request id req_7)"),
        (stream(delta("Half")), "the answer broke off"),
        (stream(delta("Half"), end="<broken>"), "the server closed the connection before the end"),
        ((200, "text/event-stream", "<broken>"), "the server closed the connection before the end"),
    ],
)
def test_a_failure_is_told_in_plain_words(
    answer: tuple[int, str, str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: with the id under which the server's log has it, and without names of libraries."""
    with serve(answer) as server:
        assert ask(server, "Hi") == 1
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.out in ("", "Half\n")
    for word in (*INTERNALS, "Start one with"):
        assert word not in shown.err
    assert load_continuations(find_user_folders().state) == {}


def test_a_refused_request_needs_no_request_id(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours: below 500 the message says what to change."""
    with serve((400, "application/json", '{"error": {"message": "No such model."}}')) as server:
        assert ask(server, "Hi") == 1
    assert capsys.readouterr().err == "antiphon: the server answered 400: No such model.\n"


@pytest.mark.parametrize(
    ("url", "told", "is_hinted"),
    [
        ("http://127.0.0.1:{port}", "nothing listens there", True),
        ("http://localhost:{port}", "nothing listens there", True),
        ("http://no-such-host.invalid:{port}", "no machine of this name is known", False),
    ],
)
def test_starting_a_server_is_proposed_on_this_machine_alone(
    url: str, told: str, is_hinted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: nobody starts a server on somebody else's machine."""
    assert run(["ask", "--url", url.format(port=find_closed_port()), "Hi"]) == 1
    shown = capsys.readouterr().err
    assert told in shown
    assert ("Start one with: antiphon serve" in shown) is is_hinted
    for word in INTERNALS:
        assert word not in shown


def test_a_key_that_is_missing_is_asked_for_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Ours."""
    error = '{"error": {"message": "You did not provide an API key.", "type": "invalid_request_error"}}'
    with serve((401, "application/json", error)) as server:
        assert ask(server, "Hi") == 1
    assert "--key-env" in capsys.readouterr().err


def test_a_key_that_the_server_does_not_know_is_told_by_its_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: whoever named a key is not told to name one."""
    monkeypatch.setenv("MY_KEY", "s3cret")
    error = '{"error": {"message": "Incorrect API key provided.", "type": "invalid_request_error"}}'
    with serve((401, "application/json", error)) as server:
        assert ask(server, "--key-env", "MY_KEY", "Hi") == 1
    assert "The key in MY_KEY is not known to this server." in capsys.readouterr().err


def test_a_server_is_the_same_however_it_is_spelled() -> None:
    """Ours: localhost and 127.0.0.1 are one server."""
    with serve(stream(delta("Yes."), end()), stream(delta("Yes."), end())) as server:
        assert ask(server, "Hi") == 0
        assert ask(server, "-c", "Hi", host="localhost") == 0
        assert server.bodies[1]["previous_response_id"] == "resp_1"


def test_each_key_has_a_conversation_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours: another key is another tenant; and no key is written anywhere."""
    monkeypatch.setenv("KEY_OF_ADA", "s3cret-ada")
    monkeypatch.setenv("KEY_OF_BEN", "s3cret-ben")
    with serve(stream(end(id="resp_ada")), stream(end(id="resp_ben")), stream(end())) as server:
        assert ask(server, "--key-env", "KEY_OF_ADA", "Hi") == 0
        assert ask(server, "-c", "--key-env", "KEY_OF_BEN", "Hi") == 2
        assert "nothing to continue" in capsys.readouterr().err
        assert ask(server, "-c", "Hi") == 2
        assert ask(server, "--key-env", "KEY_OF_BEN", "Hi") == 0
        assert ask(server, "-c", "--key-env", "KEY_OF_ADA", "Hi") == 0
        assert server.bodies[2]["previous_response_id"] == "resp_ada"
    assert "s3cret" not in (find_user_folders().state / FILE_NAME).read_text()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://localhost:8300/v1", "http://127.0.0.1:8300/v1"),
        ("http://[::1]:8300/v1", "http://127.0.0.1:8300/v1"),
        ("http://127.0.0.1:80/v1", "http://127.0.0.1/v1"),
        ("https://Box.example:443/a/v1", "https://box.example/a/v1"),
        ("http://[fe80::1]:1/v1", "http://[fe80::1]:1/v1"),
    ],
)
def test_a_place_is_named_by_what_it_reaches(url: str, place: str) -> None:
    """Ours."""
    assert name_place(url, None) == place
    assert name_place(url, "a") != name_place(url, "b")
    assert name_place(url, "a").startswith(place)


def test_what_was_remembered_before_calls_were_is_read(workplace: Path) -> None:
    """Ours: a file of an older version stays good."""
    (workplace / FILE_NAME).write_text('{"http://a/v1": {"response_id": "resp_1", "model": "m"}}')
    assert load_continuations(workplace) == {"http://a/v1": Continuation("resp_1", "m")}


def test_a_new_conversation_that_breaks_off_is_not_taken_for_the_one_before_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ours: `--continue` never goes on silently with a conversation that is not the last one."""
    with serve(stream(delta("one"), end()), stream(delta("two"), end="")) as server:
        assert ask(server, "First.") == 0
        assert ask(server, "A new one.") != 0
        assert ask(server, "--continue", "Go on.") == 2
        assert len(server.bodies) == 2
    assert "nothing to continue" in capsys.readouterr().err
