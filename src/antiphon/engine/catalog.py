"""Which backend answers for a model name: an alias, else a name that exactly one endpoint lists.

It knows backends through their interface. Invariant: the client's name is echoed, the server's name is
sent.
"""

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Final

import msgspec

from antiphon.backends import Backend, ModelFacts
from antiphon.context import Profile
from antiphon.engine.compaction_settings import CompactionPolicy
from antiphon.engine.learned_windows import LearnedWindows
from antiphon.protocol.errors import BackendError, RequestError, shorten_quoted

#: How many names a refusal tells, of how many, and how long they may be.
NAMES_TOLD: Final = 5
NAMES_COMPARED: Final = 200
NAME_CHARACTERS: Final = 100


class Alias(msgspec.Struct, frozen=True, kw_only=True):
    """A model name of ours: an endpoint, the server's own name, and what is known of it."""

    endpoint: str
    model: str
    profile: Profile | None = None
    system_prompt: str = ""
    #: Whether its windows are compacted unasked (None: as for all models), and over how many tokens.
    compaction: CompactionPolicy | None = None
    compact_threshold: int | None = None


class Target(msgspec.Struct, frozen=True):
    """Where a request goes. `profile` is complete: given, or told by the server."""

    backend: Backend
    model: str
    profile: Profile
    system_prompt: str = ""
    #: The window that the server itself tells, and the one that its refusals told.
    told_window: int | None = None
    learned_window: int | None = None
    #: What the alias says about compaction; None: as for all models.
    compaction: CompactionPolicy | None = None
    compact_threshold: int | None = None

    @property
    def window_tokens(self) -> int | None:
        """What a prompt and its answer have room in, as far as it is known: the smaller, where two numbers are."""
        known = [each for each in (self.profile.window_tokens, self.learned_window) if each is not None]
        return min(known, default=None)


def _name_nearest(name: str, known: list[str]) -> str:
    """Some of the names that there are, the nearest first."""
    wanted = name[:NAME_CHARACTERS].lower()
    # Names that are no words are told by the list alone.
    usable = [each for each in known[:NAMES_COMPARED] if each.isprintable() and len(each) <= NAME_CHARACTERS]
    ranked = sorted(usable, key=lambda each: -SequenceMatcher(None, wanted, each.lower()).ratio())
    if not ranked:
        return "GET /v1/models lists those that do."
    more = f" and {len(known) - NAMES_TOLD} more (GET /v1/models)" if len(known) > NAMES_TOLD else ""
    return f"This server has {', '.join(ranked[:NAMES_TOLD])}{more}."


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
        self._learned = LearnedWindows()

    async def find(self, name: str) -> Target:
        """The target of a model name; raises `RequestError` model_not_found, or what a lone backend raised."""
        alias = self._aliases.get(name)
        if alias is not None:
            backend = self._backends[alias.endpoint]
            told = (await backend.get_facts(alias.model)).profile
            return self._make_target(backend, alias.model, told, alias)
        listed, failures = await self._find_listed(name)
        if not listed:
            # It may have been pulled since the lists were read.
            listed, failures = await self._find_listed(name, fresh=True)
        if len(listed) == 1:
            backend, found = listed[0]
            return self._make_target(backend, found, (await backend.get_facts(found)).profile)
        if not listed and failures:
            raise failures[0]
        if listed:
            names = ", ".join(sorted(backend.name for backend, _ in listed))
            raise RequestError(
                f"The requested model '{shorten_quoted(name)}' is listed by several endpoints ({names}); "
                "give it an alias.",
                param="model",
                code="model_not_found",
            )
        raise await self._explain_missing(name)

    def _make_target(self, backend: Backend, model: str, told: Profile, alias: Alias | None = None) -> Target:
        return Target(
            backend,
            model,
            _complete(alias.profile if alias is not None else None, told),
            alias.system_prompt if alias is not None else "",
            told.window_tokens,
            self._learned.find(backend.name, model, told=told.window_tokens),
            alias.compaction if alias is not None else None,
            alias.compact_threshold if alias is not None else None,
        )

    def learn_window(self, target: Target, tokens: int) -> None:
        """A refusal told how much the model's window holds."""
        self._learned.learn(target.backend.name, target.model, tokens, told=target.told_window)

    def learn_limit(self, target: Target, tokens: int) -> None:
        """A refusal told nothing, but the window holds less than what was refused."""
        known = self._learned.find(target.backend.name, target.model, told=target.told_window)
        if known is None or tokens < known:
            self.learn_window(target, tokens)

    def note_prompt(self, target: Target, tokens: int) -> None:
        """A prompt of this many tokens was taken: a window that would not hold it was learned wrongly."""
        if target.learned_window is not None and tokens > target.learned_window:
            self._learned.forget(target.backend.name, target.model)

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
        message = f"The requested model '{shorten_quoted(name)}' does not exist."
        if known := [facts.name for facts in await self.list_models()]:
            message += f" {_name_nearest(name, known)}"
        else:
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
