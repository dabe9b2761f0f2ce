"""One session with one MCP server, over the official SDK; importing this module loads the SDK.

The SDK's contexts must be left in the task that entered them, so each session lives in a task of its own. Invariant:
every request goes through a `Guard`, which connects to checked addresses alone, follows no redirect and limits sizes.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

import httpx2
import mcp_types as types
import msgspec
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import methods

from antiphon.hosted.addresses import AddressError, AddressRules, Lookup, resolve
from antiphon.hosted.interface import McpError, McpResult, McpServer, McpToolFacts
from antiphon.hosted.mcp_limits import (
    McpLimits,
    StructureCounter,
    list_credentials,
    list_secrets,
    redact,
    redact_all,
)

_T = TypeVar("_T")

#: One answer of a server; images and the like come in base64.
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
#: What an answer may be made of, for decoding to take no longer than a tenth of a second.
MAX_ANSWER_PARTS: Final = 250_000
#: Blocks of one result that are looked at.
MAX_BLOCKS: Final = 1_000
#: Ending a session tells the server so, within this time.
CLOSE_TIMEOUT_S: Final = 2.0
MAX_PAGES: Final = 100
MAX_MESSAGE_CHARACTERS: Final = 500
MAX_NAME_CHARACTERS: Final = 200
#: What the SDK goes by, where no version is agreed on.
_ASSUMED_VERSION: Final = "2025-11-25"
#: What the SDK says where a server answers with a status alone.
_MADE_UP: Final = frozenset({"Server returned an error response", "Not Found", "Session terminated"})

# The SDK logs messages whole, and its client logs every URL: both may hold what must not be kept.
for _name in ("mcp", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class Guard(httpx2.AsyncBaseTransport):
    """A transport that does what the rules allow, and remembers how it went, as the SDK does not tell."""

    def __init__(self, *, rules: AddressRules, lookup: Lookup, tls: ssl.SSLContext, timeout_s: float) -> None:
        self._rules = rules
        self._lookup = lookup
        self._timeout_s = timeout_s
        self._inner = httpx2.AsyncHTTPTransport(verify=tls, trust_env=False)
        #: The status of the first answer to a message and of the latest one; 0 before.
        self.first_status = 0
        self.status = 0
        #: What was refused here, and the status that says it best.
        self.refusal: tuple[str, int] | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2."""
        response = await self._send(request)
        status = response.status_code
        if request.method == "POST":
            # The stream of a server's own messages is beside the point, and servers may well refuse it.
            self.status = status
            self.first_status = self.first_status or status
        if 300 <= status < 400:
            self.refusal = ("answered with a redirect, and redirects are not followed", 502)
            response.headers.pop("location", None)
        if response.headers.get("content-encoding", "identity") != "identity":
            self.refusal = ("compressed its answer unasked", 502)
            await response.aclose()
            raise httpx2.RemoteProtocolError("compressed", request=request)
        response.stream = _Counted(response.stream, self)
        return response

    async def aclose(self) -> None:
        """See httpx2."""
        await self._inner.aclose()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        url = request.url
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = await resolve(url.raw_host.decode("ascii"), port, self._rules, self._lookup)
        except AddressError as error:
            self.refusal = (f"cannot be called: {error}", 403)
            raise httpx2.ConnectError(str(error), request=request) from error
        *others, last = addresses
        for address in others:
            try:
                return await self._inner.handle_async_request(_pin(request, address))
            except httpx2.ConnectError:
                continue
        return await self._inner.handle_async_request(_pin(request, last))


