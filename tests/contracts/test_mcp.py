"""The contract of MCP connectors: one suite for the fake and for the SDK's client against the SDK's own server.

What servers can do wrong is played by hand, in JSON-RPC over HTTP, as the MCP specification has it.
"""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import msgspec
import pytest
import uvicorn
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from antiphon.hosted import McpConnection, McpConnector, McpError, McpResult, McpServer, McpToolFacts
from antiphon.hosted.addresses import AddressRules, Lookup, look_up
from antiphon.hosted.mcp import SdkMcpConnector, is_sdk_installed
from antiphon.hosted.mcp_limits import McpLimits, StructureCounter, list_credentials, list_secrets, redact
from antiphon.hosted.scripted import ScriptedMcpConnector, ScriptedMcpServer

TOKEN = "token-abcdef-123456"
WAIT_S = 20.0
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (
    McpToolFacts("weather", SCHEMA, "The weather.", {"readOnlyHint": True}),
    McpToolFacts("alarm", {"type": "object"}),
)
Play: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[McpConnector, str]]]


def make_connector(
    *, limits: McpLimits | None = None, rules: AddressRules | None = None, lookup: Lookup = look_up
) -> SdkMcpConnector:
    return SdkMcpConnector(
        rules=rules or AddressRules(private=True), limits=limits or McpLimits(), lookup=lookup
    )


def build_app(kind: str) -> Any:
    """The SDK's server with two tools, behind a bearer token."""
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from starlette.responses import PlainTextResponse

    async def list_tools(*_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.input_schema,
                    annotations=types.ToolAnnotations(read_only_hint=True) if tool.annotations else None,
                )
                for tool in TOOLS
            ]
        )

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        if params.name == "weather":
            text = f"4 degrees in {(params.arguments or {})['city']}"
            return types.CallToolResult(content=[types.TextContent(text=text)])
        return types.CallToolResult(content=[types.TextContent(text="It is broken.")], is_error=True)

    server = Server("contract", on_list_tools=list_tools, on_call_tool=call_tool)
    app = server.streamable_http_app(json_response=kind == "json", stateless_http=kind == "json")

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"authorization", f"Bearer {TOKEN}".encode()) not in scope["headers"]:
            await PlainTextResponse("no", status_code=401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return guarded


class ServerThread:
    """Uvicorn in a thread of its own, on a free port of loopback."""

    def __init__(self, app: Any) -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        self._listener = listener
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=WAIT_S)
        self._listener.close()
        assert not self._thread.is_alive()


@pytest.fixture(scope="module", params=["fake", "streaming", "json"])
def play(request: pytest.FixtureRequest) -> Iterator[Play]:
    """A connector, and the URL of a server with `TOOLS` that it reaches."""
    if request.param == "fake":
        answers = {
            "weather": McpResult("4 degrees in Oslo"),
            "alarm": McpResult("It is broken.", is_error=True),
        }
        table = {"http://a.test/mcp": ScriptedMcpServer(tools=TOOLS, answers=answers, token=TOKEN)}

        @asynccontextmanager
        async def play_fake() -> AsyncIterator[tuple[McpConnector, str]]:
            yield ScriptedMcpConnector(table), "http://a.test/mcp"

        yield play_fake
        return
    server = ServerThread(build_app(request.param))

    @asynccontextmanager
    async def play_sdk() -> AsyncIterator[tuple[McpConnector, str]]:
        yield make_connector(), server.url

    yield play_sdk
    server.stop()


def use(play: Play, ask: Callable[[McpConnection], Awaitable[Any]], token: str = TOKEN) -> Any:
    async def run() -> Any:
        async with asyncio.timeout(WAIT_S), play() as (connector, url):
            connection = await connector.connect(McpServer(label="home", url=url, authorization=token))
            try:
                return await ask(connection)
            finally:
                await connection.close()

    return asyncio.run(run())


def test_tools_are_listed_by_name_and_whole(play: Play) -> None:
    """MCP specification, tools/list."""
    listed = use(play, lambda connection: connection.list_tools())
    assert listed == [TOOLS[1], TOOLS[0]]


def test_a_call_gives_its_text(play: Play) -> None:
    """MCP specification, tools/call."""
    result = use(play, lambda connection: connection.call("weather", {"city": "Oslo"}))
    assert result == McpResult("4 degrees in Oslo")


