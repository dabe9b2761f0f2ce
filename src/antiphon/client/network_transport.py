"""Requests over the network, on aiohttp, which is loaded by the first request and not before.

It knows no Responses API, follows no redirects and reads no proxy settings.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING

from antiphon.client.errors import ConnectionFailedError, UnreachableError
from antiphon.client.transport import Reply, TransportLimits, read_all

if TYPE_CHECKING:
    import aiohttp


class NetworkTransport:
    """Talks to the server at `base_url` (scheme, host and port), within one event loop."""

    def __init__(self, base_url: str, limits: TransportLimits | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._limits = limits or TransportLimits()
        self._session: aiohttp.ClientSession | None = None

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """One request; the reply stands as soon as its status and headers have come."""
        import aiohttp
        from yarl import URL

        session = self._session
        if session is None:
            session = self._session = self._open_session()
        try:
            # Ids in the path are encoded already.
            url = URL(self._base_url + path, encoded=True)
            response = await session.request(
                method, url, headers=dict(headers), data=body, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as failure:
            raise UnreachableError(
                f"cannot reach {self._base_url}: {_describe(failure, self._limits)}"
            ) from failure
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            raise ConnectionFailedError(
                f"no answer from {self._base_url}: {_describe(failure, self._limits)}"
            ) from failure
        return _NetworkReply(response, self._limits)

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._limits.connect_timeout_s,
                sock_read=self._limits.idle_timeout_s,
            ),
        )


class _NetworkReply:
    """An answer that is being read from a socket."""

    def __init__(self, response: aiohttp.ClientResponse, limits: TransportLimits) -> None:
        self._response = response
        self._limits = limits
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        import aiohttp

        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as failure:
            raise ConnectionFailedError(
                f"the answer broke off: {_describe(failure, self._limits)}"
            ) from failure

    async def read(self) -> bytes:
        return await read_all(self.chunks(), self._limits.max_body_bytes)

    async def close(self) -> None:
        if self._response.content.at_eof():
            self._response.release()
        else:
            # The server learns by it that nobody listens any more.
            self._response.close()


def _describe(failure: Exception, limits: TransportLimits) -> str:
    """What happened, in words that need no knowledge of the HTTP library."""
    import aiohttp

    sentences: dict[type[Exception], str] = {
        aiohttp.ConnectionTimeoutError: f"no connection within {limits.connect_timeout_s:g} s",
        TimeoutError: f"nothing came for {limits.idle_timeout_s:g} s",
        aiohttp.ClientConnectorDNSError: "no machine of this name is known",
        aiohttp.ClientConnectorCertificateError: "its TLS certificate is not trusted",
        aiohttp.ClientSSLError: "it does not speak TLS as expected; is it http:// instead of https://?",
        aiohttp.ServerDisconnectedError: "the server closed the connection",
        aiohttp.ClientPayloadError: "the server closed the connection before the end",
        aiohttp.ClientResponseError: "what came back is not HTTP",
        aiohttp.InvalidURL: "this is no address of a server",
    }
    for kind, sentence in sentences.items():
        if isinstance(failure, kind):
            return sentence
    return _describe_system_error(failure) or str(failure) or type(failure).__name__


def _describe_system_error(failure: Exception) -> str:
    """`OSError(111)`, however the library wrapped it -> `nothing listens there`."""
    number = getattr(getattr(failure, "os_error", failure), "errno", None)
    if number is None:
        return ""
    if number == errno.ECONNREFUSED:
        return "nothing listens there"
    if number in (errno.ECONNRESET, errno.EPIPE):
        return "the server closed the connection"
    return os.strerror(number).lower()
