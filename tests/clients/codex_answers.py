"""What a chat model behind the server answers Codex: told by what is in the request, never by how many came.

Codex may ask the same again, so nothing here counts requests. Invariant: the same messages get the same answer.
"""

import json
from typing import Any

from tests.fake_upstream import END, Answer, Reply, Request, make_chunk, make_head, make_stream


def make_usage(tokens: int) -> dict[str, int]:
    """What a model server tells that the prompt was; the answer adds a little."""
    return {"prompt_tokens": tokens, "completion_tokens": 20, "total_tokens": tokens + 20}


USAGE = make_usage(900)


def read_messages(request: Request) -> list[dict[str, Any]]:
    """The messages of a Chat Completions request."""
    messages: list[dict[str, Any]] = request.json["messages"]
    return messages


def list_outputs(request: Request) -> list[str]:
    """What the tools of this turn answered: all since the last message of the user."""
    outputs: list[str] = []
    for message in reversed(read_messages(request)):
        if message["role"] == "user":
            break
        if message["role"] == "tool":
            content = message["content"]
            outputs.insert(0, content if isinstance(content, str) else json.dumps(content))
    return outputs


def list_tools(request: Request) -> list[str]:
    """The names of the functions that are offered."""
    return [tool["function"]["name"] for tool in request.json.get("tools", [])]


def call(name: str, arguments: dict[str, Any], call_id: str, *, text: str = "") -> Reply:
    """An answer that calls a function."""
    return Reply(call_steps(name, arguments, call_id, text=text))


def call_steps(
    name: str, arguments: dict[str, Any], call_id: str, *, text: str = "", usage: dict[str, int] = USAGE
) -> list[bytes]:
    """The pieces of such an answer: the head, words, the call, the end."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    called = {"index": 0, "id": call_id, "type": "function", "function": function}
    words = [make_chunk({"content": text})] if text else []
    ended = [make_chunk({}, "tool_calls"), make_chunk(usage=usage), END]
    return [make_head(), *words, make_chunk({"tool_calls": [called]}), *ended]


def say(*texts: str, usage: dict[str, int] = USAGE) -> Reply:
    """An answer in words."""
    return Reply(make_stream(*texts, usage=usage))


def call_in_turn(*calls: tuple[str, dict[str, Any]], said: str = "All done.") -> Answer:
    """The calls one after the other, each once the one before has its output; then words."""

    def answer(request: Request) -> Reply:
        done = len(list_outputs(request))
        if done >= len(calls):
            return say(said)
        name, arguments = calls[done]
        return call(name, arguments, f"call_{len(read_messages(request))}", text=f"Step {done}.")

    return answer


def run_in_turn(*commands: str, said: str = "All done.") -> Answer:
    """Shell commands one after the other, then words."""
    return call_in_turn(*(("exec_command", {"cmd": command}) for command in commands), said=said)
