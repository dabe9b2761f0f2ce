"""The toy model of the doubles, the events of an item, and ASGI in four functions.

It knows no state and no rule. Invariant: the same window gives the same answer.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import msgspec

from antiphon.checker.doubles.rules import Item

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_WORD = re.compile(r"(?:word|name) is (\w+)", re.IGNORECASE)
_QUESTION = re.compile(r"\bwords?\b.*\?|answer with", re.IGNORECASE | re.DOTALL)
_STORY = re.compile(r"\bvery long story\b", re.IGNORECASE)
_WEATHER = re.compile(r"\bweather\b", re.IGNORECASE)


def list_outputs(window: list[Item]) -> list[str]:
    return [item["call_id"] for item in window if item.get("type") == "function_call_output"]


def read_text(item: Item) -> str:
    if item["type"] == "function_call":
        return f"{item['name']} {item['arguments']}"
    content = item.get("output") if item["type"] == "function_call_output" else item.get("content")
    if isinstance(content, str):
        return content
    return " ".join(part.get("text") or part.get("refusal") or "" for part in content or [])


def wants_tool(window: list[Item]) -> bool:
    """Whether the last message is a task for a tool of its own accord."""
    return bool(window) and _WEATHER.search(read_text(window[-1])) is not None


def is_failing(window: list[Item]) -> bool:
    """Whether the last message asks for an answer that fails."""
    return bool(window) and read_text(window[-1]).startswith("Fail on purpose")


def is_refused(window: list[Item]) -> bool:
    """Whether the last message asks for a refusal."""
    return bool(window) and read_text(window[-1]).startswith("Refuse on purpose")


def is_long_task(window: list[Item]) -> bool:
    """Whether the last message asks for a long story."""
    return bool(window) and _STORY.search(read_text(window[-1])) is not None


def count_item(item: Item) -> int:
    return 4 + len(read_text(item).split())


def find_words(window: list[Item]) -> list[str]:
    """The words that a window tells."""
    told = [read_text(item) for item in window if item.get("role") != "assistant"]
    return [word for text in told for word in _WORD.findall(text)]


def answer(window: list[Item], instructions: str) -> str:
    words = [*_WORD.findall(instructions), *find_words(window)]
    last = window[-1] if window else {"type": "message", "content": ""}
    if _STORY.search(read_text(last)):
        return " ".join(["Once upon a time there was a lighthouse."] * 20)
    asked = last["type"] == "function_call_output" or _QUESTION.search(read_text(last))
    if not asked:
        return "Noted."
    return " ".join(dict.fromkeys(words)) or "I was told no word."


def stream_item(index: int, item: Item) -> Iterator[dict[str, Any]]:
    place: dict[str, Any] = {"output_index": index, "item_id": item["id"]}
    if item["type"] == "function_call":
        yield _added(index, {**item, "status": "in_progress", "arguments": ""})
        args = item["arguments"]
        yield {"type": "response.function_call_arguments.delta", **place, "delta": args}
        yield {
            "type": "response.function_call_arguments.done",
            **place,
            "name": item["name"],
            "arguments": args,
        }
    else:
        yield _added(index, {**item, "status": "in_progress", "content": []})
        for part_index, part in enumerate(item["content"]):
            spot = {**place, "content_index": part_index}
            if part["type"] == "refusal":
                yield from _stream_refusal(spot, part)
                continue
            text = part["text"]
            yield {"type": "response.content_part.added", **spot, "part": {**part, "text": ""}}
            for piece in re.findall(r"\S+\s*", text):
                yield {"type": "response.output_text.delta", **spot, "delta": piece, "logprobs": []}
            yield {"type": "response.output_text.done", **spot, "text": text, "logprobs": []}
            yield {"type": "response.content_part.done", **spot, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _stream_refusal(spot: dict[str, Any], part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = part["refusal"]
    yield {"type": "response.content_part.added", **spot, "part": {**part, "refusal": ""}}
    yield {"type": "response.refusal.delta", **spot, "delta": text}
    yield {"type": "response.refusal.done", **spot, "refusal": text}
    yield {"type": "response.content_part.done", **spot, "part": part}


def _added(index: int, item: Item) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


# ASGI in four functions.


def read_key(scope: Scope) -> str:
    """The key that a request came with."""
    sent: str = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
    return sent


async def live(receive: Receive, send: Send) -> None:
    while True:
        kind = (await receive())["type"]
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


async def read_body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


def as_http(send: Send) -> Send:
    """Sends the answer over HTTP to an upgrade that is not taken."""

    async def send_http(message: MutableMapping[str, Any]) -> None:
        await send({**message, "type": f"websocket.{message['type']}"})

    return send_http


async def send_json(send: Send, status: int, value: Any) -> None:
    await send_bytes(send, status, b"application/json", msgspec.json.encode(value))


async def send_bytes(send: Send, status: int, media: bytes, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", media)]})
    await send({"type": "http.response.body", "body": body})


async def send_events(send: Send, events: Iterator[dict[str, Any]]) -> None:
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    )
    for event in events:
        frame = b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(event))
        await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
