"""Fetches images by URL, guarded: a client chooses the URL, this server opens the connection.

It knows nothing of items. Invariants: only addresses that the rules allow are connected to, after every redirect
too, and exactly those that were checked; size, time and media type are limited, and the bytes are what they claim.
"""

import asyncio
import ssl
from typing import Final
from urllib.parse import urljoin

import aiohttp
from yarl import URL

from antiphon.hosted.addresses import AddressError, AddressRules, Lookup, look_up, resolve
from antiphon.hosted.interface import Fetched, FetchError

_CONNECTIONS: Final = 16
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_ALIASES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png"}
MEDIA_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_URL_CHARACTERS: Final = 8_192


class HttpFetcher:
    """Fetches png, jpeg, gif and webp images over http and https."""

    def __init__(
        self,
        *,
        rules: AddressRules,
        max_bytes: int,
        timeout_s: float,
        max_redirects: int,
        lookup: Lookup = look_up,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._rules = rules
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._max_redirects = max_redirects
        self._lookup = lookup
        # True stands for the system's certificates.
        self._tls: ssl.SSLContext | bool = tls or True
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, url: str) -> Fetched:
        """See `Fetcher`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(url)
        except TimeoutError as error:
            raise _failed(f"it did not arrive within {self._timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _failed("the connection failed") from error

    async def close(self) -> None:
        """Let go of connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _follow(self, url: str) -> Fetched:
        for _ in range(self._max_redirects + 1):
            found = await self._get(_read_url(url))
            if isinstance(found, Fetched):
                return found
            url = urljoin(url, found)
        raise _failed(f"it was redirected more than {self._max_redirects} times")

    async def _get(self, url: URL) -> Fetched | str:
        """The image, or where the answer sends us instead."""
        try:
            addresses = await resolve(url.raw_host or "", url.port or 0, self._rules, self._lookup)
        except AddressError as error:
            raise FetchError(f"The image URL cannot be used: {error}.", code="invalid_image_url") from error
        *others, last = addresses
        for address in others:
            try:
                return await self._ask(url, address)
            except aiohttp.ClientConnectorError:
                continue
        return await self._ask(url, last)

    async def _ask(self, url: URL, address: str) -> Fetched | str:
        # The URL names the address that was checked; the name goes into the Host header and the TLS handshake.
        async with self._open_session().get(
            url.with_host(address).with_port(url.port),
            headers={"host": url.host_port_subcomponent or ""},
            ssl=self._tls,
            server_hostname=url.raw_host if url.scheme == "https" else None,
            allow_redirects=False,
        ) as response:
            if response.status in _REDIRECTS and "location" in response.headers:
                return response.headers["location"]
            if response.status != 200:
                raise _failed(f"its server answered {response.status}")
            return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> Fetched:
        media_type = _ALIASES.get(response.content_type, response.content_type)
        if media_type not in MEDIA_TYPES:
            raise FetchError(
                f"The file behind the image URL is of type {media_type[:100]!r}; supported are "
                f"{', '.join(MEDIA_TYPES)}.",
                code="unsupported_image_media_type",
            )
        if response.headers.get("content-encoding", "identity") != "identity":
            raise _failed("its server compressed it unasked")
        body = bytearray()
        if (response.content_length or 0) <= self._max_bytes:
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > self._max_bytes:
                    break
            else:
                return Fetched(media_type, _check_body(bytes(body), media_type))
        raise FetchError(
            f"The file behind the image URL has more than {self._max_bytes} bytes.",
            code="image_file_too_large",
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, force_close=True),
                headers={
                    "accept": ", ".join(MEDIA_TYPES),
                    "accept-encoding": "identity",
                    "user-agent": "antiphon",
                },
                timeout=aiohttp.ClientTimeout(total=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


def _read_url(text: str) -> URL:
    try:
        url = URL(text)
        usable = url.scheme in ("http", "https") and bool(url.host) and url.port is not None
    except ValueError:
        usable = False
    if not usable or url.user is not None or url.password is not None or len(text) > MAX_URL_CHARACTERS:
        raise FetchError(
            "An image URL must be a data URL or an http(s) URL with a host and without a name or password.",
            code="invalid_image_url",
        )
    return url


def _check_body(body: bytes, media_type: str) -> bytes:
    if not body:
        raise FetchError("The file behind the image URL is empty.", code="empty_image_file")
    if sniff(body) != media_type:
        raise FetchError(
            f"The file behind the image URL is told to be {media_type}, and its bytes are not.",
            code="invalid_image_format",
        )
    return body


def sniff(body: bytes) -> str | None:
    """The media type that the first bytes of an image show; None for anything else."""
    if body.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if body.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if body.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    return None


def _failed(reason: str) -> FetchError:
    return FetchError(f"The image cannot be downloaded: {reason}.", code="failed_to_download_image")
