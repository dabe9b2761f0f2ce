"""The strict validator itself: it says no to whatever the package's types do not allow."""

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios import strict
from tests.scenarios.client import find_terminal
from tests.scenarios.serving import serve

SCRIPT = {"rules": [{"reasoning": "Hm.", "text": "Hi.", "calls": [{"name": "f", "arguments": "{}"}]}]}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A stream with reasoning, text and a call."""
    folder: Path = tmp_path_factory.mktemp("strict")

    async def story() -> list[dict[str, Any]]:
        async with serve(folder, SCRIPT) as client:
            return await client.stream(input="Hello.", tools=[TOOL])

    return asyncio.run(story())


def set_in(*path: Any, value: Any) -> Callable[[Any], None]:
    """Puts a value at a path."""

    def change(target: Any) -> None:
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    """Takes a key away."""

    def change(target: Any) -> None:
        for step in path[:-1]:
            target = target[step]
        del target[path[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        set_in("extra", value=1),
        set_in("usage", "extra", value=1),
        set_in("output", 1, "extra", value=1),
        set_in("output", 1, "content", 0, "extra", value=1),
        set_in("tools", 0, "extra", value=1),
        set_in("antiphon", value={}),
        set_in("antiphon", value={"extra": 1}),
        set_in("status", value="done"),
        set_in("status", value="in_progress"),
        set_in("created_at", value=1.5),
        set_in("created_at", value="1"),
        set_in("completed_at", value=None),
        set_in("usage", "input_tokens", value="1"),
        set_in("usage", "input_tokens", value=1.5),
        set_in("parallel_tool_calls", value=1),
        set_in("store", value=None),
        set_in("tool_choice", value="maybe"),
        set_in("error", value={"code": "wibble", "message": "x"}),
        set_in("output", 1, "role", value="user"),
        set_in("output", 2, "arguments", value={}),
        *[drop(key) for key in sorted(strict.ALWAYS_SENT)],
        *[drop("output", 2, key) for key in ("type", "id", "call_id", "name", "arguments")],
        *[drop("output", 1, "content", 0, key) for key in ("type", "text", "annotations")],
        *[drop("usage", key) for key in ("input_tokens", "output_tokens_details", "total_tokens")],
    ],
)
def test_a_response_with_one_fault_is_refused(
    events: list[dict[str, Any]], change: Callable[[Any], None]
) -> None:
    """Decided: what we emit validates strictly, with the exceptions named there and no others."""
    response = find_terminal(events)
    strict.check_response(response)
    broken = copy.deepcopy(response)
    change(broken)
    with pytest.raises(AssertionError):
        strict.check_response(broken)


def test_every_event_with_one_key_too_many_or_too_few_is_refused(events: list[dict[str, Any]]) -> None:
    """Decided, for each kind of event that a stream has."""
    for event in events:
        strict.check_event(event)
        with pytest.raises(AssertionError):
            strict.check_event({**event, "extra": 1})
        # The package's types let some keys of delta events be absent.
        for key in set(event) - {"summary_index", "logprobs", "obfuscation"}:
            with pytest.raises(AssertionError):
                strict.check_event({name: value for name, value in event.items() if name != key})


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.wibble", "sequence_number": 0},
        {"type": "error", "sequence_number": 0, "code": None, "message": "x", "param": None},
        {"type": "error", "sequence_number": 0, "error": {"message": "x"}},
    ],
)
def test_an_event_of_no_known_form_is_refused(event: dict[str, Any]) -> None:
    """Decided: the error event is nested, and nothing else departs from the package."""
    with pytest.raises(AssertionError):
        strict.check_event(event)
