"""One endpoint: a URL with credentials, and the one pooled keep-alive client that talks to it.

It moves bytes and renames transport faults; it knows no dialect. The client is aiohttp: the cheapest
per streamed event of those measured (4 us against 12 and more). Every wait is bounded.
"""

import asyncio
import io
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp
import msgspec

from antiphon.protocol.errors import AntiphonError, BackendAuthError, BackendError, BackendTimeoutError

_log = logging.getLogger("antiphon.backends")

#: Asking a server about itself must not hold up a request for long.
FACTS_TIMEOUT_S = 5.0
#: Bodies of error and fact answers are read up to here.
#: Requests from this size on leave in portions.
PORTIONED_BODY_BYTES = 1 << 20
SMALL_BODY_BYTES = 1 << 20
#: An unused connection is kept this long.
KEEP_ALIVE_S = 60.0


#: Whether this task's last connection had served before, so that the server may have been closing it.
_reused: ContextVar[bool] = ContextVar("reused", default=False)


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model server is and how to be let in. `url` is the base, `http://host:port/v1`."""

    name: str
    url: str
    key: str | None = None
    headers: Mapping[str, str] = {}
    connect_timeout_s: float = 10.0
    #: The longest silence between two reads of an answer, the first included.
    idle_timeout_s: float = 300.0
    #: After the finish reason, counts and the end of the stream are waited for this long.
    end_timeout_s: float = 5.0
    max_connections: int = 256

    def __repr__(self) -> str:
        return f"Endpoint(name={self.name!r}, url={self.url!r})"


class EndpointClient:
    """The pooled connections to one endpoint."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._session: aiohttp.ClientSession | None = None
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            # A compressing proxy would hold events back until its block is full.
            "accept-encoding": "identity",
            **endpoint.headers,
        }
        if endpoint.key:
            headers["authorization"] = f"Bearer {endpoint.key}"
        self._headers = headers
        self._send_timeout_s = endpoint.connect_timeout_s + 2 * endpoint.idle_timeout_s
        self._facts_limit = aiohttp.ClientTimeout(
            total=FACTS_TIMEOUT_S, sock_connect=min(FACTS_TIMEOUT_S, endpoint.connect_timeout_s)
        )

    @property
    def url(self) -> str:
        return self.endpoint.url

    async def post(self, path: str, body: bytes) -> aiohttp.ClientResponse:
        """The answer's head; the caller reads and closes it. Raises `BackendError`."""
        try:
            return await self._send("POST", self.endpoint.url + path, body, None)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self.rename(error) from error

    async def ask_json(self, method: str, url: str, body: bytes | None = None) -> Any:
        """A small JSON answer, or None when the server has no such route or says anything unreadable.

        Raises `BackendError` when the server cannot be reached, refuses our key or is not ready.
        """
        return (await self.ask_small(method, url, body))[1]

    async def ask_small(self, method: str, url: str, body: bytes | None = None) -> tuple[int, Any]:
        """The status and the JSON of a small answer, None for one that is no success or unreadable; see `ask_json`."""
        try:
            async with await self._send(method, url, body, self._facts_limit) as response:
                if response.status != 200:
                    self._judge_status(response.status)
                    return response.status, None
                return 200, msgspec.json.decode(await read_small(response))
        except (msgspec.DecodeError, RecursionError):
            return 200, None
        except aiohttp.ConnectionTimeoutError as error:
            raise self.rename(error) from error
        except TimeoutError as error:
            raise BackendTimeoutError(
                f"{self._where()} told nothing about itself within {FACTS_TIMEOUT_S:g} s."
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self.rename(error) from error

    async def _send(
        self, method: str, url: str, body: bytes | None, limit: aiohttp.ClientTimeout | None
    ) -> aiohttp.ClientResponse:
        """One request, sent once more if a kept-alive connection turns out to be closed: nothing was answered."""
        session = self._open_session()
        while True:
            _reused.set(False)
            try:
                # The session's own limits begin when the request is sent; a server may stop taking it before.
                async with asyncio.timeout(self._send_timeout_s):
                    response = await session.request(
                        method,
                        url,
                        data=_in_portions(body),
                        allow_redirects=False,
                        timeout=limit or session.timeout,
                    )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if isinstance(error, aiohttp.ClientConnectorError) or not _reused.get():
                    raise
                # llama.cpp promises to keep a connection and closes it behind every streamed answer. All kept ones
                # may be closed; each failure takes one of them away, so this ends with a fresh one.
                continue
            if isinstance(session.connector, _Connector):
                session.connector.note(response)
            return response

    def _judge_status(self, status: int) -> None:
        if status in (401, 403):
            self.log_refused_key(status)
            raise BackendAuthError
        if status == 429 or (status >= 500 and status != 501):
            raise BackendError(f"{self._where()} is not ready: it answers {status}.")

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def rename(self, error: Exception) -> BackendError:
        """A transport fault as one of ours."""
        where = self._where()
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return BackendTimeoutError(
                f"{where} did not accept a connection within {self.endpoint.connect_timeout_s:g} s."
            )
        if isinstance(error, TimeoutError):
            return BackendTimeoutError(f"{where} was silent for {self.endpoint.idle_timeout_s:g} s.")
        if isinstance(error, aiohttp.ClientConnectorError):
            return BackendError(f"{where} cannot be reached; is it running?")
        return BackendError(f"{where} broke the connection before the end.")

    def redact(self, error: AntiphonError) -> AntiphonError:
        """The same error without our key, should the server have quoted it."""
        error.message = self.hide_key(error.message)
        error.args = (error.message,)
        if error.param is not None:
            error.param = self.hide_key(error.param)
        if error.code is not None:
            error.code = self.hide_key(error.code)
        return error

    def hide_key(self, text: str) -> str:
        """A server's text without our key."""
        key = self.endpoint.key
        if not key:
            return text
        # The text may have been cut inside the key, so its beginning at the end counts too.
        text = text.replace(key, "***")
        cut = next((size for size in range(len(key) - 1, 3, -1) if text.endswith(key[:size])), 0)
        return text[: len(text) - cut] + ("***" if cut else "")

    def _where(self) -> str:
        return f"The model server of endpoint '{self.endpoint.name}'"

    def log_refused_key(self, status: int) -> None:
        """Say in the log, and there alone, whose credentials were refused."""
        _log.error(
            "endpoint %s (%s) answered %d: check the key that its key_env names",
            self.endpoint.name,
            self.endpoint.url,
            status,
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=_Connector(limit=self.endpoint.max_connections, keepalive_timeout=KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=self.endpoint.connect_timeout_s,
                    sock_read=self.endpoint.idle_timeout_s,
                ),
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=1 << 18,
                trust_env=False,
            )
        return self._session


class _Connector(aiohttp.TCPConnector):
    """Knows of each connection whether it has served before, and which answer it carries.

    aiohttp leaves the reader of an answer waiting for ever, past its own time-outs, when the framing of the
    body breaks: it closes the connection and tells the reader nothing. So the reader is told here.
    """

    def __init__(self, *, limit: int, keepalive_timeout: float) -> None:
        super().__init__(limit=limit, keepalive_timeout=keepalive_timeout)
        self._answers: dict[Any, aiohttp.StreamReader | None] = {}

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the signature is aiohttp's
    ) -> Any:
        """See aiohttp."""
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        _reused.set(protocol in self._answers)
        if protocol is not None and protocol not in self._answers and (closed := protocol.closed) is not None:
            self._answers[protocol] = None
            closed.add_done_callback(lambda end: self._end(protocol, end))
        return connection

    def note(self, response: aiohttp.ClientResponse) -> None:
        """This answer is being read from its connection now."""
        connection = response.connection
        if connection is not None and connection.protocol in self._answers:
            self._answers[connection.protocol] = response.content

    def _end(self, protocol: Any, closed: asyncio.Future[None]) -> None:
        if not closed.cancelled():
            # Looked at, so that nobody logs it as forgotten.
            closed.exception()
        content = self._answers.pop(protocol, None)
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was closed inside the answer"))


def _in_portions(body: bytes | None) -> bytes | io.BytesIO | None:
    """A large body is written in portions, so that other clients need not wait for all of it."""
    return body if body is None or len(body) < PORTIONED_BODY_BYTES else io.BytesIO(body)


async def read_small(response: aiohttp.ClientResponse) -> bytes:
    """The beginning of a body, at most `SMALL_BODY_BYTES`."""
    pieces: list[bytes] = []
    size = 0
    async with asyncio.timeout(FACTS_TIMEOUT_S * 2):
        async for piece in response.content.iter_any():
            pieces.append(piece)
            size += len(piece)
            if size >= SMALL_BODY_BYTES:
                break
    return b"".join(pieces)[:SMALL_BODY_BYTES]
