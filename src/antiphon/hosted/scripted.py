"""Search, MCP servers and files that answer from tables: for tests and for trying things without a network.

They pass the same contract tests as the real ones. Invariant: they open no connection, and what they were asked
stands in `queries`, `servers`, `calls` and `urls`, in order.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from antiphon.hosted.domains import keep_allowed
from antiphon.hosted.interface import (
    Fetched,
    FetchError,
    HostedToolError,
    McpConnection,
    McpError,
    McpResult,
    McpServer,
    McpToolFacts,
    SearchHit,
    SearchQuery,
)


class ScriptedSearch:
    """Answers a query by its text; any other finds nothing."""

    name = "scripted"

    def __init__(self, table: Mapping[str, Sequence[SearchHit] | HostedToolError]) -> None:
        self._table = table
        self.queries: list[SearchQuery] = []

    async def search(self, query: SearchQuery) -> list[SearchHit]:
        """See `SearchProvider`."""
        self.queries.append(query)
        found = self._table.get(query.text, ())
        if isinstance(found, HostedToolError):
            raise found
        return keep_allowed(found, query)

    async def close(self) -> None:
        """There is nothing to let go of."""


class ScriptedMcpServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server as a table: its tools, and what a call of each gives or raises.

    `token`: who sends another authorization is refused.
    """

    tools: Sequence[McpToolFacts] | McpError = ()
    answers: Mapping[str, McpResult | McpError] = {}
    token: str | None = None


class ScriptedMcpConnector:
    """Finds a server by its URL; any other cannot be reached."""

    def __init__(self, table: Mapping[str, ScriptedMcpServer]) -> None:
        self._table = table
        self.servers: list[McpServer] = []
        #: Label, name and arguments of every call.
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.closed = 0

    async def connect(self, server: McpServer) -> McpConnection:
        """See `McpConnector`."""
        self.servers.append(server)
        found = self._table.get(server.url)
        if found is None:
            raise McpError(f"MCP server '{server.label}' cannot be reached.", error_code=502)
        if found.token is not None and server.authorization != found.token:
            raise McpError(f"MCP server '{server.label}' answered 401.", error_code=401)
        return _ScriptedConnection(self, server, found)


class _ScriptedConnection:
    def __init__(self, owner: ScriptedMcpConnector, server: McpServer, table: ScriptedMcpServer) -> None:
        self._owner = owner
        self._server = server
        self._table = table
        self._is_open = True

    async def list_tools(self) -> list[McpToolFacts]:
        """See `McpConnection`."""
        self._check_open()
        if isinstance(self._table.tools, McpError):
            raise self._table.tools
        return sorted(self._table.tools, key=lambda tool: tool.name)

    async def call(self, name: str, arguments: dict[str, Any]) -> McpResult:
        """See `McpConnection`."""
        self._check_open()
        self._owner.calls.append((self._server.label, name, arguments))
        answer = self._table.answers.get(name)
        if isinstance(answer, McpError):
            raise answer
        return answer or McpResult(f"Unknown tool: {name}", is_error=True)

    async def close(self) -> None:
        """See `McpConnection`."""
        self._owner.closed += self._is_open
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise McpError(f"The connection to MCP server '{self._server.label}' is closed.", error_code=502)


class ScriptedFetcher:
    """Finds a file by its URL; any other cannot be had."""

    def __init__(self, table: Mapping[str, Fetched | FetchError]) -> None:
        self._table = table
        self.urls: list[str] = []

    async def fetch(self, url: str) -> Fetched:
        """See `Fetcher`."""
        self.urls.append(url)
        if not url.startswith(("http://", "https://")):
            raise FetchError("An image URL must begin with http:// or https://.", code="invalid_image_url")
        found = self._table.get(url)
        if isinstance(found, FetchError):
            raise found
        if found is None:
            raise FetchError("The image cannot be had.", code="failed_to_download_image")
        return found

    async def close(self) -> None:
        """There is nothing to let go of."""
