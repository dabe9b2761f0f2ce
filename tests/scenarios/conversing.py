"""Conversations in scenarios: made, filled and listed. It knows no scenario."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from antiphon.backends import Ask
from tests.scenarios.client import StrictClient
from tests.scenarios.serving import serve

SCRIPT: dict[str, Any] = {
    "rules": [
        {"after_output": True, "text": "Done."},
        {"when": "^refuse", "error": {"status": 400, "message": "Bad."}},
        {"when": "^break", "text": "Half an", "error": {"at": "after", "status": 500, "message": "Boom."}},
        {"when": "^call", "calls": [{"name": "look", "arguments": {}, "id": "call_1"}]},
        {"when": r"\?$", "act": "recall"},
        {"act": "note"},
    ]
}

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
LOCKED = "Another process is currently operating on this conversation. Please retry in a few seconds."
NODE = "a" * 36


def say(text: str, **fields: Any) -> dict[str, Any]:
    """A user's message."""
    return {"type": "message", "role": "user", "content": text, **fields}


async def new_conversation(client: StrictClient, *texts: str, **fields: Any) -> str:
    """The id of a new conversation that holds these messages."""
    answer = await client.send(
        "POST", "/v1/conversations", {"items": [say(text) for text in texts], **fields}
    )
    assert answer.status == 200, answer.body
    conversation_id: str = answer.body["id"]
    return conversation_id


async def list_texts(client: StrictClient, conversation_id: str) -> list[str]:
    """The texts of all messages of a conversation, oldest first."""
    return [
        item["content"][0]["text"] for item in await list_all(client, conversation_id) if "content" in item
    ]


async def list_all(client: StrictClient, conversation_id: str, **query: Any) -> list[dict[str, Any]]:
    """Every item, oldest first, page by page."""
    items: list[dict[str, Any]] = []
    after = ""
    while True:
        extra = "".join(f"&{name}={value}" for name, value in query.items())
        path = f"/v1/conversations/{conversation_id}/items?order=asc&limit=100{after}{extra}"
        page = (await client.send("GET", path)).body
        items += page["data"]
        if not page["has_more"]:
            return items
        after = f"&after={page['last_id']}"


def run(folder: Path, story: Callable[[StrictClient], Awaitable[None]]) -> None:
    """A story with a server as it is configured by default."""

    async def whole() -> None:
        async with asyncio.timeout(60), serve(folder, SCRIPT) as client:
            await story(client)

    asyncio.run(whole())


def show_asked(ask: Ask) -> str:
    """What the model was sent, as text."""
    return b",".join(ask.transcript).decode()