def _pin(request: httpx2.Request, address: str) -> httpx2.Request:
    """The request to the address that was checked; the name stays in the Host header and the TLS handshake."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")},
    )


class _Counted(httpx2.AsyncByteStream):
    """The bytes of an answer, up to the limit."""

    def __init__(self, stream: Any, guard: Guard) -> None:
        self._stream = stream
        self._guard = guard

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        structure = StructureCounter()
        async for piece in self._stream:
            size += len(piece)
            if size > MAX_ANSWER_BYTES:
                self._guard.refusal = ("answered with more than 16 MiB", 502)
                raise httpx2.StreamError("too large")
            if structure.feed(piece) > MAX_ANSWER_PARTS:
                self._guard.refusal = (f"answered with JSON of more than {MAX_ANSWER_PARTS} parts", 502)
                raise httpx2.StreamError("too many parts")
            yield piece

    async def aclose(self) -> None:
        """See httpx2."""
        await self._stream.aclose()


class SdkConnection:
    """See `McpConnection`; `open` comes first."""

    def __init__(self, server: McpServer, limits: McpLimits, guard: Guard, *, is_older: bool) -> None:
        self._server = server
        self._limits = limits
        self._is_older = is_older
        self._secrets = list_secrets(server)
        #: The name of a tool -> why it cannot be offered, of the listing that is being read.
        self._faults: dict[str, str] = {}
        self._stop = asyncio.Event()
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self.guard = guard
        #: Why the session could not begin, or how it ended.
        self.fault = McpError(f"MCP server '{server.label}' ended the session.", error_code=502)

    async def open(self) -> None:
        """Begin the session; raises `McpError`."""
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._live(ready))
        waited: set[asyncio.Future[Any]] = {ready, self._task}
        await asyncio.wait(
            waited, timeout=self._limits.connect_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if ready.done():
            self._client = ready.result()
            return
        if not self._task.done():
            self.fault = self._time_out(self._limits.connect_timeout_s)
        raise self.fault

    async def list_tools(self) -> list[McpToolFacts]:
        """See `McpConnection`."""
        tools = await self._ask(self._list_pages(), self._limits.call_timeout_s)
        return sorted(tools, key=lambda tool: tool.name)

    async def call(self, name: str, arguments: dict[str, Any]) -> McpResult:
        """See `McpConnection`."""
        if self._client is None:
            raise self.fault
        result = await self._ask(self._client.call_tool(name, arguments), self._limits.call_timeout_s)
        text = redact(render_result(result), list_credentials(self._server))
        limit = self._limits.max_result_characters
        if len(text) > limit:
            text = f"{text[:limit]}\n[cut: {limit} of {len(text)} characters are shown]"
        return McpResult(text, is_error=bool(result.is_error))

    async def close(self) -> None:
        """See `McpConnection`."""
        was_open = self._client is not None
        self._stop.set()
        self._client = None
        if self._task is None or self._task.done():
            return
        try:
            if was_open:
                await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S)
        finally:
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S)

    async def _live(self, ready: asyncio.Future[Client]) -> None:
        """Hold the session open until `close`, in one task from begin to end."""
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(self._build_client())
                # A server chooses the schema of its results, and matching it may take for ever.
                client.session.validate_tool_result = _skip_validation  # type: ignore[method-assign, assignment]
                self._sift_results(client)
                if not ready.done():
                    ready.set_result(client)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001 - whatever the SDK meets in its tasks comes out here
            self.fault = self._rename(error)

    def _sift_results(self, client: Client) -> None:
        """What the SDK would refuse as a whole, or take long to check, is sifted before it gets there."""
        session = client.session
        dispatcher: Any = session._dispatcher
        send = dispatcher.send_raw_request

        async def send_and_sift(method: str, *given: Any, **named: Any) -> dict[str, Any]:
            raw: dict[str, Any] = await send(method, *given, **named)
            if method == "tools/list" and isinstance(raw.get("tools"), list):
                if len(raw["tools"]) > self._limits.max_tools:
                    raise self._refuse_listing()
                found = _sift_tools(raw, session.protocol_version or _ASSUMED_VERSION)
                credentials = list_credentials(self._server)
                self._faults.update((redact(name, credentials), fault) for name, fault in found.items())
            elif method == "tools/call":
                _reduce_result(raw)
            return raw

        dispatcher.send_raw_request = send_and_sift

    def _build_client(self) -> Client:
        # The waits that count are those of `open` and `_ask`; the SDK's own only keep what they left from staying.
        longest_s = max(self._limits.connect_timeout_s, self._limits.call_timeout_s) + CLOSE_TIMEOUT_S
        http = httpx2.AsyncClient(
            transport=self.guard,
            headers=self._build_headers(),
            timeout=httpx2.Timeout(longest_s),
            trust_env=False,
        )
        if self._is_older:
            transport = sse_client(self._server.url, httpx_client_factory=lambda *_, **__: http)
        else:
            transport = _stream(http, self._server.url)
        return Client(transport, read_timeout_seconds=longest_s, cache=None)

    def _build_headers(self) -> dict[str, str]:
        given = {name.lower(): value for name, value in self._server.headers.items()}
        headers = {"user-agent": "antiphon", **given, "accept-encoding": "identity"}
        token = self._server.authorization
        if token:
            headers["authorization"] = token if " " in token.strip() else f"Bearer {token}"
        return headers

    async def _list_pages(self) -> list[McpToolFacts]:
        if self._client is None:
            raise self.fault
        tools: dict[str, McpToolFacts] = {}
        credentials = list_credentials(self._server)
        self._faults.clear()
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            tools.update((tool.name, _to_facts(tool, credentials)) for tool in page.tools)
            tools.update((name, McpToolFacts(name, {}, fault=fault)) for name, fault in self._faults.items())
            if len(tools) > self._limits.max_tools:
                break
            if page.next_cursor is None or page.next_cursor == cursor:
                return list(tools.values())
            cursor = page.next_cursor
        raise self._refuse_listing()

    def _refuse_listing(self) -> McpError:
        return self._fail(
            f"lists more than {self._limits.max_tools} tools (mcp.max_tools) or endless pages", 502
        )

    async def _ask(self, request: Coroutine[Any, Any, _T], timeout_s: float) -> _T:
        """The answer to one request; it ends with the session, and after `timeout_s` at the latest."""
        if self._task is None or self._task.done():
            request.close()
            raise self.fault
        self.guard.refusal, self.guard.status = None, 0
        asked = asyncio.ensure_future(request)
        try:
            await asyncio.wait({asked, self._task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asked.done():
                asked.cancel()
        if not asked.done():
            await asyncio.wait({asked}, timeout=CLOSE_TIMEOUT_S)
            raise self.fault if self._task.done() else self._time_out(timeout_s)
        try:
            return asked.result()
        except asyncio.CancelledError as error:
            raise self.fault from error
        except Exception as error:
            raise self._rename(error) from error

    def _rename(self, error: BaseException) -> McpError:
        """What the SDK met, as one of ours, without secrets."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, McpError):
            return error
        if self.guard.refusal is not None:
            return self._fail(*self.guard.refusal)
        if isinstance(error, (TimeoutError, httpx2.TimeoutException)):
            return self._time_out(self._limits.call_timeout_s)
        if self.guard.status >= 400 and not _says_more(error):
            return self._fail(f"answered {self.guard.status}", self.guard.status)
        if isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED:
            return self._fail("broke the connection", 502)
        if isinstance(error, MCPError):
            message = redact(str(error.message), self._secrets)[:MAX_MESSAGE_CHARACTERS]
            text = f"MCP server '{self._server.label}' answered with an error: {message}"
            return McpError(text, error_code=error.code, kind="mcp_protocol_error")
        if isinstance(error, (httpx2.HTTPError, OSError)):
            reached = "broke the connection" if self.guard.first_status else "cannot be reached"
            return self._fail(reached, 502)
        return self._fail("answered with something that is not as MCP has it", 502)

    def _time_out(self, timeout_s: float) -> McpError:
        return self._fail(f"did not answer within {timeout_s:g} s", 504)

    def _fail(self, what: str, code: int) -> McpError:
        return McpError(f"MCP server '{self._server.label}' {what}.", error_code=code)


