"""pi, the coding agent from npm, as its users run it: its own folders, no terminal, our server behind it."""

import base64
import json
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.clients.between import Relay, relay_to, serve_upstream
from tests.clients.guides import ADDRESS, check_outputs, read_examples
from tests.clients.installed import find_node, find_node_package, make_path
from tests.docs.blocks import ROOT, read_blocks
from tests.fake_upstream import END, MODEL, Reply, Request, make_chunk, make_head, make_json, make_stream
from tests.scenarios.process import start_server

pytestmark = pytest.mark.clients

PI_S = 60.0
GUIDE = ROOT / "docs" / "guides" / "pi.md"
#: One red pixel.
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
TASK = "Write the word marmalade into word.txt, then show me the file."
STEPS = ("echo marmalade > word.txt && echo written", "cat word.txt")
USAGE = {"prompt_tokens": 700, "completion_tokens": 20, "total_tokens": 720}


def find_pi() -> list[str]:
    """The command."""
    return [str(find_node()), str(find_node_package("@earendil-works/pi-coding-agent") / "dist" / "cli.js")]


def write_models(folder: Path, text: str) -> None:
    """pi's description of models, in `folder/home`."""
    agent = folder / "home" / ".pi" / "agent"
    agent.mkdir(parents=True, exist_ok=True)
    (agent / "models.json").write_text(text, encoding="utf-8")


