"""The Chat Completions dialect at work: a thin `stream()` between the two pure halves.

It knows nothing of responses or storage.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence

import aiohttp

from antiphon.backends import facts
from antiphon.backends.answer import AnswerReader
from antiphon.backends.chat_completions.decode import ChatDecoder
from antiphon.backends.chat_completions.encode import encode_count, encode_request
from antiphon.backends.chat_completions.text_readers import make_text_reader
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.endpoint import Endpoint, EndpointClient
from antiphon.backends.exchange import read_answer, read_error
from antiphon.backends.fact_book import FactBook
from antiphon.backends.interface import NO_CALLS, Ask, BackendEvent, ModelFacts, Opened, Relayed, Segment
from antiphon.backends.relaying import relay
from antiphon.context import Profile
from antiphon.protocol.errors import AntiphonError, BackendError, ContextOverflowError
from antiphon.protocol.items import Item

#: Profile -> where that server counts the tokens of a prompt.
_COUNT_ROUTES = {"llama.cpp": "/v1/chat/completions/input_tokens", "vllm": "/tokenize"}


class ChatCompletionsBackend:
    """A model server that speaks Chat Completions."""

    speaks_responses = False

    def __init__(self, endpoint: Endpoint, *, profile: Profile | None = None) -> None:
        self.name = endpoint.name
        self._client = EndpointClient(endpoint)
        self._book = FactBook(self._client, profile)

    def transcribe(
        self,
        items: Sequence[Item],
        profile: Profile,
        *,
        at_start: bool,
        open_calls: Mapping[str, str] = NO_CALLS,
        async_calls: Collection[str] = (),
    ) -> Segment:
        """See `transcript.transcribe`."""
        return transcribe(items, profile, at_start=at_start, open_calls=open_calls, async_calls=async_calls)

    async def stream(self, ask: Ask) -> AsyncGenerator[list[BackendEvent], None]:
        """One answer; see the interface's contract."""
        response = await self._client.post("/chat/completions", encode_request(ask))
        try:
            if response.status != 200:
                raise await self._refusal(response, ask)
            if response.content_type == "text/html":
                raise BackendError("The model server answered with a web page; check the endpoint's url.")
            yield [Opened()]
            decoder = ChatDecoder(
                think_tags=ask.profile.think_tags,
                window_tokens=ask.profile.window_tokens,
                top_logprobs=ask.top_logprobs or 0,
                texts=make_text_reader(ask),
                names=frozenset(tool.name for tool in ask.tools),
            )
            reader = AnswerReader(decoder, streamed=response.content_type != "application/json")
            async for events in read_answer(self._client, response, reader):
                yield events
        finally:
            # Closes the connection unless the whole answer was read: that is what cancels upstream.
            response.close()

    async def _refusal(self, response: aiohttp.ClientResponse, ask: Ask) -> AntiphonError:
        error = await read_error(self._client, response, model=ask.model, api="chat completions")
        if isinstance(error, ContextOverflowError) and error.at_least:
            return await self._count_exactly(error, ask)
        return error

    async def _count_exactly(self, error: ContextOverflowError, ask: Ask) -> ContextOverflowError:
        """vLLM stops counting at its limit, but counts exactly when asked to."""
        try:
            count = await self.count_tokens(ask)
        except BackendError:
            return error
        if count is None:
            return error
        return ContextOverflowError(prompt_tokens=count, window_tokens=error.window_tokens)

    async def count_tokens(self, ask: Ask) -> int | None:
        """llama.cpp and vLLM count; others cannot be asked."""
        route = _COUNT_ROUTES.get(ask.profile.name)
        if route is None:
            return None
        url = self._book.root + route
        return facts.read_count(await self._client.ask_json("POST", url, encode_count(ask)))

    async def list_models(self, *, fresh: bool = False) -> list[ModelFacts]:
        """See `FactBook.list_models`."""
        return await self._book.list_models(fresh=fresh)

    async def get_facts(self, model: str) -> ModelFacts:
        """See `FactBook.get_facts`."""
        return await self._book.get_facts(model)

    async def relay(self, path: str, body: bytes) -> Relayed:
        """See `relaying.relay`."""
        return await relay(self._client, path, body)

    async def close(self) -> None:
        """Close every connection to the server."""
        await self._book.close()
        await self._client.close()
