"""Async tools: the model goes on at once, and the output comes whenever it comes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.client import read_text
from tests.scenarios.houses import House, check_prefixes, list_codes, run

STREAMS = pytest.mark.parametrize("stream", [False, True])
SLOW: dict[str, Any] = {"type": "function", "name": "slow", "parameters": {"type": "object"}, "async": True}
LOG: dict[str, Any] = {"type": "custom", "name": "log", "async": True}
PLAIN: dict[str, Any] = {"type": "function", "name": "plain", "parameters": {"type": "object"}}


def running(call_id: str) -> str:
    """What stands for the result until it comes."""
    return f"[running; the result comes later as the result of call {call_id}]"


def check_answered(messages: list[dict[str, Any]]) -> None:
    """Every call is answered before anything else is said: templates and servers demand it."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
            continue
        assert not open_calls, messages
        open_calls = {call["id"] for call in message.get("tool_calls", ())}
    assert not open_calls, messages


@STREAMS
@pytest.mark.parametrize("by_id", [True, False])
def test_an_output_may_be_left_out_come_late_and_come_twice(
    tmp_path: Path, stream: bool, by_id: bool
) -> None:
    """Spec: async tools; the same prompts by id and from full history."""

    async def story(house: House) -> None:
        history: list[dict[str, Any]] = []
        parent: str | None = None

        async def ask(*new: dict[str, Any]) -> dict[str, Any]:
            nonlocal history, parent
            shared: dict[str, Any] = {"stream": stream, "tools": [SLOW, LOG]}
            if by_id:
                made = await house.make(input=list(new), previous_response_id=parent, **shared)
            else:
                made = await house.make(input=[*history, *new], store=False, **shared)
            history += [*new, *made["output"]]
            parent = made["id"]
            assert list_codes(made) == []
            return made

        first = await ask({"role": "user", "content": "Start."})
        slow, log, said = first["output"]
        assert (slow["type"], slow["async"], slow["name"]) == ("function_call", True, "slow")
        assert (log["type"], log["async"], log["input"]) == ("custom_tool_call", True, "x")
        assert said["type"] == "message"
        # Both generations count, and the second saw what any later round sees.
        assert first["usage"]["input_tokens"] == 100 + 200
        assert [m["role"] for m in house.messages] == ["user", "assistant", "tool", "assistant", "tool"]
        assert [m["content"] for m in house.messages[2::2]] == [
            running(slow["call_id"]),
            running(log["call_id"]),
        ]
        await ask({"role": "user", "content": "Still there?"})
        late = {"type": "function_call_output", "call_id": slow["call_id"], "output": "18"}
        for _ in range(2):
            await ask(late)
            assert house.messages[-1] == {
                "role": "user",
                "content": f"[result of call {slow['call_id']}]\n18",
            }
        await ask({"type": "custom_tool_call_output", "call_id": log["call_id"], "output": "logged"})
        check_prefixes(house.upstream)
        check_answered(house.messages)
        unknown = {**late, "call_id": "call_unknown"}
        refused = {"previous_response_id": parent} if by_id else {}
        error = await house.refuse(input=[*([] if by_id else history), unknown], tools=[SLOW, LOG], **refused)
        assert error["message"] == "No tool call found for function call output with call_id call_unknown."
        assert error["param"] == "input"

    both = [("slow", "{}"), ("log", '{"input":"x"}')]
    run(tmp_path, [both, "Started.", "Yes.", "It is 18.", "Still 18.", "Logged."], story)


@STREAMS
@pytest.mark.parametrize("names", [("slow", "plain"), ("plain", "slow")])
def test_an_async_call_beside_one_that_is_waited_for_ends_the_response(
    tmp_path: Path, stream: bool, names: tuple[str, str]
) -> None:
    """Spec: the client must act; only the async output may be missing, and every call has its result beside it."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Go.", tools=[SLOW, PLAIN])
        assert tuple(item["name"] for item in first["output"]) == names
        slow, plain = sorted(first["output"], key=lambda item: str(item["name"]), reverse=True)
        error = await house.refuse(previous_response_id=first["id"], input="?", tools=[SLOW, PLAIN])
        assert plain["call_id"] in error["message"]
        given = {"type": "function_call_output", "call_id": plain["call_id"], "output": "ok"}
        second = await house.make(
            stream=stream, previous_response_id=first["id"], input=[given], tools=[SLOW, PLAIN]
        )
        assert read_text(second) == "Done."
        told = {m["tool_call_id"]: m["content"] for m in house.messages if m["role"] == "tool"}
        assert told == {slow["call_id"]: running(slow["call_id"]), plain["call_id"]: "ok"}
        check_answered(house.messages)

    run(tmp_path, [[(name, "{}") for name in names], "Done."], story)


def test_a_model_that_only_starts_things_is_ended(tmp_path: Path) -> None:
    """Ours: async calls alone are followed up a bounded number of times."""

    async def story(house: House) -> None:
        made = await house.make(input="Go.", tools=[SLOW])
        assert made["status"] == "completed"
        assert [item["type"] for item in made["output"]] == ["function_call"] * 5
        assert len({item["call_id"] for item in made["output"]}) == 5
        assert json.dumps(made["usage"]["output_tokens"]) == "25"

    run(tmp_path, [[("slow", "{}")]] * 5, story)
