"""Long chains of everything at once in a small window: whatever is dropped, the prompt stays one that servers take."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from antiphon.hosted import SearchHit
from antiphon.hosted.scripted import ScriptedSearch
from tests.fake_upstream import END, FakeUpstream, Reply, Request, make_chunk, make_head
from tests.scenarios.houses import Generation, House, list_codes, open_house, read_array, write

ROUNDS = 10
WINDOW_TOKENS = 900
BIG = "word " * 100
PLAIN: dict[str, Any] = {
    "type": "function",
    "name": "plain",
    "parameters": {"type": "object"},
    "strict": False,
}
SLOW: dict[str, Any] = {"type": "function", "name": "slow", "parameters": {"type": "object"}, "async": True}
TOOLS = [{"type": "web_search"}, PLAIN, SLOW]


def check_answered(messages: list[dict[str, Any]]) -> None:
    """Every call has its result right behind it, and every result its call."""
    open_calls: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_calls, messages
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls, messages
            open_calls = {call["id"] for call in message.get("tool_calls", ())}
    assert not open_calls, messages


class Chain:
    """A client that answers calls, or leaves them for later, by chance."""

    def __init__(self, house: House, chance: random.Random) -> None:
        self._house = house
        self._chance = chance
        self._parent: str | None = None
        self._output: list[dict[str, Any]] = []
        self._late: list[str] = []
        self.truncated = 0

    async def go_on(self, number: int) -> None:
        """One round, and what must be true of it."""
        house = self._house
        first = len(house.upstream.asked)
        made = await house.make(
            stream=self._chance.random() < 0.5,
            input=[*self._answer_calls(), {"role": "user", "content": f"{number} {self._say()}"}],
            previous_response_id=self._parent,
            tools=TOOLS,
            truncation="auto",
        )
        for asked in house.upstream.asked[first:]:
            check_answered(asked.json["messages"])
        window = await house.get(f"/v1/responses/{made['id']}/window")
        assert window["messages"] == house.upstream.asked[first].json["messages"]
        assert "upstream_truncated" not in list_codes(made)
        self.truncated += "history_truncated" in list_codes(made)
        self._parent, self._output = made["id"], made["output"]

    def _say(self) -> str:
        return BIG[: self._chance.randint(5, 400)]

    def _answer_calls(self) -> list[dict[str, Any]]:
        calls = [item for item in self._output if item["type"] == "function_call"]
        given = [(call["call_id"], BIG) for call in calls if not call.get("async")]
        self._late += [call["call_id"] for call in calls if call.get("async")]
        if self._late and self._chance.random() < 0.4:
            given.append((self._late.pop(0), "late"))
        return [{"type": "function_call_output", "call_id": each, "output": text} for each, text in given]


@pytest.mark.parametrize("cache_bytes", [1 << 28, 0])
@pytest.mark.parametrize("seed", range(4))
def test_a_prompt_of_a_shortened_history_is_whole(tmp_path: Path, seed: int, cache_bytes: int) -> None:
    """Ours: no call without its result, no result without its call, and the report is what was sent."""
    chance = random.Random(seed)
    generations: dict[str, list[tuple[str, str]]] = {
        "look": [("web_search", '{"query":"fjords"}')],
        "plain": [("plain", "{}")],
        "slow": [("slow", "{}")],
    }

    def answer(request: Request) -> Reply:
        kinds = ["text", "text", *generations] if request.json.get("tools") else ["text"]
        said: Generation = "said " * chance.randint(1, 60)
        tokens = len(msgspec.json.encode(request.json["messages"])) // 4
        return write(generations.get(chance.choice(kinds), said), prompt_tokens=tokens)

    async def main() -> None:
        search = ScriptedSearch({"fjords": [SearchHit("https://fjords.example/", "Fjords", "deep " * 80)]})
        async with asyncio.timeout(40), FakeUpstream(answer) as upstream:
            settings = {
                "endpoints": {"fake": {"url": upstream.url, "profile": "small"}},
                "profiles": {"small": {"window_tokens": WINDOW_TOKENS}},
                "limits": {"window_cache_bytes": cache_bytes},
            }
            async with open_house(tmp_path, upstream, search=search, settings=settings) as house:
                chain = Chain(house, chance)
                for number in range(ROUNDS):
                    await chain.go_on(number)
                assert chain.truncated

    asyncio.run(main())


KINDS: list[dict[str, Any]] = [
    *TOOLS,
    {"type": "custom", "name": "code"},
    {"type": "shell", "environment": {"type": "local"}},
    {"type": "local_shell"},
    {"type": "apply_patch"},
    {"type": "namespace", "name": "ns", "description": "d", "tools": [{**PLAIN, "name": "say"}]},
]
CALLS = [
    ("web_search", '{"query":"fjords"}'),
    ("plain", '{ "a" : 1.0 }'),
    ("slow", "{}"),
    ("code", '{"input":"a\\u00e9\\n"}'),
    ("shell", '{"commands":["ls"]}'),
    ("local_shell", '{"command":["ls"]}'),
    ("apply_patch", '{"type":"delete_file","path":"a"}'),
    ("ns__say", '{"x":"y"}'),
]
#: What answers each kind of call, beside its id.
OUTPUTS: dict[str, dict[str, Any]] = {
    "function_call": {"output": "o"},
    "custom_tool_call": {"output": "o"},
    "shell_call": {"output": [{"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 1}}]},
    "local_shell_call": {"output": "x"},
    "apply_patch_call": {"status": "completed", "output": "x"},
}


def give(call: dict[str, Any]) -> dict[str, Any]:
    """The output of a call; a local shell's names its call by `id`."""
    key = "id" if call["type"] == "local_shell_call" else "call_id"
    return {"type": f"{call['type']}_output", key: call["call_id"], **OUTPUTS[call["type"]]}