def _says_more(error: BaseException) -> bool:
    """Whether the server itself said what is wrong; else the SDK made the text of the status."""
    return isinstance(error, MCPError) and error.message not in _MADE_UP


@asynccontextmanager
async def _stream(http: httpx2.AsyncClient, url: str) -> AsyncIterator[Any]:
    """The SDK's transport, with a client that is closed behind it."""
    async with (
        http,
        streamable_http_client(url, http_client=http, max_sse_event_size=MAX_ANSWER_BYTES) as streams,
    ):
        yield streams


async def _skip_validation(_name: str, _result: types.CallToolResult) -> None:
    """What a server made of its own schema is the server's business."""


def _sift_tools(raw: dict[str, Any], version: str) -> dict[str, str]:
    """Take the tools out of a listing that are not as MCP has them: their names, and what is wrong."""
    if _is_listing(raw, version) or not _is_listing({**raw, "tools": []}, version):
        return {}
    faults: dict[str, str] = {}
    kept = []
    for tool in raw["tools"]:
        if _is_listing({**raw, "tools": [tool]}, version):
            kept.append(tool)
            continue
        name = tool.get("name") if isinstance(tool, dict) else None
        told = name[:MAX_NAME_CHARACTERS] if isinstance(name, str) and name else "(a tool without a name)"
        faults[told] = "it is not as MCP has it"
    raw["tools"] = kept
    return faults


def _is_listing(raw: dict[str, Any], version: str) -> bool:
    try:
        methods.parse_server_result("tools/list", version, raw)
    except KeyError:
        return True
    except (ValueError, RecursionError):
        return False
    return True


def _reduce_result(raw: dict[str, Any]) -> None:
    """Leave out of a call's result what is not looked at, before the SDK checks it block by block."""
    content = raw.get("content")
    if not isinstance(content, list) or not content:
        return
    raw.pop("structuredContent", None)
    if len(content) > MAX_BLOCKS:
        cut = f"[cut: {MAX_BLOCKS} of {len(content)} blocks are shown]"
        raw["content"] = [*content[:MAX_BLOCKS], {"type": "text", "text": cut}]


def _to_facts(tool: types.Tool, credentials: Sequence[str]) -> McpToolFacts:
    """The tool as it may be shown; one whose very name holds a credential could not be called by what is shown."""
    name = redact(tool.name, credentials)
    annotations = tool.annotations
    shown = annotations.model_dump(by_alias=True, mode="json", exclude_none=True) if annotations else None
    return McpToolFacts(
        name=name,
        input_schema=redact_all(tool.input_schema, credentials),
        description=redact(tool.description, credentials) if tool.description is not None else None,
        annotations=redact_all(shown, credentials),
        fault=None if name == tool.name else "its name holds a credential",
    )


def render_result(result: types.CallToolResult) -> str:
    """A result as text: its texts in order; what is no text is named. Structured content counts where no text is."""
    pieces = [_render_block(block) for block in result.content]
    if not pieces and result.structured_content is not None:
        return msgspec.json.encode(result.structured_content).decode()
    return "\n".join(pieces)


def _render_block(block: types.ContentBlock) -> str:
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.ResourceLink):
        return f"[resource: {block.name} at {block.uri}]"
    if isinstance(block, types.EmbeddedResource):
        resource = block.resource
        if isinstance(resource, types.TextResourceContents):
            return f"[resource: {resource.uri}]\n{resource.text}"
        return f"[resource: {resource.uri}, {resource.mime_type or 'binary'}, not shown]"
    return f"[{block.type}: {block.mime_type}, not shown]"
