"""The Chat Completions dialect keeps the contract of backends, against a server on loopback."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.backends import Ask
from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.profiles import PROFILES
from tests.contracts.backend_suite import BREAK, CHECKS, HELLO, REFUSE, TIMEOUT_S, Check, Subject, name_check
from tests.fake_upstream import (
    MODEL,
    FakeUpstream,
    Reply,
    Request,
    make_chunk,
    make_head,
    make_json,
    make_stream,
)

#: Profile -> `owned_by` in the model list, so that each kind of server is recognised as itself.
OWNERS = {"default": "fake", "llama.cpp": "llamacpp", "vllm": "vllm", "ollama": "library"}


def answer(request: Request) -> Reply:
    """What the suite's texts ask for; usage grows with the prompt."""
    messages = request.json["messages"]
    text = messages[-1]["content"]
    if text == BREAK:
        return Reply([make_head(), make_chunk({"content": "This breaks"})], end="close")
    if text == REFUSE:
        return Reply([make_json({"error": {"message": "No.", "type": "invalid_request_error"}}, status=400)])
    assert text == HELLO
    usage = {"prompt_tokens": len(msgspec.json.encode(messages)) // 4, "completion_tokens": 4}
    return Reply(make_stream("Hello ", "to ", "you, ", "whoever.", usage=usage))


@pytest.mark.parametrize("check", CHECKS, ids=name_check)
@pytest.mark.parametrize("profile", OWNERS)
def test_the_backend_keeps_the_contract(check: Check, profile: str) -> None:
    """Provenance: the check's own docstring."""

    async def run() -> None:
        async with FakeUpstream(answer, owned_by=OWNERS[profile]) as upstream:
            backend = ChatCompletionsBackend(Endpoint(name="fake", url=upstream.url))
            try:
                await check(Subject(backend, MODEL, upstream.wait_idle, PROFILES[profile]))
            finally:
                await backend.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


class Telling(FakeUpstream):
    """A server that tells about itself by these routes (method and path -> JSON)."""

    routes: dict[str, Any]

    def reply(self, request: Request) -> Reply:
        """The route's answer; else the usual one."""
        told = self.routes.get(f"{request.method} {request.path}")
        return super().reply(request) if told is None else Reply([make_json(told)])


SERVERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama.cpp": (
        "llamacpp",
        {
            "GET /props": {
                "default_generation_settings": {"n_ctx": 2048},
                "chat_template_caps": {"supports_tools": True},
                "modalities": {"vision": False},
            }
        },
        {"window_tokens": 2048, "sees_images": False},
    ),
    "vllm": (
        "vllm",
        {"GET /v1/models": {"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": 4096}]}},
        {"window_tokens": 4096},
    ),
    "ollama": (
        "library",
        {
            "POST /api/show": {"capabilities": ["completion", "tools", "vision"]},
            "GET /api/ps": {"models": [{"name": MODEL, "context_length": 8192}]},
        },
        {"window_tokens": 8192, "sees_images": True},
    ),
    "lm-studio": (
        "organization_owner",
        {f"GET /api/v0/models/{MODEL}": {"type": "vlm", "loaded_context_length": 4096}},
        {"window_tokens": 4096, "sees_images": True},
    ),
}


@pytest.mark.parametrize("configured", [False, True], ids=["recognised", "configured"])
@pytest.mark.parametrize("name", SERVERS)
def test_a_server_is_asked_about_its_model_once(name: str, configured: bool) -> None:
    """Ours: by the routes of its kind, whether the kind was recognised or configured."""
    owner, routes, changes = SERVERS[name]

    async def run() -> None:
        async with Telling(
            answer, owned_by="someone" if configured and name != "vllm" else owner
        ) as upstream:
            upstream.routes = routes
            profile = PROFILES[name] if configured else None
            backend = ChatCompletionsBackend(Endpoint(name="fake", url=upstream.url), profile=profile)
            found = await asyncio.gather(*(backend.get_facts(MODEL) for _ in range(4)))
            assert [each.profile for each in found] == [
                msgspec.structs.replace(PROFILES[name], **changes)
            ] * 4
            paths = [request.path for request in upstream.requests]
            assert len(paths) == len(set(paths))
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


@pytest.mark.parametrize(
    ("name", "path", "told", "count"),
    [
        ("llama.cpp", "/v1/chat/completions/input_tokens", {"input_tokens": 33}, 33),
        ("vllm", "/tokenize", {"count": 36}, 36),
        ("llama.cpp", "/elsewhere", {}, None),
        ("ollama", "/tokenize", {"count": 36}, None),
    ],
)
def test_a_count_comes_from_the_servers_own_route(name: str, path: str, told: Any, count: int | None) -> None:
    """llama.cpp recorded, vLLM measured; a server without the route does not count."""

    async def run() -> None:
        async with Telling(answer) as upstream:
            upstream.routes = {f"POST {path}": told}
            backend = ChatCompletionsBackend(Endpoint(name="fake", url=upstream.url))
            ask = Ask(model=MODEL, profile=PROFILES[name], transcript=[b'{"role":"user","content":"Hi"}'])
            assert await backend.count_tokens(ask) == count
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
