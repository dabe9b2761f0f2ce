"""Requests over the network, on aiohttp, which is loaded by the first request and not before.

It knows no Responses API, follows no redirects and reads no proxy settings.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from antiphon.client.errors import (
    ConnectionFailedError,
    SocketClosedError,
    UnreachableError,
    UpgradeRefusedError,
)
from antiphon.client.transport import Reply, Socket, TransportLimits, read_all

if TYPE_CHECKING:
    import aiohttp


#: The code of a WebSocket that ended without being closed (RFC 6455, 7.1.5).
_BROKEN_OFF = 1006


class NetworkTransport:
    """Talks to the server at `base_url` (scheme, host and port), within one event loop."""

    def __init__(self, base_url: str, limits: TransportLimits | None = None) -> None:
        self._base_url = base_url.rstrip("/")
        self._limits = limits or TransportLimits()
        self._session: aiohttp.ClientSession | None = None

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """One request; the reply stands as soon as its status and headers have come."""
        from yarl import URL

        with self._renaming():
            # Ids in the path are encoded already.
            url = URL(self._base_url + path, encoded=True)
            response = await self._find_session().request(
                method, url, headers=dict(headers), data=body, allow_redirects=False
            )
        return _NetworkReply(response, self._limits)

    async def open_socket(self, path: str, headers: Mapping[str, str]) -> Socket:
        """One WebSocket connection; the socket stands as soon as the server has taken the upgrade."""
        import aiohttp
        from yarl import URL

        with self._renaming():
            url = URL(self._base_url + path, encoded=True)
            socket = await self._find_session().ws_connect(
                url,
                headers=dict(headers),
                heartbeat=self._limits.ping_interval_s,
                max_msg_size=self._limits.max_message_bytes,
                timeout=aiohttp.ClientWSTimeout(ws_receive=None, ws_close=self._limits.close_timeout_s),
            )
        return _NetworkSocket(socket, self._limits)

    @contextmanager
    def _renaming(self) -> Iterator[None]:
        """Whatever the HTTP library says while a connection is made, in our words."""
        import aiohttp

        try:
            yield
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as failure:
            raise UnreachableError(
                f"cannot reach {self._base_url}: {_describe(failure, self._limits)}"
            ) from failure
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
            raise ConnectionFailedError(
                f"no answer from {self._base_url}: {_describe(failure, self._limits)}"
            ) from failure

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _find_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = self._open_session()
        return self._session

    def _open_session(self) -> aiohttp.ClientSession:
        import aiohttp

        watch = aiohttp.TraceConfig()
        watch.on_request_end.append(self._look_at_upgrade)
        return aiohttp.ClientSession(
            trace_configs=[watch],
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._limits.connect_timeout_s,
                sock_read=self._limits.idle_timeout_s,
            ),
        )

    async def _look_at_upgrade(
        self, session: aiohttp.ClientSession, context: object, ended: aiohttp.TraceRequestEndParams
    ) -> None:
        """An upgrade that is answered over HTTP is told with its body, which the library throws away."""
        response = ended.response
        if ended.headers.get("upgrade", "").lower() != "websocket" or response.status == 101:
            return
        reply = _NetworkReply(response, self._limits)
        try:
            body = await reply.read()
        finally:
            await reply.close()
        raise UpgradeRefusedError(reply.status, body, headers=reply.headers)


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


class _NetworkSocket:
    """A WebSocket connection over the network."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, limits: TransportLimits) -> None:
        self._socket = socket
        self._limits = limits
        self._reason = ""

    async def send_text(self, text: str) -> None:
        await self._send(self._socket.send_str(text))

    async def send_bytes(self, data: bytes) -> None:
        await self._send(self._socket.send_bytes(data))

    async def receive(self) -> str:
        import aiohttp

        kinds = aiohttp.WSMsgType
        try:
            message = await self._socket.receive(timeout=self._limits.idle_timeout_s)
        except TimeoutError as silence:
            raise ConnectionFailedError(_describe(silence, self._limits)) from silence
        if message.type is kinds.TEXT:
            return str(message.data)
        if message.type is kinds.BINARY:
            raise ConnectionFailedError("the server sent a binary message where only text is expected")
        if message.type is kinds.CLOSE:
            self._reason = message.extra or ""
        raise self._make_closed()

    async def close(self, code: int = 1000) -> None:
        # The library waits no longer than `close_timeout_s` for the other side's word.
        await self._socket.close(code=code)

    async def _send(self, sending: Awaitable[None]) -> None:
        import aiohttp

        try:
            async with asyncio.timeout(self._limits.idle_timeout_s):
                await sending
        except TimeoutError as silence:
            raise ConnectionFailedError(
                f"the server read nothing for {self._limits.idle_timeout_s:g} s"
            ) from silence
        except (aiohttp.ClientError, OSError) as failure:
            raise self._make_closed() from failure

    def _make_closed(self) -> SocketClosedError:
        return SocketClosedError(self._socket.close_code or _BROKEN_OFF, self._reason)


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
