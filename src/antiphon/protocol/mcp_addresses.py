"""What a request may say of where an MCP server is, and what of it may be shown and stored.

It knows one declared server at a time, and opens nothing. Invariant: an address that was cut holds nothing that
lets anybody in: no name or password, which are refused, and no query, where servers take tokens.
"""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from antiphon.protocol.errors import RequestError
from antiphon.protocol.tool_forms import McpTool

HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\x80-\xff\t]*")
#: A URL holds none of these; readers of URLs differ in what they make of them.
_BLANKS: Final = re.compile(r"[\s\x00-\x20\x7f]")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def check_server(tool: McpTool, where: str) -> None:
    """Raise `RequestError` for an address or a header that cannot be used, or that holds credentials in the open."""
    if tool.server_url:
        _check_address(tool.server_url, f"{where}.server_url")
    if tool.authorization and not HEADER_VALUE.fullmatch(tool.authorization):
        raise _invalid(f"{where}.authorization", "it holds a character that no header can carry.")
    for name, value in (tool.headers or {}).items():
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise _invalid(f"{where}.headers", f"{name[:100]!r} or its value is no legal header.")


def _check_address(url: str, where: str) -> None:
    parts = _split(url)
    if parts is None:
        raise _invalid(where, "it must be an http:// or https:// URL with a host.")
    if "@" in parts.netloc:
        raise _invalid(
            where, "a URL is shown and stored, so it may hold no name and password. Use 'authorization'."
        )


def cut_query(url: str) -> str:
    """The address as it may be shown and stored: `https://a.no/mcp?key=x` -> `https://a.no/mcp`."""
    return re.split(r"[?#]", url, maxsplit=1)[0]


def has_secrets(fields: Mapping[str, object]) -> str | None:
    """The first key of a declared MCP server that must not be kept as it is."""
    for key in ("authorization", "headers"):
        if fields.get(key):
            return key
    url = fields.get("server_url")
    kept = not isinstance(url, str) or (
        cut_query(url) == url and "@" not in url.partition("://")[2].partition("/")[0]
    )
    return None if kept else "server_url"


def name_place(url: str) -> str:
    """What is the same for all spellings of an address: `HTTPS://A.no:443/mcp?x` -> `https://a.no:443/mcp`."""
    parts = _split(url)
    if parts is None:
        return ""
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    return f"{parts.scheme}://{(parts.hostname or '').rstrip('.')}:{port}{parts.path or '/'}"


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in _DEFAULT_PORTS and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        return None
    return parts if usable and not _BLANKS.search(url) else None


def _invalid(where: str, reason: str) -> RequestError:
    return RequestError(f"Invalid '{where}': {reason}", param=where, code="invalid_value")
