"""Model servers for generated requests: they answer anything, differently for different prompts.

They know the two wire formats and no test. Invariant: the same request bytes get the same answer.
"""

import random
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.fake_upstream import (
    END,
    FakeUpstream,
    Reply,
    Request,
    make_chunk,
    make_event,
    make_head,
    make_json,
    make_response_stream,
)

CHAT_MODEL = "chatty"
RESPONSES_MODEL = "stateless"
#: A prompt that holds this is refused upstream.
FAILS = "upstream-fails"
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
RESPONSES_USAGE = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
#: Calls of these tools become items of their own only where their arguments fit.
FITTING = {
    "local_shell": ('{"command":["ls"]}',),
    "shell": ('{"commands":["ls"]}',),
    "apply_patch": ('{"operation":{"type":"delete_file","path":"a"}}', '{"type":"delete_file","path":"a"}'),
    "tool_search": ("{}", '{"query":"x"}'),
}


class Upstream(FakeUpstream):
    """A model server that also answers as a search engine."""

    def reply(self, request: Request) -> Reply:
        """Results for a search, else what the routes of models say."""
        if request.method == "GET" and request.path.startswith("/v1/search"):
            hit = {"url": "https://example.org/a", "title": "A page", "content": "Something was found."}
            return Reply([make_json({"query": "q", "results": [hit]})])
        return super().reply(request)


@asynccontextmanager
async def open_upstreams() -> AsyncIterator[tuple[Upstream, Upstream]]:
    """One that speaks Chat Completions, one that speaks Responses."""
    async with (
        Upstream(answer_chat, models=(CHAT_MODEL,)) as chat,
        Upstream(answer_responses, models=(RESPONSES_MODEL,)) as responses,
    ):
        yield chat, responses


def _read(request: Request) -> tuple[Any, random.Random] | None:
    try:
        body = request.json
    except msgspec.DecodeError:
        return None
    if FAILS.encode() in request.body or not isinstance(body, dict):
        return None
    return body, random.Random(zlib.crc32(request.body))


def _refuse() -> Reply:
    return Reply([make_json({"error": {"message": "It does not work.", "type": "server_error"}}, status=500)])


def _read_forced(body: dict[str, Any]) -> str:
    """The name of the tool that must be called, "any" where it may be any of them, "" where none must.

    These servers honour `tool_choice`: what becomes of one that does not is known, and no fault of ours.
    """
    chosen = body.get("tool_choice")
    if isinstance(chosen, dict):
        return str(chosen.get("function", chosen).get("name", "any"))
    return "any" if chosen == "required" else ""


def answer_chat(request: Request) -> Reply:
    """Text, reasoning, a call of an offered tool, a refusal, or an answer that is cut off."""
    read = _read(request)
    if read is None:
        return _refuse()
    body, choice = read
    if not body.get("stream"):
        message = {"role": "assistant", "content": "Yes."}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return Reply(
            [make_json({"id": "c", "object": "chat.completion", "choices": choices, "usage": USAGE})]
        )
    steps: list[Any] = [make_head()]
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    forced = _read_forced(body)
    if choice.random() < 0.3:
        steps.append(make_chunk({"reasoning_content": "Let me think."}))
    kind = choice.random()
    finish = "stop"
    if names and (kind < 0.6 or forced):
        name = forced if forced in names else choice.choice(names)
        arguments = choice.choice(FITTING.get(name) or ("{}", '{"x":1}', '{"input":"abc"}', "{broken", ""))
        call = {"index": 0, "id": "call_up", "type": "function"}
        call["function"] = {"name": name, "arguments": arguments}
        steps.append(make_chunk({"tool_calls": [call]}))
        finish = "tool_calls"
    elif kind < 0.9:
        steps += [make_chunk({"content": text}) for text in ("Some ", "words 😀", " {}")]
        finish = choice.choice(("stop", "stop", "length", "content_filter"))
    else:
        steps.append(make_chunk({"refusal": "I would rather not."}))
    steps.append(make_chunk({}, finish, usage=USAGE))
    return Reply([*steps, END])


def answer_responses(request: Request) -> Reply:
    """A message, a function call or reasoning, as a whole stream of the API."""
    read = _read(request)
    if read is None:
        return _refuse()
    body, choice = read
    names = [tool["name"] for tool in body.get("tools") or () if tool.get("type") == "function"]
    made: list[dict[str, Any]] = []
    if choice.random() < 0.3:
        sealed = {"type": "reasoning", "id": "rs_up", "summary": [], "encrypted_content": "gAAAAA-opaque"}
        made.append(sealed)
    forced = _read_forced(body)
    if names and (choice.random() < 0.6 or forced):
        call = {"type": "function_call", "id": "fc_up", "call_id": "call_up", "status": "completed"}
        name = forced if forced in names else choice.choice(names)
        made.append({**call, "name": name, "arguments": "{}"})
    else:
        text = {"type": "output_text", "text": "Some words 😀", "annotations": [], "logprobs": []}
        message = {"type": "message", "id": "msg_up", "role": "assistant", "status": "completed"}
        made.append({**message, "content": [text]})
    events = [
        make_event("response.created", response={"id": "resp_up", "status": "in_progress", "output": []})
    ]
    for index, item in enumerate(made):
        opened = {**item, "status": "in_progress"} if "status" in item else dict(item)
        if "content" in opened:
            opened["content"] = []
        events.append(make_event("response.output_item.added", output_index=index, item=opened))
        events.append(make_event("response.output_item.done", output_index=index, item=item))
    whole = {"id": "resp_up", "status": "completed", "output": made, "usage": RESPONSES_USAGE}
    events.append(make_event("response.completed", response=whole))
    return Reply(make_response_stream(*events))