def test_a_tool_that_fails_says_so_in_its_result(play: Play) -> None:
    """MCP specification, tools/call: errors of the tool itself come as results with `isError`."""
    result = use(play, lambda connection: connection.call("alarm", {}))
    assert result == McpResult("It is broken.", is_error=True)


def test_several_calls_go_over_one_connection(play: Play) -> None:
    """Ours: a response may call more than once."""

    async def ask(connection: McpConnection) -> list[str]:
        await connection.list_tools()
        return [(await connection.call("weather", {"city": "Oslo"})).text for _ in range(3)]

    assert use(play, ask) == ["4 degrees in Oslo"] * 3


def test_a_server_that_lets_nobody_in_is_told_by_its_status(play: Play) -> None:
    """Responses API, the typed error of an mcp_call: `http_error` with the status."""
    with pytest.raises(McpError, match="'home' answered 401") as caught:
        use(play, lambda connection: connection.list_tools(), token="wrong-token-9876")
    assert (caught.value.kind, caught.value.error_code) == ("http_error", 401)
    assert "wrong-token" not in repr(caught.value)


def test_a_closed_connection_answers_no_more_and_closes_again(play: Play) -> None:
    """Ours: `close` never raises."""

    async def ask(connection: McpConnection) -> None:
        await connection.close()
        await connection.close()
        with pytest.raises(McpError):
            await connection.list_tools()
        with pytest.raises(McpError):
            await connection.call("weather", {"city": "Oslo"})

    use(play, ask)


def test_a_server_that_is_not_there_is_told(play: Play) -> None:
    """Ours: a failure says which server."""

    async def run() -> None:
        async with asyncio.timeout(WAIT_S), play() as (connector, _):
            await connector.connect(McpServer(label="away", url="http://127.0.0.1:1/mcp"))

    with pytest.raises(McpError, match="'away' cannot be reached"):
        asyncio.run(run())


# The SDK's client alone: servers that do wrong.

Handler: TypeAlias = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse | dict[str, Any]]]


