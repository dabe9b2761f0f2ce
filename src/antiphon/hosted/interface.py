"""What the engine may ask of the outside world beside model servers, as interfaces.

They know no requests and no items. Invariant of all of them: every wait is bounded, a failure is a
`HostedToolError` with a sentence that may be shown to the client and holds no secret.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from antiphon.protocol.errors import AntiphonError


class HostedToolError(AntiphonError):
    """A tool that the server runs failed."""

    status = 502


class McpError(HostedToolError):
    """An MCP server could not be asked.

    `kind` and `error_code` are those of the API's typed error of a call: a status of HTTP, or a code of JSON-RPC.
    """

    def __init__(
        self,
        message: str,
        *,
        error_code: int,
        kind: Literal["http_error", "mcp_protocol_error"] = "http_error",
    ) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.kind = kind


class FetchError(HostedToolError):
    """A file on the web that the client named cannot be used; `code` says why."""

    status = 400
    type = "invalid_request_error"


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for. `count` is how many hits are wanted; domains limit where."""

    text: str
    count: int = 5
    allowed_domains: Sequence[str] = ()
    blocked_domains: Sequence[str] = ()
    #: ISO country code and language tag, where the client told where its user is.
    country: str | None = None


class SearchHit(msgspec.Struct, frozen=True):
    """One page that was found."""

    url: str
    title: str
    snippet: str


class SearchProvider(Protocol):
    """The seam to a web search."""

    name: str

    async def search(self, query: SearchQuery) -> list[SearchHit]:
        """The hits, best first, at most `query.count`; raises `HostedToolError`."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """Where an MCP server is and how to be let in. It never shows its secrets."""

    label: str
    url: str
    authorization: str | None = None
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"McpServer(label={self.label!r})"


class McpToolFacts(msgspec.Struct, frozen=True):
    """A tool as its server lists it. With a `fault` it cannot be offered, and nothing but its name counts."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None
    fault: str | None = None


class McpResult(msgspec.Struct, frozen=True):
    """What a call gave: its text, and whether the tool itself says that it failed."""

    text: str
    is_error: bool = False


class McpConnection(Protocol):
    """An open session with one MCP server."""

    async def list_tools(self) -> list[McpToolFacts]:
        """The server's tools in a stable order (by name); raises `McpError`."""
        ...

    async def call(self, name: str, arguments: dict[str, Any]) -> McpResult:
        """Call a tool; raises `McpError` when the server cannot be asked."""
        ...

    async def close(self) -> None:
        """End the session; never raises."""
        ...


class McpConnector(Protocol):
    """The seam to MCP servers."""

    async def connect(self, server: McpServer) -> McpConnection:
        """A session with the server; raises `McpError`, also when the server's address is not allowed."""
        ...


class Fetched(msgspec.Struct, frozen=True):
    """A file from the web: its media type as the server told, and its bytes."""

    media_type: str
    body: bytes


class Fetcher(Protocol):
    """The seam to files on the web."""

    async def fetch(self, url: str) -> Fetched:
        """The file behind a URL; raises `FetchError` with a code that clients know (`invalid_image_url`,
        `failed_to_download_image`, `image_file_too_large`) where the address is not allowed or it cannot be had."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
