"""Two values of every field make a difference beside the echo, behind each kind of model server."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

import antiphon.backends.chat_completions.backend as chat_backend
import antiphon.backends.responses.backend as responses_backend
from antiphon.backends import Ask
from tests.generated.fields_table import ROWS, Row, list_paths
from tests.generated.observing import Dialect, Effect, find_effect, list_changed_keys, open_observer

DIALECTS: tuple[Dialect, ...] = ("chat", "responses")
_MODULES: dict[Dialect, Any] = {"chat": chat_backend, "responses": responses_backend}
FIELDS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "fields.md"


def get_expected(row: Row, dialect: Dialect) -> tuple[Effect, str | None]:
    """The effect, and the key of the model server's request that carries it."""
    return (row.chat, row.chat_key) if dialect == "chat" else (row.responses, row.responses_key)


def list_forwarded() -> list[tuple[Dialect, str]]:
    """Every field that a model server is told of, by one key of its request."""
    return [
        (dialect, path)
        for dialect in DIALECTS
        for path, row in ROWS.items()
        if get_expected(row, dialect)[0] == "sent" and get_expected(row, dialect)[1] is not None
    ]


async def check(path: str, dialect: Dialect) -> None:
    """Fail unless the two values of a field differ in what the table says."""
    row = ROWS[path]
    effect, key = get_expected(row, dialect)
    async with open_observer(dialect) as observer:
        a, b = await row.prepare(observer) if row.prepare is not None else (row.a, row.b)
        again, first, second = [await observer.observe(body) for body in (a, a, b)]
        params = (path, path.partition(".")[0], *row.params)
        if first.error is None:
            # What differs between two equal requests would be no effect of the field.
            assert find_effect(again, first, params) == "nothing"
        assert find_effect(first, second, params) == effect
        if effect == "sent" and key is not None:
            assert key in list_changed_keys(first, second)
        if row.kept is not None and effect in ("nothing", "shown"):
            await row.kept(observer, first, second)
        else:
            assert effect != "nothing", f"{path} is accepted and has no effect"


def test_every_field_has_a_row() -> None:
    """Ours: a field that is added to the requests' types must be shown to do something."""
    assert set(ROWS) == list_paths()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("path", ROWS)
def test_two_values_of_a_field_make_a_difference(path: str, dialect: Dialect) -> None:
    """Ours: the model server is asked something else, or the answer is another, or the field is refused by name."""
    asyncio.run(check(path, dialect))


@pytest.mark.parametrize(("dialect", "path"), list_forwarded())
def test_a_dialect_that_stops_forwarding_a_field_is_noticed(
    dialect: Dialect, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: the same check fails once the field's key is dropped from the model server's request."""
    _, dropped = get_expected(ROWS[path], dialect)
    encode = _MODULES[dialect].encode_request

    def encode_less(ask: Ask, **options: Any) -> bytes:
        body = msgspec.json.decode(encode(ask, **options))
        body.pop(dropped, None)
        return msgspec.json.encode(body)

    monkeypatch.setattr(_MODULES[dialect], "encode_request", encode_less)
    with pytest.raises(AssertionError):
        asyncio.run(check(path, dialect))


def test_a_field_that_no_chat_model_is_told_of_is_documented() -> None:
    """Ours: what is only kept or echoed stands in the reference, one row for each field."""
    page = FIELDS_PAGE.read_text("utf-8")
    kept = {path.partition(".")[0] for path, row in ROWS.items() if row.chat in ("nothing", "refused")}
    missing = sorted(name for name in kept if f"| `{name}` |" not in page)
    assert missing == []
