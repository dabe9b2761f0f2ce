"""Our whole server in this process before a model server that plays generations, one a request.

It knows configuration and both wires, and no scenario. Invariant: every request to the model server is kept with its
bytes, and a generation that nobody asked for fails the test.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from antiphon.bootstrap import build_application, build_backends, build_engine
from antiphon.client.app_transport import AppTransport
from antiphon.client.transport import TransportLimits
from antiphon.config import load_config
from antiphon.engine import Engine
from antiphon.hosted import SearchProvider
from tests.fake_upstream import END, MODEL, FakeUpstream, Reply, Request, frame, make_chunk, make_head
from tests.scenarios.client import Answer, StrictClient, find_terminal

#: No wait in a scenario is longer.
WAIT_S = 20.0
#: Arguments arrive in pieces of this many characters.
PIECE_CHARACTERS = 5

#: A generation: text, calls as (name, arguments), or a reply as it is.
Generation: TypeAlias = str | list[tuple[str, str]] | Reply


def write(generation: Generation, prompt_tokens: int = 0, output_tokens: int = 5) -> Reply:
    """The stream of one generation; with usage where its prompt has tokens."""
    if isinstance(generation, Reply):
        return generation
    chunks = [make_chunk({"content": generation})] if isinstance(generation, str) else []
    for index, (name, arguments) in enumerate(generation if isinstance(generation, list) else ()):
        begun = {"index": index, "id": f"up_{index}", "type": "function", "function": {"name": name}}
        chunks.append(make_chunk({"tool_calls": [begun]}))
        for at in range(0, len(arguments), PIECE_CHARACTERS):
            piece = {"index": index, "function": {"arguments": arguments[at : at + PIECE_CHARACTERS]}}
            chunks.append(make_chunk({"tool_calls": [piece]}))
    chunks.append(make_chunk({}, "stop" if isinstance(generation, str) else "tool_calls"))
    if prompt_tokens:
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
        told = {"choices": [], "usage": {**usage, "total_tokens": prompt_tokens + output_tokens}}
        chunks.append(frame(b"data: " + msgspec.json.encode(told) + b"\n\n"))
    return Reply([make_head(), *chunks, END])


def think(reasoning: str, text: str) -> Reply:
    """A generation with reasoning before its text."""
    said = [make_chunk({"reasoning_content": reasoning}), make_chunk({"content": text}, "stop")]
    return Reply([make_head(), *said, END])


class House:
    """One running server, asked as a client would, and what it asked the model server."""

    def __init__(
        self, upstream: FakeUpstream, client: StrictClient, engine: Engine, transport: AppTransport
    ) -> None:
        self.upstream = upstream
        self.client = client
        self.engine = engine
        self.transport = transport
        #: The events of the last stream.
        self.events: list[dict[str, Any]] = []

    async def make(self, *, stream: bool = False, **body: Any) -> dict[str, Any]:
        """A response by either way; one that was streamed reads back as it was sent."""
        filled = {"model": MODEL, **body}
        if not stream:
            return await self.client.create(**filled)
        self.events = await self.client.stream(**filled)
        made = find_terminal(self.events)
        if filled.get("store", True) and not filled.get("include"):
            assert (await self.client.retrieve(made["id"])).body == made
        return made

    async def refuse(self, **body: Any) -> dict[str, Any]:
        """The error object of a request that must be refused."""
        return await self.client.refuse(400, **{"model": MODEL, **body})

    async def get(self, path: str) -> Any:
        """The JSON behind a path."""
        answer: Answer = await self.client.send("GET", path)
        assert answer.status == 200, answer.body
        return answer.body

    async def list_items(self, response_id: str, **query: Any) -> list[dict[str, Any]]:
        """All items that a response answered, oldest first."""
        page = await self.client.list_items(response_id, order="asc", limit=100, **query)
        assert page.status == 200, page.body
        items: list[dict[str, Any]] = page.body["data"]
        return items

    @property
    def told(self) -> list[str]:
        """The names of the functions in the last request to the model server."""
        return [tool["function"]["name"] for tool in self.upstream.asked[-1].json.get("tools", [])]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the last request to the model server."""
        found: list[dict[str, Any]] = self.upstream.asked[-1].json["messages"]
        return found

    @property
    def kinds(self) -> list[str]:
        """The types of the last stream's events."""
        return [event["type"] for event in self.events]


@asynccontextmanager
async def open_house(
    folder: Path,
    upstream: FakeUpstream,
    *,
    search: SearchProvider | None = None,
    settings: dict[str, Any] | None = None,
    environ: dict[str, str] | None = None,
) -> AsyncIterator[House]:
    """The server over a data folder; opened again over the same one, it is the server after a restart.

    `settings`: sections of the configuration, beside or in the place of what is needed.
    """
    flags = {
        "server": {"data": str(folder / "data")},
        "endpoints": {"fake": {"url": upstream.url}},
        "models": {MODEL: {"endpoint": "fake"}},
        **(settings or {}),
    }
    config = load_config(flags, environ=environ or {}, cwd=folder)
    engine = build_engine(config, build_backends(config))
    try:
        await engine.start()
        if search is not None:
            engine.services.search = search
        transport = AppTransport(
            build_application(config, engine), TransportLimits(idle_timeout_s=WAIT_S, close_timeout_s=WAIT_S)
        )
        try:
            yield House(upstream, StrictClient(transport), engine, transport)
        finally:
            await transport.close()
    finally:
        await engine.close()


def play(generations: Sequence[Generation]) -> FakeUpstream:
    """A model server that answers its n-th request with the n-th generation, of growing prompts."""
    waiting: Iterator[tuple[int, Generation]] = iter(enumerate(generations, 1))

    def answer(_: Request) -> Reply:
        number, generation = next(waiting)
        return write(generation, prompt_tokens=100 * number)

    return FakeUpstream(answer)


def run(
    folder: Path,
    generations: Sequence[Generation],
    story: Callable[[House], Awaitable[None]],
    *,
    search: SearchProvider | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Play a story; every generation must have been asked for."""

    async def main() -> None:
        async with asyncio.timeout(2 * WAIT_S), play(generations) as upstream:
            async with open_house(folder, upstream, search=search, settings=settings) as house:
                await story(house)
            assert len(upstream.asked) == len(generations)

    asyncio.run(main())


def read_array(request: Request, name: str = "messages") -> bytes:
    """A list of a request's body, byte for byte."""
    fields = msgspec.json.decode(request.body, type=dict[str, msgspec.Raw])
    return bytes(fields.get(name, b"[]"))


def check_prefixes(upstream: FakeUpstream, *, same_tools: bool = True) -> None:
    """Each prompt begins with the bytes of the one before; with `same_tools`, tools are the same bytes."""
    for earlier, later in zip(upstream.asked, upstream.asked[1:], strict=False):
        before, after = read_array(earlier), read_array(later)
        assert after.startswith(before[:-1] + b","), (before, after)
        if same_tools:
            assert read_array(later, "tools") == read_array(earlier, "tools")


def list_codes(response: dict[str, Any]) -> list[str]:
    """The codes of a response's warnings."""
    return [warning["code"] for warning in response.get("antiphon", {}).get("warnings", [])]


def to_history(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The output as a client without `previous_response_id` sends it back."""
    history: list[dict[str, Any]] = response["output"]
    return history
