"""The checker against answers that are damaged at random: a verdict for everything, never a crash."""

import asyncio
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest

from antiphon.checker import MANIFEST, CheckOptions, Report, render_json, render_junit, run_check
from antiphon.checker.doubles import HonestDouble
from antiphon.client import AppTransport

JUNK: list[Any] = [None, True, 0, -1, 1.5, "", "x", "\x00", [], {}, [None], [{}], {"a": 1}, [[]], 10**15]


def damage(value: Any, chance: random.Random, rate: float) -> Any:
    """The value with some of its parts replaced by junk or left out."""
    if chance.random() < rate:
        return chance.choice(JUNK)
    if isinstance(value, dict):
        kept = {key: part for key, part in value.items() if chance.random() > rate / 2}
        return {key: damage(part, chance, rate) for key, part in kept.items()}
    return [damage(part, chance, rate) for part in value] if isinstance(value, list) else value


class Damaged(HonestDouble):
    """Honest at first; then every body that it sends may be damaged or cut."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(seed)
        self._rate = self._chance.choice([0.003, 0.01, 0.03])
        self._whole = self._chance.choice([1, 3, 8])

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_damaged(message: MutableMapping[str, Any]) -> None:
            if message.get("body"):
                self._whole -= 1
                if self._whole < 0:
                    message = {**message, "body": self._damage_body(message["body"])}
            await send(message)

        await super().__call__(scope, receive, send_damaged)

    def _damage_body(self, body: bytes) -> bytes:
        head, mark, data = body.rpartition(b"data: ")
        try:
            value = msgspec.json.decode(data)
        except msgspec.DecodeError:
            return body
        end = b"\n\n" if mark else b""
        body = head + mark + msgspec.json.encode(damage(value, self._chance, self._rate)) + end
        cut = self._chance.random() < self._rate
        return body[: self._chance.randrange(len(body))] if cut else body


def check_damaged(seed: int) -> Report:
    """One run against a damaged server."""
    options = CheckOptions(seed=seed, rounds=8, timeout_s=20)
    return asyncio.run(run_check(AppTransport(Damaged(seed)), "toy", options))


def assert_whole(report: Report) -> None:
    """One verdict for each requirement, none from a broken probe, and every form of the report is sound."""
    assert [result.id for result in report.results] == [item.id for item in MANIFEST]
    assert [item for item in report.results if "the probe broke" in item.explanation] == []
    assert msgspec.json.decode(render_json(report))["exit_status"] == report.exit_status
    ElementTree.fromstring(render_junit(report).encode())


@pytest.mark.parametrize("seed", range(40))
def test_every_requirement_gets_a_verdict_from_damaged_answers(seed: int) -> None:
    """Ours: wrong types, missing fields, cut bodies."""
    assert_whole(check_damaged(seed))


@pytest.mark.fuzz
def test_every_requirement_gets_a_verdict_from_many_damaged_answers() -> None:
    """Ours: the same, longer."""
    for seed in range(40, 1000):
        assert_whole(check_damaged(seed))
