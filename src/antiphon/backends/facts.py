"""What servers tell of themselves -> model facts: pure readers of their answers.

Each reader takes decoded JSON of one server's own route and tolerates any shape; what is not told stays
unknown. It knows routes' answers, not how they are fetched.
"""

from typing import Any

import msgspec

from antiphon.backends.interface import ModelFacts
from antiphon.context import Profile

#: Ollama's levels; a model that only thinks or not takes "none" and any other.
_OLLAMA_EFFORTS = ("none", "low", "medium", "high")
_LLAMA_EFFORTS = ("none", "low", "medium", "high")


def recognise_server(url: str, models: Any) -> str:
    """The name of the profile that suits a server, from its address and its model list."""
    if "api.openai.com" in url:
        return "openai"
    owners = {str(entry.get("owned_by", "")) for entry in _entries(models)}
    for owner, name in (
        ("llamacpp", "llama.cpp"),
        ("vllm", "vllm"),
        ("library", "ollama"),
        ("organization_owner", "lm-studio"),
    ):
        if owner in owners:
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
        own = msgspec.structs.replace(profile, window_tokens=window) if window else profile
        created = _count(entry.get("created")) or 0
        facts.append(
            ModelFacts(name=name, profile=own, created=created, owned_by=str(entry.get("owned_by") or ""))
        )
    return facts


def read_llama_props(props: Any, profile: Profile) -> Profile:
    """llama.cpp's `GET /props`: window per slot, what its template can do, what it sees."""
    told = _object(props)
    window = _count(_object(told.get("default_generation_settings")).get("n_ctx"))
    caps = _object(told.get("chat_template_caps"))
    modalities = _object(told.get("modalities"))
    changes: dict[str, Any] = {}
    if window:
        changes["window_tokens"] = window
    if isinstance(caps.get("supports_tools"), bool):
        changes["tools"] = "native" if caps["supports_tools"] else "none"
    if isinstance(modalities.get("vision"), bool):
        changes["sees_images"] = modalities["vision"]
    if caps.get("supports_reasoning_effort") is True:
        changes["efforts"] = _LLAMA_EFFORTS
    return msgspec.structs.replace(profile, **changes)


def read_ollama_show(show: Any, running: Any, model: str, profile: Profile) -> Profile:
    """Ollama's `POST /api/show` and `GET /api/ps`: what the model can do, and its window once loaded."""
    changes: dict[str, Any] = {}
    capabilities = _object(show).get("capabilities")
    if isinstance(capabilities, list):
        changes["sees_images"] = "vision" in capabilities
        changes["tools"] = "native" if "tools" in capabilities else "none"
        if "thinking" in capabilities:
            changes["efforts"] = _OLLAMA_EFFORTS
    for entry in _object(running).get("models") or ():
        loaded = _object(entry)
        if model in (
            loaded.get("name"),
            loaded.get("model"),
            str(loaded.get("name")).removesuffix(":latest"),
        ):
            window = _count(loaded.get("context_length"))
            if window:
                changes["window_tokens"] = window
    return msgspec.structs.replace(profile, **changes)


def read_lm_studio_model(entry: Any, profile: Profile) -> Profile:
    """LM Studio's `GET /api/v0/models/{id}`."""
    told = _object(entry)
    changes: dict[str, Any] = {}
    window = _count(told.get("loaded_context_length"))
    if window:
        changes["window_tokens"] = window
    if isinstance(told.get("type"), str):
        changes["sees_images"] = told["type"] == "vlm"
    if isinstance(told.get("capabilities"), list) and "tool_use" in told["capabilities"]:
        changes["tools"] = "native"
    return msgspec.structs.replace(profile, **changes)


def read_count(answer: Any) -> int | None:
    """llama.cpp says `input_tokens`, vLLM `count`."""
    told = _object(answer)
    return _count(told.get("input_tokens")) or _count(told.get("count"))


def _entries(models: Any) -> list[dict[str, Any]]:
    data = _object(models).get("data")
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
