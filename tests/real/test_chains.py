"""Chains by `previous_response_id` on a real server: the whole history, by its own counts and its own cache.

llama.cpp keeps the tokens that a prompt has in common with the one before, from the first token on. So its
count of cached tokens shows whether our transcript of a longer chain begins with the bytes of the shorter one.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antiphon.client import ResponsesClient
from antiphon.protocol.events import OutputTextDelta
from tests.real.processes import AntiphonServer, LlamaServer, run_antiphon
from tests.real.speaking import STORY, assistant, make_request, read_text, user

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(240)]

SAID = (
    "My name is Ada and I live in Bergen.",
    "Write two sentences about the sea.",
    "Write two sentences about bread.",
    "Name three colours.",
    "What is two plus two?",
    "Tell me about mountains.",
    "What is my name?",
    "Thank you. Say goodbye.",
)
#: A token may join the last one of a prompt with the beginning of the answer, and is then another one than
#: before; every token before that place has to come from the cache. (The answer's own tokens come from it too,
#: as far as its text is split again as the model wrote it.)
JOINED_TOKENS = 2


async def continue_chain(
    client: ResponsesClient, said: tuple[str, ...], history: list[dict[str, Any]], previous: str | None = None
) -> list[dict[str, Any]]:
    """One round after another by id; `history` grows by what was said and answered."""
    rounds: list[dict[str, Any]] = []
    for text in said:
        body = make_request(text, max_output_tokens=48)
        if previous is not None:
            body["previous_response_id"] = previous
        response = (await client.create(body)).body
        history += [user(text), assistant(read_text(response))]
        rounds.append(response)
        previous = response["id"]
    return rounds


def ask_straight(llama: LlamaServer, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The usage of these messages, sent to the model server with nobody between."""
    usage: dict[str, Any] = llama.complete(messages, max_tokens=1)["usage"]
    return usage


def test_a_chain_counts_and_caches_its_whole_history(llama: LlamaServer, antiphon: AntiphonServer) -> None:
    """Ours: by id every round has the count of the full history, and the earlier window from the cache."""
    history: list[dict[str, Any]] = []

    async def talk() -> list[dict[str, Any]]:
        client = antiphon.open_client()
        try:
            return await continue_chain(client, SAID, history)
        finally:
            await client.close()

    rounds = asyncio.run(talk())
    prompts = [response["usage"]["input_tokens"] for response in rounds]
    outputs = [response["usage"]["output_tokens"] for response in rounds]
    cached = [response["usage"]["input_tokens_details"]["cached_tokens"] for response in rounds]
    print("\nprompt tokens", prompts, "\noutput tokens", outputs, "\ncached tokens", cached)
    assert prompts == [llama.count(history[: 2 * round_ + 1]) for round_ in range(len(SAID))]
    for round_ in range(1, len(SAID)):
        assert cached[round_] >= prompts[round_ - 1] - JOINED_TOKENS
        assert cached[round_] > cached[round_ - 1]


def test_a_chain_asks_the_model_exactly_what_its_full_history_asks(
    llama: LlamaServer, antiphon: AntiphonServer
) -> None:
    """Ours: the full history sent straight is found in the model server's cache, to the last token but one."""
    history: list[dict[str, Any]] = []

    async def talk() -> tuple[dict[str, Any], dict[str, Any]]:
        client = antiphon.open_client()
        try:
            rounds = await continue_chain(client, SAID[:3], history)
            return rounds[-1], (await client.create(make_request(history[:-1]))).body
        finally:
            await client.close()

    by_id, with_history = asyncio.run(talk())
    straight = ask_straight(llama, history[:-1])
    assert by_id["usage"]["input_tokens"] == straight["prompt_tokens"]
    assert with_history["usage"]["input_tokens"] == straight["prompt_tokens"]
    # The last token of a prompt is always evaluated; its result is what the answer starts from.
    assert with_history["usage"]["input_tokens_details"]["cached_tokens"] == straight["prompt_tokens"] - 1
    assert straight["prompt_tokens_details"]["cached_tokens"] == straight["prompt_tokens"] - 1


def test_branches_of_one_response_do_not_see_each_other(llama: LlamaServer, antiphon: AntiphonServer) -> None:
    """OpenAI guide, Conversation state: each continuation counts its own path."""
    root: list[dict[str, Any]] = []
    branches = [[], []]  # type: list[list[dict[str, Any]]]

    async def talk() -> list[dict[str, Any]]:
        client = antiphon.open_client()
        try:
            (first,) = await continue_chain(client, SAID[:1], root)
            return [
                (await continue_chain(client, said, branch, first["id"]))[-1]
                for said, branch in ((SAID[1:3], branches[0]), (SAID[3:5], branches[1]))
            ]
        finally:
            await client.close()

    tips = asyncio.run(talk())
    assert [tip["usage"]["input_tokens"] for tip in tips] == [
        llama.count([*root, *branch[:-1]]) for branch in branches
    ]


def test_a_killed_server_continues_its_chains(llama: LlamaServer, tmp_path: Path) -> None:
    """Ours: kill -9 in mid-stream of round 4; started again on the same data, round 3 is continued by id."""
    history: list[dict[str, Any]] = []

    async def talk_until_killed(server: AntiphonServer) -> str:
        client = server.open_client()
        try:
            rounds = await continue_chain(client, SAID[:3], history)
            previous: str = rounds[-1]["id"]
            body = make_request(STORY, max_output_tokens=1000, previous_response_id=previous)
            async with client.stream(body) as events:
                async for event in events:
                    if isinstance(event, OutputTextDelta):
                        server.kill()
                        return previous
            pytest.fail("the stream ended before its first delta")
        finally:
            await client.close()

    async def talk_again(server: AntiphonServer, previous: str) -> dict[str, Any]:
        client = server.open_client()
        try:
            return (await continue_chain(client, SAID[6:7], history, previous))[-1]
        finally:
            await client.close()

    with run_antiphon(llama.url, tmp_path) as server:
        previous = asyncio.run(talk_until_killed(server))
    with run_antiphon(llama.url, tmp_path) as server:
        continued = asyncio.run(talk_again(server, previous))
    assert continued["previous_response_id"] == previous
    uninterrupted = ask_straight(llama, history[:-1])
    assert continued["usage"]["input_tokens"] == uninterrupted["prompt_tokens"]
    assert uninterrupted["prompt_tokens_details"]["cached_tokens"] == uninterrupted["prompt_tokens"] - 1
