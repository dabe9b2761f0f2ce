"""curl: every command of its guide, and the ways of HTTP that it has and no SDK uses."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, read_blocks
from tests.docs.session import Session
from tests.docs.session import start_server as start_documented_server
from tests.scenarios.process import BOUND_S, ServerProcess, start_server

pytestmark = pytest.mark.clients

GUIDE = ROOT / "docs" / "guides" / "curl.md"
JSON = ("-H", "content-type: application/json")
SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": "^hang", "text": "one two three", "pause_s": 300},
        {"when": "^slowly", "text": "one two three four", "pause_s": 0.02},
        {"act": "note"},
    ]
}


def find_curl() -> str:
    """The program of this machine."""
    found = shutil.which("curl")
    if found is None:
        pytest.skip("this machine has no curl (on Debian: apt-get install curl)")
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of this module."""
    find_curl()
    with start_server(tmp_path_factory.mktemp("curl"), SCRIPT) as running:
        yield running


def run_curl(*arguments: str, body: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """curl, run to its end; `@-` in its arguments reads the body."""
    command = [find_curl(), "-sS", "--max-time", str(BOUND_S), *arguments]
    return subprocess.run(command, input=body, capture_output=True, timeout=2 * BOUND_S, check=False)


def test_every_command_of_the_guide_runs(tmp_path: Path) -> None:
    """Ours: no block with a curl command is left out, and each prints what the guide shows."""
    find_curl()
    blocks = read_blocks(GUIDE)
    for block in blocks:
        assert block.language in ("sh", "console") or "curl " not in block.text, block.line
    (tmp_path / "server").mkdir()
    shared = start_documented_server(["--scripted"], tmp_path / "server")
    try:
        session = Session(tmp_path, shared, blocks)
        for block in blocks:
            session.run(block)
    finally:
        shared.stop()


@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_every_version_of_http_is_answered(server: ServerProcess, version: str, stream: bool) -> None:
    """RFC 9112: an answer without chunks for HTTP/1.0."""
    request = {"model": "scripted", "input": "Remember this word: plum.", "stream": stream}
    done = run_curl(version, "-N", *JSON, "-d", json.dumps(request), f"{server.url}/responses")
    assert done.returncode == 0, done.stderr
    assert b'"text":"Noted: plum."' in done.stdout
    assert done.stdout.endswith(b"data: [DONE]\n\n") == stream


def test_an_offer_of_http_2_is_answered_with_the_remedy(server: ServerProcess) -> None:
    """Ours: the offer takes the body with it, which is said; without a body it changes nothing."""
    request = json.dumps({"model": "scripted", "input": "Hello."})
    done = run_curl("--http2", *JSON, "-d", request, f"{server.url}/responses")
    assert "curl --http1.1" in json.loads(done.stdout)["error"]["message"]
    listed = run_curl("--http2", f"{server.url}/models")
    assert json.loads(listed.stdout)["object"] == "list"


@pytest.mark.parametrize("extra", [(), ("-H", "expect: 100-continue"), ("-H", "transfer-encoding: chunked")])
def test_a_large_body_arrives_however_it_is_sent(server: ServerProcess, extra: tuple[str, ...]) -> None:
    """RFC 9110 10.1.1: curl waits for `100 Continue` before a large body; without a length it sends chunks."""
    word = "w" * 3_000_000
    body = json.dumps({"model": "scripted", "input": f"Remember this word: {word}."}).encode()
    done = run_curl(*JSON, *extra, "--data-binary", "@-", f"{server.url}/responses", body=body)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["output"][0]["content"][0]["text"] == f"Noted: {word}."


def test_a_body_that_is_too_large_is_refused_in_words(tmp_path: Path) -> None:
    """Ours: 413 with the error's shape, though the body is never read to its end."""
    find_curl()
    with start_server(tmp_path, SCRIPT, ANTIPHON_LIMITS__BODY_BYTES="100000") as small:
        body = json.dumps({"model": "scripted", "input": "w" * 3_000_000}).encode()
        done = run_curl(*JSON, "--data-binary", "@-", f"{small.url}/responses", body=body)
    assert json.loads(done.stdout)["error"]["type"] == "invalid_request_error", done.stderr


def test_many_requests_go_over_one_connection(server: ServerProcess) -> None:
    """RFC 9112 9.3: connections stay, after refusals and streams too; curl counts those that it made."""
    arguments: list[str] = []
    for number, model in enumerate(["scripted", "nobody", "scripted"]):
        request = {"model": model, "input": "Remember this word: plum.", "stream": number == 2}
        arguments += ["--next"] if number else []
        arguments += ["-sS", "-o", "/dev/null", "-w", "%{http_code} %{num_connects}\n", *JSON]
        arguments += ["-d", json.dumps(request), f"{server.url}/responses"]
    assert run_curl(*arguments).stdout.decode().splitlines() == ["200 1", "400 0", "200 0"]


def test_a_curl_that_is_stopped_ends_its_response(server: ServerProcess) -> None:
    """Decided: the client's leaving cancels what runs for it, and is seen in the stored response."""
    request = json.dumps({"model": "scripted", "input": "hang", "stream": True})
    command = [find_curl(), "-sSN", *JSON, "-d", request, f"{server.url}/responses"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            lines = (line for line in running.stdout if line.startswith(b"data: "))
            response_id = json.loads(next(lines).removeprefix(b"data: "))["response"]["id"]
        finally:
            running.kill()
    # It cannot be read before it has ended.
    reads = (json.loads(run_curl(f"{server.url}/responses/{response_id}").stdout) for _ in range(1000))
    assert next(read["status"] for read in reads if "status" in read) == "cancelled"


def test_a_stream_is_resumed_where_it_was_left(server: ServerProcess) -> None:
    """Responses API 1.2: no gap and no duplicate between two runs of curl."""
    request = json.dumps({"model": "scripted", "input": "slowly", "stream": True, "background": True})
    command = [find_curl(), "-sSN", *JSON, "-d", request, f"{server.url}/responses"]
    events: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        try:
            assert running.stdout is not None
            for line in running.stdout:
                if line.startswith(b"data: {"):
                    events.append(json.loads(line.removeprefix(b"data: ")))
                if events and events[-1]["type"] == "response.output_text.delta":
                    break
        finally:
            running.kill()
    response_id, last = events[0]["response"]["id"], events[-1]["sequence_number"]
    done = run_curl("-N", f"{server.url}/responses/{response_id}?stream=true&starting_after={last}")
    lines = [line for line in done.stdout.splitlines() if line.startswith(b"data: {")]
    events += [json.loads(line.removeprefix(b"data: ")) for line in lines]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "one two three four"
