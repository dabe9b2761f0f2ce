"""Which backend answers for a model name: an alias, else a name that exactly one endpoint lists.

It knows backends through their interface. Invariant: the client's name is echoed, the server's name is
sent.
"""

from collections.abc import Mapping

import msgspec

from antiphon.backends import Backend, ModelFacts
from antiphon.context import Profile
from antiphon.protocol.errors import BackendError, RequestError


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """A model name of ours: an endpoint, the server's own name, and what is known of it."""

    endpoint: str
    model: str
    profile: Profile | None = None
    system_prompt: str = ""


class Target(msgspec.Struct, frozen=True):
    """Where a request goes. `profile` is complete: given, or told by the server."""

    backend: Backend
    model: str
    profile: Profile
    system_prompt: str = ""


def _complete(given: Profile | None, told: Profile) -> Profile:
    """A given profile wins; what it leaves open the server may fill in."""
    if given is None:
        return told
    return msgspec.structs.replace(
        given,
        window_tokens=given.window_tokens or told.window_tokens,
        sees_images=told.sees_images if given.sees_images is None else given.sees_images,
        # A server that says it has no tools is believed; a model that calls them badly only the user can name.
        tools="schema" if given.tools == "native" and told.tools == "schema" else given.tools,
    )


class Catalog:
    """The model names that this server answers to."""

    def __init__(self, backends: Mapping[str, Backend], aliases: Mapping[str, Alias]) -> None:
        self._backends = backends
        self._aliases = aliases

    async def find(self, name: str) -> Target:
        """The target of a model name; raises `RequestError` model_not_found, or what a lone backend raised."""
        alias = self._aliases.get(name)
        if alias is not None:
            backend = self._backends[alias.endpoint]
            profile = _complete(alias.profile, (await backend.get_facts(alias.model)).profile)
            return Target(backend, alias.model, profile, alias.system_prompt)
        listed, failures = await self._find_listed(name)
        if not listed:
            # It may have been pulled since the lists were read.
            listed, failures = await self._find_listed(name, fresh=True)
        if len(listed) == 1:
            backend, found = listed[0]
            profile = (await backend.get_facts(found)).profile
            return Target(backend, found, profile)
        if not listed and failures:
            raise failures[0]
        if listed:
            names = ", ".join(sorted(backend.name for backend, _ in listed))
            raise RequestError(
                f"The requested model '{name}' is listed by several endpoints ({names}); give it an alias.",
                param="model",
                code="model_not_found",
            )
        raise await self._explain_missing(name)

    async def _find_listed(
        self, name: str, *, fresh: bool = False
    ) -> tuple[list[tuple[Backend, str]], list[BackendError]]:
        found: list[tuple[Backend, str]] = []
        failures: list[BackendError] = []
        for backend in self._backends.values():
            try:
                names = {facts.name for facts in await backend.list_models(fresh=fresh)}
            except BackendError as error:
                failures.append(error)
                continue
            # Ollama lists "llama3:latest" and takes "llama3".
            match = next((each for each in (name, f"{name}:latest") if each in names), None)
            if match is not None:
                found.append((backend, match))
        return found, failures

    async def _explain_missing(self, name: str) -> RequestError:
        message = f"The requested model '{name}' does not exist."
        if not await self.list_models():
            # Some servers have no list of models; then only the configuration can name one.
            message += " No model server lists its models; name one with --model or [models.NAME]."
        return RequestError(message, param="model", code="model_not_found")

    async def list_models(self) -> list[ModelFacts]:
        """Aliases first, then what the endpoints list, each name once; raises when nobody could be asked."""
        rows: dict[str, ModelFacts] = {}
        for name, alias in self._aliases.items():
            rows[name] = ModelFacts(name=name, profile=alias.profile or Profile(), owned_by=alias.endpoint)
        failures: list[BackendError] = []
        for backend in self._backends.values():
            try:
                for facts in await backend.list_models():
                    owned = facts if facts.owned_by else msgspec.structs.replace(facts, owned_by=backend.name)
                    rows.setdefault(facts.name, owned)
            except BackendError as error:
                failures.append(error)
        if not rows and failures:
            raise failures[0]
        return list(rows.values())

    async def close(self) -> None:
        """Close every backend."""
        for backend in self._backends.values():
            await backend.close()
