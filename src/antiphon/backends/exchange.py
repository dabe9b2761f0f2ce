"""One request at an endpoint, from the status line to the last event: shared by all dialects over HTTP.

It moves bytes between the endpoint's client and a dialect's reader, and knows no dialect. Invariant: every
wait is bounded, and a response that was not read to its end is closed, which cancels upstream.
"""

import asyncio
from collections.abc import AsyncGenerator

import aiohttp

from antiphon.backends.answer import AnswerReader
from antiphon.backends.endpoint import EndpointClient, read_small
from antiphon.backends.interface import BackendEvent, Failed
from antiphon.backends.refusals import read_refusal
from antiphon.protocol.errors import AntiphonError

#: After the last event the end of the body is waited for this long, to keep the connection.
RELEASE_TIMEOUT_S = 0.25


async def read_answer(
    client: EndpointClient, response: aiohttp.ClientResponse, reader: AnswerReader
) -> AsyncGenerator[list[BackendEvent], None]:
    """The events of an accepted request, in batches of whatever has arrived; none of them is empty."""
    while not reader.ended:
        events = await _read_on(client, response, reader)
        if events:
            yield events
    await _release(response)


async def read_error(
    client: EndpointClient, response: aiohttp.ClientResponse, *, model: str, api: str
) -> AntiphonError:
    """Why the server refused; whose key it was is told in the log alone. `api`: what was asked for there."""
    try:
        body = await read_small(response)
    except (aiohttp.ClientError, TimeoutError, OSError):
        body = b""
    if response.status in (401, 403):
        client.log_refused_key(response.status)
    retry_after = response.headers.get("retry-after")
    return client.redact(read_refusal(response.status, body, model=model, retry_after=retry_after, api=api))


async def _read_on(
    client: EndpointClient, response: aiohttp.ClientResponse, reader: AnswerReader
) -> list[BackendEvent]:
    """What has arrived meanwhile; at the end of the body, or of the connection, the terminal event."""
    try:
        if reader.is_finished:
            async with asyncio.timeout(client.endpoint.end_timeout_s):
                piece = await response.content.readany()
        else:
            piece = await response.content.readany()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        events = reader.break_off(client.rename(error))
    else:
        events = reader.feed(piece) if piece else reader.close()
    if events and type(last := events[-1]) is Failed:
        client.redact(last.error)
    return events


async def _release(response: aiohttp.ClientResponse) -> None:
    """Read the few bytes behind the end, so that the connection goes back to the pool."""
    if response.content.is_eof():
        return
    try:
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await read_small(response)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return