class PlayedServer:
    """An MCP server of the year 2025, with sessions; `handle` answers everything but the handshake."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self.methods: list[str] = []
        self.headers: list[Mapping[str, str]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        if request.method != "POST":
            self.methods.append(request.method)
            return web.Response(status=405 if request.method == "GET" else 200)
        message = await request.json()
        method = message.get("method", "")
        self.methods.append(method)
        if "id" not in message:
            return web.Response(status=202)
        if method == "initialize":
            result: dict[str, Any] = {
                "result": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "played", "version": "1"},
                }
            }
        elif method == "server/discover":
            result = {"error": {"code": -32601, "message": "Method not found"}}
        else:
            answered = await self._handle(request, message)
            if isinstance(answered, web.StreamResponse):
                return answered
            result = answered
        body = {"jsonrpc": "2.0", "id": message["id"], **result}
        return web.json_response(body, headers={"mcp-session-id": "one"})


def meet(
    handle: Handler,
    ask: Callable[[McpConnection], Awaitable[Any]],
    *,
    limits: McpLimits | None = None,
    server: McpServer | None = None,
) -> tuple[Any, PlayedServer]:
    """Connect to a played server and ask it something; gives the answer, or the error, and the server."""
    played = PlayedServer(handle)

    async def run() -> Any:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", played.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        asked = server or McpServer(label="home", url="")
        try:
            async with asyncio.timeout(WAIT_S):
                connection = await make_connector(limits=limits).connect(
                    msgspec.structs.replace(asked, url=url)
                )
                try:
                    return await ask(connection)
                except McpError as error:
                    return error
                finally:
                    await connection.close()
        except McpError as error:
            return error
        finally:
            await runner.cleanup()

    return asyncio.run(run()), played


async def answer_call(_: web.Request, message: dict[str, Any]) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": "done"}], "echo": message["params"]}}


def tell_tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def call(connection: McpConnection) -> Awaitable[McpResult]:
    return connection.call("weather", {"city": "Oslo"})


def list_tools(connection: McpConnection) -> Awaitable[list[McpToolFacts]]:
    return connection.list_tools()


def told(error: Any) -> tuple[str, int]:
    assert isinstance(error, McpError), error
    return error.kind, error.error_code


def test_an_older_server_with_sessions_is_spoken_to_and_its_session_ended() -> None:
    """MCP specification 2025-06-18, lifecycle: initialize, initialized, DELETE at the end."""
    result, played = meet(answer_call, call)
    assert result == McpResult("done")
    assert [name for name in played.methods if name != "GET"] == [
        "server/discover",
        "initialize",
        "notifications/initialized",
        "tools/call",
        "DELETE",
    ]


def test_a_server_that_has_only_the_transport_of_2024_is_reached_too() -> None:
    """MCP specification, backwards compatibility: where POST is refused, GET opens a stream of events."""
    from mcp.server import MCPServer

    server = MCPServer("older", log_level="CRITICAL")

    @server.tool()
    def weather(city: str) -> str:
        return f"4 degrees in {city}"

    thread = ServerThread(server.sse_app())

    async def run() -> McpResult:
        async with asyncio.timeout(WAIT_S):
            url = thread.url.replace("/mcp", "/sse")
            connection = await make_connector().connect(McpServer(label="home", url=url))
            try:
                assert [tool.name for tool in await connection.list_tools()] == ["weather"]
                return await call(connection)
            finally:
                await connection.close()

    try:
        assert asyncio.run(run()) == McpResult("4 degrees in Oslo")
    finally:
        thread.stop()


def test_a_caller_that_leaves_in_mid_call_leaves_nothing_running() -> None:
    """Ours: cancelling a response ends what it started."""
    began = asyncio.Event()

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def ask(connection: McpConnection) -> list[str]:
        asked = asyncio.ensure_future(call(connection))
        await began.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await connection.close()
        names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
        return [
            name for name in names if "Connection" in name or "Streamable" in name or "Dispatcher" in name
        ]

    left, _ = meet(handle, ask)
    assert left == []


def test_headers_and_authorization_reach_the_server_and_are_never_shown() -> None:
    """Responses API, mcp tool: `authorization` is a token, `headers` are sent as they are."""
    server = McpServer(label="home", url="", authorization=TOKEN, headers={"X-Workspace": "blue-workspace"})
    _, played = meet(answer_call, call, server=server)
    sent = [{name.lower(): value for name, value in headers.items()} for headers in played.headers]
    assert {headers["authorization"] for headers in sent} == {f"Bearer {TOKEN}"}
    assert {headers["x-workspace"] for headers in sent} == {"blue-workspace"}
    assert TOKEN not in repr(server)
    assert "blue" not in str(server)


def test_a_server_that_hangs_at_the_handshake_is_given_up() -> None:
    """Ours: every wait is bounded."""

    async def run() -> None:
        async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)

        writers: list[asyncio.StreamWriter] = []
        listener = await asyncio.start_server(hang, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
        connector = make_connector(limits=McpLimits(connect_timeout_s=0.3))
        try:
            async with asyncio.timeout(WAIT_S):
                await connector.connect(McpServer(label="home", url=url))
        finally:
            listener.close()
            for writer in writers:
                writer.close()

    with pytest.raises(McpError, match=r"'home' did not answer within 0.3 s") as caught:
        asyncio.run(run())
    assert told(caught.value) == ("http_error", 504)


def test_a_server_that_hangs_in_a_call_is_given_up() -> None:
    """Ours: every wait is bounded."""

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    error, _ = meet(handle, call, limits=McpLimits(call_timeout_s=0.3))
    assert told(error) == ("http_error", 504)
    assert error.message == "MCP server 'home' did not answer within 0.3 s."


@pytest.mark.parametrize("streams", [False, True])
def test_a_server_that_dies_in_mid_call_is_told(streams: bool) -> None:
    """Ours: the connection ends before the answer, or within it."""

    async def handle(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if streams:
            await response.prepare(request)
            await response.write(b"event: message\ndata: {")
        assert request.transport is not None
        request.transport.close()
        return response

    error, _ = meet(handle, call)
    assert isinstance(error, McpError)
    assert error.message == "MCP server 'home' broke the connection."
    assert told(error) == ("http_error", 502)


@pytest.mark.parametrize("size", [1, 100, 1_000])
def test_all_pages_of_tools_are_read(size: int) -> None:
    """MCP specification, pagination: `nextCursor` until there is none."""
    names = [f"tool_{number:04}" for number in range(1_000)]

    async def handle(_: web.Request, message: dict[str, Any]) -> dict[str, Any]:
        start = int((message.get("params") or {}).get("cursor") or 0)
        page: dict[str, Any] = {
            "tools": [tell_tool(name) for name in names[start : start + 1_000 // size * 10]]
        }
        if start + 1_000 // size * 10 < 1_000:
            page["nextCursor"] = str(start + 1_000 // size * 10)
        return {"result": page}

    listed, _ = meet(handle, list_tools)
    assert [tool.name for tool in listed] == names


@pytest.mark.parametrize("per_page", [0, 1, 30])
def test_more_tools_than_the_limit_and_endless_pages_are_refused(per_page: int) -> None:
    """Ours: every list is bounded; half a list would be a silent loss."""
    pages = 0

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        nonlocal pages
        pages += 1
        tools = [tell_tool(f"tool_{pages}_{number}") for number in range(per_page)]
        return {"result": {"tools": tools, "nextCursor": str(pages)}}

    error, _ = meet(handle, list_tools, limits=McpLimits(max_tools=50))
    assert isinstance(error, McpError)
    assert "mcp.max_tools" in error.message
    assert pages <= 100


@pytest.mark.parametrize(
    "result",
    [
        {"tools": "none"},
        {},
        [],
    ],
)
def test_a_listing_that_is_none_is_told(result: Any) -> None:
    """MCP specification, tools/list: name and inputSchema are required."""

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        return {"result": result}

    error, _ = meet(handle, list_tools)
    assert isinstance(error, McpError)
    assert "'home'" in error.message


@pytest.mark.parametrize(
    "broken",
    [
        {"name": "broken"},
        {"name": "broken", "inputSchema": "none"},
        {"name": "broken", "inputSchema": {"type": ["object"]}},
        {"inputSchema": {"type": "object"}},
        7,
    ],
)
def test_a_tool_that_is_none_is_named_and_takes_no_other_with_it(broken: Any) -> None:
    """Ours: a server of a hundred tools is not lost for one of them."""

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        return {"result": {"tools": [tell_tool("good"), broken]}}

    bad, good = meet(handle, list_tools)[0]
    assert (good.name, good.fault) == ("good", None)
    assert bad.name in ("broken", "(a tool without a name)")
    assert "not as MCP has it" in bad.fault


def test_a_listing_quotes_no_credential() -> None:
    """Ours: what a server makes of a token goes into items, which are shown and stored."""
    told = f"use {TOKEN}"
    tool = tell_tool(
        "good",
        description=told,
        annotations={"title": told},
        inputSchema={"type": "object", "properties": {TOKEN: {"enum": [told]}}, "x": told},
    )

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        return {"result": {"tools": [tool, tell_tool(f"get_{TOKEN}"), {"name": f"no_{TOKEN}"}]}}

    server = McpServer(label="home", url="", authorization=f"Bearer {TOKEN}")
    listed, _ = meet(handle, list_tools, server=server)
    assert TOKEN not in repr(listed)
    assert [(each.name, each.fault is None) for each in listed] == [
        ("get_***", False),
        ("good", True),
        ("no_***", False),
    ]
    assert listed[1].input_schema["properties"] == {"***": {"enum": ["use ***"]}}


def test_an_error_of_the_protocol_keeps_its_code_and_loses_its_secrets() -> None:
    """Responses API, the typed error of an mcp_call: `mcp_protocol_error` with the code."""

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        return {"error": {"code": -32602, "message": f"Unknown tool, said {TOKEN}"}}

    error, _ = meet(handle, call, server=McpServer(label="home", url="", authorization=f"Bearer {TOKEN}"))
    assert told(error) == ("mcp_protocol_error", -32602)
    assert error.message == "MCP server 'home' answered with an error: Unknown tool, said ***"


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_a_status_is_told(status: int) -> None:
    """Responses API, the typed error of an mcp_call: `http_error` with the status."""

    async def handle(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.Response(status=status, text=TOKEN)

    error, _ = meet(handle, call)
    assert told(error) == ("http_error", status)
    assert error.message == f"MCP server 'home' answered {status}."


def test_an_answer_that_is_too_large_is_stopped() -> None:
    """Ours: memory is bounded."""

    async def handle(request: web.Request, message: dict[str, Any]) -> dict[str, Any]:
        return {"result": {"content": [{"type": "text", "text": "x" * (17 << 20)}]}}

    error, _ = meet(handle, call)
    assert isinstance(error, McpError)
    assert "more than 16 MiB" in error.message


def test_an_answer_of_too_many_parts_is_stopped_before_it_is_decoded() -> None:
    """Ours: a megabyte of brackets would keep everybody waiting; a megabyte of text that has them does not."""
    brackets: list[dict[str, int]] = [{}] * 200_000

    async def handle(_: web.Request, message: dict[str, Any]) -> dict[str, Any]:
        if message["params"]["arguments"]["city"] == "Oslo":
            return {"result": {"content": [], "structuredContent": {"a": brackets}}}
        text = msgspec.json.encode(brackets).decode()
        return {"result": {"content": [{"type": "text", "text": text}], "structuredContent": {"a": [1]}}}

    error, _ = meet(handle, call)
    assert isinstance(error, McpError)
    assert "parts" in error.message
    result, _ = meet(handle, lambda connection: connection.call("weather", {"city": "Bergen"}))
    assert result == McpResult(msgspec.json.encode(brackets).decode())


@given(st.recursive(st.text('a"\\[{,\n', max_size=4) | st.none(), st.lists, max_leaves=12), st.integers(1, 9))
def test_the_parts_of_json_are_counted_wherever_it_is_cut(value: Any, size: int) -> None:
    """RFC 8259: brackets and commas inside of strings are text."""

    def count(value: Any) -> int:
        return max(1, len(value)) + sum(map(count, value)) if isinstance(value, list) else 0

    body = b"data: " + msgspec.json.encode(value) + b"\n\n"
    counter = StructureCounter()
    for at in range(0, len(body), size):
        counter.feed(body[at : at + size])
    assert counter.count == count(value)


def test_of_very_many_blocks_the_first_are_shown() -> None:
    """Ours: nothing is lost silently, and nobody waits for it."""

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        return {"result": {"content": [{"type": "text", "text": "y"}] * 20_000}}

    result, _ = meet(handle, call)
    assert result.text == "y\n" * 1_000 + "[cut: 1000 of 20000 blocks are shown]"


def test_a_compressed_answer_is_refused() -> None:
    """Ours: it would unpack to any size."""

    async def handle(_: web.Request, message: dict[str, Any]) -> web.Response:
        response = web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}})
        response.enable_compression(web.ContentCoding.gzip)
        return response

    error, _ = meet(handle, call)
    assert isinstance(error, McpError)
    assert "compressed" in error.message


def test_a_long_result_is_cut_and_says_so() -> None:
    """Ours: nothing is lost silently."""

    async def handle(_: web.Request, __: dict[str, Any]) -> dict[str, Any]:
        return {"result": {"content": [{"type": "text", "text": "x" * 500}]}}

    result, _ = meet(handle, call, limits=McpLimits(max_result_characters=100))
    assert result == McpResult("x" * 100 + "\n[cut: 100 of 500 characters are shown]")


def test_what_is_no_text_is_named_in_the_text() -> None:
    """MCP specification, tool results: text, images, audio, links and embedded resources."""
    content: list[dict[str, Any]] = [
        {"type": "text", "text": f"one {TOKEN}"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "resource_link", "name": "log", "uri": "file:///log"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "A"}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": "aGk="}},
    ]

    async def handle(_: web.Request, message: dict[str, Any]) -> dict[str, Any]:
        if message["params"]["name"] == "weather":
            return {"result": {"content": content}}
        return {"result": {"content": [], "structuredContent": {"degrees": 4}}}

    async def ask(connection: McpConnection) -> list[McpResult]:
        return [await call(connection), await connection.call("numbers", {})]

    results, _ = meet(handle, ask, server=McpServer(label="home", url="", authorization=TOKEN))
    assert results[0].text.splitlines() == [
        "one ***",
        "[image: image/png, not shown]",
        "[audio: audio/wav, not shown]",
        "[resource: log at file:///log]",
        "[resource: file:///a]",
        "A",
        "[resource: file:///b, binary, not shown]",
    ]
    assert results[1].text == '{"degrees":4}'


def test_a_schema_of_results_that_would_take_for_ever_is_not_tried() -> None:
    """CWE-1333: the server chooses the pattern and the text."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}

    async def handle(_: web.Request, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "tools/list":
            return {"result": {"tools": [tell_tool("weather", outputSchema=schema)]}}
        return {"result": {"content": [], "structuredContent": {"a": "a" * 60 + "!"}}}

    async def ask(connection: McpConnection) -> McpResult:
        await connection.list_tools()
        return await call(connection)

    result, _ = meet(handle, ask)
    assert result.text.startswith('{"a":"aaaa')


def test_a_redirect_is_not_followed_not_even_on_the_same_host() -> None:
    """Ours: what was allowed is the URL that the client named."""
    paths: list[str] = []

    async def handle(request: web.Request, _: dict[str, Any]) -> web.Response:
        paths.append(request.path)
        return web.Response(status=307, headers={"location": "/other"})

    error, _ = meet(handle, call)
    assert isinstance(error, McpError)
    assert "redirects are not followed" in error.message
    assert paths == ["/mcp"]


def test_nothing_of_the_traffic_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Ours: messages and URLs may hold what must not be kept."""
    caplog.set_level(logging.DEBUG)
    meet(answer_call, call, server=McpServer(label="home", url="", authorization=TOKEN))
    kept = "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith("aiohttp")
    )
    assert TOKEN not in kept
    assert "Oslo" not in kept


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("ftp://a.test/", "must be an http"),
        ("http://name:secret-word@a.test/", "must be an http"),
        ("http://a.test:port/", "must be an http"),
        ("nothing", "must be an http"),
        ("http://private.test/mcp", "its address is private"),
        ("http://127.0.0.1/mcp", "its address is private"),
        ("http://169.254.169.254/mcp", "never called"),
        ("http://unknown.test/mcp", "its host name is not known"),
    ],
)
def test_an_address_that_is_not_allowed_is_refused_without_naming_it(url: str, sentence: str) -> None:
    """CWE-918: a client chooses the address, this server opens the connection."""

    async def lookup(host: str, _: int) -> Sequence[str]:
        if host == "private.test":
            return ["10.0.0.1"]
        raise OSError

    connector = make_connector(rules=AddressRules(), lookup=lookup)
    with pytest.raises(McpError, match=sentence) as caught:
        asyncio.run(connector.connect(McpServer(label="home", url=url)))
    assert "secret-word" not in caught.value.message


def test_a_name_that_turns_private_after_the_check_is_not_connected_to() -> None:
    """DNS rebinding: every connection goes to an address that was checked for it."""
    asked: list[str] = []

    async def lookup(host: str, _: int) -> Sequence[str]:
        asked.append(host)
        return ["93.184.215.14"] if len(asked) == 1 else ["127.0.0.1"]

    connector = make_connector(rules=AddressRules(), lookup=lookup)
    with pytest.raises(McpError, match="its address is private"):
        asyncio.run(connector.connect(McpServer(label="home", url="http://a.test/mcp")))
    assert asked == ["a.test", "a.test"]


@pytest.mark.parametrize(
    "headers",
    [{"Host": "b.test"}, {"Content-Length": "1"}, {"a b": "c"}, {"a": "b\r\nc: d"}, {"mcp-session-id": "x"}],
)
def test_headers_that_are_none_or_belong_to_the_connection_are_refused(headers: dict[str, str]) -> None:
    """Ours: a header must not change where a request goes or how it is read."""
    server = McpServer(label="home", url="http://127.0.0.1:1/", headers=headers)
    with pytest.raises(McpError, match="header") as caught:
        asyncio.run(make_connector().connect(server))
    assert caught.value.error_code == 400


def test_secrets_are_found_in_every_spelling() -> None:
    """Ours: a token is sent with its scheme and quoted without it."""
    headers = {"X-Key": "Basic abcdefgh", "X-Id": "7", "X-Workspace": "production"}
    server = McpServer(label="x", url="", authorization=TOKEN, headers=headers)
    text = f"{TOKEN} Basic abcdefgh abcdefgh 7 production"
    assert redact(text, list_secrets(server)) == "*** *** *** 7 ***"
    assert redact(text, list_credentials(server)) == "*** *** *** 7 production"
    asked = McpServer(label="x", url=f"http://a.no/mcp?api_key={TOKEN}&team=production")
    assert redact(f"{TOKEN} production", list_secrets(asked)) == "*** ***"
    assert redact(f"{TOKEN} production", list_credentials(asked)) == "*** production"


def test_the_sdk_is_an_extra_that_is_here() -> None:
    """Ours: the tests above ran against it."""
    assert is_sdk_installed()
