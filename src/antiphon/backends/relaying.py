"""A request of another API handed on to an endpoint, and what the server answers given back as it comes.

It knows headers and bytes, no API. Invariant: our key leaves in no header and no byte of a body, and a
response that was not read to its end is closed, which cancels upstream.
"""

from collections.abc import AsyncGenerator
from typing import Final

import aiohttp
import regex

from antiphon.backends.endpoint import EndpointClient
from antiphon.backends.interface import Relayed
from antiphon.protocol.errors import BackendAuthError, BackendError

_MASK = b"***"
#: Headers that speak of the connection between the model server and us (RFC 9110, section 7.6.1).
_HOP_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
#: Headers about the model server's own site, which would be taken for statements about ours; and the length and
#: coding of a body that may be changed on its way.
_SITE_HEADERS = frozenset(
    {
        "alt-svc",
        "clear-site-data",
        "content-encoding",
        "content-length",
        "date",
        "server",
        "set-cookie",
        "strict-transport-security",
        "www-authenticate",
    }
)
_SITE_PREFIXES = ("access-control-",)
#: What may stand in a header that we send (RFC 9110, section 5.5, without its bytes beyond ASCII).
_LEGAL_NAME: Final = regex.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_LEGAL_VALUE: Final = regex.compile(r"[\x20-\x7e\t]*")
#: The longest way to write a character of ASCII in JSON: `\u0041`.
_ESCAPE_LENGTH: Final = 6


async def relay(client: EndpointClient, path: str, body: bytes) -> Relayed:
    """Ask `path` under the endpoint's base; see `Backend.relay`."""
    response = await client.post(path, body)
    try:
        if response.status in (401, 403):
            client.log_refused_key(response.status)
            raise BackendAuthError
        if 300 <= response.status < 400:
            raise BackendError(f"The model server redirects ({response.status}); check the endpoint's url.")
        if not 200 <= response.status < 600:
            raise BackendError(
                f"The model server answered {response.status}, which is no status of an answer."
            )
        mask = KeyMask(client.endpoint.key)
        chunks = _read_chunks(client, response, mask)
        # Started, so that closing it closes the connection even where nobody reads.
        await anext(chunks)
    except BaseException:
        response.close()
        raise
    return Relayed(status=response.status, headers=_pick_headers(response, mask), chunks=chunks)


async def _read_chunks(
    client: EndpointClient, response: aiohttp.ClientResponse, mask: "KeyMask"
) -> AsyncGenerator[bytes, None]:
    """First an empty piece, then the body; raises `BackendError` when the connection breaks inside it."""
    try:
        yield b""
        while piece := await _read_piece(client, response):
            if shown := mask.feed(piece):
                yield shown
        if rest := mask.close():
            yield rest
    finally:
        # Without effect on a connection whose body was read to the end.
        response.close()


async def _read_piece(client: EndpointClient, response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.readany()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise client.rename(error) from error


def _pick_headers(response: aiohttp.ClientResponse, mask: "KeyMask") -> dict[str, str]:
    """The headers that are about the answer itself; of one that is repeated, all values.

    One that no server should send, with a control character or a byte beyond ASCII, is left out.
    """
    named = {name.strip().lower() for name in response.headers.get("connection", "").split(",")}
    headers: dict[str, str] = {}
    for key, value in response.headers.items():
        name = key.lower()
        if name in _HOP_HEADERS or name in _SITE_HEADERS or name in named or name.startswith(_SITE_PREFIXES):
            continue
        if not _LEGAL_NAME.fullmatch(name) or not _LEGAL_VALUE.fullmatch(value):
            continue
        shown = mask.hide(value)
        headers[name] = f"{headers[name]}, {shown}" if name in headers else shown
    return headers


class KeyMask:
    """Takes a key out of a body that arrives in pieces, wherever it was cut and however JSON escapes it."""

    def __init__(self, key: str | None) -> None:
        self._text = key or ""
        self._key = self._text.encode()
        self._escaped = regex.compile(b"".join(map(_spell, self._text)))
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be shown by now; the beginning of a key at the end waits for the rest."""
        if not self._key:
            return piece
        data = self._held + piece
        if b"\\" in data:
            data = self._escaped.sub(_MASK, data)
            held = self._find_escaped_beginning(data)
        else:
            data = data.replace(self._key, _MASK)
            held = next(
                (size for size in range(len(self._key) - 1, 0, -1) if data.endswith(self._key[:size])), 0
            )
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def close(self) -> bytes:
        """What waited: the body has ended, so it was no key."""
        held, self._held = self._held, b""
        return held

    def hide(self, text: str) -> str:
        """A header's value without the key."""
        return text.replace(self._text, _MASK.decode()) if self._text else text

    def _find_escaped_beginning(self, data: bytes) -> int:
        """How many bytes at the end may begin a key."""
        tail = data[-(_ESCAPE_LENGTH * len(self._text)) :]
        found = self._escaped.search(tail, partial=True)
        return len(tail) - found.start() if found is not None else 0


def _spell(character: str) -> bytes:
    """A pattern of all that stands for a character in a JSON text."""
    written = [regex.escape(character.encode())]
    pairs = character.encode("utf-16-be").hex()
    units = [pairs[at : at + 4] for at in range(0, len(pairs), 4)]
    written.append(b"".join(rb"\\u(?i:%b)" % unit.encode() for unit in units))
    if character in '/"\\':
        written.append(rb"\\" + regex.escape(character.encode()))
    return b"(?:" + b"|".join(written) + b")"
