"""What a request does beside being echoed: what a model server was asked, what others were asked, what came out.

It knows one server over two kinds of model servers, and no field. Invariant: two requests that differ in nothing
that is carried out make equal observations.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple

from antiphon.backends import Backend
from antiphon.backends.chat_completions import ChatCompletionsBackend
from antiphon.backends.endpoint import Endpoint
from antiphon.backends.profiles import PROFILES
from antiphon.backends.responses import ResponsesBackend
from antiphon.client.app_transport import AppTransport
from antiphon.client.transport import TransportLimits
from antiphon.context import Profile
from antiphon.engine import Alias, Catalog, Engine, Services
from antiphon.hosted import McpResult, McpToolFacts, SearchHit
from antiphon.hosted.scripted import ScriptedMcpConnector, ScriptedMcpServer, ScriptedSearch
from antiphon.server import Application
from antiphon.store.memory import MemoryStore
from tests.fake_upstream import END, FakeUpstream, Reply, Request, make_chunk, make_event, make_head
from tests.fake_upstream import make_response_stream as make_responses
from tests.scenarios.client import Answer, StrictClient
from tests.scenarios.serving import WAIT_S

Dialect = Literal["chat", "responses"]
#: What a difference between two values of a field makes: another request to the model's server, another request to
#: a search or an MCP server, another answer, a refusal that names the field; or nothing that the client could see.
Effect = Literal["sent", "asked", "shown", "refused", "nothing"]
MODEL = "m"
#: A prompt with these words has the model call the first tool that it is offered.
USE = "Please use it."
SMALL_WINDOW = "small-window"
MCP_URLS = ("http://mcp.example/one", "http://mcp.example/two")
_USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
_ARGUMENTS = {"query": "tea", "input": "abc", "text": "x", "commands": ["ls"], "command": ["ls"]}
_PATCH = {"type": "delete_file", "path": "a"}
_IDS = re.compile(r"\b(resp|msg|rs|fc|ctc|ws|mcp|mcpl|mcpr|lsh|sh|apc|tsc|call)_[0-9A-Za-z]{12,}")
_CALL_IDS = re.compile(rb'"(tool_call_id|id)":"[^"]*",?')


class Observation(NamedTuple):
    """One request, and all that came of it."""

    upstream: tuple[bytes, ...]
    hosted: str
    shown: str
    answer: Answer | None
    events: list[dict[str, Any]]

    @property
    def error(self) -> tuple[str, str] | None:
        """The param and the message of a refusal."""
        if self.answer is None or self.answer.status < 400:
            return None
        return str(self.answer.error["param"]), self.answer.error["message"]

    @property
    def response(self) -> dict[str, Any]:
        """The response, however it came."""
        if self.answer is None:
            found: dict[str, Any] = self.events[-1]["response"]
            return found
        assert self.answer.status == 200, self.answer.body
        body: dict[str, Any] = self.answer.body
        return body


class Observer:
    """A server over one fake model server, with a search and an MCP server from tables."""

    def __init__(
        self, client: StrictClient, upstream: FakeUpstream, services: Services, dialect: Dialect
    ) -> None:
        self._dialect = dialect
        self.client = client
        self.store = services.store
        self._upstream = upstream
        self._services = services

    async def observe(self, body: dict[str, Any]) -> Observation:
        """Send it, and wait until it has ended."""
        asked_before, hosted_before = len(self._upstream.asked), [len(each) for each in self._list_hosted()]
        sent = json.dumps({"model": MODEL, "input": "Hello.", **body}).encode()
        came = await self.client.exchange(sent)
        answer, events = (came, []) if isinstance(came, Answer) else (None, came)
        shown = show(answer, events)
        if answer is not None and answer.body.get("status") == "queued":
            await self._wait_for_background(answer.body["id"])
        hosted = [each[before:] for each, before in zip(self._list_hosted(), hosted_before, strict=True)]
        bodies = [each.body for each in self._upstream.asked[asked_before:]]
        # The ids of calls that this server makes are new each time.
        upstream = tuple(_CALL_IDS.sub(b"", each) if self._dialect == "chat" else each for each in bodies)
        return Observation(upstream, repr(hosted), shown, answer, events)

    async def _wait_for_background(self, response_id: str) -> None:
        """A stream of it ends when it does; the model server may only be asked after that many turns."""
        for _ in range(10_000):
            if (await self.client.retrieve(response_id)).body["status"] not in ("queued", "in_progress"):
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{response_id} never ended")

    def _list_hosted(self) -> list[list[Any]]:
        search, mcp = self._services.search, self._services.mcp
        assert isinstance(search, ScriptedSearch)
        assert isinstance(mcp, ScriptedMcpConnector)
        servers = [
            (each.label, each.url, each.authorization, dict(each.headers or {})) for each in mcp.servers
        ]
        return [list(search.queries), servers, list(mcp.calls)]


@asynccontextmanager
async def open_observer(dialect: Dialect) -> AsyncIterator[Observer]:
    """A server over that dialect."""
    answer = answer_chat if dialect == "chat" else answer_responses
    async with FakeUpstream(answer, owned_by="openai", models=(MODEL, "n", "o")) as upstream:
        endpoint = Endpoint(name="fake", url=upstream.url)
        kind = ChatCompletionsBackend if dialect == "chat" else ResponsesBackend
        profile = PROFILES["openai"]
        backend: Backend = kind(endpoint, profile=profile)
        small = Profile(name="small", window_tokens=2048)
        aliases = {SMALL_WINDOW: Alias(endpoint="fake", model="o", profile=small)}
        hit = SearchHit(url="https://tea.example/a", title="Tea", snippet="Tea is made of leaves.")
        server = ScriptedMcpServer(
            tools=[
                McpToolFacts(name, {"type": "object"}, f"Says {name}.", {"readOnlyHint": name == "echo"})
                for name in ("echo", "say")
            ],
            answers={"echo": McpResult("echoed"), "say": McpResult("said")},
        )
        services = Services(
            catalog=Catalog({"fake": backend}, aliases),
            store=MemoryStore(),
            search=ScriptedSearch({"tea": [hit]}),
            mcp=ScriptedMcpConnector(dict.fromkeys(MCP_URLS, server)),
        )
        engine = Engine(services)
        await engine.start()
        limits = TransportLimits(idle_timeout_s=WAIT_S, close_timeout_s=WAIT_S)
        transport = AppTransport(Application(engine), limits)
        try:
            yield Observer(StrictClient(transport), upstream, services, dialect)
        finally:
            await transport.close()
            await engine.close()


def find_effect(first: Observation, second: Observation, params: tuple[str, ...]) -> Effect:
    """What the difference between two values did; raises for a refusal that names something else."""
    errors = [each.error for each in (first, second) if each.error is not None]
    if errors:
        for param, message in errors:
            assert param in params, f"refused as {param!r}: {message}"
        return "refused"
    if first.upstream != second.upstream:
        return "sent"
    if first.hosted != second.hosted:
        return "asked"
    return "shown" if first.shown != second.shown else "nothing"


def list_changed_keys(first: Observation, second: Observation) -> set[str]:
    """The top-level keys of the model server's requests that differ, each compared with its counterpart."""
    changed: set[str] = set()
    for pair in zip(first.upstream, second.upstream, strict=False):
        one, other = map(json.loads, pair)
        changed |= {key for key in {*one, *other} if one.get(key) != other.get(key)}
    return changed


