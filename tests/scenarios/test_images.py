"""Images: to a model that sees them, and never to one that does not."""

import asyncio
from typing import Any

import msgspec
import pytest

from antiphon.backends.scripted import ScriptedBackend
from antiphon.context import Profile
from antiphon.engine import Alias, Catalog, Engine, Services
from antiphon.protocol.errors import RequestError
from antiphon.protocol.requests import decode_create_request
from antiphon.protocol.responses import Response
from antiphon.store.memory import MemoryStore

PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"}
SHOWN = [{"role": "user", "content": [{"type": "input_text", "text": "Look."}, PICTURE]}]


def build_engine(store: MemoryStore) -> Engine:
    aliases = {
        "seeing": Alias(endpoint="scripted", model="scripted", profile=Profile(sees_images=True)),
        "blind": Alias(endpoint="scripted", model="scripted", profile=Profile(sees_images=False)),
    }
    return Engine(Services(catalog=Catalog({"scripted": ScriptedBackend()}, aliases), store=store))


async def ask(engine: Engine, **body: Any) -> Response:
    request = decode_create_request(msgspec.json.encode(body))
    return await (await engine.open_round(request, "default")).collect()


def test_an_image_is_refused_for_a_model_that_cannot_see_and_its_place_is_named() -> None:
    """Ours: nothing is lost silently."""

    async def story() -> None:
        engine = build_engine(MemoryStore())
        assert (await ask(engine, model="seeing", input=SHOWN)).status == "completed"
        with pytest.raises(RequestError, match="does not see images") as refused:
            await ask(engine, model="blind", input=SHOWN)
        assert (refused.value.param, refused.value.code) == ("input[0]", "invalid_value")

    asyncio.run(story())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_history_with_images_is_never_shown_to_a_model_that_cannot_see(restarted: bool) -> None:
    """Ours: also when the model is changed in mid-chain; the window may come from memory or the store."""

    async def story() -> None:
        store = MemoryStore()
        engine = build_engine(store)
        before = await ask(engine, model="seeing", input="Hello.")
        shown = await ask(engine, model="seeing", input=SHOWN, previous_response_id=before.id)
        after = await ask(engine, model="seeing", input="And now?", previous_response_id=shown.id)
        if restarted:
            engine = build_engine(store)
        for parent in (shown.id, after.id):
            with pytest.raises(RequestError, match="history of the previous response holds some") as refused:
                await ask(engine, model="blind", input="Go on.", previous_response_id=parent)
            assert refused.value.param == "previous_response_id"
        # Before the image there is nothing that it could not read.
        branch = await ask(engine, model="blind", input="Go on.", previous_response_id=before.id)
        assert branch.status == "completed"
        assert (
            await ask(engine, model="seeing", input="Go on.", previous_response_id=after.id)
        ).status == "completed"

    asyncio.run(story())
