"""Items that change settings from their place on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.serving import GatedBackend, serve, serve_doubles

SCRIPT: dict[str, Any] = {"models": ["m"], "answers": [{"text": '{"a":1}'}] * 4}
FORMAT = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
UPDATE = {"type": "configuration_update", "text": {"format": FORMAT}}


def say(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_format_holds_from_its_update_on_and_the_request_wins() -> None:
    """API reference, items: configuration_update."""

    async def story() -> None:
        backend = GatedBackend(SCRIPT)
        async with serve_doubles(backend) as client:
            first = await client.create(model="m", input=[say("a"), UPDATE, say("b")])
            later = await client.create(model="m", input="c", previous_response_id=first["id"])
            own = await client.create(
                model="m",
                input="d",
                previous_response_id=later["id"],
                text={"format": {"type": "json_object"}},
            )
        formats = [ask.text_format.type if ask.text_format else None for ask in backend.asks]
        assert formats == ["json_schema", "json_schema", "json_object"]
        assert [answer["text"]["format"]["type"] for answer in (first, later, own)] == formats

    asyncio.run(story())


@pytest.mark.parametrize(
    ("items", "param", "code"),
    [
        ([UPDATE, UPDATE], "input", None),
        (
            [{"type": "configuration_update", "reasoning": {"efort": "low"}}],
            "input[0].reasoning.efort",
            "unknown_parameter",
        ),
        (
            [{"type": "configuration_update", "reasoning": {"effort": "huge"}}],
            "input[0].reasoning.effort",
            "invalid_value",
        ),
    ],
)
def test_an_update_that_says_nothing_right_is_refused(
    tmp_path: Path, items: list[dict[str, Any]], param: str, code: str | None
) -> None:
    """API reference, items: configuration_update; measured texts."""

    async def story() -> None:
        async with serve(tmp_path) as client:
            error = await client.refuse(model="scripted", input=[*items, say("x")])
            assert (error["param"], error["code"]) == (param, code)

    asyncio.run(story())
