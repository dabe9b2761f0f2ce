"""One request at an endpoint, from the status line to the last event: shared by all dialects over HTTP.

It moves bytes between the endpoint's client and a dialect's reader, and knows no dialect. Invariant: every
wait is bounded, and a response that was not read to its end is closed, which cancels upstream.
"""

import asyncio
import time
from collections.abc import AsyncGenerator

import aiohttp

from antiphon.backends.answer import AnswerReader
from antiphon.backends.endpoint import EndpointClient, read_small
from antiphon.backends.interface import BackendEvent, Failed, Finished
from antiphon.backends.refusals import read_refusal
from antiphon.protocol.errors import AntiphonError, BackendTimeoutError

#: A server that sends comments alone is working on a long prompt: it is given this many times `idle_timeout_s`.
QUIET_FACTOR = 12
#: After the last event the end of the body is waited for this long, to keep the connection.
RELEASE_TIMEOUT_S = 0.25


async def read_answer(
    client: EndpointClient, response: aiohttp.ClientResponse, reader: AnswerReader
) -> AsyncGenerator[list[BackendEvent], None]:
    """The events of an accepted request, in batches of whatever has arrived; none of them is empty."""
    quiet_until = _limit_quiet(client)
    while not reader.ended:
        events = await _read_on(client, response, reader, quiet_until)
        if not reader.is_quiet:
            quiet_until = _limit_quiet(client)
        if events:
            yield events
    await _release(response)


async def read_error(
    client: EndpointClient,
    response: aiohttp.ClientResponse,
    *,
    model: str,
    api: str,
    is_our_api: bool = False,
) -> AntiphonError:
    """Why the server refused; whose key it was is told in the log alone. `api`: what was asked for there.

    `is_our_api`: what the server names in its error are our client's own parameters.
    """
    try:
        body = await read_small(response)
    except (aiohttp.ClientError, TimeoutError, OSError):
        body = b""
    if response.status in (401, 403):
        client.log_refused_key(response.status)
    retry_after = response.headers.get("retry-after")
    error = read_refusal(
        response.status, body, model=model, retry_after=retry_after, api=api, is_our_api=is_our_api
    )
    return client.redact(error)


async def _read_on(
    client: EndpointClient, response: aiohttp.ClientResponse, reader: AnswerReader, quiet_until: float
) -> list[BackendEvent]:
    """What has arrived meanwhile; at the end of the body, or of the connection, the terminal event.

    Past `quiet_until` it is over, though comments still come.
    """
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
        if reader.is_quiet and not reader.ended and time.monotonic() > quiet_until:
            limit_s = QUIET_FACTOR * client.endpoint.idle_timeout_s
            text = (
                f"The model server of endpoint '{client.endpoint.name}' sent only comments for {limit_s:g} s."
            )
            events = reader.break_off(BackendTimeoutError(text))
    if events and type(last := events[-1]) is Failed:
        client.redact(last.error)
    elif events and type(last) is Finished and last.warnings:
        last.warnings = tuple((code, client.hide_key(text)) for code, text in last.warnings)
    return events


def _limit_quiet(client: EndpointClient) -> float:
    return time.monotonic() + QUIET_FACTOR * client.endpoint.idle_timeout_s


async def _release(response: aiohttp.ClientResponse) -> None:
    """Read the few bytes behind the end, so that the connection goes back to the pool."""
    if response.content.is_eof():
        return
    try:
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await read_small(response)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return