def show(answer: Answer | None, events: list[dict[str, Any]]) -> str:
    """What the client is told, without what it had said itself, and with no id or sealed text as it is."""
    if answer is not None and answer.status >= 400:
        return f"error {answer.status}"
    response = events[-1]["response"] if answer is None else answer.body
    told = {
        "form": "json" if answer is not None else "stream",
        "padded": any("obfuscation" in event for event in events),
        "status": response["status"],
        "output": [_blank(item) for item in response["output"]],
    }
    return _IDS.sub("ID", json.dumps(told, sort_keys=True))


def _blank(item: dict[str, Any]) -> dict[str, Any]:
    blanked = {**item, "id": "ID"}
    if item.get("encrypted_content") is not None:
        blanked["encrypted_content"] = "SEALED"
    return blanked


# The model servers: they call the first tool that they are offered when they must, or are told to.


def _make_arguments(name: str, parameters: dict[str, Any]) -> str:
    if name.endswith("apply_patch"):
        return json.dumps(_PATCH)
    named = parameters.get("properties", {})
    return json.dumps({key: value for key, value in _ARGUMENTS.items() if key in named})


def answer_chat(request: Request) -> Reply:
    """Reasoning, then a call or a text."""
    body = request.json
    functions = [tool["function"] for tool in body.get("tools") or ()]
    results = sum(message["role"] == "tool" for message in body.get("messages", ()))
    forced = body.get("tool_choice", "auto")
    steps: list[Any] = [make_head(), make_chunk({"reasoning_content": "Hm."})]
    finish = "stop"
    if functions and results < 2 and (forced != "auto" or USE.encode() in request.body):
        wanted = forced["function"]["name"] if isinstance(forced, dict) else functions[0]["name"]
        function = next(each for each in functions if each["name"] == wanted)
        call = {"index": 0, "id": f"call_{results}", "type": "function"}
        arguments = _make_arguments(wanted, function["parameters"])
        call["function"] = {"name": wanted, "arguments": arguments}
        steps.append(make_chunk({"tool_calls": [call]}))
        finish = "tool_calls"
    else:
        logprobs = {"content": [{"token": "Yes.", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
        choice = {"index": 0, "delta": {"content": "Yes."}, "finish_reason": None}
        chunk = {"choices": [{**choice, "logprobs": logprobs} if body.get("logprobs") else choice]}
        data = b"data: " + json.dumps(chunk).encode() + b"\n\n"
        steps.append(b"%x\r\n%b\r\n" % (len(data), data))
    steps.append(make_chunk({}, finish, usage=_USAGE))
    return Reply([*steps, END])


def answer_responses(request: Request) -> Reply:
    """A text, whatever is asked."""
    text = {"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "msg_up", "role": "assistant", "status": "completed", "content": [text]}
    usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
    whole = {"id": "resp_up", "status": "completed", "output": [item], "usage": usage}
    return Reply(
        make_responses(
            make_event("response.created", response={**whole, "status": "in_progress", "output": []}),
            make_event("response.output_item.added", output_index=0, item={**item, "content": []}),
            make_event("response.output_item.done", output_index=0, item=item),
            make_event("response.completed", response=whole),
        )
    )