def improvise(chance: random.Random) -> Reply:
    """A generation of anything: reasoning, text, and up to three calls of different kinds at once."""
    calls = chance.sample(CALLS, chance.choice([0, 0, 1, 1, 2, 3]))
    chunks = [make_chunk({"reasoning_content": "hm"})] if chance.random() < 0.4 else []
    if not calls or chance.random() < 0.5:
        chunks.append(make_chunk({"content": "said"}))
    for index, (name, arguments) in enumerate(calls):
        function = {"name": name, "arguments": arguments}
        call = {"index": index, "id": f"up_{index}", "type": "function", "function": function}
        chunks.append(make_chunk({"tool_calls": [call]}))
    return Reply([make_head(), *chunks, make_chunk({}, "tool_calls" if calls else "stop"), END])


def improvise_json(chance: random.Random) -> Reply:
    """The same of a model whose calls are constrained JSON."""
    calls = [
        {"name": name, "arguments": json.loads(arguments)}
        for name, arguments in chance.sample(CALLS, chance.choice([0, 0, 1, 1, 2, 3]))
    ]
    if not calls:
        return write(json.dumps({"reply": "said"}))
    return write(json.dumps(calls if len(calls) > 1 else calls[0]))


@pytest.mark.parametrize("cache_bytes", [1 << 28, 0])
@pytest.mark.parametrize("tools", ["native", "schema"])
@pytest.mark.parametrize("seed", range(5))
def test_full_history_makes_the_bytes_that_an_id_makes(
    tmp_path: Path, seed: int, tools: str, cache_bytes: int
) -> None:
    """Ours: whichever way history comes back, from memory, the store or the client, the prompt is the same."""
    chance = random.Random(seed)
    replays = False

    def answer(_: Request) -> Reply:
        if replays:
            return write("replayed" if tools == "native" else '{"reply":"replayed"}')
        return improvise(chance) if tools == "native" else improvise_json(chance)

    async def main() -> None:
        nonlocal replays
        search = ScriptedSearch({"fjords": [SearchHit("https://fjords.example/", "Fjords", "Deep.")]})
        include = ["reasoning.encrypted_content", "web_search_call.results"]
        async with asyncio.timeout(40), FakeUpstream(answer) as upstream:
            settings = {
                "endpoints": {"fake": {"url": upstream.url, "profile": "small"}},
                "profiles": {"small": {"tools": tools}},
                "limits": {"window_cache_bytes": cache_bytes},
            }
            async with open_house(tmp_path, upstream, search=search, settings=settings) as house:
                parent: str | None = None
                output: list[dict[str, Any]] = []
                history: list[dict[str, Any]] = []
                for number in range(ROUNDS):
                    new = [give(item) for item in output if item["type"] in OUTPUTS and not item.get("async")]
                    new.append({"role": "user", "content": f"{number}"})
                    history += new
                    replays = False
                    first = len(upstream.asked)
                    made = await house.make(
                        stream=chance.random() < 0.5,
                        input=new,
                        previous_response_id=parent,
                        tools=KINDS,
                        include=include,
                    )
                    replays = True
                    await house.make(input=history, tools=KINDS, store=False)
                    sent = read_array(upstream.asked[first])
                    assert sent == read_array(upstream.asked[-1])
                    if tools == "native":
                        check_answered(upstream.asked[-1].json["messages"])
                    parent, output = made["id"], made["output"]
                    history += output

    asyncio.run(main())
