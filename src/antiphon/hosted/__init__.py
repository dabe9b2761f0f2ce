"""What the server runs or fetches for a response beside the model: web searches, MCP servers, images by URL.

The interfaces stand here; implementations are modules below, and bootstrap alone names them.
"""

from antiphon.hosted.interface import (
    Fetched,
    Fetcher,
    FetchError,
    HostedToolError,
    McpConnection,
    McpConnector,
    McpError,
    McpResult,
    McpServer,
    McpToolFacts,
    SearchHit,
    SearchProvider,
    SearchQuery,
)

__all__ = [
    "FetchError",
    "Fetched",
    "Fetcher",
    "HostedToolError",
    "McpConnection",
    "McpConnector",
    "McpError",
    "McpResult",
    "McpServer",
    "McpToolFacts",
    "SearchHit",
    "SearchProvider",
    "SearchQuery",
]