def run_command(folder: Path, arguments: list[str], *, status: int = 0) -> str:
    """What pi prints, run in `folder/project` with its home in `folder/home`."""
    (folder / "project").mkdir(exist_ok=True)
    environ = {"PATH": make_path(), "HOME": str(folder / "home"), "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
    done = subprocess.run(
        [*find_pi(), *arguments],
        cwd=folder / "project",
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PI_S,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def run_pi(folder: Path, url: str, *arguments: str, status: int = 0, **described: Any) -> str:
    """What pi prints with the server at this address as its provider."""
    models = [{"id": MODEL, **described}]
    provider = {"baseUrl": url, "api": "openai-responses", "apiKey": "none", "models": models}
    write_models(folder, json.dumps({"providers": {"antiphon": provider}}))
    return run_command(folder, ["--provider", "antiphon", "--model", MODEL, *arguments], status=status)


def answer_step_by_step(request: Request) -> Reply:
    """Each command of the task in turn, then words; any later question is answered by words."""
    messages = request.json["messages"]
    done = sum(message["role"] == "tool" for message in messages)
    if messages[-1]["role"] == "user" and done:
        return Reply(make_stream("The word was ", "marmalade.", usage=USAGE))
    if done == len(STEPS):
        return Reply(make_stream("It ", "is there.", usage=USAGE))
    arguments = json.dumps({"command": STEPS[done]})
    call = {"index": 0, "id": f"call_{done}", "type": "function"}
    call["function"] = {"name": "bash", "arguments": arguments}
    steps = [make_head(), make_chunk({"content": f"Step {done}."}), make_chunk({"tool_calls": [call]})]
    return Reply([*steps, make_chunk({}, "tool_calls"), make_chunk(usage=USAGE), END])


def list_untyped(relay: Relay) -> list[dict[str, Any]]:
    """The items that the program sent without saying what they are."""
    return [item for body in relay.sent for item in body["input"] if "type" not in item]


def read_messages(request: Request) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = request.json["messages"]
    return messages


def test_pi_runs_a_task_and_goes_on_with_the_session(tmp_path: Path) -> None:
    """Client: pi sends messages without `type`; all arrives at the model, and later rounds extend earlier ones."""
    find_pi()
    with (
        serve_upstream(answer_step_by_step) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        relay_to(server.url) as relay,
    ):
        assert run_pi(tmp_path, relay.url, "-p", TASK).strip() == "It is there."
        assert (tmp_path / "project" / "word.txt").read_text() == "marmalade\n"
        assert (
            run_pi(tmp_path, relay.url, "-c", "-p", "What was the word?").strip() == "The word was marmalade."
        )
        rounds = [read_messages(request) for request in upstream.asked]
    assert {item["role"] for item in list_untyped(relay)} >= {"user"}
    assert all(body["store"] is False and body["stream"] for body in relay.sent)
    assert len(rounds) == 4
    for earlier, later in pairwise(rounds):
        assert later[: len(earlier)] == earlier
    system, *rest = rounds[-1]
    assert system["role"] in ("system", "developer")
    assert str(tmp_path / "project") in system["content"]
    assert [message["role"] for message in rest] == [
        "user",
        *["assistant", "tool"] * len(STEPS),
        "assistant",
        "user",
    ]
    assert TASK in json.dumps(rest[0])
    assert [json.loads(call["function"]["arguments"]) for call in list_calls(rest)] == [
        {"command": step} for step in STEPS
    ]
    outputs = [json.dumps(message["content"]) for message in rest if message["role"] == "tool"]
    assert "written" in outputs[0]
    assert "marmalade" in outputs[1]
    said = [json.dumps(message.get("content")) for message in rest if message["role"] == "assistant"]
    assert all(f"Step {number}." in text for number, text in enumerate(said[:-1]))
    assert "It is there." in said[-1]


def list_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call for message in messages for call in message.get("tool_calls") or []]


def test_pi_tells_events_and_usage_as_the_server_told_them(tmp_path: Path) -> None:
    """Client: `--mode json` shows what pi read: the stop reasons, and the tokens of the model server."""
    find_pi()
    with (
        serve_upstream(answer_step_by_step) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        lines = run_pi(tmp_path, server.url, "--mode", "json", TASK).splitlines()
    ended = [
        event["message"]
        for event in map(json.loads, lines)
        if event["type"] == "message_end" and event["message"]["role"] == "assistant"
    ]
    assert [message["stopReason"] for message in ended] == ["toolUse", "toolUse", "stop"]
    assert {(message["usage"]["input"], message["usage"]["output"]) for message in ended} == {(700, 20)}


def test_a_model_that_reasons_gets_its_reasoning_back(tmp_path: Path) -> None:
    """Client: with `reasoning` pi asks for an effort and for sealed reasoning, and sends the seal back."""
    find_pi()

    def answer(request: Request) -> Reply:
        thought = make_chunk({"reasoning_content": "The user wants a word."})
        steps = make_stream("marmalade", usage=USAGE)
        return Reply([steps[0], thought, *steps[1:]])

    with (
        serve_upstream(answer) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
        relay_to(server.url) as relay,
    ):
        settings = {"reasoning": True}
        assert (
            run_pi(tmp_path, relay.url, "--thinking", "high", "-p", "A word?", **settings).strip()
            == "marmalade"
        )
        run_pi(tmp_path, relay.url, "-c", "-p", "Another?", **settings)
    first, second = relay.sent
    assert first["reasoning"]["effort"] == "high"
    assert "reasoning.encrypted_content" in first["include"]
    (sealed,) = [item for item in second["input"] if item.get("type") == "reasoning"]
    assert sealed["encrypted_content"]
    assert [message["role"] for message in read_messages(upstream.asked[-1])][1:] == [
        "user",
        "assistant",
        "user",
    ]


def test_an_image_reaches_the_model(tmp_path: Path) -> None:
    """Client: `@picture.png` is sent as an image of the user's message."""
    find_pi()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "dot.png").write_bytes(base64.b64decode(DOT))
    with (
        serve_upstream(lambda _: Reply(make_stream("A dot.", usage=USAGE))) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        said = run_pi(tmp_path, server.url, "-p", "@dot.png", "What is it?", input=["text", "image"])
    assert said.strip() == "A dot."
    content = read_messages(upstream.asked[-1])[-1]["content"]
    (image,) = [part for part in content if part["type"] == "image_url"]
    assert image["image_url"]["url"].startswith("data:image/")


def test_a_failure_is_shown_in_the_server_s_words(tmp_path: Path) -> None:
    """Client: what the model server refuses ends pi with its message, not with a parser's."""
    find_pi()
    refusal = make_json({"error": {"message": "No such thing as a word."}}, status=400)
    with (
        serve_upstream(lambda _: Reply([refusal])) as upstream,
        start_server(tmp_path, upstream=upstream.url) as server,
    ):
        said = run_pi(tmp_path, server.url, "-p", "A word?", status=1)
    assert "No such thing as a word." in said


def test_the_guide_shows_what_pi_prints(tmp_path: Path) -> None:
    """Ours: a reader who copies the file and the commands of the guide in order gets what it shows."""
    find_pi()
    (described,) = (block for block in read_blocks(GUIDE) if block.language == "json")
    commands = [example for example in read_examples("pi.md", "bash") if example.block.text.startswith("pi ")]
    with start_server(tmp_path) as server:
        write_models(tmp_path, described.text.replace(ADDRESS, server.url))
        outputs = [run_command(tmp_path, shlex.split(each.block.text)[1:]) for each in commands]
    assert len(commands) == 3
    check_outputs("pi.md", commands, outputs)
