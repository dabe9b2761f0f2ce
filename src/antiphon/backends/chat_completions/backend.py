"""The Chat Completions dialect at work: a thin `stream()` between the two pure halves.

It keeps what the server told of its models for a while; it knows nothing of responses or storage.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from antiphon.backends import facts
from antiphon.backends.chat_completions.answer import AnswerReader
from antiphon.backends.chat_completions.decode import ChatDecoder
from antiphon.backends.chat_completions.encode import encode_count, encode_request
from antiphon.backends.chat_completions.refusals import read_refusal
from antiphon.backends.chat_completions.text_readers import make_text_reader
from antiphon.backends.chat_completions.transcript import transcribe
from antiphon.backends.endpoint import Endpoint, EndpointClient, read_small
from antiphon.backends.interface import NO_CALLS, Ask, BackendEvent, Failed, ModelFacts, Opened, Segment
from antiphon.backends.profiles import PROFILES
from antiphon.context import Profile
from antiphon.protocol.errors import AntiphonError, BackendError, ContextOverflowError
from antiphon.protocol.items import Item

#: How long a server's word about itself is believed.
FACTS_LIFETIME_S = 60.0
#: After a failed look the server is asked again this soon.
RETRY_FACTS_S = 2.0
#: After the last event the end of the body is waited for this long, to keep the connection.
RELEASE_TIMEOUT_S = 0.25
#: Profile -> where that server counts the tokens of a prompt.
_COUNT_ROUTES = {"llama.cpp": "/v1/chat/completions/input_tokens", "vllm": "/tokenize"}


class ChatCompletionsBackend:
    """A model server that speaks Chat Completions."""

    def __init__(self, endpoint: Endpoint, *, profile: Profile | None = None) -> None:
        self.name = endpoint.name
        self._client = EndpointClient(endpoint)
        self._given_profile = profile
        self._models: list[ModelFacts] = []
        self._models_until = 0.0
        self._models_read = 0.0
        self._facts: dict[str, tuple[float, ModelFacts]] = {}
        self._fact_looks: dict[str, asyncio.Task[ModelFacts]] = {}
        self._failure: tuple[float, BackendError] | None = None
        self._look: asyncio.Task[list[ModelFacts]] | None = None

    def transcribe(
        self,
        items: Sequence[Item],
        profile: Profile,
        *,
        at_start: bool,
        open_calls: Mapping[str, str] = NO_CALLS,
    ) -> Segment:
        """See `transcript.transcribe`."""
        return transcribe(items, profile, at_start=at_start, open_calls=open_calls)

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
            )
            reader = AnswerReader(decoder, streamed=response.content_type != "application/json")
            while not reader.ended:
                events = await self._read_on(response, reader)
                if events:
                    yield events
            await _release(response)
        finally:
            # Closes the connection unless the whole answer was read: that is what cancels upstream.
            response.close()

    async def _read_on(self, response: aiohttp.ClientResponse, reader: AnswerReader) -> list[BackendEvent]:
        """What has arrived meanwhile; at the end of the body, or of the connection, the terminal event."""
        try:
            if reader.is_finished:
                async with asyncio.timeout(self._client.endpoint.end_timeout_s):
                    piece = await response.content.readany()
            else:
                piece = await response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            events = reader.break_off(self._client.rename(error))
        else:
            events = reader.feed(piece) if piece else reader.close()
        if events and type(last := events[-1]) is Failed:
            self._client.redact(last.error)
        return events

    async def _refusal(self, response: aiohttp.ClientResponse, ask: Ask) -> AntiphonError:
        try:
            body = await read_small(response)
        except (aiohttp.ClientError, TimeoutError, OSError):
            body = b""
        if response.status in (401, 403):
            self._client.log_refused_key(response.status)
        error = read_refusal(
            response.status, body, model=ask.model, retry_after=response.headers.get("retry-after")
        )
        self._client.redact(error)
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
        return facts.read_count(await self._client.ask_json("POST", self._root() + route, encode_count(ask)))

    async def list_models(self, *, fresh: bool = False) -> list[ModelFacts]:
        """The server's own list, kept for a while; whoever asks meanwhile shares one look."""
        now = time.monotonic()
        if now < self._models_until and not (fresh and now > self._models_read + RETRY_FACTS_S):
            return self._models
        if self._failure is not None and now < self._failure[0]:
            # It has just failed to answer; a second wait would tell nothing new.
            raise self._failure[1].with_traceback(None)
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._read_models())
            # Its failure is told to whoever waits; nobody may.
            self._look.add_done_callback(lambda task: task.cancelled() or task.exception())
        # A caller that is cancelled must not take the look from the others.
        return await asyncio.shield(self._look)

    async def _read_models(self) -> list[ModelFacts]:
        try:
            answer = await self._client.ask_json("GET", f"{self._client.url}/models")
        except BackendError as error:
            self._failure = (time.monotonic() + RETRY_FACTS_S, error)
            raise
        self._failure = None
        self._models = facts.read_models(answer, self._server_profile(answer))
        self._models_read = time.monotonic()
        self._models_until = self._models_read + (FACTS_LIFETIME_S if self._models else RETRY_FACTS_S)
        return self._models

    async def get_facts(self, model: str) -> ModelFacts:
        """Window, tools, eyes: read once for a while; a server that is down is asked again soon."""
        known = self._facts.get(model)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        look = self._fact_looks.get(model)
        if look is None or look.done():
            look = self._fact_looks[model] = asyncio.create_task(self._read_facts(model))
        if known is not None:
            # What it said before holds until it is read anew: nobody waits for that.
            return known[1]
        return await asyncio.shield(look)

    async def _read_facts(self, model: str) -> ModelFacts:
        known = self._facts.get(model)
        try:
            found = await self._look_up(model)
            lifetime = FACTS_LIFETIME_S
        except BackendError:
            # What it said before still holds, as far as anybody knows.
            found = known[1] if known else ModelFacts(name=model, profile=self._server_profile(None))
            lifetime = RETRY_FACTS_S
        self._facts[model] = (time.monotonic() + lifetime, found)
        return found

    async def _look_up(self, model: str) -> ModelFacts:
        models = await self.list_models()
        listed = next((each for each in models if each.name in (model, f"{model}:latest")), None)
        if listed is None:
            return ModelFacts(name=model, profile=self._server_profile(None))
        try:
            profile = await self._ask_server(listed)
        except BackendError:
            # Not every server lets every key see these routes.
            return listed
        return msgspec.structs.replace(listed, profile=profile)

    async def _ask_server(self, listed: ModelFacts) -> Profile:
        """Each kind of server has its own route that tells more than the list does."""
        profile = listed.profile
        root = self._root()
        if profile.name == "llama.cpp":
            return facts.read_llama_props(await self._client.ask_json("GET", f"{root}/props"), profile)
        if profile.name == "ollama":
            body = msgspec.json.encode({"model": listed.name})
            shown = await self._client.ask_json("POST", f"{root}/api/show", body)
            running = await self._client.ask_json("GET", f"{root}/api/ps")
            return facts.read_ollama_show(shown, running, listed.name, profile)
        if profile.name == "lm-studio":
            entry = await self._client.ask_json("GET", f"{root}/api/v0/models/{quote(listed.name)}")
            return facts.read_lm_studio_model(entry, profile)
        return profile

    def _server_profile(self, models: Any) -> Profile:
        return self._given_profile or PROFILES[facts.recognise_server(self._client.url, models)]

    def _root(self) -> str:
        return self._client.url.removesuffix("/v1")

    async def close(self) -> None:
        """Close every connection to the server."""
        looks = [task for task in (self._look, *self._fact_looks.values()) if task is not None]
        for task in looks:
            task.cancel()
        if looks:
            await asyncio.wait(looks)
        await self._client.close()


async def _release(response: aiohttp.ClientResponse) -> None:
    """Read the few bytes behind the end, so that the connection goes back to the pool."""
    if response.content.is_eof():
        return
    try:
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            await read_small(response)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return
