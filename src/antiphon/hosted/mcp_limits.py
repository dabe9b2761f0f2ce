"""How long an MCP server is waited for, how much it may say, and which texts of a request it must not repeat.

It knows no connection. Invariant: a text that was redacted holds no secret of the server.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from antiphon.hosted.interface import McpServer

#: A shorter value is no secret worth the name, and replacing it would garble texts.
_SECRET_CHARACTERS: Final = 6
_CREDENTIAL_NAME: Final = re.compile(r"auth|cookie|token|secret|key|pass|credential|session", re.IGNORECASE)


class McpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on a server."""

    connect_timeout_s: float = 10.0
    call_timeout_s: float = 60.0
    max_tools: int = 1_000
    max_result_characters: int = 1_000_000


def list_secrets(server: McpServer) -> list[str]:
    """What no error may repeat, longest first: the authorization and all headers' values, with and without scheme."""
    return _list([server.authorization or "", *server.headers.values()])


def list_credentials(server: McpServer) -> list[str]:
    """What no result may repeat either. A header that only names a workspace may well stand in results."""
    named = [value for name, value in server.headers.items() if _CREDENTIAL_NAME.search(name)]
    return _list([server.authorization or "", *named])


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
