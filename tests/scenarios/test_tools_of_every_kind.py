"""Tools of every kind before a model server that knows functions alone: what it is asked, what clients get."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.bootstrap import build_app
from antiphon.client.app_transport import AppTransport
from antiphon.config import load_config
from tests.fake_upstream import END, MODEL, FakeUpstream, Reply, Request, make_chunk, make_head
from tests.scenarios.client import StrictClient, find_terminal, read_text

#: Arguments arrive in pieces of this many characters.
PIECE_CHARACTERS = 5
SAY: dict[str, Any] = {"type": "function", "name": "say", "parameters": {"type": "object"}, "strict": False}
ECHO = {"type": "namespace", "name": "mcp__echo", "description": "Echoes.", "tools": [SAY]}

#: A generation: text, or calls as (name, arguments).
Generation = str | list[tuple[str, str]]


def write(generation: Generation) -> Reply:
    """The stream of one generation."""
    if isinstance(generation, str):
        return Reply([make_head(), make_chunk({"content": generation}), make_chunk({}, "stop"), END])
    chunks = []
    for index, (name, arguments) in enumerate(generation):
        begun = {"index": index, "id": f"up_{index}", "type": "function", "function": {"name": name}}
        chunks.append(make_chunk({"tool_calls": [begun]}))
        for at in range(0, len(arguments), PIECE_CHARACTERS):
            piece = {"index": index, "function": {"arguments": arguments[at : at + PIECE_CHARACTERS]}}
            chunks.append(make_chunk({"tool_calls": [piece]}))
    return Reply([make_head(), *chunks, make_chunk({}, "tool_calls"), END])


class House:
    """Our server before a model server that plays generations, one a request."""

    def __init__(self, upstream: FakeUpstream, client: StrictClient) -> None:
        self.upstream = upstream
        self._client = client

    async def make(self, *, stream: bool = False, **body: Any) -> dict[str, Any]:
        """A response by either way."""
        filled = {"model": MODEL, **body}
        return (
            find_terminal(await self._client.stream(**filled))
            if stream
            else await self._client.create(**filled)
        )

    async def refuse(self, **body: Any) -> dict[str, Any]:
        """The error object of a request that must be refused."""
        return await self._client.refuse(400, **{"model": MODEL, **body})

    @property
    def told(self) -> list[str]:
        """The names of the functions in the last request to the model server."""
        return [tool["function"]["name"] for tool in self.upstream.asked[-1].json.get("tools", [])]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the last request to the model server."""
        found: list[dict[str, Any]] = self.upstream.asked[-1].json["messages"]
        return found


@asynccontextmanager
async def open_house(folder: Path, generations: list[Generation]) -> AsyncIterator[House]:
    """The whole server in this process."""
    waiting = iter(generations)

    def answer(_: Request) -> Reply:
        return write(next(waiting))

    async with FakeUpstream(answer) as upstream:
        flags = {
            "server": {"data": str(folder / "data")},
            "endpoints": {"fake": {"url": upstream.url}},
            "models": {MODEL: {"endpoint": "fake"}},
        }
        async with build_app(load_config(flags, environ={}, cwd=folder)) as app:
            transport = AppTransport(app)
            try:
                yield House(upstream, StrictClient(transport))
            finally:
                await transport.close()


def run(folder: Path, generations: list[Generation], story: Callable[[House], Awaitable[None]]) -> None:
    """Play a story; every generation must have been asked for."""

    async def main() -> None:
        async with open_house(folder, generations) as house:
            await story(house)
            assert len(house.upstream.asked) == len(generations)

    asyncio.run(main())


def pick(item: dict[str, Any], *names: str) -> dict[str, Any]:
    """Some fields of an item."""
    return {name: item[name] for name in names}


