"""What servers tell of themselves -> model facts: pure readers of their answers.

Each reader takes decoded JSON of one server's own route and tolerates any shape; what is not told stays
unknown. It knows routes' answers, not how they are fetched.
"""

import re
from typing import Any

import msgspec

from antiphon.backends.interface import ModelFacts
from antiphon.context import Profile

#: Ollama's levels; a model that only thinks or not takes "none" and any other.
_OLLAMA_EFFORTS = ("none", "low", "medium", "high")
_LLAMA_EFFORTS = ("none", "low", "medium", "high")

#: `owned_by` in a server's model list -> profile.
_OWNERS = (
    ("llamacpp", "llama.cpp"),
    ("vllm", "vllm"),
    ("library", "ollama"),
    ("organization_owner", "lm-studio"),
)
#: Where servers listen unless told otherwise.
_PORTS = ((11434, "ollama"), (1234, "lm-studio"))
_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d+)\s*$", re.MULTILINE)


def recognise_server(url: str, models: Any) -> str:
    """The name of the profile that suits a server, from its address and its model list."""
    if "api.openai.com" in url:
        return "openai"
    owners = {str(entry.get("owned_by", "")) for entry in _entries(models)}
    for owner, name in _OWNERS:
        if owner in owners:
            return name
    # Models from elsewhere are listed under their makers' names; then the usual port tells.
    for port, name in _PORTS:
        if f":{port}/" in f"{url}/":
            return name
    return "default"


def read_models(models: Any, profile: Profile) -> list[ModelFacts]:
    """The rows of `GET /v1/models`, with the window where the row tells it."""
    facts = []
    for entry in _entries(models):
        name = entry.get("id")
        if not isinstance(name, str):
            continue
        window = _count(entry.get("max_model_len")) or _count(_object(entry.get("meta")).get("n_ctx"))
        own = _fill(profile, window_tokens=window)
        created = _count(entry.get("created")) or 0
        facts.append(
            ModelFacts(name=name, profile=own, created=created, owned_by=str(entry.get("owned_by") or ""))
        )
    return facts


def read_llama_props(props: Any, profile: Profile) -> Profile:
    """llama.cpp's `GET /props`: window per slot, what its template can do, what it sees."""
    told = _object(props)
    caps = _object(told.get("chat_template_caps"))
    return _fill(
        profile,
        window_tokens=_count(_object(told.get("default_generation_settings")).get("n_ctx")),
        calls_tools=_flag(caps.get("supports_tools")),
        sees_images=_flag(_object(told.get("modalities")).get("vision")),
        efforts=_LLAMA_EFFORTS if caps.get("supports_reasoning_effort") is True else (),
    )


def read_ollama_show(show: Any, running: Any, model: str, profile: Profile) -> Profile:
    """Ollama's `POST /api/show` and `GET /api/ps`: what the model can do, and its window once loaded."""
    told = _object(show)
    capabilities = told.get("capabilities")
    known = capabilities if isinstance(capabilities, list) else None
    return _fill(
        profile,
        window_tokens=_find_loaded_window(running, model) or _read_num_ctx(told.get("parameters")),
        calls_tools="tools" in known if known is not None else None,
        sees_images="vision" in known if known is not None else None,
        efforts=_OLLAMA_EFFORTS if known and "thinking" in known else (),
    )


def _find_loaded_window(running: Any, model: str) -> int | None:
    """What the loaded model runs with; the trained length in `model_info` is not what it was given."""
    entries = _object(running).get("models")
    for entry in entries if isinstance(entries, list) else ():
        loaded = _object(entry)
        if f"{model.removesuffix(':latest')}:latest" in _spellings(loaded) or model in _spellings(loaded):
            return _count(loaded.get("context_length"))
    return None


def _spellings(loaded: dict[str, Any]) -> tuple[Any, Any]:
    return loaded.get("name"), loaded.get("model")


def _read_num_ctx(parameters: Any) -> int | None:
    """A window that the model's own file sets, known before the model is loaded."""
    found = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    return int(found[1]) if found is not None and len(found[1]) < 10 else None


def read_lm_studio_model(entry: Any, profile: Profile) -> Profile:
    """LM Studio's `GET /api/v0/models/{id}`."""
    told = _object(entry)
    kind = told.get("type")
    return _fill(
        profile,
        window_tokens=_count(told.get("loaded_context_length")),
        sees_images=kind == "vlm" if isinstance(kind, str) else None,
    )


def read_count(answer: Any) -> int | None:
    """llama.cpp says `input_tokens`, vLLM `count`."""
    told = _object(answer)
    return _count(told.get("input_tokens")) or _count(told.get("count"))


def is_estimate(answer: Any) -> bool:
    """Whether a server of our own kind says that its count is an estimate."""
    return _object(_object(answer).get("antiphon")).get("estimated") is True


def _fill(
    profile: Profile,
    *,
    window_tokens: int | None = None,
    calls_tools: bool | None = None,
    sees_images: bool | None = None,
    efforts: tuple[str, ...] = (),
) -> Profile:
    """What the server told goes where the profile says nothing: what was configured stands.

    A template without tools leaves them out and says nothing, so there `native` cannot stand.
    """
    return msgspec.structs.replace(
        profile,
        window_tokens=profile.window_tokens or window_tokens,
        tools="schema" if calls_tools is False and profile.tools == "native" else profile.tools,
        sees_images=profile.sees_images if profile.sees_images is not None else sees_images,
        efforts=profile.efforts or efforts,
    )


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _entries(models: Any) -> list[dict[str, Any]]:
    data = _object(models).get("data")
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
