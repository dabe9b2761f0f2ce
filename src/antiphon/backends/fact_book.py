"""What a model server tells of itself, asked through its endpoint and believed for a while.

Which routes a kind of server has stands here, how their answers are read in `facts`; it knows no dialect.
Invariant: a server is asked once for all who wait, and a caller that leaves takes nothing from the others.
"""

import asyncio
import time
from typing import Any
from urllib.parse import quote

import msgspec

from antiphon.backends import facts
from antiphon.backends.endpoint import EndpointClient
from antiphon.backends.interface import ModelFacts
from antiphon.backends.profiles import PROFILES
from antiphon.context import Profile
from antiphon.protocol.errors import BackendError

#: How long a server's word about itself is believed.
FACTS_LIFETIME_S = 60.0
#: After a failed look the server is asked again this soon.
RETRY_FACTS_S = 2.0


class FactBook:
    """The models of one endpoint. `profile` stands instead of recognising the server."""

    def __init__(self, client: EndpointClient, profile: Profile | None) -> None:
        self._client = client
        self._given_profile = profile
        self._models: list[ModelFacts] = []
        self._models_until = 0.0
        self._models_read = 0.0
        self._facts: dict[str, tuple[float, ModelFacts]] = {}
        self._fact_looks: dict[str, asyncio.Task[ModelFacts]] = {}
        self._failure: tuple[float, BackendError] | None = None
        self._look: asyncio.Task[list[ModelFacts]] | None = None

    @property
    def root(self) -> str:
        """The server's address without the base path of its API."""
        return self._client.url.removesuffix("/v1")

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
        root = self.root
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

    async def close(self) -> None:
        """End every look that is under way."""
        looks = [task for task in (self._look, *self._fact_looks.values()) if task is not None]
        for task in looks:
            task.cancel()
        if looks:
            await asyncio.wait(looks)
