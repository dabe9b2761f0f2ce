"""The Responses dialect at work: a thin `stream()` between the two pure halves.

The server keeps nothing for us: every request holds the whole input and says `store: false`. It knows nothing of
our responses or storage.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

import aiohttp

from antiphon.backends import facts
from antiphon.backends.answer import AnswerReader
from antiphon.backends.endpoint import Endpoint, EndpointClient
from antiphon.backends.exchange import read_answer, read_error
from antiphon.backends.fact_book import FACTS_LIFETIME_S, FactBook
from antiphon.backends.interface import NO_CALLS, Ask, BackendEvent, ModelFacts, Opened, Relayed, Segment
from antiphon.backends.relaying import relay
from antiphon.backends.responses.decode import ResponsesDecoder
from antiphon.backends.responses.encode import SEALED_REASONING, encode_count, encode_request
from antiphon.backends.responses.quirks import find_quirks
from antiphon.backends.responses.transcript import transcribe
from antiphon.context import Profile
from antiphon.protocol.errors import BackendError, BackendRefusedError
from antiphon.protocol.items import Item

#: The last event repeats the whole output, which may hold images.
EVENT_BYTES = 64 << 20
#: How a server says that it has no such route: `input_tokens` may be taken for the id of a response.
_NO_ROUTE = frozenset({404, 405, 501})
#: How a model without sealed reasoning refuses to be asked for it.
_NOT_SEALED = "encrypted content is not supported"


class ResponsesBackend:
    """A model server that speaks Responses."""

    speaks_responses = True

    def __init__(self, endpoint: Endpoint, *, profile: Profile | None = None) -> None:
        self.name = endpoint.name
        self._client = EndpointClient(endpoint)
        self._book = FactBook(self._client, profile)
        #: Models that refused to be asked for sealed reasoning, and until when that is believed.
        self._unsealed: dict[str, float] = {}
        #: Until when it is believed that the server has no route that counts.
        self._uncounted_until = 0.0

    def transcribe(
        self,
        items: Sequence[Item],
        profile: Profile,
        *,
        at_start: bool,
        open_calls: Mapping[str, str] = NO_CALLS,
        async_calls: Collection[str] = (),
    ) -> Segment:
        """See `transcript.transcribe`: an item's form depends on the item alone."""
        return transcribe(items, profile)

    async def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        """One answer; see the interface's contract."""
        response = await self._ask(ask)
        try:
            if response.content_type == "text/html":
                raise BackendError("The model server answered with a web page; check the endpoint's url.")
            yield [Opened()]
            reader = AnswerReader(
                _make_decoder(ask),
                streamed=response.content_type != "application/json",
                event_bytes=EVENT_BYTES,
            )
            async for events in read_answer(self._client, response, reader):
                yield events
        finally:
            # Closes the connection unless the whole answer was read: that is what cancels upstream.
            response.close()

    async def _ask(self, ask: Ask) -> aiohttp.ClientResponse:
        """The head of the answer to an accepted request; raises what a refusal means."""
        sealed = self._unsealed.get(ask.model, 0.0) < time.monotonic()
        response = await self._post(ask, sealed_reasoning=sealed)
        if isinstance(response, aiohttp.ClientResponse):
            return response
        wants_sealed = ask.request is not None and SEALED_REASONING in ask.request.include
        if not sealed or wants_sealed or not _is_unsealed(response):
            raise response
        # We asked for it, the client did not: a model that does not reason has none.
        self._unsealed[ask.model] = time.monotonic() + FACTS_LIFETIME_S
        again = await self._post(ask, sealed_reasoning=False)
        if isinstance(again, aiohttp.ClientResponse):
            return again
        raise again

    async def _post(self, ask: Ask, *, sealed_reasoning: bool) -> aiohttp.ClientResponse | Exception:
        body = encode_request(ask, sealed_reasoning=sealed_reasoning)
        response = await self._client.post("/responses", body)
        if response.status == 200:
            return response
        try:
            return await read_error(
                self._client, response, model=ask.model, api="Responses interface", is_our_api=True
            )
        finally:
            response.close()

    async def count_tokens(self, ask: Ask) -> int | None:
        """Where the server has the route; one that answered that it has not is not asked again for a while."""
        path = find_quirks(ask.profile.name).count_path
        if path is None or time.monotonic() < self._uncounted_until:
            return None
        status, answer = await self._client.ask_small("POST", self._client.url + path, encode_count(ask))
        if status in _NO_ROUTE:
            self._uncounted_until = time.monotonic() + FACTS_LIFETIME_S
        return None if facts.is_estimate(answer) else facts.read_count(answer)

    async def list_models(self, *, fresh: bool = False) -> list[ModelFacts]:
        """See `FactBook.list_models`."""
        return await self._book.list_models(fresh=fresh)

    async def get_facts(self, model: str) -> ModelFacts:
        """See `FactBook.get_facts`."""
        return await self._book.get_facts(model)

    async def relay(self, path: str, body: bytes) -> Relayed:
        """See `relaying.relay`: such servers have the other API under the same base."""
        return await relay(self._client, path, body)

    async def close(self) -> None:
        """Close every connection to the server."""
        await self._book.close()
        await self._client.close()


def _make_decoder(ask: Ask) -> ResponsesDecoder:
    quirks = find_quirks(ask.profile.name)
    limit = ask.max_output_tokens
    if limit is None and ask.request is not None:
        limit = ask.request.max_output_tokens
    return ResponsesDecoder(
        window_tokens=ask.profile.window_tokens,
        max_output_tokens=limit,
        one_at_a_time=quirks.one_at_a_time,
        hides_cuts=quirks.hides_cuts,
        call_id_stem=f"call_{uuid.uuid4().hex[:24]}",
    )


def _is_unsealed(error: Exception) -> bool:
    return isinstance(error, BackendRefusedError) and _NOT_SEALED in error.message.lower()