KINDS: list[tuple[dict[str, Any], tuple[str, str], dict[str, Any], dict[str, Any], str]] = [
    (
        ECHO,
        ("mcp__echo__say", '{"text":"hi"}'),
        {"type": "function_call", "name": "say", "namespace": "mcp__echo", "arguments": '{"text":"hi"}'},
        {"type": "function_call_output", "output": "hi!"},
        "hi!",
    ),
    (
        {"type": "custom", "name": "run_code", "description": "Runs Python."},
        ("run_code", '{"input":"print(\\"a\\")\\n"}'),
        {"type": "custom_tool_call", "name": "run_code", "input": 'print("a")\n'},
        {"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "a"}]},
        "a",
    ),
    (
        {"type": "shell", "environment": {"type": "local"}},
        ("shell", '{"commands":["ls"]}'),
        {"type": "shell_call"},
        {
            "type": "shell_call_output",
            "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        "[exit code 0]\na",
    ),
    (
        {"type": "local_shell"},
        ("local_shell", '{"command":["ls"]}'),
        {"type": "local_shell_call"},
        {"type": "local_shell_call_output", "output": "a"},
        "a",
    ),
    (
        {"type": "apply_patch"},
        ("apply_patch", '{"type":"create_file","path":"a","diff":"+a"}'),
        {"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a", "diff": "+a"}},
        {"type": "apply_patch_call_output", "status": "completed", "output": "made"},
        "[completed]\nmade",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("tool", "called", "expected", "output", "result"), KINDS, ids=lambda value: "")
def test_a_call_comes_as_its_own_kind_and_goes_back_as_a_function_s(
    tmp_path: Path, stream: bool, tool: Any, called: Any, expected: Any, output: Any, result: str
) -> None:
    """Spec: items. Twice, so that a stored call is seen to be told as the model made it."""

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Go.", tools=[tool])
        assert house.told == [called[0]]
        (call,) = first["output"]
        assert pick(call, *expected) == expected
        given = {**output, "call_id": call["call_id"]}
        if call["type"] == "local_shell_call":
            given["id"] = call["call_id"]
        second = await house.make(
            stream=stream, previous_response_id=first["id"], input=[given], tools=[tool]
        )
        assert read_text(second) == "Done."
        said, made, told = house.messages
        assert said == {"role": "user", "content": "Go."}
        (sent,) = made["tool_calls"]
        assert sent["id"] == told["tool_call_id"] == call["call_id"]
        assert sent["function"] == {"name": called[0], "arguments": called[1]}
        assert told["content"] == result

    run(tmp_path, [[called], "Done."], story)


def test_a_search_for_tools_brings_tools_that_can_be_called(tmp_path: Path) -> None:
    """Codex: tools are hidden behind a search that the client runs; what was found stays offered."""
    search = {"type": "tool_search", "execution": "client"}
    deferred = {**ECHO, "tools": [{**SAY, "defer_loading": True}]}

    async def story(house: House) -> None:
        first = await house.make(input="Say hi.", tools=[search])
        assert house.told == ["tool_search"]
        (call,) = first["output"]
        assert pick(call, "type", "execution", "arguments") == {
            "type": "tool_search_call",
            "execution": "client",
            "arguments": {"query": "say"},
        }
        found = {
            "type": "tool_search_output",
            "call_id": call["call_id"],
            "execution": "client",
            "tools": [deferred],
        }
        second = await house.make(previous_response_id=first["id"], input=[found], tools=[search])
        assert house.told == ["tool_search", "mcp__echo__say"]
        assert house.messages[-1]["content"] == "Found; they can be called now:\n- mcp__echo__say"
        (say,) = second["output"]
        assert (say["name"], say["namespace"]) == ("say", "mcp__echo")
        answer = {"type": "function_call_output", "call_id": say["call_id"], "output": "hi"}
        await house.make(previous_response_id=second["id"], input=[answer], tools=[search])
        assert house.told == ["tool_search", "mcp__echo__say"]

    run(tmp_path, [[("tool_search", '{"query":"say"}')], [("say", "{}")], "Done."], story)


def test_tools_may_come_as_an_item_before_the_system_text(tmp_path: Path) -> None:
    """Codex: newer models get no `tools`, but an `additional_tools` item before everything else."""
    brought = {"type": "additional_tools", "role": "developer", "tools": [ECHO]}

    async def story(house: House) -> None:
        first = await house.make(
            input=[brought, {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        )
        assert house.told == ["mcp__echo__say"]
        assert house.messages == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
        ]
        await house.make(previous_response_id=first["id"], input="Again")
        assert house.told == ["mcp__echo__say"]

    run(tmp_path, ["Hi.", "Again."], story)


@pytest.mark.parametrize("stream", [False, True])
def test_an_async_call_is_not_waited_for(tmp_path: Path, stream: bool) -> None:
    """Spec: async tools; what the model has seen is never changed by what comes late."""
    tool = {"type": "function", "name": "slow", "parameters": {"type": "object"}, "async": True}

    async def story(house: House) -> None:
        first = await house.make(stream=stream, input="Start.", tools=[tool])
        call, said = first["output"]
        assert (call["type"], call["async"], said["type"]) == ("function_call", True, "message")
        assert [message["role"] for message in house.messages] == ["user", "assistant", "tool"]
        second = await house.make(
            stream=stream, previous_response_id=first["id"], input="Still there?", tools=[tool]
        )
        seen = house.messages
        late = {"type": "function_call_output", "call_id": call["call_id"], "output": "18"}
        for _ in range(2):
            second = await house.make(stream=stream, previous_response_id=second["id"], input=[late])
            assert house.messages[: len(seen)] == seen
            assert house.messages[-1] == {
                "role": "user",
                "content": f"[result of call {call['call_id']}]\n18",
            }
            seen = house.messages

    run(tmp_path, [[("slow", "{}")], "Started.", "Yes.", "It is 18.", "Still 18."], story)


def test_tools_that_are_not_allowed_are_neither_offered_nor_called(tmp_path: Path) -> None:
    """Spec: allowed_tools is a hard limit, over namespaces and custom tools too."""
    tools = [ECHO, {"type": "custom", "name": "c"}, {"type": "shell"}]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "c"}]}

    async def story(house: House) -> None:
        response = await house.make(input="Go.", tools=tools, tool_choice=choice)
        assert house.told == ["c"]
        assert [item["type"] for item in response["output"]] == ["custom_tool_call"]
        codes = {warning["code"] for warning in response["antiphon"]["warnings"]}
        assert "hidden_call_dropped" in codes

    run(tmp_path, [[("c", '{"input":"x"}'), ("mcp__echo__say", "{}")]], story)


def test_what_cannot_be_offered_is_refused_before_the_model_is_asked(tmp_path: Path) -> None:
    """Ours: by its place, with a remedy."""

    async def story(house: House) -> None:
        for body, param in (
            ({"tools": [{"type": "file_search", "vector_store_ids": ["vs"]}]}, "tools[0].type"),
            ({"tools": [ECHO, {**SAY, "name": "mcp__echo__say"}]}, "tools[1].name"),
            (
                {"tools": [{"type": "web_search"}], "tool_choice": "required"},
                "tool_choice",
            ),
        ):
            error = await house.refuse(input="Go.", **body)
            assert error["param"] == param

    run(tmp_path, [], story)
