"""Background responses as a client has them: queued, polled, streamed from any number on.

It knows the routes and no scenario. Invariant: every wait is for an event or a status, never for a time.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.scenarios.client import Answer, StrictClient

ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})


async def queue(client: StrictClient, text: str = "go", **fields: Any) -> dict[str, Any]:
    """A background response that was just accepted."""
    answer = await client.post({"input": text, "background": True, **fields})
    assert answer.status == 200, answer.body
    response: dict[str, Any] = answer.body
    assert response["status"] == "queued"
    return response


async def poll(client: StrictClient, response_id: str, *statuses: str) -> dict[str, Any]:
    """The response once it has one of these statuses (any that ends it, unless some are named)."""
    while True:
        response: dict[str, Any] = (await client.retrieve(response_id)).body
        if response["status"] in (statuses or ENDED):
            return response
        assert response["status"] not in ENDED, response
        await asyncio.sleep(0.001)


async def cancel(client: StrictClient, response_id: str) -> Answer:
    """`POST /v1/responses/{id}/cancel`."""
    return await client.send("POST", f"/v1/responses/{response_id}/cancel")


def open_new(client: StrictClient, text: str = "go", **fields: Any) -> AbstractAsyncContextManager[Any]:
    """The frames of a new background stream."""
    body = {"model": "scripted", "input": text, "background": True, "stream": True, **fields}
    return client.open_frames("POST", "/v1/responses", body)


def open_again(client: StrictClient, response_id: str, after: int | None = None, **query: str) -> Any:
    """The frames of a background stream behind one number."""
    asked = {"stream": "true", **({} if after is None else {"starting_after": str(after)}), **query}
    rest = "&".join(f"{name}={value}" for name, value in asked.items())
    return client.open_frames("GET", f"/v1/responses/{response_id}?{rest}")


async def read_again(
    client: StrictClient, response_id: str, after: int | None = None, **query: str
) -> list[bytes]:
    """All of them."""
    async with open_again(client, response_id, after, **query) as frames:
        return [frame async for frame in frames]
