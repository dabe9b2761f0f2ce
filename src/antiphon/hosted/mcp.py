"""MCP servers, asked with the official SDK, which is loaded when the first server is asked.

It knows nothing of items or models. Invariants: a server's address is allowed by the rules before anything is
sent; a secret of a server is in no error; every failure is an `McpError`.
"""

import asyncio
import re
import ssl
from importlib import util
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from antiphon.hosted.addresses import AddressError, AddressRules, Lookup, look_up, resolve
from antiphon.hosted.interface import McpConnection, McpError, McpServer
from antiphon.hosted.mcp_limits import McpLimits
from antiphon.protocol.mcp_addresses import HEADER_NAME, HEADER_VALUE

if TYPE_CHECKING:
    from antiphon.hosted.mcp_session import SdkConnection

#: Statuses by which a server says that it does not speak streamable HTTP, so that the older transport is tried.
_OLDER_STATUSES: Final = frozenset({400, 404, 405, 406})
#: Headers that belong to the connection or the protocol; a client cannot set them.
_RESERVED_HEADERS: Final = re.compile(
    r"host|content-.*|transfer-encoding|connection|upgrade|te|trailer|keep-alive|proxy-.*|expect|mcp-.*|last-event-id"
)


def is_sdk_installed() -> bool:
    """Whether the SDK is there; it is an extra (`antiphon[mcp]`)."""
    return util.find_spec("mcp") is not None


class SdkMcpConnector:
    """Connects to MCP servers over streamable HTTP, or server-sent events where a server has only these."""

    def __init__(
        self,
        *,
        rules: AddressRules,
        limits: McpLimits,
        lookup: Lookup = look_up,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._rules = rules
        self._limits = limits
        self._lookup = lookup
        # Without one, that of the system's certificates, once it is needed.
        self._tls = tls

    async def connect(self, server: McpServer) -> McpConnection:
        """See `McpConnector`."""
        await self._check(server)
        first = await self._make(server, is_older=False)
        try:
            await first.open()
        except McpError:
            await first.close()
            if first.guard.first_status not in _OLDER_STATUSES:
                raise
        except BaseException:
            await first.close()
            raise
        else:
            return first
        second = await self._make(server, is_older=True)
        try:
            await second.open()
        except BaseException as error:
            await second.close()
            if isinstance(error, McpError):
                # What the first transport met says more than that the second one is not there either.
                raise first.fault from None
            raise
        return second

    async def _make(self, server: McpServer, *, is_older: bool) -> "SdkConnection":
        # Loading the SDK and the certificates takes up to a second, in which other requests go on.
        def load() -> "SdkConnection":
            from antiphon.hosted.mcp_session import Guard, SdkConnection

            self._tls = self._tls or ssl.create_default_context()
            guard = Guard(
                rules=self._rules,
                lookup=self._lookup,
                tls=self._tls,
                timeout_s=self._limits.connect_timeout_s,
            )
            return SdkConnection(server, self._limits, guard, is_older=is_older)

        return await asyncio.to_thread(load)

    async def _check(self, server: McpServer) -> None:
        """Refuse what must not be called, in words that name neither URL nor secret."""
        parts = _split(server)
        _check_headers(server)
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                port = parts.port or (443 if parts.scheme == "https" else 80)
                await resolve(parts.hostname or "", port, self._rules, self._lookup)
        except AddressError as error:
            raise McpError(
                f"MCP server '{server.label}' cannot be called: {error}.", error_code=403
            ) from error
        except TimeoutError as error:
            raise McpError(
                f"The host of MCP server '{server.label}' was not found in time.", error_code=504
            ) from error


def _split(server: McpServer) -> SplitResult:
    try:
        parts = urlsplit(server.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or parts.username is not None:
        raise McpError(
            f"server_url of MCP server '{server.label}' must be an http(s) URL without a name or password.",
            error_code=400,
        )
    return parts


def _check_headers(server: McpServer) -> None:
    for name, value in (*server.headers.items(), ("authorization", server.authorization or "")):
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise McpError(f"A header for MCP server '{server.label}' is no legal header.", error_code=400)
        if _RESERVED_HEADERS.fullmatch(name.lower()):
            raise McpError(
                f"headers for MCP server '{server.label}' may not set {name.lower()!r}; it belongs to the connection.",
                error_code=400,
            )
