"""How long an MCP server is waited for, how much it may say, and which texts of a request it must not repeat.

It knows no connection. Invariants: a text that was redacted holds no secret of the server; of an answer it is known
how much there is to decode before anything is decoded.
"""

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from antiphon.hosted.interface import McpServer

#: A shorter value is no secret worth the name, and replacing it would garble texts.
_SECRET_CHARACTERS: Final = 6
_CREDENTIAL_NAME: Final = re.compile(r"auth|cookie|token|secret|key|pass|credential|session", re.IGNORECASE)
#: A string of JSON; the group is there where it goes on in the next piece, and holds the backslash at its end.
_STRING: Final = re.compile(rb'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*(?:"|\\?(?=\n)|(\\?)\Z)')


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on a server."""

    connect_timeout_s: float = 10.0
    call_timeout_s: float = 60.0
    max_tools: int = 1_000
    max_result_characters: int = 1_000_000


def list_secrets(server: McpServer) -> list[str]:
    """What no error may repeat, longest first: the authorization, all headers' values, with and without scheme, and
    what stands in the query of the URL."""
    query = urlsplit(server.url).query
    return _list(
        [server.authorization or "", *server.headers.values(), query, *(v for _, v in _read_query(query))]
    )


def list_credentials(server: McpServer) -> list[str]:
    """What no result may repeat either. A header that only names a workspace may well stand in results."""
    given = [*server.headers.items(), *_read_query(urlsplit(server.url).query)]
    named = [value for name, value in given if _CREDENTIAL_NAME.search(name)]
    return _list([server.authorization or "", *named])


def _read_query(query: str) -> list[tuple[str, str]]:
    return parse_qsl(query, keep_blank_values=True)


def _list(values: Iterable[str]) -> list[str]:
    return sorted({each for value in values for each in _spellings(value)}, key=len, reverse=True)


def _spellings(value: str) -> Iterable[str]:
    stripped = value.strip()
    rest = stripped.partition(" ")[2].strip()
    return [each for each in (stripped, rest) if len(each) >= _SECRET_CHARACTERS]


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without the secrets: `token is abc123456` -> `token is ***`."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def redact_all(value: Any, secrets: Iterable[str]) -> Any:
    """JSON without the secrets, in its keys and texts at any depth."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, list):
        return [redact_all(each, secrets) for each in value]
    if isinstance(value, dict):
        return {redact(str(key), secrets): redact_all(each, secrets) for key, each in value.items()}
    return value


class StructureCounter:
    """Counts the objects, arrays and commas of JSON that arrives in pieces, without those inside of strings.

    Decoding takes time for each of them, and blocks others for as long; a megabyte of text is decoded in no time.
    A string of JSON holds no line feed, so that lines of an event stream are counted each for itself.
    """

    def __init__(self) -> None:
        self.count = 0
        #: What stands for the beginning of a string that goes on.
        self._begun = b""

    def feed(self, piece: bytes) -> int:
        """The count with this piece."""
        # What is outside of strings, with a group between each two.
        parts = _STRING.split(self._begun + piece)
        self._begun = b'"' + parts[-2] if len(parts) > 1 and parts[-2] is not None else b""
        outside = b"".join(parts[::2])
        self.count += outside.count(b"{") + outside.count(b"[") + outside.count(b",")
        return self.count
