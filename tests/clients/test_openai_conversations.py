"""The official `openai` package: conversations and background responses, over a real socket."""

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.scenarios.process import BOUND_S, start_server

pytestmark = pytest.mark.clients

SCRIPT: dict[str, Any] = {
    "rules": [
        {"when": "^slow", "text": " ".join(f"word{number}" for number in range(400)), "pause_s": 0.05},
        {"when": r"\?\s*$", "act": "recall"},
        {"act": "note"},
    ]
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """The package's client of one server for all tests of this module."""
    with (
        start_server(tmp_path_factory.mktemp("openai"), SCRIPT) as running,
        OpenAI(base_url=running.url, api_key="none", max_retries=0, timeout=BOUND_S) as opened,
    ):
        yield opened


def test_a_conversation_from_its_creation_to_its_deletion(client: OpenAI) -> None:
    """As the package's users write it; responses-API section 'Endpoints', rows 8 to 15."""
    conversation = client.conversations.create(
        items=[{"role": "user", "content": "Remember this word: plum."}], metadata={"topic": "fruit"}
    )
    response = client.responses.create(
        model="scripted", input="What was the word?", conversation=conversation.id
    )
    assert "plum" in response.output_text
    assert response.conversation is not None
    assert response.conversation.id == conversation.id
    added = client.conversations.items.create(
        conversation.id, items=[{"type": "message", "role": "user", "content": f"{n}"} for n in range(20)]
    )
    assert len(added.data) == 20
    everything = list(client.conversations.items.list(conversation.id, order="asc", limit=7))
    assert len(everything) == 23
    newest = client.conversations.items.list(conversation.id, limit=1).data[0]
    assert newest.id == added.last_id
    assert newest.id is not None
    assert client.conversations.items.retrieve(newest.id, conversation_id=conversation.id) == newest
    shorter = client.conversations.items.delete(newest.id, conversation_id=conversation.id)
    assert shorter == client.conversations.retrieve(conversation.id)
    assert len(list(client.conversations.items.list(conversation.id))) == 22
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_a_background_response_is_polled_cancelled_and_streamed_again(client: OpenAI) -> None:
    """As the package's users write it; responses-API section 'Background and cancel'."""
    response = client.responses.create(model="scripted", input="Hello.", background=True)
    assert response.status == "queued"
    until = time.monotonic() + BOUND_S
    while response.status in ("queued", "in_progress"):
        assert time.monotonic() < until
        response = client.responses.retrieve(response.id)
    assert response.status == "completed"

    seen = []
    with client.responses.create(model="scripted", input="slow", background=True, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if len(seen) == 10:
                break
    assert seen[0].type == "response.created"
    response_id = seen[0].response.id
    with client.responses.retrieve(response_id, stream=True, starting_after=9) as stream:
        event = next(iter(stream))
        assert event.sequence_number == 10
        cancelled = client.responses.cancel(response_id)
        assert cancelled.status == "cancelled"
        last = list(stream)[-1]
    assert last.type == "response.failed"
    assert last.response.status == "cancelled"
    assert client.responses.cancel(response_id).status == "cancelled"
    replayed = list(client.responses.retrieve(response_id, stream=True))
    assert replayed[:10] == seen
    assert replayed[10] == event
    assert replayed[-1] == last
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        client.responses.cancel(client.responses.create(model="scripted", input="Hello.").id)
